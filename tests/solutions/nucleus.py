from collections.abc import Sequence
from itertools import accumulate

import numpy as np


def probabilities(scores: Sequence[float], t: float) -> list[float]:
    if t == 0:
        return [float(i == np.argmax(scores)) for i in range(len(scores))]
    powers = np.exp((np.array(scores) - max(scores)) / t)
    return list(powers / powers.sum())


def best_first(p: Sequence[float]) -> list[int]:
    return sorted(range(len(p)), key=lambda i: -p[i])


def only(p: Sequence[float], kept: Sequence[int]) -> list[float]:
    return [p[i] / sum(p[j] for j in kept) if i in kept else 0.0 for i in range(len(p))]


def top_k(p: Sequence[float], k: int) -> list[float]:
    return only(p, best_first(p)[:k])


def nucleus(p: Sequence[float], mass: float) -> list[float]:
    order = best_first(p)
    reached = np.cumsum([p[i] for i in order])
    return only(p, order[: np.count_nonzero(reached < mass) + 1])


def draw(p: Sequence[float], number: float) -> int:
    return next(i for i, mass in enumerate(accumulate(p)) if number < mass)
