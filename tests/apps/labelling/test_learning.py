"""Confident learning beside a plain reference; probabilities; features."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.apps.labelling import learning
from tests.reference import confident


def drawn(seed: int, n: int, n_classes: int) -> tuple[Any, Any]:
    """Probabilities, and labels that are mostly the most probable class; each class occurs."""
    rng = np.random.default_rng(seed)
    p_NC = rng.dirichlet(np.full(n_classes, 0.4), n)
    label_N = np.where(rng.random(n) < 0.7, p_NC.argmax(1), rng.integers(n_classes, size=n))
    label_N[:n_classes] = np.arange(n_classes)
    return p_NC, label_N


def issues(p_NC: Any, label_N: Any) -> dict[int, int]:
    better_N = learning.suggest_options_by_confident_learning(p_NC[:, None], label_N[:, None])[:, 0]
    return {int(i): int(better_N[i]) for i in np.flatnonzero(better_N != label_N)}


@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(2, 5))
def test_confident_learning_is_that_of_the_reference(seed: int, n: int, n_classes: int) -> None:
    p_NC, label_N = drawn(seed, n, n_classes)
    assert issues(p_NC, label_N) == confident.issues(p_NC.tolist(), label_N.tolist())


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_of_several_labels_each_is_judged_for_itself(seed: int, n_labels: int) -> None:
    rng = np.random.default_rng(seed)
    p_NCK = np.stack([1 - (p_NC := rng.random((30, n_labels))), p_NC], 2)
    target_NC = (rng.random((30, n_labels)) < p_NC).astype(int)
    better_NC = learning.suggest_options_by_confident_learning(p_NCK, target_NC)
    for c in range(n_labels):
        wanted = confident.issues(p_NCK[:, c].tolist(), target_NC[:, c].tolist())
        assert {int(i): int(better_NC[i, c]) for i in np.flatnonzero(better_NC[:, c] != target_NC[:, c])} == wanted


@pytest.mark.parametrize("multi", [False, True])
def test_classes_without_answers_are_never_predicted(multi: bool) -> None:
    rng = np.random.default_rng(0)
    known_NF, class_N = rng.normal(size=(12, 3)), np.repeat([1, 3], 6)
    option_NJ, n_options = (np.eye(4, dtype=int)[class_N], 2) if multi else (class_N[:, None], 4)
    p_NJK = learning.fit_and_predict_probabilities(known_NF, option_NJ, known_NF, n_options)
    p_NC = p_NJK[:, :, 1] if multi else p_NJK[:, 0]
    assert not p_NC[:, [0, 2]].any()
    assert (p_NC[:, [1, 3]] > 0).all()
    assert p_NJK.sum(2) == pytest.approx(1)


def test_a_row_is_predicted_without_its_answer() -> None:
    """A model that had seen it would know the class of each row, all of which are alone."""
    known_NF, option_NJ = np.eye(40), np.arange(40)[:, None] % 2
    sure_NJK = learning.fit_and_predict_probabilities(known_NF, option_NJ, known_NF, 2)
    assert (sure_NJK.argmax(2) == option_NJ).all()
    assert np.take_along_axis(learning.predict_out_of_fold(known_NF, option_NJ, 2), option_NJ[..., None], 2).max() < 0.6


def test_the_least_sure_rows_come_first() -> None:
    p_QC = np.array([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.5, 0.1, 0.4], [0.34, 0.33, 0.33]])
    assert learning.rank_rows_by_margin(p_QC[:, None]).tolist() == [3, 1, 2, 0]
    assert learning.rank_rows_by_margin(np.stack([1 - p_QC, p_QC], 2)).tolist() == [2, 1, 3, 0]


def test_the_first_rows_are_different() -> None:
    """Of three groups of equal rows, one of which is large, one of each."""
    row_QF = np.repeat(np.eye(3), [96, 2, 2], axis=0)
    assert {int(row_QF[i].argmax()) for i in learning.select_diverse_rows(row_QF, 3)} == {0, 1, 2}


def test_features_of_many_rows_have_no_words_of_one_row() -> None:
    texts = [f"word{i} common" for i in range(learning.PAIR_FILTER_ROWS + 1)]
    assert learning.compute_embeddings_or_tfidf(texts, None).shape == (learning.PAIR_FILTER_ROWS + 1, 1)
    assert learning.compute_embeddings_or_tfidf(texts[:10], None).shape == (10, 21)


def test_with_fewer_answers_than_features_the_model_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features = learning.compute_embeddings_or_tfidf(
        [f"{'abcde'[i % 5]} {'fgh'[i % 3]} word{i}" for i in range(60)], None
    )
    known_NF, option_NJ = features[:30], np.arange(30)[:, None] % 3
    narrowed = learning.fit_and_predict_probabilities(known_NF, option_NJ, features, 3)
    dense = learning.fit_and_predict_probabilities(known_NF.toarray(), option_NJ, features.toarray(), 3)
    monkeypatch.setattr(learning, "MAX_PROJECTED_ANSWERS", 0)
    wanted = learning.fit_and_predict_probabilities(known_NF, option_NJ, features, 3)
    assert narrowed == pytest.approx(wanted, abs=1e-3)
    assert dense == pytest.approx(wanted, abs=1e-3)
