"""Matrices as shaded cells, for terminals, files and pipes."""

import math
from collections.abc import Iterable, Sequence

SHADES, ASCII_SHADES = " ░▒▓█", " .:*#"


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
