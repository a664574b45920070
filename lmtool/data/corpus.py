"""Corpora: files of all formats as one stream of documents, in bounded memory.

How .txt files are divided into documents is inferred from their first lines.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from lmtool.data.delimited import DialectHints
from lmtool.data.files import Extent, display, find_files, packing, suffix, text_blocks
from lmtool.data.hub import PREFIX, fetch
from lmtool.data.rowfile import Delimited, JsonLines, JsonList, Parquet, not_text, open_rows
from lmtool.errors import DataError

CHUNK = 1 << 17
"""Approximate characters of a chunk: few enough for the encoders to stay in a CPU core's cache."""

LONGEST_CELL = 1 << 25
"""Characters that a document in a cell of delimited text may have. An unclosed quote would read on to the end."""
_HINTS = DialectHints(quoted=True, sample=1 << 16)
"""A delimiter is inferred from few characters: a corpus may be thousands of files."""

_SAFE_CUT = re.compile(r"(?<=\S)[ \n]")
_LEADING_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_BLANK_LINES = re.compile(r"\r?\n(?:[^\S\n]*\n)+")

Division = Literal["whole", "blank-line", "line"]

FILES = 64
"""Files whose first lines are read; the others are taken to be alike."""

LINES = 50
"""Lines that a list has at least."""

SHORT = 50
"""Characters of most lines of a list of names, words or commands."""

LONG = 400
"""Characters of most lines of a list of sentences."""

FEW_WORDS = 5
"""Distinct words of the mean line of such a list; verse and wrapped prose have more."""

RELATED = 1.2
"""Neighbouring lines with this many times the words in common of lines that are far apart are one text."""

WRAPPED = 0.8
"""Lines this long, as a share of the usual longest, are full; in wrapped prose most are."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A word, or a character of a script that writes no spaces."""


class Chunk(NamedTuple):
    """Consecutive text: whole documents, but the first may begin in an earlier chunk and the last continue in a later.

    A document is cut before a space or line break that follows a non-space, where every tokenizer splits. Where twice
    CHUNK characters have none, it is cut all the same: as one, they would need memory and time without bound.
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
    """Files of text, and how they are divided into documents."""

    files: tuple[Path, ...]
    named: frozenset[Path]
    """Files that the user named one by one: they must not be empty."""
    column: str
    documents: Division
    stream: bool = False
    """Documents are concatenated: one that is not a whole file is followed by a line break, its separator."""

    @property
    def adds_line_ends(self) -> bool:
        """True when some document of a stream is followed by a line break that is not its own."""
        return self.stream and any(self._is_divided(path) for path in self.files)

    def _is_divided(self, path: Path) -> bool:
        return suffix(path) != ".txt" or self.documents != "whole"

    def chunks(self) -> Iterator[Chunk]:
        """The documents in order, without those of white space only, in chunks of about CHUNK characters."""
        return coalesce(chain.from_iterable(map(self._of_file, self.files)))

    def is_divisible(self, path: Path) -> bool:
        """Whether documents can be found from any position of the file: they are lines, or end with blank lines."""
        ending = suffix(path)
        return not packing(path) and (ending == ".jsonl" or (ending == ".txt" and self.documents != "whole"))

    def of_extent(self, path: Path, extent: Extent | None) -> Iterator[Chunk]:
        """The documents of a file in order, or of an extent of one that is divisible; none if there is no text."""
        return coalesce(self._divide(path, extent))

    def _of_file(self, path: Path) -> Iterator[Chunk]:
        chunks = self._divide(path)
        if self.stream and self._is_divided(path):
            chunks = _with_line_ends(chunks)
        first = next(chunks, None)
        if first is not None:
            yield first
            yield from chunks
        elif path in self.named:
            what, fix = "the file holds no text", "name a file with text in it"
            raise DataError(what, where=display(path), fix=fix)

    def _divide(self, path: Path, extent: Extent | None = None) -> Iterator[Chunk]:
        ending = suffix(path)
        if ending != ".txt":
            rows = open_rows(path, ending, LONGEST_CELL, hints=_HINTS, extent=extent)
            return divide_rows(_cells(rows, self.column))
        match self.documents:
            case "whole":
                return _whole(text_blocks(path))
            case "line":
                return _divided(text_blocks(path, extent=extent), _split_lines)
            case "blank-line":
                return _divided(text_blocks(path, extent=extent), _BLANK_LINES.split)


def open_corpus(sources: Iterable[str], column: str, documents: Literal["auto"] | Division) -> Corpus:
    """Find the files of `sources`, and resolve how .txt files are divided into documents when that is "auto".

    `hf:` datasets are downloaded into the cache first. Raises DataError or ResourceError.
    """
    files: list[Path] = []
    named: set[Path] = set()
    for source in sources:
        matches = [fetch(source, column)] if source.startswith(PREFIX) else find_files(source)
        files += matches
        if len(matches) == 1:
            named.add(matches[0])
    division = infer_division(files) if documents == "auto" else documents
    return Corpus(tuple(files), frozenset(named), column, division)


def safe_cut(text: str) -> int:
    """The last position where every tokenizer splits `text` whatever follows, or 0: see Chunk."""
    for window in (1 << 10, 1 << 16, len(text)):
        base = max(0, len(text) - window)
        cuts = [match.start() for match in _SAFE_CUT.finditer(text, base)]
        if cuts:
            return cuts[-1]
    return 0


def _whole(blocks: Iterator[str]) -> Iterator[Chunk]:
    """One document of all the text, unless it is white space only."""
    held: list[str] = []
    starts, visible, size = True, False, 0
    for block in blocks:
        visible = visible or not block.isspace()
        cut = safe_cut(block)
        if not cut and visible and size + len(block) > 2 * CHUNK:
            cut = len(block)
        held.append(block[:cut] if cut else block)
        size += len(block)
        if cut:
            yield Chunk(["".join(held)], starts, ends=False)
            starts, held, size = False, [block[cut:]], len(block) - cut
    if visible:
        yield Chunk(["".join(held)], starts)


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]] + lines[-1:] if "\r" in text else lines


def _divided(blocks: Iterator[str], split: Callable[[str], list[str]]) -> Iterator[Chunk]:
    """Documents between separators, without blank lines before them; very long ones in pieces."""
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
        if not cut and len(rest) > 2 * CHUNK and not rest.isspace():
            cut = len(rest.rstrip())  # white space may begin a separator
        if cut:
            yield Chunk([rest[:cut]], starts, ends=False)
            rest, starts = rest[cut:], False


def _with_line_ends(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        texts = [text + "\n" for text in chunk.texts[: chunk.n_ends]]
        yield chunk._replace(texts=[*texts, *chunk.texts[chunk.n_ends :]])


def divide_rows(texts: Iterator[str]) -> Iterator[Chunk]:
    """Documents of a table: those that are not white space only, very long ones in pieces."""
    for text in texts:
        if not text or text.isspace():
            continue
        start = 0
        while len(text) - start > 2 * CHUNK:
            stop = start + (safe_cut(text[start : start + CHUNK]) or CHUNK)
            yield Chunk([text[start:stop]], start == 0, ends=False)
            start = stop
        yield Chunk([text[start:]], start == 0)


def coalesce(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same text, with small chunks joined to about CHUNK characters."""
    texts: list[str] = []
    size, starts, ends = 0, True, True
    for chunk in chunks:
        if not texts:
            starts, ends = chunk.starts, True
        if ends:
            texts += chunk.texts
        else:
            texts[-1] += chunk.texts[0]
            texts += chunk.texts[1:]
        size, ends = size + chunk.size, chunk.ends
        if size >= CHUNK // 2:
            yield Chunk(texts, starts, ends)
            texts, size = [], 0
    if texts:
        yield Chunk(texts, starts, ends)


def _cells(file: Delimited | JsonLines | JsonList | Parquet, column: str) -> Iterator[str]:
    """The texts of one column; nulls are skipped."""
    for row, (line, values, fault) in enumerate(file.records(only=column), 1):
        if fault is not None:
            raise DataError(fault.what, where=file.where(row, fault.line, fault.column), fix=fault.fix)
        text = values[0]
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise not_text(text, file.where(row, line, column))


def infer_division(files: Sequence[Path]) -> Division:
    """The division of .txt files: lines of a list, paragraphs on one line each, or whole files.

    A list has letters, and neither blank nor indented lines. Its lines are short and of few words (names, words,
    commands), or they are not wrapped and have no more words in common with their neighbours than with others
    (captions).
    """
    heads = [next(text_blocks(path), "") for path in files[:FILES] if suffix(path) == ".txt"]
    if heads and all(_is_list(head) for head in heads):
        return "line"
    several = False
    for head in heads:
        blank = [not line.strip() for line in head.split("\n")]
        if any(not a and not b for a, b in pairwise(blank)):
            return "whole"
        several |= blank.count(False) > 1
    return "blank-line" if several else "whole"


def _is_list(head: str) -> bool:
    # the last line may be cut
    lines = [line.removesuffix("\r") for line in head.split("\n")[:-1]]
    full = [line for line in lines if line.strip()]
    if len(full) < LINES or len(lines) - len(full) > len(lines) / 100:
        return False
    if sum(line[0].isspace() for line in full) > len(full) / 100:
        return False
    usual = sorted(map(len, full))[int(0.95 * len(full))]
    visible = sum(len(line) - line.count(" ") for line in full)
    if sum(letter.isalpha() for line in full for letter in line) < visible / 2:
        return False
    words = [frozenset(map(str.lower, _WORD.findall(line))) for line in full]
    if usual <= SHORT and sum(map(len, words)) <= FEW_WORDS * len(full):
        return True
    n_filled = sum(len(line) >= WRAPPED * usual for line in full)
    return usual <= LONG and n_filled < len(full) / 2 and _relation(words) < RELATED


def _relation(words: Sequence[frozenset[str]]) -> float:
    """How many times as many words a line has in common with the next one as with one drawn from all lines."""
    shuffled = random.Random(0).sample(words, len(words))
    near = sum(_overlap(a, b) for a, b in pairwise(words))
    far = sum(_overlap(a, b) for a, b in zip(words, shuffled, strict=True) if a is not b)
    return near / far if far else float("inf") if near else 1.0


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)
