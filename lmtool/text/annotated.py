"""Files of annotated text: sentences in CoNLL-style columns, and questions about contexts in SQuAD's JSON."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from lmtool.errors import DataError
from lmtool.text.delimited import Fault, RowRecord, line_limit, misfit
from lmtool.text.files import place, split_lines, text_blocks, text_stretches
from lmtool.text.rowfile import RowFile
from lmtool.text.tokenizer import without_surrogates

CONLL, SQUAD = ".conll", ".json"
"""Endings of these files; each may be followed by one of PACKED."""

TOKENS, TAGS = "tokens", "tags"
"""Names of the first and the last column of a CoNLL file, whose rows are sentences."""

QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
"""Names of the columns of a SQuAD file, whose rows are questions."""

_DOCUMENT = "-DOCSTART-"
_GAP = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class Conll(RowFile):
    """A word and its tags on each line, separated by tabs or by spaces, and a blank line between sentences.

    A row is a sentence, with a list for each column. Lines that begin with -DOCSTART- are skipped.
    """

    encoding: str | None

    @cached_property
    def header(self) -> tuple[str, ...]:
        first = next(self._sentences(), None)
        if first is None:
            return ()
        n_columns = len(first[0][1])
        middle = (f"column {number}" for number in range(2, n_columns))
        return (TOKENS, *middle, TAGS) if n_columns > 1 else (TOKENS,)

    def records(self, only: str | None = None) -> Iterator[RowRecord]:
        width = len(self.header)
        at = slice(None) if only is None else slice(self.header.index(only), self.header.index(only) + 1)
        for sentence in self._sentences():
            first, fault = sentence[0][0], None
            for line, fields in sentence:
                if len(fields) != width:
                    fault = _uneven(line, len(fields), width)
                    break
                fault = misfit(fields, line, self.limit)
            if fault is None:
                yield first, tuple(map(list, zip(*(fields for _, fields in sentence), strict=True)))[at], None
            else:
                yield first, (), fault

    def _sentences(self) -> Iterator[list[tuple[int, list[str]]]]:
        """Line numbers and fields of each sentence."""
        sentence: list[tuple[int, list[str]]] = []
        stretches = text_stretches(self.path, self.encoding, line_limit(self.limit))
        for number, raw in enumerate(chain.from_iterable(map(split_lines, stretches)), 1):
            line = raw.strip()
            if line and not line.startswith(_DOCUMENT):
                fields = [field.strip() for field in line.split("\t")] if "\t" in line else _GAP.split(line)
                sentence.append((number, fields))
            elif sentence:
                yield sentence
                sentence = []
        if sentence:
            yield sentence

    def describe(self) -> str:
        return f"CoNLL columns, {self.encoding or 'UTF-8'}"


def _uneven(line: int, found: int, wanted: int) -> Fault:
    what = f"the line has {found} {'column' if found == 1 else 'columns'}, the first one of the file {wanted}"
    return Fault("uneven columns", what, "give every word as many columns, and put blank lines between", line, None)


def conll_lines(rows: Iterator[tuple[Sequence[Any], Sequence[Any]]]) -> Iterator[str]:
    """Sentences in columns: for each row the lists of its own columns, and those of further ones."""
    for own, added in rows:
        yield "".join("\t".join(fields) + "\n" for fields in zip(*own, *added, strict=True)) + "\n"


@dataclass(frozen=True)
class Squad(RowFile):
    """SQuAD's JSON (Rajpurkar et al. 2016, 2018): data, paragraphs, qas. A row is a question.

    answers: objects with text and answer_start, none where `is_impossible`; None where the file has no answers. The
    file is held in memory.
    """

    encoding: str | None

    @property
    def header(self) -> tuple[str, ...]:
        return ("id", QUESTION, CONTEXT, ANSWERS)

    def records(self, only: str | None = None) -> Iterator[RowRecord]:
        at = slice(None) if only is None else slice(self.header.index(only), self.header.index(only) + 1)
        for paragraph in self._paragraphs:
            context = paragraph.get(CONTEXT)
            for qa in paragraph.get("qas") or ():
                impossible = qa.get("is_impossible") is True
                answers = [] if impossible and qa.get(ANSWERS) is None else qa.get(ANSWERS)
                values = (*map(_clean, (qa.get("id"), qa.get(QUESTION), context)), answers)
                fault = _damaged(values) or misfit(values, None, self.limit)
                if fault is None and impossible and answers:
                    what = "the question is_impossible, and has an answer"
                    fault = Fault("impossible question", what, "remove one of the two", None, ANSWERS)
                yield None, values[at] if fault is None else (), fault

    @cached_property
    def _paragraphs(self) -> list[dict[str, Any]]:
        text = "".join(text_blocks(self.path, self.encoding))
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
            if isinstance(error, json.JSONDecodeError):
                reason = f"line {error.lineno}: {error.msg}"
            raise DataError(
                f"not JSON: {reason}",
                where=place(self.path),
                fix="correct it; a table of one JSON object on each line is named .jsonl",
            ) from error
        articles = found.get("data") if isinstance(found, dict) else None
        paragraphs: list[Any] = []
        for article in articles if isinstance(articles, list) else [None]:
            inside = article.get("paragraphs") if isinstance(article, dict) else None
            paragraphs += inside if isinstance(inside, list) else [None]
        if not all(isinstance(one, dict) and _are_objects(one.get("qas")) for one in paragraphs):
            raise DataError(
                "not the JSON of SQuAD: it has no data, paragraphs and qas",
                where=place(self.path),
                fix='write {"data": [{"paragraphs": [{"context": "...", "qas": [...]}]}]}; JSON lines are named .jsonl',
            )
        return paragraphs

    def describe(self) -> str:
        return "SQuAD's JSON"


def _are_objects(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, dict) for one in found)


def _clean(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _damaged(values: Sequence[Any]) -> Fault | None:
    for name, value in zip((QUESTION, CONTEXT), values[1:3], strict=True):
        if not isinstance(value, str):
            what = f"the {name} is {'missing' if value is None else type(value).__name__}, not text"
            return Fault("wrong type", what, "write text", None, name)
    return None


def open_annotated(path: Path, ending: str, limit: int, encoding: str | None) -> RowFile:
    """The rows of a file whose format is that of CONLL or SQUAD."""
    return Conll(path, limit, encoding) if ending == CONLL else Squad(path, limit, encoding)
