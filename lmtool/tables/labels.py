"""Labels of a table: their kind, their names in a fixed order, and their indices."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal

from lmtool.data.files import shown, shown_all
from lmtool.data.table import spelled_number

LabelKind = Literal["class", "multi", "number", "tags"]
"""One class per row, any number of labels, a number, or a tag for each word."""

Label = str | tuple[str, ...] | float
"""The label of a row, by kind: a name, names (of tags as many as words), or a number of at most LARGEST."""

SEPARATOR = ";"
"""Separates the names of a cell with several labels. Alone it means none."""

LONGEST_LABEL = 1_000
"""Characters that the name of a class may have: a text is no label."""

COMMA = re.compile(r"-?[0-9]+,[0-9]+")
"""A number with a decimal comma, as in German and French."""

_COMPARED = 100
"""Characters by which names are compared with an unknown one."""

MANY = 20
"""Up to this many distinct integers are classes; more are numbers."""


@dataclass(frozen=True)
class LabelMap:
    """Names of classes in a fixed order, which gives each an index from 0.

    The order is numeric where all names are integers, else by Unicode code points: it depends on the names alone, not
    on the rows. Numeric labels have no names.
    """

    kind: LabelKind
    names: tuple[str, ...] = ()

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @classmethod
    def of(cls, kind: LabelKind, names: Iterable[str]) -> "LabelMap":
        """The map of these names, given in any order."""
        different = set(names)
        whole = all(_is_whole(name) for name in different)
        ordered = sorted(different, key=lambda name: (int(name) if whole else 0, name))
        return cls(kind, tuple(ordered) if kind != "number" else ())

    def encode(self, label: Label) -> int | list[int] | float:
        """The index of a class, or of each tag; a multi-hot vector of labels; a number as it is.

        Raises KeyError for other names.
        """
        if isinstance(label, tuple) and self.kind == "tags":
            return [self._index[name] for name in label]
        if isinstance(label, tuple):
            chosen = {self._index[name] for name in label}
            return [int(i in chosen) for i in range(len(self.names))]
        return self._index[label] if isinstance(label, str) else label

    def unknown(self, label: Label) -> str | None:
        """The first name of a label that is not in the map."""
        names = (label,) if isinstance(label, str) else label if isinstance(label, tuple) else ()
        return next((name for name in names if name not in self._index), None)

    def suggestion(self, name: str) -> str:
        """A suggestion for a name that is not in the map."""
        plain = {known[:_COMPARED].casefold(): known for known in self.names}
        if near := get_close_matches(name[:_COMPARED].casefold(), plain, n=1):
            return f"did you mean {shown(plain[near[0]])}?"
        return f"the {'tags' if self.kind == 'tags' else 'classes'} are {shown_all(self.names)}"


def have_decimal_commas(cells: Sequence[str | tuple[str, ...]]) -> bool:
    """Whether all labels are numbers with a decimal comma or whole ones. Three digits after each may be thousands."""
    every = [str(cell) for cell in cells if COMMA.fullmatch(str(cell)) or _is_whole(str(cell))]
    return len(every) == len(cells) and any("," in cell and cell[-4:-3] != "," for cell in every)


def decide_kind(cells: Sequence[str | tuple[str, ...]]) -> LabelKind:
    """The kind of a column of labels, none of them empty.

    multi when some cell has a list or a semicolon; number when all cells are numbers, those that no model can learn and
    nan among them, and some are not integers or more than MANY are distinct; class otherwise.
    """
    if any(isinstance(cell, tuple) or SEPARATOR in cell for cell in cells):
        return "multi"
    numbers, comma = set(), "," if have_decimal_commas(cells) else "."
    for cell in cells:
        number = spelled_number(str(cell).replace(comma, "."))
        if number is None:
            return "class"
        if math.isfinite(number):
            numbers.add(number)
    fractions = any(number != int(number) for number in numbers)
    return "number" if fractions or len(numbers) > MANY else "class"


def as_cell(value: Any) -> str | tuple[str, ...] | None:
    """A value of a label column as stripped text, or as several texts.

    "" for an empty value, None for a value that is not a label.
    True and False are spelled as in JSON; a number without fraction as an integer.
    """
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return "" if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)
        case list():
            cells = [as_cell(one) for one in value]
            return tuple(str(c) for c in cells if c) if all(isinstance(c, str) for c in cells) else None
    return None


def as_names(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    """The distinct names in a cell of several."""
    parts = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    return tuple(dict.fromkeys(part for p in parts if (part := p.strip())))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 100
