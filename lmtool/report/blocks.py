"""Pictures of characters, for terminals, files and pipes: matrices as shaded cells, lines over numbers."""

import math
from collections.abc import Iterable, Sequence

from lmtool.report.charts import Line, short

SHADES = " ░▒▓█"
MARKS = "ox+*#@%&"


def shaded(values: Iterable[Sequence[float]], high: float = 1.0) -> list[str]:
    """A matrix as lines of cells, two characters wide so that they are about square; `high` is the darkest.

    What is above 0 is never blank.
    """
    most = len(SHADES) - 1
    return [
        "".join(2 * SHADES[min(most, max(math.ceil(0.1 * value / high), round(most * value / high)))] for value in row)
        for row in values
    ]


def plotted(lines: Sequence[Line], *, x: str, y: str, width: int = 64, height: int = 16) -> list[str]:
    """Lines over numbers, each point as the mark of its line, and below them what the marks mean.

    x, y: names of the axes. Points that are not finite are left out; of several at one place the first line is seen.
    """
    points = [(px, py, mark) for line, mark in _marked(lines) for px, py in line.points if math.isfinite(py)]
    if not points:
        return []
    low_x, high_x = min(px for px, _, _ in points), max(px for px, _, _ in points)
    low_y, high_y = min(py for _, py, _ in points), max(py for _, py, _ in points)
    grid = [[" "] * width for _ in range(height)]
    for px, py, mark in reversed(points):
        column = round((px - low_x) / ((high_x - low_x) or 1) * (width - 1))
        row = round((high_y - py) / ((high_y - low_y) or 1) * (height - 1))
        grid[row][column] = mark
    names = [short(high_y - (high_y - low_y) * row / (height - 1)) for row in range(height)]
    left = max(map(len, names))
    body = [
        f"{name if row % 5 == 0 or row == height - 1 else '':>{left}} │{''.join(cells).rstrip()}"
        for row, (name, cells) in enumerate(zip(names, grid, strict=True))
    ]
    first, last = short(low_x), short(high_x)
    axis = [f"{'':{left}} └{'─' * width}", f"{'':{left}}  {first}{x:^{width - len(first) - len(last)}}{last}".rstrip()]
    return [y, *body, *axis, *(f"{'':{left}}  {mark} {line.name}" for line, mark in _marked(lines))]


def _marked(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    return [(line, MARKS[i % len(MARKS)]) for i, line in enumerate(lines)]
