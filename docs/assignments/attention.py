"""Assignment 2: attention in several heads (Vaswani et al. 2017).

The course: docs/course.md, "Self-attention in several heads" and "Masks". T positions, D width of the model, H heads.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(scores_TS: Array) -> Array:
    """Each row as probabilities. Scores may be as large as 1,000, and may be -inf where a row has other entries."""
    raise NotImplementedError


def causal_mask(n: int) -> Array:
    """(n, n): 0 where row i may attend to column j, -inf where it may not."""
    raise NotImplementedError


def attend(q_TK: Array, k_SK: Array, v_SV: Array, mask_TS: Array) -> Array:
    """softmax(q k' / sqrt(K) + mask) v, (T, V): one head with keys of width K and values of width V."""
    raise NotImplementedError


def multi_head(x_TD: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, n_heads: int) -> Array:
    """Causal self-attention, (T, D). The maps are D x D; head i has columns i D/H to (i + 1) D/H of the first three."""
    raise NotImplementedError
