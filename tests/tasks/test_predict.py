"""`predict` and `eval` on tables, the same in any chunks and any number of processes, and the scores of single rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmtool.data.table import RowError
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks import comparison
from lmtool.tasks import predict as predicting
from lmtool.tasks.cells import AnswerSpan
from lmtool.tasks.metrics import compute_chrf_scores
from lmtool.tasks.reading import LabelledRow
from tests.compute.together import together
from tests.support.answering import PREFIX, learned
from tests.support.errors import refuses
from tests.support.training import Work, words, write_table


def cells(loaded: LoadedModel, table: Path) -> list[list[Any]]:
    """Predictions for all rows, with their rows; numbers parsed."""
    rows = predicting.predict_table_lazily(loaded, str(table)).rows
    return [[row.values[0], *(float(str(x)) if "." in str(x) else x for x in answer)] for row, answer in rows]


def near(rows: list[list[Any]]) -> list[list[Any]]:
    return [[pytest.approx(x, abs=2e-4) if isinstance(x, float) else x for x in row] for row in rows]


@pytest.mark.parametrize("kind", ["class", "number"])
def test_any_chunks_and_any_number_of_processes_answer_the_same(
    work: Work, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    loaded, table = learned(work, kind)
    alone = cells(loaded, table)
    assert [row[0] for row in alone] == [str(i) for i in range(24)]
    monkeypatch.setattr(predicting, "CHUNK_ROWS", 7)
    for size in (1, 5):
        for found in together(monkeypatch, size, lambda _: cells(loaded, table)):
            assert found == near(alone)


def test_any_number_of_processes_measures_the_same(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, table = learned(work, "answers")
    both = [str(table), str(table)]
    alone = list(predicting.evaluate_tables(loaded, both))
    assert [results.part for results in alone] == ["table", "table"]
    assert alone[0].to_record() == alone[1].to_record()
    for found in together(monkeypatch, 3, lambda _: list(predicting.evaluate_tables(loaded, both))):
        for one, other in zip(found, alone, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
            assert (one.rows, one.step, one.labels) == (24, loaded.step, other.labels)
            shown, expected = ({k: v for k, v in r.figures.items() if isinstance(v, float)} for r in (one, other))
            assert shown == pytest.approx(expected, rel=1e-3)


def test_columns_under_other_names_are_inferred_and_bad_rows_told_or_counted(work: Work) -> None:
    """The columns of texts, of labels, or both; a line says which."""
    loaded, table = learned(work, "class")
    (expected,) = predicting.evaluate_tables(loaded, [str(table)])
    _, *rows = table.read_text().splitlines()
    told: list[str] = []
    other = work.folder / "other.csv"
    for header in ("id,review,label", "id,text,sentiment", "id,review,sentiment"):
        other.write_text("\n".join([header, *rows]) + "\n")
        (found,) = predicting.evaluate_tables(loaded, [str(other)], print_line=told.append)
        assert found.to_record() == expected.to_record()
    assert len(told) == 3
    table.write_text(table.read_text() + "24,a,b,c\n25,the cat,a\n")
    with pytest.raises(RowError, match="fields"):
        list(predicting.predict_table_lazily(loaded, str(table)).rows)
    skipping = predicting.predict_table_lazily(loaded, str(table), read_options=Data(skip_bad_rows=True))
    assert len(list(skipping.rows)) == 25
    assert skipping.skipped is not None
    assert skipping.skipped.count == 1


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_a_table_is_split_as_in_training_unless_that_leaves_one_column(tmp_path: Path, delimiter: str) -> None:
    path, trained = tmp_path / "other.csv", Data(delimiter=";")
    path.write_text(f"text{delimiter}label\nwell{delimiter}good\nno{delimiter}bad\n")
    for asked in (Data(), Data(delimiter=delimiter)):
        assert predicting.open_table_in_training_format(str(path), trained, asked).names == ("text", "label")
    path.write_text("a,b;c,d\n1,5;2,5\n3,5;4,5\n")
    assert predicting.open_table_in_training_format(str(path), trained, Data()).names == ("a,b", "c,d")
    assert predicting.open_table_in_training_format(str(path), trained, Data(delimiter=",")).names == ("a", "b;c", "d")


def test_only_what_was_tuned_answers_tables(work: Work) -> None:
    _, table = learned(work, "class")
    work.pretrain("training.steps=1", name="text")
    assert predicting.can_predict_tables(str(work.run()))
    assert not predicting.can_predict_tables(str(work.run("text")))
    with refuses("usage"):
        predicting.predict_table_lazily(load_run(str(work.run("text"))), str(table))
    with refuses("usage"):
        predicting.predict_table_lazily(load_run(str(work.run())), str(table), task_name="mood")


# Scores of single rows


@pytest.mark.parametrize(
    ("kind", "figure"), [("class", "accuracy"), ("multi", "subset_accuracy"), ("answers", "accuracy")]
)
def test_the_mean_over_rows_is_the_accuracy(work: Work, kind: str, figure: str) -> None:
    loaded, table = learned(work, kind)
    scored = comparison.score_table_rows(loaded, "run", str(table))
    (results,) = predicting.evaluate_tables(loaded, [str(table)])
    assert (scored.metric, len(scored.scores)) == ("accuracy", 24)
    assert np.mean(scored.scores) == pytest.approx(results.figures[figure])
    assert set(scored.scores) <= {0.0, 1.0}
    assert [name for name, _ in scored.rows] == [f"row {n}" for n in range(1, 25)]


def test_numbers_are_scored_by_their_error(work: Work) -> None:
    loaded, table = learned(work, "number")
    scored = comparison.score_table_rows(loaded, "run", str(table))
    answered = predicting.predict_table_lazily(loaded, str(table)).rows
    expected = [-abs(float(str(cells[0])) - float(row.values[2])) for row, cells in answered]
    assert scored.scores == pytest.approx(expected)
    assert max(expected) < 0


def test_target_texts_are_scored_by_chrf(work: Work) -> None:
    rows = [f"{words(3, i)},{words(4, i + 1)}" for i in range(8)]
    table = write_table(work.folder / "pairs.csv", rows, "source,target")
    short = ("training.epochs=null", "training.steps=2")
    work.learn_table(work.recipe, table, PREFIX, "objective={kind: seq2seq}", *short)
    loaded = load_run(str(work.run()))
    scored = comparison.score_table_rows(loaded, "run", str(table))
    written = [str(cells[0]) for _, cells in predicting.predict_table_lazily(loaded, str(table)).rows]
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
    assert comparison._choose_metric_and_score(row, answer) == score


def test_a_run_is_no_better_than_itself(work: Work) -> None:
    loaded, table = learned(work, "class")
    one, other = (comparison.score_table_rows(loaded, name, str(table)) for name in "ab")
    compared = comparison.compare_row_scores(str(table), one, other)
    assert (compared.right_alone, compared.p, compared.interval) == ((0, 0), 1, (0, 0))
    assert compared.better_run is None
    with refuses("data"):
        comparison.compare_row_scores(str(table), one, other._replace(rows=other.rows[1:], scores=other.scores[1:]))
    work.pretrain("training.steps=1", name="text")
    with refuses("usage"):
        comparison.score_table_rows(load_run(str(work.run("text"))), "text", str(table))
