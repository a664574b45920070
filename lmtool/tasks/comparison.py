"""Compares models row by row on a table or a task of lm-eval."""

from typing import NamedTuple, cast

import numpy as np

from lmtool.errors import DataError
from lmtool.printable import format_count
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel
from lmtool.runs.paired import PairedComparison, compare_paired_scores
from lmtool.tasks.benchmarks import BenchmarkResults
from lmtool.tasks.labels import SEPARATOR
from lmtool.tasks.metrics import compute_chrf_scores, compute_word_accuracy, exact_match
from lmtool.tasks.predict import AS_IN_TRAINING, predict_labelled_rows
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.text_to_text import format_target


class RowScores(NamedTuple):
    """The scores of a run on rows by a metric; the higher the better. rows: name and text of each."""

    run: str
    metric: str
    rows: list[tuple[str, str]]
    scores: list[float]


def score_table_rows(
    loaded: LoadedModel, run_name: str, source: str, task_name: str = "", read_options: Data = AS_IN_TRAINING
) -> RowScores:
    """Scores the predictions of a model, fine-tuned on a table, for each row of another table.

    1 for a right class, set of labels or answer, 0 for a wrong one; for tags the share of right words; for target texts
    chrF; for numbers the negative absolute error. Raises as `evaluate_tables` does.

    run_name: name of the model.
    """
    texts, answers = predict_labelled_rows(loaded, source, task_name, read_options)
    scored = [_choose_metric_and_score(*pair) for pair in zip(texts.items, answers, strict=True)]
    rows = [item.name_and_text for item in texts.items]
    return RowScores(run_name, scored[0][0], rows, [score for _, score in scored])


def extract_row_scores_by_task(run_name: str, results: BenchmarkResults) -> dict[str, RowScores]:
    """Returns the scores of a run on the rows of each task of lm-eval, by a metric of 0 and 1 or else the first one."""
    scored = {}
    for name, metrics in results.tasks.items():
        values = {title: [*metric.values] for title, metric in metrics.items() if metric.values}
        if values:
            title = min(values, key=lambda title: not set(values[title]) <= {0, 1})
            metric_name = "log-probability" if title.endswith(("perplexity", "per_byte")) else title
            rows = [(f"row {n}", "") for n in range(1, len(values[title]) + 1)]
            scored[name] = RowScores(run_name, metric_name, rows, values[title])
    return scored


def _choose_metric_and_score(item: LabelledRow, prediction: object) -> tuple[str, float]:
    if item.answers is not None:
        return "exact match", exact_match(str(prediction), [answer_span.text for answer_span in item.answers])
    if isinstance(prediction, list):
        return "word accuracy", compute_word_accuracy([cast(tuple[str, ...], item.label)], [prediction])
    if isinstance(item.label, float):
        return "negative absolute error", -abs(float(str(prediction)) - item.label)
    if item.target is not None:
        return "chrF", compute_chrf_scores([str(prediction)], [item.target])[0]
    return "accuracy", float(_split_labels(str(prediction)) == _split_labels(format_target(item) or ""))


def _split_labels(text: str) -> set[str]:
    return {part.strip() for part in text.split(SEPARATOR)} - {""}


def compare_row_scores(source: str, one: RowScores, other: RowScores) -> PairedComparison:
    """Compares two models on the rows of a table. Raises DataError unless rows and metric are the same."""
    first, second = ((scores.metric, [name for name, _ in scores.rows]) for scores in (one, other))
    if first != second:
        measures = [f"on {format_count(len(scores.rows), 'row')} by {scores.metric}" for scores in (one, other)]
        what = f"the runs are not measured alike: {' and '.join(measures)}"
        fix = "name runs that were fine-tuned on the same kind of labels"
        raise DataError(what, where=f"{source}, {one.run}, {other.run}", fix=fix)
    scores = np.array(one.scores), np.array(other.scores)
    return compare_paired_scores(source, (one.run, other.run), one.metric, scores)
