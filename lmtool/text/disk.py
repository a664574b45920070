"""Cache files: atomic writes, clear errors, and locks between processes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtool import durable
from lmtool.errors import LmtoolError, ResourceError, UsageError


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` atomically and durably: a reader sees the old file or the new one, never a part."""
    with refusing_disk(path):
        durable.replace(path, content)


@contextmanager
def refusing_disk(path: Path) -> Iterator[None]:
    """Turn errors of the operating system in writing `path` into a ResourceError."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError) -> LmtoolError:
    """The ResourceError that states why `path` cannot be written."""
    fix = "make it writable, or choose another: -o names the output, LMTOOL_CACHE the cache"
    if isinstance(error, (FileNotFoundError, NotADirectoryError, FileExistsError)):
        fix = "choose another folder: -o names the output, LMTOOL_CACHE the cache"
    elif not isinstance(error, PermissionError):
        fix = "free some space on the disk, then start again: what is finished is kept"
    return ResourceError(f"cannot write: {error.strerror or error}", where=str(path), fix=fix)


def refuse_used(folder: Path) -> None:
    """Raise UsageError for a path that is no new or empty folder."""
    with refusing_disk(folder):
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("the output folder is not empty", where=str(folder), fix="name a new one")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A hidden folder to write to, which becomes `folder` at the end; after an error nothing stays behind.

    Raises ResourceError for all errors of the operating system.
    """
    with refusing_disk(folder):
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with durable.staged(folder) as new:
            new.mkdir()
            yield new


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; a second process waits until the first one releases it or dies."""
    with refusing_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
