"""A mixture of experts: who is asked, what is answered, and the auxiliary loss by which all are asked alike."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lmtool.batch import IGNORE, Batch, Mask
from lmtool.model import LanguageModel
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.blocks import FeedForward
from lmtool.model.layers.experts import Experts
from lmtool.objective import CausalObjective
from lmtool.recipe.spec.objective import Causal
from tests.support import tiny

N, D = 4, 4
BALANCE = 0.25
CAUSAL = CausalObjective(Causal(), bos_id=1, isolate_documents=False)


def experts() -> Experts:
    torch.manual_seed(0)
    return Experts([FeedForward(D, 6, "gelu", True, 0.0) for _ in range(N)], BALANCE).double()


def read(layer: Experts, x_BTD: torch.Tensor, keep_BT: torch.Tensor | None = None) -> Any:
    T = x_BTD.shape[1]
    return layer(x_BTD, AttentionOp(Mask(True, keep_BS=keep_BT), T, torch.arange(T, device=x_BTD.device)[None]), None)


def model(balance: float = BALANCE, **changes: Any) -> LanguageModel:
    return tiny.model(feed_forward={"kind": "switch", "n_experts": 3, "balance": balance}, **changes)


def rows(n: int) -> Batch:
    """Of different lengths, so that they have different numbers of targets."""
    tokens_BT = tiny.tokens(n, 9)
    keep_BT = torch.arange(9) < torch.arange(n)[:, None] % 7 + 3
    return Batch(tokens_BT, tokens_BT.roll(-1, 1).masked_fill(~keep_BT, IGNORE), keep_BT=keep_BT)


def test_each_position_asks_the_likeliest_expert() -> None:
    layer = experts()
    x_BTD = torch.randn(2, 7, D, dtype=torch.float64)
    found = read(layer, x_BTD).x_BTD
    for row in range(2):
        for t in range(7):
            p_N = (layer.router_ND @ x_BTD[row, t]).softmax(0)
            asked = int(p_N.argmax())
            said = read(layer, x_BTD[row, t][None, None]).x_BTD[0, 0]
            alone = layer.experts[asked](x_BTD[row, t][None, None], None, None).x_BTD[0, 0]
            torch.testing.assert_close(found[row, t], p_N[asked] * alone)
            torch.testing.assert_close(said, found[row, t])


def test_the_auxiliary_loss_is_its_weight_for_perfect_balance_and_more_for_a_collapse() -> None:
    layer = experts()
    with torch.no_grad():
        layer.router_ND.copy_(torch.eye(N, D))
    each = 5.0 * torch.eye(D, dtype=torch.float64)[None]
    assert read(layer, each).auxiliary_B.tolist() == pytest.approx([BALANCE])
    same = each[:, :1].expand(1, 8, D)
    p = float((5.0 * torch.eye(N, dtype=torch.float64)[0]).softmax(0)[0])
    assert read(layer, same).auxiliary_B.tolist() == pytest.approx([BALANCE * N * p])
    assert BALANCE * N * p > 3 * BALANCE
    together = read(layer, torch.cat((each, same[:, :4]))).auxiliary_B
    assert together.tolist() == pytest.approx([BALANCE, BALANCE * N * p])
    # padding, wherever it stands, asks nobody
    padded = torch.cat((same[:, :3], each, same[:, :2]), 1)
    keep_BT = torch.tensor([[False] * 3 + [True] * 4 + [False] * 2])
    assert read(layer, padded, keep_BT).auxiliary_B.tolist() == pytest.approx([BALANCE])


def test_the_auxiliary_loss_is_trained_on_and_not_measured() -> None:
    with_balance, without = model(), model(balance=0.0)
    batch = rows(8)
    auxiliary_B = with_balance(batch).auxiliary_B
    assert batch.targets_BT is not None
    n_targets_B = batch.targets_BT.ne(IGNORE).sum(1)
    assert (auxiliary_B >= 0.9 * 2 * BALANCE).all()
    plain = CAUSAL.score(without, batch).total
    torch.testing.assert_close(CAUSAL.score(with_balance, batch).total, plain)
    torch.testing.assert_close(CAUSAL.score_text(with_balance, batch).total, plain)
    torch.testing.assert_close(CAUSAL.loss(with_balance, batch).total, plain + (n_targets_B * auxiliary_B).sum())


def test_any_split_of_a_batch_gives_the_same_gradient() -> None:
    size, whole, parts = 2, model(), model()
    batch = rows(8)
    CAUSAL.loss(whole, batch).total.backward()  # type: ignore[no-untyped-call]
    for start in range(0, 8, size):
        fields = {name: getattr(batch, name)[start : start + size] for name in ("tokens_BT", "targets_BT", "keep_BT")}
        CAUSAL.loss(parts, replace(batch, **fields)).total.backward()  # type: ignore[no-untyped-call]
    for (name, wanted), parameter in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert wanted.grad is not None, name
        assert wanted.grad.any() or ".experts." in name, name
        torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-9, atol=1e-12)
