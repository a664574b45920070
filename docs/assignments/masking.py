"""Assignment 6: the masks of BERT (Devlin et al. 2019).

The course: docs/course.md, "Masked language modelling". Random numbers are arguments, so that results can be compared.
"""

from collections.abc import Collection, Sequence

IGNORE = -100
"""The target of a position that is not to be predicted."""


def corrupt(
    ids: Sequence[int], numbers: Sequence[tuple[float, float, int]], mask: int, special: Collection[int]
) -> tuple[list[int], list[int]]:
    """Returns the input of the model and its targets.

    numbers: for each position, a number that selects it (below 0.15), a number that decides its fate (below 0.8:
    [MASK]; below 0.9: the random token; otherwise it stays), and a random token. Special tokens are never selected.
    The target of a selected position is its true token, that of all others IGNORE.
    """
    raise NotImplementedError


def loss(log_p_TV: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    """The mean of -log p over the selected positions; 0 if there is none."""
    raise NotImplementedError
