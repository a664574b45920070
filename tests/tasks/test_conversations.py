"""Cells with conversations: both spellings, every fault with its row and column, and what remains of each row."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtool.data.table import RowError, Table, open_table
from lmtool.recipe.spec.text import Data
from lmtool.tasks.cells import parse_messages
from lmtool.tasks.reading import LabelledRow, read_labelled_table, stream_unlabelled_rows
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.text_to_text import TextToTextTask
from lmtool.tokenization.chat import ChatFormat, Message
from lmtool.tokenization.prompt_format import PromptFormat
from tests.tasks.models import recipe_of
from tests.tokenization.chat_templates import published
from tests.tokenization.tool_templates import calling

TURNS = [("user", "Who?"), ("assistant", "Tom."), ("user", "Sure?"), ("assistant", "Yes.")]
MESSAGES = [{"role": role, "content": text} for role, text in TURNS]
SHARED = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in TURNS]
EXPECTED = tuple(Message(role=role, content=text) for role, text in TURNS)
ANSWER = {"role": "assistant", "content": "b"}
CALLS = [{"type": "function", "function": {"name": "now", "arguments": "{}"}}]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "content": "noon"},
    {"role": "assistant", "content": "Noon.", "tool_calls": None},
]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def rows(folder: Path, *objects: dict[str, Any], ending: str = ".jsonl") -> Table:
    path = folder / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(objects)), path)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return open_table(str(path))


def table(folder: Path, *cells: Any) -> Table:
    return rows(folder, *({"messages": cell, "id": i} for i, cell in enumerate(cells)))


def calls(folder: Path, *pairs: tuple[Any, Any], ending: str = ".jsonl") -> Table:
    """Conversations with their tools."""
    return rows(folder, *({"tools": tools, "messages": messages} for messages, tools in pairs), ending=ending)


def read(own: Table, **options: Any) -> tuple[LabelledRow, ...]:
    return read_labelled_table(own, choose_columns(own), **options).items


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("name", "cell"), [("messages", MESSAGES), ("conversations", SHARED)])
def test_lists_of_objects_are_conversations(tmp_path: Path, ending: str, name: str, cell: Any) -> None:
    (found,) = read(rows(tmp_path, {name: cell}, ending=ending))
    assert found.messages == EXPECTED
    assert (found.target, found.label, found.row) == ("Yes.", None, 1)
    assert found.texts == ("user: Who?\nassistant: Tom.\nuser: Sure?",)


def test_a_conversation_is_learnt_up_to_the_last_answer_and_asked_up_to_the_last_question(tmp_path: Path) -> None:
    own = table(tmp_path, MESSAGES[:3], MESSAGES[:4], MESSAGES[:1] + MESSAGES[1:2] * 2)
    assert [item.messages for item in read(own)] == [EXPECTED[:2], EXPECTED, (*EXPECTED[:2], EXPECTED[1])]
    asked = [item for _, item in stream_unlabelled_rows(own, choose_columns(own))]
    assert [item.messages for item in asked] == [EXPECTED[:3], EXPECTED[:3], EXPECTED[:1]]
    assert {item.target for item in asked} == {None}
    nothing = table(tmp_path, [ANSWER])
    with pytest.raises(RowError, match="no message to answer"):
        list(stream_unlabelled_rows(nothing, choose_columns(nothing)))


def test_other_keys_are_ignored_and_surrogates_are_replaced() -> None:
    cell = [{"role": "user", "content": "a\ud800", "name": 3, "from": None}, {"role": "tool", "content": ""}]
    assert parse_messages(cell) == (Message(role="user", content="a\ufffd"), Message(role="tool", content=""))


def said(**keys: Any) -> list[dict[str, Any]]:
    return [keys, ANSWER]


FAULTS: list[tuple[Any, str, str]] = [
    ([], "empty messages", "empty"),
    ("hello", "wrong type", "str, not a list"),
    ([3], "wrong type", "message 1 is int"),
    (said(content="a"), "wrong role", "message 1 has no role"),
    (said(value="a"), "wrong role", "message 1 has no from"),
    (said(role=3, content="a"), "wrong role", "message 1 has int as its role"),
    ([ANSWER, {"role": "wizard\x1b[31m", "content": "a"}], "wrong role", r"message 2 has the unknown role 'wizard\x1b"),
    (said(role="user"), "wrong type", "message 1 has no content"),
    (said(role="user", content=3), "wrong type", "message 1 has int, not text, as its content"),
    (said(role="user", content="a\0"), "NUL byte", "message 1"),
    (said(role="user", content="a" * (1 << 20 | 1)), "field too long", "message 1"),
    ([{"role": "user", "content": "a"}, ANSWER | {"content": " "}], "empty answer", "message 2, of the assistant"),
    ([{"role": "user", "content": "a"}], "no answer", "no message of the assistant"),
]  # fmt: skip
FAULTS_OF_CALLS: list[tuple[Any, Any, str, str]] = [
    (CALLED, [{"name": "now"}], "tools", "tools[0].function: Field required"),
    (CALLED, "no", "tools", "tools: "),
    ([CALLED[0], CALLED[1] | {"tool_calls": [{"name": "now"}]}], [TOOL], "messages", "message 2: tool_calls[0]."),
    ([CALLED[0] | {"tool_calls": CALLS}, *CALLED[1:]], [TOOL], "messages", "message 1: only the assistant"),
    ([CALLED[0], {"role": "assistant", "content": None, "tool_calls": []}], [TOOL], "messages", "no content"),
]


@pytest.mark.parametrize(
    ("messages", "tools", "column", "kind", "what"),
    [
        *((cell, None, "messages", kind, what) for cell, kind, what in FAULTS),
        *((messages, tools, column, None, what) for messages, tools, column, what in FAULTS_OF_CALLS),
    ],
)
def test_faults_name_row_and_column(
    tmp_path: Path, messages: Any, tools: Any, column: str, kind: str | None, what: str
) -> None:
    own = table(tmp_path, MESSAGES, messages) if kind else calls(tmp_path, (CALLED, [TOOL]), (messages, tools))
    with pytest.raises(RowError) as caught:
        read(own)
    assert kind is None or caught.value.kind == kind
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path}/a.jsonl:2, row 2, column '{column}'"
    assert [item.row for item in read(own, skip_bad_rows=True)] == [1]


@pytest.mark.parametrize(
    ("messages", "tools", "what"),
    [
        ([MESSAGES[0], *MESSAGES[2:]], None, "must alternate"),
        (CALLED, None, "takes no tools"),
        (MESSAGES, [TOOL], "takes no tools"),
    ],
)
def test_what_a_template_refuses_is_a_fault_of_its_row(tmp_path: Path, messages: Any, tools: Any, what: str) -> None:
    chat = ChatFormat.from_tokenizer_or_plain(published(tmp_path / "model", "gemma"))
    own = calls(tmp_path, (MESSAGES, None), (messages, tools))
    with pytest.raises(RowError, match=what) as caught:
        read(own, chat=chat)
    assert (caught.value.kind, "a.jsonl:2, row 2" in caught.value.where) == ("refused messages", True)
    assert [item.row for item in read(own, chat=chat, skip_bad_rows=True)] == [1]


def test_an_input_follows_its_instruction(tmp_path: Path) -> None:
    filled = {"instruction": "Sum", "input": "1 2", "output": "3"}
    empty = {"instruction": "Hi", "input": "", "output": "Ho"}
    found = read(rows(tmp_path, filled, empty, {"instruction": "Hi", "output": "Hey"}))
    assert [(item.texts[0], item.target) for item in found] == [("Sum\n\n1 2", "3"), ("Hi", "Ho"), ("Hi", "Hey")]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_calls_and_tools_beside_them_are_read(tmp_path: Path, ending: str) -> None:
    own = calls(tmp_path, (CALLED, [TOOL]), (CALLED[:2], None), (MESSAGES, []), ending=ending)
    columns = choose_columns(own)
    assert (columns.messages, columns.tools) == ("messages", "tools")
    assert "tools 'tools'" in columns.describe()
    assert choose_columns(own, Data(messages_column="messages")).tools == "tools"
    first, second, third = read(own)
    assert [tool["function"]["name"] for tool in first.tools] == ["now"]
    assert second.tools == third.tools == ()
    (call,) = first.messages[1]["tool_calls"]
    assert (call.name, call.arguments, first.messages[1]["content"]) == ("now", {}, "")
    assert "tool_calls" not in first.messages[3]
    assert (first.target, second.target) == ("Noon.", "")
    (as_json,) = read(calls(tmp_path, (CALLED, json.dumps([TOOL]))))
    assert as_json.tools == (TOOL,)


def test_the_assistant_learns_its_calls(tmp_path: Path) -> None:
    chat = calling(tmp_path, "hermes")
    tokenizer = chat._tokenizer
    recipe = recipe_of({"context": 512}, {"kind": "seq2seq"})
    prompt_format = replace(PromptFormat.from_recipe(recipe, tokenizer), chat=chat)
    task: Any = TextToTextTask(recipe, prompt_format, "", Columns((), messages="messages", tools="tools"), ())
    last, call = task.encode(read(calls(tmp_path, (CALLED, [TOOL]), (CALLED[:2], [TOOL])), chat=chat))
    written = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert task.prompt_format.decode_generated(last.tokens[last.learned].tolist()) == call.answer == written
    assert (last.answer, tokenizer.decode(last.target.tolist())) == ("Noon.", "Noon.")
    assert '"name": "now"' in tokenizer.decode(call.tokens.tolist())  # the definition, in the system message
    assert tokenizer.token_name(int(call.target[-1])) == "<|im_end|>"
