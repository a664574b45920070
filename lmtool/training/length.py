"""How long a run takes here: its steps, from epochs, tokens and minutes, whichever ends first, and its time."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lmtool.compute.device import Compute
from lmtool.errors import NumericalError
from lmtool.inference.load import Initialization, build_for_training
from lmtool.model import LanguageModel
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Checkpointing, Evaluation, Lbfgs
from lmtool.training.data import TrainingData
from lmtool.training.distillation import distilled
from lmtool.training.events import Timed
from lmtool.training.fit import Step, Trainable, fit, tokens_of_a_step
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import TimeBudget
from lmtool.training.windows import ExampleSource

VALIDATIONS = 12
"""Validations of a run whose length is not given in steps."""

WARM_UPS = 10
"""A run whose length is not given in steps warms up for this share of them at most: one in ten."""

PROBE_SECONDS = 6.0
"""Time for which a model is trained to measure the speed that the steps follow from."""

SECONDS = 1.5
"""The same where the speed only tells how long the steps will take; and the most for a part of a validation."""

PROBE_SHARE = 0.05
"""Share of the steps that are measured at most, where their number is known."""

LEAST_PROBE = 3
"""Steps that are measured at least."""

MOST_STEPS = 10**9
"""Steps of the model that is thrown away, which never sees the end of them."""

LEAST_SHARE = 0.25
"""Share of the time that is for training, however long it took to prepare the data."""

MARGIN = 1.05
"""Factor on the time of a whole pass over the data, so that it is one."""


def trial_steps(
    lm: LanguageModel,
    objective: Objective,
    examples: ExampleSource,
    recipe: Recipe,
    compute: Compute,
    limits: tuple[float, int],
) -> list[Step]:
    """The second half of the training of a model that is thrown away, since the first steps are slower.

    limits: seconds for which it lasts, and most of its steps. None where the loss is not finite.
    """
    for parameter in objective.idle(lm):
        parameter.requires_grad_(False)
    # as many weights as are trained in the end
    optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning.with_values({"unfreeze_every": None}))
    endless = recipe.with_values({"training.steps": MOST_STEPS})
    steps: list[Step] = []
    spent, (seconds, most) = 0.0, limits
    with suppress(NumericalError):
        for step in fit(Trainable(lm, objective, optimizers), examples, endless, compute):
            steps.append(step)
            # all processes stop at the same step
            (spent,) = compute.world.sum((spent + step.seconds if compute.world.is_main else 0.0,))
            if len(steps) >= LEAST_PROBE and (len(steps) >= most or spent > seconds):
                break
    return steps[len(steps) // 2 :]


@dataclass(frozen=True)
class Speed:
    """Seconds on this machine. unit: see `Objective`. before: since the command began. step: of one, on average.
    tokens: that it computes. validation: of one. after: of the measurement at the end."""

    unit: str
    before: float
    step: float
    tokens: float
    validation: float
    after: float

    @classmethod
    def measure(
        cls, data: TrainingData, initialization: Initialization, compute: Compute, began: float
    ) -> "Speed | None":
        """By some seconds of training and of validation; the same in all processes, by the figures of the main one.

        began: when the command did, by time.perf_counter. None for a model of counts, for L-BFGS, and where a loss is
        not finite or no step has a target.
        """
        recipe, tokenizer = data.recipe, data.prompt_format.tokenizer
        if recipe.model.counts or isinstance(recipe.optimizer, Lbfgs):
            return None
        lm, _ = build_for_training(recipe, tokenizer, compute, data.set_statistics, initialization)
        objective = build_objective(recipe, tokenizer, lm.counts_V)
        taught = distilled(objective, recipe, tokenizer, initialization.teacher, compute)
        examples = data.examples(objective)
        limits = SECONDS, math.ceil(PROBE_SHARE * recipe.training.steps)
        limits = (PROBE_SECONDS, MOST_STEPS) if recipe.training.minutes else limits
        steps = trial_steps(lm, taught, examples, recipe, compute, limits)
        computed = sum(step.computed for step in steps)
        if not computed:
            return None
        per_token, tokens = sum(step.seconds for step in steps) / computed, computed / len(steps)
        if data.unit == "row":
            tokens = tokens_of_a_step(examples, objective, recipe)
        # computing a token takes less than training on it
        (most,) = compute.world.sum((SECONDS / per_token if compute.world.is_main else 0.0,))
        sample, share = data.sample_validation(math.ceil(most) * compute.world.size)
        validation = _seconds(lambda: sample.validate(lm, objective, compute))
        # the first one is slower; all processes repeat it or none does
        if compute.world.sum((validation if compute.world.is_main else 0.0,))[0] < SECONDS:
            validation = _seconds(lambda: sample.validate(lm, objective, compute))
        validation /= share
        after, before = data.seconds_after(validation), time.perf_counter() - began
        figures = (before, per_token * tokens, tokens, validation, after)
        return cls(objective.unit, *compute.world.sum(figures if compute.world.is_main else (0.0,) * len(figures)))

    def seconds(self, steps: int, every: int, done: int = 0) -> float:
        """Of the steps of a run after the first `done`, a validation each `every` steps, and what comes at the end."""
        validations = math.ceil(steps / every) - done // every
        return (steps - done) * self.step + validations * self.validation + self.after


def with_length(data: TrainingData, speed: Speed | None) -> tuple[TrainingData, TimeBudget | None, str]:
    """The same data under a recipe with its steps resolved, its budget where time is a limit, and a line on the steps.

    The line is empty where nothing had to be. speed: None for a model of counts, which no time limits, and where no
    step could be timed.
    """
    recipe = data.recipe
    training = recipe.training
    limits: list[tuple[int, str]] = []
    budget = None
    if training.epochs is not None:
        source = "table" if data.unit == "row" else "text"
        limits.append((steps_of_epochs(data, training.epochs), f"{training.epochs:g} passes over the {source}"))
    if training.tokens is not None:
        limits.append((steps_of_tokens(recipe, training.tokens), f"{training.tokens:,} tokens"))
    if training.minutes is not None and speed is not None:
        seconds = 60 * training.minutes
        left = max(seconds - speed.before - speed.after, LEAST_SHARE * seconds)
        most = min((limit for limit, _ in limits), default=MOST_STEPS)
        budget = TimeBudget(time.perf_counter() + left, most)
        limit = _steps_in(left, speed, recipe.evaluation.every)
        limits.append((limit, f"{training.minutes:g} minutes at {speed.tokens / speed.step:,.0f} {speed.unit}s/s"))
    untimed = ""
    if training.minutes is not None and speed is None:
        untimed = f"training.minutes {training.minutes:g} has no effect: no step could be timed before training"
    if budget is None and (data.unit == "row" or not limits):
        return data, None, untimed and f"length: {training.steps:,} steps; {untimed}"
    steps, why = min(limits)
    values = {
        "training.steps": steps,
        **dict.fromkeys(f"training.{key}" for key in ("epochs", "min_steps", "tokens", "minutes")),
        "schedule.warmup_steps": min(recipe.schedule.warmup_steps, math.ceil(steps / WARM_UPS)),
        "evaluation.every": min(recipe.evaluation.every, _between(steps)),
        "evaluation.epochs": None,
        "checkpoint.every": min(recipe.checkpoint.every, _between(steps)),
    }
    return (
        data.with_recipe(recipe.with_values(values)),
        budget,
        f"length: {steps:,} steps, for {why}" + f"; {untimed}" * bool(untimed),
    )


def timed(data: TrainingData, speed: Speed, *, done: int = 0, draft: Recipe | None = None) -> Timed:
    """How long a run takes from now on, after its first `done` steps.

    draft: the recipe before its steps were resolved; None for a run that goes on.
    """
    recipe = data.recipe
    whole = steps_of_epochs(data, 1)
    minutes = None
    if draft is not None and recipe.training.steps < whole:
        every = min(draft.evaluation.every, _between(whole))
        seconds = MARGIN * (speed.before + speed.seconds(whole, every))
        # to the tenth of a minute, and above ten minutes to the minute
        minutes = math.ceil(seconds / 6) / 10 if seconds < 600 else math.ceil(seconds / 60)
    return Timed(
        seconds=speed.seconds(recipe.training.steps, recipe.evaluation.every, done),
        speed=speed.tokens / speed.step,
        unit=speed.unit,
        steps=recipe.training.steps - done,
        patience=recipe.evaluation.patience,
        whole_pass=minutes,
    )


def steps_of_epochs(data: TrainingData, epochs: float) -> int:
    """Steps of so many passes over the data."""
    training = data.recipe.training
    return max(training.min_steps or 1, math.ceil(epochs * data.per_epoch / training.batch_size))


def steps_of_tokens(recipe: Recipe, tokens: int) -> int:
    """Steps that so many tokens of text take."""
    return math.ceil(tokens / (recipe.training.batch_size * recipe.model.context))


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """A recipe of `with_length` with another number of steps, validated and saved as often as before."""
    before, after = _between(recipe.training.steps), _between(steps)

    def every(part: Evaluation | Checkpointing) -> int:
        return after if part.every == before else min(part.every, after)

    intervals = {"evaluation.every": every(recipe.evaluation), "checkpoint.every": every(recipe.checkpoint)}
    return recipe.with_values({"training.steps": steps, **intervals})


def _between(steps: int) -> int:
    """Steps between two validations."""
    return math.ceil(steps / VALIDATIONS)


def _steps_in(seconds: float, speed: Speed, every: int) -> int:
    """The steps that so much time leaves beside the validations, which come at least as often as each `every` steps."""
    steps = min(
        (seconds - VALIDATIONS * speed.validation) / speed.step, seconds / (speed.step + speed.validation / every)
    )
    return max(1, int(max(steps, LEAST_SHARE * seconds / speed.step)))


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
