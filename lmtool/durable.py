"""Files that survive a crash: written under a temporary name, synced to disk, then renamed into place.

And those that are read whole: no more of them than they may have, and nothing that is no regular file.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files and directories."""

_MARK = f"{TEMPORARY}lock"
"""In a scratch folder: the file that its process holds locked."""

LARGEST = 64 << 20
"""Bytes of a file of settings or records that is read whole."""


def open_regular(path: Path, limit: int | None = None) -> BufferedReader:
    """A regular file, open for reading. limit: the most bytes that it may have.

    Raises OSError, also for others: a device may have no end, and a pipe no writer.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - returned
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and (limit is None or found.st_size <= limit):
        return file
    file.close()
    if stat.S_ISREG(found.st_mode):
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError for others, without reading them."""
    with open_regular(path, limit) as file:
        return file.read()


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a new file, and sync it to disk. Raises OSError."""
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes | memoryview) -> None:
    """Replace the file `path` by `content` atomically. One writer at a time. Raises OSError."""
    replace_by(path, [content])


def replace_by(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """The same, with content that is made while it is written."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_new(temporary, chunks)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Where to write a file or folder, which becomes `path` at the end of the block; after an error nothing stays.

    Takes the place of a file and of an empty folder. Several processes may write the same. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    with scratch(path.parent) as folder:
        new = folder / path.name
        yield new
        if new.is_dir():
            sync_directory(new)
        new.replace(path)
        sync_directory(path.parent)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new hidden folder, which is removed at the end of the block, or by the next one here if this process is killed.

    Raises OSError.
    """
    for mark in parent.glob(f"{TEMPORARY}*/{_MARK}"):
        with suppress(OSError):  # of somebody else, or just removed
            if not is_locked(mark):
                _remove(mark.parent)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # a file system without locks has no mark, so that nothing is taken for that of a killed process
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.rename(folder / "lock", folder / _MARK)  # only now: others remove what is marked and not locked
        yield folder
    finally:
        _remove(folder)
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its mark last: what a process leaves that is killed here is found by the next one."""
    with suppress(OSError):
        for inside in sorted(folder.iterdir(), key=lambda inside: inside.name == _MARK):
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside, ignore_errors=True)
            else:
                inside.unlink()
        folder.rmdir()


def is_locked(file: Path) -> bool:
    """Whether some process, this one included, holds the lock of a file. Raises OSError."""
    handle = os.open(file, os.O_RDONLY)
    try:
        return not lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def lock(handle: int, kind: int) -> bool:
    """Lock an open file, unless another process has; whether it is locked now. kind: as `fcntl.flock` takes it."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
