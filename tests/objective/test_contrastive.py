"""Losses of text vectors: as their plain references, and as sentence-transformers and SetFit compute them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lmtool.objective.contrastive import (
    class_cosine_pair_loss,
    cosent_loss,
    matryoshka_loss,
    multiple_negatives_ranking_loss,
    supervised_contrastive_loss,
    triplet_loss,
)
from tests.reference import contrastive as plain

ROWS, WIDTH = 7, 6
SIMILARITIES = torch.tensor([0.2, 0.9, 0.2, 0.5, 1.0, 0.0, 0.9], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 2, 1, 3, 0])


def vectors(n_texts: int) -> Tensor:
    generator = torch.Generator().manual_seed(n_texts)
    return torch.randn(ROWS, n_texts, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()


LOSSES: dict[str, tuple[int, Callable[[Tensor], Tensor], Callable[[list[list[list[float]]]], float]]] = {
    "pairs": (2, multiple_negatives_ranking_loss, lambda rows: plain.ranking(rows, 20)),
    "hard negatives": (4, lambda v: multiple_negatives_ranking_loss(v, 5.0), lambda rows: plain.ranking(rows, 5)),
    "cosent": (2, lambda v: cosent_loss(v, SIMILARITIES), lambda rows: plain.cosent(rows, SIMILARITIES.tolist(), 20)),
    "triplet": (3, lambda v: triplet_loss(v, 0.3), lambda rows: plain.triplet(rows, 0.3)),
    "labels": (
        1,
        lambda v: supervised_contrastive_loss(v[:, 0], LABELS, 10.0),
        lambda rows: plain.supervised_contrastive([row[0] for row in rows], LABELS.tolist(), 10),
    ),
    "similarity of labels": (
        1,
        lambda v: class_cosine_pair_loss(v[:, 0], LABELS),
        lambda rows: plain.label_similarity([row[0] for row in rows], LABELS.tolist()),
    ),
    "matryoshka": (
        2,
        lambda v: matryoshka_loss(multiple_negatives_ranking_loss, v, (6, 4, 1)),
        lambda rows: sum(plain.ranking([[text[:dim] for text in row] for row in rows], 20) for dim in (6, 4, 1)),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_loops(name: str) -> None:
    n_texts, loss, reference = LOSSES[name]
    rows_NKD = vectors(n_texts)
    assert loss(rows_NKD).item() == pytest.approx(reference(rows_NKD.tolist()), rel=1e-12)


def test_rows_without_a_partner_have_no_loss() -> None:
    every = vectors(1)[:, 0]
    alone = supervised_contrastive_loss(every, torch.arange(ROWS))
    assert alone.item() == 0
    assert torch.autograd.grad(alone, every)[0].abs().sum() == 0
    assert cosent_loss(vectors(2), torch.ones(ROWS)).item() == 0


class Given(nn.Module):
    """A model of sentence-transformers whose vectors are given."""

    def get_embedding_dimension(self) -> int:
        return WIDTH

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}


def test_losses_gradients_and_default_scales_are_those_of_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    model, cosine = Given(), losses.TripletDistanceMetric.COSINE
    peers = {
        "pairs": losses.MultipleNegativesRankingLoss(model),
        "hard negatives": losses.MultipleNegativesRankingLoss(model, scale=5.0),
        "cosent": losses.CoSENTLoss(model),
        "triplet": losses.TripletLoss(model, distance_metric=cosine, triplet_margin=0.3),
        "matryoshka": losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [6, 4, 1]),
    }
    for name, peer in peers.items():
        n_texts, loss, _ = LOSSES[name]
        ours, theirs = vectors(n_texts), vectors(n_texts)
        found, expected = loss(ours), peer([{"vectors": column_ND} for column_ND in theirs.unbind(1)], SIMILARITIES)
        assert found.item() == pytest.approx(expected.item(), abs=1e-6), name
        torch.testing.assert_close(*(torch.autograd.grad(*of)[0] for of in ((found, ours), (expected, theirs))))
