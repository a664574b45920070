"""Word vectors with loops: co-occurrence counts, PMI, GloVe's loss, CBOW, analogies, and ELMo as a task's input."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.reference.metrics import spearman as spearman
from tests.reference.recurrent import scalar_mix
from tests.reference.skipgram import sigmoid, softmax

Matrix = NDArray[np.float64]
Counts = dict[tuple[int, int], float]


def cooccurrences(documents: Sequence[Sequence[int]], words: set[int], window: int, by_distance: bool) -> Counts:
    """X_ij: for each word i of a text each word j at most `window` places away, as 1 or as 1 / distance."""
    counts: Counts = defaultdict(float)
    for document in documents:
        for here, i in enumerate(document):
            for there, j in enumerate(document):
                away = abs(here - there)
                if 0 < away <= window and i in words and j in words:
                    counts[i, j] += 1 / away if by_distance else 1.0
    return dict(counts)


def ppmi(counts: Counts, size: int) -> Matrix:
    """max(0, log(X_ij X / (X_i X_j))), 0 where X_ij is."""
    found = np.zeros((size, size))
    total = sum(counts.values())
    for (i, j), x in counts.items():
        x_i = sum(value for (row, _), value in counts.items() if row == i)
        x_j = sum(value for (_, column), value in counts.items() if column == j)
        found[i, j] = max(0.0, np.log(x * total / (x_i * x_j)))
    return found


def glove(
    w: Matrix, u: Matrix, b: Matrix, c: Matrix, counts: Sequence[tuple[int, int, float]], x_max: float, power: float
) -> float:
    """Sum of f(X_ij) (w_i . u_j + b_i + c_j - log X_ij)^2 (Pennington et al. 2014, equation 8)."""
    loss = 0.0
    for i, j, x in counts:
        f = (x / x_max) ** power if x < x_max else 1.0
        loss += f * (w[i] @ u[j] + b[i] + c[j] - np.log(x)) ** 2
    return loss


def cbow(v: Matrix, u: Matrix, windows: Sequence[tuple[int, Sequence[int], Sequence[int] | None]]) -> float:
    """Sum over (word, context words, noise) of -log p of the word from the mean h of the context words' vectors.

    By the softmax, or for noise words -log s(u_c . h) - sum_k log s(-u_k . h).
    """
    loss = 0.0
    for word, context, noise in windows:
        h = sum(v[o] for o in context) / len(context)
        if noise is None:
            loss -= np.log(softmax(u @ h)[word])
        else:
            loss -= np.log(sigmoid(u[word] @ h)) + sum(np.log(sigmoid(-u[k] @ h)) for k in noise)
    return float(loss)


def analogy(table: Matrix, a: int, b: int, c: int) -> list[int]:
    """All words but these three, by cos(d, a) - cos(d, b) + cos(d, c), the best first (Mikolov et al. 2013)."""

    def cosine(one: int, other: int) -> float:
        return float(table[one] @ table[other] / np.linalg.norm(table[one]) / np.linalg.norm(table[other]))

    others = [d for d in range(len(table)) if d not in (a, b, c)]
    return sorted(others, key=lambda d: -(cosine(d, a) - cosine(d, b) + cosine(d, c)))


def task_input(x: Matrix, layers: Sequence[Matrix], scalars: Sequence[float], gamma: float) -> Matrix:
    """[x_t; gamma sum_j s_j h_tj], s = softmax of the scalars (Peters et al. 2018)."""
    return np.concatenate([x, scalar_mix(layers, scalars, gamma)], 1)
