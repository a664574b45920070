"""The one interface of every model family.

Shapes: B rows, T new positions, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.state import DecodeState, KeyValue, LayerState, Memory

__all__ = ["DecodeState", "KeyValue", "LanguageModel", "LayerState", "Memory", "Output"]


class Output(NamedTuple):
    """What a forward pass gives back.

    hidden_BTD: hidden states of all positions.
    auxiliary_B: what a model asks of itself beside its targets, a loss of each row, from nothing but the row's own
        text; None where it asks nothing. Objectives add it where they train, and never where they measure.
    """

    hidden_BTD: Tensor
    auxiliary_B: Tensor | None = None


def summed(auxiliaries: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of those auxiliary losses that there are (B,); None where there are none."""
    found = [auxiliary_B for auxiliary_B in auxiliaries if auxiliary_B is not None]
    return torch.stack(found).sum(0) if found else None


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
    def forward(self, batch: Batch) -> Output:
        """All positions at once: their hidden states (B, T, D), and the auxiliary losses of the rows, if it has any."""

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

    def layers_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        """What `layers` gives, and the auxiliary losses (B,) of the same pass, if there are any."""
        return self.layers(batch), None

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
