"""Files of word vectors: word2vec's text and binary formats, fastText's .vec and GloVe's text, in bounded memory.

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

from lmtool.data.files import display, open_bytes, reading
from lmtool.errors import DataError
from lmtool.printable import counted

CHUNK = 1 << 20
"""Bytes read at once."""

LONGEST_WORD = 10_000
"""Bytes; a file with a longer word is damaged."""

LONGEST_LINE = 1 << 20
"""Bytes of a line."""

FASTTEXT_MODEL = (793712314).to_bytes(4, "little")
"""The first bytes of a model of fastText, which is no file of vectors."""

_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+(\d{1,9})[ \t]*\r?\n")


class WordVectors(NamedTuple):
    """Words, each once, and their vectors (N, D). n_repeated: of these words, how often one came again; its first
    vector counts.
    """

    words: list[str]
    vectors_ND: NDArray[np.float32]
    n_repeated: int


@dataclass(frozen=True)
class VectorFile:
    """A file of word vectors, of which the beginning was read.

    n_words: as its header says; None for GloVe's format, which has none. width: numbers of a vector.
    """

    path: Path
    width: int
    n_words: int | None
    is_binary: bool

    @classmethod
    def open(cls, path: Path) -> "VectorFile":
        """Find the format. Raises DataError when it is none of word vectors, ResourceError when it cannot be read."""
        with reading(path), open_bytes(path) as file:
            line = file.readline(LONGEST_LINE)
            if line.startswith(FASTTEXT_MODEL):
                fix = "name the .vec file beside it"
                raise DataError("a model of fastText, not its vectors", where=display(path), fix=fix)
            header = _HEADER.fullmatch(line)
            if header is None and (width := _width(line)):
                return cls(path, width, None, is_binary=False)
            if header is None:
                what = "no word vectors: the first line is neither a word and its numbers nor two counts"
                fix = "name a file in word2vec's text or binary format, GloVe's, or fastText's .vec; or a run"
                raise DataError(what, where=display(path), fix=fix)
            n_words, width = int(header[1]), int(header[2])
            if not n_words or not width:
                what = f"the header promises {n_words} words of {width} numbers: no vectors"
                raise DataError(what, where=f"{display(path)}:1", fix="write or download the file again")
            n_numbers = _width(file.readline(LONGEST_LINE))
            if n_numbers not in (None, width):
                what = f"the header promises {width} numbers for each word, and the first word has {n_numbers}"
                raise DataError(what, where=f"{display(path)}:2", fix="correct the header, or download the file again")
            return cls(path, width, n_words, is_binary=n_numbers is None)

    def read(self, wanted: Container[str]) -> WordVectors:
        """The vectors of those of the words `wanted` that the file has.

        Raises DataError, with the line, where a line has other than D numbers, a number is not finite, or words are
        fewer or more than the header promises.
        """
        vectors: dict[str, NDArray[np.float32]] = {}
        n_repeated = n_words = 0
        with reading(self.path), open_bytes(self.path) as file:
            for where, word, vector in self._binary(file) if self.is_binary else self._text(file):
                n_words += 1
                if word in vectors:
                    n_repeated += 1
                elif word in wanted:
                    vectors[word] = self._numbers(vector, where)
        if self.n_words is not None and n_words != self.n_words:
            raise self._fault(
                f"the header promises {counted(self.n_words, 'word')}, but the file has {n_words:,}", ":1"
            )
        vectors_ND = np.stack([*vectors.values()]) if vectors else np.zeros((0, self.width), dtype=np.float32)
        return WordVectors([*vectors], vectors_ND, n_repeated)

    def _text(self, file: IO[bytes]) -> Iterator[tuple[str, str, list[bytes] | bytes]]:
        """Where each word is, the word, and its numbers."""
        for number, line in enumerate(file, 1):
            fields = _fields(line)
            if fields == [b""] or (number == 1 and self.n_words is not None):
                continue
            n_numbers = len(fields) - 1
            # words of GloVe may have spaces, so what is before the last D numbers is the word
            if n_numbers < self.width or any(map(_is_number, fields[1 : -self.width])):
                raise self._fault(f"{n_numbers} numbers, where the other words have {self.width}", f":{number}")
            word = b" ".join(fields[: -self.width]).decode("utf-8", "replace")
            yield f":{number}", word, fields[-self.width :]

    def _binary(self, file: IO[bytes]) -> Iterator[tuple[str, str, list[bytes] | bytes]]:
        """Where each word is, the word, and the bytes of its vector."""
        file.readline()
        size, buffer, begin = 4 * self.width, b"", 0
        for number in range(1, (self.n_words or 0) + 1):
            where = f", word {number:,}"
            while True:
                space = buffer.find(b" ", begin)
                if space >= 0 and len(buffer) >= space + 1 + size:
                    break
                if (len(buffer) if space < 0 else space) - begin > LONGEST_WORD:
                    raise self._fault("neither text nor word2vec's binary format: a word without an end", where)
                chunk = file.read(max(CHUNK, size))
                if not chunk:
                    raise self._fault(f"the file ends within word {number:,} of {self.n_words:,}", where)
                buffer, begin = buffer[begin:] + chunk, 0
            word = buffer[begin:space].lstrip(b"\n").decode("utf-8", "replace")
            yield where, word, buffer[space + 1 : space + 1 + size]
            begin = space + 1 + size
        if (buffer[begin:] + file.read(CHUNK)).strip(b"\n"):
            raise self._fault("more follows after the last word, so words or numbers are not as many as promised", ":1")

    def _numbers(self, fields: list[bytes] | bytes, where: str) -> NDArray[np.float32]:
        try:
            vector_D = np.frombuffer(fields, "<f4") if isinstance(fields, bytes) else np.array([*map(float, fields)])
        except ValueError:
            raise self._fault("a vector has a value that is not a number", where) from None
        if not (np.abs(vector_D) <= np.finfo(np.float32).max).all():
            raise self._fault("a vector holds a number that is not finite", where)
        return vector_D.astype(np.float32)

    def _fault(self, what: str, where: str) -> DataError:
        return DataError(what, where=f"{display(self.path)}{where}", fix="write or download the file again")


def _is_number(field: bytes) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _fields(line: bytes) -> list[bytes]:
    return line.rstrip(b" \t\r\n").replace(b"\t", b" ").split(b" ")


def _width(line: bytes) -> int | None:
    """The numbers after the first word of a line; None where it is not text that ends in numbers."""
    fields = _fields(line)
    is_text = not re.search(rb"[\x00-\x08\x0e-\x1f]", line)
    return len(fields) - 1 if is_text and len(fields) > 1 and all(map(_is_number, fields[1:])) else None
