"""Micro-batches of any size have the same loss, count and gradient, for every objective: losses are sums and counts.

Their logits are computed in chunks of other sizes, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.model.lora import add_adapters_and_freeze_
from lmtool.objective import Example, cross_entropy, scheduled
from lmtool.objective.distillation import DistillationObjective
from lmtool.recipe.spec.training import Distillation, Lora
from tests.support import tiny
from tests.support.heads import HEAD, MODEL, built
from tests.support.vocabularies import COUNTED

BERT = {**MODEL, **tiny.BERT}
ENCODER = {**BERT, "next_sentence_head": False}
PREFIX = {**MODEL, "shape": "prefix"}
SAMPLING = {"kind": "causal", "label_smoothing": 0.1, "scheduled_sampling": {"floor": 0.2}}
SPANS = {"kind": "masked", "rate": 0.4, "spans": {"p": 0.3, "max_length": 4}, "span_boundary": True}
SMOOTHED = {"kind": "causal", "label_smoothing": 0.1}
OWN_HEAD = {**MODEL, "tie_embeddings": False, "head_bias": True}
PARTS = ("head.bias", "head.own", "stack.")
"""Of which each is trained alone."""
DISTILLED = "distillation"


def words(n: int, i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(9, tiny.VOCAB, n)


def row(i: int) -> Example:
    """Ten tokens of which some begin documents, and so are no targets."""
    tokens = words(10, i)
    tokens[1 : 1 + i] = COUNTED.bos
    return Example(tokens, np.random.default_rng(i))


def text(i: int, **more: Any) -> Example:
    return Example(words(8 + 2 * (i % 3), i), np.random.default_rng(i), **more)


def pair(i: int) -> Example:
    return text(i, second=words(3 + i, 50 + i), second_follows=i % 2 == 0)


def labelled(*answers: list[float]) -> Callable[[int], Example]:
    return lambda i: text(i, label=np.array(answers[i % len(answers)], dtype=np.float64))


def tagged(i: int) -> Example:
    return text(i, label=np.arange(i % 4) % 3.0, word_starts=np.arange(i % 4) * 2)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[int], Example]]] = {
    "causal": (MODEL, {"kind": "causal"}, row),
    "scheduled sampling": (MODEL, SAMPLING, row),
    "scheduled sampling of a recurrent model": (tiny.FAMILIES["lstm"], SAMPLING, row),
    "both directions": (tiny.FAMILIES["elmo"], {"kind": "bidirectional"}, row),
    "masked": (ENCODER, {"kind": "masked"}, text),
    "spans and their boundaries": ({**ENCODER, "span_boundary_head": True}, SPANS, text),
    "permutation": (ENCODER, {"kind": "masked", "permutation": True}, text),
    "next sentence": (BERT, {"kind": "masked", "next_sentence": True}, pair),
    "replaced tokens": (ENCODER, {"kind": "replaced-tokens", "rate": 0.4, "generator_size": 0.5}, text),
    "prefix": (PREFIX, {"kind": "prefix"}, text),
    "prefix of an encoder-decoder": ({**MODEL, **tiny.T5}, {"kind": "prefix"}, text),
    "span corruption": ({**MODEL, **tiny.T5}, {"kind": "span-corruption"}, text),
    "span corruption in a row": (PREFIX, {"kind": "span-corruption"}, text),
    "answers": ({**MODEL, **tiny.VASWANI}, {"kind": "seq2seq"}, pair),
    "skip-gram": ({"kind": "skipgram", "d_model": 6}, {"kind": "skip-gram"}, text),
    "class": (MODEL, HEAD, labelled([0], [1])),
    "labels": (MODEL, {**HEAD, "task": "multi"}, labelled([1, 0], [0, 0], [1, 1])),
    "number": (MODEL, {**HEAD, "task": "number", "labels": []}, labelled([0.5], [-1], [2])),
    "class beside a language model": (MODEL, {**HEAD, "lm_weight": 0.5}, labelled([0], [1])),
    "adapters": (MODEL, SMOOTHED, row),
    "adapters below a head of its own": (OWN_HEAD, SMOOTHED, row),
    "adapters beside a language model": (OWN_HEAD, {**HEAD, "lm_weight": 0.5}, labelled([0], [1])),
    **{f"{part} alone": (OWN_HEAD, {"kind": "causal"}, row) for part in PARTS},
    "tags": (MODEL, {"kind": "tagging", "labels": ["a", "b", "c"], "dropout": 0.0}, tagged),
    "chained tags": (MODEL, {"kind": "tagging", "labels": ["a", "b", "c"], "crf": True, "dropout": 0.0}, tagged),
    "spans of answers": (MODEL, {"kind": "question-answering", "dropout": 0.0}, labelled([1, 2], [6, 6], [0, 5])),
    DISTILLED: (MODEL, {"kind": "causal"}, row),
}


def setting(case: str) -> tuple[Any, Any]:
    of, spec, _ = CASES[case]
    model, objective = built(of, spec)
    if case.startswith("adapters"):
        add_adapters_and_freeze_(getattr(model, "body", model), Lora(rank=2))
        model.double()
    if case.endswith(" alone"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(case.removesuffix(" alone")))
    if case == DISTILLED:
        teacher = tiny.model(2).requires_grad_(False)
        distillation = Distillation(teacher="of a test", temperature=3.0, weight=0.3, cosine=0.7)
        objective = DistillationObjective(objective, distillation, teacher, None, tiny.VOCAB)
    return model, objective


@pytest.mark.parametrize("case", CASES)
def test_any_micro_batches_add_up(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size, chunk in ((6, 10_000), (4, 3), (1, 3)):
        for module in (cross_entropy, scheduled):
            monkeypatch.setattr(module, "rows_per_chunk", lambda *_, chunk=chunk: chunk)
        model, objective = setting(case)
        examples = [CASES[case][2](i) for i in range(6)]
        losses = []
        for start in range(0, 6, size):
            losses.append(objective.loss(model, objective.collate(examples[start : start + size], 0.5)))
            losses[-1].total.backward()
        total = sum(float(loss.total.detach()) for loss in losses)
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert gradients
        found.append(([total, sum(int(loss.count) for loss in losses)], gradients))
    for sums, gradients in found[1:]:
        assert sums == pytest.approx(found[0][0], rel=1e-6)
        torch.testing.assert_close(gradients, found[0][1], rtol=1e-4, atol=1e-6)


def test_what_an_objective_cannot_learn_from_is_refused() -> None:
    decoder, _ = setting("causal")
    for case, why in (("both directions", "both directions"), ("next sentence", "encoder")):
        _, objective = setting(case)
        with pytest.raises(ValueError, match=why):
            objective.loss(decoder, objective.collate([CASES[case][2](0)]))
    model, replaced = setting("replaced tokens")
    with pytest.raises(ValueError, match="without masks"):
        replaced.loss(model, replace(replaced.collate([text(0)]), draws_BT=None))
    with pytest.raises(ValueError, match="without a target"):
        setting("answers")[1].collate([text(0)])
    for case in ("causal", "skip-gram"):
        model, objective = setting(case)
        with pytest.raises(ValueError, match="targets"):
            objective.loss(model, replace(objective.collate([CASES[case][2](0)]), targets_BT=None))
