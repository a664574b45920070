"""Assignment 5: temperature, top-k and the nucleus (Holtzman et al. 2020).

The course: docs/course.md, "Temperature" and "Top-k and nucleus".
"""

from collections.abc import Sequence


def probabilities(scores: Sequence[float], t: float) -> list[float]:
    """softmax(scores / t); at t = 0 the highest score (the first of equal ones) has probability 1."""
    raise NotImplementedError


def top_k(p: Sequence[float], k: int) -> list[float]:
    """Keeps the k most probable tokens (the first of equal ones), renormalized; the others get 0."""
    raise NotImplementedError


def nucleus(p: Sequence[float], mass: float) -> list[float]:
    """Keeps the smallest set of most probable tokens whose mass is at least `mass`, renormalized; the others get 0."""
    raise NotImplementedError


def draw(p: Sequence[float], number: float) -> int:
    """The token whose interval contains a number from [0, 1), when probabilities are laid end to end.

    Never a token with probability 0.
    """
    raise NotImplementedError
