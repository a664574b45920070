"""Writes texts of the command line and of standard input to files, because everything else reads files."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from lmtool.data.column_names import CONVENTIONAL_NAMES, TEXT_NAMES, normalize_name
from lmtool.data.delimited import MAX_FIELD_CHARACTERS, DialectHints, infer_dialect, parse_records
from lmtool.data.files import choose_encoding, display_path, is_json_list, quote, read_nonblank_lines
from lmtool.data.rowfile import MAX_NAME_WORDS, DelimitedFile, count_words, fold_name
from lmtool.data.table import INFERRED_FORMAT
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.storage.checksum import sha256_of_file
from lmtool.storage.durable import cache_folder, convert_write_errors, make_parent_and_scratch_folder, replace_path

STDIN = "-"
"""Name of standard input among file names."""

_COLUMN_NAME = re.compile(r"[^\d,;\t|][^,;\t|]*")
"""A possible name of a column."""

_HEAD_BYTES = 1 << 16
"""Bytes from which the format of standard input is inferred."""


@contextmanager
def temporary_text_files(sources: Sequence[str], command_line_texts: Sequence[str]) -> Iterator[list[str]]:
    """Writes standard input, if it is a source, and the texts of the command line to .txt files; yields all file names.

    Raises DataError for an empty text.
    """
    with make_parent_and_scratch_folder(Path(tempfile.gettempdir())) as folder:
        files = _replace_stdin(sources, lambda: _copy_stdin_to_file(folder, "standard-input.txt"))
        for number, text in enumerate(command_line_texts, 1):
            if not text.strip():
                raise DataError("the text is empty", where=f"--text {number}", fix="write some")
            path = folder / f"text-{number}.txt"
            path.write_bytes(_encode_utf8(text, f"--text {number}"))
            files.append(str(path))
        yield files


@contextmanager
def temporary_table_files(sources: Sequence[str], encoding: str | None = None) -> Iterator[list[str]]:
    """Writes standard input, if it is among the sources, to a table file, and yields all file names."""
    with make_parent_and_scratch_folder(Path(tempfile.gettempdir())) as folder:
        yield _replace_stdin(sources, lambda: _copy_stdin_to_table_file(folder, encoding))


@contextmanager
def temporary_table_file(
    source: str | None,
    texts: Sequence[str],
    columns: Sequence[str],
    are_chats: bool,
    trained_format: Data = INFERRED_FORMAT,
    table_format: Data = INFERRED_FORMAT,
) -> Iterator[str]:
    """Yields the name of `source`, or of a table file that is written from standard input or from texts.

    columns: the columns of texts that the model reads. are_chats: each text is the first message of a conversation.
    trained_format, table_format: format of the tables of training, and of this one.
    Standard input is a table if it is Parquet, JSON lines, or delimited text (`_looks_like_table`); else each line
    is a text. Raises UsageError unless there is either a source or texts, and for texts if rows have several; DataError
    for input that is neither a table nor texts.
    """
    if (source is None) == (not texts):
        fix = "name a table, - for standard input, or --text TEXT"
        raise UsageError("give a table or --text, not both" if texts else "there is no row to predict", fix=fix)
    if source not in (None, STDIN):
        yield source
        return
    with make_parent_and_scratch_folder(Path(tempfile.gettempdir())) as folder:
        if source is None:
            yield _write_texts_as_table(folder, texts, columns, are_chats)
            return
        path = _copy_stdin_to_table_file(folder, table_format.encoding)
        encoding = table_format.encoding or choose_encoding(path, trained_format.encoding)
        delimiter = table_format.delimiter or trained_format.delimiter
        if path.suffix != ".csv" or _looks_like_table(path, encoding, columns, delimiter):
            yield str(path)
        else:
            yield _write_texts_as_table(folder, _read_nonblank_lines_of_saved_stdin(path, encoding), columns, are_chats)


def replace_stdin_by_cached_file(kind: Literal["text", "table", "text or table"], *names: Any) -> list[Any]:
    """Writes standard input to a file of the cache, and returns the names with it in place of `-`.

    The file is named by its content, and stays in the cache because a resumed run reads it again. names: file names,
    lists of them, or Nones. kind: of standard input, unless it is Parquet or JSON lines. Raises UsageError if standard
    input is named twice, and DataError if it is empty.
    """

    def receive() -> Path:
        folder = cache_folder().absolute() / "standard-input"
        with make_parent_and_scratch_folder(folder) as scratch:
            received = _copy_stdin_to_file(scratch, "received")
            head = _read_head(received, choose_encoding(received))
            text_suffix = ".csv" if kind == "table" or (kind != "text" and _is_delimited(head)) else ".txt"
            path = folder / f"standard-input-{sha256_of_file(received)[:16]}{_infer_suffix(head, text_suffix)}"
            with convert_write_errors(path):
                replace_path(received, path)
        return path

    return _replace_stdin(names, receive)


def has_piped_input() -> bool:
    """Returns whether standard input is a pipe or a file, and not empty. Waits for the first byte."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed, or another object
        return False
    is_piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return is_piped and bool(cast(io.BufferedReader, sys.stdin.buffer).peek(1))


def _looks_like_table(path: Path, encoding: str, columns: Sequence[str], delimiter: str | None) -> bool:
    """Returns whether standard input is delimited text, and not a text per line.

    Its header names all of `columns`; or has only names, one of them conventional, and half of the rows fit it; or most
    lines have fields in quotes or between tabs, and all fit it. A conventional name of texts alone is a header if half
    of the other lines have several words. Raises DataError for lines with such fields, but without a header.
    """
    head, is_whole = _read_head(path, encoding), path.stat().st_size <= _HEAD_BYTES
    head = head if is_whole else head[: head.rfind("\n") + 1]
    lines = [line for line in head.splitlines() if line.strip()]
    if not lines:
        return False
    fields = re.compile(f"[{re.escape(delimiter or '')},;\t|]")
    if {fold_name(name.strip('" ')) for name in fields.split(lines[0])}.issuperset(map(fold_name, columns)):
        return True
    hints = DialectHints(delimiter if delimiter and len(delimiter) == 1 else None)
    dialect = infer_dialect(head, is_whole, ",;\t|", hints)
    (_, header, fault), *rows = parse_records([head], dialect)
    are_names = fault is None and all(
        _COLUMN_NAME.fullmatch(name) and count_words(name) <= MAX_NAME_WORDS for name in header
    )
    if len(header) < 2:
        n_several = sum(count_words(line) > 1 for line in lines[1:])
        return are_names and normalize_name(lines[0]) in TEXT_NAMES and 0 < len(lines[1:]) <= 2 * n_several
    n_fitting = sum(fault is None and len(row) == len(header) for _, row, fault in rows)
    if are_names and any(normalize_name(name) in CONVENTIONAL_NAMES for name in header):
        return 2 * n_fitting >= len(rows)
    d = re.escape(dialect.delimiter)
    quoted = re.compile(rf'^"(?:[^"]|"")*"{d}|{d}"(?:[^"]|"")*"(?:{d}|$)')
    is_tabbed = dialect.delimiter == "\t" and len(lines) > 1
    n_marked = sum("\t" in line if is_tabbed else quoted.search(line) is not None for line in lines)
    if 2 * n_marked < len(lines):
        return False
    is_without_header = not DelimitedFile(path, MAX_FIELD_CHARACTERS, encoding, ",;\t|", hints).has_header
    if n_fitting == len(rows) and (are_names or is_without_header):
        return True
    what = "standard input is neither a table with a header nor a text per line"
    fix = "name the columns in its first line, as text,id does, or write texts without fields in quotes"
    raise DataError(what, where=f"standard input, line 1: {quote(lines[0], 80)}", fix=fix)


def require_single_process_stdin() -> BinaryIO | None:
    """Returns standard input; None if it is closed. Raises UsageError in one of several processes, which share it."""
    from lmtool.compute.processes import world_size  # it imports torch, without which texts are read

    if world_size() > 1:
        what = "standard input is for one process, and several would each read a part of it"
        raise UsageError(what, where=STDIN, fix="write it to a file and name that, or run lmtool without torchrun")
    return None if sys.stdin is None else sys.stdin.buffer


def _replace_stdin(names: Sequence[Any], receive: Callable[[], Path]) -> list[Any]:
    """Returns names and lists of names with the result of `receive` in place of `-`, which may be named once."""
    if sum([*(name if isinstance(name, list) else [name])].count(STDIN) for name in names) > 1:
        raise UsageError("standard input can be read once", where=STDIN, fix="name it once")

    def replace(name: Any) -> Any:
        if isinstance(name, list):
            return [*map(replace, name)]
        return str(receive()) if name == STDIN else name

    return [replace(name) for name in names]


def _copy_stdin_to_file(folder: Path, name: str) -> Path:
    """Writes standard input to a file. Raises DataError when it is empty."""
    path = folder / name
    stdin = require_single_process_stdin()
    with convert_write_errors(path), path.open("wb") as file:
        if stdin is not None:
            shutil.copyfileobj(stdin, file)
    if not path.stat().st_size:
        raise DataError("standard input is empty", where=STDIN, fix="write to it, or name a file")
    return path


def _copy_stdin_to_table_file(folder: Path, encoding: str | None) -> Path:
    path = _copy_stdin_to_file(folder, "standard-input.csv")
    if is_json_list(path):
        return path.rename(path.with_suffix(".json"))
    head = _read_head(path, encoding or choose_encoding(path))
    return path.rename(path.with_suffix(_infer_suffix(head, ".csv")))


def _infer_suffix(head: str, text_suffix: str) -> str:
    """Returns the suffix of a file that begins with `head`: `text_suffix` unless it is Parquet or JSON lines."""
    return ".parquet" if head.startswith("PAR1") else ".jsonl" if head.lstrip().startswith("{") else text_suffix


def _is_delimited(head: str) -> bool:
    """Returns whether the first lines of a file are rows of several fields, all of equal number."""
    lines = head.splitlines()[:20]
    for delimiter in ",;\t|":
        with suppress(csv.Error):
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
            if len(widths) > 1 and len(set(widths)) == 1 and widths[0] > 1:
                return True
    return False


def _read_head(path: Path, encoding: str) -> str:
    with path.open("rb") as file:
        try:
            return file.read(_HEAD_BYTES).decode(encoding, errors="replace").removeprefix("\ufeff")
        except LookupError:
            return ""  # the reader of the file says that there is no such encoding


def _read_nonblank_lines_of_saved_stdin(path: Path, encoding: str) -> Iterator[str]:
    """Yields the lines that are not blank. Raises DataError when they do not have this encoding."""
    try:
        yield from read_nonblank_lines(path, encoding)
    except DataError as error:
        where = error.where.replace(display_path(path), "standard input")
        raise DataError(error.what, where=where, fix=error.fix) from error


def _write_texts_as_table(folder: Path, texts: Iterable[str], columns: Sequence[str], are_chats: bool) -> str:
    """Writes a JSON lines table with a row for each text."""
    if len(columns) > 1:
        fix = "give a table with these columns"
        raise UsageError(f"the model reads {len(columns)} texts in a row: {', '.join(columns)}"[:200], fix=fix)
    path = folder / "texts.jsonl"
    with convert_write_errors(path), path.open("w", encoding="ascii") as file:
        for text in texts:
            _encode_utf8(text, "--text")
            value = [{"role": "user", "content": text}] if are_chats else text
            file.write(json.dumps({columns[0]: value}) + "\n")
    if not path.stat().st_size:
        raise DataError("standard input is blank", where=STDIN, fix="write lines of text to it, or a table")
    return str(path)


def _encode_utf8(text: str, where: str) -> bytes:
    """Encodes a text as UTF-8. Raises DataError if the shell has passed other bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError("the text is not UTF-8", where=where, fix="convert it to UTF-8") from error
