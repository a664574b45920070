"""Classification: one class per row, of one text or of several.

Shapes: R rows, C classes, K = 1: the index of the class.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmtool.arrays import Floats
from lmtool.data.files import quote, quote_all
from lmtool.data.table import open_table, parse_label_number
from lmtool.errors import DataError, UsageError
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks import metrics
from lmtool.tasks.heads import HeadTask, Misprediction
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.reading import LabelledTable
from lmtool.tasks.task import Cells, FormattedNumber, Task
from lmtool.tokenization.prompt_format import PromptFormat

MIN_MISTAKES = 10
"""With fewer wrong predictions a temperature is at least 1."""

LOG_TEMPERATURE_STD = 1.0
"""Standard deviation of the prior of the logarithm of a temperature: most temperatures are from 1/3 to 3."""


class SingleLabelTask(HeadTask):
    """One class per row: a softmax over the logits, which are divided by a temperature.

    Attributes:
        costs_CC: of errors, by true and predicted class. With costs the class of least expected cost is predicted, not
            the most probable one.
        min_probability: the cell of a prediction is empty if no class has this probability.
    """

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}
    default_metric = "accuracy"
    costs_CC: Floats | None = None
    min_probability = 0.0

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, spec)
        self.temperature = spec.temperature or 1.0

    @classmethod
    def resolve_spec_from_rows(cls, spec: Classification, train: LabelledTable) -> Classification:
        """Sets the labels, and the weight of each class in the loss: n / (C n_c) if the recipe has `balanced`."""
        spec = super().resolve_spec_from_rows(spec, train)
        weights, n = spec.class_weights, len(spec.labels)
        if weights == "balanced":
            counts = Counter(item.label for item in train.items)
            # A class whose rows are all held out has weight 0.
            balanced = (len(train) / (n * counts[name]) if counts[name] else 0.0 for name in spec.labels)
            return spec.with_unvalidated_values({"class_weights": tuple(balanced)})
        if weights is not None and len(weights) != n:
            classes = format_count(n, "class", "classes")
            what = f"{format_count(len(weights), 'weight')} for {classes}: {', '.join(spec.labels)}"
            fix = "give one for each, in this order, or balanced"
            raise UsageError(what[:200], where="objective.class_weights", fix=fix)
        return spec

    def fit_decision(self, scores_RC: Floats, encoded_labels_RK: Floats) -> None:
        true_R = encoded_labels_RK[:, 0].astype(np.int64)
        self.temperature = self._spec.temperature or fit_temperature_with_prior(scores_RC, true_R)

    def compute_probabilities(self, scores_RC: Floats) -> Floats:
        exp_RC = np.exp((scores_RC - scores_RC.max(1, keepdims=True)) / self.temperature)
        p_RC: Floats = exp_RC / exp_RC.sum(1, keepdims=True)
        return p_RC

    def compute_metrics(self, scores_RC: Floats, encoded_labels_RK: Floats) -> MetricValues:
        true_R, p_RC = encoded_labels_RK[:, 0].astype(np.int64), self.compute_probabilities(scores_RC)
        predicted_R, calibration = self._choose_classes(p_RC), metrics.calibration_metrics(p_RC, true_R)
        figures = metrics.class_metrics(true_R, np.array(predicted_R), self.labels)
        if self.temperature != 1:
            figures["temperature"] = self.temperature
            uncalibrated_RC = self.compute_probabilities(scores_RC * self.temperature)
            calibration["before"] = metrics.calibration_metrics(uncalibrated_RC, true_R)
        if self.costs_CC is not None:
            figures["cost"] = float(self.costs_CC[true_R, predicted_R].mean())
            figures["cost_of_most_probable"] = float(self.costs_CC[true_R, p_RC.argmax(1)].mean())
        return figures | {"calibration": calibration}

    def _choose_classes(self, p_RC: Floats) -> list[int]:
        return [int(i) for i in np.argmax(p_RC if self.costs_CC is None else -p_RC @ self.costs_CC, axis=1)]

    def find_mistakes(self, scores_RC: Floats, encoded_labels_RK: Floats) -> list[Misprediction]:
        p_RC, true_R = self.compute_probabilities(scores_RC), encoded_labels_RK[:, 0].astype(int).tolist()
        predicted_R = self._choose_classes(p_RC)
        p_R = p_RC[range(len(p_RC)), predicted_R].tolist()
        wrong = [i for i, (true, predicted) in enumerate(zip(true_R, predicted_R, strict=True)) if true != predicted]
        return [
            Misprediction(i, predicted_R[i], self.labels[true_R[i]], self.labels[predicted_R[i]], p_R[i])
            for i in sorted(wrong, key=lambda i: -p_R[i])
        ]

    def compute_evidence(self, scores_RC: Floats, mistake: Misprediction) -> Floats:
        log_p_R: Floats = scores_RC[:, mistake.column] - np.logaddexp.reduce(scores_RC, axis=1)
        return log_p_R

    def choose_label(self, p_C: Floats) -> str:
        return self.labels[self._choose_classes(p_C[None])[0]]

    def format_cells(self, p_C: Floats) -> Cells:
        label = self.choose_label(p_C) if p_C.max() >= self.min_probability else None
        return (label, *(FormattedNumber(p, ".6f") for p in p_C))


def fit_temperature_with_prior(scores_RC: Floats, true_R: NDArray[np.int64]) -> float:
    """Finds the most probable temperature (Guo et al. 2017) under a normal prior of its logarithm around 0.

    Errors, which no temperature changes, decide most of it: without any it would go to 0. With too few of them it is
    at least 1.
    """
    from scipy.optimize import minimize_scalar

    def negative_log_posterior(log_temperature: float) -> float:
        scaled_RC = scores_RC / np.exp(log_temperature)
        nats = (np.logaddexp.reduce(scaled_RC, axis=1) - scaled_RC[np.arange(len(true_R)), true_R]).sum()
        return float(nats + (log_temperature / LOG_TEMPERATURE_STD) ** 2 / 2)

    has_few_mistakes = (scores_RC.argmax(1) != true_R).sum() < MIN_MISTAKES
    best = minimize_scalar(negative_log_posterior, bounds=(-3, 3), method="bounded")
    return float(np.exp(max(0.0, best.x) if has_few_mistakes else best.x))


def set_decision_rule(task: Task | None, cost_table_path: str | None, min_probability: float | None = None) -> None:
    """Sets the costs of errors and the minimum probability of a classification task.

    cost_table_path: see `read_cost_table`. Raises UsageError if either is given for another task, and the errors of the
    table.
    """
    if isinstance(task, SingleLabelTask):
        task.costs_CC = None if cost_table_path is None else read_cost_table(cost_table_path, task.labels)
        task.min_probability = min_probability or 0.0
    elif cost_table_path is not None or min_probability is not None:
        where = "--min-probability" if cost_table_path is None else "--costs"
        raise UsageError("this run does not predict a class", where=where, fix="omit it, or name a run that does")


def read_cost_table(source: str, labels: Sequence[str]) -> Floats:
    """Reads the costs of errors (C, C) by true class (down) and predicted class (across), in the order of the labels.

    The first column of the table names the true class of each row, the header the predicted class of each other column.
    Raises DataError unless each class has a row and a column, and all costs are numbers; and the errors of tables.
    """
    table = open_table(source)
    rows = list(table.rows())
    names = [str(row.values[0]).strip() for row in rows]
    if not sorted(names) == sorted(table.names[1:]) == sorted(labels):
        what, fix = "the costs need a row and a column for each class", f"name {quote_all(labels)} in both"
        raise DataError(what, where=quote(source), fix=fix)
    costs_CC = np.zeros((len(labels), len(labels)))
    for i, j in np.ndindex(costs_CC.shape):
        row, column = rows[names.index(labels[i])], table.names.index(labels[j], 1)
        if (cost := parse_label_number(str(row.values[column]))) is None:
            where = table.file.format_location(row.number, row.line, column)
            raise DataError("the cost is not a number", where=where, fix="write one; 0 for the right class")
        costs_CC[i, j] = cost
    return costs_CC
