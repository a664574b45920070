from itertools import accumulate

import numpy as np


def probabilities(scores, t):
    if t == 0:
        return [float(i == np.argmax(scores)) for i in range(len(scores))]
    powers = np.exp((np.array(scores) - max(scores)) / t)
    return list(powers / powers.sum())


def best_first(p):
    return np.argsort(-np.array(p), kind="stable")


def only(p, kept):
    return [p[i] / sum(p[j] for j in kept) if i in kept else 0.0 for i in range(len(p))]


def top_k(p, k):
    return only(p, best_first(p)[:k])


def nucleus(p, mass):
    order = best_first(p)
    reached = np.cumsum([p[i] for i in order])
    return only(p, order[: np.count_nonzero(reached < mass) + 1])


def draw(p, number):
    return next(i for i, mass in enumerate(accumulate(p)) if number < mass)
