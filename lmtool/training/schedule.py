"""The learning rate as a function of the step."""

import math

from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Constant, Cosine, InverseSquareRoot, Linear, Schedule

LOW_FACTOR, LOW_RATE = 0.1, 1e-4
"""The inverse-square-root schedule is doubtful with an `lr` below the first and a peak rate below the second."""


def learning_rate_factor(spec: Schedule, step: int, steps: int, d_model: int) -> float:
    """Returns the factor on the optimizer's learning rates at `step` (from 0) of `steps`.

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
        case Linear(final_fraction=final, decay_fraction=share):
            return 1 - (1 - final) * max(0.0, 1 - (1 - done) / share)
        case Cosine(final_fraction=final):
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


def tiny_inverse_sqrt_rate_warning(recipe: Recipe) -> str | None:
    """Returns a warning of an inverse-square-root schedule whose `lr`, a factor, looks like a rate; None for others.

    The peak rate is lr (d_model warmup_steps)^-0.5, at the last step of the warm-up.
    """
    schedule, lr, d_model = recipe.schedule, recipe.optimizer.lr, recipe.model.d_model
    if recipe.model.counts or not isinstance(schedule, InverseSquareRoot):
        return None
    highest = lr * learning_rate_factor(schedule, schedule.warmup_steps - 1, schedule.warmup_steps, d_model)
    if lr >= LOW_FACTOR or highest >= LOW_RATE:
        return None
    return (
        f"the inverse-square-root schedule multiplies optimizer.lr {lr:g} by d_model^-0.5 and more, to "
        f"{highest:.2g} at most; take optimizer.lr 1 as in the paper ({highest / lr:.2g}), or another schedule"
    )
