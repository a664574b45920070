"""Types that data, models and objectives share: Batch, the input of a model, and Mask, the attention mask.

Shapes: B rows, T positions of the tokens, Q query positions, S key or source positions, K noise words, C labels,
W words of a row, N rows of a table, K texts of such a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

IGNORE = -100
"""Target value of positions without a loss."""


def widest_float_dtype(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 for Apple's GPUs (mps), which lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Batch:
    """One batch of rows, on one device.

    tokens_BT: int64 token ids.
    targets_BT: int64 ids to predict at each position, IGNORE where there is no loss; None without targets.
    keep_BT: bool, False at padding; None when every position is text.
    documents_BT: int64 document index of each position, when attention must not cross documents packed into a row; None
        when a row is one text.
    source_BS: int64 ids of the source, for models that have one; else None.
    source_keep_BS: bool, False at padding of the source; None without padding.
    prefix_B: int64, length of each row's prefix, which all positions attend to (prefix LM); None without prefixes.
    segments_BT: int64, 0 for the first text of a row, 1 for the second; None when rows hold one text.
    draws_BT: float32, where a token is to be sampled from the model, the uniform number to sample it with; -1 for true
        tokens; None without scheduled sampling.
    negatives_BK: int64 noise ids of each row (negative sampling); None without them.
    labels_B: int64 class of each row; None without classes.
    values_BC: float32 targets of each row: 0 or 1 per label, or one number; None without them.
    places_BW: int64 position of the first token of each word that is tagged, -1 at padding; None without tags.
    tags_BW: int64 tag of each of these words, IGNORE at padding; None where they are unknown.
    spans_B2: int64 positions of the first and the last token of the answer of each row; None without them.
    extra_mask_BTT: bool, False where a position (second) must not attend to another (third), in addition to the
        model's own mask; None without such a mask.
    positions_BT: int64 position of each token in its text, where that is not its number in the row; else None.
    texts_NK: int64, for each of N rows of a table, the rows of this batch that are its K texts; None where each row of
        a table is one of the batch.
    """

    tokens_BT: Tensor
    targets_BT: Tensor | None = None
    keep_BT: Tensor | None = None
    documents_BT: Tensor | None = None
    source_BS: Tensor | None = None
    source_keep_BS: Tensor | None = None
    prefix_B: Tensor | None = None
    segments_BT: Tensor | None = None
    draws_BT: Tensor | None = None
    negatives_BK: Tensor | None = None
    labels_B: Tensor | None = None
    values_BC: Tensor | None = None
    places_BW: Tensor | None = None
    tags_BW: Tensor | None = None
    spans_B2: Tensor | None = None
    extra_mask_BTT: Tensor | None = None
    positions_BT: Tensor | None = None
    texts_NK: Tensor | None = None

    @property
    def n_computed_tokens(self) -> int:
        """Number of tokens that a model computes, in rows and sources, padding included."""
        return self.tokens_BT.numel() + (0 if self.source_BS is None else self.source_BS.numel())

    @property
    def required_targets_BT(self) -> Tensor:
        """The targets. Raises ValueError for a batch that has none."""
        if self.targets_BT is None:
            raise ValueError("a batch without targets has no loss")
        return self.targets_BT

    @property
    def n_targets(self) -> int:
        """Number of positions with a loss."""
        return 0 if self.targets_BT is None else int((self.targets_BT != IGNORE).sum())

    def row(self, index: int) -> Self:
        """Returns one row as a batch."""
        return self.map_tensors(lambda t: t[index : index + 1])

    def to(self, device: torch.device) -> Self:
        """Copies the batch to a device; from pinned memory without blocking."""
        return self.map_tensors(lambda t: t.to(device, non_blocking=True))

    def pin(self) -> Self:
        """Copies the batch to pinned memory, from which copies to a GPU are asynchronous."""
        return self.map_tensors(Tensor.pin_memory)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Returns a batch of the results of a function of each tensor."""
        return replace(self, **{f.name: function(t) for f in fields(self) if (t := getattr(self, f.name)) is not None})


def common_prefix_length(*texts: Sequence[object]) -> int:
    """Returns the length of the longest common prefix of sequences."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))))


def pad_right_with_keep_mask(rows: Sequence[NDArray[np.int64]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Returns right-padded rows of ids (B, T), and a mask that is False at padding; None without padding."""
    tokens_BT = pad_sequence([torch.from_numpy(row) for row in rows], True, pad_id)
    keep_BT = torch.arange(tokens_BT.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    return tokens_BT, None if keep_BT.all() else keep_BT


@dataclass(frozen=True)
class Mask:
    """Which keys each query attends to, as data. All conditions that are set must hold.

    Positions count from the first key: with cached keys, query 0 is at position S - Q.

    causal: a query attends to keys up to its own position, but see prefix_B.
    window: a query attends only to keys less than this many steps away, a step being `dilation` positions, and only
        keys a whole number of steps away; but see n_global.
    n_global: number of global tokens at the start, which attend to all and are attended by all despite the window.
    prefix_B: every query of the row attends to keys before this position, past or future (prefix LM).
    keep_BS: bool, False at padding keys, which no query attends to.
    documents_BS: a query attends only to keys of its own document.
    extra_mask_BQS: bool, an additional mask of the last Q queries, False at masked keys.
    text_positions_PS: int64, for the window and global tokens: position of each key in its text, for all rows or for
        each; None where that is its position in the row.
    width: number of rows that share a line of the KV cache, with their queries concatenated; see `CacheLineSharing`.
    """

    causal: bool = False
    window: int | None = None
    dilation: int = 1
    n_global: int = 0
    prefix_B: Tensor | None = None
    keep_BS: Tensor | None = None
    documents_BS: Tensor | None = None
    extra_mask_BQS: Tensor | None = None
    text_positions_PS: Tensor | None = None
    width: int = 1

    @property
    def is_only_causal(self) -> bool:
        """Whether this is the plain causal mask, which kernels have built in."""
        return self.causal and not self._has_tensors and self.window is None

    @property
    def allows_all(self) -> bool:
        """Whether every query attends to every key, so that no mask is needed."""
        return not self.causal and not self._has_tensors and self.window is None

    @property
    def document_starts_after_first_BS(self) -> Tensor | None:
        """True at the first token of each document after the first of a row; None where a row is one text."""
        if self.documents_BS is None:
            return None
        keep_BS = torch.ones_like(self.documents_BS, dtype=torch.bool) if self.keep_BS is None else self.keep_BS
        slots_S = torch.arange(keep_BS.shape[1], device=keep_BS.device)
        last_BS = torch.where(keep_BS, slots_S, -1).cummax(1).values
        before_BS = F.pad(last_BS[:, :-1], (1, 0), value=-1)
        other_BS = self.documents_BS != self.documents_BS.gather(1, before_BS.clamp(min=0))
        return keep_BS & other_BS & (before_BS >= 0)

    @property
    def n_rows(self) -> int:
        """Number of rows of `allows_in_each_row`; 1 where all rows have the same mask."""
        by_row = (self.prefix_B, self.keep_BS, self.documents_BS, self.text_positions_PS)
        return max([1, *(len(t) for t in by_row if t is not None)])

    @property
    def _has_tensors(self) -> bool:
        return any(t is not None for t in (self.prefix_B, self.keep_BS, self.documents_BS, self.extra_mask_BQS))

    def to_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Returns a bool mask of the last `n_queries` of `n_keys` positions: (1, Q, S), or (B, Q, S) if rows differ.

        A fully masked query (padding) attends to itself, so that softmax stays finite. Queries may outnumber the keys
        of another text; the first queries are then at the position of the first key.
        """
        key_1S = torch.arange(n_keys, device=device)[None]
        query_Q1 = torch.arange(n_keys - n_queries, n_keys, device=device).clamp(min=0)[:, None]
        allowed = self.allows_in_each_row(query_Q1, key_1S)
        if self.extra_mask_BQS is not None:
            allowed = allowed & self.extra_mask_BQS
        return allowed | (~allowed.any(-1, keepdim=True) & (key_1S == query_Q1))

    def allows_in_each_row(self, query: Tensor, key: Tensor) -> Tensor:
        """Returns whether queries attend to keys in each row: (1 or B, broadcast shape).

        query, key: positions, in broadcastable shapes.
        """
        ndim = max(query.ndim, key.ndim)
        row_B = torch.arange(self.n_rows, device=key.device)
        allowed = self.allows(row_B.view(-1, *(1,) * ndim), query, key)
        return allowed if allowed.ndim > ndim else allowed[None]

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Returns whether a query of a row attends to a key of that row.

        row, query, key: indices, in broadcastable shapes. The result lacks the shape of `row` if all rows have the
        same mask.
        """
        allowed = torch.ones_like(query == key)
        if self.causal:
            past = key <= query
            if self.prefix_B is not None:
                past = past | (key < self.prefix_B[row])
            allowed = allowed & past
        if self.window is not None:
            query_at, key_at = query, key
            if self.text_positions_PS is not None:
                text = row % len(self.text_positions_PS)
                query_at, key_at = self.text_positions_PS[text, query], self.text_positions_PS[text, key]
            away = (query_at - key_at).abs()
            near = (away < self.window * self.dilation) & (away % self.dilation == 0)
            allowed = allowed & (near | (key_at < self.n_global) | (query_at < self.n_global))
        if self.documents_BS is not None:
            allowed = allowed & (self.documents_BS[row, query] == self.documents_BS[row, key])
        if self.keep_BS is not None:
            allowed = allowed & self.keep_BS[row, key]
        return allowed
