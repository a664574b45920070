"""Labels: their kinds, their cells, and the map of their names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tasks.labels import LabelMap, infer_label_kind, to_label_cell

KINDS: dict[str, list[list[Any]]] = {
    "class": [
        *(["pos", "neg"], ["0", "1"], ["1", "2", "2.0"], [str(i) for i in range(20)], ["0.5", "1_0"], ["0.5", "high"]),
        *(["1", "0", "nan", "nan"], ["nan", "inf"], ["1,5", "2.5"], ["1,234", "2,500"], ["1,5", ""], ["5 %", "5"]),
        *(["1.234,5", "2,500.5"], ["1.2.3", "1.2"], ["01.02.2024", "02.02.2024"]),
    ],
    "number": [
        *([str(i) for i in range(21)], ["0.5", "1"], ["-1e-3", "+4"], ["0.5", "nan"], ["5 %", "10 %"]),
        *(["0.5", "inf", "1e200", "9" * 400], ["1,5", "-2", "0,125"], ["1,234", "2,500", "1,5"], ["1.234,5", "2,500"]),
        ["2.000.000", "3"],
    ],
    "multi": [["a;b", "a"], ["1;2", "1"], ["a", ";"], [("a",), ("b", "c")]],
}


@pytest.mark.parametrize(("labels", "kind"), [(labels, kind) for kind, lists in KINDS.items() for labels in lists])
def test_the_kind_of_labels(labels: list[Any], kind: str) -> None:
    assert infer_label_kind(labels) == kind


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *((" a ", "a"), (None, ""), (True, "true"), (3, "3"), (3.0, "3"), (0.5, "0.5"), (float("nan"), "")),
        *((float("inf"), "inf"), (["a", None, 2], ("a", "2")), ({"a": 1}, None), ([["a"]], None), (b"a", None)),
    ],
)
def test_values_of_label_columns(value: object, cell: object) -> None:
    assert to_label_cell(value) == cell


@pytest.mark.parametrize(
    ("given_names", "names"),
    [
        (["b", "B", "a", "é", "a"], ("B", "a", "b", "é")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_names_are_ordered_as_numbers_or_as_texts(given_names: list[str], names: tuple[str, ...]) -> None:
    assert LabelMap.from_names("class", given_names).names == names


@given(st.lists(st.text(min_size=1), min_size=1), st.sampled_from(["class", "multi"]))
def test_labels_are_numbered_by_name(names: list[str], kind: Any) -> None:
    labels = LabelMap.from_names(kind, names)
    assert [labels.encode(name) for name in labels.names] == list(range(len(set(names))))
    assert LabelMap.from_names(kind, reversed(names)) == labels


def test_numbers_have_no_names() -> None:
    labels = LabelMap.from_names("number", [])
    assert (labels.names, labels.encode(2.5), labels.find_unknown(2.5)) == ((), 2.5, None)
