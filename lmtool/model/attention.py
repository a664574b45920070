"""Multi-head attention, and the one place that chooses the kernel which computes it.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width, D model width, P is B or 1 where
all rows have the same positions; in blocks: C blocks of Q queries, which see W keys each, and G global keys.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.model.language_model import KeyValue, LayerState, Memory
from lmtool.model.positions import AttentionPositions
from lmtool.model.scores import Score

PLAIN_LIMIT = 512
"""Longest row whose training on a CPU goes through plain matrix products; the fused kernel's backward is slower."""

BLOCK = 64
"""Fewest queries that are computed together under a window."""


class Attend:
    """softmax(score(q, k) + mask) v under one mask: made once for a forward pass and used by all layers of a stack.

    positions_PS: positions of all keys, the last `n_queries` being the queries'; counted from 0 when None.
    rule: how positions take part. source: attention to a source, for layers that have it.
    """

    def __init__(
        self,
        mask: Mask,
        n_queries: int,
        n_keys: int,
        device: torch.device,
        positions_PS: Tensor | None = None,
        rule: AttentionPositions | None = None,
        source: "Attend | None" = None,
    ) -> None:
        self.source = source
        self._mask = mask
        self._n_queries = n_queries
        self._device = device
        self._rule = rule or AttentionPositions()
        self._positions_PS = torch.arange(n_keys, device=device)[None] if positions_PS is None else positions_PS
        self._addends: dict[torch.dtype, Tensor] = {}
        self._blocks: _Blocks | None = None
        if n_queries == n_keys and mask.window is not None and n_keys > 2 * _block(mask):
            self._blocks = _Blocks(mask, n_keys, device, self._positions_PS, self._rule)
            return
        self._training_on_cpu = device.type == "cpu" and torch.is_grad_enabled() and n_keys <= PLAIN_LIMIT
        self._bias_PNTS = self._rule.bias(self._positions_PS[:, n_keys - n_queries :], self._positions_PS)
        plain_mask = self._bias_PNTS is None
        self._fused_causal = mask.only_causal and n_queries == n_keys and plain_mask
        causal_by_kernel = self._fused_causal and not self._training_on_cpu
        if mask.sees_all or (mask.only_causal and n_queries == 1) or causal_by_kernel:
            self._allowed_BTS = None
        else:
            self._allowed_BTS = mask.allowed(n_queries, n_keys, device)

    def turn(self, x_BNTH: Tensor) -> Tensor:
        """Queries or new keys, placed at the positions of the queries."""
        return self._rule.turn(x_BNTH, self._positions_PS[:, self._positions_PS.shape[1] - self._n_queries :])

    def __call__(
        self, q_BNTH: Tensor, keys_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score | None = None
    ) -> Tensor:
        """Mix the values: (B, N, T, H). Groups of N / K query heads share a head of keys and values.

        keys_BKSH: what `score.keys` gave. score: the scaled dot product when None.
        """
        if score is not None and score.scale is None:
            return self._scored(score(q_BNTH, keys_BKSH), v_BKSH, dropout)
        scale = q_BNTH.shape[-1] ** -0.5
        if score is not None and score.scale is not None:
            q_BNTH, scale = score.queries(q_BNTH), score.scale
        if self._blocks is not None:
            return self._blocks(q_BNTH, *_grouped(q_BNTH, keys_BKSH, v_BKSH), scale, dropout)
        if self._training_on_cpu:
            return self._plain(q_BNTH, *_grouped(q_BNTH, keys_BKSH, v_BKSH), scale, dropout)
        mask = None if self._allowed_BTS is None else self._allowed_BTS[:, None]
        if self._bias_PNTS is not None:
            mask = self._addend(q_BNTH.dtype)
        shares = q_BNTH.shape[1] != keys_BKSH.shape[1]
        is_causal = self._fused_causal and mask is None and q_BNTH.shape[2] > 1
        return F.scaled_dot_product_attention(
            q_BNTH,
            keys_BKSH,
            v_BKSH,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=is_causal,
            enable_gqa=shares,
            scale=scale,
        )

    def _plain(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, scale: float, dropout: float) -> Tensor:
        B, N, T, _ = q_BNTH.shape
        q, k, v = (t.reshape(B * N, -1, t.shape[-1]) for t in (q_BNTH, k_BNSH, v_BNSH))
        addend = self._addend(q.dtype)
        if addend.shape[0] * addend.shape[1] > 1:
            addend = addend.expand(B, N, -1, -1).reshape(B * N, T, -1)
        else:
            addend = addend[0]
        weights = torch.baddbmm(addend, q, k.transpose(1, 2), alpha=scale).softmax(-1)
        return (F.dropout(weights, dropout) @ v).view(B, N, T, -1)

    def _scored(self, score_BNTS: Tensor, v_BNSH: Tensor, dropout: float) -> Tensor:
        """Scores that are no products of queries and keys."""
        if self._allowed_BTS is None and not self._mask.sees_all:
            self._allowed_BTS = self._mask.allowed(self._n_queries, score_BNTS.shape[-1], self._device)
        weights_BNTS = (score_BNTS + self._addend(score_BNTS.dtype)).softmax(-1)
        return F.dropout(weights_BNTS, dropout) @ v_BNSH

    def _addend(self, dtype: torch.dtype) -> Tensor:
        """What is added to the scores: positions, and -inf where nothing is seen; (1 or B, 1 or N, T, S)."""
        if dtype not in self._addends:
            addend = torch.zeros(1, 1, 1, 1, dtype=dtype, device=self._device)
            if self._bias_PNTS is not None:
                addend = self._bias_PNTS.to(dtype)
            if self._allowed_BTS is not None:
                addend = torch.where(self._allowed_BTS[:, None], addend, float("-inf"))
            self._addends[dtype] = addend
        return self._addends[dtype]


def _grouped(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head for each head of the queries."""
    groups = q_BNTH.shape[1] // k_BKSH.shape[1]
    if groups == 1:
        return k_BKSH, v_BKSH
    return k_BKSH.repeat_interleave(groups, 1), v_BKSH.repeat_interleave(groups, 1)


def _block(mask: Mask) -> int:
    """Queries that are computed together under a window: at least as many as it reaches back."""
    assert mask.window is not None
    return max(BLOCK, (mask.window - 1) * mask.dilation)


class _Blocks:
    """Attention under a window in blocks of queries, so that memory grows linearly with the length of the row.

    Q queries see the Q + reach or Q + 2 reach keys around them, and the G global ones; global queries see all keys.
    """

    def __init__(
        self, mask: Mask, length: int, device: torch.device, positions_PS: Tensor, rule: AttentionPositions
    ) -> None:
        assert mask.window is not None
        self.length = length
        self.n_global = min(mask.n_global, length)
        self.n_rows = _block(mask)
        self.before = (mask.window - 1) * mask.dilation
        self.after = 0 if mask.causal and mask.prefix_B is None else self.before
        self.n_blocks = -(-length // self.n_rows)
        query_CQ1 = torch.arange(self.n_blocks * self.n_rows, device=device).view(self.n_blocks, self.n_rows, 1)
        key_C1W = self._windows(torch.arange(length, device=device)[None, None, :, None], -1)[0, 0, :, None, :, 0]
        allowed = self._allowed(mask, query_CQ1, key_C1W) & (key_C1W >= self.n_global)
        self.addend_local = self._addend(allowed, self._bias(rule, positions_PS, query_CQ1, key_C1W))
        key_1G = torch.arange(self.n_global, device=device).expand(self.n_blocks, 1, -1)
        seen = self._allowed(mask, query_CQ1, key_1G, local=False)
        self.addend_global = self._addend(seen, self._bias(rule, positions_PS, query_CQ1, key_1G))
        # a query that sees nothing sees itself, and one behind the row anything, so that softmax stays finite
        nothing = ~(allowed.any(-1, keepdim=True) | seen.any(-1, keepdim=True))
        self.addend_local = torch.where(
            (nothing & ((query_CQ1 == key_C1W) | (query_CQ1 >= length)))[:, :, None], 0.0, self.addend_local
        )
        rows_G = torch.arange(self.n_global, device=device).view(1, -1, 1)
        keys_S = torch.arange(length, device=device).view(1, 1, -1)
        allowed_rows = self._allowed(mask, rows_G, keys_S, local=False)
        allowed_rows = allowed_rows | (~allowed_rows.any(-1, keepdim=True) & (rows_G == keys_S))
        self.addend_rows = self._addend(allowed_rows, self._bias(rule, positions_PS, rows_G, keys_S))[:, 0]

    def _windows(self, t_BNSH: Tensor, filler: float) -> Tensor:
        """The keys around each block: (B, N, C, W, H)."""
        missing = self.n_blocks * self.n_rows - self.length
        padded = F.pad(t_BNSH, (0, 0, self.before, self.after + missing), value=filler)
        return padded.unfold(2, self.before + self.n_rows + self.after, self.n_rows).transpose(-1, -2)

    @staticmethod
    def _allowed(mask: Mask, query: Tensor, key: Tensor, local: bool = True) -> Tensor:
        """Which keys are seen, by their numbers: (B or 1, C, Q, W). Keys and queries beyond the row see nothing."""
        length_rows = [t for t in (mask.keep_BS, mask.documents_BS) if t is not None]
        q, k = query[None], key[None]
        allowed = (k >= 0) & (q >= 0)
        if mask.causal:
            past = k <= q
            allowed = allowed & (past if mask.prefix_B is None else past | (k < mask.prefix_B[:, None, None, None]))
        if local:
            assert mask.window is not None
            away = (q - k).abs()
            allowed = allowed & (away < mask.window * mask.dilation) & (away % mask.dilation == 0)
        if length_rows:
            last = length_rows[0].shape[1] - 1
            at_q, at_k = query.clamp(0, last), key.clamp(0, last)
            if mask.documents_BS is not None:
                allowed = allowed & (mask.documents_BS[:, at_q] == mask.documents_BS[:, at_k])
            if mask.keep_BS is not None:
                allowed = allowed & mask.keep_BS[:, at_k]
        return allowed

    @staticmethod
    def _bias(rule: AttentionPositions, positions_PS: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        """(P, C, N, Q, W), or None."""
        last = positions_PS.shape[1] - 1
        at_q = positions_PS[:, query[..., 0].clamp(0, last)]
        at_k = positions_PS[:, key[:, 0].clamp(0, last)]
        bias = rule.bias(at_q.flatten(0, 1), at_k.flatten(0, 1))
        return None if bias is None else bias.view(*at_q.shape[:2], *bias.shape[1:])

    @staticmethod
    def _addend(allowed_BCQW: Tensor, bias_PCNQW: Tensor | None) -> Tensor:
        """(B or 1, C, 1 or N, Q, W)."""
        zero = torch.zeros(1, device=allowed_BCQW.device) if bias_PCNQW is None else bias_PCNQW
        return torch.where(allowed_BCQW[:, :, None], zero, float("-inf"))

    def __call__(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, scale: float, dropout: float) -> Tensor:
        B, N, T, H = q_BNTH.shape
        missing = self.n_blocks * self.n_rows - T
        q_BNCQH = F.pad(q_BNTH, (0, 0, 0, missing)).view(B, N, self.n_blocks, self.n_rows, H) * scale
        keys, values = self._windows(k_BNSH, 0.0), self._windows(v_BNSH, 0.0)
        local = q_BNCQH @ keys.transpose(-1, -2) + self.addend_local.transpose(1, 2)
        global_k, global_v = k_BNSH[:, :, : self.n_global], v_BNSH[:, :, : self.n_global]
        far = q_BNCQH @ global_k[:, :, None].transpose(-1, -2) + self.addend_global.transpose(1, 2)
        weights = F.dropout(torch.cat((local, far), -1).softmax(-1).to(v_BNSH.dtype), dropout)
        near, rest = torch.split(weights, [local.shape[-1], self.n_global], -1)
        mixed: Tensor = (near @ values + rest @ global_v[:, :, None]).reshape(B, N, -1, v_BNSH.shape[-1])[:, :, :T]
        if not self.n_global:
            return mixed
        score = q_BNTH[:, :, : self.n_global] @ k_BNSH.transpose(-1, -2) * scale + self.addend_rows
        rows = F.dropout(score.softmax(-1).to(v_BNSH.dtype), dropout) @ v_BNSH
        return torch.cat((rows, mixed[:, :, self.n_global :]), 2)


class Mixer(nn.Module, ABC):
    """What a sublayer computes before it joins the residual stream; `out` is its projection into the stream."""

    out: nn.Linear

    @abstractmethod
    def start(self, n_rows: int) -> LayerState:
        """What is kept before the first token, but see `CrossAttention.read`."""

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

    def __init__(
        self, d_model: int, n_heads: int, n_kv_heads: int, bias: bool, dropout: float, score: Score | None = None
    ) -> None:
        super().__init__()
        self.head_width = d_model // n_heads
        self.n_kv_heads = n_kv_heads
        self.dropout = dropout
        kv_width = n_kv_heads * self.head_width
        self.qkv = JoinedLinear(d_model, (d_model, kv_width, kv_width), bias)
        self.score = score or Score(self.head_width**-0.5)
        self.out = nn.Linear(d_model, d_model, bias=bias)

    def start(self, n_rows: int) -> KeyValue:
        """Keys and values of no positions."""
        none = self.qkv.weight.new_empty(n_rows, self.n_kv_heads, 0, self.head_width)
        return KeyValue(self.score.keys(none), none)

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        B, T, D = x_BTD.shape
        q, k, v = (part.view(B, T, -1, self.head_width).transpose(1, 2) for part in self.qkv.parts(x_BTD))
        q, k = attend.turn(q), self.score.keys(attend.turn(k))
        now: LayerState | None = None
        if isinstance(past, KeyValue):
            k, v = torch.cat((past.k_BNSH, k), 2), torch.cat((past.v_BNSH, v), 2)
            now = KeyValue(k, v)
        mixed_BNTH = attend(q, k, v, self.dropout if self.training else 0.0, self.score)
        return self.out(mixed_BNTH.transpose(1, 2).reshape(B, T, D)), now


class CrossAttention(Mixer):
    """Attention to a source: queries from the decoder, keys and values from the encoder's last layer."""

    def __init__(
        self, d_model: int, n_heads: int, n_kv_heads: int, bias: bool, dropout: float, score: Score | None = None
    ) -> None:
        super().__init__()
        self.head_width = d_model // n_heads
        self.dropout = dropout
        kv_width = n_kv_heads * self.head_width
        self.q = nn.Linear(d_model, d_model, bias=bias)
        self.kv = JoinedLinear(d_model, (kv_width, kv_width), bias)
        self.score = score or Score(self.head_width**-0.5)
        self.out = nn.Linear(d_model, d_model, bias=bias)

    def start(self, n_rows: int) -> LayerState:
        raise RuntimeError("attention to a source starts by reading one")

    def read(self, source_BSD: Tensor) -> Memory:
        """Keys and values of a source."""
        B, S, _ = source_BSD.shape
        k, v = (part.view(B, S, -1, self.head_width).transpose(1, 2) for part in self.kv.parts(source_BSD))
        return Memory(self.score.keys(k), v)

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        assert isinstance(past, Memory)
        assert attend.source is not None
        B, T, D = x_BTD.shape
        q_BNTH = self.q(x_BTD).view(B, T, -1, self.head_width).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        mixed_BNTH = attend.source(q_BNTH, past.k_BNSH, past.v_BNSH, dropout, self.score)
        return self.out(mixed_BNTH.transpose(1, 2).reshape(B, T, D)), past
