"""`eval` and `predict` on tables: evaluate a fine-tuned run on labelled rows, and predict unlabelled ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Self, cast

from lmtool.data.files import quote
from lmtool.data.rowfile import find_matching_column
from lmtool.data.table import Row, SkippedRows, Table, open_table
from lmtool.errors import UsageError
from lmtool.inference.load import LoadedModel
from lmtool.inference.reference import resolve_reference
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, RowSpec, Seq2Seq, Tagging
from lmtool.recipe.spec.text import Data
from lmtool.run.directory import Run
from lmtool.tasks.build import build_task, kind_of_rows, task_class, with_decided
from lmtool.tasks.costs import decide_by
from lmtool.tasks.embedding import with_loss
from lmtool.tasks.heads import HeadTask
from lmtool.tasks.labels import LabelKind, LabelMap
from lmtool.tasks.prepare import task_names
from lmtool.tasks.reading import LabelledText, LabelledTexts, read_labelled, stream_texts
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.task import AnsweringModel, Cells, Floats, Prediction, Task
from lmtool.tokenization.tokenizer import find_word_spans

AS_TRAINED = Data()
"""Tables are read as in training."""

CHUNK_ROWS = 512
"""Rows of a table that are predicted at once."""


def answers_tables(reference: str) -> bool:
    """Whether a run predicts rows of tables; reads no weights."""
    recipe, _ = resolve_reference(reference).written_recipe()
    return isinstance(recipe.objective, RowSpec)


def measure_tables(
    loaded: LoadedModel,
    sources: Sequence[str],
    task: str = "",
    reading: Data = AS_TRAINED,
    skipped: SkippedRows | None = None,
    costs: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Results]:
    """Evaluate a fine-tuned model on each table. Raises DataError for a table that does not fit.

    task: one of those that the model was trained on, where there are several. reading: how the tables are read, where
    that is not as in training; columns are inferred where a table has not those of training. skipped: counts bad rows
    that are skipped. costs: as for `decide_by`. tell: called with a line on columns that are inferred.
    """
    with loaded.joined() as loaded:
        for source in sources:
            texts, of_table = read_rows(loaded, source, task, reading)
            if skipped is not None:
                skipped.kinds.update(texts.skipped.kinds)
            if texts.columns.inferred:
                tell(texts.columns.describe())
            decide_by(of_table, costs)
            results = of_table.measure(_model(loaded), of_table.encode(texts.items), "table", loaded.step)
            yield replace(results, items=texts.items)


def read_rows(
    loaded: LoadedModel, source: str, task: str = "", reading: Data = AS_TRAINED
) -> tuple[LabelledTexts, Task]:
    """The labelled rows of a table, and the task by which the model answers them; as for `measure_tables`."""
    spec, skips, labels = loaded.recipe.objective, loaded.recipe.data.skip_bad_rows or reading.skip_bad_rows, None
    if isinstance(spec, Embedding):
        return _read_related(loaded, spec, source, reading)
    if isinstance(spec, Classification | Tagging):
        labels = LabelMap(cast(LabelKind, spec.task) if isinstance(spec, Classification) else "tags", spec.labels)
    table, columns, trained = _open(loaded, source, task, reading, labelled=True)
    merged = loaded.recipe.data.merge_labels | reading.merge_labels
    chat = loaded.prompt_format.chat
    texts = read_labelled(table, columns, labels=labels, skip_bad_rows=skips, chat=chat, merged=merged)
    classes = texts.labels.names if texts.labels is not None and texts.labels.kind == "class" else ()
    return texts, task_of(loaded, task, trained, classes)


def _read_related(loaded: LoadedModel, spec: Embedding, source: str, reading: Data) -> tuple[LabelledTexts, Task]:
    """The rows of a table on which vectors are measured; they need not be of the kind that trained them."""
    data = loaded.recipe.data
    skips = data.skip_bad_rows or reading.skip_bad_rows
    table, named = open_beside(source, data, reading), reading
    trained = tuple(filter(None, (*data.text_columns, data.label_column)))
    if trained and all(find_matching_column(name, table.names) for name in trained):
        named = _laid_over(data, reading)
    columns = choose_columns(table, named, kind="related")
    merged = data.merge_labels | reading.merge_labels
    kind = task_class(spec).label_kind(spec, columns)
    texts = read_labelled(table, columns, kind=kind, skip_bad_rows=skips, merged=merged)
    of_table = with_loss(spec.with_values({"loss": "auto"}), columns)
    loaded = replace(loaded, recipe=loaded.recipe.with_values({"objective": of_table}))
    return texts, task_of(loaded, "", columns, ())


def answer_rows(
    loaded: LoadedModel, source: str, task: str = "", reading: Data = AS_TRAINED
) -> tuple[LabelledTexts, list[object]]:
    """The labelled rows of a table, and what a model fine-tuned on one answers; raises as `measure_tables` does."""
    _refuse_others(loaded)
    texts, of_table = read_rows(loaded, source, task, reading)
    with loaded.joined() as loaded:
        return texts, [cells[0] for cells in of_table.answer(_model(loaded), of_table.encode(texts.items))]


def texts_of_a_row(loaded: LoadedModel, reading: Data = AS_TRAINED) -> tuple[tuple[str, ...], bool]:
    """The columns of the texts that a fine-tuned model reads, and whether these are conversations.

    reading: as for `measure_tables`. Raises UsageError unless the run was fine-tuned on a table.
    """
    _refuse_others(loaded)
    data = _laid_over(loaded.recipe.data, reading)
    if data.messages_column is not None:
        return (data.messages_column,), True
    return (data.source_column,) if data.source_column is not None else tuple(data.text_columns) or ("text",), False


class Predictions(NamedTuple):
    """Predictions for the rows of a table, lazily.

    added: names of the columns that `rows` gives values for: the label, then the probability of each class or label;
    the tags of words, or an answer, its first character and the score of the null span. skipped: bad rows among those
    that were read so far; None where they raise. task: what answers, where a model was fine-tuned on one; may be told
    to decide otherwise before `rows` are read.
    """

    table: Table
    added: tuple[str, ...]
    rows: Iterator[tuple[Row, Cells]]
    skipped: SkippedRows | None
    task: Task | None = None
    columns: str = ""
    """Which columns are read, where they are not called as in training and nobody has named them; else empty."""


def predict(loaded: LoadedModel, source: str, task: str = "", reading: Data = AS_TRAINED) -> Predictions:
    """Predict every row of a table, in bounded memory. Bad rows raise, or are skipped.

    task, reading: as for `measure_tables`. Raises UsageError unless the run was fine-tuned on a table, and the errors
    of tables.
    """
    table, columns, trained = _open(loaded, source, task, reading, labelled=False)
    of_table = task_of(loaded, task, trained, ())
    skipped = SkippedRows() if loaded.recipe.data.skip_bad_rows or reading.skip_bad_rows else None
    rows = stream_texts(table, columns, skipped, chat=loaded.prompt_format.chat)
    answers = _answered(loaded, of_table, rows)
    return Predictions(
        table, of_table.added, answers, skipped, of_table, columns.describe() if columns.inferred else ""
    )


@dataclass(frozen=True)
class TablePredictor:
    """A model that was fine-tuned on classes, numbers, tags or answers. Texts are tokenized first, and read later."""

    loaded: LoadedModel
    task: Task

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """Raises UsageError for a run that was not fine-tuned on labels."""
        if not isinstance(loaded.recipe.objective, HeadSpec):
            what = "this run does not classify: it was not fine-tuned on labels"
            fix = "run lmtool finetune on a table with labels, or name another run"
            raise UsageError(what, where=str(loaded.run_path), fix=fix)
        return cls(loaded, task_of(loaded, "", Columns(texts_of_a_row(loaded)[0]), ()))

    def encode(self, rows: Sequence[str | tuple[str, ...]]) -> list[EncodedRow]:
        """The texts of rows, of the columns that `texts_of_a_row` names, as token ids; of a question several windows.

        A row is one text, or a tuple of its texts, for tags of its words.
        """
        is_tagged = isinstance(self.loaded.recipe.objective, Tagging)
        texts = [row if isinstance(row, tuple) else words_of(row) if is_tagged else (row,) for row in rows]
        return self.task.encode([LabelledText(each, None, None, row) for row, each in enumerate(texts)])

    def probabilities(self, rows: Sequence[EncodedRow]) -> Floats:
        """The probability of each class or label, or the number, for each row (R, C)."""
        task = cast(HeadTask, self.task)
        with self.loaded.joined() as loaded:
            scores_RC, _ = task.scores(_model(loaded), rows)
        return task.probabilities(scores_RC)

    def predict(self, rows: Sequence[EncodedRow]) -> list[Prediction]:
        """The answer for each of the rows that were encoded."""
        with self.loaded.joined() as loaded:
            return self.task.predict(_model(loaded), rows)


def words_of(sentence: str) -> tuple[str, ...]:
    """The words and punctuation marks of a sentence."""
    return tuple(sentence[start:stop] for start, stop in find_word_spans(sentence))


def task_of(loaded: LoadedModel, name: str, columns: Columns, labels: tuple[str, ...]) -> Task:
    """The task that a model was fine-tuned on, with what its validation rows have decided. See `build_task`."""
    figures = Run.open(loaded.run_path).results_by_task.get("", {})
    return build_task(with_decided(loaded.recipe, figures, loaded.step), loaded.prompt_format, name, columns, labels)


def _answered(loaded: LoadedModel, task: Task, rows: Iterator[tuple[Row, LabelledText]]) -> Iterator[tuple[Row, Cells]]:
    with loaded.joined() as loaded:
        while chunk := list(islice(rows, CHUNK_ROWS)):
            answers = task.answer(_model(loaded), task.encode([item for _, item in chunk]))
            yield from zip((row for row, _ in chunk), answers, strict=True)


def _model(loaded: LoadedModel) -> AnsweringModel:
    return AnsweringModel(loaded.model, loaded.objective, loaded.compute)


def _open(
    loaded: LoadedModel, source: str, task: str, reading: Data, *, labelled: bool
) -> tuple[Table, Columns, Columns]:
    """A table with its columns as in training, where `reading` does not name others; and the columns by the names that
    they had in training, which some models read."""
    data = loaded.recipe.data
    _refuse_others(loaded)
    names = task_names(data)
    if task not in names:
        known = " or ".join(filter(None, names))
        what = f"the run has no task {task!r:.40}" if task else "the run was trained on several tasks"
        fix = f"name one: --task {known}" if known else "omit --task: it was trained on one table"
        raise UsageError(what, where=str(loaded.run_path), fix=fix)
    table = open_beside(source, data, reading)
    named = _laid_over(data, reading)
    if not labelled:
        named = named.with_values({"label_column": None, "target_column": None})
    if not _has_trained_texts(table, data, reading):
        named = named.with_values({"text_columns": (), "source_column": None})
    if (
        named.label_column
        and reading.label_column is None
        and not find_matching_column(named.label_column, table.names)
    ):
        named = named.with_values({"label_column": None})
    if reading.input_column is None and not find_matching_column(data.input_column or "", table.names):
        named = named.with_values({"input_column": None})
    columns = choose_columns(table, named, labelled=labelled, kind=kind_of_rows(loaded.recipe.objective))
    n_texts = len(data.text_columns)
    if n_texts and len(columns.texts) != n_texts:
        what = f"the model reads {format_count(n_texts, 'text')} in a row, not {len(columns.texts)}"
        fix = "give --text-column once for each of them, in this order"
        raise UsageError(what, where=f"trained on {', '.join(map(quote, data.text_columns))}"[:200], fix=fix)
    return table, columns, replace(columns, texts=data.text_columns) if n_texts else columns


def _has_trained_texts(table: Table, trained: Data, reading: Data) -> bool:
    """Whether a table has some of the texts of training under their names, or others are named. A model of texts and
    labels takes those that their names or cells tell where it has none."""
    if reading.text_columns or not trained.text_columns:
        return True
    return any(find_matching_column(name, table.names) for name in trained.text_columns)


def open_beside(source: str, trained: Data, reading: Data) -> Table:
    """Another table than that of training. What `reading` does not say of its format is inferred, then as in training.

    Raises the errors of tables.
    """
    delimiter = reading.delimiter or trained.delimiter
    table = open_table(source, reading.with_values({"delimiter": delimiter}), trained.encoding)
    is_other = reading.delimiter is None and trained.delimiter is not None and len(table.names) == 1
    return open_table(source, reading, trained.encoding) if is_other else table


def _laid_over(trained: Data, reading: Data) -> Data:
    """The columns of training, where `reading` does not name others."""
    return trained.with_values({key: getattr(reading, key) for key in reading.model_fields_set})


def _refuse_others(loaded: LoadedModel) -> None:
    """Raise UsageError unless the run was fine-tuned on a table."""
    if not isinstance(loaded.recipe.objective, HeadSpec | Seq2Seq):
        what = "this run cannot predict tables: it was not fine-tuned on one"
        fix = "run lmtool finetune first, or name another run"
        if isinstance(loaded.recipe.objective, Embedding):
            what, fix = "this run gives vectors of texts, and predicts nothing", "run lmtool embed RUN FILES --whole"
        raise UsageError(what, where=str(loaded.run_path), fix=fix)
