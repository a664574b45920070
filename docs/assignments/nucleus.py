"""Assignment 5: temperature, top-k and the nucleus (Holtzman et al. 2020).

The course: docs/course.md, "Temperature" and "Top-k and nucleus".
"""

from collections.abc import Sequence


def probabilities(scores: Sequence[float], t: float) -> list[float]:
    """softmax(scores / t); at t = 0 all of it on the highest score, the first of equal ones."""
    raise NotImplementedError


def top_k(p: Sequence[float], k: int) -> list[float]:
    """The k most probable, renormalised; the others 0. Of equal ones the first."""
    raise NotImplementedError


def nucleus(p: Sequence[float], mass: float) -> list[float]:
    """The smallest set of most probable tokens whose mass is at least `mass`, renormalised; the others 0."""
    raise NotImplementedError


def draw(p: Sequence[float], number: float) -> int:
    """The token on which a number from [0, 1) falls, when probabilities are laid one after the other.

    Never a token with probability 0.
    """
    raise NotImplementedError
