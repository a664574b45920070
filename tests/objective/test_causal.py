"""The causal objective: batches, sums and counts, and that splits of a batch add up."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.objective import CausalObjective, Example, cross_entropy
from lmtool.recipe.spec.objective import Causal
from tests.reference import losses as reference
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.tiny import VOCAB

BOS = 1


def objective(eps: float = 0.0, isolate: bool = False) -> CausalObjective:
    return CausalObjective(Causal(label_smoothing=eps), BOS, isolate)


def examples(n: int, length: int, seed: int = 0) -> list[NDArray[np.int64]]:
    return list(np.random.default_rng(seed).integers(0, VOCAB, (n, length)))


def collate(own: CausalObjective, rows: Sequence[NDArray[np.int64]]) -> Batch:
    return own.collate([Example(row, np.random.default_rng(0)) for row in rows])


def test_each_token_is_to_be_predicted_from_those_before_it() -> None:
    batch = collate(objective(), [np.array([5, 6, 7, 8]), np.array([2, 3, 4, 2])])
    assert batch.tokens_BT.tolist() == [[5, 6, 7], [2, 3, 4]]
    assert batch.targets_BT is not None
    assert batch.targets_BT.tolist() == [[6, 7, 8], [3, 4, 2]]
    assert batch.tokens_BT.dtype == batch.targets_BT.dtype == torch.int64
    assert batch.keep_BT is None
    assert batch.documents_BT is None
    assert batch.n_targets == 6


def test_the_begin_mark_is_given_and_never_predicted() -> None:
    batch = collate(objective(), [np.array([BOS, 6, 2, BOS, 8, BOS])])
    assert batch.tokens_BT.tolist() == [[BOS, 6, 2, BOS, 8]]
    assert batch.targets_BT is not None
    assert batch.targets_BT.tolist() == [[6, 2, IGNORE, 8, IGNORE]]


def test_documents_are_numbered_from_their_begin_marks() -> None:
    batch = collate(
        objective(isolate=True), [np.array([7, 2, BOS, 6, 2, BOS, BOS, 9]), np.array([BOS, 7, 7, 7, 7, 7, 7, 7])]
    )
    assert batch.documents_BT is not None
    assert batch.documents_BT.tolist() == [[0, 0, 1, 1, 1, 2, 3], [1] * 7]


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=3))
def test_collate_equals_loops(rows: list[list[int]]) -> None:
    batch = collate(objective(isolate=True), [np.array(row) for row in rows])
    assert batch.targets_BT is not None
    assert batch.documents_BT is not None
    for i, row in enumerate(rows):
        document = 0
        for t in range(8):
            document += row[t] == BOS
            assert batch.tokens_BT[i, t] == row[t]
            assert batch.targets_BT[i, t] == (IGNORE if row[t + 1] == BOS else row[t + 1])
            assert batch.documents_BT[i, t] == document


def test_spans_are_padded_behind_and_score_what_is_asked() -> None:
    batch = objective().collate_for_scoring(
        [(np.array([BOS, 4, 5, 6]), 1), (np.array([7, 8, 9]), 2), (np.array([3, 2]), 1)]
    )
    assert batch.tokens_BT.tolist() == [[BOS, 4, 5], [7, 8, 0], [3, 0, 0]]
    assert batch.targets_BT is not None
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
    assert batch.targets_BT is not None
    loss = objective(eps).loss(model, batch)
    logits = tiny.array(model.logits(model(batch).hidden_BTD)).reshape(-1, VOCAB)
    targets = batch.targets_BT.flatten().tolist()
    assert IGNORE in targets
    assert float(loss.total.detach()) == pytest.approx(reference.cross_entropy(logits, targets, eps))
    assert loss.count == sum(target != IGNORE for target in targets)


def test_a_fresh_model_is_about_as_unsure_as_can_be() -> None:
    torch.manual_seed(0)
    model = tiny.build(tiny.spec(), VOCAB)
    loss = objective().loss(model, collate(objective(), examples(8, 20)))
    assert float(loss.total.detach()) / loss.count == pytest.approx(np.log(VOCAB), abs=0.05)


def test_without_targets_there_is_no_loss() -> None:
    with pytest.raises(ValueError, match="targets"):
        objective().loss(tiny.model(), Batch(tiny.tokens(1, 3)))


def gradients(model: LanguageModel, rows: list[NDArray[np.int64]], size: int, eps: float) -> tuple[int, float]:
    """Accumulates the gradients of micro-batches; returns the number of targets and the summed loss."""
    own = objective(eps, isolate=True)
    count, total = 0, 0.0
    for start in range(0, len(rows), size):
        loss = own.loss(model, collate(own, rows[start : start + size]))
        loss.total.backward()
        count += loss.count
        total += float(loss.total.detach())
    return count, total


@pytest.mark.parametrize("family", tiny.DECODERS)
@pytest.mark.parametrize("eps", nightly_but([0.0, 0.1], 0))
@pytest.mark.parametrize("chunk_rows", nightly_but([3, 10_000], 0))
def test_any_micro_batches_give_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, family: str, eps: float, chunk_rows: int
) -> None:
    """1 x 8 = 2 x 4 = 4 x 2 = 8 x 1, and an uneven split, with rows of unequal numbers of targets."""
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: chunk_rows)
    rows = examples(8, 10)
    for i in range(8):
        rows[i][1 : 1 + i] = BOS
    results = []
    for size in (8, 4, 2, 1, 3):
        model = tiny.model(**tiny.DECODERS[family])
        count, total = gradients(model, rows, size, eps)
        results.append((count, total, [parameter.grad for parameter in model.parameters()]))
    count, total, grads = results[0]
    for other_count, other_total, other_grads in results[1:]:
        assert other_count == count
        assert other_total == pytest.approx(total, rel=1e-12)
        for one, two in zip(grads, other_grads, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_a_tied_matrix_counts_both_its_uses() -> None:
    """The chunked loss passes the head's gradient to autograd, which adds the embedding's."""
    rows = examples(4, 8)
    model = tiny.model()
    gradients(model, rows, 4, 0.0)
    tied = model.head_parameters()[0].grad
    assert tied is not None
    weight = model.head_parameters()[0]
    before = weight.detach().clone()
    h = 1e-6
    for place in [(2, 3), (BOS, 0), (VOCAB - 1, 15)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.copy_(before)
                weight[place] += sign * h
                own = objective(isolate=True)
                values.append(float(own.loss(model, collate(own, rows)).total))
        assert float(tied[place]) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-5, abs=1e-6)


def test_a_gradient_by_differences_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 3)
    test_the_gradient_of_a_tied_matrix_counts_both_its_uses()
