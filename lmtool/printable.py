"""Text for a terminal: control characters of untrusted text escaped, which would move its cursor or change its colours,
columns aligned, and numbers with their nouns."""

import unicodedata
from collections.abc import Sequence


def plain(text: str, *, lines: bool = False) -> str:
    """`text` on one line, with control characters, line ends and lone surrogates escaped as in Python.

    With `lines`, for multi-line texts, newline, tab and all non-control characters, such as emoji joiners, are kept.
    """
    if text.isprintable():
        return text  # nearly always, and fast
    if lines:
        # By its code, as other control characters: `\r` could be mistaken for a line end.
        text = text.replace("\r", r"\x0d")

    def stays(character: str) -> bool:
        return lines and (character in "\n\t" or unicodedata.category(character) != "Cc")

    return "".join(c if c.isprintable() or stays(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def counted(number: int, one: str, several: str = "") -> str:
    """A number with its noun: "1 row" and "1,234 rows". several: the plural, where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Columns two spaces apart, the first `left` of them left-aligned, the others right-aligned."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [" " * (width - cell_len(cell)) + cell for cell, width in zip(row, widths, strict=True)]
        cells[:left] = map(set_cell_size, row[:left], widths)
        lines.append("  ".join(cells).rstrip())
    return lines
