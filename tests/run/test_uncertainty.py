"""Standard errors against what repeated draws of rows vary by."""

import numpy as np
import pytest
from scipy.stats import binomtest, pearsonr

from lmtool.run.uncertainty import are_equivalent, confidence_interval, standard_error


@pytest.mark.parametrize("n", [12, 50, 1000])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_the_error_of_a_share_is_how_far_it_varies(n: int, p: float) -> None:
    right = np.random.default_rng(0).binomial(n, p, 20_000) / n
    errors = [standard_error("accuracy", float(share), n) or 0.0 for share in right]
    assert 0.8 < np.mean(errors) / right.std() < 1.6


def test_the_error_of_a_correlation_is_how_far_it_varies() -> None:
    rng, n = np.random.default_rng(0), 60
    found = []
    for _ in range(2000):
        x = rng.standard_normal(n)
        found.append(np.corrcoef(x, 0.6 * x + 0.8 * rng.standard_normal(n))[0, 1])
    errors = [standard_error("correlation", float(r), n) or 0.0 for r in found]
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.2)


def test_the_error_falls_with_the_rows_and_is_never_zero() -> None:
    errors = [standard_error("accuracy", 1.0, n) for n in (1, 12, 100, 10_000)]
    assert all(error is not None and error > 0 for error in errors)
    assert errors == sorted(errors, reverse=True)
    assert standard_error("accuracy", 0.5, 0) is None
    for metric, value in (("loss", 1.3), ("bleu", 30.0), ("mse", 0.2), ("accuracy", 1.5)):
        assert standard_error(metric, value, 12) is None


def test_few_rows_do_not_tell_figures_apart_and_many_do() -> None:
    assert are_equivalent("accuracy", (0.75, 12), (0.5, 12))
    assert are_equivalent("accuracy", (1.0, 12), (0.9167, 12))
    assert not are_equivalent("accuracy", (0.75, 1200), (0.5, 1200))
    assert are_equivalent("accuracy", (0.75, 1200), (0.5, 4))
    assert are_equivalent("accuracy", (0.751, 1200), (0.75, 1200))
    assert not are_equivalent("loss", (0.75, 12), (0.5, 12))


@pytest.mark.parametrize("n", [10, 40, 300])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_the_interval_of_a_share_has_the_true_one_in_19_of_20_draws(n: int, p: float) -> None:
    right = np.random.default_rng(0).binomial(n, p, 4000)
    inside = 0
    for k in right.tolist():
        low, high = confidence_interval("accuracy", k / n, n) or (1.0, 0.0)
        inside += low <= p <= high
    assert 0.93 < inside / len(right) <= 1


def test_the_interval_of_a_share_is_near_wilsons() -> None:
    for k, n in ((0, 20), (7, 20), (250, 300), (300, 300)):
        wilson = binomtest(k, n).proportion_ci(method="wilson")
        assert confidence_interval("macro-f1", k / n, n) == pytest.approx((wilson.low, wilson.high), abs=0.04)


def test_the_interval_of_a_correlation_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for n in (4, 9, 200):
        x = rng.standard_normal(n)
        found = pearsonr(x, x + rng.standard_normal(n))
        assert confidence_interval("pearson", float(found.statistic), n) == pytest.approx(
            tuple(found.confidence_interval())
        )


def test_what_does_not_follow_from_a_figure_has_no_interval() -> None:
    assert confidence_interval("loss", 1.3, 12) is None
    assert confidence_interval("accuracy", 0.5, 0) is None
    assert confidence_interval("correlation", 0.5, 3) == (-1, 1)
    assert confidence_interval("correlation", 1.0, 30) == pytest.approx((1, 1), abs=1e-6)
