"""Charts as SVG that follows the page: its colours in dark and light, its width, its table for the pointer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup
from rich.cells import cell_len

from lmtool.report.numbers import log_ticks, share, short, span, ticks
from lmtool.report.page import COLOURS, TableCell, asset, clean, figure, render, table

SIZES = {"wide": (900, 340), "narrow": (420, 290), "": (560, 300)}
"""Pixels of a line chart below the legend: where a page is wide, where it is narrow, and by itself."""

LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 40
"""Pixels of its margins; those at the sides are wider where numbers on the axes need it."""

AXIS_NAME = 26
"""Pixels that the name of the axis on the left takes, and the room around it."""

PER_TICK = 80
"""Pixels that a number on the axis below takes."""

FACTOR = 4
"""Ratio of the largest value to the smallest from which an axis is logarithmic."""

GREY = 7
"""That of what is of no line alone."""

CHARACTER = 7.2
"""Mean width of a character of the labels, in pixels; a wide one takes two."""

Point = tuple[float, float]


class Line(NamedTuple):
    """A line of a chart. points: (x, y), x ascending. colour: its number. dashed, pale: how it is drawn."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    pale: bool = False

    @property
    def drawn(self) -> str:
        """The classes of its path."""
        return "path" + " dash" * self.dashed + " pale" * self.pale

    @property
    def parts(self) -> list[list[Point]]:
        """The runs of its points between values that are no numbers."""
        parts: list[list[Point]] = [[]]
        for point in self.points:
            if math.isfinite(point[1]):
                parts[-1].append(point)
            else:
                parts.append([])
        # A point alone is drawn as a dot: a line of no length with round ends.
        return [part if len(part) > 1 else part * 2 for part in parts if part]


class Level(NamedTuple):
    """A horizontal line across a chart, with its name."""

    name: str
    y: float
    colour: int = GREY


class Mark(NamedTuple):
    """A ring around a point of a line, with its name, which several may share."""

    name: str
    point: Point
    colour: int = 0


class Axis(NamedTuple):
    """Values, when they are scaled from low to high, between two pixels. ticks: those with a number."""

    low: float
    high: float
    start: float
    stop: float
    ticks: Sequence[float]
    scaled: Callable[[float], float] = float

    def pixel(self, value: float) -> str:
        """The pixel of a value."""
        inside = min(max(self.scaled(value), self.low), self.high)
        return f"{self.start + (inside - self.low) / (self.high - self.low) * (self.stop - self.start):.1f}"


def spread(values: Sequence[float]) -> bool:
    """Whether an axis of these values is logarithmic: all are above 0, and they differ by a factor of `FACTOR`."""
    return min(values, default=0.0) > 0 and max(values) >= FACTOR * min(values)


def standalone(picture: Markup) -> str:
    """A picture as an SVG file of its own, with the styles that it needs."""
    head, mark, rest = str(picture).partition(">")
    size = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    # it may be shown on a page whose background is not of the reader's colour scheme
    style = asset("charts.css") + "svg.picture { background: var(--paper); }\n"
    return f"{size}{mark}\n<style>{escape(style, quote=False)}</style>{rest}\n"


@dataclass(frozen=True)
class LineChart:
    """Lines over numbers. x, y: names of the axes. label: what the picture shows, for those who do not see it.

    column: of the figure's table, the one that holds x.
    y_range: by default what the points, marks and levels span.
    diagonal: draw y = x too.
    log: x is positive, on a logarithmic scale with ticks at the values themselves.
    log_y: y is positive, on a logarithmic scale.
    """

    lines: Sequence[Line]
    x: str
    y: str
    label: str
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    column: int = 0
    y_range: tuple[float, float] | None = None
    diagonal: bool = False
    log: bool = False
    log_y: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether there is a line: two points of one."""
        return any(len(line.points) > 1 for line in self.lines)

    @property
    def heights(self) -> list[float]:
        """All values of y that are drawn."""
        points = [point for line in self.lines for point in line.points] + [mark.point for mark in self.marks]
        return [y for _, y in points if math.isfinite(y)] + [level.y for level in self.levels]

    def for_page(self) -> Markup:
        """The chart twice, of which the page shows the one that suits its width."""
        return Markup("").join((self.svg("wide"), self.svg("narrow")))

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return standalone(self.svg())

    def svg(self, size: str = "") -> Markup:
        """The chart in one of `SIZES`."""
        width, height = SIZES[size]
        points = [point for line in self.lines for point in line.points] + [mark.point for mark in self.marks]
        xs = [point[0] for point in points]
        scaled, scaled_y = (math.log10 if is_log else float for is_log in (self.log, self.log_y))
        low_x, high_x = span([scaled(x) for x in xs])
        low_y, high_y = self.y_range or _padded(*span([scaled_y(y) for y in self.heights]), to_zero=not self.log_y)
        y_ticks = (log_ticks if self.log_y else ticks)(low_y, high_y, 8)
        left = max(LEFT, AXIS_NAME + math.ceil(max((_width(short(tick)) for tick in y_ticks), default=0)))
        legend = _legend(self, width)
        top = TOP + (18 * (legend[-1].line + 1) if legend else 0)
        bottom = top + height - TOP - BOTTOM
        x_ticks = sorted(set(xs)) if self.log else ticks(low_x, high_x, (width - left - RIGHT) // PER_TICK)
        if not self.log and all(x == int(x) for x in xs):
            x_ticks = [tick for tick in x_ticks if tick == int(tick)]
        right = width - max([RIGHT, *(math.ceil(_width(short(tick)) / 2) for tick in x_ticks[-1:])])
        across = Axis(low_x, high_x, left, right, x_ticks, scaled)
        across = across._replace(ticks=_apart(across))
        down = Axis(low_y, high_y, bottom, top, y_ticks, scaled_y)
        sizes = {"size": size, "width": width, "height": bottom + BOTTOM}
        return render("lines.svg", chart=self, across=across, down=down, legend=legend, **sizes)


@dataclass(frozen=True)
class HeatMap:
    """A matrix of numbers not below zero as shaded cells.

    values: by row.
    rows, columns: their names.
    label: what the picture shows, for those who do not see it.
    high: the darkest; by default the largest value.
    cell: pixels of a cell.
    x, y: names of the axes.
    labelled: with the names of rows and columns, those shortened that are long.
    """

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    label: str
    high: float | None = None
    cell: int = 18
    x: str = ""
    y: str = ""
    labelled: bool = True

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return standalone(self.svg())

    def svg(self) -> Markup:
        """The picture."""
        most = self.high if self.high is not None else max((value for row in self.values for value in row), default=0.0)
        shown_rows = [_shortened(name, 18) for name in self.rows] if self.labelled else []
        shown_columns = [_shortened(name, 18) for name in self.columns] if self.labelled else []
        left = 8 + (18 if self.y else 0) + math.ceil(max(map(_width, shown_rows), default=0.0))
        top = 8 + (18 if self.x else 0) + math.ceil(max(map(_width, shown_columns), default=0.0))
        return render("heat.svg", chart=self, left=left, top=top, rows=shown_rows, columns=shown_columns, most=most)

    def stretches(self, row: Sequence[float], most: float) -> list[tuple[int, int, str]]:
        """Cells of a row beside each other with the same shade: where they begin, how many they are, and the shade."""
        shades = [share(value / most) if most > 0 and value / most >= 0.005 else "" for value in row]
        found, x = [], 0
        for shade, cells in groupby(shades):
            n = len([*cells])
            found += [(x, n, shade)] if shade else []
            x += n
        return found

    def figure(self, caption: str, corner: str, numbers: Sequence[Sequence[float]] | None = None) -> Markup:
        """The picture, and its numbers as a table: a row for each row, the names first, below the name `corner`.

        numbers: what the table has in place of the values.
        """
        rows: list[list[TableCell]]
        rows = [[name, *row] for name, row in zip(self.rows, numbers or self.values, strict=True)]
        return figure(self.svg(), caption, table([corner, *self.columns], rows, headed=True))


class _Entry(NamedTuple):
    """A name of the legend, and how what it names is drawn: a class of path, or "mark"."""

    name: str
    colour: int
    drawn: str
    x: float
    line: int


def _legend(chart: LineChart, width: int) -> list[_Entry]:
    """The names of lines, levels and marks, in as many rows as they need; none for one line alone."""
    named = [(line.name, line.colour, line.drawn) for line in chart.lines if line.points]
    named += [(level.name, level.colour, "level") for level in chart.levels]
    rings: dict[str, set[int]] = {}
    for mark in chart.marks:
        rings.setdefault(mark.name, set()).add(mark.colour)
    named += [(name, min(colours) if len(colours) == 1 else GREY, "mark") for name, colours in rings.items()]
    if len(named) < 2:
        return []
    entries: list[_Entry] = []
    right, row = float(LEFT), 0
    for name, colour, drawn in named:
        shown = _shortened(name, int((width - LEFT - 44) / CHARACTER))
        wide = 30 + _width(shown) + 14
        if right > LEFT and right + wide > width:
            right, row = float(LEFT), row + 1
        entries.append(_Entry(shown, colour % COLOURS, drawn, right, row))
        right += wide
    return entries


def _apart(axis: Axis) -> list[float]:
    """The ticks of an axis below whose numbers do not touch."""
    chosen: list[float] = []
    end = -math.inf
    for tick in axis.ticks:
        place, half = float(axis.pixel(tick)), _width(short(tick)) / 2
        if place - half > end:
            chosen.append(tick)
            end = place + half
    return chosen


def _padded(low: float, high: float, *, to_zero: bool) -> tuple[float, float]:
    """With some room; to_zero: what begins near 0 begins there."""
    room = 0.04 * (high - low)
    return (0.0 if to_zero and 0 <= low < room * 4 else low - room), high + room


def _width(text: str) -> float:
    """Pixels of a text, about."""
    return CHARACTER * cell_len(text)


def _shortened(name: str, most: int) -> str:
    text = clean(name).replace("\n", "↵").replace("\t", "⇥")
    return text if len(text) <= most else text[: most - 1] + "…"
