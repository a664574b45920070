"""Pictures in the terminal, with ASCII where there are neither colours nor other characters: lines over numbers, in
braille, and matrices as shaded cells.
"""

import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from lmtool.report.numbers import short, span, ticks

STYLES = ("blue", "yellow", "cyan", "magenta", "green", "red")
"""Colours of lines, in order."""

MARKS = ".o*+x#"
"""Characters of lines in ASCII, in order."""

# Bits of the eight dots of a braille character: two columns of four, from the top.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

SHADES, ASCII_SHADES = " ░▒▓█", " .:*#"

Points = Sequence[tuple[float, float]]


def plot(lines: Sequence[tuple[str, Points]], width: int, height: int = 12, *, ascii_only: bool = False) -> list[Text]:
    """Named lines as rows of text, no wider than `width` characters, with axes and a legend.

    Where two lines meet, the later one is seen. Empty where there is no point, or no room: below 24 characters.
    """
    points = [point for _, part in lines for point in part if math.isfinite(point[1])]
    if not points or width < 24:
        return []
    low_x, high_x = span([x for x, _ in points])
    low_y, high_y = span([y for _, y in points])
    marks = ticks(low_y, high_y, max(2, height // 3))
    labels = {round((high_y - value) / (high_y - low_y) * (height - 1)): short(value) for value in marks}
    margin = max(map(len, labels.values())) + 2
    columns = width - margin
    canvas = _Canvas(columns, height, ascii_only)
    for index, (_, part) in enumerate(lines):
        spots = [((x - low_x) / (high_x - low_x), (high_y - y) / (high_y - low_y)) for x, y in part if math.isfinite(y)]
        for one, other in zip(spots, [*spots[1:], spots[-1]] if spots else [], strict=True):
            canvas.line(one, other, index)
    bar = "|" if ascii_only else "│"
    rows = [
        Text(f"{labels.get(number, ''):>{margin - 2}} {bar}").append_text(row)
        for number, row in enumerate(canvas.rows())
    ]
    left, right = short(low_x), short(high_x)
    rows.append(Text(f"{'':{margin}}{left}{right:>{columns - len(left)}}"))
    legend = Text(" " * margin)
    for index, (name, _) in enumerate(lines):
        mark = MARKS[index % len(MARKS)] if ascii_only else "━"
        legend.append(f"{mark} ", style="" if ascii_only else STYLES[index % len(STYLES)]).append(f"{name}  ")
    legend.rstrip()
    legend.truncate(width)
    return [*rows, legend]


def shaded(values: Iterable[Sequence[float]], high: float = 1.0, *, ascii_only: bool = False) -> list[str]:
    """A matrix as lines of cells, two characters wide so that they are about square; `high` is the darkest.

    What is above 0 is never blank.
    """
    shades = ASCII_SHADES if ascii_only else SHADES
    most = len(shades) - 1
    return [
        "".join(2 * shades[min(most, max(math.ceil(0.1 * value / high), round(most * value / high)))] for value in row)
        for row in values
    ]


class _Canvas:
    """Characters of dots: two by four in braille, one by two rows of none in ASCII."""

    def __init__(self, width: int, height: int, ascii_only: bool) -> None:
        self._width, self._height, self._ascii = width, height, ascii_only
        self._across, self._down = (1, 1) if ascii_only else (2, 4)
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}
        """The dots by row and column, and the line that is seen there."""

    def line(self, start: tuple[float, float], stop: tuple[float, float], index: int) -> None:
        """Draw from one place to another, each in shares of the width and the height from the upper left."""
        x_most, y_most = self._width * self._across - 1, self._height * self._down - 1
        x0, y0, x1, y1 = start[0] * x_most, start[1] * y_most, stop[0] * x_most, stop[1] * y_most
        n = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for i in range(n + 1):
            x, y = round(x0 + (x1 - x0) * i / n), round(y0 + (y1 - y0) * i / n)
            cell = y // self._down, x // self._across
            dots, seen = self._cells.get(cell, (0, index))
            self._cells[cell] = dots | _DOTS[y % self._down][x % self._across], max(seen, index)

    def rows(self) -> list[Text]:
        lines = []
        for row in range(self._height):
            line = Text()
            for column in range(self._width):
                dots, index = self._cells.get((row, column), (0, 0))
                drawn = MARKS[index % len(MARKS)] if self._ascii else chr(0x2800 + dots)
                line.append(drawn if dots else " ", "" if self._ascii or not dots else STYLES[index % len(STYLES)])
            lines.append(line)
        return lines
