"""The length of a run: its number of steps by epochs, tokens and minutes, and how long they take."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lmtool.compute.processes import World
from lmtool.objective import Objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Constant, Cosine, InverseSquareRoot, Lbfgs
from lmtool.tasks.data import TableData
from lmtool.training.data import TrainingData
from lmtool.training.events import DurationEstimate
from lmtool.training.fit import CompletedStep, estimate_tokens_per_step
from lmtool.training.folds import count_fold_models
from lmtool.training.windows import ExampleSource

N_VALIDATIONS = 12
"""Number of validations of a run whose length is not given in steps."""

MIN_STEPS_PER_WARMUP_STEP = 10
"""The warm-up of a run whose length is not given in steps takes one of so many steps at most."""

MAX_PROBE_SECONDS = 6.0
"""Seconds of first steps that are timed to set the length of a run with a time limit."""

ESTIMATE_SECONDS = 1.5
"""Seconds of first steps that are timed to estimate the duration of other runs."""

MAX_PROBE_FRACTION = 0.05
"""Maximum fraction of the steps, or of the time limit, that is timed."""

MIN_PROBE_STEPS = 3
"""Minimum number of steps that are timed."""

UNKNOWN_STEPS = 10**9
"""Number of steps of a run with a time limit while its speed is unknown."""

MIN_TIME_FRACTION = 0.25
"""Minimum fraction of the time limit that is left for training steps, however long preparing the data took."""

FORWARD_FRACTION = 1 / 3
"""Fraction of the time of a training step for its forward pass: a backward pass takes twice as long."""

PASS_MARGIN = 1.05
"""Safety factor on the suggested minutes of a whole pass over the data."""


REVISION_TOLERANCE = 0.03
"""Relative change below which the number of steps is not revised."""


@dataclass
class TimedFirstSteps:
    """The first steps of a session, which are timed until they take `max_seconds` or are `max_steps`.

    They are at least MIN_PROBE_STEPS.
    """

    max_seconds: float
    max_steps: int = UNKNOWN_STEPS
    steps: list[CompletedStep] = field(default_factory=list)
    seconds: float = 0.0

    def add_and_check_enough(self, step: CompletedStep, world: World) -> bool:
        """Adds a step. Returns whether the steps are enough, which all processes agree on."""
        self.steps.append(step)
        (self.seconds,) = world.all_reduce_sum((self.seconds + step.seconds if world.is_main else 0.0,))
        n_steps = len(self.steps)
        return n_steps >= MIN_PROBE_STEPS and (n_steps >= self.max_steps or self.seconds >= self.max_seconds)

    @property
    def later_half(self) -> list[CompletedStep]:
        """The second half of the steps, since the first ones are slower."""
        return self.steps[len(self.steps) // 2 :]


@dataclass(frozen=True)
class MeasuredDurations:
    """Durations on this machine, in seconds.

    unit: what `step_tokens` counts; see `Objective.unit`.
    step_seconds: mean duration of a training step, which computes `step_tokens` tokens.
    validation_seconds: of one validation.
    final_evaluation_seconds: of the evaluation after the last step.
    scoring_steps: additional steps, for each step of training, of models that score rows of a table when none are held
        out; else 0.
    """

    unit: str
    step_seconds: float
    step_tokens: float
    validation_seconds: float
    final_evaluation_seconds: float
    scoring_steps: float = 0.0

    def estimate_seconds_until_end(self, steps: int, validation_interval: int, steps_done: int = 0) -> float:
        """Estimates the duration of a run after its first `steps_done` steps, with validations and final evaluation."""
        n_validations = math.ceil(steps / validation_interval) - steps_done // validation_interval
        n_steps = steps - steps_done + self.scoring_steps * steps
        return n_steps * self.step_seconds + n_validations * self.validation_seconds + self.final_evaluation_seconds

    def count_steps_within(self, seconds: float, validation_interval: int) -> int:
        """Returns the number of steps for which a time suffices, with a validation at least each interval."""
        steps = min(
            (seconds - N_VALIDATIONS * self.validation_seconds) / self.step_seconds,
            seconds / (self.step_seconds + self.validation_seconds / validation_interval),
        )
        return max(1, int(max(steps, MIN_TIME_FRACTION * seconds / self.step_seconds)))


class RunLengthController:
    """The number of steps of a run while a session trains it. A time limit sets it by the speed of the first steps, and
    revises it.

    minutes: the time limit, if there is one. durations: None until they are known.
    """

    def __init__(self, recipe: Recipe, data: TrainingData, world: World, started_at: float | None) -> None:
        """recipe: before its number of steps is revised. started_at: when the command of a new run started, by
        time.perf_counter; None for a resumed run."""
        self._recipe, self._data, self._world, self._started_at = recipe, data, world, started_at
        # not of models that are fitted or counted at once
        is_timed = not recipe.model.counts and not isinstance(recipe.optimizer, Lbfgs)
        self.minutes = recipe.training.minutes if is_timed else None
        if self.minutes is not None:
            first_steps = TimedFirstSteps(min(MAX_PROBE_SECONDS, MAX_PROBE_FRACTION * 60 * self.minutes))
        else:
            first_steps = TimedFirstSteps(ESTIMATE_SECONDS, math.ceil(MAX_PROBE_FRACTION * recipe.training.steps))
        self._first_steps = first_steps if is_timed else None
        self._max_steps, self._limited_by = min(
            convert_epochs_and_tokens_to_steps(recipe, data), default=(UNKNOWN_STEPS, "")
        )
        self._deadline = math.inf
        self.durations: MeasuredDurations | None = None

    @property
    def recipe_until_timed(self) -> Recipe:
        """The recipe with which the session starts; with a time limit it has the maximum number of steps."""
        if self.minutes is None:
            return self._recipe
        return self._recipe.with_unvalidated_values({"training.steps": self._max_steps})

    def add_step_and_set_durations(
        self, step: CompletedStep, examples: ExampleSource, objective: Objective, *, must_finish: bool
    ) -> bool:
        """Adds one of the first steps. Returns whether they are enough now, so that `durations` are known.

        must_finish: with a time limit they are enough at this step.
        """
        if self._first_steps is None:
            return False
        is_enough = self._first_steps.add_and_check_enough(step, self._world)
        if not is_enough and not (must_finish and self.minutes is not None):
            return False
        steps, self._first_steps = self._first_steps.later_half, None
        self.durations = self._estimate_durations_from_steps(steps, examples, objective)
        return True

    def _estimate_durations_from_steps(
        self, steps: Sequence[CompletedStep], examples: ExampleSource, objective: Objective
    ) -> MeasuredDurations | None:
        """Returns the durations by some steps, as the main process measured them; None if no step had a target.

        That of a validation is estimated from theirs.
        """
        recipe, data, world = self._recipe, self._data, self._world
        computed = sum(step.n_computed for step in steps)
        if not computed:
            return None
        per_token, tokens = sum(step.seconds for step in steps) / computed, computed / len(steps)
        if data.unit == "row":
            tokens = estimate_tokens_per_step(examples, objective, recipe)
        validation = FORWARD_FRACTION * per_token * data.validation_tokens / world.size
        figures = (per_token * tokens, tokens, validation, data.estimate_final_evaluation_seconds(validation))
        shared = world.all_reduce_sum(figures if world.is_main else (0.0,) * len(figures))
        n_models = count_fold_models(recipe, data) if isinstance(data, TableData) else 0
        return MeasuredDurations(objective.unit, shared[0], shared[1], shared[2], shared[3], float(n_models))

    def choose_steps_for_time_limit(self, steps_done: int, validation_interval: int) -> tuple[int, str]:
        """Returns the number of steps of a run with a time limit by its first steps, and a description of the limit."""
        assert self.minutes is not None
        if self.durations is None:
            why = self._limited_by or "since the first steps have no target, and so no speed"
            return self._max_steps if self._limited_by else self._recipe.training.steps, why
        spent = 0.0 if self._started_at is None else time.perf_counter() - self._started_at
        limit = 60 * self.minutes
        left = max(limit - spent - self.durations.final_evaluation_seconds, MIN_TIME_FRACTION * limit)
        left /= 1 + self.durations.scoring_steps
        (seconds,) = self._world.all_reduce_sum((left if self._world.is_main else 0.0,))
        self._deadline = time.perf_counter() + seconds
        speed = self.durations.step_tokens / self.durations.step_seconds
        pace = f"{self.minutes:g} minutes at {speed:,.0f} {self.durations.unit}s/s"
        steps = steps_done + self.durations.count_steps_within(seconds, validation_interval)
        return min((self._max_steps, self._limited_by), (steps, f"for {pace}"))

    def record_validation_seconds(self, seconds: float) -> None:
        """Corrects the speed by the duration of a validation, and the deadline by that of the final evaluation."""
        if self.durations is None:
            return
        before = self.durations.final_evaluation_seconds
        self.durations = replace(
            self.durations,
            validation_seconds=seconds,
            final_evaluation_seconds=self._data.estimate_final_evaluation_seconds(seconds),
        )
        self._deadline -= (self.durations.final_evaluation_seconds - before) / (1 + self.durations.scoring_steps)

    def compute_revised_steps(self, recipe: Recipe, steps_done: int, started_at: float) -> int:
        """Returns the number of steps by the speed so far: the same in all processes, and unchanged without a limit.

        started_at: when the steps of this session started, by time.perf_counter.
        """
        if self.minutes is None or self.durations is None or steps_done >= recipe.training.steps:
            return recipe.training.steps
        steps = count_steps_by_deadline(recipe, steps_done, started_at, self._deadline, self._max_steps)
        return int(self._world.all_reduce_sum((steps if self._world.is_main else 0,))[0])

    def estimate_duration(self, recipe: Recipe, steps_done: int, examples_per_epoch: int) -> DurationEstimate:
        """Estimates how long the run takes from now on. The durations must be known."""
        assert self.durations is not None
        training, every = recipe.training, self._recipe.evaluation.every
        pass_steps, minutes = count_epoch_steps(recipe, examples_per_epoch, 1), None
        if self._started_at is not None and training.steps < pass_steps:
            interval = min(every, _validation_interval(pass_steps))
            left = self.durations.estimate_seconds_until_end(pass_steps, interval, steps_done)
            seconds = PASS_MARGIN * (time.perf_counter() - self._started_at + left)
            # rounded up to tenths of a minute, above ten minutes to minutes
            minutes = math.ceil(seconds / 6) / 10 if seconds < 600 else math.ceil(seconds / 60)
        return DurationEstimate(
            seconds=self.durations.estimate_seconds_until_end(training.steps, recipe.evaluation.every, steps_done),
            speed=self.durations.step_tokens / self.durations.step_seconds,
            unit=self.durations.unit,
            steps=training.steps - steps_done,
            patience=recipe.evaluation.patience,
            pass_minutes=minutes,
        )


def set_steps_from_data(recipe: Recipe, data: TrainingData) -> tuple[Recipe, str]:
    """Returns the recipe with the steps that follow from its epochs and tokens, and a line that says so.

    Unchanged, with an empty line, without either, for a table, whose steps are known when it is read, and with a time
    limit, for which the session sets the steps.
    """
    if recipe.training.minutes is not None or data.unit == "row":
        return recipe, ""
    limits = convert_epochs_and_tokens_to_steps(recipe, data)
    if not limits:
        return recipe, ""
    steps, why = min(limits)
    return fix_steps_and_intervals(recipe, steps), f"length: {steps:,} steps, for {why}"


def convert_epochs_and_tokens_to_steps(recipe: Recipe, data: TrainingData | None) -> list[tuple[int, str]]:
    """Returns the maximum steps by epochs, if the data are known, and by tokens, with a description of each limit."""
    training, limits = recipe.training, list[tuple[int, str]]()
    if training.epochs is not None and data is not None:
        source = "table" if data.unit == "row" else "text"
        steps = count_epoch_steps(recipe, data.examples_per_epoch, training.epochs)
        limits.append((steps, f"{training.epochs:g} passes over the {source}"))
    if training.tokens is not None:
        steps = math.ceil(training.tokens / (training.batch_size * recipe.model.context))
        limits.append((steps, f"{training.tokens:,} tokens"))
    return limits


def fix_steps_and_intervals(recipe: Recipe, n_steps: int) -> Recipe:
    """Returns a recipe whose length is given in steps, with intervals and a warm-up that fit, instead of epochs, tokens
    or minutes."""
    values = {
        "training.steps": n_steps,
        **dict.fromkeys(f"training.{key}" for key in ("epochs", "min_steps", "tokens", "minutes")),
        "schedule.warmup_steps": min(recipe.schedule.warmup_steps, math.ceil(n_steps / MIN_STEPS_PER_WARMUP_STEP)),
        "evaluation.every": min(recipe.evaluation.every, _validation_interval(n_steps)),
        "evaluation.epochs": None,
        "checkpoint.every": min(recipe.checkpoint.every, _validation_interval(n_steps)),
    }
    return recipe.with_unvalidated_values(values)


def revise_steps_and_intervals(recipe: Recipe, n_steps: int) -> Recipe:
    """Returns a recipe of `fix_steps_and_intervals` with another number of steps.

    It is validated and saved as often as before.
    """
    before, after = _validation_interval(recipe.training.steps), _validation_interval(n_steps)
    values = {"training.steps": n_steps}
    for key, every in (("evaluation.every", recipe.evaluation.every), ("checkpoint.every", recipe.checkpoint.every)):
        values[key] = after if every == before else min(every, after)
    return recipe.with_unvalidated_values(values)


def min_total_steps_keeping_schedule(recipe: Recipe, steps_done: int) -> int | None:
    """Returns the smallest number of steps of a run whose first `steps_done` steps are the same as by this recipe.

    None if they depend on the total number of steps, so that it cannot change. steps_done: at least 1.
    """
    schedule = recipe.schedule
    if getattr(recipe.objective, "scheduled_sampling", None) is not None:
        return None
    if isinstance(schedule, Constant | InverseSquareRoot) or steps_done <= schedule.warmup_steps:
        return steps_done
    if isinstance(schedule, Cosine):
        return None
    warmup, plateau = schedule.warmup_steps, 1 - schedule.decay_fraction
    if steps_done - warmup > plateau * (recipe.training.steps - warmup):
        return None
    return math.ceil(warmup + (steps_done - warmup) / plateau)


def count_steps_by_deadline(recipe: Recipe, steps_done: int, started_at: float, deadline: float, max_steps: int) -> int:
    """Returns the number of steps that a run can take until a deadline at its speed so far.

    It is revised only as far as the completed steps do not depend on it. started_at: when the first of `steps_done`
    steps started; deadline: when the last one must end, by time.perf_counter. max_steps: the limit by epochs or tokens.
    """
    least = min_total_steps_keeping_schedule(recipe, steps_done)
    if least is None:
        return recipe.training.steps
    now = time.perf_counter()
    steps = max(least, steps_done + 1, steps_done + int((deadline - now) * steps_done / (now - started_at)))
    steps = min(steps, max(max_steps, steps_done + 1))
    is_close = abs(steps - recipe.training.steps) <= REVISION_TOLERANCE * recipe.training.steps
    return recipe.training.steps if is_close else steps


def count_epoch_steps(recipe: Recipe, examples_per_epoch: int, epochs: float) -> int:
    """Returns the number of steps of so many epochs of `examples_per_epoch` examples."""
    training = recipe.training
    return max(training.min_steps or 1, math.ceil(epochs * examples_per_epoch / training.batch_size))


def _validation_interval(steps: int) -> int:
    """Returns the steps between validations of a run whose length is not given in steps."""
    return math.ceil(steps / N_VALIDATIONS)
