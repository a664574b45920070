"""Learning from a teacher, as in Hinton et al. 2015 and Sanh et al. 2019, with loops.

Shapes: M scored positions, C classes or entries of a vocabulary, D width.
"""

import math
from collections.abc import Sequence

from tests.reference.search import cosine
from tests.reference.transformer import softmax


def softened(scores: Sequence[float], temperature: float) -> list[float]:
    """p_i = exp(z_i / T) / sum_j exp(z_j / T) (Hinton et al. 2015, equation 1)."""
    return softmax([score / temperature for score in scores])


def divergence(known_MC, scores_MC, temperature: float) -> float:  # type: ignore[no-untyped-def]
    """T^2 sum over positions of KL(p || q) of softened probabilities."""
    total = 0.0
    for known, scores in zip(known_MC, scores_MC, strict=True):
        p, q = softened(known, temperature), softened(scores, temperature)
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
    return temperature**2 * total


def divergence_of_labels(known_MC, scores_MC, temperature: float) -> float:  # type: ignore[no-untyped-def]
    """The same of yes and no for each label, mean over the labels."""
    pairs = zip(known_MC, scores_MC, strict=True)
    rows = [([[0.0, k] for k in known], [[0.0, s] for s in scores]) for known, scores in pairs]
    return sum(divergence(known, scores, temperature) / len(known) for known, scores in rows)


def away(one: Sequence[float], other: Sequence[float]) -> float:
    """1 - cos of two vectors."""
    return 1 - cosine(one, other)
