"""The table that is labelled: its rows and the labels that it has, and the table with all labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtool import durable
from lmtool.data.files import display, shown
from lmtool.data.rowfile import matching_column
from lmtool.data.table import Row, Skipped, Table, open_table, table_lines
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.tables.columns import choose_columns, named_label
from lmtool.tables.labels import SEPARATOR, as_cell, as_names
from lmtool.tables.reading import stream_texts

MOST_CLASSES = 500
"""Classes that a column of labels may have; what has more is no such column."""

Labels = tuple[str, ...]
"""Of a row: one, or with several labels a row any number."""


@dataclass(frozen=True)
class TableToLabel:
    """A table in memory.

    label: the column of labels, new or not. labels: of the rows, or None. output: the table with all.
    """

    table: Table
    texts: tuple[str, ...]
    label: str
    multi: bool
    rows: list[tuple[Row, tuple[str, ...]]]
    labels: list[Labels | None]
    output: Path

    @classmethod
    def read(
        cls, source: str, reading: Data, multi: bool, skipped: Skipped | None, output: Path | None
    ) -> "TableToLabel":
        """The rows and texts of a table. Raises DataError where no column holds texts, or another one labels."""
        table = open_table(source, reading)
        name = reading.label_column or named_label(table)
        label = None if name is None else matching_column(name, table.names)
        named = reading.with_values({"label_column": label})
        columns = choose_columns(table, named, labelled=label is not None)
        rows = [(row, item.texts) for row, item in stream_texts(table, columns, skipped)]
        where = f"{display(table.path)}, column {shown(name or '')}"
        if not any(text.strip() for _, texts in rows for text in texts):
            raise DataError("no row has a text", where=display(table.path), fix="name a column: --text-column NAME")
        known: list[Labels | None] = [None] * len(rows)
        for i, (row, _) in enumerate(rows if label else ()):
            cell = as_cell(row.values[table.names.index(str(label))])
            if cell is None or (not multi and SEPARATOR in cell):
                what = f"row {row.number} has {'no label' if cell is None else 'several labels'}"
                raise DataError(what, where=where, fix="add --multi, or name another column: --label-column NAME")
            if cell:
                known[i] = as_names(cell) if multi else (str(cell),)
        if len({name for labels in known for name in labels or ()}) > MOST_CLASSES:
            what = f"more than {MOST_CLASSES} different labels"
            raise DataError(what, where=where, fix="name another column, which may be new: --label-column NAME")
        output = output or Path(f"{table.path.name.partition('.')[0]}.labelled.csv")
        return cls(table, columns.texts, label or name or "label", multi, rows, known, output)

    def write(self, labels: Sequence[Labels | None]) -> None:
        """Write all columns and labels, of rows without an answer an empty field, atomically. Raises ResourceError."""
        cells = ["" if names is None else SEPARATOR.join(names) or SEPARATOR for names in labels]
        rows, added = [row for row, _ in self.rows], [self.label]
        values = [[cell] for cell in cells]
        if self.label in self.table.names:
            at = self.table.names.index(self.label)
            pairs = zip(rows, cells, strict=True)
            rows = [row._replace(values=(*row.values[:at], cell, *row.values[at + 1 :])) for row, cell in pairs]
            added, values = [], [[] for _ in rows]
        lines = table_lines(self.table, added, zip(rows, values, strict=True))
        durable.write_file(self.output, (line.encode() for line in lines))
