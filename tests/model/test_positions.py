"""Positions in attention against loops over positions."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmtool.batch import Batch
from lmtool.compute.kernels.ops import rotary
from lmtool.model.layers.positions import AlibiPositions, RelativePositions, RotaryPositions, alibi_slopes
from lmtool.recipe.spec.position import YarnScaling
from tests.reference import attention as reference
from tests.support import tiny


@settings(max_examples=30, deadline=None)
@given(
    positions=st.lists(st.integers(0, 5000), min_size=1, max_size=4),
    half=st.integers(1, 4),
    theta=st.sampled_from([10.0, 1e4]),
)
def test_rotary_turns_pairs(positions: list[int], half: int, theta: float) -> None:
    x = torch.randn(2, 3, len(positions), 2 * half, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = RotaryPositions(theta)
    found = rotary(x, *rule.cosines_and_sines(torch.tensor([positions]), 2 * half, x.dtype))
    for row in range(2):
        for head in range(3):
            for t, position in enumerate(positions):
                frequencies = [theta ** (-i / half) for i in range(half)]
                wanted = reference.rotated(x[row, head, t].numpy(), position, frequencies)
                np.testing.assert_allclose(found[row, head, t].numpy(), wanted, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(first=st.integers(0, 1000), second=st.integers(0, 1000), shift=st.integers(0, 1000))
def test_rotary_products_depend_on_the_distance_alone(first: int, second: int, shift: int) -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rule = RotaryPositions(10_000.0)

    def product(a: int, b: int) -> float:
        at_a, at_b = (rule.cosines_and_sines(torch.tensor([[place]]), 8, torch.float64) for place in (a, b))
        return float((rotary(q, *at_a) * rotary(k, *at_b)).sum())

    assert product(first, second) == pytest.approx(product(first + shift, second + shift), abs=1e-9)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_alibi_slopes(n_heads: int) -> None:
    wanted = [reference.alibi_slope(head, n_heads) for head in range(n_heads)]
    assert alibi_slopes(n_heads) == pytest.approx(wanted)
    query, key = torch.tensor([[7, 2]]), torch.tensor([[0, 2, 9]])
    bias = AlibiPositions(n_heads).bias(query, key)
    assert bias.shape == (1, n_heads, 2, 3)
    for head in range(n_heads):
        for i, q in enumerate([7, 2]):
            for j, k in enumerate([0, 2, 9]):
                assert float(bias[0, head, i, j]) == pytest.approx(-wanted[head] * abs(q - k))


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000), (4, 3)])
def test_relative_buckets(both_sides: bool, buckets: int, max_distance: int) -> None:
    rule = RelativePositions(2, buckets, max_distance, both_sides)
    away = torch.arange(-1100, 1101)
    found = rule.relative_position_bucket(away).tolist()
    wanted = [reference.relative_bucket(int(a), buckets, max_distance, both_sides) for a in away]
    # at integer values of the logarithm, rounding may go either way
    differ = [(a, f, w) for a, f, w in zip(away.tolist(), found, wanted, strict=True) if f != w]
    assert all(abs(f - w) == 1 for _, f, w in differ)
    assert len(differ) <= 8
    bias = rule.bias(torch.tensor([[5]]), torch.tensor([[1, 5, 30]]))
    for head in range(2):
        for j, key in enumerate([1, 5, 30]):
            bucket = reference.relative_bucket(key - 5, buckets, max_distance, both_sides)
            assert float(bias[0, head, 0, j].detach()) == float(rule.table.weight[bucket, head].detach())


@pytest.mark.parametrize("kind", ["alibi", "relative", "disentangled", "rotary", "none", "sinusoidal"])
def test_rows_longer_than_in_training_can_be_read(kind: str) -> None:
    model = tiny.model(position={"kind": kind})
    assert model.max_positions is None
    tokens_BT = tiny.tokens(1, 60)
    hidden = model(Batch(tokens_BT)).hidden_BTD
    assert torch.isfinite(hidden).all()
    state = model.initial_state(Batch(tokens_BT))
    first, state = model.forward_incremental(tokens_BT[:, :40], state)
    second, _ = model.forward_incremental(tokens_BT[:, 40:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), hidden, rtol=1e-9, atol=1e-9)


def test_learned_positions_end_with_their_table() -> None:
    assert tiny.model().max_positions == 24
    assert tiny.model(position={"kind": "learned", "size": 40}).max_positions == 40


@pytest.mark.parametrize(
    ("key", "value"), [("score", "dot"), ("n_kv_heads", 1), ("pattern", {"kind": "window", "size": 3})]
)
def test_what_disentangled_positions_do_not_meet(key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=key):
        tiny.spec(position={"kind": "disentangled"}, **{key: value})


def test_disentangled_positions_are_of_text_and_beyond_their_reach_alike() -> None:
    """Padding moves nothing; and where all distances are at least k, only the side counts."""
    model = tiny.model(n_layers=1, position={"kind": "disentangled", "max_distance": 2}, shape="encoder")
    tokens_BT = tiny.tokens(1, 6)
    keep_BT = torch.tensor([[True, False, True, True, False, True]])
    padded = model(Batch(tokens_BT, keep_BT=keep_BT)).hidden_BTD[keep_BT]
    torch.testing.assert_close(padded, model(Batch(tokens_BT[keep_BT][None])).hidden_BTD[0], rtol=1e-9, atol=1e-9)
    order = [0, 1, 2, 4, 3, 5]  # two tokens at least two places behind the first one
    found = [model(Batch(row)).hidden_BTD[0, 0] for row in (tokens_BT, tokens_BT[:, order])]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_transformers(both_sides: bool, buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    away = torch.arange(-1100, 1101)
    wanted = T5Attention._relative_position_bucket(away, both_sides, buckets, max_distance)
    assert torch.equal(RelativePositions(2, buckets, max_distance, both_sides).relative_position_bucket(away), wanted)


def test_yarn_takes_a_base_that_is_hardly_above_one():
    rule = RotaryPositions(1 + 2**-52, scaling=YarnScaling(kind="yarn", factor=2.0, original_context=9))
    assert all(table.isfinite().all() for table in rule.cosines_and_sines(torch.arange(5)[None], 8, torch.float64))
