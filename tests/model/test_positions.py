"""Positions in attention; tests/model/test_transformer.py compares all kinds, in models, with loops."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from lmtool.batch import Batch
from lmtool.compute.kernels.ops import rotary
from lmtool.model.layers.positions import RelativePositions, RotaryPositions, alibi_slopes
from lmtool.recipe.spec.position import YarnScaling
from tests.reference import attention as reference
from tests.support import tiny


@pytest.mark.parametrize(("theta", "half"), [(10.0, 1), (1e4, 3)])
def test_rotary_positions_turn_pairs(theta: float, half: int) -> None:
    positions = [0, 3, 4999]
    x = torch.randn(1, 1, len(positions), 2 * half, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = rotary(x, *RotaryPositions(theta).cosines_and_sines(torch.tensor([positions]), 2 * half, x.dtype))
    for t, position in enumerate(positions):
        wanted = reference.rotated(x[0, 0, t].numpy(), position, [theta ** (-i / half) for i in range(half)])
        np.testing.assert_allclose(found[0, 0, t].numpy(), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_heads", [1, 6, 8, 12])
def test_alibi_slopes(n_heads: int) -> None:
    assert alibi_slopes(n_heads) == pytest.approx([reference.alibi_slope(head, n_heads) for head in range(n_heads)])


@pytest.mark.parametrize("kind", ["alibi", "relative", "disentangled", "rotary", "sinusoidal"])
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
def test_disentangled_positions_refuse_parts_that_they_cannot_have(key: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=key):
        tiny.spec(position={"kind": "disentangled"}, **{key: value})


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (6, 4)])
def test_buckets_are_those_of_transformers(both_sides: bool, buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    away = torch.arange(-1100, 1101)
    wanted = T5Attention._relative_position_bucket(away, both_sides, buckets, max_distance)
    assert torch.equal(RelativePositions(2, buckets, max_distance, both_sides).relative_position_bucket(away), wanted)


def test_yarn_takes_a_base_that_is_hardly_above_one() -> None:
    rule = RotaryPositions(1 + 2**-52, scaling=YarnScaling(kind="yarn", factor=2.0, original_context=9))
    assert all(table.isfinite().all() for table in rule.cosines_and_sines(torch.arange(5)[None], 8, torch.float64))
