"""Texts from the command line and from standard input, as temporary files: all else reads files only."""

import codecs
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lmtool.errors import DataError, UsageError
from lmtool.text.disk import refusing_disk

STDIN = "-"
"""The name of standard input among files."""

_HEAD = 1 << 16
"""Bytes from which the format of standard input is inferred."""

_FIELDS = re.compile(r"[,;\t|]")


@contextmanager
def text_files(sources: Sequence[str], texts: Sequence[str]) -> Iterator[list[str]]:
    """The sources, with standard input and each of `texts` as a .txt file.

    Raises DataError for an empty one.
    """
    with _folder() as folder:
        found = _with_stdin(sources, lambda: _received(folder, "standard-input.txt"))
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise DataError("the text is empty", where=f"--text {number}", fix="write some")
            path = folder / f"text-{number}.txt"
            path.write_bytes(_encoded(text, f"--text {number}"))
            found.append(str(path))
        yield found


@contextmanager
def table_files(sources: Sequence[str]) -> Iterator[list[str]]:
    """The sources, with standard input as a table: Parquet, JSON lines, or else CSV."""
    with _folder() as folder:
        yield _with_stdin(sources, lambda: _received_table(folder))


@contextmanager
def table_of_texts(source: str | None, texts: Sequence[str], columns: Sequence[str], chats: bool) -> Iterator[str]:
    """A table that is named, is standard input, or is made of texts.

    columns: the model's texts of a row. chats: the texts are conversations, and those given are first messages.
    Standard input is a table when it is Parquet or JSON lines, or when its first line names all of `columns`; else each
    line of it is a text. Raises UsageError unless there is either a source or texts, and for texts where rows have
    several.
    """
    if (source is None) == (not texts):
        raise UsageError(
            "give a table or --text, not both" if texts else "there is no row to predict",
            fix="name a table, - for standard input, or --text TEXT",
        )
    if source not in (None, STDIN):
        yield source
        return
    with _folder() as folder:
        if source is None:
            yield _rows(folder, texts, columns, chats)
            return
        path = _received_table(folder)
        names = {name.strip().strip('"') for name in _FIELDS.split(_head(path).partition("\n")[0].strip("\r\ufeff"))}
        is_table = path.suffix != ".csv" or names.issuperset(columns)
        yield str(path) if is_table else _rows(folder, _lines(path), columns, chats)


@contextmanager
def _folder() -> Iterator[Path]:
    with refusing_disk(Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix="lmtool-")
    with folder as name:
        yield Path(name)


def _with_stdin(sources: Sequence[str], receive: Callable[[], Path]) -> list[str]:
    if sources.count(STDIN) > 1:
        raise UsageError("standard input can be read once", where=STDIN, fix="name it once")
    return [str(receive()) if source == STDIN else source for source in sources]


def _received(folder: Path, name: str) -> Path:
    """Standard input as a file. Raises DataError when it is empty."""
    path = folder / name
    with refusing_disk(path), path.open("wb") as file:
        if sys.stdin is not None:
            shutil.copyfileobj(sys.stdin.buffer, file)
    if not path.stat().st_size:
        raise DataError("standard input is empty", where=STDIN, fix="write to it, or name a file")
    return path


def _received_table(folder: Path) -> Path:
    path = _received(folder, "standard-input.csv")
    head = _head(path).lstrip("\ufeff \t\r\n")
    ending = ".parquet" if head.startswith("PAR1") else ".jsonl" if head.startswith("{") else ".csv"
    return path.rename(path.with_suffix(ending))


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_HEAD).decode(errors="replace")


def _lines(path: Path) -> Iterator[str]:
    """The lines that are not blank. Raises DataError when they are not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.removeprefix(codecs.BOM_UTF8).decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"standard input is not UTF-8 at byte {error.start} of a line",
                    where=f"standard input:{number}",
                    fix="convert it to UTF-8",
                ) from error
            if text.strip():
                yield text


def _rows(folder: Path, texts: Iterable[str], columns: Sequence[str], chats: bool) -> str:
    """A table with a row for each text."""
    if len(columns) > 1:
        raise UsageError(
            f"the model reads {len(columns)} texts in a row: {', '.join(columns)}"[:200],
            fix="give a table with these columns",
        )
    path = folder / "texts.jsonl"
    with refusing_disk(path), path.open("w", encoding="ascii") as file:
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
