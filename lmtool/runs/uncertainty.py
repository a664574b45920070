"""Standard errors and confidence intervals of metrics on a limited number of rows."""

import math
from statistics import NormalDist

FRACTION_METRICS = ("accuracy", "subset_accuracy", "exact", "f1", "micro_f1", "macro_f1")
"""Metrics that are fractions of rows, or means of numbers from 0 to 1, which vary at most as much."""

CORRELATION_METRICS = ("correlation", "pearson", "spearman")

CROSS_VALIDATION = "cross-validation"
"""Name of the part that has all rows, each scored by a model of the others."""

HELD_OUT_QUARTER = "held-out quarter"
"""Part of the results of a quarter of the rows by a model of the others, if the final model is trained on all rows."""

PARTS_OF_OTHER_MODELS = {
    CROSS_VALIDATION: "each row is scored by a model of other rows; the model that is saved is fitted to all of them",
    HELD_OUT_QUARTER: "scored by a model of the other rows; the one that is saved is trained on all of them, for as "
    "many steps",
}
"""How parts are scored if the final model is trained on all rows."""

N_FOLDS = 5
"""Parts of the rows in cross-validation."""

Z_95 = NormalDist().inv_cdf(0.975)
"""Half width of a 95 % interval in standard errors."""

EQUAL_WITHIN_ERRORS = 2.0
"""Two scores are indistinguishable within this many standard errors of their difference: a level of about 5 %."""


def standard_error(metric: str, value: float, rows: int) -> float | None:
    """Returns the standard error of a metric on `rows` rows; None if it does not follow from the value.

    For fractions that of a binomial with four more rows, half of them right, which is not zero if all rows are right
    (Agresti and Coull 1998); for correlations by normal theory.
    """
    metric = metric.replace("-", "_")
    if rows < 1 or not -1 <= value <= 1:
        return None
    if metric in CORRELATION_METRICS:
        return (1 - value**2 + 1 / rows) / math.sqrt(rows)
    if metric not in FRACTION_METRICS or value < 0:
        return None
    share = (value * rows + 2) / (rows + 4)
    return math.sqrt(share * (1 - share) / (rows + 4))


def effective_sample_size(rows: int, part: str) -> int:
    """Returns the number of rows with equal variance if one model was measured on them. part: as in `Results`.

    The models of cross-validation share most of the rows that they are fitted to: the variance of the mean over k folds
    is 1 / k + 1 / (k - 1) instead of 1 / k times that of a fold (Nadeau and Bengio 2003).
    """
    return round(rows / (1 + N_FOLDS / (N_FOLDS - 1))) if part == CROSS_VALIDATION else rows


def confidence_interval_95(metric: str, value: float, rows: int) -> tuple[float, float] | None:
    """Returns the 95 % interval of a metric on `rows` rows; None if it does not follow from the value.

    For fractions that of Agresti and Coull (1998), around a fraction with four more rows, half of them right; for
    correlations by Fisher's transformation (1921).
    """
    error = standard_error(metric, value, rows)
    if error is None:
        return None
    if metric.replace("-", "_") in CORRELATION_METRICS:
        if rows < 4:
            return -1.0, 1.0
        # 1 itself would be transformed to infinity
        middle, far = math.atanh(value * math.nextafter(1, 0)), Z_95 / math.sqrt(rows - 3)
        return math.tanh(middle - far), math.tanh(middle + far)
    share = (value * rows + 2) / (rows + 4)
    return max(0.0, share - Z_95 * error), min(1.0, share + Z_95 * error)


def are_indistinguishable_scores(metric: str, one: tuple[float, int], other: tuple[float, int]) -> bool:
    """Returns whether two scores, each a value and its rows, differ by no more than chance.

    Scores on the same rows can be distinguished by fewer rows, so this test is conservative.
    """
    error, other_error = standard_error(metric, *one), standard_error(metric, *other)
    if error is None or other_error is None:
        return False
    return abs(one[0] - other[0]) <= EQUAL_WITHIN_ERRORS * math.hypot(error, other_error)
