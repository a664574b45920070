"""Labels that are read as others, as the command line names them."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from lmtool.data.files import convert_read_errors, display_path, quote
from lmtool.errors import DataError, UsageError

ENDINGS = (".yaml", ".yml", ".json", ".csv")
"""Formats of files of labels and those that they are read as."""

COLUMNS = ["from", "to"]
"""Of such a file in CSV."""


def read_merges(values: Iterable[str]) -> dict[str, str]:
    """Labels and those that they are read as, of texts A=B and of files. The later ones count.

    Raises UsageError for a text that is neither, DataError for a file of another form, and the errors of reading.
    """
    merged: dict[str, str] = {}
    for value in values:
        name, is_pair, other = (part.strip() for part in value.partition("="))
        path = Path(value)
        if path.suffix.lower() in ENDINGS and (not is_pair or path.is_file()):
            merged |= _read_file(path)
        elif name and other:
            merged[name] = other
        else:
            fix = f"write A=B, which reads label A as B, or name a file: {', '.join(ENDINGS)}"
            raise UsageError(f"{quote(value)} says not which label is read as which", where="--merge-labels", fix=fix)
    return {name: other for name, other in merged.items() if name != other}


def _read_file(path: Path) -> dict[str, str]:
    fix = 'write a mapping of labels, such as {"Positv": "positiv"}'
    if is_csv := path.suffix.lower() == ".csv":
        fix = f"write two columns, {' and '.join(COLUMNS)}, which its first row names"
    try:
        with convert_read_errors(path):
            text = path.read_text(encoding="utf-8-sig")
        if is_csv:
            header, *rows = [row for row in csv.reader(text.splitlines(), strict=True) if row] or [[]]
            read: Any = dict(rows) if header == COLUMNS and all(len(row) == len(COLUMNS) for row in rows) else None
        else:
            # labels such as yes are no truth values
            read = json.loads(text) if path.suffix.lower() == ".json" else yaml.load(text, yaml.BaseLoader)
    except (ValueError, csv.Error, yaml.YAMLError, RecursionError) as error:
        what = f"no labels and those that they are read as: {quote(str(error).splitlines()[0], 80)}"
        raise DataError(what, where=display_path(path), fix=fix) from error
    if not isinstance(read, dict) or not all(_is_name(name) for pair in read.items() for name in pair):
        raise DataError("no labels and those that they are read as", where=display_path(path), fix=fix)
    return {str(name).strip(): str(other).strip() for name, other in read.items()}


def _is_name(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value).strip())
