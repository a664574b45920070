"""Attention by each of its two kernels against loops and the formula, with gradients; and its dropout."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Mask
from lmtool.model.layers import kernels
from lmtool.model.layers.attention import AttentionHeadSizes, AttentionOp, SelfAttention
from lmtool.model.layers.positions import AttentionPositions, RelativePositions
from tests.reference import transformer as reference
from tests.support.attention import dense
from tests.support.cases import nightly_but
from tests.support.tiny import array

B, N, S, H = 3, 4, 7, 4
KEEP = torch.tensor([[True] * 7, [False, False] + [True] * 5, [True, True, False, True, True, False, False]])
DOCUMENTS = torch.tensor([[0] * 7, [0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 4, 5, 5, 5]])
PREFIX = torch.tensor([0, 3, 7])
MASKS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window": 3},
    "causal window": {"causal": True, "window": 2},
    "keep": {"keep_BS": KEEP},
    "causal keep": {"causal": True, "keep_BS": KEEP},
    "documents": {"documents_BS": DOCUMENTS},
    "causal documents": {"causal": True, "documents_BS": DOCUMENTS},
    "prefix": {"causal": True, "prefix_B": PREFIX},
    "everything": {
        "causal": True,
        "prefix_B": PREFIX,
        "window": 4,
        "keep_BS": KEEP,
        "documents_BS": DOCUMENTS,
    },
}


def heads(n_heads: int, length: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.randn(B, n_heads, length, H, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def sees(mask: dict[str, Any], row: int, query: int, key: int) -> bool:
    """The reference for one row of the mask, where a fully masked query attends to itself."""

    def seen(s: int) -> bool:
        return reference.may_see(
            query,
            s,
            causal=mask.get("causal", False),
            window=mask.get("window"),
            prefix=int(mask["prefix_B"][row]) if "prefix_B" in mask else 0,
            keep=mask["keep_BS"][row].tolist() if "keep_BS" in mask else None,
            documents=mask["documents_BS"][row].tolist() if "documents_BS" in mask else None,
        )

    return seen(key) or (key == query and not any(seen(s) for s in range(S)))


@pytest.fixture(params=["plain", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both kernels of CPU training."""
    if request.param == "fused":
        monkeypatch.setattr(kernels, "MAX_PLAIN_KEYS", 0)
    return request.param


@pytest.mark.parametrize("mask", nightly_but(MASKS.values(), 0, 1, 2, 4, 5, 7, 8), ids=MASKS.keys())
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("n_queries", nightly_but([1, 3, 7], 1))
def test_equals_loops_over_heads_and_positions(
    kernel: str, mask: dict[str, Any], n_kv_heads: int, n_queries: int
) -> None:
    q, k, v = heads(N, n_queries, 1), heads(n_kv_heads, S, 2), heads(n_kv_heads, S, 3)
    mixed = AttentionOp(Mask(**mask), n_queries, torch.arange(S)[None])(q, k, v, 0.0)
    assert mixed.shape == (B, N, n_queries, H)
    for row in range(B):
        wanted = reference.multi_head(
            *(array(t[row].transpose(0, 1).flatten(1)) for t in (q, k, v)),
            n_heads=N,
            n_kv_heads=n_kv_heads,
            may_see=lambda t, s, row=row: sees(mask, row, S - n_queries + t, s),
        )
        assert array(mixed[row].transpose(0, 1).flatten(1)) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mask", nightly_but(MASKS.values(), 0, 1, 2, 4, 5, 7, 8), ids=MASKS.keys())
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("n_queries", nightly_but([1, 3, 7], 1))
@pytest.mark.parametrize("relative", [False, True])
def test_gradients_are_those_of_the_formula(
    kernel: str, mask: dict[str, Any], n_kv_heads: int, n_queries: int, relative: bool
) -> None:
    """Also with a table of relative positions, which differ from row to row."""
    rule, positions_PS = AttentionPositions(), torch.arange(S)[None]
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


def test_the_kernels_differ() -> None:
    """Otherwise the tests above would compare a kernel with itself."""

    def names(with_grad: bool) -> str:
        q = torch.randn(1, 1, 3, 4, requires_grad=with_grad)
        return type(AttentionOp(Mask(causal=True), 3, torch.arange(3)[None])(q, q, q, 0.0).grad_fn).__name__

    with pytest.MonkeyPatch.context() as patch:
        before = names(True)
        patch.setattr(kernels, "MAX_PLAIN_KEYS", 2)
        after = names(True)
    assert "Scaled" not in before
    assert "Scaled" in after


@pytest.mark.parametrize("n_keys", [kernels.MAX_PLAIN_KEYS, kernels.MAX_PLAIN_KEYS + 1])
def test_long_rows_train_through_the_fused_kernel(n_keys: int) -> None:
    q = torch.randn(1, 1, n_keys, 2, requires_grad=True)
    mixed = AttentionOp(Mask(causal=True), n_keys, torch.arange(n_keys)[None])(q, q, q, 0.0)
    assert ("Scaled" in type(mixed.grad_fn).__name__) == (n_keys > kernels.MAX_PLAIN_KEYS)


@pytest.mark.parametrize(
    "mask", [{"causal": True}, {"causal": True, "keep_BS": KEEP}, {}], ids=["causal", "keep", "all"]
)
def test_dropout_of_attention_weights(kernel: str, mask: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_self_attention_splits_its_heads_in_order(n_kv_heads: int) -> None:
    """Query head n reads columns n H to (n+1) H and uses key head n // (N / K)."""
    layer = SelfAttention(AttentionHeadSizes(N * H, N, n_kv_heads, H, H), 0.0).double()
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, S, N * H, dtype=torch.float64)
    y, kept, auxiliary_B = layer(x, AttentionOp(Mask(causal=True), S, torch.arange(S)[None]), None)
    assert kept is None
    assert auxiliary_B is None
    weight, bias = array(layer.qkv.weight), array(layer.qkv.bias)
    joined = array(x[0]) @ weight.T + bias
    wide, narrow = N * H, n_kv_heads * H
    q, k, v = joined[:, :wide], joined[:, wide : wide + narrow], joined[:, wide + narrow :]
    mixed = reference.multi_head(q, k, v, N, n_kv_heads, lambda t, s: s <= t)
    wanted = mixed @ array(layer.out.weight).T + array(layer.out.bias)
    assert array(y[0]) == pytest.approx(wanted, rel=1e-9)


def test_self_attention_drops_only_in_training() -> None:
    layer = SelfAttention(AttentionHeadSizes(N * H, N, N, H, H), 0.5)
    x = torch.randn(1, S, N * H)
    attend = AttentionOp(Mask(causal=True), S, torch.arange(S)[None])
    assert not torch.equal(layer(x, attend, None)[0], layer(x, attend, None)[0])
    layer.eval()
    assert torch.equal(layer(x, attend, None)[0], layer(x, attend, None)[0])


def test_very_large_scores_stay_finite(kernel: str) -> None:
    q = (1e4 * torch.randn(B, N, S, H)).requires_grad_()
    mixed = AttentionOp(Mask(causal=True, keep_BS=KEEP), S, torch.arange(S)[None])(q, q, q, 0.0)
    mixed.sum().backward()
    assert torch.isfinite(mixed).all()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("n_queries", [1, 5, 7, 12])
def test_more_queries_than_keys_of_a_source(kernel: str, n_queries: int) -> None:
    """Each query attends to its own row's source without padding; with an all-padding source, all stays finite."""
    q, k, v = heads(N, n_queries, 1), heads(N, S, 2), heads(N, S, 3)
    keep_BS = KEEP & torch.tensor([[True], [True], [False]])
    mixed = AttentionOp(Mask(keep_BS=keep_BS), n_queries, torch.arange(S)[None])(q, k, v, 0.0)
    assert torch.isfinite(mixed).all()
    for row in range(2):
        own = [t[row : row + 1][:, :, keep_BS[row]] for t in (k, v)]
        wanted = torch.nn.functional.scaled_dot_product_attention(q[row : row + 1], *own)
        torch.testing.assert_close(mixed[row : row + 1], wanted, rtol=1e-9, atol=1e-12)
