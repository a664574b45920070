"""Whether two models differ by more than chance, on the same rows.

Shapes: R rows, U distinct differences, N draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 10_000
"""Draws of a bootstrap or a test."""

MOST = 20_000_000
"""Random numbers of all draws, of which there are fewer where many differences are distinct; but a tenth at least."""

AT_ONCE = 1_000_000
"""Random numbers in memory."""

LEVEL = 0.05
"""Probability that chance alone makes such a difference, below which it is one."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows of a table.

    names: of the models. measure: of each row, whose mean over rows each of `means` is. low, high: 95 % interval of the
    difference, the second less the first, by a bootstrap over rows. p: probability that a difference as large is of
    chance; by McNemar's test where rows are right or wrong, else by a sign-flip test. alone: rows that only the first
    and that only the second has right, where they are right or wrong.
    """

    source: str
    names: tuple[str, str]
    measure: str
    rows: int
    means: tuple[float, float]
    low: float
    high: float
    p: float
    alone: tuple[int, int] | None
    lower_is_better: bool = False

    @property
    def better(self) -> str | None:
        """The model that is better by more than chance, if one is."""
        if self.p >= LEVEL or self.low <= 0 <= self.high:
            return None
        return self.names[int((self.means[1] > self.means[0]) != self.lower_is_better)]

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON."""
        first, second = self.means
        return {
            "source": self.source,
            "runs": list(self.names),
            "measure": self.measure,
            "rows": self.rows,
            "means": [first, second],
            "difference": second - first,
            "interval": [self.low, self.high],
            "test": "sign flips" if self.alone is None else "McNemar",
            "p": self.p,
            "right_alone": None if self.alone is None else list(self.alone),
            "better": self.better,
        }

    def lines(self) -> list[str]:
        """All results as text lines."""
        (one, other), (first, second) = self.names, self.means
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        test = "sign-flip test"
        if self.alone is not None:
            test = f"McNemar's test: only {one} has {self.alone[0]:,} rows right, only {other} {self.alone[1]:,}"
        verdict = f"no difference that {rows} can show"
        if self.better is not None:
            verdict = f"{self.better} is better, by more than chance"
        return [
            f"{self.source}, {rows}: {self.measure} {first:.4f} of {one}, {second:.4f} of {other}",
            f"  difference {second - first:+.4f}, 95 % interval {self.low:+.4f} to {self.high:+.4f}; p {self.p:.3g} by {test}",
            f"  {verdict}",
        ]


def compare(
    source: str, names: tuple[str, str], measure: str, scores: tuple[Floats, Floats], *, lower_is_better: bool = False
) -> Comparison:
    """Compare two models by their scores of the same rows, (R,) each; scores of 0 and 1 are rows wrong and right."""
    first_R, second_R = scores
    difference_R = second_R - first_R
    low, high = bootstrap_interval(difference_R)
    alone = None
    if np.isin(np.concatenate(scores), (0, 1)).all():
        alone = int((difference_R < 0).sum()), int((difference_R > 0).sum())
    p = sign_flip_test(difference_R) if alone is None else mcnemar(*alone)
    means = float(first_R.mean()), float(second_R.mean())
    return Comparison(source, names, measure, len(first_R), means, low, high, p, alone, lower_is_better)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test (1947): a binomial of the rows that only one of two models has right."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def bootstrap_interval(value_R: Floats, seed: int = 0) -> tuple[float, float]:
    """95 % interval of a mean over rows, by percentiles of a bootstrap over them (Efron 1979)."""
    value_U, count_U = np.unique(value_R, return_counts=True)
    rng, n = np.random.default_rng(seed), len(value_R)
    # how often a draw of rows has each distinct value is multinomial
    mean_N = _drawn(len(value_U), lambda size: rng.multinomial(n, count_U / n, size) @ value_U / n)
    low, high = np.quantile(mean_N, (0.025, 0.975)).tolist()
    return low, high


def sign_flip_test(value_R: Floats, seed: int = 0) -> float:
    """The two-sided p of a mean over rows that is 0 where signs are of chance (Fisher 1935), by random signs."""
    value_U, count_U = np.unique(np.abs(value_R), return_counts=True)
    rng, least = np.random.default_rng(seed), abs(value_R.sum()) * (1 - 1e-9)
    # of equal absolute values only the number with a plus counts
    sum_N = _drawn(
        len(value_U), lambda size: (2 * rng.binomial(count_U, 0.5, (size, len(count_U))) - count_U) @ value_U
    )
    return float((1 + (np.abs(sum_N) >= least).sum()) / (1 + len(sum_N)))


def _drawn(width: int, draw: Callable[[int], Floats]) -> Floats:
    """What `draw` gives of many draws, a bounded number at once. width: random numbers of each."""
    n = max(DRAWS // 10, min(DRAWS, MOST // width))
    size = max(1, AT_ONCE // width)
    return np.concatenate([draw(min(size, n - start)) for start in range(0, n, size)])
