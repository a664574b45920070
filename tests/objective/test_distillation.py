"""Distillation: the plain formula for every kind of target."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import IGNORE, Batch
from lmtool.model.heads import Classifier
from lmtool.objective import CausalObjective
from lmtool.objective.distillation import DistillationObjective
from lmtool.objective.heads import ClassificationObjective
from lmtool.objective.masked import MaskedObjective
from lmtool.recipe.spec.objective import Causal, Classification, Masked
from lmtool.recipe.spec.training import Distillation
from tests.reference import distillation as reference
from tests.support import tiny
from tests.support.vocabularies import VOCABULARY

V = tiny.VOCAB
CAUSAL = CausalObjective(Causal(), 1, False)
MASKED = MaskedObjective(Masked(kind="masked"), VOCABULARY)
SPEC = Distillation(teacher="of a test", temperature=3.0, weight=0.3, cosine=0.7)
ROBERTA: dict[str, Any] = {"shape": "encoder", "position": {"kind": "alibi"}}
PAIRS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "transformers": (CAUSAL, {"n_layers": 1}, {"n_layers": 3}),
    "an lstm from a transformer": (CAUSAL, {**tiny.RECURRENT, "d_model": 16}, {}),
    "encoders": (MASKED, {**ROBERTA, "n_layers": 1}, ROBERTA),
}


def a_batch(n: int = 3, T: int = 6) -> Batch:
    """Rows with targets at some positions; the last row has padding behind its only token."""
    tokens_BT, targets_BT = tiny.tokens(n, T, seed=1), tiny.tokens(n, T, seed=2)
    targets_BT[:, 1::3] = IGNORE
    keep_BT = torch.ones(n, T, dtype=torch.bool)
    keep_BT[-1, 1:] = False
    return Batch(tokens_BT, targets_BT.masked_fill(~keep_BT, IGNORE), keep_BT)


@pytest.mark.parametrize("name", PAIRS)
def test_distillation_from_tokens_equals_loops(name: str) -> None:
    own, small, large = PAIRS[name]
    student, teacher = tiny.model(1, **small), tiny.model(2, vocab_size=V + 3, **large)
    batch = a_batch()
    if name.startswith("an lstm"):
        batch = Batch(batch.tokens_BT, batch.targets_BT)  # padding only at the end of rows
    found = DistillationObjective(own, SPEC, teacher, None, V).loss(student, batch)
    hard = own.loss(student, batch)
    with torch.no_grad():
        h_BTD, k_BTD = student(batch).hidden_BTD, teacher(batch).hidden_BTD
        chosen_BT: Any = batch.targets_BT != IGNORE
        logits, known = student.logits(h_BTD)[chosen_BT], teacher.logits(k_BTD)[chosen_BT][:, :V]
    soft = reference.divergence(known.tolist(), logits.tolist(), 3.0)
    cosine = 0.0
    for b in range(len(h_BTD)):
        kept = [t for t in range(h_BTD.shape[1]) if batch.keep_BT is None or batch.keep_BT[b, t]]
        away = [reference.away(h_BTD[b, t].tolist(), k_BTD[b, t].tolist()) for t in kept]
        cosine += int(chosen_BT[b].sum()) * float(np.mean(away))
    assert float(found.total.detach()) == pytest.approx(
        0.7 * float(hard.total.detach()) + 0.3 * soft + 0.7 * cosine, rel=1e-5
    )
    assert int(found.count) == int(hard.count)


@pytest.mark.parametrize("task", ["class", "multi", "number"])
def test_distillation_from_labels_equals_loops(task: str) -> None:
    names = () if task == "number" else ("a", "b", "c")
    spec = Classification.model_validate(
        {"kind": "classification", "task": task, "labels": names, "dropout": 0.0, "center": 1.0, "scale": 2.0}
    )
    theirs = spec.model_copy(update={"center": -3.0, "scale": 0.5})
    student, teacher = (
        Classifier(tiny.model(seed, **ROBERTA), head, tiny.spec(**ROBERTA)).double().eval()
        for seed, head in ((1, spec), (2, theirs))
    )
    values_BC = torch.tensor([[0.5], [1.0], [0.0]]) if task == "number" else tiny.tokens(3, 3, seed=4) % 2.0
    labels_B, values = (torch.tensor([0, 2, 1]), None) if task == "class" else (None, values_BC)
    batch = Batch(tiny.tokens(3, 6), labels_B=labels_B, values_BC=values)
    own = ClassificationObjective(spec, VOCABULARY)
    settings = SPEC.model_copy(update={"cosine": 0.0})
    found = DistillationObjective(own, settings, teacher, theirs, V).loss(student, batch)
    scores, known = student.run_head(batch).scores.tolist(), teacher.run_head(batch).scores.tolist()
    if task == "class":
        soft = reference.divergence(known, scores, 3.0)
    elif task == "multi":
        soft = reference.divergence_of_labels(known, scores, 3.0)
    else:
        # numbers are compared in the student's units
        soft = sum((s - ((0.5 * k - 3.0) - 1.0) / 2.0) ** 2 for (s,), (k,) in zip(scores, known, strict=True))
    hard = float(own.loss(student, batch).total.detach())
    assert float(found.total.detach()) == pytest.approx(0.7 * hard + 0.3 * soft, rel=1e-5)
