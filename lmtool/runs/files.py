"""Schemas of the files of a run directory, except recipe.yaml and the tensors."""

import importlib.metadata
import os
import platform
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator

from lmtool import __version__
from lmtool.errors import CheckpointError
from lmtool.runs.checkpoint import STATE_FILE, Checkpoint
from lmtool.runs.paths import add_version_hint
from lmtool.storage import durable, records
from lmtool.storage.records import ChecksummedModel, JsonModel

RUN_FORMAT = 1

FileContent = TypeVar("FileContent", bound=BaseModel)

Count = Annotated[int, Field(ge=0, le=1 << 53)]
"""A counted number, which floats hold exactly."""

FiniteNumber = float | None
"""A number of a record; None if it is not finite, or missing."""


def _validate_timestamp(stamp: str) -> str:
    time = datetime.fromisoformat(stamp)
    if time.tzinfo is None or not 1 < time.year < 9999:
        raise ValueError("is no time of a session, or has no time zone")
    return stamp


Timestamp = Annotated[str, AfterValidator(_validate_timestamp)]
"""ISO 8601 with a time zone."""


class Fingerprints(JsonModel):
    """Fingerprints of the data and the tokenizer when the run was created."""

    data: str
    tokenizer: str


class SourceCheckpoint(JsonModel):
    """A checkpoint of another run, and the SHA-256 of its weights."""

    is_published: bool = False
    run: str
    path: str
    checkpoint: str
    sha256: str


class ImportSource(JsonModel):
    """The published model that a run was imported from, and the SHA-256 of its files."""

    reference: str
    revision: str | None
    model_type: str
    sha256: dict[str, str]


class DataDescription(JsonModel):
    """Description of the training data. valid_rows: of tables, None for a text. features: of older runs, not read."""

    lines: list[str]
    bytes_per_token: FiniteNumber = None
    valid_rows: Count | None = None
    features: list[dict[str, Any]] = Field(default_factory=list)


class ValidationAtInterruption(JsonModel, extra="allow"):
    """The validation of the last step of an interrupted session."""

    __pydantic_extra__: dict[str, FiniteNumber]

    step: Count
    is_best: bool
    loss: FiniteNumber = None


class Session(JsonModel):
    """A start of a run after `step` steps."""

    started: Timestamp
    step: Count
    pid: int | None = None
    command: list[str]
    environment: dict[str, str | int | float | None]
    ended: Timestamp | None = None
    outcome: Literal["finished", "stopped"] | None
    validation: ValidationAtInterruption | None = None


class RunInfo(ChecksummedModel):
    """The content of run.json.

    recipe: its name.
    summary: one line on the model, for `lmtool runs ls`.
    fingerprints: compared on resume.
    base, teacher: what it is initialised and distilled from, if anything.
    origin: where it was imported from; None for a run that was trained here.
    """

    format: Literal[1]
    recipe: str
    summary: str
    created: Timestamp
    fingerprints: Fingerprints
    base: SourceCheckpoint | None = None
    teacher: SourceCheckpoint | None = None
    origin: ImportSource | None = None
    data: DataDescription | None = None
    sessions: list[Session]

    @classmethod
    def create(cls, **content: object) -> Self:
        """Creates the content of a new run without sessions. content: all other fields."""
        fixed = {"format": RUN_FORMAT, "created": current_time(), "sessions": []}
        return cls.model_validate({**dict.fromkeys(cls.model_fields), **fixed, **content})


class ValidationState(ChecksummedModel):
    """The content of validated.json: the state after the last validation; see `SavedState`.

    yardstick: what the best is chosen by, as `lmtool.recipe.changes.checkpoint_selection_values` returns it; if None,
        by the checkpoint's recipe.
    """

    step: Count
    best_step: Count | None
    best_value: FiniteNumber
    best_loss: FiniteNumber = None
    stale: Count
    yardstick: dict[str, str | int | None] | None = None


class StepRecord(JsonModel, extra="allow"):
    """A line of metrics.jsonl. Other numbers are metrics of a task."""

    __pydantic_extra__: dict[str, FiniteNumber]

    step: Count
    loss: FiniteNumber = None
    valid_loss: FiniteNumber = None
    lr: FiniteNumber = None
    grad_norm: FiniteNumber = None
    tokens: Count | None = None
    tokens_per_second: FiniteNumber = None
    mfu: FiniteNumber = None
    seconds: FiniteNumber = None
    gradient_norms: dict[str, list[FiniteNumber]] = Field(default_factory=dict)


class SampleRecord(JsonModel):
    """A line of samples.jsonl."""

    step: Count
    prompt: str
    text: str


class StreamPosition(JsonModel):
    """Where a streamed text goes on: at a block.

    block: its number.
    turn, unit, chunk: where it begins; see `lmtool.data.streaming.BlockPosition`.
    examples, documents: in the blocks before it.
    content: the checksum of its tokens.
    """

    block: Count
    turn: Count
    unit: Count
    chunk: Count
    examples: Count
    documents: Count
    content: str


def _check_step_record(record: dict[str, Any]) -> dict[str, Any]:
    StepRecord.model_validate(record)
    return record


class SavedState(JsonModel):
    """The content of state.json: what a resumed run continues with, besides weights and moments.

    Of an imported run only the recipe is known.

    stale: validations since the best one.
    micro_batch: rows at once, maybe halved when out of memory.
    setup: what else results depend on bitwise, besides recipe and data.
    recipe: all its values.
    pending: the record of the last step, where its validation comes after the checkpoint.
    stream: the mark of each text that is streamed.
    """

    tokens: Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    best_step: Count | None = None
    best_value: FiniteNumber = None
    best_loss: FiniteNumber = None
    stale: Count = 0
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    setup: dict[str, str | int | bool | None] = Field(default_factory=dict)
    recipe: dict[str, Any]
    pending: Annotated[dict[str, Any], AfterValidator(_check_step_record)] | None = None
    stream: list[StreamPosition] | None = None


def read_saved_state(checkpoint: Checkpoint) -> SavedState:
    """Reads the state in a checkpoint. Raises CheckpointError when it is damaged, or of another version of lmtool."""
    content = checkpoint.load_state()
    try:
        return records.validate_model(SavedState, content)
    except ValueError as error:
        what = f"{STATE_FILE} is not one of this version of lmtool: {error}"
        fix = "name another checkpoint of the run, or train anew"
        unread = CheckpointError(what, where=str(checkpoint.path / STATE_FILE), fix=fix)
        raise add_version_hint(checkpoint.path.parents[1], unread) from error


class TrainTestRowNumbers(JsonModel):
    """The numbers of the training and the test rows of a table."""

    table: str
    train: list[Count]
    test: list[Count]


class SavedSplit(RootModel[TrainTestRowNumbers | dict[str, TrainTestRowNumbers]]):
    """The content of split.json: of one table, or of each task by name."""

    model_config = ConfigDict(frozen=True, strict=True)

    def split_of_task(self, task: str) -> TrainTestRowNumbers | None:
        """Returns the split of a task, "" for the only one; None if the file has none."""
        if isinstance(self.root, TrainTestRowNumbers):
            return None if task else self.root
        return self.root.get(task)


class TaskBaselineScores(JsonModel):
    """Results of simple models on the rows of a table that a run is measured on; see `lmtool.tasks.baseline`.

    metric: its name among the figures of a run; micro_f1 for several labels, mse for numbers.
    constant: of the most frequent class or label, or the mean, for every row.
    linear: of logistic or ridge regression on tf-idf of `features`; of tags that of the most frequent one of each word.
    probe: the same on vectors of the encoder that the run begins with; None where there is none, or are many rows.
    part: of the rows, as in `tasks.results.Results`; cross-validation of training rows where none are held out.
    fitted: rows that the linear model was fitted to, of `rows` training rows.
    """

    kind: Literal["class", "multi", "number", "tags"]
    part: str
    metric: str
    constant: float
    linear: float
    probe: float | None = None
    features: str
    fitted: Count
    rows: Count


SavedBaselines = RootModel[dict[str, TaskBaselineScores]]
"""The content of baseline.json, by name of the task, "" for the only one."""


class ClassScores(JsonModel):
    """Scores of one class or kind of entity."""

    precision: FiniteNumber
    recall: FiniteNumber
    f1: FiniteNumber
    support: Annotated[Count, Field(strict=False)]


class CalibrationBin(JsonModel):
    """Rows whose predictions have about equal confidence."""

    confidence: float
    accuracy: float
    rows: Count


class CalibrationMetrics(JsonModel):
    """Calibration of the probabilities of predictions. before: without the temperature."""

    ece: float
    log_loss: float | None = None
    bins: list[CalibrationBin]
    before: "CalibrationMetrics | None" = None


class TaskScores(JsonModel, extra="allow"):
    """Results of the best checkpoint on one task: `tasks.results.Results` and the like; others are shown."""

    part: str
    step: Count = 0
    loss: FiniteNumber = None
    bits_per_byte: FiniteNumber = None
    null_threshold: FiniteNumber = None
    temperature: Annotated[float, Field(gt=0)] | None = None
    thresholds: Annotated[tuple[float, ...], Field(strict=False)] | None = None
    labels: list[str] = Field(default_factory=list)
    classes: dict[str, ClassScores] = Field(default_factory=dict)
    entities: dict[str, ClassScores] = Field(default_factory=dict)
    confusion: list[list[Count]] = Field(default_factory=list)
    calibration: CalibrationMetrics | None = None
    mistakes: list[dict[str, Any]] = Field(default_factory=list)
    sentences: list[dict[str, Any]] = Field(default_factory=list)
    baseline: TaskBaselineScores | None = None

    @model_validator(mode="after")
    def _check_confusion_size(self) -> "TaskScores":
        if "tasks" in (self.model_extra or {}):
            raise ValueError("results of several tasks are damaged")
        sizes = {len(row) for row in self.confusion} | ({len(self.confusion)} if self.confusion else set())
        if sizes - {len(self.classes or self.labels)}:
            raise ValueError("confusion has not one row and one column for each class")
        return self


class TaskResults(JsonModel):
    """The content of metrics.json of several tasks."""

    tasks: dict[str, TaskScores] = Field(min_length=1)


class SavedResults(RootModel[TaskResults | TaskScores]):
    """The content of metrics.json."""

    model_config = ConfigDict(frozen=True, strict=True)

    @property
    def scores_by_task(self) -> dict[str, TaskScores]:
        """Returns the scores by name of the task, "" for the only one."""
        return self.root.tasks if isinstance(self.root, TaskResults) else {"": self.root}


MAX_ROW_FILE_BYTES = 1 << 30
"""Limit of a file with a number for each row of a table, or each pair of classes."""


def read_json_file(
    kind: type[FileContent], path: Path, fix: str, max_bytes: int = durable.MAX_FILE_BYTES
) -> FileContent:
    """Reads a file of a run. Raises CheckpointError, with `fix`, when it is missing or damaged."""
    with durable.convert_checkpoint_read_errors(path, fix):
        raw = durable.read_file(path, max_bytes)
    try:
        return records.parse_model(kind, raw)
    except ValueError as error:
        raise CheckpointError(f"{path.name} is damaged: {error}", where=str(path), fix=fix, code="damaged") from None


def read_optional_json_file(
    kind: type[FileContent], path: Path, fix: str, max_bytes: int = durable.MAX_FILE_BYTES
) -> FileContent | None:
    """Reads a file of a run as `read_json_file` does; returns None if it does not exist."""
    return read_json_file(kind, path, fix, max_bytes) if os.path.lexists(path) else None


def current_time() -> str:
    """Returns the current time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat()


def get_processor_name() -> str:
    """Returns the name of the processor as the system knows it."""
    with suppress(OSError):
        if match := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE):
            return match[1].strip()
    return platform.processor() or platform.machine()


def describe_environment(device: str) -> dict[str, object]:
    """Returns what results may depend on besides recipe and data. device: as named by torch, "cpu" or "cuda:0"."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "lmtool": __version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "platform": platform.platform(),
        "processor": get_processor_name(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": gpu,
    }
