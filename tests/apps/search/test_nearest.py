"""Nearest neighbours against a plain loop, sentence-transformers and exhaustive search."""

import numpy as np
import pytest

from lmtool.apps.search import nearest as module
from lmtool.apps.search.nearest import find_near_duplicates, find_nearest_by_cosine
from lmtool.evaluation.embedding import normalize
from tests.reference import search as plain


def vectors(n: int, width: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
@pytest.mark.parametrize("k", [1, 5, 40, 99])
def test_the_ranking_is_that_of_a_loop(monkeypatch, at_once, k):
    monkeypatch.setattr(module, "MAX_SIMILARITIES", at_once)
    rows, queries = vectors(40), vectors(7, seed=1)
    found = list(find_nearest_by_cosine(normalize(rows), normalize(queries), k, np.arange(40)))
    assert len(found) == 7
    for (score_K, row_K), query in zip(found, queries, strict=True):
        wanted = plain.ranking(query.tolist(), rows.tolist(), k)
        assert row_K.tolist() == [row for row, _ in wanted]
        np.testing.assert_allclose(score_K, [score for _, score in wanted], atol=1e-6)


def test_rows_that_may_not_be_found_are_not():
    rows = vectors(30)
    allowed = np.arange(1, 30, 2)
    ((score_K, row_K),) = find_nearest_by_cosine(normalize(rows), normalize(rows[:1]), 4, allowed)
    wanted = plain.ranking(rows[0].tolist(), rows[allowed].tolist(), 4)
    assert row_K.tolist() == [int(allowed[i]) for i, _ in wanted]
    assert score_K[0] < 0.99


def test_a_vector_without_length_stays():
    assert normalize(np.array([[0, 0], [3, 4]], np.float32)).tolist() == [[0, 0], pytest.approx([0.6, 0.8])]


@pytest.mark.parametrize("at_once", [1, 300, 1 << 20])
@pytest.mark.parametrize(("threshold", "n_kept"), [(0.5, 0), (0.7, 0), (0.5, 20), (-1, 0), (2, 0)])
def test_near_duplicates_are_those_of_a_loop(monkeypatch, at_once, threshold, n_kept):
    monkeypatch.setattr(module, "MAX_SIMILARITIES", at_once)
    rows = vectors(60, 4)
    found = list(find_near_duplicates(normalize(rows), threshold, n_kept))
    kept = plain.without_near(rows.tolist(), threshold, n_kept)
    assert [row for row, _, _ in found] == [i for i in range(60) if i not in kept]
    for row, other, similarity in found:
        assert other in kept
        assert other < row
        assert similarity == pytest.approx(plain.cosine(rows[row].tolist(), rows[other].tolist()), abs=1e-6)
        assert similarity >= threshold


def test_no_rows_have_no_near_duplicates():
    assert list(find_near_duplicates(vectors(0), 0.5)) == []
