"""Creates runs. run.json is written last, so a folder is a run if and only if it has one."""

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from lmtool import system
from lmtool.errors import CheckpointError, UsageError
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.directory import CANNOT_WRITE_OUTPUT, CHECKPOINTS, RUN_FILES, Run
from lmtool.runs.files import RunInfo
from lmtool.runs.lock import LOCK_FILE, RunLock, is_run_locked
from lmtool.runs.paths import RUN_INFO_FILE, runs_root
from lmtool.storage import durable

MAX_NAME_CHARACTERS = 16
"""Limit of the recipe's name in the name of a run."""


def create_and_lock_run(
    folder: Path | None, info: RunInfo, files: Mapping[str, bytes], replace_aborted: bool = False
) -> Run:
    """Creates and locks a run in `folder`, or if None in a new folder of `runs_root()` named after day and recipe.

    info: see `RunInfo.create`. files: content of recipe.yaml and the files of the tokenizer, by name.
    replace_aborted: see `check_output_free_and_writable`, which says what is raised.
    """
    check_output_free_and_writable(folder, replace_aborted)
    path = folder or make_run_path(info.recipe)
    with durable.convert_write_errors(path, CANNOT_WRITE_OUTPUT):
        path.mkdir(parents=True, exist_ok=folder is not None)
        lock = RunLock(path)
    try:
        with durable.convert_write_errors(path, CANNOT_WRITE_OUTPUT):
            if replace_aborted and _is_run_without_checkpoint(path):
                for name in RUN_FILES:  # run.json first, so that the rest does not look like a run
                    durable.remove_file_or_tree(path / name)
                durable.sync_directory(path)
            _check_holds_no_run_files(path, replace_aborted, holds_lock=True)
            for file, content in files.items():
                durable.write_and_sync_new_file(path / file, content)
            (path / CHECKPOINTS).mkdir()
            durable.replace_file(path / RUN_INFO_FILE, info.to_json_bytes())
            durable.sync_directory(path.absolute().parent)
    except BaseException:
        lock.release()
        raise
    return Run(path, info, lock)


def check_output_free_and_writable(folder: Path | None, replace_aborted: bool = False) -> None:
    """Raises the errors of `create_and_lock_run` before minutes of data preparation.

    replace_aborted: a run that ended before its first checkpoint may be in `folder`; `create_and_lock_run` removes it.
    Raises UsageError when `folder` holds a run already, or with `replace_aborted` CheckpointError when another process
    has begun one there; ResourceError when it (or `runs_root()`) cannot be written.
    """
    path = folder or runs_root()
    if folder is not None and (not (replace_aborted and _is_run_without_checkpoint(folder)) or is_run_locked(folder)):
        _check_holds_no_run_files(folder, replace_aborted, holds_lock=False)
    nearest = next(parent for parent in (path, *path.absolute().parents) if os.path.exists(parent))
    with (
        durable.convert_write_errors(path, CANNOT_WRITE_OUTPUT),
        tempfile.TemporaryFile(dir=nearest) as file,
        durable.convert_lock_errors(path),
    ):
        system.try_to_lock_file(file.fileno())


def make_run_path(recipe_name: str) -> Path:
    """Returns an unused path in `runs_root()`, named after day and recipe: `2026-11-20-tiny-7f3a`."""
    while True:
        path = runs_root() / f"{datetime.now():%Y-%m-%d}-{_shorten_recipe_name(recipe_name)}-{secrets.token_hex(2)}"
        if not os.path.lexists(path):
            return path


def _shorten_recipe_name(name: str) -> str:
    """Returns the first words of a recipe's name, at most MAX_NAME_CHARACTERS.

    Removes the owner of a published model, and day and number of a run that the recipe is named after.
    """
    name = re.sub(r"\d{4}-\d\d-\d\d-(.+)-[0-9a-f]{4}(?=-|$)", r"\1", name)
    name = re.sub(r"^(finetune-|from-)*(?:[^-]|-(?!-))*--", r"\1", name)
    name = re.sub(r"^(finetune-|from-)+", r"\1", name)
    words = [word for part in re.findall(r"[A-Za-z0-9._]+", name) if (word := part.strip("."))]
    fits = [part for part in accumulate(words, "{}-{}".format) if len(part) <= MAX_NAME_CHARACTERS]
    return (fits[-1] if fits else "".join(words[:1])[:MAX_NAME_CHARACTERS]).strip(".") or "run"


def _check_holds_no_run_files(folder: Path, replace_aborted: bool, holds_lock: bool) -> None:
    """Raises an error if the folder holds a run. holds_lock: whether this process holds the lock."""
    if (name := next((name for name in RUN_FILES if os.path.lexists(folder / name)), None)) is None:
        return
    if replace_aborted and (has_checkpoint(folder) or (is_run_locked(folder) and not holds_lock)):
        # after the command looked for a run to continue
        fix = "wait until it ends, or stop it; the same command then goes on with the run"
        raise CheckpointError("another process has begun the run in this folder", where=str(folder), fix=fix)
    fix = "choose another with -o, or continue that run with lmtool resume"
    raise UsageError(f"the output folder already holds {name}", where=str(folder), fix=fix, code="output_exists")


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a folder holds a run with a checkpoint, complete or not."""
    return os.path.lexists(folder / RUN_INFO_FILE) and bool(checkpoints.list_checkpoints(folder / CHECKPOINTS))


def _is_run_without_checkpoint(folder: Path) -> bool:
    """Returns whether a folder holds a run whose session ended before its first checkpoint."""
    try:
        entries = os.listdir(folder / CHECKPOINTS)
    except OSError:  # there is none, or no longer
        entries = []
    return (folder / LOCK_FILE).exists() and all(name.startswith(durable.TEMPORARY_PREFIX) for name in entries)
