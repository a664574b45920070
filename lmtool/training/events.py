"""Events of a training session, as yielded to its caller."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtool.inference.evaluation import Validation
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.log import LogRecord
from lmtool.tasks.results import Results
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.training.comparison import TextResults
from lmtool.training.fit import Step

EndReason = Literal["finished", "early", "interrupted", "below"]
"""All steps, patience, a signal, or a baseline that a model trained further is far below."""


class TrainingEvent:
    """What a session tells its caller, besides the results of its best checkpoint."""


@dataclass(frozen=True)
class Started(TrainingEvent):
    """The training data are ready and the run directory exists.

    data: descriptions of the training data. changes: to the run's recipe, when it is resumed.
    """

    path: Path
    name: str
    recipe: Recipe
    tokenizer: Tokenizer
    data: tuple[str, ...]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlreadyFinished(TrainingEvent):
    """Training is already complete: all steps are done, or patience has run out.

    can_go_on: whether it may have more steps, unlike a model that is fitted, or counts its text, once.
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
class Timed(TrainingEvent):
    """How long the session will take from now on, by its first steps.

    seconds: of the `steps` that are left, their validations and the measurement at the end.
    speed: of `unit`, tokens computed or pairs, a second.
    patience: see `Evaluation`.
    whole_pass: minutes of a run with one pass over its data, where this one has less.
    """

    seconds: float
    speed: float
    unit: str
    steps: int
    patience: int | None
    whole_pass: float | None


@dataclass(frozen=True)
class FitStarted(TrainingEvent):
    """The plan of the session, before the first step.

    learning: number of trainable parameters.
    batch_units: number of `unit` in one step.
    steps: of the whole run; None where they follow from the speed of the first ones.
    minutes: the limit of time, if the recipe has one.
    epochs: passes over the data in these steps.
    counted: name of a target of the loss, the unit of the speed.
    held: bytes of weights, gradients and moments of one process; 0 for a model of counts.
    warmup_steps: in which the learning rate rises.
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


@dataclass(frozen=True)
class Stepped(TrainingEvent):
    """A step is done and logged. validation: its result, when the step ended with one."""

    step: Step
    validation: Validation | None
    is_best: bool


@dataclass(frozen=True)
class Logged(TrainingEvent):
    """A record of metrics.jsonl. Not in processes that only compute."""

    record: LogRecord


@dataclass(frozen=True)
class Sampled(TrainingEvent):
    """A sample of the model for a prompt at this step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Saved(TrainingEvent):
    """A checkpoint was saved."""

    path: Path


@dataclass(frozen=True)
class Warn(TrainingEvent):
    """A problem that does not end the training."""

    text: str


@dataclass(frozen=True)
class StepsChanged(TrainingEvent):
    """The number of steps of a run with a limit of time, set by its first steps, and revised when the speed differs.

    why: what it follows from.
    """

    steps: int
    why: str


@dataclass(frozen=True)
class Ended(TrainingEvent):
    """The run is over for now.

    remedies: what may help where the validation loss of a text rose before the end.
    """

    reason: EndReason
    step: int
    best_step: int | None
    best_value: float | None
    metric: str
    remedies: tuple[str, ...] = ()


Event = TrainingEvent | Results | TextResults
