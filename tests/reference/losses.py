"""Cross-entropy with label smoothing, by loops over positions and vocabulary, in float64."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def log_softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    log_sum = highest + math.log(sum(math.exp(score - highest) for score in scores))
    return [score - log_sum for score in scores]


def wanted(target: int, vocab_size: int, eps: float) -> list[float]:
    """q(k*) = 1 - eps, and eps / (V - 1) elsewhere (Szegedy et al. 2016, in the lectures' form)."""
    return [1 - eps if k == target else eps / (vocab_size - 1) for k in range(vocab_size)]


def cross_entropy(logits_MV: Array, targets: Sequence[int], eps: float = 0.0, ignore: int = -100) -> float:
    """Sum over positions of -sum_k q(k) log p(k)."""
    total = 0.0
    for scores, target in zip(logits_MV, targets, strict=True):
        if target == ignore:
            continue
        log_p = log_softmax(scores)
        q = wanted(target, len(scores), eps)
        total -= sum(q[k] * log_p[k] for k in range(len(scores)))
    return total


def logits_gradient(logits_MV: Array, targets: Sequence[int], eps: float = 0.0, ignore: int = -100) -> Array:
    """d loss / d z_k = p(k) - q(k)."""
    gradient = np.zeros_like(logits_MV)
    for m, (scores, target) in enumerate(zip(logits_MV, targets, strict=True)):
        if target == ignore:
            continue
        log_p = log_softmax(scores)
        q = wanted(target, len(scores), eps)
        for k in range(len(scores)):
            gradient[m, k] = math.exp(log_p[k]) - q[k]
    return gradient
