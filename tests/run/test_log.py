import errno
import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError, ResourceError
from lmtool.records import JsonModel
from lmtool.run.log import MAX_LINE_BYTES, RunLog
from tests.errors import refuses


class Numbered(JsonModel, extra="allow"):
    step: int


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    log = RunLog(tmp_path / "metrics.jsonl", Numbered)
    for step in (1, 2, 2, 3):
        log.append({"step": step, "loss": 0.1 * step})
    return log


def steps(log: RunLog) -> list[int]:
    return [record["step"] for record in log.read_records()]


def test_records_come_back(log: RunLog) -> None:
    log.append({"step": 4, "text": "é\u2028\n\ud800", "none": None})
    *_, third, last = log.read_records()
    assert third == {"step": 3, "loss": 0.1 * 3}
    assert last == {"step": 4, "text": "é\u2028\n\ud800", "none": None}
    assert len(log.path.read_bytes().splitlines()) == 5


def test_a_record_is_in_the_file_at_once(log: RunLog) -> None:
    size = log.path.stat().st_size
    log.append({"step": 4})
    assert log.path.stat().st_size == size + len('{"step": 4}\n')


def test_numbers_that_json_lacks_become_null(log: RunLog) -> None:
    log.append({"step": 4, "loss": math.nan, "grad_norm": math.inf})
    assert json.loads(log.path.read_text().splitlines()[-1], parse_constant=pytest.fail) == {
        "step": 4,
        "loss": None,
        "grad_norm": None,
    }


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "none.jsonl", Numbered)
    assert steps(log) == []
    log.rewind(3)
    log.sync()
    assert not log.path.exists()


def test_rewinding_keeps_the_lines_of_earlier_steps(log: RunLog) -> None:
    before = log.path.read_bytes().splitlines(keepends=True)
    log.rewind(2)
    assert log.path.read_bytes() == b"".join(before[:3])
    log.append({"step": 3})
    assert steps(log) == [1, 2, 2, 3]
    log.rewind(0)
    assert log.path.read_bytes() == b""
    assert os.listdir(log.path.parent) == ["metrics.jsonl"]


def test_rewinding_to_the_end_does_not_touch_the_file(log: RunLog) -> None:
    before = log.path.stat().st_ino
    log.rewind(3)
    assert log.path.stat().st_ino == before


@pytest.mark.parametrize(
    "tail", [b'{"step": 3, "lo', b"\0\0\0", b'{"step": 3}', b"\xff\n", b"[]\n", b'{"loss": 1}\n', b"\n"]
)
def test_rewinding_removes_a_torn_end(log: RunLog, tail: bytes) -> None:
    before = log.path.read_bytes()
    log.path.write_bytes(before + tail)
    log.rewind(3)
    assert log.path.read_bytes() == before


def test_a_line_that_is_being_written_is_not_read(log: RunLog) -> None:
    with log.path.open("ab") as file:
        file.write(b'{"step": 4, "lo')
    assert steps(log) == [1, 2, 2, 3]


def test_a_damaged_line_is_named(log: RunLog) -> None:
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([*lines[:2], b"{oops}\n", *lines[2:]]))
    with pytest.raises(CheckpointError) as caught:
        steps(log)
    assert caught.value.where == f"{log.path}:3"


def test_an_unreadable_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match="cannot read the log"):
        steps(RunLog(tmp_path / "metrics.jsonl", Numbered))
    with pytest.raises(ResourceError, match="cannot write the log"):
        RunLog(tmp_path / "metrics.jsonl", Numbered).append({"step": 1})


def test_a_record_that_does_not_fit_leaves_nothing(log: RunLog) -> None:
    import resource

    before = log.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(ResourceError, match="cannot write the log"):
            log.append({"step": 4, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.path.read_bytes() == before
    log.append({"step": 4})
    assert steps(log) == [1, 2, 2, 3, 4]


def test_a_full_disk_while_rewinding_leaves_the_log(log: RunLog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = log.path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refuses("no_space"):
        log.rewind(1)
    assert log.path.read_bytes() == before
    assert os.listdir(log.path.parent) == ["metrics.jsonl"]


def test_a_whole_log_is_not_told(log: RunLog) -> None:
    assert log.find_damage(3, range(1, 4)) == []
    log.append({"step": 4})
    with log.path.open("ab") as file:
        file.write(b'{"step": 5, "lo')  # by a process that was killed
    assert log.find_damage(4, range(1, 5)) == []
    assert RunLog(log.path.with_name("none.jsonl"), Numbered).find_damage(0, range(1, 1)) == []


def test_damaged_lines_are_told_by_their_numbers(log: RunLog) -> None:
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([lines[0], b"{oops}\n", *lines[1:3], b"[]\n", lines[3]]))
    assert log.find_damage(3, range(1, 4)) == ["metrics.jsonl: damaged and removed: lines 2, 5"]


def test_missing_steps_are_told(log: RunLog) -> None:
    assert log.find_damage(9, range(1, 10)) == ["metrics.jsonl has no record of steps 4, 5, 6, 7, 8 and 1 more"]
    log.path.unlink()
    assert log.find_damage(2, range(1, 3)) == ["metrics.jsonl has no record of steps 1, 2"]


def test_a_line_of_absurd_length_is_refused_in_little_memory(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl", Numbered)
    log.append({"step": 1})
    with log.path.open("ab") as file:
        file.truncate(1 << 36)
    tracemalloc.start()
    for read in (lambda: list(log.read_records()), lambda: log.find_damage(1), lambda: log.rewind(0)):
        with pytest.raises(CheckpointError, match="more than 16,777,216 bytes") as raised:
            read()
        assert raised.value.where == f"{log.path}:2"
    assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LINE_BYTES
    tracemalloc.stop()


def test_steps_and_lines_without_number_are_counted_in_little_memory(tmp_path: Path) -> None:
    """As a forged validated.json names them: a range is not gone through."""
    log = RunLog(tmp_path / "metrics.jsonl", Numbered)
    for step in (1, 2, 4):
        log.append({"step": step})
    with log.path.open("ab") as file:
        file.write(b"\n" * 100_000)
    damaged, missing = log.find_damage(5, range(1, (1 << 53) + 1))
    assert damaged == "metrics.jsonl: damaged and removed: lines 4, 5, 6, 7, 8 and 99,995 more"
    assert missing == f"metrics.jsonl has no record of steps 3, 5, 6, 7, 8 and {(1 << 53) - 8:,} more"
