"""What in tables ruins training or its measurement before it starts.

Rows that occur twice, rows held out that are nearly rows for training, classes without rows, cut texts, and texts that
are not in the tokenizer's language.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from lmtool.data.files import quote
from lmtool.printable import format_count
from lmtool.tasks.labels import Label
from lmtool.tasks.notices import Notice, cut_texts, foreign_texts, misspelt
from lmtool.tasks.reading import LabelledText, LabelledTexts
from lmtool.tokenization.tokenizer import Tokenizer

WORDS = 3
"""Words of a shingle."""

LIKENESS = 0.8
"""Jaccard similarity of the shingles of two rows from which they are nearly the same."""

LONGEST = 1000
"""Words of a row that are compared."""

BLOCK = 1_000_000
"""Shingles of held-out rows that are compared at once: some 100 MB."""

BRIEF = (20_000, 2_000)
"""Rows for training and rows held out that a brief look is at, and whose tokens are counted in any."""

_WORD = re.compile(r"\w+")


def find_in_tables(
    train: LabelledTexts,
    held: Mapping[str, LabelledTexts],
    tokenizer: Tokenizer | None,
    usual: float | None,
    *,
    brief: bool,
) -> Iterator[Notice]:
    """Notices of the rows for training and those held out, by the name of their part, besides those of `read_labelled`
    and `shared_rows`.

    tokenizer: one that was not trained on these rows, if there is one; for `usual` see `foreign_texts`. brief: compare
    the first rows only, for less than about a second.
    """
    n_train, n_held = BRIEF if brief else (len(train), None)
    yield from _duplicates(train)
    yield from cut_texts((len(text) for item in train.items for text in _texts(train, item)), "text")
    # told as similar labels
    similar = misspelt(train.counts()) if train.labels is not None and train.labels.kind in ("class", "multi") else {}
    yield from _missing_classes(train, "training", similar)
    for name, part in held.items():
        yield from _missing_classes(part, name, similar)
        yield from _near(train.items[:n_train], part.items[:n_held], name)
    if tokenizer is not None:
        texts = [" ".join(item.texts) for item in islice(train.items, BRIEF[1])]
        yield from foreign_texts(texts, tokenizer, usual, "row")


def _texts(rows: LabelledTexts, item: LabelledText) -> tuple[str, ...]:
    """The texts of a row; the words of a sentence are one."""
    return (" ".join(item.texts),) if rows.columns.kind == "words" else item.texts


def _duplicates(rows: LabelledTexts) -> Iterator[Notice]:
    """A notice of rows that are equal to an earlier one; for those that differ in the label see `read_labelled`."""
    if twice := duplicates(rows.items):
        text = f"{len(twice):,} of {format_count(len(rows), 'row')} are equal to an earlier one"
        yield Notice("duplicate rows", len(twice), f"{text}; first: row {twice[0][0].row} is row {twice[0][1]}")


def duplicates(items: Iterable[LabelledText]) -> list[tuple[LabelledText, int]]:
    """Rows that are wholly equal to an earlier one, and the number of the first such row."""
    first: dict[tuple[tuple[str, ...], Label | None, str | None], int] = {}
    rows = ((item, first.setdefault((item.texts, item.label, item.target), item.row)) for item in items)
    return [(item, earlier) for item, earlier in rows if earlier != item.row]


def _missing_classes(rows: LabelledTexts, name: str, apart: Container[str]) -> Iterator[Notice]:
    if rows.labels is None or rows.labels.kind not in ("class", "multi"):
        return
    if missing := [label for label, count in rows.counts().items() if not count and label not in apart]:
        text = f"{len(missing):,} of {format_count(len(rows.labels.names), 'label')} have no row in the {name} part"
        yield Notice("classes without rows", len(missing), f"{text}; first: {quote(missing[0], 40)}")


def _near(train: Sequence[LabelledText], held: Sequence[LabelledText], name: str) -> Iterator[Notice]:
    """A notice of held-out rows that are nearly rows for training. Those that are exactly are left to `shared_rows`."""
    known = {item.texts for item in train}
    rest = [item for item in held if item.texts not in known]
    near = {row: other for block in _blocks(rest) for row, other in _nearest(train, block).items()}
    if near:
        row, other = min(near.items())
        what = f"{len(near):,} of {format_count(len(held), 'row')} of the {name} part are nearly rows for training"
        likeness = f"{100 * LIKENESS:.0f} % of their {WORDS}-grams of words or more"
        text = f"{what} (in common: {likeness}); first: row {row} is nearly row {other} there"
        yield Notice("rows nearly shared by train and test", len(near), text)


def _blocks(items: Iterable[LabelledText]) -> Iterator[dict[int, frozenset[int]]]:
    """The shingles of rows by row, so many rows at once that memory is bounded."""
    block: dict[int, frozenset[int]] = {}
    size = 0
    for item in items:
        block[item.row] = shingles(item.texts)
        size += len(block[item.row])
        if size >= BLOCK:
            yield block
            block, size = {}, 0
    yield block


def _nearest(train: Iterable[LabelledText], held: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """For each held-out row the first row for training whose shingles are as similar as LIKENESS, if any.

    Exact, by prefixes (Chaudhuri et al. 2006): with the rarest shingles first, two sets of that similarity have one in
    common among the first |s| - ceil(LIKENESS |s|) + 1 of each.
    """
    frequency = Counter(shingle for of_row in held.values() for shingle in of_row)

    def prefix(of_row: frozenset[int]) -> list[int]:
        # those that no held-out row has are the rarest
        common = sorted((s for s in of_row if s in frequency), key=lambda s: (frequency[s], s))
        n = len(of_row) - math.ceil(LIKENESS * len(of_row) - 1e-9) + 1
        return common[: max(0, n - len(of_row) + len(common))]

    index: dict[int, list[int]] = defaultdict(list)
    for row, of_row in held.items():
        for shingle in prefix(of_row):
            index[shingle].append(row)
    near: dict[int, int] = {}
    for item in train:
        of_item = shingles(item.texts)
        for row in {row for shingle in prefix(of_item) for row in index.get(shingle, ())} - near.keys():
            if len(of_item & held[row]) >= LIKENESS * len(of_item | held[row]) - 1e-9:
                near[row] = item.row
    return near


def shingles(texts: Sequence[str]) -> frozenset[int]:
    """Hashes of the n-grams of words of a row, upper and lower case and marks aside; of all its words if fewer."""
    words = _WORD.findall(" ".join(texts).lower())[:LONGEST]
    if not words:
        return frozenset()
    return frozenset(hash(tuple(words[i : i + WORDS])) for i in range(max(1, len(words) - WORDS + 1)))
