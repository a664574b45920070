"""Rows laid out as each family reads them, in an order that loses none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.recipe.spec import CharTokenizer
from lmtool.tables.rows import Layout, PairLayout, PairRow, Row, RowExamples, _fit
from lmtool.text.tokenizer import Tokenizer
from tests.model import tiny

TOKENIZER = Tokenizer.train(CharTokenizer(kind="char"), ["abcdefgh "])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode_many([text])[0].tolist()


def laid(shape: str, *texts: str, **changes: object) -> Row:
    layout = Layout(tiny.spec(shape=shape, **changes), TOKENIZER)
    return layout.rows([texts], [None], [7])[0]


def test_encoders_and_decoders_have_marks_of_their_own() -> None:
    cls, sep, bos = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.bos_id
    pair = laid("encoder", "ab", "cde", n_segments=2)
    assert pair.tokens.tolist() == [cls, *ids("ab"), sep, *ids("cde"), sep]
    assert pair.segments is not None
    assert pair.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert laid("encoder", "ab").segments is None
    assert laid("decoder", "ab", "cde").tokens.tolist() == [bos, *ids("ab"), sep, *ids("cde"), cls]
    assert pair.number == 7
    assert not pair.cut


def test_text_that_spells_a_mark_is_text() -> None:
    tokens = laid("decoder", "[CLS]").tokens.tolist()
    assert tokens.count(TOKENIZER.cls_id) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 60))
def test_the_longest_texts_are_cut(sizes: list[int], room: int) -> None:
    texts = [np.arange(size) for size in sizes]
    found = [len(text) for text in _fit(texts, room)]
    assert sum(found) == min(sum(sizes), room)
    wanted = list(sizes)
    while sum(wanted) > room:
        wanted[wanted.index(max(wanted))] -= 1
    assert sorted(found) == sorted(wanted)


def test_rows_fill_the_context_and_no_more() -> None:
    row = laid("decoder", "abcdefgh" * 5, "abc")
    assert len(row.tokens) == 24
    assert row.cut


def pair(shape: str, source: str, target: str | None) -> PairRow:
    return PairLayout(tiny.spec(shape=shape), TOKENIZER).rows([(source, target)], [7])[0]


@pytest.mark.parametrize("shape", ["encoder-decoder", "prefix"])
def test_a_target_ends_with_the_mark_of_the_end(shape: str) -> None:
    row = pair(shape, "ab", "cde")
    assert row.tokens.tolist() == ids("ab")
    assert row.target is not None
    assert row.target.tolist() == [*ids("cde"), TOKENIZER.eos_id]
    assert (row.source, row.answer, row.number, row.length) == ("ab", "cde", 7, 6)
    assert pair(shape, "", "a").tokens.tolist() == [TOKENIZER.eos_id], "a source has a token"
    assert pair(shape, "ab", None).target is None


def test_pairs_fill_the_context_and_no_more() -> None:
    whole, joined = (pair(shape, "abcdefgh" * 5, "abc") for shape in ("encoder-decoder", "prefix"))
    context = tiny.spec().context
    assert len(whole.tokens) == context
    assert whole.target is not None
    assert joined.target is not None
    assert len(whole.target) == len(joined.target) == 4
    assert joined.length == context
    assert whole.cut
    assert joined.cut


def rows(n: int, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [Row(np.zeros(rng.integers(1, 50), dtype=np.int64), None, None, i + 1, False) for i in range(n)]


@pytest.mark.parametrize(("n", "batch"), [(1, 4), (7, 3), (64, 8), (333, 4)])
def test_every_row_comes_once_an_epoch(n: int, batch: int) -> None:
    examples = RowExamples(rows(n), batch, seed=5)
    for epoch in range(3):
        sample_S = np.arange(epoch * n, (epoch + 1) * n)
        numbers = [examples.documents(sample_S[i : i + 1])[0] for i in range(n)]
        assert sorted(numbers) == list(range(1, n + 1))


def test_the_order_is_a_function_of_the_seed_and_the_sample() -> None:
    one, two = RowExamples(rows(50), 4, seed=1), RowExamples(rows(50), 4, seed=1)
    late = two.documents(np.arange(120, 124))
    assert one.documents(np.arange(0, 4)) != RowExamples(rows(50), 4, seed=2).documents(np.arange(0, 4))
    assert one.documents(np.arange(120, 124)) == late
    assert examples_equal(one, two, 130)


def examples_equal(one: RowExamples, two: RowExamples, sample: int) -> bool:
    a, b = (source.read(np.array([sample]))[0] for source in (one, two))
    return bool(a.rng.random() == b.rng.random()) and len(a.tokens) == len(b.tokens)


def test_rows_of_like_length_come_together() -> None:
    """The padding of a batch is far below that of rows in random order."""
    lengths = {i + 1: len(row.tokens) for i, row in enumerate(rows(800))}
    examples = RowExamples(rows(800), 8, seed=0)
    padding = text = 0
    for start in range(0, 800, 8):
        batch = [lengths[number] for number in examples.documents(np.arange(start, start + 8))]
        padding += 8 * max(batch) - sum(batch)
        text += sum(batch)
    assert padding < 0.1 * text


@pytest.mark.parametrize(("times", "wanted"), [((1, 1), (1, 1)), ((2, 1), (2, 1)), ((1, 0.5), (1, 0.5))])
def test_tables_are_mixed_as_often_as_is_said(times: tuple[float, float], wanted: tuple[float, float]) -> None:
    """Of each table every row equally often over two epochs, and not one table after the other."""
    both = rows(60)
    examples = RowExamples(both, 4, seed=1, parts=[(40, times[0]), (20, times[1])])
    n = examples.per_epoch
    assert n == round(40 * times[0]) + round(20 * times[1])
    numbers = [number for i in range(2 * n) for number in examples.documents(np.array([i]))]
    counts = np.bincount(numbers, minlength=61)[1:]
    assert set(counts[:40]) == {2 * wanted[0]}
    assert set(counts[40:]) == {2 * wanted[1]}
    first = [number > 40 for number in numbers[: n // 2]]
    assert any(first)
    assert not all(first)
