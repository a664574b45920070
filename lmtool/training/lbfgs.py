"""Minimizes a smooth function by L-BFGS (Liu and Nocedal 1989)."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ITERATIONS = 500

N_COMPARED_ITERATIONS = 10

MEMORY = 5
"""Number of last steps from which the curvature is estimated."""

SUFFICIENT_DECREASE = 1e-4
"""Minimum share of the decrease that the gradient promises for a step to be taken (Armijo 1966)."""

MAX_SHORTENINGS = 10

Vector = NDArray[Any]


class _Step(NamedTuple):
    """A step that was taken, the change of the gradient, and one over their product."""

    step_N: Vector
    change_N: Vector
    inverse_product: float


def minimize_lbfgs(
    compute: Callable[[Vector], tuple[float, Vector]], start_N: Vector, min_decrease: float
) -> tuple[Vector, float]:
    """Returns the last point of the search, and the value there, which no later point is below.

    Ends when the last N_COMPARED_ITERATIONS have decreased the value by no more than `min_decrease`, after
    MAX_ITERATIONS, or when no step along the direction decreases the value, as when all that is left is rounding.
    Steps along which the function curves down are not remembered, so it need not be convex.

    Args:
        compute: returns the value at a point (N,) and the gradient there, of the point's type.
        start_N: first point. Near it, the curvature should be about 1 in all directions.
    """
    point_N, (value, slope_N) = start_N, compute(start_N)
    steps: deque[_Step] = deque(maxlen=MEMORY)
    last_values = deque([value], maxlen=N_COMPARED_ITERATIONS + 1)
    for _ in range(MAX_ITERATIONS):
        direction_N = -_divide_by_curvature(slope_N, steps)
        promised = float(slope_N @ direction_N)
        if not promised < 0:
            break
        length = 1.0
        for _ in range(MAX_SHORTENINGS):
            step_N = length * direction_N
            next_value, next_slope_N = compute(point_N + step_N)
            excess = next_value - value - length * promised
            if next_value < value + SUFFICIENT_DECREASE * length * promised:
                break
            # the minimum of the parabola through both values with the slope at the first, within bounds
            is_parabola = excess > 0 and np.isfinite(excess)
            length *= min(max(-length * promised / (2 * excess), 0.1), 0.5) if is_parabola else 0.1
        else:
            break
        change_N = next_slope_N - slope_N
        product = float(step_N @ change_N)
        if product > 0.0:
            steps.append(_Step(step_N, change_N, 1 / product))
        point_N, value, slope_N = point_N + step_N, next_value, next_slope_N
        last_values.append(value)
        if len(last_values) > N_COMPARED_ITERATIONS and last_values[0] - value <= min_decrease:
            break
    return point_N, value


def _divide_by_curvature(slope_N: Vector, steps: deque[_Step]) -> Vector:
    """Returns the gradient divided by the curvature that the steps show, by the recursion of two loops."""
    if not steps:
        return slope_N
    divided_N, shares = slope_N.copy(), []
    for step_N, change_N, inverse_product in reversed(steps):
        shares.append(inverse_product * float(step_N @ divided_N))
        divided_N -= shares[-1] * change_N
    last = steps[-1]
    divided_N *= 1 / (last.inverse_product * float(last.change_N @ last.change_N))
    for (step_N, change_N, inverse_product), share in zip(steps, reversed(shares), strict=True):
        divided_N += (share - inverse_product * float(change_N @ divided_N)) * step_N
    return divided_N
