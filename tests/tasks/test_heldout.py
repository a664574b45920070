"""What held-out rows decide: temperatures and thresholds, which equal those of tests/reference, and harm nothing."""

import math

import numpy as np
import pytest

from lmtool.tasks.classification import LOG_TEMPERATURE_STD, MIN_MISTAKES, fit_temperature_with_prior
from lmtool.tasks.multi_label import DEFAULT_THRESHOLD, MIN_THRESHOLD_ROWS, find_threshold_of_best_f1, fit_f1_thresholds
from tests.reference import calibrated as reference


def classes(n_rows, temperature, seed=0, n_classes=3, scale=2.0):
    """Scores of rows that are calibrated once they are divided by a temperature, and the true classes."""
    rng = np.random.default_rng(seed)
    scores_RC = rng.normal(size=(n_rows, n_classes)) * scale
    p_RC = np.exp(scores_RC) / np.exp(scores_RC).sum(1, keepdims=True)
    true_R = (p_RC.cumsum(1) > rng.random((n_rows, 1))).argmax(1)
    return scores_RC * temperature, true_R


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.8, 4.0])
def test_the_temperature_is_that_of_the_reference_and_lowers_the_loss_of_other_rows(temperature):
    scores_RC, true_R = classes(400, temperature)
    found = fit_temperature_with_prior(scores_RC, true_R)
    assert found == pytest.approx(
        reference.temperature(scores_RC.tolist(), true_R.tolist(), LOG_TEMPERATURE_STD), rel=1e-4
    )
    assert found == pytest.approx(temperature, rel=0.3)
    others = [part.tolist() for part in classes(2000, temperature, seed=1)]
    assert reference.log_loss(*others, found) < reference.log_loss(*others, 1.0)


def test_there_is_no_temperature_below_1_without_enough_errors():
    """Of rows that are all right the loss is least at a temperature of 0, and the first error costs without end."""
    scores_RC, true_R = classes(1000, 0.5)
    right_R = scores_RC.argmax(1) == true_R
    few = np.flatnonzero(~right_R)[: MIN_MISTAKES - 1]
    kept = np.concatenate((np.flatnonzero(right_R), few))
    assert fit_temperature_with_prior(scores_RC[kept], true_R[kept]) == 1.0
    kept = np.concatenate((np.flatnonzero(right_R), np.flatnonzero(~right_R)[:MIN_MISTAKES]))
    assert fit_temperature_with_prior(scores_RC[kept], true_R[kept]) < 0.5


@pytest.mark.parametrize("n_rows", [8, 16])
def test_a_few_rows_tell_that_a_model_is_far_too_sure(n_rows):
    others = [part.tolist() for part in classes(300, 5.0, seed=999)]
    before = reference.log_loss(*others, 1.0)
    gains = [
        before - reference.log_loss(*others, fit_temperature_with_prior(*classes(n_rows, 5.0, seed)))
        for seed in range(40)
    ]
    assert np.mean(gains) > before / 4


def test_a_temperature_is_near_1_where_none_is_needed():
    logs = np.log([fit_temperature_with_prior(*classes(60, 1.0, seed)) for seed in range(100)])
    assert abs(logs.mean()) < 0.05
    assert logs.std() < 0.2


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.4, 3.0])
def test_few_rows_harm_no_more_than_they_help(temperature):
    """On average over draws of 20 to 100 rows, the loss of other rows is not above what it was by more than noise."""
    others = [part.tolist() for part in classes(300, temperature, seed=999)]
    before, gains = reference.log_loss(*others, 1.0), []
    for seed in range(60):
        found = fit_temperature_with_prior(*classes((20, 40, 100)[seed % 3], temperature, seed))
        gains.append(before - reference.log_loss(*others, found))
    assert np.mean(gains) > -0.015
    assert min(gains) > -0.15


@pytest.mark.parametrize("seed", range(30))
def test_a_threshold_has_the_highest_f1(seed):
    rng = np.random.default_rng(seed)
    p_R = rng.random(20).round(int(rng.integers(1, 3)))
    true_R = rng.random(20) < p_R
    true_R[0] = True
    found = find_threshold_of_best_f1(p_R, true_R)
    assert reference.f1(p_R.tolist(), true_R.tolist(), found) == reference.best_f1(p_R.tolist(), true_R.tolist())
    assert 0 <= found < 1
    assert found not in p_R[p_R > 0]


def labels(n_rows, rates, shifts, seed=0):
    """Probabilities of labels of these rates, wrong by a shift of their scores, and which labels there are."""
    rng = np.random.default_rng(seed)
    scores_RC = np.log(rates / (1 - rates)) + 2 * rng.normal(size=(n_rows, len(rates)))
    true_RC = rng.random(scores_RC.shape) < 1 / (1 + np.exp(-scores_RC))
    return 1 / (1 + np.exp(-scores_RC - shifts)), true_RC


def test_labels_with_few_rows_share_a_threshold():
    p_RC, true_RC = labels(400, np.array([0.3, 0.2, 0.01]), np.array([-2.0, 1.0, 0.0]))
    n_C = true_RC.sum(0)
    assert n_C[0] > MIN_THRESHOLD_ROWS < n_C[1]
    assert n_C[2] < MIN_THRESHOLD_ROWS
    own = [find_threshold_of_best_f1(p_RC[:, i], true_RC[:, i]) for i in (0, 1)]
    assert fit_f1_thresholds(p_RC, true_RC) == (*own, find_threshold_of_best_f1(p_RC, true_RC))
    assert own[0] < DEFAULT_THRESHOLD < own[1] + 0.2
    p_RC, true_RC = labels(10, np.array([0.2, 0.1]), np.zeros(2))
    assert true_RC.sum() < MIN_THRESHOLD_ROWS
    assert fit_f1_thresholds(p_RC, true_RC) == (DEFAULT_THRESHOLD, DEFAULT_THRESHOLD)


def test_thresholds_raise_f1_on_other_rows():
    rates, shifts = np.array([0.3, 0.2, 0.1, 0.02, 0.01, 0.005]), np.array([-1.0, -2.0, -1.0, -1.0, -2.0, -1.0])

    def macro_f1(p_RC, true_RC, thresholds):
        columns = zip(p_RC.T.tolist(), true_RC.T.tolist(), thresholds, strict=True)
        return np.mean([reference.f1(*column) for column in columns])

    others = labels(5000, rates, shifts, seed=99)
    before = macro_f1(*others, [DEFAULT_THRESHOLD] * len(rates))
    for seed in range(8):
        found = fit_f1_thresholds(*labels(300, rates, shifts, seed))
        assert macro_f1(*others, found) > before + 0.1


def test_the_reference_is_least_at_its_temperature():
    scores, true = [part.tolist() for part in classes(50, 2.0)]
    best = reference.temperature(scores, true, math.inf)
    assert all(
        reference.log_loss(scores, true, best) <= reference.log_loss(scores, true, best * math.exp(step))
        for step in (-0.5, -0.01, 0.01, 0.5)
    )
