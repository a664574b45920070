"""How much of a validation text the training text holds too, by n-grams of words, in bounded memory.

n-grams of 13 words are those by which Brown et al. (2020, appendix C) looked for test texts in training texts.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.text.corpus import Chunk

N = 13
"""Words of an n-gram. A document of fewer words is one n-gram."""

_WORD = re.compile(r"\w+")
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Overlap:
    """words: of the validation text. shared: those in an n-gram that the training text has too. example: the first such
    n-gram, in lower case. trained: words of the training text."""

    words: int
    shared: int
    example: str
    trained: int

    @property
    def percent(self) -> float:
        """Shared words, in per cent."""
        return 100 * self.shared / max(1, self.words)


def overlap(train: Iterable[Chunk], valid: Iterable[Chunk]) -> Overlap:
    """The words of `valid` in n-grams that `train` has too, upper and lower case and marks aside.

    Memory depends on `valid` alone: about 100 bytes for each word.
    """
    words: list[str] = []
    hashes, starts = [], []
    for part in _read(valid):
        keys, first, length = _ngrams(part)
        hashes.append(keys)
        starts.append(np.stack([first + len(words) - part.carried, length]))
        words += part.words[part.carried :]
    if not any(map(len, hashes)):
        # no words, or the beginning of a document of fewer than N
        return Overlap(len(words), 0, "", 0)
    keys, places = np.concatenate(hashes), np.concatenate(starts, axis=1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    seen = np.zeros(len(ordered), dtype=bool)
    trained = 0
    for part in _read(train):
        trained += len(part.words) - part.carried
        asked = _ngrams(part)[0]
        at = np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)
        seen[at[ordered[at] == asked]] = True
    # of equal n-grams only the first was marked
    firsts = np.searchsorted(ordered, ordered)
    shared = np.zeros(len(keys), dtype=bool)
    shared[order] = seen[firsts]
    covered = np.zeros(len(words) + 1, dtype=np.int64)
    begin, length = places[:, shared]
    np.add.at(covered, begin, 1)
    np.add.at(covered, begin + length, -1)
    n_shared = int((np.cumsum(covered)[:-1] > 0).sum())
    example = ""
    if len(begin):
        earliest = int(np.argmin(begin))
        example = " ".join(words[begin[earliest] : begin[earliest] + length[earliest]])
    return Overlap(len(words), n_shared, example, trained)


class _Words(NamedTuple):
    """The words of a chunk. document: the number of the document in it that each belongs to. carried: how many were in
    the chunk before. is_open: the last document goes on."""

    words: list[str]
    document: NDArray[np.int64]
    carried: int
    is_open: bool


def _read(chunks: Iterable[Chunk]) -> Iterator[_Words]:
    """The words of each chunk. A document that goes on in another one brings its last words there, so that no n-gram is
    missed."""
    tail: list[str] = []
    for chunk in chunks:
        of_text = [_WORD.findall(text.lower()) for text in chunk.texts]
        carried = 0 if chunk.starts else len(tail)
        of_text[0] = tail[len(tail) - carried :] + of_text[0]
        tail = [] if chunk.ends else of_text[-1][-(N - 1) :]
        words = [word for part in of_text for word in part]
        if len(words) > carried:
            document = np.repeat(np.arange(len(of_text)), [len(part) for part in of_text])
            yield _Words(words, document, carried, not chunk.ends)


def _ngrams(part: _Words) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The hash of each n-gram, its first word, and its number of words: N, or fewer of a short document."""
    # every process has its own hashes of strings: they are compared here only
    codes = np.fromiter(map(hash, part.words), dtype=np.int64, count=len(part.words)).view(np.uint64)
    begins = np.flatnonzero(np.diff(part.document, prepend=-1))
    lengths = np.diff(begins, append=len(codes))
    if part.is_open:
        begins, lengths = begins[:-1], lengths[:-1]
    n = max(0, len(codes) - N + 1)
    whole = np.flatnonzero(part.document[:n] == part.document[len(codes) - n :])
    found = [(whole, N), *((begins[lengths == short], short) for short in range(1, N))]
    keys = []
    for first, length in found:
        # of n-grams of unequal lengths equal hashes are as rare as of others
        key = np.full(len(first), length, dtype=np.uint64)
        for i in range(length):
            key = key * _STEP + codes[first + i]
        keys.append(key)
    return (
        np.concatenate(keys),
        np.concatenate([first for first, _ in found]),
        np.concatenate([np.full(len(first), length) for first, length in found]),
    )
