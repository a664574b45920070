"""`eval` and `predict` on tables: evaluate a fine-tuned run on labelled rows, and predict unlabelled ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from lmtool.compute.processes import World, joined
from lmtool.errors import UsageError
from lmtool.inference.base import written_recipe
from lmtool.inference.load import Loaded
from lmtool.recipe.spec import Classification, Seq2Seq
from lmtool.run.find import find
from lmtool.tables.columns import Columns, choose_columns
from lmtool.tables.data import task_names
from lmtool.tables.labels import LabelKind, LabelMap
from lmtool.tables.reading import LabelledText, read_labelled, stream_labelled
from lmtool.tables.results import Results
from lmtool.tables.tasks import AnsweringModel, Cells, Task, build_task
from lmtool.text.prepare import default_cache
from lmtool.text.table import Row, Skipped, Table, open_table

CHUNK_ROWS = 512
"""Rows of a table that are predicted at once."""


def answers_tables(reference: str) -> bool:
    """Whether a run predicts rows of tables; reads no weights."""
    recipe, _ = written_recipe(find(reference))
    return isinstance(recipe.objective, Classification | Seq2Seq)


def measure_tables(loaded: Loaded, sources: Sequence[str], task: str = "") -> Iterator[Results]:
    """Evaluate a fine-tuned model on each table. Raises DataError for a table that does not fit.

    task: one of those that the model was trained on, where there are several.
    """
    with joined(loaded.compute) as world:
        for source in sources:
            table, columns, known = _open(loaded, source, task, labelled=True)
            skips, chat = loaded.recipe.data.skip_bad_rows, loaded.framing.chat
            texts = read_labelled(table, columns, labels=known, skip_bad_rows=skips, chat=chat)
            labels = texts.labels.names if texts.labels is not None and texts.labels.kind == "class" else ()
            asked = build_task(loaded.recipe, loaded.framing, task, columns, labels)
            yield asked.measure(_model(loaded, world), asked.encode(texts.items), "table", loaded.step)


def texts_of_a_row(loaded: Loaded) -> tuple[tuple[str, ...], bool]:
    """The columns of the texts that a fine-tuned model reads, and whether these are conversations.

    Raises UsageError unless the run was fine-tuned on a table.
    """
    data = loaded.recipe.data
    _refuse_others(loaded)
    if data.messages_column is not None:
        return (data.messages_column,), True
    return (data.source_column,) if data.source_column is not None else tuple(data.text_columns) or ("text",), False


@dataclass(frozen=True)
class Predictions:
    """Predictions for the rows of a table, lazily.

    added: names of the columns that `rows` gives values for: the label, then the probability of each class or label.
    """

    table: Table
    added: tuple[str, ...]
    rows: Iterator[tuple[Row, Cells]]


def predict(loaded: Loaded, source: str, *, skipped: Skipped | None = None, task: str = "") -> Predictions:
    """Predict every row of a table, in bounded memory. Bad rows raise, or are skipped and counted in `skipped`.

    task: as for `measure_tables`. Raises UsageError unless the run was fine-tuned on a table, and the errors of tables.
    """
    table, columns, _ = _open(loaded, source, task, labelled=False)
    asked = build_task(loaded.recipe, loaded.framing, task, columns, ())
    rows = stream_labelled(table, columns, skipped=skipped, chat=loaded.framing.chat)
    return Predictions(table, asked.added, _answered(loaded, asked, rows))


def _answered(loaded: Loaded, task: Task, rows: Iterator[tuple[Row, LabelledText]]) -> Iterator[tuple[Row, Cells]]:
    with joined(loaded.compute) as world:
        while chunk := list(islice(rows, CHUNK_ROWS)):
            answers = task.answer(_model(loaded, world), task.encode([item for _, item in chunk]))
            yield from zip((row for row, _ in chunk), answers, strict=True)


def _model(loaded: Loaded, world: World) -> AnsweringModel:
    return AnsweringModel(loaded.model, loaded.objective, loaded.compute, world)


def _open(loaded: Loaded, source: str, task: str, *, labelled: bool) -> tuple[Table, Columns, LabelMap | None]:
    """A table, its columns as in training, and the labels that are known."""
    spec, data = loaded.recipe.objective, loaded.recipe.data
    _refuse_others(loaded)
    names = task_names(data)
    if task not in names:
        known = " or ".join(filter(None, names))
        raise UsageError(
            f"the run has no task {task!r:.40}" if task else "the run was trained on several tasks",
            where=str(loaded.run_path),
            fix=f"name one: --task {known}" if known else "omit --task: it was trained on one table",
        )
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = choose_columns(
        table,
        text_columns=data.text_columns,
        label_column=data.label_column if labelled else None,
        source_column=data.source_column,
        target_column=data.target_column if labelled else None,
        input_column=data.input_column if data.input_column in table.names else None,
        messages_column=data.messages_column,
        labelled=labelled,
    )
    return (
        table,
        columns,
        LabelMap(cast(LabelKind, spec.task), spec.labels) if isinstance(spec, Classification) else None,
    )


def _refuse_others(loaded: Loaded) -> None:
    """Raise UsageError unless the run was fine-tuned on a table."""
    if not isinstance(loaded.recipe.objective, Classification | Seq2Seq):
        raise UsageError(
            "this run cannot predict tables: it was not fine-tuned on one",
            where=str(loaded.run_path),
            fix="run lmtool finetune first, or name another run",
        )
