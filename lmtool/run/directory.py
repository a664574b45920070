"""Run directories: creation, locking, writing.

    runs/2026-11-20-tiny-7f3a/
      recipe.yaml  tokenizer.json  run.json  metrics.jsonl  samples.jsonl  validated.json  checkpoints/

run.json is written last on creation, so a folder is a run if and only if it has one. A run on tables has split.json and
metrics.json too, one on a list of short lines lines.bin, and one whose session has ended report.html.
"""

import errno
import importlib.metadata
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from lmtool import __version__, durable, records
from lmtool.errors import CheckpointError, ResourceError, UsageError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.checkpoint import ALONE, MANIFEST, Checkpoint, Peers
from lmtool.run.files import (
    FORMAT,
    LARGEST_ROWS,
    Imported,
    LastValidation,
    RunInfo,
    SampleRecord,
    SavedFloors,
    SavedResults,
    SavedSplit,
    Session,
    StepRecord,
    Validated,
    read,
)
from lmtool.run.lock import LOCK_FILE, RunLock, is_held
from lmtool.run.log import Log, LogMarks
from lmtool.run.places import INFO, remember, runs_root

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.run.lines import KnownLines
    from lmtool.run.tensors import Deferred

RECIPE, TOKENIZER = "recipe.yaml", "tokenizer.json"

TOKENIZER_CONFIG = "tokenizer_config.json"
"""The roles of the special tokens of a published model's tokenizer."""

METRICS, SAMPLES, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "checkpoints"

LOGS = "logs.json"
"""Size and SHA-256 of both logs when they were synced last, by which damage of them is found."""

SPLIT = "split.json"
"""Indices of the table rows held out for validation."""

LINES = "lines.bin"
"""Hashes of the lines of a list that it is trained on; see `KnownLines`."""

FLOOR = "floor.json"
"""Results of simple models on the rows of a table that the run is evaluated on."""

VALIDATED = "validated.json"
"""Result of the last validation, and the best step."""

RESULTS = "metrics.json"
"""Scores of the best checkpoint on a table."""

EVALUATIONS = "evaluations.json"
"""Figures that `lmtool eval` has measured; see `lmtool.run.evaluations`."""

REPORT = "report.html"
"""The page about the run, as its last session left it."""

COPIED = 1 << 22
"""Bytes of a file copied at once."""

FEATURES = "features"
"""A copy of the run whose states the model reads: its recipe, tokenizer and one checkpoint."""

FILES = (
    INFO,
    RECIPE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    METRICS,
    SAMPLES,
    LOGS,
    VALIDATED,
    SPLIT,
    LINES,
    FLOOR,
    RESULTS,
    EVALUATIONS,
    REPORT,
    FEATURES,
    CHECKPOINTS,
)
"""What a run directory may hold, besides its lock."""

RunState = Literal["running", "finished", "stopped", "imported"]


class Run:
    """One run directory. Anyone may read it; only the process that holds its lock writes to it.

    As a context manager it releases the lock on exit.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.info = info
        self.metrics = Log(path / METRICS, StepRecord)
        self.samples = Log(path / SAMPLES, SampleRecord)
        self._lock: RunLock | None = None

    @classmethod
    def create(
        cls,
        folder: Path | None,
        *,
        name: str,
        summary: str,
        recipe: str,
        tokenizer: Mapping[str, bytes],
        fingerprints: Mapping[str, str],
        base: Mapping[str, object] | None = None,
        teacher: Mapping[str, object] | None = None,
        origin: Mapping[str, object] | None = None,
        data: Mapping[str, object] | None = None,
        retry: bool = False,
    ) -> Self:
        """A new run, locked: in `folder`, or if None in a new folder of `runs_root()` named after day and recipe.

        name: the recipe's. summary: one line on the model, for `lmtool runs ls`. recipe: the resolved recipe as YAML.
        tokenizer: the content of its files by name, tokenizer.json first. fingerprints: of "data" and "tokenizer",
        compared on resume. base, teacher: the runs and checkpoints that it is initialised and distilled from, if any.
        origin: where it was imported from, if it was. data: what is told of the training data. retry: see
        `check_folder`, which says what is raised.
        """
        check_folder(folder, retry)
        path = folder or unused_folder(name)
        info = RunInfo.model_validate(
            {
                "format": FORMAT,
                "recipe": name,
                "summary": summary,
                "created": _now(),
                "fingerprints": dict(fingerprints),
                "base": base,
                "teacher": teacher,
                "origin": origin,
                "data": data,
                "sessions": [],
            }
        )
        try:
            path.mkdir(parents=True, exist_ok=folder is not None)
            run = cls(path, info)
            run._lock = RunLock(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            if retry and _is_aborted(path):
                _clear(path)
            _refuse_used(path, retry, locked=True)
            durable.write_new(path / RECIPE, [recipe.encode()])
            for file, content in tokenizer.items():
                durable.write_new(path / file, [content])
            (path / CHECKPOINTS).mkdir()
            run._write_info(info)
            durable.sync_directory(path.absolute().parent)
        except BaseException as error:
            run.release()
            if isinstance(error, OSError):
                raise _unwritable(path, error) from error
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run, not locked. Raises CheckpointError when `path` is not one or its run.json is damaged."""
        return cls(path, _read_info(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the data and the tokenizer when the run was created."""
        return self.info.fingerprints.model_dump()

    @property
    def origin(self) -> Imported | None:
        """Where it was imported from; None for a run that was trained here."""
        return self.info.origin

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
        if self.origin is not None:
            return "imported"
        sessions = self.info.sessions
        return "finished" if sessions and sessions[-1].outcome == "finished" else "stopped"

    def keep_features(self, source: Self, checkpoint: Checkpoint) -> None:
        """Copy another run with one checkpoint, without its optimizer state, into this one. Raises ResourceError."""
        self._require_lock()
        copy = self.path / FEATURES
        try:
            weights = copy / CHECKPOINTS / checkpoint.path.name
            weights.mkdir(parents=True)
            own = [name for name in (*checkpoint.files, MANIFEST) if name not in checkpoint.optimizer_files]
            # run.json last: it makes the copy a run
            files = [(checkpoint.path, weights, name) for name in own]
            files += [(source.path, copy, name) for name in (RECIPE, TOKENIZER, TOKENIZER_CONFIG, INFO)]
            for old, new, name in files:
                if (old / name).exists():
                    with durable.open_regular(old / name) as file:
                        durable.write_new(new / name, iter(partial(file.read, COPIED), b""))
                    durable.sync_directory(new)
        except OSError as error:
            raise _unwritable(copy, error) from error

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
        self._require_lock()
        session = Session.model_validate(
            {
                "started": _now(),
                "step": step,
                "pid": os.getpid(),
                "command": list(command),
                "environment": dict(environment),
                "ended": None,
                "outcome": None,
            }
        )
        sessions = [*self.info.sessions, session]
        found = self._rewind_logs(sessions[0].step, step - pending)
        try:
            checkpoints.sweep(self.path / CHECKPOINTS)
            for later, path in checkpoints.listed(self.path / CHECKPOINTS):
                if later > step:
                    checkpoints.set_aside(path)
            for name in (RESULTS, EVALUATIONS):
                (self.path / name).unlink(missing_ok=True)
            if validated is None:
                (self.path / VALIDATED).unlink(missing_ok=True)
            else:
                durable.replace(self.path / VALIDATED, validated.sealed())
            self._write_info(self.info.model_copy(update={"sessions": sessions}))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        remember(self.path)
        return found

    def _rewind_logs(self, first: int, step: int) -> list[str]:
        """Remove the records after a step; returns what of those before was found damaged or missing.

        first: the step before the first one that the run has a record of.
        """
        found = self.check_logs(first, step)
        try:
            # without marks the logs may be changed
            (self.path / LOGS).unlink(missing_ok=True)
            self.metrics.rewind(step)
            self.samples.rewind(step)
            self._sync_logs()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return found

    def check_logs(self, first: int, step: int) -> list[str]:
        """What of the logs of the steps first + 1 to `step` is damaged or missing, a line each."""
        marks = None
        found = []
        try:
            marks = records.read(LogMarks, durable.read(self.path / LOGS))
        except FileNotFoundError:
            pass  # of a run that was killed
        except (OSError, ValueError) as error:
            found.append(f"{LOGS} is damaged, so that not all changes of the logs are found: {error}")
        found += self.metrics.check(step, None if marks is None else marks.metrics, range(first + 1, step + 1))
        return found + self.samples.check(step, None if marks is None else marks.samples)

    def _sync_logs(self) -> None:
        """Make the logs durable, and note how they are. Raises OSError."""
        self.metrics.sync()
        self.samples.sync()
        marks = LogMarks(metrics=self.metrics.mark(), samples=self.samples.mark())
        if marks.metrics.bytes or marks.samples.bytes:
            durable.replace(self.path / LOGS, records.encode(marks.model_dump()))

    def note_validation(
        self, validated: Validated, keep_last: int | None = None, superseded: int | None = None
    ) -> None:
        """Record the result of the validation after a checkpoint.

        A checkpoint that was the best until then is removed unless it is among the last `keep_last`; None keeps all.
        superseded: see `checkpoint.prune`. Raises ResourceError when it cannot be written.
        """
        self._require_lock()
        try:
            self._sync_logs()
            durable.replace(self.path / VALIDATED, validated.sealed())
            if keep_last is not None:
                spared = {validated.step, validated.best_step}
                checkpoints.prune(self.path / CHECKPOINTS, spared, keep_last, superseded)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def tidy(self, keep_last: int, superseded: int | None = None) -> None:
        """Remove the checkpoints, and parts of one, that a killed session has left; see `checkpoint.prune`.

        Raises ResourceError, and CheckpointError as `validated` does.
        """
        self._require_lock()
        folder = self.path / CHECKPOINTS
        try:
            checkpoints.sweep(folder)
            checkpoints.prune(folder, {self.best_step}, keep_last, superseded)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def validated(self) -> Validated | None:
        """The last record of `note_validation`; None before any validation.

        Raises CheckpointError when the file is damaged.
        """
        file = self.path / VALIDATED
        if not os.path.lexists(file):
            return None
        return read(Validated, file, "delete it: lmtool resume then repeats the last validation")

    def write_recipe(self, recipe: str) -> None:
        """Replace recipe.yaml, when a resumed run has another recipe, or a running one another length.

        Raises ResourceError.
        """
        self._require_lock()
        try:
            durable.replace(self.recipe_path, recipe.encode())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def end(self, outcome: Literal["finished", "stopped"], validation: Mapping[str, object] | None = None) -> None:
        """Close the session: finished when all steps are done or by early stopping, else stopped.

        validation: of the last step of a session that was interrupted there, with "step" and "is_best". It is no part
        of the training, but if it is the best, its checkpoint is, until the run is resumed.
        Raises ResourceError when it cannot be written.
        """
        self._require_lock()
        *earlier, session = self.info.sessions
        ended: dict[str, object] = {"ended": _now(), "outcome": outcome}
        if validation is not None:
            ended["validation"] = LastValidation.model_validate(dict(validation))
        try:
            sessions = [*earlier, session.model_copy(update=ended)]
            self._write_info(self.info.model_copy(update={"sessions": sessions}))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def save(
        self,
        step: int,
        model: "Mapping[str, Tensor | Deferred]",
        optimizer: "Mapping[str, Tensor | Deferred]",
        state: Mapping[str, object],
        *,
        best_step: int | None,
        keep_last: int,
        superseded: int | None = None,
        peers: Peers = ALONE,
    ) -> Checkpoint:
        """`checkpoint.save` in this run. Log the records of a step before saving it: a resumed run starts after it."""
        self._require_lock()
        try:
            self._sync_logs()
        except OSError as error:
            checkpoints.leave(peers)
            raise _unwritable(self.path, error) from error
        return checkpoints.save(
            self.path / CHECKPOINTS,
            step,
            model,
            optimizer,
            state,
            best_step=best_step,
            keep_last=keep_last,
            superseded=superseded,
            peers=peers,
        )

    def newest(self, *, optimizer: bool = True, peers: Peers = ALONE) -> tuple[Checkpoint, list[str]]:
        """`checkpoint.newest_valid` of this run: the checkpoint to resume from, and warnings about damaged ones."""
        return checkpoints.newest_valid(self.path / CHECKPOINTS, optimizer=optimizer, peers=peers)

    def drop_optimizers(self) -> None:
        """Remove the optimizer state of all checkpoints. Raises ResourceError."""
        self._require_lock()
        try:
            checkpoints.drop_optimizers(self.path / CHECKPOINTS)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def results(self) -> dict[str, Any] | None:
        """The scores of its best checkpoint on a table, of the first where there are several; None without any.

        Raises CheckpointError when the file is damaged.
        """
        return next(iter(self.all_results.values()), None)

    @property
    def all_results(self) -> dict[str, dict[str, Any]]:
        """The scores of its best checkpoint on each task by name, "" where it has one; empty without any.

        Raises CheckpointError when the file is damaged.
        """
        file = self.path / RESULTS
        if not os.path.lexists(file):
            return {}
        found = read(SavedResults, file, "delete it: lmtool resume then evaluates the run again", LARGEST_ROWS)
        return {name: figures.model_dump(exclude_unset=True) for name, figures in found.by_task.items()}

    def write_results(self, content: Mapping[str, Any]) -> None:
        """Write metrics.json; NaN and infinities become null. Raises ResourceError."""
        try:
            durable.replace(self.path / RESULTS, records.encode(records.finite(content)))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def saved_split(self) -> SavedSplit | None:
        """The rows held out from its tables; None without any. Raises CheckpointError when the file is damaged."""
        file = self.path / SPLIT
        if not os.path.lexists(file):
            return None
        return read(SavedSplit, file, "restore it from a copy, or start a new run", LARGEST_ROWS)

    @property
    def known_lines(self) -> "KnownLines | None":
        """The lines of the list that it is trained on; None without any. Raises CheckpointError when the file is
        damaged."""
        from lmtool.run.lines import KnownLines  # which imports numpy, that listing runs does without

        return KnownLines.read(self.path / LINES)

    @property
    def saved_floors(self) -> SavedFloors | None:
        """What floor.json holds; None where there is none. Raises CheckpointError when the file is damaged."""
        file = self.path / FLOOR
        if not os.path.lexists(file):
            return None
        return read(SavedFloors, file, "delete it: lmtool resume then measures it again")

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

    def best(self, *, optimizer: bool = True, peers: Peers = ALONE) -> tuple[Checkpoint, list[str]]:
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

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError("only the process that holds the lock of a run writes to it")

    def _write_info(self, info: RunInfo) -> None:
        durable.replace(self.path / INFO, info.sealed())
        self.info = info


def check_folder(folder: Path | None, retry: bool = False) -> None:
    """Fail early where `create` would fail after minutes of data preparation.

    retry: a run that ended before its first checkpoint may be in `folder`; `create` removes it.
    Raises UsageError when `folder` holds a run already, or with `retry` CheckpointError when another process has begun
    one there; ResourceError when it (or `runs_root()`) cannot be written.
    """
    path = folder or runs_root()
    if folder is not None and (not (retry and _is_aborted(folder)) or is_held(folder)):
        _refuse_used(folder, retry, locked=False)
    nearest = next(parent for parent in (path, *path.absolute().parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def describe_environment(device: str) -> dict[str, object]:
    """Everything a result may depend on besides recipe and data. device: as named by torch, "cpu" or "cuda:0"."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "lmtool": __version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": gpu,
    }


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def unused_folder(name: str) -> Path:
    """The path of a new run in `runs_root()`, named after day and recipe."""
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40] or "run"
    while True:
        path = runs_root() / f"{datetime.now():%Y-%m-%d}-{slug}-{secrets.token_hex(2)}"
        if not os.path.lexists(path):
            return path


def _refuse_used(folder: Path, retry: bool, locked: bool) -> None:
    """locked: this process holds the lock."""
    if (name := next((name for name in FILES if os.path.lexists(folder / name)), None)) is None:
        return
    if retry and (is_begun(folder) or (is_held(folder) and not locked)):
        # since the command looked whether there is a run to go on with
        raise CheckpointError(
            "another process has begun the run in this folder",
            where=str(folder),
            fix="wait until it ends, or stop it; the same command then goes on with the run",
        )
    raise UsageError(
        f"the output folder already holds {name}",
        where=str(folder),
        fix="choose another with -o, or continue that run with lmtool resume",
    )


def is_begun(folder: Path) -> bool:
    """Whether a folder holds a run with a checkpoint, complete or not."""
    return os.path.lexists(folder / INFO) and bool(checkpoints.listed(folder / CHECKPOINTS))


def _is_aborted(folder: Path) -> bool:
    """Whether a folder holds what a session has left that ended before its first checkpoint."""
    try:
        entries = os.listdir(folder / CHECKPOINTS)
    except OSError:  # there is none, or no longer
        entries = []
    return (folder / LOCK_FILE).exists() and all(name.startswith(durable.TEMPORARY) for name in entries)


def _clear(folder: Path) -> None:
    """Remove the files of a run; run.json first, so that none is taken for a run without its other parts."""
    for name in FILES:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    durable.sync_directory(folder)


def _unwritable(path: Path, error: OSError) -> ResourceError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ResourceError(
        f"cannot write to the output folder: {error.strerror or error}",
        where=str(path),
        fix="free some disk space" if full else "change its permissions, or choose another with -o",
    )


def _read_info(path: Path) -> RunInfo:
    try:
        return read(RunInfo, path / INFO, "name another run (lmtool runs ls)")
    except CheckpointError as error:
        raise CheckpointError(f"this is not a complete run: {error.what}", where=error.where, fix=error.fix) from error
