"""Finds problems of tables that spoil training or its evaluation: duplicate rows, held-out rows that nearly equal
training rows, classes without rows, truncated texts, and texts that are not in the tokenizer's language."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from lmtool.data.files import quote
from lmtool.data.notices import Notice, make_language_notices, make_suspected_truncation_notices
from lmtool.printable import format_count
from lmtool.tasks.labels import Label
from lmtool.tasks.notices import find_misspelt_labels
from lmtool.tasks.reading import LabelledRow, LabelledTable, RowNumber
from lmtool.tokenization.tokenizer import Tokenizer

SHINGLE_WORDS = 3

MIN_SIMILARITY = 0.8
"""Jaccard similarity of the shingles of two rows from which they are nearly equal."""

MAX_COMPARED_WORDS = 1000
"""Words of a row that are compared."""

BLOCK_SHINGLES = 1_000_000
"""Shingles of held-out rows that are compared at once: some 100 MB."""

BRIEF_TRAIN_ROWS, BRIEF_HELD_OUT_ROWS = 20_000, 2_000
"""Rows that a brief search compares."""

MAX_TOKENIZED_ROWS = 2_000
"""Rows whose tokens are counted."""


def find_table_problems(
    train: LabelledTable,
    held_out: Mapping[str, LabelledTable],
    tokenizer: Tokenizer | None,
    bytes_per_token: float | None,
    *,
    brief: bool,
) -> Iterator[Notice]:
    """Yields notices besides those of `read_labelled_table` and `make_shared_rows_notice`.

    Args:
        held_out: rows by the name of their part.
        tokenizer: one that was not trained on these rows, or None.
        bytes_per_token: see `make_language_notices`.
        brief: compares the first rows only, in less than about a second.
    """
    if repeated := find_rows_equal_to_earlier(train.items):
        text = f"{len(repeated):,} of {format_count(len(train), 'row')} are equal to an earlier one"
        text += f"; first: row {repeated[0][0].row} is row {repeated[0][1]}"
        yield Notice("duplicate rows", len(repeated), text)
    are_sentences = train.columns.kind == "words"
    texts = (text for item in train.items for text in ([" ".join(item.texts)] if are_sentences else item.texts))
    yield from make_suspected_truncation_notices(map(len, texts), "text")
    has_classes = train.labels is not None and train.labels.kind in ("class", "multi")
    misspelt = find_misspelt_labels(train.count_classes()) if has_classes else {}
    yield from _find_missing_classes(train, "training", misspelt)
    n_train, n_held_out = (BRIEF_TRAIN_ROWS, BRIEF_HELD_OUT_ROWS) if brief else (None, None)
    for name, part in held_out.items():
        yield from _find_missing_classes(part, name, misspelt)
        yield from _find_near_duplicates(train.items[:n_train], part.items[:n_held_out], name)
    if tokenizer is not None:
        rows = [" ".join(item.texts) for item in islice(train.items, MAX_TOKENIZED_ROWS)]
        yield from make_language_notices(rows, tokenizer, bytes_per_token, "row")


def find_rows_equal_to_earlier(items: Iterable[LabelledRow]) -> list[tuple[LabelledRow, RowNumber]]:
    """Returns the rows that wholly equal an earlier one, each with the number of the first such row."""
    first: dict[tuple[tuple[str, ...], Label | None, str | None], int] = {}
    rows = ((item, first.setdefault((item.texts, item.label, item.target), item.row)) for item in items)
    return [(item, earlier) for item, earlier in rows if earlier != item.row]


def _find_missing_classes(rows: LabelledTable, part_name: str, misspelt: Container[str]) -> Iterator[Notice]:
    """Yields a notice of the classes without rows in a part; misspelt ones have a notice of their own."""
    if rows.labels is None or rows.labels.kind not in ("class", "multi"):
        return
    if missing := [label for label, count in rows.count_classes().items() if not count and label not in misspelt]:
        labels = format_count(len(rows.labels.names), "label")
        text = f"{len(missing):,} of {labels} have no row in the {part_name} part"
        yield Notice("classes without rows", len(missing), f"{text}; first: {quote(missing[0], 40)}")


def _find_near_duplicates(
    train: Sequence[LabelledRow], held_out: Sequence[LabelledRow], part_name: str
) -> Iterator[Notice]:
    """Yields a notice of the rows of a held-out part that nearly equal training rows; equal ones do not count."""
    known = {item.texts for item in train}
    rest = [item for item in held_out if item.texts not in known]
    blocks = _hash_shingles_in_blocks(rest)
    near = {row: other for block in blocks for row, other in _match_similar_training_rows(train, block).items()}
    if near:
        row, other = min(near.items())
        rows = format_count(len(held_out), "row")
        what = f"{len(near):,} of {rows} of the {part_name} part are nearly rows for training"
        similarity = f"{100 * MIN_SIMILARITY:.0f} % of their {SHINGLE_WORDS}-grams of words or more"
        text = f"{what} (in common: {similarity}); first: row {row} is nearly row {other} there"
        yield Notice("rows nearly shared by train and test", len(near), text)


def _hash_shingles_in_blocks(items: Iterable[LabelledRow]) -> Iterator[dict[RowNumber, frozenset[int]]]:
    """Yields the shingles of rows by row number, for so many rows at once that memory is bounded."""
    block: dict[RowNumber, frozenset[int]] = {}
    size = 0
    for item in items:
        block[item.row] = hash_shingles(item.texts)
        size += len(block[item.row])
        if size >= BLOCK_SHINGLES:
            yield block
            block, size = {}, 0
    yield block


def _match_similar_training_rows(
    train: Iterable[LabelledRow], held_out_shingles: Mapping[RowNumber, frozenset[int]]
) -> dict[RowNumber, RowNumber]:
    """Returns for each held-out row the first training row whose shingles have MIN_SIMILARITY, if any.

    Exact, by prefixes (Chaudhuri et al. 2006): ordered from the rarest shingle, two sets s of that similarity have one
    in common among the first |s| - ceil(MIN_SIMILARITY |s|) + 1 of each.
    """
    frequency = Counter(shingle for shingles in held_out_shingles.values() for shingle in shingles)

    def select_prefix(shingles: frozenset[int]) -> list[int]:
        # Shingles of no held-out row come first, and match nothing.
        common = sorted((s for s in shingles if s in frequency), key=lambda s: (frequency[s], s))
        n = len(shingles) - math.ceil(MIN_SIMILARITY * len(shingles) - 1e-9) + 1
        return common[: max(0, n - len(shingles) + len(common))]

    rows_by_shingle: dict[int, list[int]] = defaultdict(list)
    for row, shingles in held_out_shingles.items():
        for shingle in select_prefix(shingles):
            rows_by_shingle[shingle].append(row)
    similar: dict[int, int] = {}
    for item in train:
        shingles = hash_shingles(item.texts)
        candidates = {row for shingle in select_prefix(shingles) for row in rows_by_shingle.get(shingle, ())}
        for row in candidates - similar.keys():
            if len(shingles & held_out_shingles[row]) >= MIN_SIMILARITY * len(shingles | held_out_shingles[row]) - 1e-9:
                similar[row] = item.row
    return similar


def hash_shingles(texts: Sequence[str]) -> frozenset[int]:
    """Returns hashes of the word n-grams of a row, without case and punctuation; of all its words if there are few."""
    words = re.findall(r"\w+", " ".join(texts).lower())[:MAX_COMPARED_WORDS]
    if not words:
        return frozenset()
    starts = range(max(1, len(words) - SHINGLE_WORDS + 1))
    return frozenset(hash(tuple(words[i : i + SHINGLE_WORDS])) for i in starts)
