"""ELECTRA (Clark et al. 2020, section 2) of one row, with loops.

Shapes: T positions, V vocabulary.
"""

import math
from collections.abc import Sequence

from tests.reference import scheduled
from tests.reference.transformer import softmax


def drawn(logits: Sequence[float], number: float) -> int:
    """The token whose share of the interval from 0 to 1 holds the number, by growing id."""
    return scheduled.drawn(softmax(logits), number)


def corrupted(tokens: Sequence[int], targets: Sequence[int], samples: Sequence[int], ignore: int) -> list[int]:
    """The row with the generator's samples, from left to right, at its masked positions."""
    fill = iter(samples)
    return [token if target == ignore else next(fill) for token, target in zip(tokens, targets, strict=True)]


def detection_loss(scores: Sequence[float], original: Sequence[int], read: Sequence[int]) -> float:
    """Mean over the row of -log D where a token is the original one, and of -log (1 - D) where it was replaced.

    scores: logits of having been replaced, so that D, the paper's probability of being original, is sigmoid(-score).
    """
    total = 0.0
    for score, before, after in zip(scores, original, read, strict=True):
        d = 1 / (1 + math.exp(score))
        total -= math.log(d) if before == after else math.log(1 - d)
    return total / len(scores)
