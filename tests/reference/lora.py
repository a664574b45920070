"""Low-rank adapters as the paper prints them, by numbers: h = W x + b + (alpha / r) B A x (Hu et al. 2022, eq. 3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def adapted(w: Array, b: Array, down: Array, up: Array, alpha: float, x: Array) -> Array:
    """One linear map of one vector. w: (O, I). down: A, (r, I). up: B, (O, r)."""
    rank = len(down)
    out = np.zeros(len(w))
    for o in range(len(w)):
        out[o] = b[o] + sum(w[o, i] * x[i] for i in range(len(x)))
        for r in range(rank):
            out[o] += alpha / rank * up[o, r] * sum(down[r, i] * x[i] for i in range(len(x)))
    return out


def joined(
    w: Array, b: Array, widths: Sequence[int], downs: Sequence[Array], ups: Sequence[Array], alpha: float, x: Array
) -> Array:
    """Several maps of one vector, one after the other; each with its own A and B, which may be empty."""
    found, first = [], 0
    for width, down, up in zip(widths, downs, ups, strict=True):
        rows = slice(first, first + width)
        if len(down):
            found.append(adapted(w[rows], b[rows], down, up, alpha, x))
        else:
            found.append(adapted(w[rows], b[rows], np.zeros((1, len(x))), np.zeros((width, 1)), alpha, x))
        first += width
    return np.concatenate(found)
