"""How far a figure on so many rows may be from that on all rows there could be."""

import math
from statistics import NormalDist

SHARES = ("accuracy", "subset_accuracy", "exact", "f1", "micro_f1", "macro_f1")
"""Figures that are shares of rows, or means of numbers from 0 to 1, which vary at most as much."""

CORRELATIONS = ("correlation", "pearson", "spearman")

CROSS_VALIDATION = "cross-validation"
"""The part of what is measured on all rows, each by a model of the others."""

FOLDS = 5
"""Parts of the rows, each of which is scored by a model of the others."""

Z = NormalDist().inv_cdf(0.975)
"""Standard errors to either side that a 95 % interval reaches."""

FACTOR = 2.0
"""Standard errors of a difference within which two figures are not told apart: a level of about 5 %."""


def standard_error(metric: str, value: float, rows: int) -> float | None:
    """Standard error of a figure on so many rows; None where it does not follow from the figure.

    Of shares that of a binomial with four more rows, half of them right, which is not zero where all rows are right
    (Agresti and Coull 1998); of correlations by normal theory.
    """
    metric = metric.replace("-", "_")
    if rows < 1 or not -1 <= value <= 1:
        return None
    if metric in CORRELATIONS:
        return (1 - value**2 + 1 / rows) / math.sqrt(rows)
    if metric not in SHARES or value < 0:
        return None
    share = (value * rows + 2) / (rows + 4)
    return math.sqrt(share * (1 - share) / (rows + 4))


def independent_rows(rows: int, part: str) -> int:
    """Rows that would tell as much if one model was measured on them. part: how they were measured, as in `Results`.

    The models of cross-validation share most of the rows that they are fitted to: the variance of the mean over k folds
    is 1 / k + 1 / (k - 1) instead of 1 / k times that of a fold (Nadeau and Bengio 2003).
    """
    return round(rows / (1 + FOLDS / (FOLDS - 1))) if part == CROSS_VALIDATION else rows


def interval(metric: str, value: float, rows: int) -> tuple[float, float] | None:
    """95 % interval of a figure on so many rows; None where it does not follow from the figure.

    Of shares that of Agresti and Coull (1998), around a share with four more rows, half of them right; of correlations
    by Fisher's transformation (1921).
    """
    error = standard_error(metric, value, rows)
    if error is None:
        return None
    if metric.replace("-", "_") in CORRELATIONS:
        if rows < 4:
            return -1.0, 1.0
        # 1 itself would be transformed to infinity
        middle, far = math.atanh(value * math.nextafter(1, 0)), Z / math.sqrt(rows - 3)
        return math.tanh(middle - far), math.tanh(middle + far)
    share = (value * rows + 2) / (rows + 4)
    return max(0.0, share - Z * error), min(1.0, share + Z * error)


def are_alike(metric: str, one: tuple[float, int], other: tuple[float, int]) -> bool:
    """Whether two figures, each a value and its rows, differ by no more than chance might make them.

    Where both are of the same rows they may be told apart by fewer; so this errs on the side of doubt.
    """
    error, other_error = standard_error(metric, *one), standard_error(metric, *other)
    if error is None or other_error is None:
        return False
    return abs(one[0] - other[0]) <= FACTOR * math.hypot(error, other_error)
