"""Models on the rows of one table, each row for itself."""

from typing import NamedTuple, cast

import numpy as np

from lmtool.errors import DataError
from lmtool.inference.load import LoadedModel
from lmtool.printable import format_count
from lmtool.recipe.spec.text import Data
from lmtool.run.paired import PairedComparison, compare_paired_scores
from lmtool.tasks.benchmarks import BenchmarkResults
from lmtool.tasks.labels import SEPARATOR
from lmtool.tasks.metrics import exact_match, sentence_scores, word_accuracy
from lmtool.tasks.predict import AS_TRAINED, answer_rows
from lmtool.tasks.reading import LabelledText
from lmtool.tasks.text_to_text import as_answer


class ScoredRows(NamedTuple):
    """Rows, each a name and a text, and how well a model answers each, by a measure of this name."""

    run: str
    measure: str
    rows: list[tuple[str, str]]
    scores: list[float]


def score_rows(loaded: LoadedModel, run: str, source: str, task: str = "", reading: Data = AS_TRAINED) -> ScoredRows:
    """How well a model of this name, fine-tuned on a table, answers each row of another.

    1 for a right class, set of labels or answer, 0 for a wrong one; of tags the share of words; of target texts chrF;
    of numbers the absolute error, negative. Raises as `measure_tables` does.
    """
    texts, answers = answer_rows(loaded, source, task, reading)
    scored = [_score(*pair) for pair in zip(texts.items, answers, strict=True)]
    return ScoredRows(run, scored[0][0], [item.named for item in texts.items], [score for _, score in scored])


def score_tasks(run: str, results: BenchmarkResults) -> dict[str, ScoredRows]:
    """How well a model of this name does each row of tasks of lm-eval: is it right, or else by the first metric."""
    scored = {}
    for name, metrics in results.tasks.items():
        known = {title: [*one.values] for title, one in metrics.items() if one.values}
        for title in sorted(known, key=lambda title: not set(known[title]) <= {0, 1})[:1]:
            measure = "log-probability" if title.endswith(("perplexity", "per_byte")) else title
            rows = [(f"row {n}", "") for n in range(1, len(known[title]) + 1)]
            scored[name] = ScoredRows(run, measure, rows, known[title])
    return scored


def _score(item: LabelledText, answer: object) -> tuple[str, float]:
    if item.answers is not None:
        return "exact match", exact_match(str(answer), [one.text for one in item.answers])
    if isinstance(answer, list):
        return "word accuracy", word_accuracy([cast(tuple[str, ...], item.label)], [answer])
    if isinstance(item.label, float):
        return "negative absolute error", -abs(float(str(answer)) - item.label)
    if item.target is not None:
        return "chrF", sentence_scores([str(answer)], [item.target])[0]
    return "accuracy", float(_labels(str(answer)) == _labels(as_answer(item) or ""))


def _labels(text: str) -> set[str]:
    """A label, or several, whose order does not count."""
    return {part.strip() for part in text.split(SEPARATOR)} - {""}


def compare_rows(source: str, one: ScoredRows, other: ScoredRows) -> PairedComparison:
    """Compare two models on the rows of a table. Raises DataError where they do not answer the same rows alike."""
    first, second = ((of.measure, [name for name, _ in of.rows]) for of in (one, other))
    if first != second:
        ways = [f"on {format_count(len(of.rows), 'row')} by {of.measure}" for of in (one, other)]
        what = f"the runs are not measured alike: {' and '.join(ways)}"
        fix = "name runs that were fine-tuned on the same kind of labels"
        raise DataError(what, where=f"{source}, {one.run}, {other.run}", fix=fix)
    return compare_paired_scores(
        source, (one.run, other.run), one.measure, (np.array(one.scores), np.array(other.scores))
    )
