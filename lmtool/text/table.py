"""Labelled tables: .csv, .tsv, .jsonl, .parquet, and datasets by name, as rows in bounded memory; and writing them."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lmtool import durable
from lmtool.errors import DataError, UsageError
from lmtool.text.delimited import (
    FIELD_LIMIT,
    LINE_FACTOR,
    SAMPLE,
    Dialect,
    Fault,
    Line,
    long_line,
    read_lines,
    records,
    sniff,
)
from lmtool.text.disk import refusal
from lmtool.text.files import find_files, open_bytes, place, reading, shown
from lmtool.text.hub import PREFIX, fetch_rows
from lmtool.text.tokenizer import without_surrogates

_ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
_ORDER = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""Delimiters that are looked for, the likeliest first."""
_JSON_HEAD = 1000
"""Objects whose keys are the columns of a .jsonl file."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile(r'[",\r\n]')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")

Value = Any
"""Text in a .csv or .tsv; in others whatever JSON or Parquet can hold."""


class RowFault(DataError):
    """A row that cannot be used. `kind` names the fault without its particulars."""

    def __init__(self, kind: str, what: str, *, where: str, fix: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.kind = kind


@dataclass
class Skipped:
    """Bad rows that were left out: how many of each kind, and the first ones."""

    kinds: Counter[str] = field(default_factory=Counter)
    first: list[RowFault] = field(default_factory=list)

    def add(self, fault: RowFault) -> None:
        """Count a row that is left out."""
        self.kinds[fault.kind] += 1
        if len(self.first) < 10:
            self.first.append(fault)

    @property
    def count(self) -> int:
        """Rows left out."""
        return self.kinds.total()

    def __str__(self) -> str:
        what = ", ".join(f"{kind} {count:,}" for kind, count in self.kinds.most_common())
        return f"left out {self.count:,} bad {'row' if self.count == 1 else 'rows'}: {what}"


class Row(NamedTuple):
    """One row: its number from 1, the header not counted, the line on which it begins, and a value for each column."""

    number: int
    line: int | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table whose header was read and found good. Reading rows begins at the first one, as often as it is asked."""

    source: str
    path: Path
    kind: Literal["delimited", "jsonl", "parquet"]
    header: tuple[str, ...]
    """The first row as it stands."""
    names: tuple[str, ...]
    """What the columns are called: the header without spaces around names; `column 3` where the third has none."""
    encoding: str | None
    dialect: Dialect | None
    field_limit: int

    def rows(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """All rows in order. Empty ones are left out and not numbered.

        A bad row (ragged, unclosed quote, NUL, a field above the limit, no JSON) raises a RowFault, or is counted in
        `skipped` and left out; it has a number nonetheless. Raises DataError or ResourceError.
        """
        match self.kind:
            case "delimited":
                rows = self._delimited()
            case "jsonl":
                rows = self._jsonl()
            case "parquet":
                rows = self._parquet()
        for row in rows:
            if isinstance(row, Row):
                yield row
            elif skipped is None:
                raise row
            else:
                skipped.add(row)

    @cached_property
    def n_rows(self) -> int:
        """How many rows there are, bad ones too; reads the table once."""
        skipped = Skipped()
        return sum(1 for _ in self.rows(skipped)) + skipped.count

    def describe(self) -> str:
        """Format and size in one line; reads the table once."""
        size = f"{self.n_rows:,} {'row' if self.n_rows == 1 else 'rows'}, {len(self.names)} columns"
        if self.dialect is None:
            return f"{self.source}: {size}, {'JSON lines' if self.kind == 'jsonl' else 'Parquet'}"
        return f"{self.source}: {size}, {self.dialect}, {self.encoding or 'UTF-8'}"

    def fault(self, kind: str, what: str, row: int, line: int | None, column: int | str | None, fix: str) -> RowFault:
        """A fault at a place of this table; a column is its name or its index."""
        where = f"{place(self.path)}:{line}, row {row}" if line else f"{place(self.path)}, row {row}"
        if isinstance(column, int):
            column = self.names[column] if column < len(self.names) else None
        if column is not None:
            where += f", column {shown(column)}"
        return RowFault(kind, what, where=where, fix=f"{fix}, or leave bad rows out: --skip-bad-rows")

    def _delimited(self) -> Iterator[Row | RowFault]:
        assert self.dialect is not None
        lines = read_lines(self.path, self.encoding, self.field_limit)
        width, number = len(self.names), 0
        for line, fields, fault in islice(records(lines, self.dialect, self.field_limit), 1, None):
            if fault is None and len(fields) != width and not any(f.strip() for f in fields):
                continue
            number += 1
            if fault is not None:
                yield self.fault(fault.kind, fault.what, number, fault.line, fault.column, fault.fix)
            elif len(fields) == width:
                yield Row(number, line, tuple(fields))
            else:
                yield self._ragged(fields, number, line)

    def _ragged(self, fields: list[str], number: int, line: int) -> RowFault:
        assert self.dialect is not None
        what = f"the row has {len(fields)} {'field' if len(fields) == 1 else 'fields'}, the header {len(self.names)}"
        fix = "quote fields that hold delimiters or line ends" if self.dialect.quoted else "take tabs out of fields"
        if len(fields) < len(self.names):
            fix = "give every row as many delimiters as the header"
        return self.fault("ragged row", what, number, line, min(len(fields), len(self.names) - 1), fix)

    def _jsonl(self) -> Iterator[Row | RowFault]:
        lines = read_lines(self.path, self.encoding, self.field_limit)
        for number, (line, text) in enumerate((item for item in lines if not item[1].isspace()), 1):
            found = self._parse(text, number, line)
            if isinstance(found, RowFault):
                yield found
            else:
                values = tuple(found.get(name) for name in self.header)
                yield self._check(values, number, line) or Row(number, line, tuple(map(_clean, values)))

    def _parse(self, text: str, number: int, line: int) -> dict[str, Value] | RowFault:
        """The object that a line holds."""
        if len(text) >= LINE_FACTOR * self.field_limit:
            long = long_line(line, self.field_limit)
            return self.fault(long.kind, long.what, number, line, None, long.fix)
        try:
            found = json.loads(text, object_pairs_hook=_unique)
        except _DuplicateKey as error:
            what = f"the key {shown(str(error))} stands twice in the object"
            return self.fault("duplicate key", what, number, line, str(error), "keep one of the two")
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            what = f"not JSON: {reason}: {shown(text.strip(), 40)}"
            return self.fault("not JSON", what, number, line, None, "write one JSON object on each line")
        if not isinstance(found, dict):
            what = f"not a JSON object: {shown(text.strip(), 40)}"
            return self.fault(
                "not JSON", what, number, line, None, 'write {"text": "...", "label": "..."} on each line'
            )
        return found

    def _check(self, values: Sequence[Value], number: int, line: int | None) -> RowFault | None:
        for column, value in enumerate(values):
            if isinstance(value, str):
                if len(value) > self.field_limit:
                    what = f"the field has more than {self.field_limit:,} characters"
                    return self.fault("field too long", what, number, line, column, "shorten or divide it")
                if "\0" in value:
                    return self.fault("NUL byte", "a NUL byte, which is not text", number, line, column, "remove it")
        return None

    def _parquet(self) -> Iterator[Row | RowFault]:
        number = 0
        with _parquet_file(self.path) as file:
            for batch in file.iter_batches(batch_size=256):
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number += 1
                    yield self._check(values, number, None) or Row(number, None, values)


def open_table(
    source: str,
    *,
    cache: Path,
    encoding: str | None = None,
    delimiter: str | None = None,
    quoted: bool | None = None,
    field_limit: int = FIELD_LIMIT,
) -> Table:
    """Find a table, tell its format, and read its header.

    `source` is a .csv, .tsv, .jsonl or .parquet file, each also packed (.gz), the bundled data/NAME, or
    `hf:NAME[:CONFIG][@SPLIT]`, which is streamed into `cache` once. What is not given of encoding (UTF-8), delimiter
    and quoting is told from the first SAMPLE characters: see `delimited.sniff`.
    Raises DataError when there is no table in it, or one without rows; UsageError for a wrong encoding or delimiter.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
        raise UsageError(f"{shown(delimiter)} cannot be a delimiter", fix="one character, for example --delimiter ';'")
    path = fetch_rows(source, cache) if source.startswith(PREFIX) else _one_file(source)
    ending = _ending(path, source)
    dialect = None
    match ending:
        case ".csv" | ".tsv":
            dialect, header, has_rows = _open_delimited(path, encoding, delimiter, quoted, field_limit, _ORDER[ending])
            kind: Literal["delimited", "jsonl", "parquet"] = "delimited"
        case ".jsonl":
            header, has_rows = _open_jsonl(path, encoding, field_limit)
            kind = "jsonl"
        case _:
            with _parquet_file(path) as file:
                header, has_rows = file.schema_arrow.names, file.metadata.num_rows > 0
            kind = "parquet"
    shown_place = place(path) if not source.startswith(PREFIX) else shown(source)
    names = _names(header, shown_place)
    if not has_rows:
        what = f"the table has a header and no rows; columns: {shown(', '.join(names), 120)}"
        raise DataError(what, where=shown_place, fix="name a table with rows")
    return Table(source, path, kind, tuple(header), names, encoding, dialect, field_limit)


def _one_file(source: str) -> Path:
    if Path(source).expanduser().is_dir():
        raise DataError("a folder, not a table", where=shown(source), fix="name one file of it")
    files = find_files(source)
    if len(files) > 1:
        names = ", ".join(place(file) for file in files[:3])
        raise DataError(f"{len(files)} files, not one table: {names}", where=shown(source), fix="name one of them")
    return files[0]


def _ending(path: Path, source: str) -> str:
    name = path.name.lower().removesuffix(".gz")
    for ending in _ENDINGS:
        if name.endswith(ending):
            return ending
    fix = f"give it the ending of what it is: {', '.join(_ENDINGS)}, or one of these with .gz"
    if name.endswith((".xlsx", ".xls", ".ods")):
        fix = "save the sheet as CSV (UTF-8)"
    elif name.endswith(".json"):
        fix = "write one JSON object on each line, and name it .jsonl"
    raise DataError("not a table by its name", where=shown(source, 200), fix=fix)


def _open_delimited(
    path: Path, encoding: str | None, delimiter: str | None, quoted: bool | None, limit: int, order: str
) -> tuple[Dialect, list[str], bool]:
    stream = read_lines(path, encoding, limit)
    lines: list[Line] = []
    size = 0
    for item in stream:
        lines.append(item)
        size += len(item[1])
        if size > SAMPLE:
            break
    rest = next(stream, None)
    dialect = sniff(lines, rest is None, order, delimiter, quoted)
    found = records(chain(lines, [] if rest is None else [rest], stream), dialect, limit)
    first = next(found, None)
    if first is None:
        raise _nothing(path)
    if first.fault:
        raise _header_fault(first.fault, path)
    if not any(name.strip() for name in first.fields):
        where = f"{place(path)}:{first.line}, the header"
        raise DataError("the header names no column", where=where, fix="name the columns in the first row")
    width = len(first.fields)
    has_rows = any(r.fault or len(r.fields) == width or any(f.strip() for f in r.fields) for r in found)
    return dialect, first.fields, has_rows


def _nothing(path: Path) -> DataError:
    return DataError("the table is empty: not even a header", where=place(path), fix="name a table with rows")


def _header_fault(fault: Fault, path: Path) -> DataError:
    where = f"{place(path)}:{fault.line}, the header, column {fault.column + 1}"
    return RowFault(fault.kind, fault.what, where=where, fix=fault.fix)


def _names(header: Sequence[str], where: str) -> tuple[str, ...]:
    """Names of the columns. Raises DataError where one stands twice."""
    names = [name.strip() or f"column {number}" for number, name in enumerate(header, 1)]
    first: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if name in first:
            raise DataError(
                f"the header names {shown(name)} twice, in columns {first[name]} and {number}",
                where=where,
                fix="rename one of them",
            )
        first[name] = number
    return tuple(names)


def _open_jsonl(path: Path, encoding: str | None, limit: int) -> tuple[list[str], bool]:
    """The keys of the first objects, in the order in which they are met."""
    probe = Table(str(path), path, "jsonl", (), (), encoding, None, limit)
    lines = ((line, text) for line, text in read_lines(path, encoding, limit) if not text.isspace())
    keys: dict[str, None] = {}
    fault: RowFault | None = None
    found = False
    for number, (line, text) in enumerate(islice(lines, _JSON_HEAD), 1):
        row = probe._parse(text, number, line)
        found = True
        if isinstance(row, RowFault):
            fault = fault or row
        else:
            keys.update(dict.fromkeys(row))
    if not found:
        raise _nothing(path)
    if not keys:
        raise fault or DataError("the objects have no keys", where=place(path), fix="name a table with columns")
    return list(keys), True


class _DuplicateKey(Exception):
    pass


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DuplicateKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _clean(value: Value) -> Value:
    return without_surrogates(value) if isinstance(value, str) else value


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    with reading(path), tempfile.TemporaryFile() as unpacked, open_bytes(path) as packed:
        file: Any = packed
        if path.name.lower().endswith(".gz"):
            shutil.copyfileobj(packed, unpacked)
            file = unpacked
        try:
            yield pyarrow.parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"not a Parquet file: {shown(str(error), 100)}",
                where=place(path),
                fix="copy it again, or give it the ending of what it is",
            ) from error


def table_lines(
    table: Table, added: Sequence[str], rows: Iterable[tuple[Row, Sequence[Value]]], *, guard_formulas: bool = False
) -> Iterator[str]:
    """CSV of rows of a table with further values behind them, line by line, the header first.

    Comma, LF, quotes where needed. An added name that the table has already gets `_2`, `_3`, ... behind it. None is
    an empty field; lists and objects are written as JSON. With `guard_formulas` a field that a spreadsheet would take
    for a formula (it begins with = + - @ tab or CR, and is no number) gets an apostrophe in front of it.
    """

    def line(values: Iterable[Value]) -> str:
        cells = [_cell(value) for value in values]
        if guard_formulas:
            cells = [_guarded(cell) for cell in cells]
        return ",".join(map(_quoted, cells)) + "\n" if cells != [""] else '""\n'

    yield line([*table.header, *_free_names(table, added)])
    for row, values in rows:
        if len(values) != len(added):
            raise ValueError(f"{len(values)} values for {len(added)} added columns")
        yield line([*row.values, *values])


def _free_names(table: Table, added: Sequence[str]) -> list[str]:
    taken = set(table.names)
    names = []
    for wanted in added:
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _quoted(cell: str) -> str:
    # The csv module of Python 3.11 leaves a CR without quotes, and no reader gets it back.
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def _guarded(cell: str) -> str:
    return "'" + cell if cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) else cell


def write_table(
    path: Path,
    table: Table,
    added: Sequence[str],
    rows: Iterable[tuple[Row, Sequence[Value]]],
    *,
    guard_formulas: bool = False,
    overwrite: bool = False,
) -> None:
    """Write `table_lines` into a file, in bounded memory: all of it or, when anything fails, nothing.

    Raises UsageError when `path` is the table itself, which is never overwritten, exists without `overwrite`, or is no
    file; ResourceError when the disk refuses.
    """
    where = place(path)
    if path.exists():
        if path.samefile(table.path):
            raise UsageError("this would overwrite the table that is read", where=where, fix="choose another name")
        if not path.is_file():
            raise UsageError("not a file", where=where, fix="name a file that does not exist yet")
        if not overwrite:
            raise UsageError("the file exists already", where=where, fix="choose another name, or remove it")
    path = path.resolve()
    temporary = path.with_name(f"{durable.TEMPORARY}{os.getpid()}-{path.name}")
    text = (line.encode() for line in table_lines(table, added, rows, guard_formulas=guard_formulas))
    try:
        durable.write_new(temporary, text)
        temporary.replace(path)
        durable.sync_directory(path.parent)
    except OSError as error:
        raise refusal(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
