"""Scheduled sampling as Bengio et al. 2015 tell it: one token after the other, in plain Python."""

import math
from collections.abc import Callable, Sequence

Distribution = Callable[[Sequence[int]], Sequence[float]]
"""Probabilities of the next token behind a text."""


def linear(i: float, k: float, floor: float) -> float:
    return max(floor, 1 - k * i)


def exponential(i: float, k: float) -> float:
    return math.pow(k, i)


def inverse_sigmoid(i: float, k: float) -> float:
    return k / (k + math.exp(i / k))


def drawn(probabilities: Sequence[float], number: float) -> int:
    """The first token at which the running sum is above the number."""
    total = 0.0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > number:
            return token
    return len(probabilities) - 1


def step_by_step(text: Sequence[int], numbers: Sequence[float], next_token: Distribution) -> list[int]:
    """Each token whose number is not negative is drawn behind what was read so far, drawn tokens included."""
    read: list[int] = []
    for token, number in zip(text, numbers, strict=True):
        read.append(token if number < 0 or not read else drawn(next_token(read), number))
    return read


def two_passes(text: Sequence[int], numbers: Sequence[float], next_token: Distribution) -> list[int]:
    """Mihaylova and Martins 2019: each is drawn behind the true tokens before it."""
    mixed = []
    for t, (token, number) in enumerate(zip(text, numbers, strict=True)):
        mixed.append(token if number < 0 or t == 0 else drawn(next_token(text[:t]), number))
    return mixed
