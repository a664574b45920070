"""Differences between operating systems, POSIX and Windows, and between file systems.

Only this module asks which one it is and imports modules that only one of them has. On Windows an open file can be
neither renamed nor removed, folders cannot be synced, locks are on ranges of bytes, and processes do not fork.
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

IS_WINDOWS = sys.platform == "win32"
"""Whether open files can be neither renamed nor removed."""

OPEN_WITHOUT_WAITING: int = getattr(os, "O_NONBLOCK", 0)
"""Flag for `os.open` that does not wait for the other end of a pipe."""

leave_process_group: Callable[[], Any] = getattr(os, "setpgrp", lambda: None)
"""Lets Ctrl-C stop only the process that started this one; on Windows it stops both."""

_LOCKED_BYTE = 1 << 30
"""On Windows, the byte that is locked: beyond all content, because others cannot read a locked byte."""

_SYNC_UNSUPPORTED_ERRORS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems that cannot sync a folder; fsync(2) documents EINVAL."""

_RENAME_TIMEOUT_SECONDS, _POLL_SECONDS = 2.0, 0.02
"""On Windows, how long and how often renaming is retried while somebody, such as a virus scanner, has the file open."""


def try_to_lock_file(descriptor: int, shared: bool = False) -> bool:
    """Locks an open file until it is closed, unless another process has locked it; returns whether it is locked now.

    shared: several processes may hold the lock at once; not on Windows. Raises OSError if the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def wait_and_lock_file(descriptor: int) -> None:
    """Waits until no other process locks an open file, then locks it. Raises OSError as `try_to_lock_file` does."""
    if sys.platform == "win32":
        while not try_to_lock_file(descriptor):
            time.sleep(_POLL_SECONDS)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def create_file_locked_if_supported(path: Path) -> int:
    """Creates, opens and locks a file, and returns its descriptor. Raises OSError.

    No other process sees the file before it is locked. On POSIX the file gets its name after it is locked, so never if
    the file system has no locks; on Windows nobody can remove it because it is open.
    """
    new = path if IS_WINDOWS else path.with_name("lock")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):
        wait_and_lock_file(descriptor)
        if not IS_WINDOWS:
            os.rename(new, path)
    return descriptor


def close_and_remove(descriptor: int, remove: Callable[[], None]) -> None:
    """Closes a locked file and calls `remove` for its folder, before closing where open files can be removed."""
    if IS_WINDOWS:
        os.close(descriptor)
    remove()
    if not IS_WINDOWS:
        os.close(descriptor)


def ignore_open_files() -> AbstractContextManager[None]:
    """Suppresses the PermissionError that Windows raises for files that somebody has open."""
    return suppress(PermissionError) if IS_WINDOWS else nullcontext()


def sync_directory(path: Path) -> None:
    """Syncs the entries of a directory to disk, if the system and the file system can. Raises OSError."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _SYNC_UNSUPPORTED_ERRORS:
                raise
        finally:
            os.close(descriptor)


def is_owned_or_writable_by_others(status: os.stat_result) -> bool:
    """Returns whether a user other than this one and root owns a file or folder or can write to it.

    False on Windows, where only the user can write to the folders of a profile.
    """
    if sys.platform == "win32":
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & 0o022)


def try_to_deny_others_writing(path: Path) -> bool:
    """Lets only its owner write to a file or folder; returns whether that is this user or root. Raises OSError."""
    status = path.stat()
    if sys.platform != "win32" and status.st_uid == os.geteuid() and status.st_mode & 0o022:
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        status = path.stat()
    return not is_owned_or_writable_by_others(status)


def is_mmap_unsupported(error: OSError) -> bool:
    """Returns whether a file could not be memory-mapped because its file system has no mmap.

    Libraries in Rust give the error number only in the message.
    """
    return error.errno == errno.ENODEV or str(error).endswith(f"(os error {errno.ENODEV})")


def get_user_id() -> int:
    """Returns the id of the user of this process; 0 on Windows, where each user has another temporary folder."""
    return os.geteuid() if sys.platform != "win32" else 0


def is_private_folder(folder: Path) -> bool:
    """Returns whether this is a folder, no link, that only this user can read and write. Raises OSError.

    On Windows, which has other permissions, every folder counts as private.
    """
    status = os.lstat(folder)
    is_own = IS_WINDOWS or (status.st_uid == get_user_id() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    return stat.S_ISDIR(status.st_mode) and is_own


def replace_path(source: Path, target: Path) -> None:
    """Renames a file or folder, replacing a file or an empty folder at `target`. Raises OSError."""
    if IS_WINDOWS and target.is_dir() and source.is_dir():
        target.rmdir()
    deadline = time.monotonic() + _RENAME_TIMEOUT_SECONDS
    while True:
        try:
            return os.replace(source, target)
        except PermissionError:
            if not IS_WINDOWS or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def call_after_fork(action: Callable[[], None]) -> None:
    """Registers an action that each child of this process calls after a fork."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=action)


def lower_priority(nice: int) -> None:
    """Lowers the priority of this thread and of those that it starts; only Linux has priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))


def get_process_class(preloaded_modules: Sequence[str]) -> "type[BaseProcess]":
    """Returns a process class that forks from a process which has imported these modules, or spawns on Windows."""
    import multiprocessing

    if sys.platform == "win32":
        return multiprocessing.get_context("spawn").Process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preloaded_modules])
    return context.Process


def terminate_with_parent() -> None:
    """Sends this process, one of `get_process_class`, SIGTERM when its parent ends, even by SIGKILL."""
    from multiprocessing import connection, parent_process

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        signal.raise_signal(signal.SIGTERM)

    Thread(target=watch, name="parent", daemon=True).start()


def handle_signals(loop: "AbstractEventLoop", signals: Sequence[signal.Signals], handler: Callable[[int], Any]) -> None:
    """Calls a handler with the number of each such signal, in an event loop that runs in the main thread."""
    for number in signals:
        if IS_WINDOWS:
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(handler, received))
        else:
            loop.add_signal_handler(number, handler, int(number))


def output_stream_settings(is_terminal: bool) -> dict[str, Any]:
    """Returns the arguments of an output stream's `reconfigure` that make files and pipes on Windows UTF-8 too."""
    is_foreign = IS_WINDOWS and not is_terminal and "PYTHONIOENCODING" not in os.environ
    return {"encoding": "utf-8", "newline": "\n"} if is_foreign else {}


def is_broken_pipe(error: OSError) -> bool:
    """Returns whether writing failed because nobody reads the other end."""
    return isinstance(error, BrokenPipeError) or (IS_WINDOWS and error.errno == errno.EINVAL)


def open_unbuffered_output(stream: io.TextIOWrapper) -> IO[bytes]:
    """Opens a stream's output unbuffered; on Windows returns the stream's own raw file, which consoles need."""
    if IS_WINDOWS:
        return cast(IO[bytes], getattr(stream.buffer, "raw", stream.buffer))
    return cast(IO[bytes], io.FileIO(stream.fileno(), "w", closefd=False))
