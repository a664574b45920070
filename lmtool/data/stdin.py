"""Texts from the command line and from standard input, as files: all else reads files only."""

import csv
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from lmtool.checksum import sha256_of_file
from lmtool.data.column_names import TEXTS, USUAL, plain_name
from lmtool.data.delimited import FIELD_LIMIT, DialectHints, records, sniff
from lmtool.data.files import display, infer_encoding, is_json_list, shown, text_lines
from lmtool.data.rowfile import LONGEST_NAME, Delimited, bare_name, count_words
from lmtool.data.table import AS_INFERRED
from lmtool.durable import cache_folder, rename, scratch_in, writing
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data

STDIN = "-"
"""The name of standard input among files."""

_NAME = re.compile(r"[^\d,;\t|][^,;\t|]*")
"""What may be the name of a column."""

_HEAD = 1 << 16
"""Bytes from which the format of standard input is inferred."""


@contextmanager
def text_files(sources: Sequence[str], texts: Sequence[str]) -> Iterator[list[str]]:
    """The sources, with standard input and each of `texts` as a .txt file.

    Raises DataError for an empty one.
    """
    with _folder() as folder:
        files = _with_stdin(sources, lambda: _received(folder, "standard-input.txt"))
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise DataError("the text is empty", where=f"--text {number}", fix="write some")
            path = folder / f"text-{number}.txt"
            path.write_bytes(_encoded(text, f"--text {number}"))
            files.append(str(path))
        yield files


@contextmanager
def table_files(sources: Sequence[str], encoding: str | None = None) -> Iterator[list[str]]:
    """The sources, with standard input as a table: Parquet, JSON lines, or else CSV."""
    with _folder() as folder:
        yield _with_stdin(sources, lambda: _received_table(folder, encoding))


@contextmanager
def table_of_texts(
    source: str | None,
    texts: Sequence[str],
    columns: Sequence[str],
    chats: bool,
    trained: Data = AS_INFERRED,
    reading: Data = AS_INFERRED,
) -> Iterator[str]:
    """A table that is named, is standard input, or is made of texts.

    columns: the model's texts of a row. chats: the texts are conversations, and those given are first messages.
    trained, reading: how the tables of training were read, and how this one is.
    Standard input is a table when it is Parquet or JSON lines, or else delimited text, as `_is_table` says; otherwise
    each line of it is a text. Raises UsageError unless there is either a source or texts, and for texts where rows have
    several; DataError for what is neither a table nor texts.
    """
    if (source is None) == (not texts):
        fix = "name a table, - for standard input, or --text TEXT"
        raise UsageError("give a table or --text, not both" if texts else "there is no row to predict", fix=fix)
    if source not in (None, STDIN):
        yield source
        return
    with _folder() as folder:
        if source is None:
            yield _rows(folder, texts, columns, chats)
            return
        path = _received_table(folder, reading.encoding)
        encoding = reading.encoding or infer_encoding(path, trained.encoding)
        is_table = path.suffix != ".csv" or _is_table(path, encoding, columns, reading.delimiter or trained.delimiter)
        yield str(path) if is_table else _rows(folder, _lines(path, encoding), columns, chats)


def keep_stdin(kind: Literal["text", "table", "text or table"], *names: Any) -> list[Any]:
    """The names of files, lists of them and Nones, with standard input as a file in the cache.

    It stays there, since a run names what it was trained on and reads it again when it is resumed.
    kind: what standard input is, unless it is Parquet or JSON lines. Raises UsageError where it is named twice, and
    DataError where it is empty.
    """
    if sum([*(name if isinstance(name, list) else [name])].count(STDIN) for name in names) > 1:
        raise UsageError("standard input can be read once", where=STDIN, fix="name it once")

    def kept(name: Any) -> Any:
        return [*map(kept, name)] if isinstance(name, list) else _keep(kind) if name == STDIN else name

    return [kept(name) for name in names]


def _keep(kind: str) -> str:
    """Write standard input to a file in the cache that is named by its content."""
    folder = cache_folder().absolute() / "standard-input"
    with scratch_in(folder) as scratch:
        received = _received(scratch, "received")
        head = _head(received, infer_encoding(received))
        usual = ".csv" if kind == "table" or (kind != "text" and _is_delimited(head)) else ".txt"
        path = folder / f"standard-input-{sha256_of_file(received)[:16]}{_ending(head, usual)}"
        with writing(path):
            rename(received, path)
    return str(path)


def has_piped_input() -> bool:
    """Whether standard input is a pipe or a file, and not empty. Waits for the first byte."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed, or another object
        return False
    is_piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return is_piped and bool(cast(io.BufferedReader, sys.stdin.buffer).peek(1))


def _is_table(path: Path, encoding: str, columns: Sequence[str], delimiter: str | None) -> bool:
    """Whether standard input is delimited text with a header, or without one as a file is, and not a text per line.

    A header names all of `columns`; or it has names only, one of them usual, and half of the rows fit it; or most lines
    have fields in quotes or between tabs, and all fit it. A usual name of texts alone is a header where half of the
    other lines have several words. Raises DataError for lines with such fields, but without a header.
    """
    head, is_whole = _head(path, encoding), path.stat().st_size <= _HEAD
    head = head if is_whole else head[: head.rfind("\n") + 1]
    lines = [line for line in head.splitlines() if line.strip()]
    if not lines:
        return False
    fields = re.compile(f"[{re.escape(delimiter or '')},;\t|]")
    if {bare_name(name.strip('" ')) for name in fields.split(lines[0])}.issuperset(map(bare_name, columns)):
        return True
    hints = DialectHints(delimiter if delimiter and len(delimiter) == 1 else None)
    dialect = sniff(head, is_whole, ",;\t|", hints)
    (_, header, fault), *rows = records([head], dialect)
    are_names = fault is None and all(_NAME.fullmatch(name) and count_words(name) <= LONGEST_NAME for name in header)
    if len(header) < 2:
        n_several = sum(count_words(line) > 1 for line in lines[1:])
        return are_names and plain_name(lines[0]) in TEXTS and 0 < len(lines[1:]) <= 2 * n_several
    n_fitting = sum(fault is None and len(row) == len(header) for _, row, fault in rows)
    if are_names and any(plain_name(name) in USUAL for name in header):
        return 2 * n_fitting >= len(rows)
    d = re.escape(dialect.delimiter)
    quoted = re.compile(rf'^"(?:[^"]|"")*"{d}|{d}"(?:[^"]|"")*"(?:{d}|$)')
    is_tabbed = dialect.delimiter == "\t" and len(lines) > 1
    n_marked = sum("\t" in line if is_tabbed else quoted.search(line) is not None for line in lines)
    if 2 * n_marked < len(lines):
        return False
    is_without_header = not Delimited(path, FIELD_LIMIT, encoding, ",;\t|", hints).headed
    if n_fitting == len(rows) and (are_names or is_without_header):
        return True
    what = "standard input is neither a table with a header nor a text per line"
    fix = "name the columns in its first line, as text,id does, or write texts without fields in quotes"
    raise DataError(what, where=f"standard input, line 1: {shown(lines[0], 80)}", fix=fix)


def standard_input() -> BinaryIO | None:
    """Standard input; None where it is closed. Raises UsageError in one of several processes, which share it."""
    from lmtool.compute.processes import world_size  # it imports torch, without which texts are read

    if world_size() > 1:
        what = "standard input is for one process, and several would each read a part of it"
        raise UsageError(what, where=STDIN, fix="write it to a file and name that, or run lmtool without torchrun")
    return None if sys.stdin is None else sys.stdin.buffer


def _folder() -> AbstractContextManager[Path]:
    return scratch_in(Path(tempfile.gettempdir()))


def _with_stdin(sources: Sequence[str], receive: Callable[[], Path]) -> list[str]:
    if sources.count(STDIN) > 1:
        raise UsageError("standard input can be read once", where=STDIN, fix="name it once")
    return [str(receive()) if source == STDIN else source for source in sources]


def _received(folder: Path, name: str) -> Path:
    """Standard input as a file. Raises DataError when it is empty."""
    path = folder / name
    stdin = standard_input()
    with writing(path), path.open("wb") as file:
        if stdin is not None:
            shutil.copyfileobj(stdin, file)
    if not path.stat().st_size:
        raise DataError("standard input is empty", where=STDIN, fix="write to it, or name a file")
    return path


def _received_table(folder: Path, encoding: str | None) -> Path:
    path = _received(folder, "standard-input.csv")
    ending = ".json" if is_json_list(path) else _ending(_head(path, encoding or infer_encoding(path)), ".csv")
    return path.rename(path.with_suffix(ending))


def _ending(head: str, usual: str) -> str:
    """The ending of a file that begins so. usual: where it is neither Parquet nor JSON lines."""
    return ".parquet" if head.startswith("PAR1") else ".jsonl" if head.lstrip().startswith("{") else usual


def _is_delimited(head: str) -> bool:
    """Whether the first lines of a file are rows of several fields, each of as many."""
    lines = head.splitlines()[:20]
    for delimiter in ",;\t|":
        with suppress(csv.Error):
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
            if len(widths) > 1 and len(set(widths)) == 1 and widths[0] > 1:
                return True
    return False


def _head(path: Path, encoding: str) -> str:
    with path.open("rb") as file:
        try:
            return file.read(_HEAD).decode(encoding, errors="replace").removeprefix("\ufeff")
        except LookupError:
            return ""  # the reader of the file says that there is no such encoding


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines that are not blank. Raises DataError when they are not of this encoding."""
    try:
        yield from text_lines(path, encoding)
    except DataError as error:
        where = error.where.replace(display(path), "standard input")
        raise DataError(error.what, where=where, fix=error.fix) from error


def _rows(folder: Path, texts: Iterable[str], columns: Sequence[str], chats: bool) -> str:
    """A table with a row for each text."""
    if len(columns) > 1:
        fix = "give a table with these columns"
        raise UsageError(f"the model reads {len(columns)} texts in a row: {', '.join(columns)}"[:200], fix=fix)
    path = folder / "texts.jsonl"
    with writing(path), path.open("w", encoding="ascii") as file:
        for text in texts:
            _encoded(text, "--text")
            value = [{"role": "user", "content": text}] if chats else text
            file.write(json.dumps({columns[0]: value}) + "\n")
    if not path.stat().st_size:
        raise DataError("standard input is blank", where=STDIN, fix="write lines of text to it, or a table")
    return str(path)


def _encoded(text: str, where: str) -> bytes:
    """UTF-8. Raises DataError for what a shell passed as other bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError("the text is not UTF-8", where=where, fix="convert it to UTF-8") from error
