"""A table without the rows that spoil training: `lmtool check --fix`."""

import json
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from lmtool import durable
from lmtool.data.files import display
from lmtool.data.rowfile import DelimitedFile, JsonLinesFile
from lmtool.errors import UsageError
from lmtool.inference.load import LoadedModel
from lmtool.recipe.spec.recipe import Recipe
from lmtool.search.index import text_vectors
from lmtool.search.nearest import near_duplicates
from lmtool.tasks.findings import duplicates
from lmtool.tasks.prepare import open_tables, read_task
from lmtool.tasks.reading import LabelledTexts, contradictions, rows_in

RowsByPart = Mapping[str, LabelledTexts]
"""Rows by the part that they are in: "train" first, then those that are held out."""

Removal = dict[str, str | int | float]
"""Why a row is to be removed. reason: the kind of the notice, or of the fault of a row that cannot be read.

part, other: the row that it resembles. similarity: of their vectors, where these tell it.
"""


def write_fixed(recipe: Recipe, path: Path, log: Path, near: tuple[LoadedModel, float] | None) -> int:
    """Write the table that a recipe names to a new file, without the rows that spoil training and otherwise as it is.

    log: a file to list these rows in. near: a model, and from which cosine similarity of its vectors on rows are nearly
    equal. Returns how many rows are left out. Raises UsageError for a table of another format; the errors of tables;
    ResourceError where a file cannot be written.
    """
    task, *others = open_tables(recipe.data, None)
    file = task.table.file
    if others or not isinstance(file, DelimitedFile | JsonLinesFile):
        what, fix = "only one table of delimited text or JSON lines is fixed", "save it as .csv or .jsonl first"
        raise UsageError(what, where=display(file.path), fix=fix)
    parts = read_task(task, recipe, None, None, None).parts
    gone = {n: Removal(reason=kind) for n, kind in (parts["train"].skipped.rows or {}).items()}
    gone |= removals(parts)
    if near is not None:
        gone |= near_removals(parts, gone, *near)
    begins = [line or 0 for line, _, _ in file.read_records()]
    kept = (line for n, line in enumerate(file.lines(), 1) if bisect_right(begins, n) not in gone)
    durable.write_file(path, "".join(kept).encode(file.encoding or "UTF-8"))
    lines = (json.dumps({"row": row, **gone[row]}) + "\n" for row in sorted(gone))
    durable.write_file(log, "".join(lines).encode())
    return len(gone)


def removals(parts: RowsByPart) -> Iterator[tuple[int, Removal]]:
    """Rows for training that are duplicates, those that are held out too, and those with equal texts and other labels.

    Of duplicates all but the first; of rows that contradict each other all, since nobody knows which is right. Of the
    reasons for a row the last counts.
    """
    train = parts["train"].items
    for item, row in duplicates(train):
        yield item.row, Removal(reason="duplicate rows", part="train", other=row)
    for name, part in reversed([*parts.items()][1:]):
        for item, row in rows_in(train, part.items):
            yield item.row, Removal(reason="rows shared by train and test", part=name, other=row)
    for group in contradictions(train):
        for item in group:
            other = group[item is group[0]].row
            yield item.row, Removal(reason="duplicate rows with different labels", part="train", other=other)


def near_removals(parts: RowsByPart, gone: Container[int], loaded: LoadedModel, least: float) -> dict[int, Removal]:
    """Rows for training that remain, and whose vectors are as similar as `least` to one held out, or an earlier one."""
    held = [(name, item) for name, part in [*parts.items()][1:] for item in part.items]
    named = held + [("train", item) for item in parts["train"].items if item.row not in gone]
    near = {}
    vectors_ND = text_vectors(loaded, (" ".join(item.texts) for _, item in named))
    for row, other, similarity in near_duplicates(vectors_ND, least, len(held)):
        part, like = named[other]
        near[named[row][1].row] = Removal(reason="nearly equal rows", part=part, other=like.row, similarity=similarity)
    return near
