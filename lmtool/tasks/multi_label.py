"""Multi-label classification: any number of labels per row.

Shapes: R rows, C labels, K = C, P pairs of a row and a label, U different probabilities.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmtool.arrays import Floats
from lmtool.errors import UsageError
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks import metrics
from lmtool.tasks.heads import HeadTask, Misprediction
from lmtool.tasks.labels import SEPARATOR
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.task import Cells, FormattedNumber
from lmtool.tokenization.prompt_format import PromptFormat

MIN_THRESHOLD_ROWS = 20
"""Rows with a label from which it gets its own threshold."""

DEFAULT_THRESHOLD = 0.5


class MultiLabelTask(HeadTask):
    """Any number of labels per row: those whose probability, the sigmoid of the logit, is above a threshold."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "subset_accuracy", "macro-f1": "macro_f1"}
    label_description = "several labels"

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, spec)
        self.threshold_C = np.array(spec.thresholds or [DEFAULT_THRESHOLD] * len(spec.labels))
        if len(self.threshold_C) != len(spec.labels):
            what = f"there are {len(self.threshold_C)} thresholds for {len(spec.labels)} labels"
            raise UsageError(what, where="objective.thresholds", fix="give one for each, in their order")

    def fit_decision(self, scores_RC: Floats, encoded_labels_RK: Floats) -> None:
        p_RC = self.compute_probabilities(scores_RC)
        self.threshold_C = np.array(self._spec.thresholds or fit_f1_thresholds(p_RC, encoded_labels_RK > 0.5))

    def compute_probabilities(self, scores_RC: Floats) -> Floats:
        with np.errstate(over="ignore"):  # far below 0 it is 1 / inf
            return 1 / (1 + np.exp(-scores_RC))

    def compute_metrics(self, scores_RC: Floats, encoded_labels_RK: Floats) -> MetricValues:
        p_RC = self.compute_probabilities(scores_RC)
        figures = metrics.multi_label_metrics(encoded_labels_RK > 0.5, p_RC > self.threshold_C, self.labels)
        figures["thresholds"] = self.threshold_C.tolist()
        p_P, true_P = p_RC.ravel(), encoded_labels_RK.ravel() > 0.5
        return figures | {"calibration": metrics.calibration_metrics(np.stack([1 - p_P, p_P], 1), true_P.astype(int))}

    def find_mistakes(self, scores_RC: Floats, encoded_labels_RK: Floats) -> list[Misprediction]:
        p_RC = np.nan_to_num(self.compute_probabilities(scores_RC))
        above_RC = p_RC > self.threshold_C
        # Of labels that are predicted rightly 0.
        confidence_RC = np.where(above_RC != (encoded_labels_RK > 0.5), np.where(above_RC, p_RC, 1 - p_RC), 0.0)
        mistakes = []
        for i in sorted(np.flatnonzero(confidence_RC.any(1)).tolist(), key=lambda i: -confidence_RC[i].max()):
            column = int(confidence_RC[i].argmax())
            confidence, sign = float(confidence_RC[i, column]), 1 if above_RC[i, column] else -1
            true, predicted = (SEPARATOR.join(self.choose_label(p_C)) for p_C in (encoded_labels_RK[i], p_RC[i]))
            mistakes.append(Misprediction(i, column, true, predicted, confidence, sign))
        return mistakes

    def choose_label(self, p_C: Floats) -> tuple[str, ...]:
        return tuple(name for name, is_above in zip(self.labels, p_C > self.threshold_C, strict=True) if is_above)

    def format_cells(self, p_C: Floats) -> Cells:
        return (SEPARATOR.join(self.choose_label(p_C)) or SEPARATOR, *(FormattedNumber(p, ".6f") for p in p_C))


def fit_f1_thresholds(p_RC: Floats, true_RC: NDArray[np.bool_]) -> tuple[float, ...]:
    """Finds for each label the probability threshold with the highest F1.

    Labels of fewer rows than MIN_THRESHOLD_ROWS share the threshold with the highest F1 over all rows and labels, which
    is DEFAULT_THRESHOLD if these are too few together.
    """
    shared = find_threshold_of_best_f1(p_RC, true_RC) if true_RC.sum() >= MIN_THRESHOLD_ROWS else DEFAULT_THRESHOLD
    columns = zip(p_RC.T, true_RC.T, true_RC.sum(0) >= MIN_THRESHOLD_ROWS, strict=True)
    return tuple(find_threshold_of_best_f1(p_R, true_R) if has_own else shared for p_R, true_R, has_own in columns)


def find_threshold_of_best_f1(p_RC: Floats, true_RC: NDArray[np.bool_]) -> float:
    """Finds the threshold with the highest F1, half way between two probabilities; of equally good ones the highest."""
    p_U, count_U = np.unique(p_RC, return_counts=True)
    n_above_U = count_U[::-1].cumsum()[::-1]
    n_right_U = true_RC.sum() - np.searchsorted(np.sort(p_RC[true_RC]), p_U)
    best = len(p_U) - 1 - int((n_right_U / (n_above_U + true_RC.sum()))[::-1].argmax())
    return float(p_U[best] + (p_U[best - 1] if best else 0)) / 2
