"""Locks a run directory for one writer; the kernel releases the lock when the process dies."""

import os
import time
import weakref
from pathlib import Path

from lmtool import system
from lmtool.errors import CheckpointError
from lmtool.storage import durable

LOCK_FILE = ".lock"

_ACQUIRE_SECONDS = 0.5
"""Timeout of acquiring the lock: `is_run_locked` takes it for a moment, which must not make a training run fail."""


class RunLock:
    """The exclusive lock of a run directory, held from construction until `release` or the end of the process.

    Raises CheckpointError when another process holds it, naming that process; ResourceError when it cannot be
    created, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        with durable.convert_write_errors(folder, "cannot write to the run directory"):
            self._handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with durable.convert_lock_errors(folder / LOCK_FILE):
                deadline = time.monotonic() + _ACQUIRE_SECONDS
                while not system.try_to_lock_file(self._handle):
                    if time.monotonic() > deadline:
                        holder = os.read(self._handle, 32).decode("ascii", "replace").strip()
                        what = f"another process is using this run: pid {holder or 'unknown'}"
                        fix = "wait until it ends, or stop it"
                        raise CheckpointError(what, where=str(folder), fix=fix, code="run_in_use")
                    time.sleep(0.02)
            with durable.convert_write_errors(folder, "cannot write to the run directory"):
                os.ftruncate(self._handle, 0)
                os.write(self._handle, f"{os.getpid()}\n".encode())
        except BaseException:
            self.release()
            raise
        _open_locks.add(self)

    def release(self) -> None:
        """Release the lock; a no-op once released."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def is_run_locked(folder: Path) -> bool:
    """Returns whether some process, also this one, holds the lock of a run directory."""
    try:
        return durable.is_file_locked(folder / LOCK_FILE)
    except OSError:
        return False


_open_locks: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


def _release_locks_in_forked_child() -> None:
    # A forked child (a data worker, say) shares the open lock file: without this it would keep the run locked
    # after its parent was killed.
    for lock in list(_open_locks):
        lock.release()


system.call_after_fork(_release_locks_in_forked_child)
