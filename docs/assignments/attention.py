"""Assignment 2: attention in several heads (Vaswani et al. 2017).

The course: docs/course.md, "Self-attention in several heads" and "Masks". T positions, D model width, H heads.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(scores_TS: Array) -> Array:
    """The softmax of each row. Scores may be as large as 1,000, and -inf if the row has other entries."""
    raise NotImplementedError


def causal_mask(n: int) -> Array:
    """(n, n): 0 where position i may attend to position j, -inf elsewhere."""
    raise NotImplementedError


def attend(q_TK: Array, k_SK: Array, v_SV: Array, mask_TS: Array) -> Array:
    """softmax(q k' / sqrt(K) + mask) v, (T, V): one head with keys of width K and values of width V."""
    raise NotImplementedError


def multi_head(x_TD: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, n_heads: int) -> Array:
    """Causal self-attention, (T, D).

    The matrices are (D, D); head i has columns i D/H to (i + 1) D/H of w_q, w_k and w_v.
    """
    raise NotImplementedError
