"""The kernels of attention: dense, in blocks of a sliding window, or one query at a time.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width, P is B or 1 where all rows have
the same positions. Sliding window: C blocks of Q queries, with W keys each; R is 1, B, C or B C.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.compute.kernels import ops
from lmtool.model.layers.positions import AttentionPositions
from lmtool.model.layers.scores import Score

MAX_PLAIN_KEYS = 512
"""Up to this many keys, CPU training uses plain matrix products, because the fused backward pass is slower."""

_FORCE_FUSED = ContextVar("always_fused", default=False)

MIN_BLOCK_QUERIES = 64
"""Minimum number of queries per block of sliding-window attention."""

KEY_MULTIPLE = 16
"""The number of keys per block is a multiple of this, because matrix products of odd sizes are slow."""


@contextmanager
def force_fused_attention_on_cpu() -> Iterator[None]:
    """Makes CPUs use the fused kernel for all lengths during the context, as GPUs do."""
    before = _FORCE_FUSED.set(True)
    try:
        yield
    finally:
        _FORCE_FUSED.reset(before)


class DenseAttentionKernel:
    """Computes softmax(score(q, k) + addend) v for all queries and keys.

    allowed_RTS: which keys each query attends to; None for all.
    bias_RNTS: what is added to the scores; None for nothing.
    causal: whether queries and keys are the same positions, under the causal mask.
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
        fused = not torch.compiler.is_compiling() and _FORCE_FUSED.get()
        self._plain = device.type == "cpu" and not fused and torch.is_grad_enabled() and n_keys <= MAX_PLAIN_KEYS
        self._addends: dict[tuple[torch.dtype, int], Tensor] = {}

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        """Returns the weighted sums of the values. q_BNTH, k_BKSH: transformed by `score`."""
        if score.scale is None:
            return ops.dropout(self.attention_weights(q_BNTH, k_BKSH, score), dropout) @ v_BKSH
        if self._plain:
            (B, N, T, _), addend = q_BNTH.shape, self._bias_with_mask(q_BNTH.dtype, len(q_BNTH))
            k_BNSH, v_BNSH = (_repeat_kv_heads(t_BKSH, N) for t_BKSH in (k_BKSH, v_BKSH))
            if addend.shape[0] * addend.shape[1] == 1:
                q, k = q_BNTH.reshape(B * N, T, -1), k_BNSH.reshape(B * N, -1, k_BNSH.shape[-1])
                score_BNTS = torch.baddbmm(addend[0], q, k.transpose(1, 2), alpha=score.scale).view(B, N, T, -1)
            else:
                score_BNTS = (q_BNTH * score.scale) @ k_BNSH.transpose(-1, -2)
                score_BNTS += addend  # in place, for memory
            return ops.dropout(score_BNTS.softmax(-1), dropout) @ v_BNSH
        mask = None
        if self._bias_RNTS is not None:
            mask = self._bias_with_mask(q_BNTH.dtype, len(q_BNTH))
        elif self._allowed_RTS is not None:
            mask = _repeat_rows(self._allowed_RTS[:, None], len(q_BNTH))
        is_causal, gqa = self._causal and self._n_keys > 1, q_BNTH.shape[1] != k_BKSH.shape[1]
        return F.scaled_dot_product_attention(
            q_BNTH, k_BKSH, v_BKSH, mask, dropout_p=dropout, is_causal=is_causal, scale=score.scale, enable_gqa=gqa
        )

    def attention_weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """Returns the attention weights (B, N, T, S), by the formula."""
        score_BNTS = score.compute_scores(q_BNTH, _repeat_kv_heads(k_BKSH, q_BNTH.shape[1]))
        return (score_BNTS + self._bias_with_mask(score_BNTS.dtype, len(q_BNTH))).softmax(-1)

    def _bias_with_mask(self, dtype: torch.dtype, n_rows: int) -> Tensor:
        """Returns the positional bias, with -inf at masked keys (1 or n_rows, 1 or N, T or 1, S or 1)."""
        if (dtype, n_rows) not in self._addends:
            addend = torch.zeros(1, 1, 1, 1, dtype=dtype, device=self._device)
            if self._bias_RNTS is not None:
                addend = _repeat_rows(self._bias_RNTS.to(dtype), n_rows)
            allowed_RTS = self._allowed_RTS
            if self._causal:
                allowed_RTS = Mask(causal=True).to_tensor(self._n_keys, self._n_keys, self._device)
            if allowed_RTS is not None:
                addend = torch.where(_repeat_rows(allowed_RTS[:, None], n_rows), addend, float("-inf"))
            self._addends[dtype, n_rows] = addend
        return self._addends[dtype, n_rows]


def _repeat_rows(tensor: Tensor, n_rows: int) -> Tensor:
    """Repeats a tensor for `n_rows` rows, unless it broadcasts."""
    return tensor if len(tensor) in (1, n_rows) else tensor.repeat(n_rows // len(tensor), *(1,) * (tensor.ndim - 1))


def _repeat_kv_heads(t_BKSH: Tensor, n_heads: int) -> Tensor:
    """Repeats keys or values to one head per query head."""
    groups = n_heads // t_BKSH.shape[1]
    return t_BKSH if groups == 1 else t_BKSH.repeat_interleave(groups, 1)


class PerQueryCausalKernel:
    """Causal attention of the last queries, each by a kernel of its own for the keys up to it.

    So they are computed as if they came one by one, and a product whose rows are independent, as in int8, gives the
    same bits as in decoding steps. Rounding of its inputs would otherwise magnify differences in the last bits.
    """

    def __init__(self, kernels: "Sequence[AttentionKernel]", n_keys: int) -> None:
        self._kernels = kernels
        self._n_keys = n_keys

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        """See `DenseAttentionKernel`."""
        parts = [
            kernel(q_BNTH[:, :, i : i + 1], k_BKSH[:, :, :n], v_BKSH[:, :, :n], dropout, score)
            for i, n, kernel in self._queries_and_kernels()
        ]
        return torch.cat(parts, 2)

    def attention_weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """Returns the attention weights (B, N, T, S), by the formula."""
        rows = [
            F.pad(kernel.attention_weights(q_BNTH[:, :, i : i + 1], k_BKSH[:, :, :n], score), (0, self._n_keys - n))
            for i, n, kernel in self._queries_and_kernels()
        ]
        return torch.cat(rows, 2)

    def _queries_and_kernels(self) -> "Iterator[tuple[int, int, AttentionKernel]]":
        """Returns the index of each query, the number of its keys, and its kernel."""
        first = self._n_keys - len(self._kernels) + 1
        return ((i, first + i, kernel) for i, kernel in enumerate(self._kernels))


class WindowKernel:
    """Sliding-window attention in blocks of queries, each a batch row of its own, so memory is linear in the length.

    Positions a whole number of steps apart are regrouped, which turns a dilated window into a plain one. The Q queries
    of a block attend to the keys of the block, those within the window, and the global ones. Global queries attend to
    all keys.
    """

    def __init__(self, mask: Mask, positions_PS: Tensor, position: AttentionPositions | None) -> None:
        self._length, device = positions_PS.shape[1], positions_PS.device
        length = self._length
        self._dilation = mask.dilation
        self._before, self._n_queries = _window_block_sizes(mask)
        self._after = 0 if mask.causal and mask.prefix_B is None else self._before
        self._n_global = min(mask.n_global, length)
        # blocks per group of positions a whole number of steps apart
        self._n_blocks = -(-length // (mask.dilation * self._n_queries))
        index_T = torch.arange(self._n_blocks * self._n_queries * mask.dilation, device=device)
        query_CQ = self._query_blocks(index_T[None, None, :, None])[:, 0, :, 0]
        # positions outside the row are -1 here
        key_CW = self._key_blocks(index_T[None, None, :, None] + 1)[:, 0, :, 0] - 1
        local = (key_CW >= self._n_global) & (key_CW < length)
        global_G = torch.arange(self._n_global, device=device)
        key_CW = torch.cat((key_CW, global_G.expand(len(key_CW), -1)), 1)
        real = F.pad(local, (0, self._n_global), value=True)
        query_CQ1, key_C1W = query_CQ.clamp(max=length - 1)[:, :, None], key_CW.clamp(0, length - 1)[:, None]
        allowed = mask.allows_in_each_row(query_CQ1, key_C1W) & real[:, None]
        # a fully masked query attends to itself, also past the end of the row, so that softmax stays finite
        is_same = query_CQ[:, :, None] == key_CW[:, None]
        allowed_RQW = (allowed | (~allowed.any(-1, keepdim=True) & is_same)).flatten(0, 1)
        self._query_CQ, self._key_CW = query_CQ, key_C1W[:, 0]
        bias = None
        if position is not None:
            blocks = (positions_PS[:, index].flatten(0, 1) for index in (query_CQ1[..., 0], key_C1W[:, 0]))
            bias = position.bias(*blocks)
        self._kernel = DenseAttentionKernel(allowed_RQW, bias, False, key_CW.shape[1], device)
        self._global_kernel: DenseAttentionKernel | None = None
        if self._n_global:
            allowed = mask.allows_in_each_row(global_G[:, None], index_T[None, :length])
            allowed = allowed | (~allowed.any(-1, keepdim=True) & (global_G[:, None] == index_T[:length]))
            bias = None if position is None else position.bias(positions_PS[:, : self._n_global], positions_PS)
            self._global_kernel = DenseAttentionKernel(allowed, bias, False, length, device)

    @staticmethod
    def is_cheaper_than_dense(mask: Mask, length: int) -> bool:
        """Returns whether blocks are cheaper than dense attention: for long rows of contiguous positions."""
        if mask.window is None or mask.text_positions_PS is not None:
            return False
        return length > 2 * mask.dilation * _window_block_sizes(mask).n_queries

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> Tensor:
        mixed = self._kernel(
            self._query_blocks(q_BNTH),
            self._key_blocks_with_global(k_BKSH),
            self._key_blocks_with_global(v_BKSH),
            dropout,
            score,
        )
        blocks = mixed.reshape(len(q_BNTH), self._dilation, self._n_blocks, *mixed.shape[1:])
        mixed_BNTH = blocks.permute(0, 3, 2, 4, 1, 5).flatten(2, 4)[:, :, : self._length]
        if self._global_kernel is None:
            return mixed_BNTH
        rows = self._global_kernel(q_BNTH[:, :, : self._n_global], k_BKSH, v_BKSH, dropout, score)
        return torch.cat((rows, mixed_BNTH[:, :, self._n_global :]), 2)

    def attention_weights(self, q_BNTH: Tensor, k_BKSH: Tensor, score: Score) -> Tensor:
        """Returns the attention weights (B, N, T, S) for all keys, zeros outside the windows."""
        B, N, length = len(q_BNTH), q_BNTH.shape[1], self._length
        blocks = self._kernel.attention_weights(self._query_blocks(q_BNTH), self._key_blocks_with_global(k_BKSH), score)
        of_rows = blocks.view(B, -1, *blocks.shape[1:]).transpose(1, 2).flatten(2)
        # positions that two blocks have are masked in one of them; those past the end of the row are cut off
        flat = (self._query_CQ[:, :, None] * length + self._key_CW[:, None]).flatten()
        rows_BNTS = of_rows.new_zeros(B, N, self._query_CQ.numel() * length)
        rows_BNTS = rows_BNTS.scatter_add(2, flat.expand_as(of_rows), of_rows).view(B, N, -1, length)[:, :, :length]
        if self._global_kernel is None:
            return rows_BNTS
        first = self._global_kernel.attention_weights(q_BNTH[:, :, : self._n_global], k_BKSH, score)
        return torch.cat((first, rows_BNTS[:, :, self._n_global :]), 2)

    def _pad_and_unflatten_by_dilation(self, t_BNTH: Tensor) -> Tensor:
        """Splits positions into steps and offsets (B, N, steps, dilation, H), zero-padded to whole blocks."""
        B, N, T, H = t_BNTH.shape
        steps = self._n_blocks * self._n_queries
        return F.pad(t_BNTH, (0, 0, 0, steps * self._dilation - T)).reshape(B, N, steps, self._dilation, H)

    def _query_blocks(self, q_BNTH: Tensor) -> Tensor:
        """Returns the queries of each block (B C, N, Q, H)."""
        B, N, _, H = q_BNTH.shape
        blocks = self._pad_and_unflatten_by_dilation(q_BNTH).view(
            B, N, self._n_blocks, self._n_queries, self._dilation, H
        )
        return blocks.permute(0, 4, 2, 1, 3, 5).flatten(0, 2)

    def _key_blocks(self, t_BKSH: Tensor) -> Tensor:
        """Returns the keys of each block and those within its window (B C, K, W, H)."""
        padded = F.pad(self._pad_and_unflatten_by_dilation(t_BKSH), (0, 0, 0, 0, self._before, self._after))
        blocks = padded.unfold(2, self._before + self._n_queries + self._after, self._n_queries)
        return blocks.permute(0, 3, 2, 1, 5, 4).flatten(0, 2)

    def _key_blocks_with_global(self, t_BKSH: Tensor) -> Tensor:
        blocks = self._key_blocks(t_BKSH)
        if not self._n_global:
            return blocks
        first = t_BKSH[:, :, : self._n_global].repeat_interleave(len(blocks) // len(t_BKSH), 0)
        return torch.cat((blocks, first), 2)


class _WindowBlockSizes(NamedTuple):
    """How many steps back a block attends, at least the window's, and its number of queries."""

    n_steps_back: int
    n_queries: int


def _window_block_sizes(mask: Mask) -> _WindowBlockSizes:
    assert mask.window is not None
    n_steps_back = -(-(mask.window - 1) // KEY_MULTIPLE) * KEY_MULTIPLE
    return _WindowBlockSizes(n_steps_back, max(MIN_BLOCK_QUERIES, n_steps_back))


AttentionKernel = DenseAttentionKernel | WindowKernel | PerQueryCausalKernel
