"""Tasks on the rows of a table: classification, multi-label classification, regression, and text-to-text.

A task defines how a row is encoded, its loss, its predictions and its metrics. Shapes: R rows, C classes, labels or 1
number.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.decoding.framing import Framing
from lmtool.decoding.settings import Beam, Greedy, Options
from lmtool.decoding.text import complete, write
from lmtool.errors import UsageError
from lmtool.inference.attribution import without, words_of_row
from lmtool.inference.evaluation import Evaluated, Validation, evaluate
from lmtool.model.classifier import Classifier
from lmtool.objective import ClassificationObjective, Loss
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.tables.columns import Columns
from lmtool.tables.labels import SEPARATOR, Label, LabelKind, LabelMap
from lmtool.tables.metrics import (
    NO_LABEL,
    calibration,
    class_metrics,
    confusion_matrix,
    multi_label_metrics,
    regression_metrics,
    repeats_phrase,
    sentence_scores,
    translation_metrics,
)
from lmtool.tables.reading import LabelledText
from lmtool.tables.results import Results
from lmtool.tables.rows import EncodedRow
from lmtool.tables.spans import SpanTask
from lmtool.tables.tagging import build_tag_task
from lmtool.tables.task import LONGEST_TEXT, MISTAKES, AnsweringModel, Cells, Floats, Task
from lmtool.text.chat import Message
from lmtool.text.dropout import BpeDropout

DECIDING = 3
"""Number of words that are listed beside a mistake."""

LEFT_OUT = 20_000
"""Positions that are computed for these words, or as many as the measured rows have where that is more."""

ANSWERS_AT_ONCE = 64
"""Rows whose outputs are generated together."""


class WrongAnswer(NamedTuple):
    """A row that is answered wrongly.

    place: the number of the row among those measured, from 0. column: of the class predicted, or of the label that is
    most confidently wrong. label, predicted: the true and the predicted class or labels. probability: of that class, or
    of that label's answer. sign: -1 where the label is wrongly absent, else 1.
    """

    place: int
    column: int
    label: str
    predicted: str
    probability: float
    sign: int = 1


def build_task(recipe: Recipe, framing: Framing, name: str, columns: Columns, labels: tuple[str, ...]) -> Task:
    """The task of a resolved recipe's table. labels: the classes that generated texts may name."""
    spec = recipe.objective
    if isinstance(spec, Tagging):
        return build_tag_task(framing, spec)
    if isinstance(spec, QuestionAnswering):
        return SpanTask(framing, spec)
    if not isinstance(spec, Classification):
        return AnswerTask(framing, name, labels, columns, recipe.evaluation.num_beams, _dropout(recipe, framing))
    match spec.task:
        case "class":
            return ClassTask(framing, spec)
        case "multi":
            return LabelsTask(framing, spec)
        case "number":
            return NumberTask(framing, spec)
        case "auto":
            raise ValueError("the labels have not been inferred from the table yet")


def _dropout(recipe: Recipe, framing: Framing) -> BpeDropout | None:
    """The BPE dropout of a recipe. Raises UsageError where rows are conversations."""
    spec = recipe.tokenizer
    if not isinstance(spec, BpeTokenizer) or not spec.dropout:
        return None
    if framing.chat is not None:
        raise UsageError(
            "BPE dropout is for pairs, not for conversations", where="tokenizer.dropout", fix="set it to 0"
        )
    return BpeDropout(framing.tokenizer, spec.dropout, recipe.seed)


class HeadTask(Task):
    """A task that is predicted by a head on the model."""

    def __init__(self, framing: Framing, spec: Classification) -> None:
        super().__init__(framing, "", spec.labels)
        self._map = LabelMap(cast(LabelKind, spec.task), spec.labels)

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        rows = []
        for item, ids in zip(items, self._ids([item.texts for item in items]), strict=True):
            tokens, segments, cut = self.framing.row(ids)
            label = None if item.label is None else self.numbers(item.label)
            rows.append(EncodedRow(item.row, tokens, cut, segments, label))
        return rows

    def numbers(self, label: Label) -> Floats:
        """A label as a target of the head: (1,) class or scaled number, (C,) for labels."""
        return np.atleast_1d(np.array(self._map.encode(label), dtype=np.float64))

    def scores(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> tuple[Floats, float]:
        """Logits of all rows (R, C), and the mean loss; NaN where the rows have no labels."""
        lm, objective = cast(Classifier, model.lm), cast(ClassificationObjective, model.objective)

        def read(chosen: list[int]) -> tuple[Loss | None, list[Floats]]:
            batch = objective.collate([rows[i].example() for i in chosen]).to(model.compute.device)
            scores_BC = lm.answer(batch).scores_BC
            loss = None if rows[chosen[0]].label is None else objective.head_loss(scores_BC, batch)
            return loss, list(scores_BC.cpu().double().numpy())

        found: Evaluated = evaluate(lm, [row.lengths for row in rows], read, model.compute, model.world)
        return np.stack(found.found), found.loss

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        scores_RC, loss = self.scores(model, rows)
        figures = self.figures(scores_RC, _labels(rows))
        return Validation(loss, {metric: _float(figures[name]) for metric, name in self.metrics.items()})

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        scores_RC, loss = self.scores(model, rows)
        if np.isnan(loss):
            # logits that are no numbers answer nothing
            return Results(part, step, len(rows), loss, {}, [], self.labels)
        mistakes = self.mistakes(scores_RC, _labels(rows))[:MISTAKES]
        words = self._deciding(model, rows, scores_RC, mistakes)
        listed = [
            {
                "row": rows[found.place].number,
                "label": found.label,
                "predicted": found.predicted,
                "probability": found.probability,
                "words": own,
                "text": self._text(rows[found.place]),
            }
            for found, own in zip(mistakes, words, strict=True)
        ]
        return Results(part, step, len(rows), loss, self.figures(scores_RC, _labels(rows)), listed, self.labels)

    def _deciding(
        self, model: AnsweringModel, rows: Sequence[EncodedRow], scores_RC: Floats, mistakes: Sequence[WrongAnswer]
    ) -> list[list[str]]:
        """The words without which each mistake would be least certain (leave-one-out; Li, Monroe and Jurafsky 2016).

        None for the long rows that would take more computation than measuring did.
        """
        left = max(LEFT_OUT, sum(len(row.tokens) for row in rows))
        found = [words_of_row(self.framing.tokenizer, rows[mistake.place].tokens) for mistake in mistakes]
        shorter: list[list[EncodedRow]] = []
        for mistake, (_, places) in zip(mistakes, found, strict=True):
            row = rows[mistake.place]
            cost = len(places) * len(row.tokens)
            affordable = cost <= left
            left -= cost * affordable
            parts = [without(row.tokens, row.segments, own, self.framing.between[0]) for own in places * affordable]
            shorter.append([replace(row, tokens=tokens, segments=segments) for tokens, segments in parts])
        variants = [row for own in shorter for row in own]
        if not variants:
            return [[] for _ in mistakes]
        ends = np.cumsum([len(own) for own in shorter])[:-1]
        deciding = []
        parts_WC = np.split(self.scores(model, variants)[0], ends)
        for mistake, (words, _), scores_WC in zip(mistakes, found, parts_WC, strict=True):
            whole = self.evidence(scores_RC[mistake.place : mistake.place + 1], mistake)
            share_W = whole - self.evidence(scores_WC, mistake)
            order = np.argsort(-share_W, kind="stable")[:DECIDING]
            deciding.append([words[i] for i in order if share_W[i] > 0])
        return deciding

    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        scores_RC, _ = self.scores(model, rows)
        return [self.cells(p_C) for p_C in self.probabilities(scores_RC)]

    @property
    def added(self) -> tuple[str, ...]:
        return ("predicted", *(f"p_{name}" for name in self.labels))

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[WrongAnswer]:
        """The mistakes, the most confident first; none where there are no probabilities."""
        return []

    def evidence(self, scores_RC: Floats, mistake: WrongAnswer) -> Floats:
        """By which score (R) rows are answered as in a mistake: the logit of its label, or of the label's absence."""
        score_R: Floats = mistake.sign * scores_RC[:, mistake.column]
        return score_R

    @abstractmethod
    def probabilities(self, scores_RC: Floats) -> Floats:
        """Probabilities of classes or labels, or numbers on their original scale."""

    @abstractmethod
    def figures(self, scores_RC: Floats, true_RC: Floats) -> dict[str, Any]:
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

    def figures(self, scores_RC: Floats, true_RC: Floats) -> dict[str, Any]:
        true_R = true_RC[:, 0].astype(np.int64)
        confusion = confusion_matrix(true_R, scores_RC.argmax(1), len(self.labels))
        found = class_metrics(confusion).to_json(self.labels)
        return found | {"calibration": calibration(self.probabilities(scores_RC), true_R)}

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[WrongAnswer]:
        p_RC, true_R = self.probabilities(scores_RC), true_RC[:, 0].astype(int)
        given_R = p_RC.argmax(1)
        wrong = sorted(np.flatnonzero(given_R != true_R).tolist(), key=lambda i: (-p_RC[i].max(), i))
        return [
            WrongAnswer(i, int(given_R[i]), self.labels[true_R[i]], self.labels[given_R[i]], float(p_RC[i].max()))
            for i in wrong
        ]

    def evidence(self, scores_RC: Floats, mistake: WrongAnswer) -> Floats:
        log_p_R: Floats = scores_RC[:, mistake.column] - np.logaddexp.reduce(scores_RC, axis=1)
        return log_p_R

    def cells(self, p_C: Floats) -> Cells:
        return (self.labels[int(p_C.argmax())], *(f"{p:.6f}" for p in p_C))


class LabelsTask(HeadTask):
    """Any number of labels per row: a sigmoid of each logit."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "subset_accuracy", "macro-f1": "macro_f1"}

    def probabilities(self, scores_RC: Floats) -> Floats:
        sigmoid_RC: Floats = 1 / (1 + np.exp(-scores_RC))
        return sigmoid_RC

    def figures(self, scores_RC: Floats, true_RC: Floats) -> dict[str, Any]:
        found = multi_label_metrics(true_RC > 0.5, scores_RC > 0).to_json(self.labels)
        p_P, true_P = self.probabilities(scores_RC).ravel(), true_RC.ravel() > 0.5
        return found | {"calibration": calibration(np.stack([1 - p_P, p_P], 1), true_P.astype(int))}

    def mistakes(self, scores_RC: Floats, true_RC: Floats) -> list[WrongAnswer]:
        p_RC = np.nan_to_num(self.probabilities(scores_RC))
        sure_RC = np.where((p_RC > 0.5) != (true_RC > 0.5), np.maximum(p_RC, 1 - p_RC), 0.0)
        column_R = sure_RC.argmax(1)
        wrong = sorted(np.flatnonzero(sure_RC.any(1)).tolist(), key=lambda i: (-sure_RC[i].max(), i))
        found = []
        for i in wrong:
            column, sure = int(column_R[i]), float(sure_RC[i].max())
            sign = 1 if p_RC[i, column] > 0.5 else -1
            found.append(WrongAnswer(i, column, self._joined(true_RC[i]), self._joined(p_RC[i]), sure, sign))
        return found

    def _joined(self, p_C: Floats) -> str:
        return SEPARATOR.join(name for name, p in zip(self.labels, p_C, strict=True) if p > 0.5)

    def cells(self, p_C: Floats) -> Cells:
        return (self._joined(p_C) or SEPARATOR, *(f"{p:.6f}" for p in p_C))


class NumberTask(HeadTask):
    """A number per row: the head predicts (number - center) / scale."""

    metrics: ClassVar[Mapping[str, str]] = {"correlation": "pearson"}

    def __init__(self, framing: Framing, spec: Classification) -> None:
        super().__init__(framing, spec)
        if spec.center is None or spec.scale is None:
            raise ValueError("the scaling of the numbers has not been inferred from the table yet")
        self._center, self._scale = spec.center, spec.scale

    def numbers(self, label: Label) -> Floats:
        return (super().numbers(label) - self._center) / self._scale

    def probabilities(self, scores_RC: Floats) -> Floats:
        return scores_RC * self._scale + self._center

    def figures(self, scores_RC: Floats, true_RC: Floats) -> dict[str, Any]:
        true_R, found_R = (self.probabilities(numbers_RC)[:, 0] for numbers_RC in (true_RC, scores_RC))
        return dict(regression_metrics(true_R, found_R).to_json())

    def cells(self, p_C: Floats) -> Cells:
        return (f"{p_C[0]:.6g}",)


class AnswerTask(Task):
    """A text per row, generated by the model: a target, or a label as text (Raffel et al. 2020).

    columns: of the texts, whose names are the prefix of each where there are several. dropout: segments the texts of
    training rows, which are not conversations, anew each time; None for never.
    """

    added = ("predicted",)

    def __init__(
        self,
        framing: Framing,
        name: str,
        labels: tuple[str, ...],
        columns: Columns,
        num_beams: int,
        dropout: BpeDropout | None = None,
    ) -> None:
        super().__init__(framing, name, labels)
        self._columns = columns
        self._num_beams = num_beams
        self._dropout = dropout

    @property
    def reread(self) -> Callable[[EncodedRow, np.random.Generator], EncodedRow] | None:
        return None if self._dropout is None else partial(self._resegmented, self._dropout)

    def _resegmented(self, dropout: BpeDropout, row: EncodedRow, rng: np.random.Generator) -> EncodedRow:
        """The row with its texts segmented anew; one that is truncated stays, since its text has no end."""
        if row.cut or row.target is None:
            return row
        decode = self.framing.tokenizer.decode
        pair = self.framing.pair(dropout(decode(row.tokens.tolist()), rng), dropout(decode(row.target.tolist()), rng))
        return replace(row, tokens=pair.source, target=pair.target)

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        pairs = [(as_source(self.name, self._columns.texts, item.texts), as_answer(item)) for item in items]
        if self.framing.chat is not None:
            return [self._exchange(item, *pair) for item, pair in zip(items, pairs, strict=True)]
        rows = []
        every = self._ids([(source, answer or "") for source, answer in pairs])
        for item, (_, answer), (source_ids, answer_ids) in zip(items, pairs, every, strict=True):
            pair = self.framing.pair(source_ids, None if answer is None else answer_ids)
            rows.append(EncodedRow(item.row, pair.source, pair.cut, target=pair.target, answer=answer or ""))
        return rows

    def _exchange(self, item: LabelledText, source: str, answer: str | None) -> EncodedRow:
        """A row as a conversation; a pair is one of two messages."""
        messages = item.messages or tuple(
            Message(role=role, content=text)
            for role, text in (("user", source), ("assistant", answer))
            if text is not None
        )
        found = self.framing.exchange(messages)
        # templates write spaces around an answer
        answer = (answer or "").strip()
        return EncodedRow(item.row, found.source, found.cut, target=found.target, answer=answer, learned=found.learned)

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        """Loss: mean over the tokens of all targets of -log p, in nats."""

        def read(chosen: list[int]) -> tuple[Loss, tuple[()]]:
            batch = model.objective.collate([rows[i].example() for i in chosen])
            return model.objective.score(model.lm, batch.to(model.compute.device)), ()

        lengths = [row.lengths for row in rows]
        return Validation(evaluate(model.lm, lengths, read, model.compute, model.world).loss)

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        loss, answers = self.validate(model, rows).loss, self.write(model, rows)
        how = "greedy" if self._num_beams == 1 else f"beam search, {self._num_beams} beams, mean log-probability"
        sentences = [] if self.labels else self._sentences(answers, rows)
        figures = self._figures(answers, rows)
        return Results(part, step, len(rows), loss, figures, [], self.labels, self.name, how, sentences=sentences)

    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        return [(text,) for text in self.write(model, rows)]

    def write(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[str]:
        """The generated text of each row, in order: by beam search, or greedily with one beam.

        Of the hypotheses of a beam search it is the best one that repeats no phrase; see `first_unrepeated`.
        A text ends at [EOS], or at the number of tokens that the longest source of its batch leaves in the context.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].tokens))
        groups = [order[start : start + ANSWERS_AT_ONCE] for start in range(0, len(order), ANSWERS_AT_ONCE)]
        found: dict[int, NDArray[np.uint8]] = {}
        for n in model.world.share(len(groups)):
            group = groups[n]
            most = self.framing.room_to_answer(len(rows[group[-1]].tokens))
            beams = self._num_beams
            settings = (
                Greedy(max_new_tokens=most)
                if beams == 1
                else Beam(num_beams=beams, num_return=beams, max_new_tokens=most)
            )
            options = Options(overflow="cut", max_rows=ANSWERS_AT_ONCE * beams)
            prompts = [self.framing.answer_to(rows[i].tokens.tolist()) for i in group]
            with model.compute.autocast():
                written: list[list[str]] = []
                for completion in complete(write(model.lm, self.framing, prompts, settings, options)):
                    if completion.sample == 0:
                        written.append([])
                    written[-1].append(completion.text)
            for i, hypotheses in zip(group, written, strict=True):
                text = first_unrepeated(hypotheses, self.framing.tokenizer.decode(rows[i].tokens.tolist()))
                found[i] = np.frombuffer((text if self.framing.chat is None else text.strip()).encode(), dtype=np.uint8)
        return [text.tobytes().decode() for text in model.world.gather(found, len(rows), np.uint8, model.compute)]

    def _sentences(self, answers: Sequence[str], rows: Sequence[EncodedRow]) -> list[dict[str, Any]]:
        """The worst and the best generated texts, worst first, by their chrF."""
        scores = sentence_scores(answers, [row.answer for row in rows])
        order = sorted(range(len(rows)), key=lambda i: scores[i])
        chosen = order if len(order) <= 2 * MISTAKES else [*order[:MISTAKES], *order[-MISTAKES:]]
        return [
            {
                "row": rows[i].number,
                "source": self._text(rows[i]),
                "target": rows[i].answer[:LONGEST_TEXT],
                "predicted": answers[i][:LONGEST_TEXT],
                "chrf": scores[i],
            }
            for i in chosen
        ]

    def _figures(self, answers: Sequence[str], rows: Sequence[EncodedRow]) -> dict[str, Any]:
        """Metrics of generated texts: as classes where there are labels, else BLEU and chrF (Post 2018)."""
        if not self.labels:
            exact = float(np.mean([answer == row.answer for answer, row in zip(answers, rows, strict=True)]))
            return translation_metrics(answers, [row.answer for row in rows]).to_json() | {"exact": exact}
        index = {name: i for i, name in enumerate(self.labels)}
        given = np.array([index.get(answer.strip(), len(self.labels)) for answer in answers])
        true = np.array([index[row.answer] for row in rows])
        names = [*self.labels, NO_LABEL][: len(self.labels) + bool((given == len(self.labels)).any())]
        return class_metrics(confusion_matrix(true, given, len(names))).to_json(names)


def first_unrepeated(hypotheses: Sequence[str], source: str) -> str:
    """The first hypothesis that repeats no phrase; the first of all where every one does, or the source itself.

    The mean log-probability favours hypotheses that say a phrase twice, since the second time costs little.
    """
    if repeats_phrase(source):
        return hypotheses[0]
    return next((text for text in hypotheses if not repeats_phrase(text)), hypotheses[0])


def as_source(task: str, columns: Sequence[str], texts: Sequence[str]) -> str:
    """The source text of a row: prefixed by the name of the task, and several texts by the names of their columns.

    As in T5 (Raffel et al. 2020): "nli: premise: It rains. hypothesis: It is dry."
    """
    body = texts[0]
    if len(texts) > 1:
        body = " ".join(f"{column}: {text}" for column, text in zip(columns, texts, strict=True))
    return f"{task}: {body}" if task else body


def as_answer(item: LabelledText) -> str | None:
    """The target text of a row: its target, or its label as text; None where it has neither."""
    if item.target is not None or item.label is None:
        return item.target
    if isinstance(item.label, tuple):
        return SEPARATOR.join(item.label)
    return item.label if isinstance(item.label, str) else f"{item.label:g}"


def _labels(rows: Sequence[EncodedRow]) -> Floats:
    return np.stack([cast(Floats, row.label) for row in rows])


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)
