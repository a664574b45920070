"""Calls of functions: how a model's chat template writes them, and calls from the text of an answer.

A call is a JSON object with a name and arguments, between markers. How a family of models writes these is a row of
CONVENTIONS, which is recognised by what the chat template contains.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from lmtool import durable
from lmtool.durable import refusing
from lmtool.errors import CheckpointError, UsageError
from lmtool.printable import plain
from lmtool.records import is_deep
from lmtool.tokenization.tokenizer import without_surrogates

DEEPEST = 64
"""Values within others, in what defines a function or in arguments."""

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
    """How a family of models writes calls: `begin`, a JSON object, `between` and another object, `end`.

    marker: what the chat templates of the family contain, and others do not.
    between: None where a turn has one call.
    key: of the arguments in the object.
    has_ids: an object has the id of the call as well.
    lead: what may stand before that, such as empty thoughts.
    """

    marker: str
    begin: str = ""
    between: str | None = None
    end: str = ""
    key: str = "arguments"
    has_ids: bool = False
    lead: str = ""

    @property
    def around(self) -> str:
        """All that it writes around objects."""
        return f"{self.begin}{self.between or ''}{self.end}"

    @property
    def example(self) -> str:
        """A call of `now`, as it is written."""
        return f'{self.begin}{{"name": "now", "{self.key}": {{}}}}{self.end}'

    def call(self, value: dict[str, Any] | None, names: Collection[str], key: str) -> ToolCall | None:
        """The call of one of these functions that an object is; None for any other. key: for its id."""
        name = (value or {}).get("name")
        if not value or value.keys() - {"name", self.key, "id", "type"} or not isinstance(name, str):
            return None
        arguments = _arguments(value.get(self.key, {})) if name in names else None
        return None if arguments is None else ToolCall(name, arguments, short_id(str(value.get("id") or key)))

    def grammar(self, tools: Sequence[Mapping[str, Any]], special: Mapping[str, int], *, several: bool) -> str:
        """All answers that are calls of these tools, as a Lark grammar of llguidance.

        special: ids of special tokens by name. several: more than one call.
        """

        def literal(text: str) -> str:
            pieces = re.split(f"({'|'.join(map(re.escape, special)) or '(?!)'})", text)
            # a tokenizer may put a space behind a special token
            return " ".join(f'<[{special[one]}]> " "?' if one in special else json.dumps(one) for one in pieces if one)

        style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        more = f" ({literal(self.between)} call)*" if several and self.between is not None else ""
        rules = [f"start: ({literal(self.lead)})? {literal(self.begin)} call{more} {literal(self.end)}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        opening, closing = literal('{"name": "'), literal("}")
        if self.has_ids:
            closing = " ".join([literal(', "id": "'), f"/{_ID.pattern}/", literal('"}')])
        for n, tool in enumerate(tools):
            function = tool["function"]
            name, arguments = (literal(one) for one in (function["name"], f'", "{self.key}": '))
            schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": style}
            rules.append(f"call_{n}: {opening} {name} {arguments} args_{n} {closing}")
            rules.append(f"args_{n}: %json {json.dumps(schema)}")
        return "\n".join(rules) + "\n"


_HERMES = Convention("<tool_call>", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
CONVENTIONS = (
    replace(_HERMES, marker="System: Tools: ", lead=" "),
    replace(_HERMES, marker="<think>", lead="<think>\n\n</think>\n\n"),
    _HERMES,
    Convention("[TOOL_CALLS] [", "[TOOL_CALLS] [", ", ", "]", has_ids=True),
    Convention("[TOOL_CALLS][", "[TOOL_CALLS][", ", ", "]", has_ids=True),
    Convention('"parameters": ', key="parameters"),
    Convention('"arguments": '),
)
"""Hermes 2 Pro (Nous Research 2024) and Qwen: in lmtool's own format of published models, after thoughts, plainly; two
spellings of Mistral's; Llama 3; JSON alone."""

UNREADABLE = {
    "<function=": "Qwen3-Coder's, in XML",
    "<arg_key>": "GLM's, in XML",
    "[ARGS]": "Mistral's of 2025, with [ARGS]",
    "tool▁call▁begin": "DeepSeek's",
    "<|channel|>": "gpt-oss's, in channels",
}
"""Conventions that are not read, by what their templates contain."""


def convention_of(template: str) -> Convention:
    """The convention of the source of a chat template. Raises NoTools."""
    if "tool_calls" not in template or "tools" not in template.replace("tool_calls", ""):
        raise NoTools("it writes no tools, or no calls of them")
    for mark, name in UNREADABLE.items():
        if mark in template:
            raise NoTools(f"it writes calls in another convention than those that are read: {name}")
    found = [one for one in CONVENTIONS if one.marker in template and (not one.lead or _HERMES.marker in template)]
    if not found:
        raise NoTools("it writes calls in none of the conventions of Hermes, Qwen, Llama 3 and Mistral")
    return found[0]


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
