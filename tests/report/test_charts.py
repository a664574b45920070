"""Charts: points lie where their numbers say, and names stay text."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lmtool.report.charts import CHART_SIZES, HeatMap, HorizontalLine, Line, LineChart, RingMark, needs_log_scale
from lmtool.report.numbers import choose_log_ticks, choose_ticks, format_tick

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
NAME = '<b title="x">&'


def points_of(svg):
    """The polylines as lists of pixels."""
    return [
        [tuple(map(float, pair.split(","))) for pair in found.split()] for found in re.findall(r'points="([^"]*)"', svg)
    ]


def test_points_are_linear_in_their_numbers():
    numbers = [(0, 4.0), (10, 3.0), (30, 1.0)]
    svg = LineChart([Line("a", numbers)], x="x", y="y", label="l").svg()
    ((one, two, three),) = points_of(svg)
    assert (three[0] - one[0]) == pytest.approx(3 * (two[0] - one[0]), abs=0.3)
    assert (three[1] - one[1]) == pytest.approx(3 * (two[1] - one[1]), abs=0.3)
    assert three[1] > one[1]  # pixels count downwards
    left, right = (float(re.search(rf'data-{side}="([\d.]+)"', svg)[1]) for side in ("left", "right"))
    assert (one[0], three[0]) == (left, right)


def test_a_line_is_broken_where_it_has_no_number():
    svg = LineChart([Line("a", [(0, 1), (1, 2), (2, math.nan), (3, 2), (4, math.inf)])], x="x", y="y", label="l").svg()
    assert [len(part) for part in points_of(svg)] == [2, 2]


@pytest.mark.parametrize(
    "points", [[], [(0, 0)], [(5, 3)], [(1, math.nan)], [(1, 1e-30), (2, 1e300)], [(1, 7), (2, 7)]]
)
def test_few_or_strange_points_are_drawn(points):
    chart = LineChart([Line("a", points)], x="x", y="y", label="l")
    root = ET.fromstring(replace(chart, log_y=needs_log_scale(chart.y_values)).svg())
    assert "nan" not in ET.tostring(root, encoding="unicode").lower()


def test_all_levels_are_in_sight():
    svg = LineChart([Line("a", [(0, 5), (1, 4)])], x="x", y="y", label="l", levels=[HorizontalLine("limit", 1.0)]).svg()
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)', svg)[1])
    (place,) = re.findall(r'class="level" d="M\d+ ([\d.]+)H', svg)
    assert 0 < float(place) < height
    assert "limit" in svg


def test_a_mark_is_a_ring_at_its_point_with_its_name_once():
    lines = [Line("a", [(0, 4.0), (10, 3.0), (20, 5.0)]), Line("b", [(0, 2.0), (20, 1.0)], 1)]
    svg = LineChart(
        lines, x="x", y="y", label="l", marks=[RingMark("best", (10, 3.0)), RingMark("best", (20, 1.0), 1)]
    ).svg()
    one, two = points_of(svg)
    rings = [(float(x), float(y)) for x, y in re.findall(r'<circle class="mark" cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert rings == [one[1], two[1]]
    texts = [element.text for element in ET.fromstring(svg).iter("text")]
    assert texts.count("best") == 1


def test_a_chart_for_a_page_has_two_widths_of_the_same_lines():
    lines = [Line(f"a line with a long name {i}", [(0, i), (7, i + 1)], i) for i in range(9)]
    wide, narrow = ET.fromstring(f"<p>{LineChart(lines, x='x', y='y', label='l').page_svg()}</p>")
    assert int(wide.get("width")) > 2 * int(narrow.get("width"))
    for svg in (wide, narrow):
        assert len(list(svg.iter("polyline"))) == 9
        assert svg.get("aria-label") == "l"
        for x, y in points_of(ET.tostring(svg, encoding="unicode"))[0]:
            assert 0 < x < int(svg.get("width"))
            assert 0 < y < int(svg.get("height"))
        rooms = [float(text.get("x", 0)) + 7.2 * len(text.text) for text in svg.iter("text") if "line" in text.text]
        assert max(rooms) <= int(svg.get("width"))


def test_whole_numbers_have_whole_ticks():
    svg = LineChart([Line("a", [(21, 1.5), (22, 2.5)])], x="x", y="y", label="l").svg()
    below = [text.text for text in ET.fromstring(svg).iter("text") if text.get("text-anchor") == "middle"]
    assert below[:2] == ["21", "22"]
    assert below[2] == "x"


@pytest.mark.parametrize("size", CHART_SIZES)
@pytest.mark.parametrize("last", [3, 3_000, 9_999, 123_456, 2_345_678, 1e300])
@pytest.mark.parametrize("low", [-1e-5, -12_345.0, 0.25])
@pytest.mark.parametrize("log", [False, True])
def test_numbers_on_axes_fit_and_do_not_touch(size, last, low, log):
    points = [(x * last, low * (1 + x)) for x in (0.001, 0.002, 0.003, 0.5, 0.9, 0.95, 1)]
    svg = ET.fromstring(LineChart([Line("a", points)], x="steps", y="loss", label="l", log_x=log).svg(size))
    width, wide = float(svg.get("width")), 6.6  # pixels of a character at 11 pixels
    below, left = [], []
    for text in svg.iter("text"):
        if text.get("class") == "tick":
            (left if text.get("text-anchor") == "end" else below).append((float(text.get("x")), wide * len(text.text)))
    assert len(below) > 1 < len(left)
    assert all(end - size >= 20 for end, size in left)  # the name of the axis is written upwards beside them
    assert min(middle - size / 2 for middle, size in below) >= 0
    assert max(middle + size / 2 for middle, size in below) <= width
    assert all(a + first / 2 < b - second / 2 for (a, first), (b, second) in pairwise(below))


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_numbers_below_the_pictures_of_the_pages_fit(path):
    svg = ET.parse(path).getroot()
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        if text.get("class") == "tick" and text.get("text-anchor") == "middle":
            assert float(text.get("x")) + 6.6 * len(text.text) / 2 <= float(svg.get("width"))


@pytest.mark.parametrize("size", CHART_SIZES)
def test_equal_factors_are_equally_far_apart_on_a_logarithmic_axis(size):
    chart = LineChart([Line("a", [(0, 8.0), (10, 4.0), (20, 0.5)])], x="x", y="y", label="l", log_y=True)
    ((one, two, three),) = points_of(chart.svg(size))
    assert (three[1] - two[1]) == pytest.approx(3 * (two[1] - one[1]), abs=0.3)
    labels = [text.text for text in ET.fromstring(chart.svg(size)).iter("text") if text.get("text-anchor") == "end"]
    assert labels == ["0.5", "1", "2", "5"]


@pytest.mark.parametrize(
    ("values", "is_spread"),
    [([], False), ([3], False), ([2, 4, 7], False), ([2, 8], True), ([0, 9], False), ([-9, -1], False)],
)
def test_an_axis_is_logarithmic_where_values_differ_by_a_factor_of_four(values, is_spread):
    assert needs_log_scale(values) is is_spread


def test_shades_follow_the_numbers():
    values = [[0.0, 0.5], [1.0, 0.25]]
    root = ET.fromstring(HeatMap(values, ["r1", "r2"], ["c1", "c2"], label="l").svg())
    found = {
        (int(rect.get("y")), int(rect.get("x"))): float(rect.get("fill-opacity"))
        for rect in root.iter("rect")
        if rect.get("fill-opacity")
    }
    assert found == {(0, 1): 0.5, (1, 0): 1.0, (1, 1): 0.25}


def test_the_table_of_a_heat_map_has_its_numbers():
    figure = HeatMap([[0.5, 1]], ["r"], ["a", "b"], label="l").figure("Numbers", "", [[0.125, 2]])
    root = ET.fromstring(figure[figure.index("<table") : figure.index("</table>") + len("</table>")])
    assert [cell.text for cell in root.iter("th")] == [None, "a", "b", "r"]
    assert [cell.text for cell in root.iter("td")] == ["0.125", "2"]


def test_names_are_text():
    drawn = [
        LineChart([Line(NAME, [(0, 1)]), Line("b", [(0, 1)])], x=NAME, y=NAME, label=NAME).svg(),
        HeatMap([[1]], [NAME], [NAME], label=NAME, x=NAME, y=NAME).svg(),
    ]
    for svg in drawn:
        root = ET.fromstring(svg)
        assert not list(root.iter("b"))
        assert root.get("aria-label") == NAME


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 3e6), (-2, 7), (0.0001, 0.00013), (12, 12.5)])
def test_ticks_are_few_round_and_inside(low, high):
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
def test_logarithmic_ticks_are_few_and_inside(low, high, most):
    found = choose_log_ticks(math.log10(low), math.log10(high), most)
    assert 2 <= len(found) <= most
    assert all(low * 0.999 <= value <= high * 1.001 for value in found)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (1500, "1,500"), (15000, "15k"), (2.5e6, "2.5M"), (3e-4, "3e-4"), (-2e9, "-2G")],
)
def test_axis_numbers_are_short(value, text):
    assert format_tick(value) == text
