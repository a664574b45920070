"""From the tables that a recipe names to rows for training, validation and testing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.rowfile import find_matching_column
from lmtool.data.table import SkippedRows, Table, open_table, parse_float
from lmtool.errors import DataError, UsageError
from lmtool.objective import build_objective
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, Seq2Seq, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data, TokenizerFile
from lmtool.run.files import SavedSplit, TableSplit
from lmtool.tasks.build import build_task, resolve_objective, task_class, usual_metric
from lmtool.tasks.data import TableData, TaskRows
from lmtool.tasks.findings import find_in_tables
from lmtool.tasks.labels import LabelMap, as_cell
from lmtool.tasks.notices import Notice
from lmtool.tasks.reading import LabelledTexts, label_index, read_labelled, shared_rows, stream_texts
from lmtool.tasks.schema import Columns, RowKind, choose_columns
from lmtool.tasks.split import divide, hold_out
from lmtool.tasks.task import Task
from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer

HELD_OUT = "-s data.valid_fraction=0.1"
NONE_HELD = f"validation: the training rows, as none are held out ({HELD_OUT} holds some out)"

MOST_VALIDATIONS = 20
"""Validations of a run whose recipe counts epochs between them."""


@dataclass(frozen=True)
class TaskTables:
    """The tables of one task, of which the training table is open.

    name: prefix of each source; empty for a single-task model. weight: how often an epoch has each row.
    """

    name: str
    table: Table
    columns: Columns
    valid: str | None
    test: str | None
    weight: float = 1.0

    @cached_property
    def n_rows(self) -> int:
        """The number of rows but for those without a label, bad ones included; reads the table once."""
        at = label_index(self.table, self.columns)
        if at is None:
            return self.table.n_rows
        return sum(1 for _, values, fault in self.table.file.read_records() if fault or as_cell(values[at]) != "")


def open_tables(data: Data, kind: RowKind | None = "texts") -> list[TaskTables]:
    """Open the training table of each task that a recipe names, and find its columns.

    kind: of the rows of a single table; None where the table decides.
    Raises UsageError when the recipe names them wrongly, and the errors of tables.
    """
    if not data.tasks:
        if not data.train:
            fix = "name one: lmtool finetune TABLE; reviews come with lmtool: lmtool finetune data/reviews.csv"
            raise UsageError("no table to train on", fix=fix)
        if len(data.train) != 1 or len(data.valid) > 1:
            raise UsageError("a model is trained on one table", where="data.train", fix="name one, or several tasks")
        return [TaskTables("", *_open(data.train[0], data, kind), data.valid[0] if data.valid else None, data.test)]
    tests = dict(_named(text, "data.task_tests", "nli:test.csv") for text in data.task_tests)
    named = tables_of_tasks(data)
    if unknown := next((name for name in tests if name not in named), None):
        raise UsageError(f"no task is named {unknown}", where="data.task_tests", fix=f"name {' or '.join(named)}")
    return [
        TaskTables(name, *_open(file, data), None, tests.get(name), weight) for name, (file, weight) in named.items()
    ]


def tables_of_tasks(data: Data) -> dict[str, tuple[str, float]]:
    """The training table and the weight of each task that a recipe names. Raises UsageError for wrong names."""
    named: dict[str, tuple[str, float]] = {}
    for text in data.tasks:
        name, rest = _named(text, "data.tasks", "nli:train.csv")
        if name in named:
            raise UsageError(f"two tasks are named {name}", where="data.tasks", fix="give each a name of its own")
        file, _, last = rest.rpartition(":")
        weight = parse_float(last) if file else None
        named[name] = (file, weight) if weight is not None and 0 < weight < math.inf else (rest, 1.0)
    return named


def sample_texts(tables: TaskTables, skip_bad_rows: bool, most: int = 2000) -> list[str]:
    """The texts of the first rows of a training table, a row's in one. Raises a RowError as `read_labelled` does."""
    skipped = SkippedRows() if skip_bad_rows else None
    rows = stream_texts(tables.table, tables.columns, skipped)
    return ["\n".join(item.texts) for _, item in islice(rows, most)]


MOST_COUNTED = 5_000
"""Rows of a table from which those of its classes are not counted."""


def rows_per_class(tables: TaskTables, data: Data) -> float:
    """Rows of a class of a training table, the mean; 0 where rows have not one class each, are MOST_COUNTED, or have
    faults, which are told where they are read to be trained on."""
    columns = tables.columns
    if columns.label is None or columns.writes or tables.n_rows >= MOST_COUNTED:
        return 0.0
    try:
        rows = read_labelled(tables.table, columns, skip_bad_rows=data.skip_bad_rows, merged=data.merge_labels)
    except DataError:
        return 0.0
    is_class = rows.labels is not None and rows.labels.kind == "class"
    return len(rows) / len(rows.counts()) if is_class else 0.0


def task_names(data: Data) -> list[str]:
    """Names of the tasks that a run was trained on; one empty name for a single table."""
    return [text.partition(":")[0] for text in data.tasks] or [""]


def _open(source: str, data: Data, kind: RowKind | None = "texts") -> tuple[Table, Columns]:
    table = open_table(source, data)
    return table, choose_columns(table, data, kind=kind)


def _named(text: str, key: str, example: str) -> tuple[str, str]:
    name, _, file = text.partition(":")
    if not (name and file):
        raise UsageError(f"{text!r:.60} is not NAME:FILE", where=key, fix=f"write {example}")
    return name, file


@dataclass(frozen=True)
class _Read:
    """The texts of one task's tables. notices: of all of them. kept: what to save of the split, if there is one."""

    tables: TaskTables
    parts: dict[str, LabelledTexts]
    notices: list[Notice]
    kept: TableSplit | None

    @property
    def train(self) -> LabelledTexts:
        return self.parts["train"]

    @property
    def valid(self) -> LabelledTexts:
        """The rows that choose the checkpoint: those for training where none are held out."""
        return self.parts.get("validation", self.train)

    @property
    def merged(self) -> list[str]:
        """A line for each table some of whose labels were read as others."""
        return list(dict.fromkeys(part.merged for part in self.parts.values() if part.merged))

    @property
    def held(self) -> dict[str, LabelledTexts]:
        """The rows that are not for training, by part."""
        return {name: part for name, part in self.parts.items() if name != "train"}

    def encode(self, recipe: Recipe, prompt_format: PromptFormat) -> tuple[TaskRows, list[str], list[str]]:
        """The rows as token ids, and the lines and the warnings about them."""
        name, labels = self.tables.name, self.train.labels
        classes = labels.names if labels is not None and labels.kind == "class" else ()
        task = build_task(recipe, prompt_format, name, self.tables.columns, classes)
        encoded = {key: task.encode(texts.items) for key, texts in self.parts.items()}
        warnings = list(dict.fromkeys(map(str, self.notices)))
        for key, rows in encoded.items():
            if n_cut := len({row.number for row in rows if row.cut}):
                n_rows, context = len(self.parts[key]), recipe.model.context
                warnings.append(f"{n_cut:,} of {n_rows:,} {key} rows are truncated to the context of {context}")
        held = [f"{key}: {format_count(len(texts), 'row')}" for key, texts in self.held.items()]
        if self.valid is self.train:
            held = [NONE_HELD, *held]
        title = f"task {name}" if name else "table"
        lines = [self.tables.columns.describe(), f"{title}: {self.train.describe()}; {', '.join(held)}"]
        lines += self.merged
        train = encoded["train"]
        if len(train) > len(self.train):
            lines.append(f"windows: {len(train):,} of {len(self.train):,} training rows, whose contexts are long")
        parts = train, encoded.get("validation", train), encoded.get("test")
        measured = self.parts.get("test", self.parts.get("validation"))
        # it answers by labels, which vectors are only near by, and that of tags is not cross-validated
        has_baseline = labels is not None and not isinstance(recipe.objective, Embedding)
        if measured is None:
            has_baseline = has_baseline and len(self.train) > 1 and not isinstance(recipe.objective, Tagging)
        labelled = (self.train, measured) if has_baseline else None
        texts = self.train if self.valid is self.train else None
        rows_of_task = TaskRows(task, self.tables.weight, *parts, labelled, texts)
        return rows_of_task, lines, [f"{name}: {text}" if name else text for text in warnings]


def read_tables(
    recipe: Recipe, tasks: Sequence[TaskTables], tokenizer: Tokenizer | None, split: SavedSplit | None = None
) -> tuple[Recipe, TableData]:
    """Read the tables of all tasks, and encode their rows. Returns the recipe with what is inferred from the tables,
    and the rows.

    tokenizer: of the run that is fine-tuned; when None, one is trained on the texts. split: the rows held out by an
    earlier session of the run. Raises the errors of the tables, and UsageError for a recipe that does not fit them.
    """
    _refuse_unfit(recipe, tasks)
    if not recipe.data.tasks:
        recipe = recipe.with_values({"data": recipe.data.with_values(_columns(tasks[0].columns))})
    if tokenizer is None and isinstance(recipe.tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(recipe.tokenizer.path)
    chat = None if tokenizer is None else PromptFormat.from_recipe(recipe, tokenizer).chat
    known = recipe.objective.labels if isinstance(recipe.objective, Classification | Tagging) else ()
    kind = task_class(recipe.objective).label_kind(recipe.objective, tasks[0].columns)
    labels = LabelMap(kind, known) if kind is not None and known else None
    read = []
    for task in tasks:
        held = None if split is None else split.split_of_task(task.name)
        read.append(read_task(task, recipe, labels, held, chat))
        if held is None:
            read[-1].notices.extend(find_in_tables(read[-1].train, read[-1].held, tokenizer, None, brief=True))
    recipe = recipe.with_values({"objective": resolve_objective(recipe.objective, read[0].train)})
    if recipe.evaluation.metric == "auto":
        recipe = recipe.with_values({"evaluation.metric": usual_metric(recipe.objective)})
    if tokenizer is None:
        assert not isinstance(recipe.tokenizer, TokenizerFile)
        of_rows = task_class(recipe.objective).texts
        pairs = ((part.tables, item) for part in read for item in part.train.items)
        texts = (of_rows(tables.name, tables.columns, item) for tables, item in pairs)
        tokenizer = Tokenizer.train(recipe.tokenizer, chain.from_iterable(texts))
    prompt_format = PromptFormat.from_recipe(recipe, tokenizer)
    tasks_rows, lines, warnings = zip(*(part.encode(recipe, prompt_format) for part in read), strict=True)
    recipe = _with_sizes(recipe, sum(round(task.weight * len(task.train)) for task in tasks_rows), tokenizer)
    _check_metric(recipe, tasks_rows[0].task)
    kept = {part.tables.name: part.kept for part in read if part.kept is not None}
    saved = SavedSplit(kept.get("", kept)) if kept else None
    return recipe, TableData(
        prompt_format,
        build_objective(recipe, tokenizer),
        tasks_rows,
        tuple(chain(*lines)),
        tuple(chain(*warnings)),
        saved,
        recipe.training.batch_size,
        recipe.seed,
    )


def _refuse_unfit(recipe: Recipe, tasks: Sequence[TaskTables]) -> None:
    """Raise UsageError or DataError for tables that the model of a recipe cannot learn from."""
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
            what = f"{task.columns.describe()}: a target text, where a classifier needs a label"
            fix = "name the label with --label-column, or train a text-to-text model: see lmtool recipes ls"
            raise DataError(what, where=str(task.table.path), fix=fix)


def check_tables(
    recipe: Recipe, tables: Sequence[TaskTables], tokenizer: Tokenizer | None, usual: float | None
) -> tuple[list[str], list[Notice]]:
    """Lines that describe tables, and all notices of them, once; see `find_in_tables`.

    Without a validation table the rows are those that a run of the recipe would hold out. Raises the errors of tables.
    """
    lines: list[str] = []
    notices: list[Notice] = []
    for task in tables:
        read = read_task(task, recipe, None, None, None)
        notices += [*read.notices, *find_in_tables(read.train, read.held, tokenizer, usual, brief=False)]
        sizes = [f"{name}: {part.describe()}" for name, part in read.parts.items()]
        sizes += [NONE_HELD] if read.valid is read.train else []
        lines += [task.table.describe(), task.columns.describe(), "; ".join(sizes), *read.merged]
    return lines, list(dict.fromkeys(notices))


def read_task(
    task: TaskTables, recipe: Recipe, labels: LabelMap | None, split: TableSplit | None, chat: ChatFormat | None
) -> _Read:
    """The rows for training, validation and testing; a part is held out unless a validation table is given.

    labels: the known ones. split: the rows that are held out, where they are known.
    """
    data, skips = recipe.data, recipe.data.skip_bad_rows
    kind = task_class(recipe.objective).label_kind(recipe.objective, task.columns)
    read_rows = partial(read_labelled, skip_bad_rows=skips, chat=chat, merged=data.merge_labels)
    texts = read_rows(task.table, task.columns, kind=kind, labels=labels)
    notices = [*texts.notices, *_skipped(texts.skipped)]

    def read_beside(source: str) -> LabelledTexts:
        """Another table with the columns and labels of the training table."""
        names = _columns(texts.columns)
        named = Data(encoding=data.encoding, delimiter=data.delimiter, **names)
        table = open_table(source, named)
        _refuse_other_names(task.table, table, names)
        columns = choose_columns(table, named, kind=texts.columns.kind)
        others = read_rows(table, columns, labels=texts.labels)
        shared = shared_rows(texts, others, Path(source).name)
        notices.extend([*filter(None, [shared]), *_skipped(others.skipped, f" of {Path(source).name}")])
        return others

    parts, kept = {"train": texts}, None
    if task.valid:
        parts["validation"] = read_beside(task.valid)
    elif data.valid_fraction:
        kept = split or hold_out(texts, data.valid_fraction, recipe.seed)
        parts["train"], parts["validation"] = divide(texts, kept)
    if task.test:
        parts["test"] = read_beside(task.test)
    return _Read(task, parts, notices, kept)


def _refuse_other_names(train: Table, other: Table, names: Mapping[str, Any]) -> None:
    """Raise DataError for a table beside that of training which has not its columns. names: as of `_columns`."""
    each = chain.from_iterable((value,) if isinstance(value, str) else value or () for value in names.values())
    if missing := [name for name in each if not find_matching_column(name, other.names)]:
        nouns = "column" if len(missing) == 1 else "columns"
        what = f"no {nouns} {quote_all(missing)}, which {train.path.name} has; found {quote_all(other.names)}"
        fix = f"give both tables the same header: name the columns as in {train.path.name}"
        raise DataError(what, where=display_path(other.path), fix=fix)


def _skipped(skipped: SkippedRows, of: str = "") -> list[Notice]:
    return [Notice("skipped rows", skipped.count, str(skipped).replace(":", f"{of}:", 1))] if skipped.count else []


def _columns(columns: Columns) -> dict[str, Any]:
    if columns.messages is not None:
        return {"messages_column": columns.messages}
    if columns.target is not None:
        return {"source_column": columns.texts[0], "target_column": columns.target, "input_column": columns.input}
    return {"text_columns": columns.texts, "label_column": columns.label}


def _check_metric(recipe: Recipe, task: Task) -> None:
    """Raise UsageError for a metric that the task does not have."""
    metric, spec = recipe.evaluation.metric, recipe.objective
    if metric != "loss" and metric not in task.metrics:
        kind = f"labels of kind {spec.task}" if isinstance(spec, Classification) else f"objective {spec.kind}"
        known = " or ".join(("loss", *task.metrics))
        raise UsageError(f"the metric {metric} is not for {kind}", where="evaluation.metric", fix=f"use {known}")


def _with_sizes(recipe: Recipe, n_rows: int, tokenizer: Tokenizer) -> Recipe:
    """The recipe with its steps for `n_rows` rows in an epoch, and with the size of the vocabulary."""
    training, steps, every = recipe.training, recipe.training.steps, recipe.evaluation.every
    if training.epochs is not None:
        steps = max(training.min_steps or 1, math.ceil(training.epochs * n_rows / training.batch_size))
    if (epochs := recipe.evaluation.epochs) is not None:
        per_epoch = n_rows / training.batch_size
        every = max(round(epochs * per_epoch), math.ceil(steps / MOST_VALIDATIONS))
    rows = tokenizer.check_embedding_rows(recipe.model.vocab_size)
    return recipe.with_values({"training.steps": steps, "evaluation.every": every, "model.vocab_size": rows})
