"""What is suspicious about texts but usable: texts that were cut, and texts that a tokenizer was not made for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmtool.text.tokenizer import Tokenizer

CUT_LENGTH = 100
"""Characters from which many texts of one length are taken to be cut."""

CUT_SHARE = 0.01
"""Share of texts of exactly the greatest length from which they are taken to be cut; and at least 5."""

FEW_BYTES = 0.5
"""A text whose tokens have less than this part of the usual bytes is not in the tokenizer's language."""

LEAST_BYTES = 40
"""Bytes of a text from which its tokens are counted: those of a few words vary."""

LARGE, USUAL = 8192, 3.0
"""Tokens of a vocabulary of so many entries have so many bytes, in a language that it was made for."""

UNKNOWN = 0.02
"""Share of unknown tokens from which they are told."""


@dataclass(frozen=True)
class Notice:
    """Something suspicious but usable: a key for programs, a count of what is concerned, and a sentence."""

    kind: str
    count: int
    text: str

    def __str__(self) -> str:
        return self.text


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as "1 row" and "1,234 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cut_texts(lengths: Iterable[int], noun: str) -> Iterator[Notice]:
    """A notice where many texts have exactly the greatest number of characters. noun: what a text is called."""
    found = Counter(lengths)
    longest = max(found, default=0)
    if longest >= CUT_LENGTH and found[longest] >= max(5, CUT_SHARE * found.total()):
        what = f"{found[longest]:,} of {counted(found.total(), noun)} have exactly {longest:,} characters"
        yield Notice("texts cut at one length", found[longest], f"{what}, the most of all: they seem to be cut")


def foreign_texts(texts: Sequence[str], tokenizer: Tokenizer, usual: float | None, noun: str) -> Iterator[Notice]:
    """Notices of texts in which tokens have far fewer bytes than usual, or are unknown.

    usual: bytes of a token of the text that the tokenizer's model was trained on. Where that is unknown, the median of
    `texts` is taken, and USUAL or more for a large vocabulary.
    """
    ids, lengths = tokenizer.encode_many(texts)
    n_bytes = np.array([len(text.encode()) for text in texts])
    long = (n_bytes >= LEAST_BYTES) & (lengths > 0)
    if not long.any():
        return
    n_unknown = int((ids == tokenizer.unk_id).sum()) if tokenizer.kind != "bpe" else 0
    if n_unknown > UNKNOWN * len(ids):
        text = f"{100 * n_unknown / len(ids):.0f} % of the tokens are unknown to the tokenizer"
        yield Notice("unknown tokens", n_unknown, text)
    per_token = n_bytes[long] / lengths[long]
    least = USUAL if tokenizer.vocab_size >= LARGE else 0.0
    expected = max(float(np.median(per_token)), least) if usual is None else usual
    foreign = np.flatnonzero(per_token < FEW_BYTES * expected)
    if len(foreign):
        first = int(np.flatnonzero(long)[foreign[0]]) + 1
        found = float(n_bytes[long][foreign].sum() / lengths[long][foreign].sum())
        text = (
            f"{len(foreign):,} of {counted(len(texts), noun)} are not in the language of the tokenizer: "
            f"{found:.1f} bytes per token, where {expected:.1f} are usual; first: {noun} {first:,}"
        )
        yield Notice("texts in another language", len(foreign), text)
