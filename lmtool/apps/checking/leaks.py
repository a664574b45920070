"""Finds evaluation rows that the training data of a model contain."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice

import numpy as np

from lmtool.apps.checking.check import is_data_on_disk
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.files import quote
from lmtool.data.notices import Notice
from lmtool.data.prepare import open_and_split_texts
from lmtool.data.survey import no_progress
from lmtool.data.table import SkippedRowCounts
from lmtool.data.text_problems import BRIEF_CHUNKS, NGRAM_WORDS, WORD, find_words_in_shared_ngrams
from lmtool.errors import LmtoolError
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import RowSpec
from lmtool.runs.directory import Run
from lmtool.runs.listing import iterate_run_and_ancestors
from lmtool.runs.reference import Reference
from lmtool.tasks.build import get_row_kind
from lmtool.tasks.prepare import OpenedTaskTables, open_training_tables
from lmtool.tasks.reading import stream_unlabelled_rows

MIN_SHARED_FRACTION = 0.8
"""A row is leaked if this fraction of its words is in n-grams of the training text (Touvron et al. 2023)."""

MAX_ROW_CHARACTERS = 8_000_000
"""Limit of the characters of the rows, which need some 35 times as much memory."""

SHOWN_ROWS = 3
"""Leaked rows in a notice."""

ROWS_PER_CHUNK = 1000
"""Rows of a training table that are compared at once."""


def find_rows_in_training_data(
    run: Run, named_texts: Iterable[tuple[str, str]], max_training_chunks: int = BRIEF_CHUNKS[0]
) -> Iterator[Notice]:
    """Yields notices about rows that are in the training data of a run or of its ancestors.

    Reads only files that still exist, and no conversations. named_texts: name and text of each row.
    max_training_chunks: of a training text that are compared; a notice says if there are more.
    """
    read = iter(named_texts)
    rows: list[tuple[str, str]] = []
    for trained in iterate_run_and_ancestors(run):
        with suppress(LmtoolError):
            if (opened := _open_existing_training_text(trained)) is None:
                continue
            source, chunks = opened
            # which only files that are there need
            left = MAX_ROW_CHARACTERS - sum(len(text) for _, text in rows)
            while left > 0 and (row := next(read, None)) is not None:
                rows.append(row)
                left -= len(row[1])
            row_W = np.repeat(np.arange(len(rows)), [len(WORD.findall(text.lower())) for _, text in rows])
            shared = find_words_in_shared_ngrams(
                islice(chunks, max_training_chunks), [MultiDocumentChunk([text for _, text in rows])]
            )
            words_R, shared_R = (np.bincount(row_W, by, len(rows)) for by in (None, shared.is_shared_W))
            leaked = [rows[i] for i in np.flatnonzero((shared_R >= MIN_SHARED_FRACTION * words_R) & (words_R > 0))]
            is_part = next(chunks, None) is not None
            if leaked or is_part:
                share = f"{len(leaked):,} of {format_count(len(rows), 'row')} ({100 * len(leaked) / len(rows):.1f} %)"
                what = f"{share} are in the training text of {trained.name}, {source}: the whole row"
                first = "".join(f"; {name}: {quote(text, 60)}" for name, text in leaked[:SHOWN_ROWS])
                part = f"; only its first {shared.n_trained:,} words were looked through" * is_part
                words = f"{100 * MIN_SHARED_FRACTION:.0f} % of the words, in {NGRAM_WORDS}-grams"
                text = f"{what}, or of {NGRAM_WORDS} words and more {words}{first}{part}"
                yield Notice("rows in the training text", len(leaked), text)


def _open_existing_training_text(run: Run) -> tuple[str, Iterator[MultiDocumentChunk]] | None:
    """Returns name and content of the training data of a run without held-out rows; None if they are gone."""
    recipe = Reference(run).read_unverified_or_checkpoint_recipe()[0]
    data = recipe.data
    if run.info.origin is not None or data.messages_column is not None or not is_data_on_disk(data):
        return None
    if not isinstance(recipe.objective, RowSpec):
        parts, _ = open_and_split_texts(data, seed=recipe.seed, report=no_progress)
        return ", ".join(data.sources), chain.from_iterable(train.chunks() for train, _ in parts)
    tables, split = open_training_tables(data, get_row_kind(recipe.objective)), run.saved_split

    def rows_of(one: OpenedTaskTables) -> Iterator[str]:
        held = split and split.split_of_task(one.name)
        left_out = {*held.test} if held else ()
        rows = stream_unlabelled_rows(one.table, one.columns, SkippedRowCounts())
        return (" ".join(item.texts) for _, item in rows if item.row not in left_out)

    texts = chain.from_iterable(map(rows_of, tables))
    chunks = map(MultiDocumentChunk, iter(lambda: list(islice(texts, ROWS_PER_CHUNK)), []))
    return ", ".join(one.table.path.name for one in tables), chunks
