"""Cells with conversations: both spellings, every fault with its row and column, and what remains of each row."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtool.data.table import RowFault, Table, open_table
from lmtool.tables.annotations import as_messages
from lmtool.tables.columns import choose_columns
from lmtool.tables.reading import LabelledText, read_labelled, stream_texts
from lmtool.tokenization.chat import ChatFormat, Message
from tests.tokenization.chat_templates import published

TURNS = [("user", "Who?"), ("assistant", "Tom."), ("user", "Sure?"), ("assistant", "Yes.")]
MESSAGES = [{"role": role, "content": text} for role, text in TURNS]
SHARED = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in TURNS]
EXPECTED = tuple(Message(role=role, content=text) for role, text in TURNS)


def table(folder: Path, *cells: Any, ending: str = ".jsonl", name: str = "messages") -> Table:
    path = folder / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({name: list(cells)}), path)
    else:
        path.write_text("".join(json.dumps({name: cell, "id": i}) + "\n" for i, cell in enumerate(cells)))
    return open_table(str(path))


def read(own: Table, **options: Any) -> tuple[LabelledText, ...]:
    return read_labelled(own, choose_columns(own), **options).items


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("name", "cell"), [("messages", MESSAGES), ("conversations", SHARED)])
def test_lists_of_objects_are_conversations(tmp_path: Path, ending: str, name: str, cell: Any) -> None:
    (found,) = read(table(tmp_path, cell, ending=ending, name=name))
    assert found.messages == EXPECTED
    assert (found.target, found.label, found.row) == ("Yes.", None, 1)
    assert found.texts == ("user: Who?\nassistant: Tom.\nuser: Sure?",)


def test_a_conversation_is_learnt_up_to_the_last_answer_and_asked_up_to_the_last_question(tmp_path: Path) -> None:
    own = table(tmp_path, MESSAGES[:3], MESSAGES[:4], MESSAGES[:1] + MESSAGES[1:2] * 2)
    assert [item.messages for item in read(own)] == [EXPECTED[:2], EXPECTED, (*EXPECTED[:2], EXPECTED[1])]
    asked = [item for _, item in stream_texts(own, choose_columns(own))]
    assert [item.messages for item in asked] == [EXPECTED[:3], EXPECTED[:3], EXPECTED[:1]]
    assert {item.target for item in asked} == {None}


def test_other_keys_are_ignored_and_surrogates_are_replaced() -> None:
    cell = [{"role": "user", "content": "a\ud800", "name": 3, "from": None}, {"role": "tool", "content": ""}]
    assert as_messages(cell) == (Message(role="user", content="a\ufffd"), Message(role="tool", content=""))


ANSWER = {"role": "assistant", "content": "b"}
FAULTS = [
    ([], "empty messages", "the list of messages is empty"),
    ("hello", "wrong type", "the cell is str, not a list"),
    ({"role": "user"}, "wrong type", "the cell is dict, not a list"),
    ([3], "wrong type", "message 1 is int, not an object"),
    ([{"content": "a"}, ANSWER], "wrong role", "message 1 has no role"),
    ([{"value": "a"}, ANSWER], "wrong role", "message 1 has no from"),
    ([{"role": 3, "content": "a"}, ANSWER], "wrong role", "message 1 has int as its role"),
    ([ANSWER, {"role": "wizard\x1b[31m", "content": "a"}], "wrong role", r"message 2 is by 'wizard\x1b[31m'"),
    ([{"role": "user"}, ANSWER], "wrong type", "message 1 has no content"),
    ([{"role": "user", "content": 3}, ANSWER], "wrong type", "message 1 has int, not text, as its content"),
    ([{"role": "user", "content": "a\0"}, ANSWER], "NUL byte", "message 1: a NUL byte"),
    ([{"role": "user", "content": "a" * (1 << 20 | 1)}, ANSWER], "field too long", "message 1: the field has more"),
    ([{"role": "user", "content": "a"}, ANSWER | {"content": " "}], "empty answer", "message 2, of the assistant"),
    ([{"role": "user", "content": "a"}], "no answer", "no message of the assistant"),
]


@pytest.mark.parametrize(("cell", "kind", "what"), FAULTS)
def test_faults_name_row_and_column(tmp_path: Path, cell: Any, kind: str, what: str) -> None:
    own = table(tmp_path, MESSAGES, cell)
    with pytest.raises(RowFault) as caught:
        read(own)
    assert caught.value.kind == kind
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path}/a.jsonl:2, row 2, column 'messages'"
    assert len(caught.value.lines()) == 3
    assert caught.value.exit_code == 3
    assert [item.row for item in read(own, skip_bad_rows=True)] == [1]


def test_what_a_template_refuses_is_a_fault_of_its_row(tmp_path: Path) -> None:
    chat = ChatFormat.of(published(tmp_path / "model", "gemma"))
    own = table(tmp_path, MESSAGES, [MESSAGES[0], *MESSAGES[2:]])
    with pytest.raises(RowFault, match="must alternate") as caught:
        read(own, chat=chat)
    assert caught.value.kind == "refused messages"
    assert "row 2" in caught.value.where
    assert [item.row for item in read(own, chat=chat, skip_bad_rows=True)] == [1]


def test_nothing_to_answer_is_a_fault(tmp_path: Path) -> None:
    own = table(tmp_path, [ANSWER])
    with pytest.raises(RowFault, match="no message that is to be answered"):
        list(stream_texts(own, choose_columns(own)))


def test_an_input_follows_its_instruction(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"instruction": "Sum", "input": "1 2", "output": "3"}, {"instruction": "Hi", "input": "", "output": "Ho"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"instruction": "Hi", "output": "Hey"}]))
    found = read(open_table(str(path)))
    assert [(item.texts, item.target) for item in found] == [
        (("Sum\n\n1 2",), "3"),
        (("Hi",), "Ho"),
        (("Hi",), "Hey"),
    ]
