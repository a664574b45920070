"""The events of a training session, which yields them to its caller."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.log import LogRecord
from lmtool.tasks.results import Results
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.training.comparison import BitsPerByteResults
from lmtool.training.fit import CompletedStep

EndReason = Literal["finished", "early", "interrupted", "below"]
"""All steps were taken, patience ran out, a signal came, or validation is far below the baseline."""


class TrainingEvent:
    """An event other than the results of the best checkpoint."""


@dataclass(frozen=True)
class RunStarted(TrainingEvent):
    """The training data are ready and the run directory exists.

    data: descriptions of the training data. changes: descriptions of changes of the recipe of a resumed run.
    """

    path: Path
    name: str
    recipe: Recipe
    tokenizer: Tokenizer
    data: tuple[str, ...]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunAlreadyFinished(TrainingEvent):
    """Training is already complete: all steps are done, or patience has run out.

    can_go_on: whether it can train for more steps, unlike a model that is fitted, or counts its text, once.
    """

    path: Path
    step: int
    early: bool
    can_go_on: bool = True


@dataclass(frozen=True)
class Info(TrainingEvent):
    """A message to the user before training."""

    text: str


@dataclass(frozen=True)
class DurationEstimate(TrainingEvent):
    """An estimate of how long the session will take from now on, by its first steps.

    seconds: of the remaining `steps`, their validations and the final evaluation.
    speed: in `unit` per second, such as tokens computed, or pairs.
    patience: see `Evaluation`.
    pass_minutes: duration of a run with one pass over its data, if this one takes less than a pass.
    """

    seconds: float
    speed: float
    unit: str
    steps: int
    patience: int | None
    pass_minutes: float | None


@dataclass(frozen=True)
class TrainingStarted(TrainingEvent):
    """A description of the session before its first step.

    learning: number of trainable parameters.
    batch_units: number of `unit` in one step.
    steps: of the whole run; None if they will follow from the speed.
    minutes: the time limit, if the recipe has one.
    epochs: passes over the data in these steps.
    counted: name of a target of the loss, the unit of the speed.
    held: bytes of weights, gradients and moments in one process; 0 for a model of counts.
    warmup_steps: those in which the learning rate rises.
    peak_speed: tokens per second at the peak of the devices; None if it is not known.
    """

    parameters: int
    learning: int
    unit: str
    counted: str
    batch_units: int
    steps: int | None
    minutes: float | None
    first_step: int
    epochs: float | None
    device: str
    held: int
    warmup_steps: int
    peak_speed: float | None = None


@dataclass(frozen=True)
class StepCompleted(TrainingEvent):
    """A step was taken and logged. validation: None if the step ended without one."""

    step: CompletedStep
    validation: ValidationResult | None
    is_best: bool


@dataclass(frozen=True)
class MetricsLogged(TrainingEvent):
    """A record was written to metrics.jsonl; not in processes that only compute."""

    record: LogRecord


@dataclass(frozen=True)
class SampleGenerated(TrainingEvent):
    """The model generated a text for a prompt at this step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class CheckpointSaved(TrainingEvent):
    """A checkpoint was saved."""

    path: Path


@dataclass(frozen=True)
class Warn(TrainingEvent):
    """A problem that does not end the training."""

    text: str


@dataclass(frozen=True)
class StepCountChanged(TrainingEvent):
    """The number of steps of a run with a time limit was set or revised. why: a description of the reason."""

    steps: int
    why: str


@dataclass(frozen=True)
class TrainingEnded(TrainingEvent):
    """The session ended. remedies: suggestions if the validation loss of a text rose before the end."""

    reason: EndReason
    step: int
    best_step: int | None
    best_value: float | None
    metric: str
    remedies: tuple[str, ...] = ()


Event = TrainingEvent | Results | BitsPerByteResults
