"""Encoders whose vectors of texts are trained on tables: what is chosen, resumed, measured and refused."""

import random
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.api import load
from lmtool.compute.device import CPU
from lmtool.data.table import open_table
from lmtool.interop.importing import import_to_cache
from lmtool.objective import Example, build_objective
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.spec.objective import Embedding
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import load_run
from lmtool.tasks.predict import (
    build_task_with_saved_calibration,
    evaluate_tables,
    make_model_with_objective,
    predict_table_lazily,
)
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.results import Results
from lmtool.tasks.schema import choose_columns
from lmtool.training.finetuning import plan_finetuning
from lmtool.training.plan import TrainingPlan
from tests.support import peers
from tests.support.errors import refuses
from tests.support.peers import BODIES
from tests.support.published import sentence_transformers
from tests.support.training import Work, assert_resumes_bit_for_bit, of_kind, write_table

ENCODER = ("model={shape: encoder, dropout: 0.1, context: 24}", "objective={kind: masked}", "training.steps=2")
STILL = "model.dropout=0"
THINGS = ["cat", "dog", "mat", "home", "sea"]
NOISE = ["a", "the", "ran", "sat", "on", "and"]


HEADERS = {
    "pairs": "anchor,positive",
    "triplets": "anchor,positive,negative",
    "scored": "sentence1,sentence2,score",
    "labels": "text,label",
    "entailment": "premise,hypothesis,label",
}


def write(path: Path, kind: str, n: int = 60) -> Path:
    """Rows whose texts are near each other when they are about the same thing."""
    rng, rows = random.Random(1), []
    for i in range(n):
        thing, other = rng.sample(THINGS, 2)
        anchor, positive, negative = f"the {thing} {i}", f"a {thing} ran {i}", f"a {other} sat"
        alike = rng.random() < 0.5
        compared = f"{anchor},{positive if alike else negative}"
        row = {
            "pairs": f"{anchor},{positive}",
            "triplets": f"{anchor},{positive},{negative}",
            "scored": f"{compared},{0.9 - i / 1000 if alike else 0.1}",
            "labels": f"{' '.join([*rng.choices(NOISE, k=2), thing, rng.choice(NOISE)])},{thing}",
            "entailment": f"{compared},{'yes' if alike else 'no'}",
        }
        rows.append(row[kind])
    return write_table(path, rows, HEADERS[kind])


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """With the run `encoder`."""
    made = Work(tmp_path_factory.mktemp("work"))
    made.pretrain(*ENCODER, name="encoder")
    return made


def tuned(work: Work, kind: str, *overrides: str, name: str, **options: Any) -> list[Any]:
    table = write(work.folder / f"{kind}.csv", kind)
    return work.finetune(*overrides, source=work.run("encoder"), table=table, name=name, **options)


def planned(work: Work, source: str, kind: str, *overrides: str) -> TrainingPlan:
    flags = [Setting("data.train", [str(write(work.folder / f"{kind}.csv", kind))], "TABLE")]
    return plan_finetuning(str(work.run(source)), None, parse_settings(overrides, flags))


@pytest.mark.parametrize(
    ("kind", "loss", "metric", "overrides"),
    [
        ("pairs", "ranking", "ndcg", ("objective.dims=[16, 4]",)),
        ("triplets", "triplet", "accuracy", ("objective={loss: triplet, pool: first}",)),
        ("scored", "cosent", "spearman", ("objective.kind=embedding",)),
        ("labels", "labels", "accuracy", ("objective={kind: embedding, normalize: true}",)),
    ],
)
def test_each_kind_of_table_is_learnt(
    kind: str, loss: str, metric: str, overrides: tuple[str, ...], work: Work
) -> None:
    """Vectors become better, by the measure of the table; and are measured again as they were."""
    name = f"{kind} {loss}"
    table = write(work.folder / f"{kind}.csv", kind)
    lively = (STILL, "training.steps=60", "evaluation.every=20", "optimizer.lr=0.003", *overrides)
    events = tuned(work, kind, *lively, name=name)
    (results,) = of_kind(events, Results)
    recipe = load_run(str(work.run(name))).recipe
    assert isinstance(recipe.objective, Embedding)
    assert (recipe.objective.loss, recipe.evaluation.metric) == (loss, metric)
    figure = {"ndcg": "ndcg@10"}.get(metric, metric)
    reading = Data(text_columns=("anchor", "positive", "negative")) if kind == "triplets" else Data()
    (before,) = evaluate_tables(load_run(str(embedder(work, kind))), [str(table)], read_options=reading)
    (now,) = evaluate_tables(load_run(str(work.run(name))), [str(table)])
    assert now.figures[figure] > before.figures[figure] + 0.1
    assert now.figures[figure] > 0.75
    assert results.figures.keys() == now.figures.keys()
    assert results.baseline is None


def embedder(work: Work, kind: str) -> Path:
    """A run that gives the vectors of `encoder`, hardly trained."""
    if not work.run("still").exists():
        tuned(work, "pairs", "training.steps=1", "optimizer.lr=1e-9", name="still")
    return work.run("still")


def test_an_encoder_embeds_what_it_cannot_write_and_classifies_the_rest(work: Work) -> None:
    embedder(work, "pairs")
    embedded = {("encoder", "pairs"), ("still", "pairs"), ("still", "scored")}
    for source, kind in product(("encoder", "still"), ("pairs", "scored", "entailment", "labels")):
        expected = "embedding" if (source, kind) in embedded else "classification"
        assert planned(work, source, kind).resolved.recipe.objective.kind == expected, (source, kind)
    for setting in ("objective.kind=classification", "objective.task=number"):
        assert planned(work, "still", "scored", setting).resolved.recipe.objective.kind == "classification"
    assert "objective.kind=classification" in planned(work, "still", "scored").choice
    assert "objective.kind=classification" not in planned(work, "still", "pairs").choice  # which have no label


def test_what_the_base_embeds_by_stays(work: Work) -> None:
    tuned(work, "pairs", "objective={pool: first, normalize: true}", "training.steps=1", name="first")
    kept = planned(work, "first", "pairs").resolved.recipe.objective
    assert kept == Embedding(kind="embedding", pool="first", normalize=True, loss="ranking")
    assert planned(work, "first", "labels").resolved.recipe.objective.pool == "first"  # type: ignore[union-attr]


def test_a_resumed_encoder_is_the_unbroken_one(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(tuned, work, "triplets", "training.micro_tokens=60"), 5)


def test_vectors_are_measured_on_tables_of_another_kind(work: Work) -> None:
    """By the columns of training where they are there: of triplets, then, the pairs."""
    loaded = load_run(str(embedder(work, "pairs")))
    named = Data(text_columns=("anchor", "positive", "negative"))
    tables = [str(write(work.folder / f"{kind}.csv", kind)) for kind in ("pairs", "triplets", "scored", "labels")]
    figures = [set(results.figures) for results in evaluate_tables(loaded, tables)]
    ranked = {"recall@1", "recall@5", "recall@10", "mrr", "ndcg@10"}
    assert figures == [ranked, ranked, {"spearman", "pearson"}, {"accuracy"}]
    (triplets,) = evaluate_tables(loaded, tables[1:2], read_options=named)
    assert set(triplets.figures) == ranked | {"accuracy"}


def test_what_does_not_fit_is_refused(work: Work) -> None:
    work.pretrain("training.steps=1", name="decoder")
    with refuses("usage"):
        planned(work, "decoder", "pairs", "objective.kind=embedding")
    with refuses("usage"):  # a loss of rows with a label
        tuned(work, "pairs", "objective.loss=cosent", name="refused")
    with refuses("usage"):
        tuned(work, "pairs", "evaluation.metric=spearman", name="refused")
    for setting, word in (
        ("objective.dims=[99]", "objective.dims: 99 is above model.d_model 16"),
        ("tuning.freeze=body", "leaves nothing to train"),
        ("distillation.teacher=x", "not for embedding"),
        ("training.carry_state=true", "carry_state"),
        ("data.stream=true", "for tables"),
        ("training.tokens=100", "on tables take training.epochs"),
    ):
        with refuses("recipe") as caught:
            planned(work, "encoder", "pairs", setting)
        assert word in str(caught.value)
    with refuses("data") as caught:  # its label is no number
        tuned(work, "entailment", "objective.kind=embedding", name="refused")
    assert "objective.kind=classification" in str(caught.value)
    assert not work.run("refused").exists()
    with refuses("usage"):
        loaded = load_run(str(embedder(work, "pairs")))
        predict_table_lazily(loaded, str(write(work.folder / "pairs.csv", "pairs")))


def test_texts_of_rows_have_the_vectors_of_embed(work: Work) -> None:
    """The same special tokens and the same pooling as where vectors are used."""
    run = embedder(work, "pairs")
    table = open_table(str(write(work.folder / "pairs.csv", "pairs", n=9)))
    columns, loaded = choose_columns(table, kind="related"), load_run(str(run))
    items = read_labelled_table(table, columns).items
    task = build_task_with_saved_calibration(loaded, "", columns, ())
    found = task.compute_text_vectors(make_model_with_objective(loaded), task.encode(items))  # type: ignore[attr-defined]
    wanted = load(str(run), device="cpu").embed([text for item in items for text in item.texts])
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)


PEERS_WORDS = ["it", "rained", "the", "sea", "went", "boats", "stayed", "and"]
SIMILARITIES = [0.1, 0.9, 0.4, 0.7, 0.4, 1.0]


def drawn_texts(n_texts: int) -> list[list[str]]:
    rng = random.Random(2)
    return [[" ".join(rng.choices(PEERS_WORDS, k=rng.randint(1, 9))) for _ in range(n_texts)] for _ in SIMILARITIES]


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
    """With the same weights; in float64, where rounding hides nothing."""
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
        for row, similarity in zip(drawn_texts(n_texts), SIMILARITIES, strict=True):
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
        columns = [peer.preprocess([row[k] for row in drawn_texts(n_texts)]) for k in range(n_texts)]
        theirs = loss(columns, torch.tensor(SIMILARITIES, dtype=torch.float64))
        for total in (ours, theirs):
            total.backward()
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6), name
        of_peer = peer[0].auto_model.embeddings.word_embeddings.weight.grad
        own = lm.token_vectors().grad
        assert own is not None
        torch.testing.assert_close(own[: len(of_peer)], of_peer, rtol=0, atol=1e-7)
        norms = [
            torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
            for model in (lm, peer)
        ]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5), name
