"""Conversations as token ids: by the model's own chat template, else by a plain one.

Special tokens that the template writes are special; text in messages that spells one is ordinary text.
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
from lmtool.printable import plain
from lmtool.tokenization.encoder import encoding_of
from lmtool.tokenization.inner import ROLE_KEYS, text_of
from lmtool.tokenization.template import Refusal, SandboxedTemplate
from lmtool.tokenization.tokenizer import Tokenizer, without_surrogates
from lmtool.tokenization.tools import CallParser, Convention, NoTools, ToolCall, convention_of, read_calls, short_id

ROLES = ("system", "user", "assistant", "tool")
"""Who may write a message."""

_CALLS = (
    "{% for call in message.tool_calls or [] %}{{ '\\n' if message.content or not loop.first else '' }}"
    "{{ '<tool_call>\\n' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{ '\\n</tool_call>' }}{% endfor %}"
)
"""Calls as Hermes 2 Pro writes them (Nous Research 2024)."""

PLAIN = (
    "{{ bos_token }}{% if tools %}{{ 'Tools: ' }}{{ tools | tojson }}{{ '\\n\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ sep_token }}{{ message.content }}" + _CALLS + "{{ eos_token }}"
    "{% else %}{% if loop.previtem and loop.previtem.role != 'assistant' %}{{ '\\n\\n' }}{% endif %}"
    "{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ sep_token }}{% endif %}"
)
"""[BOS] question [SEP] answer [EOS] question [SEP] answer [EOS], for tokenizers trained here, which have these tokens.
Tools and a system message stand before the first question, with an empty line between."""

PLAIN_TEXT = (
    "{{ opening }}{% if tools %}{{ 'System: Tools: ' }}{{ tools | tojson }}{{ '\\n\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content }}" + _CALLS + "{% if message.role == 'assistant' %}"
    "{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The same for published models without a chat template: who writes, as "User: " and "Assistant: "."""

PAIRS = (
    "{{ opening }}{% for message in messages %}"
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else '' }}{% endfor %}"
)
"""Texts one after the other, for published models that learnt the target of a source. It tells other programs how they
begin; here, pairs are no conversations."""

_WHERE = "chat_template of the tokenizer"


class Message(TypedDict):
    """One message. role: one of ROLES. tool_calls: of the assistant. tool_call_id: of the call that a tool answers."""

    role: str
    content: str
    tool_calls: NotRequired[tuple[ToolCall, ...]]
    tool_call_id: NotRequired[str]


def with_calls(message: Message, source: Mapping[str, Any], number: int) -> Message:
    """The message with the calls, or the id of the call that it answers, which the source has. Raises UsageError."""
    if calls := read_calls(source.get("tool_calls"), number):
        if message["role"] != "assistant":
            raise UsageError(f"message {number}: only the assistant has tool_calls", fix="leave them out")
        message["tool_calls"] = calls
    if message["role"] == "tool" and isinstance(answered := source.get("tool_call_id"), str):
        message["tool_call_id"] = answered
    return message


class RefusedMessages(DataError):
    """The template itself refuses these messages, such as two of one role in a row."""


class ChatFormat:
    """How a model reads conversations.

    name: "the model's own" or "plain", for messages to the user.
    tools: those that the model may call, as their definitions; None where it may call none, and writes no calls.
    Its methods raise RefusedMessages when the template refuses the messages, and CheckpointError when it fails, does
    what templates may not, or leaves open which tokens the assistant writes; NoTools for calls that it cannot write.
    """

    tools: tuple[dict[str, Any], ...] | None = None

    def __init__(
        self, tokenizer: Tokenizer, source: str, name: str, tokens: dict[str, str], now: Callable[[], datetime]
    ) -> None:
        """source: of the template. tokens: its variables. now: the time that it may ask for."""
        self.name, self._source, self._tokens = name, source, tokens
        self._ends = tokenizer.roles.ends
        self._tokenizer = tokenizer
        self._key = str(secrets.randbits(64))  # texts cannot hold what they cannot guess
        try:
            self._template = SandboxedTemplate(source, now)
        except Exception as error:
            raise _failure("cannot be read", error) from error

    @classmethod
    def of(cls, tokenizer: Tokenizer, now: Callable[[], datetime] = datetime.now) -> Self:
        """The format of a tokenizer: its own chat template, else the plain one.

        now: the time of `strftime_now` in templates. Raises CheckpointError for a template that cannot be read.
        """
        config, roles = tokenizer.published, tokenizer.roles
        if config is None:
            named = {"bos_token": roles.bos, "eos_token": roles.eos, "sep_token": roles.sep}
            return cls(tokenizer, PLAIN, "plain", {key: tokenizer.name(i) for key, i in named.items()}, now)
        source = own_template(tokenizer)
        if source is None:
            opening = "".join(map(tokenizer.name, roles.template.before if roles.template else ()))
            tokens = {"opening": opening, "eos_token": tokenizer.name(roles.eos)}
            return cls(tokenizer, PLAIN_TEXT, "plain", tokens, now)
        tokens = {key: text for key in ROLE_KEYS if (text := text_of(config.get(key))) is not None}
        return cls(tokenizer, source, "the model's own", tokens, now)

    def alone(self, known: Mapping[str, str]) -> str:
        """The source of the template for programs that give it no variables but these tokens."""
        return standing_alone(self._source, self._tokens, known)

    def with_tools(self, tools: Sequence[dict[str, Any]]) -> Self:
        """The same for a model that may call these; see `read_tools`. Raises NoTools."""
        other = copy(self)
        other.tools, other.convention = tuple(tools), self.convention
        return other

    @cached_property
    def convention(self) -> Convention:
        """How the template writes calls. Raises NoTools."""
        convention = convention_of(self._source)
        stream = self._tokenizer.stream(self._markers(convention))
        read = "".join(map(stream.push, self._ids(self._encode([convention.example])))) + stream.flush()
        if not CallParser(convention, {"now"}).push(read, is_last=True)[1]:
            raise NoTools("its tokenizer does not keep the text of a call")
        return convention

    def parser(self, key: str = "") -> CallParser | None:
        """Of an answer's calls; None without tools. key: as of `CallParser`."""
        if self.tools is None:
            return None
        return CallParser(self.convention, {tool["function"]["name"] for tool in self.tools}, key)

    def grammar(self, tools: Sequence[dict[str, Any]], *, several: bool) -> str:
        """All answers that call these tools, once or `several` times; see `Convention.grammar`."""
        return self.convention.grammar(tools, self._ids_of_names, several=several)

    @property
    def shown(self) -> dict[int, str]:
        """Special tokens that stand around calls, by their names: they are parts of the assistant's text."""
        return {} if self.tools is None else self._markers(self.convention)

    def _markers(self, convention: Convention) -> dict[int, str]:
        return {self._ids_of_names[name]: name for name in self._special.findall(convention.around)}

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the messages, up to where the assistant's next turn begins."""
        return self._ids(self._encode([self._render(messages, asks=True)]))

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Ids of the whole conversation, and which of them the assistant writes: content and the end of each turn.

        The assistant's turns are what the template's {% generation %} blocks write; without these, what it writes
        after the prompt of each.
        """
        text, spans = self._marked(messages) if self._template.marks_generation else self._compared(messages)
        cuts = [0, *(at for span in spans for at in span), len(text)]
        parts = [text[start:stop] for start, stop in pairwise(cuts)]
        sizes = [len(self._spelled(part)) for part in parts]
        encoding = self._encode(parts)
        ids, starts = self._ids(encoding), [start for start, _ in encoding.offsets]
        is_written = [False] * len(ids)
        for i in range(1, len(parts), 2):
            first, last = sum(sizes[:i]), sum(sizes[: i + 1])
            turn = [n for n, start in enumerate(starts) if first <= start < last]
            if not self._template.marks_generation:
                end = max((n for n in turn if ids[n] in self.ends), default=len(ids))
                turn = [n for n in turn if n <= end]
            for n in turn:
                is_written[n] = True
        if not any(is_written) and any(message["role"] == "assistant" for message in messages):
            fix = "fine-tune a model with another template"
            raise CheckpointError("the chat template writes nothing of the assistant's turns", where=_WHERE, fix=fix)
        return ids, is_written

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids that end a turn: the tokenizer's, and the one that the template writes behind the assistant's."""
        user, answer = Message(role="user", content="a"), Message(role="assistant", content="yes")
        try:
            _, answered, behind = self._render([user, answer]).rpartition(answer["content"])
        except (CheckpointError, RefusedMessages):
            return self._ends
        match = self._special.search(behind) if answered else None
        return self._ends if match is None else self._ends | {self._ids_of_names[match[0]]}

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RefusedMessages when the template refuses the messages."""
        self._render(messages)

    def _render(self, messages: Sequence[Message], *, asks: bool = False, marks: Sequence[str] = ()) -> str:
        """The template's text, in which texts of messages that spell a special token are escaped."""
        return self._write(self._seen(messages), tools=self._escaped(self.tools) or None, asks=asks, marks=marks)

    def _write(self, messages: Sequence[dict[str, Any]], *, tools: Any, asks: bool = False, marks: Any = ()) -> str:
        """The template's text for these values."""
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=asks, marks=marks, **self._tokens
            )
        except Refusal as refusal:
            what = f"the model's chat template refuses the messages: {_line(self._spelled(str(refusal)))}"
            raise RefusedMessages(what, where=_WHERE, fix="change the messages as it says") from refusal
        except Exception as error:
            raise _failure("fails", error) from error

    def _seen(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the template reads them: those of tools have the id and the name of the call that they answer."""
        seen, waiting = list[dict[str, Any]](), list[ToolCall]()
        for message in messages:
            one: dict[str, Any] = {"role": message["role"], "content": self._escaped(message["content"])}
            if (calls := message.get("tool_calls")) and self.convention:  # which raises NoTools
                written = [ToolCall(call.name, self._escaped(call.arguments), short_id(call.id)) for call in calls]
                one["tool_calls"] = [call.record(as_text=False) for call in written]
                waiting += calls
            wanted = message.get("tool_call_id")
            answered = next((call for call in waiting if wanted in (None, call.id)), None)
            if wanted is not None and answered is None:
                what = f"a message answers the call {_line(wanted)[:40]}, which none before it has"
                raise RefusedMessages(what, fix="give it the id of a call as its tool_call_id")
            if answered is not None and message["role"] == "tool":
                waiting.remove(answered)
                one |= {"tool_call_id": short_id(answered.id), "name": answered.name}
            seen.append(one)
        return seen

    def _marked(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the assistant's turns in it, as offsets of characters: the {% generation %} blocks."""
        opens, closes = f"<{self._key}o>", f"<{self._key}c>"
        text, spans = "", []
        before, *turns = self._render(messages, marks=(opens, closes)).split(opens)
        text += before
        for turn in turns:
            written, _, after = turn.partition(closes)
            spans.append((len(text), len(text) + len(written)))
            text += written + after
        return text, spans

    def _compared(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The same by comparing the text with those of the first messages."""
        text, spans = self._render(messages), []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self._render(messages[:i], asks=True), self._render(messages[: i + 1])
                if not (text.startswith(after) and after.startswith(before)):
                    raise CheckpointError(
                        "the chat template writes a turn in another way when others follow it, or than it asks for it",
                        where=_WHERE,
                        fix="train on one turn of the assistant per row, or on a model with another template",
                    )
                spans.append((len(before), len(after)))
        return text, spans

    @cached_property
    def _names(self) -> dict[int, str]:
        return {i: self._tokenizer.name(i) for i in sorted(self._tokenizer.special_ids)}

    @cached_property
    def _ids_of_names(self) -> dict[str, int]:
        return {name: i for i, name in self._names.items()}

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """A special token, the longest of those that begin at one place."""
        return _any_of(self._ids_of_names)

    @cached_property
    def _forbidden(self) -> re.Pattern[str]:
        """A special token in a message, or the beginning of one at its end, which the text behind could complete."""
        begun = {name[:n] for name in self._ids_of_names for n in range(1, len(name))}
        return re.compile(rf"{self._special.pattern}|(?:{_any_of(begun).pattern})\Z")

    def _escaped(self, value: Any) -> Any:
        """A JSON value in which no text spells a special token."""
        if isinstance(value, dict):
            return {
                self._special.sub(self._in_hex, without_surrogates(key)): self._escaped(value[key]) for key in value
            }
        if isinstance(value, list | tuple):
            return [self._escaped(one) for one in value]
        return self._forbidden.sub(self._in_hex, without_surrogates(value)) if isinstance(value, str) else value

    def _in_hex(self, match: re.Match[str]) -> str:
        return f"<{self._key}t{match[0].encode().hex()}>"

    def _spelled(self, text: str) -> str:
        """A rendered text as `_inner` reads it: with its names of special tokens, and escaped texts as they were."""
        text = self._special.sub(lambda match: self._hidden(self._ids_of_names[match[0]]), text)
        return re.sub(rf"<{self._key}t([0-9a-f]*)>", lambda match: bytes.fromhex(match[1]).decode(), text)

    def _hidden(self, token: int) -> str:
        return f"<{self._key}s{token}>"

    @cached_property
    def _inner(self) -> tuple[Inner, dict[int, int]]:
        """The tokenizer with other names for its special tokens, and the ids for those that differ from its own."""
        config = json.loads(self._tokenizer.to_json())
        added = {token["content"]: token for token in config["added_tokens"]}
        if config["model"]["type"] == "Unigram":  # which would find them in text
            names = {name: self._hidden(i) for name, i in self._ids_of_names.items()}
            config["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in config["model"]["vocab"]]
        inner = Inner.from_str(json.dumps(config | {"added_tokens": [], "post_processor": None}))
        ids: dict[str, int] = {}
        for name, token in added.items():
            if token["id"] not in self._names:
                inner.add_tokens([_added(name, token)])
                ids[name] = token["id"]
        for i, name in self._names.items():
            hidden = self._hidden(i)
            inner.add_special_tokens([_added(hidden, added.get(name, {}))])
            ids[hidden] = i
        others = ((inner.token_to_id(name), i) for name, i in ids.items())
        return inner, {other: i for other, i in others if other is not None}

    def _encode(self, parts: Sequence[str]) -> Encoding:
        """Parts of a rendered text as one text, in the ids of `_inner`."""
        return encoding_of(self._inner[0], "".join(map(self._spelled, parts)))

    def _ids(self, encoding: Encoding) -> list[int]:
        others = self._inner[1]
        return [others.get(i, i) for i in encoding.ids]


def standing_alone(source: str, tokens: Mapping[str, str], known: Mapping[str, str]) -> str:
    """The source of a template that sets its variables itself, except the known ones."""
    needed = {name: text for name, text in tokens.items() if known.get(name) != text and name in source}
    return "".join(f"{{% set {name} = {json.dumps(text)} %}}" for name, text in needed.items()) + source


def own_template(tokenizer: Tokenizer) -> str | None:
    """The source of a tokenizer's own chat template; of several, the default one. None if it has none, or PAIRS."""
    template: Any = (tokenizer.published or {}).get("chat_template")
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and not template.endswith(PAIRS) else None


def _any_of(texts: Sequence[str] | set[str] | dict[str, int]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _added(name: str, token: dict[str, Any]) -> AddedToken:
    flags = {key: token.get(key, False) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return AddedToken(name, **flags)


def _failure(what: str, error: Exception) -> CheckpointError:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    fix = "take a model with another template"
    return CheckpointError(f"the chat template {what}: {_line(reason)}", where=_WHERE, fix=fix)


def _line(text: str) -> str:
    return plain(text)[:160]
