"""Assignment 3: a step of an LSTM (Hochreiter and Schmidhuber 1997; with forget gates, Gers et al. 2000).

The course: docs/course.md, "GRU and LSTM". D state width, X input width. Write no loops over components.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def step(x_X: Array, h_D: Array, c_D: Array, w: Array, u: Array, b: Array) -> tuple[Array, Array]:
    """The next state h and cell c.

    w: (4 D, X), u: (4 D, D), b: (4 D): the input gate, the forget gate, the candidate and the output gate, in this
    order of rows. h = o tanh(c), c = f c_before + i tanh(candidate).
    """
    raise NotImplementedError


def run(xs_TX: Sequence[Array], w: Array, u: Array, b: Array) -> Array:
    """The states h after each input, (T, D), starting from h = 0 and c = 0."""
    raise NotImplementedError


def remembering_bias(d: int) -> Array:
    """A bias (4 D) with which, if w and u are zero, a cell keeps its value and ignores the input at each step.

    Exact up to one part in ten thousand.
    """
    raise NotImplementedError
