"""Labels of a table: their kind, their names in a fixed order, and how numbers are written."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from lmtool.data.files import quote, quote_all
from lmtool.data.table import parse_float_or_nonfinite
from lmtool.errors import UsageError

LabelKind = Literal["class", "multi", "number", "tags"]
"""One class per row, any number of labels, a number, or a tag for each word."""

Label = str | tuple[str, ...] | float
"""The label of a row: a class name, several names (one tag per word), or a number up to MAX_LABEL_MAGNITUDE."""

LabelCell = str | tuple[str, ...]
"""A label as it is written: text, or several texts."""

SEPARATOR = ";"
"""Separates the names in a cell of several labels. Alone it means none."""

MAX_LABEL_CHARACTERS = 1_000
"""A longer label seems to be a text."""

MAX_INTEGER_CLASSES = 20
"""Up to this number of distinct integers are classes; more are numbers."""

NUMBER_WITH_COMMA = re.compile(r"-?[0-9]+,[0-9]+")
"""A number whose comma is a decimal sign, as in German and French, or separates thousands."""

_COMPARED_CHARACTERS = 100
"""Characters by which names are compared with an unknown one."""


@dataclass(frozen=True)
class LabelMap:
    """Class names in a fixed order, which gives each an index from 0. Labels that are numbers have no names.

    The order is numeric if all names are integers, else by Unicode code points: it depends on the names alone, not on
    the rows.
    """

    kind: LabelKind
    names: tuple[str, ...] = ()

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @classmethod
    def from_names(cls, kind: LabelKind, names: Iterable[str]) -> "LabelMap":
        """Returns the map of these names, given in any order."""
        distinct = set(names)
        are_integers = all(len(name) < 100 and re.fullmatch("-?[0-9]+", name) for name in distinct)
        ordered = sorted(distinct, key=lambda name: (int(name) if are_integers else 0, name))
        return cls(kind, tuple(ordered) if kind != "number" else ())

    def with_ordered_superset(self, names: Sequence[str]) -> "LabelMap":
        """Returns the map of `names` in their order, all of its own among them; none for the order of `from_names`.

        names: may have more. Raises UsageError for a name that is missing, and for numbers.
        """
        if not names:
            return self
        where, absent = "objective.labels", [name for name in self.names if name not in names]
        if self.kind == "number":
            raise UsageError("numbers have no names", where=where, fix="omit it, or add --labels class")
        if absent:
            what = f"the label {quote(absent[0], 40)} of the training data is not among them"
            raise UsageError(what, where=where, fix=f"add it, or omit them all; the table has {quote_all(self.names)}")
        return replace(self, names=tuple(names))

    def encode(self, label: Label) -> int | list[int] | float:
        """Returns the index of a class or of each tag, a multi-hot vector of labels, or a number as it is.

        Raises KeyError for unknown names.
        """
        if isinstance(label, tuple) and self.kind == "tags":
            return [self._index[name] for name in label]
        if isinstance(label, tuple):
            chosen = {self._index[name] for name in label}
            return [int(i in chosen) for i in range(len(self.names))]
        return self._index[label] if isinstance(label, str) else label

    def find_unknown(self, label: Label) -> str | None:
        """Returns the first name of a label that is not in the map."""
        return next((name for name in get_label_names(label) if name not in self._index), None)

    def find_similar(self, name: str) -> str | None:
        """Returns the name of the map that is most like an unknown one; None if none is."""
        by_prefix = {known[:_COMPARED_CHARACTERS].casefold(): known for known in self.names}
        similar = get_close_matches(name[:_COMPARED_CHARACTERS].casefold(), by_prefix, n=1)
        return by_prefix[similar[0]] if similar else None


def get_label_names(label: Label | None) -> tuple[str, ...]:
    """Returns the class names in a label; none for a number."""
    return label if isinstance(label, tuple) else (label,) if isinstance(label, str) else ()


class NumberFormat(NamedTuple):
    """How the numbers of a column are written: 26675.79, or with other signs, such as 26.675,79 and 5 %."""

    decimal: str = "."
    thousands: str = ""
    percent: bool = False

    def parse(self, text: str) -> float | None:
        """Parses a number like `parse_float_or_nonfinite`; a percentage is the number before its sign."""
        text = text.translate(_EQUIVALENT_SIGNS)
        if self.percent:
            if not text.endswith("%"):
                return None
            text = text[:-1].rstrip()
        if self.decimal == "." and not self.thousands:
            return parse_float_or_nonfinite(text)
        grouped = rf"[1-9][0-9]{{0,2}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|" if self.thousands else ""
        if not re.fullmatch(rf"[+-]?(?:{grouped}[0-9]+)(?:{re.escape(self.decimal)}[0-9]+)?", text):
            return None
        return float(text.replace(self.thousands, "").replace(self.decimal, "."))


PLAIN = NumberFormat()
_EQUIVALENT_SIGNS = str.maketrans(
    {"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2019": "'", "\u2212": "-", "\uff05": "%"}
)
"""No-break spaces and other signs, and those that mean the same."""
_FORMATS = [
    NumberFormat(decimal, thousands)
    for thousands in ("", ".", ",", " ", "'")
    for decimal in (".", ",")
    if decimal != thousands
]


def infer_number_format(cells: Sequence[LabelCell]) -> NumberFormat | None:
    """Returns the format in which all labels of a column are numbers.

    Returns None if there is none, or if several formats give different numbers: 1,234 may be a decimal or have
    thousands.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts or len(texts) < len(cells):
        return None
    is_percent = all(text.translate(_EQUIVALENT_SIGNS).endswith("%") for text in texts)
    fitting: list[tuple[NumberFormat, list[float | None]]] = []
    for plain in _FORMATS:
        number_format = plain._replace(percent=is_percent)
        values = list(takewhile(lambda value: value is not None, map(number_format.parse, texts)))
        if len(values) == len(texts):
            if plain == PLAIN:
                return number_format
            fitting.append((number_format, values))
    if fitting and all(values == fitting[0][1] for _, values in fitting):
        return fitting[0][0]
    return None


def infer_label_kind(cells: Sequence[LabelCell]) -> LabelKind:
    """Infers the kind of a column of labels, none of them empty.

    multi if some cell has a list or a semicolon. number if all cells are numbers, nan and too large ones included, and
    some are no integers, or more than MAX_INTEGER_CLASSES are distinct, or they are percentages, or they have
    separators of thousands. class otherwise.
    """
    if any(isinstance(cell, tuple) or SEPARATOR in cell for cell in cells):
        return "multi"
    number_format = infer_number_format(cells)
    if number_format is None:
        return "class"
    values = (number_format.parse(cell) for cell in cells if isinstance(cell, str))
    numbers = {value for value in values if value is not None and math.isfinite(value)}
    has_fractions = any(number != int(number) for number in numbers)
    is_amount = number_format.percent or bool(number_format.thousands)
    return "number" if has_fractions or is_amount or len(numbers) > MAX_INTEGER_CLASSES else "class"


def to_label_cell(value: Any) -> LabelCell | None:
    """Returns a value of a label column as stripped text, or as several texts.

    Returns "" for an empty value, and None for a value that cannot be a label. True and False are spelled as in JSON, a
    number without fraction as an integer.
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
            cells = [to_label_cell(item) for item in value]
            return tuple(str(c) for c in cells if c) if all(isinstance(c, str) for c in cells) else None
    return None


def merge_and_count_labels(cell: LabelCell, merges: Mapping[str, str], replaced_counts: Counter[str]) -> LabelCell:
    """Replaces labels in a cell. merges: new names by old ones. replaced_counts: grows by each name replaced."""
    if isinstance(cell, tuple):
        replaced_counts.update(name for name in cell if name in merges)
        return tuple(merges.get(name, name) for name in cell)
    if cell not in merges and SEPARATOR in cell:
        return SEPARATOR.join(merge_and_count_labels(split_label_names(cell), merges, replaced_counts)) or cell
    replaced_counts.update([cell] if cell in merges else [])
    return merges.get(cell, cell)


def split_label_names(cell: LabelCell) -> tuple[str, ...]:
    """Returns the distinct names in a cell of several labels."""
    parts = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    return tuple(dict.fromkeys(stripped for part in parts if (stripped := part.strip())))
