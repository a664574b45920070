"""What happens in a training session, as the one who started it is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtool.inference.evaluation import Validation
from lmtool.recipe.spec import Recipe
from lmtool.tables.results import Results
from lmtool.text.tokenizer import Tokenizer
from lmtool.training.fit import Step

EndReason = Literal["finished", "early", "interrupted"]


@dataclass(frozen=True)
class Started:
    """The training data are ready and the run directory is there.

    data: what is learned from, in words. changes: what differs from the run's recipe so far, when it is resumed.
    """

    path: Path
    name: str
    recipe: Recipe
    tokenizer: Tokenizer
    data: tuple[str, ...]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlreadyFinished:
    """There is nothing left to train: all steps are done, or patience has run out."""

    path: Path
    step: int
    early: bool


@dataclass(frozen=True)
class Plan:
    """What is about to happen, known before the first step.

    learning: of the parameters, how many are trained. batch_units: of `unit`, in one step. counted: what a target of
    the loss is, which the speed is given in.
    """

    parameters: int
    learning: int
    unit: str
    counted: str
    batch_units: int
    steps: int
    first_step: int
    epochs: float
    device: str


@dataclass(frozen=True)
class Stepped:
    """A step is done and logged. validation: how good the model is now, when the step ended with one."""

    step: Step
    validation: Validation | None
    is_best: bool


@dataclass(frozen=True)
class Sampled:
    """What the model makes of a prompt at this step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    path: Path


@dataclass(frozen=True)
class Warned:
    """Something went wrong that training survives."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The run is over: all steps done, stopped early by patience, or interrupted by a signal."""

    reason: EndReason
    step: int
    best_step: int | None
    best_value: float | None
    metric: str


Event = Started | AlreadyFinished | Plan | Stepped | Sampled | Saved | Warned | Ended | Results
