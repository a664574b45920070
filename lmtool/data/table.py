"""Labelled tables: reading .csv, .tsv, .jsonl, .parquet, and datasets by name in bounded memory, and annotated text;
writing .csv."""

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

from lmtool import durable
from lmtool.data.annotated import CONLL, SQUAD, Conll, Squad, conll_lines
from lmtool.data.delimited import FIELD_LIMIT, DialectHints
from lmtool.data.files import (
    display,
    find_files,
    infer_encoding,
    is_json_lines,
    is_json_list,
    shown,
    shown_all,
    unpacked_name,
)
from lmtool.data.hub import PREFIX, fetch
from lmtool.data.rowfile import ENDINGS, Delimited, RowFile, open_rows
from lmtool.errors import DataError, UsageError
from lmtool.printable import counted
from lmtool.recipe.spec.text import Data
from lmtool.records import finite

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile(r'[",\r\n]')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

Value = Any
"""Text in a .csv or .tsv; in others any value of JSON or Parquet."""


LARGEST = 1e15
"""Magnitude up to which a number is a label: their mean and deviation are in the recipe, which holds 2**53 at most."""


class RowFault(DataError):
    """A row that cannot be used. `kind` names the fault without details, `row` is its number."""

    def __init__(self, kind: str, what: str, row: int, *, where: str, fix: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.kind, self.row = kind, row


@dataclass
class Skipped:
    """Skipped bad rows: how many of each kind, and the kind of each by its number where `rows` is a dict."""

    kinds: Counter[str] = field(default_factory=Counter)
    rows: dict[int, str] | None = None

    @property
    def count(self) -> int:
        """Rows skipped."""
        return self.kinds.total()

    def __str__(self) -> str:
        what = ", ".join(f"{kind} {count:,}" for kind, count in self.kinds.most_common())
        return f"skipped {counted(self.count, 'bad row')}: {what}"


def skip(fault: RowFault, skipped: Skipped | None) -> None:
    """Count a bad row in `skipped`; or raise its fault, when `skipped` is None."""
    if skipped is None:
        raise fault
    skipped.kinds[fault.kind] += 1
    if skipped.rows is not None:
        skipped.rows[fault.row] = fault.kind


def spelled_number(text: str) -> float | None:
    """The number that a text spells, also an infinite one or nan; or None."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def as_number(text: str) -> float | None:
    """The number of at most LARGEST that a text spells, or None."""
    number = spelled_number(text)
    return number if number is not None and abs(number) <= LARGEST else None


class Row(NamedTuple):
    """One row: its number from 1, without the header, the line on which it begins, and a value for each column."""

    number: int
    line: int | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table whose header was read and checked. Each reading of rows begins at the first one."""

    source: str
    file: RowFile

    @property
    def path(self) -> Path:
        """The file; for a dataset, that in the cache."""
        return self.file.path

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return self.file.names

    def rows(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """All rows in order. Empty ones are skipped and not numbered.

        A bad row (ragged, unclosed quote, NUL, a field above the limit, not JSON) raises a RowFault, or is counted in
        `skipped`; it is numbered in either case. Raises DataError or ResourceError.
        """
        for number, (line, values, fault) in enumerate(self.file.records(), 1):
            if fault is None:
                yield Row(number, line, tuple(values))
            else:
                skip(self.fault(fault.kind, fault.what, number, fault.line, fault.column, fault.fix), skipped)

    @cached_property
    def n_rows(self) -> int:
        """The number of rows, bad ones included; reads the table once."""
        return sum(1 for _ in self.file.records())

    def describe(self) -> str:
        """Format and size in one line; reads the table once."""
        size = f"{counted(self.n_rows, 'row')}, {counted(len(self.names), 'column')}"
        return f"{self.source}: {size}, {self.file.describe()}"

    def fault(self, kind: str, what: str, row: int, line: int | None, column: int | str | None, fix: str) -> RowFault:
        """A fault at a place of this table; a column is given by name or index."""
        fix = f"{fix}, or skip bad rows: --skip-bad-rows"
        return RowFault(kind, what, row, where=self.file.where(row, line, column), fix=fix)


AS_INFERRED = Data()
"""A table is read as it seems to be written."""


def open_table(
    source: str, reading: Data = AS_INFERRED, usual_encoding: str | None = None, field_limit: int = FIELD_LIMIT
) -> Table:
    """Find a table, infer its format, and read its header.

    `source` is a .csv, .tsv, .jsonl or .parquet file, a .json file with a list of objects or with questions, or tagged
    sentences in a .conll file, each also compressed (.gz, .zst), the bundled data/NAME, or `hf:NAME[:CONFIG][@SPLIT]`,
    which is streamed into the cache once. Delimiter and quoting, unless `reading` has them, are inferred from the text:
    see `rowfile.open_rows`; the encoding of a file, unless it has that, as `files.infer_encoding` does with the usual
    one. Raises DataError when it has no table, or one without rows; UsageError for a wrong encoding or delimiter.
    """
    delimiter = reading.delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
        raise UsageError(f"{shown(delimiter)} cannot be a delimiter", fix="one character, for example --delimiter ';'")
    path = fetch(source, None) if source.startswith(PREFIX) else _one_file(source)
    where = display(path) if not source.startswith(PREFIX) else shown(source)
    ending = _ending(path, source)
    encoding = "UTF-8" if source.startswith(PREFIX) else reading.encoding or infer_encoding(path, usual_encoding)
    annotated = {CONLL: Conll, SQUAD: Squad}
    if ending == SQUAD and is_json_lines(path):
        ending = ".jsonl"
    if ending in annotated and not (ending == SQUAD and is_json_list(path)):
        file: RowFile = annotated[ending](path, field_limit, encoding)
    else:
        file = open_rows(path, ending, field_limit, encoding, DialectHints(delimiter))
    table = Table(source, file)
    if not table.names:
        if next(table.rows(), None) is None:
            what = "the table is empty" + ": not even a header" * isinstance(file, Delimited)
            raise DataError(what, where=where, fix="name a table with rows")
        raise DataError("the objects have no keys", where=where, fix="name a table with columns")
    _refuse_twice(table.names, where)
    if next(file.records(), None) is None:
        what = f"the table has a header and no rows; columns: {shown_all(table.names)}"
        raise DataError(what, where=where, fix="name a table with rows")
    return table


def _one_file(source: str) -> Path:
    if os.path.isdir(os.path.expanduser(source)):
        raise DataError("a folder, not a table", where=shown(source), fix="name one file of it")
    files = find_files(source)
    if len(files) > 1:
        names = ", ".join(display(file) for file in files[:3])
        raise DataError(f"{len(files)} files, not one table: {names}", where=shown(source), fix="name one of them")
    return files[0]


def _ending(path: Path, source: str) -> str:
    name = unpacked_name(path)
    endings = (*ENDINGS, CONLL, SQUAD)
    if ending := next(filter(name.endswith, endings), None):
        return ending
    fix = f"rename it to the ending of its format: {', '.join(endings)}, or one of these with .gz or .zst"
    if name.endswith((".xlsx", ".xls", ".ods")):
        fix = "save the sheet as CSV (UTF-8)"
    raise DataError("not a table by its name", where=shown(source, 200), fix=fix)


def _refuse_twice(names: Sequence[str], where: str) -> None:
    first: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if first.setdefault(name, number) != number:
            what = f"the header names {shown(name)} twice, in columns {first[name]} and {number}"
            raise DataError(what, where=where, fix="rename one of them")


def table_lines(
    table: Table, added: Sequence[str], rows: Iterable[tuple[Row, Sequence[Value]]], *, guard_formulas: bool = False
) -> Iterator[str]:
    """CSV of rows of a table with further values after them, line by line, the header first; of CoNLL columns the same,
    a sentence at a time.

    An added name that is already in the table gets the suffix `_2`, `_3`, ... guard_formulas: see `csv_line`.
    """
    if isinstance(table.file, Conll):
        yield from conll_lines((row.values, values) for row, values in rows)
        return

    yield csv_line([*table.file.header, *_free_names(table, added)], guard_formulas)
    for row, values in rows:
        if len(values) != len(added):
            raise ValueError(f"{len(values)} values for {len(added)} added columns")
        yield csv_line([*row.values, *values], guard_formulas)


def json_lines(table: Table, added: Sequence[str], rows: Iterable[tuple[Row, Sequence[Value]]]) -> Iterator[str]:
    """Rows of a table with further values after them, as an object on each line; what is no JSON is text or null.

    The keys are the columns of `table_lines`.
    """
    names = [*table.names, *_free_names(table, added)]
    for row, values in rows:
        yield json.dumps(finite(dict(zip(names, [*row.values, *values], strict=True))), default=str) + "\n"


def json_list(lines: Iterable[str]) -> Iterator[str]:
    """JSON lines as the lines of one list."""
    before = "[\n"
    for line in lines:
        yield before + line.removesuffix("\n")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def csv_line(values: Iterable[Value], guard_formulas: bool = False) -> str:
    """Values as a line of CSV: comma, LF, quotes where needed; None is an empty field, lists and objects are JSON.

    With `guard_formulas` a field that a spreadsheet would read as a formula (it begins with = + - @ tab or CR, and is
    not a number) is prefixed with an apostrophe.
    """
    cells = [_cell(value) for value in values]
    if guard_formulas:
        cells = [_guarded(cell) for cell in cells]
    return ",".join(map(_quoted, cells)) + "\n" if cells != [""] else '""\n'


def _free_names(table: Table, added: Sequence[str]) -> list[str]:
    taken = list(table.names)
    for wanted in added:
        names = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
        taken.append(next(name for name in names if name not in taken))
    return taken[len(table.names) :]


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        # half a pair of surrogates, which UTF-8 lacks, stays escaped
        return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return str(value)


def _quoted(cell: str) -> str:
    # The csv module of Python 3.11 does not quote a CR, which no reader restores.
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def _guarded(cell: str) -> str:
    return "'" + cell if cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) else cell


def write_table(path: Path, table: Table, lines: Iterable[str]) -> None:
    """Write the lines of `table_lines` or `json_lines`, made of a table, to a new file atomically, in bounded memory.

    Raises UsageError when `path` exists; ResourceError when it cannot be written.
    """
    where = display(path)
    if path.exists() and path.samefile(table.path):
        raise UsageError("this would overwrite the table that is read", where=where, fix="choose another name")
    durable.refuse_existing(path)
    durable.write_output(path, map(str.encode, lines))
