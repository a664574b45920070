"""The base class of classification, multi-label classification and regression: a head on a model scores each row.

Shapes: R rows, C classes, labels or 1 number, K 1 class index or number, or C labels, W words.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import numpy as np

from lmtool.arrays import Floats
from lmtool.errors import UsageError
from lmtool.evaluation.attribution import find_words_and_positions_in_row, remove_tokens
from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks.labels import Label, LabelKind, LabelMap
from lmtool.tasks.metrics import MetricValues
from lmtool.tasks.reading import LabelledRow, LabelledTable
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import MAX_LISTED_ROWS, Cells, ModelWithObjective, Prediction, Task
from lmtool.tokenization.prompt_format import PromptFormat

MAX_DECISIVE_WORDS = 3
"""Words that are listed with a mistake."""

MIN_ATTRIBUTION_POSITIONS = 20_000
"""Positions that may be computed to find these words, or as many as the measured rows have if that is more."""


class Misprediction(NamedTuple):
    """A wrong prediction.

    Args:
        row: index among the measured rows.
        column: of the predicted class, or of the label that is most confidently wrong.
        label: the true class or labels.
        predicted: the predicted class or labels.
        probability: of that class, or of the presence or absence of that label.
        sign: -1 if the label is wrongly absent, else 1.
    """

    row: int
    column: int
    label: str
    predicted: str
    probability: float
    sign: int = 1


@dataclass(frozen=True)
class ScoredRows:
    """Labelled rows and the scores of a model.

    loss: its mean. decisive: for the most confident mistakes the words that decided them, and the text, by the index
    of the row.
    """

    rows: Sequence[EncodedRow]
    scores_RC: Floats
    loss: float
    decisive: Mapping[int, tuple[list[str], str]] = field(default_factory=dict)


class HeadTask(Task):
    """A task that a head on the model predicts."""

    label_description: ClassVar[str] = ""
    """What rows have instead of one class each."""

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._spec, self._map = spec, LabelMap(cast(LabelKind, spec.task), spec.labels)
        for key, kind in (("temperature", "class"), ("thresholds", "multi")):
            if getattr(spec, key) is not None and spec.task != kind:
                raise UsageError(f"this is only for labels of kind {kind}", where=f"objective.{key}", fix="omit it")
        self.output_columns = ("predicted", *(f"p_{name}" for name in self.labels))

    @classmethod
    def get_label_kind(cls, spec: Classification, columns: Columns) -> LabelKind | None:
        return None if spec.task == "auto" else spec.task

    @classmethod
    def resolve_spec_from_rows(cls, spec: Classification, train: LabelledTable) -> Classification:
        labels, fix = cast(LabelMap, train.labels), "omit it, or add --labels class if each row has one"
        if spec.contrastive and cls.label_description:
            what = f"contrastive training needs one class per row, but rows have {cls.label_description}"
            raise UsageError(what, where="objective.contrastive", fix=fix)
        if spec.class_weights is not None and cls.label_description:
            what = f"class weights need one class per row, but rows have {cls.label_description}"
            raise UsageError(what, where="objective.class_weights", fix=fix)
        return spec.with_unvalidated_values({"task": labels.kind, "labels": labels.names})

    def encode(self, items: Sequence[LabelledRow]) -> list[EncodedRow]:
        rows = []
        for item, ids in zip(items, self._encode_texts([item.texts for item in items]), strict=True):
            tokens, segments, is_truncated = self.prompt_format.encode_and_truncate_row(ids)
            label = None if item.label is None else self.encode_label(item.label)
            rows.append(EncodedRow(item.row, tokens, is_truncated, segments, label))
        return rows

    def encode_label(self, label: Label) -> Floats:
        """Returns a label as a target of the head: (1,) class index or scaled number, (C,) multi-hot labels."""
        return np.atleast_1d(np.array(self._map.encode(label), dtype=np.float64))

    def compute_scores(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> tuple[Floats, float]:
        """Computes the logits of rows (R, C), and their mean loss; NaN if the rows have no labels."""
        evaluated = model.evaluate(rows, lambda scores_BC, *_: list(scores_BC.cpu().double().numpy()))
        return np.stack(evaluated.arrays), evaluated.loss

    def validate(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ValidationResult:
        scores_RC, loss = self.compute_scores(model, rows)
        return self.make_validation(loss, self.compute_metrics(scores_RC, stack_labels(rows)))

    def compute_results(self, model: ModelWithObjective, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        return self.summarize([self.score_rows_and_explain_mistakes(model, rows)], part, step)

    def score_rows_and_explain_mistakes(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ScoredRows:
        """Computes the scores of a model on labelled rows, and finds the words that decided its mistakes."""
        scores_RC, loss = self.compute_scores(model, rows)
        if np.isnan(loss):
            return ScoredRows(rows, scores_RC, loss)
        mistakes = self.find_mistakes(scores_RC, stack_labels(rows))[:MAX_LISTED_ROWS]
        words_of_mistakes = self._find_decisive_words(model, rows, scores_RC, mistakes)
        decisive = {
            mistake.row: (words, self._decode_texts(rows[mistake.row]))
            for mistake, words in zip(mistakes, words_of_mistakes, strict=True)
        }
        return ScoredRows(rows, scores_RC, loss, decisive)

    def summarize(self, scored: Sequence[ScoredRows], part: str, step: int) -> Results:
        """Returns the results of scored rows, of several models taken together. part, step: see `Results`."""
        rows = [row for one in scored for row in one.rows]
        loss = sum(len(one.rows) * one.loss for one in scored) / len(rows)
        if np.isnan(loss):
            return Results(part, step, len(rows), loss, {}, [], self.labels)
        scores_RC = np.concatenate([one.scores_RC for one in scored])
        starts = np.cumsum([0, *(len(one.rows) for one in scored)])
        decisive = {
            start + i: words for start, one in zip(starts, scored, strict=False) for i, words in one.decisive.items()
        }
        mistakes = [mistake for mistake in self.find_mistakes(scores_RC, stack_labels(rows)) if mistake.row in decisive]
        listed = [
            {
                "row": rows[mistake.row].number,
                "label": mistake.label,
                "predicted": mistake.predicted,
                "probability": mistake.probability,
                "words": decisive[mistake.row][0],
                "text": decisive[mistake.row][1],
            }
            for mistake in mistakes[:MAX_LISTED_ROWS]
        ]
        figures = self.compute_metrics(scores_RC, stack_labels(rows))
        return Results(part, step, len(rows), loss, figures, listed, self.labels)

    def _find_decisive_words(
        self,
        model: ModelWithObjective,
        rows: Sequence[EncodedRow],
        scores_RC: Floats,
        mistakes: Sequence[Misprediction],
    ) -> list[list[str]]:
        """Finds the words without which each mistake would be least certain (leave-one-out; Li et al. 2016).

        Returns none for long rows that would take more computation than measuring did.
        """
        budget = max(MIN_ATTRIBUTION_POSITIONS, sum(len(row.tokens) for row in rows))
        filler = self.prompt_format.between[0]
        words_of_mistakes: list[list[str]] = []
        variants: list[EncodedRow] = []
        for mistake in mistakes:
            row = rows[mistake.row]
            words, positions = find_words_and_positions_in_row(self.prompt_format.tokenizer, row.tokens)
            cost = len(words) * len(row.tokens)
            if cost > budget:
                words, positions, cost = [], [], 0
            budget -= cost
            words_of_mistakes.append(words)
            shorter = [remove_tokens(row.tokens, row.segments, of_word, filler) for of_word in positions]
            variants += [replace(row, tokens=tokens, segments=segments) for tokens, segments in shorter]
        if not variants:
            return [[] for _ in mistakes]
        ends = np.cumsum([len(words) for words in words_of_mistakes])[:-1]
        decisive = []
        variant_scores = np.split(self.compute_scores(model, variants)[0], ends)
        for mistake, words, scores_WC in zip(mistakes, words_of_mistakes, variant_scores, strict=True):
            whole_1 = self.compute_evidence(scores_RC[[mistake.row]], mistake)
            share_W = whole_1 - self.compute_evidence(scores_WC, mistake)
            order = np.argsort(-share_W, kind="stable")
            decisive.append(list(dict.fromkeys(words[i] for i in order if share_W[i] > 0))[:MAX_DECISIVE_WORDS])
        return decisive

    def predict_cells(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Cells]:
        return [self.format_cells(p_C) for p_C in self.compute_probabilities(self.compute_scores(model, rows)[0])]

    def predict(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Prediction]:
        p_RC = self.compute_probabilities(self.compute_scores(model, rows)[0])
        return [Prediction(self.choose_label(p_C), dict(zip(self.labels, p_C.tolist(), strict=False))) for p_C in p_RC]

    def find_mistakes(self, scores_RC: Floats, encoded_labels_RK: Floats) -> list[Misprediction]:
        """Returns the mistakes, the most confident first; none if there are no probabilities."""
        return []

    def compute_evidence(self, scores_RC: Floats, mistake: Misprediction) -> Floats:
        """Returns the score (R) by which rows are predicted as in a mistake: the logit of the label, or its negative if
        the label is wrongly absent."""
        return mistake.sign * scores_RC[:, mistake.column]

    @abstractmethod
    def compute_probabilities(self, scores_RC: Floats) -> Floats:
        """Returns probabilities of classes or labels, or numbers on their original scale (R, C)."""

    @abstractmethod
    def compute_metrics(self, scores_RC: Floats, encoded_labels_RK: Floats) -> MetricValues:
        """Computes the metrics by name, as JSON values."""

    @abstractmethod
    def choose_label(self, p_C: Floats) -> str | tuple[str, ...] | float:
        """Returns the prediction for a row's probabilities."""

    @abstractmethod
    def format_cells(self, p_C: Floats) -> Cells:
        """Returns a row's prediction and probabilities as cells of a table."""

    def calibrate(self, model: ModelWithObjective, rows: Sequence[EncodedRow], *, held_out: bool) -> None:
        if held_out:
            self.calibrate_on([ScoredRows(rows, *self.compute_scores(model, rows))])

    def calibrate_on(self, scored: Sequence[ScoredRows]) -> None:
        """Chooses temperature or thresholds by the scores of models that were not trained on these rows."""
        scores_RC = np.concatenate([one.scores_RC for one in scored])
        if np.isfinite(scores_RC).all():
            self.fit_decision(scores_RC, np.concatenate([stack_labels(one.rows) for one in scored]))

    def fit_decision(self, scores_RC: Floats, encoded_labels_RK: Floats) -> None:
        """Chooses temperature or thresholds by the scores of held-out rows."""
        return


def stack_labels(rows: Sequence[EncodedRow]) -> Floats:
    """Returns the labels of rows as targets of the head (R, K)."""
    return np.stack([cast(Floats, row.label) for row in rows])
