"""The one interface of every model family, and the state that decoding carries.

Shapes: B rows, T new positions, S cached positions, D model width, V vocabulary, N heads, H head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch


class KeyValue(NamedTuple):
    """What an attention sublayer keeps: keys and values of all positions so far, each (B, N, S, H)."""

    k_BNSH: Tensor
    v_BNSH: Tensor


LayerState = KeyValue | tuple[()]
"""What one sublayer keeps between calls of `advance`."""


@dataclass(frozen=True)
class DecodeState:
    """All that a model remembers of the tokens it has read; a value: advancing makes a new one.

    length: positions read so far, the same for all rows.
    padding_B: how many of the first positions are padding, for rows that read fewer tokens; None when no row has any.
    layers: one entry for each sublayer. Dimension 0 of every tensor is the row.
    """

    length: int
    padding_B: Tensor | None
    layers: tuple[LayerState, ...]

    def __getitem__(self, rows: Tensor) -> Self:
        """The state of the chosen rows, in that order; a row may be chosen more than once."""
        layers = tuple(
            KeyValue(*(t[rows] for t in layer)) if isinstance(layer, KeyValue) else layer for layer in self.layers
        )
        padding_B = None if self.padding_B is None else self.padding_B[rows]
        return type(self)(self.length, padding_B, layers)

    def trimmed(self) -> Self:
        """The same state without the positions in front that are padding in every row."""
        if self.padding_B is None:
            return self
        n = int(self.padding_B.min())
        layers = tuple(
            KeyValue(*(t[:, :, n:] for t in layer)) if isinstance(layer, KeyValue) else layer for layer in self.layers
        )
        padding_B = self.padding_B - n
        return type(self)(self.length - n, padding_B if padding_B.any() else None, layers)

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """Rows of all states as one state; shorter ones are padded in front, where nobody looks."""
        length = max(state.length for state in states)
        layers = tuple(_join_layer(parts, length) for parts in zip(*(state.layers for state in states), strict=True))
        if all(state.length == length and state.padding_B is None for state in states):
            return cls(length, None, layers)
        padding_B = torch.cat([state._n_padding() + length - state.length for state in states])
        return cls(length, padding_B, layers)

    def _n_padding(self) -> Tensor:
        if self.padding_B is not None:
            return self.padding_B
        tensor = next(tensor for layer in self.layers for tensor in layer)
        return torch.zeros(len(tensor), dtype=torch.int64, device=tensor.device)


def _join_layer(parts: Sequence[LayerState], length: int) -> LayerState:
    if not all(isinstance(part, KeyValue) for part in parts):
        return ()
    keys, values = zip(*parts, strict=True)
    return KeyValue(_join_padded(keys, length), _join_padded(values, length))


def _join_padded(tensors: Sequence[Tensor], length: int) -> Tensor:
    return torch.cat([F.pad(tensor, (0, 0, length - tensor.shape[2], 0)) for tensor in tensors])


class LanguageModel(nn.Module, ABC):
    """A model that turns tokens into hidden states, and hidden states into logits.

    The two are apart so that losses can work in chunks and never hold all logits at once.

    vocab_size: number of logits. context: most positions it can read, or None where there is no limit.
    """

    vocab_size: int
    context: int | None

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Hidden states (B, T, D) of all positions at once."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores (..., V) of the next token for hidden states (..., D)."""

    @abstractmethod
    def head_parameters(self) -> tuple[Tensor, ...]:
        """The parameters that `logits` uses."""

    @abstractmethod
    def start(self, batch: Batch) -> DecodeState:
        """The state before the first token, for as many rows as `batch` has, on its device."""

    @abstractmethod
    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Read T >= 1 more tokens of each row: their hidden states (B, T, D), and the state after them.

        Equal to the same positions of `forward` on all tokens at once, however they are cut into calls.
        """
