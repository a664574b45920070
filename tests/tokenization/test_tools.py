"""Calls of functions: the convention of a template, calls read back from any pieces, and grammars of them."""

import json
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.errors import UsageError
from lmtool.recipe.spec.text import BpeTokenizer, WordTokenizer
from lmtool.tokenization.chat import ChatFormat, Message, MessagesRefusedError
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.tokenization.tools import (
    UNSUPPORTED,
    ToolCall,
    ToolCallParser,
    ToolsUnsupportedError,
    parse_tool_calls,
    validate_tools,
)
from tests.support.examples import examples
from tests.tokenization.chat_templates import PUBLISHED, TEXTS, published
from tests.tokenization.tool_templates import CALLING, QWEN, TOOLS, calling

NAMES = tuple(tool["function"]["name"] for tool in TOOLS)
USER = Message(role="user", content="Who?")
OWN = Tokenizer.train(BpeTokenizer(vocab_size=400), TEXTS)
CONVENTIONS = [*CALLING, "plain", "plain-published"]
SEVERAL = [name for name in CONVENTIONS if name not in ("llama", "json")]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("formats")

    @cache
    def of(name: str) -> ChatFormat:
        if name == "plain":
            return ChatFormat.from_tokenizer_or_plain(OWN)
        if name == "plain-published":
            return ChatFormat.from_tokenizer_or_plain(published(folder / name, "smollm2", chat_template=None))
        return calling(folder, name)

    return of


def asked(content: str, *calls: ToolCall) -> list[Message]:
    return [USER, Message(role="assistant", content=content, tool_calls=calls)]


def written(chat: ChatFormat, messages: list[Message]) -> str:
    """What a model that has learnt these messages writes last, as it is shown."""
    ids, own = chat.encode_conversation(messages)
    last = max(n for n, is_own in enumerate(own) if not is_own and any(own[n:])) + 1
    stream = chat._tokenizer.make_stream_decoder(chat.visible_special_tokens)
    turn = [token for token, is_own in zip(ids[last:], own[last:], strict=True) if is_own]
    assert turn[-1] in chat.end_ids
    return ("".join(map(stream.push, turn[:-1])) + stream.flush()).lstrip()


def parsed(parser: ToolCallParser | None, *pieces: str) -> tuple[str, list[tuple[str, dict[str, Any]]], list[str]]:
    """The text, the calls and their ids."""
    text, calls = "", list[ToolCall]()
    assert parser is not None
    for i, piece in enumerate((*pieces, "")):
        shown, more = parser.push(piece, is_last=i == len(pieces))
        text, calls = text + shown, calls + more
    return text, [(call.name, call.arguments) for call in calls], [call.id for call in calls]


def test_special_tokens_around_calls_are_text_with_tools_and_only_then(formats: Any) -> None:
    chat: ChatFormat = formats("mistral")
    (token,) = chat.with_tools(TOOLS).visible_special_tokens
    assert chat._tokenizer.token_name(token) == "[TOOL_CALLS]"
    assert token in chat._tokenizer.special_ids
    assert chat.visible_special_tokens == {}
    assert set(formats("hermes").with_tools([]).visible_special_tokens.values()) == {"<tool_call>", "</tool_call>"}
    assert formats("qwen").with_tools(TOOLS).visible_special_tokens == {}


@pytest.mark.parametrize("mark", UNSUPPORTED)
def test_conventions_that_are_not_read_are_refused_by_name(tmp_path: Path, mark: str) -> None:
    template = QWEN.replace("You may call", f"{mark} You may call")
    with pytest.raises(ToolsUnsupportedError, match=UNSUPPORTED[mark].split()[0].strip(",")):
        ChatFormat.from_tokenizer_or_plain(published(tmp_path, "qwen", chat_template=template)).with_tools(TOOLS)


def test_templates_without_tools_and_those_whose_calls_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for name in {*PUBLISHED} - {"qwen"}:
        chat = ChatFormat.from_tokenizer_or_plain(published(tmp_path / name, name))
        with pytest.raises(ToolsUnsupportedError):
            chat.with_tools(TOOLS)
        with pytest.raises(ToolsUnsupportedError):
            chat.encode_prompt([*asked("", ToolCall("now", {}, "a")), USER])
    other = QWEN.replace("tool_call>", "call>").replace('"arguments": ', '"with": ')
    loose = Tokenizer.train(WordTokenizer(kind="word", vocab_size=60), TEXTS)
    silent, unknown = (published(tmp_path / str(i), "qwen", **c) for i, c in enumerate([{}, {"chat_template": other}]))
    for tokenizer in silent, unknown, loose:
        with pytest.raises(ToolsUnsupportedError):
            ChatFormat.from_tokenizer_or_plain(tokenizer).with_tools(TOOLS)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["<|im_end|>", "[TOOL_CALLS]", "</tool_call>", '{"', "}\\", "</s>", "[EOS]", "é🙂"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "<|im_end|>", "</s>", '"', "ü"]), JSON, max_size=3)


@pytest.mark.parametrize("name", CONVENTIONS)
@settings(max_examples=examples(8, 40), deadline=None)
@given(data=st.data())
def test_calls_of_a_template_are_read_back_from_any_pieces(formats: Any, name: str, data: st.DataObject) -> None:
    chat: ChatFormat = formats(name).with_tools(TOOLS)
    some = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3 if name in SEVERAL else 1)
    calls = data.draw(some)
    is_alone = name in ("llama", "mistral", "mistral-pieces", "json")
    content = "" if is_alone else data.draw(st.sampled_from(["", "I see."]))
    answer = written(chat, asked(content, *(ToolCall(name, value, f"id{i}") for i, (name, value) in enumerate(calls))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    text, found, ids = parsed(chat.make_tool_call_parser("a"), *pieces)
    assert (text.removeprefix(chat.call_syntax.lead.strip()).strip(), found) == (content, calls)
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 9 and one.isalnum() for one in ids)


GOOD = '{"name": "now", "arguments": {}}'
MARKS = ["<tool_call>", "</tool_call>", "[", "]", "{", "}", ",", "<", '"', "\\", "a", "<call>", "</call>"]
PIECES = st.sampled_from(
    [
        *(*MARKS, "<tool_call>\n", "\n</tool_call>", "[TOOL_CALLS] [", ", ", "\n", " ", '{"a": 1}'),
        *(GOOD, GOOD.replace("arguments", "parameters"), GOOD.replace("now", "later")),
        *(GOOD.replace("{}", value) for value in ('{"city": "}"}', "[1]", '{"days": NaN}', '{"days": 1e999}')),
    ]
)


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral", "json"])
@settings(max_examples=examples(30, 150), deadline=None)
@given(pieces=st.lists(PIECES, max_size=9), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_division_of_any_answer_gives_the_same_and_nothing_is_lost(
    formats: Any, name: str, pieces: list[str], cuts: list[int]
) -> None:
    chat: ChatFormat = formats(name).with_tools(TOOLS)
    answer = "".join(pieces)
    ends = sorted(min(cut, len(answer)) for cut in cuts)
    text, calls, ids = whole = parsed(chat.make_tool_call_parser(), answer)
    parts = [answer[a:b] for a, b in zip([0, *ends], [*ends, len(answer)], strict=True)]
    assert parsed(chat.make_tool_call_parser(), *answer) == parsed(chat.make_tool_call_parser(), *parts) == whole
    assert len(ids) == len(calls)
    if not calls:
        assert text == answer
    kept = "".join(text.split())
    rest = iter("".join(answer.split()))
    assert all(character in rest for character in kept)  # in the same order


@pytest.mark.parametrize(
    ("answer", "text", "names"),
    [
        (f"Let me see.\n<tool_call>\n{GOOD}\n</tool_call>", "Let me see.", ["now"]),
        (f"<tool_call>{GOOD}</tool_call> <tool_call>\n{GOOD}", "", ["now", "now"]),
        (f"<tool_call>{GOOD}</tool_call>\n\nDone.", "Done.", ["now"]),
        (f"<tool_call>{{bad}}</tool_call><tool_call>{GOOD}</tool_call>", "<tool_call>{bad}</tool_call>", ["now"]),
        ('<tool_call>\n{"name": "now", "arguments": "{}"}', "", ["now"]),
        ('<tool_call>\n{"name": "now"}\n</tool_call>', "", ["now"]),
        ('<tool_call>{"name": "later", "arguments": {}}', '<tool_call>{"name": "later", "arguments": {}}', []),
        ('<tool_call>{"name": "now", "arguments": {', '<tool_call>{"name": "now", "arguments": {', []),
        ('<tool_call>{"name": "now", "why": 1}', '<tool_call>{"name": "now", "why": 1}', []),
        ('<tool_call>{"name": "now", "arguments": ' + '{"a":' * 9999, None, []),
        ("a <tool_call", "a <tool_call", []),
        ('<tool_call>{"name": "now", "arguments": {"\\ud800": "\\udc00"}}', "", ["now"]),
        (f" {GOOD}\n", f" {GOOD}\n", []),
    ],
)
def test_texts_that_are_no_calls_stay_texts(formats: Any, answer: str, text: str | None, names: list[str]) -> None:
    found, calls, _ = parsed(formats("qwen").with_tools(TOOLS).make_tool_call_parser(), answer)
    assert (found, [name for name, _ in calls]) == (answer if text is None else text, names)


def test_text_is_shown_before_its_call_is_complete(formats: Any) -> None:
    parser = formats("qwen").with_tools(TOOLS).make_tool_call_parser()
    assert parser.push("I see. <to") == ("I see.", [])
    assert parser.push("wn> it") == (" <town> it", [])
    assert parser.push("<tool_call>\n" + GOOD[:-1]) == ("", [])
    text, (call,) = parser.push("}")
    assert (text, str(call)) == ("", "now()")
    assert parser.push("\n</tool_call> <tool_call>" + GOOD)[1][0].name == "now"
    assert parser.push("</tool_call>Done.", is_last=True) == ("Done.", [])


def test_ids_differ_between_answers_and_are_those_of_the_model_where_it_writes_some(formats: Any) -> None:
    chat = formats("mistral").with_tools(TOOLS)
    answer = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}, "id": "abcdefghi"}]'
    ids, others = (parsed(chat.make_tool_call_parser(key), answer)[2] for key in ("a", "b"))
    assert ids[0] != others[0]
    assert ids[1] == others[1] == "abcdefghi"


def test_tools_answer_calls_by_their_ids_or_in_their_order(formats: Any) -> None:
    chat = formats("mistral").with_tools(TOOLS)
    calls = (ToolCall("now", {}, "call_long_id_1"), ToolCall("get_weather", {"city": "Rome"}, "123456789"))
    results = [Message(role="tool", content="sun", tool_call_id="123456789"), Message(role="tool", content="noon")]
    seen = chat._to_escaped_template_messages([*asked("", *calls), *results])
    ids = [call["id"] for call in seen[1]["tool_calls"]]
    assert [(one["name"], one["tool_call_id"]) for one in seen[2:]] == [("get_weather", ids[1]), ("now", ids[0])]
    assert ids[1] == "123456789"
    assert "[TOOL_RESULTS]" in chat._render_escaped([*asked("", *calls), *results])
    with pytest.raises(MessagesRefusedError, match="answers the call nobody"):
        chat.encode_prompt([*asked("", *calls), Message(role="tool", content="sun", tool_call_id="nobody")])


def test_spellings_of_special_tokens_in_tools_and_calls_are_text(formats: Any) -> None:
    chat: ChatFormat = formats("hermes")
    function = {"name": "now", "description": "<|im_end|>", "parameters": {"</tool_call>": 1}}
    tool = {"type": "function", "function": function}
    call = ToolCall("now", {"<tool_call>": ["<|im_start|>"]}, "a")
    plain = [chat.with_tools([tool]), chat.with_tools([{"type": "function", "function": {"name": "now"}}])]
    special = chat._tokenizer.special_ids
    with_text = plain[0].encode_prompt([*asked("", call), USER])
    without = plain[1].encode_prompt([*asked("", ToolCall("now", {}, "a")), USER])
    assert [i for i in with_text if i in special] == [i for i in without if i in special]


def accepts(tokenizer: Tokenizer, grammar: str, ids: list[int]) -> bool:
    """Whether a grammar accepts these tokens and nothing less."""
    inner = llguidance.LLTokenizer(tokenizer.to_json(), eos_token=tokenizer.eos_id)
    matcher = llguidance.LLMatcher(inner, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_grammar_accepts_what_the_template_writes_and_no_other_calls(formats: Any, name: str) -> None:
    chat: ChatFormat = formats(name).with_tools(TOOLS)
    tokenizer = chat._tokenizer

    def ids(*calls: tuple[str, dict[str, Any]]) -> list[int]:
        found, own = chat.encode_conversation(
            asked("", *(ToolCall(name, value, f"id{i}") for i, (name, value) in enumerate(calls)))
        )
        turn = [token for token, is_own in zip(found, own, strict=True) if is_own]
        return turn[:-1]

    rome: tuple[str, dict[str, Any]] = ("get_weather", {"city": 'R"ome', "days": 2})
    now: tuple[str, dict[str, Any]] = ("now", {})
    one, several = (chat.build_lark_grammar(TOOLS, several=several) for several in (False, True))
    assert accepts(tokenizer, one, ids(rome))
    assert accepts(tokenizer, several, ids(now))
    if name in SEVERAL:
        assert accepts(tokenizer, several, ids(rome, now, rome))
        assert not accepts(tokenizer, one, ids(rome, now))
    only = chat.build_lark_grammar(TOOLS[1:], several=True)
    assert accepts(tokenizer, only, ids(now))
    assert not accepts(tokenizer, only, ids(rome))
    assert not accepts(tokenizer, one, ids(("get_weather", {"days": 2})))
    assert not accepts(tokenizer, one, ids(("get_weather", {"city": 3})))
    assert not accepts(tokenizer, one, ids(rome)[:-1])


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [('{"city": "a", "days": 1}', True), ('{"city":"a", "days": 1}', False), ('{"city": "a",\n "days": 1}', False)],
)
def test_a_grammar_writes_json_as_the_template_does(formats: Any, arguments: str, taken: bool) -> None:
    chat: ChatFormat = formats("qwen").with_tools(TOOLS)
    grammar = chat.build_lark_grammar(TOOLS, several=True)
    call = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    assert accepts(chat._tokenizer, grammar, chat._tokenizer.encode(call)) == taken


def test_long_answers_take_no_longer_than_their_length() -> None:
    parser = ChatFormat.from_tokenizer_or_plain(OWN).with_tools(TOOLS).make_tool_call_parser()
    assert parser is not None
    started = time.perf_counter()
    for piece in ["\n\n"] * 2000 + ["x "] * 2000 + ["<tool_call>"] * 400 + [GOOD[:-1] + " " * 4000]:
        parser.push(piece)
    parser.push("", is_last=True)
    assert time.perf_counter() - started < 20  # seconds; quadratic searches took minutes


def test_tools_and_calls_are_read_as_objects_and_as_json() -> None:
    assert validate_tools(json.dumps(TOOLS)) == validate_tools(list(TOOLS)) == TOOLS
    given = [{"function": {"name": "now", "arguments": arguments}} for arguments in ({"a": 1}, '{"a": 1}', "", None)]
    assert [call.arguments for call in parse_tool_calls(given, 3)] == [{"a": 1}, {"a": 1}, {}, {}]
    assert [call.id for call in parse_tool_calls(given[:2], 3)] == ["000030000", "000030001"]
    assert parse_tool_calls(None, 1) == ()
    (call,) = parse_tool_calls([{"id": "x", **given[0]}], 1)
    assert parse_tool_calls([call.to_openai()], 1) == parse_tool_calls([call.to_openai(as_text=False)], 1) == (call,)


FUNCTION = "tool_calls[0].function"
parse_calls = partial(parse_tool_calls, message_number=1)


DEEP = json.loads('{"a":' * 70 + "1" + "}" * 70)


def called(**function: Any) -> list[dict[str, Any]]:
    return [{"function": {"name": "now", **function}}]


@pytest.mark.parametrize(
    ("read", "value", "where"),
    [
        (validate_tools, {}, "tools: "),
        (validate_tools, "{", "tools: "),
        (validate_tools, [3], "tools[0]"),
        (validate_tools, [{"name": "a"}], "tools[0].function"),
        (validate_tools, [TOOLS[0], {"function": {"name": "a b"}}], "tools[1].function.name"),
        (validate_tools, [TOOLS[0], TOOLS[0]], "the same name"),
        (validate_tools, called(parameters=[1]), "tools[0].function.parameters"),
        (parse_calls, {"a": 1}, "tool_calls: "),
        (parse_calls, [3], "tool_calls[0]"),
        (parse_calls, [{"id": 3, **called()[0]}], "tool_calls[0].id"),
        (parse_calls, called(name=3), f"{FUNCTION}.name"),
        *((parse_calls, called(arguments=wrong), f"{FUNCTION}.arguments") for wrong in ("{", [1], '{"a":' * 9999)),
        (parse_calls, called(arguments=DEEP), "message 1: tool_calls"),
        (parse_calls, called(arguments={"a": float("nan")}), f"{FUNCTION}.arguments"),
    ],
)
def test_wrong_tools_and_calls_are_refused_where_they_are(read: Any, value: Any, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(value)
    assert where in str(caught.value)
