"""Cells of words, tags and answers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.tasks.cells import (
    AnswerSpan,
    CellError,
    complete_bio_tags,
    has_bio_tags,
    parse_answers_in_context,
    parse_tag_list,
    parse_words,
    repair_bio_tags,
)
from lmtool.tasks.metrics import entity_metrics, find_entities
from tests.reference import annotated

TAGS = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y-1", "I-Y-1"]), min_size=1, max_size=8)


@given(TAGS)
def test_entities_are_those_of_conlleval(tags: list[str]) -> None:
    wanted = {(of, first, last + 1) for of, first, last in annotated.entities(tags)}
    assert find_entities(tags) == wanted
    repaired, n_repaired = repair_bio_tags(tags)
    assert find_entities(repaired) == wanted
    assert repair_bio_tags(repaired) == (repaired, 0)
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
    assert complete_bio_tags(["O", "B-X"]) == {"O", "B-X", "I-X"}
    assert has_bio_tags(["O", "I-X"])
    assert not has_bio_tags(["NOUN", "B", "O"])


@pytest.mark.parametrize(("tag", "fix"), [("PER", "write B- and I-"), ("S-PER", "S- and U- as B-"), ("B-", "write B-")])
def test_other_tags_than_bio_are_faults(tag: str, fix: str) -> None:
    with pytest.raises(CellError, match=tag) as caught:
        repair_bio_tags(["O", tag])
    assert fix in caught.value.fix


def test_words_and_tags() -> None:
    assert parse_words(["New York", "is"]) == ("New York", "is")
    assert parse_words("Otto's hat, Ida!") == ("Otto's", "hat", ",", "Ida", "!")
    assert parse_tag_list(["O", 7], 2) == ("O", "7")


@pytest.mark.parametrize("cell", [None, [1], [], ["a", " "]])
def test_cells_that_are_no_words_are_faults(cell: Any) -> None:
    with pytest.raises(CellError):
        parse_words(cell)


@pytest.mark.parametrize("cell", ["O", [None], ["O"]])
def test_cells_that_are_no_tags_of_two_words_are_faults(cell: Any) -> None:
    with pytest.raises(CellError):
        parse_tag_list(cell, 2)


CONTEXT = "Otto gave Ida the key. Ida has it."


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ([], ()),
        ([{"text": "the key", "answer_start": 14}], (AnswerSpan(14, "the key"),)),
        ({"text": ["Ida", "Ida"], "answer_start": [10, 23]}, (AnswerSpan(10, "Ida"), AnswerSpan(23, "Ida"))),
        ({"text": [], "answer_start": []}, ()),
    ],
)
def test_answers(cell: Any, wanted: tuple[AnswerSpan, ...]) -> None:
    assert parse_answers_in_context(cell, CONTEXT) == wanted


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
    with pytest.raises(CellError) as caught:
        parse_answers_in_context(cell, CONTEXT)
    assert fix in caught.value.fix
