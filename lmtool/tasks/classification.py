"""Classification: one class per row, of a text or of a pair of them.

Shapes: R rows, C classes.
"""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmtool.errors import UsageError
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks import metrics
from lmtool.tasks.heads import HeadTask, Misprediction
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.reading import LabelledTexts
from lmtool.tasks.task import Cells, Floats, FormattedNumber
from lmtool.tokenization.prompt_format import PromptFormat

LEAST_WRONG = 10
"""Wrong answers from which a temperature may be below 1."""

DEVIATION = 1.0
"""Standard deviation of the logarithm of a temperature, before any row is seen: most are from 1/3 to 3."""


class ClassTask(HeadTask):
    """One class per row: a softmax over the logits, which are divided by a temperature.

    costs_CC: of errors, by true and predicted class; the class of least expected cost is predicted, instead of the most
        probable one.
    min_probability: the cell of a prediction is empty where no class is as probable as this.
    """

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}
    usual_metric = "accuracy"
    costs_CC: Floats | None = None
    min_probability = 0.0

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, spec)
        self.temperature = spec.temperature or 1.0

    @classmethod
    def resolve(cls, spec: Classification, train: LabelledTexts) -> Classification:
        """The labels, and the weight of each class in the loss: n / (C n_c) where the recipe has `balanced`."""
        spec = super().resolve(spec, train)
        weights, n = spec.class_weights, len(spec.labels)
        if weights == "balanced":
            counts = Counter(item.label for item in train.items)
            # a class whose rows are all held out has no weight
            shares = (len(train) / (n * counts[name]) if counts[name] else 0.0 for name in spec.labels)
            return spec.with_values({"class_weights": tuple(shares)})
        if weights is not None and len(weights) != n:
            given, needed = format_count(len(weights), "weight"), format_count(n, "class", "classes")
            what = f"{given} for {needed}: {', '.join(spec.labels)}"[:200]
            fix = "give one for each, in this order, or balanced"
            raise UsageError(what, where="objective.class_weights", fix=fix)
        return spec

    def choose(self, scores_RC: Floats, true_RC: Floats) -> None:
        self.temperature = self._spec.temperature or choose_temperature(scores_RC, true_RC[:, 0].astype(np.int64))

    def probabilities(self, scores_RC: Floats) -> Floats:
        powers_RC = np.exp((scores_RC - scores_RC.max(1, keepdims=True)) / self.temperature)
        shares_RC: Floats = powers_RC / powers_RC.sum(1, keepdims=True)
        return shares_RC

    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        true_R, p_RC = true_RC[:, 0].astype(np.int64), self.probabilities(scores_RC)
        predicted_R, calibration = self._predicted(p_RC), metrics.calibration(p_RC, true_R)
        figures = metrics.class_metrics(true_R, np.array(predicted_R), self.labels)
        if self.temperature != 1:
            figures["temperature"] = self.temperature
            calibration["before"] = metrics.calibration(self.probabilities(scores_RC * self.temperature), true_R)
        if self.costs_CC is not None:
            figures["cost"] = float(self.costs_CC[true_R, predicted_R].mean())
            figures["cost_of_most_probable"] = float(self.costs_CC[true_R, p_RC.argmax(1)].mean())
        return figures | {"calibration": calibration}

    def _predicted(self, p_RC: Floats) -> list[int]:
        return [int(i) for i in np.argmax(p_RC if self.costs_CC is None else -p_RC @ self.costs_CC, axis=1)]

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[Misprediction]:
        p_RC, true_R = self.probabilities(scores_RC), true_RC[:, 0].astype(int).tolist()
        predicted_R = self._predicted(p_RC)
        p_R = p_RC[range(len(p_RC)), predicted_R].tolist()
        wrong = [i for i, (true, predicted) in enumerate(zip(true_R, predicted_R, strict=True)) if true != predicted]
        return [
            Misprediction(i, predicted_R[i], self.labels[true_R[i]], self.labels[predicted_R[i]], p_R[i])
            for i in sorted(wrong, key=lambda i: -p_R[i])
        ]

    def evidence(self, scores_RC: Floats, mistake: Misprediction) -> Floats:
        log_p_R: Floats = scores_RC[:, mistake.column] - np.logaddexp.reduce(scores_RC, axis=1)
        return log_p_R

    def label(self, p_C: Floats) -> str:
        return self.labels[self._predicted(p_C[None])[0]]

    def cells(self, p_C: Floats) -> Cells:
        return (
            self.label(p_C) if p_C.max() >= self.min_probability else None,
            *(FormattedNumber(p, ".6f") for p in p_C),
        )


def choose_temperature(scores_RC: Floats, true_R: NDArray[np.int64]) -> float:
    """The most probable temperature (Guo et al. 2017) under a normal prior of its logarithm around 0.

    Errors, which are the same at any temperature, tell most of it: without any it would go to 0. So by too few of them
    it is at least 1.
    """
    from scipy.optimize import minimize_scalar

    def cost(log: float) -> float:
        each_RC = scores_RC / np.exp(log)
        nats = (np.logaddexp.reduce(each_RC, axis=1) - each_RC[np.arange(len(true_R)), true_R]).sum()
        return float(nats + (log / DEVIATION) ** 2 / 2)

    are_few = (scores_RC.argmax(1) != true_R).sum() < LEAST_WRONG
    best = minimize_scalar(cost, bounds=(-3, 3), method="bounded")
    return float(np.exp(max(0.0, best.x) if are_few else best.x))
