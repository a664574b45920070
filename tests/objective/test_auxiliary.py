"""Auxiliary losses of a model: in every training loss, weighted by a row's number of targets, and in no score."""

from typing import Any

import pytest
import torch

from lmtool.batch import IGNORE, Batch
from lmtool.model import HiddenOutput
from tests.support import tiny
from tests.support.heads import HEAD, LABELS, MODEL, built

PRICE_B = torch.tensor([3.0, 0.5, 7.0], dtype=torch.float64)
TARGETS = [[9, IGNORE, 10, 11, IGNORE, IGNORE], [9, 10, 11, 12, 9, 10], [IGNORE] * 6]
N_TARGETS_B = torch.tensor([3, 6, 0])
SOURCE = {"source_BS": tiny.tokens(3, 4)}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "causal": (MODEL, {"kind": "causal"}, {}),
    "scheduled sampling": (
        MODEL,
        {"kind": "causal", "scheduled_sampling": {"k": 0.01}},
        {"draws_BT": torch.full((3, 6), -1.0)},
    ),
    "masked": ({**MODEL, **tiny.BERT}, {"kind": "masked"}, {}),
    "prefix": ({**MODEL, "shape": "prefix"}, {"kind": "prefix"}, {"prefix_B": torch.tensor([1, 2, 3])}),
    "seq2seq": ({**MODEL, **tiny.VASWANI}, {"kind": "seq2seq"}, SOURCE),
    "span corruption": ({**MODEL, **tiny.T5}, {"kind": "span-corruption"}, SOURCE),
    "class": (MODEL, HEAD, LABELS),
    "class of an encoder's mix": ({**MODEL, **tiny.BERT}, {**HEAD, "layers": "mix"}, LABELS),
    "class of both directions": ({**tiny.RECURRENT, "shape": "bidirectional"}, HEAD, LABELS),
    "number": (MODEL, {**HEAD, "task": "number", "labels": []}, {"values_BC": torch.rand(3, 1)}),
}


def take(model: Any) -> None:
    """Give a model an auxiliary loss for each row."""
    price_B = torch.nn.Parameter(PRICE_B.clone())
    model.register_parameter("price_B", price_B)
    forward, layers = model.forward, model.hidden_states_by_layer_and_auxiliary
    model.forward = lambda batch: HiddenOutput(forward(batch).hidden_BTD, price_B)
    model.hidden_states_by_layer_and_auxiliary = lambda batch: (layers(batch)[0], price_B)


def setting(case: str) -> tuple[Any, Any, Batch]:
    of, spec, more = CASES[case]
    model, objective = built(of, spec)
    take(getattr(model, "body", model))
    targets = None if spec["kind"] == "classification" else torch.tensor(TARGETS)
    return model.double(), objective, Batch(tiny.tokens(3, 6), targets, **more)


@pytest.mark.parametrize("case", CASES)
def test_a_row_pays_its_price_for_each_target_when_it_is_trained_on(case: str) -> None:
    model, objective, batch = setting(case)
    n_B = N_TARGETS_B if batch.targets_BT is not None else torch.ones(3)
    loss, score = objective.loss(model, batch), objective.score(model, batch)
    assert int(loss.count) == int(score.count) == int(n_B.sum())
    torch.testing.assert_close((loss.total - score.total).double(), (n_B * PRICE_B).sum(), rtol=1e-4, atol=1e-4)
    (gradient_B,) = torch.autograd.grad(loss.total, [p for name, p in model.named_parameters() if "price_B" in name])
    torch.testing.assert_close(gradient_B, n_B.double())


def paid(model: Any, objective: Any, batch: Batch, body: Any = None) -> float:
    """What an auxiliary loss adds to the loss of a batch."""
    without = objective.loss(model, batch).total
    take(body or model)
    return float((objective.loss(model, batch).total - without).detach())


def test_a_language_model_beside_a_head_pays_once() -> None:
    model, objective = built(MODEL, {**HEAD, "lm_weight": 0.5})
    batch = Batch(tiny.tokens(3, 6), torch.tensor(TARGETS), **LABELS)
    assert paid(model, objective, batch, model.body) == pytest.approx(float(PRICE_B.sum()), rel=1e-4)


def test_whether_texts_follow_each_other_is_asked_besides() -> None:
    model, objective, batch = setting("masked")
    with_labels = Batch(batch.tokens_BT, batch.targets_BT, labels_B=torch.tensor([0, 1, 1]))
    more = objective.loss(model, with_labels).total - objective.score(model, with_labels).total
    assert float(more.detach()) > float((N_TARGETS_B * PRICE_B).sum())
    torch.testing.assert_close(objective.score(model, with_labels).total, objective.score(model, batch).total)


def test_a_score_of_a_text_has_no_auxiliary_loss() -> None:
    model, objective, batch = setting("masked")
    measured = objective.score_text(model, batch).total
    take(model)
    torch.testing.assert_close(objective.score_text(model, batch).total, measured)


def test_both_directions_pay_for_their_own_targets() -> None:
    model, objective = built({**tiny.RECURRENT, "shape": "bidirectional"}, {"kind": "bidirectional"})
    batch = Batch(tiny.tokens(3, 6), torch.tensor(TARGETS))
    without, backward = objective.loss(model, batch).total, model.forward_right_to_left
    take(model)
    model.forward_right_to_left = lambda batch: HiddenOutput(backward(batch).hidden_BTD, PRICE_B)
    n_before_B = (objective.backward_targets(batch) != IGNORE).sum(1)
    wanted = ((N_TARGETS_B + n_before_B) * PRICE_B).sum() / 2
    assert float((objective.loss(model, batch).total - without).detach()) == pytest.approx(float(wanted), rel=1e-4)


def test_centres_pay_for_each_of_their_neighbours() -> None:
    model, objective = built({"kind": "skipgram", "d_model": 6}, {"kind": "skip-gram", "negatives": 0})
    batch = Batch(tiny.tokens(3, 1), torch.tensor(TARGETS))
    before = objective.score(model, batch).total
    assert paid(model, objective, batch) == pytest.approx(float((N_TARGETS_B * PRICE_B).sum()), rel=1e-4)
    torch.testing.assert_close(objective.score(model, batch).total, before)
