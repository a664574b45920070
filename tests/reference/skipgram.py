"""Skip-gram with loops, from Mikolov et al. 2013 and the lectures: losses, and gradients in closed form."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def softmax(scores: Matrix) -> Matrix:
    powers: Matrix = np.exp(scores - scores.max())
    return powers / np.sum(powers)


def full_softmax(v: Matrix, u: Matrix, pairs: Sequence[tuple[int, int]]) -> tuple[float, Matrix, Matrix]:
    """Sum over pairs (centre, neighbour) of -log p, and its gradients: by v the expected context vector less the
    observed one."""
    loss, by_v, by_u = 0.0, np.zeros_like(v), np.zeros_like(u)
    for c, o in pairs:
        p = softmax(u @ v[c])
        loss -= np.log(p[o])
        expected = sum(p[w] * u[w] for w in range(len(u)))
        by_v[c] += expected - u[o]
        for w in range(len(u)):
            by_u[w] += (p[w] - (w == o)) * v[c]
    return loss, by_v, by_u


def negative_sampling(
    v: Matrix, u: Matrix, pairs: Sequence[tuple[int, int, Sequence[int]]]
) -> tuple[float, Matrix, Matrix]:
    """Sum over pairs (centre, neighbour, noise) of -log s(u_o . v_c) - sum_k log s(-u_k . v_c), and its gradients."""
    loss, by_v, by_u = 0.0, np.zeros_like(v), np.zeros_like(u)
    for c, o, noise in pairs:
        loss -= np.log(sigmoid(u[o] @ v[c]))
        by_v[c] += (sigmoid(u[o] @ v[c]) - 1) * u[o]
        by_u[o] += (sigmoid(u[o] @ v[c]) - 1) * v[c]
        for k in noise:
            loss -= np.log(sigmoid(-u[k] @ v[c]))
            by_v[c] += sigmoid(u[k] @ v[c]) * u[k]
            by_u[k] += sigmoid(u[k] @ v[c]) * v[c]
    return loss, by_v, by_u


def window_pairs(words: Sequence[int], documents: Sequence[int], reaches: Sequence[int]) -> list[tuple[int, int]]:
    """(centre, neighbour) for all neighbours within a centre's reach and in its document."""
    found = []
    for i, word in enumerate(words):
        for j in range(i - reaches[i], i + reaches[i] + 1):
            if j != i and 0 <= j < len(words) and documents[j] == documents[i]:
                found.append((word, words[j]))
    return found
