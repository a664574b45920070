"""Multi-head attention, and the one place that chooses the kernel which computes it.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width, D model width.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.model.language_model import KeyValue, LayerState

PLAIN_LIMIT = 512
"""Longest row whose training on a CPU goes through plain matrix products; the fused kernel's backward is slower."""


class Attend:
    """softmax(q k' / sqrt(H) + mask) v under one mask: made once for a forward pass and used by all its layers."""

    def __init__(self, mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> None:
        self._device = device
        self._training_on_cpu = device.type == "cpu" and torch.is_grad_enabled() and n_keys <= PLAIN_LIMIT
        self._fused_causal = mask.only_causal and n_queries == n_keys
        if mask.sees_all or (mask.only_causal and n_queries == 1) or (self._fused_causal and not self._training_on_cpu):
            self._allowed_BTS = None
        else:
            self._allowed_BTS = mask.allowed(n_queries, n_keys, device)
        self._addends: dict[torch.dtype, Tensor] = {}

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float) -> Tensor:
        """Mix the values: (B, N, T, H). Groups of N / K query heads share a head of keys and values."""
        if self._training_on_cpu:
            return self._plain(q_BNTH, k_BKSH, v_BKSH, dropout)
        allowed = None if self._allowed_BTS is None else self._allowed_BTS[:, None]
        grouped = q_BNTH.shape[1] != k_BKSH.shape[1]
        is_causal = self._fused_causal and allowed is None and q_BNTH.shape[2] > 1
        return F.scaled_dot_product_attention(
            q_BNTH, k_BKSH, v_BKSH, attn_mask=allowed, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped
        )

    def _plain(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float) -> Tensor:
        B, N, T, H = q_BNTH.shape
        groups = N // k_BKSH.shape[1]
        k_BNSH, v_BNSH = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (k_BKSH, v_BKSH))
        q, k, v = (t.reshape(B * N, -1, H) for t in (q_BNTH, k_BNSH, v_BNSH))
        addend = self._addend(q.dtype)
        if addend.shape[0] > 1:
            addend = addend.repeat_interleave(N, 0)
        weights = torch.baddbmm(addend, q, k.transpose(1, 2), alpha=H**-0.5).softmax(-1)
        return (F.dropout(weights, dropout) @ v).view(B, N, T, H)

    def _addend(self, dtype: torch.dtype) -> Tensor:
        """What is added to the scores: 0 where attention is allowed, -inf where not; (1 or B, T, S)."""
        if self._allowed_BTS is None:
            return torch.zeros(1, 1, 1, dtype=dtype, device=self._device)
        if dtype not in self._addends:
            zeros = torch.zeros_like(self._allowed_BTS, dtype=dtype)
            self._addends[dtype] = zeros.masked_fill_(~self._allowed_BTS, float("-inf"))
        return self._addends[dtype]


class Mixer(nn.Module, ABC):
    """What a sublayer computes before it joins the residual stream; `out` is its projection into the stream."""

    out: nn.Linear

    @abstractmethod
    def start(self, n_rows: int) -> LayerState:
        """What is kept before the first token."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        """The output for x, which follows what `past` remembers; and what to remember, unless `past` is None."""


class JoinedLinear(nn.Linear):
    """Several linear maps of one input computed as one; `widths` are their output widths."""

    def __init__(self, d_in: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias=bias)
        self.widths = widths

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each map."""
        return torch.split(self(x), list(self.widths), -1)


class SelfAttention(Mixer):
    """Multi-head self-attention (Vaswani et al. 2017), with grouped key-value heads (Ainslie et al. 2023)."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.head_width = d_model // n_heads
        self.n_kv_heads = n_kv_heads
        self.dropout = dropout
        kv_width = n_kv_heads * self.head_width
        self.qkv = JoinedLinear(d_model, (d_model, kv_width, kv_width), bias)
        self.out = nn.Linear(d_model, d_model, bias=bias)

    def start(self, n_rows: int) -> KeyValue:
        """Keys and values of no positions."""
        weight = self.qkv.weight
        shape = (n_rows, self.n_kv_heads, 0, self.head_width)
        return KeyValue(weight.new_empty(shape), weight.new_empty(shape))

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        B, T, D = x_BTD.shape
        q, k, v = (part.view(B, T, -1, self.head_width).transpose(1, 2) for part in self.qkv.parts(x_BTD))
        now: LayerState | None = None
        if isinstance(past, KeyValue):
            k, v = torch.cat((past.k_BNSH, k), 2), torch.cat((past.v_BNSH, v), 2)
            now = KeyValue(k, v)
        mixed_BNTH = attend(q, k, v, self.dropout if self.training else 0.0)
        return self.out(mixed_BNTH.transpose(1, 2).reshape(B, T, D)), now
