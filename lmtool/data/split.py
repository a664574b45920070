"""Splits a corpus into a training part and a validation part.

By document: a keyed hash of its number assigns each document. By slice: the first characters are for training, the last
for validation. Both depend on the position in the corpus alone, so the parts are streamed like the corpus.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.order import GOLDEN_RATIO_64, mix_bits

_MAX_EXACT_DOCUMENTS = 1 << 20
"""Above this number of documents the validation fraction is exact in expectation only."""


@dataclass(frozen=True)
class WholeCorpusPart:
    """The whole corpus."""

    cache_name: ClassVar[str] = "Everything"

    def select(self, chunks: Iterable[MultiDocumentChunk]) -> Iterator[MultiDocumentChunk]:
        """Yields all chunks."""
        return iter(chunks)


@dataclass(frozen=True)
class CharacterSplitPart:
    """The first `n_train` characters of the corpus, or if `valid` all after them."""

    cache_name: ClassVar[str] = "Characters"
    n_train: int
    valid: bool

    def select(self, chunks: Iterable[MultiDocumentChunk]) -> Iterator[MultiDocumentChunk]:
        """Yields the text of this part."""
        return _skip_characters(chunks, self.n_train) if self.valid else _take_characters(chunks, self.n_train)


@dataclass(frozen=True)
class DocumentSplitPart:
    """The documents whose keyed hash is below `threshold` if `valid`, else the other documents."""

    cache_name: ClassVar[str] = "Documents"
    seed: int
    threshold: int
    valid: bool

    def select(self, chunks: Iterable[MultiDocumentChunk], first_number: int = 0) -> Iterator[MultiDocumentChunk]:
        """Yields the documents of this part. first_number: number of the first document of `chunks`."""
        for chunk in chunks:
            numbers = np.arange(first_number, first_number + len(chunk.texts), dtype=np.uint64)
            first_number += chunk.n_ends
            chosen = (hash_document_numbers(self.seed, numbers) < np.uint64(self.threshold)) == self.valid
            texts = list(compress(chunk.texts, chosen))
            if texts:
                yield MultiDocumentChunk(texts, chunk.starts or not chosen[0], chunk.ends or not chosen[-1])


CorpusPart = WholeCorpusPart | CharacterSplitPart | DocumentSplitPart


def split_by_characters(n_characters: int, valid_fraction: float) -> tuple[CharacterSplitPart, CharacterSplitPart]:
    """Returns the training and the validation part of a text cut after (1 - valid_fraction) of its characters."""
    n_train = int(n_characters * (1 - valid_fraction))
    return CharacterSplitPart(n_train, valid=False), CharacterSplitPart(n_train, valid=True)


def split_by_documents(
    n_documents: int, valid_fraction: float, seed: int
) -> tuple[DocumentSplitPart, DocumentSplitPart]:
    """Returns the training and the validation part of at least two documents; neither part is empty."""
    threshold = int(valid_fraction * 2**64)
    if n_documents <= _MAX_EXACT_DOCUMENTS:
        n_valid = min(max(round(valid_fraction * n_documents), 1), n_documents - 1)
        hashes = hash_document_numbers(seed, np.arange(n_documents, dtype=np.uint64))
        threshold = int(np.partition(hashes, n_valid)[n_valid])
    return DocumentSplitPart(seed, threshold, valid=False), DocumentSplitPart(seed, threshold, valid=True)


def hash_document_numbers(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a 64-bit hash of each document number under a seed; different numbers have different hashes.

    The finaliser of SplitMix64 (Steele et al. 2014), applied to the seed and then to each number.
    """
    with np.errstate(over="ignore"):
        key = mix_bits(np.array([seed % 2**64], dtype=np.uint64) + GOLDEN_RATIO_64)
        return mix_bits(numbers + key + GOLDEN_RATIO_64)


def _take_characters(chunks: Iterable[MultiDocumentChunk], n_characters: int) -> Iterator[MultiDocumentChunk]:
    for chunk in chunks:
        if chunk.size < n_characters:
            n_characters -= chunk.size
            yield chunk
            continue
        texts = []
        for text in chunk.texts:
            texts.append(text[:n_characters])
            n_characters -= len(texts[-1])
            if not n_characters:
                break
        yield MultiDocumentChunk(texts, chunk.starts)
        return


def _skip_characters(chunks: Iterable[MultiDocumentChunk], n_characters: int) -> Iterator[MultiDocumentChunk]:
    chunks = iter(chunks)
    for chunk in chunks:
        if chunk.size > n_characters:
            texts = list(chunk.texts)
            while len(texts[0]) <= n_characters:
                n_characters -= len(texts.pop(0))
            yield MultiDocumentChunk([texts[0][n_characters:], *texts[1:]], ends=chunk.ends)
            yield from chunks
        n_characters -= chunk.size
