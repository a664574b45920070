"""From tables to pairs of texts that a model learns to answer, and to how well it answers them (O7, F3, F4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.decoding.prompts import form_of
from lmtool.decoding.settings import Beam, Greedy
from lmtool.decoding.text import Options, complete, write
from lmtool.errors import UsageError
from lmtool.model import LanguageModel
from lmtool.objective import Example, Objective
from lmtool.recipe.spec import Data, Recipe, Seq2Seq, Transformer
from lmtool.tables.columns import Columns, choose_columns
from lmtool.tables.examples import Example as TableExample
from lmtool.tables.examples import Examples, read_examples, restore_split, split_examples
from lmtool.tables.labels import SEPARATOR
from lmtool.tables.metrics import class_metrics, confusion_matrix, translation_metrics
from lmtool.tables.rows import PairLayout, PairRow, RowExamples
from lmtool.tables.tables import (
    NO_CHANCE,
    ReadRows,
    fingerprint,
    groups,
    read_beside,
    read_rows,
    tokenizer_for,
    with_rows,
)
from lmtool.text.prepare import default_cache
from lmtool.text.table import open_table
from lmtool.text.tokenizer import Tokenizer
from lmtool.training.data import Material, Validation

OTHER = "(none of them)"
"""The class of an answer that is no label."""

ANSWERS_AT_ONCE = 64
"""Rows whose answers are written together."""


@dataclass(frozen=True)
class TaskTables:
    """Tables of one task. name: stands before each source; empty for a model of one task."""

    name: str
    train: str
    valid: str | None
    test: str | None
    weight: float


@dataclass(frozen=True)
class TaskRows:
    """Rows of one task. labels: the classes that its answers name; empty where they are free text."""

    name: str
    labels: tuple[str, ...]
    weight: float
    train: list[PairRow]
    valid: list[PairRow]
    test: list[PairRow] | None


class PairMaterial(Material):
    """Pairs of texts: to learn from, to choose the best checkpoint by, and to be measured on at the end."""

    unit = "row"
    documents = True

    def __init__(self, tokenizer: Tokenizer, recipe: Recipe, tasks: Sequence[TaskRows], lines: tuple[str, ...]) -> None:
        self.tokenizer = tokenizer
        self.tasks = tasks
        self.batch_units = recipe.training.batch_size
        self.lines = lines
        self._recipe = recipe

    def inform(self, lm: LanguageModel) -> None:
        pass  # no model has to know anything of a table

    def source(self, objective: Objective) -> RowExamples:
        rows = [row for task in self.tasks for row in task.train]
        parts = [(len(task.train), task.weight) for task in self.tasks]
        return RowExamples(rows, self._recipe.training.batch_size, self._recipe.seed, parts)

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute, world: World) -> Validation:
        return Validation(loss_per_token(lm, objective, [row for task in self.tasks for row in task.valid], compute))


def read_tables(recipe: Recipe, tokenizer: Tokenizer | None, split: dict[str, Any] | None = None) -> ReadRows:
    """Read the tables that a recipe names and lay out their rows, as its objective needs them; see `read_rows`."""
    if isinstance(recipe.objective, Seq2Seq):
        return read_pairs(recipe, tokenizer, split)
    return read_rows(recipe, tokenizer, split)


def read_pairs(recipe: Recipe, tokenizer: Tokenizer | None, split: dict[str, Any] | None = None) -> ReadRows:
    """Read the tables of all tasks, and lay out their sources and targets.

    A table with labels is read as text, too: its label is the target. The rest is as for `read_rows`.
    """
    data = recipe.data
    tasks = tasks_of(data)
    warnings: list[str] = []
    lines: list[str] = []
    kept: dict[str, Any] = {}
    read: list[tuple[TaskTables, Columns, dict[str, Examples]]] = []
    for task in tasks:
        table = open_table(task.train, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
        columns = choose_columns(
            table,
            text_columns=data.text_columns,
            label_column=data.label_column,
            source_column=data.source_column,
            target_column=data.target_column,
        )
        examples = read_examples(table, columns, skip_bad_rows=data.skip_bad_rows)
        said = [*map(str, examples.notices)] + ([str(examples.skipped)] if examples.skipped.count else [])
        if task.valid:
            valid, more = read_beside(examples, task.valid, data)
            parts = {"train": examples, "valid": valid}
            said += more
        else:
            saved = split and split.get(task.name)
            divided = (
                restore_split(examples, saved) if saved else split_examples(examples, data.valid_fraction, recipe.seed)
            )
            parts = {"train": divided.train, "valid": divided.test}
            kept[task.name] = divided.to_json()
        if task.test:
            parts["test"], more = read_beside(examples, task.test, data)
            said += more
        read.append((task, columns, parts))
        warnings += [f"{task.name}: {text}" if task.name else text for text in said]
        counts = ", ".join(f"{part} {len(found):,}" for part, found in parts.items())
        lines += [f"{columns.describe()}", f"{f'task {task.name}' if task.name else 'table'}: rows: {counts}"]
    tokenizer = tokenizer or tokenizer_for(
        recipe,
        (text for task, columns, parts in read for pair in _pairs(task, columns, parts["train"]) for text in pair),
    )
    layout = PairLayout(recipe.model, tokenizer)
    rows: list[TaskRows] = []
    for task, columns, parts in read:
        laid = {
            part: layout.rows(_pairs(task, columns, found), (item.row for item in found.items))
            for part, found in parts.items()
        }
        for part, found in laid.items():
            if n_cut := sum(row.cut for row in found):
                name = f"{task.name}: " if task.name else ""
                context = recipe.model.context
                warnings.append(f"{name}{n_cut:,} of {len(found):,} {part} rows are cut at the context of {context}")
        labels = parts["train"].labels
        names = labels.names if labels is not None and labels.kind == "class" else ()
        rows.append(TaskRows(task.name, names, task.weight, laid["train"], laid["valid"], laid.get("test")))
    if not data.tasks:
        data = data.model_copy(update=_named(read[0][1]))
    n_rows = sum(round(task.weight * len(task.train)) for task in rows)
    recipe = with_rows(recipe.model_copy(update={"data": data}), n_rows, tokenizer)
    material = PairMaterial(tokenizer, recipe, rows, tuple(lines))
    digest = fingerprint(part for task in rows for part in (task.train, task.valid, task.test or []))
    return ReadRows(recipe, material, kept or None, digest, tuple(warnings))


def tasks_of(data: Data) -> list[TaskTables]:
    """The tables of each task that a recipe names. Raises UsageError when they are not named as they have to be."""
    if not data.tasks:
        if len(data.train) != 1 or len(data.valid) > 1:
            raise UsageError("a model learns from one table", where="data.train", fix="name one, or several tasks")
        return [TaskTables("", data.train[0], data.valid[0] if data.valid else None, data.test, 1.0)]
    tests = {}
    for text in data.task_tests:
        name, colon, file = text.partition(":")
        if not (name and colon and file):
            raise UsageError(f"{text!r:.60} is no name:file", where="data.task_tests", fix="write nli:test.csv")
        tests[name] = file
    tasks = []
    for text in data.tasks:
        name, _, rest = text.partition(":")
        file, _, last = rest.rpartition(":")
        weight = _weight(last) if file else None
        if weight is None:
            file, weight = rest, 1.0
        if not (name and file):
            raise UsageError(f"{text!r:.60} is no name:file", where="data.tasks", fix="write nli:train.csv")
        tasks.append(TaskTables(name, file, None, tests.pop(name, None), weight))
    names = [task.name for task in tasks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two tasks are named {twice}", where="data.tasks", fix="give each a name of its own")
    if tests:
        raise UsageError(
            f"no task is named {next(iter(tests))}", where="data.task_tests", fix=f"name {' or '.join(names)}"
        )
    return tasks


def _weight(text: str) -> float | None:
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if 0 < weight < float("inf") else None


def _named(columns: Columns) -> dict[str, Any]:
    if columns.target is None:
        return {"text_columns": columns.texts, "label_column": columns.label}
    return {"source_column": columns.texts[0], "target_column": columns.target}


def as_source(task: str, columns: Sequence[str], texts: Sequence[str]) -> str:
    """What a model reads of a row: its text behind the name of the task, and several texts behind their columns' names.

    As T5 does (Raffel et al. 2020): "nli: premise: It rains. hypothesis: It is dry."
    """
    body = texts[0]
    if len(texts) > 1:
        body = " ".join(f"{column}: {text}" for column, text in zip(columns, texts, strict=True))
    return f"{task}: {body}" if task else body


def as_answer_text(example: TableExample) -> str | None:
    """What a model is to write for a row: its target, or its label as text; None where it has neither."""
    if example.target is not None or example.label is None:
        return example.target
    if isinstance(example.label, tuple):
        return SEPARATOR.join(example.label)
    return example.label if isinstance(example.label, str) else f"{example.label:g}"


def _pairs(task: TaskTables, columns: Columns, examples: Examples) -> Iterator[tuple[str, str]]:
    for item in examples.items:
        yield as_source(task.name, columns.texts, item.texts), cast(str, as_answer_text(item))


@torch.inference_mode()
def loss_per_token(lm: LanguageModel, objective: Objective, rows: Sequence[PairRow], compute: Compute) -> float:
    """Mean over the tokens of all targets of -log p, in nats."""
    was_training = lm.training
    lm.eval()
    total, count = 0.0, 0
    for group in groups(rows):
        batch = objective.collate([Example(rows[i].tokens, NO_CHANCE, other=rows[i].target) for i in group], 0.0)
        with compute.autocast():
            loss = objective.score(lm, batch.to(compute.device))
        total += float(loss.total)
        count += int(loss.count)
    lm.train(was_training)
    return total / count


def write_answers(
    lm: LanguageModel, tokenizer: Tokenizer, recipe: Recipe, rows: Sequence[PairRow], compute: Compute
) -> list[str]:
    """What a model writes for each row, in their order: by beam search of the recipe's width, or greedily.

    An answer ends at three times the tokens of the longest source beside it and 30 more, or at the context.
    """
    form = form_of(recipe, documents=True)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].tokens))
    answers = [""] * len(rows)
    for start in range(0, len(order), ANSWERS_AT_ONCE):
        group = order[start : start + ANSWERS_AT_ONCE]
        longest = len(rows[group[-1]].tokens)
        most = 3 * longest + 30
        if isinstance(recipe.model, Transformer):
            most = max(1, min(most, recipe.model.context - (longest if recipe.model.shape == "prefix" else 0)))
        n_beams = recipe.evaluation.num_beams
        settings = Greedy(max_new_tokens=most) if n_beams == 1 else Beam(num_beams=n_beams, max_new_tokens=most)
        options = Options(overflow="cut", max_rows=ANSWERS_AT_ONCE * n_beams)
        with compute.autocast():
            found = list(complete(write(lm, tokenizer, [rows[i].source for i in group], settings, options, form=form)))
        for i, completion in zip(group, found, strict=True):
            answers[i] = completion.text
    return answers


def measure_answers(answers: Sequence[str], rows: Sequence[PairRow], labels: Sequence[str]) -> dict[str, Any]:
    """How well answers fit: as classes where they are to name one of `labels`, else by BLEU and chrF (Post 2018)."""
    if not labels:
        exact = float(np.mean([answer == row.answer for answer, row in zip(answers, rows, strict=True)]))
        found = translation_metrics(answers, [row.answer for row in rows])
        return found.to_json() | {"exact": exact}
    names = {name: i for i, name in enumerate(labels)}
    given = np.array([names.get(answer.strip(), len(labels)) for answer in answers])
    true = np.array([names[row.answer] for row in rows])
    n_classes = len(labels) + bool((given == len(labels)).any())
    return class_metrics(confusion_matrix(true, given, n_classes)).to_json([*labels, OTHER][:n_classes])


def how_written(recipe: Recipe) -> str:
    """How answers are written, in words."""
    n = recipe.evaluation.num_beams
    return "greedy" if n == 1 else f"beam search, {n} beams, mean log-probability"
