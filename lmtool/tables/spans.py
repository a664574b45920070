"""The task of extractive question answering: the span of a context that answers a question, or none.

Shapes: R questions, T positions of a row, N tokens of the context in it. A span is the positions of its first and its
last token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.decoding.framing import Framing
from lmtool.errors import UsageError
from lmtool.inference.evaluation import Validation, evaluate
from lmtool.model.token_heads import SpanReader
from lmtool.objective import AnswerSpanObjective, Loss
from lmtool.recipe.spec.objective import QuestionAnswering
from lmtool.tables.annotations import AnswerSpan
from lmtool.tables.answers import best_null_threshold, exact_match, word_f1
from lmtool.tables.reading import LabelledText
from lmtool.tables.results import Results
from lmtool.tables.rows import EncodedRow
from lmtool.tables.task import LONGEST_TEXT, MISTAKES, AnsweringModel, Cells, Floats, Task


@dataclass(frozen=True, kw_only=True)
class Window(EncodedRow):
    """A question and a window of its context; the windows of a question have the same number.

    item: the whole row. first: position of the first token of the context. characters_N2: start and stop of each of
    these tokens in the context. null: position that stands for no answer in the window.
    """

    item: LabelledText
    first: int
    characters_N2: NDArray[np.int64]
    null: int


class Extracted(NamedTuple):
    """The best span of a question over its windows.

    start: its first character in the context. null_score: of the null span minus that of this one; the lowest of all
    windows.
    """

    text: str
    start: int
    null_score: float


class SpanTask(Task):
    """Answers to questions: the span of the context whose first and last token have the highest sum of scores.

    Long contexts are read in overlapping windows. threshold: a question has no answer above this null score; infinite
    where all questions have one.
    """

    metrics: ClassVar[Mapping[str, str]] = {"f1": "f1", "exact": "exact"}
    added = ("predicted", "start", "null_score")

    def __init__(self, framing: Framing, spec: QuestionAnswering) -> None:
        super().__init__(framing, "", ())
        self._spec = spec
        self.threshold = 0.0 if spec.null_threshold is None else spec.null_threshold

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        return [window for item in items for window in self._windows(item)]

    def _windows(self, item: LabelledText) -> list[Window]:
        framing, tokenizer = self.framing, self.framing.tokenizer
        question = np.array(tokenizer.encode(item.texts[0]), dtype=np.int64)
        ids, characters = tokenizer.encode_with_places(item.texts[1])
        context, characters_N2 = np.array(ids, dtype=np.int64), np.array(characters, dtype=np.int64).reshape(-1, 2)
        # a left-to-right model has read the row only at its end
        ends = framing.reads != "both" and not framing.after
        marks = len(framing.before) + len(framing.between) + len(framing.after) + ends
        room, cut = max(1, len(context)), False
        if framing.context is not None:
            if framing.context < marks + 2:
                raise UsageError(
                    f"a context of {framing.context} tokens has no room for a question and its context",
                    where="model.context",
                    fix=f"take a model with {marks + 2} or more",
                )
            short = question[: (framing.context - marks) // 2]
            question, cut = short, len(short) < len(question)
            room = framing.context - marks - len(question)
        stride = min(room, self._spec.stride or max(1, room // 2))
        answer = None if not item.answers else _token_span(item.answers[0], characters_N2)
        windows = []
        for start in range(0, max(1, len(context) - room + stride), stride):
            stop = min(start + room, len(context))
            tokens, segments, _ = framing.row([question, context[start:stop]])
            if ends:
                tokens = np.append(tokens, tokenizer.eos_id)
                segments = None if segments is None else np.append(segments, segments[-1])
            first = len(framing.before) + len(question) + len(framing.between)
            null = 0 if framing.reads == "both" else len(tokens) - 1
            label = None
            if item.answers is not None:
                inside = answer is not None and start <= answer[0] and answer[1] < stop
                span = [first + at - start for at in answer] if inside and answer is not None else [null, null]
                label = np.array(span, dtype=np.float64)
            window = Window(
                number=item.row,
                tokens=tokens,
                cut=cut,
                segments=segments,
                label=label,
                item=item,
                first=first,
                characters_N2=characters_N2[start:stop],
                null=null,
            )
            windows.append(window)
        return windows

    def _extracted(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> tuple[list[Extracted], float]:
        """The best span of each question, in order, and the mean loss of a window; NaN without known answers."""
        lm, objective = cast(SpanReader, model.lm), cast(AnswerSpanObjective, model.objective)
        windows = cast(Sequence[Window], rows)

        def read(chosen: list[int]) -> tuple[Loss | None, list[Floats]]:
            batch = objective.collate([rows[i].example() for i in chosen]).to(model.compute.device)
            scores_BT2 = lm.scores(batch).scores_BTC
            loss = None if batch.spans_B2 is None else objective.head_loss(scores_BT2, batch)
            scores = scores_BT2.cpu().double().numpy()
            return loss, [self._best(windows[i], scores_T2) for i, scores_T2 in zip(chosen, scores, strict=True)]

        found = evaluate(lm, [row.lengths for row in rows], read, model.compute, model.world)
        pairs = groupby(zip(windows, found.found, strict=True), key=lambda pair: pair[0].number)
        return [_joined(list(own)) for _, own in pairs], found.loss

    def _best(self, window: Window, scores_T2: Floats) -> Floats:
        """Score of the best span of a window, its first and last token in it, and the score of the null span."""
        null = scores_T2[window.null].sum()
        start_N, end_N = scores_T2[window.first : window.first + len(window.characters_N2)].T
        best, span = -np.inf, (0, 0)
        for longer in range(min(self._spec.max_answer, len(start_N))):
            sum_N = start_N[: len(start_N) - longer] + end_N[longer:]
            at = int(sum_N.argmax())
            if sum_N[at] > best:
                best, span = float(sum_N[at]), (at, at + longer)
        return np.array([best, *span, null])

    def settle(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> None:
        self._settle(self._extracted(model, rows)[0], _questions(rows))

    def _settle(self, found: Sequence[Extracted], questions: Sequence[LabelledText]) -> None:
        if self._spec.null_threshold is None:
            scores = [word_f1(one.text, _answers(item)) for one, item in zip(found, questions, strict=True)]
            has_answer = [bool(item.answers) for item in questions]
            self.threshold = best_null_threshold([one.null_score for one in found], scores, has_answer)

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        found, loss = self._extracted(model, rows)
        questions = _questions(rows)
        self._settle(found, questions)
        figures = self._figures([self._text_of(one) for one in found], questions)
        return Validation(loss, {metric: figures[name] for metric, name in self.metrics.items()})

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        found, loss = self._extracted(model, rows)
        questions, given = _questions(rows), [self._text_of(one) for one in found]
        figures = self._figures(given, questions)
        how = f"spans of at most {self._spec.max_answer} tokens"
        if np.isfinite(self.threshold):
            figures["null_threshold"] = self.threshold
            how += ", no answer above the null threshold"
        sentences = self._sentences(given, questions)
        return Results(part, step, len(questions), loss, figures, [], (), decoding=how, sentences=sentences)

    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        found, _ = self._extracted(model, rows)
        return [
            (text, one.start if text else None, f"{one.null_score:.6g}")
            for one, text in ((one, self._text_of(one)) for one in found)
        ]

    def _text_of(self, found: Extracted) -> str:
        return found.text if found.null_score <= self.threshold else ""

    @staticmethod
    def _figures(given: Sequence[str], questions: Sequence[LabelledText]) -> dict[str, Any]:
        """Exact match and F1: of all questions, and of those with and without an answer where there are both."""
        pairs = [(text, _answers(item)) for text, item in zip(given, questions, strict=True)]
        exact_R, f1_R = (np.array([score(*pair) for pair in pairs]) for score in (exact_match, word_f1))
        has_answer_R = np.array([bool(item.answers) for item in questions])
        figures = {"exact": float(exact_R.mean()), "f1": float(f1_R.mean())}
        if has_answer_R.any() and not has_answer_R.all():
            figures["has_answer_exact"] = float(exact_R[has_answer_R].mean())
            figures["has_answer_f1"] = float(f1_R[has_answer_R].mean())
            figures["no_answer_accuracy"] = float(exact_R[~has_answer_R].mean())
        return figures

    @staticmethod
    def _sentences(given: Sequence[str], questions: Sequence[LabelledText]) -> list[dict[str, Any]]:
        """The worst and the best answers, worst first, by their F1."""
        scores = [word_f1(text, _answers(item)) for text, item in zip(given, questions, strict=True)]
        order = sorted(range(len(given)), key=lambda i: scores[i])
        chosen = order if len(order) <= 2 * MISTAKES else [*order[:MISTAKES], *order[-MISTAKES:]]
        return [
            {
                "row": questions[i].row,
                "source": f"{questions[i].texts[0]} {questions[i].texts[1]}"[:LONGEST_TEXT],
                "target": " | ".join(dict.fromkeys(_answers(questions[i])))[:LONGEST_TEXT],
                "predicted": given[i][:LONGEST_TEXT],
                "f1": scores[i],
            }
            for i in chosen
        ]


def _token_span(answer: AnswerSpan, characters_N2: NDArray[np.int64]) -> tuple[int, int] | None:
    """The first and the last token with characters of an answer; None where it has none.

    The space before a word may belong to its token.
    """
    inside_N = (characters_N2[:, 1] > answer.start) & (characters_N2[:, 0] < answer.start + len(answer.text))
    found = np.flatnonzero(inside_N)
    return (int(found[0]), int(found[-1])) if len(found) else None


def _joined(found: Sequence[tuple[Window, Floats]]) -> Extracted:
    """The best span over the windows of a question."""
    window, (best, start, stop, _) = max(found, key=lambda pair: float(pair[1][0]))
    null = min(float(scores[3]) for _, scores in found)
    if not np.isfinite(best):
        return Extracted("", 0, np.inf)
    context = window.item.texts[1]
    first, last = int(window.characters_N2[int(start), 0]), int(window.characters_N2[int(stop), 1])
    text = context[first:last]
    return Extracted(text.strip(), first + len(text) - len(text.lstrip()), null - float(best))


def _questions(rows: Sequence[EncodedRow]) -> list[LabelledText]:
    return [next(own).item for _, own in groupby(cast(Sequence[Window], rows), key=lambda row: row.number)]


def _answers(item: LabelledText) -> list[str]:
    return [answer.text for answer in item.answers or ()]
