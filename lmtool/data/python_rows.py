"""Rows of a Python program as a table file: all else reads files only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmtool.checksum import sha256_of_file
from lmtool.durable import cache_folder, rename, scratch_in, writing
from lmtool.errors import DataError

PythonRow = str | Sequence[Any] | Mapping[str, Any]
"""A text, a sequence of values, or values by column name."""


def as_mappings(rows: Any, *, labelled: bool) -> list[Mapping[str, Any]]:
    """Rows as values by column name.

    rows: a DataFrame of pandas or Polars; mappings; or sequences, whose values are texts and, if labelled, the label at
    last. These get the names text (or text1, text2, ...) and label. Raises DataError for what is none of them.
    """
    if hasattr(rows, "to_dicts"):  # Polars
        return list(rows.to_dicts())
    if hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # pandas
        return list(rows.to_dict("records"))
    if hasattr(rows, "tolist"):  # a column of pandas, or an array of NumPy
        rows = rows.tolist()
    return [_as_mapping(row, number, labelled) for number, row in enumerate(rows, 1)]


def _as_mapping(row: PythonRow, number: int, labelled: bool) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    values = [row] if isinstance(row, str) else [*row] if isinstance(row, Iterable) else []
    n_texts = len(values) - labelled
    if n_texts < 1:
        what, fix = ("a text and its label", "(text, label)") if labelled else ("a text", "a text")
        raise DataError(f"{row!r:.40} is not {what}", where=f"row {number}", fix=f"give {fix}, or a dict by column")
    names = ["text"] if n_texts == 1 else [f"text{i + 1}" for i in range(n_texts)]
    return dict(zip([*names, "label"] if labelled else names, values, strict=True))


def keep_rows(rows: Any) -> str:
    """Write labelled rows to a table in the cache that is named by its content, and return its path.

    It stays there, since a run names what it was trained on and reads it again when it is resumed. rows: as for
    `as_mappings`. Raises DataError for values that JSON does not have.
    """
    folder = cache_folder().absolute() / "rows"
    with scratch_in(folder) as scratch:
        written = scratch / "rows.jsonl"
        with writing(written), written.open("w", encoding="ascii") as file:
            for number, row in enumerate(as_mappings(rows, labelled=True), 1):
                try:
                    file.write(json.dumps(row, default=_plain_number) + "\n")
                except TypeError as error:
                    fix = "give texts, numbers, None, or lists of them"
                    raise DataError(f"a value is none of a table: {error}", where=f"row {number}", fix=fix) from error
        path = folder / f"rows-{sha256_of_file(written)[:16]}.jsonl"
        with writing(path):
            rename(written, path)
    return str(path)


def _plain_number(value: Any) -> Any:
    """A number of NumPy as one of Python. Raises TypeError for all else that JSON does not have."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__}: {value!r:.40}")
