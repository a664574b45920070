"""Reads files of all formats as one stream of documents, in bounded memory.

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
from lmtool.data.files import (
    ByteRange,
    compression_suffix,
    detect_format_suffix,
    display_path,
    find_files,
    read_text_blocks,
)
from lmtool.data.hub import HUB_PREFIX, download_dataset
from lmtool.data.rowfile import DelimitedFile, JsonLinesFile, JsonListFile, ParquetFile, not_text_error, open_row_file
from lmtool.errors import DataError

CHUNK_CHARACTERS = 1 << 17
"""Approximate characters of a chunk: few enough for the encoders to stay in a CPU core's cache."""

_MAX_CELL_CHARACTERS = 1 << 25
"""Limit of a document in a cell of delimited text, because an unclosed quote would read on to the end."""
_CORPUS_DIALECT = DialectHints(quoted=True, sample=1 << 16)
"""Infers a delimiter from few characters, because a corpus may have thousands of files."""

_SAFE_CUT = re.compile(r"(?<=\S)[ \n]")
_LEADING_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_BLANK_LINES = re.compile(r"\r?\n(?:[^\S\n]*\n)+")

DocumentDivision = Literal["whole", "blank-line", "line"]

_SAMPLED_FILES = 64
"""Files whose first lines are read; the others are assumed to be alike."""

_MIN_LIST_LINES = 50
"""Minimal number of lines of a list."""

_NAME_CHARACTERS = 50
"""Maximal length of most lines of a list of names, words or commands."""

_SENTENCE_CHARACTERS = 400
"""Maximal length of most lines of a list of sentences."""

_MAX_NAME_WORDS = 5
"""Maximal mean of distinct words in a line of a list of names; verse and wrapped prose have more."""

_COHERENT_TEXT_RATIO = 1.2
"""Lines belong to one text if neighbours are this many times as similar as random lines."""

_FULL_LINE_FRACTION = 0.8
"""Lines of at least this fraction of the length of long lines are full; in wrapped prose most lines are."""

_WORD_OR_CHARACTER = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
"""A word, or a character of a script without spaces."""


class MultiDocumentChunk(NamedTuple):
    """Consecutive documents; the first may begin in an earlier chunk, and the last may continue in a later one.

    A document is cut before a space or line break that follows a non-space, where every tokenizer splits. If there is
    none in twice CHUNK_CHARACTERS, it is cut anyway, because memory and time would have no bound.
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
    explicit_files: frozenset[Path]
    """Files that the user named one by one, which must not be empty."""
    column: str
    documents: DocumentDivision
    stream: bool = False
    """Concatenates the documents, with a line break after each document that is not a whole file."""

    @property
    def adds_line_breaks(self) -> bool:
        """Returns whether a line break is added to some document of a stream."""
        return self.stream and any(self._is_divided(path) for path in self.files)

    def _is_divided(self, path: Path) -> bool:
        return detect_format_suffix(path) != ".txt" or self.documents != "whole"

    def chunks(self) -> Iterator[MultiDocumentChunk]:
        """Yields the documents in order, except blank ones, in chunks of about CHUNK_CHARACTERS."""
        return merge_small_chunks(chain.from_iterable(map(self._read_nonempty_file, self.files)))

    def is_divisible(self, path: Path) -> bool:
        """Returns whether documents can be found from any position of the file, at line ends or blank lines."""
        ending = detect_format_suffix(path)
        return not compression_suffix(path) and (ending == ".jsonl" or (ending == ".txt" and self.documents != "whole"))

    def read_byte_range(self, path: Path, byte_range: ByteRange | None) -> Iterator[MultiDocumentChunk]:
        """Yields the documents of a file, or of a byte range of a divisible file; none if there is no text."""
        return merge_small_chunks(self._read_documents(path, byte_range))

    def _read_nonempty_file(self, path: Path) -> Iterator[MultiDocumentChunk]:
        chunks = self._read_documents(path)
        if self.stream and self._is_divided(path):
            chunks = _append_line_breaks(chunks)
        first = next(chunks, None)
        if first is not None:
            yield first
            yield from chunks
        elif path in self.explicit_files:
            what, fix = "the file holds no text", "name a file with text in it"
            raise DataError(what, where=display_path(path), fix=fix)

    def _read_documents(self, path: Path, byte_range: ByteRange | None = None) -> Iterator[MultiDocumentChunk]:
        ending = detect_format_suffix(path)
        if ending != ".txt":
            rows = open_row_file(path, ending, _MAX_CELL_CHARACTERS, hints=_CORPUS_DIALECT, byte_range=byte_range)
            return cut_long_documents(_read_text_column(rows, self.column))
        match self.documents:
            case "whole":
                return _chunk_single_document(read_text_blocks(path))
            case "line":
                return _chunk_documents(read_text_blocks(path, byte_range=byte_range), _split_lines)
            case "blank-line":
                return _chunk_documents(read_text_blocks(path, byte_range=byte_range), _BLANK_LINES.split)


def open_corpus(sources: Iterable[str], column: str, documents: Literal["auto"] | DocumentDivision) -> Corpus:
    """Finds the files of `sources`, and infers how .txt files are divided into documents if `documents` is "auto".

    Downloads `hf:` datasets into the cache first. Raises DataError or ResourceError.
    """
    files: list[Path] = []
    named: set[Path] = set()
    for source in sources:
        matches = [download_dataset(source, column)] if source.startswith(HUB_PREFIX) else find_files(source)
        files += matches
        if len(matches) == 1:
            named.add(matches[0])
    division = infer_document_division(files) if documents == "auto" else documents
    return Corpus(tuple(files), frozenset(named), column, division)


def find_last_pretoken_boundary(text: str) -> int:
    """Returns the last position where every tokenizer splits `text` whatever follows, or 0; see MultiDocumentChunk."""
    for window in (1 << 10, 1 << 16, len(text)):
        base = max(0, len(text) - window)
        cuts = [match.start() for match in _SAFE_CUT.finditer(text, base)]
        if cuts:
            return cuts[-1]
    return 0


def _chunk_single_document(blocks: Iterator[str]) -> Iterator[MultiDocumentChunk]:
    """Yields all the text as one document, unless it is blank."""
    held: list[str] = []
    starts, visible, size = True, False, 0
    for block in blocks:
        visible = visible or not block.isspace()
        cut = find_last_pretoken_boundary(block)
        if not cut and visible and size + len(block) > 2 * CHUNK_CHARACTERS:
            cut = len(block)
        held.append(block[:cut] if cut else block)
        size += len(block)
        if cut:
            yield MultiDocumentChunk(["".join(held)], starts, ends=False)
            starts, held, size = False, [block[cut:]], len(block) - cut
    if visible:
        yield MultiDocumentChunk(["".join(held)], starts)


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]] + lines[-1:] if "\r" in text else lines


def _chunk_documents(blocks: Iterator[str], split: Callable[[str], list[str]]) -> Iterator[MultiDocumentChunk]:
    """Yields documents between separators without leading blank lines; cuts very long ones into pieces."""
    rest, starts = "", True
    for block in chain(blocks, ["\n\n"]):
        text = rest + block
        *done, rest = split(_LEADING_BLANK_LINES.sub("", text, count=1) if starts else text)
        texts = [text for text in done[not starts :] if text and not text.isspace()]
        if done and not starts:
            texts.insert(0, done[0])
        if texts:
            yield MultiDocumentChunk(texts, starts)
        starts = starts or bool(done)
        cut = find_last_pretoken_boundary(rest) if len(rest) > CHUNK_CHARACTERS else 0
        if not cut and len(rest) > 2 * CHUNK_CHARACTERS and not rest.isspace():
            cut = len(rest.rstrip())  # white space may begin a separator
        if cut:
            yield MultiDocumentChunk([rest[:cut]], starts, ends=False)
            rest, starts = rest[cut:], False


def _append_line_breaks(chunks: Iterator[MultiDocumentChunk]) -> Iterator[MultiDocumentChunk]:
    for chunk in chunks:
        texts = [text + "\n" for text in chunk.texts[: chunk.n_ends]]
        yield chunk._replace(texts=[*texts, *chunk.texts[chunk.n_ends :]])


def cut_long_documents(documents: Iterator[str]) -> Iterator[MultiDocumentChunk]:
    """Yields each text as a document, except blank ones; cuts very long ones into pieces."""
    for text in documents:
        if not text or text.isspace():
            continue
        start = 0
        while len(text) - start > 2 * CHUNK_CHARACTERS:
            stop = start + (find_last_pretoken_boundary(text[start : start + CHUNK_CHARACTERS]) or CHUNK_CHARACTERS)
            yield MultiDocumentChunk([text[start:stop]], start == 0, ends=False)
            start = stop
        yield MultiDocumentChunk([text[start:]], start == 0)


def merge_small_chunks(chunks: Iterator[MultiDocumentChunk]) -> Iterator[MultiDocumentChunk]:
    """Joins small chunks to chunks of about CHUNK_CHARACTERS."""
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
        if size >= CHUNK_CHARACTERS // 2:
            yield MultiDocumentChunk(texts, starts, ends)
            texts, size = [], 0
    if texts:
        yield MultiDocumentChunk(texts, starts, ends)


def _read_text_column(file: DelimitedFile | JsonLinesFile | JsonListFile | ParquetFile, column: str) -> Iterator[str]:
    """Yields the texts of one column; skips nulls."""
    for row, (line, values, fault) in enumerate(file.read_rows_and_faults(only_column=column), 1):
        if fault is not None:
            raise DataError(fault.what, where=file.format_location(row, fault.line, fault.column), fix=fault.fix)
        text = values[0]
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise not_text_error(text, file.format_location(row, line, column))


def infer_document_division(files: Sequence[Path]) -> DocumentDivision:
    """Infers whether the documents of .txt files are lines of a list, paragraphs on one line each, or whole files.

    A list has letters, and neither blank nor indented lines. Its lines are short and have few words (names, words,
    commands), or they are not wrapped and are no more similar to their neighbours than to other lines (captions).
    """
    heads = [
        next(read_text_blocks(path), "") for path in files[:_SAMPLED_FILES] if detect_format_suffix(path) == ".txt"
    ]
    if heads and all(_are_lines_documents(head) for head in heads):
        return "line"
    several = False
    for head in heads:
        blank = [not line.strip() for line in head.split("\n")]
        if any(not a and not b for a, b in pairwise(blank)):
            return "whole"
        several |= blank.count(False) > 1
    return "blank-line" if several else "whole"


def _are_lines_documents(head: str) -> bool:
    # the last line may be cut
    lines = [line.removesuffix("\r") for line in head.split("\n")[:-1]]
    full = [line for line in lines if line.strip()]
    if len(full) < _MIN_LIST_LINES or len(lines) - len(full) > len(lines) / 100:
        return False
    if sum(line[0].isspace() for line in full) > len(full) / 100:
        return False
    long_line = sorted(map(len, full))[int(0.95 * len(full))]
    visible = sum(len(line) - line.count(" ") for line in full)
    if sum(letter.isalpha() for line in full for letter in line) < visible / 2:
        return False
    words = [frozenset(map(str.lower, _WORD_OR_CHARACTER.findall(line))) for line in full]
    if long_line <= _NAME_CHARACTERS and sum(map(len, words)) <= _MAX_NAME_WORDS * len(full):
        return True
    n_filled = sum(len(line) >= _FULL_LINE_FRACTION * long_line for line in full)
    return (
        long_line <= _SENTENCE_CHARACTERS
        and n_filled < len(full) / 2
        and _neighbour_similarity_ratio(words) < _COHERENT_TEXT_RATIO
    )


def _neighbour_similarity_ratio(words_by_line: Sequence[frozenset[str]]) -> float:
    """Returns how many times as similar a line is to the next line as to a random line (Jaccard similarity)."""
    shuffled = random.Random(0).sample(words_by_line, len(words_by_line))
    near = sum(_jaccard_similarity(a, b) for a, b in pairwise(words_by_line))
    far = sum(_jaccard_similarity(a, b) for a, b in zip(words_by_line, shuffled, strict=True) if a is not b)
    return near / far if far else float("inf") if near else 1.0


def _jaccard_similarity(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)
