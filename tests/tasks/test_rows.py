"""Rows of tables as token ids, in an order that has each."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from lmtool.tasks.rows import EncodedRow, LengthBucketedExamples


def rows(n: int, seed: int = 0) -> list[EncodedRow]:
    rng = np.random.default_rng(seed)
    return [EncodedRow(i + 1, np.zeros(rng.integers(1, 50), dtype=np.int64), is_truncated=False) for i in range(n)]


@pytest.mark.parametrize(("n", "batch"), [(1, 4), (7, 3), (64, 8), (333, 4)])
def test_every_row_comes_once_an_epoch(n: int, batch: int) -> None:
    examples = LengthBucketedExamples(rows(n), batch, seed=5)
    for epoch in range(3):
        sample_S = np.arange(epoch * n, (epoch + 1) * n)
        numbers = [examples.list_distinct_document_numbers(sample_S[i : i + 1])[0] for i in range(n)]
        assert sorted(numbers) == list(range(1, n + 1))


def test_the_order_is_a_function_of_the_seed_and_the_sample() -> None:
    one, two = LengthBucketedExamples(rows(50), 4, seed=1), LengthBucketedExamples(rows(50), 4, seed=1)
    late = two.list_distinct_document_numbers(np.arange(120, 124))
    assert one.list_distinct_document_numbers(np.arange(0, 4)) != LengthBucketedExamples(
        rows(50), 4, seed=2
    ).list_distinct_document_numbers(np.arange(0, 4))
    assert one.list_distinct_document_numbers(np.arange(120, 124)) == late
    assert examples_equal(one, two, 130)


def examples_equal(one: LengthBucketedExamples, two: LengthBucketedExamples, sample: int) -> bool:
    a, b = (source.read(np.array([sample]))[0] for source in (one, two))
    return bool(a.rng.random() == b.rng.random()) and len(a.tokens) == len(b.tokens)


def test_threads_may_read_several_epochs() -> None:
    """As one does that reads ahead, while another names the rows of a step whose loss is not finite."""
    examples, alone = LengthBucketedExamples(rows(8), 4, seed=5), LengthBucketedExamples(rows(8), 4, seed=5)
    samples = [np.arange(8 * epoch, 8 * epoch + 3) for epoch in (0, 1, 0, 2, 1, 3) * 20]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(examples.list_distinct_document_numbers, samples))
    assert found == [alone.list_distinct_document_numbers(sample_S) for sample_S in samples]


def test_rows_of_like_length_come_together() -> None:
    """The padding of batches is far below that of rows in random order."""
    lengths = {i + 1: len(row.tokens) for i, row in enumerate(rows(800))}
    examples = LengthBucketedExamples(rows(800), 8, seed=0)
    padding = text = 0
    for start in range(0, 800, 8):
        batch = [lengths[number] for number in examples.list_distinct_document_numbers(np.arange(start, start + 8))]
        padding += 8 * max(batch) - sum(batch)
        text += sum(batch)
    assert padding < 0.1 * text


@pytest.mark.parametrize(("times", "wanted"), [((1, 1), (1, 1)), ((2, 1), (2, 1)), ((1, 0.5), (1, 0.5))])
def test_tables_are_mixed_as_often_as_is_said(times: tuple[float, float], wanted: tuple[float, float]) -> None:
    """Every row of a table equally often over two epochs, with the tables mixed."""
    both = rows(60)
    examples = LengthBucketedExamples(both, 4, seed=1, parts=[(40, times[0]), (20, times[1])])
    n = examples.examples_per_epoch
    assert n == round(40 * times[0]) + round(20 * times[1])
    numbers = [number for i in range(2 * n) for number in examples.list_distinct_document_numbers(np.array([i]))]
    counts = np.bincount(numbers, minlength=61)[1:]
    assert set(counts[:40]) == {2 * wanted[0]}
    assert set(counts[40:]) == {2 * wanted[1]}
    first = [number > 40 for number in numbers[: n // 2]]
    assert any(first)
    assert not all(first)


def test_rows_are_read_anew_for_each_sample() -> None:
    """By the generator of the sample, which goes on to the objective."""

    def resample_row(row: EncodedRow, rng: np.random.Generator) -> EncodedRow:
        return replace(row, tokens=rng.integers(100, size=4))

    one, two = (LengthBucketedExamples(rows(50), 4, seed=1, resample_row=resample_row) for _ in range(2))
    found = {tuple(one.read(np.array([sample]))[0].tokens.tolist()) for sample in range(100)}
    assert len(found) == 100
    late = two.read(np.array([99]))[0]
    assert tuple(late.tokens.tolist()) in found
    assert late.rng.random() == one.read(np.array([99]))[0].rng.random()
