"""Notices, and those of what is suspicious in texts but usable: truncated texts, unknown tokens, and texts in another
language than the tokenizer's."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmtool.printable import format_count
from lmtool.tokenization.tokenizer import Tokenizer

MIN_TRUNCATED_CHARACTERS = 100
"""Shorter texts of equal length do not seem truncated."""

MIN_TRUNCATED_SHARE = 0.01
"""Share of texts of exactly the maximum length from which they seem truncated; at least 5 texts."""

FOREIGN_TEXT_RATIO = 0.5
"""A text is not in the tokenizer's language if its tokens have less than this share of the expected bytes."""

MIN_TEXT_BYTES = 40
"""Shorter texts are not judged by the length of their tokens, which varies."""

LARGE_VOCABULARY, LARGE_VOCABULARY_BYTES = 8192, 3.0
"""Vocabulary size from which tokens of a suitable language have at least this number of bytes."""

MIN_UNKNOWN_SHARE = 0.02
"""Share of unknown tokens from which a notice is given."""


@dataclass(frozen=True)
class Notice:
    """Something suspicious but usable: a key for programs, the number of things concerned, and a sentence."""

    kind: str
    count: int
    text: str

    def __str__(self) -> str:
        return self.text


def make_suspected_truncation_notices(lengths: Iterable[int], noun: str) -> Iterator[Notice]:
    """Yields a notice if many texts have exactly the maximum number of characters. noun: what a text is called."""
    counts = Counter(lengths)
    longest = max(counts, default=0)
    if longest >= MIN_TRUNCATED_CHARACTERS and counts[longest] >= max(5, MIN_TRUNCATED_SHARE * counts.total()):
        what = f"{counts[longest]:,} of {format_count(counts.total(), noun)} have exactly {longest:,} characters"
        yield Notice("texts cut at one length", counts[longest], f"{what}, the maximum: they seem to be truncated")


def make_language_notices(
    texts: Sequence[str], tokenizer: Tokenizer, bytes_per_token: float | None, noun: str
) -> Iterator[Notice]:
    """Yields notices of texts whose tokens have far fewer bytes than expected, or are unknown.

    bytes_per_token: of the text that the tokenizer's model was trained on; by default the median of `texts`, at least
    LARGE_VOCABULARY_BYTES for a large vocabulary. noun: what a text is called.
    """
    ids, lengths = tokenizer.encode_many(texts)
    n_bytes = np.array([len(text.encode()) for text in texts])
    is_long = (n_bytes >= MIN_TEXT_BYTES) & (lengths > 0)
    if not is_long.any():
        return
    n_unknown = int((ids == tokenizer.unk_id).sum()) if tokenizer.kind != "bpe" else 0
    if n_unknown > MIN_UNKNOWN_SHARE * len(ids):
        text = f"{100 * n_unknown / len(ids):.0f} % of the tokens are unknown to the tokenizer"
        yield Notice("unknown tokens", n_unknown, text)
    found = n_bytes[is_long] / lengths[is_long]
    minimum = LARGE_VOCABULARY_BYTES if tokenizer.vocab_size >= LARGE_VOCABULARY else 0.0
    expected = max(float(np.median(found)), minimum) if bytes_per_token is None else bytes_per_token
    foreign = np.flatnonzero(found < FOREIGN_TEXT_RATIO * expected)
    if len(foreign):
        first = int(np.flatnonzero(is_long)[foreign[0]]) + 1
        mean = n_bytes[is_long][foreign].sum() / lengths[is_long][foreign].sum()
        text = (
            f"{len(foreign):,} of {format_count(len(texts), noun)} are not in the language of the tokenizer: "
            f"{mean:.1f} bytes per token instead of {expected:.1f}; first: {noun} {first:,}"
        )
        yield Notice("texts in another language", len(foreign), text)
