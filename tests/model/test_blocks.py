"""Windowed attention in blocks equals the dense mask, and its memory grows linearly with the row."""

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool.batch import Batch, Mask
from lmtool.model.layers import kernels
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RelativePositions, RotaryPositions
from lmtool.model.layers.scores import build_score
from lmtool.recipe.spec.transformer import ScoreName
from tests.reference import attention as reference
from tests.support import tiny
from tests.support.attention import dense_weights
from tests.support.examples import examples

CPU = torch.device("cpu")
B, N, H = 2, 2, 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MIN_BLOCK_QUERIES", 3)
    monkeypatch.setattr(kernels, "KEY_MULTIPLE", 2)


def heads(length: int, seed: int) -> Tensor:
    return torch.randn(B, N, length, H, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rules() -> dict[str, AttentionPositions]:
    torch.manual_seed(0)
    return {
        "none": AttentionPositions(),
        "alibi": AlibiPositions(N).double(),
        "relative": RelativePositions(N, 8, 20, True).double(),
        "rotary": RotaryPositions(100.0),
    }


CASES = st.fixed_dictionaries(
    {
        **{"beyond": st.integers(1, 25), "size": st.integers(1, 5), "dilation": st.integers(1, 3)},
        **{"n_global": st.integers(0, 4), "seed": st.integers(0, 100)},
        **dict.fromkeys(("causal", "keep", "documents", "prefix", "shared", "plain"), st.booleans()),
        **{"rule": st.sampled_from(sorted(rules())), "kind": st.sampled_from(get_args(ScoreName))},
    }
)


@settings(max_examples=examples(80, 200), deadline=None)
@given(case=CASES)
def test_blocks_equal_the_dense_mask(case: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(case["seed"])
    length = 2 * case["dilation"] * max(3, case["size"]) + case["beyond"]
    rows: dict[str, Any] = {}
    if case["keep"]:
        rows["keep_BS"] = torch.rand(B, length, generator=generator) > 0.3
    if case["documents"]:
        rows["documents_BS"] = torch.randint(0, 2, (B, length), generator=generator).cumsum(1)
    if case["prefix"] and case["causal"]:
        rows["prefix_B"] = torch.randint(0, length, (B,), generator=generator)
    mask = Mask(case["causal"], case["size"], case["dilation"], case["n_global"], **rows)
    # learned scores have weights per key head
    shared = case["shared"] and case["kind"] in ("dot", "scaled-dot")
    q, k, v = (
        heads(length, case["seed"] + i)[:, : 1 if shared and i else N].clone().requires_grad_() for i in range(3)
    )
    positions = torch.randint(0, 30, (B, length), generator=generator)
    rule = rules()[case["rule"]]
    score = build_score(case["kind"], N, H, 3, H).double()
    with pytest.MonkeyPatch.context() as patch:
        if not case["plain"]:
            patch.setattr(kernels, "MAX_PLAIN_KEYS", 0)
        blocks = AttentionOp(mask, length, positions, rule)
        assert blocks.uses_window_blocks
        observed: list[Tensor] = []
        found = blocks(blocks.rotate(q), score.transform_keys(blocks.rotate(k)), v, 0.0, score, observed.append)
    scores = score(blocks.rotate(q), score.transform_keys(blocks.rotate(k)))
    weights = dense_weights(scores, mask, rule, positions)
    wanted = weights @ v
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(observed[0], weights, rtol=1e-9, atol=1e-9)
    inputs = (q, k, v, *score.parameters(), *rule.parameters())
    gradients = [torch.autograd.grad(mixed.square().sum(), inputs) for mixed in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "dilation", "n_global"), [(3, 1, 0), (2, 3, 1), (4, 2, 3)])
def test_who_is_seen_equals_loops(causal: bool, size: int, dilation: int, n_global: int) -> None:
    length = 17
    allowed = Mask(causal, size, dilation, n_global).to_tensor(length, length, CPU)[0]
    for q in range(length):
        for k in range(length):
            wanted = reference.in_window(q, k, size, dilation, n_global) and (k <= q or not causal)
            assert bool(allowed[q, k]) == wanted


def kept_bytes(length: int, windowed: bool) -> int:
    """Memory of the backward pass of one attention, in bytes."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    mask = Mask(True, 16 if windowed else None, n_global=2 if windowed else 0)
    q, k, v = (torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3))
    attend = AttentionOp(mask, length, torch.arange(length)[None], position=AlibiPositions(1))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attend(q, k, v, 0.0)
    return sum(sizes.values())


def test_memory_grows_linearly_under_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MIN_BLOCK_QUERIES", 64)
    monkeypatch.setattr(kernels, "KEY_MULTIPLE", 16)
    shortest = kept_bytes(512, True)
    assert kept_bytes(512 * 8, True) < 1.05 * 8 * shortest
    assert kept_bytes(512, False) > 3.5 * kept_bytes(256, False), "dense attention grows with the square"


@pytest.mark.parametrize("causal", [True, False])
def test_dropout_under_a_window(causal: bool) -> None:
    """With values of ones the output is the sum of the weights: 1 in the mean, and not always 1."""
    q, k = torch.randn(2, 64, N, 40, H, generator=torch.Generator().manual_seed(0))
    attend = AttentionOp(Mask(causal, 4, n_global=2), 40, torch.arange(40)[None])
    assert attend.uses_window_blocks
    sums = attend(q, k, torch.ones(64, N, 40, H), 0.25)
    assert float(sums.mean()) == pytest.approx(1.0, abs=0.02)
    assert float((sums - 1.0).abs().max()) > 0.2


def test_bfloat16_is_close_to_float32() -> None:
    model = tiny.model(
        dtype=torch.float32,
        position={"kind": "alibi"},
        pattern={"kind": "window", "size": 4, "dilation": 2, "global_tokens": 1},
        context=48,
    )
    batch = Batch(tiny.tokens(2, 48))
    exact = model(batch).hidden_BTD.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close = model(batch).hidden_BTD.detach()
    assert float((close - exact).norm()) < 0.03 * float(exact.norm())
