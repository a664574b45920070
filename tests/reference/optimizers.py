"""Optimizers as the papers print them: one weight array, its gradients and rates step by step, in float64."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sgd(w: Array, gradients: Sequence[Array], rates: Sequence[float], weight_decay: float = 0.0) -> Array:
    for g, rate in zip(gradients, rates, strict=True):
        w = w - rate * (g + weight_decay * w)
    return w


def momentum(
    w: Array, gradients: Sequence[Array], rates: Sequence[float], share: float, weight_decay: float = 0.0
) -> Array:
    """v = share v + rate g; w = w - v."""
    v = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        v = share * v + rate * (g + weight_decay * w)
        w = w - v
    return w


def adam(
    w: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> Array:
    """Algorithm 1 of Kingma and Ba 2015; decoupled: algorithm 2 of Loshchilov and Hutter 2019, decay times rate."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        if not decoupled:
            g = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        step = m_hat / (np.sqrt(v_hat) + eps)
        if decoupled:
            step = step + weight_decay * w
        w = w - rate * step
    return w


def muon(
    w: Array, gradients: Sequence[Array], rates: Sequence[float], share: float, weight_decay: float = 0.0
) -> Array:
    """Jordan et al. 2024: Nesterov momentum as a running mean, orthogonalised, times max(1, rows / columns)^0.5."""
    mean = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        mean = share * mean + (1 - share) * g
        ahead = share * mean + (1 - share) * g
        scale = math.sqrt(max(1, w.shape[0] / w.shape[1]))
        w = w - rate * weight_decay * w - rate * scale * orthogonalised(ahead)
    return w


def row_adagrad(w: Array, gradients: Sequence[Array], rates: Sequence[float]) -> Array:
    """Duchi et al. 2011, with one sum of squares per row, of the mean over the row; row by row."""
    sums = np.zeros(len(w))
    for g, rate in zip(gradients, rates, strict=True):
        w = w.copy()
        for row in range(len(w)):
            sums[row] += sum(float(value) ** 2 for value in g[row]) / g.shape[1]
            if sums[row] > 0:
                w[row] = w[row] - rate * g[row] / math.sqrt(sums[row])
    return w


def orthogonalised(matrix: Array) -> Array:
    """What the quintic iteration does, said of singular values: five times s -> a s + b s^3 + c s^5."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    singular = singular / np.sqrt(np.sum(singular**2))
    for _ in range(5):
        singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
    product: Array = left @ np.diag(singular) @ right
    return product


def clipped(gradients: Sequence[Array], limit: float) -> list[Array]:
    """g min(1, c / norm(g)), with the norm over all arrays (Pascanu et al. 2013)."""
    norm = math.sqrt(sum(float(value) ** 2 for g in gradients for value in g.flat))
    return [g * min(1.0, limit / norm) for g in gradients]
