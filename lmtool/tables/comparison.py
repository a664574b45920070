"""Models on the rows of one table, each row for itself."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.errors import DataError
from lmtool.inference.load import Loaded
from lmtool.run.paired import Comparison, compare
from lmtool.tables.labels import SEPARATOR
from lmtool.tables.predict import answer_rows
from lmtool.tables.reading import LabelledText
from lmtool.tables.tasks.metrics import exact_match, sentence_scores, word_accuracy
from lmtool.tables.tasks.text_to_text import as_answer


class RowScores(NamedTuple):
    """The score of each row by a model, by a measure of this name. rows: their numbers."""

    measure: str
    rows: tuple[int, ...]
    scores_R: NDArray[np.float64]


ERROR = "absolute error"
"""The measure of numbers, the only one of which less is better."""


def score_rows(loaded: Loaded, source: str, task: str = "") -> RowScores:
    """How well a model that was fine-tuned on a table answers each row of another. Raises as `measure_tables` does.

    1 for a right class, set of labels or answer, 0 for a wrong one; of tags the share of words; of target texts chrF; of
    numbers the absolute error.
    """
    texts, answers = answer_rows(loaded, source, task)
    measure, scores = _scores(texts.items, answers)
    return RowScores(measure, tuple(item.row for item in texts.items), np.array(scores, dtype=np.float64))


def _scores(items: Sequence[LabelledText], answers: Sequence[object]) -> tuple[str, list[float]]:
    pairs = list(zip(items, answers, strict=True))
    first = items[0]
    if first.answers is not None:
        return "exact match", [exact_match(str(a), [one.text for one in item.answers or ()]) for item, a in pairs]
    if isinstance(answers[0], list):
        tags = [(cast(Sequence[str], item.label), cast(Sequence[str], answer)) for item, answer in pairs]
        return "word accuracy", [word_accuracy([true], [predicted]) for true, predicted in tags]
    if isinstance(first.label, float):
        return ERROR, [abs(float(str(answer)) - cast(float, item.label)) for item, answer in pairs]
    if first.target is not None:
        return "chrF", sentence_scores(list(map(str, answers)), [str(item.target) for item in items])
    return "accuracy", [float(_labels(str(answer)) == _labels(as_answer(item) or "")) for item, answer in pairs]


def _labels(text: str) -> set[str]:
    """A label, or several, whose order does not count."""
    return {part.strip() for part in text.split(SEPARATOR)} - {""}


def compare_on(source: str, scored: Sequence[tuple[str, RowScores]]) -> Iterator[Comparison]:
    """The first of several models against each other one, on the rows of a table. scored: by the names of the models.

    Raises DataError where they have not answered the same rows alike.
    """
    (one, first), *others = scored
    for other, second in others:
        if (first.measure, first.rows) != (second.measure, second.rows):
            what = f"{one} and {other} do not answer the same rows: {len(first.rows):,} rows by {first.measure}"
            fix = "name runs that were trained on the same kind of labels, and a table that both read whole"
            raise DataError(f"{what}, {len(second.rows):,} by {second.measure}", where=source, fix=fix)
        scores = first.scores_R, second.scores_R
        yield compare(source, (one, other), first.measure, scores, lower_is_better=first.measure == ERROR)
