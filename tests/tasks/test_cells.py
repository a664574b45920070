"""Cells of labels, words, tags and answers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.tasks import cells
from lmtool.tasks.labels import LabelMap, infer_label_kind, to_label_cell
from lmtool.tasks.metrics import entity_metrics, find_entities
from tests.reference import annotated

TAGS = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y-1", "I-Y-1"]), min_size=1, max_size=8)


@given(TAGS)
def test_entities_are_those_of_conlleval(tags: list[str]) -> None:
    wanted = {(of, first, last + 1) for of, first, last in annotated.entities(tags)}
    assert find_entities(tags) == wanted
    repaired, n_repaired = cells.repair_bio_tags(tags)
    assert find_entities(repaired) == wanted
    assert cells.repair_bio_tags(repaired) == (repaired, 0)
    assert n_repaired == sum(a != b for a, b in zip(tags, repaired, strict=True))


@settings(deadline=None)  # the first call imports seqeval
@given(st.lists(st.tuples(TAGS, st.randoms()), min_size=1, max_size=4))
def test_metrics_of_entities_are_those_of_conlleval(rows: list[tuple[list[str], Any]]) -> None:
    true = [tags for tags, _ in rows]
    given_tags = [
        [tag if rng.random() < 0.7 else rng.choice(["O", "I-X", "B-Y-1"]) for tag in tags] for tags, rng in rows
    ]
    found = entity_metrics(true, given_tags)
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx(
        annotated.entity_scores(true, given_tags)
    )
    for of, scores in found["entities"].items():
        one, other = ([[tag if tag[2:] == of else "O" for tag in tags] for tags in part] for part in (true, given_tags))
        assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx(
            annotated.entity_scores(one, other)
        )
        assert scores["support"] == sum(len(annotated.entities(tags)) for tags in one)


def test_both_tags_of_a_type_are_known() -> None:
    assert cells.complete_bio_tags(["O", "B-X"]) == {"O", "B-X", "I-X"}
    assert cells.has_bio_tags(["O", "I-X"])
    assert not cells.has_bio_tags(["NOUN", "B", "O"])


@pytest.mark.parametrize(("tag", "fix"), [("PER", "write B- and I-"), ("S-PER", "S- and U- as B-"), ("B-", "write B-")])
def test_other_tags_than_bio_are_faults(tag: str, fix: str) -> None:
    with pytest.raises(cells.CellError, match=tag) as caught:
        cells.repair_bio_tags(["O", tag])
    assert fix in caught.value.fix


def test_words_and_tags() -> None:
    assert cells.parse_words(["New York", "is"]) == ("New York", "is")
    assert cells.parse_words("Otto's hat, Ida!") == ("Otto's", "hat", ",", "Ida", "!")
    assert cells.parse_tag_list(["O", 7], 2) == ("O", "7")


@pytest.mark.parametrize("cell", [None, [1], [], ["a", " "]])
def test_cells_that_are_no_words_are_faults(cell: Any) -> None:
    with pytest.raises(cells.CellError):
        cells.parse_words(cell)


@pytest.mark.parametrize("cell", ["O", [None], ["O"]])
def test_cells_that_are_no_tags_of_two_words_are_faults(cell: Any) -> None:
    with pytest.raises(cells.CellError):
        cells.parse_tag_list(cell, 2)


CONTEXT = "Otto gave Ida the key. Ida has it."


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ([], ()),
        ([{"text": "the key", "answer_start": 14}], (cells.AnswerSpan(14, "the key"),)),
        (
            {"text": ["Ida", "Ida"], "answer_start": [10, 23]},
            (cells.AnswerSpan(10, "Ida"), cells.AnswerSpan(23, "Ida")),
        ),
        ({"text": [], "answer_start": []}, ()),
    ],
)
def test_answers(cell: Any, wanted: tuple[cells.AnswerSpan, ...]) -> None:
    assert cells.parse_answers_in_context(cell, CONTEXT) == wanted


@pytest.mark.parametrize(
    ("cell", "fix"),
    [
        (None, "[]"),
        (["Ida"], "answer_start"),
        ([{"text": "the key", "answer_start": 15}], "begins at 14"),
        ([{"text": "the hat", "answer_start": 14}], "does not have it"),
        ([{"text": "Otto", "answer_start": -34}], "begins at 0"),
        ([{"text": "Ida"}], "number"),
        ([{"text": " ", "answer_start": 4}], "text"),
        ({"text": ["Ida"], "answer_start": []}, "each"),
    ],
)
def test_wrong_answers_are_faults(cell: Any, fix: str) -> None:
    with pytest.raises(cells.CellError) as caught:
        cells.parse_answers_in_context(cell, CONTEXT)
    assert fix in caught.value.fix


# Labels

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
