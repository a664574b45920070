"""Results on the rows of a table: as JSON, as lines of text, and summarized over several runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import numpy as np

from lmtool.printable import format_count
from lmtool.runs.files import TaskScores
from lmtool.runs.listing import main_metric
from lmtool.runs.uncertainty import PARTS_OF_OTHER_MODELS, confidence_interval_95, effective_sample_size
from lmtool.tasks.baseline import Baseline, format_mean_baseline
from lmtool.tasks.metrics import format_class_scores, format_confusion
from lmtool.tasks.reading import LabelledRow


@dataclass(frozen=True)
class Results:
    """Results of a model on labelled rows.

    Args:
        part: "test" for a table that was not used in training, "validation" for the rows that chose the checkpoint, or
            one of PARTS_OF_OTHER_MODELS.
        figures: metrics by name, such as accuracy, macro_f1 and bleu, as in `to_record`.
        mistakes: the most confident ones, with the words that decided them; of tags the rows with the most mistakes.
        task: name of one of several that a model was trained on.
        decoding: the decoding strategy of generated texts.
        baseline: of the same rows, if it was measured.
        sentences: the worst generated texts, then the best, with source, target and chrF; of answers to questions F1.
        remedies: options to suggest if the model is below the baseline.
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
    items: Sequence[LabelledRow] = ()

    def to_record(self) -> dict[str, Any]:
        """Returns all results by name."""
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
        """The 95 % interval of the main figure; None if it cannot be computed from that; see `uncertainty`."""
        metric, value = main_metric(self.figures)
        n_rows = effective_sample_size(self.rows, self.part)
        return None if value is None else confidence_interval_95(metric, value, n_rows)

    def lines(self) -> list[str]:
        """Formats all results as text lines."""
        numbers = {name: value for name, value in self.figures.items() if isinstance(value, float) or value is None}
        shown = "  ".join(
            f"{name.replace('_', ' ')} {'undefined' if value is None else format(value, '.4f')}"
            for name, value in numbers.items()
        )
        decoding = f"; {self.decoding}" if self.decoding else ""
        title = _join_title(self.task, self.part)
        lines = [
            f"{title}: {format_count(self.rows, 'row')}  {shown}  loss {self.loss:.4f}  (step {self.step}{decoding})"
        ]
        if self.part in PARTS_OF_OTHER_MODELS:
            name, interval = main_metric(self.figures)[0], self.interval
            limits = "" if interval is None else f"{name} {interval[0]:.4f} to {interval[1]:.4f} (95 %); "
            lines.append(limits + PARTS_OF_OTHER_MODELS[self.part])
        calibration = self.figures.get("calibration", {})
        if before := calibration.get("before"):
            scores = (f"calibration error {p['ece']:.4f}, log loss {p['log_loss']:.4f}" for p in (calibration, before))
            lines.append("; without the temperature ".join(scores))
        if self.baseline is not None:
            lines.append(self.baseline.format_comparison(self.figures, self.rows, self.remedies))
        if "confusion" in self.figures:
            classes = self.figures["classes"]
            confusion = format_confusion(np.array(self.figures["confusion"]), tuple(classes))
            lines += ["", *format_class_scores(classes), "", *confusion]
        if entities := self.figures.get("entities"):
            lines += ["", *format_class_scores(entities, ("type", "entities"), len(entities))]
        if self.mistakes:
            are_tags = "probability" not in self.mistakes[0]
            lines += ["", "rows with the most mistakes:" if are_tags else "most confident mistakes:"]
        for mistake in self.mistakes:
            label, predicted = mistake["label"], mistake["predicted"]
            if are_tags:
                lines.append(f"  row {mistake['row']}: {label or 'nothing'}; predicted {predicted or 'nothing'}")
            else:
                words = f", by {', '.join(mistake['words'])}" if mistake["words"] else ""
                share = f"({mistake['probability']:.3f})"
                lines.append(f"  row {mistake['row']}: {label} predicted as {predicted} {share}{words}")
        return lines


def summarize_runs(runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Formats mean, sample standard deviation and 95 % interval of each metric over runs, in one line for each task.

    The interval of the mean over all seeds, on the same rows, is that of Student's t (1908).

    runs: the results that each run has saved, by task.
    """
    from scipy.special import stdtrit

    lines = []
    for task in runs[0] if runs else ():
        same = [run[task] for run in runs if task in run]
        if len(same) < len(runs):
            continue
        names = sorted(same[0], key=lambda name: name in TaskScores.model_fields)  # metrics before the loss
        columns: dict[str, list[Any]] = {name: [one.get(name) for one in same] for name in names}
        shown = []
        for name, values in columns.items():
            if all(isinstance(value, float) for value in values):
                middle, deviation = mean(values), stdev(values)
                half = float(stdtrit(len(values) - 1, 0.975)) * deviation / math.sqrt(len(values))
                interval = f"(95 %: {middle - half:.4f} to {middle + half:.4f})"
                shown.append(f"{name.replace('_', ' ')} {middle:.4f} ± {deviation:.4f} {interval}")
        baselines = [Baseline(**one["baseline"]) for one in same if "baseline" in one]
        baseline = f"; {format_mean_baseline(baselines)}" if len(baselines) == len(same) else ""
        lines.append(f"{_join_title(task, same[0]['part'])}, {len(same)} runs: {'  '.join(shown)}{baseline}")
    return lines


def _join_title(task: str, part: str) -> str:
    return f"{task}, {part}" if task else part
