"""Calls of functions: how a model's chat template writes them, and calls from the text of an answer.

The convention of a template is read from what it writes for a call: a JSON object with a name and arguments, and texts
before, between and behind such objects.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from lmtool import durable
from lmtool.durable import refusing
from lmtool.errors import CheckpointError, LmtoolError, UsageError
from lmtool.printable import plain
from lmtool.records import is_deep
from lmtool.tokenization.tokenizer import without_surrogates

DEEPEST = 64
"""Values within others, in what defines a function or in arguments."""

LONGEST_MARKERS = 1000
"""Characters that a template may write around calls."""

_ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that every template takes: Mistral's takes no others."""


class NoTools(CheckpointError):
    """The model's chat template takes no tools."""

    def __init__(self, why: str) -> None:
        fix = "take a model with another template, such as Qwen2.5's, or leave out tools and their calls"
        where = "chat_template of the tokenizer"
        super().__init__(f"this model's chat template takes no tools: {why}", where=where, fix=fix)


class ToolCall(NamedTuple):
    """A call of a function by the assistant. id: by which a message of role tool answers it."""

    name: str
    arguments: dict[str, Any]
    id: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={_dumped(value)}' for key, value in self.arguments.items())})"

    def record(self, *, as_text: bool = True) -> dict[str, Any]:
        """As OpenAI writes it, or with the arguments as an object, as templates read it."""
        arguments = _dumped(self.arguments) if as_text else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class _Function(BaseModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    parameters: dict[str, Any] | None = None
    arguments: Annotated[dict[str, Any], BeforeValidator(lambda value: _arguments(value or {}))] = {}


class _Entry(BaseModel):
    id: str | None = None
    function: _Function


def short_id(key: str) -> str:
    """An id that every template takes: the key itself, or one made of it."""
    return key if _ID.fullmatch(key) else sha256(key.encode(errors="replace")).hexdigest()[:9]


def read_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Definitions of functions as OpenAI and Hugging Face write them, a list or its JSON. Raises UsageError."""
    tools = _parsed(value)
    names = [one.function.name for one in _entries(tools, "tools", "parameters")]
    if len(set(names)) < len(names):
        raise UsageError("tools: two have the same name", fix="rename one")
    return tuple(tools)


def load_tools(path: Path) -> tuple[dict[str, Any], ...]:
    """Those of a JSON file. Raises UsageError."""
    with refusing(
        "the tools cannot be read", plain(str(path)), "name a JSON file with a list of functions", UsageError
    ):
        content = durable.read(path).decode("utf-8-sig", "replace")
    try:
        return read_tools(content)
    except UsageError as error:
        raise UsageError(error.what, where=plain(str(path)), fix=error.fix) from None


def read_calls(value: Any, number: int) -> tuple[ToolCall, ...]:
    """The tool_calls of a message; none for null. number: of the message, for calls without an id. Raises UsageError.

    Arguments are an object, or its JSON as text.
    """
    if isinstance(value, tuple):  # read before
        return value
    calls = enumerate(_entries(value or [], f"message {number}: tool_calls", "arguments"))
    return tuple(
        ToolCall(one.function.name, one.function.arguments, one.id or f"{number:05}{n:04}") for n, one in calls
    )


def _entries(value: Any, name: str, key: str) -> list[_Entry]:
    """A list of functions. name: of the list. key: of what each has. Raises UsageError: the first part at fault."""
    try:
        entries = TypeAdapter(list[_Entry]).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        fix = f'write a list: [{{"type": "function", "function": {{"name": "...", "{key}": {{...}}}}}}]'
        raise UsageError(f"{name}{where}: {first['msg']}"[:200], fix=fix) from None
    if is_deep(value, DEEPEST):
        raise UsageError(f"{name}: values lie in others, more than {DEEPEST} deep", fix="make them simpler")
    return entries


def _parsed(value: Any) -> Any:
    """The value of a JSON text; None where it is none. Other values as they are."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _arguments(value: Any) -> dict[str, Any] | None:
    """An object, or one as a JSON text; None for all else, and for numbers that JSON does not have."""
    value = _parsed(value)
    try:
        value = None if is_deep(value, DEEPEST) else json.loads(without_surrogates(_dumped(value)))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Convention:
    """How a template writes calls: `begin`, a JSON object, `between` and another object, `end`.

    between: None where it writes no second call.
    lead: what it writes before that, perhaps, such as empty thoughts.
    turn_end: the special token behind, if any.
    keys: of the name and of the arguments in the object.
    parts: the object as it is written, with those of `PROBE`: texts, and between each two a name, arguments or an id.
    """

    lead: str
    begin: str
    between: str | None
    end: str
    turn_end: str | None
    keys: tuple[str, str]
    parts: tuple[str, ...]

    @property
    def around(self) -> str:
        """All that it writes around objects."""
        return f"{self.begin}{self.between or ''}{self.end}"

    @property
    def written(self) -> str:
        """A call, as it is written."""
        return f"{self.begin}{''.join(self.parts)}{self.end}"

    def check(self, read: str) -> None:
        """Raise NoTools unless the text that a tokenizer keeps of `written` is a call."""
        if not CallParser(self, {PROBE.name}).push(read, is_last=True)[1]:
            raise NoTools("its tokenizer does not keep the text of a call")

    def call(self, value: dict[str, Any] | None, names: Collection[str], key: str) -> ToolCall | None:
        """The call of one of these functions that an object is; None for any other. key: for its id."""
        name = (value or {}).get(self.keys[0])
        if not value or value.keys() - {*self.keys, "id", "type"} or not isinstance(name, str) or name not in names:
            return None
        arguments = _arguments(value.get(self.keys[1], {}))
        return None if arguments is None else ToolCall(name, arguments, short_id(str(value.get("id") or key)))

    def grammar(self, tools: Sequence[Mapping[str, Any]], special: Mapping[str, int], *, several: bool) -> str:
        """All answers that are calls of these tools, as a Lark grammar of llguidance.

        special: ids of special tokens by name. several: more than one call. Raises NoTools where no grammar has them.
        """
        if any(part.startswith('"') for part in self.parts[1::2]):
            raise NoTools("it writes arguments as text, so that no call can be forced")

        def literal(text: str) -> str:
            pieces = re.split(f"({'|'.join(map(re.escape, special)) or '(?!)'})", text)
            # a tokenizer may put a space behind a special token
            return " ".join(f'<[{special[one]}]> " "?' if one in special else json.dumps(one) for one in pieces if one)

        space = " " if '": "' in "".join(self.parts[1::2]) else ""
        style = {"whitespace_flexible": False, "item_separator": f",{space}", "key_separator": f":{space}"}
        more = f" ({literal(self.between)} call)*" if several and self.between is not None else ""
        rules = [f"start: ({literal(self.lead)})? {literal(self.begin)} call{more} {literal(self.end)}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        for n, tool in enumerate(tools):
            function = tool["function"]
            kinds = {PROBE.name: literal(function["name"]), PROBE.id: f"/{_ID.pattern}/"}
            written = [literal(one) if i % 2 == 0 else kinds.get(one, f"args_{n}") for i, one in enumerate(self.parts)]
            schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": style}
            rules += [f"call_{n}: {' '.join(written)}", f"args_{n}: %json {json.dumps(schema)}"]
        return "\n".join(rules) + "\n"


PROBE, SECOND = (ToolCall(name, {"probe_key": "probe_value"}, f"probe000{name[-1]}") for name in ("probe_1", "probe_2"))
_PROBED = re.compile(rf'({PROBE.name}|{PROBE.id}|"?{{\s*\\*"probe_key\\*"\s*:\s*\\*"probe_value\\*"\s*}}"?)')
_PROBE_TOOL = {"name": "probe_tool", "description": "A probe.", "parameters": {"type": "object", "properties": {}}}


def convention_of(write: Callable[..., str], special: re.Pattern[str], ends: Collection[str]) -> Convention:
    """The convention of a template. Raises NoTools, and as `write` does.

    write: its text for messages, and by name `tools` and `asks`, whether the assistant's turn is to begin. special: its
    special tokens, and `ends`, those that end a turn.
    """
    user, tools = {"role": "user", "content": "a"}, [{"type": "function", "function": _PROBE_TOOL}]
    prompt = write([user], tools=tools, asks=True)
    if prompt == write([user], tools=None, asks=True):
        raise NoTools("it writes the same with and without them")

    def answered(content: str, *calls: ToolCall) -> str:
        calls_of = {"tool_calls": [call.record(as_text=False) for call in calls]} if calls else {}
        return write([user, {"role": "assistant", "content": content, **calls_of}], tools=tools)

    with suppress(LmtoolError, ValueError, StopIteration):
        one, between = answered("", PROBE), None
        start, stop, written = _object_with(one, PROBE.name)
        name = next(key for key, value in written.items() if value == PROBE.name)
        arguments = next(key for key, value in written.items() if _arguments(value) == PROBE.arguments)
        heads = (answered(PROBE.name).rpartition(PROBE.name)[0], prompt)
        head = next(head for head in heads if one.startswith(head) and len(head) <= start)
        marks = list(special.finditer(one, stop))
        last = next((mark for mark in marks if mark[0] in ends), marks[-1] if marks else None)
        with suppress(LmtoolError, ValueError):
            two = answered("", PROBE, SECOND)
            between = two[_object_with(two, PROBE.name)[1] : _object_with(two, SECOND.name)[0]]
        around = (one[len(head) : start], between, one[stop : last.start() if last else None])
        parts = tuple(_PROBED.split(one[start:stop]))
        if len(parts) >= 5 and PROBE.id not in str(around) and len(str(around)) < LONGEST_MARKERS:
            lead = head[len(prompt) :] if head.startswith(prompt) else ""
            return Convention(lead, *around, last[0] if last else None, (name, arguments), parts)
    raise NoTools("it writes no calls that could be read back")


def _object_with(text: str, name: str) -> tuple[int, int, dict[str, Any]]:
    """The innermost JSON object in a text with a name, from where to where. Raises ValueError when there is none."""
    start = at = text.rindex(name)
    while (start := text.rfind("{", 0, start)) >= 0:
        value, stop = _object_at(text, start)
        if value and stop > at:
            return start, stop, value
    raise ValueError("no object")


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The JSON object at an opening brace and where it ends; None where it has no end."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start + 1


class CallParser:
    """Takes the calls out of an answer that comes in pieces; the result is the same however it is divided.

    What is no call of one of the functions stays text, but white space around calls. Text behind what begins a call
    comes with the end of the answer.
    """

    def __init__(self, convention: Convention, names: Collection[str], key: str = "") -> None:
        """names: of the functions. key: of the answer, which makes the ids of its calls differ from those of others."""
        self._convention, self._names, self._key = convention, names, key
        begin, end, more = (_loosely(text or "") for text in (convention.begin, convention.end, convention.between))
        opening = rf"\s*+{begin}" if begin else r"\A\s*+(?={)"
        self._begin = re.compile(rf"{begin}\s*+(?={{)" if begin else opening)
        self._more = re.compile(r"(?!)" if convention.between is None else rf"\s*+{more}\s*+(?={{)")
        self._end = re.compile(rf"\s*+(?:{end})?\s*+")
        self._begun = re.compile(rf"\s*+(?:{_begun(convention.begin)})?\s*+\Z|{opening}")
        self._answer, self._n_shown, self._n_calls = "", 0, 0

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, list[ToolCall]]:
        """The text, and the calls, that are complete with this piece."""
        self._answer += text
        shown, calls = self._read(is_last)
        if not is_last and (held := self._begun.search(self._answer, self._n_shown)):
            shown = self._answer[: held.start()]
        new = shown[self._n_shown :], calls[self._n_calls :]
        self._n_shown, self._n_calls = len(shown), len(calls)
        return new

    def _read(self, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Text and calls of the answer so far. is_last: an object that is not complete is no call."""
        shown, calls, start = "", list[ToolCall](), 0
        match = self._begin.search(self._answer, self._n_shown)
        while match:
            value, stop = _object_at(self._answer, match.end())
            if value is None and not is_last:
                break
            call = self._convention.call(value, self._names, f"{self._key} {len(calls)}")
            if call:
                shown += self._answer[start : match.start()].rstrip()
                calls.append(call)
                match, ended = (pattern.match(self._answer, stop) for pattern in (self._more, self._end))
                start = stop = ended.end() if ended else stop
            else:
                match = None
            match = match or self._begin.search(self._answer, stop)
        return shown + self._answer[start:], calls


def _loosely(text: str) -> str:
    """A pattern of a text, with any white space in it."""
    return r"\s*".join(map(re.escape, "".join(text.split())))


def _begun(text: str) -> str:
    """A pattern of each beginning of a text, the longest first."""
    solid = "".join(text.split())
    return "|".join(_loosely(solid[:n]) for n in range(len(solid), 0, -1))
