"""Batches divided by a budget of positions: every row once, little padding, and the same step."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool import objective
from lmtool.compute.device import CPU
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.objective import Example
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.rows import EncodedRow, TableExamples
from lmtool.training.fit import CompletedStep, ModelAndOptimizers, fit, split_into_micro_batches
from lmtool.training.optimizer import Optimizers
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.vocabularies import VOCABULARY

RNG = np.random.default_rng(0)


def example(length: int, other: int | None = None) -> Example:
    second = None if other is None else np.full(other, 9)
    return Example(np.full(length, 8), RNG, second=second)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.one_of(st.none(), st.integers(1, 30))), min_size=1, max_size=40),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_no_part_is_above_its_limits_and_no_row_is_lost(
    sizes: list[tuple[int, int | None]], rows: int, tokens: int | None
) -> None:
    examples = [example(*size) for size in sizes]
    parts = list(split_into_micro_batches(examples, rows, tokens))
    assert sorted(map(id, examples)) == sorted(id(one) for part in parts for one in part)
    for part in parts:
        assert 1 <= len(part) <= rows
        widest = max(len(one.tokens) for one in part) + max(
            0 if one.second is None else len(one.second) for one in part
        )
        assert tokens is None or len(part) == 1 or len(part) * widest <= tokens
    if tokens is None:
        assert [one for part in parts for one in part] == examples


def test_rows_of_like_length_go_together() -> None:
    """Fifteen short rows and one long one: the long one pads no other."""
    lengths = [3, 4, 5] * 5
    parts = list(split_into_micro_batches([example(length) for length in [*lengths[:7], 60, *lengths[7:]]], 100, 80))
    assert [len(part) for part in parts] == [15, 1]
    assert [len(one.tokens) for one in parts[0]] == sorted(lengths)


FAMILIES: dict[str, dict[str, Any]] = {
    "classes of a decoder": {"model": {"dropout": 0.0}, "objective": {"kind": "classification", "labels": ["a", "b"]}},
    "weighed classes of an encoder": {
        "model": tiny.BERT,
        "objective": {"kind": "classification", "labels": ["a", "b"], "class_weights": [0.5, 2.0]},
    },
    "classes beside a language model": {
        "model": {},
        "objective": {"kind": "classification", "labels": ["a", "b"], "lm_weight": 0.5},
    },
    "answers of an encoder-decoder": {"model": tiny.VASWANI, "objective": {"kind": "seq2seq"}},
    "answers of a prefix LM": {"model": {"shape": "prefix"}, "objective": {"kind": "seq2seq"}},
}


def trained(family: dict[str, Any], **training: Any) -> tuple[list[CompletedStep], dict[str, Tensor], list[int]]:
    """Steps, final weights, and the positions of each micro-batch, in float64."""
    torch.manual_seed(0)
    head = family["objective"]
    writes = head["kind"] == "seq2seq"
    recipe = Recipe.model_validate(
        {
            "model": {
                "kind": "transformer",
                "n_layers": 1,
                "d_model": 16,
                "n_heads": 4,
                "context": 40,
                **family["model"],
            },
            "objective": head if writes else {**head, "task": "class", "dropout": 0.0},
            "training": {"steps": 3, "batch_size": 12, **training},
            "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9},
            "schedule": {"kind": "constant"},
        }
    )
    model = build(recipe.model, tiny.VOCAB)
    if isinstance(recipe.objective, Classification):
        model = Classifier(model, recipe.objective, recipe.model)
    model = model.double()
    rng = np.random.default_rng(1)
    rows = [
        EncodedRow(
            i,
            rng.integers(7, tiny.VOCAB, rng.integers(2, 18)),
            is_truncated=False,
            label=None if writes else np.array([float(rng.integers(2))]),
            target=rng.integers(7, tiny.VOCAB, rng.integers(2, 18)) if writes else None,
        )
        for i in range(40)
    ]
    found: list[int] = []
    body = model.body if isinstance(model, Classifier) else model
    body.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].tokens_BT.numel()))
    examples = TableExamples(rows, 12, seed=3)
    steps = fit(
        ModelAndOptimizers(
            model,
            objective.build_objective_for_vocabulary(recipe, VOCABULARY),
            Optimizers(recipe.optimizer, model, CPU),
        ),
        examples,
        recipe,
        CPU,
    )
    return list(steps), model.state_dict(), found


@pytest.mark.parametrize("tokens", nightly_but([1, 30, 64, 150], 0))
@pytest.mark.parametrize("family", nightly_but(FAMILIES, "classes of a decoder", 2))
def test_any_budget_is_the_same_step(family: str, tokens: int) -> None:
    whole, weights, at_once = trained(FAMILIES[family])
    assert len(at_once) == len(whole)
    parts, same, positions = trained(FAMILIES[family], micro_tokens=tokens)
    assert len(positions) > len(whole)
    for one, other in zip(whole, parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-9)
        assert other.tokens == one.tokens
    for name, weight in weights.items():
        torch.testing.assert_close(same[name], weight, rtol=1e-8, atol=1e-11)
