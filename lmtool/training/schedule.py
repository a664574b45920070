"""The learning rate as a function of the step."""

import math
import time
from dataclasses import dataclass

from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Constant, Cosine, InverseSquareRoot, Linear, Schedule

TOLERANCE = 0.03
"""Relative change of the number of steps below which it stays as it is."""

LOW_FACTOR, LOW_RATE = 0.1, 1e-4
"""An `lr` below the first is no factor of an inverse square root, where the highest rate is below the second."""


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
        case Linear(final_fraction=final, decay_fraction=share):
            return 1 - (1 - final) * max(0.0, 1 - (1 - done) / share)
        case Cosine(final_fraction=final):
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


def shortest(recipe: Recipe, done: int) -> int | None:
    """The least number of steps of a run whose first `done` steps, at least one, are those of this recipe.

    None when they depend on the number of all steps, so that there is no other.
    """
    schedule = recipe.schedule
    if getattr(recipe.objective, "scheduled_sampling", None) is not None:
        return None
    if isinstance(schedule, Constant | InverseSquareRoot) or done <= schedule.warmup_steps:
        return done
    if isinstance(schedule, Cosine):
        return None
    warmup, plateau = schedule.warmup_steps, 1 - schedule.decay_fraction
    if done - warmup > plateau * (recipe.training.steps - warmup):
        return None
    return math.ceil(warmup + (done - warmup) / plateau)


@dataclass(frozen=True)
class TimeBudget:
    """The time that a run has. Its number of steps follows the speed, while the steps done do not depend on it.

    until: when training has to end, by time.perf_counter. most: steps that another limit leaves.
    """

    until: float
    most: int

    def steps(self, recipe: Recipe, done: int, began: float) -> int:
        """The number of steps of the run, after `done` of them since `began` by time.perf_counter."""
        least = shortest(recipe, done)
        if least is None:
            return recipe.training.steps
        now = time.perf_counter()
        steps = max(least, done + 1, done + int((self.until - now) * done / (now - began)))
        steps = min(steps, max(self.most, done + 1))
        is_close = abs(steps - recipe.training.steps) <= TOLERANCE * recipe.training.steps
        return recipe.training.steps if is_close else steps


def doubtful_rate(recipe: Recipe) -> str | None:
    """A warning about an inverse-square-root schedule whose `lr` is meant as a rate, not as a factor; None for others.

    The highest rate is lr (d_model warmup_steps)^-0.5, at the last step of the warm-up.
    """
    schedule, lr, d_model = recipe.schedule, recipe.optimizer.lr, recipe.model.d_model
    if recipe.model.counts or not isinstance(schedule, InverseSquareRoot):
        return None
    highest = lr * multiplier(schedule, schedule.warmup_steps - 1, schedule.warmup_steps, d_model)
    if lr >= LOW_FACTOR or highest >= LOW_RATE:
        return None
    return (
        f"the inverse-square-root schedule multiplies optimizer.lr {lr:g} by d_model^-0.5 and more, to "
        f"{highest:.2g} at most; take optimizer.lr 1 as in the paper ({highest / lr:.2g}), or another schedule"
    )
