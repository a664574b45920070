"""Multi-head attention, and the choice of the kernel that computes it.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width, D model width, P is B or 1 where
all rows have the same positions. Sliding window: C blocks of Q queries, with W keys each; R is 1, B, C or B C.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.model.language_model import KeyValue, LayerState, Memory
from lmtool.model.layers.dropout import drop
from lmtool.model.layers.observing import Attending, Observer
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RotaryPositions, rotated
from lmtool.model.layers.scores import Score

PLAIN_LIMIT = 512
"""Up to this many keys, CPU training uses plain matrix products; the fused kernel's backward pass is slower."""

FEW = 16
"""Up to this many queries after cached keys are computed one by one on CPUs in inference; see `_Steps`."""

_ALWAYS_FUSED = ContextVar("always_fused", default=False)

BLOCK = 64
"""Minimum number of queries per block of sliding-window attention."""

STEP = 16
"""The keys per block are a multiple of this; matrix products of odd sizes are slow."""

FLEX_DEVICES = ("cuda",)
FLEX_FROM = 1024
"""From this many positions on, eight of its blocks, FlexAttention computes masks and biases in compiled models."""

FLEX_WIDTH = 16
"""Minimum width of heads in FlexAttention."""

FLEX_POSITIONS = (AttentionPositions, RotaryPositions, AlibiPositions)
"""Positional encodings that FlexAttention has, these and no others derived from them."""


@contextmanager
def always_fused() -> Iterator[None]:
    """Within it, a CPU's attention has the fused kernel for all lengths, as a GPU's has."""
    before = _ALWAYS_FUSED.set(True)
    try:
        yield
    finally:
        _ALWAYS_FUSED.reset(before)


class Attend:
    """softmax(score(q, k) + mask) v under one mask: built once per forward pass and shared by all layers of a stack.

    Masks, biases and rotations are computed lazily, on first use. Layers without attention read padding and document
    boundaries of their positions, the queries, from it: `keep_BT` and `begins_BT`.

    mask: which keys each query attends to. positions_PS: positions of all keys, the last `n_queries` being the
        queries'; 0, 1, ... when None. rule: positional encoding inside attention; None for none. source:
        cross-attention, for layers that have it. width: number of rows that share a cache line, with their queries
        concatenated; see `Branches`.
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
        width: int = 1,
    ) -> None:
        self.mask = mask
        self.source = source
        self.width = width
        self._n_queries, self._n_keys, self._device = n_queries, n_keys, device
        self._rule = rule
        if positions_PS is None:
            positions_PS = torch.arange(n_keys, device=device)[None]
        self._positions_PS = positions_PS
        self._query_PT = positions_PS[:, n_keys - n_queries :]
        self._rotations: dict[torch.dtype, tuple[Tensor, Tensor] | None] = {}
        # no cached properties, since torch.compile stops at their locks
        self._begins_BT: Tensor | None = None
        self._kernel: _Kernel | _Windows | _Steps | None = None
        # one at most; torch.compile may forget that an attribute was set, but not what is in a list
        self._flex: list[_Flex] = []

    @property
    def keep_BT(self) -> Tensor | None:
        """False at padding queries; None without padding."""
        return None if self.mask.keep_BS is None else self.mask.keep_BS[:, self._n_keys - self._n_queries :]

    @property
    def begins_BT(self) -> Tensor | None:
        """True at the first query of each isolated document; None where a row is one text."""
        if self._begins_BT is None and (begins_BS := self.mask.begins_BS) is not None:
            self._begins_BT = begins_BS[:, self._n_keys - self._n_queries :]
        return self._begins_BT

    @property
    def in_blocks(self) -> bool:
        """Whether attention is computed block by block, not for all query-key pairs."""
        return self._n_queries == self._n_keys and _Windows.applies(self.mask, self._n_keys)

    def apart(self) -> "Attend":
        """The same without its bias, if that is learned and so has a gradient: it is computed anew."""
        if self._rule is None or not any(parameter.requires_grad for parameter in self._rule.parameters()):
            return self
        anew = copy(self)
        anew._kernel = None
        return anew

    def rotate(self, x_BNTH: Tensor) -> Tensor:
        """Queries and new keys of all heads, rotated to the positions of the queries."""
        if self._rule is None:
            return x_BNTH
        if x_BNTH.dtype not in self._rotations:
            self._rotations[x_BNTH.dtype] = self._rule.rotations(self._query_PT, x_BNTH.shape[-1], x_BNTH.dtype)
        rotation = self._rotations[x_BNTH.dtype]
        return x_BNTH if rotation is None else rotated(x_BNTH, *rotation)

    def __call__(
        self,
        q_BNTH: Tensor,
        keys_BKSH: Tensor,
        v_BKSH: Tensor,
        dropout: float,
        score: Score | None = None,
        observer: Observer | None = None,
    ) -> Tensor:
        """The weighted sums of the values: (B, N, T, H). Groups of N / K query heads share a key-value head.

        keys_BKSH: output of `score.keys`. score: the scaled dot product when None. observer: gets the weights (B, N, T,
        S), computed beside the sums from the same queries, keys and addends, since the fused kernel never forms them.
        """
        score = score or Score(q_BNTH.shape[-1] ** -0.5)
        q_BNTH = score.queries(q_BNTH)
        if observer is None and self._flexes(q_BNTH, v_BKSH, dropout, score):
            if not self._flex:
                self._flex.append(_Flex(self.mask, self._n_keys, self._device, self._positions_PS, self._rule))
            return self._flex[0](q_BNTH, keys_BKSH, v_BKSH, score)
        kernel = self._kernel = self._kernel or self._prepare()
        if observer is not None:
            with torch.autocast(q_BNTH.device.type, enabled=False):
                observer(kernel.weights(_wide(q_BNTH), _wide(keys_BKSH), score))
        return kernel(q_BNTH, keys_BKSH, v_BKSH, dropout, score)

    def _flexes(self, q_BNTH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> bool:
        """Whether FlexAttention computes it, which is compiled: only in compiled models, so that no other waits for it.

        Where SDPA has the mask built in, that is faster; a dilated window is dense in blocks of its own.
        """
        mask, rule = self.mask, self._rule
        return (
            torch.compiler.is_compiling()
            and self._device.type in FLEX_DEVICES
            and FLEX_FROM <= self._n_keys == self._n_queries
            and min(q_BNTH.shape[-1], v_BKSH.shape[-1]) >= FLEX_WIDTH
            and score.scale is not None
            and not dropout
            and (rule is None or type(rule) in FLEX_POSITIONS)
            and (isinstance(rule, AlibiPositions) or not (mask.only_causal or mask.sees_all))
            and mask.dilation == 1
            and mask.seen_BQS is None
        )

    def _prepare(self) -> "_Kernel | _Windows | _Steps":
        mask, n_queries, n_keys, device = self.mask, self._n_queries, self._n_keys, self._device
        if self.in_blocks:
            return _Windows(mask, n_keys, device, self._positions_PS, self._rule)
        few = 1 < n_queries <= min(FEW, n_keys - 1) and self.width == 1
        if few and mask.only_causal and device.type == "cpu" and not torch.is_grad_enabled():
            lengths = range(n_keys - n_queries + 1, n_keys + 1)
            steps = [Attend(mask, 1, n, device, self._positions_PS[:, :n], self._rule) for n in lengths]
            return _Steps([step._prepare() for step in steps], n_keys)
        bias_PNTS = None if self._rule is None else self._rule.bias(self._query_PT, self._positions_PS)
        fused_causal = mask.only_causal and n_queries == n_keys and bias_PNTS is None
        sees_all = mask.sees_all or fused_causal or (mask.only_causal and n_queries == 1)
        allowed_BTS = None if sees_all else mask.allowed(n_queries, n_keys, device)
        return _Kernel(allowed_BTS, bias_PNTS, fused_causal, n_keys, device)


class _Kernel:
    """softmax(score(q, k) + addend) v for all queries and keys.

    allowed_RTS: which keys each query attends to, all when None. bias_RNTS: added to the scores. causal: queries and
        keys are the same positions, under the causal mask.
    """

    def __init__(
        self, allowed_RTS: Tensor | None, bias_RNTS: Tensor | None, causal: bool, n_keys: int, device: torch.device
    ) -> None:
        self._allowed_RTS = allowed_RTS
        self._bias_RNTS = bias_RNTS
        self._causal = causal
        self._n_keys = n_keys
        self._device = device
        # torch.compile stops at context variables
        fused = not torch.compiler.is_compiling() and _ALWAYS_FUSED.get()
        self._plain = device.type == "cpu" and not fused and torch.is_grad_enabled() and n_keys <= PLAIN_LIMIT
        self._addends: dict[tuple[torch.dtype, int], Tensor] = {}

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        """The weighted sums of the values. q_BNTH and k_BKSH: queries and keys as transformed by `score`."""
        if score.scale is None:
            return drop(self.weights(q_BNTH, k_BKSH, score), dropout) @ v_BKSH
        if self._plain:
            k_BNSH, v_BNSH = (_grouped(t_BKSH, q_BNTH.shape[1]) for t_BKSH in (k_BKSH, v_BKSH))
            return self._products(q_BNTH, k_BNSH, v_BNSH, dropout, score.scale)
        mask = None
        if self._bias_RNTS is not None:
            mask = self._addend(q_BNTH.dtype, len(q_BNTH))
        elif self._allowed_RTS is not None:
            mask = _rows(self._allowed_RTS[:, None], len(q_BNTH))
        return F.scaled_dot_product_attention(
            q_BNTH,
            k_BKSH,
            v_BKSH,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=self._causal and self._n_keys > 1,
            scale=score.scale,
            enable_gqa=q_BNTH.shape[1] != k_BKSH.shape[1],
        )

    def weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """The attention weights (B, N, T, S), by the formula."""
        score_BNTS = score.compare(q_BNTH, _grouped(k_BKSH, q_BNTH.shape[1]))
        return (score_BNTS + self._addend(score_BNTS.dtype, len(q_BNTH))).softmax(-1)

    def _products(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, dropout: float, scale: float) -> Tensor:
        B, N, T, _ = q_BNTH.shape
        addend = self._addend(q_BNTH.dtype, B)
        if addend.shape[0] * addend.shape[1] == 1:
            q, k = q_BNTH.reshape(B * N, T, -1), k_BNSH.reshape(B * N, -1, k_BNSH.shape[-1])
            score_BNTS = torch.baddbmm(addend[0], q, k.transpose(1, 2), alpha=scale).view(B, N, T, -1)
        else:
            score_BNTS = (q_BNTH * scale) @ k_BNSH.transpose(-1, -2)
            # in place, for memory
            score_BNTS += addend
        return drop(score_BNTS.softmax(-1), dropout) @ v_BNSH

    def _addend(self, dtype: torch.dtype, n_rows: int) -> Tensor:
        """Positional bias, and -inf at masked keys: (1 or n_rows, 1 or N, T or 1, S or 1)."""
        if (dtype, n_rows) not in self._addends:
            addend = torch.zeros(1, 1, 1, 1, dtype=dtype, device=self._device)
            if self._bias_RNTS is not None:
                addend = _rows(self._bias_RNTS.to(dtype), n_rows)
            allowed_RTS = self._allowed_RTS
            if self._causal:
                allowed_RTS = Mask(causal=True).allowed(self._n_keys, self._n_keys, self._device)
            if allowed_RTS is not None:
                addend = torch.where(_rows(allowed_RTS[:, None], n_rows), addend, float("-inf"))
            self._addends[dtype, n_rows] = addend
        return self._addends[dtype, n_rows]


def _rows(t: Tensor, n_rows: int) -> Tensor:
    """The tensor repeated for `n_rows` rows; unchanged if it broadcasts."""
    return t if len(t) in (1, n_rows) else t.repeat(n_rows // len(t), *(1,) * (t.ndim - 1))


def _grouped(t_BKSH: Tensor, n_heads: int) -> Tensor:
    """Keys or values repeated to one head per query head."""
    groups = n_heads // t_BKSH.shape[1]
    return t_BKSH if groups == 1 else t_BKSH.repeat_interleave(groups, 1)


def _wide(t: Tensor) -> Tensor:
    """In float32, if narrower."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


class _Flex:
    """FlexAttention (Dong et al. 2024): a compiled kernel that skips the blocks in which a mask has no pair.

    For as many queries as keys. A query that attends to nothing, which is padding, gets zeros.
    """

    def __init__(
        self, mask: Mask, length: int, device: torch.device, positions_PS: Tensor, rule: AttentionPositions | None
    ) -> None:
        # here, since it imports the compiler
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return mask.sees(row, query, key)

        self._blocks = create_block_mask(sees, mask.n_rows, None, length, length, device)
        self._score_mod = rule.score_mod(positions_PS) if isinstance(rule, AlibiPositions) else None

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, score: Score) -> Tensor:
        """As of `_Kernel`."""
        from torch.nn.attention.flex_attention import flex_attention

        mixed: Tensor = flex_attention(
            # autocast leaves some scores in float32
            q_BNTH.to(v_BKSH.dtype),
            k_BKSH.to(v_BKSH.dtype),
            v_BKSH,
            score_mod=self._score_mod,
            block_mask=self._blocks,
            scale=score.scale,
            enable_gqa=q_BNTH.shape[1] != k_BKSH.shape[1],
        )
        return mixed


class _Steps:
    """Causal attention of the last queries, each by a kernel of its own for the keys up to it.

    So they are computed as if they came one by one, and a product whose rows are independent, as in int8, then gives
    bit for bit what it gives in decoding steps; rounding of its inputs would else make much of the last bits.
    """

    def __init__(self, kernels: "Sequence[_Kernel | _Windows | _Steps]", n_keys: int) -> None:
        self._kernels = kernels
        self._n_keys = n_keys

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        """As of `_Kernel`."""
        parts = [
            kernel(q_BNTH[:, :, i : i + 1], k_BKSH[:, :, :n], v_BKSH[:, :, :n], dropout, score)
            for i, n, kernel in self._each()
        ]
        return torch.cat(parts, 2)

    def weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """The attention weights (B, N, T, S), by the formula."""
        rows = [
            F.pad(kernel.weights(q_BNTH[:, :, i : i + 1], k_BKSH[:, :, :n], score), (0, self._n_keys - n))
            for i, n, kernel in self._each()
        ]
        return torch.cat(rows, 2)

    def _each(self) -> "Iterator[tuple[int, int, _Kernel | _Windows | _Steps]]":
        """Each query, the number of its keys, and its kernel."""
        first = self._n_keys - len(self._kernels) + 1
        return ((i, first + i, kernel) for i, kernel in enumerate(self._kernels))


class _Windows:
    """Sliding-window attention in blocks of queries, each a batch row of its own, so memory is linear in the length.

    Positions a whole number of steps apart are regrouped, which turns a dilated window into a plain one. Q queries
    attend to the keys of their block, those within the window, and the global ones. Global queries attend to all keys.
    """

    def __init__(
        self, mask: Mask, length: int, device: torch.device, positions_PS: Tensor, rule: AttentionPositions | None
    ) -> None:
        self._length = length
        self._dilation = mask.dilation
        self._before, self._n_queries = _reach(mask)
        self._after = 0 if mask.causal and mask.prefix_B is None else self._before
        self._n_global = min(mask.n_global, length)
        # blocks per group of positions a whole number of steps apart
        self._n_blocks = -(-length // (mask.dilation * self._n_queries))
        places_T = torch.arange(self._n_blocks * self._n_queries * mask.dilation, device=device)
        query_CQ = self._query_blocks(places_T[None, None, :, None])[:, 0, :, 0]
        # positions outside the row are -1 here
        key_CW = self._key_blocks(places_T[None, None, :, None] + 1)[:, 0, :, 0] - 1
        local = (key_CW >= self._n_global) & (key_CW < length)
        global_G = torch.arange(self._n_global, device=device)
        key_CW = torch.cat((key_CW, global_G.expand(len(key_CW), -1)), 1)
        real = F.pad(local, (0, self._n_global), value=True)
        query_CQ1, key_C1W = query_CQ.clamp(max=length - 1)[:, :, None], key_CW.clamp(0, length - 1)[:, None]
        allowed = mask.between(query_CQ1, key_C1W) & real[:, None]
        # a fully masked query attends to itself, also past the end of the row, so that softmax stays finite
        own = query_CQ[:, :, None] == key_CW[:, None]
        allowed_RQW = (allowed | (~allowed.any(-1, keepdim=True) & own)).flatten(0, 1)
        self._query_CQ, self._key_CW = query_CQ, key_C1W[:, 0]
        bias = None
        if rule is not None:
            bias = rule.bias(
                positions_PS[:, query_CQ1[..., 0]].flatten(0, 1), positions_PS[:, key_C1W[:, 0]].flatten(0, 1)
            )
        self._kernel = _Kernel(allowed_RQW, bias, False, key_CW.shape[1], device)
        self._of_global: _Kernel | None = None
        if self._n_global:
            allowed = mask.between(global_G[:, None], places_T[None, :length])
            allowed = allowed | (~allowed.any(-1, keepdim=True) & (global_G[:, None] == places_T[:length]))
            bias = None if rule is None else rule.bias(positions_PS[:, : self._n_global], positions_PS)
            self._of_global = _Kernel(allowed, bias, False, length, device)

    @staticmethod
    def applies(mask: Mask, length: int) -> bool:
        """Whether a row is long enough for blocks to be cheaper than dense attention; needs contiguous positions."""
        if mask.window is None or mask.places_PS is not None:
            return False
        return length > 2 * mask.dilation * _reach(mask)[1]

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        mixed = self._kernel(
            self._query_blocks(q_BNTH), self._keys_and_global(k_BKSH), self._keys_and_global(v_BKSH), dropout, score
        )
        mixed_BNTH = self._row(mixed, len(q_BNTH))
        if self._of_global is None:
            return mixed_BNTH
        rows = self._of_global(q_BNTH[:, :, : self._n_global], k_BKSH, v_BKSH, dropout, score)
        return torch.cat((rows, mixed_BNTH[:, :, self._n_global :]), 2)

    def weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """The attention weights (B, N, T, S) for all keys, zeros outside the windows."""
        B, N, length = len(q_BNTH), q_BNTH.shape[1], self._length
        blocks = self._kernel.weights(self._query_blocks(q_BNTH), self._keys_and_global(k_BKSH), score)
        of_rows = blocks.view(B, -1, *blocks.shape[1:]).transpose(1, 2).flatten(2)
        # places that blocks have twice, or past the end of the row, have no weight in one of them, or are cut off
        flat = (self._query_CQ[:, :, None] * length + self._key_CW[:, None]).flatten()
        rows_BNTS = of_rows.new_zeros(B, N, self._query_CQ.numel() * length)
        rows_BNTS = rows_BNTS.scatter_add(2, flat.expand_as(of_rows), of_rows).view(B, N, -1, length)[:, :, :length]
        if self._of_global is None:
            return rows_BNTS
        first = self._of_global.weights(q_BNTH[:, :, : self._n_global], k_BKSH, score)
        return torch.cat((first, rows_BNTS[:, :, self._n_global :]), 2)

    def _steps(self, t_BNTH: Tensor) -> Tensor:
        """(B, N, steps, dilation, H), zero-padded to whole blocks."""
        B, N, T, H = t_BNTH.shape
        steps = self._n_blocks * self._n_queries
        return F.pad(t_BNTH, (0, 0, 0, steps * self._dilation - T)).reshape(B, N, steps, self._dilation, H)

    def _query_blocks(self, q_BNTH: Tensor) -> Tensor:
        """The queries of each block: (B C, N, Q, H)."""
        B, N, _, H = q_BNTH.shape
        blocks = self._steps(q_BNTH).view(B, N, self._n_blocks, self._n_queries, self._dilation, H)
        return blocks.permute(0, 4, 2, 1, 3, 5).flatten(0, 2)

    def _key_blocks(self, t_BKSH: Tensor) -> Tensor:
        """The keys of each block and those within its window: (B C, K, W, H)."""
        padded = F.pad(self._steps(t_BKSH), (0, 0, 0, 0, self._before, self._after))
        blocks = padded.unfold(2, self._before + self._n_queries + self._after, self._n_queries)
        return blocks.permute(0, 3, 2, 1, 5, 4).flatten(0, 2)

    def _keys_and_global(self, t_BKSH: Tensor) -> Tensor:
        blocks = self._key_blocks(t_BKSH)
        if not self._n_global:
            return blocks
        first = t_BKSH[:, :, : self._n_global].repeat_interleave(len(blocks) // len(t_BKSH), 0)
        return torch.cat((blocks, first), 2)

    def _row(self, mixed: Tensor, n_rows: int) -> Tensor:
        """Blocks back to rows: (B, N, T, H)."""
        blocks = mixed.reshape(n_rows, self._dilation, self._n_blocks, *mixed.shape[1:])
        row_BNTH: Tensor = blocks.permute(0, 3, 2, 4, 1, 5).flatten(2, 4)[:, :, : self._length]
        return row_BNTH


def _reach(mask: Mask) -> tuple[int, int]:
    """How many steps back a block attends, at least the window's, and the number of queries per block."""
    assert mask.window is not None
    reach = -(-(mask.window - 1) // STEP) * STEP
    return reach, max(BLOCK, reach)


class Mixed(NamedTuple):
    """Output of a mixer.

    x_BTD: added to the residual stream. now: the updated cache, which may be None without a cache. auxiliary_B: as in
        `Output`.
    """

    x_BTD: Tensor
    now: LayerState | None = None
    auxiliary_B: Tensor | None = None


Adaptable = tuple[tuple[str, tuple[str, ...]], ...]
"""Linear maps by name, each with the names of its parts as adapter targets."""


class Mixer(nn.Module, ABC):
    """A sublayer's function, without the residual connection; `out` is its projection into the residual stream."""

    out: nn.Linear

    def projections(self) -> Sequence[nn.Linear]:
        """Its projections into the residual stream: `out`, or those of the mixers it is composed of."""
        return (self.out,)

    @abstractmethod
    def start(self, n_rows: int) -> LayerState:
        """The cache before the first token, but see `CrossAttention.read`."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        """The output for x, which continues the cached `past`; and the updated cache, unless `past` is None.

        `past` is None in a full forward pass; only then is there an auxiliary loss. `attend` holds the padding mask and
        the boundaries of isolated documents. A mixer whose cache is a plain tuple gets rows that share a cache line
        separately; all others get the whole line.
        """

    def adaptable(self) -> Adaptable:
        """Its linear maps that can have adapters."""
        return ()


class JoinedLinear(nn.Linear):
    """Several linear maps of one input computed as one; `widths` are their output widths."""

    def __init__(self, d_in: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias=bias)
        self.widths = widths

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each map."""
        return torch.split(self(x), list(self.widths), -1)


class Heads(NamedTuple):
    """Sizes of an attention: `n` heads of queries and `n_kv` of keys of `width`, and of values of `value_width`."""

    d_model: int
    n: int
    n_kv: int
    width: int
    value_width: int
    bias: bool = True
    qkv_bias: bool = True

    @property
    def q_width(self) -> int:
        """Width of all queries."""
        return self.n * self.width

    @property
    def k_width(self) -> int:
        """Width of all keys."""
        return self.n_kv * self.width

    @property
    def v_width(self) -> int:
        """Width of all values."""
        return self.n_kv * self.value_width

    @property
    def mixed_width(self) -> int:
        """Width of the weighted sums of values of all heads."""
        return self.n * self.value_width


class SelfAttention(Attending, Mixer):
    """Multi-head self-attention (Vaswani et al. 2017), with grouped key-value heads (Ainslie et al. 2023)."""

    def __init__(
        self, sizes: Heads, dropout: float, score: Score | None = None, norms: tuple[nn.Module, nn.Module] | None = None
    ) -> None:
        """norms: of queries and of keys."""
        super().__init__()
        self.head_width, self.value_width = sizes.width, sizes.value_width
        self.n_kv_heads = sizes.n_kv
        self.dropout = dropout
        self.qkv = JoinedLinear(sizes.d_model, (sizes.q_width, sizes.k_width, sizes.v_width), sizes.qkv_bias)
        self.score = score or Score(self.head_width**-0.5)
        self.out = nn.Linear(sizes.mixed_width, sizes.d_model, bias=sizes.bias)
        self.q_norm, self.k_norm = norms or (nn.Identity(), nn.Identity())
        self._norms = norms is not None

    def start(self, n_rows: int) -> KeyValue:
        """An empty KV cache."""
        none = self.qkv.weight.new_empty(n_rows, self.n_kv_heads, 0, self.head_width)
        return KeyValue(self.score.keys(none), none.new_empty(n_rows, self.n_kv_heads, 0, self.value_width))

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        B, T, _ = x_BTD.shape
        qkv: Tensor = self.qkv(x_BTD)
        if self._norms:
            q, k, v = torch.split(qkv, list(self.qkv.widths), -1)
            qkv = torch.cat((self.q_norm(q), self.k_norm(k), v), -1)
        n_values = self.qkv.widths[-1]
        qk, v = torch.split(qkv, [qkv.shape[-1] - n_values, n_values], -1)
        qk = qk.view(B, T, -1, self.head_width).transpose(1, 2)
        v = v.view(B, T, -1, self.value_width).transpose(1, 2)
        q, k = torch.split(attend.rotate(qk), [qk.shape[1] - self.n_kv_heads, self.n_kv_heads], 1)
        k = self.score.keys(k)
        now: LayerState | None = None
        if isinstance(past, KeyValue):
            now = past.plus(k, v)
            k, v = now
        mixed_BNTH = attend(q, k, v, self.dropout if self.training else 0.0, self.score, self.observer)
        return Mixed(self.out(mixed_BNTH.transpose(1, 2).flatten(2)), now)

    def adaptable(self) -> Adaptable:
        return ("qkv", ("query", "key", "value")), ("out", ("output",))


class CrossAttention(Attending, Mixer):
    """Cross-attention: queries from the decoder, keys and values from the encoder's last layer."""

    def __init__(self, sizes: Heads, dropout: float, score: Score | None = None) -> None:
        super().__init__()
        self.head_width, self.value_width = sizes.width, sizes.value_width
        self.dropout = dropout
        self.q = nn.Linear(sizes.d_model, sizes.q_width, bias=sizes.qkv_bias)
        self.kv = JoinedLinear(sizes.d_model, (sizes.k_width, sizes.v_width), sizes.qkv_bias)
        self.score = score or Score(self.head_width**-0.5)
        self.out = nn.Linear(sizes.mixed_width, sizes.d_model, bias=sizes.bias)

    def start(self, n_rows: int) -> LayerState:
        raise RuntimeError("cross-attention starts by reading a source")

    def read(self, source_BSD: Tensor) -> Memory:
        """Keys and values of a source."""
        B, S, _ = source_BSD.shape
        k, v = self.kv.parts(source_BSD)
        k_BNSH = k.view(B, S, -1, self.head_width).transpose(1, 2)
        return Memory(self.score.keys(k_BNSH), v.view(B, S, -1, self.value_width).transpose(1, 2))

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        assert isinstance(past, Memory)
        assert attend.source is not None
        B, T, _ = x_BTD.shape
        q_BNTH = self.q(x_BTD).view(B, T, -1, self.head_width).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        mixed_BNTH = attend.source(q_BNTH, past.k_BNSH, past.v_BNSH, dropout, self.score, self.observer)
        return Mixed(self.out(mixed_BNTH.transpose(1, 2).flatten(2)), past)

    def adaptable(self) -> Adaptable:
        return ("q", ("query",)), ("kv", ("key", "value")), ("out", ("output",))


def mixers_of(model: nn.Module) -> list[Mixer]:
    """All mixers of a model, in module order, nested ones included."""
    return [module for module in model.modules() if isinstance(module, Mixer)]


def linears_of(model: nn.Module) -> list[nn.Linear]:
    """The linear maps in the mixers of a model, each once, in module order."""
    linears = (part for mixer in mixers_of(model) for part in mixer.modules() if isinstance(part, nn.Linear))
    return list(dict.fromkeys(linears))


def widths_of(linear: nn.Linear) -> tuple[int, ...]:
    """Output widths of the maps that a linear map computes jointly; else its own."""
    return linear.widths if isinstance(linear, JoinedLinear) else (linear.out_features,)
