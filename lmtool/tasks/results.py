"""Results on the rows of a table: as a record for programs, as lines for people, and over several runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import numpy as np

from lmtool.printable import format_count
from lmtool.run.files import TaskScores
from lmtool.run.listing import main_metric
from lmtool.run.uncertainty import CROSS_VALIDATION, confidence_interval, effective_sample_size
from lmtool.tasks.baseline import Baseline, mean_line
from lmtool.tasks.metrics import class_lines, confusion_lines
from lmtool.tasks.reading import LabelledText

QUARTER = "held-out quarter"
"""The part of results of a quarter of the rows by a model of the others, where all rows are trained on in the end."""

SCORED_BY_OTHERS = {
    CROSS_VALIDATION: "each row is scored by a model of other rows; the model that is saved is fitted to all of them",
    QUARTER: "scored by a model of the other rows; the one that is saved is trained on all of them, for as many steps",
}
"""How parts are scored where all rows are trained on."""


@dataclass(frozen=True)
class Results:
    """Results of a model on labelled rows.

    part: "test" for a table that was not used in training, "validation" for the rows that chose the checkpoint; of
        SCORED_BY_OTHERS where all rows are trained on.
    figures: accuracy, macro_f1, bleu and so on, as in `record`.
    mistakes: the most confident ones, with the words that decided them; of tags the rows with the most of them.
    sentences: the generated texts furthest from their targets, then those nearest to them, with source, target and
        chrF; of answers to questions with their F1.
    task: one of several that a model was trained on.
    decoding: the decoding strategy, for generated texts.
    baseline: of the same rows, where it was measured.
    remedies: options to try where the model is below it.
    items: the rows of a table that was not used in training.
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
    baseline: Baseline | None = None
    sentences: list[dict[str, Any]] = field(default_factory=list)
    remedies: tuple[str, ...] = ()
    items: Sequence[LabelledText] = ()

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON."""
        task = {"task": self.task} if self.task else {}
        record = task | {"part": self.part, "step": self.step, "rows": self.rows, "loss": self.loss}
        record |= {} if self.decoding is None else {"decoding": self.decoding}
        record |= self.figures | ({} if self.baseline is None else {"baseline": self.baseline.model_dump()})
        if self.interval is not None:
            record["interval"] = list(self.interval)
        record["labels"] = list(self.labels)
        if self.decoding is None:
            return record | {"mistakes": self.mistakes}
        return record | ({"sentences": self.sentences} if self.sentences else {})

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of what counts among the figures, where it follows from that; see `uncertainty`."""
        metric, value = main_metric(self.figures)
        return (
            None if value is None else confidence_interval(metric, value, effective_sample_size(self.rows, self.part))
        )

    def lines(self) -> list[str]:
        """All results as text lines."""
        plain = {k: v for k, v in self.figures.items() if isinstance(v, float) or v is None}
        shown = "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in plain.items())
        how = f"; {self.decoding}" if self.decoding else ""
        title = _title(self.task, self.part)
        lines = [f"{title}: {format_count(self.rows, 'row')}  {shown}  loss {self.loss:.4f}  (step {self.step}{how})"]
        if self.part in SCORED_BY_OTHERS:
            name, reach = main_metric(self.figures)[0], self.interval
            limits = "" if reach is None else f"{name} {reach[0]:.4f} to {reach[1]:.4f} (95 %); "
            lines.append(limits + SCORED_BY_OTHERS[self.part])
        calibration = self.figures.get("calibration", {})
        if before := calibration.get("before"):
            believed = [
                f"calibration error {p['ece']:.4f}, log loss {p['log_loss']:.4f}" for p in (calibration, before)
            ]
            lines.append("; without the temperature ".join(believed))
        if self.baseline is not None:
            lines.append(self.baseline.beside(self.figures, self.rows, self.remedies))
        if "confusion" in self.figures:
            classes = self.figures["classes"]
            confusion = confusion_lines(np.array(self.figures["confusion"]), tuple(classes))
            lines += ["", *class_lines(classes), "", *confusion]
        if entities := self.figures.get("entities"):
            lines += ["", *class_lines(entities, ("type", "entities"), len(entities))]
        if self.mistakes:
            of_tags = "probability" not in self.mistakes[0]
            lines += ["", "rows with the most mistakes:" if of_tags else "most confident mistakes:"]
        for mistake in self.mistakes:
            label, predicted = mistake["label"], mistake["predicted"]
            if of_tags:
                lines.append(f"  row {mistake['row']}: {label or 'nothing'}; predicted {predicted or 'nothing'}")
            else:
                words = f", by {', '.join(mistake['words'])}" if mistake["words"] else ""
                share = f"({mistake['probability']:.3f})"
                lines.append(f"  row {mistake['row']}: {label} predicted as {predicted} {share}{words}")
        return lines


def spread(runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Mean, sample standard deviation and 95 % interval of the mean of each metric over runs, a text line per task.

    The interval is of Student's t (1908): how far the mean over all seeds may be, on the same rows.
    runs: what each has saved of its results, by task.
    """
    lines = []
    for task in runs[0] if runs else ():
        same = [run[task] for run in runs if task in run]
        if len(same) < len(runs):
            continue
        names = sorted(same[0], key=lambda name: name in TaskScores.model_fields)  # the loss after the metrics
        columns: dict[str, list[Any]] = {name: [one.get(name) for one in same] for name in names}
        shown = "  ".join(
            f"{name.replace('_', ' ')} {mean(values):.4f} ± {stdev(values):.4f}{_interval(values)}"
            for name, values in columns.items()
            if all(isinstance(value, float) for value in values)
        )
        baselines = [Baseline(**one["baseline"]) for one in same if "baseline" in one]
        baseline = f"; {mean_line(baselines)}" if len(baselines) == len(same) else ""
        lines.append(f"{_title(task, same[0]['part'])}, {len(same)} runs: {shown}{baseline}")
    return lines


def _title(task: str, part: str) -> str:
    return f"{task}, {part}" if task else part


def _interval(values: Sequence[float]) -> str:
    """The 95 % interval of the mean of runs, by Student's t."""
    from scipy.special import stdtrit

    far = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return f" (95 %: {mean(values) - far:.4f} to {mean(values) + far:.4f})"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
