"""Minimizes a smooth function by L-BFGS (Liu and Nocedal 1989)."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ITERATIONS = 500

N_COMPARED_ITERATIONS = 10

HISTORY_SIZE = 5
"""Number of last steps from which the curvature is estimated."""

SUFFICIENT_DECREASE = 1e-4
"""Minimum share of the decrease that the gradient predicts for a step to be taken (Armijo 1966)."""

MAX_BACKTRACKS = 10

Vector = NDArray[Any]


class _CurvaturePair(NamedTuple):
    """A step that was taken, the change of the gradient, and one over their product."""

    step_N: Vector
    gradient_change_N: Vector
    inverse_product: float


def minimize_lbfgs(
    value_and_gradient: Callable[[Vector], tuple[float, Vector]], start_N: Vector, min_decrease: float
) -> tuple[Vector, float]:
    """Returns the point at which the search ended, and the value there.

    Ends when the last N_COMPARED_ITERATIONS have decreased the value by no more than `min_decrease`, after
    MAX_ITERATIONS, or when no step along the direction decreases the value, as when all that is left is rounding.
    Steps along which the function curves down are not remembered, so it need not be convex.

    Args:
        value_and_gradient: returns the value at a point (N,) and the gradient there, of the point's type.
        start_N: first point. Near it, the curvature should be about 1 in all directions.
    """
    point_N, (value, gradient_N) = start_N, value_and_gradient(start_N)
    steps: deque[_CurvaturePair] = deque(maxlen=HISTORY_SIZE)
    last_values = deque([value], maxlen=N_COMPARED_ITERATIONS + 1)
    for _ in range(MAX_ITERATIONS):
        direction_N = -_multiply_by_inverse_hessian(gradient_N, steps)
        expected_change = float(gradient_N @ direction_N)
        if not expected_change < 0:
            break
        step_size = 1.0
        for _ in range(MAX_BACKTRACKS):
            step_N = step_size * direction_N
            next_value, next_gradient_N = value_and_gradient(point_N + step_N)
            excess = next_value - value - step_size * expected_change
            if next_value < value + SUFFICIENT_DECREASE * step_size * expected_change:
                break
            # the minimum of the parabola through both values with the derivative at the first, within bounds
            is_above_tangent = excess > 0 and np.isfinite(excess)
            step_size *= min(max(-step_size * expected_change / (2 * excess), 0.1), 0.5) if is_above_tangent else 0.1
        else:
            break
        gradient_change_N = next_gradient_N - gradient_N
        product = float(step_N @ gradient_change_N)
        if product > 0.0:
            steps.append(_CurvaturePair(step_N, gradient_change_N, 1 / product))
        point_N, value, gradient_N = point_N + step_N, next_value, next_gradient_N
        last_values.append(value)
        if len(last_values) > N_COMPARED_ITERATIONS and last_values[0] - value <= min_decrease:
            break
    return point_N, value


def _multiply_by_inverse_hessian(gradient_N: Vector, steps: deque[_CurvaturePair]) -> Vector:
    """Returns the inverse Hessian that the steps show times the gradient, by the two-loop recursion (Nocedal 1980)."""
    if not steps:
        return gradient_N
    product_N, shares = gradient_N.copy(), []
    for step_N, gradient_change_N, inverse_product in reversed(steps):
        shares.append(inverse_product * float(step_N @ product_N))
        product_N -= shares[-1] * gradient_change_N
    last = steps[-1]
    product_N *= 1 / (last.inverse_product * float(last.gradient_change_N @ last.gradient_change_N))
    for (step_N, gradient_change_N, inverse_product), share in zip(steps, reversed(shares), strict=True):
        product_N += (share - inverse_product * float(gradient_change_N @ product_N)) * step_N
    return product_N
