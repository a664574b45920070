"""The metrics of answers against plain versions of SQuAD's script."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tables.answers import best_null_threshold, exact_match, word_f1
from tests.reference import annotated

TEXTS = st.text(alphabet="aAnthe .,!-\u2019x1", max_size=12)


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_scores_are_those_of_the_script(predicted: str, answers: list[str]) -> None:
    assert exact_match(predicted, answers) == annotated.squad_exact(predicted, answers)
    assert word_f1(predicted, answers) == pytest.approx(annotated.squad_f1(predicted, answers))


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "f1"),
    [
        ("The brass key.", ["a brass key"], 1, 1),
        ("brass key", ["the key", "the old brass key"], 0, 0.8),
        ("", [], 1, 1),
        ("key", [], 0, 0),
        ("", ["key"], 0, 0),
        ("red red", ["red"], 0, 2 / 3),
    ],
)
def test_scores_by_hand(predicted: str, answers: list[str], exact: int, f1: float) -> None:
    assert exact_match(predicted, answers) == exact
    assert word_f1(predicted, answers) == pytest.approx(f1)


SCORED = st.lists(
    st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]), st.floats(0, 1), st.booleans()), min_size=1, max_size=7
)


@given(SCORED)
def test_no_other_threshold_scores_more(rows: list[tuple[float, float, bool]]) -> None:
    null_scores, scores, has_answer = map(list, zip(*rows, strict=True))

    def total(threshold: float) -> float:
        return math.fsum(
            (score if known else 0.0) if null <= threshold else float(not known)
            for null, score, known in zip(null_scores, scores, has_answer, strict=True)
        )

    found = best_null_threshold(null_scores, scores, has_answer)
    assert total(found) == pytest.approx(max(total(other) for other in (-9.0, *null_scores, 9.0)))


def test_where_all_have_an_answer_all_are_answered() -> None:
    assert best_null_threshold([5.0, -1.0], [0.0, 1.0], [True, True]) == math.inf
