"""Parses delimited text in CSV dialects, and infers the dialect.

The grammar is that of Python's csv module in its strict form: a quote opens a quoted field only where a field begins,
a doubled quote inside one is a quote, and after the closing quote comes a delimiter or the line end. Unlike in csv, a
fault does not end the parsing: it is returned with its line, and the next line begins a new record.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

from lmtool.data.files import MAX_TEXT_LINE_CHARACTERS, count_line_ends, find_next_line, iterate_lines, quote

MAX_FIELD_CHARACTERS = 1 << 20
"""Default limit of the length of a field."""

_MAX_FIELDS_OF_LINE = 16
"""A line must be shorter than this many fields of maximal length."""

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_NUL_FIX = "remove it; if the file is UTF-16, add --encoding utf-16-le"


@dataclass(frozen=True)
class Dialect:
    """How fields are separated."""

    delimiter: str
    quoted: bool
    """Quotes may enclose a field; otherwise they are ordinary characters."""
    skip_space: bool = False
    """Spaces after a delimiter are not part of the field."""

    def __str__(self) -> str:
        name = _DELIMITERS.get(self.delimiter, quote(self.delimiter))
        space = ", spaces after it skipped" if self.skip_space else ""
        return f"delimiter {name}{space}, {'quotes enclose fields' if self.quoted else 'no quoting'}"


@dataclass(frozen=True)
class DialectHints:
    """The known properties of a dialect; the others are inferred from the first `sample` characters."""

    delimiter: str | None = None
    quoted: bool | None = None
    sample: int = 1 << 20


class RecordFault(NamedTuple):
    """What is wrong with a record. `kind` names it without details."""

    kind: str
    what: str
    fix: str
    line: int | None
    column: int | str | None
    """Index or name of the column."""
    at_end: bool = False
    """The fault is only detected at the end of the text."""


def max_line_length(limit: int) -> int:
    """Returns the length that a line must not reach if fields have at most `limit` characters."""
    return min(_MAX_FIELDS_OF_LINE * limit, MAX_TEXT_LINE_CHARACTERS)


RowRecord = tuple[int | None, Sequence[Any], RecordFault | None]
"""The line on which a record begins, where there are lines; its values; and its fault.

A plain tuple: a corpus has hundreds of thousands of them a second."""


def parse_records(
    blocks: Iterable[str], dialect: Dialect, field_limit: int = MAX_FIELD_CHARACTERS
) -> Iterator[RowRecord]:
    """Yields the records of text in blocks of whole lines; skips empty lines as csv does.

    A field is a fault if it has more than `field_limit`, is not closed, is closed before its end, or has a
    NUL. After an unclosed quote the next line begins a new record, so that one bad row does not consume the others.
    """
    delimited = partial(csv.reader, delimiter=dialect.delimiter, skipinitialspace=dialect.skip_space, strict=True)
    source = iter(blocks)
    line = 1
    for text in source:
        is_last = False
        while text:
            # The csv module is several times faster. Where it stops, at a fault, inside a field or at one of more than
            # 128 KiB, `_parse_record` continues.
            lines, n_done, start = iterate_lines(text), 0, 0
            if "\0" not in text and len(text) < max_line_length(field_limit):
                is_long = len(text) > field_limit
                reader = delimited(lines, quoting=csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE)
                with suppress(csv.Error):
                    for fields in reader:
                        if is_long and max(map(len, fields), default=0) > field_limit:
                            break
                        if fields:
                            yield line + n_done, fields, None
                        n_done, start = reader.line_num, lines.tell()
            line += n_done
            while start < len(text) and (parsed := _parse_record(text, start, line, is_last, dialect, field_limit)):
                record, stop = parsed
                if record[2] or text[start] not in "\r\n":
                    yield record
                start, line = stop, line + count_line_ends(text, start, stop)
            text = text[start:]
            if text:
                more = _read_at_least(len(text), source)
                text, is_last = text + more, not more


def _read_at_least(size: int, source: Iterator[str]) -> str:
    """Reads at least `size` characters. A caller that doubles it reads a long field in linear time."""
    texts: list[str] = []
    while size > 0 and (text := next(source, "")):
        texts.append(text)
        size -= len(text)
    return "".join(texts)


def _parse_record(
    text: str, start: int, line: int, is_last: bool, dialect: Dialect, field_limit: int
) -> tuple[RowRecord, int] | None:
    """Parses the record that begins at `start`, and returns it with the position of the next one.

    Returns None if the record does not end in `text` and more text follows.
    """
    fields: list[str] = []
    position, stop = start, find_next_line(text, start)
    if stop - start >= max_line_length(field_limit):
        return (line, fields, long_line_fault(line, field_limit)), stop
    while True:
        while dialect.skip_space and text.startswith(" ", position):
            position += 1
        if not dialect.quoted or not text.startswith('"', position):
            end = text.find(dialect.delimiter, position, stop)
            fields.append(text[position:end] if end >= 0 else text[position:stop].rstrip("\r\n"))
            if end < 0:
                break
            position = end + 1
            continue
        position, next_line = position + 1, stop
        # A field at its limit may be twice as long in the file, where all its characters are doubled quotes.
        horizon = position + 2 * field_limit
        window = min(find_next_line(text, horizon), position + max_line_length(field_limit))
        close = text.find('"', position, window)
        while close >= 0 and text.startswith('"', close + 1):
            close = text.find('"', close + 2, window)
        if close < 0 and horizon >= len(text) and not is_last:
            return None
        opened = line + count_line_ends(text, start, position)
        if close < 0:
            fault = _unclosed_quote_fault(opened, len(fields), field_limit if horizon < len(text) else None)
            return (line, fields, fault), next_line
        if close >= stop:
            stop = find_next_line(text, close)
        rest = text[close + 1 : stop].rstrip("\r\n")
        if rest and not rest.startswith(dialect.delimiter):
            closed = line + count_line_ends(text, start, close)
            return (line, fields, _text_after_quote_fault(opened, closed, len(fields), rest)), next_line
        fields.append(text[position:close].replace('""', '"'))
        if not rest:
            break
        position = close + 2
    nul = text.find("\0", start, stop)
    misfitting = find_field_fault(fields, line + count_line_ends(text, start, max(start, nul)), field_limit, _NUL_FIX)
    if any(len(part) >= max_line_length(field_limit) for part in iterate_lines(text[start:stop])):
        misfitting = long_line_fault(line, field_limit)
    return (line, fields, misfitting), stop


def _unclosed_quote_fault(line: int, column: int, max_characters: int | None) -> RecordFault:
    if max_characters is None:
        what = "a quote opens here and is never closed"
        return RecordFault("unclosed quote", what, "close it", line, column, at_end=True)
    what = f"a quote opens here and is not closed within {max_characters:,} characters"
    return RecordFault("unclosed quote", what, "close it, or shorten the field", line, column)


def _text_after_quote_fault(opening_line: int, closing_line: int, column: int, rest: str) -> RecordFault:
    follows = quote(rest, 20)
    if opening_line == closing_line:
        what = f"a quoted field continues after its closing quote: {follows}"
        fix = 'write a quote inside a quoted field twice: ""'
        return RecordFault("text after a closing quote", what, fix, opening_line, column)
    what = f"a quote opens here and is not closed before the next one, on line {closing_line}, followed by {follows}"
    return RecordFault("unclosed quote", what, "close it", opening_line, column)


def find_field_fault(
    values: Sequence[Any], line: int | None, max_characters: int, nul_fix: str = "remove it"
) -> RecordFault | None:
    """Returns the fault of the first text that is longer than `max_characters` or has a NUL; None if there is none."""
    for column, value in enumerate(values):
        if isinstance(value, str):
            if len(value) > max_characters:
                what = f"the field has more than {max_characters:,} characters"
                return RecordFault("field too long", what, "shorten or divide it", line, column)
            if "\0" in value:
                return RecordFault("NUL byte", "a NUL byte, which is not text", nul_fix, line, column)
    return None


def long_line_fault(line: int, limit: int) -> RecordFault:
    """Returns the fault of a line that was truncated."""
    what = f"the line has {max_line_length(limit):,} characters or more, the limit of a line"
    return RecordFault("field too long", what, "shorten or divide its fields", line, None)


def infer_dialect(text: str, is_whole_text: bool, candidate_delimiters: str, hints: DialectHints) -> Dialect:
    """Infers the dialect, except what `hints` give, from the first lines of a text, or all if `is_whole_text`.

    The delimiter is the one that occurs in the header and gives most records as many fields as the header has; ties go
    to the first of `candidate_delimiters`. Quotes enclose fields unless the delimiter is a tab; then only if clearly
    used: when fewer records are ragged with them, or when all fields with quotes are well-formed quoted fields, and one
    has a doubled quote, or a whole column and its name are quoted. Spaces after a delimiter are skipped when they
    follow every one, or when more records are good without them.
    """
    parse = cache(lambda dialect: _parse_sample(text, is_whole_text, dialect))
    delimiter, quoted = hints.delimiter, hints.quoted
    if delimiter is None:
        both = [True, False] if quoted is None else [quoted]
        kinds = [Dialect(d, q) for d in candidate_delimiters for q in (both if d == "\t" else both[:1])]
        delimiter = max(kinds, key=lambda dialect: _score_sample(parse(dialect))).delimiter
    if quoted is None:
        quoted = delimiter != "\t" or _are_tabbed_fields_quoted(
            text, *(_score_sample(parse(Dialect("\t", q))) for q in (False, True))
        )
    dialect = Dialect(delimiter, quoted)
    if quoted and delimiter != " " and delimiter + " " in text:
        spaced = Dialect(delimiter, quoted, skip_space=True)
        better = _score_sample(parse(spaced)) - _score_sample(parse(dialect))
        later = [field for _, fields, _ in parse(dialect) for field in fields[1:]]
        always = bool(later) and all(field.startswith(" ") for field in later)
        return spaced if better > 0 or (better == 0 and always) else dialect
    return dialect


def _parse_sample(text: str, is_whole_text: bool, dialect: Dialect) -> list[RowRecord]:
    """Parses the records that end in a sample; none if the header has fewer than two fields."""
    rows = parse_records([text], dialect)
    header = next(rows, (1, [], None))
    if header[2] or len(header[1]) < 2:
        return []
    return [header, *takewhile(lambda record: is_whole_text or not (record[2] and record[2].at_end), rows)]


def _score_sample(sample: list[RowRecord]) -> float:
    """Returns the fraction of the records that have as many fields as the header; -1 if there are none."""
    good = [not fault and len(fields) == len(sample[0][1]) for _, fields, fault in sample]
    return sum(good) / len(good) if good else -1.0


def _are_tabbed_fields_quoted(text: str, score_plain: float, score_quoted: float) -> bool:
    """Returns whether quotes in tab-separated text enclose fields; see `infer_dialect`."""
    if score_plain != score_quoted:
        return score_quoted > score_plain
    rows = [fields for _, fields, _ in parse_records([text], Dialect("\t", False))]
    suspects = [field for row in rows for field in row if '"' in field]
    if not all(_QUOTED.fullmatch(field) for field in suspects):
        return False
    if any('""' in field[1:-1] for field in suspects):
        return True
    columns = zip(*(row for row in rows if len(row) == len(rows[0])), strict=True)
    return any(len(column) > 1 and all('"' in field for field in column) for column in columns)
