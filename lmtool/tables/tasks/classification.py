"""Tasks that a head on a model answers: classification, multi-label classification and regression.

Shapes: R rows, C classes, labels or 1 number.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import numpy as np

from lmtool.analysis.attribution import without, words_of_row
from lmtool.errors import UsageError
from lmtool.inference.evaluation import Validation
from lmtool.recipe.spec.objective import Classification
from lmtool.tables.labels import SEPARATOR, Label, LabelKind, LabelMap
from lmtool.tables.reading import LabelledText
from lmtool.tables.rows import EncodedRow
from lmtool.tables.tasks import metrics
from lmtool.tables.tasks.heldout import HALF, choose_temperature, choose_thresholds
from lmtool.tables.tasks.metrics import MetricValues
from lmtool.tables.tasks.results import Results
from lmtool.tables.tasks.task import MISTAKES, AnsweringModel, Cells, Floats, FormattedNumber, Task
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


@dataclass(frozen=True)
class Examined:
    """Labelled rows and the scores of a model. loss: its mean. decided: of the most confident mistakes, by the index of
    the row, the words that decided them, and the text.
    """

    rows: Sequence[EncodedRow]
    scores_RC: Floats
    loss: float
    decided: Mapping[int, tuple[list[str], str]] = field(default_factory=dict)


class HeadTask(Task):
    """A task that is predicted by a head on the model."""

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._spec, self._map = spec, LabelMap(cast(LabelKind, spec.task), spec.labels)
        self.temperature = spec.temperature or 1.0
        self.threshold_C = np.array(spec.thresholds or [HALF] * len(spec.labels))
        for key, kind in (("temperature", "class"), ("thresholds", "multi")):
            if getattr(spec, key) is not None and spec.task != kind:
                raise UsageError(f"this is only for labels of kind {kind}", where=f"objective.{key}", fix="omit it")
        if len(self.threshold_C) != len(spec.labels):
            what = f"there are {len(self.threshold_C)} thresholds for {len(spec.labels)} labels"
            raise UsageError(what, where="objective.thresholds", fix="give one for each, in their order")
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
        return self.results([self.examine(model, rows)], part, step)

    def examine(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> "Examined":
        """The scores of a model on labelled rows, and the words that decided its mistakes."""
        scores_RC, loss = self.scores(model, rows)
        decided: dict[int, tuple[list[str], str]] = {}
        if not np.isnan(loss):
            mistakes = self.mistakes(scores_RC, _labels(rows))[:MISTAKES]
            for mistake, words in zip(mistakes, self._deciding(model, rows, scores_RC, mistakes), strict=True):
                decided[mistake.row] = words, self._text(rows[mistake.row])
        return Examined(rows, scores_RC, loss, decided)

    def results(self, examined: Sequence["Examined"], part: str, step: int) -> Results:
        """The results of rows that were examined, of several models taken together. part, step: see `Results`."""
        rows = [row for one in examined for row in one.rows]
        loss = sum(len(one.rows) * one.loss for one in examined) / len(rows)
        if np.isnan(loss):
            # logits that are no numbers answer nothing
            return Results(part, step, len(rows), loss, {}, [], self.labels)
        scores_RC = np.concatenate([one.scores_RC for one in examined])
        starts = np.cumsum([0, *(len(one.rows) for one in examined)])
        decided = {
            start + i: words for start, one in zip(starts, examined, strict=False) for i, words in one.decided.items()
        }
        mistakes = [mistake for mistake in self.mistakes(scores_RC, _labels(rows)) if mistake.row in decided]
        listed = [
            {
                "row": rows[mistake.row].number,
                "label": mistake.label,
                "predicted": mistake.predicted,
                "probability": mistake.probability,
                "words": decided[mistake.row][0],
                "text": decided[mistake.row][1],
            }
            for mistake in mistakes[:MISTAKES]
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
    def label(self, p_C: Floats) -> str | tuple[str, ...] | float:
        """The answer for a row's probabilities."""

    @abstractmethod
    def cells(self, p_C: Floats) -> Cells:
        """A row's probabilities as cells of a table."""

    def decide(self, model: AnsweringModel, rows: Sequence[EncodedRow], *, held_out: bool) -> None:
        if held_out:
            self.decide_by([Examined(rows, *self.scores(model, rows))])

    def decide_by(self, examined: Sequence["Examined"]) -> None:
        """Choose what held-out rows decide, by the scores of the models that were not trained on them."""
        scores_RC = np.concatenate([one.scores_RC for one in examined])
        if np.isfinite(scores_RC).all():
            self.choose(scores_RC, np.concatenate([_labels(one.rows) for one in examined]))

    def choose(self, scores_RC: Floats, true_RC: Floats) -> None:
        """Choose what held-out rows decide, by their scores."""
        return


class ClassTask(HeadTask):
    """One class per row: a softmax over the logits, which are divided by a temperature.

    costs_CC: of errors, by true and predicted class; the class of least expected cost is predicted, instead of the most
        probable one.
    min_probability: the cell of a prediction is empty where no class is as probable as this.
    """

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}
    costs_CC: Floats | None = None
    min_probability = 0.0

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


class LabelsTask(HeadTask):
    """Any number of labels per row: those of which the probability, a sigmoid of the logit, is above a threshold."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "subset_accuracy", "macro-f1": "macro_f1"}

    def choose(self, scores_RC: Floats, true_RC: Floats) -> None:
        p_RC = self.probabilities(scores_RC)
        self.threshold_C = np.array(self._spec.thresholds or choose_thresholds(p_RC, true_RC > 0.5))

    def probabilities(self, scores_RC: Floats) -> Floats:
        return 1 / (1 + np.exp(-scores_RC))

    def figures(self, scores_RC: Floats, true_RC: Floats) -> MetricValues:
        p_RC = self.probabilities(scores_RC)
        figures = metrics.multi_label_metrics(true_RC > 0.5, p_RC > self.threshold_C, self.labels)
        figures["thresholds"] = self.threshold_C.tolist()
        p_P, true_P = p_RC.ravel(), true_RC.ravel() > 0.5
        return figures | {"calibration": metrics.calibration(np.stack([1 - p_P, p_P], 1), true_P.astype(int))}

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[Misprediction]:
        p_RC = np.nan_to_num(self.probabilities(scores_RC))
        above_RC = p_RC > self.threshold_C
        sure_RC = np.where(above_RC != (true_RC > 0.5), np.where(above_RC, p_RC, 1 - p_RC), 0.0)
        mistakes = []
        for i in sorted(np.flatnonzero(sure_RC.any(1)).tolist(), key=lambda i: -sure_RC[i].max()):
            column = int(sure_RC[i].argmax())
            sure, sign = float(sure_RC[i, column]), 1 if above_RC[i, column] else -1
            true, predicted = (SEPARATOR.join(self.label(p_C)) for p_C in (true_RC[i], p_RC[i]))
            mistakes.append(Misprediction(i, column, true, predicted, sure, sign))
        return mistakes

    def label(self, p_C: Floats) -> tuple[str, ...]:
        return tuple(name for name, has in zip(self.labels, p_C > self.threshold_C, strict=True) if has)

    def cells(self, p_C: Floats) -> Cells:
        return (SEPARATOR.join(self.label(p_C)) or SEPARATOR, *(FormattedNumber(p, ".6f") for p in p_C))


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

    def label(self, p_C: Floats) -> float:
        return float(p_C[0])

    def cells(self, p_C: Floats) -> Cells:
        return (FormattedNumber(p_C[0], ".6g"),)


def _labels(rows: Sequence[EncodedRow]) -> Floats:
    return np.stack([cast(Floats, row.label) for row in rows])


HEADS: Mapping[str, type[HeadTask]] = {"class": ClassTask, "multi": LabelsTask, "number": NumberTask}
"""The tasks by the kind of labels."""
