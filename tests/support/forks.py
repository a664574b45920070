"""Python programs without the seconds of their imports: forks of a server that has imported torch and lmtool.

For tests of what a program does once it runs. What it does while it starts, what it imports, or what is installed needs
a real start, by `subprocess`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
IMPORTS = ("lmtool.cli", "lmtool.training.train", "lmtool.generation.generate", "lmtool.report.training")
"""What each program that trains or writes imports, and torch with it."""
LENGTH = 8
"""Bytes of the length in front of a request, with which the files of the program are sent."""


class Program:
    """A program that was forked, as `subprocess.Popen` has it."""

    def __init__(self, pipes: Sequence["IO[Any] | None"], status: int) -> None:
        self.stdin, self.stdout, self.stderr = pipes
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self.returncode if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, seconds: float | None) -> bool:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode is not None

    def communicate(self) -> tuple[str | None, str | None]:
        """What it still writes to its pipes, read to their ends, which is after its end."""
        if self.stdin:
            self.stdin.close()
        pipes = (self.stdout, self.stderr)
        with ThreadPoolExecutor(len(pipes)) as readers:
            out, err = readers.map(lambda pipe: None if pipe is None or pipe.closed else pipe.read(), pipes)
        for pipe in filter(None, pipes):
            pipe.close()
        self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, which has not been told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


def begin(
    words: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    files: Sequence["int | IO[Any] | None"] = (None, None, None),
    imports: Sequence[str] = (),
) -> Program:
    """Begin `python WORDS`, where the words begin with -m or -c. files: as stdin, stdout, stderr of `subprocess`.

    imports: modules that take long to import; the server then has them for all programs that come.
    """
    request = {
        "words": [str(word) for word in words],
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "imports": list(imports),
    }
    status, told = os.pipe()
    handles, pipes = [], []
    for number, file in enumerate(files):
        theirs, ours = _ends(number, file)
        handles.append(theirs)
        pipes.append(ours)
    content = json.dumps(request).encode()
    socket.send_fds(_server(), [len(content).to_bytes(LENGTH, "big")], [*handles, told])
    _server().sendall(content)
    for handle in (*handles, told):
        os.close(handle)
    return Program(pipes, status)


def _ends(number: int, file: "int | IO[Any] | None") -> tuple[int, "IO[Any] | None"]:
    """The handle of a program, and of a pipe the end of who began it."""
    if file is None:
        return os.dup(number) if number else os.open(os.devnull, os.O_RDONLY), None
    if file != subprocess.PIPE:
        return os.dup(file if isinstance(file, int) else file.fileno()), None
    reading, writing = os.pipe()
    return (writing, os.fdopen(reading)) if number else (reading, os.fdopen(writing, "w"))


def run(words: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """The end of `python WORDS`, with what it wrote; options as of `begin`."""
    with begin(words, files=(None, subprocess.PIPE, subprocess.PIPE), **options) as program:
        out, err = program.communicate()
    assert program.returncode is not None
    return subprocess.CompletedProcess(list(words), program.returncode, out, err)


@cache
def _server() -> socket.socket:
    """The connection to the server, which ends with it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())]
    server = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(server.wait)  # the last registered is the first to run
    atexit.register(ours.close)
    return ours


class Server:
    """Forks a program for each request; tells its process id, and once it has ended its exit code."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._running: dict[int, int] = {}
        self._ended, woken = os.pipe()
        for handle in (self._ended, woken):
            os.set_blocking(handle, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, which ends the tests

    def serve(self) -> list[str]:
        """Returns the words of a program in its own process; the server itself ends with the connection."""
        for name in IMPORTS:
            importlib.import_module(name)
        while True:
            gc.freeze()
            handles: list[socket.socket | int] = [self._connection, self._ended]
            ready, _, _ = select.select(handles, [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._tell()
            if self._connection in ready and (words := self._fork()):
                return words

    def _tell(self) -> None:
        for pid, told in list(self._running.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(self._running.pop(pid))

    def _fork(self) -> list[str]:
        """In the program its words, in the server none."""
        length, handles, _, _ = socket.recv_fds(self._connection, LENGTH, 4)
        if not length:
            os._exit(0)
        content, n_bytes = b"", int.from_bytes(length, "big")
        while len(content) < n_bytes:
            content += self._connection.recv(n_bytes - len(content))
        request = json.loads(content)
        for name in request["imports"]:
            importlib.import_module(name)
        pid = os.fork()
        if pid == 0:
            return self._become(request, handles)
        *files, told = handles
        for handle in files:
            os.close(handle)
        os.write(told, f"{pid}\n".encode())
        self._running[pid] = told
        return []

    def _become(self, request: dict[str, Any], handles: Sequence[int]) -> list[str]:
        """Be as a process of Python is that was started."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, handle in enumerate(handles[:3]):
            os.dup2(handle, number)
        for handle in (*handles, *self._running.values(), self._ended):
            os.close(handle)
        self._connection.close()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        for name in ("stdin", "stdout", "stderr"):
            setattr(sys, f"__{name}__", getattr(sys, name))
        return list(request["words"])


def _do(words: list[str]) -> None:
    """Be the program of these words."""
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    kind, program, *_ = words
    sys.argv = words[1:]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    _do(Server(socket.socket(fileno=int(sys.argv[1]))).serve())
