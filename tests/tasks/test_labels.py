"""Labels: their kinds, their cells, and the map of their names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tasks.labels import LabelMap, infer_label_kind, to_label_cell


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["pos", "neg"], "class"),
        (["0", "1"], "class"),
        (["1", "2", "2.0"], "class"),
        ([str(i) for i in range(20)], "class"),
        ([str(i) for i in range(21)], "number"),
        (["0.5", "1"], "number"),
        (["-1e-3", "+4"], "number"),
        (["0.5", "nan"], "number"),
        (["0.5", "inf", "1e200", "9" * 400], "number"),
        (["1", "0", "nan", "nan"], "class"),
        (["nan", "inf"], "class"),
        (["0.5", "1_0"], "class"),
        (["0.5", "high"], "class"),
        (["1,5", "-2", "0,125"], "number"),
        (["1,5", "2.5"], "class"),
        (["1,234", "2,500"], "class"),
        (["1,5", ""], "class"),
        (["1,234", "2,500", "1,5"], "number"),
        (["1.234,5", "2,500"], "number"),
        (["1.234,5", "2,500.5"], "class"),
        (["5 %", "5"], "class"),
        (["5 %", "10 %"], "number"),
        (["2.000.000", "3"], "number"),
        (["1.2.3", "1.2"], "class"),
        (["01.02.2024", "02.02.2024"], "class"),
        (["a;b", "a"], "multi"),
        (["1;2", "1"], "multi"),
        (["a", ";"], "multi"),
        ([("a",), ("b", "c")], "multi"),
    ],
)
def test_the_kind_of_labels(labels: list[Any], kind: str) -> None:
    assert infer_label_kind(labels) == kind


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (" a ", "a"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        (3.0, "3"),
        (0.5, "0.5"),
        (float("nan"), ""),
        (float("inf"), "inf"),
        (["a", None, 2], ("a", "2")),
        ({"a": 1}, None),
        ([["a"]], None),
        (b"a", None),
    ],
)
def test_values_of_label_columns(value: object, cell: object) -> None:
    assert to_label_cell(value) == cell


def test_the_order_of_names_depends_on_the_names_alone() -> None:
    assert LabelMap.from_names("class", ["b", "B", "a", "é", "a"]).names == ("B", "a", "b", "é")
    assert LabelMap.from_names("class", ["10", "9", "-1"]).names == ("-1", "9", "10")
    assert LabelMap.from_names("class", ["10", "9", "x"]).names == ("10", "9", "x")
    assert LabelMap.from_names("number", []).names == ()


@given(st.lists(st.text(min_size=1), min_size=1), st.sampled_from(["class", "multi"]))
def test_labels_are_numbered_by_name(names: list[str], kind: Any) -> None:
    labels = LabelMap.from_names(kind, names)
    assert [labels.encode(name) for name in labels.names] == list(range(len(set(names))))
    assert LabelMap.from_names(kind, reversed(names)) == labels


def test_numbers_have_no_names() -> None:
    labels = LabelMap("number")
    assert labels.encode(2.5) == 2.5
    assert labels.find_unknown(2.5) is None
