"""Dropout on a CPU, where elements share draws: each is still dropped independently with probability p."""

import pytest
import torch

from lmtool.compute.kernels.ops import dropout

N = 400_000


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_each_quarter_of_a_draw_drops_as_often_as_asked(p: float) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(N), p) == 0
    deviation = (p * (1 - p) / (N // 4)) ** 0.5
    for quarter in range(4):
        assert float(dropped[quarter::4].double().mean()) == pytest.approx(p, abs=4 * deviation)


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(N), 0.3) != 0).double() - 0.7
    for distance in (1, 2, 3, 4, 5):
        correlation = float((kept[:-distance] * kept[distance:]).mean()) / 0.21
        assert abs(correlation) < 4 / N**0.5


def test_what_is_kept_makes_up_for_what_is_dropped() -> None:
    x = torch.full((7, 11), 3.0, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    y = dropout(x, 0.25)
    assert set(y.flatten().tolist()) == {0.0, 4.0}
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach() / 3)


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.999999999])
def test_the_ends_of_the_range(p: float) -> None:
    x = torch.ones(1000)
    assert dropout(x, 0.0) is x
    assert dropout(x, p, training=False) is x
    assert bool(dropout(x, p).isfinite().all())
