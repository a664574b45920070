"""What a fine-tuned model is worth on rows with labels, and what it says of rows without."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import mean, stdev
from typing import Any, cast

import numpy as np

from lmtool.engine.build import Loaded, build_objective, trained_model
from lmtool.engine.device import Compute
from lmtool.engine.material import Material
from lmtool.engine.metrics import ClassMetrics, class_lines, class_metrics, confusion_lines
from lmtool.engine.pairs import (
    PairMaterial,
    as_answer_text,
    as_source,
    how_written,
    loss_per_token,
    measure_answers,
    tasks_of,
    write_answers,
)
from lmtool.engine.rows import Layout, PairLayout, PairRow
from lmtool.engine.rows import Row as LabelledRow
from lmtool.engine.tables import RowMaterial, answer, as_answer, measure_rows, mistakes, probabilities
from lmtool.errors import UsageError
from lmtool.model import LanguageModel
from lmtool.objective import ClassificationObjective, Objective
from lmtool.recipe.load import load
from lmtool.recipe.spec import Classification, Recipe, Seq2Seq
from lmtool.run.directory import Run
from lmtool.run.find import find
from lmtool.text.columns import Columns, choose_columns
from lmtool.text.disk import write_file
from lmtool.text.examples import Example, read_examples, stream_examples
from lmtool.text.labels import Label, LabelKind, LabelMap
from lmtool.text.prepare import default_cache
from lmtool.text.table import Row, Skipped, Table, open_table
from lmtool.text.tokenizer import Tokenizer

METRICS = "metrics.json"
"""In a run directory: what the best checkpoint reached."""

CHUNK_ROWS = 512
"""Rows of a table that are answered at once."""


@dataclass(frozen=True)
class Results:
    """How well rows with labels are answered.

    part: "test" for a table that had no say in training, "validation" for the rows that chose the checkpoint.
    figures: accuracy, macro_f1, bleu and so on, as `record` gives them to programs. mistakes: the most confident ones.
    task: one of several that a model has learnt. decoding: how answers were written, if they were.
    """

    part: str
    step: int
    rows: int
    loss: float
    figures: dict[str, Any]
    mistakes: list[dict[str, Any]]
    labels: tuple[str, ...]
    task: str = ""
    decoding: str | None = None

    def record(self) -> dict[str, Any]:
        """All of it by name."""
        task = {"task": self.task} if self.task else {}
        head = task | {"part": self.part, "step": self.step, "rows": self.rows, "loss": self.loss}
        if self.decoding is not None:
            return head | {"decoding": self.decoding} | self.figures | {"labels": list(self.labels)}
        return head | self.figures | {"labels": list(self.labels), "mistakes": self.mistakes}

    def lines(self) -> list[str]:
        """All of it for people."""
        plain = {k: v for k, v in self.figures.items() if isinstance(v, float) or v is None}
        shown = "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in plain.items())
        task = f"{self.task}, " if self.task else ""
        how = f"; {self.decoding}" if self.decoding else ""
        lines = [f"{task}{self.part}: {self.rows:,} rows  {shown}  loss {self.loss:.4f}  (step {self.step}{how})"]
        if "confusion" in self.figures:
            metrics: ClassMetrics = class_metrics(np.array(self.figures["confusion"]))
            names = tuple(self.figures["classes"])
            lines += ["", *class_lines(metrics, names), "", *confusion_lines(metrics.confusion_CC, names)]
        if self.mistakes:
            lines += ["", "most confident mistakes:"]
            lines += [
                f"  row {found['row']}: {found['label']} taken for {found['predicted']} ({found['probability']:.3f})"
                for found in self.mistakes
            ]
        return lines


def spread(runs: Sequence[Sequence[Results]]) -> list[str]:
    """Mean and standard deviation (of a sample) of each figure over several runs, for people: a line for each task.

    runs: the results of each run, of the same tasks in the same order.
    """
    lines = []
    for same in zip(*runs, strict=True):
        figures: dict[str, list[float]] = {}
        for results in same:
            for name, value in (results.figures | {"loss": results.loss}).items():
                if isinstance(value, float):
                    figures.setdefault(name, []).append(value)
        shown = "  ".join(
            f"{name.replace('_', ' ')} {mean(values):.4f} ± {stdev(values):.4f}"
            for name, values in figures.items()
            if len(values) == len(same)
        )
        task = f"{same[0].task}, " if same[0].task else ""
        lines.append(f"{task}{same[0].part}, {len(same)} runs: {shown}")
    return lines


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def measure_best(run: Run, recipe: Recipe, material: Material, compute: Compute) -> list[Results]:
    """Measure a run's best checkpoint on its test rows, or else on those held out, and keep the figures in the run.

    One of each task, where there are several.
    """
    checkpoint, _ = find(str(run.path)).best(optimizer=False)
    lm = trained_model(run, recipe, material.tokenizer, checkpoint, compute)
    objective = build_objective(recipe, material.tokenizer)
    model = _Measured(lm, material.tokenizer, recipe, objective, compute, checkpoint.step)
    match material:
        case RowMaterial():
            found = [_measure_rows(model, material.test or material.valid, _part(material.test))]
        case PairMaterial():
            found = [
                _measure_pairs(model, task.test or task.valid, task.labels, _part(task.test), task.name)
                for task in material.tasks
            ]
        case _:
            raise TypeError("a text has no rows to be measured on")
    records = [results.record() for results in found]
    kept = records[0] if len(records) == 1 else {"tasks": {record["task"]: record for record in records}}
    write_file(run.path / METRICS, json.dumps(kept, indent=1).encode())
    return found


def _part(test: Sequence[object] | None) -> str:
    return "test" if test else "validation"


@dataclass(frozen=True)
class _Measured:
    """What is measured."""

    lm: LanguageModel
    tokenizer: Tokenizer
    recipe: Recipe
    objective: Objective
    compute: Compute
    step: int


def _measure_rows(model: _Measured, rows: Sequence[LabelledRow], part: str) -> Results:
    objective = cast(ClassificationObjective, model.objective)
    scores_RC, loss = answer(model.lm, objective, rows, model.compute)
    spec = objective.spec
    figures = measure_rows(scores_RC, rows, spec)
    return Results(part, model.step, len(rows), loss, figures, mistakes(scores_RC, rows, spec), spec.labels)


def _measure_pairs(model: _Measured, rows: Sequence[PairRow], labels: tuple[str, ...], part: str, task: str) -> Results:
    loss = loss_per_token(model.lm, model.objective, rows, model.compute)
    answers = write_answers(model.lm, model.tokenizer, model.recipe, rows, model.compute)
    figures = measure_answers(answers, rows, labels)
    return Results(part, model.step, len(rows), loss, figures, [], labels, task, how_written(model.recipe))


def answers_tables(reference: str) -> bool:
    """Whether a run answers tables, which is seen without its weights."""
    return isinstance(load(find(reference).run.recipe_path).recipe.objective, Classification | Seq2Seq)


def measure_table(loaded: Loaded, source: str, task: str = "") -> Results:
    """How well a fine-tuned model answers a table. Raises DataError for a table that does not fit.

    task: one of those that the model has learnt, where there are several.
    """
    opened = _open(loaded, source, labelled=True, task=task)
    examples = read_examples(
        opened.table, opened.columns, labels=opened.labels, skip_bad_rows=loaded.recipe.data.skip_bad_rows
    )
    numbers = [item.row for item in examples.items]
    objective = loaded.objective
    model = _Measured(loaded.model, loaded.tokenizer, loaded.recipe, objective, loaded.compute, loaded.step)
    if isinstance(objective, ClassificationObjective):
        labels = cast(LabelMap, opened.labels)
        answers = [as_answer(labels, cast(Label, item.label), objective.spec) for item in examples.items]
        layout = Layout(loaded.recipe.model, loaded.tokenizer)
        return _measure_rows(model, layout.rows((item.texts for item in examples.items), answers, numbers), "table")
    sources = (as_source(task, opened.columns.texts, item.texts) for item in examples.items)
    pairs = zip(sources, map(as_answer_text, examples.items), strict=True)
    rows = PairLayout(loaded.recipe.model, loaded.tokenizer).rows(pairs, numbers)
    found = examples.labels
    names = found.names if found is not None and found.kind == "class" else ()
    return _measure_pairs(model, rows, names, "table", task)


@dataclass(frozen=True)
class Predictions:
    """Answers to the rows of a table, one after the other.

    added: names of the columns that `rows` gives values for: the label, then the probability of each class or label.
    """

    table: Table
    added: tuple[str, ...]
    rows: Iterator[tuple[Row, tuple[object, ...]]]


def predict(loaded: Loaded, source: str, *, skipped: Skipped | None = None, task: str = "") -> Predictions:
    """Answer every row of a table, in bounded memory. Bad rows raise, or are counted in `skipped` and left out.

    task: as for `measure_table`. Raises UsageError when the run answers no tables, and the errors of tables.
    """
    opened = _open(loaded, source, labelled=False, task=task)
    spec = loaded.recipe.objective
    stream = stream_examples(opened.table, opened.columns, skipped=skipped)
    chunks = iter(lambda: list(islice(stream, CHUNK_ROWS)), [])
    if not isinstance(spec, Classification):
        return Predictions(opened.table, ("predicted",), _written(loaded, opened.columns, chunks, task))
    added = ("predicted",) if spec.task == "number" else ("predicted", *(f"p_{name}" for name in spec.labels))
    return Predictions(opened.table, added, _predicted(loaded, spec, chunks))


_Chunk = list[tuple[Row, Example]]
_Answered = Iterator[tuple[Row, tuple[object, ...]]]


def _predicted(loaded: Loaded, spec: Classification, chunks: Iterable[_Chunk]) -> _Answered:
    layout = Layout(loaded.recipe.model, loaded.tokenizer)
    objective = cast(ClassificationObjective, loaded.objective)
    for chunk in chunks:
        rows = layout.rows(
            (example.texts for _, example in chunk), [None] * len(chunk), (example.row for _, example in chunk)
        )
        scores_RC, _ = answer(loaded.model, objective, rows, loaded.compute)
        for (row, _), p_C in zip(chunk, probabilities(scores_RC, spec), strict=True):
            match spec.task:
                case "number":
                    yield row, (f"{p_C[0]:.6g}",)
                case "multi":
                    chosen = ";".join(name for name, p in zip(spec.labels, p_C, strict=True) if p > 0.5)
                    yield row, (chosen or ";", *(f"{p:.6f}" for p in p_C))
                case _:
                    yield row, (spec.labels[int(p_C.argmax())], *(f"{p:.6f}" for p in p_C))


def _written(loaded: Loaded, columns: Columns, chunks: Iterable[_Chunk], task: str) -> _Answered:
    layout = PairLayout(loaded.recipe.model, loaded.tokenizer)
    for chunk in chunks:
        sources = [(as_source(task, columns.texts, example.texts), None) for _, example in chunk]
        rows = layout.rows(sources, (example.row for _, example in chunk))
        answers = write_answers(loaded.model, loaded.tokenizer, loaded.recipe, rows, loaded.compute)
        for (row, _), text in zip(chunk, answers, strict=True):
            yield row, (text,)


@dataclass(frozen=True)
class _Opened:
    """A table, its columns as in training, and the labels that are known."""

    table: Table
    columns: Columns
    labels: LabelMap | None


def _open(loaded: Loaded, source: str, *, labelled: bool, task: str) -> _Opened:
    spec, data = loaded.recipe.objective, loaded.recipe.data
    if not isinstance(spec, Classification | Seq2Seq):
        raise UsageError(
            "this run answers no tables: it was not fine-tuned on one",
            where=str(loaded.run_path),
            fix="run lmtool finetune first, or name another run",
        )
    names = [known.name for known in tasks_of(data)] if isinstance(spec, Seq2Seq) else [""]
    if task not in names:
        known = " or ".join(filter(None, names))
        raise UsageError(
            f"the run has no task {task!r:.40}" if task else "the run has learnt several tasks",
            where=str(loaded.run_path),
            fix=f"name one: --task {known}" if known else "leave --task out: it has learnt one table",
        )
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = choose_columns(
        table,
        text_columns=data.text_columns,
        label_column=data.label_column if labelled else None,
        source_column=data.source_column,
        target_column=data.target_column if labelled else None,
        labelled=labelled,
    )
    labels = LabelMap(cast(LabelKind, spec.task), spec.labels) if isinstance(spec, Classification) else None
    return _Opened(table, columns, labels)
