"""Matrices as shaded cells."""

from lmtool.report.terminal import shade_matrix


def test_shades_follow_the_share():
    assert shade_matrix([[0, 0.001, 0.5, 1]]) == ["  ░░▒▒██"]
    assert shade_matrix([[0, 3, 4]], max_value=4) == ["  ▓▓██"]
    assert shade_matrix([[0, 0.5], [1, 0.7]], ascii_only=True) == ["  ::", "##**"]
