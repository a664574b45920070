"""The map of a word and its neighbours."""

from typing import Any

import numpy as np
import pytest

from lmtool.evaluation.neighbors import Neighbor, Neighbors
from lmtool.report import neighbors as report


def test_a_map_fills_its_grid_with_its_middle_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both axes have one scale, and the first coordinate goes to the right, the second upwards."""
    monkeypatch.setattr(report, "project_neighbors", lambda *_: [(10.0, 30.0), (14.0, 32.0), (12.0, 28.0)])
    nearest = [Neighbor(word, 0.5) for word in ("hen", "egg")]
    loaded: Any = None  # not needed to draw
    neighbors = Neighbors("hut", nearest, loaded, np.zeros((3, 2), dtype=np.float32))
    found = report.format_neighbor_map_lines(neighbors, "pca", 21)
    lines = [str(line) for line in found][: report.TERMINAL_LINES]
    assert {mark: (lines.index(line), line.index(mark)) for line in lines for mark in line.split()} == {
        "1": (0, 20),
        "*": (round(0.5 * (report.TERMINAL_LINES - 1)), 0),
        "2": (report.TERMINAL_LINES - 1, 10),
    }
