"""What in a text ruins training before it starts.

Documents that occur twice or were cut, validation text that the training text holds too, and text that is not in the
tokenizer's language.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from lmtool.text.corpus import Chunk
from lmtool.text.files import shown
from lmtool.text.notices import LEAST_BYTES, Notice, counted, cut_texts, foreign_texts
from lmtool.text.overlap import N, overlap
from lmtool.text.prepare import TextPart
from lmtool.text.tokenizer import Tokenizer

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
        text = f"{what} that the training text has too; first: {shown(shared.example, 80)}"
        yield Notice("validation text in the training text", shared.shared, text)
    if tokenizer is not None:
        yield from foreign_texts(_sample(train.chunks()), tokenizer, usual, "text")


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
        yield Notice("duplicate documents", n_twice, f"{what}; first: {shown(first, 80)}")
    yield from cut_texts(lengths, "document")


def _sample(chunks: Iterable[Chunk]) -> list[str]:
    """The first lines that are long enough to judge."""
    lines = (line for chunk in chunks for text in chunk.texts for line in text.split("\n") if len(line) >= LEAST_BYTES)
    return list(islice(lines, SAMPLED))
