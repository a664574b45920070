"""Each score against loops, alone and inside attention."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.batch import Mask
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.layers.scores import build_score
from tests.reference import attention as reference
from tests.support import tiny

KINDS = ("dot", "scaled-dot", "bilinear", "reduced-rank", "additive")
B, N, T, S, H, R = 2, 3, 4, 5, 4, 2


def weights_of(score: Any, head: int) -> list[NDArray[np.float64]]:
    return [p[head].detach().numpy() for p in score.parameters()]


@pytest.mark.parametrize(("kind", "hidden"), [*((kind, H) for kind in KINDS), ("additive", 7), ("additive", 1)])
def test_scores_equal_loops(kind: Any, hidden: int) -> None:
    torch.manual_seed(0)
    score = build_score(kind, N, H, R, hidden).double()
    q, k = torch.randn(B, N, T, H, dtype=torch.float64), torch.randn(B, N, S, H, dtype=torch.float64)
    found = score(q, score.transform_keys(k)).detach()
    assert found.shape == (B, N, T, S)
    for b, n, t, s in np.ndindex(B, N, T, S):
        wanted = reference.score(kind, q[b, n, t].numpy(), k[b, n, s].numpy(), weights_of(score, n))
        assert float(found[b, n, t, s]) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grad", [True, False])
def test_attention_heads_use_their_score(kind: str, grad: bool) -> None:
    """One causal layer of attention, computed by hand from its own projections."""
    model: Any = tiny.model(n_layers=1, score=kind, position={"kind": "none"})
    mixer = model.stack.sublayers[0].mixer
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.set_grad_enabled(grad), record_attention_weights(mixer) as observed:
        found, _, _ = mixer(x, AttentionOp(Mask(causal=True), 6, torch.arange(6)[None]), None)
    q, k, v = (part.view(6, 4, 4).detach().numpy() for part in mixer.qkv.split_outputs(x))
    heads = []
    for head in range(4):
        weights = weights_of(mixer.score, head)
        scores = [[reference.score(kind, q[t, head], k[s, head], weights) for s in range(6)] for t in range(6)]
        seen = [[s <= t for s in range(6)] for t in range(6)]
        heads.append(reference.attend(scores, v[:, head], seen))
        (weights_BNTS,) = observed.values()
        np.testing.assert_allclose(tiny.array(weights_BNTS[0, head]) @ v[:, head], heads[-1], rtol=1e-9)
    wanted = mixer.out(torch.from_numpy(np.concatenate(heads, 1)))
    torch.testing.assert_close(found[0], wanted, rtol=1e-9, atol=1e-9)
