"""Charts: points lie where their numbers say, and names stay text."""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lmtool.report.charts import CHART_SIZES, HeatMap, HorizontalLine, Line, LineChart, RingMark, needs_log_scale
from lmtool.report.numbers import choose_log_ticks, choose_ticks, format_tick

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
NAME = '<b title="x">&'


def chart(*points: Sequence[tuple[float, float]], **options: Any) -> LineChart:
    """A chart of a line for each list of points."""
    names = {"x": "x", "y": "y", "label": "l"}
    return LineChart([Line(f"line {i}", list(one), i) for i, one in enumerate(points)], **(names | options))


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    """The polylines as lists of pixels."""
    pairs = [[pair.partition(",") for pair in found.split()] for found in re.findall(r'points="([^"]*)"', svg)]
    return [[(float(x), float(y)) for x, _, y in line] for line in pairs]


def number_of(element: ET.Element, name: str) -> float:
    return float(element.get(name, "nan"))


def texts_of(svg: str, **attributes: str) -> list[str]:
    """The texts that have these attributes, such as `text_anchor="end"`."""
    wanted = {name.replace("_", "-"): value for name, value in attributes.items()}.items()
    return [str(text.text) for text in ET.fromstring(svg).iter("text") if wanted <= text.attrib.items()]


def test_points_are_linear_in_their_numbers() -> None:
    """Pixels count downwards."""
    svg = chart([(0, 4.0), (10, 3.0), (30, 1.0)]).svg()
    ((one, two, three),) = points_of(svg)
    assert (three[0] - one[0]) == pytest.approx(3 * (two[0] - one[0]), abs=0.3)
    assert (three[1] - one[1]) == pytest.approx(3 * (two[1] - one[1]), abs=0.3)
    assert three[1] > one[1]
    ends = re.findall(r'data-(?:left|right)="([\d.]+)"', svg)
    assert sorted(map(float, ends)) == [one[0], three[0]]


def test_a_line_is_broken_where_it_has_no_number() -> None:
    svg = chart([(0, 1), (1, 2), (2, math.nan), (3, 2), (4, math.inf)]).svg()
    assert [len(part) for part in points_of(svg)] == [2, 2]


@pytest.mark.parametrize(
    "points", [[], [(0, 0)], [(5, 3)], [(1, math.nan)], [(1, 1e-30), (2, 1e300)], [(1, 7), (2, 7)]]
)
def test_few_or_strange_points_are_drawn(points: list[tuple[float, float]]) -> None:
    drawn = chart(points)
    root = ET.fromstring(replace(drawn, log_y=needs_log_scale(drawn.y_values)).svg())
    assert "nan" not in ET.tostring(root, encoding="unicode").lower()


def test_all_levels_are_in_sight() -> None:
    svg = chart([(0, 5), (1, 4)], levels=[HorizontalLine("limit", 1.0)]).svg()
    (height,) = re.findall(r'viewBox="0 0 \d+ (\d+)', svg)
    (place,) = re.findall(r'class="level" d="M\d+ ([\d.]+)H', svg)
    assert 0 < float(place) < float(height)
    assert "limit" in svg


def test_a_mark_is_a_ring_at_its_point_with_its_name_once() -> None:
    marks = [RingMark("best", (10, 3.0)), RingMark("best", (20, 1.0), 1)]
    svg = chart([(0, 4.0), (10, 3.0), (20, 5.0)], [(0, 2.0), (20, 1.0)], marks=marks).svg()
    one, two = points_of(svg)
    rings = [(float(x), float(y)) for x, y in re.findall(r'<circle class="mark" cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert rings == [one[1], two[1]]
    assert texts_of(svg).count("best") == 1


def test_a_chart_for_a_page_has_two_widths_of_the_same_lines() -> None:
    lines = [Line(f"a line with a long name {i}", [(0, i), (7, i + 1)], i) for i in range(9)]
    wide, narrow = ET.fromstring(f"<p>{LineChart(lines, x='x', y='y', label='l').page_svg()}</p>")
    assert number_of(wide, "width") > 2 * number_of(narrow, "width")
    for svg in (wide, narrow):
        assert len(list(svg.iter("polyline"))) == 9
        assert svg.get("aria-label") == "l"
        for x, y in points_of(ET.tostring(svg, encoding="unicode"))[0]:
            assert 0 < x < number_of(svg, "width")
            assert 0 < y < number_of(svg, "height")
        named = [text for text in svg.iter("text") if "line" in str(text.text)]
        assert max(float(one.get("x", 0)) + 7.2 * len(str(one.text)) for one in named) <= number_of(svg, "width")


def test_whole_numbers_have_whole_ticks() -> None:
    assert texts_of(chart([(21, 1.5), (22, 2.5)]).svg(), text_anchor="middle")[:3] == ["21", "22", "x"]


CHARACTER = 6.6
"""Pixels of a character of a number on an axis."""


@pytest.mark.parametrize("size", CHART_SIZES)
@pytest.mark.parametrize("last", [3, 9_999, 2_345_678, 1e300])
@pytest.mark.parametrize("low", [-12_345.0, 0.25])
@pytest.mark.parametrize("log", [False, True])
def test_numbers_on_axes_fit_and_do_not_touch(size: Any, last: float, low: float, log: bool) -> None:
    """The name of the vertical axis is written upwards beside its numbers."""
    points = [(x * last, low * (1 + x)) for x in (0.001, 0.002, 0.003, 0.5, 0.9, 0.95, 1)]
    svg = ET.fromstring(chart(points, log_x=log).svg(size))
    below: list[tuple[float, float]] = []
    left: list[tuple[float, float]] = []
    for text in svg.iter("text"):
        if text.get("class") == "tick":
            place = (number_of(text, "x"), CHARACTER * len(str(text.text)))
            (left if text.get("text-anchor") == "end" else below).append(place)
    assert len(below) > 1 < len(left)
    assert all(end - size >= 20 for end, size in left)
    assert min(middle - size / 2 for middle, size in below) >= 0
    assert max(middle + size / 2 for middle, size in below) <= number_of(svg, "width")
    assert all(a + first / 2 < b - second / 2 for (a, first), (b, second) in pairwise(below))


def test_numbers_below_the_pictures_of_the_pages_fit() -> None:
    for path in PICTURES.glob("*.svg"):
        svg = ET.parse(path).getroot()
        for text in svg.iter("{http://www.w3.org/2000/svg}text"):
            if text.get("class") == "tick" and text.get("text-anchor") == "middle":
                end = number_of(text, "x") + CHARACTER * len(str(text.text)) / 2
                assert end <= number_of(svg, "width"), path


@pytest.mark.parametrize("size", CHART_SIZES)
def test_equal_factors_are_equally_far_apart_on_a_logarithmic_axis(size: Any) -> None:
    svg = chart([(0, 8.0), (10, 4.0), (20, 0.5)], log_y=True).svg(size)
    ((one, two, three),) = points_of(svg)
    assert (three[1] - two[1]) == pytest.approx(3 * (two[1] - one[1]), abs=0.3)
    assert texts_of(svg, text_anchor="end") == ["0.5", "1", "2", "5"]


@pytest.mark.parametrize(
    ("values", "is_spread"), [([], False), ([3], False), ([2, 4, 7], False), ([2, 8], True), ([0, 9], False)]
)
def test_an_axis_is_logarithmic_where_values_differ_by_a_factor_of_four(values: list[float], is_spread: bool) -> None:
    assert needs_log_scale(values) is is_spread


def test_shades_follow_the_numbers_and_a_table_has_them() -> None:
    heat = HeatMap([[0.0, 0.5], [1.0, 0.25]], ["r1", "r2"], ["c1", "c2"], label="l")
    shaded = [rect for rect in ET.fromstring(heat.svg()).iter("rect") if rect.get("fill-opacity")]
    found = {(rect.get("y"), rect.get("x")): number_of(rect, "fill-opacity") for rect in shaded}
    assert found == {("0", "1"): 0.5, ("1", "0"): 1.0, ("1", "1"): 0.25}
    figure = HeatMap([[0.5, 1]], ["r"], ["a", "b"], label="l").figure("Numbers", "", [[0.125, 2]])
    root = ET.fromstring(figure[figure.index("<table") : figure.index("</table>") + len("</table>")])
    assert [cell.text for cell in root.iter("th")] == [None, "a", "b", "r"]
    assert [cell.text for cell in root.iter("td")] == ["0.125", "2"]


def test_names_are_text() -> None:
    lines = LineChart([Line(NAME, [(0, 1)]), Line("b", [(0, 1)])], x=NAME, y=NAME, label=NAME)
    heat = HeatMap([[1]], [NAME], [NAME], label=NAME, x=NAME, y=NAME)
    for root in (ET.fromstring(lines.svg()), ET.fromstring(heat.svg())):
        assert not list(root.iter("b"))
        assert root.get("aria-label") == NAME


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 3e6), (-2, 7), (0.0001, 0.00013), (12, 12.5)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = choose_ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low <= value <= high for value in found)
    steps = {float(f"{b - a:.6g}") for a, b in pairwise(found)}
    assert len(steps) == 1
    assert f"{steps.pop():e}"[0] in "125"


@pytest.mark.parametrize(
    ("low", "high"), [(0.11, 9), (1, 4), (0.5, 0.51), (1e-9, 1e9), (3, 2e4), (1e-320, 1e300), (9.1, 9.9)]
)
@pytest.mark.parametrize("most", [5, 8])
def test_logarithmic_ticks_are_few_and_inside(low: float, high: float, most: int) -> None:
    found = choose_log_ticks(math.log10(low), math.log10(high), most)
    assert 2 <= len(found) <= most
    assert all(low * 0.999 <= value <= high * 1.001 for value in found)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (1500, "1,500"), (15000, "15k"), (2.5e6, "2.5M"), (3e-4, "3e-4"), (-2e9, "-2G")],
)
def test_axis_numbers_are_short(value: float, text: str) -> None:
    assert format_tick(value) == text
