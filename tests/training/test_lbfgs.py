"""L-BFGS finds the minimum of convex functions, and ends where rounding is all that is left."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from lmtool.training.lbfgs import minimize_lbfgs

RNG = np.random.default_rng(0)
ROWS_RF = RNG.normal(size=(50, 6))
SIGNS_R = np.where(RNG.random(50) < 0.5, -1.0, 1.0)


def logistic_loss(l2: float) -> Any:
    """Returns the function that computes the summed loss of a logistic regression without a bias, and its gradient."""

    def compute(weight_F: Any) -> tuple[float, Any]:
        margin_R = SIGNS_R * (ROWS_RF @ weight_F)
        loss = np.logaddexp(0.0, -margin_R).sum() + l2 * (weight_F @ weight_F) / 2
        gradient_F = ROWS_RF.T @ (-SIGNS_R / (1 + np.exp(margin_R))) + l2 * weight_F
        return float(loss), gradient_F.astype(weight_F.dtype)

    return compute


@pytest.mark.parametrize(("l2", "start"), [(1.0, 3.0), (1e-3, 0.0)])
def test_the_minimum_is_that_of_scipy(l2: float, start: float) -> None:
    start_F = np.full(6, start)
    found_F, value = minimize_lbfgs(logistic_loss(l2), start_F, 1e-13)
    peer = minimize(logistic_loss(l2), start_F, jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(found_F, peer.x, atol=1e-6)
    assert value == pytest.approx(peer.fun, abs=1e-10)
    np.testing.assert_array_equal(start_F, start)


def test_a_badly_scaled_parabola_needs_shorter_and_longer_steps() -> None:
    """The curvature is between 0.01 and 100, so that a first step of length 1 increases the value."""
    curvature_N, target_N = np.geomspace(0.01, 100, 12), RNG.normal(size=12)

    def compute(point_N: Any) -> tuple[float, Any]:
        slope_N = curvature_N * (point_N - target_N)
        return float(slope_N @ (point_N - target_N) / 2), slope_N

    start, slope_N = compute(np.zeros(12))
    assert compute(-slope_N)[0] > start
    found_N, value = minimize_lbfgs(compute, np.zeros(12), 1e-16)
    # places along which the curvature is 0.01 are known less well than the value, which is what is minimized
    assert value == compute(found_N)[0] < 1e-12 * start


def test_single_precision_ends_at_rounding() -> None:
    calls = []

    def compute(weight_F: Any) -> tuple[float, Any]:
        calls.append(weight_F)
        found: tuple[float, Any] = logistic_loss(1e-3)(weight_F)
        return found

    found_F, value = minimize_lbfgs(compute, np.zeros(6, np.float32), 0.0)
    assert found_F.dtype == np.float32
    assert value == pytest.approx(minimize(logistic_loss(1e-3), np.zeros(6), jac=True).fun, rel=1e-6)
    assert len(calls) < 200


def test_a_step_out_of_the_domain_is_shortened() -> None:
    """A barrier at 1, behind which the value is infinite; the first step of length 1 would pass it."""

    def compute(point_N: Any) -> tuple[float, Any]:
        if point_N[0] >= 1:
            return np.inf, np.full(1, np.nan)
        return float(-np.log(1 - point_N[0]) - 9 * point_N[0]), 1 / (1 - point_N) - 9

    found_N, _ = minimize_lbfgs(compute, np.zeros(1), 1e-14)
    assert found_N[0] == pytest.approx(1 - 1 / 9, abs=1e-6)


def test_a_function_that_curves_down_is_minimized_too() -> None:
    """x^4 - 2 x^2 has a maximum at 0 and minima at -1 and 1."""
    found_N, value = minimize_lbfgs(
        lambda point_N: (float((point_N**4 - 2 * point_N**2).sum()), 4 * point_N**3 - 4 * point_N),
        np.array([0.05, -0.1]),
        1e-14,
    )
    np.testing.assert_allclose(np.abs(found_N), 1, atol=1e-5)
    assert value == pytest.approx(-2)


@pytest.mark.parametrize("slope", [0.0, np.nan])
def test_a_start_without_a_slope_stays(slope: float) -> None:
    """At the minimum, and where the slope is not finite."""
    found_F, _ = minimize_lbfgs(lambda point_F: (slope, np.full(3, slope)), np.ones(3), 1e-9)
    np.testing.assert_array_equal(found_F, np.ones(3))
