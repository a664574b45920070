"""The scores of single rows: their means are what is measured of the table."""

from typing import Any

import numpy as np
import pytest

from lmtool.runs.load import load_run
from lmtool.tasks.cells import AnswerSpan
from lmtool.tasks.comparison import _choose_metric_and_score, compare_row_scores, score_table_rows
from lmtool.tasks.metrics import compute_chrf_scores
from lmtool.tasks.predict import evaluate_tables, predict_table_lazily
from lmtool.tasks.reading import LabelledRow
from tests.support.answering import PREFIX, learned
from tests.support.errors import refuses
from tests.support.training import Work, words, write_table


@pytest.mark.parametrize(
    ("kind", "figure"), [("class", "accuracy"), ("multi", "subset_accuracy"), ("answers", "accuracy")]
)
def test_the_mean_over_rows_is_the_accuracy(work: Work, kind: str, figure: str) -> None:
    loaded, table = learned(work, kind)
    scored = score_table_rows(loaded, "run", str(table))
    (results,) = evaluate_tables(loaded, [str(table)])
    assert (scored.metric, len(scored.scores)) == ("accuracy", 24)
    assert np.mean(scored.scores) == pytest.approx(results.figures[figure])
    assert set(scored.scores) <= {0.0, 1.0}
    assert [name for name, _ in scored.rows] == [f"row {n}" for n in range(1, 25)]


def test_numbers_are_scored_by_their_error(work: Work) -> None:
    loaded, table = learned(work, "number")
    scored = score_table_rows(loaded, "run", str(table))
    answered = predict_table_lazily(loaded, str(table)).rows
    expected = [-abs(float(str(cells[0])) - float(row.values[2])) for row, cells in answered]
    assert scored.scores == pytest.approx(expected)
    assert max(expected) < 0


def test_target_texts_are_scored_by_chrf(work: Work) -> None:
    rows = [f"{words(3, i)},{words(4, i + 1)}" for i in range(8)]
    table = write_table(work.folder / "pairs.csv", rows, "source,target")
    short = ("training.epochs=null", "training.steps=2")
    work.learn_table(work.recipe, table, PREFIX, "objective={kind: seq2seq}", *short)
    loaded = load_run(str(work.run()))
    scored = score_table_rows(loaded, "run", str(table))
    written = [str(cells[0]) for _, cells in predict_table_lazily(loaded, str(table)).rows]
    assert scored.metric == "chrF"
    assert scored.scores == pytest.approx(compute_chrf_scores(written, [row.partition(",")[2] for row in rows]))


TAGGED = LabelledRow(("a", "b", "c", "d"), ("X", "O", "O", "X"), None, 1)
QUESTION = LabelledRow(("Who?", "It was Ann."), None, None, 1, answers=(AnswerSpan(7, "Ann"),))


@pytest.mark.parametrize(
    ("row", "answer", "score"),
    [
        (TAGGED, ["X", "O", "X", "X"], ("word accuracy", 0.75)),
        (QUESTION, "ann", ("exact match", 1)),
        (QUESTION, "Bob", ("exact match", 0)),
        *((LabelledRow(("t",), ("b", "a"), None, 1), x, ("accuracy", x == "a;b")) for x in ("a;b", "a", ";")),
    ],
)
def test_tags_answers_to_questions_and_several_labels(row: LabelledRow, answer: Any, score: tuple[str, float]) -> None:
    assert _choose_metric_and_score(row, answer) == score


def test_a_run_is_no_better_than_itself(work: Work) -> None:
    loaded, table = learned(work, "class")
    one, other = (score_table_rows(loaded, name, str(table)) for name in "ab")
    compared = compare_row_scores(str(table), one, other)
    assert (compared.right_alone, compared.p, compared.interval) == ((0, 0), 1, (0, 0))
    assert compared.better_run is None
    with refuses("data"):
        compare_row_scores(str(table), one, other._replace(rows=other.rows[1:], scores=other.scores[1:]))
    work.pretrain("training.steps=1", name="text")
    with refuses("usage"):
        score_table_rows(load_run(str(work.run("text"))), "text", str(table))
