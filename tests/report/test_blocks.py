"""Matrices as shaded cells."""

from lmtool.report.terminal import shaded


def test_shades():
    assert shaded([[0, 0.001, 0.5, 1]]) == ["  ░░▒▒██"]
    assert shaded([[0, 3, 4]], high=4) == ["  ▓▓██"]
    assert shaded([[0, 0.5], [1, 0.7]], ascii_only=True) == ["  ::", "##**"]
