"""Whether a fast way of computing gives what the plain way gives, up to rounding."""

from torch import Tensor

MAX_RELATIVE_DIFFERENCE, MAX_RELATIVE_DIFFERENCE_IN_FLOAT32 = 0.1, 0.01
"""Largest relative difference that rounding explains: in any precision, and in float32."""


def relative_difference(fast: Tensor, plain: Tensor) -> float:
    """Returns |fast - plain| / |plain|; NaN where the fast way alone has a number that is not finite."""
    difference = (fast.float() - plain.float()).norm() / plain.float().norm().clamp(min=1e-30)
    return 0.0 if not plain.isfinite().all() else float(difference)


def agrees(fast: Tensor, plain: Tensor, *, in_float32: bool = False) -> bool:
    """Whether they differ by no more than rounding explains. in_float32: both are computed in it."""
    limit = MAX_RELATIVE_DIFFERENCE_IN_FLOAT32 if in_float32 else MAX_RELATIVE_DIFFERENCE
    return relative_difference(fast, plain) <= limit
