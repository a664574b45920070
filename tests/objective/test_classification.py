"""The losses of labelled rows against loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import IGNORE
from lmtool.model.heads import Classifier
from lmtool.objective import Example
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from tests.support import tiny
from tests.support.vocabularies import VOCABULARY

ANSWERS: dict[str, Any] = {
    "class": [[0], [2], [1], [2]],
    "multi": [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]],
    "number": [[0.5], [-1], [2], [0]],
}


def setting(task: str, **changes: object) -> tuple[Classifier, ClassificationObjective]:
    labels = [] if task == "number" else ["a", "b", "c"]
    spec = Classification.model_validate(
        {"kind": "classification", "task": task, "labels": labels, "dropout": 0.0} | changes
    )
    torch.manual_seed(0)
    model = Classifier(tiny.model(), spec, tiny.spec()).double()
    return model, ClassificationObjective(spec, VOCABULARY)


def rows(task: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        Example(rng.integers(0, tiny.VOCAB, length), rng, label=np.array(answer, dtype=np.float64))
        for length, answer in zip((4, 7, 3, 6), ANSWERS[task], strict=True)
    ]


@pytest.mark.parametrize("task", ["class", "multi", "number"])
def test_losses_equal_loops(task: str) -> None:
    model, objective = setting(task)
    batch = objective.collate(rows(task))
    scores = model.run_head(batch)[0].detach().numpy()
    total = 0.0
    for score, answer in zip(scores, ANSWERS[task], strict=True):
        match task:
            case "class":
                total -= math.log(math.exp(score[answer[0]]) / sum(math.exp(s) for s in score))
            case "multi":
                each = [-math.log(1 / (1 + math.exp(-s if a else s))) for s, a in zip(score, answer, strict=True)]
                total += sum(each) / len(each)
            case _:
                total += (score[0] - answer[0]) ** 2
    loss = objective.loss(model, batch)
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == objective.count_targets(batch) == 4


def test_weights_of_classes_multiply_their_rows() -> None:
    weights = (0.5, 3.0, 1.25)
    model, objective = setting("class", class_weights=list(weights))
    plain = setting("class")[1]
    total: Any = sum(
        weights[int(row.label[0])] * float(plain.loss(model, plain.collate([row])).total.detach())
        for row in rows("class")
    )
    assert float(objective.loss(model, objective.collate(rows("class"))).total.detach()) == pytest.approx(
        total, rel=1e-5
    )


def test_the_language_models_loss_is_a_mean_over_the_tokens_of_each_row() -> None:
    model, objective = setting("class", lm_weight=0.5)
    plain = setting("class")[1]
    batch: Any = objective.collate(rows("class"))
    logits = model.logits(model(batch).hidden_BTD).detach()
    extra = 0.0
    for row in range(4):
        targets = [(t, int(token)) for t, token in enumerate(batch.targets_BT[row]) if token != IGNORE]
        assert len(targets) == len(rows("class")[row].tokens) - 1
        extra += sum(-float(logits[row, t].log_softmax(-1)[token]) for t, token in targets) / len(targets)
    both = float(objective.loss(model, batch).total.detach())
    alone = float(plain.loss(model, plain.collate(rows("class"))).total.detach())
    assert both - alone == pytest.approx(0.5 * extra, rel=1e-5)
