"""Parses the cells of a table: texts and labels; the words of a sentence and their tags; the answers to a question in a
context; conversations, as lists of messages with role and content, or from and value (ShareGPT).

The parsers raise CellError.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lmtool.data.delimited import MAX_FIELD_CHARACTERS, find_field_fault
from lmtool.data.files import quote
from lmtool.errors import UsageError
from lmtool.tasks.labels import MAX_LABEL_CHARACTERS, SEPARATOR, to_label_cell
from lmtool.tokenization.chat import MESSAGE_ROLES, ChatFormat, Message, MessagesRefusedError, add_tool_fields_
from lmtool.tokenization.tokenizer import find_word_spans, replace_surrogates
from lmtool.tokenization.tools import ToolsUnsupportedError, validate_tools

OUTSIDE_TAG = "O"
"""The tag of words outside of all entities."""

_BIO = re.compile(r"[BI]-.+")
_OTHER_SCHEMES = re.compile(r"[ESLU]-.+")

MESSAGE_KEYS = (("role", "content"), ("from", "value"))
"""Keys of the author and of the text of a message."""

ROLE_ALIASES = {"human": "user", "gpt": "assistant"}

_MESSAGES_FIX = (
    'write a list of messages: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
)


class AnswerSpan(NamedTuple):
    """An answer in a context: the character at which it starts, and its text."""

    start: int
    text: str


class CellError(Exception):
    """A cell that does not fit its column. kind: names the fault without details."""

    def __init__(self, kind: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.kind, self.what, self.fix = kind, what, fix


def parse_text_or_empty(cell: Any) -> str:
    """Returns the text of a cell; "" for an empty cell."""
    if cell is not None and not isinstance(cell, str):
        raise CellError("wrong type", f"the column holds {type(cell).__name__}, not text", "name a column of text")
    return cell or ""


def parse_nonblank_text(cell: Any) -> str:
    """Returns the text of a cell, which may not be blank."""
    if not (text := parse_text_or_empty(cell)).strip():
        raise CellError("empty target", "the target is empty", "fill it")
    return text


def parse_label_or_empty(cell: Any) -> str | tuple[str, ...]:
    """Returns a label as stripped text, or as several texts; "" for an empty cell. Refuses one as long as a text."""
    label = to_label_cell(cell)
    if label is None:
        what = f"the label is {type(cell).__name__}, not text or a number"
        raise CellError("wrong type", what, "write labels as text, numbers or lists of text")
    _refuse_long_labels(label.split(SEPARATOR) if isinstance(label, str) else label)
    return label


def _refuse_long_labels(names: Sequence[str]) -> None:
    longest = max(map(len, names), default=0)
    if longest > MAX_LABEL_CHARACTERS:
        what = f"the label has {longest:,} characters, more than {MAX_LABEL_CHARACTERS:,}: it seems to be a text"
        raise CellError("label too long", what, "name another column with --label-column, or shorten it")


def parse_words(cell: Any) -> tuple[str, ...]:
    """Returns the words of a cell: a list of words, or a text, which is split into words and punctuation."""
    if isinstance(cell, str):
        cell = [cell[start:stop] for start, stop in find_word_spans(cell)]
    if not isinstance(cell, list) or not all(isinstance(word, str) for word in cell):
        raise _wrong_type_error(cell, "words", "text", "write a list of words")
    if not cell or not all(word.strip() for word in cell):
        raise CellError("empty words", "a word is empty" if cell else "there is no word", "fill it")
    return tuple(map(replace_surrogates, cell))


def parse_tag_list(cell: Any, n_words: int) -> tuple[str, ...]:
    """Returns the tags of a sentence of `n_words` words."""
    if not isinstance(cell, list) or not all(isinstance(tag, str | int) and str(tag).strip() for tag in cell):
        raise _wrong_type_error(cell, "tags", "tags", "write a list with a tag for each word")
    if len(cell) != n_words:
        raise CellError("uneven columns", f"{len(cell)} tags for {n_words} words", "write a tag for each word")
    tags = tuple(str(tag).strip() for tag in cell)
    _refuse_long_labels(tags)
    return tags


def _wrong_type_error(cell: Any, name: str, values: str, fix: str) -> CellError:
    kind = f"a list with other values than {values}" if isinstance(cell, list) else type(cell).__name__
    return CellError("wrong type", f"the {name} are {kind}, not a list of text", fix)


def has_bio_tags(tags: Iterable[str]) -> bool:
    """Returns whether tags mark entities, by B-TYPE, I-TYPE and O, unlike plain ones such as parts of speech."""
    return any(_BIO.fullmatch(tag) for tag in tags)


def repair_bio_tags(tags: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Returns BIO tags in which every entity begins with B, and the number of entities that began with I.

    An I that continues no entity of its type begins one, as conlleval reads it (Tjong Kim Sang and De Meulder 2003).
    """
    repaired: list[str] = []
    n_repaired = 0
    for tag in tags:
        if tag != OUTSIDE_TAG and not _BIO.fullmatch(tag):
            fix = f"write B- and I- before the type of an entity, and {OUTSIDE_TAG} for other words"
            if _OTHER_SCHEMES.fullmatch(tag):
                fix = "write E- and L- as I-, S- and U- as B-"
            raise CellError("no BIO tag", f"the tag {quote(tag, 40)} is not in the scheme BIO", fix)
        if tag.startswith("I-") and (not repaired or repaired[-1][1:] != tag[1:]):
            tag = f"B{tag[1:]}"
            n_repaired += 1
        repaired.append(tag)
    return tuple(repaired), n_repaired


def complete_bio_tags(names: Iterable[str]) -> set[str]:
    """Returns O, and B and I for each type of entities in the tags."""
    types = {name[1:] for name in names if name != OUTSIDE_TAG}
    return {OUTSIDE_TAG, *(f"{begin}{of}" for of in types for begin in "BI")}


def parse_answers_in_context(cell: Any, context: str) -> tuple[AnswerSpan, ...]:
    """Returns the answers of a cell, and checks where they are in the context.

    cell: a list of objects with text and answer_start, empty for a question without an answer; or one object with a
    list of each, as in `datasets`.
    """
    if isinstance(cell, dict) and isinstance(texts := cell.get("text"), list):
        starts = cell.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(texts):
            what = "the answers differ in the number of text and answer_start"
            raise CellError("wrong type", what, "write one for each answer")
        cell = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(cell, list) or not all(isinstance(one, dict) for one in cell):
        what = f"the answers are {'missing' if cell is None else type(cell).__name__}, not a list of objects"
        fix = 'write [{"text": "...", "answer_start": 0}], or [] for a question without an answer'
        raise CellError("wrong type", what, fix)
    answers = []
    for answer in cell:
        text, start = answer.get("text"), answer.get("answer_start")
        fix = "write text, and answer_start as a number of characters"
        if not isinstance(text, str) or not text.strip():
            raise CellError("wrong type", "an answer without text", fix)
        if not isinstance(start, int) or isinstance(start, bool):
            raise CellError("wrong type", "no answer_start", fix)
        text = replace_surrogates(text)
        if start < 0 or context[start : start + len(text)] != text:
            other = context[max(0, start) : max(0, start) + len(text)]
            what = f"the answer {quote(text, 40)} is not at answer_start {start}: there is {quote(other, 40)}"
            at = context.find(text)
            fix = "the context does not have it: correct one of them" if at < 0 else f"it begins at {at}: correct it"
            raise CellError("answer outside the context", what, fix)
        answers.append(AnswerSpan(start, text))
    return tuple(answers)


def parse_messages(cell: Any) -> tuple[Message, ...]:
    """Returns the messages of a cell. Ignores all keys but role, content, tool_calls and tool_call_id."""
    if cell is None or cell == []:
        raise CellError("empty messages", "the list of messages is empty", _MESSAGES_FIX)
    if not isinstance(cell, list):
        raise CellError("wrong type", f"the cell is {type(cell).__name__}, not a list of messages", _MESSAGES_FIX)
    messages = []
    for number, value in enumerate(cell, 1):
        if not isinstance(value, dict):
            raise CellError("wrong type", f"message {number} is {type(value).__name__}, not an object", _MESSAGES_FIX)
        keys = next((keys for keys in MESSAGE_KEYS if any(value.get(key) is not None for key in keys)), MESSAGE_KEYS[0])
        author, text = (value.get(key) for key in keys)
        if not isinstance(author, str):
            what = "has no" if author is None else f"has {type(author).__name__} as its"
            raise CellError("wrong role", f"message {number} {what} {keys[0]}", _MESSAGES_FIX)
        role = ROLE_ALIASES.get(author, author)
        if role not in MESSAGE_ROLES:
            fix = f"name one of {', '.join(MESSAGE_ROLES)}"
            raise CellError("wrong role", f"message {number} has the unknown role {quote(author, 30)}", fix)
        if text is None and value.get("tool_calls"):
            text = ""
        if not isinstance(text, str):
            what = "no" if text is None else f"{type(text).__name__}, not text, as its"
            raise CellError("wrong type", f"message {number} has {what} {keys[1]}", "write text")
        if role == "assistant" and not text.strip() and not value.get("tool_calls"):
            raise CellError("empty answer", f"message {number}, of the assistant, is empty", "fill it")
        if (fault := find_field_fault((text,), None, MAX_FIELD_CHARACTERS)) is not None:
            raise CellError(fault.kind, f"message {number}: {fault.what}", fault.fix)
        try:
            messages.append(add_tool_fields_(Message(role=role, content=replace_surrogates(text)), value, number))
        except UsageError as error:
            raise CellError("wrong calls", error.what, error.fix) from None
    return tuple(messages)


def parse_and_trim_conversation(
    cell: Any, ends_with_assistant: bool, chat: ChatFormat | None, tools: Sequence[dict[str, Any]] = ()
) -> tuple[Message, ...]:
    """Returns the messages up to the last one of the assistant, or of others without `ends_with_assistant`.

    chat: checks messages and tools.
    """
    messages = parse_messages(cell)
    ends = [n for n, message in enumerate(messages, 1) if (message["role"] == "assistant") == ends_with_assistant]
    if not ends and ends_with_assistant:
        raise CellError("no answer", "there is no message of the assistant to learn from", "add its answer")
    if not ends:
        raise CellError("no question", "there is no message to answer", "add one of the user")
    try:
        if chat is not None:
            (chat.with_tools(tools) if tools else chat).check_messages(messages[: ends[-1]])
    except (MessagesRefusedError, ToolsUnsupportedError) as refused:
        raise CellError("refused messages", refused.what, refused.fix) from None
    return messages[: ends[-1]]


def parse_tools(cell: Any) -> tuple[dict[str, Any], ...]:
    """Returns the definitions of functions in a cell; none for an empty cell."""
    try:
        return validate_tools(cell or [])
    except UsageError as error:
        raise CellError("wrong tools", error.what, error.fix) from None
