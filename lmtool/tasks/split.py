"""Holding out a part of a table: stratified, seeded, and restored from what a run saved."""

from typing import Any, cast

import numpy as np

from lmtool.data.files import display_path
from lmtool.data.split import hash_document_numbers
from lmtool.errors import CheckpointError, DataError
from lmtool.run.files import TableSplit
from lmtool.tasks.reading import LabelledTexts, count_labels


def hold_out(examples: LabelledTexts, fraction: float, seed: int) -> TableSplit:
    """Hold out a part for testing, stratified and seeded; the same rows whenever table, fraction and seed are the same.

    About `fraction` of the rows of each stratum are held out: at least one row of each stratum with two or more texts,
    and never all. A stratum is a class; the rarest label of a row with several; a decile of numeric labels. Rows with
    equal texts stay in the same part, and so do questions with equal contexts, unless there is only one.
    Raises DataError when no row can be held out.
    """
    held: set[int] = set()
    for members in _shuffled_strata(examples, seed):
        wanted = max(1, round(fraction * sum(map(len, members))))
        taken = 0
        for group in members[:-1]:
            # A large group is skipped where another brings the part closer to its size.
            if taken and taken + len(group) > wanted:
                continue
            held.update(group)
            taken += len(group)
            if taken >= wanted:
                break
    if not held:
        what = "no row can be held out for testing: all have the same text"
        fix = "add rows, or name a test table with --test"
        raise DataError(what, where=display_path(examples.table.path), fix=fix)
    train = [item.row for i, item in enumerate(examples.items) if i not in held]
    test = [examples.items[i].row for i in sorted(held)]
    return TableSplit(table=examples.table.source, train=train, test=test)


def draw_folds(examples: LabelledTexts, n_folds: int, seed: int) -> list[frozenset[int]]:
    """Divide rows into folds of about the same size for cross-validation: the numbers of the rows of each.

    Each fold has about as many rows of each stratum, and rows with equal texts are in the same one, as in `hold_out`.
    There are fewer folds where there are fewer different texts.
    """
    folds: list[set[int]] = [set() for _ in range(n_folds)]
    for members in _shuffled_strata(examples, seed):
        taken = [0] * n_folds
        for group in members:
            least = min(range(n_folds), key=lambda k: (taken[k], len(folds[k])))
            folds[least].update(examples.items[i].row for i in group)
            taken[least] += len(group)
    return [frozenset(fold) for fold in folds if fold]


def divide(examples: LabelledTexts, held: TableSplit) -> tuple[LabelledTexts, LabelledTexts]:
    """The rows for training and those held out. Raises CheckpointError when they are not all rows of the table."""
    rows = {item.row: i for i, item in enumerate(examples.items)}
    if len(held.train) + len(held.test) == len(rows) and {*held.train, *held.test} == rows.keys():
        train, test = (examples.take(sorted(rows[row] for row in part)) for part in (held.train, held.test))
        return train, test
    what = "the saved split does not fit the table"
    fix = "put the table back as it was, or start a new run"
    raise CheckpointError(what, where=display_path(examples.table.path), fix=fix)


def _shuffled_strata(examples: LabelledTexts, seed: int) -> list[list[list[int]]]:
    """For each stratum the indices of its rows, in groups that stay in the same part, in an order drawn by the seed."""
    asks = examples.columns.kind == "questions" and len({item.texts[1] for item in examples.items}) > 1
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, item in enumerate(examples.items):
        groups.setdefault(item.texts[1:] if asks else item.texts, []).append(i)
    strata: dict[Any, list[list[int]]] = {}
    stratum = _strata(examples)
    for group in groups.values():
        strata.setdefault(stratum[group[0]], []).append(group)
    shuffled = []
    for members in strata.values():
        rows = np.array([examples.items[group[0]].row for group in members], dtype=np.uint64)
        shuffled.append([members[i] for i in np.argsort(hash_document_numbers(seed, rows), kind="stable")])
    return shuffled


def _strata(examples: LabelledTexts) -> list[Any]:
    items = examples.items
    match examples.labels.kind if examples.labels else None:
        case "class":
            return [item.label for item in items]
        case "multi":
            counts = count_labels(items)
            names = [cast(tuple[str, ...], item.label) for item in items]
            return [min(label, key=lambda name: (counts[name], name), default="") for label in names]
        case "number":
            order = sorted(range(len(items)), key=lambda i: (cast(float, items[i].label), i))
            tenth = {i: rank * 10 // len(items) for rank, i in enumerate(order)}
            return [tenth[i] for i in range(len(items))]
    return [None] * len(items)
