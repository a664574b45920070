"""Files that are written aside, and what killed processes have left of them; files that are read whole."""

import errno
import fcntl
import mmap
import os
import pwd
import signal
import stat
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.labelling.journal import LockedAnswerJournal
from lmtool.errors import ResourceError
from lmtool.runs import creation
from lmtool.runs.lock import RunLock, is_run_locked
from lmtool.storage import durable
from lmtool.storage.durable import TEMPORARY_PREFIX
from tests.runs.killing import die_at_event, in_child, is_killed
from tests.support.errors import refuses


def left_in(folder: Path) -> list[Path]:
    """Folders with content; a process that is killed before it has one may leave an empty one."""
    return [path for path in folder.glob(f"{TEMPORARY_PREFIX}*") if any(file.stat().st_size for file in path.iterdir())]


def write(path: Path, content: bytes = b"whole" * 1000) -> None:
    with durable.atomic_output(path) as new:
        durable.write_and_sync_new_file(new, [content[:2500], content[2500:]])


def test_the_name_appears_with_the_whole_content_which_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync, replace_path = os.fsync, durable.replace_path

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def rename(new: Path, path: Path) -> None:
        assert new.stat().st_ino in synced
        replace_path(new, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(durable, "replace_path", rename)
    for content in (b"1", b"2"):
        with durable.atomic_output(tmp_path / "a") as new:
            new.write_bytes(content)
            assert (tmp_path / "a").exists() == (content == b"2")
        assert (tmp_path / "a").read_bytes() == content
    with durable.atomic_output(tmp_path / "folder") as new:
        new.mkdir()
        (new / "b").write_bytes(b"3")
    assert (tmp_path / "folder" / "b").read_bytes() == b"3"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "folder"}


def test_a_link_stays_one_and_the_longest_name_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").stat().st_size == 5000
    write(tmp_path / ("x" * 255))


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    with pytest.raises(OSError, match=r"not empty|exists"), durable.atomic_output(tmp_path / "folder") as new:
        new.mkdir()
    with pytest.raises(KeyError), durable.atomic_output(tmp_path / "a") as new:
        raise KeyError(new)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "mine"]


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file_and_a_repeat_nothing_else(tmp_path: Path) -> None:
    for event in count(1):
        folder = tmp_path / str(event)
        folder.mkdir()
        (folder / "a").write_bytes(b"old")

        def work(folder: Path = folder, event: int = event) -> None:
            die_at_event(event, folder)
            write(folder / "a")

        was_killed = is_killed(work)
        assert (folder / "a").read_bytes() in (b"old", b"whole" * 1000)
        write(folder / "b")  # another file: whatever is written there next
        assert left_in(folder) == []
        if not was_killed:
            break
    assert event > 8


def test_what_a_living_process_writes_is_never_touched(tmp_path: Path) -> None:
    """Nor anything else that is named so, such as a run of which somebody chose the name."""
    (tmp_path / f"{TEMPORARY_PREFIX}run").mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}run" / ".lock").write_text("1")
    ready, begun = os.pipe()
    wait, go = os.pipe()

    def work() -> None:
        with durable.atomic_output(tmp_path / "a") as new:
            new.write_bytes(b"half")
            os.write(begun, b".")
            os.read(wait, 1)
            new.write_bytes(b"whole")

    pid = in_child(work)
    os.read(ready, 1)
    for _ in range(3):
        write(tmp_path / "a")
    assert len(left_in(tmp_path)) == 2
    os.write(go, b".")
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert [path.name for path in left_in(tmp_path)] == [f"{TEMPORARY_PREFIX}run"]
    for handle in (ready, begun, wait, go):
        os.close(handle)


def test_several_may_write_the_same(tmp_path: Path) -> None:
    """At once, while others of them are killed and their folders removed."""

    def work(n: int = 5) -> None:
        for _ in range(n):
            write(tmp_path / "a")

    pids = [in_child(work) for _ in range(3)]
    doomed = in_child(lambda: work(10_000))
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    os.kill(doomed, signal.SIGKILL)
    os.waitpid(doomed, 0)
    assert statuses == [0] * 3
    write(tmp_path / "a")
    assert left_in(tmp_path) == []


def test_only_regular_files_of_the_expected_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert durable.read_file(tmp_path / "file", 5) == durable.read_file(tmp_path / "link") == b"12345"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 36)
    for name, limit, what in (
        ("file", 4, "more than 4 bytes"),
        ("sparse", durable.MAX_FILE_BYTES, "more than"),
        ("pipe", 5, "no regular file"),
        ("device", 5, "no regular file"),
        (".", 5, "Is a directory"),
        ("missing", 5, "No such file"),
    ):
        with pytest.raises(OSError, match=what):
            durable.read_file(tmp_path / name, limit)


def raising(
    number: int, *, where: Callable[..., bool] = lambda *_: True, otherwise: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A function of the operating system that fails."""

    def function(*arguments: Any, **named: Any) -> Any:
        if otherwise is None or where(*arguments):
            raise OSError(number, os.strerror(number))
        return otherwise(*arguments, **named)

    return function


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_that_syncs_no_folders_is_written_to(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_folder(handle: int) -> bool:
        return stat.S_ISDIR(os.fstat(handle).st_mode)

    monkeypatch.setattr(os, "fsync", raising(number, where=is_folder, otherwise=os.fsync))
    durable.write_file(tmp_path / "a", b"1")
    with durable.atomic_output_folder(tmp_path / "folder") as new:
        durable.write_and_sync_new_file(new / "b", b"2")
    assert (tmp_path / "a").read_bytes() + (tmp_path / "folder" / "b").read_bytes() == b"12"
    monkeypatch.setattr(os, "fsync", raising(number))  # that of a file is no courtesy
    with pytest.raises(OSError, match=os.strerror(number)):
        durable.write_and_sync_new_file(tmp_path / "c", b"3")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_without_locks_nothing_is_written_that_two_processes_could_write(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file and what it needs; what one process writes under a name of its own needs no lock."""
    monkeypatch.setattr(fcntl, "flock", raising(number))
    uses: tuple[tuple[Path, Callable[[], object]], ...] = (
        (tmp_path / "cache" / "key.lock", lambda: durable.hold_lock(tmp_path / "cache" / "key.lock").__enter__()),
        (tmp_path / ".lock", lambda: RunLock(tmp_path)),
        (tmp_path / "run", lambda: creation.check_output_free_and_writable(tmp_path / "run")),
        (tmp_path / "answers", lambda: LockedAnswerJournal(tmp_path / "answers", {})),
    )
    for path, use in uses:
        with refuses("resource") as caught:
            use()
        assert caught.value.where == str(path)
        assert "file system with locks" in caught.value.fix
    assert not is_run_locked(tmp_path)
    assert not (tmp_path / "run").exists()
    write(tmp_path / "a")
    durable.write_output_file(tmp_path / "b", b"1")
    assert not [*tmp_path.glob(f"{TEMPORARY_PREFIX}*")]


def test_without_mmap_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(durable.map_file(tmp_path / "a"), mmap.mmap)
    for number in (None, errno.ENODEV):
        if number is not None:
            monkeypatch.setattr(mmap, "mmap", raising(number))
        assert durable.map_file(tmp_path / "a")[:] == b"abc"
        assert durable.map_file(tmp_path / "empty") == b""
        with pytest.raises(OSError, match="no regular file"):
            durable.map_file(tmp_path / "pipe")
    monkeypatch.setattr(mmap, "mmap", raising(errno.ENOMEM))
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        durable.map_file(tmp_path / "a")


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a home, whom the system does not know; returns the folder for temporary files."""
    for name in ("HOME", "LMTOOL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("LMTOOL_CACHE", "/a")
    assert durable.cache_folder() == Path("/a")
    monkeypatch.delenv("LMTOOL_CACHE")
    assert durable.cache_folder() == Path("/b/lmtool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert durable.cache_folder() == tmp_path / ".cache" / "lmtool"


def test_a_user_without_a_home_has_a_cache_that_nobody_else_may_write(homeless: Path) -> None:
    folder = durable.cache_folder()
    assert folder == durable.cache_folder()
    assert folder.parent == homeless
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["open to all", "a link", "a file", "of another user", "no temporary folder"])
def test_a_cache_that_others_could_write_is_not_used(
    what: str, homeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = durable.cache_folder()
    if what == "open to all":
        folder.chmod(0o777)
    elif what == "a link":
        (homeless / "other").mkdir(0o700)
        folder.rmdir()
        folder.symlink_to(homeless / "other")
    elif what == "a file":
        folder.rmdir()
        folder.touch(0o600)
    elif what == "of another user":
        monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((stat.S_IFDIR | 0o700, *[-1] * 9)))
    else:
        monkeypatch.setattr(tempfile, "gettempdir", raising(errno.ENOENT))
    with pytest.raises(ResourceError) as caught:
        durable.cache_folder()
    assert "LMTOOL_CACHE" in caught.value.fix


def test_each_error_of_a_disk_has_its_own_advice() -> None:
    """Space helps only where there is none; what is no known error is not guessed at."""
    names = (
        "EACCES",
        "EROFS",
        "ENOSPC",
        "EDQUOT",
        "EIO",
        "ENAMETOOLONG",
        "EFBIG",
        "EMFILE",
        "EEXIST",
        "ENOENT",
        "ENXIO",
    )
    ways = {name: durable.suggest_write_fix(OSError(getattr(errno, name), "")) for name in names}
    assert len({*ways.values()}) == len(ways)
    assert [name for name, way in ways.items() if "free" in way] == ["ENOSPC", "EDQUOT"]
