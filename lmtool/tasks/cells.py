"""What the cells of a table hold: texts and labels; the words of a sentence and their tags; the answers to a question
in a context; conversations, as lists of messages with role and content, or from and value (ShareGPT)."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lmtool.data.delimited import MAX_FIELD_CHARACTERS, find_field_fault
from lmtool.data.files import quote
from lmtool.errors import UsageError
from lmtool.tasks.labels import LONGEST_LABEL, SEPARATOR, as_cell
from lmtool.tokenization.chat import MESSAGE_ROLES, ChatFormat, Message, MessagesRefusedError, add_tool_calls
from lmtool.tokenization.tokenizer import find_word_spans, replace_surrogates
from lmtool.tokenization.tools import ToolsUnsupportedError, validate_tools

OUTSIDE = "O"
"""The tag of words outside of all entities."""

_BIO = re.compile(r"[BI]-.+")
_OTHER_SCHEMES = re.compile(r"[ESLU]-.+")


KEYS = (("role", "content"), ("from", "value"))
"""Names of who writes a message, and of its text."""

NAMES = {"human": "user", "gpt": "assistant"}
"""Other names of roles."""

_SHAPE = 'write a list of messages: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


class AnswerSpan(NamedTuple):
    """An answer in a context: the character at which it starts, and its text."""

    start: int
    text: str


class CellFault(Exception):
    """A cell that is not what its column holds. kind: the fault without details."""

    def __init__(self, kind: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.kind, self.what, self.fix = kind, what, fix


def as_text(cell: Any) -> str:
    """The text of a cell; an empty one for none. Raises CellFault."""
    if cell is not None and not isinstance(cell, str):
        raise CellFault("wrong type", f"the column holds {type(cell).__name__}, not text", "name a column of text")
    return cell or ""


def as_target(cell: Any) -> str:
    """The target of a cell. Raises CellFault for one without text."""
    if not (text := as_text(cell)).strip():
        raise CellFault("empty target", "the target is empty", "fill it")
    return text


def as_label(cell: Any) -> str | tuple[str, ...]:
    """A label as stripped text, or as several texts; empty for none. Raises CellFault for one as long as a text."""
    label = as_cell(cell)
    if label is None:
        what = f"the label is {type(cell).__name__}, not text or a number"
        raise CellFault("wrong type", what, "write labels as text, numbers or lists of text")
    _refuse_long(label.split(SEPARATOR) if isinstance(label, str) else label)
    return label


def _refuse_long(names: Sequence[str]) -> None:
    """Raise when a label is as long as a text."""
    longest = max(map(len, names), default=0)
    if longest > LONGEST_LABEL:
        what = f"the label has {longest:,} characters, more than {LONGEST_LABEL:,}: it seems to be a text"
        raise CellFault("label too long", what, "name another column with --label-column, or shorten it")


def as_words(cell: Any) -> tuple[str, ...]:
    """The words of a cell: a list of them, or a text that is divided into words and punctuation.

    Raises CellFault.
    """
    if isinstance(cell, str):
        cell = [cell[start:stop] for start, stop in find_word_spans(cell)]
    if not isinstance(cell, list) or not all(isinstance(word, str) for word in cell):
        raise _no_list(cell, "words", "text", "write a list of words")
    if not cell or not all(word.strip() for word in cell):
        raise CellFault("empty words", "a word is empty" if cell else "there is no word", "fill it")
    return tuple(map(replace_surrogates, cell))


def as_tags(cell: Any, n_words: int) -> tuple[str, ...]:
    """The tags of so many words. Raises CellFault."""
    if not isinstance(cell, list) or not all(isinstance(tag, str | int) and str(tag).strip() for tag in cell):
        raise _no_list(cell, "tags", "tags", "write a list with a tag for each word")
    if len(cell) != n_words:
        raise CellFault("uneven columns", f"{len(cell)} tags for {n_words} words", "write a tag for each word")
    tags = tuple(str(tag).strip() for tag in cell)
    _refuse_long(tags)
    return tags


def _no_list(cell: Any, name: str, values: str, fix: str) -> CellFault:
    kind = f"a list with other values than {values}" if isinstance(cell, list) else type(cell).__name__
    return CellFault("wrong type", f"the {name} are {kind}, not a list of text", fix)


def has_entities(tags: Iterable[str]) -> bool:
    """Whether tags are those of entities, B-TYPE, I-TYPE and O, and not plain ones such as parts of speech."""
    return any(_BIO.fullmatch(tag) for tag in tags)


def as_entities(tags: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """BIO tags in which every entity begins with B, and the number of those that did not.

    An I that continues no entity of its type begins one, as conlleval reads it (Tjong Kim Sang and De Meulder 2003).
    Raises CellFault for other tags.
    """
    repaired: list[str] = []
    n_repaired = 0
    for tag in tags:
        if tag != OUTSIDE and not _BIO.fullmatch(tag):
            fix = f"write B- and I- before the type of an entity, and {OUTSIDE} for other words"
            if _OTHER_SCHEMES.fullmatch(tag):
                fix = "write E- and L- as I-, S- and U- as B-"
            raise CellFault("no BIO tag", f"the tag {quote(tag, 40)} is not in the scheme BIO", fix)
        if tag.startswith("I-") and (not repaired or repaired[-1][1:] != tag[1:]):
            tag = f"B{tag[1:]}"
            n_repaired += 1
        repaired.append(tag)
    return tuple(repaired), n_repaired


def complete_tags(names: Iterable[str]) -> set[str]:
    """The tags of entities of these types: O, and for each type B and I."""
    types = {name[1:] for name in names if name != OUTSIDE}
    return {OUTSIDE, *(f"{begin}{of}" for of in types for begin in "BI")}


def as_answers(cell: Any, context: str) -> tuple[AnswerSpan, ...]:
    """The answers of a cell, none for a question without one. Raises CellFault.

    cell: a list of objects with text and answer_start, or one object with a list of each, as datasets have it.
    """
    if isinstance(cell, dict) and isinstance(texts := cell.get("text"), list):
        starts = cell.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise CellFault(
                "wrong type", "the answers differ in the number of text and answer_start", "write one for each answer"
            )
        cell = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(cell, list) or not all(isinstance(one, dict) for one in cell):
        what = f"the answers are {'missing' if cell is None else type(cell).__name__}, not a list of objects"
        fix = 'write [{"text": "...", "answer_start": 0}], or [] for a question without an answer'
        raise CellFault("wrong type", what, fix)
    return tuple(_as_answer(one, context) for one in cell)


def _as_answer(answer: dict[str, Any], context: str) -> AnswerSpan:
    text, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(text, str) or not text.strip() or not isinstance(start, int) or isinstance(start, bool):
        what = "an answer without text" if not isinstance(text, str) or not text.strip() else "no answer_start"
        raise CellFault("wrong type", what, "write text, and answer_start as a number of characters")
    text = replace_surrogates(text)
    if start < 0 or context[start : start + len(text)] != text:
        other = context[max(0, start) : max(0, start) + len(text)]
        what = f"the answer {quote(text, 40)} is not at answer_start {start}: there is {quote(other, 40)}"
        at = context.find(text)
        fix = "the context does not have it: correct one of them" if at < 0 else f"it begins at {at}: correct it"
        raise CellFault("answer outside the context", what, fix)
    return AnswerSpan(start, text)


def as_messages(cell: Any) -> tuple[Message, ...]:
    """The messages of a cell. All keys but role, content, tool_calls and tool_call_id are ignored. Raises CellFault."""
    if cell is None or cell == []:
        raise CellFault("empty messages", "the list of messages is empty", _SHAPE)
    if not isinstance(cell, list):
        raise CellFault("wrong type", f"the cell is {type(cell).__name__}, not a list of messages", _SHAPE)
    return tuple(_message(value, number) for number, value in enumerate(cell, 1))


def as_conversation(
    cell: Any, answered: bool, chat: ChatFormat | None, tools: Sequence[dict[str, Any]] = ()
) -> tuple[Message, ...]:
    """The messages of a cell up to the assistant's last one, or, not `answered`, to the last that is not the
    assistant's. Raises CellFault, also where `chat` refuses them, or the tools.
    """
    messages = as_messages(cell)
    ends = [n for n, message in enumerate(messages, 1) if (message["role"] == "assistant") == answered]
    if not ends and answered:
        raise CellFault("no answer", "there is no message of the assistant to learn from", "add its answer")
    if not ends:
        raise CellFault("no question", "there is no message to answer", "add one of the user")
    try:
        if chat is not None:
            (chat.with_tools(tools) if tools else chat).check_messages(messages[: ends[-1]])
    except (MessagesRefusedError, ToolsUnsupportedError) as refused:
        raise CellFault("refused messages", refused.what, refused.fix) from None
    return messages[: ends[-1]]


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, dict):
        raise CellFault("wrong type", f"message {number} is {type(value).__name__}, not an object", _SHAPE)
    keys = next((keys for keys in KEYS if any(value.get(key) is not None for key in keys)), KEYS[0])
    author, text = (value.get(key) for key in keys)
    if not isinstance(author, str):
        what = "has no" if author is None else f"has {type(author).__name__} as its"
        raise CellFault("wrong role", f"message {number} {what} {keys[0]}", _SHAPE)
    role = NAMES.get(author, author)
    if role not in MESSAGE_ROLES:
        fix = f"name one of {', '.join(MESSAGE_ROLES)}"
        raise CellFault("wrong role", f"message {number} has the unknown role {quote(author, 30)}", fix)
    if text is None and value.get("tool_calls"):
        text = ""
    if not isinstance(text, str):
        what = "no" if text is None else f"{type(text).__name__}, not text, as its"
        raise CellFault("wrong type", f"message {number} has {what} {keys[1]}", "write text")
    if role == "assistant" and not text.strip() and not value.get("tool_calls"):
        raise CellFault("empty answer", f"message {number}, of the assistant, is empty", "fill it")
    fault = find_field_fault((text,), None, MAX_FIELD_CHARACTERS)
    if fault is not None:
        raise CellFault(fault.kind, f"message {number}: {fault.what}", fault.fix)
    try:
        return add_tool_calls(Message(role=role, content=replace_surrogates(text)), value, number)
    except UsageError as error:
        raise CellFault("wrong calls", error.what, error.fix) from None


def as_tools(cell: Any) -> tuple[dict[str, Any], ...]:
    """The definitions of functions in a cell, none for an empty one. Raises CellFault."""
    try:
        return validate_tools(cell or [])
    except UsageError as error:
        raise CellFault("wrong tools", error.what, error.fix) from None
