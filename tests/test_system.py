"""What operating systems do each in their way: the way of Windows, by substituting the platform."""

import asyncio
import importlib.util
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmtool import system
from lmtool.runs import lock, removal, saving
from lmtool.storage import durable
from tests.support.errors import refuses
from tests.support.kernels import put_kernels
from tests.support.make_runs import RUNS
from tests.support.windows import Locking

ROOT = Path(__file__).parents[1]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`lmtool.system` as it is where the platform is Windows, for all modules that use it."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("recognizes open files by /proc")
    spec = importlib.util.spec_from_file_location("lmtool.system", system.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setitem(sys.modules, "msvcrt", Locking())
        for name in ("O_NONBLOCK", "setpgrp"):
            patch.delattr(os, name)
        other = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(other)
    monkeypatch.setattr(other.sys, "platform", "win32")
    for user in (durable, lock, removal, saving):
        monkeypatch.setattr(user, "system", other)
    for name in ("replace_path", "sync_directory"):
        monkeypatch.setattr(durable, name, getattr(other, name))
    monkeypatch.setattr(os, "replace", _replace)
    return other


def _replace(old: Any, new: Any) -> None:
    """`os.replace` as on Windows: of nothing that is open, and not in place of a folder."""
    old, new = Path(old), Path(new)
    if any(held.is_relative_to(old.absolute()) or held == new.absolute() for held in open_files()):
        raise PermissionError(13, "The process cannot access the file because it is being used by another process")
    if new.is_dir():
        raise PermissionError(5, "Access is denied")
    RENAME(old, new)


RENAME = os.rename


def open_files() -> list[Path]:
    return [Path(os.readlink(link)) for link in [*Path("/proc/self/fd").iterdir()] if os.path.lexists(link)]


def test_windows_is_recognized_and_does_without_posix(windows: ModuleType) -> None:
    assert windows.IS_WINDOWS
    assert not system.IS_WINDOWS
    assert windows.OPEN_WITHOUT_WAITING == 0
    windows.leave_process_group()
    windows.sync_directory(Path("none"))
    windows.call_after_fork(lambda: None)
    windows.lower_priority(5)
    assert windows.get_process_class(["lmtool"]) is multiprocessing.get_context("spawn").Process


def test_one_process_locks_a_file_and_the_others_read_it(windows: ModuleType, tmp_path: Path) -> None:
    first = lock.RunLock(tmp_path)
    assert lock.is_run_locked(tmp_path)
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with refuses("run_in_use"):
        lock.RunLock(tmp_path)
    first.release()
    assert not lock.is_run_locked(tmp_path)
    lock.RunLock(tmp_path).release()


def test_a_second_process_waits_for_a_lock(windows: ModuleType, tmp_path: Path) -> None:
    def second() -> None:
        with durable.hold_lock(tmp_path / "lock"):
            pass

    waiting = threading.Thread(target=second)
    with durable.hold_lock(tmp_path / "lock"):
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join()


def test_new_files_and_folders_replace_old_ones(windows: ModuleType, tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        durable.replace_file(tmp_path / "a", content)
        with durable.atomic_output(tmp_path / "b") as new:
            durable.write_and_sync_new_file(new, content)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == content
    (tmp_path / "folder").mkdir()
    with durable.atomic_output_folder(tmp_path / "folder") as new:
        durable.write_and_sync_new_file(new / "c", b"3")
    assert (tmp_path / "folder" / "c").read_bytes() == b"3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "folder"]


def test_a_scratch_folder_is_seen_to_be_in_use_and_goes_when_its_process_has_gone(
    windows: ModuleType, tmp_path: Path
) -> None:
    with durable.scratch_folder(tmp_path) as folder:
        assert durable.is_scratch_folder_in_use(folder)
        with durable.scratch_folder(tmp_path):
            assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
    left = tmp_path / f"{durable.TEMPORARY_PREFIX}left"
    left.mkdir()
    (left / f"{durable.TEMPORARY_PREFIX}lock").touch()
    with durable.scratch_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_file_that_is_read_for_a_moment_is_renamed_after_it(
    windows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    reading = (tmp_path / "a").open("rb")
    threading.Timer(0.1, reading.close).start()
    durable.replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    monkeypatch.setattr(windows, "_RENAME_TIMEOUT_SECONDS", 0.05)
    with (tmp_path / "a").open("rb"), pytest.raises(PermissionError):
        durable.replace_file(tmp_path / "a", b"newer")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_checkpoint_that_is_read_stays_until_the_next_time(
    windows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_RENAME_TIMEOUT_SECONDS", 0.05)
    for step in (1, 2, 3):
        (tmp_path / f"step-{step:06d}").mkdir()
        (tmp_path / f"step-{step:06d}" / "model.safetensors").touch()
    with (tmp_path / "step-000001" / "model.safetensors").open("rb"):
        saving.prune_checkpoints(tmp_path, {None}, 1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003"]
    saving.prune_checkpoints(tmp_path, {None}, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


def test_a_run_is_removed_with_its_lock(windows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes((RUNS / "0.1.0" / "ngram" / "run.json").read_bytes())
    unlink, of_open = Path.unlink, defaultdict[str, list[Path]](list)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        of_open[path.name] += [held for held in open_files() if held == path]
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinked)
    assert removal.remove_run(tmp_path / "run") > 0
    assert not (tmp_path / "run").exists()
    assert dict(of_open) == {"run.json": [], ".lock": []}


def test_a_server_ends_by_a_signal(windows: ModuleType) -> None:
    async def served() -> int:
        received: asyncio.Queue[int] = asyncio.Queue()
        windows.handle_signals(asyncio.get_running_loop(), (signal.SIGTERM,), received.put_nowait)
        signal.raise_signal(signal.SIGTERM)
        return await received.get()

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert asyncio.run(served()) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("is_terminal", "variable"), [(True, None), (False, None), (False, "latin1")])
def test_pipes_are_utf_8_and_a_terminal_is_left_alone(
    windows: ModuleType, is_terminal: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if variable:
        monkeypatch.setenv("PYTHONIOENCODING", variable)
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "cp1252", newline="\r\n", write_through=True)
    stream.reconfigure(errors="backslashreplace", **windows.output_stream_settings(is_terminal))
    stream.write("雨\n")
    is_left = is_terminal or bool(variable)
    assert written.getvalue() == (b"\\u96e8\r\n" if is_left else "雨\n".encode())
    assert system.output_stream_settings(is_terminal) == {}


def test_messages_go_to_the_console_itself(windows: ModuleType, tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as stream:
        console: Any = stream.buffer
        assert windows.open_unbuffered_output(stream) is console.raw
        assert system.open_unbuffered_output(stream) is not console.raw


AS_ON_WINDOWS = """
import importlib, pkgutil, sys

sys.path.insert(0, sys.argv.pop(1))
from tests.support.windows import pretend

pretend()
import lmtool, lmtool.system

assert lmtool.system.IS_WINDOWS
for module in pkgutil.walk_packages(lmtool.__path__, "lmtool."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from lmtool.cli import main
text = "One cat sat on the mat. Another ran home, naïvely. " * 80
open("text.txt", "w", encoding="utf-8").write(text)
small = "model.n_layers=1 model.d_model=16 model.n_heads=2 model.context=16 tokenizer.vocab_size=300 training.steps=4"
small += " training.batch_size=4 training.precision=float32 evaluation.every=2 evaluation.tokens=100 checkpoint.every=2"
settings = [word for one in small.split() for word in ("-s", one)]
for command in (
    ["pretrain", "text.txt", "-r", "tiny", *settings, "-q", "-o", "run", "--until", "0.5"],
    ["resume", "run", "-q"],
    ["generate", "One", "--run", "run", "--max-new-tokens", "4", "--greedy"],
    ["eval", "run", "text.txt"],
    ["export", "run", "exported"],
    ["runs", "ls"],
    ["runs", "rm", "run", "--yes"],
):
    sys.argv = ["lmtool", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""


@pytest.mark.system
def test_lmtool_trains_where_nothing_of_posix_is(tmp_path: Path) -> None:
    """With what Python offers on all platforms, and locks of bytes."""
    put_kernels(tmp_path / "cache")
    env = {**os.environ, "LMTOOL_RUNS": str(tmp_path / "runs"), "LMTOOL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "ignore", "-c", AS_ON_WINDOWS, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported" / "config.json").is_file()
    assert not (tmp_path / "run").exists()
