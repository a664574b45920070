"""Training and validation parts of a corpus.

By document: a keyed hash of the document's number assigns it. By slice: the first characters are for training, the
last for validation. Both depend on the position in the corpus alone, so the parts are streamed like the corpus.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from lmtool.data.corpus import Chunk
from lmtool.run.order import GOLDEN, mix

_EXACT = 1 << 20
"""Up to this many documents the number of validation documents is exact; above, it is exact in expectation."""


@dataclass(frozen=True)
class Everything:
    """The whole corpus."""

    def of(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """This part of the corpus."""
        return iter(chunks)


@dataclass(frozen=True)
class Characters:
    """The first `n_train` characters of the corpus, or all after them."""

    n_train: int
    valid: bool

    def of(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """This part of the corpus."""
        return _after(chunks, self.n_train) if self.valid else _before(chunks, self.n_train)


@dataclass(frozen=True)
class Documents:
    """The documents whose keyed hash is below `threshold`, which are for validation, or the others."""

    seed: int
    threshold: int
    valid: bool

    def of(self, chunks: Iterable[Chunk], number: int = 0) -> Iterator[Chunk]:
        """This part of the corpus. number: of the first document."""
        for chunk in chunks:
            numbers = np.arange(number, number + len(chunk.texts), dtype=np.uint64)
            number += chunk.n_ends
            chosen = (document_hash(self.seed, numbers) < np.uint64(self.threshold)) == self.valid
            texts = list(compress(chunk.texts, chosen))
            if texts:
                yield Chunk(texts, chunk.starts or not chosen[0], chunk.ends or not chosen[-1])


Part = Everything | Characters | Documents


def cut_characters(n_characters: int, valid_fraction: float) -> tuple[Characters, Characters]:
    """Train and validation parts of one text: it is cut after (1 - valid_fraction) of its characters."""
    n_train = int(n_characters * (1 - valid_fraction))
    return Characters(n_train, valid=False), Characters(n_train, valid=True)


def choose_documents(n_documents: int, valid_fraction: float, seed: int) -> tuple[Documents, Documents]:
    """Train and validation parts of at least two documents; neither part is empty."""
    threshold = int(valid_fraction * 2**64)
    if n_documents <= _EXACT:
        n_valid = min(max(round(valid_fraction * n_documents), 1), n_documents - 1)
        hashes = document_hash(seed, np.arange(n_documents, dtype=np.uint64))
        threshold = int(np.partition(hashes, n_valid)[n_valid])
    return Documents(seed, threshold, valid=False), Documents(seed, threshold, valid=True)


def document_hash(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each document number under a seed: different numbers have different hashes.

    The finaliser of SplitMix64 (Steele et al. 2014), applied to the seed and then to each number.
    """
    with np.errstate(over="ignore"):
        key = mix(np.array([seed % 2**64], dtype=np.uint64) + GOLDEN)
        return mix(numbers + key + GOLDEN)


def _before(chunks: Iterable[Chunk], left: int) -> Iterator[Chunk]:
    for chunk in chunks:
        if chunk.size < left:
            left -= chunk.size
            yield chunk
            continue
        texts = []
        for text in chunk.texts:
            texts.append(text[:left])
            left -= len(texts[-1])
            if not left:
                break
        yield Chunk(texts, chunk.starts)
        return


def _after(chunks: Iterable[Chunk], skip: int) -> Iterator[Chunk]:
    chunks = iter(chunks)
    for chunk in chunks:
        if chunk.size > skip:
            texts = list(chunk.texts)
            while len(texts[0]) <= skip:
                skip -= len(texts.pop(0))
            yield Chunk([texts[0][skip:], *texts[1:]], ends=chunk.ends)
            yield from chunks
        skip -= chunk.size
