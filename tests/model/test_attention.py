"""Attention by each of its two kernels against the formula, with gradients; its dropout; and scores against loops."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtool.batch import Mask
from lmtool.model.layers import kernels
from lmtool.model.layers.attention import AttentionHeadSizes, AttentionOp, SelfAttention
from lmtool.model.layers.positions import AttentionPositions, RelativePositions
from lmtool.model.layers.scores import build_score
from lmtool.recipe.spec.transformer import ScoreName
from tests.reference import attention as reference
from tests.support.attention import dense

B, N, S, H = 3, 4, 7, 4
KEEP = torch.tensor([[True] * 7, [False, False] + [True] * 5, [True, True, False, True, True, False, False]])
DOCUMENTS = torch.tensor([[0] * 7, [0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 4, 5, 5, 5]])
PREFIX = torch.tensor([0, 3, 7])
MASKS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window": 3},
    "causal keep": {"causal": True, "keep_BS": KEEP},
    "everything": {"causal": True, "prefix_B": PREFIX, "window": 4, "keep_BS": KEEP, "documents_BS": DOCUMENTS},
}
"""tests/test_batch.py compares what each allows with loops."""


def heads(n_heads: int, length: int, seed: int) -> Tensor:
    drawn = torch.randn(B, n_heads, length, H, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.requires_grad_()


@pytest.fixture(params=["plain", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels of CPU training."""
    if request.param == "fused":
        monkeypatch.setattr(kernels, "MAX_PLAIN_KEYS", 0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("n_queries", [1, 3, 7])
@pytest.mark.parametrize("relative", [False, True])
def test_values_and_gradients_are_those_of_the_formula(
    kernel: None, mask: dict[str, Any], n_kv_heads: int, n_queries: int, relative: bool
) -> None:
    """Also with a table of relative positions, which differ from row to row."""
    rule: AttentionPositions = AttentionPositions()
    positions_PS = torch.arange(S)[None]
    if relative:
        rule = RelativePositions(N, 8, 20, True).double()
        positions_PS = torch.randint(0, 30, (B, S), generator=torch.Generator().manual_seed(4))
    inputs = heads(N, n_queries, 1), heads(n_kv_heads, S, 2), heads(n_kv_heads, S, 3)
    attend = AttentionOp(Mask(**mask), n_queries, positions_PS, rule)
    wanted = dense(*inputs, Mask(**mask), rule, positions_PS)
    found = attend(*inputs, 0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(t.cos().sum(), (*inputs, *rule.parameters())) for t in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(attend(*inputs, 0.0), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_keys", [kernels.MAX_PLAIN_KEYS, kernels.MAX_PLAIN_KEYS + 1])
def test_long_rows_train_through_the_fused_kernel(n_keys: int) -> None:
    """So the kernels differ, or else the tests above would compare one with itself."""
    q = torch.randn(1, 1, n_keys, 2, requires_grad=True)
    mixed = AttentionOp(Mask(causal=True), n_keys, torch.arange(n_keys)[None])(q, q, q, 0.0)
    assert ("Scaled" in type(mixed.grad_fn).__name__) == (n_keys > kernels.MAX_PLAIN_KEYS)


@pytest.mark.parametrize("mask", [MASKS["causal keep"], {}], ids=["causal keep", "all"])
def test_dropout_of_attention_weights(kernel: None, mask: dict[str, Any]) -> None:
    """With identity values, the output is the attention weights: some zero, the rest divided by 1 - p."""
    p, repeats = 0.3, 400
    q, k = torch.randn(2, B, N, S, S, generator=torch.Generator().manual_seed(0))
    v = torch.eye(S).expand(B, N, S, S)
    attend = AttentionOp(Mask(**mask), S, torch.arange(S)[None])
    with torch.enable_grad():
        weights = attend(q, k, v, 0.0)
        torch.manual_seed(0)
        dropped = torch.stack([attend(q, k, v, p) for _ in range(repeats)])
    kept = dropped != 0
    scaled = (weights / (1 - p)).expand_as(dropped)
    torch.testing.assert_close(dropped[kept], scaled[kept])
    real = (weights > 0).expand_as(kept)
    assert float(kept[real].double().mean()) == pytest.approx(1 - p, abs=0.005)
    # the mean over draws has a deviation of w (p / (1 - p) / n)^0.5
    deviation = weights * (p / (1 - p) / repeats) ** 0.5
    assert ((dropped.mean(0) - weights).abs() <= 5 * deviation + 1e-6).all()


def test_self_attention_drops_only_in_training() -> None:
    layer = SelfAttention(AttentionHeadSizes(N * H, N, N, H, H), 0.5)
    x = torch.randn(1, S, N * H)
    attend = AttentionOp(Mask(causal=True), S, torch.arange(S)[None])
    assert not torch.equal(layer(x, attend, None)[0], layer(x, attend, None)[0])
    layer.eval()
    assert torch.equal(layer(x, attend, None)[0], layer(x, attend, None)[0])


def test_very_large_scores_stay_finite(kernel: None) -> None:
    q = (1e4 * torch.randn(B, N, S, H)).requires_grad_()
    mixed = AttentionOp(Mask(causal=True, keep_BS=KEEP), S, torch.arange(S)[None])(q, q, q, 0.0)
    assert torch.isfinite(mixed).all()
    assert torch.isfinite(torch.autograd.grad(mixed.sum(), q)[0]).all()


def test_a_source_that_is_all_padding_stays_finite(kernel: None) -> None:
    q, k, v = heads(N, 12, 1), heads(N, S, 2), heads(N, S, 3)
    keep_BS = torch.tensor([[True], [True], [False]]).expand(B, S)
    mixed = AttentionOp(Mask(keep_BS=keep_BS), 12, torch.arange(S)[None])(q, k, v, 0.0)
    assert torch.isfinite(mixed).all()


@pytest.mark.parametrize("kind", get_args(ScoreName))
@pytest.mark.parametrize("hidden", [H, 7, 1])
def test_scores_equal_loops(kind: ScoreName, hidden: int) -> None:
    torch.manual_seed(0)
    score = build_score(kind, N, H, 2, hidden).double()
    q, k = torch.randn(2, N, 5, H, dtype=torch.float64), torch.randn(2, N, 6, H, dtype=torch.float64)
    found = score(q, score.transform_keys(k)).detach()
    for b, n, t, s in np.ndindex(2, N, 5, 6):
        weights = [part[n].detach().numpy() for part in score.parameters()]
        wanted = reference.score(kind, q[b, n, t].numpy(), k[b, n, s].numpy(), weights)
        assert float(found[b, n, t, s]) == pytest.approx(wanted, rel=1e-10, abs=1e-12)
