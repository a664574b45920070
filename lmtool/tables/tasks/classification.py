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

from lmtool.analysis.attribution import without, words_of_row
from lmtool.batch import Batch
from lmtool.decoding.settings import Beam, Greedy, Options
from lmtool.decoding.text import complete, write
from lmtool.errors import UsageError
from lmtool.inference.evaluation import Validation
from lmtool.model.heads import Classifier
from lmtool.objective import Loss
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.tables.columns import Columns
from lmtool.tables.labels import SEPARATOR, Label, LabelKind, LabelMap
from lmtool.tables.reading import LabelledText
from lmtool.tables.rows import EncodedRow
from lmtool.tables.tasks import metrics
from lmtool.tables.tasks.metrics import NO_LABEL, MetricValues
from lmtool.tables.tasks.results import Results
from lmtool.tables.tasks.spans import SpanTask
from lmtool.tables.tasks.tagging import build_tag_task
from lmtool.tables.tasks.task import LONGEST_TEXT, MISTAKES, AnsweringModel, Cells, Floats, Task, worst_and_best
from lmtool.tokenization.chat import Message
from lmtool.tokenization.merging import BpeDropout
from lmtool.tokenization.prompt_format import EncodedTurn, PromptFormat

DECIDING = 3
"""Number of words that are listed beside a mistake."""

LEFT_OUT = 20_000
"""Positions that are computed for these words, or as many as the measured rows have where that is more."""

ANSWERS_AT_ONCE = 64
"""Rows whose outputs are generated together."""


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


def build_task(
    recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """The task of a resolved recipe's table. labels: the classes that generated texts may name."""
    spec = recipe.objective
    if isinstance(spec, Tagging):
        return build_tag_task(prompt_format, spec)
    if isinstance(spec, QuestionAnswering):
        return SpanTask(prompt_format, spec)
    if not isinstance(spec, Classification):
        return AnswerTask(recipe, prompt_format, name, columns, labels)
    if spec.task == "auto":
        raise ValueError("the labels have not been inferred from the table yet")
    tasks: dict[str, type[HeadTask]] = {"class": ClassTask, "multi": LabelsTask, "number": NumberTask}
    return tasks[spec.task](prompt_format, spec)


def _dropout(recipe: Recipe, prompt_format: PromptFormat) -> BpeDropout | None:
    """The BPE dropout of a recipe. Raises UsageError where rows are conversations."""
    spec = recipe.tokenizer
    if not isinstance(spec, BpeTokenizer) or not spec.dropout:
        return None
    if prompt_format.chat is not None:
        what = "BPE dropout is for pairs, not for conversations"
        raise UsageError(what, where="tokenizer.dropout", fix="set it to 0")
    return BpeDropout(prompt_format.tokenizer, spec.dropout, recipe.seed)


class HeadTask(Task):
    """A task that is predicted by a head on the model."""

    def __init__(self, prompt_format: PromptFormat, spec: Classification) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._map = LabelMap(cast(LabelKind, spec.task), spec.labels)

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
        lm, objective = cast(Classifier, model.lm), cast(ClassificationObjective, model.objective)

        def read(batch: Batch, indices: list[int]) -> tuple[Loss | None, list[Floats]]:
            scores_BC = lm.answer(batch).scores_BC
            loss = None if rows[indices[0]].label is None else objective.head_loss(scores_BC, batch)
            return loss, list(scores_BC.cpu().double().numpy())

        evaluated = model.evaluate(rows, read)
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

    @property
    def added(self) -> tuple[str, ...]:
        return ("predicted", *(f"p_{name}" for name in self.labels))

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


class AnswerTask(Task):
    """A text per row, generated by the model: a target, or a label as text (Raffel et al. 2020).

    columns: of the texts, whose names are the prefix of each where there are several. BPE dropout segments the texts of
    training rows, which are not conversations, anew each time.
    """

    added = ("predicted",)

    def __init__(
        self, recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
    ) -> None:
        super().__init__(prompt_format, name, labels)
        self._columns = columns
        self._num_beams = recipe.evaluation.num_beams
        self._dropout = _dropout(recipe, prompt_format)

    @property
    def reread(self) -> Callable[[EncodedRow, np.random.Generator], EncodedRow] | None:
        return None if self._dropout is None else partial(self._resegmented, self._dropout)

    def _resegmented(self, dropout: BpeDropout, row: EncodedRow, rng: np.random.Generator) -> EncodedRow:
        """The row with its texts segmented anew; one that is truncated stays, since its text has no end."""
        if row.cut or row.target is None:
            return row
        texts = (self.prompt_format.tokenizer.decode(ids.tolist()) for ids in (row.tokens, row.target))
        pair = self.prompt_format.pair(*(dropout(text, rng) for text in texts))
        return replace(row, tokens=pair.source, target=pair.target)

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        pairs = [(as_source(self.name, self._columns.texts, item.texts), as_answer(item)) for item in items]
        answers = [answer or "" for _, answer in pairs]
        if self.prompt_format.chat is None:
            ids = self._ids([(source, answer) for (source, _), answer in zip(pairs, answers, strict=True)])
            turns = [
                self.prompt_format.pair(source, None if answer is None else target)
                for (source, target), (_, answer) in zip(ids, pairs, strict=True)
            ]
        else:
            turns = [self._conversation(item, *pair) for item, pair in zip(items, pairs, strict=True)]
            # templates write spaces around an answer
            answers = [answer.strip() for answer in answers]
        return [
            EncodedRow(item.row, turn.source, turn.cut, target=turn.target, answer=answer, learned=turn.learned)
            for item, turn, answer in zip(items, turns, answers, strict=True)
        ]

    def _conversation(self, item: LabelledText, source: str, answer: str | None) -> EncodedTurn:
        """A row as a conversation; a pair is one of two messages."""
        turns = (("user", source), ("assistant", answer))
        messages = [Message(role=role, content=text) for role, text in turns if text is not None]
        return self.prompt_format.conversation(item.messages or messages)

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        """Loss: mean over the tokens of all targets of -log p, in nats."""
        return Validation(model.evaluate(rows, lambda batch, _: (model.objective.score(model.lm, batch), ())).loss)

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
        texts: dict[int, NDArray[np.uint8]] = {}
        for n in model.compute.world.share(len(groups)):
            for i, text in zip(
                groups[n], self._written(model, [rows[i].tokens.tolist() for i in groups[n]]), strict=True
            ):
                texts[i] = np.frombuffer(text.encode(), dtype=np.uint8)
        return [text.tobytes().decode() for text in model.compute.world.gather(texts, len(rows), np.uint8)]

    def _written(self, model: AnsweringModel, sources: Sequence[list[int]]) -> list[str]:
        """The generated text of each source of a batch, the longest of which is the last."""
        beams, most = self._num_beams, self.prompt_format.room_to_answer(len(sources[-1]))
        settings: Greedy | Beam = Greedy(max_new_tokens=most)
        if beams > 1:
            settings = Beam(num_beams=beams, num_return=beams, max_new_tokens=most)
        options = Options(overflow="cut", max_rows=ANSWERS_AT_ONCE * beams)
        prompts = [self.prompt_format.answer_to(source) for source in sources]
        hypotheses: list[list[str]] = []
        with model.compute.autocast():
            for completion in complete(write(model.lm, self.prompt_format, prompts, settings, options)):
                if completion.sample == 0:
                    hypotheses.append([])
                hypotheses[-1].append(completion.text)
        decode, strips = self.prompt_format.tokenizer.decode, self.prompt_format.chat is not None
        texts = [first_unrepeated(of, decode(source)) for of, source in zip(hypotheses, sources, strict=True)]
        return [text.strip() for text in texts] if strips else texts

    def _sentences(self, answers: Sequence[str], rows: Sequence[EncodedRow]) -> list[dict[str, Any]]:
        """The worst and the best generated texts, worst first, by their chrF."""
        scores = metrics.sentence_scores(answers, [row.answer for row in rows])
        return [
            {
                "row": rows[i].number,
                "source": self._text(rows[i]),
                "target": rows[i].answer[:LONGEST_TEXT],
                "predicted": answers[i][:LONGEST_TEXT],
                "chrf": scores[i],
            }
            for i in worst_and_best(scores)
        ]

    def _figures(self, answers: Sequence[str], rows: Sequence[EncodedRow]) -> MetricValues:
        """Metrics of generated texts: as classes where there are labels, else BLEU and chrF (Post 2018)."""
        true = [row.answer for row in rows]
        if not self.labels:
            exact = float(np.mean([answer == target for answer, target in zip(answers, true, strict=True)]))
            return metrics.translation_metrics(answers, true) | {"exact": exact}
        index = {name: i for i, name in enumerate(self.labels)}
        predicted_R = np.array([index.get(answer.strip(), len(index)) for answer in answers])
        names = [*self.labels, NO_LABEL][: len(index) + bool((predicted_R == len(index)).any())]
        return metrics.class_metrics(np.array([index[name] for name in true]), predicted_R, names)


def first_unrepeated(hypotheses: Sequence[str], source: str) -> str:
    """The first hypothesis that repeats no phrase; the first of all where every one does, or the source itself.

    The mean log-probability favours hypotheses that say a phrase twice, since the second time costs little.
    """
    if metrics.repeats_phrase(source):
        return hypotheses[0]
    return next((text for text in hypotheses if not metrics.repeats_phrase(text)), hypotheses[0])


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
