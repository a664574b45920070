"""Evaluates fine-tuned runs on labelled tables, and predicts unlabelled ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Self, cast

from lmtool.arrays import Floats
from lmtool.data.files import quote
from lmtool.data.rowfile import find_matching_column
from lmtool.data.table import Row, SkippedRowCounts, Table, open_table
from lmtool.errors import UsageError
from lmtool.interop.resolve import resolve_reference
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, RowSpec, Seq2Seq, Tagging
from lmtool.recipe.spec.text import Data
from lmtool.runs.directory import Run
from lmtool.runs.load import LoadedModel
from lmtool.runs.reference import with_unset_calibration_filled
from lmtool.tasks.build import build_task, get_row_kind, get_task_class
from lmtool.tasks.classification import set_decision_rule
from lmtool.tasks.embedding import with_inferred_or_checked_loss
from lmtool.tasks.heads import HeadTask
from lmtool.tasks.labels import LabelKind, LabelMap
from lmtool.tasks.reading import LabelledRow, LabelledTable, read_labelled_table, stream_unlabelled_rows
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.task import Cells, ModelWithObjective, Prediction, Task
from lmtool.tokenization.tokenizer import find_word_spans

AS_IN_TRAINING = Data()
"""Tables are read as in training."""

CHUNK_ROWS = 512
"""Rows of a table that are predicted at once."""


def can_predict_tables(reference: str) -> bool:
    """Returns whether a run predicts rows of tables; reads no weights."""
    recipe, _ = resolve_reference(reference).read_unverified_or_checkpoint_recipe()
    return isinstance(recipe.objective, RowSpec)


def evaluate_tables(
    loaded: LoadedModel,
    sources: Sequence[str],
    task_name: str = "",
    read_options: Data = AS_IN_TRAINING,
    skipped: SkippedRowCounts | None = None,
    cost_table_path: str | None = None,
    print_line: Callable[[str], None] = lambda line: None,
) -> Iterator[Results]:
    """Evaluates a fine-tuned model on each table. Raises DataError for a table that does not fit.

    Args:
        task_name: name of one of several tasks that the model was trained on.
        read_options: overrides those of training. Columns are inferred if a table lacks those of training.
        skipped: counts skipped bad rows.
        cost_table_path: table of costs, see `set_decision_rule`.
        print_line: called with a line about inferred columns.
    """
    with loaded.join_process_group_once() as loaded:
        for source in sources:
            rows, task_of_table = read_labelled_rows_and_task(loaded, source, task_name, read_options)
            if skipped is not None:
                skipped.kinds.update(rows.skipped.kinds)
            if rows.columns.are_inferred:
                print_line(rows.columns.describe())
            set_decision_rule(task_of_table, cost_table_path)
            encoded = task_of_table.encode(rows.items)
            results = task_of_table.compute_results(make_model_with_objective(loaded), encoded, "table", loaded.step)
            yield replace(results, items=rows.items)


def read_labelled_rows_and_task(
    loaded: LoadedModel, source: str, task_name: str = "", read_options: Data = AS_IN_TRAINING
) -> tuple[LabelledTable, Task]:
    """Reads the labelled rows of a table; returns them, and the task by which the model predicts them.

    task_name, read_options: as for `evaluate_tables`.
    """
    spec, data, labels, kind = loaded.recipe.objective, loaded.recipe.data, None, None
    if isinstance(spec, Embedding):
        # The rows need not be of the kind that trained the model.
        table, requested = open_table_in_training_format(source, data, read_options), read_options
        trained = tuple(filter(None, (*data.text_columns, data.label_column)))
        if trained and all(find_matching_column(name, table.names) for name in trained):
            requested = _override(data, read_options)
        columns = trained_columns = choose_columns(table, requested, kind="related")
        kind = get_task_class(spec).get_label_kind(spec, columns)
        spec = with_inferred_or_checked_loss(spec.with_unvalidated_values({"loss": "auto"}), columns)
        loaded = replace(loaded, recipe=loaded.recipe.with_unvalidated_values({"objective": spec}))
    else:
        table, columns, trained_columns = _open_with_trained_columns(
            loaded, source, task_name, read_options, labelled=True
        )
        if isinstance(spec, Classification | Tagging):
            label_kind = cast(LabelKind, spec.task) if isinstance(spec, Classification) else "tags"
            labels = LabelMap(label_kind, spec.labels)
    rows = read_labelled_table(
        table,
        columns,
        kind=kind,
        labels=labels,
        skip_bad_rows=data.skip_bad_rows or read_options.skip_bad_rows,
        chat=loaded.prompt_format.chat,
        merges=data.merge_labels | read_options.merge_labels,
    )
    classes = rows.labels.names if kind is None and rows.labels is not None and rows.labels.kind == "class" else ()
    return rows, build_task_with_saved_calibration(loaded, task_name, trained_columns, classes)


def predict_labelled_rows(
    loaded: LoadedModel, source: str, task_name: str = "", read_options: Data = AS_IN_TRAINING
) -> tuple[LabelledTable, list[object]]:
    """Predicts the labelled rows of a table; returns the rows and the predictions. Raises as `evaluate_tables` does."""
    _check_can_predict_rows(loaded)
    rows, task_of_table = read_labelled_rows_and_task(loaded, source, task_name, read_options)
    with loaded.join_process_group_once() as loaded:
        cells = task_of_table.predict_cells(make_model_with_objective(loaded), task_of_table.encode(rows.items))
        return rows, [prediction for prediction, *_ in cells]


def get_text_columns(loaded: LoadedModel, read_options: Data = AS_IN_TRAINING) -> tuple[str, ...]:
    """Returns the columns of the texts or conversations that a fine-tuned model reads.

    read_options: as for `evaluate_tables`. Raises UsageError unless the run was fine-tuned on a table.
    """
    _check_can_predict_rows(loaded)
    data = _override(loaded.recipe.data, read_options)
    if data.messages_column is not None:
        return (data.messages_column,)
    return (data.source_column,) if data.source_column is not None else tuple(data.text_columns) or ("text",)


def reads_conversations(loaded: LoadedModel, read_options: Data = AS_IN_TRAINING) -> bool:
    """Whether a fine-tuned model reads conversations."""
    return _override(loaded.recipe.data, read_options).messages_column is not None


class LazyTablePredictions(NamedTuple):
    """Lazy predictions for the rows of a table.

    Args:
        output_columns: names of the cells that `rows` has after each row, see `Task.output_columns`.
        skipped: bad rows among those that were read so far; None if they raise.
        task: that predicts, if a model was fine-tuned; may get another decision rule before `rows` are read.
        columns: describes columns that were inferred because they are not called as in training; else empty.
    """

    table: Table
    output_columns: tuple[str, ...]
    rows: Iterator[tuple[Row, Cells]]
    skipped: SkippedRowCounts | None
    task: Task | None = None
    columns: str = ""


def predict_table_lazily(
    loaded: LoadedModel, source: str, task_name: str = "", read_options: Data = AS_IN_TRAINING
) -> LazyTablePredictions:
    """Predicts every row of a table in bounded memory. Bad rows raise, or are skipped.

    task_name, read_options: as for `evaluate_tables`. Raises UsageError unless the run was fine-tuned on a table, and
    the errors of tables.
    """
    table, columns, trained_columns = _open_with_trained_columns(
        loaded, source, task_name, read_options, labelled=False
    )
    trained_task = build_task_with_saved_calibration(loaded, task_name, trained_columns, ())
    skipped = SkippedRowCounts() if loaded.recipe.data.skip_bad_rows or read_options.skip_bad_rows else None

    def predict_rows() -> Iterator[tuple[Row, Cells]]:
        rows = stream_unlabelled_rows(table, columns, skipped, chat=loaded.prompt_format.chat)
        with loaded.join_process_group_once() as joined:
            while chunk := list(islice(rows, CHUNK_ROWS)):
                encoded = trained_task.encode([item for _, item in chunk])
                cells = trained_task.predict_cells(make_model_with_objective(joined), encoded)
                yield from zip((row for row, _ in chunk), cells, strict=True)

    description = columns.describe() if columns.are_inferred else ""
    return LazyTablePredictions(table, trained_task.output_columns, predict_rows(), skipped, trained_task, description)


@dataclass(frozen=True)
class LabelPredictor:
    """A model that was fine-tuned on classes, numbers, tags or answers. Encoding and prediction are separate steps."""

    loaded: LoadedModel
    task: Task

    @classmethod
    def from_model(cls, loaded: LoadedModel) -> Self:
        """Raises UsageError for a run that was not fine-tuned on labels."""
        if not isinstance(loaded.recipe.objective, HeadSpec):
            what = "this run does not classify: it was not fine-tuned on labels"
            fix = "run lmtool finetune on a table with labels, or name another run"
            raise UsageError(what, where=str(loaded.run_path), fix=fix)
        return cls(loaded, build_task_with_saved_calibration(loaded, "", Columns(get_text_columns(loaded)), ()))

    def encode(self, rows: Sequence[str | tuple[str, ...]]) -> list[EncodedRow]:
        """Encodes rows as token ids, a question as several windows.

        rows: one text, or a tuple of the texts of `get_text_columns`, or of words to tag.
        """
        is_tagger = isinstance(self.loaded.recipe.objective, Tagging)
        items = []
        for number, row in enumerate(rows):
            if isinstance(row, str):
                row = tuple(row[start:stop] for start, stop in find_word_spans(row)) if is_tagger else (row,)
            items.append(LabelledRow(row, None, None, number))
        return self.task.encode(items)

    def compute_probabilities(self, rows: Sequence[EncodedRow]) -> Floats:
        """Computes the probability of each class or label, or the number, for encoded rows (R, C)."""
        task = cast(HeadTask, self.task)
        with self.loaded.join_process_group_once() as loaded:
            scores_RC, _ = task.compute_scores(make_model_with_objective(loaded), rows)
        return task.compute_probabilities(scores_RC)

    def predict(self, rows: Sequence[EncodedRow]) -> list[Prediction]:
        """Predicts encoded rows."""
        with self.loaded.join_process_group_once() as loaded:
            return self.task.predict(make_model_with_objective(loaded), rows)


def build_task_with_saved_calibration(
    loaded: LoadedModel, task_name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """Builds the task that a model was fine-tuned on, with its calibration. See `build_task`."""
    figures = Run.open(loaded.run_path).results_by_task.get("", {})
    recipe = with_unset_calibration_filled(loaded.recipe, figures, loaded.step)
    return build_task(recipe, loaded.prompt_format, task_name, columns, labels)


def make_model_with_objective(loaded: LoadedModel) -> ModelWithObjective:
    """Returns a loaded model as a model for rows."""
    return ModelWithObjective(loaded.model, loaded.objective, loaded.compute)


class _TableWithTrainedColumns(NamedTuple):
    """A table with its columns, and these with the text names of training, which some models read."""

    table: Table
    columns: Columns
    trained_columns: Columns


def _open_with_trained_columns(
    loaded: LoadedModel, source: str, task_name: str, read_options: Data, *, labelled: bool
) -> _TableWithTrainedColumns:
    """Opens a table with its columns as in training unless `read_options` names others. Raises UsageError for a wrong
    task."""
    data = loaded.recipe.data
    _check_can_predict_rows(loaded)
    names = data.task_names
    if task_name not in names:
        known = " or ".join(filter(None, names))
        what = f"the run has no task {task_name!r:.40}" if task_name else "the run was trained on several tasks"
        fix = f"name one: --task {known}" if known else "omit --task: it was trained on one table"
        raise UsageError(what, where=str(loaded.run_path), fix=fix)
    table = open_table_in_training_format(source, data, read_options)
    requested = _override(data, read_options)
    if not labelled:
        requested = requested.with_unvalidated_values({"label_column": None, "target_column": None})
    # A table may lack the columns of training; those that its names or cells show are read then.
    has_trained_text = any(find_matching_column(name, table.names) for name in data.text_columns)
    if data.text_columns and not read_options.text_columns and not has_trained_text:
        requested = requested.with_unvalidated_values({"text_columns": (), "source_column": None})
    for key in ("label_column", "input_column"):
        if getattr(read_options, key) is None and not find_matching_column(getattr(requested, key) or "", table.names):
            requested = requested.with_unvalidated_values({key: None})
    columns = choose_columns(table, requested, labelled=labelled, kind=get_row_kind(loaded.recipe.objective))
    n_texts = len(data.text_columns)
    if n_texts and len(columns.texts) != n_texts:
        what = f"the model reads {format_count(n_texts, 'text')} in a row, not {len(columns.texts)}"
        fix = "give --text-column once for each of them, in this order"
        raise UsageError(what, where=f"trained on {', '.join(map(quote, data.text_columns))}"[:200], fix=fix)
    return _TableWithTrainedColumns(table, columns, replace(columns, texts=data.text_columns) if n_texts else columns)


def open_table_in_training_format(source: str, trained: Data, read_options: Data) -> Table:
    """Opens another table in the format that `read_options` names, else in that of training, or the inferred one if the
    delimiter of training leaves it in one column.

    Raises the errors of tables.
    """
    delimiter = read_options.delimiter or trained.delimiter
    table = open_table(source, read_options.with_unvalidated_values({"delimiter": delimiter}), trained.encoding)
    is_other = read_options.delimiter is None and trained.delimiter is not None and len(table.names) == 1
    return open_table(source, read_options, trained.encoding) if is_other else table


def _override(trained: Data, read_options: Data) -> Data:
    """Returns the data keys of training, overridden by the keys that `read_options` sets."""
    return trained.with_unvalidated_values({key: getattr(read_options, key) for key in read_options.model_fields_set})


def _check_can_predict_rows(loaded: LoadedModel) -> None:
    """Raises UsageError unless the run was fine-tuned on a table and predicts."""
    if not isinstance(loaded.recipe.objective, HeadSpec | Seq2Seq):
        what = "this run cannot predict tables: it was not fine-tuned on one"
        fix = "run lmtool finetune first, or name another run"
        if isinstance(loaded.recipe.objective, Embedding):
            what, fix = "this run gives vectors of texts, and predicts nothing", "run lmtool embed RUN FILES --whole"
        raise UsageError(what, where=str(loaded.run_path), fix=fix)
