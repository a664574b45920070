"""Corpora: files of every format as one stream of documents, in bounded memory."""

import csv
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

from lmtool.errors import DataError
from lmtool.text.delimited import sniff
from lmtool.text.files import find_files, open_bytes, place, reading, shown, suffix, text_blocks, text_lines
from lmtool.text.hub import PREFIX, fetch
from lmtool.text.tokenizer import without_surrogates

CHUNK = 1 << 17
"""Characters that a chunk holds, about: small enough for the encoders to stay in the processor's cache."""

Division = Literal["whole", "blank-line", "line"]

_SAFE_CUT = re.compile(r"(?<=\S)[ \n]")
_LEADING_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_BLANK_LINES = re.compile(r"\r?\n(?:[^\S\n]*\n)+")


@dataclass(frozen=True)
class Chunk:
    """Consecutive text: whole documents, but the first may have begun in an earlier chunk and the last may go on.

    A document is only ever cut before a space or line end that follows something else, where every tokenizer splits.
    """

    texts: list[str]
    starts: bool = True
    """The first text begins a document."""
    ends: bool = True
    """The last text ends a document."""

    @property
    def size(self) -> int:
        """Characters."""
        return sum(map(len, self.texts))

    @property
    def n_ends(self) -> int:
        """Documents that end in this chunk."""
        return len(self.texts) - (not self.ends)


@dataclass(frozen=True)
class Corpus:
    """Files of text, and how they divide into documents."""

    files: tuple[Path, ...]
    named: frozenset[Path]
    """Files that the user named one by one: they must not be empty."""
    column: str
    documents: Division
    stream: bool = False
    """Documents run on as one text: one that is not a whole file is followed by a line end, which parted it."""

    @property
    def adds_line_ends(self) -> bool:
        """True when some document of a stream is followed by a line end that is not its own."""
        return self.stream and any(self._is_divided(path) for path in self.files)

    def _is_divided(self, path: Path) -> bool:
        return suffix(path) != ".txt" or self.documents != "whole"

    def chunks(self) -> Iterator[Chunk]:
        """The documents in order, those without any visible character left out, in chunks of about CHUNK characters."""
        return _coalesce(chunk for path in self.files for chunk in self._of_file(path))

    def _of_file(self, path: Path) -> Iterator[Chunk]:
        chunks = self._divide(path)
        if self.stream and self._is_divided(path):
            chunks = _with_line_ends(chunks)
        empty = True
        for chunk in chunks:
            empty = False
            yield chunk
        if empty and path in self.named:
            raise DataError("the file is empty: it holds no text", where=place(path), fix="name a file with text in it")

    def _divide(self, path: Path) -> Iterator[Chunk]:
        match suffix(path):
            case ".jsonl":
                return _rows(_jsonl(path, self.column))
            case ".csv":
                return _rows(_csv(path, self.column))
            case ".parquet":
                return _rows(_parquet(path, self.column))
        match self.documents:
            case "whole":
                return _whole(text_blocks(path))
            case "line":
                return _divided(text_blocks(path), _split_lines)
            case "blank-line":
                return _divided(text_blocks(path), _BLANK_LINES.split)


def open_corpus(
    sources: Iterable[str], *, column: str, documents: Literal["auto", "whole", "blank-line", "line"], cache: Path
) -> Corpus:
    """Find the files of `sources`, and settle how .txt files divide into documents when that is "auto".

    `hf:` datasets are downloaded into `cache` first. Raises DataError or ResourceError.
    """
    files: list[Path] = []
    named: set[Path] = set()
    for source in sources:
        found = [fetch(source, column, cache)] if source.startswith(PREFIX) else find_files(source)
        files += found
        if len(found) == 1:
            named.add(found[0])
    division = _auto_division(files) if documents == "auto" else documents
    return Corpus(tuple(files), frozenset(named), column, division)


def _auto_division(files: list[Path]) -> Division:
    """blank-line when, in the first block of every text file, each paragraph stands on one line; else whole."""
    several = False
    for path in files:
        if suffix(path) != ".txt":
            continue
        head = next(text_blocks(path), "")
        blank = [not line.strip() for line in head.split("\n")]
        if any(not a and not b for a, b in pairwise(blank)):
            return "whole"
        several |= blank.count(False) > 1
    return "blank-line" if several else "whole"


def safe_cut(text: str) -> int:
    """The last position where every tokenizer splits `text` whatever follows, or 0: see Chunk."""
    for window in (1 << 10, 1 << 16, len(text)):
        base = max(0, len(text) - window)
        cuts = [match.start() for match in _SAFE_CUT.finditer(text, base)]
        if cuts:
            return cuts[-1]
    return 0


def _whole(blocks: Iterator[str]) -> Iterator[Chunk]:
    """One document of all the text, if it shows anything at all."""
    held: list[str] = []
    starts, visible = True, False
    for block in blocks:
        visible = visible or not block.isspace()
        cut = safe_cut(block)
        held.append(block[:cut] if cut else block)
        if cut:
            yield Chunk(["".join(held)], starts, ends=False)
            starts, held = False, [block[cut:]]
    if visible:
        yield Chunk(["".join(held)], starts)


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]] + lines[-1:] if "\r" in text else lines


def _divided(blocks: Iterator[str], split: Callable[[str], list[str]]) -> Iterator[Chunk]:
    """Documents that separators part, blank lines before them left out; very long ones in pieces."""
    rest, starts = "", True
    for block in chain(blocks, ["\n\n"]):
        text = rest + block
        *done, rest = split(_LEADING_BLANK_LINES.sub("", text, count=1) if starts else text)
        texts = [text for text in done[not starts :] if text and not text.isspace()]
        if done and not starts:
            texts.insert(0, done[0])
        if texts:
            yield Chunk(texts, starts)
        starts = starts or bool(done)
        cut = safe_cut(rest) if len(rest) > CHUNK else 0
        if cut:
            yield Chunk([rest[:cut]], starts, ends=False)
            rest, starts = rest[cut:], False


def _with_line_ends(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        texts = [text + "\n" for text in chunk.texts]
        if not chunk.ends:
            texts[-1] = chunk.texts[-1]
        yield Chunk(texts, chunk.starts, chunk.ends)


def _rows(texts: Iterator[str]) -> Iterator[Chunk]:
    """Documents of a table: those that show anything, very long ones in pieces."""
    for text in texts:
        starts = True
        while len(text) > 2 * CHUNK and (cut := safe_cut(text[:CHUNK])):
            yield Chunk([text[:cut]], starts, ends=False)
            text, starts = text[cut:], False
        if not starts or (text and not text.isspace()):
            yield Chunk([text], starts)


def _coalesce(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same text in chunks that are not much smaller than CHUNK."""
    texts: list[str] = []
    size, starts, ends = 0, True, True
    for chunk in chunks:
        if not texts:
            starts, ends = chunk.starts, True
        head = 0
        if not ends:
            texts[-1] += chunk.texts[0]
            head = 1
        texts += chunk.texts[head:]
        size, ends = size + chunk.size, chunk.ends
        if size >= CHUNK // 2:
            yield Chunk(texts, starts, ends)
            texts, size = [], 0
    if texts:
        yield Chunk(texts, starts, ends)


def _jsonl(path: Path, column: str) -> Iterator[str]:
    for first, lines in text_lines(path):
        for number, line in enumerate(lines, first):
            if not line.isspace():
                where = f"{place(path)}:{number}"
                try:
                    row = json.loads(line)
                except (json.JSONDecodeError, RecursionError) as error:
                    what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                    raise DataError(
                        f"not JSON: {what}: {shown(line.strip(), 40)}", where=where, fix="one JSON object on each line"
                    ) from None
                if not isinstance(row, dict):
                    raise DataError("not a JSON object", where=where, fix=f'write {{"{column}": "..."}} on each line')
                if column not in row:
                    raise no_column(column, list(row), where)
                text = _text(row[column], column, where)
                yield without_surrogates(text)


def _csv(path: Path, column: str) -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)
    blocks = (lines for _, lines in text_lines(path))
    head = next(blocks, [])
    dialect = sniff([*enumerate(head, 1)], whole=False, order=",;\t|", delimiter=None, quoted=True)
    lines = chain(head, chain.from_iterable(blocks))
    reader = csv.reader(lines, delimiter=dialect.delimiter, skipinitialspace=dialect.skip_space, strict=True)
    try:
        names = next(reader, None)
        if names is None:
            return
        if column not in names:
            raise no_column(column, names, f"{place(path)}:1")
        index = names.index(column)
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise DataError(
                    f"the row has {len(row)} fields, the header {len(names)}",
                    where=f"{place(path)}:{reader.line_num}",
                    fix=f"quote fields that hold {shown(dialect.delimiter)} or line ends",
                )
            yield row[index]
    except csv.Error as error:
        raise DataError(f"not CSV: {error}", where=f"{place(path)}:{reader.line_num}", fix="check its quotes") from None


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    with reading(path), tempfile.TemporaryFile() as unpacked, open_bytes(path) as packed:
        file: Any = packed
        if path.name.lower().endswith(".gz"):
            shutil.copyfileobj(packed, unpacked)
            file = unpacked
        try:
            table = pyarrow.parquet.ParquetFile(file)
            names = table.schema_arrow.names
            if column not in names:
                raise no_column(column, names, place(path))
            row = 0
            for batch in table.iter_batches(batch_size=1024, columns=[column]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield _text(value, column, f"{place(path)}, row {row}")
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"not a Parquet file: {shown(str(error), 100)}",
                where=place(path),
                fix="copy it again, or give it the suffix of what it is",
            ) from error


def _text(value: object, column: str, where: str) -> str:
    """A cell as text; nothing for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"column {shown(column)} holds {type(value).__name__}, not text",
            where=where,
            fix="name the column of text with --column",
        )
    return value


def no_column(column: str, found: list[str], where: str) -> DataError:
    """The error for a column that is not there: names those that are, and the nearest."""
    near = get_close_matches(column, found, n=1) or (found if len(found) == 1 else [])
    fix = "name one of these with --column"
    if near:
        fix = f"name it: --column {near[0] if near[0].isidentifier() else shown(near[0])}"
    return DataError(f"no column {shown(column)}; found {shown(', '.join(found), 120)}", where=where, fix=fix)
