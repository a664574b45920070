"""Points in the plane, against numpy's covariance."""

import numpy as np
import pytest

from lmtool.evaluation.neighbors import project_to_plane


def test_principal_components():
    vectors = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32) * [3, 1, 2, 0.5, 0.1]
    points = project_to_plane(vectors.astype(np.float32), "pca")
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    for column, axis in enumerate((axes[:, -1], axes[:, -2])):
        along = centred @ axis
        assert np.allclose(points[:, column], along, atol=1e-4) or np.allclose(points[:, column], -along, atol=1e-4)
        assert points[np.abs(points[:, column]).argmax(), column] > 0


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_maps_of_few_and_of_equal_points(method):
    for vectors in (np.eye(4, 1, dtype=np.float32), np.ones((5, 3), dtype=np.float32)):
        points = project_to_plane(vectors, method)
        assert points.shape == (len(vectors), 2)
        assert np.isfinite(points).all()


def test_tsne_keeps_clusters_apart():
    rng = np.random.default_rng(1)
    vectors = np.concatenate([rng.normal(size=(8, 6)), rng.normal(size=(8, 6)) + 20]).astype(np.float32)
    points = project_to_plane(vectors, "tsne")
    assert np.array_equal(points, project_to_plane(vectors, "tsne"))
    middle = points[:8].mean(0), points[8:].mean(0)
    assert all(np.linalg.norm(p - middle[0]) < np.linalg.norm(p - middle[1]) for p in points[:8])
