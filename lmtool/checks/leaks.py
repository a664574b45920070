"""Rows on which a model is measured, and which stand in what it was trained on."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice

import numpy as np

from lmtool.checks.check import is_there
from lmtool.checks.text import BRIEF, WORD, N, overlap
from lmtool.data.corpus import Chunk
from lmtool.data.files import quote
from lmtool.data.prepare import open_train_and_valid
from lmtool.data.survey import no_progress
from lmtool.data.table import SkippedRows
from lmtool.errors import LmtoolError
from lmtool.inference.reference import Reference
from lmtool.printable import counted
from lmtool.recipe.spec.objective import RowSpec
from lmtool.run.directory import Run
from lmtool.run.listing import iterate_ancestors
from lmtool.tasks.build import kind_of_rows
from lmtool.tasks.notices import Notice
from lmtool.tasks.prepare import TaskTables, open_tables
from lmtool.tasks.reading import stream_texts

SHARE = 0.8
"""Share of the words of a row in n-grams of the training text from which it stands there (Touvron et al. 2023)."""

MOST = 8_000_000
"""Characters of the rows that are looked for, of which memory is some 35 times as much."""

TOLD = 3
"""Rows that are shown."""

ROWS = 1000
"""Rows of a training table that are looked through at once."""


def find_leaks(run: Run, texts: Iterable[tuple[str, str]], most: int = BRIEF[0]) -> Iterator[Notice]:
    """Notices of rows that stand in what a run was trained on, or one that it was initialized from.

    Only files that are still there are looked through, and no conversations. texts: of the rows, each after its name.
    most: chunks of a training text that are looked through; a notice says where there are more.
    """
    read = iter(texts)
    rows: list[tuple[str, str]] = []
    for trained in iterate_ancestors(run):
        with suppress(LmtoolError):
            source, chunks = _training_text(trained)
            if not source:
                continue
            # which only files that are there need
            left = MOST - sum(len(text) for _, text in rows)
            while left > 0 and (row := next(read, None)) is not None:
                rows.append(row)
                left -= len(row[1])
            row_W = np.repeat(np.arange(len(rows)), [len(WORD.findall(text.lower())) for _, text in rows])
            shared = overlap(islice(chunks, most), [Chunk([text for _, text in rows])])
            words_R, shared_R = (np.bincount(row_W, by, len(rows)) for by in (None, shared.is_shared_W))
            leaked = [rows[i] for i in np.flatnonzero((shared_R >= SHARE * words_R) & (words_R > 0))]
            is_part = next(chunks, None) is not None
            if leaked or is_part:
                share = f"{len(leaked):,} of {counted(len(rows), 'row')} ({100 * len(leaked) / len(rows):.1f} %)"
                what = f"{share} are in the training text of {trained.name}, {source}: the whole row"
                first = "".join(f"; {name}: {quote(text, 60)}" for name, text in leaked[:TOLD])
                part = f"; only its first {shared.trained:,} words were looked through" * is_part
                text = f"{what}, or of {N} words and more {100 * SHARE:.0f} % of the words, in {N}-grams{first}{part}"
                yield Notice("rows in the training text", len(leaked), text)


def _training_text(run: Run) -> tuple[str, Iterator[Chunk]]:
    """Name and content of the texts or tables that a run was trained on, without rows held out; nothing where they are
    not there any more."""
    recipe = Reference(run).written_recipe()[0]
    data = recipe.data
    if run.info.origin is not None or data.messages_column is not None or not is_there(data):
        return "", iter(())
    if not isinstance(recipe.objective, RowSpec):
        parts, _ = open_train_and_valid(data, seed=recipe.seed, report=no_progress)
        return ", ".join(data.sources), chain.from_iterable(train.chunks() for train, _ in parts)
    tables, split = open_tables(data, kind_of_rows(recipe.objective)), run.saved_split

    def rows_of(one: TaskTables) -> Iterator[str]:
        held = split and split.split_of_task(one.name)
        left_out = {*held.test} if held else ()
        rows = stream_texts(one.table, one.columns, SkippedRows())
        return (" ".join(item.texts) for _, item in rows if item.row not in left_out)

    texts = chain.from_iterable(map(rows_of, tables))
    chunks = map(Chunk, iter(lambda: list(islice(texts, ROWS)), []))
    return ", ".join(one.table.path.name for one in tables), chunks
