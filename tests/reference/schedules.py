"""Learning rates as shares of the peak; t counts steps from 1, as in the papers."""

import math


def constant(t: int, warmup: int) -> float:
    return min(1.0, t / warmup) if warmup else 1.0


def linear(t: int, steps: int, warmup: int, final: float) -> float:
    """Up to 1 at t = warmup, then a straight line that would meet `final` one step after the last."""
    return plateau(t, steps, warmup, final, 1.0)


def plateau(t: int, steps: int, warmup: int, final: float, share: float) -> float:
    """Up to 1, at 1 until the last `share` of the other steps, then the line of `linear` (Hu et al. 2024)."""
    if t <= warmup:
        return t / warmup
    decay = share * (steps - warmup)
    left = steps + 1 - t
    return 1.0 if left >= decay else final + (1 - final) * left / decay


def cosine(t: int, steps: int, warmup: int, final: float) -> float:
    """Half a cosine over the same stretch (Loshchilov and Hutter 2017)."""
    if t <= warmup:
        return t / warmup
    done = (t - 1 - warmup) / (steps - warmup)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def inverse_square_root(t: int, d_model: int, warmup: int) -> float:
    """d^-0.5 min(t^-0.5, t warmup^-1.5) (Vaswani et al. 2017)."""
    return 1 / math.sqrt(d_model) * min(1 / math.sqrt(t), t / math.pow(warmup, 1.5))
