"""`predict` and `eval` on tables: the same predictions in any chunks and any number of processes."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import RowError
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks import predict as predicting
from lmtool.tasks.predict import (
    can_predict_tables,
    evaluate_tables,
    open_table_in_training_format,
    predict_table_lazily,
)
from tests.compute.together import together
from tests.support.answering import learned
from tests.support.errors import refuses
from tests.support.training import Work


def cells(loaded: LoadedModel, table: Path) -> list[list[Any]]:
    """Predictions for all rows, with their rows; numbers parsed."""
    rows = predict_table_lazily(loaded, str(table)).rows
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
    alone = list(evaluate_tables(loaded, both))
    assert [results.part for results in alone] == ["table", "table"]
    assert alone[0].to_record() == alone[1].to_record()
    for found in together(monkeypatch, 3, lambda _: list(evaluate_tables(loaded, both))):
        for one, other in zip(found, alone, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
            assert (one.rows, one.step, one.labels) == (24, loaded.step, other.labels)
            shown, expected = ({k: v for k, v in r.figures.items() if isinstance(v, float)} for r in (one, other))
            assert shown == pytest.approx(expected, rel=1e-3)


def test_columns_under_other_names_are_inferred_and_bad_rows_told_or_counted(work: Work) -> None:
    """The columns of texts, of labels, or both; a line says which."""
    loaded, table = learned(work, "class")
    (expected,) = evaluate_tables(loaded, [str(table)])
    _, *rows = table.read_text().splitlines()
    told: list[str] = []
    other = work.folder / "other.csv"
    for header in ("id,review,label", "id,text,sentiment", "id,review,sentiment"):
        other.write_text("\n".join([header, *rows]) + "\n")
        (found,) = evaluate_tables(loaded, [str(other)], print_line=told.append)
        assert found.to_record() == expected.to_record()
    assert len(told) == 3
    table.write_text(table.read_text() + "24,a,b,c\n25,the cat,a\n")
    with pytest.raises(RowError, match="fields"):
        list(predict_table_lazily(loaded, str(table)).rows)
    skipping = predict_table_lazily(loaded, str(table), read_options=Data(skip_bad_rows=True))
    assert len(list(skipping.rows)) == 25
    assert skipping.skipped is not None
    assert skipping.skipped.count == 1


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_a_table_is_split_as_in_training_unless_that_leaves_one_column(tmp_path: Path, delimiter: str) -> None:
    path, trained = tmp_path / "other.csv", Data(delimiter=";")
    path.write_text(f"text{delimiter}label\nwell{delimiter}good\nno{delimiter}bad\n")
    for asked in (Data(), Data(delimiter=delimiter)):
        assert open_table_in_training_format(str(path), trained, asked).names == ("text", "label")
    path.write_text("a,b;c,d\n1,5;2,5\n3,5;4,5\n")
    assert open_table_in_training_format(str(path), trained, Data()).names == ("a,b", "c,d")
    assert open_table_in_training_format(str(path), trained, Data(delimiter=",")).names == ("a", "b;c", "d")


def test_only_what_was_tuned_answers_tables(work: Work) -> None:
    _, table = learned(work, "class")
    work.pretrain("training.steps=1", name="text")
    assert can_predict_tables(str(work.run()))
    assert not can_predict_tables(str(work.run("text")))
    with refuses("usage"):
        predict_table_lazily(load_run(str(work.run("text"))), str(table))
    with refuses("usage"):
        predict_table_lazily(load_run(str(work.run())), str(table), task_name="mood")
