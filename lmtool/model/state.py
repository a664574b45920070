"""The decoding state of a model, with its KV cache; immutable, although buffers are shared.

Shapes: B rows, G cache lines, W rows of a line, T new positions of a row, S slots of a line or positions of a source, Q
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

LEAST_ROOM = 64
"""Minimum spare slots when a cache is enlarged; or half of the slots in use, if more."""


class _Room:
    """Preallocated keys and values. used: number of slots that belong to a state."""

    def __init__(self, k_BNSH: Tensor, v_BNSH: Tensor, dtype: torch.dtype, n_more: int) -> None:
        self.used = k_BNSH.shape[2]
        size = self.used + n_more
        size += max(LEAST_ROOM, size // 2)
        self.k_BNSH, self.v_BNSH = (t.new_empty(*t.shape[:2], size, t.shape[3], dtype=dtype) for t in (k_BNSH, v_BNSH))
        self.k_BNSH[:, :, : self.used], self.v_BNSH[:, :, : self.used] = k_BNSH, v_BNSH

    def takes(self, n_before: int, n_more: int, dtype: torch.dtype) -> bool:
        """Whether a state of `used` slots can be appended to without changing another state."""
        writable = torch.is_inference_mode_enabled() or not self.k_BNSH.is_inference()
        enough = n_before == self.used and n_before + n_more <= self.k_BNSH.shape[2]
        return writable and enough and self.k_BNSH.dtype == dtype

    def write(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValue":
        first, self.used = self.used, self.used + k_BNTH.shape[2]
        self.k_BNSH[:, :, first : self.used], self.v_BNSH[:, :, first : self.used] = k_BNTH, v_BNTH
        state = KeyValue(self.k_BNSH[:, :, : self.used], self.v_BNSH[:, :, : self.used])
        state._room = self
        return state


class KeysAndValues(NamedTuple):
    """Keys and values of a line, each (B, N, S, H)."""

    k_BNSH: Tensor
    v_BNSH: Tensor


class KeyValue(KeysAndValues):
    """KV cache of self-attention: keys and values of all positions so far."""

    _room: _Room | None = None

    def plus(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValue":
        """The cache with T more positions.

        Usually without a copy: new entries go into spare slots, invisible to the old state. A second continuation of
        the same state gets its own buffer. With gradients enabled everything is copied.
        """
        if torch.is_grad_enabled():
            return KeyValue(torch.cat((self.k_BNSH, k_BNTH), 2), torch.cat((self.v_BNSH, v_BNTH), 2))
        n_before, n_more = self.k_BNSH.shape[2], k_BNTH.shape[2]
        dtype = torch.promote_types(self.k_BNSH.dtype, k_BNTH.dtype) if n_before else k_BNTH.dtype
        room = self._room
        if room is None or not room.takes(n_before, n_more, dtype):
            room = _Room(self.k_BNSH, self.v_BNSH, dtype, n_more)
        return room.write(k_BNTH, v_BNTH)

    def upto(self, n: int) -> "KeyValue":
        """The cache of the first n positions."""
        kept = KeyValue(self.k_BNSH[:, :, :n], self.v_BNSH[:, :, :n])
        kept._room = self._room
        return kept


class Memory(KeysAndValues):
    """KV cache of cross-attention: keys and values of all source positions; fixed size."""


class RowTokens(NamedTuple):
    """All tokens of each row so far (B, S), for models that look up n-grams of them."""

    tokens_BS: Tensor


LayerState = KeyValue | Memory | RowTokens | tuple[Tensor, ...]
"""Cache of one sublayer between calls of `advance`; plain tuples hold fixed-size states, such as (h_BD, c_BD)."""


Change = Callable[[Tensor], Tensor] | None
"""What becomes of each tensor of a layer's state; nothing for None."""


@dataclass(frozen=True)
class Branches:
    """How rows with a common prefix share it: they have one line of keys and values in the KV cache.

    All rows write into their line, and a row attends only to the slots of its own text. So a beam search never copies
    keys and values when it reorders hypotheses.

    width: rows of a line; row i has line i // width.
    seen_BS: bool, the slots that a row attends to, in text order.
    positions_PS: int64, position of each slot, counted as in `length`; for all lines, or for each.
    """

    width: int
    seen_BS: Tensor
    positions_PS: Tensor

    def longer(self, n: int, length: int) -> "Branches":
        """With n more slots per row, after `length` positions."""
        device = self.seen_BS.device
        turn_WQ = torch.eye(self.width, dtype=torch.bool, device=device).repeat_interleave(n, 1)
        positions_Q = torch.arange(length, length + n, device=device).repeat(self.width)
        return Branches(
            self.width,
            torch.cat((self.seen_BS, turn_WQ.repeat(len(self.seen_BS) // self.width, 1)), 1),
            torch.cat((self.positions_PS, positions_Q.expand(len(self.positions_PS), -1)), 1),
        )


@dataclass(frozen=True)
class DecodeState:
    """The decoding state after the tokens read so far; immutable: advancing returns a new one.

    length: positions read so far, the same for all rows.
    padding_B: number of left-padding positions of each row; None without padding.
    layers: one entry per sublayer. Dimension 0 of plain tensors is the row, of `KeyValue` and `Memory` the line.
    source_keep_BS: per line, False at padding of the source in `Memory`; None without padding.
    branches: None when each row has its own line, whose slots are the positions.
    """

    length: int
    padding_B: Tensor | None
    layers: tuple[LayerState, ...]
    source_keep_BS: Tensor | None = None
    branches: Branches | None = None

    @property
    def width(self) -> int:
        """Rows per line."""
        return 1 if self.branches is None else self.branches.width

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        layer = next(layer for layer in self.layers if layer)
        return len(next(iter(layer))) * (self.width if isinstance(layer, KeysAndValues) else 1)

    def __getitem__(self, rows_B: Tensor) -> Self:
        """The state of the selected rows, in that order; a row may be selected more than once.

        Adjacent rows of one line share it, in groups whose size divides all such runs.
        """
        return self.pick(rows_B.tolist())

    def pick(self, rows: Sequence[int], apart: bool = False) -> Self:
        """The same. apart: each row on its own line."""
        device = self._device
        rows_B = torch.tensor(rows, dtype=torch.int64, device=device)
        lines = [row // self.width for row in rows]
        shared = not apart and any(isinstance(layer, KeysAndValues) for layer in self.layers)
        width = gcd(*(len(list(run)) for _, run in groupby(lines))) if shared and rows else 1
        lines = lines[::width]
        same_lines = len(lines) * self.width == self.n_rows and lines == list(range(len(lines)))
        lines_G = torch.tensor(lines, dtype=torch.int64, device=device)

        of_line = None if same_lines else lambda t: t[lines_G]
        layers = self._changed(of_line, of_line, lambda t: t[rows_B], lambda t: t[rows_B])
        padding_B = None if self.padding_B is None else self.padding_B[rows_B]
        keep_BS = None if self.source_keep_BS is None else self.source_keep_BS[lines_G]
        picked = replace(self, padding_B=padding_B, layers=layers, source_keep_BS=keep_BS)
        if self.branches is None and width == 1:
            return picked
        if self.branches is None:
            positions_1S = torch.arange(self.length, device=device)[None]
            seen_BS = positions_1S.expand(len(rows), -1) >= (0 if padding_B is None else padding_B[:, None])
        else:
            seen_BS, positions_1S = self.branches.seen_BS[rows_B], self.branches.positions_PS
            positions_1S = positions_1S if len(positions_1S) == 1 else positions_1S[lines_G]
        return replace(picked, branches=Branches(width, seen_BS, positions_1S))._tidy()

    def _tidy(self) -> Self:
        """Drops slots that no row attends to, if they are half of all; and branches, if no rows share a line."""
        assert self.branches is not None
        width, seen_BS = self.branches.width, self.branches.seen_BS
        n_slots = seen_BS.shape[1]
        if width > 1 and n_slots < 2 * self.length + LEAST_ROOM:
            return self
        seen_GWS = seen_BS.view(-1, width, n_slots)
        used_GS = seen_GWS.any(1)
        n_left = self.length if width == 1 else max(self.length, int(used_GS.sum(1).max()))
        if width > 1 and n_slots < 2 * n_left:
            return self
        # stable sort, False before True
        slots_GS = used_GS.long().argsort(dim=1, stable=True)[:, n_slots - n_left :]

        def gathered(t_BNSH: Tensor) -> Tensor:
            return t_BNSH.gather(2, slots_GS[:, None, :, None].expand(-1, t_BNSH.shape[1], -1, t_BNSH.shape[3]))

        layers = self._changed(cache=gathered)
        if width == 1:
            return replace(self, layers=layers, branches=None)
        seen_BS = seen_GWS.gather(2, slots_GS[:, None].expand(-1, width, -1)).flatten(0, 1)
        positions_GS = self.branches.positions_PS.expand(len(slots_GS), -1).gather(1, slots_GS)
        return replace(self, layers=layers, branches=Branches(width, seen_BS, positions_GS))

    def trimmed(self) -> Self:
        """The same state without the left padding common to all rows."""
        if self.padding_B is None:
            return self
        n = int(self.padding_B.min())
        padding_B = self.padding_B - n if n else self.padding_B
        state = replace(self, length=self.length - n, padding_B=padding_B if padding_B.any() else None)
        if not n:
            return state
        if self.branches is None:
            return replace(state, layers=self._changed(cache=lambda t: t[:, :, n:], tokens=lambda t: t[:, n:]))
        branches = replace(self.branches, positions_PS=self.branches.positions_PS - n)
        return replace(state, layers=self._changed(tokens=lambda t: t[:, n:]), branches=branches)

    @property
    def goes_back(self) -> bool:
        """Whether the layers hold all positions, as KV caches do; recurrent states hold only the last one."""
        return all(not layer or isinstance(layer, KeysAndValues | RowTokens) for layer in self.layers)

    def upto(self, n: int) -> Self | None:
        """The state after the first n positions, of rows without padding on lines of their own; None where it was not
        kept. Of a prefix, whose positions attend to each other, all must be kept.
        """
        if n == self.length:
            return self
        if not self.goes_back or self.branches is not None:
            return None
        layers = self._changed(tokens=lambda t: t[:, :n])
        layers = tuple(layer.upto(n) if isinstance(layer, KeyValue) else layer for layer in layers)
        return replace(self, length=n, layers=layers)

    def each_upto(self, n_B: Sequence[int]) -> "DecodeState":
        """The state of each row after its own first n positions, left-padded; as for `upto`, of one that goes back."""
        if set(n_B) == {self.length}:
            return self
        assert self.goes_back
        states = [self.pick([b]).upto(n) for b, n in enumerate(n_B)]
        return DecodeState.join([state for state in states if state is not None])

    def part(self, row: int, first: int, last: int) -> "DecodeState":
        """Positions first to last of the text of one row, in memory of their own; of a state that goes back, whose rows
        have lines of their own, and no source. See `concat`.
        """
        assert self.goes_back
        assert self.branches is None
        n_before = first + (0 if self.padding_B is None else int(self.padding_B[row]))
        rows, slots = slice(row, row + 1), slice(n_before, n_before + last - first)
        layers = self._changed(cache=lambda t: t[rows, :, slots].clone(), tokens=lambda t: t[rows, slots].clone())
        return DecodeState(last - first, None, layers)

    @staticmethod
    def concat(parts: "Sequence[DecodeState]") -> "DecodeState":
        """The state of the text whose parts these are, from its first position on."""
        layers = tuple(_concat_layer(of_one) for of_one in zip(*(part.layers for part in parts), strict=True))
        return DecodeState(sum(part.length for part in parts), None, layers)

    def reclaimed(self) -> Self:
        """The same state, which continues in the slots of the states that have continued it, so without a copy; those
        states are not valid any more.
        """
        for layer in self.layers:
            if isinstance(layer, KeyValue) and layer._room is not None:
                layer._room.used = layer.k_BNSH.shape[2]
        return self

    def of_type(self, dtype: torch.dtype) -> Self:
        """The same with keys and values in another type."""
        return replace(self, layers=self._changed(lambda t: t.to(dtype), lambda t: t.to(dtype)))

    @property
    def dtype(self) -> torch.dtype:
        """The type of keys and values, if there are any."""
        return next(layer.k_BNSH.dtype for layer in self.layers if isinstance(layer, KeysAndValues))

    def growing(self) -> "DecodeState":
        """The same state as a value, which takes any number of tokens; see `FixedState`."""
        return self

    def longer(self, n: int) -> Self:
        """The state advanced by n positions, whose layers do not contain these yet."""
        branches = None if self.branches is None else self.branches.longer(n, self.length)
        return replace(self, length=self.length + n, branches=branches)

    def on_lines(self, x_BT: Tensor) -> Tensor:
        """New positions (B, T, ...) as slots of their lines (G, Q, ...), row by row."""
        return x_BT if self.branches is None else x_BT.reshape(-1, self.width * x_BT.shape[1], *x_BT.shape[2:])

    def on_rows(self, x_GQ: Tensor) -> Tensor:
        """Slots of lines (G, Q, ...) as positions of their rows (B, T, ...)."""
        return x_GQ if self.branches is None else x_GQ.reshape(len(x_GQ) * self.width, -1, *x_GQ.shape[2:])

    def slots(self, n: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Position of each slot in its text (1 or G, S), the padding mask (G, S), and the slots visible to the last n
        positions of each row (G, Q, S), apart from causality; None for those that are trivial."""
        if self.branches is None:
            slots_1S = torch.arange(self.length, device=self._device)[None]
            if self.padding_B is None:
                return slots_1S, None, None
            return (slots_1S - self.padding_B[:, None]).clamp(min=0), slots_1S >= self.padding_B[:, None], None
        positions_PS = self.branches.positions_PS
        if self.padding_B is not None:
            positions_PS = positions_PS - self.padding_B[:: self.width, None]
        seen_GQS = self.on_lines(self.branches.seen_BS[:, None].expand(-1, n, -1))
        return positions_PS.clamp(min=0), None, seen_GQS

    @staticmethod
    def join(states: "Sequence[DecodeState]") -> "DecodeState":
        """The rows of all states as one state, with left-padded texts and right-padded sources.

        Rows share lines if those of all states do, with the same number of rows per line.
        """
        if len(states) == 1:
            return states[0]
        states = [state.growing() for state in states]
        if len({state.width for state in states}) > 1:
            states = [state.pick(range(state.n_rows), apart=True) for state in states]
        length = max(state.length for state in states)
        layers = tuple(_join_layer(parts) for parts in zip(*(state.layers for state in states), strict=True))
        padding_B = None
        if any(state.length < length or state.padding_B is not None for state in states):
            none_B = torch.zeros(max(state.n_rows for state in states), dtype=torch.int64, device=states[0]._device)
            paddings = (none_B[: state.n_rows] if state.padding_B is None else state.padding_B for state in states)
            padding_B = torch.cat([p_B + length - state.length for p_B, state in zip(paddings, states, strict=True)])
        return DecodeState(length, padding_B, layers, _join_keep(states), _join_branches(states, length))

    def _changed(
        self, cache: Change = None, memory: Change = None, tokens: Change = None, others: Change = None
    ) -> tuple[LayerState, ...]:
        """The layers with each tensor changed by the function for its kind: `KeyValue`, `Memory`, `RowTokens`, others.

        Without one it stays.
        """

        changes = ((KeyValue, cache), (Memory, memory), (RowTokens, tokens), (tuple, others))

        def changed(layer: LayerState) -> LayerState:
            change = next(change for kind, change in changes if isinstance(layer, kind))
            return layer if change is None else _alike(layer, map(change, layer))

        return tuple(map(changed, self.layers))

    @property
    def _device(self) -> torch.device:
        return next(tensor for layer in self.layers for tensor in layer).device


def _alike(layer: LayerState, tensors: Iterable[Tensor]) -> LayerState:
    """A layer's state of the same kind, of these tensors."""
    make: Callable[[Iterable[Tensor]], LayerState] = getattr(type(layer), "_make", tuple)
    return make(tensors)


def _concat_layer(parts: Sequence[LayerState]) -> LayerState:
    dim = 2 if isinstance(parts[0], KeysAndValues) else 1
    return _alike(parts[0], (torch.cat(tensors, dim) for tensors in zip(*parts, strict=True)))


def _join_layer(parts: Sequence[LayerState]) -> LayerState:
    kind = parts[0]
    dim, front = 2 if isinstance(kind, KeysAndValues) else 1, not isinstance(kind, Memory)
    return _alike(kind, (_padded(tensors, dim, front=front) for tensors in zip(*parts, strict=True)))


def _padded(tensors: Sequence[Tensor], dim: int, *, front: bool) -> Tensor:
    """All rows, zero-padded before or after what shorter ones have along a dimension."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    behind = (0, 0) * (tensors[0].ndim - 1 - dim)
    missing = [longest - tensor.shape[dim] for tensor in tensors]
    pads = [behind + ((n, 0) if front else (0, n)) for n in missing]
    return torch.cat([F.pad(t, pad) if n else t for t, pad, n in zip(tensors, pads, missing, strict=True)])


def _join_branches(states: Sequence[DecodeState], length: int) -> Branches | None:
    branches = [(one.branches, length - one.length) for one in states if one.branches is not None]
    if not branches:
        return None
    positions = [(one.positions_PS + n).expand(len(one.seen_BS) // one.width, -1) for one, n in branches]
    seen_BS = _padded([one.seen_BS for one, _ in branches], 1, front=True)
    return Branches(branches[0][0].width, seen_BS, _padded(positions, 1, front=True))


def _join_keep(states: Sequence[DecodeState]) -> Tensor | None:
    """Padding mask of all rows' sources, padded to one length; None without padding."""
    memories = [next((layer for layer in state.layers if isinstance(layer, Memory)), None) for state in states]
    keys = [memory.k_BNSH for memory in memories if memory is not None]
    keeps = [state.source_keep_BS for state in states]
    if not keys or (len({k_BNSH.shape[2] for k_BNSH in keys}) == 1 and all(keep_BS is None for keep_BS in keeps)):
        return None
    pairs = zip(keys, keeps, strict=True)
    known = [k.new_ones(len(k), k.shape[2], dtype=torch.bool) if keep is None else keep for k, keep in pairs]
    return _padded(known, 1, front=False)
