"""Dropout (Srivastava et al. 2014)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def drop(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Inverted dropout: in training each element is 0 with probability p, else x / (1 - p); otherwise x.

    On a CPU four elements share one 64-bit draw, 16 bits each, which is four times as fast; p is rounded to 1 / 65,536.
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    n_below = min(round(p * 2**16), 2**16 - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    keep = (draws[: x.numel()] >= n_below - 2**15).view(x.shape)
    return x * keep * (2**16 / (2**16 - n_below))
