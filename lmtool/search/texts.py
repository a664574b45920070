"""The texts that are indexed: lines of text, and rows of tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from lmtool.data.delimited import FIELD_LIMIT, line_limit
from lmtool.data.files import display, find_files, infer_encoding, split_lines, text_stretches, unpacked_name
from lmtool.data.hub import PREFIX
from lmtool.data.rowfile import ENDINGS, matching_column, missing_column
from lmtool.data.table import AS_INFERRED, Skipped, open_table
from lmtool.recipe.spec.text import Data
from lmtool.search.index import Entry
from lmtool.tables.columns import choose_columns
from lmtool.tables.reading import stream_texts


@dataclass
class TextFiles:
    """The texts of files that are not blank, read anew each time.

    reading: how tables are read. id_column: of tables; without one the id is the file and the line or row, as a.txt:1.
    skipped: bad rows of the last reading.
    """

    sources: Sequence[str]
    reading: Data = AS_INFERRED
    id_column: str | None = None
    skipped: Skipped = field(default_factory=Skipped)

    def __iter__(self) -> Iterator[Entry]:
        """Raises the errors of files and tables."""
        self.skipped = Skipped()
        for source in self.sources:
            for name in [source] if source.startswith(PREFIX) else map(str, find_files(source)):
                is_table = name.startswith(PREFIX) or unpacked_name(Path(name)).endswith(ENDINGS)
                for row_id, text in self._rows(name) if is_table else self._lines(Path(name)):
                    if text.strip():
                        where = display(Path(name))
                        yield Entry(row_id if is_table and self.id_column else f"{where}:{row_id}", where, text.strip())

    def _lines(self, path: Path) -> Iterator[tuple[str, str]]:
        stretches = text_stretches(path, self.reading.encoding or infer_encoding(path), line_limit(FIELD_LIMIT))
        return ((str(i), line) for i, line in enumerate(chain.from_iterable(map(split_lines, stretches)), 1))

    def _rows(self, source: str) -> Iterator[tuple[str, str]]:
        table = open_table(source, self.reading)
        columns = choose_columns(table, self.reading, labelled=False)
        name = matching_column(self.id_column, table.names) if self.id_column else None
        if self.id_column and name is None:
            raise missing_column(self.id_column, table.names, display(table.path), "--id-column")
        for row, item in stream_texts(table, columns, self.skipped if self.reading.skip_bad_rows else None):
            row_id = row.values[table.names.index(name)] if name is not None else row.number
            yield str(row_id), " ".join(item.texts)
