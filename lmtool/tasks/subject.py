"""Infers what names of files and runs refer to: a run, a labelled table, a text, or token stores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lmtool.data.column_names import LABEL_NAMES, find_conventional_column
from lmtool.data.files import TABLE_FORMATS, detect_format_suffix, name_without_compression
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.store import STORE_MANIFEST
from lmtool.data.table import open_table
from lmtool.recipe.spec.text import Data
from lmtool.runs.find import find_run_path_even_damaged
from lmtool.tasks.schema import has_inferable_columns

Subject = Literal["run", "table", "text", "tokens"]

STORE_FOLDERS = ("", "train", "valid")
"""Folders of token stores in the output of `lmtool tokenize`."""


def infer_subject_kind(
    file_or_run_names: Sequence[str], data: Data, *, is_text: bool, infer_labels_from_cells: bool = False
) -> Subject:
    """Infers what names refer to. is_text: excludes tables.

    A file that may be a table or a text is a text if it has the text column, no column with a conventional name of a
    label, and with `infer_labels_from_cells` no column whose cells may be labels. It is a table if `data` names columns
    of one. Raises the errors of `open_table`.
    """
    if len(file_or_run_names) == 1 and not is_text:
        name = file_or_run_names[0]
        folder = Path(name)
        if any((folder / part / STORE_MANIFEST).exists() for part in STORE_FOLDERS):
            return "tokens"
        if name == "last" or find_run_path_even_damaged(name) is not None:
            return "run"
        if data.test:
            return "table"
        if not folder.is_dir() and (name.startswith(HUB_PREFIX) or detect_format_suffix(folder) != ".txt"):
            if any(
                (data.label_column, data.text_columns, data.source_column, data.target_column, data.messages_column)
            ):
                return "table"
            table = open_table(name, data)
            is_table = data.column not in table.names or find_conventional_column(table.names, LABEL_NAMES) is not None
            return "table" if is_table or (infer_labels_from_cells and has_inferable_columns(table)) else "text"
        if name_without_compression(folder).endswith(TABLE_FORMATS):
            return "table"
    return "text"
