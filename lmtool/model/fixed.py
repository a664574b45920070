"""A decoding state whose tensors stay at their place in memory, so that a captured step can be replayed.

Shapes: B rows, S slots or positions of a source, N heads, H head width, T new positions of a row, P previous tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.model.state import (
    DecodeState,
    KeyValueCache,
    LayerState,
    Memory,
    RowTokens,
    SlotPositionsAndMasks,
    TensorMap,
)

MIN_SLOTS = 256
"""Minimum number of slots of a cache; larger numbers are powers of two."""

SOURCE_LENGTH_MULTIPLE = 64
"""The number of slots for a source is a multiple of this."""


class FixedSizeKeyValueCache(KeyValueCache):
    """KV cache of fixed size. The newest position has the last slot too, because queries are the last keys.

    newest_position_1: the newest position, which changes in place.
    """

    newest_position_1: Tensor

    def append(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "FixedSizeKeyValueCache":
        """Writes one more position into this cache and returns it."""
        for cached_BNSH, new_BNTH in zip(self, (k_BNTH, v_BNTH), strict=True):
            new_BNTH = new_BNTH.to(cached_BNSH.dtype)
            cached_BNSH.index_copy_(2, self.newest_position_1, new_BNTH)
            cached_BNSH[:, :, -1:] = new_BNTH
        return self


def source_length(state: DecodeState) -> int:
    """Returns the number of positions of the source, padding included; 0 without a source."""
    return max((layer.k_BNSH.shape[2] for layer in state.layers if isinstance(layer, Memory)), default=0)


class DecodeStateShape(NamedTuple):
    """The sizes of the tensors of a fixed state. n_source: 0 without a source."""

    n_rows: int
    n_slots: int
    n_source: int

    @classmethod
    def from_state(cls, state: DecodeState) -> "DecodeStateShape":
        """Returns the smallest shape that holds a state and its next token."""
        n_slots = max(MIN_SLOTS, 1 << (state.length + 1).bit_length())
        return cls(state.n_rows, n_slots, -(-source_length(state) // SOURCE_LENGTH_MULTIPLE) * SOURCE_LENGTH_MULTIPLE)


@dataclass(frozen=True)
class StaticDecodeState(DecodeState):
    """The decoding state of rows with lines of their own, whose tensors have a fixed size and are written in place.

    So it is no value: reading a token, one at a time, changes it. Slots that hold no position are masked, and positions
    are read from a tensor, not from `length`, which a captured step could not read.

    newest_position_1: the newest position, which changes in place.
    growable_dtype: dtype of keys and values in the state that `to_growable` returns; None for those of this one.
    """

    newest_position_1: Tensor = field(kw_only=True)
    growable_dtype: torch.dtype | None = field(default=None, kw_only=True)

    @classmethod
    def empty_like(cls, state: DecodeState, shape: DecodeStateShape) -> Self:
        """Returns a fixed state of this shape without positions. state: has a KV cache, and as many rows."""
        n_rows, n_slots, n_source = shape
        device = next(tensor for layer in state.layers for tensor in layer).device
        newest_position_1 = torch.zeros(1, dtype=torch.int64, device=device)

        def empty_slots(n: int) -> TensorMap:
            # zeros, because masked values may be anything but NaN
            return lambda t: t.new_zeros(*t.shape[:2], n, t.shape[3])

        def fix_cache(layer: LayerState) -> LayerState:
            if not isinstance(layer, KeyValueCache):
                return layer
            cache = FixedSizeKeyValueCache(*layer)
            cache.newest_position_1 = newest_position_1
            return cache

        layers = state._map_layers(empty_slots(n_slots), empty_slots(n_source), lambda t: t.new_zeros(n_rows, n_slots))
        padding_B = torch.zeros(n_rows, dtype=torch.int64, device=device)
        keep_BS = torch.zeros(n_rows, n_source, dtype=torch.bool, device=device) if n_source else None
        return cls(0, padding_B, tuple(map(fix_cache, layers)), keep_BS, newest_position_1=newest_position_1)

    def copy_from_(self, state: DecodeState) -> None:
        """Copies a state of at most this shape into this one."""
        assert self.padding_B is not None
        self.newest_position_1.fill_(state.length - 1)
        self.padding_B.copy_(state.padding_B if state.padding_B is not None else torch.zeros_like(self.padding_B))
        for own_layer, layer in zip(self.layers, state.layers, strict=True):
            for own, t in zip(own_layer, layer, strict=True):
                if isinstance(layer, RowTokens):
                    own.copy_(F.pad(t, (own.shape[1] - t.shape[1], 0)))
                else:
                    own[:, :, : t.shape[2]] = t
        if self.source_keep_BS is not None:
            n = source_length(state)
            self.source_keep_BS[:, n:] = False
            self.source_keep_BS[:, :n] = True if state.source_keep_BS is None else state.source_keep_BS

    def to_growable(self) -> DecodeState:
        assert self.padding_B is not None
        layers = self._map_layers(
            lambda t: t[:, :, : self.length].clone(), Tensor.clone, lambda t: t[:, t.shape[1] - self.length :].clone()
        )
        layers = tuple(KeyValueCache(*layer) if isinstance(layer, KeyValueCache) else layer for layer in layers)
        keep_BS = None if self.source_keep_BS is None else self.source_keep_BS.clone()
        state = DecodeState(self.length, self.padding_B.clone(), layers, keep_BS).trim_common_padding()
        return state if self.growable_dtype is None else state.to_dtype(self.growable_dtype)

    # a value, unlike this state
    def select_rows(self, rows: Sequence[int], separate_lines: bool = False) -> DecodeState:  # type: ignore[override]
        return self.to_growable().select_rows(rows, separate_lines)

    def trim_common_padding(self) -> Self:
        """Returns this state: its padding is that of the state that was copied into it."""
        return self

    def add_unfilled_positions(self, n_new: int) -> Self:
        """Advances to the next position in place, whose keys and values are written afterwards. n_new: 1."""
        assert n_new == 1
        self.newest_position_1.add_(1)
        return replace(self, length=self.length + 1)

    def key_positions_and_masks(self, n_queries: int) -> SlotPositionsAndMasks:
        assert self.padding_B is not None
        n_slots = next(layer.k_BNSH.shape[2] for layer in self.layers if isinstance(layer, KeyValueCache))
        slots_1S = torch.arange(n_slots, device=self.newest_position_1.device)[None]
        is_last = slots_1S == n_slots - 1
        positions_1S = torch.where(is_last, self.newest_position_1, slots_1S)
        seen_BS = (is_last | (slots_1S < self.newest_position_1)) & (positions_1S >= self.padding_B[:, None])
        positions_BS = (positions_1S - self.padding_B[:, None]).clamp(min=0)
        return SlotPositionsAndMasks(positions_BS, None, seen_BS[:, None])
