"""Confident learning beside a plain reference; intervals; features."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from lmtool.labelling import learning
from tests.reference import confident


def drawn(seed: int, n: int, n_classes: int) -> tuple[Any, Any]:
    """Probabilities, and labels that are mostly the most probable class; each class occurs."""
    rng = np.random.default_rng(seed)
    p_NC = rng.dirichlet(np.full(n_classes, 0.4), n)
    label_N = np.where(rng.random(n) < 0.7, p_NC.argmax(1), rng.integers(n_classes, size=n))
    label_N[:n_classes] = np.arange(n_classes)
    return p_NC, label_N


def issues(p_NC: Any, label_N: Any) -> dict[int, int]:
    target_NC = np.eye(p_NC.shape[1])[label_N]
    better_N = learning.suggested(p_NC, target_NC, False).argmax(1)
    return {int(i): int(better_N[i]) for i in np.flatnonzero(better_N != label_N)}


@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(2, 5))
def test_confident_learning_is_that_of_the_reference(seed: int, n: int, n_classes: int) -> None:
    p_NC, label_N = drawn(seed, n, n_classes)
    assert issues(p_NC, label_N) == confident.issues(p_NC.tolist(), label_N.tolist())


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_of_several_labels_each_is_judged_for_itself(seed: int, n_labels: int) -> None:
    rng = np.random.default_rng(seed)
    p_NC = rng.random((30, n_labels))
    target_NC = (rng.random((30, n_labels)) < p_NC).astype(float)
    better_NC = learning.suggested(p_NC, target_NC, True)
    for c in range(n_labels):
        pairs = np.stack([1 - p_NC[:, c], p_NC[:, c]], 1).tolist()
        wanted = confident.issues(pairs, target_NC[:, c].astype(int).tolist())
        assert {int(i): int(better_NC[i, c]) for i in np.flatnonzero(better_NC[:, c] != target_NC[:, c])} == wanted


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_intervals_are_those_of_wilson(counts: tuple[int, int]) -> None:
    right, n = counts
    wanted = binomtest(right, n).proportion_ci(method="wilson")
    assert learning.wilson(right, n) == pytest.approx((wanted.low, wanted.high), abs=1e-4)


@pytest.mark.parametrize("multi", [False, True])
def test_classes_without_answers_are_never_predicted(multi: bool) -> None:
    rng = np.random.default_rng(0)
    known_NF, target_NC = rng.normal(size=(12, 3)), np.zeros((12, 4))
    target_NC[:6, 1] = target_NC[6:, 3] = 1
    p_NC = learning.probabilities(known_NF, target_NC, known_NF, multi)
    assert not p_NC[:, [0, 2]].any()
    assert (p_NC[:, [1, 3]] > 0).all()
    if not multi:
        assert p_NC.sum(1) == pytest.approx(1)


def test_a_row_is_predicted_without_its_answer() -> None:
    """A model that had seen it would know the class of each row, all of which are alone."""
    known_NF = np.eye(40)
    target_NC = np.eye(2)[np.arange(40) % 2]
    sure = learning.probabilities(known_NF, target_NC, known_NF, False)
    assert (sure.argmax(1) == target_NC.argmax(1)).all()
    assert (learning.out_of_fold(known_NF, target_NC, False) * target_NC).sum(1).max() < 0.6


def test_the_least_sure_rows_come_first() -> None:
    p_QC = np.array([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.5, 0.1, 0.4], [0.34, 0.33, 0.33]])
    assert learning.doubtful(p_QC, False).tolist() == [3, 1, 2, 0]
    assert learning.doubtful(p_QC, True).tolist() == [2, 1, 3, 0]


def test_the_first_rows_are_different() -> None:
    """Of three groups of equal rows, one of which is large, one of each."""
    row_QF = np.repeat(np.eye(3), [96, 2, 2], axis=0)
    assert {int(row_QF[i].argmax()) for i in learning.different(row_QF, 3)} == {0, 1, 2}


def test_features_of_many_rows_have_no_words_of_one_row() -> None:
    texts = [f"word{i} common" for i in range(learning.MANY + 1)]
    assert learning.features_of(texts, None).shape == (learning.MANY + 1, 1)
    assert learning.features_of(texts[:10], None).shape == (10, 21)
