"""The causal objective: batches, sums and counts, and gradients of a tied matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmtool.batch import IGNORE
from lmtool.objective import CausalObjective, Example, cross_entropy
from lmtool.recipe.spec.objective import Causal
from tests.reference import losses as reference
from tests.support import tiny
from tests.support.tiny import VOCAB

BOS = 1


def objective(eps: float = 0.0, isolate: bool = False) -> CausalObjective:
    return CausalObjective(Causal(label_smoothing=eps), BOS, isolate)


def examples(n: int, length: int, seed: int = 0) -> list[NDArray[np.int64]]:
    return list(np.random.default_rng(seed).integers(0, VOCAB, (n, length)))


def collate(own: CausalObjective, rows: Sequence[NDArray[np.int64]]) -> Any:
    return own.collate([Example(row, np.random.default_rng(0)) for row in rows])


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=3))
def test_collate_equals_loops(rows: list[list[int]]) -> None:
    batch = collate(objective(isolate=True), [np.array(row) for row in rows])
    assert batch.tokens_BT.dtype == batch.targets_BT.dtype == torch.int64
    for i, row in enumerate(rows):
        document = 0
        for t in range(8):
            document += row[t] == BOS
            assert batch.tokens_BT[i, t] == row[t]
            assert batch.targets_BT[i, t] == (IGNORE if row[t + 1] == BOS else row[t + 1])
            assert batch.documents_BT[i, t] == document


def test_spans_are_padded_behind_and_score_what_is_asked() -> None:
    batch: Any = objective().collate_for_scoring(
        [(np.array([BOS, 4, 5, 6]), 1), (np.array([7, 8, 9]), 2), (np.array([3, 2]), 1)]
    )
    assert batch.tokens_BT.tolist() == [[BOS, 4, 5], [7, 8, 0], [3, 0, 0]]
    assert batch.targets_BT.tolist() == [[4, 5, 6], [IGNORE, 9, IGNORE], [2, IGNORE, IGNORE]]
    assert batch.n_targets == 5


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_span_in_a_batch_scores_as_it_does_alone(data: st.DataObject) -> None:
    spans = []
    for seed in range(data.draw(st.integers(1, 4))):
        length = data.draw(st.integers(2, 9))
        spans.append((examples(1, length, seed)[0], data.draw(st.integers(1, length - 1))))
    model = tiny.model()
    together = objective().loss(model, objective().collate_for_scoring(spans))
    alone = [objective().loss(model, objective().collate_for_scoring([span])) for span in spans]
    assert together.count == sum(loss.count for loss in alone) == sum(len(row) - first for row, first in spans)
    torch.testing.assert_close(together.total, torch.stack([loss.total for loss in alone]).sum())


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_loss_is_the_summed_cross_entropy(eps: float) -> None:
    model = tiny.model()
    rows = examples(3, 8)
    rows[1][4] = BOS
    batch = collate(objective(eps), rows)
    loss = objective(eps).loss(model, batch)
    logits = tiny.array(model.logits(model(batch).hidden_BTD)).reshape(-1, VOCAB)
    targets = batch.targets_BT.flatten().tolist()
    assert IGNORE in targets
    assert float(loss.total.detach()) == pytest.approx(reference.cross_entropy(logits, targets, eps))
    assert loss.count == sum(target != IGNORE for target in targets)


def test_the_gradient_of_a_tied_matrix_counts_both_its_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunked loss passes the head's gradient to autograd, which adds the embedding's; against differences."""
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 3)
    model, own = tiny.model(), objective(isolate=True)
    batch = collate(own, examples(4, 8))
    torch.autograd.backward(own.loss(model, batch).total)
    weight: Any = model.head_parameters()[0]
    h = 1e-6
    before = weight.detach().clone()
    for place in [(2, 3), (BOS, 0), (VOCAB - 1, 15)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.copy_(before)
                weight[place] += sign * h
                values.append(float(own.loss(model, batch).total))
        assert float(weight.grad[place]) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-5, abs=1e-6)
