"""Logs of records, one a line: torn ends, rewinding, and damage that is listed."""

import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError, ResourceError
from lmtool.runs.log import MAX_LOG_LINE_BYTES, RunLog
from lmtool.storage.records import JsonModel
from tests.support.disks import failing_call, file_size_limit
from tests.support.errors import refuses


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
    before = log.path.read_bytes()
    log.append({"step": 4, "text": "é\u2028\n\ud800", "loss": math.nan, "grad_norm": math.inf})
    added = log.path.read_bytes().removeprefix(before)  # at once
    assert added.count(b"\n") == 1
    json.loads(added, parse_constant=pytest.fail)
    *_, third, last = log.read_records()
    assert third == {"step": 3, "loss": 0.1 * 3}
    assert last == {"step": 4, "text": "é\u2028\n\ud800", "loss": None, "grad_norm": None}


def test_a_missing_log_is_empty_and_other_things_are_no_log(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl", Numbered)
    assert steps(log) == []
    log.rewind(3)
    log.sync()
    assert not log.path.exists()
    assert log.describe_damage(0, range(1, 1)) == []
    log.path.mkdir()
    with pytest.raises(CheckpointError):
        steps(log)
    with pytest.raises(ResourceError):
        log.append({"step": 1})


def test_rewinding_keeps_the_lines_of_earlier_steps(log: RunLog) -> None:
    before = log.path.read_bytes().splitlines(keepends=True)
    inode = log.path.stat().st_ino
    log.rewind(3)
    assert log.path.stat().st_ino == inode
    log.rewind(2)
    assert log.path.read_bytes() == b"".join(before[:3])
    log.append({"step": 3})
    assert steps(log) == [1, 2, 2, 3]
    log.rewind(0)
    assert log.path.read_bytes() == b""
    assert os.listdir(log.path.parent) == ["metrics.jsonl"]


@pytest.mark.parametrize(
    "tail", [b'{"step": 3, "lo', b"\0\0\0", b'{"step": 3}', b"\xff\n", b"[]\n", b'{"loss": 1}\n', b"\n"]
)
def test_a_torn_end_is_removed_by_rewinding(log: RunLog, tail: bytes) -> None:
    before = log.path.read_bytes()
    log.path.write_bytes(before + tail)
    log.rewind(3)
    assert log.path.read_bytes() == before


def test_a_damaged_line_is_refused_where_it_is_but_not_the_one_being_written(log: RunLog) -> None:
    with log.path.open("ab") as file:
        file.write(b'{"step": 4, "lo')
    assert steps(log) == [1, 2, 2, 3]
    assert log.describe_damage(3, range(1, 4)) == []
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([lines[0], b"{oops}\n", *lines[1:3], b"[]\n", lines[3]]))
    with pytest.raises(CheckpointError) as caught:
        steps(log)
    assert caught.value.where == f"{log.path}:2"
    assert log.describe_damage(3, range(1, 4)) == ["metrics.jsonl: damaged and removed: lines 2, 5"]


def test_a_full_disk_leaves_the_log_as_it_was(log: RunLog) -> None:
    before = log.path.read_bytes()
    with file_size_limit(len(before) + 10), pytest.raises(ResourceError):
        log.append({"step": 4, "text": "x" * 100})
    with failing_call(), refuses("no_space"):
        log.rewind(1)
    with failing_call(), pytest.raises(OSError):  # noqa: PT011
        log.sync()
    assert log.path.read_bytes() == before
    assert os.listdir(log.path.parent) == ["metrics.jsonl"]
    log.append({"step": 4})
    assert steps(log) == [1, 2, 2, 3, 4]


def test_missing_steps_are_listed_and_very_many_counted_in_little_memory(log: RunLog) -> None:
    """As a forged validated.json names them: a range is not gone through."""
    assert log.describe_damage(9, range(1, 10)) == ["metrics.jsonl has no record of steps 4, 5, 6, 7, 8 and 1 more"]
    with log.path.open("ab") as file:
        file.write(b"\n" * 20_000)
    damaged, missing = log.describe_damage(5, range(1, (1 << 53) + 1))
    assert damaged == "metrics.jsonl: damaged and removed: lines 5, 6, 7, 8, 9 and 19,995 more"
    assert missing == f"metrics.jsonl has no record of steps 4, 5, 6, 7, 8 and {(1 << 53) - 8:,} more"


def test_a_line_of_absurd_length_is_refused_in_little_memory(log: RunLog) -> None:
    with log.path.open("ab") as file:
        file.truncate(1 << 36)
    tracemalloc.start()
    for read in (lambda: list(log.read_records()), lambda: log.describe_damage(1), lambda: log.rewind(0)):
        with pytest.raises(CheckpointError) as raised:
            read()
        assert raised.value.where == f"{log.path}:5"
    assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LOG_LINE_BYTES
    tracemalloc.stop()
