"""Reads files of word vectors: word2vec's text and binary formats, fastText's .vec and GloVe's text.

Shapes: N words, D numbers of each.
"""

import math
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.data.files import convert_read_errors, display_path, open_decompressed
from lmtool.errors import DataError
from lmtool.printable import format_count

_READ_BYTES = 1 << 20
"""Bytes read at once."""

MAX_WORD_BYTES = 10_000
"""A file with a longer word is damaged."""

MAX_VECTOR_LINE_BYTES = 1 << 20
"""Longer lines are read in part only."""

FASTTEXT_MODEL_MAGIC = (793712314).to_bytes(4, "little")
"""First bytes of a fastText model, which is no file of vectors."""

_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+(\d{1,9})[ \t]*\r?\n")


class WordVectors(NamedTuple):
    """Words, each once, and their vectors (N, D). n_repeated: number of repeated words; the first vector counts."""

    words: list[str]
    vectors_ND: NDArray[np.float32]
    n_repeated: int


class _UnparsedVector(NamedTuple):
    """A word of a file, and its vector in text or in binary. where: its place in the file, for messages."""

    where: str
    word: str
    numbers: list[bytes] | bytes


@dataclass(frozen=True)
class VectorFile:
    """A file of word vectors whose header is read.

    n_words: number in the header; None for GloVe's format, which has none. width: numbers of a vector.
    """

    path: Path
    width: int
    n_words: int | None
    is_binary: bool

    @classmethod
    def open(cls, path: Path) -> "VectorFile":
        """Reads the header. Raises DataError when the file has no word vectors, ResourceError when it is unreadable."""
        with convert_read_errors(path), open_decompressed(path) as file:
            line = file.readline(MAX_VECTOR_LINE_BYTES)
            if line.startswith(FASTTEXT_MODEL_MAGIC):
                fix = "name the .vec file beside it"
                raise DataError("a model of fastText, not its vectors", where=display_path(path), fix=fix)
            header = _HEADER.fullmatch(line)
            if header is None and (width := _count_numbers_after_word(line)):
                return cls(path, width, None, is_binary=False)
            if header is None:
                what = "no word vectors: the first line is neither a word and its numbers nor two counts"
                fix = "name a file in word2vec's text or binary format, GloVe's, or fastText's .vec; or a run"
                raise DataError(what, where=display_path(path), fix=fix)
            n_words, width = int(header[1]), int(header[2])
            if not n_words or not width:
                what = f"the header promises {n_words} words of {width} numbers: no vectors"
                raise DataError(what, where=f"{display_path(path)}:1", fix="write or download the file again")
            n_numbers = _count_numbers_after_word(file.readline(MAX_VECTOR_LINE_BYTES))
            if n_numbers not in (None, width):
                what = f"the header promises {width} numbers for each word, and the first word has {n_numbers}"
                fix = "correct the header, or download the file again"
                raise DataError(what, where=f"{display_path(path)}:2", fix=fix)
            return cls(path, width, n_words, is_binary=n_numbers is None)

    def read(self, words: Container[str]) -> WordVectors:
        """Reads the vectors of those of `words` that the file has.

        Raises DataError, with the line, if a line has other than D numbers, a number is not finite, or there are fewer
        or more words than the header promises.
        """
        vectors: dict[str, NDArray[np.float32]] = {}
        n_repeated = n_words = 0
        with convert_read_errors(self.path), open_decompressed(self.path) as file:
            stored = self._read_binary_vectors(file) if self.is_binary else self._read_text_vectors(file)
            for where, word, numbers in stored:
                n_words += 1
                if word in vectors:
                    n_repeated += 1
                elif word in words:
                    vectors[word] = self._parse_vector(numbers, where)
        if self.n_words is not None and n_words != self.n_words:
            promised = format_count(self.n_words, "word")
            raise self._error(f"the header promises {promised}, but the file has {n_words:,}", ":1")
        vectors_ND = np.stack([*vectors.values()]) if vectors else np.zeros((0, self.width), dtype=np.float32)
        return WordVectors([*vectors], vectors_ND, n_repeated)

    def _read_text_vectors(self, file: IO[bytes]) -> Iterator[_UnparsedVector]:
        for number, line in enumerate(file, 1):
            fields = _split_fields(line)
            if fields == [b""] or (number == 1 and self.n_words is not None):
                continue
            n_numbers = len(fields) - 1
            # words of GloVe may have spaces, so what is before the last D numbers is the word
            if n_numbers < self.width or any(map(_is_finite_number, fields[1 : -self.width])):
                raise self._error(f"{n_numbers} numbers, where the other words have {self.width}", f":{number}")
            word = b" ".join(fields[: -self.width]).decode("utf-8", "replace")
            yield _UnparsedVector(f":{number}", word, fields[-self.width :])

    def _read_binary_vectors(self, file: IO[bytes]) -> Iterator[_UnparsedVector]:
        file.readline()
        size, buffer, begin = 4 * self.width, b"", 0
        for number in range(1, (self.n_words or 0) + 1):
            where = f", word {number:,}"
            while True:
                space = buffer.find(b" ", begin)
                if space >= 0 and len(buffer) >= space + 1 + size:
                    break
                if (len(buffer) if space < 0 else space) - begin > MAX_WORD_BYTES:
                    raise self._error("neither text nor word2vec's binary format: a word without an end", where)
                chunk = file.read(max(_READ_BYTES, size))
                if not chunk:
                    raise self._error(f"the file ends within word {number:,} of {self.n_words:,}", where)
                buffer, begin = buffer[begin:] + chunk, 0
            word = buffer[begin:space].lstrip(b"\n").decode("utf-8", "replace")
            yield _UnparsedVector(where, word, buffer[space + 1 : space + 1 + size])
            begin = space + 1 + size
        if (buffer[begin:] + file.read(_READ_BYTES)).strip(b"\n"):
            raise self._error("more follows after the last word, so words or numbers are not as many as promised", ":1")

    def _parse_vector(self, numbers: list[bytes] | bytes, where: str) -> NDArray[np.float32]:
        try:
            vector_D = np.frombuffer(numbers, "<f4") if isinstance(numbers, bytes) else np.array([*map(float, numbers)])
        except ValueError:
            raise self._error("a vector has a value that is not a number", where) from None
        if not (np.abs(vector_D) <= np.finfo(np.float32).max).all():
            raise self._error("a vector holds a number that is not finite", where)
        return vector_D.astype(np.float32)

    def _error(self, what: str, where: str) -> DataError:
        return DataError(what, where=f"{display_path(self.path)}{where}", fix="write or download the file again")


def _is_finite_number(field: bytes) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _split_fields(line: bytes) -> list[bytes]:
    return line.rstrip(b" \t\r\n").replace(b"\t", b" ").split(b" ")


def _count_numbers_after_word(line: bytes) -> int | None:
    """Counts the numbers after the first word of a line; returns None for a line without them."""
    fields = _split_fields(line)
    is_text = not re.search(rb"[\x00-\x08\x0e-\x1f]", line)
    return len(fields) - 1 if is_text and len(fields) > 1 and all(map(_is_finite_number, fields[1:])) else None
