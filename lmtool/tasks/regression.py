"""Regression: a number per row, of one text or of several.

Shapes: R rows, C = K = 1.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from lmtool.arrays import Floats
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks import metrics
from lmtool.tasks.heads import HeadTask
from lmtool.tasks.labels import Label
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.reading import LabelledTable
from lmtool.tasks.task import Cells, FormattedNumber
from lmtool.tokenization.prompt_format import PromptFormat


class RegressionTask(HeadTask):
    """A number per row: the head predicts (number - center) / scale."""

    metrics: ClassVar[Mapping[str, str]] = {"correlation": "pearson"}
    label_description = "a number"

    @classmethod
    def resolve_spec_from_rows(cls, spec: Classification, train: LabelledTable) -> Classification:
        mean, std = compute_mean_and_nonzero_std(np.array([item.label for item in train.items], dtype=np.float64))
        scaling = {
            "center": mean if spec.center is None else spec.center,
            "scale": std if spec.scale is None else spec.scale,
        }
        return super().resolve_spec_from_rows(spec, train).with_unvalidated_values(scaling)

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, spec)
        if spec.center is None or spec.scale is None:
            raise ValueError("the scaling of the numbers has not been inferred from the table yet")
        self._center, self._scale = spec.center, spec.scale

    def encode_label(self, label: Label) -> Floats:
        return (super().encode_label(label) - self._center) / self._scale

    def compute_probabilities(self, scores_RC: Floats) -> Floats:
        return scores_RC * self._scale + self._center

    def compute_metrics(self, scores_RC: Floats, encoded_labels_RK: Floats) -> MetricValues:
        true_R, predicted_R = (
            self.compute_probabilities(scaled_RC)[:, 0] for scaled_RC in (encoded_labels_RK, scores_RC)
        )
        return metrics.regression_metrics(true_R, predicted_R)

    def choose_label(self, p_C: Floats) -> float:
        return float(p_C[0])

    def format_cells(self, p_C: Floats) -> Cells:
        return (FormattedNumber(p_C[0], ".6g"),)


def compute_mean_and_nonzero_std(value_R: Floats) -> tuple[float, float]:
    """Returns the mean and the standard deviation of numbers; 1 instead of a deviation of 0."""
    # Relative to the largest deviation, because squares of very small ones are 0.
    largest = float(np.abs(value_R - value_R.mean()).max()) or 1.0
    deviation = largest * float(np.std((value_R - value_R.mean()) / largest))
    return float(value_R.mean()), deviation or 1.0
