"""Run directories: creation, locking, writing.

    runs/2026-11-20-tiny-7f3a/
      recipe.yaml  tokenizer.json  run.json  metrics.jsonl  samples.jsonl  validated.json  checkpoints/

run.json is written last on creation, so a folder is a run if and only if it has one. A run on tables has split.json and
metrics.json too, and one whose session has ended report.html.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from lmtool import durable, records
from lmtool.errors import CheckpointError, ResourceError
from lmtool.run import checkpoint as checkpoints
from lmtool.run import files, saving
from lmtool.run.checkpoint import MANIFEST, SINGLE_PROCESS, Checkpoint, Peers
from lmtool.run.files import LARGEST_ROWS, LastValidation, RunInfo, Session, Validated, now, read_any
from lmtool.run.lock import RunLock, is_held
from lmtool.run.log import Log
from lmtool.run.paths import INFO, explained, remember

RECIPE, TOKENIZER = "recipe.yaml", "tokenizer.json"

TOKENIZER_CONFIG = "tokenizer_config.json"
"""The roles of the special tokens of a published model's tokenizer."""

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
"""Figures that `lmtool eval` has measured; see `lmtool.run.listing`."""

SUITES = "suites"
"""Scores of rows of the tasks of suites that `lmtool eval` has measured."""

REPORT = "report.html"
"""The page about the run, as its last session left it."""

COPIED = 1 << 22
"""Bytes of a file copied at once."""

FEATURES = "features"
"""A copy of the run whose states the model reads: its recipe, tokenizer and one checkpoint."""

FORMER = ("lines.bin", "logs.json")
"""Files that earlier versions wrote."""

_BEGINNING = (INFO, RECIPE, TOKENIZER, TOKENIZER_CONFIG)
_TRAINING = (METRICS, SAMPLES, VALIDATED)
_RESULTS = (SPLIT, *FORMER, BASELINE, RESULTS, EVALUATIONS, SUITES, REPORT)
FILES = (*_BEGINNING, *_TRAINING, *_RESULTS, FEATURES, CHECKPOINTS)
"""What a run directory may hold, besides its lock."""

RunState = Literal["running", "finished", "stopped", "imported"]


class Run:
    """One run directory. Anyone may read it; only the process that holds its lock writes to it.

    As a context manager it releases the lock on exit.
    """

    def __init__(self, path: Path, info: RunInfo, lock: RunLock | None = None) -> None:
        """Use `open`, or `lmtool.run.creation.create_run`."""
        self.path = path
        self.info = info
        self.metrics = Log(path / METRICS, files.StepRecord)
        self.samples = Log(path / SAMPLES, files.SampleRecord)
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run, not locked. Raises CheckpointError when `path` is not one or its run.json is damaged."""
        return cls(path, _read_info(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.resolve().name

    @property
    def tokenizer_path(self) -> Path:
        """Its tokenizer.json."""
        return self.path / TOKENIZER

    @property
    def recipe_path(self) -> Path:
        """Its recipe.yaml, fully resolved."""
        return self.path / RECIPE

    @property
    def last_started(self) -> str:
        """When it was last started or resumed, ISO 8601 in UTC."""
        sessions = self.info.sessions
        return sessions[-1].started if sessions else self.info.created

    @property
    def state(self) -> RunState:
        """running while a process holds its lock; finished if its last session recorded so; else stopped.

        imported if its weights were made elsewhere.
        """
        if is_held(self.path):
            return "running"
        if self.info.origin is not None:
            return "imported"
        sessions = self.info.sessions
        return "finished" if sessions and sessions[-1].outcome == "finished" else "stopped"

    def keep_features(self, source: Self, checkpoint: Checkpoint) -> None:
        """Copy another run with one checkpoint, without its optimizer state, into this one. Raises ResourceError."""
        copy = self.path / FEATURES
        with self._writing(copy):
            weights = copy / CHECKPOINTS / checkpoint.path.name
            weights.mkdir(parents=True)
            names = [name for name in (*checkpoint.files, MANIFEST) if name not in checkpoint.optimizer_files]
            # run.json last: it makes the copy a run
            copied = [(checkpoint.path, weights, name) for name in names]
            copied += [(source.path, copy, name) for name in (RECIPE, TOKENIZER, TOKENIZER_CONFIG, INFO)]
            for old, new, name in copied:
                if (old / name).exists():
                    with durable.open_regular(old / name) as file:
                        durable.write_new(new / name, iter(partial(file.read, COPIED), b""))
                    durable.sync_directory(new)

    def lock(self) -> None:
        """Acquire the lock, to be the only process that may write.

        Raises CheckpointError when another process holds it, ResourceError when the directory cannot be written.
        """
        if self._lock is None:
            self._lock = RunLock(self.path)
            self.info = _read_info(self.path)

    def release(self) -> None:
        """Release the lock, if held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def start(
        self,
        *,
        step: int,
        command: Sequence[str],
        environment: Mapping[str, object],
        validated: Validated | None = None,
        pending: bool = False,
    ) -> list[str]:
        """Begin a session after `step` steps, and discard what a killed session left beyond that step.

        Later records of metrics and samples are removed; later checkpoints are set aside (renamed to step-....aside-1).
        An earlier session's test scores are removed, since another checkpoint may become the best.
        command: as typed. environment: as from `describe_environment`. validated: see `note_validation`. pending: the
        step is still to be validated and logged.
        Returns what of the logs was found damaged or missing, a line each, and removed.
        Raises ResourceError when the directory cannot be written.
        """
        fixed = {"started": now(), "step": step, "pid": os.getpid(), "ended": None, "outcome": None}
        session = Session.model_validate({**fixed, "command": list(command), "environment": dict(environment)})
        sessions = [*self.info.sessions, session]
        logged = step - pending
        damage = self.check_logs(sessions[0].step, logged)
        with self._writing():
            self.metrics.rewind(logged)
            self.samples.rewind(logged)
            self._sync_logs()
            saving.sweep(self.path / CHECKPOINTS)
            for later, path in checkpoints.listed(self.path / CHECKPOINTS):
                if later > step:
                    saving.set_aside(path)
            for name in (RESULTS, EVALUATIONS):
                (self.path / name).unlink(missing_ok=True)
            if validated is None:
                (self.path / VALIDATED).unlink(missing_ok=True)
            else:
                durable.replace(self.path / VALIDATED, validated.sealed())
            self._write_info(self.info.model_copy(update={"sessions": sessions}))
        remember(self.path)
        return damage

    def check_logs(self, first: int, step: int) -> list[str]:
        """Returns a line for each kind of damage in the logs of the steps first + 1 to `step`."""
        return self.metrics.find_damage(step, range(first + 1, step + 1)) + self.samples.find_damage(step)

    def _sync_logs(self) -> None:
        """Syncs the logs to disk. Raises OSError."""
        self.metrics.sync()
        self.samples.sync()

    def note_validation(
        self, validated: Validated, keep_last: int | None = None, superseded: int | None = None
    ) -> None:
        """Record the result of the validation after a checkpoint.

        A checkpoint that was the best until then is removed unless it is among the last `keep_last`; None keeps all.
        superseded: see `saving.prune`. Raises ResourceError when it cannot be written.
        """
        with self._writing():
            self._sync_logs()
            durable.replace(self.path / VALIDATED, validated.sealed())
            if keep_last is not None:
                spared = {validated.step, validated.best_step}
                saving.prune(self.path / CHECKPOINTS, spared, keep_last, superseded)

    def tidy(self, keep_last: int, superseded: int | None = None) -> None:
        """Remove the checkpoints, and parts of one, that a killed session has left; see `saving.prune`.

        Raises ResourceError, and CheckpointError as `validated` does.
        """
        folder = self.path / CHECKPOINTS
        with self._writing():
            saving.sweep(folder)
            saving.prune(folder, {self.best_step}, keep_last, superseded)

    @property
    def validated(self) -> Validated | None:
        """The last record of `note_validation`; None before any validation.

        Raises CheckpointError when the file is damaged.
        """
        return read_any(Validated, self.path / VALIDATED, "delete it: lmtool resume then repeats the last validation")

    def write_recipe(self, recipe: str) -> None:
        """Replace recipe.yaml, when a resumed run has another recipe, or a running one another length.

        Raises ResourceError.
        """
        with self._writing():
            durable.replace(self.recipe_path, recipe.encode())

    def end(self, outcome: Literal["finished", "stopped"], validation: Mapping[str, object] | None = None) -> None:
        """Close the session: finished when all steps are done or by early stopping, else stopped.

        Removes the page of an earlier session, so that a run whose page is there has the present one.
        validation: of the last step of a session that was interrupted there, with "step" and "is_best". It is no part
        of the training, but if it is the best, its checkpoint is, until the run is resumed.
        Raises ResourceError when it cannot be written.
        """
        *earlier, session = self.info.sessions
        ended: dict[str, object] = {"ended": now(), "outcome": outcome}
        if validation is not None:
            ended["validation"] = LastValidation.model_validate(dict(validation))
        with self._writing():
            (self.path / REPORT).unlink(missing_ok=True)
            sessions = [*earlier, session.model_copy(update=ended)]
            self._write_info(self.info.model_copy(update={"sessions": sessions}))

    def save(
        self, snapshot: saving.Snapshot, keep_last: int, superseded: int | None = None, peers: Peers = SINGLE_PROCESS
    ) -> Checkpoint:
        """`saving.save` in this run. Log the records of a step before saving it: a resumed run starts after it."""
        try:
            with self._writing():
                self._sync_logs()
        except ResourceError:
            saving.leave(peers)
            raise
        return saving.save(self.path / CHECKPOINTS, snapshot, keep_last, superseded, peers)

    def newest(self, *, optimizer: bool = True, peers: Peers = SINGLE_PROCESS) -> tuple[Checkpoint, list[str]]:
        """`checkpoint.newest_valid` of this run: the checkpoint to resume from, and warnings about damaged ones."""
        return checkpoints.newest_valid(self.path / CHECKPOINTS, optimizer=optimizer, peers=peers)

    def drop_optimizers(self) -> None:
        """Remove the optimizer state of all checkpoints. Raises ResourceError."""
        with self._writing():
            saving.drop_optimizers(self.path / CHECKPOINTS)

    @property
    def all_results(self) -> dict[str, dict[str, Any]]:
        """The scores of its best checkpoint on each task by name, "" where it has one; empty without any.

        Raises CheckpointError when the file is damaged.
        """
        fix = "delete it: lmtool resume then evaluates the run again"
        results = read_any(files.SavedResults, self.path / RESULTS, fix, LARGEST_ROWS)
        by_task = results.by_task if results else {}
        return {name: figures.model_dump(exclude_unset=True) for name, figures in by_task.items()}

    def write_results(self, content: Mapping[str, Any]) -> None:
        """Write metrics.json; NaN and infinities become null. Raises ResourceError."""
        with self._writing():
            durable.replace(self.path / RESULTS, records.encode(records.finite(content)))

    @property
    def saved_split(self) -> files.SavedSplit | None:
        """The rows held out from its tables; None without any. Raises CheckpointError when the file is damaged."""
        return read_any(files.SavedSplit, self.path / SPLIT, "restore it from a copy, or start a new run", LARGEST_ROWS)

    @property
    def saved_baselines(self) -> files.SavedBaselines | None:
        """What baseline.json holds; None where there is none. Raises CheckpointError when the file is damaged."""
        return read_any(files.SavedBaselines, self.path / BASELINE, "delete it: lmtool resume then measures it again")

    @property
    def interrupted(self) -> LastValidation | None:
        """The validation passed to `end` by the last session; None where there was none."""
        return self.info.sessions[-1].validation if self.info.sessions else None

    def newer_than(self, step: int) -> int | None:
        """The step of the newest checkpoint after a step, complete or not; None where there is none."""
        newest = max((other for other, _ in checkpoints.listed(self.path / CHECKPOINTS)), default=step)
        return newest if newest > step else None

    @property
    def best_step(self) -> int | None:
        """The step of the best validation; None before any."""
        if (validation := self.interrupted) is not None and validation.is_best:
            return validation.step
        if (noted := self.validated) is not None:
            return noted.best_step
        # without a record, from the newest manifest
        for _, path in reversed(checkpoints.listed(self.path / CHECKPOINTS)):
            with suppress(CheckpointError):
                return checkpoints.inspect(path).best_step
        return None

    def best(self, *, optimizer: bool = True, peers: Peers = SINGLE_PROCESS) -> tuple[Checkpoint, list[str]]:
        """The checkpoint of the best validation; the newest complete one, with a warning, when that is damaged.

        Before any validation, the newest is the best. peers: see `checkpoint.verify`. Raises CheckpointError when none
        is complete.
        """
        best_step = self.best_step
        if best_step is None:
            return self.newest(optimizer=optimizer, peers=peers)
        path = self.path / CHECKPOINTS / checkpoints.step_name(best_step)
        try:
            return checkpoints.verify(path, optimizer=optimizer, peers=peers), []
        except CheckpointError as error:
            newest, warnings = self.newest(optimizer=optimizer, peers=peers)
            if any(path.name in warning for warning in warnings):  # already reported as damaged
                return newest, warnings
            return newest, [*warnings, f"using {newest.path.name} instead of the best, {path.name}: {error.what}"]

    @contextmanager
    def _writing(self, path: Path | None = None) -> Iterator[None]:
        """A context in which this process, which holds the lock, writes to the run, or to a path in it."""
        if self._lock is None:
            raise RuntimeError("only the process that holds the lock of a run writes to it")
        with writing(path or self.path):
            yield

    def _write_info(self, info: RunInfo) -> None:
        durable.replace(self.path / INFO, info.sealed())
        self.info = info


def writing(path: Path) -> AbstractContextManager[None]:
    return durable.refusing("cannot write to the output folder", path, durable.way_to_write)


def _read_info(path: Path) -> RunInfo:
    try:
        return files.read(RunInfo, path / INFO, "name another run (lmtool runs ls)")
    except CheckpointError as error:
        if (other := explained(path, error)) is not error:
            raise other from error
        raise CheckpointError(f"this is not a complete run: {error.what}", where=error.where, fix=error.fix) from error
