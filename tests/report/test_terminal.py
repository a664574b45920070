"""Lines in the terminal: as wide as asked, where their numbers say, and plain where asked."""

import math

import pytest
from rich.cells import cell_len

from lmtool.report.terminal import ASCII_MARKS, plot_lines, shade_matrix

FALLING = [(float(x), 10.0 - x) for x in range(10)]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("width", [24, 80])
def test_rows_are_as_wide_as_asked(width: int, ascii_only: bool) -> None:
    names = ["training loss", "a name that is much longer than the terminal is wide 模型" * 3]
    rows = plot_lines([(name, FALLING) for name in names], width, ascii_only=ascii_only)
    widths = [cell_len(row.plain) for row in rows]
    assert max(widths) <= width
    assert widths[0] == width
    assert len(rows) == 12 + 2


def test_too_narrow_or_empty_is_nothing() -> None:
    assert plot_lines([("a", FALLING)], 23) == []
    assert plot_lines([], 80) == []
    assert plot_lines([("a", [(1.0, math.nan)])], 80) == []


def test_ascii_has_no_other_character_and_no_style() -> None:
    rows = plot_lines([("a", FALLING), ("b", [(0.0, 3.0), (9.0, 3.0)])], 60, ascii_only=True)
    assert all(row.plain.isascii() for row in rows)
    assert not any(row.spans or row.style for row in rows)


def test_a_falling_line_falls() -> None:
    rows = [row.plain for row in plot_lines([("a", FALLING)], 60, height=10, ascii_only=True)[:10]]
    starts = [row.index("|") + 1 + row[row.index("|") + 1 :].index(ASCII_MARKS[0]) for row in rows]
    assert starts == sorted(starts)
    assert rows[0][starts[0] - 1] == "|"  # the highest at the left edge
    assert rows[-1].rstrip()[-1] == ASCII_MARKS[0]
    assert len(rows[-1].rstrip()) == 60


def test_braille_dots_are_those_of_the_line() -> None:
    """A horizontal line at the top sets the upper dots of each character of the first row."""
    top = plot_lines([("a", [(0.0, 1.0), (1.0, 1.0)]), ("b", [(0.0, 0.0)])], 40, height=4)[0]
    body = top.plain.split("│")[1]
    assert body == chr(0x2800 + 0x01 + 0x08) * len(body)


def test_one_point_and_equal_values_are_drawn() -> None:
    for points in ([(3.0, 3.0)], [(0.0, 5.0), (9.0, 5.0)], [(0.0, 0.0), (1.0, 0.0)]):
        assert any(ASCII_MARKS[0] in row.plain for row in plot_lines([("a", points)], 40, ascii_only=True)[:-1])


def test_shades_follow_the_share() -> None:
    assert shade_matrix([[0, 0.001, 0.5, 1]]) == ["  ░░▒▒██"]
    assert shade_matrix([[0, 0.75, 1]]) == ["  ▓▓██"]
    assert shade_matrix([[0, 0.5], [1, 0.7]], ascii_only=True) == ["  ::", "##**"]
