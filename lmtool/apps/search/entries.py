"""Reads texts to index from files and tables, and writes search results."""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lmtool.data.corpus import _MAX_CELL_CHARACTERS
from lmtool.data.files import (
    detect_format_suffix,
    display_path,
    find_files,
    name_without_compression,
    read_nonblank_lines,
)
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.rowfile import ROW_FILE_SUFFIXES, find_matching_column, require_matching_column
from lmtool.data.stdin import STDIN
from lmtool.data.table import SkippedRowCounts, count_skipped_or_raise, format_csv_row, open_table
from lmtool.generation.prompts import read_lines
from lmtool.recipe.spec.objective import Embedding
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data
from lmtool.tasks.labels import to_label_cell
from lmtool.tasks.reading import stream_unlabelled_rows
from lmtool.tasks.schema import choose_columns


class Entry(NamedTuple):
    """A text of an index. id: unique in the index. source: its file.

    score: of a search result, its cosine similarity, or the score of a cross-encoder for the query and the text.
    """

    id: str
    source: str
    text: str
    score: float = 0.0


Hits = tuple[str, list[Entry]]
"""A query and its results, the best first."""


def get_text_columns_to_index(recipe: Recipe) -> tuple[str, ...]:
    """Returns the text columns that a run was fine-tuned on; none for a run that relates the texts of a row."""
    data = recipe.data
    if isinstance(recipe.objective, Embedding) and len(data.text_columns) > 1:
        return ()
    return data.text_columns if data.source_column is None else (data.source_column,)


def read_entries(
    sources: Iterable[str], read_options: Data, id_column: str | None = None, default_columns: Sequence[str] = ()
) -> Generator[Entry, None, SkippedRowCounts]:
    """Yields the non-blank lines of text files and of standard input ("-"), and the rows of tables.

    The id of the first line of a.txt is a.txt:1.

    read_options: options for tables; the encoding is for text files too. Its text columns are joined by a space; if it
        names none, `default_columns` of a table that has them, else its `column`.
    id_column: column of ids of a table.

    Returns the bad rows that were skipped. Raises the errors of files and tables.
    """
    skipped = SkippedRowCounts()
    for source in sources:
        for name in [source] if source == STDIN or source.startswith(HUB_PREFIX) else map(str, find_files(source)):
            where, lines = display_path(Path(name)), read_nonblank_lines(Path(name), read_options.encoding)
            if name == STDIN:
                lines = filter(str.strip, read_lines(STDIN, "input", "write a text on each line"))
            has_rows = (
                name_without_compression(Path(name)).endswith(ROW_FILE_SUFFIXES)
                or detect_format_suffix(Path(name)) != ".txt"
            )
            is_table = name.startswith(HUB_PREFIX) or has_rows
            rows: Iterable[tuple[str | int, str]] = enumerate(lines, 1)
            if is_table:
                rows = _iterate_ids_and_texts(name, read_options, id_column, default_columns, skipped)
            yield from (Entry(n if isinstance(n, str) else f"{where}:{n}", where, text) for n, text in rows)
    return skipped


def _iterate_ids_and_texts(
    source: str, read_options: Data, id_column: str | None, default_columns: Sequence[str], skipped: SkippedRowCounts
) -> Iterator[tuple[str | int, str]]:
    """Yields the id of each row of a table, or its number without an id column, and its joined texts."""
    table = open_table(source, read_options, field_limit=_MAX_CELL_CHARACTERS)
    has_defaults = bool(default_columns) and all(find_matching_column(name, table.names) for name in default_columns)
    texts = read_options.text_columns or (tuple(default_columns) if has_defaults else (read_options.column,))
    columns = choose_columns(table, read_options.with_unvalidated_values({"text_columns": texts}), labelled=False)
    where = display_path(table.path)
    ids = None if id_column is None else require_matching_column(id_column, table.names, where, "--id-column")
    counted = skipped if read_options.skip_bad_rows else None
    for row, item in stream_unlabelled_rows(table, columns, counted):
        if text := " ".join(filter(str.strip, item.texts)):
            name = row.number if ids is None else to_label_cell(row.values[table.names.index(ids)])
            if name and not isinstance(name, tuple):
                yield name, text
            else:
                count_skipped_or_raise(
                    table.row_error("no id", "the row has no id", row.number, row.line, ids, "fill it"), counted
                )


def hits_to_json_lines(answers: Iterable[Hits]) -> Iterator[str]:
    """Yields a JSON object for each query."""
    for query, entries in answers:
        yield json.dumps({"query": query, "hits": [entry._asdict() for entry in entries]}) + "\n"


def hits_to_csv(answers: Iterable[Hits]) -> Iterator[str]:
    """Yields a header, and a row for each result."""
    yield format_csv_row(("query", "rank", *Entry._fields))
    for query, entries in answers:
        yield from (format_csv_row((query, rank, *entry)) for rank, entry in enumerate(entries, 1))
