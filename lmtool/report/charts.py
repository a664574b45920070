"""Charts as SVG that adapts to its page: colours for dark and light, width, and the table that the pointer reads."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup
from rich.cells import cell_len

from lmtool.report.numbers import choose_log_ticks, choose_ticks, find_nonempty_range, format_tick
from lmtool.report.page import N_COLOURS, TableCell, escape_controls, figure, read_asset, render, table

CHART_SIZES = {"wide": (900, 340), "narrow": (420, 290), "": (560, 300)}
"""Width and height in pixels of a line chart without its legend: on a wide page, on a narrow page, and by itself."""

LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 40
"""Margins in pixels; those at the sides grow where numbers on the axes need it."""

LOG_SCALE_RATIO = 4
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

GREY_COLOUR = 7
"""Colour of marks that do not belong to one line."""

CHARACTER_PIXELS = 7.2
"""Mean width of a character of the labels; a wide one takes twice as much."""

Point = tuple[float, float]


class Line(NamedTuple):
    """A line of a chart. points: (x, y), x ascending. colour: index of one of N_COLOURS."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    pale: bool = False

    @property
    def css_class(self) -> str:
        """Returns the CSS classes of the path."""
        return "path" + " dash" * self.dashed + " pale" * self.pale

    @property
    def segments(self) -> list[list[Point]]:
        """Returns runs of points with a finite y. A single point is doubled, which draws a dot by its round ends."""
        runs = groupby(self.points, lambda point: math.isfinite(point[1]))
        segments = [list(points) for is_finite, points in runs if is_finite]
        return [segment if len(segment) > 1 else segment * 2 for segment in segments]


class HorizontalLine(NamedTuple):
    """A horizontal line across a chart."""

    name: str
    y: float
    colour: int = GREY_COLOUR


class RingMark(NamedTuple):
    """A ring around a point of a line; several rings may share a name."""

    name: str
    point: Point
    colour: int = 0


class Axis(NamedTuple):
    """An axis that maps scaled values from `low` to `high` to pixels from `start` to `stop`. ticks: values shown."""

    low: float
    high: float
    start: float
    stop: float
    ticks: Sequence[float]
    scale: Callable[[float], float] = float

    def pixel(self, value: float) -> str:
        """Returns the pixel of a value, clamped to the axis."""
        inside = min(max(self.scale(value), self.low), self.high)
        return f"{self.start + (inside - self.low) / (self.high - self.low) * (self.stop - self.start):.1f}"


def needs_log_scale(values: Sequence[float]) -> bool:
    """Returns whether all values are above 0 and the largest is LOG_SCALE_RATIO times the smallest."""
    return min(values, default=0.0) > 0 and max(values) >= LOG_SCALE_RATIO * min(values)


def to_standalone_svg(picture: Markup) -> str:
    """Returns a picture as an SVG file of its own, with the styles that it needs."""
    head, mark, rest = str(picture).partition(">")
    size = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    # the page that shows it may have another background than the reader's colour scheme
    style = read_asset("charts.css") + "svg.picture { background: var(--paper); }\n"
    return f"{size}{mark}\n<style>{escape(style, quote=False)}</style>{rest}\n"


@dataclass(frozen=True)
class LineChart:
    """A chart of lines. x, y: names of the axes. label: describes the picture to those who do not see it.

    x_column: column of the figure's table that holds x.
    y_range: by default the range of the points, marks and levels.
    diagonal: also draws y = x.
    log_x: x is positive and has a logarithmic scale, with ticks at its values.
    log_y: y is positive and has a logarithmic scale.
    """

    lines: Sequence[Line]
    x: str
    y: str
    label: str
    levels: Sequence[HorizontalLine] = ()
    marks: Sequence[RingMark] = ()
    x_column: int = 0
    y_range: tuple[float, float] | None = None
    diagonal: bool = False
    log_x: bool = False
    log_y: bool = False

    @property
    def has_lines(self) -> bool:
        """Returns whether any line has two points."""
        return any(len(line.points) > 1 for line in self.lines)

    @property
    def _points(self) -> list[Point]:
        return [point for line in self.lines for point in line.points] + [mark.point for mark in self.marks]

    @property
    def y_values(self) -> list[float]:
        """Returns all finite values of y, with those of the levels."""
        return [y for _, y in self._points if math.isfinite(y)] + [level.y for level in self.levels]

    def page_svg(self) -> Markup:
        """Renders the chart twice; the page shows the one that suits its width."""
        return Markup("").join((self.svg("wide"), self.svg("narrow")))

    def _repr_svg_(self) -> str:
        """Renders the chart for notebooks."""
        return to_standalone_svg(self.svg())

    def svg(self, size_name: str = "") -> Markup:
        """Renders the chart in one of `CHART_SIZES`."""
        width, height = CHART_SIZES[size_name]
        xs = [x for x, _ in self._points]
        scaled, scaled_y = (math.log10 if is_log else float for is_log in (self.log_x, self.log_y))
        low_x, high_x = find_nonempty_range([scaled(x) for x in xs])
        if self.y_range is not None:
            low_y, high_y = self.y_range
        else:
            low_y, high_y = find_nonempty_range([scaled_y(y) for y in self.y_values])
            room = 0.04 * (high_y - low_y)
            # a range that begins near 0 begins at 0
            low_y = 0.0 if not self.log_y and 0 <= low_y < room * 4 else low_y - room
            high_y += room
        y_ticks = (choose_log_ticks if self.log_y else choose_ticks)(low_y, high_y, 8)
        # 26 pixels for the name of the axis and the space around it
        left = max([LEFT, *(26 + math.ceil(_estimate_pixels(format_tick(tick))) for tick in y_ticks)])
        legend = _lay_out_legend(self, width)
        top = TOP + (18 * (legend[-1].row + 1) if legend else 0)
        bottom = top + height - TOP - BOTTOM
        if self.log_x:
            x_ticks = sorted(set(xs))
        else:
            x_ticks = choose_ticks(low_x, high_x, (width - left - RIGHT) // 80)  # pixels for each number
            whole_only = all(x == int(x) for x in xs)
            x_ticks = [tick for tick in x_ticks if not whole_only or tick == int(tick)]
        right = width - max([RIGHT, *(math.ceil(_estimate_pixels(format_tick(tick)) / 2) for tick in x_ticks[-1:])])
        across = Axis(low_x, high_x, left, right, x_ticks, scaled)
        across = across._replace(ticks=_drop_overlapping_ticks(across))
        down = Axis(low_y, high_y, bottom, top, y_ticks, scaled_y)
        sizes = {"size": size_name, "width": width, "height": bottom + BOTTOM}
        return render("lines.svg", chart=self, across=across, down=down, legend=legend, **sizes)


class ShadedCellRange(NamedTuple):
    """Neighbouring cells of a row with the same shade. shade: share of the darkest, for CSS."""

    first_cell: int
    n_cells: int
    shade: str


@dataclass(frozen=True)
class HeatMap:
    """A matrix of numbers not below zero as shaded cells.

    values: by row.
    rows, columns: their names.
    label: describes the picture to those who do not see it.
    max_value: value of the darkest cell; by default the largest value.
    cell_pixels: width and height of a cell.
    x, y: names of the axes.
    show_names: shows the names of rows and columns, shortened to 18 characters.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    max_value: float | None = None
    cell_pixels: int = 18
    x: str = ""
    y: str = ""
    show_names: bool = True

    def _repr_svg_(self) -> str:
        """Renders the chart for notebooks."""
        return to_standalone_svg(self.svg())

    def svg(self) -> Markup:
        """Renders the picture."""
        max_value = max(map(max, self.values), default=0.0) if self.max_value is None else self.max_value
        rows, columns = (
            [_shorten_name(name, 18) for name in names] if self.show_names else []
            for names in (self.rows, self.columns)
        )
        left, top = (
            8 + (18 if axis_name else 0) + math.ceil(max(map(_estimate_pixels, names), default=0.0))
            for axis_name, names in ((self.y, rows), (self.x, columns))
        )
        sizes = {"left": left, "top": top, "max_value": max_value}
        return render("heat.svg", chart=self, rows=rows, columns=columns, **sizes)

    def list_shaded_cell_ranges(self, row: Sequence[float], max_value: float) -> list[ShadedCellRange]:
        """Returns the ranges of equally shaded cells in a row, except blank ones."""
        shares = [min(1.0, value / max_value) if max_value > 0 else 0.0 for value in row]
        shades = [f"{share:.3f}".rstrip("0").rstrip(".") if share >= 0.005 else "" for share in shares]
        groups = [list(cells) for _, cells in groupby(range(len(row)), shades.__getitem__)]
        return [ShadedCellRange(cells[0], len(cells), shades[cells[0]]) for cells in groups if shades[cells[0]]]

    def figure(self, caption: str, row_names_header: str, numbers: Sequence[Sequence[float]] | None = None) -> Markup:
        """Renders the picture with a table of its values.

        row_names_header: of the column of row names. numbers: values for the table instead of those of the picture.
        """
        rows: list[list[TableCell]]
        rows = [[name, *row] for name, row in zip(self.rows, numbers or self.values, strict=True)]
        return figure(self.svg(), caption, table([row_names_header, *self.columns], rows, row_headers=True))


class _LegendEntry(NamedTuple):
    """A name of the legend with its place. css_class: that of the path that it names, or "mark"."""

    name: str
    colour: int
    css_class: str
    x: float
    row: int


def _lay_out_legend(chart: LineChart, width: int) -> list[_LegendEntry]:
    """Places the names of lines, levels and marks in rows of the legend; returns none for a single line."""
    named = [(line.name, line.colour, line.css_class) for line in chart.lines if line.points]
    named += [(level.name, level.colour, "level") for level in chart.levels]
    rings: dict[str, set[int]] = {}
    for mark in chart.marks:
        rings.setdefault(mark.name, set()).add(mark.colour)
    named += [(name, min(colours) if len(colours) == 1 else GREY_COLOUR, "mark") for name, colours in rings.items()]
    if len(named) < 2:
        return []
    entries: list[_LegendEntry] = []
    right, row = float(LEFT), 0
    for name, colour, drawn in named:
        shown = _shorten_name(name, int((width - LEFT - 44) / CHARACTER_PIXELS))
        wide = 30 + _estimate_pixels(shown) + 14
        if right > LEFT and right + wide > width:
            right, row = float(LEFT), row + 1
        entries.append(_LegendEntry(shown, colour % N_COLOURS, drawn, right, row))
        right += wide
    return entries


def _drop_overlapping_ticks(axis: Axis) -> list[float]:
    """Returns the ticks of a horizontal axis whose numbers do not touch."""
    chosen: list[float] = []
    end = -math.inf
    for tick in axis.ticks:
        place, half = float(axis.pixel(tick)), _estimate_pixels(format_tick(tick)) / 2
        if place - half > end:
            chosen.append(tick)
            end = place + half
    return chosen


def _estimate_pixels(text: str) -> float:
    """Returns the approximate width of a text in pixels."""
    return CHARACTER_PIXELS * cell_len(text)


def _shorten_name(name: str, max_characters: int) -> str:
    text = escape_controls(name).replace("\n", "↵").replace("\t", "⇥")
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
