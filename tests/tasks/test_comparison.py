"""The scores of single rows: their means are what is measured of the table."""

from pathlib import Path

import numpy as np
import pytest

from lmtool.errors import DataError, UsageError
from lmtool.runs.load import load_run
from lmtool.tasks.cells import AnswerSpan
from lmtool.tasks.comparison import _choose_metric_and_score, compare_row_scores, score_table_rows
from lmtool.tasks.metrics import compute_chrf_scores
from lmtool.tasks.predict import evaluate_tables, predict_table_lazily
from lmtool.tasks.reading import LabelledRow
from tests.support.answering import PREFIX, learned
from tests.support.training import Work, words


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
    expected = [
        -abs(float(str(cells[0])) - float(row.values[2]))
        for row, cells in predict_table_lazily(loaded, str(table)).rows
    ]
    assert scored.scores == pytest.approx(expected)
    assert max(expected) < 0


def test_target_texts_are_scored_by_chrf(work: Work) -> None:
    table = work.folder / "pairs.csv"
    table.write_text("\n".join(["source,target", *(f"{words(3, i)},{words(4, i + 1)}" for i in range(24))]) + "\n")
    work.learn_table(work.recipe, table, PREFIX, "objective={kind: seq2seq}", "training.epochs=null")
    loaded = load_run(str(work.run()))
    scored = score_table_rows(loaded, "run", str(table))
    written = [str(cells[0]) for _, cells in predict_table_lazily(loaded, str(table)).rows]
    assert scored.metric == "chrF"
    assert scored.scores == pytest.approx(compute_chrf_scores(written, [words(4, i + 1) for i in range(24)]))


def test_tags_and_answers_to_questions() -> None:
    sentence = LabelledRow(("a", "b", "c", "d"), ("X", "O", "O", "X"), None, 1)
    assert _choose_metric_and_score(sentence, ["X", "O", "X", "X"]) == ("word accuracy", 0.75)
    question = LabelledRow(("Who?", "It was Ann."), None, None, 1, answers=(AnswerSpan(7, "Ann"),))
    assert _choose_metric_and_score(question, "ann") == ("exact match", 1)
    assert _choose_metric_and_score(question, "Bob") == ("exact match", 0)
    several = LabelledRow(("t",), ("b", "a"), None, 1)
    assert [_choose_metric_and_score(several, answer)[1] for answer in ("a;b", "a", ";")] == [1, 0, 0]


def test_a_run_is_no_better_than_itself(work: Work) -> None:
    loaded, table = learned(work, "class")
    one, other = (score_table_rows(loaded, name, str(table)) for name in "ab")
    compared = compare_row_scores(str(table), one, other)
    assert (compared.right_alone, compared.p, compared.interval) == ((0, 0), 1, (0, 0))
    assert compared.better_run is None
    fewer = other._replace(rows=other.rows[1:], scores=other.scores[1:])
    with pytest.raises(DataError, match="on 24 rows by accuracy and on 23 rows by accuracy"):
        compare_row_scores(str(table), one, fewer)


def test_only_runs_on_tables_are_compared_row_by_row(work: Work, tmp_path: Path) -> None:
    work.pretrain("training.steps=1")
    with pytest.raises(UsageError, match="not fine-tuned"):
        score_table_rows(load_run(str(work.run())), "run", str(tmp_path / "table.csv"))
