"""Labelled tables as texts and labels: every fault with its row and column, and notices."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import RowError, SkippedRowCounts, open_table
from lmtool.errors import DataError
from lmtool.tasks.labels import LabelMap
from lmtool.tasks.reading import (
    LEFT_OUT_ROWS,
    LabelledTable,
    make_shared_rows_notice,
    stream_unlabelled_rows,
)
from lmtool.tasks.schema import choose_columns
from tests.support.errors import refuses
from tests.tasks.labelled import labelled, read

NUMBER = LabelMap("number")


def json_lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_examples_are_texts_labels_and_row_numbers(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", "premise,hypothesis,label\na,b, yes \nc,d,no\ne,f,yes\ng,h,no\n")
    texts, labels = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")], ["yes", "no", "yes", "no"]
    assert [tuple(item)[:4] for item in found.items] == [
        (*pair, None, row) for row, pair in enumerate(zip(texts, labels, strict=True), 1)
    ]
    assert found.labels == LabelMap("class", ("no", "yes"))
    assert found.count_classes() == {"no": 2, "yes": 2}
    assert found.describe() == "4 rows, in 2 classes: 'no' 2, 'yes' 2"
    assert found.notices == ()
    pairs = read(tmp_path / "a.tsv", "source\ttarget\na; b\tc\nd\te\n")
    assert [tuple(item)[:4] for item in pairs.items] == [(("a; b",), None, "c", 1), (("d",), None, "e", 2)]
    assert (pairs.labels, pairs.describe()) == (None, "2 rows")


@pytest.mark.parametrize(
    ("cells", "kind", "names", "read_as"),
    [
        ("1 2 1 2", None, ("1", "2"), ["1", "2", "1", "2"]),
        ("1 2 1 2", "number", (), [1.0, 2.0, 1.0, 2.0]),
        ("1 2 1 2", "multi", ("1", "2"), [("1",), ("2",), ("1",), ("2",)]),
        ("a;b c a;b c", "class", ("a;b", "c"), ["a;b", "c", "a;b", "c"]),
        ("b;a a;a; ; c;b", None, ("a", "b", "c"), [("b", "a"), ("a",), (), ("c", "b")]),
    ],
)
def test_labels_are_of_the_kind_that_is_given_or_inferred(
    cells: str, kind: Any, names: tuple[str, ...], read_as: list[Any], tmp_path: Path
) -> None:
    found = labelled(tmp_path, *cells.split(), kind=kind)
    assert [item.label for item in found.items] == read_as
    assert found.labels is not None
    assert found.labels.names == names
    assert kinds(found) == ({"labels with one row": 1} if kind is None and "c" in names else {})
    assert kind != "number" or found.describe() == "4 rows, one number each, from 1 to 2"


def test_labels_of_objects_may_be_lists(tmp_path: Path) -> None:
    rows = json_lines({"text": "a", "label": ["x", 1]}, {"text": "b", "label": []}, {"text": "c", "label": "x"})
    assert [item.label for item in read(tmp_path / "a.jsonl", rows).items] == [("x", "1"), (), ("x",)]


# Faults


@pytest.mark.parametrize("skips", [False, True])
def test_where_each_class_has_one_row_more_rows_are_asked_for(skips: bool, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="add rows of each class") as refused:
        labelled(tmp_path, "red", "green", "yellow", skip_bad_rows=skips)
    assert "a.csv, column 'label'" in refused.value.where
    with pytest.raises(DataError, match="decimals with a point"):
        labelled(tmp_path, '"1,200"', '"9,345"', '"2,001"', skip_bad_rows=skips)


GOOD = [{"text": f"t{i}", "label": "xy"[i % 2]} for i in range(4)]
CLASS, NUMBERS = {"kind": "class"}, {"kind": "number"}
FAULTS: list[tuple[str | dict[str, Any], dict[str, Any], str, str, list[int]]] = [
    # lines, or an object after good ones; options; the kind of the fault, its column, and the rows that have it
    ("text,label a,x ,y c,y d,x e,y", {}, "empty text", "text", [2]),
    ("text,label a,x b,z c,y d,x e,y", {}, "class with one row", "label", [2]),
    ("text,label a,x b,z c,x d,q e,y e,y", {}, "class with one row", "label", [2, 4]),
    ("text,label a,x b,y,z c,y d,x e,y", {}, "ragged row", "label", [2]),
    ("source,target a,x b, c,y", {}, "empty target", "target", [2]),
    ("source,target a,x ,b c,y", {}, "empty text", "source", [2]),
    ("text,label a,1 b,2 c,high d,1", NUMBERS, "wrong label", "label", [3]),
    ("text,label a,1 b,2 c,nan d,1", NUMBERS, "wrong label", "label", [3]),
    ('text,label a,1.5 b,"1,8" c,1', NUMBERS, "wrong label", "label", [2]),
    ({"text": 3, "label": "x"}, {}, "wrong type", "text", [5]),
    ({"text": "a", "label": {"x": 1}}, {}, "wrong type", "label", [5]),
    ({"text": None, "label": "x"}, {}, "empty text", "text", [5]),
    ({"text": "a", "label": ["x", "y"]}, CLASS, "wrong label", "label", [5]),
]


@pytest.mark.parametrize(("content", "options", "kind", "column", "bad"), FAULTS)
def test_bad_rows_are_named_or_left_out(
    content: Any, options: dict[str, Any], kind: str, column: str, bad: list[int], tmp_path: Path
) -> None:
    is_csv = isinstance(content, str)
    path = tmp_path / ("a.csv" if is_csv else "a.jsonl")
    text = content.replace(" ", "\n") + "\n" if is_csv else json_lines(*GOOD, content)
    with pytest.raises(RowError, match="--skip-bad-rows") as caught:
        read(path, text, **options)
    assert (caught.value.kind, caught.value.exit_code, len(caught.value.lines())) == (kind, 3, 3)
    assert caught.value.where == f"{path}:{bad[0] + is_csv}, row {bad[0]}, column '{column}'"
    found = read(path, text, skip_bad_rows=True, **options)
    assert [item.row for item in found.items] == [i for i in range(1, len(found) + len(bad) + 1) if i not in bad]
    assert found.skipped.kinds[kind] == found.skipped.count == len(bad)
    assert found.labels is None or "z" not in found.labels.names


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (["x", "x", "x"], {}),
        (["x", "x", "y"], {"skip_bad_rows": True}),
        (["0.5", "0.5"], {}),
        ([";", ";"], {}),
        (["", ""], {}),
    ],
)
def test_nothing_can_be_learnt_of_one_label(labels: list[str], options: dict[str, Any], tmp_path: Path) -> None:
    with refuses("data") as caught:
        labelled(tmp_path, *labels, **options)
    assert not isinstance(caught.value, RowError)


def test_a_label_unseen_in_training(tmp_path: Path) -> None:
    known = LabelMap("class", ("negative", "positive"))
    with pytest.raises(RowError, match="did you mean 'positive'") as caught:
        labelled(tmp_path, "positive", "Positiv", labels=known)
    assert caught.value.kind == "label unseen in training"
    assert "a.csv:3, row 2, column 'label'" in caught.value.where
    with pytest.raises(RowError, match="the classes are 'negative', 'positive'"):
        labelled(tmp_path, "3", labels=known)
    found = labelled(tmp_path, "positive", "Positiv", labels=known, skip_bad_rows=True)
    assert [item.row for item in found.items] == [1]  # and a class with one row is not a fault in a test table
    assert found.labels == known
    with pytest.raises(RowError, match="'c'"):
        labelled(tmp_path, "a;c", labels=LabelMap("multi", ("a", "b")))


# Numbers


def test_decimal_commas_are_numbers_and_told(tmp_path: Path) -> None:
    found = labelled(tmp_path, '"1,8"', '"-4,25"', "3")
    assert [item.label for item in found.items] == [1.8, -4.25, 3.0]
    assert kinds(found) == {"decimal commas": 2}
    assert [item.label for item in labelled(tmp_path, '"0,5"', labels=NUMBER).items] == [0.5]
    assert labelled(tmp_path, *['"1,8"', '"2,3"'] * 2, kind="class").notices == ()
    # those that stay classes are told too
    mixed = labelled(tmp_path, *['"1,8"', '"2,3"', "x"] * 2)
    assert kinds(mixed) == {"decimal commas": 4}
    assert "--labels number" in str(mixed.notices[0])


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (['"26.675,79"', '"1.200,00"', '"950,5"'], [26675.79, 1200.0, 950.5]),
        (['"26,675.79"', '"1,200"', "950"], [26675.79, 1200.0, 950.0]),
        (["1.200.000", "2.500.000", "900.000"], [1.2e6, 2.5e6, 9e5]),
        (["26\u00a0675.5", "1 200", "3"], [26675.5, 1200.0, 3.0]),
        (["26\u202f675", "1\u202f200", "3"], [26675.0, 1200.0, 3.0]),
        (["26'675.5", "1\u2019200", "3"], [26675.5, 1200.0, 3.0]),
        (['"5,5 %"', "17 %", "-8%"], [5.5, 17.0, -8.0]),
    ],
)
def test_amounts_and_percentages_are_numbers_and_told(labels: list[str], numbers: list[float], tmp_path: Path) -> None:
    found = labelled(tmp_path, *labels)
    assert found.labels == NUMBER
    assert [item.label for item in found.items] == numbers
    (notice,) = [notice for notice in found.notices if notice.kind == "formatted numbers"]
    assert f"{numbers[0]:.15g}" in str(notice)
    assert [item.label for item in labelled(tmp_path, *labels, labels=NUMBER).items] == numbers


@pytest.mark.parametrize("huge", ["1e200", "-1e200", "1e309", "-Infinity", "nan", "9" * 400, "1.1e15"])
@pytest.mark.parametrize("known", [None, NUMBER])
def test_a_number_that_no_model_can_learn_is_named(huge: str, known: LabelMap | None, tmp_path: Path) -> None:
    """In a column of numbers, whether it trains a model or measures one."""
    labels = ["0.5", "1", huge, "1e15", "-1e15", "1e-300"]
    with pytest.raises(RowError, match=r"from -1e\+15 to 1e\+15") as caught:
        labelled(tmp_path, *labels, labels=known)
    assert "a.csv:4, row 3, column 'label'" in caught.value.where
    assert len(str(caught.value)) < 400
    found = labelled(tmp_path, *labels, labels=known, skip_bad_rows=True)
    assert [item.label for item in found.items] == [0.5, 1.0, 1e15, -1e15, 1e-300]


# Rows without labels


@pytest.mark.parametrize("blank", ["", " ", '""'])
def test_rows_without_a_label_are_left_out_and_counted(blank: str, tmp_path: Path) -> None:
    for known in (None, LabelMap("class", ("x", "y"))):
        found = labelled(tmp_path, "x", blank, "y", "x", blank, "y", labels=known)
        assert [item.row for item in found.items] == [1, 3, 4, 6]
        assert kinds(found) == {"rows without a label": 2}
        assert found.skipped.count == 0
    # of several labels none is a label
    assert [item.label for item in labelled(tmp_path, "a;b", ";", blank, "a").items] == [("a", "b"), (), ("a",)]
    rows = json_lines(*({"text": f"t{i}", "label": i % 2 if i < 8 else None} for i in range(20)))
    assert len(read(tmp_path / "a.jsonl", rows)) == 8


def test_streaming_gives_the_texts_and_all_columns(tmp_path: Path) -> None:
    """Also of empty texts, as without labels these are no faults."""
    (tmp_path / "b.csv").write_text("id,text,label\n7,t,x\n8,u\n9,,\n", encoding="utf-8")
    table = open_table(str(tmp_path / "b.csv"))
    columns, skipped = choose_columns(table), SkippedRowCounts()
    with pytest.raises(RowError, match="2 fields"):
        list(stream_unlabelled_rows(table, columns))
    found = list(stream_unlabelled_rows(table, columns, skipped))
    assert [row.values for row, _ in found] == [("7", "t", "x"), ("9", "", "")]
    assert [(example.texts, example.label) for _, example in found] == [(("t",), None), (("",), None)]
    assert skipped.kinds == {"ragged row": 1}


# Notices


def kinds(examples: LabelledTable) -> dict[str, int]:
    return {notice.kind: notice.count for notice in examples.notices}


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.csv", "text,label\na,x\nb,y\na,x\na,y\nc,x\nb,y\n", {"duplicate rows with different labels": 3}),
        ("a.csv", "text,label\na,x;y\na,y;x\nb,x\nc,y\n", {}),
        ("a.tsv", "source\ttarget\na\tb\na\tc\n", {}),
        ("a.csv", "text,label\na,x\n,\nb,y\n, \nc,x\nd,y\n", {"blank rows": 2}),
        ("a.csv", "premise,hypothesis,label\na,,x\nb,b,y\nc,c,x\nd,d,y\n", {"empty texts": 1}),
    ],
)
def test_what_is_suspicious_is_counted(name: str, content: str, found: dict[str, int], tmp_path: Path) -> None:
    assert kinds(read(tmp_path / name, content)) == found


def test_heavy_imbalance_is_told_from_a_tenth_on(tmp_path: Path) -> None:
    assert kinds(labelled(tmp_path, *["x"] * 19, "y", "y")) == {}
    found = labelled(tmp_path, *["x"] * 20, "y", "y")
    assert kinds(found) == {"heavy imbalance": 10}
    assert "'x' has 20 rows, 'y' has 2" in str(found.notices[0])


def test_rows_shared_by_train_and_test(tmp_path: Path) -> None:
    train = read(tmp_path / "a.csv", "text,label\na,x\nb,y\nc,x\nb,y\n")
    test = read(tmp_path / "b.csv", "text,label\nq,x\nb,x\nb,y\n", labels=train.labels)
    notice = make_shared_rows_notice(train, test, "b.csv")
    assert str(notice) == "2 of 3 rows of b.csv are also in the training table; first: row 2 is row 2 there"
    alone = read(tmp_path / "b.csv", "text,label\nq,x\n", labels=train.labels)
    assert make_shared_rows_notice(train, alone, "b.csv") is None


def test_the_page_on_tables_names_every_notice() -> None:
    root = Path(__file__).parents[2]
    page = " ".join((root / "docs" / "data.md").read_text(encoding="utf-8").split())
    modules = ("data", "findings", "notices", "reading")
    source = "".join((root / "lmtool" / "tasks" / f"{name}.py").read_text() for name in modules)
    found = set(re.findall(r'\bNotice\(\s*"([^"]+)"', source)) | LEFT_OUT_ROWS.keys()
    assert {"blank rows", "heavy imbalance"} <= found
    assert len(found) > 15
    assert not [kind for kind in found if kind not in page]
