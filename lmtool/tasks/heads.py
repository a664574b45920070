"""What classification, labels and regression have in common: a head on a model scores each row.

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
from lmtool.tasks.labels import Label, LabelKind, LabelMap
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.reading import LabelledText, LabelledTexts
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import MISTAKES, AnsweringModel, Cells, Floats, Prediction, Task
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

    others: ClassVar[str] = ""
    """What rows have where they have not one class each."""

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._spec, self._map = spec, LabelMap(cast(LabelKind, spec.task), spec.labels)
        for key, kind in (("temperature", "class"), ("thresholds", "multi")):
            if getattr(spec, key) is not None and spec.task != kind:
                raise UsageError(f"this is only for labels of kind {kind}", where=f"objective.{key}", fix="omit it")
        self.added = ("predicted", *(f"p_{name}" for name in self.labels))

    @classmethod
    def label_kind(cls, spec: Classification, columns: Columns) -> LabelKind | None:
        return None if spec.task == "auto" else spec.task

    @classmethod
    def resolve(cls, spec: Classification, train: LabelledTexts) -> Classification:
        labels, fix = cast(LabelMap, train.labels), "omit it, or add --labels class if each row has one"
        if spec.contrastive and cls.others:
            what = f"vectors are trained by contrast for rows of one class each, but rows have {cls.others}"
            raise UsageError(what, where="objective.contrastive", fix=fix)
        if spec.class_weights is not None and cls.others:
            what = f"class weights need one class per row, but rows have {cls.others}"
            raise UsageError(what, where="objective.class_weights", fix=fix)
        return spec.with_values({"task": labels.kind, "labels": labels.names})

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        rows = []
        for item, ids in zip(items, self._ids([item.texts for item in items]), strict=True):
            tokens, segments, cut = self.prompt_format.encode_row(ids)
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
        return self.validation(loss, self.figures(scores_RC, true_labels(rows)))

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        return self.results([self.examine(model, rows)], part, step)

    def examine(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> "Examined":
        """The scores of a model on labelled rows, and the words that decided its mistakes."""
        scores_RC, loss = self.scores(model, rows)
        decided: dict[int, tuple[list[str], str]] = {}
        if not np.isnan(loss):
            mistakes = self.mistakes(scores_RC, true_labels(rows))[:MISTAKES]
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
        mistakes = [mistake for mistake in self.mistakes(scores_RC, true_labels(rows)) if mistake.row in decided]
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
        return Results(part, step, len(rows), loss, self.figures(scores_RC, true_labels(rows)), listed, self.labels)

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
        return [self.cells(p_C) for p_C in self.probabilities(self.scores(model, rows)[0])]

    def predict(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Prediction]:
        p_RC = self.probabilities(self.scores(model, rows)[0])
        return [Prediction(self.label(p_C), dict(zip(self.labels, p_C.tolist(), strict=False))) for p_C in p_RC]

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
            self.choose(scores_RC, np.concatenate([true_labels(one.rows) for one in examined]))

    def choose(self, scores_RC: Floats, true_RC: Floats) -> None:
        """Choose what held-out rows decide, by their scores."""
        return


def true_labels(rows: Sequence[EncodedRow]) -> Floats:
    """The labels of rows, as a head has them (R, C)."""
    return np.stack([cast(Floats, row.label) for row in rows])
