"""Texts from the command line and from standard input, as temporary files: all else reads files only."""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from lmtool.data.files import display, infer_encoding, is_json_list, text_lines
from lmtool.data.rowfile import bare_name
from lmtool.data.table import AS_INFERRED
from lmtool.durable import scratch_in, writing
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data

STDIN = "-"
"""The name of standard input among files."""

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
    Standard input is a table when it is Parquet or JSON, or when its first line names all of `columns`; else each
    line of it is a text. Raises UsageError unless there is either a source or texts, and for texts where rows have
    several.
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
        fields = re.compile(f"[{re.escape(reading.delimiter or trained.delimiter or '')},;\t|]")
        names = {bare_name(name.strip('" \r')) for name in fields.split(_head(path, encoding).partition("\n")[0])}
        is_table = path.suffix != ".csv" or names.issuperset(map(bare_name, columns))
        yield str(path) if is_table else _rows(folder, _lines(path, encoding), columns, chats)


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
    head = _head(path, encoding or infer_encoding(path)).lstrip()
    ending = ".parquet" if head.startswith("PAR1") else ".jsonl" if head.startswith("{") else ".csv"
    ending = ".json" if is_json_list(path) else ending
    return path.rename(path.with_suffix(ending))


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
