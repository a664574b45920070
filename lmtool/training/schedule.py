"""The learning rate as a function of the step."""

import math

from lmtool.recipe.spec import Constant, Cosine, InverseSquareRoot, Linear, Schedule


def multiplier(spec: Schedule, step: int, steps: int, d_model: int) -> float:
    """The factor on the optimizer's learning rates at `step` (from 0) of `steps`.

    The warm-up reaches 1 at its last step; decays go from 1 to final_fraction, which they would reach at `steps`, so
    that no step has a learning rate of zero.
    """
    if isinstance(spec, InverseSquareRoot):
        t = step + 1
        return float(d_model**-0.5 * min(t**-0.5, t * spec.warmup_steps**-1.5))
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(1, steps - spec.warmup_steps)
    match spec:
        case Constant():
            return 1.0
        case Linear(final_fraction=final):
            return 1 - (1 - final) * done
        case Cosine(final_fraction=final):
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
