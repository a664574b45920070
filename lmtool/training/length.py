"""How many steps a run on text takes: from epochs, tokens and minutes, whichever ends first."""

import math
import statistics
import time
from collections.abc import Callable

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.inference.base import Base
from lmtool.inference.load import learner
from lmtool.objective import build_objective
from lmtool.training.data import TextData
from lmtool.training.fit import fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.teaching import distilled

VALIDATIONS = 12
"""Validations of a run whose length is not given in steps."""

WARM_UPS = 10
"""A run whose length is not given in steps warms up for this share of them at most: one in ten."""

PROBE_SECONDS = 4.0
"""Time for which the speed is measured."""

WARM_UP = 2
"""Steps that are not measured, since the first ones are slower."""

MOST_STEPS = 10**9
"""Steps of the model that is thrown away, which never sees the end of them."""

LEAST_SHARE = 0.25
"""Share of the time that is for training, however long it took to prepare the text."""


def with_length(
    data: TextData, began: float, compute: Compute, world: World, base: Base | None, teacher: Base | None = None
) -> tuple[TextData, str]:
    """The same text under a recipe with its steps resolved, and a line on them.

    began: when the command did, by time.perf_counter. base, teacher: as for `train`.
    """
    recipe = data.recipe
    training = recipe.training
    limits: list[tuple[int, str]] = []
    if training.epochs is not None:
        per_epoch = data.examples(build_objective(recipe, data.framing.tokenizer)).per_epoch
        steps = max(training.min_steps or 1, math.ceil(training.epochs * per_epoch / training.batch_size))
        limits.append((steps, f"{training.epochs:g} passes over the text"))
    if training.tokens is not None:
        steps = math.ceil(training.tokens / (training.batch_size * recipe.model.context))
        limits.append((steps, f"{training.tokens:,} tokens"))
    if training.minutes is not None:
        per_step, steps = _steps_in(training.minutes, data, began, compute, world, base, teacher)
        speed = training.batch_size * recipe.model.context / per_step
        limits.append((steps, f"{training.minutes:g} minutes at {speed:,.0f} tokens/s"))
    steps, why = min(limits)
    between = math.ceil(steps / VALIDATIONS)
    evaluation, checkpoint, schedule = recipe.evaluation, recipe.checkpoint, recipe.schedule
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
    return data.with_recipe(settled), f"length: {steps:,} steps, for {why}"


def _steps_in(
    minutes: float,
    data: TextData,
    began: float,
    compute: Compute,
    world: World,
    base: Base | None,
    teacher: Base | None,
) -> tuple[float, int]:
    """Seconds per step, and the steps that so many minutes leave beside preparation, validation and the comparison.

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
        if len(seconds) > WARM_UP and spent > PROBE_SECONDS:
            break
    # the first one is slower
    validation = min(_seconds(lambda: data.validate(lm, objective, compute, world)) for _ in range(2))
    after = data.seconds_after(validation)
    left = 60 * minutes - (time.perf_counter() - began) - VALIDATIONS * validation - after
    left = max(left, LEAST_SHARE * 60 * minutes)
    per_step = statistics.median(seconds[WARM_UP:])
    own = (per_step, left / per_step) if world.is_main else (0.0, 0.0)
    per_step, steps = world.sum(own, compute)
    return per_step, max(1, int(steps))


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
