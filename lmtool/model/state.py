"""The decoding state of a model, with its KV cache. It is an immutable value, although states share buffers.

The KV cache has lines of slots. Usually each row has its own line, with a slot for each position; rows with a common
prefix can share a line (`CacheLineSharing`).

Shapes: B rows, G cache lines, W rows per line, T new positions of a row, S slots of a line or positions of a source, Q
new slots of a line, N heads, H head width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

MIN_SPARE_SLOTS = 64
"""Minimum number of spare slots of a new cache buffer; it has half as many as it uses, if that is more."""


class _KeyValueBuffer:
    """Preallocated keys and values. n_used: number of slots that the newest cache in this buffer uses."""

    def __init__(self, k_BNSH: Tensor, v_BNSH: Tensor, dtype: torch.dtype, n_new: int) -> None:
        self.n_used = k_BNSH.shape[2]
        size = self.n_used + n_new
        size += max(MIN_SPARE_SLOTS, size // 2)
        self.k_BNSH, self.v_BNSH = (t.new_empty(*t.shape[:2], size, t.shape[3], dtype=dtype) for t in (k_BNSH, v_BNSH))
        self.k_BNSH[:, :, : self.n_used], self.v_BNSH[:, :, : self.n_used] = k_BNSH, v_BNSH

    def can_append(self, n_used: int, n_new: int, dtype: torch.dtype) -> bool:
        """Returns whether a cache of `n_used` slots can get `n_new` more without changing another cache."""
        writable = torch.is_inference_mode_enabled() or not self.k_BNSH.is_inference()
        enough = n_used == self.n_used and n_used + n_new <= self.k_BNSH.shape[2]
        return writable and enough and self.k_BNSH.dtype == dtype

    def append_to_spare_slots(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValueCache":
        """Writes T positions into the next slots and returns the cache of all used ones."""
        first, self.n_used = self.n_used, self.n_used + k_BNTH.shape[2]
        self.k_BNSH[:, :, first : self.n_used], self.v_BNSH[:, :, first : self.n_used] = k_BNTH, v_BNTH
        cache = KeyValueCache(self.k_BNSH[:, :, : self.n_used], self.v_BNSH[:, :, : self.n_used])
        cache._buffer = self
        return cache


class KeysAndValues(NamedTuple):
    """Keys and values of a line, each (B, N, S, H)."""

    k_BNSH: Tensor
    v_BNSH: Tensor


class KeyValueCache(KeysAndValues):
    """KV cache of self-attention: keys and values of all positions so far."""

    _buffer: _KeyValueBuffer | None = None

    def append(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValueCache":
        """Returns the cache with T more positions.

        Usually nothing is copied: the new entries go into spare slots, which the old cache does not see. A second
        continuation of the same cache gets a buffer of its own. With gradients enabled everything is copied.
        """
        if torch.is_grad_enabled():
            return KeyValueCache(torch.cat((self.k_BNSH, k_BNTH), 2), torch.cat((self.v_BNSH, v_BNTH), 2))
        n_used, n_new = self.k_BNSH.shape[2], k_BNTH.shape[2]
        dtype = torch.promote_types(self.k_BNSH.dtype, k_BNTH.dtype) if n_used else k_BNTH.dtype
        buffer = self._buffer
        if buffer is None or not buffer.can_append(n_used, n_new, dtype):
            buffer = _KeyValueBuffer(self.k_BNSH, self.v_BNSH, dtype, n_new)
        return buffer.append_to_spare_slots(k_BNTH, v_BNTH)

    def truncate(self, length: int) -> "KeyValueCache":
        """Returns the cache of the first `length` positions, in the same buffer."""
        cache = KeyValueCache(self.k_BNSH[:, :, :length], self.v_BNSH[:, :, :length])
        cache._buffer = self._buffer
        return cache


class Memory(KeysAndValues):
    """KV cache of cross-attention: keys and values of all source positions, which never change."""


class RowTokens(NamedTuple):
    """All tokens of each row so far (B, S), for models that look up n-grams of them."""

    tokens_BS: Tensor


LayerState = KeyValueCache | Memory | RowTokens | tuple[Tensor, ...]
"""State of one sublayer between calls of `LanguageModel.forward_incremental`.

Plain tuples have a fixed size, like (h_BD, c_BD).
"""

Caches = Sequence[LayerState | None]
"""States of sublayers; None for those without one."""

TensorMap = Callable[[Tensor], Tensor] | None
"""A function of each tensor of a layer's state; None for the identity."""


@dataclass(frozen=True)
class CacheLineSharing:
    """How rows with a common prefix share one line of the KV cache.

    All rows of a line write into it, and a row attends only to the slots of its own text. So a beam search never
    copies keys and values when it reorders hypotheses.

    rows_per_line: row i has line i // rows_per_line.
    seen_BS: bool, the slots that a row attends to, in text order.
    positions_PS: int64, position of each slot, padding included; for all lines (P = 1), or for each (P = G).
    """

    rows_per_line: int
    seen_BS: Tensor
    positions_PS: Tensor

    def add_unfilled_positions(self, n_new: int, past_length: int) -> "CacheLineSharing":
        """Returns it with slots for `n_new` more positions of each row, which have `past_length` so far."""
        width, device = self.rows_per_line, self.seen_BS.device
        own_WQ = torch.eye(width, dtype=torch.bool, device=device).repeat_interleave(n_new, 1)
        seen_BS = torch.cat((self.seen_BS, own_WQ.repeat(len(self.seen_BS) // width, 1)), 1)
        positions_Q = torch.arange(past_length, past_length + n_new, device=device).repeat(width)
        positions_PS = torch.cat((self.positions_PS, positions_Q.expand(len(self.positions_PS), -1)), 1)
        return CacheLineSharing(width, seen_BS, positions_PS)


class SlotPositionsAndMasks(NamedTuple):
    """What attention needs to know about the slots of lines; None for masks that mask nothing.

    positions_PS: position of each slot in its text (1 or G, S).
    keep_GS: False at padding.
    seen_GQS: the slots that the last positions of each row may see, apart from causality.
    """

    positions_PS: Tensor
    keep_GS: Tensor | None
    seen_GQS: Tensor | None


@dataclass(frozen=True)
class DecodeState:
    """The decoding state after the tokens read so far. It is immutable: reading more tokens returns a new one.

    length: number of positions read so far, the same for all rows, left padding included.
    padding_B: number of left-padding positions of each row; None without padding.
    layers: one entry per sublayer. Dimension 0 of plain tensors is the row, of `KeyValueCache` and `Memory` the line.
    source_keep_BS: per line, False at padding of the source in `Memory`; None without padding.
    shared_lines: None when each row has its own line, whose slots are the positions.
    """

    length: int
    padding_B: Tensor | None
    layers: tuple[LayerState, ...]
    source_keep_BS: Tensor | None = None
    shared_lines: CacheLineSharing | None = None

    @property
    def rows_per_line(self) -> int:
        """Number of rows that share a line of the KV cache."""
        return 1 if self.shared_lines is None else self.shared_lines.rows_per_line

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        layer = next(layer for layer in self.layers if layer)
        return len(next(iter(layer))) * (self.rows_per_line if isinstance(layer, KeysAndValues) else 1)

    def select_rows(self, rows: Sequence[int], separate_lines: bool = False) -> Self:
        """Returns the state of these rows, in this order; a row may occur more than once.

        Adjacent rows of one line share it, in groups whose size divides all such runs.

        Args:
            separate_lines: give each row a line of its own instead.
        """
        device = self._device
        rows_B = torch.tensor(rows, dtype=torch.int64, device=device)
        lines = [row // self.rows_per_line for row in rows]
        shared = not separate_lines and any(isinstance(layer, KeysAndValues) for layer in self.layers)
        width = gcd(*(len(list(run)) for _, run in groupby(lines))) if shared and rows else 1
        lines = lines[::width]
        same_lines = len(lines) * self.rows_per_line == self.n_rows and lines == list(range(len(lines)))
        lines_G = torch.tensor(lines, dtype=torch.int64, device=device)

        select_lines = None if same_lines else lambda t: t[lines_G]
        layers = self._map_layers(select_lines, select_lines, lambda t: t[rows_B], lambda t: t[rows_B])
        padding_B = None if self.padding_B is None else self.padding_B[rows_B]
        keep_BS = None if self.source_keep_BS is None else self.source_keep_BS[lines_G]
        selected = replace(self, padding_B=padding_B, layers=layers, source_keep_BS=keep_BS)
        if self.shared_lines is not None:
            seen_BS, positions_PS = self.shared_lines.seen_BS[rows_B], self.shared_lines.positions_PS
            positions_PS = positions_PS if len(positions_PS) == 1 else positions_PS[lines_G]
        elif width == 1:
            return selected
        else:
            positions_PS = torch.arange(self.length, device=device)[None]
            seen_BS = positions_PS.expand(len(rows), -1) >= (0 if padding_B is None else padding_B[:, None])
        joined = replace(selected, shared_lines=CacheLineSharing(width, seen_BS, positions_PS))
        return joined._drop_slots_unseen_by_rows()

    def _drop_slots_unseen_by_rows(self) -> Self:
        """Drops slots that no row attends to, if they are half of all; and `shared_lines`, if no rows share a line."""
        assert self.shared_lines is not None
        width, seen_BS = self.shared_lines.rows_per_line, self.shared_lines.seen_BS
        n_slots = seen_BS.shape[1]
        if width > 1 and n_slots < 2 * self.length + MIN_SPARE_SLOTS:
            return self
        seen_GWS = seen_BS.view(-1, width, n_slots)
        used_GS = seen_GWS.any(1)
        n_left = self.length if width == 1 else max(self.length, int(used_GS.sum(1).max()))
        if width > 1 and n_slots < 2 * n_left:
            return self
        # stable sort, False before True
        slots_GS = used_GS.long().argsort(dim=1, stable=True)[:, n_slots - n_left :]

        def gather_slots(t_BNSH: Tensor) -> Tensor:
            return t_BNSH.gather(2, slots_GS[:, None, :, None].expand(-1, t_BNSH.shape[1], -1, t_BNSH.shape[3]))

        layers = self._map_layers(cache=gather_slots)
        if width == 1:
            return replace(self, layers=layers, shared_lines=None)
        seen_BS = seen_GWS.gather(2, slots_GS[:, None].expand(-1, width, -1)).flatten(0, 1)
        positions_GS = self.shared_lines.positions_PS.expand(len(slots_GS), -1).gather(1, slots_GS)
        return replace(self, layers=layers, shared_lines=CacheLineSharing(width, seen_BS, positions_GS))

    def trim_common_padding(self) -> Self:
        """Returns the state without the left padding that all rows have."""
        if self.padding_B is None:
            return self
        n = int(self.padding_B.min())
        padding_B = self.padding_B - n if n else self.padding_B
        state = replace(self, length=self.length - n, padding_B=padding_B if padding_B.any() else None)
        if not n:
            return state
        if self.shared_lines is None:
            return replace(state, layers=self._map_layers(cache=lambda t: t[:, :, n:], tokens=lambda t: t[:, n:]))
        shared_lines = replace(self.shared_lines, positions_PS=self.shared_lines.positions_PS - n)
        return replace(state, layers=self._map_layers(tokens=lambda t: t[:, n:]), shared_lines=shared_lines)

    @property
    def can_rewind(self) -> bool:
        """Whether the layers hold all positions, as KV caches do; recurrent states hold only the last one."""
        return all(not layer or isinstance(layer, KeysAndValues | RowTokens) for layer in self.layers)

    def truncate(self, length: int) -> Self | None:
        """Returns the state after the first `length` positions; None if the layers do not hold it.

        Rows have no padding and lines of their own. A prefix, whose positions attend to each other, must be kept whole.
        """
        if length == self.length:
            return self
        if not self.can_rewind or self.shared_lines is not None:
            return None
        layers = self._map_layers(tokens=lambda t: t[:, :length])
        layers = tuple(layer.truncate(length) if isinstance(layer, KeyValueCache) else layer for layer in layers)
        return replace(self, length=length, layers=layers)

    def truncate_rows(self, lengths_B: Sequence[int]) -> "DecodeState":
        """Returns the state of each row after its own number of first positions, left-padded; see `truncate`."""
        if set(lengths_B) == {self.length}:
            return self
        assert self.can_rewind
        states = [self.select_rows([b]).truncate(length) for b, length in enumerate(lengths_B)]
        return DecodeState.join_rows([state for state in states if state is not None])

    def copy_positions(self, row: int, start: int, stop: int) -> "DecodeState":
        """Returns the positions from `start` up to `stop` of the text of one row, in memory of their own.

        The state can rewind, its rows have lines of their own, and there is no source. See `concatenate_positions`.
        """
        assert self.can_rewind
        assert self.shared_lines is None
        n_before = start + (0 if self.padding_B is None else int(self.padding_B[row]))
        rows, slots = slice(row, row + 1), slice(n_before, n_before + stop - start)
        layers = self._map_layers(cache=lambda t: t[rows, :, slots].clone(), tokens=lambda t: t[rows, slots].clone())
        return DecodeState(stop - start, None, layers)

    @staticmethod
    def concatenate_positions(states: "Sequence[DecodeState]") -> "DecodeState":
        """Returns the state of the text whose successive parts these are; the first one begins it."""
        layers = _merge_layers(states, lambda layer, tensors: torch.cat(tensors, _position_dim(layer)))
        return DecodeState(sum(state.length for state in states), None, layers)

    def invalidate_continuations_(self) -> Self:
        """Gives the slots of all continuations of this state back to it, in place, and returns it.

        So it can be continued without a copy. The earlier continuations are not valid any more.
        """
        for layer in self.layers:
            if isinstance(layer, KeyValueCache) and layer._buffer is not None:
                layer._buffer.n_used = layer.k_BNSH.shape[2]
        return self

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """Returns the state with keys and values in another dtype."""
        return replace(self, layers=self._map_layers(lambda t: t.to(dtype), lambda t: t.to(dtype)))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of keys and values. Raises StopIteration without any."""
        return next(layer.k_BNSH.dtype for layer in self.layers if isinstance(layer, KeysAndValues))

    def to_growable(self) -> "DecodeState":
        """Returns the state as an immutable value that takes any number of tokens; see `StaticDecodeState`."""
        return self

    def add_unfilled_positions(self, n_new: int) -> Self:
        """Returns the state with `n_new` more positions, which its layers do not contain yet."""
        shared_lines = (
            None if self.shared_lines is None else self.shared_lines.add_unfilled_positions(n_new, self.length)
        )
        return replace(self, length=self.length + n_new, shared_lines=shared_lines)

    def rows_to_lines(self, x_BT: Tensor) -> Tensor:
        """Returns new positions of rows (B, T, ...) as slots of their lines (G, Q, ...), row by row."""
        return x_BT.reshape(-1, self.rows_per_line * x_BT.shape[1], *x_BT.shape[2:]) if self.shared_lines else x_BT

    def lines_to_rows(self, x_GQ: Tensor) -> Tensor:
        """Returns slots of lines (G, Q, ...) as positions of their rows (B, T, ...)."""
        return x_GQ.reshape(len(x_GQ) * self.rows_per_line, -1, *x_GQ.shape[2:]) if self.shared_lines else x_GQ

    def key_positions_and_masks(self, n_queries: int) -> SlotPositionsAndMasks:
        """Returns what attention of the last `n_queries` positions of each row needs to know about the slots."""
        if self.shared_lines is None:
            slots_1S = torch.arange(self.length, device=self._device)[None]
            if self.padding_B is None:
                return SlotPositionsAndMasks(slots_1S, None, None)
            positions_BS = (slots_1S - self.padding_B[:, None]).clamp(min=0)
            return SlotPositionsAndMasks(positions_BS, slots_1S >= self.padding_B[:, None], None)
        positions_PS = self.shared_lines.positions_PS
        if self.padding_B is not None:
            positions_PS = positions_PS - self.padding_B[:: self.rows_per_line, None]
        seen_GQS = self.rows_to_lines(self.shared_lines.seen_BS[:, None].expand(-1, n_queries, -1))
        return SlotPositionsAndMasks(positions_PS.clamp(min=0), None, seen_GQS)

    @staticmethod
    def join_rows(states: "Sequence[DecodeState]") -> "DecodeState":
        """Returns the rows of all states as one state, with left-padded texts and right-padded sources.

        Rows share lines if those of all states do, with the same number of rows per line.
        """
        if len(states) == 1:
            return states[0]
        states = [state.to_growable() for state in states]
        if len({state.rows_per_line for state in states}) > 1:
            states = [state.select_rows(range(state.n_rows), separate_lines=True) for state in states]
        length = max(state.length for state in states)
        layers = _merge_layers(
            states,
            lambda layer, t: _pad_and_concatenate(t, _position_dim(layer), pad_left=not isinstance(layer, Memory)),
        )
        padding_B = None
        if any(state.length < length or state.padding_B is not None for state in states):
            none_B = torch.zeros(max(state.n_rows for state in states), dtype=torch.int64, device=states[0]._device)
            paddings = (none_B[: state.n_rows] if state.padding_B is None else state.padding_B for state in states)
            padding_B = torch.cat([p_B + length - state.length for p_B, state in zip(paddings, states, strict=True)])
        return DecodeState(length, padding_B, layers, _join_source_masks(states), _join_shared_lines(states, length))

    def _map_layers(
        self, cache: TensorMap = None, memory: TensorMap = None, tokens: TensorMap = None, others: TensorMap = None
    ) -> tuple[LayerState, ...]:
        """Applies a function to each tensor, by the kind of its layer: KeyValueCache, Memory, RowTokens, or another."""
        maps = ((KeyValueCache, cache), (Memory, memory), (RowTokens, tokens), (tuple, others))

        def map_layer(layer: LayerState) -> LayerState:
            function = next(function for kind, function in maps if isinstance(layer, kind))
            return layer if function is None else _layer_like(layer, map(function, layer))

        return tuple(map(map_layer, self.layers))

    @property
    def _device(self) -> torch.device:
        return next(tensor for layer in self.layers for tensor in layer).device


def _layer_like(layer: LayerState, tensors: Iterable[Tensor]) -> LayerState:
    """Returns a layer's state of the same kind with other tensors."""
    make: Callable[[Iterable[Tensor]], LayerState] = getattr(type(layer), "_make", tuple)
    return make(tensors)


def _position_dim(layer: LayerState) -> int:
    """Returns the dimension of a layer's tensors that counts positions."""
    return 2 if isinstance(layer, KeysAndValues) else 1


def _merge_layers(
    states: Sequence[DecodeState], merge: Callable[[LayerState, tuple[Tensor, ...]], Tensor]
) -> tuple[LayerState, ...]:
    """Merges the tensors of all states at each place of each layer. merge: also gets the first state's layer."""
    columns = zip(*(state.layers for state in states), strict=True)
    return tuple(_layer_like(one[0], (merge(one[0], t) for t in zip(*one, strict=True))) for one in columns)


def _pad_and_concatenate(tensors: Sequence[Tensor], pad_dim: int, *, pad_left: bool) -> Tensor:
    """Concatenates rows after zero-padding them along `pad_dim` to the longest."""
    longest = max(tensor.shape[pad_dim] for tensor in tensors)
    later_dims = (0, 0) * (tensors[0].ndim - 1 - pad_dim)
    missing = [longest - tensor.shape[pad_dim] for tensor in tensors]
    pads = [later_dims + ((n, 0) if pad_left else (0, n)) for n in missing]
    return torch.cat([F.pad(t, pad) if n else t for t, pad, n in zip(tensors, pads, missing, strict=True)])


def _join_shared_lines(states: Sequence[DecodeState], padded_length: int) -> CacheLineSharing | None:
    shared = [(one.shared_lines, padded_length - one.length) for one in states if one.shared_lines is not None]
    if not shared:
        return None
    positions = [(one.positions_PS + n).expand(len(one.seen_BS) // one.rows_per_line, -1) for one, n in shared]
    seen_BS = _pad_and_concatenate([one.seen_BS for one, _ in shared], 1, pad_left=True)
    return CacheLineSharing(shared[0][0].rows_per_line, seen_BS, _pad_and_concatenate(positions, 1, pad_left=True))


def _join_source_masks(states: Sequence[DecodeState]) -> Tensor | None:
    """Returns the padding mask of all rows' sources, padded to one length; None without padding."""
    memories = [next((layer for layer in state.layers if isinstance(layer, Memory)), None) for state in states]
    keys = [memory.k_BNSH for memory in memories if memory is not None]
    keeps = [state.source_keep_BS for state in states]
    if not keys or (len({k_BNSH.shape[2] for k_BNSH in keys}) == 1 and all(keep_BS is None for keep_BS in keeps)):
        return None
    pairs = zip(keys, keeps, strict=True)
    known = [k.new_ones(len(k), k.shape[2], dtype=torch.bool) if keep is None else keep for k, keep in pairs]
    return _pad_and_concatenate(known, 1, pad_left=False)
