import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lmtool
from lmtool.errors import CheckpointError, ResourceError
from lmtool.run.lock import RunLock, is_run_locked

HOLD = """
import os, sys, time
from pathlib import Path
from lmtool.run.lock import RunLock

lock = RunLock(Path(sys.argv[1]))
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        time.sleep(600)
print(child if sys.argv[2] == "fork" else 0, flush=True)
time.sleep(600)
"""


def hold(folder: Path, mode: str) -> tuple["subprocess.Popen[str]", int]:
    """A process that holds the lock, and the pid of its child if it was to have one."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), mode],
        cwd=Path(lmtool.__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.mark.system
def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    process, _ = hold(tmp_path, "alone")
    try:
        assert is_run_locked(tmp_path)
        with pytest.raises(CheckpointError) as caught:
            RunLock(tmp_path)
    finally:
        kill(process)
    assert caught.value.exit_code == 4
    assert f"pid {process.pid}" in caught.value.what
    assert caught.value.where == str(tmp_path)


@pytest.mark.system
def test_kill_9_frees_the_lock(tmp_path: Path) -> None:
    process, _ = hold(tmp_path, "alone")
    kill(process)
    assert not is_run_locked(tmp_path)
    RunLock(tmp_path).release()


@pytest.mark.system
def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    process, child = hold(tmp_path, "fork")
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert is_run_locked(tmp_path)
    with pytest.raises(CheckpointError, match=f"pid {os.getpid()}"):
        RunLock(tmp_path)
    lock.release()
    lock.release()
    assert not is_run_locked(tmp_path)
    RunLock(tmp_path).release()


def test_looking_does_not_refuse_a_run_that_starts(tmp_path: Path) -> None:
    import fcntl
    import threading

    (tmp_path / ".lock").touch()
    handle = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, [handle]).start()
    RunLock(tmp_path).release()


def test_no_lock_file_means_not_held(tmp_path: Path) -> None:
    assert not is_run_locked(tmp_path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ResourceError, match="cannot write to the run directory"):
        RunLock(tmp_path / "none")
