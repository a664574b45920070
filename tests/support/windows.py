"""A process that has what Python offers on Windows: for tests of `lmtool.system` on other platforms."""

import importlib
import os
import signal
import sys
from types import ModuleType, SimpleNamespace

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix")
OF_OS = (
    *("fork", "register_at_fork", "pread", "pwrite", "mkfifo", "sysconf", "sched_getaffinity", "setpgrp", "killpg"),
    *("setpriority", "getpriority", "getuid", "geteuid", "O_NONBLOCK", "O_DIRECTORY", "PRIO_PROCESS"),
)
OF_SIGNAL = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGPIPE", "SIGTSTP", "pthread_sigmask")
LIBRARIES = ("torch", "datasets", "tokenizers", "sklearn.linear_model", "scipy.stats", "transformers", "uvicorn")
"""They ask for the platform themselves, so they are imported before."""


class Locking(ModuleType):
    """`msvcrt`, as far as it locks: a byte behind the content of a file, for one handle, until it is closed."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self._fcntl = importlib.import_module("fcntl")

    def locking(self, handle: int, mode: int, n_bytes: int) -> None:
        assert (mode, n_bytes) == (self.LK_NBLCK, 1)
        assert os.lseek(handle, 0, os.SEEK_CUR) > os.fstat(handle).st_size, "what is locked cannot be read"
        try:
            self._fcntl.flock(handle, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None


def pretend() -> None:
    """Take from this process, for good, what Windows lacks, before lmtool is imported."""
    assert not any(name.startswith("lmtool") for name in sys.modules)
    for name in LIBRARIES:
        importlib.import_module(name)
    locking = Locking()
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # it cannot be imported
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            delattr(module, name)
    real, sys.platform = sys.platform, "win32"
    sys.modules["msvcrt"] = locking
    system = importlib.import_module("lmtool.system")
    sys.platform = real
    system.sys = SimpleNamespace(platform="win32")  # type: ignore[attr-defined]
