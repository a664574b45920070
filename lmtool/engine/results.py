"""What a fine-tuned model is worth on rows with labels, and what it says of rows without."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np

from lmtool.engine.build import Loaded, build_model, build_objective, load_weights
from lmtool.engine.device import Compute
from lmtool.engine.metrics import ClassMetrics, class_lines, class_metrics, confusion_lines
from lmtool.engine.rows import Layout
from lmtool.engine.tables import RowMaterial, answer, as_answer, measure_rows, mistakes, probabilities
from lmtool.errors import UsageError
from lmtool.objective import ClassificationObjective
from lmtool.recipe.load import load
from lmtool.recipe.spec import Classification, Recipe
from lmtool.run.directory import Run
from lmtool.run.find import find
from lmtool.text.columns import Columns, choose_columns
from lmtool.text.disk import write_file
from lmtool.text.examples import read_examples, stream_examples
from lmtool.text.labels import Kind, Label, LabelMap
from lmtool.text.prepare import default_cache
from lmtool.text.table import Row, Skipped, Table, open_table

METRICS = "metrics.json"
"""In a run directory: what the best checkpoint reached."""

CHUNK_ROWS = 512
"""Rows of a table that are answered at once."""


@dataclass(frozen=True)
class Results:
    """How well rows with labels are answered.

    part: "test" for a table that had no say in training, "validation" for the rows that chose the checkpoint.
    figures: accuracy, macro_f1 and so on, as `record` gives them to programs. mistakes: the most confident ones.
    """

    part: str
    step: int
    rows: int
    loss: float
    figures: dict[str, Any]
    mistakes: list[dict[str, Any]]
    labels: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """All of it by name."""
        head = {"part": self.part, "step": self.step, "rows": self.rows, "loss": self.loss}
        return head | self.figures | {"labels": list(self.labels), "mistakes": self.mistakes}

    def lines(self) -> list[str]:
        """All of it for people."""
        plain = {k: v for k, v in self.figures.items() if isinstance(v, float) or v is None}
        shown = "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in plain.items())
        lines = [f"{self.part}: {self.rows:,} rows  {shown}  loss {self.loss:.4f}  (step {self.step})"]
        if "confusion" in self.figures:
            metrics: ClassMetrics = class_metrics(np.array(self.figures["confusion"]))
            lines += ["", *class_lines(metrics, self.labels), "", *confusion_lines(metrics.confusion_CC, self.labels)]
        if self.mistakes:
            lines += ["", "most confident mistakes:"]
            lines += [
                f"  row {found['row']}: {found['label']} taken for {found['predicted']} ({found['probability']:.3f})"
                for found in self.mistakes
            ]
        return lines


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def measure_best(run: Run, recipe: Recipe, material: RowMaterial, compute: Compute) -> Results:
    """Measure a run's best checkpoint on its test rows, or else on those held out, and keep the figures in the run."""
    checkpoint, _ = find(str(run.path)).best(optimizer=False)
    lm = build_model(recipe, material.tokenizer, compute)
    load_weights(lm, checkpoint)
    objective = cast(ClassificationObjective, build_objective(recipe, material.tokenizer))
    rows, part = (material.test, "test") if material.test else (material.valid, "validation")
    scores_RC, loss = answer(lm, objective, rows, compute)
    spec = objective.spec
    results = Results(
        part,
        checkpoint.step,
        len(rows),
        loss,
        measure_rows(scores_RC, rows, spec),
        mistakes(scores_RC, rows, spec),
        spec.labels,
    )
    write_file(run.path / METRICS, json.dumps(results.record(), indent=1).encode())
    return results


def answers_tables(reference: str) -> bool:
    """Whether a run answers labelled tables, which is seen without its weights."""
    return isinstance(load(find(reference).run.recipe_path).recipe.objective, Classification)


def measure_table(loaded: Loaded, source: str) -> Results:
    """How well a fine-tuned model answers a labelled table. Raises DataError for a table that does not fit."""
    spec, table, columns, labels = _opened(loaded, source, labelled=True)
    examples = read_examples(table, columns, labels=labels, skip_bad_rows=loaded.recipe.data.skip_bad_rows)
    layout = Layout(loaded.recipe.model, loaded.tokenizer)
    rows = layout.rows(
        (item.texts for item in examples.items),
        [as_answer(labels, cast(Label, item.label), spec) for item in examples.items],
        (item.row for item in examples.items),
    )
    scores_RC, loss = answer(loaded.model, cast(ClassificationObjective, loaded.objective), rows, loaded.compute)
    figures = measure_rows(scores_RC, rows, spec)
    found = mistakes(scores_RC, rows, spec)
    return Results("table", loaded.step, len(rows), loss, figures, found, spec.labels)


@dataclass(frozen=True)
class Predictions:
    """Answers to the rows of a table, one after the other.

    added: names of the columns that `rows` gives values for: the label, then the probability of each class or label.
    """

    table: Table
    added: tuple[str, ...]
    rows: Iterator[tuple[Row, tuple[object, ...]]]


def predict(loaded: Loaded, source: str, *, skipped: Skipped | None = None) -> Predictions:
    """Answer every row of a table, in bounded memory. Bad rows raise, or are counted in `skipped` and left out.

    Raises UsageError when the run answers no tables, and the errors of tables.
    """
    spec, table, columns, _ = _opened(loaded, source, labelled=False)
    added = ("predicted",) if spec.task == "number" else ("predicted", *(f"p_{name}" for name in spec.labels))
    return Predictions(table, added, _predicted(loaded, spec, table, columns, skipped))


def _predicted(
    loaded: Loaded, spec: Classification, table: Table, columns: Columns, skipped: Skipped | None
) -> Iterator[tuple[Row, tuple[object, ...]]]:
    layout = Layout(loaded.recipe.model, loaded.tokenizer)
    objective = cast(ClassificationObjective, loaded.objective)
    stream = stream_examples(table, columns, skipped=skipped)
    while chunk := list(islice(stream, CHUNK_ROWS)):
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


def _opened(loaded: Loaded, source: str, labelled: bool) -> tuple[Classification, Table, Columns, LabelMap]:
    spec, data = loaded.recipe.objective, loaded.recipe.data
    if not isinstance(spec, Classification):
        raise UsageError(
            "this run answers no tables: it was not fine-tuned on one",
            where=str(loaded.run_path),
            fix="run lmtool finetune first, or name another run",
        )
    table = open_table(source, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
    columns = choose_columns(
        table,
        text_columns=data.text_columns,
        label_column=data.label_column if labelled else None,
        labelled=labelled,
    )
    return spec, table, columns, LabelMap(cast(Kind, spec.task), spec.labels)
