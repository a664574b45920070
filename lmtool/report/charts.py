"""Charts as SVG that follows the page: its colours in dark and light, its width, its table for the pointer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from markupsafe import Markup
from rich.cells import cell_len

from lmtool.report.numbers import short, span, ticks
from lmtool.report.page import clean, render, table

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 40
"""Pixels of a line chart, and of its margins below the legend."""

COLOURS = 8
"""Colours that the page has, numbered from 0."""

CHARACTER = 7.2
"""Mean width of a character of the labels, in pixels; a wide one takes two."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart. points: (x, y), x ascending. colour: its number. dashed, pale: how it is drawn."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    pale: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line across a chart, with its name."""

    name: str
    y: float
    colour: int = 7


def line_chart(
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    label: str,
    levels: Sequence[Level] = (),
    column: int = 0,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Markup:
    """Lines over numbers. x, y: names of the axes. label: what the picture shows, for those who do not see it.

    column: of the figure's table, the one that holds x. y_range: by default what the points and levels span.
    diagonal: draw y = x too.
    """
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points if math.isfinite(point[1])]
    ys += [level.y for level in levels]
    low_x, high_x = span(xs)
    low_y, high_y = y_range or _padded(*span(ys))
    legend = _legend([(line.name, line.colour, line.dashed, line.pale) for line in lines if line.points], levels)
    top = TOP + (18 * (legend[-1].line + 1) if legend else 0)
    bottom = top + HEIGHT - TOP - BOTTOM

    def at(px: float, py: float) -> str:
        right = LEFT + (px - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = bottom - (min(max(py, low_y), high_y) - low_y) / (high_y - low_y) * (bottom - top)
        return f"{right:.1f},{down:.1f}"

    def tick(value: float, is_x: bool) -> tuple[str, str]:
        place = at(value, low_y).split(",")[0] if is_x else at(low_x, value).split(",")[1]
        return place, short(value)

    return render(
        "lines.svg",
        label=label,
        width=WIDTH,
        height=bottom + BOTTOM,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=top,
        bottom=bottom,
        column=column,
        low=low_x,
        high=high_x,
        x_ticks=[tick(value, True) for value in ticks(low_x, high_x)],
        y_ticks=[tick(value, False) for value in ticks(low_y, high_y, 8)],
        x=x,
        y=y,
        legend=legend,
        levels=[(level.colour % COLOURS, at(low_x, level.y).split(",")[1]) for level in levels],
        paths=[
            (line.colour % COLOURS, line.dashed, line.pale, " ".join(at(*point) for point in part))
            for line in lines
            for part in _unbroken(line.points)
        ],
        diagonal=f"{at(low_x, low_x)} {at(high_x, high_x)}" if diagonal else "",
    )


def heat_map(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    label: str,
    high: float | None = None,
    cell: int = 18,
    x: str = "",
    y: str = "",
    labelled: bool = True,
) -> Markup:
    """A matrix of numbers not below zero as shaded cells; `high`, by default the largest of them, is the darkest.

    cell: its pixels. x, y: names of the axes. labelled: with the names of rows and columns, those shortened that are
    long. The figure's table is `heat_table` of the same numbers.
    """
    most = high if high is not None else max((value for row in values for value in row), default=0.0)
    shown_rows = [_shortened(name, 18) for name in rows] if labelled else []
    shown_columns = [_shortened(name, 18) for name in columns] if labelled else []
    left = 8 + (18 if y else 0) + math.ceil(max(map(_width, shown_rows), default=0.0))
    top = 8 + (18 if x else 0) + math.ceil(max(map(_width, shown_columns), default=0.0))
    return render(
        "heat.svg",
        label=label,
        width=left + cell * len(columns) + 4,
        height=top + cell * len(rows) + 4,
        left=left,
        top=top,
        cell=cell,
        n_columns=len(columns),
        n_rows=len(rows),
        rows=shown_rows,
        columns=shown_columns,
        x=x,
        y=y,
        shades=[
            [(i, _shade(value / most)) for i, value in enumerate(row) if most > 0 and value / most >= 0.005]
            for row in values
        ],
    )


def heat_table(
    values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], *, corner: str = ""
) -> Markup:
    """The table of a `heat_map`: a row for each row, the names first."""
    return table([corner, *columns], [[name, *row] for name, row in zip(rows, values, strict=True)], headed=True)


def standalone(picture: str) -> str:
    """A chart as an SVG file of its own, with the styles that it needs."""
    head, mark, rest = str(picture).partition(">")
    style = (files("lmtool.report") / "templates" / "charts.css").read_text(encoding="utf-8")
    size = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    # it may be shown on a page whose background is not of the reader's colour scheme
    style += "svg.picture { background: var(--paper); }\n"
    return f"{size}{mark}\n<style>{escape(style, quote=False)}</style>{rest}\n"


@dataclass(frozen=True)
class _Entry:
    name: str
    colour: int
    dashed: bool
    pale: bool
    level: bool
    x: float
    line: int


def _legend(lines: Sequence[tuple[str, int, bool, bool]], levels: Sequence[Level]) -> list[_Entry]:
    """The names of lines and levels, in as many rows as they need; none for one line alone."""
    if len(lines) + len(levels) < 2:
        return []
    entries: list[_Entry] = []
    right, row = float(LEFT), 0
    named = [(*line, False) for line in lines] + [(level.name, level.colour, False, False, True) for level in levels]
    for name, colour, dashed, pale, level in named:
        shown = _shortened(name, 60)
        wide = 30 + _width(shown) + 14
        if right > LEFT and right + wide > WIDTH:
            right, row = float(LEFT), row + 1
        entries.append(_Entry(shown, colour % COLOURS, dashed, pale, level, right, row))
        right += wide
    return entries


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.04 * (high - low)
    return (0.0 if 0 <= low < room * 4 else low - room), high + room


def _unbroken(points: Sequence[Point]) -> list[list[Point]]:
    """The parts of a line between values that are no numbers."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            parts[-1].append(point)
        else:
            parts.append([])
    # A point alone is drawn as a dot: a line of no length with round ends.
    return [part if len(part) > 1 else part * 2 for part in parts if part]


def _shade(share: float) -> str:
    return f"{min(1.0, share):.3f}".rstrip("0").rstrip(".")


def _width(text: str) -> float:
    """Pixels of a text, about."""
    return CHARACTER * cell_len(text)


def _shortened(name: str, most: int) -> str:
    text = clean(name).replace("\n", "↵").replace("\t", "⇥")
    return text if len(text) <= most else text[: most - 1] + "…"
