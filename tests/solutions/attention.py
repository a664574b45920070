import numpy as np


def softmax(scores_TS):
    powers = np.exp(scores_TS - scores_TS.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def causal_mask(n):
    return np.triu(np.full((n, n), -np.inf), 1)


def attend(q_TK, k_SK, v_SV, mask_TS):
    return softmax(q_TK @ k_SK.T / np.sqrt(q_TK.shape[1]) + mask_TS) @ v_SV


def multi_head(x_TD, w_q, w_k, w_v, w_o, n_heads):
    q, k, v = (np.split(x_TD @ w, n_heads, axis=1) for w in (w_q, w_k, w_v))
    mask = causal_mask(len(x_TD))
    return np.concatenate([attend(*head, mask) for head in zip(q, k, v, strict=True)], axis=1) @ w_o
