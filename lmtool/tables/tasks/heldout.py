"""What held-out rows decide of the answers of a head: the temperature of classes, and the thresholds of labels."""

# R rows, C classes or labels, U different probabilities

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_WRONG = 10
"""Wrong answers from which a temperature may be below 1."""

DEVIATION = 1.0
"""Standard deviation of the logarithm of a temperature, before any row is seen: most are from 1/3 to 3."""

LEAST_ROWS = 20
"""Rows with a label from which it has a threshold of its own."""

HALF = 0.5
"""The threshold where no other is chosen."""


def choose_temperature(scores_RC: Floats, true_R: NDArray[np.int64]) -> float:
    """The most probable temperature (Guo et al. 2017) under a normal prior of its logarithm around 0.

    Errors, which are the same at any temperature, tell most of it: without any it would go to 0. So by too few of them
    it is at least 1.
    """
    from scipy.optimize import minimize_scalar

    def cost(log: float) -> float:
        each_RC = scores_RC / np.exp(log)
        nats = (np.logaddexp.reduce(each_RC, axis=1) - each_RC[np.arange(len(true_R)), true_R]).sum()
        return float(nats + (log / DEVIATION) ** 2 / 2)

    are_few = (scores_RC.argmax(1) != true_R).sum() < LEAST_WRONG
    best = minimize_scalar(cost, bounds=(-3, 3), method="bounded")
    return float(np.exp(max(0.0, best.x) if are_few else best.x))


def choose_thresholds(p_RC: Floats, true_RC: NDArray[np.bool_]) -> tuple[float, ...]:
    """For each label the probability above which it is predicted, with the highest F1.

    Labels of fewer rows than LEAST_ROWS share the threshold with the highest F1 over all rows and labels; HALF, where
    those are too few together.
    """
    common = best_f1_threshold(p_RC, true_RC) if true_RC.sum() >= LEAST_ROWS else HALF
    columns = zip(p_RC.T, true_RC.T, true_RC.sum(0) >= LEAST_ROWS, strict=True)
    return tuple(best_f1_threshold(p_R, true_R) if has_own else common for p_R, true_R, has_own in columns)


def best_f1_threshold(p_RC: Floats, true_RC: NDArray[np.bool_]) -> float:
    """The threshold above which F1 is highest, half way between two probabilities; of equally good ones the highest."""
    p_U, count_U = np.unique(p_RC, return_counts=True)
    n_above_U = count_U[::-1].cumsum()[::-1]
    n_right_U = true_RC.sum() - np.searchsorted(np.sort(p_RC[true_RC]), p_U)
    best = len(p_U) - 1 - int((n_right_U / (n_above_U + true_RC.sum()))[::-1].argmax())
    return float(p_U[best] + (p_U[best - 1] if best else 0)) / 2
