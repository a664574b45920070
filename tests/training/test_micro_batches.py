"""Batches divided by a budget of positions: every row once, and little padding."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.objective import Example
from lmtool.training.fit import split_into_micro_batches

RNG = np.random.default_rng(0)


def example(length: int, other: int | None = None) -> Example:
    second = None if other is None else np.full(other, 9)
    return Example(np.full(length, 8), RNG, second=second)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.one_of(st.none(), st.integers(1, 30))), min_size=1, max_size=40),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_no_part_is_above_its_limits_and_no_row_is_lost(
    sizes: list[tuple[int, int | None]], rows: int, tokens: int | None
) -> None:
    examples = [example(*size) for size in sizes]
    parts = list(split_into_micro_batches(examples, rows, tokens))
    assert sorted(map(id, examples)) == sorted(id(one) for part in parts for one in part)
    for part in parts:
        assert 1 <= len(part) <= rows
        widest = max(len(one.tokens) for one in part) + max(
            0 if one.second is None else len(one.second) for one in part
        )
        assert tokens is None or len(part) == 1 or len(part) * widest <= tokens
    if tokens is None:
        assert [one for part in parts for one in part] == examples


def test_rows_of_like_length_go_together() -> None:
    """Fifteen short rows and one long one: the long one pads no other."""
    lengths = [3, 4, 5] * 5
    parts = list(split_into_micro_batches([example(length) for length in [*lengths[:7], 60, *lengths[7:]]], 100, 80))
    assert [len(part) for part in parts] == [15, 1]
    assert [len(one.tokens) for one in parts[0]] == sorted(lengths)
