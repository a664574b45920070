"""Parses tool calls in the text of an answer, in the syntax of the model's chat template.

A call is a JSON object with a name and arguments between delimiters. CALL_SYNTAXES lists the syntax of each family of
models, which is recognised by a marker in the chat template.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from lmtool.errors import CheckpointError, UsageError
from lmtool.printable import printable
from lmtool.storage import durable
from lmtool.storage.durable import convert_os_errors
from lmtool.storage.records import is_nested_deeper
from lmtool.tokenization.tokenizer import replace_surrogates

MAX_NESTING = 64
"""Limit of the nesting of values in the definition of a function or in arguments."""

_ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that every template accepts, also Mistral's."""


class ToolsUnsupportedError(CheckpointError):
    """Raised when the chat template of a model takes no tools."""

    def __init__(self, why: str) -> None:
        fix = "take a model with another template, such as Qwen2.5's, or leave out tools and their calls"
        where = "chat_template of the tokenizer"
        super().__init__(f"this model's chat template takes no tools: {why}", where=where, fix=fix)


class ToolCall(NamedTuple):
    """A call of a function by the assistant. id: a message of role tool answers the call with this id."""

    name: str
    arguments: dict[str, Any]
    id: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={_dump_json(value)}' for key, value in self.arguments.items())})"

    def to_openai(self, *, as_text: bool = True) -> dict[str, Any]:
        """Converts the call to OpenAI's format, or with the arguments as an object to that of templates."""
        arguments = _dump_json(self.arguments) if as_text else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class _Function(BaseModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    parameters: dict[str, Any] | None = None
    arguments: Annotated[dict[str, Any], BeforeValidator(lambda value: _parse_arguments(value or {}))] = {}


class _FunctionEntry(BaseModel):
    id: str | None = None
    function: _Function


def make_short_id(key: str) -> str:
    """Returns the key if every template accepts it as an id, else an id made of its hash."""
    return key if _ID.fullmatch(key) else sha256(key.encode(errors="replace")).hexdigest()[:9]


def validate_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Validates definitions of functions in the format of OpenAI, a list or its JSON. Raises UsageError."""
    tools = _parse_json_or_none(value)
    names = [one.function.name for one in _validate_functions(tools, "tools", "parameters")]
    if len(set(names)) < len(names):
        raise UsageError("tools: two have the same name", fix="rename one")
    return tuple(tools)


def load_tools_file(path: Path) -> tuple[dict[str, Any], ...]:
    """Loads definitions of functions from a JSON file; see `validate_tools`. Raises UsageError."""
    with convert_os_errors(
        "the tools cannot be read", printable(str(path)), "name a JSON file with a list of functions", UsageError
    ):
        content = durable.read_file(path).decode("utf-8-sig", "replace")
    try:
        return validate_tools(content)
    except UsageError as error:
        raise UsageError(error.what, where=printable(str(path)), fix=error.fix) from None


def parse_tool_calls(value: Any, message_number: int) -> tuple[ToolCall, ...]:
    """Parses the tool_calls of a message, whose arguments are an object or its JSON; returns none for null.

    message_number: makes ids of calls without an id. Raises UsageError.
    """
    if isinstance(value, tuple):  # parsed already
        return value
    calls = enumerate(_validate_functions(value or [], f"message {message_number}: tool_calls", "arguments"))
    return tuple(
        ToolCall(one.function.name, one.function.arguments, one.id or f"{message_number:05}{n:04}") for n, one in calls
    )


def _validate_functions(value: Any, list_name: str, example_key: str) -> list[_FunctionEntry]:
    """Validates a list of functions. list_name, example_key: for the message of UsageError about the first error."""
    try:
        entries = TypeAdapter(list[_FunctionEntry]).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        fix = f'write a list: [{{"type": "function", "function": {{"name": "...", "{example_key}": {{...}}}}}}]'
        raise UsageError(f"{list_name}{where}: {first['msg']}"[:200], fix=fix) from None
    if is_nested_deeper(value, MAX_NESTING):
        raise UsageError(f"{list_name}: values lie in others, more than {MAX_NESTING} deep", fix="make them simpler")
    return entries


def _parse_json_or_none(value: Any) -> Any:
    """Parses a JSON text, or returns None if it is none; returns other values unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _parse_arguments(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one in a JSON text; None for other values, and for numbers that JSON does not have."""
    value = _parse_json_or_none(value)
    try:
        value = None if is_nested_deeper(value, MAX_NESTING) else json.loads(replace_surrogates(_dump_json(value)))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class CallSyntax:
    """The syntax of tool calls of a family of models: `begin`, a JSON object, `between` and another object, `end`.

    marker: text that only chat templates of the family contain.
    between: None if a turn has one call.
    arguments_key: key of the arguments in the object.
    has_ids: the object has the id of the call.
    lead: optional text before the calls, such as empty thoughts.
    """

    marker: str
    begin: str = ""
    between: str | None = None
    end: str = ""
    arguments_key: str = "arguments"
    has_ids: bool = False
    lead: str = ""

    @property
    def delimiters(self) -> str:
        """Returns all text around the objects."""
        return f"{self.begin}{self.between or ''}{self.end}"

    @property
    def example_call(self) -> str:
        """Returns a call of the function `now` in this syntax."""
        return f'{self.begin}{{"name": "now", "{self.arguments_key}": {{}}}}{self.end}'

    def parse_call(self, value: dict[str, Any] | None, names: Collection[str], id_key: str) -> ToolCall | None:
        """Converts an object to a call of one of these functions, else to None. id_key: makes a missing id."""
        name = (value or {}).get("name")
        if not value or value.keys() - {"name", self.arguments_key, "id", "type"} or not isinstance(name, str):
            return None
        arguments = _parse_arguments(value.get(self.arguments_key, {})) if name in names else None
        return None if arguments is None else ToolCall(name, arguments, make_short_id(str(value.get("id") or id_key)))

    def build_lark_grammar(
        self, tools: Sequence[Mapping[str, Any]], special_ids: Mapping[str, int], *, several: bool
    ) -> str:
        """Returns a Lark grammar of llguidance for all answers that are calls of these tools.

        special_ids: ids of special tokens by name. several: allows more than one call.
        """

        def literal(text: str) -> str:
            pieces = re.split(f"({'|'.join(map(re.escape, special_ids)) or '(?!)'})", text)
            # a tokenizer may put a space behind a special token
            return " ".join(
                f'<[{special_ids[one]}]> " "?' if one in special_ids else json.dumps(one) for one in pieces if one
            )

        style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        more = f" ({literal(self.between)} call)*" if several and self.between is not None else ""
        rules = [f"start: ({literal(self.lead)})? {literal(self.begin)} call{more} {literal(self.end)}"]
        rules.append(f"call: {' | '.join(f'call_{n}' for n in range(len(tools)))}")
        opening, closing = literal('{"name": "'), literal("}")
        if self.has_ids:
            closing = " ".join([literal(', "id": "'), f"/{_ID.pattern}/", literal('"}')])
        for n, tool in enumerate(tools):
            function = tool["function"]
            name, arguments = (literal(one) for one in (function["name"], f'", "{self.arguments_key}": '))
            schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": style}
            rules.append(f"call_{n}: {opening} {name} {arguments} args_{n} {closing}")
            rules.append(f"args_{n}: %json {json.dumps(schema)}")
        return "\n".join(rules) + "\n"


_HERMES = CallSyntax("<tool_call>", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
CALL_SYNTAXES = (
    replace(_HERMES, marker="System: Tools: ", lead=" "),
    replace(_HERMES, marker="<think>", lead="<think>\n\n</think>\n\n"),
    _HERMES,
    CallSyntax("[TOOL_CALLS] [", "[TOOL_CALLS] [", ", ", "]", has_ids=True),
    CallSyntax("[TOOL_CALLS][", "[TOOL_CALLS][", ", ", "]", has_ids=True),
    CallSyntax('"parameters": ', arguments_key="parameters"),
    CallSyntax('"arguments": '),
)
"""Hermes 2 Pro (Nous Research 2024) and Qwen: in lmtool's format for published models, after thoughts, plain; two
spellings of Mistral; Llama 3; JSON alone."""

UNSUPPORTED = {
    "<function=": "Qwen3-Coder's, in XML",
    "<arg_key>": "GLM's, in XML",
    "[ARGS]": "Mistral's of 2025, with [ARGS]",
    "tool▁call▁begin": "DeepSeek's",
    "<|channel|>": "gpt-oss's, in channels",
}
"""Names of unsupported syntaxes by a text that their templates contain."""


def find_supported_call_syntax(template: str) -> CallSyntax:
    """Returns the call syntax of the source of a chat template. Raises ToolsUnsupportedError."""
    if "tool_calls" not in template or "tools" not in template.replace("tool_calls", ""):
        raise ToolsUnsupportedError("it writes no tools, or no calls of them")
    for mark, name in UNSUPPORTED.items():
        if mark in template:
            raise ToolsUnsupportedError(f"it writes calls in another convention than those that are read: {name}")
    found = [one for one in CALL_SYNTAXES if one.marker in template and (not one.lead or _HERMES.marker in template)]
    if not found:
        raise ToolsUnsupportedError("it writes calls in none of the conventions of Hermes, Qwen, Llama 3 and Mistral")
    return found[0]


def _decode_object(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Decodes the JSON object at an opening brace; returns it and its end, or None if it has no end."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start + 1


class ToolCallParser:
    """Parses tool calls in an answer that comes in pieces; the result does not depend on how it is divided.

    Text that is no call of one of the functions is returned as text, without the white space around calls. Text after
    the possible beginning of a call is held back until it is decided.
    """

    def __init__(self, syntax: CallSyntax, names: Collection[str], id_key: str = "") -> None:
        """names: of the functions. id_key: identifies the answer, so that ids of calls in other answers differ."""
        self._syntax, self._names, self._id_key = syntax, names, id_key
        begin, end, more = (_pattern_ignoring_space(text or "") for text in (syntax.begin, syntax.end, syntax.between))
        opening = rf"\s*+{begin}" if begin else r"\A\s*+(?={)"
        self._begin = re.compile(rf"{begin}\s*+(?={{)" if begin else opening)
        self._more = re.compile(r"(?!)" if syntax.between is None else rf"\s*+{more}\s*+(?={{)")
        self._end = re.compile(rf"\s*+(?:{end})?\s*+")
        solid = "".join(syntax.begin.split())
        prefixes = "|".join(_pattern_ignoring_space(solid[:n]) for n in range(len(solid), 0, -1))
        self._begun = re.compile(rf"\s*+(?:{prefixes})?\s*+\Z|{opening}")
        self._answer, self._n_shown, self._n_calls = "", 0, 0

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, list[ToolCall]]:
        """Adds a piece of the answer, and returns the text and the calls that it completes."""
        self._answer += text
        shown, calls = self._parse_answer_so_far(is_last)
        if not is_last and (held := self._begun.search(self._answer, self._n_shown)):
            shown = self._answer[: held.start()]
        new = shown[self._n_shown :], calls[self._n_calls :]
        self._n_shown, self._n_calls = len(shown), len(calls)
        return new

    def _parse_answer_so_far(self, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Returns text and calls of the answer so far. is_last: an incomplete object is no call."""
        shown, calls, start = "", list[ToolCall](), 0
        match = self._begin.search(self._answer, self._n_shown)
        while match:
            value, stop = _decode_object(self._answer, match.end())
            if value is None and not is_last:
                break
            call = self._syntax.parse_call(value, self._names, f"{self._id_key} {len(calls)}")
            if call:
                shown += self._answer[start : match.start()].rstrip()
                calls.append(call)
                match, ended = (pattern.match(self._answer, stop) for pattern in (self._more, self._end))
                start = stop = ended.end() if ended else stop
            else:
                match = None
            match = match or self._begin.search(self._answer, stop)
        return shown + self._answer[start:], calls


def _pattern_ignoring_space(text: str) -> str:
    """Returns a pattern that matches a text with any white space in it."""
    return r"\s*".join(map(re.escape, "".join(text.split())))
