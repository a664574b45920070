"""Converts rows of a Python program to a table file, because everything else reads files."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lmtool.errors import DataError
from lmtool.storage.checksum import sha256_of_file
from lmtool.storage.durable import cache_folder, convert_write_errors, make_parent_and_scratch_folder, replace_path


def rows_to_dicts(rows: Any, *, has_labels: bool) -> list[Mapping[str, Any]]:
    """Converts rows to dicts of values by column name.

    rows: a DataFrame of pandas or Polars, mappings, or sequences of texts that end with a label if `has_labels`. The
    values of a sequence get the names text (or text1, text2, ...) and label. Raises DataError for other rows.
    """
    if hasattr(rows, "to_dicts"):  # Polars
        return list(rows.to_dicts())
    if hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # pandas
        return list(rows.to_dict("records"))
    if hasattr(rows, "tolist"):  # a column of pandas, or an array of NumPy
        rows = rows.tolist()
    dicts: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            dicts.append(row)
            continue
        values = [row] if isinstance(row, str) else [*row] if isinstance(row, Iterable) else []
        n_texts = len(values) - has_labels
        if n_texts < 1:
            what, fix = ("a text and its label", "(text, label)") if has_labels else ("a text", "a text")
            raise DataError(f"{row!r:.40} is not {what}", where=f"row {number}", fix=f"give {fix}, or a dict by column")
        names = ["text"] if n_texts == 1 else [f"text{i + 1}" for i in range(n_texts)]
        dicts.append(dict(zip([*names, "label"] if has_labels else names, values, strict=True)))
    return dicts


def cache_labelled_rows(rows: Any) -> str:
    """Writes labelled rows to a table in the cache, named by its content, and returns its path.

    The table stays in the cache because a resumed run reads it again. rows: see `rows_to_dicts`. Raises DataError for
    values that JSON does not have.
    """
    folder = cache_folder().absolute() / "rows"
    with make_parent_and_scratch_folder(folder) as scratch:
        written = scratch / "rows.jsonl"
        with convert_write_errors(written), written.open("w", encoding="ascii") as file:
            for number, row in enumerate(rows_to_dicts(rows, has_labels=True), 1):
                try:
                    file.write(json.dumps(row, default=_convert_numpy_scalar_or_raise) + "\n")
                except TypeError as error:
                    fix = "give texts, numbers, None, or lists of them"
                    raise DataError(f"a value is none of a table: {error}", where=f"row {number}", fix=fix) from error
        path = folder / f"rows-{sha256_of_file(written)[:16]}.jsonl"
        with convert_write_errors(path):
            replace_path(written, path)
    return str(path)


def _convert_numpy_scalar_or_raise(value: Any) -> Any:
    """Converts a NumPy scalar for JSON. Raises TypeError for other values."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__}: {value!r:.40}")
