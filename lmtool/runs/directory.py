"""Reads, locks and writes run directories.

    runs/2026-11-20-tiny-7f3a/
      recipe.yaml  tokenizer.json  run.json  metrics.jsonl  samples.jsonl  validated.json  checkpoints/

run.json is written last on creation, so a folder is a run if and only if it has one. A run on tables has split.json and
metrics.json too, and one whose session has ended report.html.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from lmtool.errors import CheckpointError, ResourceError
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs import files, saving
from lmtool.runs.checkpoint import (
    MANIFEST_FILE,
    SINGLE_PROCESS,
    Checkpoint,
    CheckpointProcessGroup,
    CheckpointWithWarnings,
)
from lmtool.runs.files import (
    MAX_ROW_FILE_BYTES,
    RunInfo,
    Session,
    ValidationAtInterruption,
    ValidationState,
    current_time,
    read_optional_json_file,
)
from lmtool.runs.lock import RunLock, is_run_locked
from lmtool.runs.log import RunLog
from lmtool.runs.paths import RUN_INFO_FILE, add_to_runs_index, add_version_hint
from lmtool.storage import durable, records

RECIPE, TOKENIZER_FILE = "recipe.yaml", "tokenizer.json"

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
"""Roles of the special tokens of a published model's tokenizer."""

METRICS, SAMPLES, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "checkpoints"

SPLIT = "split.json"
"""Indices of the table rows held out for validation."""

BASELINE = "baseline.json"
"""Results of simple models on the rows of a table that the run is evaluated on."""

VALIDATED = "validated.json"
"""Result of the last validation, and the best step."""

RESULTS = "metrics.json"
"""Scores of the best checkpoint on a table."""

EVALUATIONS = "evaluations.json"
"""Scores that `lmtool eval` has measured; see `lmtool.runs.listing`."""

REPORT = "report.html"
"""The page about the run as of the end of its last session."""

_COPY_BYTES = 1 << 22
"""Bytes of a file that are copied at once."""

FEATURES = "features"
"""A copy of the run whose states the model reads: its recipe, tokenizer and one checkpoint."""

CANNOT_WRITE_OUTPUT = "cannot write to the output folder"
"""Beginning of the message when an output folder cannot be written."""

PROFILE = "profile"
"""Traces of training steps, as torch.profiler writes them."""

NGRAMS = "ngrams"
"""A run of the n-gram model with which the model is interpolated; see `lmtool.runs.interpolation`."""

FORMER_FILES = ("lines.bin", "logs.json", "suites")
"""Files and folders that earlier versions wrote."""

_BEGINNING = (RUN_INFO_FILE, RECIPE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)
_TRAINING = (METRICS, SAMPLES, VALIDATED)
_RESULTS = (SPLIT, *FORMER_FILES, BASELINE, RESULTS, EVALUATIONS, REPORT)
RUN_FILES = (*_BEGINNING, *_TRAINING, *_RESULTS, FEATURES, NGRAMS, PROFILE, CHECKPOINTS)
"""All files of a run directory, except its lock."""

RunState = Literal["running", "finished", "stopped", "imported"]


class Run:
    """A run directory. Anyone may read it; only the process that holds its lock writes to it.

    As a context manager it releases the lock on exit.
    """

    def __init__(self, path: Path, info: RunInfo, lock: RunLock | None = None) -> None:
        """Use `open`, or `lmtool.runs.creation.create_and_lock_run`."""
        self.path = path
        self.info = info
        self.metrics = RunLog(path / METRICS, files.StepRecord)
        self.samples = RunLog(path / SAMPLES, files.SampleRecord)
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens an existing run without its lock. Raises CheckpointError when there is none or run.json is damaged."""
        return cls(path, _read_run_json(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release_lock()

    @property
    def name(self) -> str:
        """Returns the name of the directory."""
        return self.path.resolve().name

    @property
    def tokenizer_path(self) -> Path:
        """Returns the path of tokenizer.json."""
        return self.path / TOKENIZER_FILE

    @property
    def recipe_path(self) -> Path:
        """Returns the path of recipe.yaml, which is fully resolved."""
        return self.path / RECIPE

    @property
    def last_started(self) -> str:
        """Returns when it was last started or resumed, ISO 8601 in UTC."""
        sessions = self.info.sessions
        return sessions[-1].started if sessions else self.info.created

    @property
    def state(self) -> RunState:
        """Returns running while a process holds the lock, imported if the weights were, finished if the last session
        finished, else stopped.
        """
        if is_run_locked(self.path):
            return "running"
        if self.info.origin is not None:
            return "imported"
        sessions = self.info.sessions
        return "finished" if sessions and sessions[-1].outcome == "finished" else "stopped"

    def copy_run_as_features(self, source: Self, checkpoint: Checkpoint) -> None:
        """Copies another run with one checkpoint, without its optimizer state, into this one. Raises ResourceError."""
        copy = self.path / FEATURES
        with self._convert_write_errors_under_lock(copy):
            weights = copy / CHECKPOINTS / checkpoint.path.name
            weights.mkdir(parents=True)
            names = [name for name in (*checkpoint.files, MANIFEST_FILE) if name not in checkpoint.optimizer_files]
            # run.json last: it makes the copy a run
            copied = [(checkpoint.path, weights, name) for name in names]
            copied += [
                (source.path, copy, name) for name in (RECIPE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, RUN_INFO_FILE)
            ]
            for old, new, name in copied:
                if (old / name).exists():
                    with durable.open_regular_file(old / name) as file:
                        durable.write_and_sync_new_file(new / name, iter(partial(file.read, _COPY_BYTES), b""))
                    durable.sync_directory(new)

    def lock(self) -> None:
        """Acquires the lock, so that only this process may write.

        Raises CheckpointError when another process holds it, ResourceError when the directory cannot be written.
        """
        if self._lock is None:
            self._lock = RunLock(self.path)
            self.info = _read_run_json(self.path)

    def release_lock(self) -> None:
        """Releases the lock if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def rewind_and_start_session(
        self,
        *,
        step: int,
        command: Sequence[str],
        environment: Mapping[str, object],
        validated: ValidationState | None = None,
        is_validation_pending: bool = False,
    ) -> list[str]:
        """Begins a session after `step` steps, and discards what a killed session left beyond that step.

        Removes later records of metrics and samples, renames later checkpoints to step-....aside-1, removes the test
        scores of an earlier session, because another checkpoint may become the best.
        command: as typed. environment: see `describe_environment`.
        validated: see `record_validation_and_prune_checkpoints`.
        is_validation_pending: whether the step is still to be validated and logged.
        Returns a line for each kind of damage in the logs.
        Raises ResourceError when the directory cannot be written.
        """
        fixed = {"started": current_time(), "step": step, "pid": os.getpid(), "ended": None, "outcome": None}
        session = Session.model_validate({**fixed, "command": list(command), "environment": dict(environment)})
        sessions = [*self.info.sessions, session]
        logged = step - is_validation_pending
        damage = self.check_logs(sessions[0].step, logged)
        with self._convert_write_errors_under_lock():
            self.metrics.rewind(logged)
            self.samples.rewind(logged)
            self._sync_logs()
            saving.remove_partial_checkpoints(self.path / CHECKPOINTS)
            for later, path in checkpoints.list_checkpoints(self.path / CHECKPOINTS):
                if later > step:
                    saving.rename_aside(path)
            for name in (RESULTS, EVALUATIONS):
                (self.path / name).unlink(missing_ok=True)
            if validated is None:
                (self.path / VALIDATED).unlink(missing_ok=True)
            else:
                durable.replace_file(self.path / VALIDATED, validated.to_json_bytes())
            self._write_info(self.info.model_copy(update={"sessions": sessions}))
        add_to_runs_index(self.path)
        return damage

    def check_logs(self, first: int, step: int) -> list[str]:
        """Returns a line for each kind of damage in the logs of the steps first + 1 to `step`."""
        return self.metrics.describe_damage(step, range(first + 1, step + 1)) + self.samples.describe_damage(step)

    def _sync_logs(self) -> None:
        """Syncs the logs to disk. Raises OSError."""
        self.metrics.sync()
        self.samples.sync()

    def record_validation_and_prune_checkpoints(
        self, validated: ValidationState, keep_last: int | None = None, removable_step: int | None = None
    ) -> None:
        """Saves the result of the validation after a checkpoint.

        Removes the checkpoint that was the best before, unless it is among the last `keep_last`; None keeps all.
        removable_step: see `saving.prune_checkpoints`. Raises ResourceError when it cannot be written.
        """
        with self._convert_write_errors_under_lock():
            self._sync_logs()
            durable.replace_file(self.path / VALIDATED, validated.to_json_bytes())
            if keep_last is not None:
                spared = {validated.step, validated.best_step}
                saving.prune_checkpoints(self.path / CHECKPOINTS, spared, keep_last, removable_step)

    def remove_leftover_checkpoints(self, keep_last: int, removable_step: int | None = None) -> None:
        """Removes the checkpoints and partial files of a killed session; see `saving.prune_checkpoints`.

        Raises ResourceError, and CheckpointError as `last_validation` does.
        """
        folder = self.path / CHECKPOINTS
        with self._convert_write_errors_under_lock():
            saving.remove_partial_checkpoints(folder)
            saving.prune_checkpoints(folder, {self.best_step}, keep_last, removable_step)

    @property
    def last_validation(self) -> ValidationState | None:
        """Returns the last result of `record_validation_and_prune_checkpoints`; None before any validation.

        Raises CheckpointError when the file is damaged.
        """
        return read_optional_json_file(
            ValidationState, self.path / VALIDATED, "delete it: lmtool resume then repeats the last validation"
        )

    def replace_recipe(self, recipe: str) -> None:
        """Replaces recipe.yaml if a resumed run has another recipe, or a running one another length.

        Raises ResourceError.
        """
        with self._convert_write_errors_under_lock():
            durable.replace_file(self.recipe_path, recipe.encode())

    def record_session_end(
        self, outcome: Literal["finished", "stopped"], validation_at_interruption: Mapping[str, object] | None = None
    ) -> None:
        """Ends the session: finished after all steps or early stopping, else stopped.

        Removes the page of an earlier session, so that a page of a run is never outdated.
        validation_at_interruption: of the last step of an interrupted session, with "step" and "is_best". It is no part
        of the training, but if it is the best, its checkpoint is the best until the run is resumed.
        Raises ResourceError when it cannot be written.
        """
        *earlier, session = self.info.sessions
        ended: dict[str, object] = {"ended": current_time(), "outcome": outcome}
        if validation_at_interruption is not None:
            ended["validation"] = ValidationAtInterruption.model_validate(dict(validation_at_interruption))
        with self._convert_write_errors_under_lock():
            (self.path / REPORT).unlink(missing_ok=True)
            sessions = [*earlier, session.model_copy(update=ended)]
            self._write_info(self.info.model_copy(update={"sessions": sessions}))

    def save_checkpoint(
        self,
        snapshot: saving.CheckpointContent,
        keep_last: int,
        removable_step: int | None = None,
        peers: CheckpointProcessGroup = SINGLE_PROCESS,
    ) -> Checkpoint:
        """Saves a checkpoint of this run, whose step has to be logged before; see `saving.save_checkpoint`."""
        try:
            with self._convert_write_errors_under_lock():
                self._sync_logs()
        except ResourceError:
            saving.announce_no_checkpoint(peers)
            raise
        return saving.save_checkpoint(self.path / CHECKPOINTS, snapshot, keep_last, removable_step, peers)

    def find_newest_checkpoint(
        self, *, verify_optimizer: bool = True, peers: CheckpointProcessGroup = SINGLE_PROCESS
    ) -> CheckpointWithWarnings:
        """Returns the checkpoint to resume from, with warnings about damaged ones: `find_newest_valid_checkpoint`."""
        return checkpoints.find_newest_valid_checkpoint(
            self.path / CHECKPOINTS, verify_optimizer=verify_optimizer, peers=peers
        )

    def remove_optimizer_states(self) -> None:
        """Removes the optimizer state of all checkpoints. Raises ResourceError."""
        with self._convert_write_errors_under_lock():
            saving.remove_optimizer_states(self.path / CHECKPOINTS)

    @property
    def results_by_task(self) -> dict[str, dict[str, Any]]:
        """Returns the scores of the best checkpoint by name of the task, "" for the only one; empty without any.

        Raises CheckpointError when the file is damaged.
        """
        fix = "delete it: lmtool resume then evaluates the run again"
        results = read_optional_json_file(files.SavedResults, self.path / RESULTS, fix, MAX_ROW_FILE_BYTES)
        by_task = results.scores_by_task if results else {}
        return {name: figures.model_dump(exclude_unset=True) for name, figures in by_task.items()}

    def write_results(self, content: Mapping[str, Any]) -> None:
        """Writes metrics.json; NaN and infinities become null. Raises ResourceError."""
        with self._convert_write_errors_under_lock():
            durable.replace_file(self.path / RESULTS, records.encode_json(records.replace_nonfinite(content)))

    @property
    def saved_split(self) -> files.SavedSplit | None:
        """Reads the rows held out from its tables, or None. Raises CheckpointError when the file is damaged."""
        return read_optional_json_file(
            files.SavedSplit, self.path / SPLIT, "restore it from a copy, or start a new run", MAX_ROW_FILE_BYTES
        )

    @property
    def saved_baselines(self) -> files.SavedBaselines | None:
        """Reads baseline.json; None if there is none. Raises CheckpointError when the file is damaged."""
        return read_optional_json_file(
            files.SavedBaselines, self.path / BASELINE, "delete it: lmtool resume then measures it again"
        )

    @property
    def validation_at_interruption(self) -> ValidationAtInterruption | None:
        """Returns the validation that the last session passed to `record_session_end`; None if there is none."""
        return self.info.sessions[-1].validation if self.info.sessions else None

    @property
    def best_step(self) -> int | None:
        """Returns the step of the best validation; None before any."""
        if (validation := self.validation_at_interruption) is not None and validation.is_best:
            return validation.step
        if (noted := self.last_validation) is not None:
            return noted.best_step
        # the newest manifest has it too
        for _, path in reversed(checkpoints.list_checkpoints(self.path / CHECKPOINTS)):
            with suppress(CheckpointError):
                return checkpoints.open_checkpoint_checking_sizes(path).best_step
        return None

    def find_best_or_newest_checkpoint(self, peers: CheckpointProcessGroup = SINGLE_PROCESS) -> CheckpointWithWarnings:
        """Returns the checkpoint of the best validation, or the newest complete one with a warning if that is damaged.

        Before any validation, the newest is the best. The optimizer's tensors are not verified. peers: see
        `open_and_verify_checkpoint`. Raises CheckpointError if none is complete.
        """
        best_step = self.best_step
        if best_step is None:
            return self.find_newest_checkpoint(verify_optimizer=False, peers=peers)
        path = self.path / CHECKPOINTS / checkpoints.step_folder_name(best_step)
        try:
            checkpoint = checkpoints.open_and_verify_checkpoint(path, verify_optimizer=False, peers=peers)
            return CheckpointWithWarnings(checkpoint, [])
        except CheckpointError as error:
            found = self.find_newest_checkpoint(verify_optimizer=False, peers=peers)
            if any(path.name in warning for warning in found.warnings):  # already reported as damaged
                return found
            warning = f"using {found.checkpoint.path.name} instead of the best, {path.name}: {error.what}"
            return CheckpointWithWarnings(found.checkpoint, [*found.warnings, warning])

    @contextmanager
    def _convert_write_errors_under_lock(self, path: Path | None = None) -> Iterator[None]:
        """Converts errors of writing to the run, or to a path in it, by the process that holds the lock."""
        if self._lock is None:
            raise RuntimeError("only the process that holds the lock of a run writes to it")
        with durable.convert_write_errors(path or self.path, CANNOT_WRITE_OUTPUT):
            yield

    def _write_info(self, info: RunInfo) -> None:
        durable.replace_file(self.path / RUN_INFO_FILE, info.to_json_bytes())
        self.info = info


def _read_run_json(path: Path) -> RunInfo:
    try:
        return files.read_json_file(RunInfo, path / RUN_INFO_FILE, "name another run (lmtool runs ls)")
    except CheckpointError as error:
        if (other := add_version_hint(path, error)) is not error:
            raise other from error
        raise CheckpointError(f"this is not a complete run: {error.what}", where=error.where, fix=error.fix) from error
