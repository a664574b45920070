"""What held-out rows decide: temperatures and thresholds, which equal those of tests/reference, and harm nothing."""

from typing import Any, cast

import numpy as np
import pytest

from lmtool.arrays import Floats
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks import multi_label
from lmtool.tasks.classification import LOG_TEMPERATURE_STD, MIN_MISTAKES, fit_temperature_with_prior
from lmtool.tokenization.prompt_format import PromptFormat
from tests.reference import calibrated as reference


def classes(n_rows: int, temperature: float, seed: int = 0) -> tuple[Floats, Any]:
    """Scores of rows that are calibrated once they are divided by a temperature, and the true classes."""
    rng = np.random.default_rng(seed)
    scores_RC = rng.normal(size=(n_rows, 3)) * 2
    p_RC = np.exp(scores_RC) / np.exp(scores_RC).sum(1, keepdims=True)
    true_R = (p_RC.cumsum(1) > rng.random((n_rows, 1))).argmax(1)
    return scores_RC * temperature, true_R


def gains(temperature: float, sizes: tuple[int, ...], seeds: int) -> list[float]:
    """By how much temperatures that few rows tell lower the loss of other rows."""
    others_RC, true_R = (part.tolist() for part in classes(300, temperature, seed=999))
    before = reference.log_loss(others_RC, true_R, 1.0)
    found = (fit_temperature_with_prior(*classes(sizes[i % len(sizes)], temperature, i)) for i in range(seeds))
    return [before - reference.log_loss(others_RC, true_R, one) for one in found]


@pytest.mark.parametrize("temperature", [0.3, 1.8, 4.0])
def test_the_temperature_is_that_of_the_reference_and_lowers_the_loss_of_other_rows(temperature: float) -> None:
    scores_RC, true_R = classes(400, temperature)
    found = fit_temperature_with_prior(scores_RC, true_R)
    wanted = reference.temperature(scores_RC.tolist(), true_R.tolist(), LOG_TEMPERATURE_STD)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found == pytest.approx(temperature, rel=0.3)
    others_RC, others_R = (part.tolist() for part in classes(1000, temperature, seed=1))
    assert reference.log_loss(others_RC, others_R, found) < reference.log_loss(others_RC, others_R, 1.0)


def test_there_is_no_temperature_below_1_without_enough_errors() -> None:
    """Of rows that are all right the loss is least at a temperature of 0, and the first error costs without end."""
    scores_RC, true_R = classes(1000, 0.5)
    right_R = scores_RC.argmax(1) == true_R
    for n_wrong, least, most in ((MIN_MISTAKES - 1, 1.0, 1.0), (MIN_MISTAKES, 0.0, 0.5)):
        kept = np.concatenate((np.flatnonzero(right_R), np.flatnonzero(~right_R)[:n_wrong]))
        assert least <= fit_temperature_with_prior(scores_RC[kept], true_R[kept]) <= most


def test_a_few_rows_tell_that_a_model_is_far_too_sure() -> None:
    others_RC, true_R = (part.tolist() for part in classes(300, 5.0, seed=999))
    assert np.mean(gains(5.0, (8,), 40)) > reference.log_loss(others_RC, true_R, 1.0) / 4


def test_a_temperature_is_near_1_where_none_is_needed() -> None:
    logs = np.log([fit_temperature_with_prior(*classes(60, 1.0, seed)) for seed in range(100)])
    assert abs(logs.mean()) < 0.05
    assert logs.std() < 0.2


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_few_rows_harm_no_more_than_they_help(temperature: float) -> None:
    """On average over draws of 20 to 100 rows, the loss of other rows is not above what it was by more than noise."""
    found = gains(temperature, (20, 40, 100), 60)
    assert np.mean(found) > -0.015
    assert min(found) > -0.15


@pytest.mark.parametrize("seed", range(10))
def test_a_threshold_has_the_highest_f1(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p_R = rng.random(20).round(1 + seed % 2)
    true_R = rng.random(20) < p_R
    true_R[0] = True
    found = multi_label.find_threshold_of_best_f1(p_R, true_R)
    assert reference.f1(p_R.tolist(), true_R.tolist(), found) == reference.best_f1(p_R.tolist(), true_R.tolist())
    assert 0 <= found < 1
    assert found not in p_R[p_R > 0]


def labels(n_rows: int, rates: Any, shifts: Any, seed: int = 0) -> tuple[Floats, Any]:
    """Probabilities of labels of these rates, wrong by a shift of their scores, and which labels there are."""
    rng = np.random.default_rng(seed)
    scores_RC = np.log(rates / (1 - rates)) + 2 * rng.normal(size=(n_rows, len(rates)))
    true_RC = rng.random(scores_RC.shape) < 1 / (1 + np.exp(-scores_RC))
    return 1 / (1 + np.exp(-scores_RC - shifts)), true_RC


def test_labels_with_few_rows_share_a_threshold() -> None:
    p_RC, true_RC = labels(400, np.array([0.3, 0.2, 0.01]), np.array([-2.0, 1.0, 0.0]))
    assert (true_RC.sum(0) > multi_label.MIN_THRESHOLD_ROWS).tolist() == [True, True, False]
    own = [multi_label.find_threshold_of_best_f1(p_RC[:, i], true_RC[:, i]) for i in (0, 1)]
    assert multi_label.fit_f1_thresholds(p_RC, true_RC) == (*own, multi_label.find_threshold_of_best_f1(p_RC, true_RC))
    assert own[0] < multi_label.DEFAULT_THRESHOLD < own[1] + 0.2
    p_RC, true_RC = labels(10, np.array([0.2, 0.1]), np.zeros(2))
    assert true_RC.sum() < multi_label.MIN_THRESHOLD_ROWS
    assert multi_label.fit_f1_thresholds(p_RC, true_RC) == (
        multi_label.DEFAULT_THRESHOLD,
        multi_label.DEFAULT_THRESHOLD,
    )


def test_thresholds_raise_f1_on_other_rows() -> None:
    rates, shifts = np.array([0.3, 0.2, 0.1, 0.02, 0.01, 0.005]), np.array([-1.0, -2.0, -1.0, -1.0, -2.0, -1.0])
    others_RC, true_RC = labels(5000, rates, shifts, seed=99)

    def macro_f1(thresholds: tuple[float, ...]) -> float:
        columns = zip(others_RC.T.tolist(), true_RC.T.tolist(), thresholds, strict=True)
        return float(np.mean([reference.f1(*column) for column in columns]))

    before = macro_f1((multi_label.DEFAULT_THRESHOLD,) * len(rates))
    for seed in range(8):
        assert macro_f1(multi_label.fit_f1_thresholds(*labels(300, rates, shifts, seed))) > before + 0.1


def test_probabilities_of_any_scores_are_sigmoids() -> None:
    """Also of scores so far from 0 that their exponential is infinite, as on a table that is learnt exactly."""
    spec = Classification(kind="classification", task="multi", labels=("x", "y"))
    task = multi_label.MultiLabelTask(cast(PromptFormat, None), spec)
    p_RC = task.compute_probabilities(np.array([[-2000.0, 2000.0], [0.0, np.log(3)]]))
    assert p_RC.tolist() == [[0, 1], [0.5, pytest.approx(0.75)]]
