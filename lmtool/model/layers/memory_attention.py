"""Attention of a recurrent network over a memory of states.

Shapes: B rows, T queries, S states in memory, D their width.
"""

import torch
from torch import Tensor

from lmtool.batch import Mask
from lmtool.model.language_model import KeyValueCache, Memory
from lmtool.model.layers.observing import ObservableAttention
from lmtool.model.layers.scores import build_score
from lmtool.recipe.spec.recurrent import Attention


class RecurrentStateAttention(ObservableAttention):
    """The context of each query: c_t = sum_s w_ts m_s over memory states m_s, with weights w from a score.

    It computes in the dtype of its weights also under autocast, because rounding would decide near ties.
    """

    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__()
        self.select = spec.select
        self.k = spec.k
        rank = spec.rank or max(1, width // 4)
        self.score = None
        if spec.select not in ("sum", "mean"):
            self.score = build_score(spec.score, 1, width, rank, spec.score_width or width)

    def transform_keys(self, states_BSD: Tensor) -> Tensor:
        """Returns the states as transformed by the score (B, 1, S, ...), to be computed once."""
        with torch.autocast(states_BSD.device.type, enabled=False):
            return states_BSD[:, None] if self.score is None else self.score.transform_keys(states_BSD[:, None])

    def forward(self, query_BTD: Tensor, memory: KeyValueCache | Memory, allowed_BTS: Tensor) -> Tensor:
        """Returns the context vectors (B, T, D), zeros where all states are masked."""
        with torch.autocast(query_BTD.device.type, enabled=False):
            if self.score is None:
                score_BTS = query_BTD.new_zeros(*query_BTD.shape[:2], allowed_BTS.shape[-1])
            else:
                score_BTS = self.score(query_BTD[:, None], memory.k_BNSH)[:, 0]
            weights_BTS = selection_weights(score_BTS, allowed_BTS, self.select, self.k)
            if self.observer is not None:
                self.observer(weights_BTS[:, None])
            return weights_BTS @ memory.v_BNSH[:, 0]


def selection_weights(score_BTS: Tensor, allowed_BTS: Tensor, select: str, k: int) -> Tensor:
    """Returns attention weights (B, T, S); fully masked rows are zero.

    Of `select`, "soft" is the softmax of the scores, "sum" 1, "mean" 1 / number of unmasked states, "hard" 1 at the
    best score, and "multi-hot" 1/k at the k best, or at all if fewer are unmasked.

    "hard" and "multi-hot" are piecewise constant, so their gradient is zero. The backward pass uses the gradient of the
    softmax instead: the straight-through estimator (Bengio, Leonard and Courville 2013).
    """
    allowed = allowed_BTS.expand_as(score_BTS)
    if select in ("sum", "mean"):
        weights_BTS = allowed.to(score_BTS.dtype)
        return weights_BTS if select == "sum" else weights_BTS / weights_BTS.sum(-1, keepdim=True).clamp(min=1)
    score_BTS = score_BTS.masked_fill(~allowed, torch.finfo(score_BTS.dtype).min)
    soft_BTS = score_BTS.softmax(-1) * allowed
    if select == "soft":
        return soft_BTS
    best = score_BTS.topk(min(k if select == "multi-hot" else 1, score_BTS.shape[-1]), -1).indices
    hard_BTS = torch.zeros_like(score_BTS).scatter(-1, best, 1.0) * allowed
    hard_BTS = hard_BTS / hard_BTS.sum(-1, keepdim=True).clamp(min=1)
    return hard_BTS + (soft_BTS - soft_BTS.detach())


def past_mask(mask: Mask, n_queries: int, n_states: int, device: torch.device, include_present: bool = False) -> Tensor:
    """Returns which states each of the last `n_queries` positions may attend to (1 or B, T, S): those before it.

    Unlike in `Mask.to_tensor` there may be none for a query.

    Args:
        include_present: whether a position may also attend to itself.
    """
    state_1S = torch.arange(n_states, device=device)[None]
    query_T1 = state_1S[0, n_states - n_queries :, None]
    allowed = mask.allows_in_each_row(query_T1, state_1S)
    return allowed if include_present else allowed & (state_1S != query_T1)
