"""ELECTRA (Clark et al. 2020, section 2) of one row, with loops.

Shapes: T positions, V vocabulary.
"""

import math
from collections.abc import Sequence


def drawn(logits: Sequence[float], number: float) -> int:
    """The token whose share of the interval from 0 to 1 holds the number, by growing id."""
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    reached = 0.0
    for token, power in enumerate(powers):
        reached += power / sum(powers)
        if reached > number:
            return token
    return len(logits) - 1


def generator_loss(logits_TV, targets: Sequence[int], ignore: int) -> float:  # type: ignore[no-untyped-def]
    """Sum over masked positions of -log p(x_t | x^masked)."""
    total = 0.0
    for logits, target in zip(logits_TV, targets, strict=True):
        if target != ignore:
            highest = max(logits)
            total -= logits[target] - highest - math.log(sum(math.exp(logit - highest) for logit in logits))
    return total


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
