"""How many steps a run on text takes: from epochs, tokens and minutes, whichever ends first."""

import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.inference.base import Base
from lmtool.inference.load import learner
from lmtool.objective import build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Checkpointing, Evaluation
from lmtool.training.data import TextData
from lmtool.training.fit import fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import Pace
from lmtool.training.teaching import distilled

VALIDATIONS = 12
"""Validations of a run whose length is not given in steps."""

WARM_UPS = 10
"""A run whose length is not given in steps warms up for this share of them at most: one in ten."""

PROBE_SECONDS = 6.0
"""Time for which a model is trained to measure the speed: in its second half, since the first steps are slower."""

LEAST_PROBE = 3
"""Steps of that training at least."""

MOST_STEPS = 10**9
"""Steps of the model that is thrown away, which never sees the end of them."""

LEAST_SHARE = 0.25
"""Share of the time that is for training, however long it took to prepare the text."""


def with_length(
    data: TextData, began: float, compute: Compute, world: World, base: Base | None, teacher: Base | None = None
) -> tuple[TextData, str]:
    """The same text under a recipe with its steps resolved, and a line on them; with its pace, where time is a limit.

    began: when the command did, by time.perf_counter. base, teacher: as for `train`.
    """
    recipe = data.recipe
    training = recipe.training
    limits: list[tuple[int, str]] = []
    pace = None
    if training.epochs is not None:
        limits.append((steps_of_epochs(data, training.epochs), f"{training.epochs:g} passes over the text"))
    if training.tokens is not None:
        limits.append((steps_of_tokens(recipe, training.tokens), f"{training.tokens:,} tokens"))
    if training.minutes is not None:
        measured = _measure(training.minutes, data, began, compute, world, base, teacher)
        most = min((limit for limit, _ in limits), default=MOST_STEPS)
        pace = Pace(measured.until, most)
        speed = training.batch_size * recipe.model.context / measured.per_step
        limits.append((measured.steps, f"{training.minutes:g} minutes at {speed:,.0f} tokens/s"))
    steps, why = min(limits)
    evaluation, checkpoint, schedule, between = recipe.evaluation, recipe.checkpoint, recipe.schedule, _between(steps)
    warmup = min(schedule.warmup_steps, math.ceil(steps / WARM_UPS))
    no_budget = dict.fromkeys(("epochs", "min_steps", "tokens", "minutes"))
    settled = recipe.model_copy(
        update={
            "training": training.model_copy(update={"steps": steps, **no_budget}),
            "schedule": schedule.model_copy(update={"warmup_steps": warmup}),
            "evaluation": evaluation.model_copy(update={"every": min(evaluation.every, between)}),
            "checkpoint": checkpoint.model_copy(update={"every": min(checkpoint.every, between)}),
        }
    )
    pace = None if recipe.model.counts else pace
    return data.with_recipe(settled, pace), f"length: {steps:,} steps, for {why}"


def steps_of_epochs(data: TextData, epochs: float) -> int:
    """Steps of so many passes over a text."""
    training = data.recipe.training
    return max(training.min_steps or 1, math.ceil(epochs * data.per_epoch / training.batch_size))


def steps_of_tokens(recipe: Recipe, tokens: int) -> int:
    """Steps that so many tokens take."""
    return math.ceil(tokens / (recipe.training.batch_size * recipe.model.context))


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """A recipe of `with_length` with another number of steps, validated and saved as often as before."""
    before, after = _between(recipe.training.steps), _between(steps)

    def every(part: Evaluation | Checkpointing) -> dict[str, int]:
        return {"every": after if part.every == before else min(part.every, after)}

    return recipe.model_copy(
        update={
            "training": recipe.training.model_copy(update={"steps": steps}),
            "evaluation": recipe.evaluation.model_copy(update=every(recipe.evaluation)),
            "checkpoint": recipe.checkpoint.model_copy(update=every(recipe.checkpoint)),
        }
    )


def _between(steps: int) -> int:
    """Steps between two validations."""
    return math.ceil(steps / VALIDATIONS)


class _Speed(NamedTuple):
    """What was measured: seconds per step, the steps that the time leaves, and when training has to end."""

    per_step: float
    steps: int
    until: float


def _measure(
    minutes: float,
    data: TextData,
    began: float,
    compute: Compute,
    world: World,
    base: Base | None,
    teacher: Base | None,
) -> _Speed:
    """The speed here, and the steps that so many minutes leave beside preparation, validation and the comparison.

    A model is trained for some seconds and thrown away; all processes use the figures of the main one.
    """
    recipe = data.recipe
    lm, _ = learner(recipe, data.framing.tokenizer, compute, data.set_statistics, base, False, None)
    objective = build_objective(recipe, data.framing.tokenizer, lm.counts_V)
    taught = objective
    if teacher is not None:
        taught = distilled(objective, recipe, data.framing.tokenizer, teacher, compute)
    for parameter in objective.idle(lm):
        parameter.requires_grad_(False)
    optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
    seconds: list[float] = []
    endless = recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": MOST_STEPS})})
    for step in fit(lm, taught, optimizers, data.examples(objective), endless, compute, world):
        seconds.append(step.seconds)
        (spent,) = world.sum((sum(seconds) if world.is_main else 0.0,), compute)
        if len(seconds) >= LEAST_PROBE and spent > PROBE_SECONDS:
            break
    # the first one is slower
    validation = min(_seconds(lambda: data.validate(lm, objective, compute, world)) for _ in range(2))
    after = data.seconds_after(validation)
    now = time.perf_counter()
    until = max(began + 60 * minutes - after, now + LEAST_SHARE * 60 * minutes)
    per_step = statistics.median(seconds[len(seconds) // 2 :])
    left = max(until - now - VALIDATIONS * validation, LEAST_SHARE * (until - now))
    own = (per_step, left / per_step) if world.is_main else (0.0, 0.0)
    per_step, steps = world.sum(own, compute)
    return _Speed(per_step, max(1, int(steps)), until)


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
