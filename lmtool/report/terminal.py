"""Pictures in the terminal: line charts in braille and matrices as shaded cells, or both in ASCII."""

import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from lmtool.report.numbers import choose_ticks, find_nonempty_range, format_tick

LINE_STYLES = ("blue", "yellow", "cyan", "magenta", "green", "red")
"""Styles of the first, second, ... line."""

ASCII_MARKS = ".o*+x#"
"""Characters of the first, second, ... line in ASCII."""

# bits of the eight dots of a braille character: four rows of two, from the top
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

SHADES, ASCII_SHADES = " ░▒▓█", " .:*#"

Points = Sequence[tuple[float, float]]


def plot_lines(
    lines: Sequence[tuple[str, Points]], width: int, height: int = 12, *, ascii_only: bool = False
) -> list[Text]:
    """Draws named lines as rows of text of at most `width` characters, with axes and a legend.

    The later one of two lines covers the other. Returns nothing without points, or for a width below 24.
    """
    points = [point for _, part in lines for point in part if math.isfinite(point[1])]
    if not points or width < 24:
        return []
    low_x, high_x = find_nonempty_range([x for x, _ in points])
    low_y, high_y = find_nonempty_range([y for _, y in points])
    marks = choose_ticks(low_y, high_y, max(2, height // 3))
    labels = {round((high_y - value) / (high_y - low_y) * (height - 1)): format_tick(value) for value in marks}
    margin = max(map(len, labels.values())) + 2
    columns = width - margin
    canvas = _Canvas(columns, height, ascii_only)
    for index, (_, part) in enumerate(lines):
        spots = [((x - low_x) / (high_x - low_x), (high_y - y) / (high_y - low_y)) for x, y in part if math.isfinite(y)]
        for one, other in zip(spots, [*spots[1:], spots[-1]] if spots else [], strict=True):
            canvas.draw_line(one, other, index)
    bar = "|" if ascii_only else "│"
    rows = [
        Text(f"{labels.get(number, ''):>{margin - 2}} {bar}").append_text(row)
        for number, row in enumerate(canvas.to_text_rows())
    ]
    left, right = format_tick(low_x), format_tick(high_x)
    rows.append(Text(f"{'':{margin}}{left}{right:>{columns - len(left)}}"))
    legend = Text(" " * margin)
    for index, (name, _) in enumerate(lines):
        mark = ASCII_MARKS[index % len(ASCII_MARKS)] if ascii_only else "━"
        legend.append(f"{mark} ", style="" if ascii_only else LINE_STYLES[index % len(LINE_STYLES)]).append(f"{name}  ")
    legend.rstrip()
    legend.truncate(width)
    return [*rows, legend]


def shade_matrix(shares: Iterable[Sequence[float]], *, ascii_only: bool = False) -> list[str]:
    """Draws a matrix of numbers from 0 to 1 as lines of cells, each two characters wide and therefore about square.

    Only 0 is blank.
    """
    shades = ASCII_SHADES if ascii_only else SHADES
    darkest = len(shades) - 1
    lines = []
    for row in shares:
        indices = (min(darkest, max(math.ceil(0.1 * share), round(darkest * share))) for share in row)
        lines.append("".join(2 * shades[index] for index in indices))
    return lines


class _Canvas:
    """A grid of characters to draw lines on, with 2 x 4 dots in a braille character, or one in ASCII."""

    def __init__(self, width: int, height: int, ascii_only: bool) -> None:
        self._width, self._height, self._ascii = width, height, ascii_only
        self._across, self._down = (1, 1) if ascii_only else (2, 4)
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}
        """Bits of the dots and index of the visible line, by row and column."""

    def draw_line(self, start_share: tuple[float, float], stop_share: tuple[float, float], index: int) -> None:
        """Draws from one point to another; coordinates are shares of width and height from the upper left."""
        x_max, y_max = self._width * self._across - 1, self._height * self._down - 1
        x0, y0, x1, y1 = start_share[0] * x_max, start_share[1] * y_max, stop_share[0] * x_max, stop_share[1] * y_max
        n = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for i in range(n + 1):
            x, y = round(x0 + (x1 - x0) * i / n), round(y0 + (y1 - y0) * i / n)
            cell = y // self._down, x // self._across
            dots, seen = self._cells.get(cell, (0, index))
            self._cells[cell] = dots | _DOTS[y % self._down][x % self._across], max(seen, index)

    def to_text_rows(self) -> list[Text]:
        lines = []
        for row in range(self._height):
            line = Text()
            for column in range(self._width):
                dots, index = self._cells.get((row, column), (0, 0))
                character = ASCII_MARKS[index % len(ASCII_MARKS)] if self._ascii else chr(0x2800 + dots)
                style = "" if self._ascii else LINE_STYLES[index % len(LINE_STYLES)]
                line.append(character if dots else " ", style if dots else "")
            lines.append(line)
        return lines
