"""Results on the rows of a table: as a record for programs, as lines for people, and over several runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import numpy as np

from lmtool.tables.floor import Floor, mean_line
from lmtool.tables.metrics import class_lines, class_metrics, confusion_lines, entity_lines


@dataclass(frozen=True)
class Results:
    """Results of a model on labelled rows.

    part: "test" for a table that was not used in training, "validation" for the rows that chose the checkpoint.
    figures: accuracy, macro_f1, bleu and so on, as in `record`. mistakes: the most confident ones, with the words
    that decided them; of tags the rows with the most of them. sentences: the generated texts furthest from their
    targets, then those nearest to them, with source, target and chrF; of answers to questions with their F1.
    task: one of several that a model was trained on. decoding: the decoding strategy, for generated texts.
    floor: of the same rows, where it was measured. remedies: options to try where the model is below it.
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
    floor: Floor | None = None
    sentences: list[dict[str, Any]] = field(default_factory=list)
    remedies: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON."""
        task = {"task": self.task} if self.task else {}
        floor = {} if self.floor is None else {"floor": self.floor.record()}
        head = task | {"part": self.part, "step": self.step, "rows": self.rows, "loss": self.loss}
        if self.decoding is not None:
            sentences = {"sentences": self.sentences} if self.sentences else {}
            decoding = {"decoding": self.decoding}
            return head | decoding | self.figures | floor | {"labels": list(self.labels)} | sentences
        return head | self.figures | floor | {"labels": list(self.labels), "mistakes": self.mistakes}

    def lines(self) -> list[str]:
        """All results as text lines."""
        plain = {k: v for k, v in self.figures.items() if isinstance(v, float) or v is None}
        shown = "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in plain.items())
        task = f"{self.task}, " if self.task else ""
        how = f"; {self.decoding}" if self.decoding else ""
        lines = [f"{task}{self.part}: {self.rows:,} rows  {shown}  loss {self.loss:.4f}  (step {self.step}{how})"]
        if self.floor is not None:
            lines.append(self.floor.beside(self.figures, self.rows, self.remedies))
        if "confusion" in self.figures:
            metrics = class_metrics(np.array(self.figures["confusion"]))
            names = tuple(self.figures["classes"])
            lines += ["", *class_lines(metrics, names), "", *confusion_lines(metrics.confusion_CC, names)]
        if self.figures.get("entities"):
            lines += ["", *entity_lines(self.figures["entities"])]
        if self.mistakes and "probability" not in self.mistakes[0]:
            lines += ["", "rows with the most mistakes:"]
            lines += [
                f"  row {found['row']}: {found['label'] or 'nothing'}; predicted {found['predicted'] or 'nothing'}"
                for found in self.mistakes
            ]
        elif self.mistakes:
            lines += ["", "most confident mistakes:"]
            lines += [
                f"  row {found['row']}: {found['label']} predicted as {found['predicted']} ({found['probability']:.3f})"
                + (f", by {', '.join(found['words'])}" if found["words"] else "")
                for found in self.mistakes
            ]
        return lines


def spread(runs: Sequence[Sequence[Results]]) -> list[str]:
    """Mean and sample standard deviation of each metric over several runs, as a text line per task.

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
        floors = [results.floor for results in same if results.floor is not None]
        floor = f"; {mean_line(floors)}" if len(floors) == len(same) else ""
        lines.append(f"{task}{same[0].part}, {len(same)} runs: {shown}{floor}")
    return lines


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
