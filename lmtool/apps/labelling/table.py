"""Reads a table to label, and writes it with all labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lmtool.data.files import display_path, quote
from lmtool.data.rowfile import find_matching_column
from lmtool.data.table import Row, SkippedRowCounts, Table, format_csv_row, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.storage import durable
from lmtool.tasks.labels import SEPARATOR, split_label_names, to_label_cell
from lmtool.tasks.reading import stream_unlabelled_rows
from lmtool.tasks.schema import choose_columns, infer_label_column

MAX_CLASSES = 500
"""Maximum classes of a column of labels."""

Labels = tuple[str, ...]
"""Labels of a row: one, or any number if a row may have several."""


@dataclass(frozen=True)
class TableToLabel:
    """A table in memory.

    texts: names of the text columns. label: name of the label column, new or not. rows: rows and their texts.
    labels: labels of each row, or None. output: file of the labelled table.
    """

    table: Table
    texts: tuple[str, ...]
    label: str
    multi_label: bool
    rows: list[tuple[Row, tuple[str, ...]]]
    labels: list[Labels | None]
    output: Path

    @classmethod
    def read(
        cls, source: str, read_options: Data, multi_label: bool, skipped: SkippedRowCounts | None, output: Path | None
    ) -> "TableToLabel":
        """Reads the rows and labels of a table. Raises DataError for missing texts and for invalid labels."""
        table = open_table(source, read_options)
        name = read_options.label_column or infer_label_column(table, read_options) or "label"
        known = find_matching_column(name, table.names)
        columns = choose_columns(
            table, read_options.with_unvalidated_values({"label_column": known}), labelled=known is not None
        )
        rows = [(row, item.texts) for row, item in stream_unlabelled_rows(table, columns, skipped)]
        if not any(text.strip() for _, texts in rows for text in texts):
            raise DataError(
                "no row has a text", where=display_path(table.path), fix="name a column: --text-column NAME"
            )
        where, labels = f"{display_path(table.path)}, column {quote(name)}", list[Labels | None]()
        for row, _ in rows:
            cell = to_label_cell(row.values[table.names.index(known)]) if known else ""
            names = split_label_names(cell) if cell else None
            if cell is None or not (multi_label or names is None or len(names) == 1):
                what = f"row {row.number} has {'several labels' if names else 'no label'}"
                raise DataError(what, where=where, fix="add --multi, or name another column: --label-column NAME")
            labels.append(names)
        if len({*chain.from_iterable(filter(None, labels))}) > MAX_CLASSES:
            what = f"more than {MAX_CLASSES} different labels"
            raise DataError(what, where=where, fix="name another column, which may be new: --label-column NAME")
        output = output or Path(f"{table.path.name.partition('.')[0]}.labelled.csv")
        texts = columns.texts or (str(columns.messages),)
        return cls(table, texts, known or name, multi_label, rows, labels, output)

    def write_labelled_csv(self, answers: Mapping[int, Labels]) -> None:
        """Writes all columns and labels atomically; the label of other rows is empty. Raises ResourceError."""
        names, header = self.table.names, self.table.file.column_names
        at = names.index(self.label) if self.label in names else len(names)
        header = (*header[:at], self.label, *header[at + 1 :])
        cells = ((SEPARATOR.join(answers[i]) or SEPARATOR) if i in answers else "" for i in range(len(self.rows)))
        rows = zip((row.values for row, _ in self.rows), cells, strict=True)
        lines = chain([header], ((*values[:at], cell, *values[at + 1 :]) for values, cell in rows))
        durable.write_file(self.output, (format_csv_row(line).encode() for line in lines))
