"""Run directories: creation, locking, writing.

    runs/2026-11-20-tiny-7f3a/
      recipe.yaml  tokenizer.json  run.json  metrics.jsonl  samples.jsonl  validated.json  checkpoints/

run.json is written last on creation, so a folder is a run if and only if it has one. A run on tables has split.json and
metrics.json too, and one whose session has ended report.html.
"""

import errno
import importlib.metadata
import json
import os
import platform
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from lmtool import __version__, durable
from lmtool.errors import CheckpointError, ResourceError, UsageError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.lock import RunLock, is_held
from lmtool.run.log import Log
from lmtool.run.places import INFO, remember, runs_root

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.run.tensors import Deferred

FORMAT = 1
RECIPE, TOKENIZER = "recipe.yaml", "tokenizer.json"

TOKENIZER_CONFIG = "tokenizer_config.json"
"""The roles of the special tokens of a published model's tokenizer."""

METRICS, SAMPLES, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "checkpoints"

SPLIT = "split.json"
"""Indices of the table rows held out for validation."""

FLOOR = "floor.json"
"""Results of simple models on the rows of a table that the run is evaluated on."""

VALIDATED = "validated.json"
"""Result of the last validation, and the best step."""

RESULTS = "metrics.json"
"""Scores of the best checkpoint on a table."""

REPORT = "report.html"
"""The page about the run, as its last session left it."""

FILES = (
    INFO,
    RECIPE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    METRICS,
    SAMPLES,
    VALIDATED,
    SPLIT,
    FLOOR,
    RESULTS,
    REPORT,
    CHECKPOINTS,
)
"""What a run directory may hold, besides its lock."""

RunState = Literal["running", "finished", "stopped", "imported"]


class Run:
    """One run directory. Anyone may read it; only the process that holds its lock writes to it.

    As a context manager it releases the lock on exit.
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.info = info
        self.metrics = Log(path / METRICS)
        self.samples = Log(path / SAMPLES)
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
    ) -> Self:
        """A new run, locked: in `folder`, or if None in a new folder of `runs_root()` named after day and recipe.

        name: the recipe's. summary: one line on the model, for `lmtool runs ls`. recipe: the resolved recipe as YAML.
        tokenizer: the content of its files by name, tokenizer.json first. fingerprints: of "data" and "tokenizer",
        compared on resume. base, teacher: the runs and checkpoints that it is initialised and distilled from, if any.
        origin: where it was imported from, if it was. data: what is told of the training data. Raises as `check_folder`
        does.
        """
        check_folder(folder)
        path = folder or runs_root()
        try:
            path = new_folder(name) if folder is None else folder
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, {})
            run._lock = RunLock(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            _refuse_used(path)
            durable.write_new(path / RECIPE, [recipe.encode()])
            for file, content in tokenizer.items():
                durable.write_new(path / file, [content])
            (path / CHECKPOINTS).mkdir()
            run._write_info(
                {
                    "format": FORMAT,
                    "recipe": name,
                    "summary": summary,
                    "created": _now(),
                    "fingerprints": dict(fingerprints),
                    "base": None if base is None else dict(base),
                    "teacher": None if teacher is None else dict(teacher),
                    "origin": None if origin is None else dict(origin),
                    "data": None if data is None else dict(data),
                    "sessions": [],
                }
            )
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
        return dict(self.info["fingerprints"])

    @property
    def origin(self) -> dict[str, Any] | None:
        """Where it was imported from; None for a run that was trained here."""
        found: dict[str, Any] | None = self.info.get("origin")
        return found

    @property
    def last_started(self) -> str:
        """When it was last started or resumed, ISO 8601 in UTC."""
        sessions = self.info["sessions"]
        return str(sessions[-1]["started"] if sessions else self.info["created"])

    @property
    def state(self) -> RunState:
        """running while a process holds its lock; finished if its last session recorded so; else stopped.

        imported if its weights were made elsewhere.
        """
        if is_held(self.path):
            return "running"
        if self.origin is not None:
            return "imported"
        sessions = self.info["sessions"]
        return "finished" if sessions and sessions[-1]["outcome"] == "finished" else "stopped"

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
        validated: Mapping[str, object] | None = None,
        pending: bool = False,
    ) -> None:
        """Begin a session after `step` steps, and discard what a killed session left beyond that step.

        Later records of metrics and samples are removed; later checkpoints are set aside (renamed to step-....aside-1).
        An earlier session's final test scores are removed, since another checkpoint may become the best.
        command: as typed. environment: as from `describe_environment`. validated: see `note_validation`. pending: the
        step is still to be validated and logged.
        Raises ResourceError when the directory cannot be written.
        """
        self._require_lock()
        for log in (self.metrics, self.samples):
            log.rewind(step - pending)
        session = {
            "started": _now(),
            "step": step,
            "pid": os.getpid(),
            "command": list(command),
            "environment": dict(environment),
            "ended": None,
            "outcome": None,
        }
        try:
            checkpoints.sweep(self.path / CHECKPOINTS)
            for later, path in checkpoints.listed(self.path / CHECKPOINTS):
                if later > step:
                    checkpoints.set_aside(path)
            (self.path / RESULTS).unlink(missing_ok=True)
            if validated is None:
                (self.path / VALIDATED).unlink(missing_ok=True)
            else:
                durable.replace(self.path / VALIDATED, _encode(dict(validated)))
            self._write_info(self.info | {"sessions": [*self.info["sessions"], session]})
        except OSError as error:
            raise _unwritable(self.path, error) from error
        remember(self.path)

    def note_validation(self, validated: Mapping[str, Any], keep_last: int | None = None) -> None:
        """Record the result of the validation after a checkpoint: "step", "best_step" and what the caller needs.

        A checkpoint that was the best until then is removed unless it is among the last `keep_last`; None keeps all.
        Raises ResourceError when it cannot be written.
        """
        self._require_lock()
        try:
            self.metrics.sync()
            self.samples.sync()
            durable.replace(self.path / VALIDATED, _encode(dict(validated)))
            if keep_last is not None:
                checkpoints.prune(self.path / CHECKPOINTS, {validated["step"], validated["best_step"]}, keep_last)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def validated(self) -> dict[str, Any] | None:
        """The last record of `note_validation`; None before any validation.

        Raises CheckpointError when the file is damaged.
        """
        file = self.path / VALIDATED
        try:
            noted = json.loads(file.read_bytes())
            if isinstance(noted["step"], int) and isinstance(noted["best_step"], int | None):
                return dict(noted)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        raise CheckpointError(
            f"{VALIDATED} of this run is damaged",
            where=str(file),
            fix="delete it: lmtool resume then repeats the last validation",
        )

    def write_recipe(self, recipe: str) -> None:
        """Replace recipe.yaml, when a run is resumed with a changed recipe. Raises ResourceError."""
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
        *earlier, session = self.info["sessions"]
        ended: dict[str, object] = {"ended": _now(), "outcome": outcome}
        if validation is not None:
            ended["validation"] = dict(validation)
        try:
            self._write_info(self.info | {"sessions": [*earlier, session | ended]})
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def save(
        self,
        step: int,
        model: "Mapping[str, Tensor | Deferred]",
        optimizer: "Mapping[str, Tensor]",
        state: Mapping[str, object],
        *,
        best_step: int | None,
        keep_last: int,
    ) -> Checkpoint:
        """`checkpoint.save` in this run. Log the records of a step before saving it: a resumed run starts after it."""
        self._require_lock()
        try:
            self.metrics.sync()
            self.samples.sync()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return checkpoints.save(
            self.path / CHECKPOINTS, step, model, optimizer, state, best_step=best_step, keep_last=keep_last
        )

    def newest(self, *, optimizer: bool = True) -> tuple[Checkpoint, list[str]]:
        """`checkpoint.newest_valid` of this run: the checkpoint to resume from, and warnings about damaged ones."""
        return checkpoints.newest_valid(self.path / CHECKPOINTS, optimizer=optimizer)

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
        try:
            found: dict[str, Any] = json.loads(file.read_bytes())
            scores = {name: dict(scores.items()) for name, scores in found.get("tasks", {"": found}).items()}
            next(iter(scores))
            return scores
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise CheckpointError(
                f"{RESULTS} of this run is damaged",
                where=str(file),
                fix="delete it: lmtool resume then evaluates the run again",
            ) from error

    @property
    def interrupted(self) -> dict[str, Any] | None:
        """The validation passed to `end` by the last session; None where there was none."""
        sessions = self.info["sessions"]
        found: dict[str, Any] | None = sessions[-1].get("validation") if sessions else None
        return found

    def newer_than(self, step: int) -> int | None:
        """The step of the newest checkpoint after a step, complete or not; None where there is none."""
        newest = max((other for other, _ in checkpoints.listed(self.path / CHECKPOINTS)), default=step)
        return newest if newest > step else None

    @property
    def best_step(self) -> int | None:
        """The step of the best validation; None before any."""
        if (validation := self.interrupted) is not None and validation["is_best"]:
            return int(validation["step"])
        if (noted := self.validated) is not None:
            best: int | None = noted["best_step"]
            return best
        # without a record, from the newest manifest
        for _, path in reversed(checkpoints.listed(self.path / CHECKPOINTS)):
            with suppress(CheckpointError):
                return checkpoints.inspect(path).best_step
        return None

    def best(self, *, optimizer: bool = True) -> tuple[Checkpoint, list[str]]:
        """The checkpoint of the best validation; the newest complete one, with a warning, when that is damaged.

        Before any validation, the newest is the best. Raises CheckpointError when none is complete.
        """
        best_step = self.best_step
        if best_step is None:
            return self.newest(optimizer=optimizer)
        path = self.path / CHECKPOINTS / checkpoints.step_name(best_step)
        try:
            return checkpoints.verify(path, optimizer=optimizer), []
        except CheckpointError as error:
            newest, warnings = self.newest(optimizer=optimizer)
            if any(path.name in warning for warning in warnings):  # already reported as damaged
                return newest, warnings
            return newest, [*warnings, f"using {newest.path.name} instead of the best, {path.name}: {error.what}"]

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError("only the process that holds the lock of a run writes to it")

    def _write_info(self, info: dict[str, Any]) -> None:
        durable.replace(self.path / INFO, _encode(info))
        self.info = info


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n"


def check_folder(folder: Path | None) -> None:
    """Fail early where `create` would fail after minutes of data preparation.

    Raises UsageError when `folder` holds a run already, ResourceError when it (or `runs_root()`) cannot be written.
    """
    path = folder or runs_root()
    if folder is not None:
        _refuse_used(folder)
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


def new_folder(name: str) -> Path:
    """A new, empty folder of `runs_root()`, named after day and recipe. Raises OSError."""
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40] or "run"
    root = runs_root()
    root.mkdir(parents=True, exist_ok=True)
    while True:
        path = root / f"{datetime.now():%Y-%m-%d}-{slug}-{secrets.token_hex(2)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _refuse_used(folder: Path) -> None:
    for name in FILES:
        if os.path.lexists(folder / name):
            raise UsageError(
                f"the output folder already holds {name}",
                where=str(folder),
                fix="choose another with -o, or continue that run with lmtool resume",
            )


def _unwritable(path: Path, error: OSError) -> ResourceError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ResourceError(
        f"cannot write to the output folder: {error.strerror or error}",
        where=str(path),
        fix="free some disk space" if full else "change its permissions, or choose another with -o",
    )


def _read_info(path: Path) -> dict[str, Any]:
    file = path / INFO
    try:
        info = json.loads(file.read_bytes())
        if info["format"] != FORMAT:
            problem = f"{INFO} has format {info['format']!r:.20}; this lmtool reads {FORMAT}"
        elif _is_complete(info):
            return dict(info)
        else:
            problem = f"{INFO} is damaged"
    except FileNotFoundError:
        problem = f"{INFO} is missing"
    except OSError as error:
        problem = f"{INFO} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        problem = f"{INFO} is damaged"
    raise CheckpointError(
        f"this is not a complete run: {problem}", where=str(file), fix="name another run (lmtool runs ls)"
    )


def _is_complete(info: dict[str, Any]) -> bool:
    """Whether everything written by `create` and `start` is there. May raise KeyError or TypeError."""
    return (
        all(isinstance(info[key], str) for key in ("recipe", "summary", "created"))
        and isinstance(info["fingerprints"], dict)
        and all(
            isinstance(session["started"], str)
            and isinstance(session["step"], int)
            and isinstance(session["command"], list)
            and isinstance(session["environment"], dict)
            and "outcome" in session
            and _is_validation(session.get("validation"))
            for session in info["sessions"]
        )
    )


def _is_validation(noted: Any) -> bool:
    return noted is None or (isinstance(noted["step"], int) and isinstance(noted["is_best"], bool))
