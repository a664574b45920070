"""The one interface of every model family.

Shapes: B rows, T new positions, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.state import DecodeState, KeyValue, LayerState, Memory
from lmtool.recipe.spec import Reads

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


Parts = list[Sequence[nn.Module | None]]
"""What stands at each depth of a model; None for what its recipe leaves out."""


class LanguageModel(nn.Module, ABC):
    """A model that turns tokens into hidden states, and hidden states into logits.

    The two are apart so that losses can work in chunks and never hold all logits at once.

    vocab_size: number of logits. context: positions it is meant to read, or None where there is no limit. longest: most
        positions it can read, however well, or None where there is no limit.
    reads: what the prediction at a position may depend on. Where that is a "source", `start` reads it; where it is
        "both" sides or "words", there is no next token, so `start` and `advance` are not for the model.
    recurrent: each position is computed from the one before, so that reading token by token is no more work.
    step_threads: as many threads compute a step of training fastest, where its steps are small; None for all there are.
    any_length: names of tensors that are as long as what was learnt; all others have one shape.
    counts_V: how often each id stands in the training text, for models that keep it, and zeros until it is known.
    """

    vocab_size: int
    context: int | None
    longest: int | None = None
    reads: Reads = "past"
    recurrent: bool = False
    step_threads: int | None = None
    any_length: frozenset[str] = frozenset()
    counts_V: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts_V", None)

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

    @abstractmethod
    def parts(self) -> Parts:
        """Embeddings and positions, then each layer from the bottom up; heads are left out.

        The layers of a decoder stand above those of its encoder.
        """

    @abstractmethod
    def describe(self) -> str:
        """A few words for lists: the family, and its layers and width."""


class SilentModel(LanguageModel):
    """A model that has no next token, so that it does not write."""

    @abstractmethod
    def refusal(self) -> UsageError:
        """Why not, and what it can be asked instead."""

    def start(self, batch: Batch) -> DecodeState:
        raise self.refusal()

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        raise self.refusal()


class CountingModel(LanguageModel):
    """A model that has no gradient: it learns by counting, in one pass through the text, in its order.

    width: how many tokens before one it is predicted from. n_read: tokens of the text that are counted.
    """

    width: int
    n_read: Tensor

    @abstractmethod
    def count(self, batches: Iterable[Batch], n_tokens: int) -> None:
        """Count every target of the batches behind the tokens before it. n_tokens: of the text, that these cover.

        Batches come in the order of the text. Until all are read, the model predicts as before.
        """

    @abstractmethod
    def log_p(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """What `logits` gives for one token (...) at each position (..., D), without computing that of any other."""


class Wrapper(LanguageModel):
    """A model around another one, its body: all that a subclass does not do itself is the body's."""

    def __init__(self, body: LanguageModel) -> None:
        super().__init__()
        self.body = body
        self.vocab_size, self.context, self.longest = body.vocab_size, body.context, body.longest
        self.reads, self.recurrent = body.reads, body.recurrent

    def forward(self, batch: Batch) -> Output:
        output: Output = self.body(batch)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        return self.body.logits(hidden)

    def head_parameters(self) -> tuple[Tensor, ...]:
        return self.body.head_parameters()

    def token_vectors(self) -> Tensor:
        return self.body.token_vectors()

    def layers(self, batch: Batch) -> list[Tensor]:
        return self.body.layers(batch)

    def layers_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        return self.body.layers_and_auxiliary(batch)

    def start(self, batch: Batch) -> DecodeState:
        return self.body.start(batch)

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self.body.advance(tokens_BT, state)

    def parts(self) -> Parts:
        return self.body.parts()

    def describe(self) -> str:
        return self.body.describe()


def topped(layers: Iterable[Sequence[nn.Module | None]], *above: nn.Module | None) -> Parts:
    """Layers, and with the last one what stands above them all."""
    *below, last = layers
    return [*below, (*last, *above)]
