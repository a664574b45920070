"""Losses and gradients of sentence-transformers, with the same weights; in float64, where rounding hides nothing."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.compute.device import CPU
from lmtool.interop.importing import import_to_cache
from lmtool.objective import Example, build_objective
from lmtool.runs.load import load_run
from tests.support import peers
from tests.support.peers import BODIES
from tests.support.published import sentence_transformers

WORDS = ["it", "rained", "the", "sea", "went", "boats", "stayed", "and"]
SIMILARITIES = [0.1, 0.9, 0.4, 0.7, 0.4, 1.0]


def texts(n_texts: int) -> list[list[str]]:
    rng = random.Random(2)
    return [[" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(n_texts)] for _ in SIMILARITIES]


def peers_losses(peer: Any) -> dict[str, tuple[dict[str, Any], int, Any]]:
    """By name: keys of the objective, texts of a row, and the loss of the peer."""
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    ranking, cosine = losses.MultipleNegativesRankingLoss(peer), losses.TripletDistanceMetric.COSINE
    return {
        "pairs": ({"loss": "ranking"}, 2, ranking),
        "hard negatives": ({"loss": "ranking", "scale": 8.0}, 4, losses.MultipleNegativesRankingLoss(peer, scale=8.0)),
        "scored": ({"loss": "cosent"}, 2, losses.CoSENTLoss(peer)),
        "triplets": (
            {"loss": "triplet", "margin": 0.5},
            3,
            losses.TripletLoss(peer, distance_metric=cosine, triplet_margin=0.5),
        ),
        "cut": ({"loss": "ranking", "dims": (32, 8)}, 2, losses.MatryoshkaLoss(peer, ranking, [32, 8])),
    }


def test_losses_and_gradients_equal_those_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peers, "CASES", {**peers.CASES, **BODIES})
    folder = sentence_transformers(tmp_path / "published")
    peer = library.SentenceTransformer(str(folder), device="cpu").eval().double()
    loaded = load_run(str(import_to_cache(str(folder))), CPU)
    lm, recipe = loaded.model.requires_grad_(True).double(), loaded.recipe
    for name, (keys, n_texts, loss) in peers_losses(peer).items():
        spec = recipe.objective.with_unvalidated_values(keys)
        objective = build_objective(recipe.with_unvalidated_values({"objective": spec}), loaded.tokenizer)
        examples = []
        for row, similarity in zip(texts(n_texts), SIMILARITIES, strict=True):
            parts = [
                loaded.prompt_format.encode_and_truncate_row([np.array(loaded.tokenizer.encode(text))])[0]
                for text in row
            ]
            segments = np.repeat(np.arange(n_texts), [len(part) for part in parts])
            label = np.array([similarity]) if name == "scored" else None
            rng = np.random.default_rng(0)
            examples.append(Example(np.concatenate(parts), rng, segments=segments, label=label))
        lm.zero_grad()
        peer.zero_grad()
        ours = objective.loss(lm, objective.collate(examples)).total / len(examples)
        columns = [peer.preprocess([row[k] for row in texts(n_texts)]) for k in range(n_texts)]
        theirs = loss(columns, torch.tensor(SIMILARITIES, dtype=torch.float64))
        ours.backward()
        theirs.backward()
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6), name
        of_peer = peer[0].auto_model.embeddings.word_embeddings.weight.grad
        torch.testing.assert_close(lm.token_vectors().grad[: len(of_peer)], of_peer, rtol=0, atol=1e-7)
        norms = [
            torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
            for model in (lm, peer)
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5), name
