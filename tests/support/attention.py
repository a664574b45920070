"""Attention by its formula, with the mask of every pair of positions."""

import torch
from torch import Tensor

from lmtool.batch import Mask
from lmtool.model.layers.positions import AttentionPositions


def dense_weights(scores_BNTS: Tensor, mask: Mask, rule: AttentionPositions, positions_PS: Tensor) -> Tensor:
    """The softmax over the keys that each query sees, of scores with the bias of the positions."""
    T, S = scores_BNTS.shape[-2:]
    bias = rule.bias(positions_PS[:, S - T :], positions_PS)
    scores_BNTS = scores_BNTS if bias is None else scores_BNTS + bias
    hidden = ~mask.to_tensor(T, S, scores_BNTS.device)[:, None]
    return scores_BNTS.masked_fill(hidden, -torch.inf).softmax(-1)


def dense(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: AttentionPositions, positions_PS: Tensor) -> Tensor:
    """The mean of values (B, N, T, H) by scaled products; several heads may share those of keys and values."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return dense_weights(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, mask, rule, positions_PS) @ v
