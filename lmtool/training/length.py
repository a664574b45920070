"""How long a run takes here: its steps, from epochs, tokens and minutes, whichever ends first, and its time."""

import math
import time
from dataclasses import dataclass, field

from lmtool.compute.processes import World
from lmtool.objective import Objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Checkpointing, Evaluation, Lbfgs
from lmtool.tasks.data import TableData
from lmtool.training.data import TrainingData
from lmtool.training.events import Timed
from lmtool.training.fit import Step, tokens_of_a_step
from lmtool.training.folds import n_scoring_models
from lmtool.training.windows import ExampleSource

VALIDATIONS = 12
"""Validations of a run whose length is not given in steps."""

WARM_UPS = 10
"""A run whose length is not given in steps warms up for this share of them at most: one in ten."""

PROBE_SECONDS = 6.0
"""Duration of the first steps, whose speed sets the length of a run with a time limit."""

SECONDS = 1.5
"""The same where the speed only tells how long the steps will take."""

PROBE_SHARE = 0.05
"""Share of the steps, or of the time limit, that is measured at most."""

LEAST_PROBE = 3
"""Steps that are measured at least."""

MOST_STEPS = 10**9
"""Steps of a run with a time limit, until its speed is known."""

LEAST_SHARE = 0.25
"""Share of the time that is for training, however long it took to prepare the data."""

FORWARD = 1 / 3
"""Share of the time of a training step that computing its loss takes: a backward pass is two of that."""

MARGIN = 1.05
"""Factor on the time of a whole pass over the data, so that it is one."""


@dataclass
class FirstSteps:
    """The first steps of a session, which tell its speed.

    seconds: after which they are enough, or earlier after `most` of them, but not before LEAST_PROBE.
    """

    seconds: float
    most: int = MOST_STEPS
    steps: list[Step] = field(default_factory=list)
    spent: float = 0.0

    @classmethod
    def of(cls, recipe: Recipe) -> "FirstSteps":
        """As many as the recipe needs to be timed."""
        if (minutes := recipe.training.minutes) is not None:
            return cls(min(PROBE_SECONDS, PROBE_SHARE * 60 * minutes))
        return cls(SECONDS, math.ceil(PROBE_SHARE * recipe.training.steps))

    def add(self, step: Step, world: World) -> bool:
        """Add a step. Returns whether they are enough, at the same step in all processes."""
        self.steps.append(step)
        (self.spent,) = world.all_reduce_sum((self.spent + step.seconds if world.is_main else 0.0,))
        n_steps = len(self.steps)
        return n_steps >= LEAST_PROBE and (n_steps >= self.most or self.spent >= self.seconds)

    @property
    def later(self) -> list[Step]:
        """The second half, because the first steps include warm-up."""
        return self.steps[len(self.steps) // 2 :]


@dataclass(frozen=True)
class Speed:
    """Seconds on this machine. unit: see `Objective`. step: of one, on average. tokens: that it computes. validation:
    of one. after: of the measurement at the end. scoring_steps: those of the models that score rows where all are
    trained on, for each step of training; else 0."""

    unit: str
    step: float
    tokens: float
    validation: float
    after: float
    scoring_steps: float = 0.0

    @classmethod
    def of(
        cls,
        first: FirstSteps,
        recipe: Recipe,
        data: TrainingData,
        examples: ExampleSource,
        objective: Objective,
        world: World,
    ) -> "Speed | None":
        """By the first steps of a run; the same in all processes, by the figures of the main one. The time of a
        validation follows from theirs. None where no step had a target."""
        computed = sum(step.computed for step in first.later)
        if not computed:
            return None
        per_token, tokens = sum(step.seconds for step in first.later) / computed, computed / len(first.later)
        if data.unit == "row":
            tokens = tokens_of_a_step(examples, objective, recipe)
        validation = FORWARD * per_token * data.validation_tokens / world.size
        figures = (per_token * tokens, tokens, validation, data.seconds_after(validation))
        shared = world.all_reduce_sum(figures if world.is_main else (0.0,) * len(figures))
        n_models = n_scoring_models(recipe, data) if isinstance(data, TableData) else 0
        return cls(objective.unit, shared[0], shared[1], shared[2], shared[3], float(n_models))

    def seconds(self, steps: int, every: int, done: int = 0) -> float:
        """Of the steps of a run after the first `done`, a validation each `every` steps, and what comes at the end."""
        validations = math.ceil(steps / every) - done // every
        return (steps - done + self.scoring_steps * steps) * self.step + validations * self.validation + self.after

    def steps_in(self, seconds: float, every: int) -> int:
        """The steps that so much time leaves beside the validations, which come at least each `every` steps."""
        steps = min(
            (seconds - VALIDATIONS * self.validation) / self.step, seconds / (self.step + self.validation / every)
        )
        return max(1, int(max(steps, LEAST_SHARE * seconds / self.step)))


def with_length(recipe: Recipe, data: TrainingData) -> tuple[Recipe, str]:
    """The recipe with the steps that its epochs and tokens give, and a line on them.

    Unchanged, without a line, where it has neither, for a table, whose steps are known when it is read, and with a
    limit of time, by which `train` sets the steps.
    """
    if recipe.training.minutes is not None or data.unit == "row" or not (limits := _limits(recipe, data)):
        return recipe, ""
    steps, why = min(limits)
    return with_known_steps(recipe, steps), f"length: {steps:,} steps, for {why}"


def is_timed(recipe: Recipe) -> bool:
    """Whether steps take time that could limit them: not those of a model that is fitted or counted at once."""
    return not recipe.model.counts and not isinstance(recipe.optimizer, Lbfgs)


def most_steps(recipe: Recipe, data: TrainingData) -> tuple[int, str]:
    """The steps that epochs and tokens allow a run with a limit of time, and which of them does."""
    return min(_limits(recipe, data), default=(MOST_STEPS, ""))


def _limits(recipe: Recipe, data: TrainingData) -> list[tuple[int, str]]:
    training, limits = recipe.training, list[tuple[int, str]]()
    if training.epochs is not None:
        source = "table" if data.unit == "row" else "text"
        limits.append((steps_of_epochs(recipe, data, training.epochs), f"{training.epochs:g} passes over the {source}"))
    if training.tokens is not None:
        limits.append((steps_of_tokens(recipe, training.tokens), f"{training.tokens:,} tokens"))
    return limits


def with_known_steps(recipe: Recipe, steps: int) -> Recipe:
    """A recipe whose length was given otherwise, with its steps, and intervals and a warm-up that fit them."""
    values = {
        "training.steps": steps,
        **dict.fromkeys(f"training.{key}" for key in ("epochs", "min_steps", "tokens", "minutes")),
        "schedule.warmup_steps": min(recipe.schedule.warmup_steps, math.ceil(steps / WARM_UPS)),
        "evaluation.every": min(recipe.evaluation.every, _between(steps)),
        "evaluation.epochs": None,
        "checkpoint.every": min(recipe.checkpoint.every, _between(steps)),
    }
    return recipe.with_values(values)


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """A recipe of `with_known_steps` with another number of steps, validated and saved as often as before."""
    before, after = _between(recipe.training.steps), _between(steps)

    def every(part: Evaluation | Checkpointing) -> int:
        return after if part.every == before else min(part.every, after)

    intervals = {"evaluation.every": every(recipe.evaluation), "checkpoint.every": every(recipe.checkpoint)}
    return recipe.with_values({"training.steps": steps, **intervals})


def timed(recipe: Recipe, data: TrainingData, speed: Speed, done: int, began: float | None, usual_every: int) -> Timed:
    """How long a run takes from now on, after its first `done` steps. began: when the command of a new run did, by
    time.perf_counter; None for a run that goes on. usual_every: steps between validations of a longer run."""
    training, whole, minutes = recipe.training, steps_of_epochs(recipe, data, 1), None
    if began is not None and training.steps < whole:
        left = speed.seconds(whole, min(usual_every, _between(whole)), done)
        seconds = MARGIN * (time.perf_counter() - began + left)
        # to the tenth of a minute, and above ten minutes to the minute
        minutes = math.ceil(seconds / 6) / 10 if seconds < 600 else math.ceil(seconds / 60)
    return Timed(
        seconds=speed.seconds(training.steps, recipe.evaluation.every, done),
        speed=speed.tokens / speed.step,
        unit=speed.unit,
        steps=training.steps - done,
        patience=recipe.evaluation.patience,
        whole_pass=minutes,
    )


def steps_of_epochs(recipe: Recipe, data: TrainingData, epochs: float) -> int:
    """Steps of so many passes over the data."""
    training = recipe.training
    return max(training.min_steps or 1, math.ceil(epochs * data.per_epoch / training.batch_size))


def steps_of_tokens(recipe: Recipe, tokens: int) -> int:
    """Steps that so many tokens of text take."""
    return math.ceil(tokens / (recipe.training.batch_size * recipe.model.context))


def _between(steps: int) -> int:
    """Steps between two validations."""
    return math.ceil(steps / VALIDATIONS)
