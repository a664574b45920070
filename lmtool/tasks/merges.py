"""Reads which labels are replaced by others, as --merge-labels names them."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from lmtool.data.files import convert_read_errors, display_path, quote
from lmtool.errors import DataError, UsageError
from lmtool.printable import first_line

FILE_SUFFIXES = (".yaml", ".yml", ".json", ".csv")

CSV_COLUMNS = ["from", "to"]


def read_label_merges(pairs_or_paths: Iterable[str]) -> dict[str, str]:
    """Returns new label names by old ones from texts A=B and from files; later ones override earlier ones.

    Raises UsageError for a text that is neither, DataError for a file of another form, and the errors of reading.
    """
    merges: dict[str, str] = {}
    for value in pairs_or_paths:
        name, is_pair, other = (part.strip() for part in value.partition("="))
        path = Path(value)
        if path.suffix.lower() in FILE_SUFFIXES and (not is_pair or path.is_file()):
            merges |= _read_merges_file(path)
        elif name and other:
            merges[name] = other
        else:
            fix = f"write A=B, which replaces label A by B, or name a file: {', '.join(FILE_SUFFIXES)}"
            what = f"{quote(value)} does not say which label is replaced by which"
            raise UsageError(what, where="--merge-labels", fix=fix)
    return {name: other for name, other in merges.items() if name != other}


def _read_merges_file(path: Path) -> dict[str, str]:
    fix = 'write a mapping of labels, such as {"Positv": "positiv"}'
    if is_csv := path.suffix.lower() == ".csv":
        fix = f"write two columns, {' and '.join(CSV_COLUMNS)}, which its first row names"
    try:
        with convert_read_errors(path):
            text = path.read_text(encoding="utf-8-sig")
        if is_csv:
            header, *rows = [row for row in csv.reader(text.splitlines(), strict=True) if row] or [[]]
            read: Any = dict(rows) if header == CSV_COLUMNS else None
        else:
            # the base loader reads labels such as yes as text
            read = json.loads(text) if path.suffix.lower() == ".json" else yaml.load(text, yaml.BaseLoader)
    except (ValueError, csv.Error, yaml.YAMLError, RecursionError) as error:
        what = f"the file does not map labels to labels: {first_line(error, 80)}"
        raise DataError(what, where=display_path(path), fix=fix) from error
    names = [name for pair in read.items() for name in pair] if isinstance(read, dict) else [None]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) and str(name).strip() for name in names):
        raise DataError("the file does not map labels to labels", where=display_path(path), fix=fix)
    return {str(name).strip(): str(other).strip() for name, other in read.items()}
