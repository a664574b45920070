"""Logit filters: pure functions from logits to logits, with -inf for tokens that may not be chosen.

They are applied in the order temperature, top-k, top-p, the order of Hugging Face Transformers: so top-p measures
probability at the given temperature, among the tokens that top-k left. Among equal logits the lowest ids stay.

Shapes: B rows, V vocabulary.
"""

import torch
from torch import Tensor

from lmtool.decoding.settings import Sample


def apply(logits_BV: Tensor, settings: Sample) -> Tensor:
    """All filters of `settings`, in the documented order."""
    logits_BV = temperature(logits_BV, settings.temperature)
    if settings.top_k is not None:
        logits_BV = top_k(logits_BV, settings.top_k)
    if settings.top_p is not None:
        logits_BV = top_p(logits_BV, settings.top_p)
    return logits_BV


def temperature(logits_BV: Tensor, t: float) -> Tensor:
    """Logits divided by `t`, so that softmax gives softmax(u / t); shifted so that the highest is 0.

    As t goes to 0 the most probable token takes everything; at 0 only the one with the lowest id stays.
    """
    if t == 0:
        return torch.full_like(logits_BV, -torch.inf).scatter(-1, logits_BV.argmax(-1, keepdim=True), 0.0)
    highest_B1 = logits_BV.amax(-1, keepdim=True)
    # The shift keeps a tiny t from giving inf - inf; a t below the type's smallest normal number would divide by 0.
    return (logits_BV - highest_B1) / max(t, torch.finfo(logits_BV.dtype).tiny)


def top_k(logits_BV: Tensor, k: int) -> Tensor:
    """The k highest logits of each row, exactly k of them (Fan et al. 2018).

    Transformers keeps all tokens that tie with the k-th; here the lowest ids of them fill the k places, so that k = 1
    is greedy.
    """
    if k >= logits_BV.shape[-1]:
        return logits_BV
    threshold_B1 = logits_BV.topk(k).values[:, -1:]
    above_BV = logits_BV > threshold_B1
    tied_BV = logits_BV == threshold_B1
    room_B1 = k - above_BV.sum(-1, keepdim=True)
    return logits_BV.masked_fill(~(above_BV | (tied_BV & (tied_BV.cumsum(-1) <= room_B1))), -torch.inf)


def top_p(logits_BV: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens whose probability reaches p (Holtzman et al. 2020); never empty."""
    if p == 1:  # rounding would drop tokens from the far tail
        return logits_BV
    sorted_BV, ids_BV = logits_BV.sort(stable=True, dim=-1, descending=True)
    mass_BV = sorted_BV.softmax(-1, dtype=torch.float64)
    before_BV = mass_BV.cumsum(-1) - mass_BV
    keep_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(-1, ids_BV, before_BV < p)
    return logits_BV.masked_fill(~keep_BV, -torch.inf)


def draw(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Ids (B,) drawn from softmax(logits) by inverting its distribution function at float64 `uniform_B` in [0, 1).

    Each row takes one number and looks at nothing but its own logits. A token of probability 0 is never drawn.
    """
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    total_BV = mass_BV.cumsum(-1)
    return ((total_BV > uniform_B[:, None] * total_BV[:, -1:]) & (mass_BV > 0)).int().argmax(-1)
