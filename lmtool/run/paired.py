"""Whether two models differ by more than chance, on the same rows.

Shapes: R rows, U distinct differences.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 4000
"""Draws of rows of a bootstrap."""

AT_ONCE = 1_000_000
"""Random numbers in memory."""

LEVEL = 0.05
"""Probability that chance alone makes such a difference, below which it is one."""


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows.

    source: the rows.
    runs: names of the models.
    measure: of each row, the more the better; `means` are over rows.
    interval: of the difference, the second less the first: 95 %, by a bootstrap over rows.
    p: probability that chance makes a difference as large, by McNemar's test where rows are right or wrong, else by
        Wilcoxon's.
    right_alone: rows that only the first and that only the second has right, where they are right or wrong.
    """

    source: str
    runs: tuple[str, str]
    measure: str
    rows: int
    means: tuple[float, float]
    interval: tuple[float, float]
    p: float
    right_alone: tuple[int, int] | None

    @property
    def better(self) -> str | None:
        """The model that is better by more than chance, if one is."""
        low, high = self.interval
        return self.runs[low > 0] if self.p < LEVEL and (low > 0 or high < 0) else None

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON."""
        return asdict(self) | {"difference": self.means[1] - self.means[0], "better": self.better}

    def lines(self) -> list[str]:
        """All results as text lines."""
        (one, other), (first, second), (low, high) = self.runs, self.means, self.interval
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        test = "Wilcoxon's test"
        if self.right_alone is not None:
            test = f"McNemar's test; right alone: {one} {self.right_alone[0]:,}, {other} {self.right_alone[1]:,}"
        better = f"{self.better} is better, by more than chance"
        return [
            f"{self.source}, {rows}: {self.measure} {first:.4f} of {one}, {second:.4f} of {other}",
            f"  difference {second - first:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}",
            f"  p {self.p:.3g} by {test}",
            f"  {better if self.better else f'no difference that {rows} can show'}",
        ]


def compare(source: str, runs: tuple[str, str], measure: str, scores: tuple[Floats, Floats]) -> Comparison:
    """Compare two models by their scores of the same rows, (R,) each; where all are 0 or 1, rows are wrong or right."""
    first_R, second_R = scores
    difference_R = second_R - first_R
    alone = None
    if np.isin(scores, (0, 1)).all():
        alone = int((difference_R < 0).sum()), int((difference_R > 0).sum())
    p = _wilcoxon(difference_R) if alone is None else mcnemar(*alone)
    means = float(first_R.mean()), float(second_R.mean())
    return Comparison(source, runs, measure, len(first_R), means, bootstrap_interval(difference_R), p, alone)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test (1947): a binomial of the rows that only one of two models has right."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def _wilcoxon(difference_R: Floats) -> float:
    """The two-sided p of Wilcoxon's signed-rank test (1945)."""
    from scipy.stats import wilcoxon

    return float(wilcoxon(difference_R).pvalue) if difference_R.any() else 1.0


def bootstrap_interval(value_R: Floats, seed: int = 0) -> tuple[float, float]:
    """95 % interval of a mean over rows, by percentiles of a bootstrap over them (Efron 1979)."""
    value_U, count_U = np.unique(value_R, return_counts=True)
    rng, n, size = np.random.default_rng(seed), len(value_R), max(1, AT_ONCE // len(value_U))
    # how often a draw of rows has each distinct value is multinomial
    counts = (rng.multinomial(n, count_U / n, min(size, DRAWS - done)) for done in range(0, DRAWS, size))
    low, high = np.quantile(np.concatenate([of_draws @ value_U for of_draws in counts]) / n, (0.025, 0.975)).tolist()
    return low, high
