"""The state of a training run besides weights and moments, and the writer of its logs and checkpoints."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from pydantic import Field
from torch import Tensor

from lmtool.compute.processes import PeerEnded
from lmtool.compute.shards import select_own_tensors
from lmtool.errors import ResourceError
from lmtool.evaluation.loop import ValidationResult
from lmtool.model import LanguageModel
from lmtool.model.lora import adapter_or_full_state_dict
from lmtool.recipe.changes import checkpoint_selection_values
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Checkpointing, Evaluation
from lmtool.runs import tensors
from lmtool.runs.checkpoint import SINGLE_PROCESS, Checkpoint, CheckpointProcessGroup
from lmtool.runs.directory import Run
from lmtool.runs.files import SavedState, ValidationState, read_saved_state
from lmtool.runs.log import LogRecord
from lmtool.runs.saving import CheckpointContent, save_shard_for_main_process
from lmtool.storage.records import replace_nonfinite
from lmtool.training.events import CheckpointSaved, EndReason, MetricsLogged, SampleGenerated, Warn
from lmtool.training.fit import CompletedStep

NO_BEST_YET = {"best_step": None, "best_value": None, "best_loss": None, "stale": 0}
"""The fields of a state about the best validation, before there is one."""


class TrainerState(SavedState, frozen=False):
    """State of a checkpoint besides weights and moments, with which a resumed run continues as if never interrupted."""

    recipe: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, saved_validation: ValidationState | None, new_recipe: Recipe
    ) -> Self:
        """Reads the state of a checkpoint, updated by the saved validation after it, if there is one.

        new_recipe: for the steps to come. If it selects the best checkpoint otherwise, there is none yet, and the
        last validation is pending again. Raises CheckpointError as `read_saved_state` does.
        """
        state = cls(**read_saved_state(checkpoint).model_dump(exclude_unset=True))
        before = checkpoint_selection_values(state.recipe)
        now = checkpoint_selection_values(new_recipe.model_dump(mode="json"))
        if before != now:
            state = state.model_copy(update=NO_BEST_YET)
        if (
            state.pending is not None
            and saved_validation is not None
            and saved_validation.step == checkpoint.step
            and (saved_validation.yardstick or before) == now
        ):
            return state.model_copy(update=saved_validation.model_dump(include=set(NO_BEST_YET)) | {"pending": None})
        return state

    def make_validation_state(self, step: int) -> ValidationState:
        """Returns the note of the validation of a step, for `from_checkpoint`."""
        best = self.model_dump(include=set(NO_BEST_YET))
        return ValidationState(step=step, **best, yardstick=checkpoint_selection_values(self.recipe))

    def add_step(self, step: CompletedStep, tokens_per_second_at_peak_flops: float | None = None) -> LogRecord:
        """Adds a completed step. Returns its record, in the format of metrics.jsonl.

        tokens_per_second_at_peak_flops: tokens per second at the peak of the devices, if it is known.
        """
        self.micro_batch = step.micro_batch
        self.tokens += step.tokens
        self.seconds += step.seconds
        units_per_second = step.n_computed / step.seconds
        record = {
            "step": step.step,
            "loss": replace_nonfinite(step.loss),  # infinite where plain counts give a token no probability
            "valid_loss": None,
            "lr": step.lr,
            "grad_norm": None if step.grad_norm is None else replace_nonfinite(step.grad_norm),
            "tokens": self.tokens,
            "tokens_per_second": round(units_per_second),
            "seconds": round(self.seconds, 3),
        }
        if tokens_per_second_at_peak_flops is not None:
            record["mfu"] = round(units_per_second / tokens_per_second_at_peak_flops, 4)
        return record

    def update_best(self, step: int, validation: ValidationResult, metric: str) -> bool:
        """Records a validation as the best one if it is. Returns whether it is; see `is_better`."""
        is_best = self.is_better(validation, metric)
        if is_best:
            self.best_step, self.best_value, self.stale = step, validation.value(metric), 0
            self.best_loss = replace_nonfinite(validation.loss)
        else:
            self.stale += 1
        return is_best

    def is_better(self, validation: ValidationResult, metric: str) -> bool:
        """Whether a validation is better than the best so far: by a higher metric, or a lower loss.

        Of equal metrics the one with the lower loss is better. A value that is not finite is never better.
        """
        value, sign = validation.value(metric), 1 if metric == "loss" else -1
        if not math.isfinite(value) or self.best_value is None:
            return math.isfinite(value)
        if value == self.best_value and self.best_loss is not None:
            return validation.loss < self.best_loss
        return sign * value < sign * self.best_value

    def is_stale(self, evaluation: Evaluation) -> bool:
        """Whether patience has run out."""
        return evaluation.patience is not None and self.stale >= evaluation.patience


@dataclass
class CheckpointManager:
    """Writes to the run, if this process has one. Failures are warnings, but an unsaved last checkpoint is an error.

    thread: writes the checkpoints of a recipe that saves in the background.
    checkpoint: the last saved one; at first the one that training continues from.
    removable_step: the step of that first one, if it was saved only because the run was interrupted.
    peers: processes that share the model, each of which writes its part.
    """

    run: Run | None
    spec: Checkpointing
    thread: Executor
    checkpoint: Checkpoint | None = None
    removable_step: int | None = None
    peers: CheckpointProcessGroup = SINGLE_PROCESS
    _saving: Callable[[], Checkpoint | None] | None = None
    _unsaved: ResourceError | None = None
    _log_failed: bool = False

    @property
    def saved_description(self) -> str:
        """A description of what is saved; empty in a process that does not write."""
        if self.run is None:
            return ""
        return f"{self.checkpoint.path.name} is saved" if self.checkpoint else "no checkpoint is saved yet"

    def log_metrics(self, record: Mapping[str, object]) -> Iterator[MetricsLogged | Warn]:
        """Appends the record of a step to the metrics."""
        if self.run is not None:
            yield from self._append_and_warn_once(self.run.metrics.append, record)
            yield MetricsLogged(dict(record))

    def write_recipe(self, recipe: Recipe) -> Iterator[Warn]:
        """Replaces the recipe of the run."""
        return self._write_or_warn(lambda run: run.replace_recipe(dump_yaml(recipe)))

    def log_sample(self, sampled: SampleGenerated) -> Iterator[Warn]:
        """Appends a text to the samples."""
        if self.run is not None:
            yield from self._append_and_warn_once(self.run.samples.append, asdict(sampled))

    def _append_and_warn_once(
        self, append: Callable[[Mapping[str, object]], None], record: Mapping[str, object]
    ) -> Iterator[Warn]:
        failures = list(self._write_or_warn(lambda run: append(record)))
        if not self._log_failed:
            yield from failures
        self._log_failed = bool(failures)

    def _write_or_warn(self, write: Callable[[Run], None], warning_prefix: str = "") -> Iterator[Warn]:
        """Writes to the run, if this process has one. Yields a warning on failure. warning_prefix: its first words."""
        try:
            if self.run is not None:
                write(self.run)
        except ResourceError as error:
            what = f"{error.what} ({error.where})"
            yield Warn(f"{warning_prefix}: {what}" if warning_prefix else f"{what}; training continues")

    def save_checkpoint(
        self, step: int, lm: LanguageModel, moments: dict[str, Tensor], state: TrainerState
    ) -> Iterator[CheckpointSaved | Warn]:
        """Saves a checkpoint, or starts to if the recipe saves in the background.

        A process without a run writes its part of a sharded model.
        """
        yield from self.finish_pending_save()
        if self.run is None and self.peers.size == 1:
            return
        model = select_own_tensors(adapter_or_full_state_dict(lm), self.peers.rank)
        optimizer = select_own_tensors(moments, self.peers.rank)
        if self.spec.background:
            model, optimizer = tensors.copy_to_cpu(model), tensors.copy_to_cpu(optimizer)
        snapshot = CheckpointContent(step, model, optimizer, state.model_dump(), state.best_step)
        save: Callable[[], Checkpoint | None] = partial(save_shard_for_main_process, snapshot, self.peers)
        if self.run is not None:
            save = partial(self.run.save_checkpoint, snapshot, self.spec.keep_last, self.removable_step, self.peers)
        self._saving = self.thread.submit(save).result if self.spec.background else save
        if not self.spec.background:
            yield from self.finish_pending_save()

    def finish_pending_save(self) -> Iterator[CheckpointSaved | Warn]:
        """Waits for the checkpoint that is being saved, if there is one. Yields what became of it."""
        finish, self._saving = self._saving, None
        if finish is None:
            return
        try:
            saved = finish()
        except PeerEnded:
            raise
        except ResourceError as error:
            self._unsaved = error
            yield Warn(f"{error.what} ({error.fix}); training continues; {self.saved_description}")
        else:
            self._unsaved = None
            if saved is not None:
                self.checkpoint = saved
                yield CheckpointSaved(saved.path)

    def record_validation_and_prune_checkpoints(
        self, step: int, state: TrainerState
    ) -> Iterator[CheckpointSaved | Warn]:
        """Writes the result of the validation after a checkpoint, once that is saved."""
        yield from self.finish_pending_save()
        yield from self._write_or_warn(
            lambda run: run.record_validation_and_prune_checkpoints(
                state.make_validation_state(step), self.spec.keep_last, self.removable_step
            )
        )

    def remove_leftover_checkpoints(self) -> Iterator[Warn]:
        """Removes the checkpoints that a killed session should have removed."""
        return self._write_or_warn(
            lambda run: run.remove_leftover_checkpoints(self.spec.keep_last, self.removable_step),
            "older checkpoints could not be removed",
        )

    def end_session(self, reason: EndReason, interruption_metrics: Mapping[str, object] | None = None) -> None:
        """Ends the session. interruption_metrics: see `Run.record_session_end`.

        Raises ResourceError when the last checkpoint could not be saved.
        """
        if (error := self._unsaved) is not None:
            raise ResourceError(f"{error.what}; {self.saved_description}", where=error.where, fix=error.fix) from error
        if self.run is not None:
            self.run.record_session_end(
                "stopped" if reason in ("interrupted", "below") else "finished", interruption_metrics
            )

    def remove_optimizer_states(self) -> Iterator[Warn]:
        """Removes the optimizer states of a finished run."""
        return self._write_or_warn(Run.remove_optimizer_states, "the optimizer state could not be removed")
