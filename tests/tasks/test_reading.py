"""Labelled tables as texts and labels: every fault with its row and column, and notices."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtool.data.table import RowError, SkippedRowCounts, open_table
from lmtool.errors import DataError
from lmtool.tasks.labels import LabelMap
from lmtool.tasks.reading import (
    LEFT_OUT_ROWS,
    LabelledTable,
    make_shared_rows_notice,
    read_labelled_table,
    stream_unlabelled_rows,
)
from lmtool.tasks.schema import choose_columns
from tests.tasks.labelled import labelled, read


def test_examples_are_texts_labels_and_row_numbers(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", "premise,hypothesis,label\na,b, yes \nc,d,no\ne,f,yes\ng,h,no\n")
    assert [tuple(item)[:4] for item in found.items] == [
        (("a", "b"), "yes", None, 1),
        (("c", "d"), "no", None, 2),
        (("e", "f"), "yes", None, 3),
        (("g", "h"), "no", None, 4),
    ]
    assert found.labels == LabelMap("class", ("no", "yes"))
    assert found.count_classes() == {"no": 2, "yes": 2}
    assert found.describe() == "4 rows, in 2 classes: 'no' 2, 'yes' 2"
    assert found.notices == ()


def test_sources_and_targets(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", "source\ttarget\na; b\tc\nd\te\n")
    assert [(item.texts, item.label, item.target) for item in found.items] == [
        (("a; b",), None, "c"),
        (("d",), None, "e"),
    ]
    assert found.labels is None
    assert found.describe() == "2 rows"


def test_the_kind_can_be_given(tmp_path: Path) -> None:
    ratings = ["1", "2", "1", "2"]
    assert labelled(tmp_path, *ratings).labels == LabelMap("class", ("1", "2"))
    found = labelled(tmp_path, *ratings, kind="number")
    assert found.labels == LabelMap("number")
    assert [item.label for item in found.items] == [1.0, 2.0, 1.0, 2.0]
    assert found.describe() == "4 rows, one number each, from 1 to 2"
    found = labelled(tmp_path, "a;b", "c", "a;b", "c", kind="class")
    assert found.labels == LabelMap("class", ("a;b", "c"))
    assert labelled(tmp_path, *ratings, kind="multi").items[0].label == ("1",)


def test_several_labels(tmp_path: Path) -> None:
    found = labelled(tmp_path, "b; a", "a;a;", ";", "c;b")
    assert [item.label for item in found.items] == [("b", "a"), ("a",), (), ("c", "b")]
    assert found.labels is not None
    assert [found.labels.encode(item.label or ()) for item in found.items] == [
        [1, 1, 0],
        [1, 0, 0],
        [0, 0, 0],
        [0, 1, 1],
    ]
    assert [str(notice) for notice in found.notices] == ["labels with one row: 1; first: 'c'"]


def test_labels_of_other_formats(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": ["x", 1]}, {"text": "b", "label": []}, {"text": "c", "label": "x"}]
    found = read(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [item.label for item in found.items] == [("x", "1"), (), ("x",)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": list("abcd"), "label": [0.0, 1.0, 0.0, 1.0]}), path)
    table = open_table(str(path))
    found = read_labelled_table(table, choose_columns(table))
    assert found.labels == LabelMap("class", ("0", "1"))


@pytest.mark.parametrize("skips", [False, True])
def test_where_each_class_has_one_row_more_rows_are_asked_for(skips: bool, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="each of 3 classes has one row") as refused:
        labelled(tmp_path, "red", "green", "yellow", skip_bad_rows=skips)
    assert "a.csv, column 'label'" in refused.value.where
    assert "add rows of each class" in str(refused.value)
    assert "--skip-bad-rows" not in str(refused.value)
    with pytest.raises(DataError, match="each of 3 classes has one row") as refused:
        labelled(tmp_path, '"1,200"', '"9,345"', '"2,001"', skip_bad_rows=skips)
    assert "write decimals with a point, thousands without a comma" in refused.value.fix


FAULTS = [
    # content, kind, what and where, remaining rows
    (
        "text,label\na,x\n , y\nc,y\nd,x\ne,y\n",
        "empty text",
        ["the text is empty", ":3, row 2, column 'text'"],
        [1, 3, 4, 5],
    ),
    (
        "text,label\na,x\nb,z\nc,y\nd,x\ne,y\n",
        "class with one row",
        ["the class 'z' has one row", ":3, row 2, column 'label'", "give it a second row"],
        [1, 3, 4, 5],
    ),
    (
        "text,label\na,x\nb,z\nc,x\nd,q\n" + "e,y\n" * 2,
        "class with one row",
        ["the class 'z' has one row; 2 of 4 classes have one row", ":3, row 2", "is 'label' the label column?"],
        [1, 3, 5, 6],
    ),
    ("text,label\na,x\nb,y,z\nc,y\nd,x\ne,y\n", "ragged row", [":3, row 2"], [1, 3, 4, 5]),
    ("source,target\na,x\nb, \nc,y\n", "empty target", ["the target is empty", ":3, row 2, column 'target'"], [1, 3]),
    ("source,target\na,x\n,b\nc,y\n", "empty text", [":3, row 2, column 'source'"], [1, 3]),
]


@pytest.mark.parametrize(("content", "kind", "found", "rows"), FAULTS)
def test_bad_rows_are_named_or_left_out(
    content: str, kind: str, found: list[str], rows: list[int], tmp_path: Path
) -> None:
    with pytest.raises(RowError) as caught:
        read(tmp_path / "a.csv", content)
    assert caught.value.kind == kind
    assert caught.value.exit_code == 3
    assert len(caught.value.lines()) == 3
    for part in [*found, "a.csv", "--skip-bad-rows"]:
        assert part in str(caught.value)
    examples = read(tmp_path / "a.csv", content, skip_bad_rows=True)
    assert [item.row for item in examples.items] == rows
    assert examples.skipped.kinds[kind] == examples.skipped.count > 0
    assert examples.labels is None or "z" not in examples.labels.names


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 3, "label": "x"}, "the column holds int, not text"),
        ({"text": "a", "label": {"x": 1}}, "the label is dict, not text or a number"),
        ({"text": None, "label": "x"}, "the text is empty"),
    ],
)
def test_values_that_are_no_texts_or_labels(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "xy"[i % 2]} for i in range(4)]
    content = "".join(json.dumps(r) + "\n" for r in [*rows, row])
    with pytest.raises(RowError, match=message) as caught:
        read(tmp_path / "a.jsonl", content)
    assert "a.jsonl:5, row 5, column '" in caught.value.where
    assert len(read(tmp_path / "a.jsonl", content, skip_bad_rows=True)) == 4


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (["1", "2", "high", "1"], "number", "the label is 'high', not a number"),
        (["1", "2", "nan", "1"], "number", "the label is 'nan', not a number"),
        (["1.5", "2", '"1,8"', "1"], "number", "the label is '1,8', not a number"),
    ],
)
def test_labels_that_are_not_of_the_given_kind(labels: list[str], kind: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(RowError, match=message) as caught:
        labelled(tmp_path, *labels, kind=kind)
    assert "row 3, column 'label'" in caught.value.where
    assert len(labelled(tmp_path, *labels, kind=kind, skip_bad_rows=True)) == 3


def test_decimal_commas_are_numbers_and_told(tmp_path: Path) -> None:
    found = labelled(tmp_path, '"1,8"', '"-4,25"', "3")
    assert [item.label for item in found.items] == [1.8, -4.25, 3.0]
    assert [str(notice) for notice in found.notices] == ["2 labels with a comma, such as '1,8', are read as decimals"]
    assert [item.label for item in labelled(tmp_path, '"0,5"', labels=LabelMap("number")).items] == [0.5]
    assert labelled(tmp_path, *['"1,8"', '"2,3"'] * 2, kind="class").notices == ()


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (['"26.675,79"', '"1.200,00"', '"950,5"'], [26675.79, 1200.0, 950.5]),
        (['"26,675.79"', '"1,200"', "950"], [26675.79, 1200.0, 950.0]),
        (["1.200.000", "2.500.000", "900.000"], [1.2e6, 2.5e6, 9e5]),
        (["26\u00a0675.5", "1 200", "3"], [26675.5, 1200.0, 3.0]),
        (["26\u202f675", "1\u202f200", "3"], [26675.0, 1200.0, 3.0]),
        (["26'675.5", "1\u2019200", "3"], [26675.5, 1200.0, 3.0]),
        (["5 %", "17 %", "8%"], [5.0, 17.0, 8.0]),
        (['"5,5 %"', "17 %", "-8%"], [5.5, 17.0, -8.0]),
    ],
)
def test_amounts_and_percentages_are_numbers_and_told(labels: list[str], numbers: list[float], tmp_path: Path) -> None:
    found = labelled(tmp_path, *labels)
    assert found.labels == LabelMap("number")
    assert [item.label for item in found.items] == numbers
    (notice,) = [notice for notice in found.notices if notice.kind == "formatted numbers"]
    assert f"{numbers[0]:.15g}" in str(notice)
    assert [item.label for item in labelled(tmp_path, *labels, labels=LabelMap("number")).items] == numbers


@pytest.mark.parametrize("blank", ["", " ", '""'])
def test_rows_without_a_label_are_left_out_and_counted(blank: str, tmp_path: Path) -> None:
    labels = ["x", blank, "y", "x", blank, "y"]
    for known in (None, LabelMap("class", ("x", "y"))):
        found = labelled(tmp_path, *labels, labels=known)
        assert [item.row for item in found.items] == [1, 3, 4, 6]
        (notice,) = [notice for notice in found.notices if notice.kind == "rows without a label"]
        assert notice.count == 2
        assert "2 rows" in str(notice)
        assert found.skipped.count == 0
    content = "".join(json.dumps({"text": f"t{i}", "label": i % 2 if i < 8 else None}) + "\n" for i in range(20))
    assert len(read(tmp_path / "a.jsonl", content)) == 8
    # of several labels none is a label
    assert [item.label for item in labelled(tmp_path, "a;b", ";", blank, "a").items] == [("a", "b"), (), ("a",)]


def test_labels_with_commas_that_stay_classes_are_told(tmp_path: Path) -> None:
    mixed = ['"1,8"', '"2,3"', "x"] * 2
    (notice,) = labelled(tmp_path, *mixed).notices
    assert str(notice) == "4 labels with a comma, such as '1,8', are read as classes: --labels number reads decimals"
    with pytest.raises(RowError, match="the label is '1,8', not a number") as caught:
        labelled(tmp_path, *mixed, kind="number")
    fix = "write a point for the comma, or name another kind of labels: --labels class or multi"
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize("huge", ["1e200", "-1e200", "1e308", "1e309", "inf", "-Infinity", "nan", "9" * 400, "1.1e15"])
@pytest.mark.parametrize("known", [None, LabelMap("number")])
def test_a_number_that_no_model_can_learn_is_named(huge: str, known: LabelMap | None, tmp_path: Path) -> None:
    """In a column of numbers, whether it trains a model or measures one."""
    labels = ["0.5", "1", huge, "1e15", "-1e15", "1e-300"]
    with pytest.raises(RowError, match=r"the label is .*, not a number from -1e\+15 to 1e\+15") as caught:
        labelled(tmp_path, *labels, labels=known)
    assert "a.csv:4, row 3, column 'label'" in caught.value.where
    assert len(str(caught.value)) < 400
    found = labelled(tmp_path, *labels, labels=known, skip_bad_rows=True)
    assert [item.label for item in found.items] == [0.5, 1.0, 1e15, -1e15, 1e-300]


def test_a_list_is_no_single_class(tmp_path: Path) -> None:
    content = '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": "x"}\n{"text": "c", "label": "x"}\n'
    with pytest.raises(RowError, match="several labels, not one class"):
        read(tmp_path / "a.jsonl", content, kind="class")


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["x", "x", "x"], {}, "all rows have the same class, 'x'"),
        (["x", "x", "y"], {"skip_bad_rows": True}, "all rows have the same class, 'x'"),
        (["0.5", "0.5"], {}, "all rows have the same number, '0.5'"),
        ([";", ";"], {}, "no row has any label"),
        (["", ""], {}, "no row has a label"),
    ],
)
def test_nothing_can_be_learnt(labels: list[str], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        labelled(tmp_path, *labels, **options)
    assert len(caught.value.lines()) == 3
    assert caught.value.exit_code == 3


def test_a_label_unseen_in_training(tmp_path: Path) -> None:
    known = LabelMap("class", ("negative", "positive"))
    with pytest.raises(RowError, match="the label 'Positiv' is not among those of the training data") as caught:
        labelled(tmp_path, "positive", "Positiv", labels=known)
    assert caught.value.kind == "label unseen in training"
    assert "a.csv:3, row 2, column 'label'" in caught.value.where
    assert "did you mean 'positive'?" in caught.value.fix
    with pytest.raises(RowError, match="not among") as caught:
        labelled(tmp_path, "3", labels=known)
    assert "the classes are 'negative', 'positive'" in caught.value.fix
    found = labelled(tmp_path, "positive", "Positiv", labels=known, skip_bad_rows=True)
    assert [item.row for item in found.items] == [1]  # and a class with one row is not a fault in a test table
    assert found.labels == known
    several = LabelMap("multi", ("a", "b"))
    with pytest.raises(RowError, match="the label 'c' is not among"):
        labelled(tmp_path, "a;c", labels=several)


def test_streaming_gives_the_texts_and_all_columns(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,text,label\n7,t,x\n8,u\n9,v,\n", encoding="utf-8")
    table = open_table(str(tmp_path / "b.csv"))
    columns = choose_columns(table)
    with pytest.raises(RowError, match="2 fields"):
        list(stream_unlabelled_rows(table, columns))
    skipped = SkippedRowCounts()
    found = list(stream_unlabelled_rows(table, columns, skipped))
    assert [row.values for row, _ in found] == [("7", "t", "x"), ("9", "v", "")]
    assert [(example.texts, example.label) for _, example in found] == [(("t",), None), (("v",), None)]
    assert str(skipped) == "skipped 1 bad row: ragged row 1"


def test_without_labels_empty_texts_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("text,id\na,1\n,2\n", encoding="utf-8")
    table = open_table(str(tmp_path / "b.csv"))
    found = [example for _, example in stream_unlabelled_rows(table, choose_columns(table, labelled=False))]
    assert [(example.texts, example.label) for example in found] == [(("a",), None), (("",), None)]


def kinds(examples: LabelledTable) -> dict[str, int]:
    return {notice.kind: notice.count for notice in examples.notices}


def test_rows_with_the_same_text_and_different_labels(tmp_path: Path) -> None:
    content = "text,label\na,x\nb,y\na,x\na,y\nc,x\nb,y\n"
    found = read(tmp_path / "a.csv", content)
    assert kinds(found) == {"duplicate rows with different labels": 3}
    assert str(found.notices[0]) == "3 rows with the text of another row and a different label; first: rows 1 and 4"
    assert kinds(read(tmp_path / "a.csv", "text,label\na,x;y\na,y;x\nb,x\nc,y\n")) == {}
    assert kinds(read(tmp_path / "a.tsv", "source\ttarget\na\tb\na\tc\n")) == {}


def test_heavy_imbalance(tmp_path: Path) -> None:
    assert kinds(labelled(tmp_path, *["x"] * 19, "y", "y")) == {}
    found = labelled(tmp_path, *["x"] * 20, "y", "y")
    assert kinds(found) == {"heavy imbalance": 10}
    assert "'x' has 20 rows, 'y' has 2" in str(found.notices[0])


def test_other_notices(tmp_path: Path) -> None:
    assert kinds(labelled(tmp_path, "Good", "good", "Good", "good")) == {"similar labels": 2}
    content = "text,label\na,x\n,\nb,y\n, \nc,x\nd,y\n"
    assert kinds(read(tmp_path / "a.csv", content)) == {"blank rows": 2}
    content = "premise,hypothesis,label\na,,x\nb,b,y\nc,c,x\nd,d,y\n"
    assert kinds(read(tmp_path / "a.csv", content)) == {"empty texts": 1}


def test_rows_shared_by_train_and_test(tmp_path: Path) -> None:
    train = read(tmp_path / "a.csv", "text,label\na,x\nb,y\nc,x\nb,y\n")
    test = read(tmp_path / "b.csv", "text,label\nq,x\nb,x\nb,y\n", labels=train.labels)
    notice = make_shared_rows_notice(train, test, "b.csv")
    assert notice is not None
    assert notice.count == 2
    assert str(notice) == "2 of 3 rows of b.csv are also in the training table; first: row 2 is row 2 there"
    alone = read(tmp_path / "b.csv", "text,label\nq,x\n", labels=train.labels)
    assert make_shared_rows_notice(train, alone, "b.csv") is None


def test_the_page_on_tables_names_every_notice() -> None:
    root = Path(__file__).parents[2]
    page = " ".join((root / "docs" / "data.md").read_text(encoding="utf-8").split())
    source = "".join(
        (root / "lmtool" / "tasks" / f"{name}.py").read_text() for name in ("data", "findings", "notices", "reading")
    )
    found = set(re.findall(r'\bNotice\(\s*"([^"]+)"', source)) | LEFT_OUT_ROWS.keys()
    assert {"blank rows", "heavy imbalance"} <= found
    assert len(found) > 15
    assert not [kind for kind in found if kind not in page]
