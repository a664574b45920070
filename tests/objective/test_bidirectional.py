"""ELMo's objective: the next token left to right, the previous one right to left, never over given tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.objective import Example
from lmtool.objective.causal import BidirectionalObjective
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recurrent import Recurrent

BOS, EOS, VOCAB = 1, 2, 9
ROWS = [[BOS, 4, 5, EOS, BOS, 6, 7], [5, 6, EOS, BOS, 3, 4, 5]]


def model_of() -> Any:
    torch.manual_seed(0)
    of: dict[str, Any] = {"kind": "recurrent", "shape": "bidirectional", "cell": "gru", "d_model": 8, "context": 6}
    return build(Recurrent.model_validate(of), VOCAB).double()


def objective(isolated: bool = False) -> BidirectionalObjective:
    return BidirectionalObjective(Causal(), BOS, isolated)


def batch_of(rows: list[list[int]], isolated: bool = False) -> Batch:
    rng = np.random.default_rng(0)
    return objective(isolated).collate([Example(np.array(row), rng) for row in rows])


@pytest.mark.parametrize("isolated", [False, True])
def test_the_loss_is_half_the_sum_of_both_directions(isolated: bool) -> None:
    """Each -log p by hand, from texts cut by hand where documents are isolated."""
    model = model_of()
    total = 0.0
    for row in ROWS:
        cuts = [i for i, token in enumerate(row[:-1]) if token == BOS and i and isolated]
        for start, stop in zip([0, *cuts], [*cuts, len(row) - 1], strict=True):
            text = torch.tensor([row[start:stop]])
            forth = model.logits(model(Batch(text)).hidden_BTD)[0].log_softmax(-1).detach()
            back = model.logits(model.forward_right_to_left(Batch(text)).hidden_BTD)[0].log_softmax(-1).detach()
            for i in range(stop - start):
                following = row[start + i + 1]
                if following != BOS:
                    total -= float(forth[i, following])
                if i and row[start + i] != BOS:
                    total -= float(back[i, row[start + i - 1]])
    loss = objective(isolated).loss(model, batch_of(ROWS, isolated))
    assert float(loss.total.detach()) == pytest.approx(total / 2, rel=1e-6)
    assert int(loss.count) == batch_of(ROWS).n_targets == 10


def test_a_text_is_scored_by_the_forward_half() -> None:
    model = model_of()
    before = objective().score(model, batch_of(ROWS)).total
    with torch.no_grad():
        for parameter in model.back.parameters():
            parameter.zero_()
    assert torch.equal(objective().score(model, batch_of(ROWS)).total, before)
