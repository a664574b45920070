"""From the tables that a recipe names to rows for training, validation and testing."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.decoding.framing import Framing
from lmtool.errors import DataError, UsageError
from lmtool.inference.evaluation import BATCH_TOKENS, Validation, by_length
from lmtool.model import LanguageModel
from lmtool.model.classifier import Classifier
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.objective import AnyObjective, Classification, HeadSpec, QuestionAnswering, Seq2Seq, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data, TokenizerFile
from lmtool.run.files import HeldRows, SavedSplit, StreamMark
from lmtool.tables.annotations import has_entities
from lmtool.tables.columns import Columns, RowKind, choose_columns
from lmtool.tables.findings import find_in_tables
from lmtool.tables.floor import Floor, measure_floor
from lmtool.tables.labels import LabelKind, LabelMap
from lmtool.tables.reading import LabelledTexts, read_labelled, shared_rows, stream_labelled
from lmtool.tables.results import Results
from lmtool.tables.rows import EncodedRow, TableExamples
from lmtool.tables.split import restore_split, split_rows
from lmtool.tables.task import AnsweringModel, Task
from lmtool.tables.tasks import as_answer, as_source, build_task
from lmtool.text.chat import ChatFormat
from lmtool.text.files import place, shown
from lmtool.text.notices import Notice
from lmtool.text.prepare import default_cache
from lmtool.text.table import Skipped, Table, open_table
from lmtool.text.tokenizer import Tokenizer

HELD_OUT = "-s data.valid_fraction=0.1"

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


@dataclass(frozen=True)
class TaskRows:
    """Rows of one task. labelled: the texts of the rows for training and of those measured, where they have labels."""

    task: Task
    weight: float
    train: list[EncodedRow]
    valid: list[EncodedRow]
    test: list[EncodedRow] | None
    labelled: tuple[LabelledTexts, LabelledTexts] | None

    @property
    def part(self) -> str:
        """The part that the task is measured on, as in `Results`."""
        return "test" if self.test else "training" if self.valid is self.train else "validation"


class TableData:
    """Rows of tables for training, validation and testing.

    split: the held-out rows, as saved in the run; None where validation tables were given. floors: of tasks with
    labels, by name, once they are measured. See `lmtool.training.data.TrainingData` for the rest.
    """

    unit = "row"
    is_measured = True
    bytes_per_token = None
    known_lines = None

    def __init__(
        self,
        recipe: Recipe,
        framing: Framing,
        tasks: Sequence[TaskRows],
        lines: tuple[str, ...],
        warnings: tuple[str, ...],
        split: SavedSplit | None,
    ) -> None:
        self.recipe = recipe
        self.framing = framing
        self.tasks = tasks
        self.lines = lines
        self.warnings = warnings
        self.split = split
        self.batch_units = recipe.training.batch_size
        self.floors: dict[str, Floor] = {}

    def with_recipe(self, recipe: Recipe) -> "TableData":
        data = copy(self)
        data.recipe = recipe
        return data

    @property
    def per_epoch(self) -> int:
        return sum(max(1, round(task.weight * len(task.train))) for task in self.tasks)

    @property
    def prompts(self) -> tuple[str, ...]:
        return self.recipe.evaluation.prompts or ()

    @property
    def fingerprint(self) -> str:
        """A hash of all rows for training and evaluation, and of the part that each is in."""
        digest = hashlib.sha256()

        def add(content: bytes) -> None:
            # the length keeps what is beside each other apart
            digest.update(len(content).to_bytes(8, "little") + content)

        for task in self.tasks:
            for rows in (task.train, task.valid, task.test or []):
                add(b"%d rows" % len(rows))
                for row in rows:
                    for values in (row.tokens, row.segments, row.label, row.target, row.learned, row.places):
                        add(b"" if values is None else values.tobytes())
                    add(row.answer.encode())
        return digest.hexdigest()

    def flowing(self, world: World, compute: Compute, marks: Sequence[StreamMark] = ()) -> AbstractContextManager[None]:
        return nullcontext()

    def token_counts(self) -> NDArray[np.int64]:
        """How often each id is in the training rows."""
        counts_V = np.zeros(self.framing.tokenizer.vocab_size, dtype=np.int64)
        for row in (row for task in self.tasks for row in task.train):
            for tokens in (row.tokens, row.target):
                if tokens is not None:
                    counts_V += np.bincount(tokens, minlength=len(counts_V))
        return counts_V

    def set_statistics(self, lm: LanguageModel) -> None:
        """Initialize a head from word counts of the training rows, if it needs them."""
        if isinstance(lm, Classifier):
            rows = self.tasks[0].train
            objective = build_objective(self.recipe, self.framing.tokenizer)
            groups = by_length([row.lengths for row in rows], BATCH_TOKENS)
            lm.count_features(objective.collate([rows[i].example() for i in group]) for group in groups)

    def measure_floors(self) -> None:
        """Set the floors; takes seconds."""
        self.floors = {
            task.task.name: measure_floor(*task.labelled, task.part) for task in self.tasks if task.labelled is not None
        }

    @property
    def n_valid(self) -> int:
        """Validation rows of all tables."""
        return sum(len({row.number for row in task.valid}) for task in self.tasks)

    def examples(self, objective: Objective) -> TableExamples:
        """Training rows."""
        rows = [row for task in self.tasks for row in task.train]
        parts = [(len(task.train), task.weight) for task in self.tasks]
        reread = self.tasks[0].task.reread
        return TableExamples(rows, self.recipe.training.batch_size, self.recipe.seed, parts, reread)

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute, world: World) -> Validation:
        """Loss and metrics on the validation rows of all tasks."""
        rows = [row for task in self.tasks for row in task.valid]
        return self.tasks[0].task.validate(AnsweringModel(lm, objective, compute, world), rows)

    def seconds_after(self, validation: float) -> float:
        n_valid = sum(len(task.valid) for task in self.tasks)
        n_measured = sum(len(task.test or task.valid) for task in self.tasks)
        # the answers of a head are chosen and explained by about as much computation again; texts are written
        return 2 * validation * n_measured / max(1, n_valid)

    def measure(
        self, lm: LanguageModel, objective: Objective, step: int, compute: Compute, world: World
    ) -> list[Results]:
        """Results on the test rows of each task, or else on its validation rows."""
        model = AnsweringModel(lm, objective, compute, world)
        for task in self.tasks:
            task.task.settle(model, task.valid)
        found = [task.task.measure(model, task.test or task.valid, task.part, step) for task in self.tasks]
        return [replace(results, floor=self.floors.get(results.task)) for results in found]


def open_tables(data: Data, kind: RowKind | None = "texts") -> list[TaskTables]:
    """Open the training table of each task that a recipe names, and find its columns.

    kind: of the rows of a single table; None where the table decides.
    Raises UsageError when the recipe names them wrongly, and the errors of tables.
    """
    if not data.tasks:
        if not data.train:
            raise UsageError("no table to train on", fix="name one: lmtool finetune TABLE")
        if len(data.train) != 1 or len(data.valid) > 1:
            raise UsageError("a model is trained on one table", where="data.train", fix="name one, or several tasks")
        return [TaskTables("", *_open(data.train[0], data, kind), data.valid[0] if data.valid else None, data.test)]
    tests = dict(_named(text, "data.task_tests", "nli:test.csv") for text in data.task_tests)
    named: dict[str, tuple[str, float]] = {}
    for text in data.tasks:
        name, rest = _named(text, "data.tasks", "nli:train.csv")
        if name in named:
            raise UsageError(f"two tasks are named {name}", where="data.tasks", fix="give each a name of its own")
        file, _, last = rest.rpartition(":")
        weight = _weight(last) if file else None
        named[name] = (rest, 1.0) if weight is None else (file, weight)
    if unknown := next((name for name in tests if name not in named), None):
        raise UsageError(f"no task is named {unknown}", where="data.task_tests", fix=f"name {' or '.join(named)}")
    return [
        TaskTables(name, *_open(file, data), None, tests.get(name), weight) for name, (file, weight) in named.items()
    ]


def sample_texts(tables: TaskTables, skip_bad_rows: bool, most: int = 2000) -> list[str]:
    """The texts of the first rows of a training table, a row's in one. Raises a RowFault as `read_labelled` does."""
    skipped = Skipped() if skip_bad_rows else None
    rows = stream_labelled(tables.table, replace(tables.columns, label=None), skipped=skipped)
    return ["\n".join(item.texts) for _, item in islice(rows, most)]


def task_names(data: Data) -> list[str]:
    """Names of the tasks that a run was trained on; one empty name for a single table."""
    return [text.partition(":")[0] for text in data.tasks] or [""]


def kind_of_rows(objective: AnyObjective) -> RowKind:
    """What the rows are that train a model with this objective."""
    match objective:
        case Tagging():
            return "words"
        case QuestionAnswering():
            return "questions"
    return "texts"


def _open(source: str, data: Data, kind: RowKind | None = "texts") -> tuple[Table, Columns]:
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    return table, choose_columns(table, data, kind=kind)


def _named(text: str, key: str, example: str) -> tuple[str, str]:
    name, _, file = text.partition(":")
    if not (name and file):
        raise UsageError(f"{text!r:.60} is no name:file", where=key, fix=f"write {example}")
    return name, file


def _weight(text: str) -> float | None:
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if 0 < weight < math.inf else None


@dataclass
class _Read:
    """The texts of one task's tables. kept: what to save of the split, if there is one."""

    tables: TaskTables
    parts: dict[str, LabelledTexts]
    warnings: list[Notice]
    kept: HeldRows | None

    @property
    def train(self) -> LabelledTexts:
        return self.parts["train"]

    @property
    def valid(self) -> LabelledTexts:
        """The rows that choose the checkpoint: those for training where none are held out."""
        return self.parts.get("validation", self.train)

    @property
    def labelled(self) -> tuple[LabelledTexts, LabelledTexts] | None:
        """See `TaskRows`."""
        return None if self.train.labels is None else (self.train, self.parts.get("test", self.valid))


def read_tables(
    recipe: Recipe, tasks: Sequence[TaskTables], tokenizer: Tokenizer | None, split: SavedSplit | None = None
) -> TableData:
    """Read the tables of all tasks, and encode their rows; the data's recipe has what is inferred from the tables.

    tokenizer: of the run that is fine-tuned; when None, one is trained on the texts. split: the rows held out by an
    earlier session of the run. Raises the errors of the tables, and UsageError for a recipe that does not fit them.
    """
    _refuse_messages(recipe, tasks)
    if not recipe.data.tasks:
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=_columns(tasks[0].columns))})
    if tokenizer is None and isinstance(recipe.tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(recipe.tokenizer.path)
    chat = None if tokenizer is None else Framing.of(recipe, tokenizer).chat
    read = [_read(task, recipe, None if split is None else split.of(task.name), chat, tokenizer) for task in tasks]
    if isinstance(recipe.objective, Classification):
        recipe = recipe.model_copy(update={"objective": _settled(recipe.objective, read)})
    elif isinstance(recipe.objective, Tagging):
        tags = cast(LabelMap, read[0].train.labels).names
        recipe = recipe.model_copy(update={"objective": recipe.objective.model_copy(update={"labels": tags})})
    if recipe.evaluation.metric == "auto":
        evaluation = recipe.evaluation.model_copy(update={"metric": usual_metric(recipe.objective)})
        recipe = recipe.model_copy(update={"evaluation": evaluation})
    tokenizer = tokenizer or _trained(recipe, read)
    framing = Framing.of(recipe, tokenizer)
    n_rows = 0
    rows, lines, warnings = [], [], []
    for part in read:
        name, found = part.tables.name, part.train.labels
        labels = found.names if found is not None and found.kind == "class" else ()
        task = build_task(recipe, framing, name, part.tables.columns, labels)
        encoded = {key: task.encode(texts.items) for key, texts in part.parts.items()}
        own_warnings = list(dict.fromkeys(map(str, part.warnings)))
        for key, own in encoded.items():
            if n_cut := len({row.number for row in own if row.cut}):
                context, n_own = recipe.model.context, len(part.parts[key])
                own_warnings.append(f"{n_cut:,} of {n_own:,} {key} rows are truncated to the context of {context}")
        warnings += [f"{name}: {text}" if name else text for text in own_warnings]
        held = ", ".join(f"{key}: {len(texts):,} rows" for key, texts in part.parts.items() if key != "train")
        if part.valid is part.train:
            held = ", ".join(filter(None, [f"validation: the same, none held out ({HELD_OUT} holds some out)", held]))
        table = f"task {name}" if name else "table"
        lines += [part.tables.columns.describe(), f"{table}: {part.train.describe()}; {held}"]
        if (n_windows := len(encoded["train"])) > len(part.train):
            lines.append(f"windows: {n_windows:,} of {len(part.train):,} training rows, whose contexts are long")
        n_rows += round(part.tables.weight * n_windows)
        parts = (encoded["train"], encoded.get("validation", encoded["train"]), encoded.get("test"))
        rows.append(TaskRows(task, part.tables.weight, *parts, part.labelled))
    recipe = _with_sizes(recipe, n_rows, tokenizer)
    _check_metric(recipe, rows[0].task)
    kept = {part.tables.name: part.kept for part in read if part.kept is not None}
    split = SavedSplit(kept.get("", kept)) if kept else None
    return TableData(recipe, framing, rows, tuple(lines), tuple(warnings), split)


def usual_metric(objective: AnyObjective) -> str:
    """The metric that chooses the best checkpoint where the recipe leaves it to the table."""
    match objective:
        case Classification(task="class"):
            return "accuracy"
        case Tagging(labels=tags):
            return "f1" if has_entities(tags) else "accuracy"
        case QuestionAnswering():
            return "f1"
    return "loss"


def _refuse_messages(recipe: Recipe, tasks: Sequence[TaskTables]) -> None:
    """Raise DataError when a table has conversations, and the model cannot read them."""
    for task in tasks:
        if task.columns.messages is None:
            continue
        where = f"{place(task.table.path)}, column {shown(task.columns.messages)}"
        if task.name:
            raise DataError("conversations are for one table, not for tasks", where=where, fix="name it as TABLE")
        if not isinstance(recipe.objective, Seq2Seq) or recipe.model.reads != "past":
            raise DataError(
                f"a {recipe.model.title} with objective {recipe.objective.kind} does not read conversations",
                where=where,
                fix="fine-tune a decoder with --from, or name columns with --source-column and --target-column",
            )


def _read(
    task: TaskTables,
    recipe: Recipe,
    split: HeldRows | None,
    chat: ChatFormat | None,
    tokenizer: Tokenizer | None,
) -> _Read:
    """The rows of a task's tables; a part is held out for validation unless a validation table is given.

    chat: refuses conversations. tokenizer: see `find_in_tables`.
    """
    spec, data = recipe.objective, recipe.data
    kind: LabelKind | None = None
    known = None
    if data.tasks and isinstance(spec, HeadSpec):
        raise UsageError("a classifier is trained on one labelled table", where="data.train", fix="name one table")
    if isinstance(spec, Classification):
        if task.columns.target is not None:
            raise DataError(
                f"{task.columns.describe()}: a target text, where a classifier needs a label",
                where=str(task.table.path),
                fix="name the label with --label-column, or train a text-to-text model: see lmtool recipes ls",
            )
        kind = None if spec.task == "auto" else spec.task
        known = LabelMap(kind, spec.labels) if kind is not None and spec.labels else None
    elif isinstance(spec, Tagging) and spec.labels:
        known = LabelMap("tags", spec.labels)
    texts = read_labelled(
        task.table, task.columns, kind=kind, labels=known, skip_bad_rows=data.skip_bad_rows, chat=chat
    )
    warnings = _notices(texts)
    parts, kept = _parts(texts, task, data, recipe.seed, split, warnings, chat)
    if split is None:
        held = {name: part for name, part in parts.items() if name != "train"}
        warnings += find_in_tables(parts["train"], held, tokenizer, None, brief=True)
    return _Read(task, parts, warnings, kept)


def check_tables(
    recipe: Recipe, kind: RowKind | None, tokenizer: Tokenizer | None, usual: float | None
) -> tuple[list[str], list[Notice]]:
    """Lines that describe the tables that a recipe names, and all notices of them, once; see `find_in_tables`.

    Without a validation table the rows are those that a run would hold out. Raises the errors of tables.
    """
    data, spec = recipe.data, recipe.objective
    labels: LabelKind | None = spec.task if isinstance(spec, Classification) and spec.task != "auto" else None
    lines: list[str] = []
    notices: list[Notice] = []
    for task in open_tables(data, kind):
        texts = read_labelled(task.table, task.columns, kind=labels, skip_bad_rows=data.skip_bad_rows)
        found = _notices(texts)
        parts, _ = _parts(texts, task, data, recipe.seed, None, found, None)
        held = {name: part for name, part in parts.items() if name != "train"}
        found += find_in_tables(parts["train"], held, tokenizer, usual, brief=False)
        sizes = "; ".join(f"{name}: {part.describe()}" for name, part in parts.items())
        lines += [task.table.describe(), task.columns.describe(), sizes]
        notices += found
    return lines, list(dict.fromkeys(notices))


def _notices(texts: LabelledTexts) -> list[Notice]:
    """The notices of a table, the rows that were skipped among them."""
    return [*texts.notices, *_skipped(texts.skipped)]


def _skipped(skipped: Skipped, of: str = "") -> list[Notice]:
    return [Notice("skipped rows", skipped.count, str(skipped).replace(":", f"{of}:", 1))] if skipped.count else []


def _parts(
    texts: LabelledTexts,
    task: TaskTables,
    data: Data,
    seed: int,
    split: HeldRows | None,
    warnings: list[Notice],
    chat: ChatFormat | None,
) -> tuple[dict[str, LabelledTexts], HeldRows | None]:
    """The rows for training, validation and testing, and what to save of the split; adds to `warnings`."""
    kept = None
    if task.valid:
        parts = {"train": texts, "validation": _read_beside(texts, task.valid, data, warnings, chat)}
    elif not data.valid_fraction:
        parts = {"train": texts}
    else:
        divided = restore_split(texts, split) if split else split_rows(texts, data.valid_fraction, seed)
        parts, kept = {"train": divided.train, "validation": divided.test}, divided.held_rows()
    if task.test:
        parts["test"] = _read_beside(texts, task.test, data, warnings, chat)
    return parts, kept


def _read_beside(
    texts: LabelledTexts, source: str, data: Data, warnings: list[Notice], chat: ChatFormat | None
) -> LabelledTexts:
    """Another table with the columns and labels of the training table; adds to `warnings`."""
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = same_columns(texts.columns, table)
    found = read_labelled(table, columns, labels=texts.labels, skip_bad_rows=data.skip_bad_rows, chat=chat)
    name = Path(source).name
    shared = shared_rows(texts, found, name)
    warnings += [*([shared] if shared else []), *_skipped(found.skipped, f" of {name}")]
    return found


def same_columns(columns: Columns, table: Table) -> Columns:
    """The columns of the training table in another one. Raises DataError when one is missing."""
    return choose_columns(table, Data(**_columns(columns)), kind=columns.kind)


def _columns(columns: Columns) -> dict[str, Any]:
    if columns.messages is not None:
        return {"messages_column": columns.messages}
    if columns.target is not None:
        return {"source_column": columns.texts[0], "target_column": columns.target, "input_column": columns.input}
    return {"text_columns": columns.texts, "label_column": columns.label}


def _settled(spec: Classification, read: Sequence[_Read]) -> Classification:
    """The spec with what is inferred from the table: kind and names of labels, and the scaling of numbers."""
    train = read[0].train
    labels = cast(LabelMap, train.labels)
    spec = spec.model_copy(update={"task": labels.kind, "labels": labels.names if labels.kind != "number" else ()})
    if labels.kind == "number":
        value_R = np.array([item.label for item in train.items], dtype=np.float64)
        center = float(value_R.mean()) if spec.center is None else spec.center
        # relative to the largest deviation, since squares of very small ones are 0
        largest = float(np.abs(value_R - value_R.mean()).max()) or 1.0
        deviation = largest * float(np.std((value_R - value_R.mean()) / largest))
        scale = (deviation or 1.0) if spec.scale is None else spec.scale
        spec = spec.model_copy(update={"center": center, "scale": scale})
    return spec.model_copy(update={"class_weights": class_weights(spec, train)})


def class_weights(spec: Classification, train: LabelledTexts) -> tuple[float, ...] | None:
    """The weight of each class in the loss: n / (C n_c) where the recipe has `balanced`, else as given.

    Raises UsageError when rows do not have one class each, or when the numbers of weights and classes differ.
    """
    weights = spec.class_weights
    if weights is None:
        return None
    if spec.task != "class":
        kinds = {"multi": "several labels", "number": "a number"}
        raise UsageError(
            f"class weights need one class per row, but rows have {kinds[spec.task]}",
            where="objective.class_weights",
            fix="omit it, or add --labels class if each row has one",
        )
    if weights == "balanced":
        counts = Counter(item.label for item in train.items)
        n, n_classes = len(train), len(spec.labels)
        # a class whose rows are all held out has no weight
        return tuple(n / (n_classes * counts[name]) if counts[name] else 0.0 for name in spec.labels)
    if len(weights) != len(spec.labels):
        raise UsageError(
            f"there are {len(weights)} weights for {len(spec.labels)} classes: {', '.join(spec.labels)}"[:200],
            where="objective.class_weights",
            fix="give one for each, in this order, or balanced",
        )
    return weights


def _check_metric(recipe: Recipe, task: Task) -> None:
    """Raise UsageError for a metric that the task does not have."""
    metric, spec = recipe.evaluation.metric, recipe.objective
    if metric != "loss" and metric not in task.metrics:
        kind = f"labels of kind {spec.task}" if isinstance(spec, Classification) else f"objective {spec.kind}"
        raise UsageError(
            f"the metric {metric} is not for {kind}",
            where="evaluation.metric",
            fix=f"use {' or '.join(('loss', *task.metrics))}",
        )


def _trained(recipe: Recipe, read: Sequence[_Read]) -> Tokenizer:
    """A tokenizer trained on the texts of the training rows."""
    assert not isinstance(recipe.tokenizer, TokenizerFile)
    return Tokenizer.train(recipe.tokenizer, (text for part in read for text in _texts(recipe, part)))


def _texts(recipe: Recipe, part: _Read) -> Iterable[str]:
    for item in part.train.items:
        if isinstance(recipe.objective, Tagging):
            yield " ".join(item.texts)
        elif isinstance(recipe.objective, Classification | QuestionAnswering):
            yield from item.texts
        else:
            yield as_source(part.tables.name, part.tables.columns.texts, item.texts)
            yield as_answer(item) or ""


def _with_sizes(recipe: Recipe, n_rows: int, tokenizer: Tokenizer) -> Recipe:
    """The recipe with its steps for `n_rows` rows in an epoch, and with the size of the vocabulary."""
    training, evaluation, model = recipe.training, recipe.evaluation, recipe.model
    if training.epochs is not None:
        steps = max(training.min_steps or 1, math.ceil(training.epochs * n_rows / training.batch_size))
        training = training.model_copy(update={"steps": steps})
    if evaluation.epochs is not None:
        per_epoch = n_rows / training.batch_size
        every = max(round(evaluation.epochs * per_epoch), math.ceil(training.steps / MOST_VALIDATIONS))
        evaluation = evaluation.model_copy(update={"every": every})
    model = model.model_copy(update={"vocab_size": tokenizer.embedding_rows(model.vocab_size)})
    return recipe.model_copy(update={"training": training, "evaluation": evaluation, "model": model})
