"""Creating runs: run.json is written last, so a folder is a run if and only if it has one."""

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from lmtool import durable, system
from lmtool.errors import CheckpointError, UsageError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.directory import CHECKPOINTS, FILES, Run, writing
from lmtool.run.files import RunInfo
from lmtool.run.lock import LOCK_FILE, RunLock, is_held
from lmtool.run.paths import INFO, runs_root

LONGEST_NAME = 16
"""Characters of a recipe's name in the name of a run."""


def create_run(folder: Path | None, info: RunInfo, files: Mapping[str, bytes], retry: bool = False) -> Run:
    """A new run, locked: in `folder`, or if None in a new folder of `runs_root()` named after day and recipe.

    info: as of `RunInfo.new`. files: what else it begins with, by name: recipe.yaml, and the files of its tokenizer.
    retry: see `check_folder`, which says what is raised.
    """
    check_folder(folder, retry)
    path = folder or unused_folder(info.recipe)
    with writing(path):
        path.mkdir(parents=True, exist_ok=folder is not None)
        lock = RunLock(path)
    try:
        with writing(path):
            if retry and _is_aborted(path):
                _clear(path)
            _refuse_used(path, retry, locked=True)
            for file, content in files.items():
                durable.write_new(path / file, content)
            (path / CHECKPOINTS).mkdir()
            durable.replace(path / INFO, info.sealed())
            durable.sync_directory(path.absolute().parent)
    except BaseException:
        lock.release()
        raise
    return Run(path, info, lock)


def check_folder(folder: Path | None, retry: bool = False) -> None:
    """Fail early where `create_run` would fail after minutes of data preparation.

    retry: a run that ended before its first checkpoint may be in `folder`; `create_run` removes it.
    Raises UsageError when `folder` holds a run already, or with `retry` CheckpointError when another process has begun
    one there; ResourceError when it (or `runs_root()`) cannot be written.
    """
    path = folder or runs_root()
    if folder is not None and (not (retry and _is_aborted(folder)) or is_held(folder)):
        _refuse_used(folder, retry, locked=False)
    nearest = next(parent for parent in (path, *path.absolute().parents) if os.path.exists(parent))
    with writing(path), tempfile.TemporaryFile(dir=nearest) as file, durable.locking(path):
        system.try_lock(file.fileno())


def unused_folder(name: str) -> Path:
    """The path of a new run in `runs_root()`, named after day and recipe: `2026-11-20-tiny-7f3a`."""
    while True:
        path = runs_root() / f"{datetime.now():%Y-%m-%d}-{_short_name(name)}-{secrets.token_hex(2)}"
        if not os.path.lexists(path):
            return path


def _short_name(name: str) -> str:
    """The first words of a recipe's name, at most LONGEST_NAME characters.

    Without the owner of a published model, and without day and number of a run that it is named after.
    """
    name = re.sub(r"\d{4}-\d\d-\d\d-(.+)-[0-9a-f]{4}(?=-|$)", r"\1", name)
    name = re.sub(r"^(finetune-|from-)*(?:[^-]|-(?!-))*--", r"\1", name)
    name = re.sub(r"^(finetune-|from-)+", r"\1", name)
    words = [word for part in re.findall(r"[A-Za-z0-9._]+", name) if (word := part.strip("."))]
    fits = [part for part in accumulate(words, "{}-{}".format) if len(part) <= LONGEST_NAME]
    return (fits[-1] if fits else "".join(words[:1])[:LONGEST_NAME]).strip(".") or "run"


def _refuse_used(folder: Path, retry: bool, locked: bool) -> None:
    """locked: this process holds the lock."""
    if (name := next((name for name in FILES if os.path.lexists(folder / name)), None)) is None:
        return
    if retry and (is_begun(folder) or (is_held(folder) and not locked)):
        # since the command looked whether there is a run to go on with
        fix = "wait until it ends, or stop it; the same command then goes on with the run"
        raise CheckpointError("another process has begun the run in this folder", where=str(folder), fix=fix)
    fix = "choose another with -o, or continue that run with lmtool resume"
    raise UsageError(f"the output folder already holds {name}", where=str(folder), fix=fix, code="output_exists")


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
        durable.remove(folder / name)
    durable.sync_directory(folder)
