"""Extractive question answering: the span of a context that answers a question, or none.

Shapes: R questions, T positions of a row, N tokens of the context in it. A span is the positions of its first and its
last token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmtool.arrays import Floats
from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.spec.objective import QuestionAnswering
from lmtool.tasks.cells import AnswerSpan
from lmtool.tasks.metrics import MetricValues, compute_word_f1, exact_match, find_best_null_threshold
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.task import Cells, FormattedNumber, ModelWithObjective, Prediction, Task, list_worst_and_best_rows
from lmtool.tokenization.prompt_format import PromptFormat


@dataclass(frozen=True, kw_only=True)
class ContextWindow(EncodedRow):
    """A question and a window of its context; the windows of a question have the same number.

    Args:
        item: the whole row.
        first: position of the first token of the context.
        characters_N2: start and stop of each of these tokens in the context.
        null: position that stands for no answer in the window.
    """

    item: LabelledRow
    first: int
    characters_N2: NDArray[np.int64]
    null: int


class ExtractedAnswer(NamedTuple):
    """The best span of a question over its windows.

    start: first character in the context. null_score: score of the null span, the lowest of all windows, minus that of
    this one.
    """

    text: str
    start: int
    null_score: float


class SpanTask(Task):
    """Answers to questions: the span of the context whose first and last token have the highest sum of scores.

    Long contexts are read in overlapping windows. threshold: questions with a higher null score have no answer;
    infinite if all questions have one.
    """

    row_kind = "questions"
    metrics: ClassVar[Mapping[str, str]] = {"f1": "f1", "exact": "exact"}
    default_metric = "f1"
    output_columns = ("predicted", "start", "null_score")

    def __init__(self, prompt_format: PromptFormat, spec: QuestionAnswering) -> None:
        super().__init__(prompt_format, "", ())
        self._spec = spec
        self.threshold = np.inf if spec.null_threshold is None else spec.null_threshold

    def encode(self, items: Sequence[LabelledRow]) -> list[EncodedRow]:
        return [window for item in items for window in self._make_windows(item)]

    def _make_windows(self, item: LabelledRow) -> list[ContextWindow]:
        prompt_format, tokenizer = self.prompt_format, self.prompt_format.tokenizer
        question = np.array(tokenizer.encode(item.texts[0]), dtype=np.int64)
        ids, spans = tokenizer.encode_with_offsets(item.texts[1])
        context, characters_N2 = np.array(ids, dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 2)
        # A left-to-right model has read the row only at its end.
        ends = prompt_format.reads != "both" and not prompt_format.after
        marks = len(prompt_format.before) + len(prompt_format.between) + len(prompt_format.after) + ends
        room, is_truncated = max(1, len(context)), False
        if prompt_format.context is not None:
            if prompt_format.context < marks + 2:
                what = f"a context of {prompt_format.context} tokens has no room for a question and its context"
                fix = f"take a model with {marks + 2} or more"
                raise UsageError(what, where="model.context", fix=fix)
            shortened = question[: (prompt_format.context - marks) // 2]
            question, is_truncated = shortened, len(shortened) < len(question)
            room = prompt_format.context - marks - len(question)
        stride = min(room, self._spec.stride or max(1, room // 2))
        answer = None if not item.answers else _find_token_span(item.answers[0], characters_N2)
        windows = []
        for start in range(0, max(1, len(context) - room + stride), stride):
            stop = min(start + room, len(context))
            tokens, segments, _ = prompt_format.encode_and_truncate_row([question, context[start:stop]])
            if ends:
                tokens = np.append(tokens, tokenizer.eos_id)
                segments = None if segments is None else np.append(segments, segments[-1])
            first = len(prompt_format.before) + len(question) + len(prompt_format.between)
            null = 0 if prompt_format.reads == "both" else len(tokens) - 1
            label = None
            if item.answers is not None:
                inside = answer is not None and start <= answer[0] and answer[1] < stop
                span = [first + at - start for at in answer] if inside and answer is not None else [null, null]
                label = np.array(span, dtype=np.float64)
            row = EncodedRow(item.row, tokens, is_truncated, segments, label)
            characters = characters_N2[start:stop]
            windows.append(ContextWindow(**vars(row), item=item, first=first, characters_N2=characters, null=null))
        return windows

    def _extract_answers_and_loss(
        self, model: ModelWithObjective, rows: Sequence[EncodedRow]
    ) -> tuple[list[ExtractedAnswer], float]:
        """Finds the best span of each question; returns it and the mean loss of a window, NaN without answers."""
        windows = cast(Sequence[ContextWindow], rows)

        def find_best_spans(scores_BT2: Tensor, _: Batch, indices: list[int]) -> list[Floats]:
            pairs = zip(indices, scores_BT2.cpu().double().numpy(), strict=True)
            return [self._find_best_and_null_span(windows[i], scores_T2) for i, scores_T2 in pairs]

        evaluated = model.evaluate(rows, find_best_spans)
        answers = []
        for _, group in groupby(zip(windows, evaluated.arrays, strict=True), key=lambda pair: pair[0].number):
            windows_and_spans = list(group)
            window, (best, start, stop, _) = max(windows_and_spans, key=lambda pair: float(pair[1][0]))
            null = min(float(scores[3]) for _, scores in windows_and_spans)
            if not np.isfinite(best):
                answers.append(ExtractedAnswer("", 0, np.inf))
                continue
            first, last = int(window.characters_N2[int(start), 0]), int(window.characters_N2[int(stop), 1])
            text = window.item.texts[1][first:last]
            first += len(text) - len(text.lstrip())
            answers.append(ExtractedAnswer(text.strip(), first, null - float(best)))
        return answers, evaluated.loss

    def _find_best_and_null_span(self, window: ContextWindow, scores_T2: Floats) -> Floats:
        """Returns the score of the best span of a window, its first and last token, and the score of the null span."""
        null = scores_T2[window.null].sum()
        start_N, end_N = scores_T2[window.first : window.first + len(window.characters_N2)].T
        best, span = -np.inf, (0, 0)
        for length in range(min(self._spec.max_answer, len(start_N))):
            sum_N = start_N[: len(start_N) - length] + end_N[length:]
            at = int(sum_N.argmax())
            if sum_N[at] > best:
                best, span = float(sum_N[at]), (at, at + length)
        return np.array([best, *span, null])

    def calibrate(self, model: ModelWithObjective, rows: Sequence[EncodedRow], *, held_out: bool) -> None:
        self._fit_null_threshold(self._extract_answers_and_loss(model, rows)[0], _get_questions(rows))

    def _fit_null_threshold(self, extracted: Sequence[ExtractedAnswer], questions: Sequence[LabelledRow]) -> None:
        if self._spec.null_threshold is None:
            pairs = zip(extracted, questions, strict=True)
            scores = [compute_word_f1(one.text, _get_answer_texts(item)) for one, item in pairs]
            has_answer = [bool(item.answers) for item in questions]
            self.threshold = find_best_null_threshold([one.null_score for one in extracted], scores, has_answer)

    def validate(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ValidationResult:
        extracted, loss = self._extract_answers_and_loss(model, rows)
        questions = _get_questions(rows)
        self._fit_null_threshold(extracted, questions)
        return self.make_validation(loss, _compute_metrics(self._select_texts(extracted), questions))

    def compute_results(self, model: ModelWithObjective, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        extracted, loss = self._extract_answers_and_loss(model, rows)
        questions, texts = _get_questions(rows), self._select_texts(extracted)
        figures = _compute_metrics(texts, questions)
        how = f"spans of at most {self._spec.max_answer} tokens"
        if np.isfinite(self.threshold):
            figures["null_threshold"] = self.threshold
            how += ", no answer above the null threshold"
        answers = [_get_answer_texts(item) for item in questions]
        scores = [compute_word_f1(text, right) for text, right in zip(texts, answers, strict=True)]

        def get_row(i: int) -> tuple[int, str, str, str]:
            return questions[i].row, " ".join(questions[i].texts), " | ".join(dict.fromkeys(answers[i])), texts[i]

        sentences = list_worst_and_best_rows("f1", scores, get_row)
        return Results(part, step, len(questions), loss, figures, [], (), decoding=how, sentences=sentences)

    def predict_cells(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Cells]:
        extracted, _ = self._extract_answers_and_loss(model, rows)
        pairs = zip(extracted, self._select_texts(extracted), strict=True)
        return [(text, one.start if text else None, FormattedNumber(one.null_score, ".6g")) for one, text in pairs]

    def predict(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Prediction]:
        answers = self.predict_cells(model, rows)
        return [Prediction(str(text), {}, start=cast(int | None, start)) for text, start, _ in answers]

    def _select_texts(self, extracted: Sequence[ExtractedAnswer]) -> list[str]:
        """Returns the text of each answer; empty if there is none."""
        return [one.text if one.null_score <= self.threshold else "" for one in extracted]


def _compute_metrics(texts: Sequence[str], questions: Sequence[LabelledRow]) -> MetricValues:
    """Computes exact match and F1 of all questions, and of those with and without an answer if there are both."""
    pairs = [(text, _get_answer_texts(item)) for text, item in zip(texts, questions, strict=True)]
    exact_R, f1_R = (np.array([score(*pair) for pair in pairs]) for score in (exact_match, compute_word_f1))
    has_answer_R = np.array([bool(item.answers) for item in questions])
    figures = {"exact": exact_R, "f1": f1_R}
    if has_answer_R.any() and not has_answer_R.all():
        figures |= {"has_answer_exact": exact_R[has_answer_R], "has_answer_f1": f1_R[has_answer_R]}
        figures["no_answer_accuracy"] = exact_R[~has_answer_R]
    return {name: float(scores.mean()) for name, scores in figures.items()}


def _find_token_span(answer: AnswerSpan, characters_N2: NDArray[np.int64]) -> tuple[int, int] | None:
    """Returns the first and the last token with characters of an answer; None if there are none.

    The space before a word may belong to its token.
    """
    inside_N = (characters_N2[:, 1] > answer.start) & (characters_N2[:, 0] < answer.start + len(answer.text))
    tokens = np.flatnonzero(inside_N).tolist()
    return (tokens[0], tokens[-1]) if tokens else None


def _get_questions(rows: Sequence[EncodedRow]) -> list[LabelledRow]:
    return [next(group).item for _, group in groupby(cast(Sequence[ContextWindow], rows), key=lambda row: row.number)]


def _get_answer_texts(item: LabelledRow) -> list[str]:
    return [answer.text for answer in item.answers or ()]
