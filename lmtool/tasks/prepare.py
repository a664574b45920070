"""Reads the tables that a recipe names into rows for training, validation and testing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.notices import Notice
from lmtool.data.rowfile import find_matching_column
from lmtool.data.table import SkippedRowCounts, Table, open_table, parse_float_or_nonfinite
from lmtool.errors import DataError, UsageError
from lmtool.objective import build_objective
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, Seq2Seq, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data, TokenizerFile
from lmtool.runs.files import SavedSplit, TrainTestRowNumbers
from lmtool.tasks.build import build_task, get_default_metric, get_task_class, resolve_objective
from lmtool.tasks.data import TableData, TaskRowSplits
from lmtool.tasks.findings import find_table_problems
from lmtool.tasks.labels import LabelMap, to_label_cell
from lmtool.tasks.reading import (
    LabelledTable,
    find_label_index,
    make_shared_rows_notice,
    read_labelled_table,
    stream_unlabelled_rows,
)
from lmtool.tasks.schema import Columns, RowKind, choose_columns
from lmtool.tasks.split import apply_split, hold_out_stratified
from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer

NOT_HELD_OUT = "validation: the training rows, as none are held out (-s data.valid_fraction=0.1 holds some out)"

MAX_VALIDATIONS_BY_EPOCHS = 20
"""Validations of a run whose recipe counts the epochs between them."""

MAX_SAMPLE_ROWS = 2_000
"""Training rows whose texts a default recipe is chosen by."""

MAX_COUNTED_ROWS = 5_000
"""The classes of larger tables are not counted."""


@dataclass(frozen=True)
class OpenedTaskTables:
    """The tables of one task. The training table is open, the others are paths.

    name: prefix of each source; empty for a single-task model. weight: how often an epoch has each row.
    """

    name: str
    table: Table
    columns: Columns
    valid: str | None
    test: str | None
    weight: float = 1.0

    @cached_property
    def n_labelled_training_rows(self) -> int:
        """The number of rows except those without a label, also bad ones; reads the table once."""
        label = find_label_index(self.table, self.columns)
        if label is None:
            return self.table.n_rows
        records = self.table.file.read_rows_and_faults()
        return sum(1 for _, values, fault in records if fault or to_label_cell(values[label]) != "")


def open_training_tables(data: Data, kind: RowKind | None = "texts") -> list[OpenedTaskTables]:
    """Opens the training table of each task of a recipe, and chooses its columns.

    kind: of the rows of a single table; None infers it. Raises UsageError if the recipe names tables wrongly, and the
    errors of tables.
    """
    if not data.tasks:
        if not data.train:
            fix = "name one: lmtool finetune TABLE; reviews come with lmtool: lmtool finetune data/reviews.csv"
            raise UsageError("no table to train on", fix=fix)
        if len(data.train) != 1 or len(data.valid) > 1:
            raise UsageError("a model is trained on one table", where="data.train", fix="name one, or several tasks")
        valid = data.valid[0] if data.valid else None
        return [OpenedTaskTables("", *_open_table(data.train[0], data, kind), valid, data.test)]
    tests = dict(_split_name_and_file(text, "data.task_tests", "nli:test.csv") for text in data.task_tests)
    tables = parse_tables_and_weights(data)
    if unknown := next((name for name in tests if name not in tables), None):
        raise UsageError(f"no task is named {unknown}", where="data.task_tests", fix=f"name {' or '.join(tables)}")
    return [
        OpenedTaskTables(name, *_open_table(file, data), None, tests.get(name), weight)
        for name, (file, weight) in tables.items()
    ]


def parse_tables_and_weights(data: Data) -> dict[str, tuple[str, float]]:
    """Returns the training table and the weight of each task of a recipe. Raises UsageError for wrong names."""
    tables: dict[str, tuple[str, float]] = {}
    for text in data.tasks:
        name, rest = _split_name_and_file(text, "data.tasks", "nli:train.csv")
        if name in tables:
            raise UsageError(f"two tasks are named {name}", where="data.tasks", fix="give each a name of its own")
        file, _, last = rest.rpartition(":")
        weight = parse_float_or_nonfinite(last) if file else None
        tables[name] = (file, weight) if weight is not None and 0 < weight < math.inf else (rest, 1.0)
    return tables


def sample_texts(tables: OpenedTaskTables, skip_bad_rows: bool) -> list[str]:
    """Returns the joined texts of each of the first training rows. Raises a RowError as `read_labelled_table` does."""
    rows = stream_unlabelled_rows(tables.table, tables.columns, SkippedRowCounts() if skip_bad_rows else None)
    return ["\n".join(item.texts) for _, item in islice(rows, MAX_SAMPLE_ROWS)]


def mean_rows_per_class_or_zero(tables: OpenedTaskTables, data: Data) -> float:
    """Returns the mean number of training rows of a class.

    Returns 0 if rows have not one class each, if there are MAX_COUNTED_ROWS or more, and if rows are bad, which raise
    an error when they are read for training.
    """
    columns = tables.columns
    if columns.label is None or columns.has_targets or tables.n_labelled_training_rows >= MAX_COUNTED_ROWS:
        return 0.0
    try:
        rows = read_labelled_table(tables.table, columns, skip_bad_rows=data.skip_bad_rows, merges=data.merge_labels)
    except DataError:
        return 0.0
    has_classes = rows.labels is not None and rows.labels.kind == "class"
    return len(rows) / len(rows.count_classes()) if has_classes else 0.0


def _open_table(source: str, data: Data, kind: RowKind | None = "texts") -> tuple[Table, Columns]:
    table = open_table(source, data)
    return table, choose_columns(table, data, kind=kind)


def _split_name_and_file(name_colon_file: str, recipe_key: str, example: str) -> tuple[str, str]:
    name, _, file = name_colon_file.partition(":")
    if not (name and file):
        raise UsageError(f"{name_colon_file!r:.60} is not NAME:FILE", where=recipe_key, fix=f"write {example}")
    return name, file


@dataclass(frozen=True)
class LabelledTablesByPart:
    """The texts of one task's tables by part. notices: of all parts. split: to save; None if none was drawn."""

    tables: OpenedTaskTables
    parts: dict[str, LabelledTable]
    notices: list[Notice]
    split: TrainTestRowNumbers | None

    @property
    def train(self) -> LabelledTable:
        return self.parts["train"]

    @property
    def held_out(self) -> dict[str, LabelledTable]:
        """The rows that are not for training, by part."""
        return {name: part for name, part in self.parts.items() if name != "train"}

    @property
    def merge_summaries(self) -> list[str]:
        """A line for each table some of whose labels were replaced."""
        return list(dict.fromkeys(part.merge_summary for part in self.parts.values() if part.merge_summary))

    def encode(self, recipe: Recipe, prompt_format: PromptFormat) -> TaskRowSplits:
        """Encodes the rows of all parts as token ids."""
        name, labels = self.tables.name, self.train.labels
        classes = labels.names if labels is not None and labels.kind == "class" else ()
        task = build_task(recipe, prompt_format, name, self.tables.columns, classes)
        encoded = {part: task.encode(texts.items) for part, texts in self.parts.items()}
        warnings = list(dict.fromkeys(map(str, self.notices)))
        for part, rows in encoded.items():
            if n_truncated := len({row.number for row in rows if row.is_truncated}):
                n_rows, context = len(self.parts[part]), recipe.model.context
                warnings.append(f"{n_truncated:,} of {n_rows:,} {part} rows are truncated to the context of {context}")
        validates_on_train = "validation" not in self.parts
        held_out = [NOT_HELD_OUT] if validates_on_train else []
        held_out += [f"{part}: {format_count(len(texts), 'row')}" for part, texts in self.held_out.items()]
        table_line = f"{f'task {name}' if name else 'table'}: {self.train.describe()}; {', '.join(held_out)}"
        lines = [self.tables.columns.describe(), table_line, *self.merge_summaries]
        train = encoded["train"]
        if len(train) > len(self.train):
            lines.append(f"windows: {len(train):,} of {len(self.train):,} training rows, whose contexts are long")
        measured = self.parts.get("test", self.parts.get("validation"))
        # Labels of vectors only say which are similar; tags are not cross-validated.
        has_baseline = labels is not None and not isinstance(recipe.objective, Embedding)
        if measured is None:
            has_baseline = has_baseline and len(self.train) > 1 and not isinstance(recipe.objective, Tagging)
        return TaskRowSplits(
            task,
            self.tables.weight,
            train,
            encoded.get("validation", train),
            encoded.get("test"),
            labelled=(self.train, measured) if has_baseline else None,
            texts=self.train if validates_on_train else None,
            description_lines=lines,
            warnings=[f"{name}: {text}" if name else text for text in warnings],
        )


def read_and_encode_tables(
    recipe: Recipe,
    tasks: Sequence[OpenedTaskTables],
    tokenizer: Tokenizer | None,
    saved_split: SavedSplit | None = None,
    label_order: Sequence[str] = (),
) -> tuple[Recipe, TableData]:
    """Reads the tables of all tasks and encodes their rows.

    Returns the recipe with what is inferred from the tables, and the rows.

    Args:
        tokenizer: of the run that is fine-tuned; None trains one on the texts.
        saved_split: the rows held out by an earlier session of the run.
        label_order: labels of another run, whose order is kept if they are the same, so that its head can be.

    Raises:
        UsageError: for a recipe that does not fit the tables. And the errors of tables.
    """
    _refuse_unsuitable_tables(recipe, tasks)
    if not recipe.data.tasks:
        data = recipe.data.with_unvalidated_values(_to_data_column_keys(tasks[0].columns))
        recipe = recipe.with_unvalidated_values({"data": data})
    if tokenizer is None and isinstance(recipe.tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(recipe.tokenizer.path)
    chat = None if tokenizer is None else PromptFormat.from_recipe(recipe, tokenizer).chat
    names = recipe.objective.labels if isinstance(recipe.objective, Classification | Tagging) else ()
    if len({*names}) < len(names):
        twice = quote(max(names, key=names.count), 40)
        raise UsageError(f"the label {twice} is named twice", where="objective.labels", fix="name each label once")
    kind = get_task_class(recipe.objective).get_label_kind(recipe.objective, tasks[0].columns)
    labels = LabelMap(kind, names) if kind is not None and names else None
    texts_of_tasks = []
    for task in tasks:
        saved = None if saved_split is None else saved_split.split_of_task(task.name)
        texts = read_and_split_task_tables(task, recipe, labels, saved, chat, label_order)
        if saved is None:
            texts.notices.extend(find_table_problems(texts.train, texts.held_out, tokenizer, None, brief=True))
        texts_of_tasks.append(texts)
    recipe = recipe.with_unvalidated_values({"objective": resolve_objective(recipe.objective, texts_of_tasks[0].train)})
    if recipe.evaluation.metric == "auto":
        recipe = recipe.with_unvalidated_values({"evaluation.metric": get_default_metric(recipe.objective)})
    if tokenizer is None:
        assert not isinstance(recipe.tokenizer, TokenizerFile)
        get_texts = get_task_class(recipe.objective).get_tokenizer_texts
        items = ((texts.tables, item) for texts in texts_of_tasks for item in texts.train.items)
        corpus = chain.from_iterable(get_texts(tables.name, tables.columns, item) for tables, item in items)
        tokenizer = Tokenizer.train(recipe.tokenizer, corpus)
    prompt_format = PromptFormat.from_recipe(recipe, tokenizer)
    rows = [texts.encode(recipe, prompt_format) for texts in texts_of_tasks]
    recipe = _with_steps_intervals_and_vocab_size(
        recipe, sum(round(task.weight * len(task.train)) for task in rows), tokenizer
    )
    metric, spec, known = recipe.evaluation.metric, recipe.objective, ("loss", *rows[0].task.metrics)
    if metric not in known:
        kind_of = f"labels of kind {spec.task}" if isinstance(spec, Classification) else f"objective {spec.kind}"
        what = f"the metric {metric} is not for {kind_of}"
        raise UsageError(what, where="evaluation.metric", fix=f"use {' or '.join(known)}")
    splits = {texts.tables.name: texts.split for texts in texts_of_tasks if texts.split is not None}
    return recipe, TableData(
        prompt_format,
        build_objective(recipe, tokenizer),
        rows,
        SavedSplit(splits.get("", splits)) if splits else None,
        recipe.training.batch_size,
        recipe.seed,
    )


def _refuse_unsuitable_tables(recipe: Recipe, tasks: Sequence[OpenedTaskTables]) -> None:
    """Raises UsageError or DataError for tables that the model of a recipe cannot learn from."""
    spec = recipe.objective
    for task in tasks:
        where = f"{display_path(task.table.path)}, column {quote(task.columns.messages or '')}"
        if task.columns.messages is not None and task.name:
            raise DataError("conversations are for one table, not for tasks", where=where, fix="name it as TABLE")
        if task.columns.messages is not None and (not isinstance(spec, Seq2Seq) or recipe.model.reads != "past"):
            what = f"a {recipe.model.title} with objective {spec.kind} does not read conversations"
            fix = "fine-tune a decoder with --from, or name columns with --source-column and --target-column"
            raise DataError(what, where=where, fix=fix)
        if recipe.data.tasks and isinstance(spec, HeadSpec | Embedding):
            what = "a classifier is trained on one labelled table"
            if isinstance(spec, Embedding):
                what = "vectors of texts are trained on one table"
            raise UsageError(what, where="data.train", fix="name one table")
        if isinstance(spec, Classification) and task.columns.target is not None:
            what = f"{task.columns.describe()}: a target text, but a classifier needs a label"
            fix = "name the label with --label-column, or train a text-to-text model: see lmtool recipes ls"
            raise DataError(what, where=str(task.table.path), fix=fix)


def check_tables(
    recipe: Recipe, tasks: Sequence[OpenedTaskTables], tokenizer: Tokenizer | None, bytes_per_token: float | None
) -> tuple[list[str], list[Notice]]:
    """Returns lines that describe tables, and all notices about them; see `find_table_problems`.

    Without a validation table it holds out the rows that a run of the recipe would. Raises the errors of tables.
    """
    lines: list[str] = []
    notices: list[Notice] = []
    for task in tasks:
        texts = read_and_split_task_tables(task, recipe, None, None, None)
        problems = find_table_problems(texts.train, texts.held_out, tokenizer, bytes_per_token, brief=False)
        notices += [*texts.notices, *problems]
        parts = [f"{name}: {part.describe()}" for name, part in texts.parts.items()]
        parts += [] if "validation" in texts.parts else [NOT_HELD_OUT]
        lines += [task.table.describe(), task.columns.describe(), "; ".join(parts), *texts.merge_summaries]
    return lines, list(dict.fromkeys(notices))


def read_and_split_task_tables(
    task: OpenedTaskTables,
    recipe: Recipe,
    labels: LabelMap | None,
    saved_split: TrainTestRowNumbers | None,
    chat: ChatFormat | None,
    label_order: Sequence[str] = (),
) -> LabelledTablesByPart:
    """Reads the rows for training, validation and testing; holds out a part unless a validation table is given.

    labels: the known ones. saved_split: the rows that are held out, if they are known. chat: checks conversations.
    label_order: see `read_and_encode_tables`.
    """
    data = recipe.data
    kind = get_task_class(recipe.objective).get_label_kind(recipe.objective, task.columns)
    read_rows = partial(read_labelled_table, skip_bad_rows=data.skip_bad_rows, chat=chat, merges=data.merge_labels)
    train = read_rows(task.table, task.columns, kind=kind, labels=labels)
    if labels is None and train.labels is not None and isinstance(recipe.objective, Classification | Tagging):
        kept = label_order if {*label_order} == {*train.labels.names} else ()
        train = replace(train, labels=train.labels.with_ordered_superset(recipe.objective.labels or kept))
    notices = [*train.notices, *_make_skip_notices(train.skipped)]

    def read_other_table(source: str) -> LabelledTable:
        """Reads another table with the columns and labels of the training table. Raises DataError if it lacks one."""
        keys = _to_data_column_keys(train.columns)
        requested = Data(encoding=data.encoding, delimiter=data.delimiter, **keys)
        table = open_table(source, requested)
        names = chain.from_iterable((value,) if isinstance(value, str) else value or () for value in keys.values())
        if missing := [name for name in names if not find_matching_column(name, table.names)]:
            nouns, train_name = "column" if len(missing) == 1 else "columns", task.table.path.name
            what = f"no {nouns} {quote_all(missing)}, which {train_name} has; found {quote_all(table.names)}"
            fix = f"give both tables the same header: name the columns as in {train_name}"
            raise DataError(what, where=display_path(table.path), fix=fix)
        columns = choose_columns(table, requested, kind=train.columns.kind)
        rows = read_rows(table, columns, labels=train.labels)
        name = Path(source).name
        shared = make_shared_rows_notice(train, rows, name)
        notices.extend([*filter(None, [shared]), *_make_skip_notices(rows.skipped, f" of {name}")])
        return rows

    parts, drawn = {"train": train}, None
    if task.valid:
        parts["validation"] = read_other_table(task.valid)
    elif data.valid_fraction:
        drawn = saved_split or hold_out_stratified(train, data.valid_fraction, recipe.seed)
        parts["train"], parts["validation"] = apply_split(train, drawn)
    if task.test:
        parts["test"] = read_other_table(task.test)
    return LabelledTablesByPart(task, parts, notices, drawn)


def _make_skip_notices(skipped: SkippedRowCounts, of_table: str = "") -> list[Notice]:
    text = str(skipped).replace(":", f"{of_table}:", 1)
    return [Notice("skipped rows", skipped.count, text)] if skipped.count else []


def _to_data_column_keys(columns: Columns) -> dict[str, Any]:
    """Returns the keys of `Data` that name these columns."""
    if columns.messages is not None:
        return {"messages_column": columns.messages}
    if columns.target is not None:
        return {"source_column": columns.texts[0], "target_column": columns.target, "input_column": columns.input}
    return {"text_columns": columns.texts, "label_column": columns.label}


def _with_steps_intervals_and_vocab_size(recipe: Recipe, n_rows: int, tokenizer: Tokenizer) -> Recipe:
    """Returns the recipe with its steps for `n_rows` rows in an epoch, and with the size of the vocabulary."""
    training, steps, every = recipe.training, recipe.training.steps, recipe.evaluation.every
    if training.epochs is not None:
        steps = max(training.min_steps or 1, math.ceil(training.epochs * n_rows / training.batch_size))
    if (epochs := recipe.evaluation.epochs) is not None:
        steps_per_epoch = n_rows / training.batch_size
        every = max(round(epochs * steps_per_epoch), math.ceil(steps / MAX_VALIDATIONS_BY_EPOCHS))
    vocab_size = tokenizer.resolve_embedding_rows(recipe.model.vocab_size)
    values = {"training.steps": steps, "evaluation.every": every, "model.vocab_size": vocab_size}
    return recipe.with_unvalidated_values(values)
