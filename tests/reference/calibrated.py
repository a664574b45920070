"""Temperatures, thresholds and decisions by costs, in loops: slow and plain."""

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def log_loss(scores: Rows, true: Sequence[int], temperature: float) -> float:
    """The mean of -log softmax(scores / temperature) of the true class (Guo et al. 2017)."""
    total = 0.0
    for row, right in zip(scores, true, strict=True):
        largest = max(row) / temperature
        total += largest + math.log(sum(math.exp(z / temperature - largest) for z in row)) - row[right] / temperature
    return total / len(true)


def temperature(scores: Rows, true: Sequence[int], deviation: float) -> float:
    """The one with the least sum of log losses and of log(T)^2 / (2 deviation^2), by golden sections of log(T)."""

    def cost(log: float) -> float:
        return len(true) * log_loss(scores, true, math.exp(log)) + (log / deviation) ** 2 / 2

    low, high, golden = -3.0, 3.0, (math.sqrt(5) - 1) / 2
    while high - low > 1e-7:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if cost(left) < cost(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def f1(probabilities: Sequence[float], true: Sequence[bool], threshold: float) -> float:
    """Of what lies above a threshold."""
    predicted = [p > threshold for p in probabilities]
    right = sum(a and b for a, b in zip(predicted, true, strict=True))
    return 2 * right / (sum(predicted) + sum(true))


def best_f1(probabilities: Sequence[float], true: Sequence[bool]) -> float:
    """The highest F1 of any threshold."""
    return max(f1(probabilities, true, threshold) for threshold in (0.0, *probabilities))
