"""`eval` and `predict` on tables: evaluate a fine-tuned run on labelled rows, and predict unlabelled ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from lmtool.compute.processes import World, joined
from lmtool.errors import UsageError
from lmtool.inference.base import written_recipe
from lmtool.inference.load import Loaded
from lmtool.recipe.spec.objective import Classification, HeadSpec, QuestionAnswering, Seq2Seq, Tagging
from lmtool.run.directory import Run
from lmtool.run.find import find
from lmtool.tables.columns import Columns, choose_columns
from lmtool.tables.data import kind_of_rows, task_names
from lmtool.tables.labels import LabelKind, LabelMap
from lmtool.tables.reading import LabelledText, read_labelled, stream_labelled
from lmtool.tables.results import Results
from lmtool.tables.spans import SpanTask
from lmtool.tables.task import AnsweringModel, Cells, Task
from lmtool.tables.tasks import build_task
from lmtool.text.prepare import default_cache
from lmtool.text.table import Row, Skipped, Table, open_table

CHUNK_ROWS = 512
"""Rows of a table that are predicted at once."""


def answers_tables(reference: str) -> bool:
    """Whether a run predicts rows of tables; reads no weights."""
    recipe, _ = written_recipe(find(reference))
    return isinstance(recipe.objective, HeadSpec | Seq2Seq)


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
            asked = task_of(loaded, task, columns, labels)
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

    added: names of the columns that `rows` gives values for: the label, then the probability of each class or label;
    the tags of words, or an answer, its first character and the score of the null span.
    """

    table: Table
    added: tuple[str, ...]
    rows: Iterator[tuple[Row, Cells]]


def predict(loaded: Loaded, source: str, *, skipped: Skipped | None = None, task: str = "") -> Predictions:
    """Predict every row of a table, in bounded memory. Bad rows raise, or are skipped and counted in `skipped`.

    task: as for `measure_tables`. Raises UsageError unless the run was fine-tuned on a table, and the errors of tables.
    """
    table, columns, _ = _open(loaded, source, task, labelled=False)
    asked = task_of(loaded, task, columns, ())
    rows = stream_labelled(table, columns, skipped=skipped, chat=loaded.framing.chat)
    return Predictions(table, asked.added, _answered(loaded, asked, rows))


@dataclass(frozen=True)
class Judgement:
    """The answer of a classifier. label: the class, the labels, or the number. probabilities: by class or label."""

    label: str
    probabilities: dict[str, float]


def classify(loaded: Loaded, rows: Sequence[tuple[str, ...]]) -> list[Judgement]:
    """The answers of a fine-tuned classifier for the texts of rows, of the columns that `texts_of_a_row` names.

    Raises UsageError for a run that was not fine-tuned on labels.
    """
    if not isinstance(loaded.recipe.objective, Classification):
        raise UsageError(
            "this run does not classify: it was not fine-tuned on labels",
            where=str(loaded.run_path),
            fix="run lmtool finetune on a table with labels, or name another run",
        )
    asked = task_of(loaded, "", Columns(texts_of_a_row(loaded)[0]), ())
    items = [LabelledText(texts, None, None, row) for row, texts in enumerate(rows)]
    with joined(loaded.compute) as world:
        found = asked.answer(_model(loaded, world), asked.encode(items))
    names = [name.removeprefix("p_") for name in asked.added[1:]]
    return [
        Judgement(str(label), dict(zip(names, (float(str(p)) for p in probabilities), strict=True)))
        for label, *probabilities in found
    ]


def task_of(loaded: Loaded, name: str, columns: Columns, labels: tuple[str, ...]) -> Task:
    """The task that a model was fine-tuned on, with what its validation rows have decided. See `build_task`."""
    task = build_task(loaded.recipe, loaded.framing, name, columns, labels)
    spec = loaded.recipe.objective
    if isinstance(task, SpanTask) and cast(QuestionAnswering, spec).null_threshold is None:
        decided = Run.open(loaded.run_path).all_results.get("", {}).get("null_threshold")
        task.threshold = math.inf if decided is None else decided
    return task


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
        kind=kind_of_rows(spec),
    )
    match spec:
        case Classification():
            return table, columns, LabelMap(cast(LabelKind, spec.task), spec.labels)
        case Tagging():
            return table, columns, LabelMap("tags", spec.labels)
    return table, columns, None


def _refuse_others(loaded: Loaded) -> None:
    """Raise UsageError unless the run was fine-tuned on a table."""
    if not isinstance(loaded.recipe.objective, HeadSpec | Seq2Seq):
        raise UsageError(
            "this run cannot predict tables: it was not fine-tuned on one",
            where=str(loaded.run_path),
            fix="run lmtool finetune first, or name another run",
        )
