"""Pairs of texts: their spans, that half of them follow each other, and that only their content shows which."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.objective import TextCutSettings
from lmtool.training.windows import Windows
from tests.support.errors import refuses
from tests.support.training import MemoryStore

BOS, EOS, FIRST = 1, 2, 10


def store_of(lengths: list[int], marks: bool = True) -> MemoryStore:
    """Documents of so many tokens, all distinct, between special tokens."""
    starts = FIRST + np.cumsum([0, *lengths])
    rows = [list(range(start, start + n)) for start, n in zip(starts, lengths, strict=False)]
    return MemoryStore([[BOS, *row, EOS] for row in rows] if marks else rows)


def pairs(store: MemoryStore, length: int = 9, seed: int = 1, kind: Any = "pair") -> Windows:
    return Windows(store, TextCutSettings(kind, length, length), seed, special_ids=(BOS, EOS))  # type: ignore[arg-type]


def documents_of(lengths: list[int]) -> list[range]:
    """The tokens of each document."""
    starts = FIRST + np.cumsum([0, *lengths])
    return [range(start, start + n) for start, n in zip(starts, lengths, strict=False)]


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=6).map(lambda more: [5, *more, 2]),
    length=st.integers(2, 12),
    seed=st.integers(0, 100),
    marks=st.booleans(),
)
def test_a_pair_is_cut_from_one_document_or_from_two(lengths: list[int], length: int, seed: int, marks: bool) -> None:
    lengths = lengths if marks else [n for n in lengths if n]
    examples = pairs(store_of(lengths, marks), length, seed)
    documents = documents_of(lengths)
    for number in range(40):
        (example,) = examples.read(np.array([number]))
        assert example.second is not None
        first, second = example.tokens.tolist(), example.second.tolist()
        assert min(len(first), len(second)) >= 1
        assert len(first) + len(second) <= length
        (own,) = [i for i, document in enumerate(documents) if first[0] in document]
        (other,) = [i for i, document in enumerate(documents) if second[0] in document]
        assert example.second_follows == (own == other)
        for part, document in ((first, documents[own]), (second, documents[other])):
            assert part == list(range(part[0], part[0] + len(part)))
            assert part[-1] in document
        if example.second_follows:
            assert second[0] == first[-1] + 1
        assert set(examples.list_distinct_document_numbers(np.array([number]))) == {own, other}


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(0, 30), max_size=4).map(lambda more: [*more, 2]), seed=st.integers(0, 100))
def test_swapped_pairs_are_consecutive_parts_of_one_document_half_of_them_swapped(
    lengths: list[int], seed: int
) -> None:
    """Lan et al. 2020, section 3.1; also of a text that is one document."""
    examples = pairs(store_of(lengths), 9, seed, "swapped pair")
    documents = documents_of(lengths)
    found = examples.read(np.arange(100))
    for example in found:
        assert example.second is not None
        parts = [example.tokens.tolist(), example.second.tolist()]
        first, second = parts if example.second_follows else reversed(parts)
        assert [*first, *second] == list(range(first[0], first[0] + len(first) + len(second)))
        assert any(first[0] in document and second[-1] in document for document in documents)
        assert 2 <= len(first) + len(second) <= 9
    assert 30 <= sum(example.second_follows for example in found) <= 70


def test_any_sample_is_a_function_of_its_number_and_the_seed() -> None:
    store = store_of([20] * 8)

    def read(numbers: list[int], seed: int = 1) -> list[Any]:
        found = pairs(store, seed=seed).read(np.array(numbers))
        return [(e.tokens.tolist(), e.second.tolist(), e.second_follows, e.rng.random()) for e in found]  # type: ignore[union-attr]

    assert read([3, 700, 5]) == [*read([3]), *read([700]), *read([5])]
    assert read([3, 5]) != read([3, 5], seed=2)


def test_nothing_but_what_it_says_tells_a_second_text_from_another() -> None:
    """Documents of unequal lengths: lengths of both parts, and whether the second ends its document."""
    lengths = np.random.default_rng(0).choice([9, 12, 20, 45], 60).tolist()
    ends = {document[-1] for document in documents_of(lengths)}
    begins = {document[0] for document in documents_of(lengths)}
    n = 4000
    found: dict[bool, list[tuple[int, int, bool, bool]]] = {True: [], False: []}
    for example in pairs(store_of(lengths)).read(np.arange(n)):
        assert example.second is not None
        ending = int(example.second[-1]) in ends
        found[example.second_follows].append(
            (len(example.tokens), len(example.second), ending, example.second[0] in begins)
        )
    assert len(found[True]) / n == pytest.approx(0.5, abs=0.03)
    assert all(first + second == 9 for part in found.values() for first, second, _, _ in part)
    for column in range(4):
        true, false = ([row[column] for row in part] for part in (found[True], found[False]))
        assert np.mean(true) == pytest.approx(np.mean(false), rel=0.08)
    assert not any(begin for part in found.values() for *_, begin in part)


def test_an_epoch_goes_through_the_text_once() -> None:
    """Long documents give first parts in proportion to their lengths, others in each epoch."""
    lengths = [900, 300, 600]
    examples = pairs(store_of(lengths), length=10)
    assert examples.examples_per_epoch == (sum(lengths) + 6) // 10
    epochs = []
    for epoch in range(2):
        found = examples.read(np.arange(examples.examples_per_epoch) + epoch * examples.examples_per_epoch)
        starts = [int(example.tokens[0]) for example in found]
        share = Counter(next(i for i, d in enumerate(documents_of(lengths)) if start in d) for start in starts)
        assert [share[i] for i in range(3)] == pytest.approx([90, 30, 60], abs=2)
        assert np.diff(sorted(starts)).max() <= 20
        epochs.append(starts)
    assert set(epochs[0]) != set(epochs[1])


@pytest.mark.parametrize(("lengths", "kind"), [([40], "pair"), ([40, 1, 1], "pair"), ([1, 1], "swapped pair")])
def test_a_text_without_pairs_is_refused(lengths: list[int], kind: str) -> None:
    with refuses("data"):
        pairs(store_of(lengths), kind=kind)


def rows_of(lengths: list[int], length: int, seed: int = 1) -> Windows:
    """Isolated documents in rows of `length` tokens, of which the last is a target only."""
    return Windows(store_of(lengths), TextCutSettings("stream", length, length - 1), seed, isolated=True)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=24, max_size=40), length=st.integers(15, 40), seed=st.integers(0, 100)
)
def test_rows_of_isolated_documents_begin_with_whole_documents(lengths: list[int], length: int, seed: int) -> None:
    rows = rows_of(lengths, length, seed)
    whole = [[BOS, *document, EOS] for document in documents_of(lengths)]
    for number in range(20):
        (example,) = rows.read(np.array([number]))
        left = example.tokens.tolist()
        assert len(left) == length
        touched = set()
        while left:
            # empty documents are equal, so any of them may be meant
            found = [i for i, document in enumerate(whole) if document[: len(left)] == left[: len(document)]]
            assert found
            touched.add(found[0] if len(found) == 1 else -1)
            left = left[len(whole[found[0]]) :]
        assert touched - {-1} <= set(rows.list_distinct_document_numbers(np.array([number])))


def test_isolated_documents_are_drawn_equally_often_in_another_order_each_epoch() -> None:
    rows = rows_of([6] * 64, 33)
    assert rows.examples_per_epoch == 16
    epochs = [
        [rows.list_distinct_document_numbers(np.array([16 * epoch + row])) for row in range(16)] for epoch in range(30)
    ]
    assert epochs[0] != epochs[1]
    counts = Counter(number for epoch in epochs for row in epoch for number in row)
    # four whole documents and the first token of a fifth in each row
    assert all(17 <= counts[number] <= 58 for number in range(64))
    assert len({number for row in epochs[0] for number in row}) == 64


def test_neighbors_in_a_list_are_in_different_rows() -> None:
    rows = rows_of([6] * 400, 33)
    together = [rows.list_distinct_document_numbers(np.array([row])) for row in range(rows.examples_per_epoch)]
    adjacent = sum(b - a == 1 for row in together for a, b in pairwise(row))
    assert adjacent < 0.1 * sum(len(row) - 1 for row in together)


def test_where_rows_are_shorter_than_documents_they_are_windows_of_the_whole_text() -> None:
    rows = rows_of([200, *[3] * 60], 33)
    (long, *_) = documents_of([200])
    seen = {token for row in range(rows.examples_per_epoch) for token in rows.read(np.array([row]))[0].tokens.tolist()}
    assert len(seen & set(long)) > 150
