"""Encodes conversations with the chat template of the model, or else with a plain one.

Special tokens in the template are special; text in messages that spells one is ordinary text.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NotRequired, Self, TypedDict

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Inner

from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.printable import printable
from lmtool.tokenization.encoder import encode_without_special_tokens
from lmtool.tokenization.inner import ROLE_KEYS, token_content
from lmtool.tokenization.template import SandboxedTemplate, TemplateRefusal
from lmtool.tokenization.tokenizer import Tokenizer, replace_surrogates
from lmtool.tokenization.tools import (
    CallSyntax,
    ToolCall,
    ToolCallParser,
    ToolsUnsupportedError,
    find_supported_call_syntax,
    make_short_id,
    parse_tool_calls,
)

MESSAGE_ROLES = ("system", "user", "assistant", "tool")
"""Roles of the writer of a message."""

_HERMES_CALLS = (
    "{% for call in message.tool_calls or [] %}{{ '\\n' if message.content or not loop.first else '' }}"
    "{{ '<tool_call>\\n' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{ '\\n</tool_call>' }}{% endfor %}"
)
"""Calls as Hermes 2 Pro writes them (Nous Research 2024)."""

TRAINED_TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ 'Tools: ' }}{{ tools | tojson }}{{ '\\n\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ sep_token }}{{ message.content }}" + _HERMES_CALLS + "{{ eos_token }}"
    "{% else %}{% if loop.previtem and loop.previtem.role != 'assistant' %}{{ '\\n\\n' }}{% endif %}"
    "{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ sep_token }}{% endif %}"
)
"""[BOS] question [SEP] answer [EOS] question [SEP] answer [EOS], for tokenizers trained by lmtool.
Tools and a system message precede the first question, with an empty line between."""

PUBLISHED_TEMPLATE = (
    "{{ opening }}{% if tools %}{{ 'System: Tools: ' }}{{ tools | tojson }}{{ '\\n\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content }}" + _HERMES_CALLS + "{% if message.role == 'assistant' %}"
    "{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""Names the roles "User: " and "Assistant: ", for published models without a chat template."""

PAIR_TEMPLATE = (
    "{{ opening }}{% for message in messages %}"
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else '' }}{% endfor %}"
)
"""Concatenates texts, for published models that have learned the target of a source. Only other programs use it."""

_WHERE = "chat_template of the tokenizer"


class Message(TypedDict):
    """A message. role: one of MESSAGE_ROLES. tool_calls: of the assistant. tool_call_id: of the answered call."""

    role: str
    content: str
    tool_calls: NotRequired[tuple[ToolCall, ...]]
    tool_call_id: NotRequired[str]


def add_tool_fields_(message: Message, source: Mapping[str, Any], message_number: int) -> Message:
    """Adds the calls in `source`, or the id of the call that the message answers, to it. Raises UsageError."""
    if calls := parse_tool_calls(source.get("tool_calls"), message_number):
        if message["role"] != "assistant":
            raise UsageError(f"message {message_number}: only the assistant has tool_calls", fix="leave them out")
        message["tool_calls"] = calls
    if message["role"] == "tool" and isinstance(answered := source.get("tool_call_id"), str):
        message["tool_call_id"] = answered
    return message


class MessagesRefusedError(DataError):
    """Raised when the template refuses messages, such as two of one role in a row."""


class ChatFormat:
    """Encodes conversations for a model.

    name: "the model's own" or "plain", for messages to the user.
    tools: definitions of the functions that the model may call; None if it may call none.
    Its methods raise MessagesRefusedError when the template refuses the messages, ToolsUnsupportedError for calls that
    it cannot write, and CheckpointError when it fails, does what templates may not, or does not show which tokens the
    assistant writes.
    """

    tools: tuple[dict[str, Any], ...] | None = None

    def __init__(
        self, tokenizer: Tokenizer, source: str, name: str, tokens: dict[str, str], now: Callable[[], datetime]
    ) -> None:
        """source: of the template. tokens: its variables. now: returns the time for `strftime_now`."""
        self.name, self._source, self._tokens = name, source, tokens
        self._ends = tokenizer.roles.ends
        self._tokenizer = tokenizer
        self._key = str(secrets.randbits(64))  # texts cannot contain it, since nobody can guess it
        try:
            self._template = SandboxedTemplate(source, now)
        except Exception as error:
            raise _template_error("cannot be read", error) from error

    @classmethod
    def from_tokenizer_or_plain(cls, tokenizer: Tokenizer, now: Callable[[], datetime] = datetime.now) -> Self:
        """Makes the format of a tokenizer: its own chat template, else the plain one.

        now: returns the time for `strftime_now`. Raises CheckpointError for a template that cannot be read.
        """
        config, roles = tokenizer.published, tokenizer.roles
        if config is None:
            named = {"bos_token": roles.bos, "eos_token": roles.eos, "sep_token": roles.sep}
            return cls(
                tokenizer, TRAINED_TEMPLATE, "plain", {key: tokenizer.token_name(i) for key, i in named.items()}, now
            )
        source = get_own_chat_template(tokenizer)
        if source is None:
            opening = "".join(map(tokenizer.token_name, roles.template.before if roles.template else ()))
            tokens = {"opening": opening, "eos_token": tokenizer.token_name(roles.eos)}
            return cls(tokenizer, PUBLISHED_TEMPLATE, "plain", tokens, now)
        tokens = {key: text for key in ROLE_KEYS if (text := token_content(config.get(key))) is not None}
        return cls(tokenizer, source, "the model's own", tokens, now)

    def export_template(self, known: Mapping[str, str]) -> str:
        """Returns the source of the template for programs that set only the variables `known`."""
        return define_variables(self._source, self._tokens, known)

    def with_tools(self, tools: Sequence[dict[str, Any]]) -> Self:
        """Returns the format for a model that may call these tools. Raises ToolsUnsupportedError."""
        other = copy(self)
        other.tools, other.call_syntax = tuple(tools), self.call_syntax
        return other

    @cached_property
    def call_syntax(self) -> CallSyntax:
        """Returns how the template writes calls. Raises ToolsUnsupportedError."""
        syntax = find_supported_call_syntax(self._source)
        stream = self._tokenizer.make_stream_decoder(self._call_markers(syntax))
        read = "".join(map(stream.push, self._restore_ids(self._encode([syntax.example_call])))) + stream.flush()
        if not ToolCallParser(syntax, {"now"}).push(read, is_last=True)[1]:
            raise ToolsUnsupportedError("its tokenizer does not keep the text of a call")
        return syntax

    def make_tool_call_parser(self, id_key: str = "") -> ToolCallParser | None:
        """Returns a parser of the calls in an answer; None without tools. id_key: see `ToolCallParser`."""
        if self.tools is None:
            return None
        return ToolCallParser(self.call_syntax, {tool["function"]["name"] for tool in self.tools}, id_key)

    def build_lark_grammar(self, tools: Sequence[dict[str, Any]], *, several: bool) -> str:
        """Returns a grammar of all answers that call these tools; see `CallSyntax.build_lark_grammar`."""
        return self.call_syntax.build_lark_grammar(tools, self._special_ids, several=several)

    @property
    def visible_special_tokens(self) -> dict[int, str]:
        """Returns the special tokens around calls with their names, which are part of the assistant's text."""
        return {} if self.tools is None else self._call_markers(self.call_syntax)

    def _call_markers(self, syntax: CallSyntax) -> dict[int, str]:
        return {self._special_ids[name]: name for name in self._special_regex.findall(syntax.delimiters)}

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes the messages up to where the assistant's next turn begins."""
        return self._restore_ids(self._encode([self._render_escaped(messages, add_generation_prompt=True)]))

    def encode_conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Encodes the whole conversation, and marks the ids that the assistant writes: content and end of each turn.

        The assistant writes the text of {% generation %} blocks, or in templates without them the text after the prompt
        of each turn.
        """
        text, spans = (
            self._render_with_generation_spans(messages)
            if self._template.marks_generation
            else self._render_with_assistant_spans(messages)
        )
        cuts = [0, *(at for span in spans for at in span), len(text)]
        parts = [text[start:stop] for start, stop in pairwise(cuts)]
        sizes = [len(self._unescape(part)) for part in parts]
        encoding = self._encode(parts)
        ids, starts = self._restore_ids(encoding), [start for start, _ in encoding.offsets]
        is_written = [False] * len(ids)
        for i in range(1, len(parts), 2):
            first, last = sum(sizes[:i]), sum(sizes[: i + 1])
            turn = [n for n, start in enumerate(starts) if first <= start < last]
            if not self._template.marks_generation:
                end = max((n for n in turn if ids[n] in self.end_ids), default=len(ids))
                turn = [n for n in turn if n <= end]
            for n in turn:
                is_written[n] = True
        if not any(is_written) and any(message["role"] == "assistant" for message in messages):
            fix = "fine-tune a model with another template"
            raise CheckpointError("the chat template writes nothing of the assistant's turns", where=_WHERE, fix=fix)
        return ids, is_written

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Returns the ids that end a turn: those of the tokenizer, and the one that ends an assistant's turn."""
        user, answer = Message(role="user", content="a"), Message(role="assistant", content="yes")
        try:
            _, answered, behind = self._render_escaped([user, answer]).rpartition(answer["content"])
        except (CheckpointError, MessagesRefusedError):
            return self._ends
        match = self._special_regex.search(behind) if answered else None
        return self._ends if match is None else self._ends | {self._special_ids[match[0]]}

    def check_messages(self, messages: Sequence[Message]) -> None:
        """Raises MessagesRefusedError when the template refuses the messages."""
        self._render_escaped(messages)

    def _render_escaped(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, generation_marks: Sequence[str] = ()
    ) -> str:
        """Renders the template, with texts of messages that spell a special token escaped."""
        values: dict[str, Any] = {"documents": None, "messages": self._to_escaped_template_messages(messages)}
        values |= {"add_generation_prompt": add_generation_prompt, "marks": generation_marks}
        values["tools"] = self._escape_special_tokens(self.tools) or None
        try:
            return self._template.render(**values, **self._tokens)
        except TemplateRefusal as refusal:
            what = f"the model's chat template refuses the messages: {_shorten(self._unescape(str(refusal)))}"
            raise MessagesRefusedError(what, where=_WHERE, fix="change the messages as it says") from refusal
        except Exception as error:
            raise _template_error("fails", error) from error

    def _to_escaped_template_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Converts messages for the template: those of tools get id and name of the call that they answer."""
        seen, waiting = list[dict[str, Any]](), list[ToolCall]()
        for message in messages:
            one: dict[str, Any] = {"role": message["role"], "content": self._escape_special_tokens(message["content"])}
            if (calls := message.get("tool_calls")) and self.call_syntax:  # which raises ToolsUnsupportedError
                written = [
                    ToolCall(call.name, self._escape_special_tokens(call.arguments), make_short_id(call.id))
                    for call in calls
                ]
                one["tool_calls"] = [call.to_openai(as_text=False) for call in written]
                waiting += calls
            wanted = message.get("tool_call_id")
            answered = next((call for call in waiting if wanted in (None, call.id)), None)
            if wanted is not None and answered is None:
                what = f"a message answers the call {_shorten(wanted)[:40]}, which none before it has"
                raise MessagesRefusedError(what, fix="give it the id of a call as its tool_call_id")
            if answered is not None and message["role"] == "tool":
                waiting.remove(answered)
                one |= {"tool_call_id": make_short_id(answered.id), "name": answered.name}
            seen.append(one)
        return seen

    def _render_with_generation_spans(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text and the character offsets of its {% generation %} blocks."""
        opens, closes = f"<{self._key}o>", f"<{self._key}c>"
        text, spans = "", []
        before, *turns = self._render_escaped(messages, generation_marks=(opens, closes)).split(opens)
        text += before
        for turn in turns:
            written, _, after = turn.partition(closes)
            spans.append((len(text), len(text) + len(written)))
            text += written + after
        return text, spans

    def _render_with_assistant_spans(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text and the offsets of the assistant's turns, by comparison with the texts of fewer messages."""
        text, spans = self._render_escaped(messages), []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._render_escaped(messages[:i], add_generation_prompt=True)
                after = self._render_escaped(messages[: i + 1])
                if not (text.startswith(after) and after.startswith(before)):
                    raise CheckpointError(
                        "the chat template writes a turn in another way when others follow it, or than it asks for it",
                        where=_WHERE,
                        fix="train on one turn of the assistant per row, or on a model with another template",
                    )
                spans.append((len(before), len(after)))
        return text, spans

    @cached_property
    def _special_names(self) -> dict[int, str]:
        return {i: self._tokenizer.token_name(i) for i in sorted(self._tokenizer.special_ids)}

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        return {name: i for i, name in self._special_names.items()}

    @cached_property
    def _special_regex(self) -> re.Pattern[str]:
        """Matches a special token, the longest of those that begin at one position."""
        return _match_any(self._special_ids)

    @cached_property
    def _escaped_regex(self) -> re.Pattern[str]:
        """Matches a special token in a message, or the beginning of one at its end, which later text could complete."""
        begun = {name[:n] for name in self._special_ids for n in range(1, len(name))}
        return re.compile(rf"{self._special_regex.pattern}|(?:{_match_any(begun).pattern})\Z")

    def _escape_special_tokens(self, value: Any) -> Any:
        """Returns a JSON value in which no text spells a special token."""
        if isinstance(value, dict):
            keys = (self._special_regex.sub(self._encode_as_hex, replace_surrogates(key)) for key in value)
            return dict(zip(keys, map(self._escape_special_tokens, value.values()), strict=True))
        if isinstance(value, list | tuple):
            return [self._escape_special_tokens(one) for one in value]
        return (
            self._escaped_regex.sub(self._encode_as_hex, replace_surrogates(value)) if isinstance(value, str) else value
        )

    def _encode_as_hex(self, match: re.Match[str]) -> str:
        return f"<{self._key}t{match[0].encode().hex()}>"

    def _unescape(self, text: str) -> str:
        """Replaces special tokens of a rendered text by their hidden names, and restores escaped texts."""
        text = self._special_regex.sub(lambda match: self._hidden_name(self._special_ids[match[0]]), text)
        return re.sub(rf"<{self._key}t([0-9a-f]*)>", lambda match: bytes.fromhex(match[1]).decode(), text)

    def _hidden_name(self, token: int) -> str:
        return f"<{self._key}s{token}>"

    @cached_property
    def _tokenizer_with_hidden_special_tokens(self) -> tuple[Inner, dict[int, int]]:
        """Returns the tokenizer with other names for its special tokens, and the original ids of those that differ."""
        config = json.loads(self._tokenizer.to_json())
        added = {token["content"]: token for token in config["added_tokens"]}
        if config["model"]["type"] == "Unigram":  # which would find them in text
            names = {name: self._hidden_name(i) for name, i in self._special_ids.items()}
            config["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in config["model"]["vocab"]]
        inner = Inner.from_str(json.dumps(config | {"added_tokens": [], "post_processor": None}))
        ids: dict[str, int] = {}
        for name, token in added.items():
            if token["id"] not in self._special_names:
                inner.add_tokens([_make_added_token(name, token)])
                ids[name] = token["id"]
        for i, name in self._special_names.items():
            hidden = self._hidden_name(i)
            inner.add_special_tokens([_make_added_token(hidden, added.get(name, {}))])
            ids[hidden] = i
        others = ((inner.token_to_id(name), i) for name, i in ids.items())
        return inner, {other: i for other, i in others if other is not None}

    def _encode(self, parts: Sequence[str]) -> Encoding:
        """Encodes the parts of a rendered text as one text, in the ids of `_tokenizer_with_hidden_special_tokens`."""
        return encode_without_special_tokens(
            self._tokenizer_with_hidden_special_tokens[0], "".join(map(self._unescape, parts))
        )

    def _restore_ids(self, encoding: Encoding) -> list[int]:
        others = self._tokenizer_with_hidden_special_tokens[1]
        return [others.get(i, i) for i in encoding.ids]


def define_variables(source: str, tokens: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Returns the source of a template that sets its variables itself, except the known ones."""
    needed = {name: text for name, text in tokens.items() if known.get(name) != text and name in source}
    return "".join(f"{{% set {name} = {json.dumps(text)} %}}" for name, text in needed.items()) + source


def get_own_chat_template(tokenizer: Tokenizer) -> str | None:
    """Returns the source of a tokenizer's own (default) chat template; None if it has none, or PAIR_TEMPLATE."""
    template: Any = (tokenizer.published or {}).get("chat_template")
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and not template.endswith(PAIR_TEMPLATE) else None


def _match_any(texts: Sequence[str] | set[str] | dict[str, int]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _make_added_token(name: str, token: dict[str, Any]) -> AddedToken:
    flags = {key: token.get(key, False) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return AddedToken(name, **flags)


def _template_error(what: str, error: Exception) -> CheckpointError:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    fix = "take a model with another template"
    return CheckpointError(f"the chat template {what}: {_shorten(reason)}", where=_WHERE, fix=fix)


def _shorten(text: str) -> str:
    return printable(text)[:160]
