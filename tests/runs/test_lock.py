"""The lock of a run, which one process holds, and which ends with it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmtool
from lmtool.errors import ResourceError
from lmtool.runs.lock import RunLock, is_run_locked
from tests.support.errors import refuses

HOLD = """
import os, sys, time
from pathlib import Path
from lmtool.runs.lock import RunLock

lock = RunLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock, with a child, both of which end with the test."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, cwd=Path(lmtool.__file__).parents[1], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.communicate()


@pytest.mark.system
def test_a_second_process_is_refused_until_the_first_is_killed(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Though a child of the first one outlives it."""
    assert is_run_locked(tmp_path)
    with refuses("run_in_use") as caught:
        RunLock(tmp_path)
    assert caught.value.where == str(tmp_path)
    assert f"pid {holder.pid}" in caught.value.what
    holder.kill()
    holder.wait()
    assert not is_run_locked(tmp_path)
    RunLock(tmp_path).release()


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    assert not is_run_locked(tmp_path)
    assert os.listdir(tmp_path) == []
    lock = RunLock(tmp_path)
    assert is_run_locked(tmp_path)
    with refuses("run_in_use") as caught:
        RunLock(tmp_path)
    assert f"pid {os.getpid()}" in caught.value.what
    lock.release()
    lock.release()
    assert not is_run_locked(tmp_path)
    RunLock(tmp_path).release()
    with pytest.raises(ResourceError):
        RunLock(tmp_path / "none")


def test_a_look_at_the_lock_does_not_refuse_a_run_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtool.runs.lock._ACQUIRE_SECONDS", 60)
    (tmp_path / ".lock").touch()
    handle = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [handle]).start()
    RunLock(tmp_path).release()
