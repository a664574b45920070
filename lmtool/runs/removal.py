"""Removes runs, unless another run needs them."""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lmtool import system
from lmtool.errors import CheckpointError, LmtoolError, UsageError
from lmtool.recipe.load import load_run_recipe
from lmtool.runs.directory import RUN_FILES, Run
from lmtool.runs.find import find_run_directory
from lmtool.runs.listing import folder_size_bytes
from lmtool.runs.lock import LOCK_FILE, RunLock, is_run_locked
from lmtool.runs.paths import RUN_INFO_FILE, list_runs, runs_root
from lmtool.storage.durable import convert_os_errors, remove_file_or_tree

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_age(text: str) -> timedelta:
    """Parses an age such as 30d; units are h, d and w. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,4})([hdw])", text)
    if match is None:
        raise UsageError(f"{text!r:.40} is not an age", where="--older-than", fix="write hours, days or weeks: 30d")
    return int(match[1]) * _UNITS[match[2]]


def resolve_removable_runs(references: Sequence[str]) -> list[Path]:
    """Finds the directories of runs to remove, each once.

    Raises CheckpointError when a run does not exist, a process uses it, or a run that stays needs it.
    """
    doomed = list({path.resolve(): path for path in map(find_run_directory, references)}.values())
    for path in doomed:
        if is_run_locked(path):
            raise CheckpointError("a process is using this run", where=str(path), fix="stop it first, or wait")
    for path, others in find_bases_of_adapter_runs(doomed).items():
        fix = f"remove that run too, or first make one that needs no base: lmtool runs merge {others[0]}"
        raise CheckpointError(f"{others[0]} holds only adapters to the weights of this run", where=str(path), fix=fix)
    return doomed


def find_removable_runs_older_than(age: timedelta) -> list[Path]:
    """Finds the directories of all runs that were last used before `age`, oldest first.

    Omits runs that are running, imported or damaged, and those whose weights another run needs.
    """
    limit = datetime.now(UTC) - age
    used = [
        (when, path) for path in list_runs() if (when := _last_use_time_if_removable(path)) is not None and when < limit
    ]
    old = [path for _, path in sorted(used)]
    while needed := find_bases_of_adapter_runs(old):
        old = [path for path in old if path not in needed]
    return old


def remove_run(folder: Path) -> int:
    """Removes the files of a run, run.json last; returns the freed bytes.

    Removes a folder in the runs directory as a whole; from another folder, which `-o` made or found, only the files of
    the run, and then the folder itself if it is empty.
    Raises CheckpointError when a process uses the run, ResourceError when a file cannot be removed.
    """
    real = folder.resolve()
    lock = RunLock(real)
    try:
        before = folder_size_bytes(real)
        fix = "change the permissions of this folder, then remove the run again"
        with convert_os_errors("the run cannot be removed", folder, fix, use_error_filename=True):
            whole = real.parent == runs_root().resolve()
            inside = {entry.name: Path(entry.path) for entry in os.scandir(real)}
            removed = set(inside) if whole else inside.keys() & {*RUN_FILES, LOCK_FILE}
            for name in sorted(removed, key=lambda name: (name == LOCK_FILE, name == RUN_INFO_FILE)):
                if name == LOCK_FILE and system.IS_WINDOWS:
                    lock.release()  # an open file cannot be removed
                remove_file_or_tree(inside[name])
            if removed == inside.keys():
                real.rmdir()
                if folder.is_symlink():
                    folder.unlink()
        return before - (folder_size_bytes(real) if real.exists() else 0)
    finally:
        lock.release()


def _last_use_time_if_removable(path: Path) -> datetime | None:
    """Returns when the last session of a run ended, or began; None for runs that have to be named to be removed."""
    try:
        run = Run.open(path)
        if run.state in ("running", "imported"):
            return None
        sessions = run.info.sessions
        return datetime.fromisoformat((sessions[-1].ended if sessions else None) or run.last_started)
    except CheckpointError:
        return None


def find_bases_of_adapter_runs(runs_to_remove: Sequence[Path]) -> dict[Path, list[str]]:
    """Returns those of the directories that other runs need, which are adapters only, with the names of these runs."""
    real = {path.resolve(): path for path in runs_to_remove}
    needed_by: dict[Path, list[str]] = {}
    for other in list_runs():
        if other.resolve() in real:
            continue
        try:
            run = Run.open(other)
        except LmtoolError:
            continue  # damaged itself
        base = run.info.base
        if base and (path := real.get(Path(base.path))) and _may_be_adapter_run(run):
            needed_by.setdefault(path, []).append(run.name)
    return needed_by


def _may_be_adapter_run(run: Run) -> bool:
    """Returns whether a run holds adapters only, or has no readable recipe.yaml."""
    try:
        return load_run_recipe(run.recipe_path).tuning.lora is not None
    except LmtoolError:
        return True
