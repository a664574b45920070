"""Assignment 6: the masks of BERT (Devlin et al. 2019).

The course: docs/course.md, "Masked language modelling". Random numbers are arguments, so that results can be compared.
"""

from collections.abc import Collection, Sequence

IGNORE = -100
"""The target of a position that is not to be predicted."""


def corrupt(
    ids: Sequence[int], numbers: Sequence[tuple[float, float, int]], mask: int, special: Collection[int]
) -> tuple[list[int], list[int]]:
    """What the model reads, and its targets.

    numbers: for each position a number that chooses it (below 0.15), one that says what becomes of it (below 0.8:
    [MASK]; below 0.9: the random token; else it stays), and a random token. Special tokens are never chosen.
    The target of a chosen position is its true token, of all others IGNORE.
    """
    raise NotImplementedError


def loss(log_p_TV: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    """The mean of -log p over the chosen positions; 0 where there is none."""
    raise NotImplementedError
