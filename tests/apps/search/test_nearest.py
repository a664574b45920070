"""Nearest neighbours against a plain loop and exhaustive search."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.apps.search import nearest as module
from lmtool.apps.search.nearest import find_near_duplicates, find_nearest_by_cosine
from lmtool.evaluation.embedding import normalize
from tests.reference import search as plain


def vectors(n: int, width: int = 8, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
@pytest.mark.parametrize("k", [1, 5, 99])
@pytest.mark.parametrize("step", [1, 2])
def test_the_ranking_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch, at_once: int, k: int, step: int) -> None:
    """Of the rows that may be found."""
    monkeypatch.setattr(module, "MAX_SIMILARITIES", at_once)
    rows, queries, allowed = vectors(40), vectors(7, seed=1), np.arange(0, 40, step)
    found = list(find_nearest_by_cosine(normalize(rows), normalize(queries), k, allowed))
    for (score_K, row_K), query in zip(found, queries, strict=True):
        wanted = plain.ranking(query.tolist(), rows[allowed].tolist(), k)
        assert row_K.tolist() == [int(allowed[row]) for row, _ in wanted]
        np.testing.assert_allclose(score_K, [score for _, score in wanted], atol=1e-6)


def test_a_vector_without_length_stays() -> None:
    assert normalize(np.array([[0, 0], [3, 4]], np.float32)).tolist() == [[0, 0], pytest.approx([0.6, 0.8])]


@pytest.mark.parametrize("at_once", [1, 300, 1 << 20])
@pytest.mark.parametrize(
    ("n", "threshold", "n_kept"), [(60, 0.5, 0), (60, 0.5, 20), (60, -1, 0), (60, 2, 0), (0, 0.5, 0)]
)
def test_near_duplicates_are_those_of_a_loop(
    monkeypatch: pytest.MonkeyPatch, at_once: int, n: int, threshold: float, n_kept: int
) -> None:
    monkeypatch.setattr(module, "MAX_SIMILARITIES", at_once)
    rows = vectors(n, 4)
    found = list(find_near_duplicates(normalize(rows), threshold, n_kept))
    kept = plain.without_near(rows.tolist(), threshold, n_kept)
    assert [row for row, _, _ in found] == [i for i in range(n) if i not in kept]
    for row, other, similarity in found:
        assert other in kept
        assert other < row
        assert similarity == pytest.approx(plain.cosine(rows[row].tolist(), rows[other].tolist()), abs=1e-6)
        assert similarity >= threshold
