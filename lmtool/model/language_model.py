"""The interface of all model families.

Shapes: B rows, T new positions, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.state import DecodeState, KeyValueCache, LayerState, Memory, RowTokens
from lmtool.recipe.spec.model import Reads

__all__ = ["DecodeState", "HiddenOutput", "KeyValueCache", "LanguageModel", "LayerState", "Memory", "RowTokens"]


class HiddenOutput(NamedTuple):
    """Output of a forward pass.

    hidden_BTD: hidden states of all positions.
    auxiliary_B: an auxiliary loss of each row, which depends on that row alone; None without one. Objectives add it in
        training, never in evaluation.
    """

    hidden_BTD: Tensor
    auxiliary_B: Tensor | None = None


def sum_auxiliary_losses(losses: Iterable[Tensor | None]) -> Tensor | None:
    """Returns the sum (B,) of the losses that are not None; None if all are None."""
    known = [loss_B for loss_B in losses if loss_B is not None]
    return torch.stack(known).sum(0) if known else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode for the duration of the context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class ProbabilityInterpolation(Protocol):
    """Predictions of a language model, interpolated with those of another model that reads the same tokens.

    `lmtool.model.interpolation` has the one with an n-gram model.
    """

    def describe(self) -> str:
        """Returns a short description, such as "interpolated with a 5-gram model, weight 0.21"."""

    def get_contexts(self, ids: Sequence[int], positions: Iterable[int]) -> list[Sequence[int]]:
        """Returns the tokens up to each of these positions of a text that the other model reads."""

    def interpolate_next_token_log_probs(self, logits_BV: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
        """Returns log p of the token after each text (B, V), given the language model's logits.

        Each row depends on its own text alone, so that it is the same in any batch.
        """

    def interpolate_target_log_probs(self, logprobs_N: Tensor, batch: Batch, is_scored_BT: Tensor) -> Tensor:
        """Returns log p of the scored targets of a batch (N,), given those of the language model."""


ModulesByDepth = list[Sequence[nn.Module | None]]
"""The modules at each depth of a model; None for those its recipe omits."""


class LanguageModel(nn.Module, ABC):
    """A model that turns tokens into hidden states, and hidden states into logits.

    The two are separate so that losses can be computed in chunks, without all logits in memory at once.

    vocab_size: number of logits.
    context: training context length; None for no limit.
    max_positions: maximum number of positions that it can process; None for no limit.
    reads: what the prediction at a position may depend on. With "source", `initial_state` encodes it. "both"
        (bidirectional) and "words" (bag of words) have no next token, so neither `initial_state` nor
        `forward_incremental`.
    recurrent: whether each position is computed from the one before, so that decoding token by token costs no more.
    step_threads: fastest number of threads for a training step, if steps are small; None for all threads.
    variable_length_tensors: names of tensors whose length depends on the training data.
    description: family, layers and width, for people.
    counts_V: count of each id in the training text, for models that keep it; zeros until it is known.
    interpolation: with another model, of its predictions at inference; None for none.
    """

    max_positions: int | None = None
    reads: Reads = "past"
    recurrent: bool = False
    step_threads: int | None = None
    variable_length_tensors: frozenset[str] = frozenset()
    counts_V: Tensor | None
    interpolation: ProbabilityInterpolation | None = None

    def __init__(self, vocab_size: int, context: int | None, description: str) -> None:
        super().__init__()
        self.vocab_size, self.context, self.description = vocab_size, context, description
        self.register_buffer("counts_V", None)

    @abstractmethod
    def forward(self, batch: Batch) -> HiddenOutput:
        """Returns the hidden states (B, T, D) of all positions, and the auxiliary losses of the rows, if any."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits (..., V) of the next token for hidden states (..., D)."""

    def head_parameters(self) -> tuple[Tensor, ...]:
        """Returns the parameters that `logits` uses."""
        return ()

    def token_vectors(self) -> Tensor:
        """Returns the context-independent embedding of each token (V, D). Raises UsageError for models without any."""
        raise UsageError("this model has no token embeddings: it counts n-grams", fix="name a run of another family")

    def hidden_states_by_layer(self, batch: Batch) -> list[Tensor]:
        """Returns the embeddings and the output of each layer, each (B, T, D), for `batch.tokens_BT`.

        An encoder-decoder uses its encoder. Raises UsageError for models without embeddings.
        """
        return self.hidden_states_by_layer_and_auxiliary(batch)[0]

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        """Returns the result of `hidden_states_by_layer`, and the auxiliary losses (B,) of the same pass, if any."""
        raise UsageError("this model has no token embeddings: it counts n-grams", fix="name a run of another family")

    @abstractmethod
    def initial_state(self, batch: Batch) -> DecodeState:
        """Returns the decoding state before the first token of the rows of `batch`, on its device.

        Models with a source encode `batch.source_BS` here; of `batch.tokens_BT` only the number of rows matters.
        """

    @abstractmethod
    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Reads T >= 1 more tokens of each row. Returns their hidden states (B, T, D) and the new state.

        The result equals the same positions of `forward` on all tokens, for any split into calls.
        """

    def modules_by_depth(self) -> ModulesByDepth:
        """Returns embeddings and positions, then the modules of each layer from the bottom up, without heads.

        The layers of a decoder come after those of its encoder. A model without layers is all embeddings.
        """
        return [(self,)]

    def parameter_depths(self) -> dict[nn.Parameter, int]:
        """Returns 0 for embeddings and positions, 1 to L for the layers from the bottom up, L + 1 for heads.

        A tied matrix is an embedding.
        """
        modules_by_depth = self.modules_by_depth()
        depths = dict.fromkeys(self.parameters(), len(modules_by_depth))
        for depth, modules in enumerate(modules_by_depth):
            depths |= {p: depth for module in modules if module is not None for p in module.parameters()}
        return depths


class ModelWithoutNextToken(LanguageModel):
    """A model without next-token probabilities, which cannot generate text from left to right."""

    @abstractmethod
    def no_next_token_error(self) -> UsageError:
        """Returns the error that says why it has no next token, and what to use instead."""

    def initial_state(self, batch: Batch) -> DecodeState:
        raise self.no_next_token_error()

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        raise self.no_next_token_error()


class ModelWithoutLikelihood(ModelWithoutNextToken):
    """A model that gives no probability to a token that it has not read, so it cannot score text."""


class CountingModel(LanguageModel):
    """A model estimated from counts, not by gradients, in one pass over the text in order.

    n_context_tokens: context tokens of a prediction. n_read: number of tokens counted so far.
    """

    n_context_tokens: int
    n_read: Tensor

    @abstractmethod
    def partial_fit_(self, batches: Iterable[Batch], n_new_tokens: int) -> None:
        """Counts every target of the batches with its preceding tokens. Predictions change once all are counted.

        Args:
            batches: in text order.
            n_new_tokens: number of tokens of the text that the batches cover.
        """

    @abstractmethod
    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Returns the `logits` entry of one token (...) at each position (..., D), without computing the others."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Loads tables of any length."""
        for name in self.variable_length_tensors & {name.removeprefix(prefix) for name in state_dict}:
            table: Tensor = getattr(self, name)
            setattr(self, name, table.new_empty(len(state_dict[prefix + name]), *table.shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ModelWrapper(LanguageModel):
    """A model around another one, its body, to which it delegates what a subclass does not override."""

    def __init__(self, body: LanguageModel) -> None:
        super().__init__(body.vocab_size, body.context, body.description)
        self.body = body
        self.max_positions, self.reads, self.recurrent = body.max_positions, body.reads, body.recurrent

    def forward(self, batch: Batch) -> HiddenOutput:
        return cast(HiddenOutput, self.body(batch))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.body.logits(hidden)

    def head_parameters(self) -> tuple[Tensor, ...]:
        return self.body.head_parameters()

    def token_vectors(self) -> Tensor:
        return self.body.token_vectors()

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        return self.body.hidden_states_by_layer_and_auxiliary(batch)

    def initial_state(self, batch: Batch) -> DecodeState:
        return self.body.initial_state(batch)

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self.body.forward_incremental(tokens_BT, state)

    def modules_by_depth(self) -> ModulesByDepth:
        return self.body.modules_by_depth()


def append_to_last_layer(layers: Iterable[Sequence[nn.Module | None]], *modules: nn.Module | None) -> ModulesByDepth:
    """Returns the modules of each layer, the last one with these modules above it."""
    *below, last = layers
    return [*below, (*last, *modules)]
