"""Finds the run or checkpoint that a RUN argument names."""

import difflib
import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lmtool.errors import CheckpointError
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.directory import CHECKPOINTS, Run
from lmtool.runs.paths import RUN_INFO_FILE, list_runs, runs_root


class RunAndCheckpointPath(NamedTuple):
    """A run that was named, and the directory of its checkpoint if one was named."""

    run: Run
    checkpoint_path: Path | None


class RunWithSkippedReasons(NamedTuple):
    """A run to resume, and why the runs started later were skipped."""

    run: Run
    skipped_reasons: list[str]


def find_run(reference: str) -> RunAndCheckpointPath:
    """Finds the run that is named, and the directory of its checkpoint if one is named.

    reference: path of a run or checkpoint directory, name of a run, or `last`, the run that was started or resumed most
    recently. RUN@STEP and RUN/checkpoints/step-N name a checkpoint of any such run.
    Raises CheckpointError when there is none, naming similar ones.
    """
    folder = _find_run_directory_or_none(reference)
    if folder is not None:
        return RunAndCheckpointPath(Run.open(folder), None)
    for pattern in (_AT_STEP, _STEP_FOLDER):
        match = pattern.fullmatch(reference.replace(os.sep, "/"))
        if match and (folder := _find_run_directory_or_none(match[1])) is not None:
            path = folder / CHECKPOINTS / checkpoints.step_folder_name(int(match[2]))
            return RunAndCheckpointPath(Run.open(folder), _check_checkpoint_exists(path))
    resolved = Path(os.path.realpath(reference))
    if resolved.parent.name == CHECKPOINTS and os.path.exists(resolved.parent.parent / RUN_INFO_FILE):
        return RunAndCheckpointPath(Run.open(resolved.parent.parent), _check_checkpoint_exists(resolved))
    if os.path.isdir(reference):
        raise CheckpointError(
            f"this folder is not a run: it has no {RUN_INFO_FILE}", where=reference, fix="lmtool runs ls shows the runs"
        )
    raise _run_not_found_error(_AT_STEP.sub(r"\1", reference))


def find_resumable_or_last_run(*, include_finished: bool) -> RunWithSkippedReasons:
    """Finds the run started last that was stopped and has a checkpoint, or with `include_finished` was finished.

    If there is none, returns the last finished run, or else the last run. Raises CheckpointError when there is no run.
    """
    runs = _open_runs_last_started_first()
    states = [run.state if _has_checkpoint_of_intact_size(run) else "without an intact checkpoint" for run in runs]
    wanted = ("stopped", "finished") if include_finished else ("stopped",)
    taken = next((i for kinds in (wanted, ("finished",)) for i, state in enumerate(states) if state in kinds), 0)
    why = [f"{run.name} is {state}" for run, state in zip(runs[: min(taken, 2)], states, strict=False)]
    for state, n in Counter(states[2:taken]).items():
        why.append(f"{n:,} other newer {'run is' if n == 1 else 'runs are'} {state}")
    return RunWithSkippedReasons(runs[taken], why)


def _has_checkpoint_of_intact_size(run: Run) -> bool:
    """Checks names and sizes only."""
    for _, path in checkpoints.list_checkpoints(run.path / CHECKPOINTS):
        with suppress(CheckpointError):
            checkpoints.open_checkpoint_checking_sizes(path)
            return True
    return False


def find_run_directory(reference: str) -> Path:
    """Finds the directory of a run by path, name or `last`, also if run.json is damaged. Raises CheckpointError."""
    path = _find_run_directory_or_none(reference)
    if path is None:
        named = find_run(reference).run.path
        raise CheckpointError("this names a checkpoint, not a run", where=reference, fix=f"name the run: {named.name}")
    return path


MIN_NAME_SIMILARITY = 0.6
"""Minimal ratio of matching characters (Ratcliff and Obershelp 1988) of similar names."""

_DATE_OR_SUFFIX = re.compile(r"^\d{4}-\d\d-\d\d-|-[0-9a-f]{4}$")
_AT_STEP = re.compile(r"(.+)@([0-9]{1,12})", re.DOTALL)
_STEP_FOLDER = re.compile(rf"(.+?)/+{CHECKPOINTS}/+step-([0-9]{{1,12}})/*", re.DOTALL)


def _find_run_directory_or_none(reference: str) -> Path | None:
    if reference == "last":
        return _open_runs_last_started_first()[0].path
    path = Path(reference)
    if os.path.exists(path / RUN_INFO_FILE):
        return path
    called = [directory for directory in list_runs() if directory.name == reference]
    if len(called) > 1 and called[0].parent != runs_root():
        where, fix = ", ".join(map(str, called[-3:])), "name one by its path"
        raise CheckpointError(f"{len(called)} runs are called {reference!r:.80}", where=where, fix=fix)
    return called[0] if called else None


def _check_checkpoint_exists(checkpoint: Path) -> Path:
    """Returns the directory of a checkpoint. Raises CheckpointError when it does not exist."""
    if not os.path.isdir(checkpoint):
        kept = ", ".join(other.name for _, other in checkpoints.list_checkpoints(checkpoint.parent)) or "none yet"
        what = f"no checkpoint {checkpoint.name!r:.80} in this run"
        raise CheckpointError(what, where=f"it has: {kept}", fix="name one of them, or the run to take the newest")
    return checkpoint


def _run_not_found_error(reference: str) -> CheckpointError:
    """Returns the error for a name that no run has, with similar names."""
    if os.path.isfile(reference):
        fix = "name a run first, such as last; lmtool runs ls shows them"
        return CheckpointError("this is a file, not a run", where=reference, fix=fix)
    unknown = Path(reference).name
    names = sorted({directory.name for directory in list_runs()}, reverse=True)
    # a date and a random end, which all names have, make none similar
    likeness = {
        name: _name_similarity(_DATE_OR_SUFFIX.sub("", unknown), _DATE_OR_SUFFIX.sub("", name)) for name in names
    }
    likeness["last"] = _name_similarity(unknown, "last")
    near = [name for name in likeness if unknown and (likeness[name] >= MIN_NAME_SIMILARITY or unknown in name)]
    near.sort(key=lambda name: -likeness[name])
    where = f"similar: {', '.join(near[:3])}" if near else f"none in the folder {runs_root()} has a similar name"
    return CheckpointError(
        f"no run called {reference!r:.80}",
        where=where if names else f"there are no runs yet in the folder {runs_root()}",
        fix="lmtool runs ls shows all" if names else "train one: lmtool pretrain TEXT",
        code="run_not_found",
    )


def _name_similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _open_runs_last_started_first() -> list[Run]:
    """Returns all runs, the last started first. Raises CheckpointError when there is none."""
    runs = []
    for path in list_runs():
        with suppress(CheckpointError):
            runs.append(Run.open(path))
    if not runs:
        where, fix = f"there are no runs yet in the folder {runs_root()}", "train one: lmtool pretrain TEXT"
        raise CheckpointError("there is no last run", where=where, fix=fix)
    return sorted(runs, key=lambda run: run.last_started, reverse=True)


def find_run_path_even_damaged(name: str) -> Path | None:
    """Returns the directory of the run that a name or checkpoint refers to, also if run.json is damaged; else None."""
    folder = Path(name)
    if (folder / CHECKPOINTS).is_dir():
        return folder
    if folder.parent.name == CHECKPOINTS and folder.is_dir():
        return folder.parent.parent
    if folder.exists():
        return None
    for candidate in (name, name.rpartition("@")[0]):
        with suppress(CheckpointError):
            return find_run_directory(candidate)
    return None
