"""The one interface of every model family, and the state that decoding carries.

Shapes: B rows, T new positions, S cached positions, D model width, V vocabulary, N heads, H head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import UsageError


class KeyValue(NamedTuple):
    """What attention to the text so far keeps: keys and values of all its positions, each (B, N, S, H)."""

    k_BNSH: Tensor
    v_BNSH: Tensor


class Memory(NamedTuple):
    """What attention to a source keeps: keys and values of all its positions, each (B, N, S, H); it never grows."""

    k_BNSH: Tensor
    v_BNSH: Tensor


LayerState = KeyValue | Memory | tuple[Tensor, ...]
"""What one sublayer keeps between calls of `advance`; plain tuples hold states of fixed size, such as (h_BD, c_BD)."""


@dataclass(frozen=True)
class DecodeState:
    """All that a model remembers of the tokens it has read; a value: advancing makes a new one.

    length: positions read so far, the same for all rows.
    padding_B: how many of the first positions are padding, for rows that read fewer tokens; None when no row has any.
    layers: one entry for each sublayer. Dimension 0 of every tensor is the row.
    source_keep_BS: False at padding of the source that `Memory` holds; None when no source has any.
    """

    length: int
    padding_B: Tensor | None
    layers: tuple[LayerState, ...]
    source_keep_BS: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Self:
        """The state of the chosen rows, in that order; a row may be chosen more than once."""
        return replace(
            self,
            padding_B=None if self.padding_B is None else self.padding_B[rows],
            layers=tuple(_like(layer, [t[rows] for t in layer]) for layer in self.layers),
            source_keep_BS=None if self.source_keep_BS is None else self.source_keep_BS[rows],
        )

    def trimmed(self) -> Self:
        """The same state without the positions in front that are padding in every row."""
        if self.padding_B is None:
            return self
        n = int(self.padding_B.min())
        layers = tuple(
            KeyValue(*(t[:, :, n:] for t in layer)) if isinstance(layer, KeyValue) else layer for layer in self.layers
        )
        padding_B = self.padding_B - n
        return replace(self, length=self.length - n, padding_B=padding_B if padding_B.any() else None, layers=layers)

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """Rows of all states as one state; shorter texts are padded in front and shorter sources behind, unseen."""
        length = max(state.length for state in states)
        layers = tuple(_join_layer(parts, length) for parts in zip(*(state.layers for state in states), strict=True))
        source_keep_BS = _join_keep([state._n_source() for state in states], [state.source_keep_BS for state in states])
        if all(state.length == length and state.padding_B is None for state in states):
            return cls(length, None, layers, source_keep_BS)
        padding_B = torch.cat([state._n_padding() + length - state.length for state in states])
        return cls(length, padding_B, layers, source_keep_BS)

    def _n_padding(self) -> Tensor:
        if self.padding_B is not None:
            return self.padding_B
        tensor = next(tensor for layer in self.layers for tensor in layer)
        return torch.zeros(len(tensor), dtype=torch.int64, device=tensor.device)

    def _n_source(self) -> tuple[int, int, torch.device] | None:
        """Rows, source positions and device; None without a source."""
        for layer in self.layers:
            if isinstance(layer, Memory):
                return len(layer.k_BNSH), layer.k_BNSH.shape[2], layer.k_BNSH.device
        return None


def _like(layer: LayerState, tensors: Sequence[Tensor]) -> LayerState:
    """The tensors as a state of the same kind."""
    return type(layer)(*tensors) if isinstance(layer, KeyValue | Memory) else tuple(tensors)


def _join_layer(parts: Sequence[LayerState], length: int) -> LayerState:
    first = parts[0]
    columns: list[list[Tensor]] = [list(column) for column in zip(*parts, strict=True)]
    if isinstance(first, KeyValue):
        return KeyValue(*(_padded(tensors, length, front=True) for tensors in columns))
    if isinstance(first, Memory):
        longest = max(part[0].shape[2] for part in parts)
        return Memory(*(_padded(tensors, longest, front=False) for tensors in columns))
    return tuple(torch.cat(tensors) for tensors in columns)


def _padded(tensors: Sequence[Tensor], length: int, front: bool) -> Tensor:
    """All rows, with zeros before or behind their positions up to `length`."""
    missing = [length - tensor.shape[2] for tensor in tensors]
    return torch.cat(
        [F.pad(t, (0, 0, n, 0) if front else (0, 0, 0, n)) if n else t for t, n in zip(tensors, missing, strict=True)]
    )


def _join_keep(sizes: Sequence[tuple[int, int, torch.device] | None], keeps: Sequence[Tensor | None]) -> Tensor | None:
    """Which source positions of all rows are text, when the sources are padded to one length; None when all are."""
    known = [size for size in sizes if size is not None]
    if not known or (len({n for _, n, _ in known}) == 1 and all(keep is None for keep in keeps)):
        return None
    longest = max(n for _, n, _ in known)
    rows = []
    for (n_rows, n, device), keep_BS in zip(known, keeps, strict=True):
        own = torch.ones(n_rows, n, dtype=torch.bool, device=device) if keep_BS is None else keep_BS
        rows.append(F.pad(own, (0, longest - n), value=False))
    return torch.cat(rows)


class LanguageModel(nn.Module, ABC):
    """A model that turns tokens into hidden states, and hidden states into logits.

    The two are apart so that losses can work in chunks and never hold all logits at once.

    vocab_size: number of logits. context: positions it is meant to read, or None where there is no limit. longest: most
        positions it can read, however well, or None where there is no limit.
    reads: what the prediction at a position may depend on. "past": the tokens up to it. "source": these, and all of a
        source; `start` reads the source, which for a prefix LM is the prefix. "both": all tokens of the row; such a
        model has no next token, so `start` and `advance` are not for it.
    recurrent: each position is computed from the one before, so that reading token by token is no more work.
    """

    vocab_size: int
    context: int | None
    longest: int | None = None
    reads: Literal["past", "source", "both"] = "past"
    recurrent: bool = False

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Hidden states (B, T, D) of all positions at once."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores (..., V) of the next token for hidden states (..., D)."""

    @abstractmethod
    def head_parameters(self) -> tuple[Tensor, ...]:
        """The parameters that `logits` uses."""

    def token_vectors(self) -> Tensor:
        """The vector of each token before it has any context (V, D). Raises UsageError where a model has none."""
        raise UsageError("this model has no vectors of tokens: it counts them", fix="name a run of another family")

    def layers(self, batch: Batch) -> list[Tensor]:
        """The embeddings, then the output of each layer, each (B, T, D); all from one pass over `batch.tokens_BT`.

        A model with an encoder reads the tokens with that. Raises UsageError where a model has no vectors.
        """
        raise UsageError("this model has no vectors of tokens: it counts them", fix="name a run of another family")

    @abstractmethod
    def start(self, batch: Batch) -> DecodeState:
        """The state before the first token, for as many rows as `batch` has, on its device.

        Models that read a source read `batch.source_BS` here; of `batch.tokens_BT` only the number of rows counts.
        """

    @abstractmethod
    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Read T >= 1 more tokens of each row: their hidden states (B, T, D), and the state after them.

        Equal to the same positions of `forward` on all tokens at once, however they are cut into calls.
        """
