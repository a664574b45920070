"""The answers on the disk: torn lines, other tables, other processes, full disks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.labelling.journal import LockedAnswerJournal
from lmtool.errors import UsageError
from tests.support.errors import refuses

HEAD = {"table": "a"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def written(path: Path, *rows: int, head: dict[str, str] = HEAD) -> list[dict[str, Any]]:
    """Opens the answers, adds some, and closes them. Returns those that were there."""
    journal = LockedAnswerJournal(path, head)
    for row in rows:
        journal.append_and_sync({"row": row})
    journal.close()
    return list(journal.entries)


def test_a_torn_line_is_dropped_and_the_next_one_is_whole(path: Path) -> None:
    written(path, 0, 1, 2)
    whole = path.read_bytes()
    for end in range(len(whole) - len(b'{"row": 2}\n'), len(whole)):
        path.write_bytes(whole[:end])
        assert written(path)[:2] == [{"row": 0}, {"row": 1}]
        written(path, 3)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert lines == [HEAD, {"row": 0}, {"row": 1}, {"row": 3}]


def test_a_file_without_answers_is_replaced(path: Path) -> None:
    written(path)
    written(path, head={"table": "b"})
    assert path.read_text(encoding="utf-8") == '{"table": "b"}\n'


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{"table": "b"}\n{"row": 0}\n', "data_changed"),
        ('{"mine": 1}\n', "data_changed"),
        ("[1]\n", "data_changed"),
        ('{"table": "a"}\nnot JSON\n', "damaged"),
    ],
)
def test_answers_to_another_table_and_other_files_are_refused_and_stay(path: Path, content: str, code: Any) -> None:
    path.write_text(content, encoding="utf-8")
    with refuses(code):
        LockedAnswerJournal(path, HEAD)
    assert path.read_text(encoding="utf-8") == content


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
        with refuses("no_space"):
            journal.append_and_sync({"row": 1})
    journal.append_and_sync({"row": 2})
    journal.close()
    assert written(path) == [{"row": 0}, {"row": 2}]
