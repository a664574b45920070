"""Logit filters, pure functions from logits to logits with -inf for tokens that may not be chosen; and the draw.

Filters are applied in the order temperature, top-k, top-p, the order of Hugging Face Transformers: so top-p measures
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
    keep_BV = _highest(logits_BV, logits_BV.topk(k).values[:, -1:], k)
    return logits_BV.masked_fill(~keep_BV, -torch.inf)


def top_p(logits_BV: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens whose probability reaches p (Holtzman et al. 2020); never empty."""
    if p == 1:  # rounding would drop tokens from the far tail
        return logits_BV
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    vocab_size = logits_BV.shape[-1]
    for n_sorted in (64, 4096, vocab_size):  # few suffice mostly, and sorting them all can take longer than the model
        sorted_BK = mass_BV.topk(min(n_sorted, vocab_size)).values
        total_BK = sorted_BK.cumsum(-1)
        if (total_BK[:, -1] >= p).all():
            break
    n_kept_B1 = (total_BK - sorted_BK < p).sum(-1, keepdim=True)
    keep_BV = _highest(mass_BV, sorted_BK.gather(-1, n_kept_B1 - 1), n_kept_B1)
    return logits_BV.masked_fill(~keep_BV, -torch.inf)


def draw(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Ids (B,) drawn from softmax(logits) by inverting its distribution function at float64 `uniform_B` in [0, 1).

    Each row takes one number and looks at nothing but its own logits. A token of probability 0 is never drawn.
    """
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    total_BV = mass_BV.cumsum(-1)  # which a GPU adds up in an order that can make it rise where the mass is 0
    return ((total_BV > uniform_B[:, None] * total_BV[:, -1:]) & (mass_BV > 0)).int().argmax(-1)


def _highest(scores_BV: Tensor, lowest_B1: Tensor, n: Tensor | int) -> Tensor:
    """Where the n highest scores of each row are, of which `lowest_B1` is the lowest; lower ids first among ties."""
    above_BV = scores_BV > lowest_B1
    tied_BV = scores_BV == lowest_B1
    room_B1 = n - above_BV.sum(-1, keepdim=True)
    return above_BV | (tied_BV & (tied_BV.cumsum(-1) <= room_B1))
