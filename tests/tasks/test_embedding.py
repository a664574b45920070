"""How good vectors are: by the definitions of the measures, in loops."""

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.recipe.spec.objective import Embedding
from lmtool.tasks.build import get_task_class
from lmtool.tasks.embedding import EmbeddingTask, ranking_metrics
from lmtool.tasks.rows import EncodedRow
from lmtool.tokenization.prompt_format import PromptFormat
from tests.reference import contrastive as plain


def unit(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    vectors = np.random.default_rng(seed).normal(size=shape)
    made: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return made


def task(loss: Any, n_texts: int) -> EmbeddingTask:
    spec = Embedding(kind="embedding", loss=loss)
    made: Any = get_task_class(spec, n_texts)
    return cast(EmbeddingTask, made(cast(PromptFormat, None), spec))


def test_rankings_are_judged_as_defined() -> None:
    """Queries with one, two and eleven relevant documents of 30; more queries than are ranked at once."""
    queries, documents = unit(600, 4), unit(30, 4, seed=1)
    rng = np.random.default_rng(2)
    relevant = [set(rng.choice(30, (1, 2, 11)[i % 3], replace=False).tolist()) for i in range(600)]
    found = ranking_metrics(queries, documents, relevant)
    ranks = [
        plain.ranks(query, documents.tolist(), wanted) for query, wanted in zip(queries.tolist(), relevant, strict=True)
    ]
    expected = {f"recall@{k}": [sum(r <= k for r in of) / len(of) for of in ranks] for k in (1, 5, 10)}
    expected |= {"mrr": [1 / of[0] for of in ranks], "ndcg@10": [plain.ndcg(of, 10) for of in ranks]}
    assert found == pytest.approx({name: sum(values) / 600 for name, values in expected.items()})


def rows(*texts: list[list[int]]) -> list[EncodedRow]:
    return [
        EncodedRow(
            i,
            np.array([token for text in row for token in text]),
            is_truncated=False,
            segments=np.repeat(np.arange(len(row)), [len(text) for text in row]),
        )
        for i, row in enumerate(texts)
    ]


def test_texts_that_are_the_same_are_one_query_and_one_document() -> None:
    """A query with two documents has found both when they are the first two."""
    vectors = {1: [1.0, 0.0], 2: [0.0, 1.0], 3: [0.9, 0.1], 4: [0.8, 0.2], 5: [0.1, 0.9]}
    table = [[[1], [3]], [[1], [4]], [[2], [5]], [[2], [5]]]
    read = np.array([[vectors[text[0]] for text in row] for row in table])
    figures = task("ranking", 2).compute_metrics(read, None, rows(*table))
    assert figures == {"recall@1": 0.75, "recall@5": 1.0, "recall@10": 1.0, "mrr": 1.0, "ndcg@10": 1.0}


def test_of_triplets_the_positive_is_to_be_nearer_than_each_other() -> None:
    anchor = [1.0, 0.0]
    read = np.array([[anchor, [0.9, 0.1], [0.5, 0.5], [0.0, 1.0]], [anchor, [0.5, 0.5], [0.0, 1.0], [0.6, 0.4]]])
    table = [[[1], [2], [3], [4]], [[5], [6], [7], [8]]]
    assert task("ranking", 4).compute_metrics(read, None, rows(*table))["accuracy"] == 0.5


def test_cosines_of_scored_pairs_are_correlated_by_rank() -> None:
    read = np.array([[[1.0, 0.0], [x, (1 - x * x) ** 0.5]] for x in (0.1, 0.4, 0.9, 0.7)])
    figures = task("cosent", 2).compute_metrics(read, np.array([0.0, 1.0, 100.0, 2.0]), [])
    assert figures["spearman"] == pytest.approx(1.0)
    assert figures["pearson"] < 0.9


def test_labels_are_those_of_the_nearest_other_row() -> None:
    read = np.array([[[1.0, 0.0]], [[0.99, 0.141]], [[0.0, 1.0]], [[0.141, 0.99]]])
    assert task("labels", 1).compute_metrics(read, np.array([0, 0, 1, 0]), [])["accuracy"] == 0.5
