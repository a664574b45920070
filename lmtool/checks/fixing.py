"""A table without the rows that spoil training: `lmtool check --fix`."""

import codecs
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmtool import durable
from lmtool.data.files import display, open_bytes, unpacked_name
from lmtool.data.rowfile import Delimited, JsonLines, TextRows
from lmtool.data.table import write_table
from lmtool.errors import UsageError
from lmtool.inference.embedding import embed
from lmtool.inference.load import Loaded
from lmtool.search.nearest import near_duplicates, unit
from lmtool.tables.findings import duplicates
from lmtool.tables.reading import LabelledTexts, contradictions, rows_in, unordered

TRAIN = "train"


class Removal(NamedTuple):
    """A row for training that is to be removed. reason: the kind of the notice. part, other: the row that it resembles.

    similarity: of their vectors, where these tell it.
    """

    row: int
    reason: str
    part: str
    other: int
    similarity: float | None = None

    def describe(self) -> str:
        """In words."""
        part = "" if self.part == TRAIN else f" of the {self.part} part"
        return f"row {self.row} is nearly row {self.other}{part} ({self.similarity:.3f})"


def removals(parts: Mapping[str, LabelledTexts]) -> Iterator[Removal]:
    """Rows for training with equal texts and other labels, those that are held out too, and those that are duplicates.

    Of rows that contradict each other all, since nobody knows which is right; of duplicates all but the first.
    """
    train = parts[TRAIN]
    for group in contradictions(train.items) if train.labels is not None else ():
        for item in group:
            other = next(one.row for one in group if unordered(one.label) != unordered(item.label))
            yield Removal(item.row, "duplicate rows with different labels", TRAIN, other)
    held = {name: part for name, part in parts.items() if name != TRAIN}
    for name, part in held.items():
        shared = rows_in(train.items, part.items)
        yield from (Removal(item.row, "rows shared by train and test", name, row) for item, row in shared)
    yield from (Removal(item.row, "duplicate rows", TRAIN, row) for item, row in duplicates(train.items))


def near_removals(parts: Mapping[str, LabelledTexts], loaded: Loaded, threshold: float) -> Iterator[Removal]:
    """Rows for training whose vectors are as similar as `threshold` to those of one held out, or an earlier one."""
    named = [(name, item) for name, part in parts.items() for item in part.items]
    named.sort(key=lambda pair: pair[0] == TRAIN)
    n_held = sum(name != TRAIN for name, _ in named)
    embedded = embed(loaded, (" ".join(item.texts) for _, item in named), -1, "own", truncate=True)
    vectors_ND = unit(np.concatenate([one.vectors for one in embedded]))
    for row, other, similarity in near_duplicates(vectors_ND, threshold, n_held):
        (_, item), (name, like) = named[row], named[other]
        if item.texts != like.texts:
            yield Removal(item.row, "nearly equal rows", name, like.row, similarity)


def write_fixed(rows: LabelledTexts, gone: Mapping[int, Removal], path: Path) -> tuple[int, Path]:
    """Write a table without some rows, otherwise as it is, to a new file, and beside it which these are and why.

    Rows that cannot be read are removed too. Returns how many were removed, and the file that lists them.
    Raises UsageError for a file that exists, or has another format; ResourceError where it cannot be written.
    """
    table, log = rows.table, path.with_suffix(".removed.jsonl")
    if not isinstance(table.file, Delimited | JsonLines):
        what, fix = "only delimited text and JSON lines are written anew", "save it as .csv or .jsonl first"
        raise UsageError(what, where=display(table.path), fix=fix)
    if path.suffix != (ending := Path(unpacked_name(table.path)).suffix):
        raise UsageError("the file would be of another format", where=display(path), fix=f"end its name with {ending}")
    if log.exists():
        raise UsageError("the file exists already", where=display(log), fix="choose another name, or remove it")
    faults = ((number, fault) for number, (_, _, fault) in enumerate(table.file.records(), 1) if fault is not None)
    listed = {number: {"row": number, "reason": fault.kind} for number, fault in faults}
    listed |= {number: removal._asdict() for number, removal in gone.items()}
    write_table(path, table, _encoded(table.file, listed))
    lines = (json.dumps(listed[number], ensure_ascii=False) + "\n" for number in sorted(listed))
    durable.write_file(log, "".join(lines).encode())
    return len(listed), log


def _encoded(file: TextRows, gone: Mapping[int, object]) -> Iterator[bytes]:
    """The lines of the other rows, as they are."""
    encode = codecs.getincrementalencoder(file.encoding or "UTF-8")().encode
    with open_bytes(file.path) as raw:
        if raw.read(3) == codecs.BOM_UTF8:
            yield codecs.BOM_UTF8
    begins = chain((line or 0 for line, _, _ in file.records()), [float("inf")])
    begin, row = next(begins), 0
    for number, line in enumerate(file.lines(), 1):
        while number >= begin:
            begin, row = next(begins), row + 1
        if row not in gone:
            yield encode(line)
