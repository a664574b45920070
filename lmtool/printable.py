"""Text for a terminal: escapes control characters, which could move its cursor, aligns columns, and counts nouns."""

import unicodedata
from collections.abc import Sequence


def printable(text: str, *, keep_line_breaks: bool = False) -> str:
    """Returns the text on one line, with control characters, line ends and lone surrogates escaped as in Python.

    keep_line_breaks: for texts of several lines, keeps newlines, tabs and all non-control characters, such as emoji
    joiners.
    """
    if text.isprintable():
        return text  # nearly always, and fast
    if keep_line_breaks:
        # as its code, like other control characters, because `\r` could be mistaken for a line end
        text = text.replace("\r", r"\x0d")

    def is_kept(character: str) -> bool:
        is_control = unicodedata.category(character) == "Cc" and character not in "\n\t"
        return character.isprintable() or (keep_line_breaks and not is_control)

    return "".join(c if is_kept(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def first_line(error: Exception, max_characters: int) -> str:
    """Returns the first line of the message of an error, escaped and shortened; its type if there is no message."""
    return printable(str(error).strip().partition("\n")[0])[:max_characters] or type(error).__name__


def printable_repr(value: object, max_characters: int = 60) -> str:
    """Returns the `repr` of a value from a file, escaped and shortened."""
    return printable(repr(value)[: 4 * max_characters])[:max_characters]


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Returns a number with its noun: "1 row" or "1,234 rows". plural: by default `singular` with an s."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def align_columns(rows: Sequence[Sequence[str]], n_left_aligned: int = 1) -> list[str]:
    """Returns a line for each row, with columns two spaces apart; all but the first columns are right-aligned."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [" " * (width - cell_len(cell)) + cell for cell, width in zip(row, widths, strict=True)]
        cells[:n_left_aligned] = map(set_cell_size, row[:n_left_aligned], widths)
        lines.append("  ".join(cells).rstrip())
    return lines
