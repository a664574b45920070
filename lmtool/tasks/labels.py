"""Labels of a table: their kind, their names in a fixed order, and their indices."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, NamedTuple

from lmtool.data.table import parse_float

LabelKind = Literal["class", "multi", "number", "tags"]
"""One class per row, any number of labels, a number, or a tag for each word."""

Label = str | tuple[str, ...] | float
"""The label of a row, by kind: a name, names (of tags as many as words), or a number of at most LARGEST."""

SEPARATOR = ";"
"""Separates the names of a cell with several labels. Alone it means none."""

LONGEST_LABEL = 1_000
"""Characters that the name of a class may have: a text is no label."""

COMMA = re.compile(r"-?[0-9]+,[0-9]+")
"""A number with a comma: decimal, as in German and French, or of thousands."""

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

    def nearest(self, name: str) -> str | None:
        """The name of the map that is most like one that is not in it; None where none is."""
        plain = {known[:_COMPARED].casefold(): known for known in self.names}
        near = get_close_matches(name[:_COMPARED].casefold(), plain, n=1)
        return plain[near[0]] if near else None


class NumberFormat(NamedTuple):
    """How the numbers of a column are written: 26675.79, or with other signs, such as 26.675,79 and 5 %."""

    decimal: str = "."
    thousands: str = ""
    percent: bool = False

    def read(self, text: str) -> float | None:
        """The number that a text spells in this format; see `parse_float`. A percentage is its number before %."""
        text = text.translate(_ALIKE)
        if self.percent:
            if not text.endswith("%"):
                return None
            text = text[:-1].rstrip()
        if self.decimal == "." and not self.thousands:
            return parse_float(text)
        if not re.fullmatch(_PATTERN.format(decimal=re.escape(self.decimal), thousands=self._group), text):
            return None
        return float(text.replace(self.thousands, "").replace(self.decimal, "."))

    @property
    def _group(self) -> str:
        return rf"[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|" if self.thousands else ""


PLAIN = NumberFormat()
_PATTERN = r"[+-]?(?:{thousands}[0-9]+)(?:{decimal}[0-9]+)?"
_ALIKE = str.maketrans({"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2019": "'", "\u2212": "-", "\uff05": "%"})
"""Spaces that do not break, and other signs of the same meaning."""
_FORMATS = [
    NumberFormat(decimal, thousands)
    for thousands in ("", ".", ",", " ", "'")
    for decimal in (".", ",")
    if decimal != thousands
]


def infer_number_format(cells: Sequence[str | tuple[str, ...]]) -> NumberFormat | None:
    """The format in which all labels of a column are numbers; None where there is none, or where several formats give
    different numbers: 1,234 may be a decimal or have thousands."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts or len(texts) < len(cells):
        return None
    is_percent = all(text.translate(_ALIKE).endswith("%") for text in texts)
    read: dict[NumberFormat, list[float]] = {}
    for plain in _FORMATS:
        one = plain._replace(percent=is_percent)
        values: list[float] = []
        for text in texts:
            if (value := one.read(text)) is None:
                break
            values.append(value)
        else:
            if one.decimal == "." and not one.thousands:
                return one
            read[one] = values
    first = next(iter(read), None)
    return first if first is not None and all(values == read[first] for values in read.values()) else None


def decide_kind(cells: Sequence[str | tuple[str, ...]]) -> LabelKind:
    """The kind of a column of labels, none of them empty.

    multi when some cell has a list or a semicolon; number when all cells are numbers, those that no model can learn and
    nan among them, and some are not integers, more than MANY are distinct, or they are percentages or have separators
    of thousands; class otherwise.
    """
    if any(isinstance(cell, tuple) or SEPARATOR in cell for cell in cells):
        return "multi"
    written = infer_number_format(cells)
    if written is None:
        return "class"
    read = (written.read(cell) for cell in cells if isinstance(cell, str))
    numbers = {number for number in read if number is not None and math.isfinite(number)}
    fractions = any(number != int(number) for number in numbers)
    is_amount = written.percent or bool(written.thousands)
    return "number" if fractions or is_amount or len(numbers) > MANY else "class"


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


def merge_labels(cell: str | tuple[str, ...], merged: Mapping[str, str], found: Counter[str]) -> str | tuple[str, ...]:
    """A cell with the labels that `merged` names read as others. found: counts these labels."""
    if isinstance(cell, tuple):
        found.update(name for name in cell if name in merged)
        return tuple(merged.get(name, name) for name in cell)
    if cell not in merged and SEPARATOR in cell:
        return SEPARATOR.join(merge_labels(as_names(cell), merged, found)) or cell
    found.update([cell] if cell in merged else [])
    return merged.get(cell, cell)


def as_names(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    """The distinct names in a cell of several."""
    parts = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    return tuple(dict.fromkeys(part for p in parts if (part := p.strip())))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 100
