"""Processes that end at a moment of the test's choice."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lmtool.runs import tensors

FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


def in_child(work: Callable[[], None]) -> int:
    """Pid of a new process that does `work` and exits with 0, or with 1 when it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def is_killed(work: Callable[[], None]) -> bool:
    """Whether a new process that does `work` is killed; if it is not, it has to succeed."""
    _, status = os.waitpid(in_child(work), 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def die_at_event(number: int, folder: Path) -> None:
    """From now on, count what this process does to files in `folder`, and kill it just before the given event."""
    count = 0

    def event() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name in FILE_EVENTS and (
            str(folder) in str(arguments[0]) or isinstance(arguments[0], int) or name in ("os.remove", "os.rmdir")
        ):
            event()

    genuine_fsync, genuine_serialise = os.fsync, tensors.serialize_safetensors

    def fsync(fd: Any) -> None:
        event()
        genuine_fsync(fd)
        event()

    def serialise(group: Mapping[str, torch.Tensor], *more: Any) -> Iterator[bytes | memoryview]:
        for chunk in genuine_serialise(group, *more):
            event()
            yield chunk[: len(chunk) // 2]
            event()
            yield chunk[len(chunk) // 2 :]

    os.fsync = fsync
    tensors.serialize_safetensors = serialise  # type: ignore[assignment]
    sys.addaudithook(audit)
