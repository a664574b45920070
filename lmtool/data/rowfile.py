"""Files of rows: delimited text, JSON lines, lists of JSON objects and Parquet, for corpora and tables."""

import json
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lmtool.data.delimited import Dialect, DialectHints, Fault, RowRecord, line_limit, long_line, misfit, records, sniff
from lmtool.data.files import (
    Extent,
    count_lines,
    display,
    lines_before,
    open_bytes,
    packing,
    reading,
    shown,
    shown_all,
    split_lines,
    text_blocks,
    text_stretches,
)
from lmtool.errors import DataError
from lmtool.printable import counted
from lmtool.tokenization.tokenizer import without_surrogates

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
"""Endings of files of rows; each may be followed by one of PACKED."""

_ORDER = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""Candidate delimiters, the most likely first."""
_HEAD = 1000
"""Rows that tell the columns: of a .jsonl file by their keys, of delimited text by what the first row repeats."""
_COMPARED = 100
"""Characters by which names of columns are compared with an unknown one."""
LONGEST_NAME = 3
"""Words that the name of a column has at most, where its cells look like a row."""
_WORD = re.compile(r"[\w.-]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, whose words have two or three of them."""
_VISIBLE = re.compile(r"[^ \t\r\n]")
_LIST_FIX = 'write [{"text": "..."}, {"text": "..."}]; one object on each line is a .jsonl file'
_JSON_FIX = 'write one JSON object on each line, for example {"text": "..."}'


@dataclass(frozen=True)
class RowFile(ABC):
    """A file of rows. Each reading begins at the first one.

    limit: characters that a field of delimited text may have, and of which `delimited.line_limit` follows.
    """

    path: Path
    limit: int

    @property
    @abstractmethod
    def header(self) -> tuple[str, ...]:
        """The names of the columns as they are in the file; none in an empty file. Raises DataError."""

    @abstractmethod
    def records(self) -> Iterator[RowRecord]:
        """All rows in order, faulty ones too, with a value for each column of the header; see `open_rows`.

        Blank rows of delimited text and JSON lines are skipped. Duplicate JSON keys, and values of JSON and Parquet
        with a NUL or above the limit are faults. Raises DataError when the file cannot be read, and ResourceError.
        """

    @abstractmethod
    def describe(self) -> str:
        """A short description of the format."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names: the header without surrounding spaces; `column 3` where the third has none."""
        return tuple(name.strip() or f"column {number}" for number, name in enumerate(self.header, 1))

    def where(self, row: int, line: int | None, column: int | str | None) -> str:
        """A position in the file, as shown in messages; a column is given by name or index."""
        if isinstance(column, int):
            column = self.names[column] if column < len(self.names) else None
        where = f"{display(self.path)}:{line}, row {row}" if line else f"{display(self.path)}, row {row}"
        return where if column is None else f"{where}, column {shown(column)}"


def open_rows(
    path: Path,
    ending: str,
    limit: int,
    encoding: str | None = None,
    hints: DialectHints = DialectHints(),  # noqa: B008  frozen
    extent: Extent | None = None,
) -> "Delimited | JsonLines | JsonList | Parquet":
    """The rows of a file whose format is that of one of ENDINGS, or .json for a list of objects.

    extent: of JSON lines, the part of it that is read.

    Their `records` may be of `only` one column, without the faults of others, and raise DataError where it is missing.
    What is not known of the dialect is inferred: see `delimited.sniff`; for `encoding` see `files.text_blocks`.
    """
    match ending:
        case ".csv" | ".tsv":
            return Delimited(path, limit, encoding, _ORDER[ending], hints)
        case ".jsonl":
            return JsonLines(path, limit, encoding, extent=extent)
        case ".json":
            return JsonList(path, limit, encoding)
    return Parquet(path, limit)


@dataclass(frozen=True)
class TextRows(RowFile):
    """Rows in a file of text. extent: the part of it that is read; None for all of it."""

    encoding: str | None
    extent: Extent | None = field(default=None, kw_only=True)

    def stretches(self) -> Iterator[str]:
        """Blocks of whole lines, see `text_stretches`."""
        return text_stretches(self.path, self.encoding, line_limit(self.limit), self.extent)

    def lines(self) -> Iterator[str]:
        """The lines with their line ends."""
        return chain.from_iterable(map(split_lines, self.stretches()))


@dataclass(frozen=True)
class Delimited(TextRows):
    """Delimited text. order: candidate delimiters, the most likely first. hints: what is known of the dialect."""

    order: str
    hints: DialectHints

    @cached_property
    def dialect(self) -> Dialect:
        """How fields are separated: as given, or as inferred."""
        head, stretches, sample = "", self.stretches(), self.hints.sample
        for text in stretches:
            head += text
            if len(head) > sample:
                break
        # What follows a very long line is not looked for, since that line may have gigabytes.
        is_whole = len(head) <= 2 * sample and next(stretches, None) is None
        return sniff(head[: 2 * sample], is_whole, self.order, self.hints)

    @cached_property
    def header(self) -> tuple[str, ...]:
        first = next(self._records(), None)
        if first is None:
            return ()
        line, names, fault = first
        where = f"{display(self.path)}:{line}, the header"
        if fault:
            where = f"{display(self.path)}:{fault.line}, the header, column {int(fault.column or 0) + 1}"
            raise DataError(fault.what, where=where, fix=fault.fix)
        if not any(name.strip() for name in names):
            raise DataError("the header names no column", where=where, fix="name the columns in the first row")
        return tuple(names) if self.headed else tuple(f"column {number}" for number in range(1, len(names) + 1))

    @cached_property
    def headed(self) -> bool:
        """Whether the first row names the columns. It does not where one of its cells is as long as a sentence, and
        another is in its column again in the first rows, as a class is and a name is not.
        """
        records = (fields for _, fields, fault in islice(self._records(), _HEAD) if fault is None)
        first = next(records, ())
        is_name = [count_words(name) <= LONGEST_NAME for name in first]
        if all(is_name):
            return True
        short = [i for i, name in enumerate(first) if is_name[i] and name.strip()]
        return not any(i < len(fields) and fields[i] == first[i] for fields in records for i in short)

    def records(self, only: str | None = None) -> Iterator[RowRecord]:
        width = len(self.header)
        if not width:
            return
        if only is not None and only not in self.header:
            raise missing_column(only, self.header, f"{display(self.path)}:1", "--column")
        at = None if only is None else self.header.index(only)
        for record in islice(self._records(), int(self.headed), None):
            line, fields, fault = record
            if fault is not None:
                yield record
            elif len(fields) == width:
                yield record if at is None else (line, (fields[at],), None)
            elif any(field.strip() for field in fields):
                yield line, fields, self._ragged(fields, line)

    def _records(self) -> Iterator[RowRecord]:
        return records(self.stretches(), self.dialect, self.limit)

    def _ragged(self, fields: Sequence[str], line: int | None) -> Fault:
        width = len(self.header)
        what = f"the row has {counted(len(fields), 'field')}, the header {width}"
        fix = "quote fields with delimiters or line breaks" if self.dialect.quoted else "take tabs out of fields"
        if len(fields) < width:
            fix = "give every row as many delimiters as the header"
        return Fault("ragged row", what, fix, line, min(len(fields), width - 1))

    def describe(self) -> str:
        return f"{self.dialect}, {'' if self.headed else 'no header, '}{self.encoding or 'UTF-8'}"


@dataclass(frozen=True)
class JsonObjects(TextRows):
    """JSON objects."""

    def where(self, row: int, line: int | None, column: int | str | None) -> str:
        if self.extent is None or not line:
            return super().where(row, line, column)
        where = self._at(line)
        return where if column is None else f"{where}, column {shown(str(column))}"

    def _at(self, line: int) -> str:
        before = 0 if self.extent is None else lines_before(self.path, self.extent.begin)
        return f"{display(self.path)}:{before + line}"

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The keys of the first objects, in order of occurrence."""
        keys: dict[str, None] = {}
        for _, row in islice(self._objects(_UNIQUE), _HEAD):
            if not isinstance(row, Fault):
                keys.update(dict.fromkeys(row))
        return tuple(keys)

    def records(self, only: str | None = None) -> Iterator[RowRecord]:
        names = self.header if only is None else ()
        for line, row in self._objects(_UNIQUE if only is None else _ANY):
            if isinstance(row, Fault):
                yield line, (), row
            elif only is None:
                values = tuple(clean(row.get(name)) for name in names)
                yield line, values, misfit(values, line, self.limit)
            elif only in row:
                yield line, (clean(row[only]),), None
            else:
                raise missing_column(only, list(row), self._at(line), "--column")

    @abstractmethod
    def _objects(self, decoder: json.JSONDecoder) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
        """The objects in order, each with the line on which it begins."""


@dataclass(frozen=True)
class JsonLines(JsonObjects):
    """One JSON object per line."""

    def _objects(self, decoder: json.JSONDecoder) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
        for line, row in enumerate(self.lines(), 1):
            if not row.isspace():
                yield line, self._parse(row, line, decoder)

    def _parse(self, row: str, line: int, decoder: json.JSONDecoder) -> dict[str, Any] | Fault:
        if len(row) >= line_limit(self.limit):
            return long_line(line, self.limit)
        try:
            value = decoder.decode(row)
        except _DuplicateKey as error:
            return _twice(error, line)
        except (ValueError, RecursionError) as error:
            return Fault("not JSON", f"not JSON: {json_reason(error)}: {shown(row.strip(), 40)}", _JSON_FIX, line, None)
        if not isinstance(value, dict):
            return Fault("not JSON", f"not a JSON object: {shown(row.strip(), 40)}", _JSON_FIX, line, None)
        return value

    def describe(self) -> str:
        return "JSON lines"


@dataclass(frozen=True)
class JsonList(JsonObjects):
    """A list of JSON objects, of which few are held in memory. What is not one ends the reading."""

    def _objects(self, decoder: json.JSONDecoder) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
        text = _Cursor(text_blocks(self.path, self.encoding))
        self._expect(text, "[")
        if text.peek() != "]":
            while True:
                yield self._object(text, decoder)
                if self._expect(text, ",]") == "]":
                    break
        else:
            self._expect(text, "]")
        if text.peek():
            raise self._error("text follows the list", text.line, "remove it, or put it into the list")

    def _object(self, text: "_Cursor", decoder: json.JSONDecoder) -> tuple[int, dict[str, Any] | Fault]:
        if text.peek() != "{":
            raise self._error("the list has something other than objects", text.line, _LIST_FIX)
        line = text.line
        while True:
            try:
                return line, text.take(decoder)
            except _DuplicateKey as error:
                text.take(_ANY)
                return line, _twice(error, line)
            except (ValueError, RecursionError) as error:
                if isinstance(error, json.JSONDecodeError) and text.held < line_limit(self.limit) and text.grow():
                    continue
                line = text.line_of(error) if isinstance(error, json.JSONDecodeError) else line
                raise self._error(f"not JSON: {json_reason(error)}", line, _LIST_FIX) from error

    def _expect(self, text: "_Cursor", characters: str) -> str:
        """The next visible character, which must be one of these."""
        if not (found := text.peek()) or found not in characters:
            wanted = " or ".join(characters)
            raise self._error(f"not JSON: here {wanted} is missing", text.line, "correct it, or copy the file again")
        text.skip()
        return found

    def _error(self, what: str, line: int, fix: str) -> DataError:
        return DataError(what, where=f"{display(self.path)}:{line}", fix=fix)

    def describe(self) -> str:
        return "a list of JSON objects"


class _Cursor:
    """A place in text that comes in blocks. line: its number. held: characters after it that have been read."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks, self._text, self._at = blocks, "", 0
        self.line = 1

    @property
    def held(self) -> int:
        return len(self._text) - self._at

    def peek(self) -> str:
        """The next visible character, to which the place moves; empty at the end."""
        while True:
            found = _VISIBLE.search(self._text, self._at)
            self._move(found.start() if found else len(self._text))
            if found or not self.grow():
                return found[0] if found else ""

    def skip(self) -> None:
        """Move by a character."""
        self._move(self._at + 1)

    def take(self, decoder: json.JSONDecoder) -> Any:
        """The JSON value here; the place moves behind it. Raises as the decoder does, also where more is to be read."""
        value, end = decoder.raw_decode(self._text, self._at)
        self._move(end)
        return value

    def grow(self) -> bool:
        """Read as much again as is held, so that a long value is not decoded often; whether there was any."""
        blocks, wanted = [self._text[self._at :]], max(1, self.held)
        while wanted > 0 and (block := next(self._blocks, "")):
            blocks.append(block)
            wanted -= len(block)
        self._text, self._at = "".join(blocks), 0
        return len(blocks) > 1

    def line_of(self, error: json.JSONDecodeError) -> int:
        """The line of an error of `take`."""
        return self.line + count_lines(self._text, self._at, error.pos)

    def _move(self, at: int) -> None:
        self.line += count_lines(self._text, self._at, at)
        self._at = at


class _DuplicateKey(Exception):
    pass


def _twice(error: _DuplicateKey, line: int) -> Fault:
    what = f"the key {shown(str(error))} occurs twice in the object"
    return Fault("duplicate key", what, "keep one of the two", line, str(error))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise _DuplicateKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return row


_ANY = json.JSONDecoder()
_UNIQUE = json.JSONDecoder(object_pairs_hook=_unique)


def json_reason(error: ValueError | RecursionError) -> str:
    """Why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def clean(value: Any) -> Any:
    """A value without lone surrogates."""
    return without_surrogates(value) if isinstance(value, str) else value


class Parquet(RowFile):
    """Parquet, a few rows of it at a time in memory."""

    @cached_property
    def header(self) -> tuple[str, ...]:
        with self._opened() as file:
            return tuple(file.schema_arrow.names)

    def records(self, only: str | None = None) -> Iterator[RowRecord]:
        with self._opened() as file:
            names = file.schema_arrow.names
            if only is not None and only not in names:
                raise missing_column(only, names, display(self.path), "--column")
            for batch in file.iter_batches(batch_size=256, columns=None if only is None else [only]):
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield None, values, misfit(values, None, self.limit) if only is None else None

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow
        from pyarrow import parquet

        with reading(self.path), tempfile.TemporaryFile() as unpacked, open_bytes(self.path) as packed:
            file: Any = packed
            if packing(self.path):
                shutil.copyfileobj(packed, unpacked)
                file = unpacked
            try:
                yield parquet.ParquetFile(file)
            except UnicodeDecodeError as error:
                fix = "write the file anew, with text in UTF-8"
                raise DataError("a text is not valid UTF-8", where=display(self.path), fix=fix) from error
            except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
                what = f"not a Parquet file: {shown(str(error), 100)}"
                fix = "copy it again, or rename it to the ending of its format"
                raise DataError(what, where=display(self.path), fix=fix) from error

    def describe(self) -> str:
        return "Parquet"


def matching_column(column: str, names: Sequence[str]) -> str | None:
    """The name among `names` that is a column's: equal to it, or else the only one with the same `bare_name`."""
    alike = [name for name in names if bare_name(name) == bare_name(column)]
    return column if column in names else alike[0] if len(alike) == 1 else None


def count_words(text: str) -> int:
    """Words of a text between spaces, and of a script without spaces about as many as there would be."""
    unspaced = len(_UNSPACED.findall(text))
    return len(text.split()) if not unspaced else len(_UNSPACED.sub(" ", text).split()) + max(1, unspaced // 3)


def known_column(column: str, names: Sequence[str], where: str, flag: str) -> str:
    """`matching_column`. Raises DataError where there is none; see `missing_column`."""
    if (name := matching_column(column, names)) is None:
        raise missing_column(column, names, where, flag)
    return name


def missing_column(column: str, names: Sequence[str], where: str, flag: str) -> DataError:
    """The error for one missing column; see `missing_columns`."""
    return missing_columns([(column, flag)], names, where)


def missing_columns(missing: Sequence[tuple[str, str]], names: Sequence[str], where: str) -> DataError:
    """The error for columns that a table lacks, each with the flag that takes it: lists those that the table has, and
    suggests the nearest ones where there are some for all."""
    bare = {bare_name(name)[:_COMPARED]: name for name in names}
    fixes = []
    for column, flag in missing:
        near = get_close_matches(bare_name(column)[:_COMPARED], bare, n=1) or (list(bare) if len(bare) == 1 else [])
        fixes += [f"{flag} {name if _WORD.fullmatch(name) else shown(name)}" for key in near for name in [bare[key]]]
    flags = " and ".join(dict.fromkeys(flag for _, flag in missing))
    fix = f"did you mean {' '.join(fixes)}?" if len(set(fixes)) == len(missing) else f"name one of these with {flags}"
    nouns = "column" if len(missing) == 1 else "columns"
    what = f"no {nouns} {shown_all([column for column, _ in missing])}; found {shown_all(names)}"
    return DataError(what, where=where, fix=fix)


def bare_name(name: str) -> str:
    """A name for comparison: in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", name.casefold())


def not_text(value: object, where: str) -> DataError:
    """The error for a value that is not text, in a column of text."""
    fix = "name the column of text with --column"
    return DataError(f"the column holds {type(value).__name__}, not text", where=where, fix=fix)
