"""Standard errors and intervals against repeated draws of rows, and against scipy."""

import numpy as np
import pytest
from scipy.stats import binomtest, pearsonr

from lmtool.runs.uncertainty import are_indistinguishable_scores, confidence_interval_95, standard_error


@pytest.mark.parametrize(("p", "n"), [(0.5, 10), (0.8, 40), (0.95, 300), (0.95, 10)])
def test_a_share_varies_as_its_error_and_interval_say(p: float, n: int) -> None:
    """19 of 20 intervals hold the true share, and those of counts are near Wilson's."""
    right = np.random.default_rng(0).binomial(n, p, 4000)
    errors, inside = [], 0
    for k in right.tolist():
        low, high = confidence_interval_95("accuracy", k / n, n) or (1.0, 0.0)
        inside += low <= p <= high
        errors.append(standard_error("accuracy", k / n, n) or 0.0)
    assert 0.93 < inside / len(right) <= 1
    assert 0.8 < np.mean(errors) / (right / n).std() < 1.6
    for k in (0, n // 3, n):
        wilson = binomtest(k, n).proportion_ci(method="wilson")
        assert confidence_interval_95("macro-f1", k / n, n) == pytest.approx((wilson.low, wilson.high), abs=0.07)


def test_a_correlation_varies_as_its_error_says_and_its_interval_is_that_of_scipy() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(2000):
        x = rng.standard_normal(60)
        found.append(float(np.corrcoef(x, 0.6 * x + 0.8 * rng.standard_normal(60))[0, 1]))
    errors = [standard_error("correlation", r, 60) or 0.0 for r in found]
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.2)
    for n in (4, 9, 200):
        x = rng.standard_normal(n)
        plain = pearsonr(x, x + rng.standard_normal(n))
        interval = confidence_interval_95("pearson", float(plain.statistic), n)
        assert interval == pytest.approx(tuple(plain.confidence_interval()))
    assert confidence_interval_95("correlation", 0.5, 3) == (-1, 1)
    assert confidence_interval_95("correlation", 1.0, 30) == pytest.approx((1, 1), abs=1e-6)


def test_the_error_falls_with_the_rows_and_is_never_zero() -> None:
    errors = [standard_error("accuracy", 1.0, n) or 0.0 for n in (1, 12, 100, 10_000)]
    assert min(errors) > 0
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(
    ("metric", "value", "n"),
    [("accuracy", 0.5, 0), ("accuracy", 1.5, 12), ("loss", 1.3, 12), ("bleu", 30.0, 12), ("mse", 0.2, 12)],
)
def test_other_figures_have_no_error(metric: str, value: float, n: int) -> None:
    assert standard_error(metric, value, n) is None
    assert confidence_interval_95(metric, value, n) is None


@pytest.mark.parametrize(
    ("metric", "one", "other", "expected"),
    [
        ("accuracy", (0.75, 12), (0.5, 12), True),
        ("accuracy", (1.0, 12), (0.9167, 12), True),
        ("accuracy", (0.75, 1200), (0.5, 4), True),
        ("accuracy", (0.751, 1200), (0.75, 1200), True),
        ("accuracy", (0.75, 1200), (0.5, 1200), False),
        ("loss", (0.75, 12), (0.5, 12), False),
    ],
)
def test_few_rows_do_not_distinguish_figures(
    metric: str, one: tuple[float, int], other: tuple[float, int], expected: bool
) -> None:
    assert are_indistinguishable_scores(metric, one, other) == expected
