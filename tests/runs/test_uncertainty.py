"""Standard errors, intervals and the comparison of two models against repeated draws of rows, and against scipy."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, pearsonr, wilcoxon

from lmtool.runs import paired
from lmtool.runs.paired import bootstrap_mean_interval, compare_paired_scores, mcnemar_p_value
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


@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (5, 0), (3, 9), (12, 10), (400, 340)])
def test_mcnemar_is_the_binomial_test_of_the_discordant_rows(pair: tuple[int, int]) -> None:
    expected = binomtest(min(pair), sum(pair), 0.5).pvalue if sum(pair) else 1.0
    assert mcnemar_p_value(*pair) == pytest.approx(expected)
    assert mcnemar_p_value(*pair[::-1]) == mcnemar_p_value(*pair)


@pytest.mark.parametrize("kind", ["right or wrong", "numbers"])
def test_the_interval_is_that_of_resampled_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-1, 2, 120).astype(float) if kind == "right or wrong" else rng.standard_normal(120) ** 2
    plain = bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", random_state=1).confidence_interval
    interval = bootstrap_mean_interval(values)
    assert interval == pytest.approx((plain.low, plain.high), abs=0.03 * (plain.high - plain.low))
    monkeypatch.setattr(paired, "MAX_RANDOM_NUMBERS", 2000)
    tracemalloc.start()
    assert bootstrap_mean_interval(values) == pytest.approx(interval)  # in parts, in little memory
    assert tracemalloc.get_traced_memory()[1] < 120 * paired.BOOTSTRAP_SAMPLES
    tracemalloc.stop()


def test_a_difference_is_found_where_there_is_one_and_by_chance_in_one_table_of_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paired, "BOOTSTRAP_SAMPLES", 1000)
    rng = np.random.default_rng(0)
    n_inside = n_found = 0
    for _ in range(300):
        low, high = bootstrap_mean_interval(rng.choice([-1.0, 0.0, 1.0], 200, p=[0.1, 0.7, 0.2]))
        n_inside += low <= 0.1 <= high
        scores = (rng.random((2, 60)) < 0.7).astype(float)
        n_found += compare_paired_scores("t", ("a", "b"), "accuracy", (scores[0], scores[1])).better_run is not None
    assert 0.91 < n_inside / 300 < 0.98
    assert n_found / 300 <= 0.06


def test_a_run_is_better_only_beyond_chance() -> None:
    first, second = np.zeros(300), np.zeros(300)
    first[:250] = second[2:251] = 1
    alike = compare_paired_scores("t.csv", ("a", "b"), "accuracy", (first, second))
    assert (alike.better_run, alike.right_alone) == (None, (2, 1))
    assert "300 rows" in alike.format_lines()[-1]
    second[:] = 1
    better = compare_paired_scores("t.csv", ("a", "b"), "accuracy", (first, second))
    assert better.better_run == "b"
    assert better.interval[0] <= 50 / 300 <= better.interval[1]
    assert better.to_json()["difference"] == pytest.approx(50 / 300)


def test_scores_other_than_right_and_wrong_are_tested_by_ranks() -> None:
    rng = np.random.default_rng(0)
    first, noise = rng.random(200), rng.standard_normal(200)
    better = compare_paired_scores("t", ("a", "b"), "chrF", (first, first + 0.3 + 0.5 * noise))
    assert (better.right_alone, better.better_run) == (None, "b")
    assert better.p == pytest.approx(wilcoxon(0.3 + 0.5 * noise).pvalue)
    assert "Wilcoxon" in better.format_lines()[2]
    assert compare_paired_scores("t", ("a", "b"), "chrF", (first, first)).better_run is None
    few = np.array([9.5, 10.5, 11.5, 12.5])
    for metric, wins in (("chrF", few), ("accuracy", np.ones(4))):  # few rows show nothing
        assert compare_paired_scores("t", ("a", "b"), metric, (np.zeros(4), wins)).better_run is None
