"""Calls of functions from a model that knows some: over HTTP, in a conversation, and by `lmtool chat`."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from lmtool.data.table import open_table
from lmtool.generation.chat import Conversation
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.schema import choose_columns
from lmtool.tokenization.chat import Message
from tests.generation import callers
from tests.generation.callers import CONVERSATIONS, TOOLS
from tests.serving.harness import Served, served
from tests.support.cli import CommandLine


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A generator that every run is opened as."""
    generator = callers.recaller(tmp_path_factory.mktemp("published") / "caller")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextGenerator, "open", classmethod(lambda *_, **__: generator))
        yield generator


@pytest.fixture(scope="module")
def server(caller: TextGenerator) -> Iterator[Served]:
    with served("caller") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


OPEN = TextGenerator.open


def asked(messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": None, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 120, **more}


def called(message: Any) -> list[tuple[str, Any]]:
    return [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls or ()]


def learnt(conversation: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    calls = (call["function"] for call in conversation[1].get("tool_calls", ()))
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one[0]["content"])
def test_a_model_calls_what_it_has_learnt_and_goes_on_with_the_results(
    client: Any, conversation: list[dict[str, Any]]
) -> None:
    """Whole, and in a stream that the official client puts together."""
    first = client.chat.completions.create(**asked(conversation[:1])).choices[0]
    expected = learnt(conversation)
    with client.chat.completions.stream(**asked(conversation[:1])) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        streamed = stream.get_final_completion().choices[0]
    assert called(streamed.message) == expected
    assert "".join(pieces) == (conversation[1]["content"] or "")
    assert streamed.finish_reason == first.finish_reason
    assert called(first.message) == expected
    assert first.message.content == (conversation[1]["content"] or None)
    assert first.finish_reason == ("tool_calls" if expected else "stop")
    if not expected:
        return
    calls = first.message.tool_calls
    assert len({one.id for one in calls}) == len(calls)
    results = [
        {"role": "tool", "tool_call_id": one.id, "content": result["content"]}
        for one, result in zip(calls, conversation[2:-1], strict=True)
    ]
    answer = first.message.model_dump(exclude_none=True, exclude={"refusal"})
    last = client.chat.completions.create(**asked([conversation[0], answer, *results])).choices[0]
    assert (last.message.content, last.finish_reason) == (conversation[-1]["content"], "stop")


def test_only_the_first_call_without_parallel_calls_and_none_where_none_is_chosen(client: Any) -> None:
    both = CONVERSATIONS[2][:1]
    one = client.chat.completions.create(**asked(both), parallel_tool_calls=False).choices[0]
    assert called(one.message) == learnt(CONVERSATIONS[2])[:1]
    none = client.chat.completions.create(**asked(both), tool_choice="none").choices[0]
    empty = client.chat.completions.create(**asked(both) | {"tools": [], "tool_choice": "auto"}).choices[0]
    assert empty.message.content == none.message.content
    assert none.message.tool_calls is None
    without = {key: value for key, value in asked(both).items() if key != "tools"}
    assert client.chat.completions.create(**without).choices[0].message.content == none.message.content


SEEK = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SEEKING = [TOOLS[0], {"type": "function", "function": {"name": "seek", "parameters": SEEK, "strict": True}}]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "seek"}}], ids=["any", "seek"]
)
def test_a_call_that_is_required_fits_its_schema(client: Any, choice: Any) -> None:
    """Of a model that would say hello; whole and streamed."""
    for seed in range(2):
        wanted = asked(CONVERSATIONS[3][:1]) | {"tools": SEEKING, "tool_choice": choice, "temperature": 9, "seed": seed}
        wanted["extra_body"] = {"guided_complete": True}
        answer = client.chat.completions.create(**wanted).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        assert called(answer.message)
        for name, arguments in called(answer.message):
            assert name in ({"now", "seek"} if choice == "required" else {"seek"})
            if name == "seek":
                jsonschema.validate(arguments, SEEK)
        assert choice == "required" or len(called(answer.message)) == 1
        events = [event.choices[0] for event in client.chat.completions.create(**wanted, stream=True)]
        found = [call.function for event in events for call in event.delta.tool_calls or ()]
        assert [(one.name, json.loads(one.arguments or "")) for one in found if one] == called(answer.message)


UNIQUE = {"type": "function", "function": {"name": "now", "parameters": {"properties": {"a": {"uniqueItems": True}}}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [callers.call("a", "now")]}
RESULT = {"role": "tool", "content": "x", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"tools": [TOOLS[0]] * 129}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "no such tool"),
        ({"tools": [], "tool_choice": "required"}, "no such tool"),
        ({"tools": [{"type": "function", "function": {"name": "now", "strict": True}}]}, "strict"),
        ({"tools": [UNIQUE], "tool_choice": "required"}, "now: the JSON schema cannot be used"),
        ({"tool_choice": "required", "stop": "a"}, "stop"),
        ({"response_format": {"type": "json_object"}}, "contradict a form"),
        ({"messages": [CALLED]}, "end with a message"),
        ({"messages": [{**CALLED, "role": "user"}, RESULT]}, "message 1: only the assistant"),
        ({"messages": [{**CALLED, "tool_calls": [{"function": {"name": "a b"}}]}, RESULT]}, "function.name"),
    ],
)
def test_what_is_wrong_is_told(server: Served, body: Any, what: str) -> None:
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json=asked([{"role": "user", "content": "a"}]) | body)
    assert answer.status_code == 400, answer.text
    assert what in answer.json()["error"]["message"]


def test_a_template_without_tools_is_told(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextGenerator, "open", OPEN)
    with served(talker) as server, server.http() as http:
        body = asked([{"role": "user", "content": "a"}])
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "this model's chat template takes no tools" in answer.json()["error"]["message"]
        del body["tools"]
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        answer = http.post("/v1/chat/completions", json=body | {"messages": [CALLED, RESULT]})
        assert "takes no tools" in answer.json()["error"]["message"]


def test_a_conversation_keeps_calls_and_results(server: Served, tmp_path: Path) -> None:
    conversation = Conversation(server.generator, SamplingParams("greedy", max_new_tokens=120))
    conversation.tools = TOOLS
    user = CONVERSATIONS[2][0]["content"]
    reply = conversation.stream_reply([Message(role="user", content=user)])
    assert "".join(reply) == ""
    assert [call.name for call in reply.calls] == ["now", "look"]
    assert conversation.pending_calls == reply.calls
    conversation.add(Message(role="tool", content="x", tool_call_id=reply.calls[0].id))
    assert conversation.pending_calls == reply.calls[1:]
    last = conversation.stream_reply([Message(role="tool", content="x", tool_call_id=reply.calls[1].id)])
    assert "".join(last) == "Done."
    assert conversation.pending_calls == ()
    conversation.save_to_new_file(tmp_path / "a.jsonl")
    table = open_table(str(tmp_path / "a.jsonl"))
    columns = choose_columns(table)
    assert columns.tools == "tools"
    (row,) = read_labelled_table(table, columns).items
    assert row.tools == tuple(TOOLS)
    assert list(row.messages) == [turn.message for turn in conversation.turns]


@pytest.fixture
def chat(
    caller: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    monkeypatch.chdir(tmp_path)
    lmtool = CommandLine(capsys, monkeypatch)

    def run(typed: str, *options: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        outcome = lmtool("chat", "caller", "--greedy", "--tools", "tools.json", *options)
        assert outcome.code == 0
        return outcome.out

    return run


def test_chat_shows_calls_and_takes_their_results(chat: Any, tmp_path: Path) -> None:
    first, last = map(json.loads, chat("rome rome rome\nsun\n", "--json").splitlines())
    assert [call["function"]["name"] for call in first["tool_calls"]] == ["look"]
    assert (last["content"], "tool_calls" in last) == ("Sun in Rome.", False)
    typed = "rome rome rome\nsun\n/save first.jsonl\n/reset\nBOTH OF THEM\nx\nx\n/save said.jsonl\n"
    out = chat(typed)
    assert out.splitlines() == ["I look.", 'look(city="Rome")', "Sun in Rome.", "now()", 'look(city="Oslo")', "Done."]
    first, both = (json.loads((tmp_path / f"{name}.jsonl").read_text()) for name in ("first", "said"))
    assert first["tools"] == both["tools"] == TOOLS
    assert first["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    ids = [call["id"] for call in both["messages"][1]["tool_calls"]]
    assert [one.get("tool_call_id") for one in both["messages"]] == [None, None, *ids, None]


def test_a_person_is_asked_for_results(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, typed = [], iter(["BOTH OF THEM", "x", "x"])

    class Session:
        def __init__(self, **_: Any) -> None:
            pass

        def prompt(self, text: str) -> str:
            asked_for.append(text)
            return next(typed)

    monkeypatch.setattr("prompt_toolkit.PromptSession", Session)
    conversation = Conversation(server.generator, SamplingParams("greedy", max_new_tokens=120))
    conversation.tools = TOOLS
    command = import_module("lmtool.cli.commands.chat")
    with pytest.raises(RuntimeError, match="StopIteration"):
        command._run_conversation(
            command._read_typed_lines(sys.stderr, conversation), conversation, nullcontext, False, True
        )
    assert asked_for == ["> ", "result of now> ", "result of look> ", "> "]
    assert conversation.turns[-1].content == "Done."


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "llama"])
def test_small_models_learn_to_call(tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextGenerator, "open", OPEN)
    with served(str(callers.learn(tmp_path, name))) as server, server.client() as client:
        answer = client.chat.completions.create(**asked(CONVERSATIONS[0][:1])).choices[0]
        assert called(answer.message) == [("now", {})]
        assert answer.finish_reason == "tool_calls"
