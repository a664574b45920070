"""The losses of labelled rows, of tags and of answers, against loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import IGNORE
from lmtool.model.heads import TokenHeadModel
from lmtool.objective import Example
from tests.reference import annotated, losses
from tests.support import tiny
from tests.support.heads import HEAD, MODEL, built

TAGGING = {"kind": "tagging", "labels": ["a", "b", "c"], "dropout": 0.0}
SPECS: dict[str, dict[str, Any]] = {
    "class": {**HEAD, "labels": ["a", "b", "c"]},
    "multi": {**HEAD, "task": "multi", "labels": ["a", "b", "c"]},
    "number": {**HEAD, "task": "number", "labels": []},
    "tags": TAGGING,
    "chained tags": {**TAGGING, "crf": True},
    "answers": {"kind": "question-answering", "dropout": 0.0},
}
ANSWERS: dict[str, list[list[float]]] = {
    "class": [[0], [2], [1], [2]],
    "multi": [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]],
    "number": [[0.5], [-1], [2], [0]],
    "tags": [[1, 0, 2], [2, 2], [0], []],
    "chained tags": [[1, 0, 2], [2, 2], [0], []],
    "answers": [[1, 2], [6, 6], [0, 0], [0, 5]],
}
PLACES: list[list[int]] = [[0, 2, 3], [1, 5], [2], []]
"""Of the tagged words."""


def setting(kind: str, **changes: Any) -> tuple[Any, Any]:
    model, objective = built(MODEL, SPECS[kind] | changes)
    if kind == "chained tags":
        for parameter in model.crf.parameters():
            torch.nn.init.normal_(parameter)
    return model, objective


def rows(kind: str) -> list[Example]:
    rng = np.random.default_rng(0)
    return [
        Example(
            rng.integers(9, tiny.VOCAB, length),
            rng,
            label=np.array(answer, dtype=np.float64),
            word_starts=np.array(places, dtype=np.int64) if "tags" in kind else None,
        )
        for length, answer, places in zip((4, 7, 3, 6), ANSWERS[kind], PLACES, strict=True)
    ]


def nats(kind: str, model: Any, scores: Any, answer: Any, places: list[int]) -> float:
    """The loss of one row, of the scores of its head."""
    match kind:
        case "class":
            return losses.cross_entropy(scores[None], answer)
        case "multi":
            signs = [-1 if one else 1 for one in answer]
            return float(np.mean([math.log(1 + math.exp(sign * s)) for sign, s in zip(signs, scores, strict=True)]))
        case "number":
            return float((scores[0] - answer[0]) ** 2)
        case "tags":
            return losses.cross_entropy(scores[places], answer)
        case "chained tags":
            parts = (model.crf.start_C, model.crf.end_C, model.crf.transition_PC)
            return -annotated.chain_log_p(scores[places], answer, *map(tiny.array, parts)) if places else 0.0
        case _:
            return sum(losses.cross_entropy(scores[None, :, end], [answer[end]]) for end in (0, 1)) / 2


@pytest.mark.parametrize("kind", SPECS)
def test_losses_equal_loops(kind: str) -> None:
    """Each row by itself."""
    model, objective = setting(kind)
    of_tokens: Any = TokenHeadModel if isinstance(model, TokenHeadModel) else type(model)
    total = 0.0
    for row, answer, places in zip(rows(kind), ANSWERS[kind], PLACES, strict=True):
        scores = tiny.array(of_tokens.run_head(model, objective.collate([row])).scores[0])
        total += nats(kind, model, scores, [int(one) if kind != "number" else one for one in answer], places)
    batch = objective.collate(rows(kind))
    loss = objective.loss(model, batch)
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == objective.count_targets(batch) == (6 if "tags" in kind else 4)


def total_of(model: Any, objective: Any, examples: list[Example]) -> float:
    return float(objective.loss(model, objective.collate(examples)).total.detach())


def test_weights_of_classes_multiply_their_rows() -> None:
    weights, plain = (0.5, 3.0, 1.25), setting("class")[1]
    model, objective = setting("class", class_weights=list(weights))
    each = (
        weights[int(answer)] * total_of(model, plain, [row])
        for row, (answer,) in zip(rows("class"), ANSWERS["class"], strict=True)
    )
    assert total_of(model, objective, rows("class")) == pytest.approx(sum(each), rel=1e-5)


def test_the_language_models_loss_is_a_mean_over_the_tokens_of_each_row() -> None:
    model, objective = setting("class", lm_weight=0.5)
    batch = objective.collate(rows("class"))
    logits = model.logits(model(batch).hidden_BTD).detach()
    extra = 0.0
    for i, row in enumerate(rows("class")):
        targets = [(t, int(token)) for t, token in enumerate(batch.targets_BT[i]) if token != IGNORE]
        assert len(targets) == len(row.tokens) - 1
        extra += sum(-float(logits[i, t].log_softmax(-1)[token]) for t, token in targets) / len(targets)
    both, alone = (total_of(model, one, rows("class")) for one in (objective, setting("class")[1]))
    assert both - alone == pytest.approx(0.5 * extra, rel=1e-5)


@pytest.mark.parametrize("kind", ["tags", "answers"])
def test_rows_without_labels_have_no_loss(kind: str) -> None:
    model, objective = setting(kind)
    row = rows(kind)[0]
    with pytest.raises(ValueError, match="without"):
        objective.loss(model, objective.collate([Example(row.tokens, row.rng, word_starts=row.word_starts)]))
