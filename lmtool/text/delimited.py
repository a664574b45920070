"""Delimited text: lines, records and fields of CSV and its relatives, and how to tell which relative it is.

The grammar is that of Python's csv module in its strict form: a quote opens a quoted field only where a field begins,
two quotes inside one stand for one, and after the closing quote comes a delimiter or the line end. Unlike csv, a fault
does not end the reading: it is named with its line, and the next line begins a new record.
"""

import codecs
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lmtool.errors import DataError, UsageError
from lmtool.text.files import BLOCK, open_bytes, place, reading, shown

FIELD_LIMIT = 1 << 20
"""Characters that a field may have, unless another limit is asked for."""

SAMPLE = 1 << 20
"""Characters from which delimiter and quoting are told."""

LINE_FACTOR = 16
"""A line must be shorter than this many fields at their limit; what is longer is not kept in memory."""

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_LINE_END = re.compile(r"\r\n?|\n")


@dataclass(frozen=True)
class Dialect:
    """How fields are parted."""

    delimiter: str
    quoted: bool
    """Quotes may enclose a field; otherwise they are characters like others."""
    skip_space: bool = False
    """Spaces after a delimiter do not belong to the field."""

    def __str__(self) -> str:
        name = _DELIMITERS.get(self.delimiter, shown(self.delimiter))
        space = ", spaces after it left out" if self.skip_space else ""
        return f"delimiter {name}{space}, {'quotes enclose fields' if self.quoted else 'no quoting'}"


class Fault(NamedTuple):
    """What is wrong with a record."""

    kind: str
    what: str
    fix: str
    line: int
    column: int
    """Index of the field."""
    at_end: bool = False
    """Nothing but the end of the text shows the fault."""


class Record(NamedTuple):
    """The fields of a record, or what is wrong with it, and the line on which it begins."""

    line: int
    fields: list[str]
    fault: Fault | None = None


Line = tuple[int, str]


def read_lines(path: Path, encoding: str | None, limit: int) -> Iterator[Line]:
    """Numbered lines with their ends (CR LF, LF or CR), without a byte order mark; UTF-8 unless `encoding` is given.

    Of a line of LINE_FACTOR * limit characters or more only the first so many are returned.
    Raises DataError where the bytes are no text in that encoding, and UsageError when there is no such encoding.
    """
    number, held, dropped = 1, "", False
    for block in _text(path, encoding):
        lines = _split(held + block)
        held = lines.pop()
        for line in lines:
            if not dropped:
                yield number, line[: LINE_FACTOR * limit]
            number, dropped = number + 1, False
        if len(held) > LINE_FACTOR * limit:
            if not dropped:
                yield number, held[: LINE_FACTOR * limit]
            # A final CR may be half of a line end.
            held, dropped = "\r" if held.endswith("\r") else "", True
    if held and not dropped:
        yield number, held


def _split(text: str) -> list[str]:
    """Whole lines of `text`, and what comes after them; a final CR is held back, since LF may follow."""
    if "\r" not in text:
        *whole, rest = text.split("\n")
        return [*(line + "\n" for line in whole), rest]
    lines, begin = [], 0
    for match in _LINE_END.finditer(text):
        if match.end() == len(text) and match.group() == "\r":
            break
        lines.append(text[begin : match.end()])
        begin = match.end()
    return [*lines, text[begin:]]


def _text(path: Path, encoding: str | None) -> Iterator[str]:
    try:
        "a".encode(encoding or "utf-8")  # Encodings of bytes, such as base64, fail here.
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
    except LookupError:
        raise UsageError(
            f"there is no encoding {shown(encoding or '')}", fix="for example --encoding cp1252, utf-16 or gb18030"
        ) from None
    newlines, first = 0, True
    with reading(path), open_bytes(path) as file:
        while True:
            data = file.read(BLOCK)
            if first:
                _refuse_other_formats(data, path, encoding)
            try:
                text = decoder.decode(data, not data)
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(encoding or "utf-8", "ignore")
                raise _not_text(error, newlines + before.count("\n") + 1, path, encoding) from None
            if first:
                text = text.removeprefix("\ufeff")
            first = first and not text
            newlines += text.count("\n")
            if text:
                yield text
            if not data:
                return


def _refuse_other_formats(head: bytes, path: Path, encoding: str | None) -> None:
    if head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError("a workbook or archive, not text", where=place(path), fix="save the sheet as CSV (UTF-8)")
    if head.startswith(b"\x1f\x8b"):
        raise DataError("gzip, not text", where=place(path), fix="unpack it, or give its name the ending .gz")
    if encoding is None and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError("the text is UTF-16, not UTF-8", where=place(path), fix="say so: --encoding utf-16")


def _not_text(error: UnicodeDecodeError, line: int, path: Path, encoding: str | None) -> DataError:
    byte = f"byte 0x{error.object[error.start]:02x}" if error.start < len(error.object) else "the end"
    other = (
        "name the right one: --encoding NAME" if encoding else "say how it is encoded, for example --encoding cp1252"
    )
    return DataError(f"not valid {encoding or 'UTF-8'}: {byte}", where=f"{place(path)}:{line}", fix=other)


def records(lines: Iterable[Line], dialect: Dialect, limit: int = FIELD_LIMIT) -> Iterator[Record]:
    """The records that lines make; empty lines make none, as in csv.

    A field is a fault when it has more than `limit` characters, is not closed, is closed before its end, or holds NUL.
    After an unclosed quote the next line begins a new record, so that one bad row does not swallow the others.
    """
    again: deque[Line] = deque()
    source = iter(lines)
    delimiter, quoted, skip = dialect.delimiter, dialect.quoted, dialect.skip_space
    while True:
        item = again.popleft() if again else next(source, None)
        if item is None:
            return
        number, line = item
        if len(line) >= LINE_FACTOR * limit:
            yield Record(number, [], long_line(number, limit))
            continue
        if quoted and '"' in line:
            yield _quoted(item, source, again, dialect, limit)
            continue
        line = line.rstrip("\r\n")
        if not line:
            continue
        fields = line.split(delimiter)
        if skip:
            fields = [field.lstrip(" ") for field in fields]
        fault = None
        if "\0" in line:
            fault = _nul(fields, number)
        elif len(line) > limit and max(map(len, fields)) > limit:
            fault = _too_long(fields, number, limit)
        yield Record(number, fields, fault)


def _quoted(first: Line, source: Iterator[Line], again: deque[Line], dialect: Dialect, limit: int) -> Record:
    """The record that begins on a line with quotes; lines that a fault sets free are put into `again`."""
    delimiter, skip = dialect.delimiter, dialect.skip_space
    number, line = first
    at, nul, pos = number, 0, 0
    fields: list[str] = []
    while True:
        nul = nul or ("\0" in line and at)
        while skip and line.startswith(" ", pos):
            pos += 1
        if not line.startswith('"', pos):
            end = line.find(delimiter, pos)
            fields.append(line[pos:end] if end >= 0 else line[pos:].rstrip("\r\n"))
            if end < 0:
                break
            pos = end + 1
            continue
        opened, column, size = at, len(fields), 0
        parts: list[str] = []
        held: list[Line] = []
        pos += 1
        while True:
            end = line.find('"', pos)
            if end >= 0:
                twice = line.startswith('""', end)
                parts.append(line[pos : end + twice])
                pos = end + 1 + twice
                if not twice:
                    break
                continue
            parts.append(line[pos:])
            size += len(line) - pos
            item = (again.popleft() if again else next(source, None)) if size <= limit else None
            if item is None:
                again.extendleft(reversed(held))
                fault = _unclosed(opened, column, limit if size > limit else None)
                return Record(number, fields, fault)
            held.append(item)
            at, line = item
            if len(line) >= LINE_FACTOR * limit:
                again.extendleft(reversed(held))
                return Record(number, fields, _unclosed(opened, column, limit))
            nul = nul or ("\0" in line and at)
            pos = 0
        fields.append("".join(parts))
        if line.startswith(delimiter, pos):
            pos += 1
        elif not line[pos:].rstrip("\r\n"):
            break
        else:
            again.extendleft(reversed(held))
            return Record(number, fields, _stray(opened, at, column, line[pos:]))
    if nul:
        return Record(number, fields, _nul(fields, nul))
    if max(map(len, fields)) > limit:
        return Record(number, fields, _too_long(fields, number, limit))
    return Record(number, fields)


def _unclosed(line: int, column: int, limit: int | None) -> Fault:
    if limit is None:
        return Fault("unclosed quote", "a quote opens here and is never closed", "close it", line, column, at_end=True)
    what = f"a quote opens here and is not closed within {limit:,} characters"
    return Fault("unclosed quote", what, "close it, or shorten the field", line, column)


def _stray(opened: int, closed: int, column: int, rest: str) -> Fault:
    found = shown(rest.rstrip("\r\n"), 20)
    if opened == closed:
        what = f"a quoted field goes on after its closing quote: {found}"
        return Fault(
            "text after a closing quote", what, 'write a quote inside a quoted field twice: ""', opened, column
        )
    what = f"a quote opens here and is not closed before the next one, on line {closed}, followed by {found}"
    return Fault("unclosed quote", what, "close it", opened, column)


def _nul(fields: list[str], line: int) -> Fault:
    column = next(i for i, field in enumerate(fields) if "\0" in field)
    fix = "remove it; if the file is UTF-16, say so: --encoding utf-16"
    return Fault("NUL byte", "a NUL byte, which is not text", fix, line, column)


def long_line(line: int, limit: int) -> Fault:
    """The fault of a line that was not kept whole."""
    what = f"the line has {LINE_FACTOR * limit:,} characters or more, the limit of a line"
    return Fault("field too long", what, "shorten or divide its fields", line, 0)


def _too_long(fields: list[str], line: int, limit: int) -> Fault:
    column = next(i for i, field in enumerate(fields) if len(field) > limit)
    return Fault(
        "field too long", f"the field has more than {limit:,} characters", "shorten or divide it", line, column
    )


def sniff(lines: list[Line], whole: bool, order: str, delimiter: str | None, quoted: bool | None) -> Dialect:
    """The dialect of the first lines of a text; `whole` when there are no more. What is given is not guessed.

    The delimiter is the one that occurs in the header and gives most records as many fields as the header has;
    of equals, the first in `order`. Quotes count where the delimiter is no tab. Where it is a tab, they count when
    they are clearly used: when reading them mends records that are ragged without, or when all fields with quotes
    are written as quoted fields are, and one of them holds a doubled quote, or a whole column and its name are quoted.
    Spaces after a delimiter are left out when they follow every one, or when more records are good without them.
    """
    if delimiter is None:
        kinds = [Dialect(d, quotes) for d in order for quotes in _possible(d, quoted)]
        scores = [_score(lines, whole, dialect) for dialect in kinds]
        delimiter = kinds[scores.index(max(scores))].delimiter
    if quoted is None:
        quoted = delimiter != "\t" or _uses_quotes(lines, whole)
    dialect = Dialect(delimiter, quoted)
    if quoted and delimiter != " " and any(delimiter + " " in line for _, line in lines):
        spaced = Dialect(delimiter, quoted, skip_space=True)
        better = _score(lines, whole, spaced) - _score(lines, whole, dialect)
        rows = [record.fields[1:] for record in records(lines, dialect) if len(record.fields) > 1]
        always = bool(rows) and all(field.startswith(" ") for row in rows for field in row)
        return spaced if better > 0 or (better == 0 and always) else dialect
    return dialect


def _possible(delimiter: str, quoted: bool | None) -> list[bool]:
    if quoted is not None:
        return [quoted]
    return [True, False] if delimiter == "\t" else [True]


def _score(lines: list[Line], whole: bool, dialect: Dialect) -> float:
    """The part of the records that have as many fields as the header; -1 when the header does not hold several."""
    width, counts = 0, Counter[bool]()
    for record in records(lines, dialect):
        if record.fault and record.fault.at_end and not whole:
            break
        if not width:
            width = 0 if record.fault else len(record.fields)
            if width < 2:
                return -1.0
        counts[not record.fault and len(record.fields) == width] += 1
    return counts[True] / max(counts.total(), 1)


def _uses_quotes(lines: list[Line], whole: bool) -> bool:
    """Whether quotes in tab-separated text enclose fields; see `sniff`."""
    if not any('"' in line for _, line in lines):
        return False
    plain, quoted = (_score(lines, whole, Dialect("\t", quotes)) for quotes in (False, True))
    if plain != quoted:
        return quoted > plain
    rows = [record.fields for record in records(lines, Dialect("\t", False))]
    suspects = [field for row in rows for field in row if '"' in field]
    if not all(_QUOTED.fullmatch(field) for field in suspects):
        return False
    columns = zip(*(row for row in rows if len(row) == len(rows[0])), strict=True)
    return any('""' in field[1:-1] for field in suspects) or any(
        len(column) > 1 and all('"' in field for field in column) for column in columns
    )
