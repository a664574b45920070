"""Reads annotated text: sentences in CoNLL-style columns, and questions about contexts in SQuAD's JSON."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmtool.data.delimited import RecordFault, RowRecord, find_field_fault
from lmtool.data.files import display_path, read_text_blocks
from lmtool.data.rowfile import TextRowFileBase, clean_text, describe_json_error
from lmtool.errors import DataError
from lmtool.printable import format_count

CONLL_SUFFIX, SQUAD_SUFFIX = ".conll", ".json"
"""Suffixes of these files; each may be followed by one of COMPRESSED_SUFFIXES."""

TOKENS_COLUMN, TAGS_COLUMN = "tokens", "tags"
"""Names of the first and the last column of a CoNLL file, whose rows are sentences."""

QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
"""Names of the columns of a SQuAD file, whose rows are questions."""

_DOCUMENT_MARK = "-DOCSTART-"
_COLUMN_GAP = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class ConllFile(TextRowFileBase):
    """A word and its tags on each line, separated by tabs or by spaces, and a blank line between sentences.

    A row is a sentence, with a list for each column. Lines that begin with -DOCSTART- are skipped.
    """

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        first = next(self._read_sentences(), None)
        if first is None:
            return ()
        n_columns = len(first[0][1])
        middle = (f"column {number}" for number in range(2, n_columns))
        return (TOKENS_COLUMN, *middle, TAGS_COLUMN) if n_columns > 1 else (TOKENS_COLUMN,)

    def read_rows_and_faults(self) -> Iterator[RowRecord]:
        width = len(self.column_names)
        for sentence in self._read_sentences():
            fault = None
            for line, fields in sentence:
                if len(fields) == width:
                    fault = find_field_fault(fields, line, self.field_limit)
                else:
                    what = f"the line has {format_count(len(fields), 'column')}, the first one of the file {width}"
                    fix = "give every word as many columns, and put blank lines between"
                    fault = RecordFault("uneven columns", what, fix, line, None)
                if fault is not None:
                    break
            words = [] if fault else [fields for _, fields in sentence]
            yield sentence[0][0], tuple(map(list, zip(*words, strict=True))), fault

    def _read_sentences(self) -> Iterator[list[tuple[int, list[str]]]]:
        """Yields line numbers and fields of each sentence."""
        sentence: list[tuple[int, list[str]]] = []
        for number, line in enumerate(map(str.strip, self.lines()), 1):
            if line and not line.startswith(_DOCUMENT_MARK):
                fields = [field.strip() for field in line.split("\t")] if "\t" in line else _COLUMN_GAP.split(line)
                sentence.append((number, fields))
            elif sentence:
                yield sentence
                sentence = []
        if sentence:
            yield sentence

    def describe(self) -> str:
        return f"CoNLL columns, {self.encoding or 'UTF-8'}"


@dataclass(frozen=True)
class SquadFile(TextRowFileBase):
    """SQuAD's JSON (Rajpurkar et al. 2016, 2018): data, paragraphs, qas. A row is a question.

    answers: objects with text and answer_start, none if `is_impossible`; None if the file has no answers. The file is
    held in memory.
    """

    @property
    def column_names(self) -> tuple[str, ...]:
        return ("id", QUESTION, CONTEXT, ANSWERS)

    def read_rows_and_faults(self) -> Iterator[RowRecord]:
        for paragraph in self._paragraphs:
            context = paragraph.get(CONTEXT)
            for qa in paragraph.get("qas") or ():
                impossible = qa.get("is_impossible") is True
                answers = [] if impossible and qa.get(ANSWERS) is None else qa.get(ANSWERS)
                values = (*map(clean_text, (qa.get("id"), qa.get(QUESTION), context)), answers)
                for name, value in ((QUESTION, values[1]), (CONTEXT, values[2])):
                    if not isinstance(value, str):
                        what = f"the {name} is {'missing' if value is None else type(value).__name__}, not text"
                        fault: RecordFault | None = RecordFault("wrong type", what, "write text", None, name)
                        break
                else:
                    fault = find_field_fault(values, None, self.field_limit)
                if fault is None and impossible and answers:
                    what = "the question is_impossible, and has an answer"
                    fault = RecordFault("impossible question", what, "remove one of the two", None, ANSWERS)
                yield None, values if fault is None else (), fault

    @cached_property
    def _paragraphs(self) -> list[dict[str, Any]]:
        text = "".join(read_text_blocks(self.path, self.encoding))
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
            fix = "correct it; of a table of one JSON object on each line, the first line is to be one"
            what = f"not JSON: {line}{describe_json_error(error)}"
            raise DataError(what, where=display_path(self.path), fix=fix) from error
        articles = content.get("data") if isinstance(content, dict) else None
        paragraphs: list[Any] = []
        for article in articles if isinstance(articles, list) else [None]:
            inside = article.get("paragraphs") if isinstance(article, dict) else None
            paragraphs += inside if isinstance(inside, list) else [None]
        qas = [one.get("qas") if isinstance(one, dict) else None for one in paragraphs]
        if not all(isinstance(of_one, list) and all(isinstance(qa, dict) for qa in of_one) for of_one in qas):
            what = "neither a list of objects nor the JSON of SQuAD, which has data, paragraphs and qas"
            fix = 'write [{"text": "..."}, ...], or {"data": [{"paragraphs": [...]}]}'
            raise DataError(what, where=display_path(self.path), fix=fix)
        return paragraphs

    def describe(self) -> str:
        return "SQuAD's JSON"
