"""Reads labelled tables (.csv, .tsv, .jsonl, .parquet, annotated text, datasets by name) in bounded memory; writes them
as .csv and .jsonl."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from lmtool.data.annotated import CONLL_SUFFIX, SQUAD_SUFFIX, ConllFile, SquadFile
from lmtool.data.delimited import MAX_FIELD_CHARACTERS, DialectHints
from lmtool.data.files import (
    choose_encoding,
    display_path,
    find_files,
    is_json_lines,
    is_json_list,
    name_without_compression,
    quote,
    quote_all,
)
from lmtool.data.hub import HUB_PREFIX, download_dataset
from lmtool.data.rowfile import ROW_FILE_SUFFIXES, DelimitedFile, RowFile, open_row_file
from lmtool.errors import DataError, UsageError
from lmtool.printable import format_count
from lmtool.recipe.spec.text import Data
from lmtool.storage import durable
from lmtool.storage.records import replace_nonfinite

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_QUOTED_CHARACTERS = re.compile(r'[",\r\n]')
_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

Value = Any
"""A text in a .csv or .tsv file; in other files any value of JSON or Parquet."""


MAX_LABEL_MAGNITUDE = 1e15
"""Larger numbers are no labels, because the mean of labels is in the recipe, which holds at most 2**53."""


class RowError(DataError):
    """A row that cannot be used. kind: names the fault without details. row: its number."""

    def __init__(self, kind: str, what: str, row: int, *, where: str, fix: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.kind, self.row = kind, row


@dataclass
class SkippedRowCounts:
    """Counts skipped bad rows by kind. rows: if a dict, gets the kind of each bad row by its number."""

    kinds: Counter[str] = field(default_factory=Counter)
    rows: dict[int, str] | None = None

    @property
    def count(self) -> int:
        """Returns the number of skipped rows."""
        return self.kinds.total()

    def __str__(self) -> str:
        what = ", ".join(f"{kind} {count:,}" for kind, count in self.kinds.most_common())
        return f"skipped {format_count(self.count, 'bad row')}: {what}"


def count_skipped_or_raise(error: RowError, skipped: SkippedRowCounts | None) -> None:
    """Counts a bad row in `skipped`, or raises its error if `skipped` is None."""
    if skipped is None:
        raise error
    skipped.kinds[error.kind] += 1
    if skipped.rows is not None:
        skipped.rows[error.row] = error.kind


def parse_float_or_nonfinite(text: str) -> float | None:
    """Parses a number, also inf or nan; returns None for other text."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def parse_label_number(text: str) -> float | None:
    """Parses a number up to MAX_LABEL_MAGNITUDE; returns None for other text."""
    number = parse_float_or_nonfinite(text)
    return number if number is not None and abs(number) <= MAX_LABEL_MAGNITUDE else None


class Row(NamedTuple):
    """One row: its number from 1, without the header, the line on which it begins, and a value for each column."""

    number: int
    line: int | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table whose header is read and checked. Each call of `rows` begins at the first row."""

    source: str
    file: RowFile

    @property
    def path(self) -> Path:
        """Returns the path of the file; for a dataset, that in the cache."""
        return self.file.path

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the column names."""
        return self.file.clean_column_names

    def rows(self, skipped: SkippedRowCounts | None = None) -> Iterator[Row]:
        """Yields all rows in order; skips empty rows, which get no number.

        A bad row (ragged, unclosed quote, NUL, a field above the limit, not JSON) raises a RowError, or is counted in
        `skipped`; it has a number in either case. Raises DataError or ResourceError.
        """
        for number, (line, values, fault) in enumerate(self.file.read_rows_and_faults(), 1):
            if fault is None:
                yield Row(number, line, tuple(values))
            else:
                error = self.row_error(fault.kind, fault.what, number, fault.line, fault.column, fault.fix)
                count_skipped_or_raise(error, skipped)

    @cached_property
    def n_rows(self) -> int:
        """Counts the rows, also bad ones; reads the table once."""
        return sum(1 for _ in self.file.read_rows_and_faults())

    def describe(self) -> str:
        """Returns format and size in one line; reads the table once."""
        size = f"{format_count(self.n_rows, 'row')}, {format_count(len(self.names), 'column')}"
        return f"{self.source}: {size}, {self.file.describe()}"

    def row_error(
        self, kind: str, what: str, row: int, line: int | None, column: int | str | None, fix: str
    ) -> RowError:
        """Returns the error of a row of this table; a column is a name or an index."""
        fix = f"{fix}, or skip bad rows: --skip-bad-rows"
        return RowError(kind, what, row, where=self.file.format_location(row, line, column), fix=fix)


INFERRED_FORMAT = Data()
"""Infers the whole format of a table."""


def open_table(
    source: str,
    table_format: Data = INFERRED_FORMAT,
    fallback_encoding: str | None = None,
    field_limit: int = MAX_FIELD_CHARACTERS,
) -> Table:
    """Finds a table, infers its format, and reads its header.

    `source` is a .csv, .tsv, .jsonl or .parquet file, a .json file with a list of objects or with questions, or tagged
    sentences in a .conll file, each also compressed (.gz, .zst), the bundled data/NAME, or `hf:NAME[:CONFIG][@SPLIT]`,
    which is streamed into the cache once. Delimiter, quoting and encoding are inferred from the text unless
    `table_format` has them; see `delimited.infer_dialect` and `files.choose_encoding`. Raises DataError when there is
    no table, or one without rows; UsageError for a wrong encoding or delimiter.
    """
    delimiter = table_format.delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
        raise UsageError(f"{quote(delimiter)} cannot be a delimiter", fix="one character, for example --delimiter ';'")
    is_dataset = source.startswith(HUB_PREFIX)
    path = download_dataset(source, None) if is_dataset else _find_single_file(source)
    where = quote(source) if is_dataset else display_path(path)
    name = name_without_compression(path)
    endings = (*ROW_FILE_SUFFIXES, CONLL_SUFFIX, SQUAD_SUFFIX)
    ending = next(filter(name.endswith, endings), None)
    if ending is None:
        fix = f"rename it to the ending of its format: {', '.join(endings)}, or one of these with .gz or .zst"
        if name.endswith((".xlsx", ".xls", ".ods")):
            fix = "save the sheet as CSV (UTF-8)"
        raise DataError("not a table by its name", where=quote(source, 200), fix=fix)
    encoding = "UTF-8" if is_dataset else table_format.encoding or choose_encoding(path, fallback_encoding)
    annotated = {CONLL_SUFFIX: ConllFile, SQUAD_SUFFIX: SquadFile}
    if ending == SQUAD_SUFFIX and is_json_lines(path):
        ending = ".jsonl"
    if ending in annotated and not (ending == SQUAD_SUFFIX and is_json_list(path)):
        file: RowFile = annotated[ending](path, field_limit, encoding)
    else:
        file = open_row_file(path, ending, field_limit, encoding, DialectHints(delimiter))
    table = Table(source, file)
    if not table.names:
        if next(table.rows(), None) is None:
            what = "the table is empty" + ": not even a header" * isinstance(file, DelimitedFile)
            raise DataError(what, where=where, fix="name a table with rows")
        raise DataError("the objects have no keys", where=where, fix="name a table with columns")
    first: dict[str, int] = {}
    for number, column in enumerate(table.names, 1):
        if first.setdefault(column, number) != number:
            what = f"the header names {quote(column)} twice, in columns {first[column]} and {number}"
            raise DataError(what, where=where, fix="rename one of them")
    if next(file.read_rows_and_faults(), None) is None:
        what = f"the table has a header and no rows; columns: {quote_all(table.names)}"
        raise DataError(what, where=where, fix="name a table with rows")
    return table


def _find_single_file(source: str) -> Path:
    if os.path.isdir(os.path.expanduser(source)):
        raise DataError("a folder, not a table", where=quote(source), fix="name one file of it")
    files = find_files(source)
    if len(files) > 1:
        names = ", ".join(display_path(file) for file in files[:3])
        raise DataError(f"{len(files)} files, not one table: {names}", where=quote(source), fix="name one of them")
    return files[0]


def format_csv_or_conll_rows(
    table: Table,
    added_columns: Sequence[str],
    rows: Iterable[tuple[Row, Sequence[Value]]],
    *,
    guard_formulas: bool = False,
) -> Iterator[str]:
    """Yields rows of a table as lines of CSV, the header first, or as sentences of CoNLL columns.

    added_columns: names of further columns, whose values `rows` has after each row. A name that is in the table already
    gets the suffix `_2`, `_3`, ... guard_formulas: see `format_csv_row`.
    """
    if isinstance(table.file, ConllFile):
        for row, values in rows:
            yield "".join("\t".join(fields) + "\n" for fields in zip(*row.values, *values, strict=True)) + "\n"
        return

    yield format_csv_row([*table.file.column_names, *_make_unique_names(table, added_columns)], guard_formulas)
    for row, values in rows:
        if len(values) != len(added_columns):
            raise ValueError(f"{len(values)} values for {len(added_columns)} added columns")
        yield format_csv_row([*row.values, *values], guard_formulas)


def format_json_lines(
    table: Table, added_columns: Sequence[str], rows: Iterable[tuple[Row, Sequence[Value]]]
) -> Iterator[str]:
    """Yields rows of a table as JSON objects on a line each; values that are no JSON become text or null.

    The keys are the columns of `format_csv_or_conll_rows`.
    """
    names = [*table.names, *_make_unique_names(table, added_columns)]
    for row, values in rows:
        yield json.dumps(replace_nonfinite(dict(zip(names, [*row.values, *values], strict=True))), default=str) + "\n"


def format_json_list(json_lines: Iterable[str]) -> Iterator[str]:
    """Converts JSON lines to the lines of one JSON list."""
    before = "[\n"
    for line in json_lines:
        yield before + line.removesuffix("\n")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def format_csv_row(values: Iterable[Value], guard_formulas: bool = False) -> str:
    """Formats a line of CSV: comma, LF, quotes where needed; None is an empty field, lists and objects are JSON.

    guard_formulas: adds an apostrophe before a field that a spreadsheet would read as a formula (it begins with = + - @
    tab or CR, and is not a number).
    """
    cells = [_format_cell(value) for value in values]
    for i, cell in enumerate(cells):
        if guard_formulas and cell.startswith(_FORMULA_STARTS) and not _PLAIN_NUMBER.fullmatch(cell):
            cells[i] = cell = "'" + cell
        # The csv module of Python 3.11 does not quote a CR, which no reader restores.
        if _QUOTED_CHARACTERS.search(cell):
            cells[i] = '"' + cell.replace('"', '""') + '"'
    return ",".join(cells) + "\n" if cells != [""] else '""\n'


def _make_unique_names(table: Table, added_columns: Sequence[str]) -> list[str]:
    taken = list(table.names)
    for added_name in added_columns:
        names = chain([added_name], (f"{added_name}_{number}" for number in count(2)))
        taken.append(next(name for name in names if name not in taken))
    return taken[len(table.names) :]


def _format_cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        # half a pair of surrogates, which UTF-8 lacks, stays escaped
        return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return str(value)


def write_new_table_file(path: Path, input_table: Table, lines: Iterable[str]) -> None:
    """Writes the lines of one of the functions above to a new file atomically, in bounded memory.

    Raises UsageError when `path` exists or is that of `input_table`; ResourceError when it cannot be written.
    """
    where = display_path(path)
    if path.exists() and path.samefile(input_table.path):
        raise UsageError("this would overwrite the table that is read", where=where, fix="choose another name")
    durable.check_path_does_not_exist(path)
    durable.write_output_file(path, map(str.encode, lines))
