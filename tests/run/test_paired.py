"""Two models on the same rows, against scipy and plain loops."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, wilcoxon

from lmtool.run import paired
from lmtool.run.paired import bootstrap_interval, compare, mcnemar


@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (5, 0), (3, 9), (12, 10), (400, 340)])
def test_mcnemar_is_the_binomial_test_of_the_discordant_rows(pair: tuple[int, int]) -> None:
    expected = binomtest(min(pair), sum(pair), 0.5).pvalue if sum(pair) else 1.0
    assert mcnemar(*pair) == pytest.approx(expected)
    assert mcnemar(*pair[::-1]) == mcnemar(*pair)


@pytest.mark.parametrize("kind", ["right or wrong", "numbers"])
def test_the_interval_is_that_of_resampled_rows(kind: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-1, 2, 120).astype(float) if kind == "right or wrong" else rng.standard_normal(120) ** 2
    plain = bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", random_state=1).confidence_interval
    spread = plain.high - plain.low
    assert bootstrap_interval(values) == pytest.approx((plain.low, plain.high), abs=0.03 * spread)
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_the_interval_has_the_true_difference_in_19_of_20_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "DRAWS", 1000)
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        low, high = bootstrap_interval(rng.choice([-1.0, 0.0, 1.0], 200, p=[0.1, 0.7, 0.2]))
        inside += low <= 0.1 <= high
    assert 0.91 < inside / 400 < 0.98


def test_chance_makes_a_difference_in_one_table_of_twenty_at_most() -> None:
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(300):
        first, second = rng.random((2, 60)) < 0.7
        told += compare("t", ("a", "b"), "accuracy", (first.astype(float), second.astype(float))).better is not None
    assert told / 300 <= 0.06


def test_a_bounded_number_of_draws_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal(500)
    whole = bootstrap_interval(values)
    monkeypatch.setattr(paired, "AT_ONCE", 2000)
    tracemalloc.start()
    # the draws that are made, four at once, are the same
    assert bootstrap_interval(values) == pytest.approx(whole)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500 * paired.DRAWS


def test_the_better_of_two_is_told_only_beyond_chance() -> None:
    first, second = np.zeros(300), np.zeros(300)
    first[:250] = second[2:251] = 1
    alike = compare("t.csv", ("a", "b"), "accuracy", (first, second))
    assert alike.better is None
    assert alike.lines()[-1].strip() == "no difference that 300 rows can show"
    assert alike.right_alone == (2, 1)
    second[:] = 1
    told = compare("t.csv", ("a", "b"), "accuracy", (first, second))
    assert told.better == "b"
    assert told.interval[0] <= 50 / 300 <= told.interval[1]
    assert told.record()["difference"] == pytest.approx(50 / 300)


def test_scores_other_than_right_and_wrong_are_tested_by_ranks() -> None:
    rng = np.random.default_rng(0)
    first, noise = rng.random(200), rng.standard_normal(200)
    better = compare("t", ("a", "b"), "chrF", (first, first + 0.3 + 0.5 * noise))
    assert (better.right_alone, better.better) == (None, "b")
    assert better.p == pytest.approx(wilcoxon(0.3 + 0.5 * noise).pvalue)
    assert "Wilcoxon" in better.lines()[2]
    assert compare("t", ("a", "b"), "chrF", (first, first)).better is None


def test_few_rows_show_nothing_even_where_all_agree() -> None:
    assert compare("t", ("a", "b"), "chrF", (np.zeros(4), np.arange(4) + 9.5)).better is None
    assert compare("t", ("a", "b"), "accuracy", (np.zeros(4), np.ones(4))).better is None
