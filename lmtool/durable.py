"""Files that survive a crash: written under a temporary name, synced to disk, then renamed into place.

And those that are read whole: no more of them than they may have, and nothing that is no regular file. Locks between
processes, and errors of the operating system as those of lmtool.
"""

import errno
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path

from lmtool import system
from lmtool.errors import CheckpointError, Code, LmtoolError, ResourceError, UsageError
from lmtool.system import rename as rename
from lmtool.system import sync_directory as sync_directory

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files and directories."""

MARK = f"{TEMPORARY}lock"
"""In a scratch folder: the file that its process holds locked."""

LARGEST = 64 << 20
"""Bytes of a file of settings or records that is read whole."""


Chunks = bytes | memoryview | Iterable[bytes | memoryview]
"""Of a file: whole, or in pieces that are made while it is written."""


def cache_folder() -> Path:
    """$LMTOOL_CACHE, else $XDG_CACHE_HOME/lmtool, else ~/.cache/lmtool; of a user without a home a temporary folder.

    Raises ResourceError where such a user has no temporary folder either.
    """
    if folder := os.environ.get("LMTOOL_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "lmtool"
    try:
        return Path.home() / ".cache" / "lmtool"
    except RuntimeError:
        return _make_private_cache()


def _make_private_cache() -> Path:
    """The cache in the temporary folder, which is made if need be: code is loaded from it, so nobody else may write it.

    Raises ResourceError.
    """
    what, fix = "there is no home folder for the cache", "name a folder for it: LMTOOL_CACHE"
    with refusing(what, "HOME", fix, names_file=True):
        folder = Path(tempfile.gettempdir()) / f"lmtool-{system.user_id()}"
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        if not system.is_private(folder):
            raise ResourceError(f"{what}, and others may write to this one", where=str(folder), fix=fix)
    return folder


def open_regular(path: Path, limit: int | None = None) -> BufferedReader:
    """A regular file, open for reading. limit: the most bytes that it may have.

    Raises OSError, also for others: a device may have no end, and a pipe no writer.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | system.NO_WAIT))  # noqa: SIM115 - returned
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and (limit is None or status.st_size <= limit):
        return file
    file.close()
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError for others, without reading them."""
    with open_regular(path, limit) as file:
        return file.read()


def map_file(path: Path) -> mmap.mmap | bytes:
    """The content of a regular file, memory-mapped; where its file system has no mmap, read into memory.

    Raises OSError.
    """
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""  # mmap refuses it
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if not system.lacks_mmap(error):
                raise
            return file.read()


def write_new(path: Path, content: Chunks) -> None:
    """Write a new file, and sync it to disk. Raises OSError."""
    with path.open("xb") as file:
        for chunk in [content] if isinstance(content, bytes | memoryview) else content:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: Chunks) -> None:
    """Replace the file `path` atomically: a reader sees the old file or the new one. One writer at a time.

    Raises OSError.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_new(temporary, content)
        rename(temporary, path)
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
        rename(new, path)
        sync_directory(path.parent)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new hidden folder, which is removed at the end of the block, or by the next one here if this process is killed.

    Raises OSError.
    """
    for mark in parent.glob(f"{TEMPORARY}*/{MARK}"):
        with suppress(OSError):  # of somebody else, or just removed
            if not is_locked(mark):
                _remove(mark.parent)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    # others remove what is marked and not locked; without locks there is no mark to be taken for a killed process's
    handle = system.open_locked(folder / MARK)
    try:
        yield folder
    finally:
        system.close_and_remove(handle, partial(_remove, folder))


@contextmanager
def scratch_in(parent: Path) -> Iterator[Path]:
    """A `scratch` folder in one that is made if need be. Raises ResourceError when they cannot be made."""
    with ExitStack() as stack:
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch(parent))
        yield folder


def is_in_use(folder: Path) -> bool:
    """Whether the process that has made a scratch folder still has it."""
    try:
        return is_locked(folder / MARK)
    except OSError:  # it is removed, or its file system has no locks
        return folder.is_dir()


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its mark last: what a process leaves that is killed here is found by the next one."""
    with suppress(OSError):
        for inside in sorted(folder.iterdir(), key=lambda inside: inside.name == MARK):
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside, ignore_errors=True)
            else:
                inside.unlink()
        folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, if there is one. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_locked(file: Path) -> bool:
    """Whether some process, this one included, holds the lock of a file. Raises OSError."""
    handle = os.open(file, os.O_RDONLY)
    try:
        return not system.try_lock(handle, shared=True)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; a second process waits until the first one releases it or dies.

    Raises ResourceError.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with locking(path):
            system.wait_for_lock(handle)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`, unless another process does; whether it is held. Raises ResourceError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with writing(path):
            is_free = system.try_lock(handle)
        yield is_free
    finally:
        os.close(handle)


@contextmanager
def refusing(
    what: str,
    where: Path | str,
    fix: str | Callable[[OSError], str] = "",
    kind: type[LmtoolError] = ResourceError,
    *,
    missing: str = "",
    names_file: bool = False,
) -> Iterator[None]:
    """Turn errors of the operating system into one of lmtool: what cannot be done, and the system's reason.

    fix: may depend on the error.
    missing: the whole message where there is no such file.
    names_file: the error names the file that the system names, if it does.
    """
    try:
        yield
    except OSError as error:
        is_missing = missing and isinstance(error, FileNotFoundError)
        message = missing if is_missing else f"{what}: {error.strerror or error}"
        if names_file and error.filename:
            where = error.filename
        fix = fix if isinstance(fix, str) else fix(error)
        code = "no_space" if is_full(error) else _CODES.get(type(error))
        raise kind(message, where=str(where), fix=fix, code=code) from error


_CODES: dict[type[OSError], Code] = {FileNotFoundError: "file_not_found", PermissionError: "not_permitted"}


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn errors of the operating system in writing an output or the cache into a ResourceError."""
    return refusing("cannot write", path, way_to_write)


def locking(path: Path) -> AbstractContextManager[None]:
    """Turn errors of the operating system in locking a file into a ResourceError: its file system has no locks."""
    what = "two processes could write here at once, since the file system has no locks"
    return refusing(what, path, f"choose a folder on a file system with locks: {_NAMED}")


def reading_part(path: Path, fix: str) -> AbstractContextManager[None]:
    """Turn errors of the operating system in reading a file of a run or a model into a CheckpointError."""
    return refusing(f"{path.name} cannot be read", path, fix, CheckpointError, missing=f"{path.name} is missing")


_NAMED = "-o names the output, LMTOOL_CACHE the cache, LMTOOL_RUNS the folder of runs"
_WAYS_TO_WRITE = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), f"choose another name: {_NAMED}"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTEMPTY), f"choose a new name: {_NAMED}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), f"make it writable, or choose another: {_NAMED}"),
    errno.EROFS: f"choose a folder on a disk that is not read-only: {_NAMED}",
    errno.ENOSPC: "free some disk space, then start again: what is finished is kept",
    errno.EDQUOT: "free some disk space, or ask for a larger quota, then start again: what is finished is kept",
    errno.EIO: f"the disk may be failing: save what is on it, and choose a folder on another: {_NAMED}",
    errno.ENAMETOOLONG: f"choose a shorter name: {_NAMED}",
    errno.EFBIG: f"raise the limit on the size of files, ulimit -f, or choose a folder on another disk: {_NAMED}",
    errno.EMFILE: "raise the limit on open files: ulimit -n",
    errno.ENFILE: "close some programs: all of them together have too many files open",
}


def way_to_write(error: OSError) -> str:
    """What to do about an error in writing an output or the cache."""
    return _WAYS_TO_WRITE.get(error.errno or 0, f"check the disk, or choose a folder on another: {_NAMED}")


def is_full(error: OSError) -> bool:
    """Whether the disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_file(path: Path, content: Chunks) -> None:
    """`replace`. Raises ResourceError."""
    with writing(path):
        replace(path, content)


def write_output(path: Path, content: Chunks) -> None:
    """Write a file atomically, whose name is a person's: several processes may write it. Raises ResourceError."""
    with writing(path), staged(path) as new:
        write_new(new, content)


def refuse_existing(path: Path) -> None:
    """Raise UsageError for a path where something is."""
    if os.path.lexists(path):
        fix = "choose another name, or remove it"
        raise UsageError("the file exists already", where=str(path), fix=fix, code="output_exists")


def refuse_used(folder: Path) -> None:
    """Raise UsageError for a path that is no new or empty folder."""
    with writing(folder):
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            what = "the output folder is not empty"
            raise UsageError(what, where=str(folder), fix="name a new one", code="output_exists")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A hidden folder to write to, which becomes `folder` at the end; after an error nothing stays behind.

    Raises ResourceError for all errors of the operating system.
    """
    with writing(folder):
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with staged(folder) as new:
            new.mkdir()
            yield new
