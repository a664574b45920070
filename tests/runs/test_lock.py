"""The lock of a run, which one process holds, and which ends with it."""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from lmtool.errors import ResourceError
from lmtool.runs.lock import RunLock, is_run_locked
from tests.runs.killing import in_child
from tests.support.errors import refuses


@pytest.mark.system
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    """Though a child of the first one outlives it."""
    reader, writer = os.pipe()

    def hold() -> None:
        lock = RunLock(tmp_path)
        os.write(writer, b"%d" % in_child(lambda: time.sleep(600)))
        time.sleep(600)
        lock.release()

    holder = in_child(hold)
    child = int(os.read(reader, 32))
    try:
        assert is_run_locked(tmp_path)
        with refuses("run_in_use") as caught:
            RunLock(tmp_path)
        assert caught.value.where == str(tmp_path)
        assert f"pid {holder}" in caught.value.what
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert not is_run_locked(tmp_path)
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


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
