"""Contextual calibration, as Zhao et al. (2021, Calibrate Before Use) write it."""

from collections.abc import Sequence


def calibrated(p: Sequence[float], free: Sequence[Sequence[float]]) -> list[float]:
    """q = W p with W the inverse of the diagonal matrix of p_cf, scaled to sum 1.

    p: probabilities of the answers. free: those for each content-free input. All are first scaled to sum 1; p_cf is
    the mean.
    """
    own = [value / sum(p) for value in p]
    scaled = [[value / sum(one) for value in one] for one in free]
    mean = [sum(one[a] for one in scaled) / len(scaled) for a in range(len(p))]
    q = [value / m for value, m in zip(own, mean, strict=True)]
    return [value / sum(q) for value in q]
