"""Losses of all rows of a batch at once: any micro-batches and any number of processes give the same step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from lmtool import objective
from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.model import build
from lmtool.objective.contrastive import (
    EmbeddingObjective,
    RowVectorsAndAuxiliary,
    WholeBatchObjective,
    compute_vector_gradients,
    surrogate_loss,
)
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.rows import EncodedRow, LengthBucketedExamples
from lmtool.training.fit import CompletedStep, ModelAndOptimizers, fit
from lmtool.training.optimizer import Optimizers
from tests.support import tiny
from tests.support.vocabularies import VOCABULARY

BATCH = 8

LOSSES: dict[str, dict[str, Any]] = {
    "pairs": {"loss": "ranking"},
    "hard negatives": {"loss": "ranking", "dims": [16, 4], "normalize": True},
    "scored": {"loss": "cosent", "pool": "first"},
    "triplets": {"loss": "triplet", "margin": 0.1, "pool": "max"},
    "labels": {"loss": "labels"},
}
N_TEXTS = {"labels": 1, "triplets": 3, "hard negatives": 3}


def a_recipe(loss: str, dropout: float = 0.0, **training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "model": tiny.spec(shape="encoder", context=40, dropout=dropout),
            "objective": {"kind": "embedding", **LOSSES[loss]},
            "training": {"steps": 3, "batch_size": BATCH, **training},
            "optimizer": {"kind": "sgd", "lr": 0.2, "momentum": 0.9},
            "schedule": {"kind": "constant"},
        }
    )


def rows_of(loss: str, n: int = 20) -> list[EncodedRow]:
    rng = np.random.default_rng(1)
    rows = []
    for i in range(n):
        lengths = rng.integers(2, 9, N_TEXTS.get(loss, 2))
        labels: dict[str, float] = {"labels": rng.integers(3).item(), "scored": rng.random()}
        tokens, segments = rng.integers(7, tiny.VOCAB, lengths.sum()), np.repeat(np.arange(len(lengths)), lengths)
        label = np.array([labels[loss]]) if loss in labels else None
        rows.append(EncodedRow(i, tokens, is_truncated=False, segments=segments, label=label))
    return rows


def trained(loss: str, dropout: float = 0.0, **training: Any) -> tuple[list[CompletedStep], dict[str, Tensor]]:
    """Steps and final weights, in float64."""
    torch.manual_seed(0)
    recipe = a_recipe(loss, dropout, **training)
    model = build(recipe.model, tiny.VOCAB).double()
    learnt = objective.build_objective_for_vocabulary(recipe, VOCABULARY)
    for parameter in learnt.unused_parameters(model):
        parameter.requires_grad_(False)
    examples = LengthBucketedExamples(rows_of(loss), BATCH, seed=3)
    trainable = ModelAndOptimizers(model, learnt, Optimizers(recipe.optimizer, model, CPU))
    return list(fit(trainable, examples, recipe, CPU)), model.state_dict()


@pytest.mark.parametrize("loss", LOSSES)
def test_any_micro_batches_are_the_same_step(loss: str) -> None:
    whole, weights = trained(loss)
    parts, same = trained(loss, **{"micro_tokens": 30} if loss == "labels" else {"micro_batch": 3})
    assert all((step.grad_norm or 0) > 0 for step in whole)
    for one, other in zip(whole, parts, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-9)
        assert other.tokens == one.tokens == BATCH
    for name, weight in weights.items():
        torch.testing.assert_close(same[name], weight, rtol=1e-8, atol=1e-11)


class Recording(EmbeddingObjective):
    """Remembers the vectors of each pass."""

    def embed_texts_by_row(self, model: Any, batch: Any) -> RowVectorsAndAuxiliary:
        found = super().embed_texts_by_row(model, batch)
        SEEN.append(found.vectors_NKD.detach().clone())
        return found


SEEN: list[Tensor] = []


def test_both_passes_drop_the_same() -> None:
    """Of each micro-batch, and in no two micro-batches the same."""
    recipe = a_recipe("pairs", dropout=0.5, micro_batch=4, steps=1)
    built = objective.build_objective_for_vocabulary(recipe, VOCABULARY)
    assert isinstance(built, EmbeddingObjective)
    model = build(recipe.model, tiny.VOCAB).double()
    row = rows_of("pairs")[0]
    examples = LengthBucketedExamples([row] * BATCH, BATCH, seed=3)
    SEEN.clear()
    recording = Recording(built.spec, built.vocabulary)
    list(fit(ModelAndOptimizers(model, recording, Optimizers(recipe.optimizer, model, CPU)), examples, recipe, CPU))
    first, second, first_again, second_again = SEEN
    torch.testing.assert_close(first_again, first)
    torch.testing.assert_close(second_again, second)
    assert not torch.allclose(first, second)


@dataclass(frozen=True)
class Sharing(World):
    """One of several processes, which knows what all say: `said` has the vectors and the answers of each."""

    said: Sequence[tuple[RowVectorsAndAuxiliary, Tensor | None]] = ()

    def gather_arrays(self, arrays: Mapping[int, NDArray[Any]], n: int, dtype: DTypeLike) -> list[NDArray[Any]]:
        parts = [np.asarray(vectors.vectors_NKD.detach().flatten(1)) for vectors, _ in self.said]
        if arrays[self.rank].shape != parts[self.rank].shape:
            parts = [np.asarray(answers)[:, None] for _, answers in self.said if answers is not None]
        np.testing.assert_array_equal(arrays[self.rank], parts[self.rank])
        assert n == len(parts)
        return parts


@pytest.mark.parametrize("loss", ["hard negatives", "scored"])
def test_two_processes_add_up_to_one(loss: str) -> None:
    recipe = a_recipe(loss)
    learnt = objective.build_objective_for_vocabulary(recipe, VOCABULARY)
    assert isinstance(learnt, WholeBatchObjective)
    model = build(recipe.model, tiny.VOCAB).double()
    rows = [row.to_example() for row in rows_of(loss, BATCH)]

    def vectors(part: slice) -> tuple[RowVectorsAndAuxiliary, Tensor | None]:
        batch = learnt.collate(rows[part])
        return learnt.embed_texts_by_row(model, batch), learnt.row_labels(batch)

    whole = learnt.loss(model, learnt.collate(rows)).total
    expected = torch.autograd.grad(whole, model.token_vectors())[0]
    shares, gradients = [], []
    for rank, own in enumerate((slice(0, 5), slice(5, 8))):
        world = Sharing(rank, 2, said=[vectors(slice(0, 5)), vectors(slice(5, 8))])
        mine, answers = vectors(own)
        share, cached = compute_vector_gradients(learnt, [mine], [answers], world)
        shares.append(share)
        gradients.append(torch.autograd.grad(surrogate_loss(mine, cached[0]), model.token_vectors())[0])
    assert torch.stack(shares).sum().item() == pytest.approx(whole.item(), rel=1e-9)
    torch.testing.assert_close(torch.stack(gradients).sum(0), expected)
