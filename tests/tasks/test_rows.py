"""Rows of tables as token ids, in an order that has each."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from lmtool.tasks.rows import EncodedRow, LengthBucketedExamples


def rows(n: int) -> list[EncodedRow]:
    rng = np.random.default_rng(0)
    return [EncodedRow(i + 1, np.zeros(rng.integers(1, 50), dtype=np.int64), is_truncated=False) for i in range(n)]


def numbers(examples: LengthBucketedExamples, start: int, stop: int) -> list[int]:
    """Of the rows of these samples."""
    return [number for i in range(start, stop) for number in examples.list_distinct_document_numbers(np.array([i]))]


@pytest.mark.parametrize(("n", "batch"), [(1, 4), (7, 3), (64, 8)])
def test_every_row_comes_once_an_epoch(n: int, batch: int) -> None:
    examples = LengthBucketedExamples(rows(n), batch, seed=5)
    for epoch in range(3):
        assert sorted(numbers(examples, epoch * n, (epoch + 1) * n)) == list(range(1, n + 1))


def test_the_order_is_a_function_of_the_seed_and_the_sample() -> None:
    one, two, other = (LengthBucketedExamples(rows(50), 4, seed=seed) for seed in (1, 1, 2))
    late = numbers(two, 120, 124)
    assert numbers(one, 0, 4) != numbers(other, 0, 4)
    assert numbers(one, 120, 124) == late
    a, b = (source.read(np.array([130]))[0] for source in (one, two))
    assert (a.rng.random(), len(a.tokens)) == (b.rng.random(), len(b.tokens))


def test_threads_may_read_several_epochs() -> None:
    """As one does that reads ahead, while another names the rows of a step whose loss is not finite."""
    examples, alone = LengthBucketedExamples(rows(8), 4, seed=5), LengthBucketedExamples(rows(8), 4, seed=5)
    samples = [np.arange(8 * epoch, 8 * epoch + 3) for epoch in (0, 1, 0, 2, 1, 3) * 20]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(examples.list_distinct_document_numbers, samples))
    assert found == [alone.list_distinct_document_numbers(sample_S) for sample_S in samples]


def test_rows_of_like_length_come_together() -> None:
    """The padding of batches is far below that of rows in random order."""
    all_rows = rows(800)
    examples = LengthBucketedExamples(all_rows, 8, seed=0)
    lengths = np.array([len(all_rows[i - 1].tokens) for i in numbers(examples, 0, 800)]).reshape(-1, 8)
    assert (lengths.max(1, keepdims=True) - lengths).sum() < 0.1 * lengths.sum()


@pytest.mark.parametrize("times", [(1, 1), (2, 1), (1, 0.5)])
def test_tables_are_mixed_as_often_as_is_said(times: tuple[float, float]) -> None:
    """Every row of a table equally often over two epochs, with the tables mixed."""
    examples = LengthBucketedExamples(rows(60), 4, seed=1, parts=[(40, times[0]), (20, times[1])])
    n = examples.examples_per_epoch
    assert n == 40 * times[0] + 20 * times[1]
    found = numbers(examples, 0, 2 * n)
    counts = np.bincount(found, minlength=61)[1:]
    assert (set(counts[:40]), set(counts[40:])) == ({2 * times[0]}, {2 * times[1]})
    assert {number > 40 for number in found[: n // 2]} == {True, False}


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
