"""Cells of annotated tables: the words of a sentence and their tags, and the answers to a question in a context."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lmtool.text.files import shown
from lmtool.text.tokenizer import find_words, without_surrogates

OUTSIDE = "O"
"""The tag of words outside of all entities."""

_BIO = re.compile(r"[BI]-.+")
_OTHER_SCHEMES = re.compile(r"[ESLU]-.+")


class AnswerSpan(NamedTuple):
    """An answer in a context: the character at which it starts, and its text."""

    start: int
    text: str


class AnnotationFault(Exception):
    """A cell that is no annotation. kind: the fault without details."""

    def __init__(self, kind: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.kind, self.what, self.fix = kind, what, fix


def as_words(cell: Any) -> tuple[str, ...]:
    """The words of a cell: a list of them, or a text that is divided into words and punctuation.

    Raises AnnotationFault.
    """
    if isinstance(cell, str):
        cell = [cell[start:stop] for start, stop in find_words(cell)]
    if not isinstance(cell, list) or not all(isinstance(word, str) for word in cell):
        found = "a list with other values than text" if isinstance(cell, list) else type(cell).__name__
        raise AnnotationFault("wrong type", f"the words are {found}, not a list of text", "write a list of words")
    if not cell or not all(word.strip() for word in cell):
        raise AnnotationFault("empty words", "a word is empty" if cell else "there is no word", "fill it")
    return tuple(map(without_surrogates, cell))


def as_tags(cell: Any, n_words: int) -> tuple[str, ...]:
    """The tags of so many words. Raises AnnotationFault."""
    if not isinstance(cell, list) or not all(isinstance(tag, str | int) and str(tag).strip() for tag in cell):
        found = "a list with other values than tags" if isinstance(cell, list) else type(cell).__name__
        fix = "write a list with a tag for each word"
        raise AnnotationFault("wrong type", f"the tags are {found}, not a list of text", fix)
    if len(cell) != n_words:
        what = f"{len(cell)} tags for {n_words} words"
        raise AnnotationFault("uneven columns", what, "write a tag for each word")
    return tuple(str(tag).strip() for tag in cell)


def has_entities(tags: Iterable[str]) -> bool:
    """Whether tags are those of entities, B-TYPE, I-TYPE and O, and not plain ones such as parts of speech."""
    return any(_BIO.fullmatch(tag) for tag in tags)


def as_entities(tags: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """BIO tags in which every entity begins with B, and the number of those that did not.

    An I that continues no entity of its type begins one, as conlleval reads it (Tjong Kim Sang and De Meulder 2003).
    Raises AnnotationFault for other tags.
    """
    found: list[str] = []
    n_repaired = 0
    for tag in tags:
        if tag != OUTSIDE and not _BIO.fullmatch(tag):
            fix = f"write B- and I- before the type of an entity, and {OUTSIDE} for other words"
            if _OTHER_SCHEMES.fullmatch(tag):
                fix = "write E- and L- as I-, S- and U- as B-"
            raise AnnotationFault("no BIO tag", f"the tag {shown(tag, 40)} is not in the scheme BIO", fix)
        if tag.startswith("I-") and (not found or found[-1][1:] != tag[1:]):
            tag = f"B{tag[1:]}"
            n_repaired += 1
        found.append(tag)
    return tuple(found), n_repaired


def complete_tags(names: Iterable[str]) -> set[str]:
    """The tags of entities of these types: O, and for each type B and I."""
    types = {name[1:] for name in names if name != OUTSIDE}
    return {OUTSIDE, *(f"{place}{of}" for of in types for place in "BI")}


def find_entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Type, first word and word after the last of each entity, as conlleval reads tags."""
    starts, _ = as_entities(tags)
    found: set[tuple[str, int, int]] = set()
    first = 0
    for i, tag in enumerate((*starts, OUTSIDE)):
        if not tag.startswith("I-"):
            if i and starts[i - 1] != OUTSIDE:
                found.add((starts[i - 1][2:], first, i))
            first = i
    return found


def as_answers(cell: Any, context: str) -> tuple[AnswerSpan, ...]:
    """The answers of a cell, none for a question without one. Raises AnnotationFault.

    cell: a list of objects with text and answer_start, or one object with a list of each, as datasets have it.
    """
    if isinstance(cell, dict) and isinstance(texts := cell.get("text"), list):
        starts = cell.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise AnnotationFault("wrong type", "not as many answer_start as text", "write one for each answer")
        cell = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(cell, list) or not all(isinstance(one, dict) for one in cell):
        what = f"the answers are {'missing' if cell is None else type(cell).__name__}, not a list of objects"
        fix = 'write [{"text": "...", "answer_start": 0}], or [] for a question without an answer'
        raise AnnotationFault("wrong type", what, fix)
    return tuple(_as_answer(one, context) for one in cell)


def _as_answer(found: dict[str, Any], context: str) -> AnswerSpan:
    text, start = found.get("text"), found.get("answer_start")
    if not isinstance(text, str) or not text.strip() or not isinstance(start, int) or isinstance(start, bool):
        what = "an answer without text" if not isinstance(text, str) or not text.strip() else "no answer_start"
        raise AnnotationFault("wrong type", what, "write text, and answer_start as a number of characters")
    text = without_surrogates(text)
    if start < 0 or context[start : start + len(text)] != text:
        there = context[max(0, start) : max(0, start) + len(text)]
        what = f"the answer {shown(text, 40)} is not at answer_start {start}: there is {shown(there, 40)}"
        at = context.find(text)
        fix = "the context does not have it: correct one of them" if at < 0 else f"it begins at {at}: correct it"
        raise AnnotationFault("answer outside the context", what, fix)
    return AnswerSpan(start, text)
