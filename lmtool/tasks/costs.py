"""Other decisions on a class than for the most probable one."""

from collections.abc import Sequence

import numpy as np

from lmtool.data.files import quote, quote_all
from lmtool.data.table import open_table, parse_label_number
from lmtool.errors import DataError, UsageError
from lmtool.tasks.classification import ClassTask
from lmtool.tasks.task import Floats, Task


def decide_by(task: Task | None, costs: str | None, min_probability: float | None = None) -> None:
    """Let a task predict the class of least expected cost, and none where no class is as probable as this.

    costs: a table; see `read_costs`. Raises UsageError where either is given for another task than of classes, and the
    errors of the table.
    """
    if isinstance(task, ClassTask):
        task.costs_CC = None if costs is None else read_costs(costs, task.labels)
        task.min_probability = min_probability or 0.0
    elif costs is not None or min_probability is not None:
        where = "--min-probability" if costs is None else "--costs"
        raise UsageError("this run does not predict a class", where=where, fix="omit it, or name a run that does")


def read_costs(source: str, labels: Sequence[str]) -> Floats:
    """The costs of a table by true class (down) and predicted class (across), in the order of the labels.

    Its first column names the true class of each row, its header the predicted class of each other column. Raises
    DataError unless each class has a row and a column, and all costs are numbers; and the errors of tables.
    """
    table = open_table(source)
    rows = list(table.rows())
    names = [str(row.values[0]).strip() for row in rows]
    if not sorted(names) == sorted(table.names[1:]) == sorted(labels):
        what, fix = "the costs need a row and a column for each class", f"name {quote_all(labels)} in both"
        raise DataError(what, where=quote(source), fix=fix)
    costs_CC = np.zeros((len(labels), len(labels)))
    for i, j in np.ndindex(costs_CC.shape):
        row, column = rows[names.index(labels[i])], table.names.index(labels[j], 1)
        if (cost := parse_label_number(str(row.values[column]))) is None:
            where = table.file.where(row.number, row.line, column)
            raise DataError("the cost is not a number", where=where, fix="write one; 0 where the class is right")
        costs_CC[i, j] = cost
    return costs_CC
