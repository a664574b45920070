"""Writes a table without the rows that spoil training: `lmtool check --fix`."""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path

from lmtool.apps.search.nearest import find_near_duplicates
from lmtool.data.files import display_path
from lmtool.data.rowfile import DelimitedFile, JsonLinesFile
from lmtool.errors import UsageError
from lmtool.evaluation.embedding import embed_to_unit_vectors
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import LoadedModel
from lmtool.storage import durable
from lmtool.tasks.findings import find_rows_equal_to_earlier
from lmtool.tasks.prepare import OpenedTaskTables, open_training_tables, read_and_split_task_tables
from lmtool.tasks.reading import LabelledTable, find_rows_with_texts_among, group_contradictory_rows

RowsByPart = Mapping[str, LabelledTable]
"""Rows by part: "train" first, then the held-out parts."""

Removal = dict[str, str | int | float]
"""Why a row is removed. reason: kind of the notice, or of the fault of an unreadable row. part, other: the row that it
resembles. similarity: of their vectors."""


def open_fixable_table(recipe: Recipe) -> tuple[OpenedTaskTables, DelimitedFile | JsonLinesFile]:
    """Opens the table of a recipe, whose lines can be written again.

    Raises UsageError for several tables and for one of another format, and the errors of tables.
    """
    task, *others = open_training_tables(recipe.data, None)
    file = task.table.file
    if others or not isinstance(file, DelimitedFile | JsonLinesFile):
        what, fix = "only one table of delimited text or JSON lines is fixed", "save it as .csv or .jsonl first"
        raise UsageError(what, where=display_path(file.path), fix=fix)
    return task, file


def write_cleaned_table(
    recipe: Recipe, output_path: Path, removals_log: Path, *, embedding_model: LoadedModel | None, min_similarity: float
) -> int:
    """Writes the table of a recipe to a new file without the rows that spoil training; returns the number of these.

    removals_log: file that lists these rows. embedding_model: also removes rows that are nearly equal, whose vectors
    have at least this cosine similarity. Raises as `open_fixable_table`; ResourceError when a file cannot be written.
    """
    task, file = open_fixable_table(recipe)
    parts = read_and_split_task_tables(task, recipe, None, None, None).parts
    gone = {n: Removal(reason=kind) for n, kind in (parts["train"].skipped.rows or {}).items()}
    gone |= find_training_rows_to_remove(parts)
    if embedding_model is not None:
        held = [(name, item) for name, part in [*parts.items()][1:] for item in part.items]
        named = held + [("train", item) for item in parts["train"].items if item.row not in gone]
        vectors_ND = embed_to_unit_vectors(embedding_model, (" ".join(item.texts) for _, item in named))
        for row, other, similarity in find_near_duplicates(vectors_ND, min_similarity, len(held)):
            part, like = named[other]
            removal = Removal(reason="nearly equal rows", part=part, other=like.row, similarity=similarity)
            gone[named[row][1].row] = removal
    begins = [line or 0 for line, _, _ in file.read_rows_and_faults()]
    kept = (line for n, line in enumerate(file.lines(), 1) if bisect_right(begins, n) not in gone)
    durable.write_file(output_path, "".join(kept).encode(file.encoding or "UTF-8"))
    lines = (json.dumps({"row": row, **gone[row]}) + "\n" for row in sorted(gone))
    durable.write_file(removals_log, "".join(lines).encode())
    return len(gone)


def find_training_rows_to_remove(parts: RowsByPart) -> Iterator[tuple[int, Removal]]:
    """Yields training rows that are duplicates, that are held out too, or that have equal texts and other labels.

    Keeps the first of duplicates; removes all contradictory rows, because nobody knows which is right. The last reason
    for a row counts.
    """
    train = parts["train"].items
    for item, row in find_rows_equal_to_earlier(train):
        yield item.row, Removal(reason="duplicate rows", part="train", other=row)
    for name, part in reversed([*parts.items()][1:]):
        for item, row in find_rows_with_texts_among(train, part.items):
            yield item.row, Removal(reason="rows shared by train and test", part=name, other=row)
    for group in group_contradictory_rows(train):
        for item in group:
            other = group[item is group[0]].row
            yield item.row, Removal(reason="duplicate rows with different labels", part="train", other=other)
