"""Saving a training run: its state besides weights and moments, and the writer of logs and checkpoints."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from torch import Tensor

from lmtool.errors import CheckpointError, ResourceError
from lmtool.inference.evaluation import Validation
from lmtool.model import LanguageModel
from lmtool.model.lora import kept
from lmtool.recipe.spec import Evaluation
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import Run
from lmtool.run.log import Record
from lmtool.training.events import Logged, Sampled, Saved, Warned
from lmtool.training.fit import Step


@dataclass
class TrainingState:
    """State of a checkpoint besides weights and moments, so that a resumed run continues as if never interrupted.

    stale: validations since the best one. micro_batch: rows at once, maybe halved when out of memory. setup: what else
    results depend on bitwise, besides recipe and data. recipe: all its values. pending: the record of the last step,
    where its validation comes after the checkpoint.
    """

    tokens: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_value: float | None = None
    best_loss: float | None = None
    stale: int = 0
    micro_batch: int | None = None
    setup: dict[str, object] = field(default_factory=dict)
    recipe: dict[str, object] = field(default_factory=dict)
    pending: Record | None = None

    @classmethod
    def read(cls, checkpoint: Checkpoint, noted: Mapping[str, Any] | None) -> Self:
        """The state of a checkpoint, updated by the noted validation after it, if there is one.

        Raises CheckpointError when another version of lmtool wrote it.
        """
        try:
            state = cls(**checkpoint.state())  # type: ignore[arg-type]  # its keys are checked by the call
        except TypeError as error:
            raise CheckpointError(
                "state.json is not of this version of lmtool", where=str(checkpoint.path), fix="train anew"
            ) from error
        if state.pending is not None and noted is not None and noted["step"] == checkpoint.step:
            state.best_step, state.best_value, state.stale = noted["best_step"], noted["best_value"], noted["stale"]
            state.best_loss = noted.get("best_loss")
            state.pending = None
        return state

    def note(self, step: int) -> dict[str, object]:
        """The note for `read` after the validation of a step."""
        best = {"best_step": self.best_step, "best_value": self.best_value, "best_loss": self.best_loss}
        return {"step": step, **best, "stale": self.stale}

    def advance(self, step: Step) -> Record:
        """Count a completed step; returns its record, in the format of metrics.jsonl."""
        self.micro_batch = step.micro_batch
        self.tokens += step.tokens
        self.seconds += step.seconds
        return {
            "step": step.step,
            "loss": step.loss,
            "valid_loss": None,
            "lr": step.lr,
            "grad_norm": step.grad_norm if math.isfinite(step.grad_norm) else None,
            "tokens": self.tokens,
            "tokens_per_second": round(step.tokens / step.seconds),
            "seconds": round(self.seconds, 3),
        }

    def update_best(self, step: int, validation: Validation, metric: str) -> bool:
        """Compare a validation with the best so far; True when it is better: a higher metric, or a lower loss.

        Of equal metrics the one with the lower loss is better. A value that is not finite is never better.
        """
        is_best = self.is_better(validation, metric)
        if is_best:
            self.best_step, self.best_value, self.stale = step, validation.value(metric), 0
            self.best_loss = validation.loss if math.isfinite(validation.loss) else None
        else:
            self.stale += 1
        return is_best

    def is_better(self, validation: Validation, metric: str) -> bool:
        """Whether a validation is better than the best so far; changes nothing."""
        value, sign = validation.value(metric), 1 if metric == "loss" else -1
        if not math.isfinite(value) or self.best_value is None:
            return math.isfinite(value)
        if value == self.best_value and self.best_loss is not None:
            return validation.loss < self.best_loss
        return sign * value < sign * self.best_value

    def is_stale(self, evaluation: Evaluation) -> bool:
        """True when patience has run out."""
        return evaluation.patience is not None and self.stale >= evaluation.patience


class RunKeeper:
    """Writes to the run, if this process has one; failures are warnings, and an unsaved last checkpoint is an error."""

    def __init__(self, run: Run | None, keep_last: int) -> None:
        self._run = run
        self._keep_last = keep_last
        self._unsaved: ResourceError | None = None
        self._log_failed = False

    @property
    def keeps(self) -> bool:
        """Whether this process writes to a run."""
        return self._run is not None

    def log(self, record: Mapping[str, object]) -> Iterator[Logged | Warned]:
        """Append the record of a step to the metrics."""
        if self._run is not None:
            yield from self._append(self._run.metrics.append, record)
            yield Logged(dict(record))

    def log_sample(self, sampled: Sampled) -> Iterator[Warned]:
        """Append a text to the samples."""
        if self._run is not None:
            yield from self._append(self._run.samples.append, asdict(sampled))

    def _append(self, append: Callable[[Mapping[str, object]], None], record: Mapping[str, object]) -> Iterator[Warned]:
        try:
            append(record)
            self._log_failed = False
        except ResourceError as error:
            if not self._log_failed:
                yield Warned(f"{error.what} ({error.where}); training continues")
            self._log_failed = True

    def save(
        self, step: int, lm: LanguageModel, moments: dict[str, Tensor], state: TrainingState
    ) -> Iterator[Saved | Warned]:
        """Save a checkpoint."""
        if self._run is None:
            return
        try:
            saved = self._run.save(
                step, kept(lm), moments, asdict(state), best_step=state.best_step, keep_last=self._keep_last
            )
            self._unsaved = None
            yield Saved(saved.path)
        except ResourceError as error:
            self._unsaved = error
            yield Warned(f"{error.what} ({error.fix}); training continues, the last checkpoint is intact")

    def note_validation(self, step: int, state: TrainingState) -> Iterator[Warned]:
        """Note the result of the validation after a checkpoint."""
        if self._run is None:
            return
        try:
            self._run.note_validation(state.note(step), self._keep_last)
        except ResourceError as error:
            yield Warned(f"{error.what} ({error.fix}); training continues")

    def close(self, reason: str, validation: Mapping[str, object] | None = None) -> None:
        """End the session. validation: see `Run.end`.

        Raises ResourceError when the last checkpoint could not be saved.
        """
        if self._unsaved is not None:
            raise self._unsaved
        if self._run is not None:
            self._run.end("stopped" if reason == "interrupted" else "finished", validation)

    def drop_optimizers(self) -> Iterator[Warned]:
        """Remove the optimizer state of a finished run."""
        if self._run is None:
            return
        try:
            self._run.drop_optimizers()
        except ResourceError as error:
            yield Warned(f"the optimizer state could not be removed: {error.what} ({error.where})")
