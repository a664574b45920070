"""Losses with a partly or fully frozen head: chunked equals unchunked."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import LanguageModel
from lmtool.model.heads import Classifier
from lmtool.model.lora import adapter_parameter_names, add_adapters_and_freeze_
from lmtool.objective import CausalObjective, Example, Objective, cross_entropy
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Causal, Classification
from lmtool.recipe.spec.training import Lora
from tests.support import tiny
from tests.support.vocabularies import VOCABULARY

HEADS: dict[str, dict[str, Any]] = {
    "tied": {"tie_embeddings": True, "head_bias": True},
    "of its own": {"tie_embeddings": False, "head_bias": True},
}


def gradients(model: LanguageModel, objective: Objective, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    loss = objective.loss(model, batch)
    loss.total.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.total.detach()), found


def in_chunks_as_at_once(
    model: LanguageModel, objective: Objective, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tensor]:
    """The gradients, which are equal both ways."""
    calls = []
    genuine = cross_entropy._ChunkedLoss.forward
    monkeypatch.setattr(cross_entropy._ChunkedLoss, "forward", lambda *a: calls.append(1) or genuine(*a))
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 1000)
    whole, wanted = gradients(model, objective, batch)
    assert not calls
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 3)
    parts, found = gradients(model, objective, batch)
    assert calls
    assert parts == pytest.approx(whole, rel=1e-6)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-10)
    return found


@pytest.mark.parametrize("head", HEADS)
def test_a_language_model_that_learns_by_adapters(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(**HEADS[head])
    add_adapters_and_freeze_(model, Lora(rank=2))
    objective = CausalObjective(Causal(label_smoothing=0.1), VOCABULARY.bos, False)
    rng = np.random.default_rng(0)
    batch = objective.collate([Example(rng.integers(7, tiny.VOCAB, 11), rng) for _ in range(3)])
    found = in_chunks_as_at_once(model, objective, batch, monkeypatch)
    assert set(found) == set(adapter_parameter_names(model))


@pytest.mark.parametrize("learning", [("head.bias",), ("head.own",), ("stack.",)])
def test_a_head_that_learns_in_part(learning: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(**HEADS["of its own"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(learning))
    objective = CausalObjective(Causal(), VOCABULARY.bos, False)
    rng = np.random.default_rng(0)
    batch = objective.collate([Example(rng.integers(7, tiny.VOCAB, 11), rng) for _ in range(3)])
    found = in_chunks_as_at_once(model, objective, batch, monkeypatch)
    assert set(found) == {name for name, _ in model.named_parameters() if name.startswith(learning)}


@pytest.mark.parametrize("head", HEADS)
def test_a_classifier_with_adapters_that_learns_its_text_as_well(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Classification(kind="classification", task="class", labels=("a", "b"), lm_weight=0.5, dropout=0.0)
    model = Classifier(tiny.model(**HEADS[head]), spec, tiny.spec(**HEADS[head])).double()
    add_adapters_and_freeze_(model.body, Lora(rank=2))
    model.double()
    objective = ClassificationObjective(spec, VOCABULARY)
    rng = np.random.default_rng(0)
    rows = [Example(rng.integers(7, tiny.VOCAB, n), rng, label=np.array([float(n % 2)])) for n in (9, 4, 12)]
    found = in_chunks_as_at_once(model, objective, objective.collate(rows), monkeypatch)
    assert set(found) == set(adapter_parameter_names(model)) | {"head.weight", "head.bias"}
