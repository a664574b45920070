"""Points in the plane, against numpy's covariance."""

from typing import Any

import numpy as np
import pytest

from lmtool.evaluation.neighbors import project_to_plane


def test_the_axes_are_the_principal_components() -> None:
    vectors = (np.random.default_rng(0).normal(size=(9, 5)) * [3, 1, 2, 0.5, 0.1]).astype(np.float32)
    points = project_to_plane(vectors, "pca")
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    for column, axis in zip(points.T, (axes[:, -1], axes[:, -2]), strict=True):
        along = centred @ axis
        assert np.allclose(column, along, atol=1e-4) or np.allclose(column, -along, atol=1e-4)
        assert column[np.abs(column).argmax()] > 0


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("vectors", [np.eye(4, 1, dtype=np.float32), np.ones((5, 3), dtype=np.float32)])
def test_few_and_equal_points_are_placed(method: Any, vectors: Any) -> None:
    points = project_to_plane(vectors, method)
    assert points.shape == (len(vectors), 2)
    assert np.isfinite(points).all()


def test_tsne_keeps_clusters_apart() -> None:
    rng = np.random.default_rng(1)
    vectors = np.concatenate([rng.normal(size=(8, 6)), rng.normal(size=(8, 6)) + 20]).astype(np.float32)
    points = project_to_plane(vectors, "tsne")
    assert np.array_equal(points, project_to_plane(vectors, "tsne"))
    own, other = points[:8].mean(0), points[8:].mean(0)
    assert (np.linalg.norm(points[:8] - own, axis=1) < np.linalg.norm(points[:8] - other, axis=1)).all()
