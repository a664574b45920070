"""Holds out a part of a table: stratified, seeded, and restored from what a run saved."""

from typing import Any, cast

import numpy as np

from lmtool.data.files import display_path
from lmtool.data.split import hash_document_numbers
from lmtool.errors import CheckpointError, DataError
from lmtool.runs.files import TrainTestRowNumbers
from lmtool.tasks.reading import LabelledTable, RowNumber, count_label_names


def hold_out_stratified(rows: LabelledTable, fraction: float, seed: int) -> TrainTestRowNumbers:
    """Draws the rows to hold out; the same ones whenever table, fraction and seed are the same.

    Holds out about `fraction` of the rows of each stratum: at least one row of each stratum with two or more texts, and
    never all. A stratum is a class; the rarest label of a row with several; a decile of numeric labels. Rows with equal
    texts stay in the same part, and so do questions with equal contexts, unless there is only one context.

    Raises DataError if no row can be held out.
    """
    held_out: set[int] = set()
    for groups in _stratify_and_group_row_indices(rows, seed):
        target = max(1, round(fraction * sum(map(len, groups))))
        n_taken = 0
        for group in groups[:-1]:
            # Skips a large group if it would take the part beyond its size.
            if n_taken and n_taken + len(group) > target:
                continue
            held_out.update(group)
            n_taken += len(group)
            if n_taken >= target:
                break
    if not held_out:
        what = "no row can be held out for testing: all have the same text"
        fix = "add rows, or name a test table with --test"
        raise DataError(what, where=display_path(rows.table.path), fix=fix)
    train = [item.row for i, item in enumerate(rows.items) if i not in held_out]
    test = [rows.items[i].row for i in sorted(held_out)]
    return TrainTestRowNumbers(table=rows.table.source, train=train, test=test)


def draw_stratified_folds(rows: LabelledTable, n_folds: int, seed: int) -> list[frozenset[RowNumber]]:
    """Divides rows into folds of about the same size for cross-validation; returns the row numbers of each fold.

    Each fold has about as many rows of each stratum, and rows with equal texts are in the same one, as in
    `hold_out_stratified`. There are fewer folds if there are fewer different texts.
    """
    folds: list[set[int]] = [set() for _ in range(n_folds)]
    for groups in _stratify_and_group_row_indices(rows, seed):
        n_taken = [0] * n_folds
        for group in groups:
            smallest = min(range(n_folds), key=lambda k: (n_taken[k], len(folds[k])))
            folds[smallest].update(rows.items[i].row for i in group)
            n_taken[smallest] += len(group)
    return [frozenset(fold) for fold in folds if fold]


def apply_split(rows: LabelledTable, split: TrainTestRowNumbers) -> tuple[LabelledTable, LabelledTable]:
    """Returns training and held-out rows. Raises CheckpointError unless the split has exactly the rows of the table."""
    index = {item.row: i for i, item in enumerate(rows.items)}
    if len(split.train) + len(split.test) == len(index) and {*split.train, *split.test} == index.keys():
        train, test = (rows.select_rows(sorted(index[row] for row in part)) for part in (split.train, split.test))
        return train, test
    what = "the saved split does not fit the table"
    fix = "put the table back as it was, or start a new run"
    raise CheckpointError(what, where=display_path(rows.table.path), fix=fix)


def _stratify_and_group_row_indices(rows: LabelledTable, seed: int) -> list[list[list[int]]]:
    """Returns the row indices of each stratum, in groups that stay in the same part, shuffled by the seed."""
    by_context = rows.columns.kind == "questions" and len({item.texts[1] for item in rows.items}) > 1
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, item in enumerate(rows.items):
        groups.setdefault(item.texts[1:] if by_context else item.texts, []).append(i)
    items, strata = rows.items, dict[Any, list[list[int]]]()
    match rows.labels.kind if rows.labels else None:
        case "class":
            stratum_of_row: list[Any] = [item.label for item in items]
        case "multi":
            counts = count_label_names(items)
            names = [cast(tuple[str, ...], item.label) for item in items]
            stratum_of_row = [min(label, key=lambda name: (counts[name], name), default="") for label in names]
        case "number":
            order = sorted(range(len(items)), key=lambda i: (cast(float, items[i].label), i))
            decile = {i: rank * 10 // len(items) for rank, i in enumerate(order)}
            stratum_of_row = [decile[i] for i in range(len(items))]
        case _:
            stratum_of_row = [None] * len(items)
    for group in groups.values():
        strata.setdefault(stratum_of_row[group[0]], []).append(group)
    shuffled = []
    for members in strata.values():
        numbers = np.array([rows.items[group[0]].row for group in members], dtype=np.uint64)
        shuffled.append([members[i] for i in np.argsort(hash_document_numbers(seed, numbers), kind="stable")])
    return shuffled
