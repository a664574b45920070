"""Tests whether two models differ by more than chance on the same rows.

Shapes: R rows, U distinct differences.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lmtool.arrays import Floats

BOOTSTRAP_SAMPLES = 4000
"""Bootstrap samples of the rows."""

MAX_RANDOM_NUMBERS = 1_000_000
"""Limit of the random numbers in memory."""

SIGNIFICANCE_LEVEL = 0.05
"""p-value below which a difference counts."""


@dataclass(frozen=True)
class PairedComparison:
    """Two models on the same rows.

    source: name of the rows.
    runs: names of the models.
    measure: of each row, the more the better; `means` are over rows.
    interval: of the difference, the second less the first: 95 %, by a bootstrap over rows.
    p: probability that chance makes a difference as large, by McNemar's test where rows are right or wrong, else by
        Wilcoxon's.
    right_alone: rows that only the first and only the second has right, if rows are right or wrong.
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
    def better_run(self) -> str | None:
        """Returns the name of the model that is better by more than chance, or None."""
        low, high = self.interval
        return self.runs[low > 0] if self.p < SIGNIFICANCE_LEVEL and (low > 0 or high < 0) else None

    def to_json(self) -> dict[str, Any]:
        """Returns all results by name."""
        return asdict(self) | {"difference": self.means[1] - self.means[0], "better": self.better_run}

    def format_lines(self) -> list[str]:
        """Returns all results as lines of text."""
        (one, other), (first, second), (low, high) = self.runs, self.means, self.interval
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        test = "Wilcoxon's test"
        if self.right_alone is not None:
            test = f"McNemar's test; right alone: {one} {self.right_alone[0]:,}, {other} {self.right_alone[1]:,}"
        better = f"{self.better_run} is better, by more than chance"
        return [
            f"{self.source}, {rows}: {self.measure} {first:.4f} of {one}, {second:.4f} of {other}",
            f"  difference {second - first:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}",
            f"  p {self.p:.3g} by {test}",
            f"  {better if self.better_run else f'no difference that {rows} can show'}",
        ]


def compare_paired_scores(
    source: str, runs: tuple[str, str], measure: str, scores: tuple[Floats, Floats]
) -> PairedComparison:
    """Compares two models by their scores of the same rows, (R,) each; if all are 0 or 1, rows are wrong or right."""
    first_R, second_R = scores
    difference_R = second_R - first_R
    alone = None
    if np.isin(scores, (0, 1)).all():
        alone = int((difference_R < 0).sum()), int((difference_R > 0).sum())
    p = _wilcoxon_p_value(difference_R) if alone is None else mcnemar_p_value(*alone)
    means = float(first_R.mean()), float(second_R.mean())
    return PairedComparison(source, runs, measure, len(first_R), means, bootstrap_mean_interval(difference_R), p, alone)


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Returns the exact two-sided p-value of McNemar's test (1947), from the rows that only one model has right."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def _wilcoxon_p_value(difference_R: Floats) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test (1945)."""
    from scipy.stats import wilcoxon

    return float(wilcoxon(difference_R).pvalue) if difference_R.any() else 1.0


def bootstrap_mean_interval(value_R: Floats) -> tuple[float, float]:
    """Returns the 95 % interval of a mean over rows, by percentiles of a bootstrap (Efron 1979)."""
    value_U, count_U = np.unique(value_R, return_counts=True)
    rng, n, size = np.random.default_rng(0), len(value_R), max(1, MAX_RANDOM_NUMBERS // len(value_U))
    # how often a draw of rows has each distinct value is multinomial
    counts = (
        rng.multinomial(n, count_U / n, min(size, BOOTSTRAP_SAMPLES - done))
        for done in range(0, BOOTSTRAP_SAMPLES, size)
    )
    low, high = np.quantile(np.concatenate([of_draws @ value_U for of_draws in counts]) / n, (0.025, 0.975)).tolist()
    return low, high
