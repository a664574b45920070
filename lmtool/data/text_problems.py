"""Problems in a text that spoil training.

Finds documents that occur twice or were cut, validation text in the training text, and text that is not in the
tokenizer's language. The overlap of both texts is counted by n-grams of words, in bounded memory; Brown et al. (2020,
appendix C) searched training texts for test texts by n-grams of 13 words.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.files import quote
from lmtool.data.notices import MIN_TEXT_BYTES, Notice, make_language_notices, make_suspected_truncation_notices
from lmtool.data.prepare import CorpusSubset
from lmtool.printable import format_count
from lmtool.tokenization.tokenizer import Tokenizer

BRIEF_CHUNKS = (64, 8)
"""Chunks of the training and the validation text, of some 130,000 characters each, that a brief check reads."""

THOROUGH_CHUNKS = (1 << 40, 128)
"""Chunks that a thorough check reads. Memory grows with the validation text."""

MIN_SHARED_PERCENT = 1.0
"""Per cent of the words of the validation text from which an overlap is reported."""

MAX_COMPARED_DOCUMENTS = 2_000_000
"""Limit of the documents that are compared, some 200 MB."""

SAMPLED_LINES = 2000
"""Lines whose tokens are counted."""

NGRAM_WORDS = 13
"""Words of an n-gram. A document of fewer words is one n-gram."""

WORD = re.compile(r"\w+")
"""A word of a text in lower case."""

_STEP = np.uint64(0x9E3779B97F4A7C15)


def find_text_problems(
    train: CorpusSubset,
    valid: CorpusSubset,
    tokenizer: Tokenizer | None,
    usual_bytes_per_token: float | None,
    *,
    brief: bool,
) -> Iterator[Notice]:
    """Yields notices about problems of a training and a validation text.

    tokenizer: one that was not trained on this text, or None. usual_bytes_per_token: see `make_language_notices`.
    brief: reads the beginnings only, for less than about a second.
    """
    most_train, most_valid = BRIEF_CHUNKS if brief else THOROUGH_CHUNKS
    if not train.text.corpus.stream:
        yield from _find_duplicate_or_cut_documents(islice(train.chunks(), most_train))
    shared = find_words_in_shared_ngrams(islice(train.chunks(), most_train), islice(valid.chunks(), most_valid))
    if shared.percent >= MIN_SHARED_PERCENT:
        what = (
            f"{shared.percent:.1f} % of the {shared.n_words:,} words of the validation text are in {NGRAM_WORDS}-grams"
        )
        text = f"{what} of words that the training text has too; first: {quote(shared.example, 80)}"
        yield Notice("validation text in the training text", shared.n_shared, text)
    if tokenizer is not None:
        lines = (line for chunk in train.chunks() for text in chunk.texts for line in text.split("\n"))
        long_lines = islice((line for line in lines if len(line) >= MIN_TEXT_BYTES), SAMPLED_LINES)
        yield from make_language_notices(list(long_lines), tokenizer, usual_bytes_per_token, "text")


def _find_duplicate_or_cut_documents(chunks: Iterable[MultiDocumentChunk]) -> Iterator[Notice]:
    """Yields notices about documents that occur twice or were cut; ignores documents in several chunks."""
    lengths: list[int] = []
    seen: set[int] = set()
    n_twice = 0
    first = ""
    for chunk in chunks:
        for i, text in enumerate(chunk.texts):
            if (i == 0 and not chunk.starts) or (i == len(chunk.texts) - 1 and not chunk.ends):
                continue
            lengths.append(len(text))
            key = hash(text)
            if key in seen:
                n_twice += 1
                first = first or text
            elif len(seen) < MAX_COMPARED_DOCUMENTS:
                seen.add(key)
    if n_twice:
        what = f"{n_twice:,} of {format_count(len(lengths), 'document')} are equal to an earlier one"
        yield Notice("duplicate documents", n_twice, f"{what}; first: {quote(first, 80)}")
    yield from make_suspected_truncation_notices(lengths, "document")


@dataclass(frozen=True)
class NgramOverlapCounts:
    """Words of a validation text in n-grams of a training text.

    n_words: of the validation text. n_shared: those in an n-gram of the training text. example: the first such n-gram,
    in lower case. n_trained: words of the training text. is_shared_W: whether each word is shared."""

    n_words: int
    n_shared: int
    example: str
    n_trained: int
    is_shared_W: NDArray[np.bool_] = field(compare=False)

    @property
    def percent(self) -> float:
        """Returns the shared words in per cent."""
        return 100 * self.n_shared / max(1, self.n_words)


def find_words_in_shared_ngrams(
    train: Iterable[MultiDocumentChunk], valid: Iterable[MultiDocumentChunk]
) -> NgramOverlapCounts:
    """Computes which words of `valid` are in n-grams of `train`, ignoring case and punctuation.

    Memory depends on `valid` alone: about 100 bytes for each word.
    """
    words: list[str] = []
    hashes, spans = [], []
    for part in _read_words_with_ngram_overlap(valid):
        keys, first, length = _hash_ngrams(part)
        hashes.append(keys)
        spans.append(np.stack([first + len(words) - part.carried, length]))
        words += part.words[part.carried :]
    if not any(map(len, hashes)):
        # no words, or the beginning of a document of fewer than N
        return NgramOverlapCounts(len(words), 0, "", 0, np.zeros(len(words), dtype=bool))
    keys = np.concatenate(hashes)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    seen = np.zeros(len(ordered), dtype=bool)
    trained = 0
    for part in _read_words_with_ngram_overlap(train):
        trained += len(part.words) - part.carried
        ngrams = _hash_ngrams(part).hashes
        at = np.minimum(np.searchsorted(ordered, ngrams), len(ordered) - 1)
        seen[at[ordered[at] == ngrams]] = True
    # of equal n-grams only the first was marked
    firsts = np.searchsorted(ordered, ordered)
    shared = np.zeros(len(keys), dtype=bool)
    shared[order] = seen[firsts]
    covered = np.zeros(len(words) + 1, dtype=np.int64)
    begin, length = np.concatenate(spans, axis=1)[:, shared]
    np.add.at(covered, begin, 1)
    np.add.at(covered, begin + length, -1)
    is_shared_W = np.cumsum(covered)[:-1] > 0
    example = ""
    if len(begin):
        earliest = int(np.argmin(begin))
        example = " ".join(words[begin[earliest] : begin[earliest] + length[earliest]])
    return NgramOverlapCounts(len(words), int(is_shared_W.sum()), example, trained, is_shared_W)


class _ChunkWords(NamedTuple):
    """The words of a chunk. document: number of the document of each word. carried: number of words from the chunk
    before. is_open: whether the last document continues."""

    words: list[str]
    document: NDArray[np.int64]
    carried: int
    is_open: bool


def _read_words_with_ngram_overlap(chunks: Iterable[MultiDocumentChunk]) -> Iterator[_ChunkWords]:
    """Yields the words of each chunk, with the last words of a document that began before, so that no n-gram is
    missed."""
    tail: list[str] = []
    for chunk in chunks:
        of_text = [WORD.findall(text.lower()) for text in chunk.texts]
        carried = 0 if chunk.starts else len(tail)
        of_text[0] = tail[len(tail) - carried :] + of_text[0]
        tail = [] if chunk.ends else of_text[-1][-(NGRAM_WORDS - 1) :]
        words = [word for part in of_text for word in part]
        if len(words) > carried:
            document = np.repeat(np.arange(len(of_text)), [len(part) for part in of_text])
            yield _ChunkWords(words, document, carried, not chunk.ends)


class _HashedNgramSpans(NamedTuple):
    """The hash, the index of the first word and the number of words of each n-gram."""

    hashes: NDArray[np.uint64]
    first_words: NDArray[np.int64]
    n_words: NDArray[np.int64]


def _hash_ngrams(part: _ChunkWords) -> _HashedNgramSpans:
    """Hashes the n-grams of NGRAM_WORDS words; a document that is shorter is one n-gram."""
    # every process has its own hashes of strings: they are compared here only
    codes = np.fromiter(map(hash, part.words), dtype=np.int64, count=len(part.words)).view(np.uint64)
    begins = np.flatnonzero(np.diff(part.document, prepend=-1))
    lengths = np.diff(begins, append=len(codes))
    if part.is_open:
        begins, lengths = begins[:-1], lengths[:-1]
    n = max(0, len(codes) - NGRAM_WORDS + 1)
    whole = np.flatnonzero(part.document[:n] == part.document[len(codes) - n :])
    ngrams = [(whole, NGRAM_WORDS), *((begins[lengths == short], short) for short in range(1, NGRAM_WORDS))]
    keys, firsts, n_words = [], [], []
    for first, length in ngrams:
        # of n-grams of unequal lengths equal hashes are as rare as of others
        key = np.full(len(first), length, dtype=np.uint64)
        for i in range(length):
            key = key * _STEP + codes[first + i]
        keys.append(key)
        firsts.append(first)
        n_words.append(np.full(len(first), length))
    return _HashedNgramSpans(np.concatenate(keys), np.concatenate(firsts), np.concatenate(n_words))
