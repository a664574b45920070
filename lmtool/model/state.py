"""The decoding state of a model, with its KV cache; immutable, although buffers are shared.

Shapes: B rows, G cache lines, W rows of a line, T new positions of a row, S slots of a line or positions of a source, Q
new slots of a line, N heads, H head width.
"""

from collections.abc import Sequence
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


class _Pair(NamedTuple):
    k_BNSH: Tensor
    v_BNSH: Tensor


class KeyValue(_Pair):
    """KV cache of self-attention: keys and values of all positions so far, each (B, N, S, H)."""

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

    def reclaim(self) -> None:
        """Give up the slots after these; see `DecodeState.reclaimed`."""
        if self._room is not None:
            self._room.used = self.k_BNSH.shape[2]


class Memory(NamedTuple):
    """KV cache of cross-attention: keys and values of all source positions, each (B, N, S, H); fixed size."""

    k_BNSH: Tensor
    v_BNSH: Tensor


class RowTokens(NamedTuple):
    """All tokens of each row so far (B, S), for models that look up n-grams of them."""

    tokens_BS: Tensor


LayerState = KeyValue | Memory | RowTokens | tuple[Tensor, ...]
"""Cache of one sublayer between calls of `advance`; plain tuples hold fixed-size states, such as (h_BD, c_BD)."""


@dataclass(frozen=True)
class Branches:
    """How rows with a common prefix share it: they have one line of keys and values in the KV cache.

    All rows write into their line, and a row attends only to the slots of its own text. So a beam search never copies
    keys and values when it reorders hypotheses.

    width: rows of a line; row i has line i // width.
    seen_BS: bool, the slots that a row attends to, in text order.
    places_PS: int64, position of each slot, counted as in `length`; for all lines, or for each.
    """

    width: int
    seen_BS: Tensor
    places_PS: Tensor

    def longer(self, n: int, length: int) -> "Branches":
        """With n more slots per row, after `length` positions."""
        device = self.seen_BS.device
        own_WQ = torch.eye(self.width, dtype=torch.bool, device=device).repeat_interleave(n, 1)
        places_Q = torch.arange(length, length + n, device=device).repeat(self.width)
        return Branches(
            self.width,
            torch.cat((self.seen_BS, own_WQ.repeat(len(self.seen_BS) // self.width, 1)), 1),
            torch.cat((self.places_PS, places_Q.expand(len(self.places_PS), -1)), 1),
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
        return len(next(iter(layer))) * (self.width if isinstance(layer, KeyValue | Memory) else 1)

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
        shared = not apart and any(isinstance(layer, KeyValue | Memory) for layer in self.layers)
        width = gcd(*(len(list(run)) for _, run in groupby(lines))) if shared and rows else 1
        lines = lines[::width]
        same_lines = len(lines) * self.width == self.n_rows and lines == list(range(len(lines)))
        lines_G = torch.tensor(lines, dtype=torch.int64, device=device)

        def chosen(layer: LayerState) -> LayerState:
            if isinstance(layer, RowTokens):
                return RowTokens(layer.tokens_BS[rows_B])
            if not isinstance(layer, KeyValue | Memory):
                return tuple(t[rows_B] for t in layer)
            return layer if same_lines else type(layer)(*(t[lines_G] for t in layer))

        picked = replace(
            self,
            padding_B=None if self.padding_B is None else self.padding_B[rows_B],
            layers=tuple(chosen(layer) for layer in self.layers),
            source_keep_BS=None if self.source_keep_BS is None else self.source_keep_BS[lines_G],
        )
        if self.branches is None and width == 1:
            return picked
        if self.branches is None:
            places_1S = torch.arange(self.length, device=device)[None]
            seen_BS = places_1S.expand(len(rows), -1) >= (0 if picked.padding_B is None else picked.padding_B[:, None])
        else:
            seen_BS, places_1S = self.branches.seen_BS[rows_B], self.branches.places_PS
            places_1S = places_1S if len(places_1S) == 1 else places_1S[lines_G]
        return replace(picked, branches=Branches(width, seen_BS, places_1S))._tidy()

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

        layers = tuple(
            KeyValue(gathered(layer.k_BNSH), gathered(layer.v_BNSH)) if isinstance(layer, KeyValue) else layer
            for layer in self.layers
        )
        if width == 1:
            return replace(self, layers=layers, branches=None)
        seen_BS = seen_GWS.gather(2, slots_GS[:, None].expand(-1, width, -1)).flatten(0, 1)
        places_GS = self.branches.places_PS.expand(len(slots_GS), -1).gather(1, slots_GS)
        return replace(self, layers=layers, branches=Branches(width, seen_BS, places_GS))

    def trimmed(self) -> Self:
        """The same state without the left padding common to all rows."""
        if self.padding_B is None:
            return self
        n = int(self.padding_B.min())
        padding_B = self.padding_B - n if n else self.padding_B
        state = replace(self, length=self.length - n, padding_B=padding_B if padding_B.any() else None)
        if not n:
            return state
        in_branches = self.branches is not None

        def shorter(layer: LayerState) -> LayerState:
            if isinstance(layer, RowTokens):
                return RowTokens(layer.tokens_BS[:, n:])
            if isinstance(layer, KeyValue) and not in_branches:
                return KeyValue(*(t[:, :, n:] for t in layer))
            return layer

        state = replace(state, layers=tuple(shorter(layer) for layer in self.layers))
        if self.branches is None:
            return state
        return replace(state, branches=replace(self.branches, places_PS=self.branches.places_PS - n))

    @property
    def goes_back(self) -> bool:
        """Whether the layers hold all positions, as KV caches do; recurrent states hold only the last one."""
        return all(not layer or isinstance(layer, KeyValue | Memory | RowTokens) for layer in self.layers)

    def upto(self, n: int) -> Self | None:
        """The state after the first n positions, of rows without padding on lines of their own; None where it was not
        kept. Of a prefix, whose positions attend to each other, all must be kept.
        """
        if n == self.length:
            return self
        if not self.goes_back or self.branches is not None:
            return None

        def kept(layer: LayerState) -> LayerState:
            if isinstance(layer, RowTokens):
                return RowTokens(layer.tokens_BS[:, :n])
            return layer.upto(n) if isinstance(layer, KeyValue) else layer

        return replace(self, length=n, layers=tuple(kept(layer) for layer in self.layers))

    def reclaimed(self) -> Self:
        """The same state, which continues in the slots of the states that have continued it, so without a copy; those
        states are not valid any more.
        """
        for layer in self.layers:
            if isinstance(layer, KeyValue):
                layer.reclaim()
        return self

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

    def places(self, n: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Position of each slot in its text (1 or G, S), the padding mask (G, S), and the slots visible to the last n
        positions of each row (G, Q, S), apart from causality; None for those that are trivial."""
        if self.branches is None:
            slots_1S = torch.arange(self.length, device=self._device)[None]
            if self.padding_B is None:
                return slots_1S, None, None
            return (slots_1S - self.padding_B[:, None]).clamp(min=0), slots_1S >= self.padding_B[:, None], None
        positions_PS = self.branches.places_PS
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
        source_keep_BS = _join_keep([state._n_source() for state in states], [state.source_keep_BS for state in states])
        padding_B = None
        if any(state.length < length or state.padding_B is not None for state in states):
            padding_B = torch.cat([state._n_padding() + length - state.length for state in states])
        return DecodeState(length, padding_B, layers, source_keep_BS, _join_branches(states, length))

    @property
    def _device(self) -> torch.device:
        return next(tensor for layer in self.layers for tensor in layer).device

    def _n_padding(self) -> Tensor:
        if self.padding_B is not None:
            return self.padding_B
        return torch.zeros(self.n_rows, dtype=torch.int64, device=self._device)

    def _n_source(self) -> tuple[int, int, torch.device] | None:
        """Lines, source positions and device; None without a source."""
        for layer in self.layers:
            if isinstance(layer, Memory):
                return len(layer.k_BNSH), layer.k_BNSH.shape[2], layer.k_BNSH.device
        return None


def _join_layer(parts: Sequence[LayerState]) -> LayerState:
    first = parts[0]
    columns: list[list[Tensor]] = [list(column) for column in zip(*parts, strict=True)]
    if isinstance(first, KeyValue):
        return KeyValue(*(_padded(tensors, front=True) for tensors in columns))
    if isinstance(first, Memory):
        return Memory(*(_padded(tensors, front=False) for tensors in columns))
    if isinstance(first, RowTokens):
        longest = max(tokens_BS.shape[1] for tokens_BS in columns[0])
        return RowTokens(torch.cat([F.pad(tokens_BS, (longest - tokens_BS.shape[1], 0)) for tokens_BS in columns[0]]))
    return tuple(torch.cat(tensors) for tensors in columns)


def _padded(tensors: Sequence[Tensor], front: bool) -> Tensor:
    """All rows, zero-padded before or after the slots of shorter ones."""
    longest = max(tensor.shape[2] for tensor in tensors)
    missing = [longest - tensor.shape[2] for tensor in tensors]
    return torch.cat(
        [F.pad(t, (0, 0, n, 0) if front else (0, 0, 0, n)) if n else t for t, n in zip(tensors, missing, strict=True)]
    )


def _join_branches(states: Sequence[DecodeState], length: int) -> Branches | None:
    known = [(state, state.branches) for state in states if state.branches is not None]
    if not known:
        return None
    n_slots = max(branches.seen_BS.shape[1] for _, branches in known)
    seen, places = [], []
    for state, branches in known:
        missing = n_slots - branches.seen_BS.shape[1]
        seen.append(F.pad(branches.seen_BS, (missing, 0), value=False))
        n_lines = len(branches.seen_BS) // branches.width
        places.append(F.pad(branches.places_PS + length - state.length, (missing, 0)).expand(n_lines, -1))
    return Branches(known[0][1].width, torch.cat(seen), torch.cat(places))


def _join_keep(sizes: Sequence[tuple[int, int, torch.device] | None], keeps: Sequence[Tensor | None]) -> Tensor | None:
    """Padding mask of all rows' sources, padded to one length; None without padding."""
    known = [size for size in sizes if size is not None]
    if not known or (len({n for _, n, _ in known}) == 1 and all(keep is None for keep in keeps)):
        return None
    longest = max(n for _, n, _ in known)
    rows = []
    for (n_rows, n, device), keep_BS in zip(known, keeps, strict=True):
        own = torch.ones(n_rows, n, dtype=torch.bool, device=device) if keep_BS is None else keep_BS
        rows.append(F.pad(own, (0, longest - n), value=False))
    return torch.cat(rows)
