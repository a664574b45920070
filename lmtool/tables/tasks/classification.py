"""Tasks that a head on a model answers: classification, multi-label classification and regression.

Shapes: R rows, C classes, labels or 1 number.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, cast

import numpy as np

from lmtool.analysis.attribution import without, words_of_row
from lmtool.inference.evaluation import Validation
from lmtool.recipe.spec.objective import Classification
from lmtool.tables.labels import SEPARATOR, Label, LabelKind, LabelMap
from lmtool.tables.reading import LabelledText
from lmtool.tables.rows import EncodedRow
from lmtool.tables.tasks import metrics
from lmtool.tables.tasks.metrics import MetricValues
from lmtool.tables.tasks.results import Results
from lmtool.tables.tasks.task import MISTAKES, AnsweringModel, Cells, Floats, Task
from lmtool.tokenization.prompt_format import PromptFormat

DECIDING = 3
"""Number of words that are listed beside a mistake."""

LEFT_OUT = 20_000
"""Positions that are computed for these words, or as many as the measured rows have where that is more."""


class Misprediction(NamedTuple):
    """A row that is answered wrongly.

    row: its number among those measured, from 0.
    column: of the class predicted, or of the label that is most confidently wrong.
    label, predicted: the true and the predicted class or labels.
    probability: of that class, or of that label's answer.
    sign: -1 where the label is wrongly absent, else 1.
    """

    row: int
    column: int
    label: str
    predicted: str
    probability: float
    sign: int = 1


class HeadTask(Task):
    """A task that is predicted by a head on the model."""

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._map = LabelMap(cast(LabelKind, spec.task), spec.labels)
        self.added = ("predicted", *(f"p_{name}" for name in self.labels))

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        rows = []
        for item, ids in zip(items, self._ids([item.texts for item in items]), strict=True):
            tokens, segments, cut = self.prompt_format.row(ids)
            label = None if item.label is None else self.numbers(item.label)
            rows.append(EncodedRow(item.row, tokens, cut, segments, label))
        return rows

    def numbers(self, label: Label) -> Floats:
        """A label as a target of the head: (1,) class or scaled number, (C,) for labels."""
        return np.atleast_1d(np.array(self._map.encode(label), dtype=np.float64))

    def scores(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> tuple[Floats, float]:
        """Logits of all rows (R, C), and the mean loss; NaN where the rows have no labels."""
        evaluated = model.evaluate(rows, lambda scores_BC, *_: list(scores_BC.cpu().double().numpy()))
        return np.stack(evaluated.arrays), evaluated.loss

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        scores_RC, loss = self.scores(model, rows)
        return self.validation(loss, self.figures(scores_RC, _labels(rows)))

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        scores_RC, loss = self.scores(model, rows)
        if np.isnan(loss):
            # logits that are no numbers answer nothing
            return Results(part, step, len(rows), loss, {}, [], self.labels)
        mistakes = self.mistakes(scores_RC, _labels(rows))[:MISTAKES]
        listed = [
            {
                "row": rows[mistake.row].number,
                "label": mistake.label,
                "predicted": mistake.predicted,
                "probability": mistake.probability,
                "words": words,
                "text": self._text(rows[mistake.row]),
            }
            for mistake, words in zip(mistakes, self._deciding(model, rows, scores_RC, mistakes), strict=True)
        ]
        return Results(part, step, len(rows), loss, self.figures(scores_RC, _labels(rows)), listed, self.labels)

    def _deciding(
        self, model: AnsweringModel, rows: Sequence[EncodedRow], scores_RC: Floats, mistakes: Sequence[Misprediction]
    ) -> list[list[str]]:
        """The words without which each mistake would be least certain (leave-one-out; Li, Monroe and Jurafsky 2016).

        None for the long rows that would take more computation than measuring did.
        """
        left = max(LEFT_OUT, sum(len(row.tokens) for row in rows))
        filler = self.prompt_format.between[0]
        words_of: list[list[str]] = []
        variants: list[EncodedRow] = []
        for mistake in mistakes:
            row = rows[mistake.row]
            words, positions = words_of_row(self.prompt_format.tokenizer, row.tokens)
            cost = len(words) * len(row.tokens)
            if cost > left:
                words, positions, cost = [], [], 0
            left -= cost
            words_of.append(words)
            shorter = [without(row.tokens, row.segments, of_word, filler) for of_word in positions]
            variants += [replace(row, tokens=tokens, segments=segments) for tokens, segments in shorter]
        if not variants:
            return [[] for _ in mistakes]
        parts_WC = np.split(self.scores(model, variants)[0], np.cumsum([len(words) for words in words_of])[:-1])
        deciding = []
        for mistake, words, scores_WC in zip(mistakes, words_of, parts_WC, strict=True):
            share_W = self.evidence(scores_RC[[mistake.row]], mistake) - self.evidence(scores_WC, mistake)
            order = np.argsort(-share_W, kind="stable")
            deciding.append(list(dict.fromkeys(words[i] for i in order if share_W[i] > 0))[:DECIDING])
        return deciding

    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        scores_RC, _ = self.scores(model, rows)
        return [self.cells(p_C) for p_C in self.probabilities(scores_RC)]

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[Misprediction]:
        """The mistakes, the most confident first; none where there are no probabilities."""
        return []

    def evidence(self, scores_RC: Floats, mistake: Misprediction) -> Floats:
        """By which score (R) rows are answered as in a mistake: the logit of its label, or of the label's absence."""
        return mistake.sign * scores_RC[:, mistake.column]

    @abstractmethod
    def probabilities(self, scores_RC: Floats) -> Floats:
        """Probabilities of classes or labels, or numbers on their original scale."""

    @abstractmethod
    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        """The metrics by name, as JSON values."""

    @abstractmethod
    def cells(self, p_C: Floats) -> Cells:
        """A row's probabilities as cells of a table."""


class ClassTask(HeadTask):
    """One class per row: a softmax over the logits."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}

    def probabilities(self, scores_RC: Floats) -> Floats:
        powers_RC = np.exp(scores_RC - scores_RC.max(1, keepdims=True))
        shares_RC: Floats = powers_RC / powers_RC.sum(1, keepdims=True)
        return shares_RC

    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        true_R = true_RC[:, 0].astype(np.int64)
        figures = metrics.class_metrics(true_R, scores_RC.argmax(1), self.labels)
        return figures | {"calibration": metrics.calibration(self.probabilities(scores_RC), true_R)}

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[Misprediction]:
        p_RC, true_R = self.probabilities(scores_RC), true_RC[:, 0].astype(int).tolist()
        p_R, predicted_R = p_RC.max(1).tolist(), p_RC.argmax(1).tolist()
        wrong = [i for i, (true, predicted) in enumerate(zip(true_R, predicted_R, strict=True)) if true != predicted]
        return [
            Misprediction(i, predicted_R[i], self.labels[true_R[i]], self.labels[predicted_R[i]], p_R[i])
            for i in sorted(wrong, key=lambda i: -p_R[i])
        ]

    def evidence(self, scores_RC: Floats, mistake: Misprediction) -> Floats:
        log_p_R: Floats = scores_RC[:, mistake.column] - np.logaddexp.reduce(scores_RC, axis=1)
        return log_p_R

    def cells(self, p_C: Floats) -> Cells:
        return (self.labels[int(p_C.argmax())], *(f"{p:.6f}" for p in p_C))


class LabelsTask(HeadTask):
    """Any number of labels per row: a sigmoid of each logit."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "subset_accuracy", "macro-f1": "macro_f1"}

    def probabilities(self, scores_RC: Floats) -> Floats:
        return 1 / (1 + np.exp(-scores_RC))

    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        figures = metrics.multi_label_metrics(true_RC > 0.5, scores_RC > 0, self.labels)
        p_P, true_P = self.probabilities(scores_RC).ravel(), true_RC.ravel() > 0.5
        return figures | {"calibration": metrics.calibration(np.stack([1 - p_P, p_P], 1), true_P.astype(int))}

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[Misprediction]:
        p_RC = np.nan_to_num(self.probabilities(scores_RC))
        sure_RC = np.where((p_RC > 0.5) != (true_RC > 0.5), np.maximum(p_RC, 1 - p_RC), 0.0)
        mistakes = []
        for i in sorted(np.flatnonzero(sure_RC.any(1)).tolist(), key=lambda i: -sure_RC[i].max()):
            column = int(sure_RC[i].argmax())
            sure, sign = float(sure_RC[i, column]), 1 if p_RC[i, column] > 0.5 else -1
            mistakes.append(Misprediction(i, column, self._joined(true_RC[i]), self._joined(p_RC[i]), sure, sign))
        return mistakes

    def _joined(self, p_C: Floats) -> str:
        return SEPARATOR.join(name for name, p in zip(self.labels, p_C, strict=True) if p > 0.5)

    def cells(self, p_C: Floats) -> Cells:
        return (self._joined(p_C) or SEPARATOR, *(f"{p:.6f}" for p in p_C))


class NumberTask(HeadTask):
    """A number per row: the head predicts (number - center) / scale."""

    metrics: ClassVar[Mapping[str, str]] = {"correlation": "pearson"}

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, spec)
        if spec.center is None or spec.scale is None:
            raise ValueError("the scaling of the numbers has not been inferred from the table yet")
        self._center, self._scale = spec.center, spec.scale

    def numbers(self, label: Label) -> Floats:
        return (super().numbers(label) - self._center) / self._scale

    def probabilities(self, scores_RC: Floats) -> Floats:
        return scores_RC * self._scale + self._center

    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        return metrics.regression_metrics(*(self.probabilities(of_RC)[:, 0] for of_RC in (true_RC, scores_RC)))

    def cells(self, p_C: Floats) -> Cells:
        return (f"{p_C[0]:.6g}",)


def _labels(rows: Sequence[EncodedRow]) -> Floats:
    return np.stack([cast(Floats, row.label) for row in rows])


HEADS: Mapping[str, type[HeadTask]] = {"class": ClassTask, "multi": LabelsTask, "number": NumberTask}
"""The tasks by the kind of labels."""
