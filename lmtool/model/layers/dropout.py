"""Dropout (Srivastava et al. 2014)."""

from torch import Tensor
from torch.nn import functional as F

from lmtool.compute.fused import Dropped, is_served


def drop(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Inverted dropout: in training each element is 0 with probability p, else x / (1 - p); otherwise x."""
    if not training or p == 0:
        return x
    if not is_served(x):
        return F.dropout(x, p)
    dropped: Tensor = Dropped.apply(x, p)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return dropped
