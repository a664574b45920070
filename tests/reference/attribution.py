"""Attributions as the papers print them, with loops, for any function of embeddings given by its gradient."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rollout(layers: Sequence[Sequence[Array]]) -> Array:
    """Abnar and Zuidema 2020, equation 1, of the weights of each head of each layer; the residual is half."""
    rolled: Array | None = None
    for heads in layers:
        T = len(heads[0])
        raw = np.zeros((T, T))
        for head in heads:
            raw += head / len(heads)
        raw = 0.5 * raw + 0.5 * np.eye(T)
        raw /= raw.sum(1, keepdims=True)
        if rolled is None:
            rolled = raw
            continue
        product = np.zeros((T, T))
        for i in range(T):
            for j in range(T):
                product[i, j] = sum(raw[i, k] * rolled[k, j] for k in range(T))
        rolled = product
    assert rolled is not None
    return rolled


def integrated_gradients(gradient: Callable[[float], Array], x_TD: Array, steps: int) -> list[float]:
    """Sundararajan et al. 2017, equation 1, from zero to x, by the midpoint rule. gradient: at a times x."""
    shares = []
    grads = [gradient((step + 0.5) / steps) for step in range(steps)]
    for t in range(len(x_TD)):
        total = 0.0
        for d in range(x_TD.shape[1]):
            total += x_TD[t, d] * sum(grad[t, d] for grad in grads) / steps
        shares.append(total)
    return shares
