"""What operating systems do each in their way: POSIX, as on Linux and macOS, and Windows; what some file systems lack.

Only this module asks which one it is, and imports what only one of them has. On Windows an open file can be neither
renamed nor removed, a folder has no handle to sync, locks are of ranges of bytes, and nothing is forked.
"""

import errno
import io
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, cast

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:  # they take a tenth of a second to import
    from asyncio import AbstractEventLoop
    from multiprocessing.process import BaseProcess

WINDOWS = sys.platform == "win32"
"""Whether files that are open stay where they are."""

NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""Flag of opening a file: what has no other end is not waited for."""

leave_group: Callable[[], Any] = getattr(os, "setpgrp", lambda: None)
"""From then on Ctrl-C is not for this process, but for the one that started it; on Windows it is for both."""

_LOCKED_BYTE = 1 << 30
"""On Windows: the byte that is locked, beyond all content, since what is locked there cannot be read by others."""

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""Errors of syncing a folder by file systems that sync none; fsync(2) tells of EINVAL."""

_PATIENCE_SECONDS, _POLL_SECONDS = 2.0, 0.02
"""On Windows: how long and how often a file is tried that somebody has open, a virus scanner for instance."""


def try_lock(handle: int, shared: bool = False) -> bool:
    """Lock an open file until it is closed, unless another process has; whether it is locked now.

    shared: with others that share it; not on Windows. Raises OSError where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def wait_for_lock(handle: int) -> None:
    """Lock an open file as soon as no other process has. Raises OSError as `try_lock`."""
    if sys.platform == "win32":
        while not try_lock(handle):
            time.sleep(_POLL_SECONDS)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX)


def open_locked(path: Path) -> int:
    """A new file, open and locked, that others cannot have removed because it was not yet locked. Raises OSError.

    On POSIX it has this name only once it is locked, so never where the file system has no locks; on Windows it stays
    because it is open.
    """
    new = path if WINDOWS else path.with_name("lock")
    handle = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):
        wait_for_lock(handle)
        if not WINDOWS:
            os.rename(new, path)
    return handle


def close_and_remove(handle: int, remove: Callable[[], None]) -> None:
    """Close the locked file in a folder, and remove the folder: under the lock where an open file can be removed."""
    if WINDOWS:
        os.close(handle)
    remove()
    if not WINDOWS:
        os.close(handle)


def sparing_open_files() -> AbstractContextManager[None]:
    """A context in which, on Windows, what somebody reads stays where it is, and no PermissionError is raised."""
    return suppress(PermissionError) if WINDOWS else nullcontext()


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to disk, unless Windows or the file system offers no way to. Raises OSError."""
    if sys.platform != "win32":
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
        finally:
            os.close(handle)


def is_written_by_others(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to a user other than this one and root, or can be written by one.

    Never on Windows, where a profile's folders are its user's.
    """
    if sys.platform == "win32":
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & 0o022)


def deny_others_writing(path: Path) -> bool:
    """Let only its owner write a file or folder. Returns whether that is this user or root. Raises OSError."""
    status = path.stat()
    if sys.platform != "win32" and status.st_uid == os.geteuid() and status.st_mode & 0o022:
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        status = path.stat()
    return not is_written_by_others(status)


def lacks_mmap(error: OSError) -> bool:
    """Whether a file could not be memory-mapped because its file system has no mmap.

    Libraries in Rust give the number of an error in its text only.
    """
    return error.errno == errno.ENODEV or str(error).endswith(f"(os error {errno.ENODEV})")


def user_id() -> int:
    """The number of the user of this process; 0 on Windows, where each user has another temporary folder."""
    return os.geteuid() if sys.platform != "win32" else 0


def is_private(folder: Path) -> bool:
    """Whether this is a folder, no link, that only the user of this process can read and write. Raises OSError.

    On Windows, which has other permissions, all folders are taken to be private.
    """
    status = os.lstat(folder)
    is_own = WINDOWS or (status.st_uid == user_id() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    return stat.S_ISDIR(status.st_mode) and is_own


def rename(old: Path, new: Path) -> None:
    """Give a file or folder another name, in place of a file or an empty folder. Raises OSError."""
    if WINDOWS and new.is_dir() and old.is_dir():
        new.rmdir()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return os.replace(old, new)
        except PermissionError:
            if not WINDOWS or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def after_fork(action: Callable[[], None]) -> None:
    """Call an action in each child that this process forks."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=action)


def lower_priority(nice: int) -> None:
    """Let this thread, and those that it starts, compute when others do not; only Linux has priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))


def process_class(preloaded: Sequence[str]) -> "type[BaseProcess]":
    """Of processes that are forked from one that has imported these modules, or started anew where there is no fork."""
    import multiprocessing

    if sys.platform == "win32":
        return multiprocessing.get_context("spawn").Process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preloaded])
    return context.Process


def stop_with_parent() -> None:
    """Stop this process, one of `process_class`, by SIGTERM when the one that started it ends, even by SIGKILL."""
    from multiprocessing import connection, parent_process

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        signal.raise_signal(signal.SIGTERM)

    Thread(target=watch, name="parent", daemon=True).start()


def on_signals(loop: "AbstractEventLoop", numbers: Sequence[signal.Signals], call: Callable[[int], Any]) -> None:
    """Call a function with the number of each such signal, in an event loop that runs in the main thread."""
    for number in numbers:
        if WINDOWS:
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(call, received))
        else:
            loop.add_signal_handler(number, call, int(number))


def text_settings(is_terminal: bool) -> dict[str, Any]:
    """What `reconfigure` of an output stream is given: a file or pipe on Windows is UTF-8 too, as elsewhere."""
    is_foreign = WINDOWS and not is_terminal and "PYTHONIOENCODING" not in os.environ
    return {"encoding": "utf-8", "newline": "\n"} if is_foreign else {}


def is_broken_pipe(error: OSError) -> bool:
    """Whether writing failed because nobody reads any longer."""
    return isinstance(error, BrokenPipeError) or (WINDOWS and error.errno == errno.EINVAL)


def unbuffered(stream: io.TextIOWrapper) -> IO[bytes]:
    """A file of what a stream writes to; on Windows its own, which a console needs for most characters."""
    if WINDOWS:
        return cast(IO[bytes], getattr(stream.buffer, "raw", stream.buffer))
    return cast(IO[bytes], io.FileIO(stream.fileno(), "w", closefd=False))
