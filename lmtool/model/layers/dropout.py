"""Dropout (Srivastava et al. 2014)."""

from torch import Tensor
from torch.nn import functional as F

from lmtool.compute.fused import dropped, is_served


def drop(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Inverted dropout: in training each element is 0 with probability p, else x / (1 - p); otherwise x."""
    if not training or p == 0:
        return x
    return dropped(x, p) if is_served(x) else F.dropout(x, p)
