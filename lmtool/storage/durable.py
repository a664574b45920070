"""Files that survive a crash: they are written under a temporary name, synced to disk, then renamed into place.

Also reads regular files up to a limit of bytes, locks files between processes, and converts errors of the operating
system to those of lmtool.
"""

import errno
import logging
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
from lmtool.system import replace_path as replace_path
from lmtool.system import sync_directory as sync_directory

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of unfinished files and directories."""

SCRATCH_LOCK_FILE = f"{TEMPORARY_PREFIX}lock"
"""File in a scratch folder that the process which uses the folder keeps locked."""

MAX_FILE_BYTES = 64 << 20
"""Largest file of settings or records that `read_file` reads by default."""

_LOG = logging.getLogger(__name__)

BytesOrChunks = bytes | memoryview | Iterable[bytes | memoryview]
"""Content of a file: the whole of it, or pieces that are produced while it is written."""


def cache_folder() -> Path:
    """Returns $LMTOOL_CACHE, else $XDG_CACHE_HOME/lmtool, else ~/.cache/lmtool, else a folder in the temporary folder.

    Raises ResourceError for a user who has neither a home nor a private temporary folder.
    """
    if folder := os.environ.get("LMTOOL_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "lmtool"
    try:
        return Path.home() / ".cache" / "lmtool"
    except RuntimeError:
        return _make_private_cache_in_tempdir()


def _make_private_cache_in_tempdir() -> Path:
    """Makes and returns the cache folder of a user without a home. Raises ResourceError.

    Nobody else may write to it, because code is loaded from it.
    """
    what, fix = "there is no home folder for the cache", "name a folder for it: LMTOOL_CACHE"
    with convert_os_errors(what, "HOME", fix, use_error_filename=True):
        folder = Path(tempfile.gettempdir()) / f"lmtool-{system.get_user_id()}"
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        if not system.is_private_folder(folder):
            raise ResourceError(f"{what}, and others may write to this one", where=str(folder), fix=fix)
    return folder


def find_cache_or_temporary_path(path: Path) -> Path:
    """Returns a path in the cache, or its place in a temporary folder if the cache may not be written; warns once.

    Raises ResourceError where there is no temporary folder either.
    """
    cached = cache_folder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.access(path.parent, os.W_OK):
            return path
        reason = "not writable"
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            return path  # which the writer fails to make, too
        reason = error.strerror or str(error)
    if cached not in _temporary_caches:
        with convert_write_errors(cached):
            folder = tempfile.TemporaryDirectory(prefix="lmtool-cache-", ignore_cleanup_errors=True)
        _temporary_caches[cached] = folder
        _LOG.warning("nothing is kept in the cache %s: %s; name another folder with LMTOOL_CACHE", cached, reason)
    return Path(_temporary_caches[cached].name) / path.relative_to(cached)


def is_cache_temporary() -> bool:
    """Returns whether `find_cache_or_temporary_path` has put a temporary folder in place of the cache."""
    return cache_folder() in _temporary_caches


_temporary_caches: dict[Path, tempfile.TemporaryDirectory[str]] = {}
"""The folder that stands for a cache that may not be written, until the process ends."""


def open_regular_file(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Opens a regular file of at most `max_bytes` for reading.

    Raises OSError, also for other kinds of files, because a device may have no end and a pipe no writer.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | system.OPEN_WITHOUT_WAITING))  # noqa: SIM115 - returned
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and (max_bytes is None or status.st_size <= max_bytes):
        return file
    file.close()
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Returns the content of a regular file of at most `max_bytes`. Raises OSError for others, without reading them."""
    with open_regular_file(path, max_bytes) as file:
        return file.read()


def map_file(path: Path) -> mmap.mmap | bytes:
    """Memory-maps a regular file, or reads it where its file system has no mmap. Raises OSError."""
    with open_regular_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""  # mmap refuses it
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if not system.is_mmap_unsupported(error):
                raise
            return file.read()


def write_and_sync_new_file(path: Path, content: BytesOrChunks) -> None:
    """Writes a file that does not exist yet and syncs it to disk. Raises OSError."""
    with path.open("xb") as file:
        for chunk in [content] if isinstance(content, bytes | memoryview) else content:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: BytesOrChunks) -> None:
    """Replaces the file `path` atomically: a reader sees the old file or the new one. Raises OSError.

    Only one process may do so at a time.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_and_sync_new_file(temporary, content)
        replace_path(temporary, path)
        sync_directory(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, and renames it to `path` after the block. Raises OSError.

    Syncs a file before the renaming; the block syncs the files of a folder. Replaces a file or an empty folder.
    After an error nothing is left. Several processes may write the same path.
    """
    path = Path(os.path.realpath(path))
    with scratch_folder(path.parent) as folder:
        new = folder / path.name
        yield new
        if new.is_dir():
            sync_directory(new)
        else:
            with new.open("rb+") as file:
                os.fsync(file.fileno())
        replace_path(new, path)
        sync_directory(path.parent)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yields a new hidden folder in `parent` and removes it after the block. Raises OSError.

    If this process is killed, the next call with this parent removes the folder.
    """
    for lock_file in parent.glob(f"{TEMPORARY_PREFIX}*/{SCRATCH_LOCK_FILE}"):
        with suppress(OSError):  # it belongs to somebody else, or was just removed
            if not is_file_locked(lock_file):
                _remove_scratch_folder(lock_file.parent)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent))
    # a file system without locks gets no lock file, because others remove folders whose lock file is not locked
    descriptor = system.create_file_locked_if_supported(folder / SCRATCH_LOCK_FILE)
    try:
        yield folder
    finally:
        system.close_and_remove(descriptor, partial(_remove_scratch_folder, folder))


@contextmanager
def make_parent_and_scratch_folder(parent: Path) -> Iterator[Path]:
    """Makes `parent` if need be, and yields a scratch folder in it. Raises ResourceError when it cannot be made."""
    with ExitStack() as stack:
        with convert_write_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch_folder(parent))
        yield folder


def is_scratch_folder_in_use(folder: Path) -> bool:
    """Returns whether the process that made a scratch folder still uses it."""
    try:
        return is_file_locked(folder / SCRATCH_LOCK_FILE)
    except OSError:  # it is removed, or its file system has no locks
        return folder.is_dir()


def _remove_scratch_folder(folder: Path) -> None:
    """Removes a scratch folder, its lock file last, so that another process can finish if this one is killed."""
    with suppress(OSError):
        for inside in sorted(folder.iterdir(), key=lambda inside: inside.name == SCRATCH_LOCK_FILE):
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside, ignore_errors=True)
            else:
                inside.unlink()
        folder.rmdir()


def remove_file_or_tree(path: Path) -> None:
    """Removes a file, a link, or a folder with its content, if it exists. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_file_locked(path: Path) -> bool:
    """Returns whether any process, including this one, holds the lock of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not system.try_to_lock_file(descriptor, shared=True)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds the lock file `path` during the block, and yields whether this process holds it. Raises ResourceError.

    wait: waits until another process releases the lock or ends; otherwise yields False.
    """
    with convert_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with convert_lock_errors(path):
            is_held = system.try_to_lock_file(descriptor)
            if wait and not is_held:
                system.wait_and_lock_file(descriptor)
        yield is_held or wait
    finally:
        os.close(descriptor)


@contextmanager
def convert_os_errors(
    what: str,
    where: Path | str,
    fix: str | Callable[[OSError], str] = "",
    error_type: type[LmtoolError] = ResourceError,
    *,
    missing_message: str = "",
    use_error_filename: bool = False,
) -> Iterator[None]:
    """Converts an OSError of the block to an error of lmtool: "WHAT: the system's reason".

    fix: may depend on the error.
    missing_message: the whole message where the file does not exist.
    use_error_filename: as the place, name the file that the system reports instead of `where`, if it reports one.
    """
    try:
        yield
    except OSError as error:
        is_missing = missing_message and isinstance(error, FileNotFoundError)
        message = missing_message if is_missing else f"{what}: {error.strerror or error}"
        if use_error_filename and error.filename:
            where = error.filename
        fix = fix if isinstance(fix, str) else fix(error)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = "no_space" if is_full else _ERROR_CODES.get(type(error))
        raise error_type(message, where=str(where), fix=fix, code=code) from error


_ERROR_CODES: dict[type[OSError], Code] = {FileNotFoundError: "file_not_found", PermissionError: "not_permitted"}


def convert_write_errors(path: Path, what: str = "cannot write") -> AbstractContextManager[None]:
    """Converts an OSError in writing an output, a run or the cache to a ResourceError. what: begins its message."""
    return convert_os_errors(what, path, suggest_write_fix)


def convert_lock_errors(path: Path) -> AbstractContextManager[None]:
    """Converts an OSError in locking a file to a ResourceError that says that the file system has no locks."""
    what = "two processes could write here at once, since the file system has no locks"
    return convert_os_errors(what, path, f"choose a folder on a file system with locks: {_FOLDER_OPTIONS}")


def convert_checkpoint_read_errors(path: Path, fix: str) -> AbstractContextManager[None]:
    """Converts an OSError in reading a file of a run or a model to a CheckpointError."""
    return convert_os_errors(
        f"{path.name} cannot be read", path, fix, CheckpointError, missing_message=f"{path.name} is missing"
    )


_FOLDER_OPTIONS = "-o names the output, LMTOOL_CACHE the cache, LMTOOL_RUNS the folder of runs"
_WRITE_FIXES = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), f"choose another name: {_FOLDER_OPTIONS}"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTEMPTY), f"choose a new name: {_FOLDER_OPTIONS}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), f"make it writable, or choose another: {_FOLDER_OPTIONS}"),
    errno.EROFS: f"choose a folder on a disk that is not read-only: {_FOLDER_OPTIONS}",
    errno.ENOSPC: "free some disk space, then start again: what is finished is kept",
    errno.EDQUOT: "free some disk space, or ask for a larger quota, then start again: what is finished is kept",
    errno.EIO: f"the disk may be failing: save what is on it, and choose a folder on another: {_FOLDER_OPTIONS}",
    errno.ENAMETOOLONG: f"choose a shorter name: {_FOLDER_OPTIONS}",
    errno.EFBIG: f"raise the limit on file sizes, ulimit -f, or choose a folder on another disk: {_FOLDER_OPTIONS}",
    errno.EMFILE: "raise the limit on open files: ulimit -n",
    errno.ENFILE: "close some programs: all of them together have too many files open",
}


def suggest_write_fix(error: OSError) -> str:
    """Returns what to do about an error in writing an output or the cache."""
    return _WRITE_FIXES.get(error.errno or 0, f"check the disk, or choose a folder on another: {_FOLDER_OPTIONS}")


def write_file(path: Path, content: BytesOrChunks) -> None:
    """Replaces a file atomically, as `replace_file` does. Raises ResourceError."""
    with convert_write_errors(path):
        replace_file(path, content)


def write_output_file(path: Path, content: BytesOrChunks) -> None:
    """Writes a file atomically; unlike with `write_file`, several processes may write it. Raises ResourceError."""
    with convert_write_errors(path), atomic_output(path) as new:
        write_and_sync_new_file(new, content)


def check_path_does_not_exist(path: Path) -> None:
    """Raises UsageError if the path exists."""
    if os.path.lexists(path):
        fix = "choose another name, or remove it"
        raise UsageError("the file exists already", where=str(path), fix=fix, code="output_exists")


def check_folder_is_empty(folder: Path) -> None:
    """Raises UsageError for a path that exists, unless it is an empty folder."""
    with convert_write_errors(folder):
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            what = "the output folder is not empty"
            raise UsageError(what, where=str(folder), fix="name a new one", code="output_exists")


@contextmanager
def atomic_output_folder(folder: Path) -> Iterator[Path]:
    """Yields a hidden folder to write to, and renames it to `folder` after the block. Raises ResourceError.

    After an error nothing is left.
    """
    with convert_write_errors(folder):
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(folder) as new:
            new.mkdir()
            yield new
