"""Reads files of rows: delimited text, JSON lines, lists of JSON objects and Parquet."""

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

from lmtool.data.delimited import (
    Dialect,
    DialectHints,
    RecordFault,
    RowRecord,
    find_field_fault,
    infer_dialect,
    long_line_fault,
    max_line_length,
    parse_records,
)
from lmtool.data.files import (
    ByteRange,
    compression_suffix,
    convert_read_errors,
    count_line_ends,
    count_line_ends_before,
    display_path,
    iterate_lines,
    open_decompressed,
    quote,
    quote_all,
    read_text_blocks,
    read_whole_line_blocks,
)
from lmtool.errors import DataError
from lmtool.printable import format_count
from lmtool.tokenization.tokenizer import replace_surrogates

ROW_FILE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of files of rows; each may be followed by one of COMPRESSED_SUFFIXES."""

_DELIMITERS_BY_SUFFIX = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""Candidate delimiters, the most likely first."""
_HEADER_ROWS = 1000
"""Rows from which the columns of a JSON file, or the header of delimited text, are inferred."""
_COMPARED = 100
"""Characters of the names of columns that are compared with an unknown name."""
MAX_NAME_WORDS = 3
"""Words of a column name; a first row with longer cells may be no header."""
_PLAIN_NAME = re.compile(r"[\w.-]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, whose words have two or three of them."""
_NON_SPACE = re.compile(r"[^ \t\r\n]")
_LIST_FIX = 'write [{"text": "..."}, {"text": "..."}]; one object on each line is a .jsonl file'
_JSON_FIX = 'write one JSON object on each line, for example {"text": "..."}'


@dataclass(frozen=True)
class RowFile(ABC):
    """A file of rows. Each call of `read_rows_and_faults` begins at the first row.

    field_limit: characters of a field of delimited text, from which `delimited.max_line_length` follows.
    """

    path: Path
    field_limit: int

    @property
    @abstractmethod
    def column_names(self) -> tuple[str, ...]:
        """Returns the names of the columns as in the file; none for an empty file. Raises DataError."""

    @abstractmethod
    def read_rows_and_faults(self) -> Iterator[RowRecord]:
        """Yields all rows in order, also faulty ones, with a value for each column of the header.

        Skips blank rows of delimited text and JSON lines. Duplicate JSON keys, and values of JSON and Parquet with a
        NUL or above the limit are faults. Raises DataError when the file cannot be read, and ResourceError.
        """

    @abstractmethod
    def describe(self) -> str:
        """Returns a short description of the format."""

    @cached_property
    def clean_column_names(self) -> tuple[str, ...]:
        """Returns the header without surrounding spaces; `column 3` if the third column has no name."""
        return tuple(name.strip() or f"column {number}" for number, name in enumerate(self.column_names, 1))

    def format_location(self, row: int, line: int | None, column: int | str | None) -> str:
        """Formats a position in the file for messages; a column is a name or an index."""
        if isinstance(column, int):
            column = self.clean_column_names[column] if column < len(self.clean_column_names) else None
        where = f"{display_path(self.path)}:{line}, row {row}" if line else f"{display_path(self.path)}, row {row}"
        return where if column is None else f"{where}, column {quote(column)}"


def open_row_file(
    path: Path,
    suffix: str,
    field_limit: int,
    encoding: str | None = None,
    hints: DialectHints = DialectHints(),  # noqa: B008  frozen
    byte_range: ByteRange | None = None,
) -> "DelimitedFile | JsonLinesFile | JsonListFile | ParquetFile":
    """Opens a file whose format is that of one of ROW_FILE_SUFFIXES, or .json for a list of objects.

    byte_range: the part of JSON lines that is read. hints: see `delimited.infer_dialect`. encoding: see
    `files.read_text_blocks`. Their `read_rows_and_faults` takes the name of the only column to read, without the faults
    of the others, and raises DataError if it is missing.
    """
    match suffix:
        case ".csv" | ".tsv":
            return DelimitedFile(path, field_limit, encoding, _DELIMITERS_BY_SUFFIX[suffix], hints)
        case ".jsonl":
            return JsonLinesFile(path, field_limit, encoding, byte_range=byte_range)
        case ".json":
            return JsonListFile(path, field_limit, encoding)
    return ParquetFile(path, field_limit)


@dataclass(frozen=True)
class TextRowFileBase(RowFile):
    """A text file of rows. byte_range: the part of it that is read; None for all of it."""

    encoding: str | None
    byte_range: ByteRange | None = field(default=None, kw_only=True)

    def line_blocks(self) -> Iterator[str]:
        """Yields blocks of whole lines; see `read_whole_line_blocks`."""
        return read_whole_line_blocks(self.path, self.encoding, max_line_length(self.field_limit), self.byte_range)

    def lines(self) -> Iterator[str]:
        """Yields the lines with their line ends."""
        return chain.from_iterable(map(iterate_lines, self.line_blocks()))


@dataclass(frozen=True)
class DelimitedFile(TextRowFileBase):
    """Delimited text. delimiters: candidates, the most likely first. hints: the known properties of the dialect."""

    delimiters: str
    hints: DialectHints

    @cached_property
    def dialect(self) -> Dialect:
        """Returns the dialect that the hints give, or that the text seems to have."""
        head, stretches, sample = "", self.line_blocks(), self.hints.sample
        for text in stretches:
            head += text
            if len(head) > sample:
                break
        # Reads no further after a very long line, which may have gigabytes.
        is_whole = len(head) <= 2 * sample and next(stretches, None) is None
        return infer_dialect(head[: 2 * sample], is_whole, self.delimiters, self.hints)

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        first = next(self._parse_rows(), None)
        if first is None:
            return ()
        line, names, fault = first
        where = f"{display_path(self.path)}:{line}, the header"
        if fault:
            where = f"{display_path(self.path)}:{fault.line}, the header, column {int(fault.column or 0) + 1}"
            raise DataError(fault.what, where=where, fix=fault.fix)
        if not any(name.strip() for name in names):
            raise DataError("the header names no column", where=where, fix="name the columns in the first row")
        return tuple(names) if self.has_header else tuple(f"column {number}" for number in range(1, len(names) + 1))

    @cached_property
    def has_header(self) -> bool:
        """Returns whether the first row names the columns.

        It does not if one cell is as long as a sentence, and another occurs in its column again, as a class does.
        """
        records = (fields for _, fields, fault in islice(self._parse_rows(), _HEADER_ROWS) if fault is None)
        first = next(records, ())
        is_name = [count_words(name) <= MAX_NAME_WORDS for name in first]
        if all(is_name):
            return True
        short = [i for i, name in enumerate(first) if is_name[i] and name.strip()]
        return not any(i < len(fields) and fields[i] == first[i] for fields in records for i in short)

    def read_rows_and_faults(self, only_column: str | None = None) -> Iterator[RowRecord]:
        width = len(self.column_names)
        if not width:
            return
        if only_column is not None and only_column not in self.column_names:
            raise missing_column_error(only_column, self.column_names, f"{display_path(self.path)}:1", "--column")
        at = None if only_column is None else self.column_names.index(only_column)
        for record in islice(self._parse_rows(), int(self.has_header), None):
            line, fields, fault = record
            if fault is not None:
                yield record
            elif len(fields) == width:
                yield record if at is None else (line, (fields[at],), None)
            elif any(field.strip() for field in fields):
                what = f"the row has {format_count(len(fields), 'field')}, the header {width}"
                fix = (
                    "quote fields with delimiters or line breaks" if self.dialect.quoted else "take tabs out of fields"
                )
                if len(fields) < width:
                    fix = "give every row as many delimiters as the header"
                yield line, fields, RecordFault("ragged row", what, fix, line, min(len(fields), width - 1))

    def _parse_rows(self) -> Iterator[RowRecord]:
        return parse_records(self.line_blocks(), self.dialect, self.field_limit)

    def describe(self) -> str:
        return f"{self.dialect}, {'' if self.has_header else 'no header, '}{self.encoding or 'UTF-8'}"


@dataclass(frozen=True)
class JsonRowFileBase(TextRowFileBase):
    """JSON objects."""

    def format_location(self, row: int, line: int | None, column: int | str | None) -> str:
        if self.byte_range is None or not line:
            return super().format_location(row, line, column)
        where = self._format_line(line)
        return where if column is None else f"{where}, column {quote(str(column))}"

    def _format_line(self, line: int) -> str:
        before = 0 if self.byte_range is None else count_line_ends_before(self.path, self.byte_range.begin)
        return f"{display_path(self.path)}:{before + line}"

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Returns the keys of the first objects, in order of occurrence."""
        keys: dict[str, None] = {}
        for _, row in islice(self._read_objects_with_line_numbers(_UNIQUE_KEY_DECODER), _HEADER_ROWS):
            if not isinstance(row, RecordFault):
                keys.update(dict.fromkeys(row))
        return tuple(keys)

    def read_rows_and_faults(self, only_column: str | None = None) -> Iterator[RowRecord]:
        names = self.column_names if only_column is None else ()
        for line, row in self._read_objects_with_line_numbers(_UNIQUE_KEY_DECODER if only_column is None else _DECODER):
            if isinstance(row, RecordFault):
                yield line, (), row
            elif only_column is None:
                values = tuple(clean_text(row.get(name)) for name in names)
                yield line, values, find_field_fault(values, line, self.field_limit)
            elif only_column in row:
                yield line, (clean_text(row[only_column]),), None
            else:
                raise missing_column_error(only_column, list(row), self._format_line(line), "--column")

    @abstractmethod
    def _read_objects_with_line_numbers(
        self, decoder: json.JSONDecoder
    ) -> Iterator[tuple[int, dict[str, Any] | RecordFault]]:
        """Yields the objects in order, each with the line on which it begins."""


@dataclass(frozen=True)
class JsonLinesFile(JsonRowFileBase):
    """One JSON object per line."""

    def _read_objects_with_line_numbers(
        self, decoder: json.JSONDecoder
    ) -> Iterator[tuple[int, dict[str, Any] | RecordFault]]:
        value: Any
        for line, row in enumerate(self.lines(), 1):
            if row.isspace():
                continue
            if len(row) >= max_line_length(self.field_limit):
                yield line, long_line_fault(line, self.field_limit)
                continue
            try:
                value = decoder.decode(row)
            except _DuplicateKey as error:
                value = _duplicate_key_fault(error, line)
            except (ValueError, RecursionError) as error:
                what = f"not JSON: {describe_json_error(error)}: {quote(row.strip(), 40)}"
                value = RecordFault("not JSON", what, _JSON_FIX, line, None)
            if not isinstance(value, dict | RecordFault):
                what = f"not a JSON object: {quote(row.strip(), 40)}"
                value = RecordFault("not JSON", what, _JSON_FIX, line, None)
            yield line, value

    def describe(self) -> str:
        return "JSON lines"


@dataclass(frozen=True)
class JsonListFile(JsonRowFileBase):
    """A list of JSON objects, of which few are held in memory. Other JSON raises DataError."""

    def _read_objects_with_line_numbers(
        self, decoder: json.JSONDecoder
    ) -> Iterator[tuple[int, dict[str, Any] | RecordFault]]:
        text = _IncrementalJsonReader(read_text_blocks(self.path, self.encoding))
        self._read_expected_character(text, "[")
        is_at_end = text.skip_space_and_peek() == "]"
        if is_at_end:
            text.skip()
        while not is_at_end:
            yield self._decode_object(text, decoder)
            is_at_end = self._read_expected_character(text, ",]") == "]"
        if text.skip_space_and_peek():
            raise self._error("text follows the list", text.line, "remove it, or put it into the list")

    def _decode_object(
        self, reader: "_IncrementalJsonReader", decoder: json.JSONDecoder
    ) -> tuple[int, dict[str, Any] | RecordFault]:
        if reader.skip_space_and_peek() != "{":
            raise self._error("the list has something other than objects", reader.line, _LIST_FIX)
        line = reader.line
        while True:
            try:
                return line, reader.decode_buffered(decoder)
            except _DuplicateKey as error:
                reader.decode_buffered(_DECODER)
                return line, _duplicate_key_fault(error, line)
            except (ValueError, RecursionError) as error:
                fault_line = line
                if isinstance(error, json.JSONDecodeError):
                    fault_line = reader.line_of(error)
                    if reader.n_buffered < max_line_length(self.field_limit) and reader.read_more():
                        continue
                raise self._error(f"not JSON: {describe_json_error(error)}", fault_line, _LIST_FIX) from error

    def _read_expected_character(self, reader: "_IncrementalJsonReader", characters: str) -> str:
        """Reads the next character that is no white space, which must be one of these."""
        if not (found := reader.skip_space_and_peek()) or found not in characters:
            wanted = " or ".join(characters)
            raise self._error(f"not JSON: here {wanted} is missing", reader.line, "correct it, or copy the file again")
        reader.skip()
        return found

    def _error(self, what: str, line: int, fix: str) -> DataError:
        return DataError(what, where=f"{display_path(self.path)}:{line}", fix=fix)

    def describe(self) -> str:
        return "a list of JSON objects"


class _IncrementalJsonReader:
    """Decodes JSON values from blocks of text. line: number of the current line."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks, self._text, self._position = blocks, "", 0
        self.line = 1

    @property
    def n_buffered(self) -> int:
        """Returns the number of characters that are read and not decoded."""
        return len(self._text) - self._position

    def skip_space_and_peek(self) -> str:
        """Moves to the next character that is no white space, and returns it; empty at the end."""
        while True:
            found = _NON_SPACE.search(self._text, self._position)
            self._move(found.start() if found else len(self._text))
            if found or not self.read_more():
                return found[0] if found else ""

    def skip(self) -> None:
        """Moves by a character."""
        self._move(self._position + 1)

    def decode_buffered(self, decoder: json.JSONDecoder) -> Any:
        """Decodes the JSON value here and moves behind it. Raises as the decoder does, also for an incomplete value."""
        value, end = decoder.raw_decode(self._text, self._position)
        self._move(end)
        return value

    def read_more(self) -> bool:
        """Doubles the buffer, so that a long value is not decoded often; returns whether there was more text."""
        blocks, n_missing = [self._text[self._position :]], max(1, self.n_buffered)
        while n_missing > 0 and (block := next(self._blocks, "")):
            blocks.append(block)
            n_missing -= len(block)
        self._text, self._position = "".join(blocks), 0
        return len(blocks) > 1

    def line_of(self, error: json.JSONDecodeError) -> int:
        """Returns the line of an error of the last `decode_buffered`, before anything more is read."""
        return self.line + count_line_ends(self._text, self._position, error.pos)

    def _move(self, position: int) -> None:
        self.line += count_line_ends(self._text, self._position, position)
        self._position = position


class _DuplicateKey(Exception):
    pass


def _duplicate_key_fault(error: _DuplicateKey, line: int) -> RecordFault:
    what = f"the key {quote(str(error))} occurs twice in the object"
    return RecordFault("duplicate key", what, "keep one of the two", line, str(error))


def _build_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise _DuplicateKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return row


_DECODER = json.JSONDecoder()
_UNIQUE_KEY_DECODER = json.JSONDecoder(object_pairs_hook=_build_unique_dict)


def describe_json_error(error: ValueError | RecursionError) -> str:
    """Returns why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def clean_text(value: Any) -> Any:
    """Replaces lone surrogates in a text; returns other values unchanged."""
    return replace_surrogates(value) if isinstance(value, str) else value


class ParquetFile(RowFile):
    """Parquet, a few rows of it at a time in memory."""

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        with self._open_parquet() as file:
            return tuple(file.schema_arrow.names)

    def read_rows_and_faults(self, only_column: str | None = None) -> Iterator[RowRecord]:
        with self._open_parquet() as file:
            names = file.schema_arrow.names
            if only_column is not None and only_column not in names:
                raise missing_column_error(only_column, names, display_path(self.path), "--column")
            for batch in file.iter_batches(batch_size=256, columns=None if only_column is None else [only_column]):
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    fault = find_field_fault(values, None, self.field_limit) if only_column is None else None
                    yield None, values, fault

    @contextmanager
    def _open_parquet(self) -> Iterator[Any]:
        import pyarrow
        from pyarrow import parquet

        with (
            convert_read_errors(self.path),
            tempfile.TemporaryFile() as unpacked,
            open_decompressed(self.path) as packed,
        ):
            file: Any = packed
            if compression_suffix(self.path):
                shutil.copyfileobj(packed, unpacked)
                file = unpacked
            try:
                yield parquet.ParquetFile(file)
            except UnicodeDecodeError as error:
                fix = "write the file anew, with text in UTF-8"
                raise DataError("a text is not valid UTF-8", where=display_path(self.path), fix=fix) from error
            except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
                what = f"not a Parquet file: {quote(str(error), 100)}"
                fix = "copy it again, or rename it to the ending of its format"
                raise DataError(what, where=display_path(self.path), fix=fix) from error

    def describe(self) -> str:
        return "Parquet"


def find_matching_column(column: str, names: Sequence[str]) -> str | None:
    """Returns the name that equals `column`, else the only one that is equal after `fold_name`, or None."""
    alike = [name for name in names if fold_name(name) == fold_name(column)]
    return column if column in names else alike[0] if len(alike) == 1 else None


def count_words(text: str) -> int:
    """Counts the words between spaces, and estimates the words of scripts without spaces."""
    unspaced = len(_UNSPACED.findall(text))
    return len(text.split()) if not unspaced else len(_UNSPACED.sub(" ", text).split()) + max(1, unspaced // 3)


def require_matching_column(column: str, names: Sequence[str], where: str, flag: str) -> str:
    """Returns the result of `find_matching_column`. Raises DataError if there is none; see `missing_columns_error`."""
    if (name := find_matching_column(column, names)) is None:
        raise missing_column_error(column, names, where, flag)
    return name


def missing_column_error(column: str, names: Sequence[str], where: str, flag: str) -> DataError:
    """Returns the error for one missing column; see `missing_columns_error`."""
    return missing_columns_error([(column, flag)], names, where)


def missing_columns_error(
    missing_columns_and_flags: Sequence[tuple[str, str]], names: Sequence[str], where: str
) -> DataError:
    """Returns the error for columns that a table lacks, each with its option: lists the columns of the table, and
    suggests the nearest ones if each missing column has one."""
    bare = {fold_name(name)[:_COMPARED]: name for name in names}
    fixes = []
    for column, flag in missing_columns_and_flags:
        near = get_close_matches(fold_name(column)[:_COMPARED], bare, n=1) or (list(bare) if len(bare) == 1 else [])
        suggested = (bare[key] for key in near)
        fixes += [f"{flag} {name if _PLAIN_NAME.fullmatch(name) else quote(name)}" for name in suggested]
    flags = " and ".join(dict.fromkeys(flag for _, flag in missing_columns_and_flags))
    fix = f"name one of these with {flags}"
    if len(set(fixes)) == len(missing_columns_and_flags):
        fix = f"did you mean {' '.join(fixes)}?"
    nouns = "column" if len(missing_columns_and_flags) == 1 else "columns"
    what = f"no {nouns} {quote_all([column for column, _ in missing_columns_and_flags])}; found {quote_all(names)}"
    return DataError(what, where=where, fix=fix)


def fold_name(name: str) -> str:
    """Returns a name in lower case without spaces, hyphens and underscores, for comparison."""
    return re.sub(r"[\s_-]", "", name.casefold())


def not_text_error(value: object, where: str) -> DataError:
    """Returns the error for a value that is not text in a column of texts."""
    fix = "name the column of text with --column"
    return DataError(f"the column holds {type(value).__name__}, not text", where=where, fix=fix)
