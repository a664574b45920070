"""The answers on the disk: torn lines, other tables, other processes, full disks."""

import json
import os
from pathlib import Path

import pytest

from lmtool.apps.labelling.journal import LockedAnswerJournal
from lmtool.errors import DataError, ResourceError, UsageError
from tests.support.errors import refuses

HEAD = {"table": "a"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_a_torn_line_is_dropped_and_the_next_one_is_whole(path: Path) -> None:
    journal = LockedAnswerJournal(path, HEAD)
    for row in range(3):
        journal.append_and_sync({"row": row})
    journal.close()
    whole = path.read_bytes()
    for end in range(len(whole) - len(b'{"row": 2}\n'), len(whole)):
        path.write_bytes(whole[:end])
        journal = LockedAnswerJournal(path, HEAD)
        assert journal.entries == [{"row": 0}, {"row": 1}]
        journal.append_and_sync({"row": 3})
        journal.close()
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert lines == [HEAD, {"row": 0}, {"row": 1}, {"row": 3}]


def test_answers_to_another_table_are_refused(path: Path) -> None:
    journal = LockedAnswerJournal(path, HEAD)
    journal.append_and_sync({"row": 0})
    journal.close()
    before = path.read_bytes()
    with refuses("data_changed"):
        LockedAnswerJournal(path, {"table": "b"})
    assert path.read_bytes() == before


def test_a_file_without_answers_is_replaced(path: Path) -> None:
    LockedAnswerJournal(path, HEAD).close()
    LockedAnswerJournal(path, {"table": "b"}).close()
    assert path.read_text(encoding="utf-8") == '{"table": "b"}\n'
    for mine in ('{"mine": 1}\n', "[1]\n"):
        path.write_text(mine, encoding="utf-8")
        with pytest.raises(UsageError, match="another table"):
            LockedAnswerJournal(path, HEAD)
        assert path.read_text(encoding="utf-8") == mine


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_text('{"table": "a"}\nnot JSON\n', encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        LockedAnswerJournal(path, HEAD)
    assert "not JSON" in path.read_text(encoding="utf-8")


def test_one_process_writes(path: Path) -> None:
    journal = LockedAnswerJournal(path, HEAD)
    with pytest.raises(UsageError, match="another process"):
        LockedAnswerJournal(path, HEAD)
    journal.close()
    LockedAnswerJournal(path, HEAD).close()


def test_what_cannot_be_written_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LockedAnswerJournal(path, HEAD)
    journal.append_and_sync({"row": 0})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ResourceError, match="cannot write"):
            journal.append_and_sync({"row": 1})
    journal.append_and_sync({"row": 2})
    journal.close()
    journal = LockedAnswerJournal(path, HEAD)
    journal.close()
    assert journal.entries == [{"row": 0}, {"row": 2}]
