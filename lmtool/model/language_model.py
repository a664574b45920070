"""The interface of all model families.

Shapes: B rows, T new positions, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.state import DecodeState, KeyValueCache, LayerState, Memory, RowTokens
from lmtool.recipe.spec.model import Reads

__all__ = ["DecodeState", "KeyValueCache", "LanguageModel", "LayerState", "Memory", "Output", "RowTokens"]


class Output(NamedTuple):
    """Output of a forward pass.

    hidden_BTD: hidden states of all positions.
    auxiliary_B: an auxiliary loss per row, which depends on that row alone; None without one. Objectives add it in
        training, never in evaluation.
    """

    hidden_BTD: Tensor
    auxiliary_B: Tensor | None = None


def sum_auxiliary_losses(losses: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of the auxiliary losses that are not None (B,); None if all are."""
    known = [loss_B for loss_B in losses if loss_B is not None]
    return torch.stack(known).sum(0) if known else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """A context in which a model is in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


ModulesByDepth = list[Sequence[nn.Module | None]]
"""The modules at each depth of a model; None for those its recipe omits."""


class LanguageModel(nn.Module, ABC):
    """A model that turns tokens into hidden states, and hidden states into logits.

    The two are separate so that losses can be computed in chunks, without all logits in memory at once.

    vocab_size: number of logits.
    context: training context length, or None for no limit.
    longest: maximum number of positions it can process, or None for no limit.
    reads: what the prediction at a position may depend on. With "source", `start` encodes it; "both" (bidirectional)
        and "words" (bag of words) have no next token, so no `start` and `forward_incremental`.
    recurrent: each position is computed from the one before, so token-by-token decoding costs no more.
    step_threads: fastest number of threads for a training step, if steps are small; None for all threads.
    any_length: names of tensors whose length depends on the training data; all others have a fixed shape.
    description: for lists: family, layers and width.
    counts_V: count of each id in the training text, for models that keep it; zeros until it is known.
    """

    max_positions: int | None = None
    reads: Reads = "past"
    recurrent: bool = False
    step_threads: int | None = None
    variable_length_tensors: frozenset[str] = frozenset()
    counts_V: Tensor | None

    def __init__(self, vocab_size: int, context: int | None, description: str) -> None:
        super().__init__()
        self.vocab_size, self.context, self.description = vocab_size, context, description
        self.register_buffer("counts_V", None)

    @abstractmethod
    def forward(self, batch: Batch) -> Output:
        """All positions at once: hidden states (B, T, D), and the auxiliary losses of the rows, if any."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of the next token for hidden states (..., D)."""

    def head_parameters(self) -> tuple[Tensor, ...]:
        """The parameters that `logits` uses."""
        return ()

    def token_vectors(self) -> Tensor:
        """The context-independent embedding of each token (V, D). Raises UsageError where a model has none."""
        raise UsageError("this model has no token embeddings: it counts n-grams", fix="name a run of another family")

    def layer_outputs(self, batch: Batch) -> list[Tensor]:
        """The embeddings, then the output of each layer, each (B, T, D); all from one pass over `batch.tokens_BT`.

        An encoder-decoder uses its encoder. Raises UsageError where a model has no embeddings.
        """
        return self.layer_outputs_and_auxiliary(batch)[0]

    def layer_outputs_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        """The output of `layer_outputs`, and the auxiliary losses (B,) of the same pass, if any."""
        raise UsageError("this model has no token embeddings: it counts n-grams", fix="name a run of another family")

    @abstractmethod
    def initial_state(self, batch: Batch) -> DecodeState:
        """The initial decoding state for the rows of `batch`, on its device.

        Models with a source encode `batch.source_BS` here; of `batch.tokens_BT` only the number of rows matters.
        """

    @abstractmethod
    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Process T >= 1 more tokens of each row: their hidden states (B, T, D), and the new state.

        Equals the same positions of `forward` on all tokens at once, for any split into calls.
        """

    def modules_by_depth(self) -> ModulesByDepth:
        """Embeddings and positions, then each layer from the bottom up, without heads.

        The layers of a decoder come after those of its encoder. A model without layers is all embeddings.
        """
        return [(self,)]

    def parameter_depths(self) -> dict[nn.Parameter, int]:
        """0 for embeddings and positions, 1 to L for the layers from the bottom up, L + 1 for heads.

        A tied matrix is an embedding.
        """
        parts = self.modules_by_depth()
        depth_of = dict.fromkeys(self.parameters(), len(parts))
        for depth, group in enumerate(parts):
            depth_of |= {p: depth for part in group if part is not None for p in part.parameters()}
        return depth_of


class ModelWithoutNextToken(LanguageModel):
    """A model without next-token probabilities, which generates no text from left to right."""

    @abstractmethod
    def no_next_token_error(self) -> UsageError:
        """Why not, and what to use instead."""

    def initial_state(self, batch: Batch) -> DecodeState:
        raise self.no_next_token_error()

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        raise self.no_next_token_error()


class ModelWithoutLikelihood(ModelWithoutNextToken):
    """A model without a likelihood: it gives no probability to a token that it has not read, so it scores no text."""


class CountingModel(LanguageModel):
    """A model estimated from counts, not by gradients, in one pass over the text in order.

    width: context tokens of a prediction. n_read: number of tokens counted so far.
    """

    n_context_tokens: int
    n_read: Tensor

    @abstractmethod
    def fit_counts_(self, batches: Iterable[Batch], n_tokens: int) -> None:
        """Count every target of the batches with its preceding tokens. n_tokens: tokens of the text that they cover.

        Batches come in text order. Predictions change only once all are counted.
        """

    @abstractmethod
    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The `logits` entry of one token (...) at each position (..., D), without computing the others."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Accept tables of any length."""
        for name in self.variable_length_tensors & {name.removeprefix(prefix) for name in state_dict}:
            table: Tensor = getattr(self, name)
            setattr(self, name, table.new_empty(len(state_dict[prefix + name]), *table.shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ModelWrapper(LanguageModel):
    """A wrapper around another model, its body; delegates to it what a subclass does not override."""

    def __init__(self, body: LanguageModel) -> None:
        super().__init__(body.vocab_size, body.context, body.description)
        self.body = body
        self.max_positions, self.reads, self.recurrent = body.max_positions, body.reads, body.recurrent

    def forward(self, batch: Batch) -> Output:
        return cast(Output, self.body(batch))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.body.logits(hidden)

    def head_parameters(self) -> tuple[Tensor, ...]:
        return self.body.head_parameters()

    def token_vectors(self) -> Tensor:
        return self.body.token_vectors()

    def layer_outputs_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        return self.body.layer_outputs_and_auxiliary(batch)

    def initial_state(self, batch: Batch) -> DecodeState:
        return self.body.initial_state(batch)

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self.body.forward_incremental(tokens_BT, state)

    def modules_by_depth(self) -> ModulesByDepth:
        return self.body.modules_by_depth()


def append_to_last_layer(layers: Iterable[Sequence[nn.Module | None]], *modules: nn.Module | None) -> ModulesByDepth:
    """Layers, the last one together with the modules above it."""
    *below, last = layers
    return [*below, (*last, *modules)]
