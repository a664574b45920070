"""What in a text ruins training before it starts.

Documents that occur twice or were cut, validation text that the training text holds too, and text that is not in the
tokenizer's language. How much of a validation text the training text holds too is counted by n-grams of words, in
bounded memory; n-grams of 13 words are those by which Brown et al. (2020, appendix C) looked for test texts in training
texts.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.data.corpus import Chunk
from lmtool.data.files import quote
from lmtool.data.prepare import TextPart
from lmtool.printable import counted
from lmtool.tasks.notices import LEAST_BYTES, Notice, cut_texts, foreign_texts
from lmtool.tokenization.tokenizer import Tokenizer

BRIEF = (64, 8)
"""Chunks, of some 130,000 characters, of the training and the validation text that a brief look is at."""

WHOLE = (1 << 40, 128)
"""The same of a thorough one. Memory grows with the validation text."""

SHARED = 1.0
"""Per cent of the words of the validation text from which an overlap is told."""

MOST_DOCUMENTS = 2_000_000
"""Documents among which equal ones are looked for, some 200 MB."""

SAMPLED = 2000
"""Texts whose tokens are counted."""


N = 13
"""Words of an n-gram. A document of fewer words is one n-gram."""

WORD = re.compile(r"\w+")
"""A word, of text in lower case."""

_STEP = np.uint64(0x9E3779B97F4A7C15)


def find_in_text(
    train: TextPart, valid: TextPart, tokenizer: Tokenizer | None, usual: float | None, *, brief: bool
) -> Iterator[Notice]:
    """Notices of a training and a validation text.

    tokenizer: one that was not trained on this text, if there is one; for `usual` see `foreign_texts`. brief: look at
    the beginnings only, for less than about a second.
    """
    most_train, most_valid = BRIEF if brief else WHOLE
    if not train.text.corpus.stream:
        yield from _documents(islice(train.chunks(), most_train))
    shared = overlap(islice(train.chunks(), most_train), islice(valid.chunks(), most_valid))
    if shared.percent >= SHARED:
        what = f"{shared.percent:.1f} % of the {shared.words:,} words of the validation text are in {N}-grams of words"
        text = f"{what} that the training text has too; first: {quote(shared.example, 80)}"
        yield Notice("validation text in the training text", shared.shared, text)
    if tokenizer is not None:
        yield from foreign_texts(_long_lines(train.chunks()), tokenizer, usual, "text")


def _documents(chunks: Iterable[Chunk]) -> Iterator[Notice]:
    """Notices of documents that occur twice, and of cut ones. Documents in several chunks are left out."""
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
            elif len(seen) < MOST_DOCUMENTS:
                seen.add(key)
    if n_twice:
        what = f"{n_twice:,} of {counted(len(lengths), 'document')} are equal to an earlier one"
        yield Notice("duplicate documents", n_twice, f"{what}; first: {quote(first, 80)}")
    yield from cut_texts(lengths, "document")


def _long_lines(chunks: Iterable[Chunk]) -> list[str]:
    """The first lines that are long enough to judge."""
    lines = (line for chunk in chunks for text in chunk.texts for line in text.split("\n") if len(line) >= LEAST_BYTES)
    return list(islice(lines, SAMPLED))


@dataclass(frozen=True)
class Overlap:
    """words: of the validation text. shared: those in an n-gram that the training text has too. example: the first such
    n-gram, in lower case. trained: words of the training text. is_shared_W: of each word whether it is shared."""

    words: int
    shared: int
    example: str
    trained: int
    is_shared_W: NDArray[np.bool_] = field(compare=False)

    @property
    def percent(self) -> float:
        """Shared words, in per cent."""
        return 100 * self.shared / max(1, self.words)


def overlap(train: Iterable[Chunk], valid: Iterable[Chunk]) -> Overlap:
    """The words of `valid` in n-grams that `train` has too, upper and lower case and marks aside.

    Memory depends on `valid` alone: about 100 bytes for each word.
    """
    words: list[str] = []
    hashes, spans = [], []
    for part in _read(valid):
        keys, first, length = _ngrams(part)
        hashes.append(keys)
        spans.append(np.stack([first + len(words) - part.carried, length]))
        words += part.words[part.carried :]
    if not any(map(len, hashes)):
        # no words, or the beginning of a document of fewer than N
        return Overlap(len(words), 0, "", 0, np.zeros(len(words), dtype=bool))
    keys = np.concatenate(hashes)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    seen = np.zeros(len(ordered), dtype=bool)
    trained = 0
    for part in _read(train):
        trained += len(part.words) - part.carried
        ngrams = _ngrams(part)[0]
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
    return Overlap(len(words), int(is_shared_W.sum()), example, trained, is_shared_W)


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
        of_text = [WORD.findall(text.lower()) for text in chunk.texts]
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
    ngrams = [(whole, N), *((begins[lengths == short], short) for short in range(1, N))]
    keys, firsts, n_words = [], [], []
    for first, length in ngrams:
        # of n-grams of unequal lengths equal hashes are as rare as of others
        key = np.full(len(first), length, dtype=np.uint64)
        for i in range(length):
            key = key * _STEP + codes[first + i]
        keys.append(key)
        firsts.append(first)
        n_words.append(np.full(len(first), length))
    return np.concatenate(keys), np.concatenate(firsts), np.concatenate(n_words)
