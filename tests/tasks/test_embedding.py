"""Related texts: which columns of a table they are, when a rule takes a table for one, and how good vectors are."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.objective import Embedding
from lmtool.recipe.spec.text import Data
from lmtool.tasks.build import get_task_class
from lmtool.tasks.embedding import ranking_metrics, with_inferred_or_checked_loss
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns, choose_columns, has_related_texts
from tests.reference import contrastive as plain
from tests.support.errors import refuses

WORDS = ["cat", "dog", "sea", "boat", "rain"]
CLASSES, NUMBERS = ["yes", "no"], ["0.5", "3.25", "1"]


def table(path: Path, texts: str, **columns: list[str]) -> Table:
    """40 rows. texts: names of columns of different texts of several words. columns: their cells in turn."""
    with (path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*texts.split(), *columns])
        for i in range(40):
            prose = (f"{name} about {WORDS[i % 5]} and {i}" for name in texts.split())
            writer.writerow([*prose, *(cells[i % len(cells)] for cells in columns.values())])
    return open_table(str(path / "a.csv"))


@pytest.mark.parametrize(
    ("given", "more", "texts", "label"),
    [
        ("query positive", {"id": ["1"]}, "query positive", None),
        ("anchor negative positive", {}, "anchor positive negative", None),
        ("query passage negative_1 negative_2", {}, "query passage negative_1 negative_2", None),
        ("source target", {}, "source target", None),
        ("de en", {}, "de en", None),
        ("question answer", {"url": ["http://a.b/c"]}, "question answer", None),
        ("left right", {}, "left right", None),
        ("sentence1 sentence2", {"score": NUMBERS}, "sentence1 sentence2", "score"),
        ("text", {"label": CLASSES}, "text", "label"),
    ],
)
def test_columns_by_name(given: str, more: dict[str, list[str]], texts: str, label: str | None, tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, given, **more), kind="related")
    ignored = tuple(name for name in more if name != label)
    assert found == Columns(tuple(texts.split()), label, kind="related", ignored=ignored)


def test_named_columns_are_kept_in_their_order_and_others_told(tmp_path: Path) -> None:
    """A number under an unusual name would say how near texts are."""
    pairs = table(tmp_path, "left right", agreement=NUMBERS)
    told = choose_columns(pairs, kind="related").describe()
    assert told.endswith("ignored: 'agreement'; --label-column names a number that says how similar the texts are")
    named = choose_columns(pairs, Data(text_columns=("right", "left"), label_column="agreement"), kind="related")
    assert named == Columns(("right", "left"), "agreement", kind="related")
    assert "ignored" not in named.describe()
    directed = choose_columns(pairs, Data(source_column="right", target_column="left"), kind="related")
    assert directed == Columns(("right", "left"), kind="related")
    with refuses("data"):  # one text alone relates to nothing
        choose_columns(table(tmp_path, "text", number=["1"]), kind="related")


@pytest.mark.parametrize(
    ("texts", "more", "alone", "scored"),
    [
        ("anchor positive", {}, True, True),
        ("source target", {}, True, True),
        ("left right", {}, True, True),
        ("sentence1 sentence2", {"score": NUMBERS}, False, True),
        # other columns than these are no labels
        ("anchor positive", {"fits": CLASSES}, True, True),
        ("query passage negative_1", {"fits": CLASSES}, True, True),
        ("left right", {"id": [str(i) for i in range(40)]}, True, True),
        ("left right", {"source": ["web"]}, True, True),
        # what trains a classifier stays one
        ("sentence1 sentence2", {"label": CLASSES}, False, False),
        ("sentence1 sentence2", {"label": ["0", "1"]}, False, False),
        ("text", {"label": CLASSES}, False, False),
        ("review", {"kind": ["lost card", "late fee", "new pin", "old pin"]}, False, False),
        ("instruction input output", {}, False, False),
        # of three unnamed texts none is surely the anchor
        ("left right middle", {}, False, False),
    ],
)
def test_when_rows_are_related(
    texts: str, more: dict[str, list[str]], alone: bool, scored: bool, tmp_path: Path
) -> None:
    found = table(tmp_path, texts, **more)
    assert has_related_texts(found, Data(), allow_scores=False) == alone
    assert has_related_texts(found, Data(), allow_scores=True) == scored


@pytest.mark.parametrize(
    ("pair", "label", "cells"),
    [
        ("telegram sentence", "fits", CLASSES),
        ("sentence1 sentence2", "paraphrase", CLASSES),
        ("question answer", "helps", ["0", "1"]),
        ("left right", "agreement", ["0.5", "3.25"]),
    ],
)
def test_a_column_that_may_be_the_label_of_pairs_is_asked_for(
    pair: str, label: str, cells: list[str], tmp_path: Path
) -> None:
    """Whatever the answer, it is taken."""
    found, texts = table(tmp_path, pair, **{label: cells}), tuple(pair.split())
    for requested in (Data(), Data(text_columns=texts)):
        with pytest.raises(DataError, match=f"'{label}'") as asked:
            has_related_texts(found, requested, allow_scores=False)
        for option in (f"--text-column {texts[0]} --text-column {texts[1]} --label-column {label}", "=embedding"):
            assert option in asked.value.fix
    named = Data(text_columns=texts, label_column=label)
    assert not has_related_texts(found, named, allow_scores=False)
    assert choose_columns(found, named) == Columns(texts, label)
    assert choose_columns(found, kind="related").texts == texts


@pytest.mark.parametrize(
    ("texts", "label", "loss"), [(2, None, "ranking"), (4, None, "ranking"), (2, "n", "cosent"), (1, "n", "labels")]
)
def test_the_loss_of_a_table(texts: int, label: str | None, loss: str) -> None:
    columns = Columns(("a", "b", "c", "d")[:texts], label)
    found = with_inferred_or_checked_loss(Embedding(kind="embedding"), columns)
    assert found.loss == with_inferred_or_checked_loss(found, columns).loss == loss


@pytest.mark.parametrize(
    ("loss", "texts", "label"),
    [("triplet", 2, None), ("cosent", 2, None), ("ranking", 2, "n"), ("labels", 2, "n"), ("auto", 3, "n")],
)
def test_a_loss_that_rows_cannot_train_is_refused(loss: str, texts: int, label: str | None) -> None:
    spec = Embedding.model_validate({"kind": "embedding", "loss": loss})
    with refuses("usage"):
        with_inferred_or_checked_loss(spec, Columns(("a", "b", "c")[:texts], label))
    triplet = Embedding(kind="embedding", loss="triplet")
    assert with_inferred_or_checked_loss(triplet, Columns(("a", "b", "c"))).loss == "triplet"


# How good vectors are, by the definitions of the measures, in loops


def unit(n: int, seed: int) -> NDArray[np.float64]:
    vectors_ND = np.random.default_rng(seed).normal(size=(n, 4))
    found: NDArray[np.float64] = vectors_ND / np.linalg.norm(vectors_ND, axis=-1, keepdims=True)
    return found


def test_rankings_are_judged_as_defined() -> None:
    """Queries with one, two and eleven relevant documents of 30; more queries than are ranked at once."""
    queries, documents = unit(600, 0), unit(30, 1)
    rng = np.random.default_rng(2)
    relevant = [set(rng.choice(30, (1, 2, 11)[i % 3], replace=False).tolist()) for i in range(600)]
    found = ranking_metrics(queries, documents, relevant)
    ranks = [
        plain.ranks(query, documents.tolist(), wanted) for query, wanted in zip(queries.tolist(), relevant, strict=True)
    ]
    expected = {f"recall@{k}": [sum(r <= k for r in of) / len(of) for of in ranks] for k in (1, 5, 10)}
    expected |= {"mrr": [1 / of[0] for of in ranks], "ndcg@10": [plain.ndcg(of, 10) for of in ranks]}
    assert found == pytest.approx({name: sum(values) / 600 for name, values in expected.items()})


def figures(loss: Any, vectors: Any, labels: Any = None, tokens: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
    """The metrics of the vectors of texts. tokens: of the texts of each row, one each."""
    spec = Embedding(kind="embedding", loss=loss)
    made: Any = get_task_class(spec, len(vectors[0]))
    rows = [
        EncodedRow(i, np.array(row), is_truncated=False, segments=np.arange(len(row))) for i, row in enumerate(tokens)
    ]
    found: dict[str, Any] = made(None, spec).compute_metrics(np.array(vectors), labels, rows)
    return found


def test_texts_that_are_the_same_are_one_query_and_one_document() -> None:
    """A query with two documents has found both when they are the first two."""
    vectors = {1: [1.0, 0.0], 2: [0.0, 1.0], 3: [0.9, 0.1], 4: [0.8, 0.2], 5: [0.1, 0.9]}
    tokens = [[1, 3], [1, 4], [2, 5], [2, 5]]
    found = figures("ranking", [[vectors[token] for token in row] for row in tokens], tokens=tokens)
    assert found == {"recall@1": 0.75, "recall@5": 1.0, "recall@10": 1.0, "mrr": 1.0, "ndcg@10": 1.0}


def test_of_triplets_the_positive_is_to_be_nearer_than_each_other() -> None:
    anchor = [1.0, 0.0]
    vectors = [[anchor, [0.9, 0.1], [0.5, 0.5], [0.0, 1.0]], [anchor, [0.5, 0.5], [0.0, 1.0], [0.6, 0.4]]]
    assert figures("ranking", vectors, tokens=[[1, 2, 3, 4], [5, 6, 7, 8]])["accuracy"] == 0.5


def test_cosines_are_correlated_by_rank_and_labels_those_of_the_nearest_other_row() -> None:
    pairs = [[[1.0, 0.0], [x, (1 - x * x) ** 0.5]] for x in (0.1, 0.4, 0.9, 0.7)]
    found = figures("cosent", pairs, np.array([0.0, 1.0, 100.0, 2.0]))
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] < 0.9
    near = [[[1.0, 0.0]], [[0.99, 0.141]], [[0.0, 1.0]], [[0.141, 0.99]]]
    assert figures("labels", near, np.array([0, 0, 1, 0]))["accuracy"] == 0.5
