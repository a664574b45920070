import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(scores_TS: Array) -> Array:
    powers: Array = np.exp(scores_TS - scores_TS.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def causal_mask(n: int) -> Array:
    mask: Array = np.triu(np.full((n, n), -np.inf), 1)
    return mask


def attend(q_TK: Array, k_SK: Array, v_SV: Array, mask_TS: Array) -> Array:
    return softmax(q_TK @ k_SK.T / np.sqrt(q_TK.shape[1]) + mask_TS) @ v_SV


def multi_head(x_TD: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, n_heads: int) -> Array:
    q, k, v = (np.split(x_TD @ w, n_heads, axis=1) for w in (w_q, w_k, w_v))
    mask = causal_mask(len(x_TD))
    return np.concatenate([attend(*head, mask) for head in zip(q, k, v, strict=True)], axis=1) @ w_o
