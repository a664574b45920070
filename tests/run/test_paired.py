"""Two models on the same rows, against scipy and plain loops."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from lmtool.run import paired
from lmtool.run.paired import bootstrap_interval, compare, mcnemar, sign_flip_test


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


def test_sign_flips_are_all_signs_of_few_rows() -> None:
    values = np.array([0.3, -0.1, 0.3, 0.7, -0.2, 0.05, 0.3, 0.4])
    sums = [
        math.fsum(s * v for s, v in zip(signs, values, strict=True)) for signs in itertools.product((-1, 1), repeat=8)
    ]
    exact = sum(abs(total) >= abs(values.sum()) - 1e-12 for total in sums) / len(sums)
    assert sign_flip_test(values) == pytest.approx(exact, abs=0.01)


def test_sign_flips_of_right_and_wrong_rows_are_mcnemars_test() -> None:
    values = np.array([1.0] * 14 + [-1.0] * 5 + [0.0] * 60)
    assert sign_flip_test(values) == pytest.approx(mcnemar(5, 14), abs=0.01)


def test_chance_makes_a_difference_in_one_table_of_twenty_at_most() -> None:
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(300):
        first, second = rng.random((2, 60)) < 0.7
        told += compare("t", ("a", "b"), "accuracy", (first.astype(float), second.astype(float))).better is not None
    assert told / 300 <= 0.06


def test_memory_does_not_grow_with_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal(500)
    whole = sign_flip_test(values)
    monkeypatch.setattr(paired, "AT_ONCE", 2000)
    asked: list[int] = []
    monkeypatch.setattr(paired, "MOST", 500 * 1200)

    def draw(size: int) -> np.ndarray:
        asked.append(size)
        return np.zeros(size)

    assert len(paired._drawn(500, draw)) == 1200
    assert set(asked) == {4}
    assert sign_flip_test(values) == pytest.approx(whole, abs=0.05)


def test_the_better_of_two_is_told_only_beyond_chance() -> None:
    first, second = np.zeros(300), np.zeros(300)
    first[:250] = second[2:251] = 1
    alike = compare("t.csv", ("a", "b"), "accuracy", (first, second))
    assert alike.better is None
    assert alike.lines()[-1].strip() == "no difference that 300 rows can show"
    assert alike.alone == (2, 1)
    second[:] = 1
    told = compare("t.csv", ("a", "b"), "accuracy", (first, second))
    assert told.better == "b"
    assert told.low <= 50 / 300 <= told.high
    assert told.record()["difference"] == pytest.approx(50 / 300)


def test_less_error_is_better() -> None:
    rng = np.random.default_rng(0)
    first = rng.random(200)
    compared = compare("t", ("a", "b"), "absolute error", (first, first / 2), lower_is_better=True)
    assert (compared.alone, compared.better) == (None, "b")
    assert "sign-flip" in compared.lines()[1]


def test_few_rows_show_nothing_even_where_all_agree() -> None:
    assert compare("t", ("a", "b"), "chrF", (np.zeros(3), np.ones(3) * 9.5)).better is None
    assert compare("t", ("a", "b"), "accuracy", (np.zeros(4), np.ones(4))).better is None
