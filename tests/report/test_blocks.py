"""Pictures of characters."""

import math

from lmtool.report.blocks import plotted, shaded
from lmtool.report.charts import Line


def test_shades():
    assert shaded([[0, 0.001, 0.5, 1]]) == ["  ░░▒▒██"]
    assert shaded([[0, 3, 4]], high=4) == ["  ▓▓██"]


def test_a_plot_has_its_points_where_they_are():
    rows = plotted(
        [Line("up", [(0, 0), (1, 5), (2, 10)]), Line("flat", [(0, 10), (2, math.inf)])], x="t", y="f", width=5, height=3
    )
    assert rows[0] == "f"
    assert rows[1:4] == ["10 │x   o", "   │  o", " 0 │o"]
    assert rows[4] == "   └─────"
    assert rows[5].split() == ["0", "t", "2"]
    assert [row.strip() for row in rows[6:]] == ["o up", "x flat"]


def test_a_plot_of_nothing_and_of_one_point():
    assert plotted([Line("none", [(0, math.nan)])], x="t", y="f") == []
    assert any("o" in row for row in plotted([Line("one", [(3, 3)])], x="t", y="f"))
