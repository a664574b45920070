"""Measures how far back gradients reach: the norms of the gradient of one token's loss at the states before it; and how
long the first state of a recurrent network matters: whether two states that read the same text converge.

Shapes: B states, T positions, D width of a layer's state, S numbers of the states of all layers.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model import LanguageModel
from lmtool.model.language_model import DecodeState, KeyValueCache, evaluation_mode
from lmtool.model.layers.cells import record_step_states
from lmtool.model.recurrent import BidirectionalLanguageModel, RecurrentDecoder
from lmtool.model.transformer import TransformerDecoder
from lmtool.runs.load import LoadedModel

ROUNDING_SHARE = 1e-13
"""Share of the first distance below which a distance in float64 is a rounding error."""


class GradientNormsByStepsBack(NamedTuple):
    """Norms of the gradient of the loss of one prediction, k steps back from the position that makes it.

    Args:
        loss: in nats.
        norms: for each kind of state the norm at the state k steps back, for k from 0; None if it is not finite. The
            states of a Transformer are the embeddings and the residual stream after each layer, the last after the
            final norm; those of a recurrent model are the states of each layer, and of an LSTM also its memory cells.
    """

    loss: float
    norms: dict[str, list[float | None]]


class GradientFlow(NamedTuple):
    """The gradient norms for a text. pieces: tokens up to the position that predicts. target: the predicted token."""

    pieces: list[str]
    target: str
    gradient: GradientNormsByStepsBack


class StateContraction(NamedTuple):
    """The distance of two states while they read one text: s_0 is zero, s'_0 is drawn from [-1, 1].

    Numbers that are not finite are None.

    Args:
        tokens: as pieces.
        distances: ||s_t - s'_t|| for t from 0.
        rate: λ, the geometric mean of the ratios of successive distances, before these are rounding errors.
        bounds: λ^t ||s_0 - s'_0||, which the distances would not exceed if the largest singular values of all Jacobians
            at all states were at most λ.
        largest: for each step from 1 the largest singular value of the Jacobian ds_t / ds_{t-1} at the state s_{t-1}.
    """

    tokens: list[str]
    distances: list[float | None]
    rate: float
    bounds: list[float | None]
    largest: list[float | None]


def compute_gradient_flow_of_text(
    loaded: LoadedModel, text: str, token_number: int | None = None, source: str | None = None
) -> GradientFlow:
    """Computes the gradient norms of a model, in float32 and not packed, on a text.

    token_number: number, from 1, of the token whose loss is differentiated; the last by default. source: for a decoder
    that answers sources, what stands before the text. Raises UsageError for a model that does not read from left to
    right or counts n-grams, for a text longer than its context, for a token that is not in the text or has none before
    it, and for a source that the model does not read.
    """
    before = list(loaded.prompt_format.opening)
    if source is not None:
        if not loaded.prompt_format.answers:
            raise UsageError("this model reads a text, not a source", fix="give the text without --source")
        before = list(loaded.prompt_format.make_prompt(source).tokens)
    tokens, pieces = _encode_text(loaded, text, before)
    n_before = len(before)
    n_tokens = len(tokens) - n_before
    token_number = n_tokens if token_number is None else token_number
    n_read = n_before + token_number - 1
    if not 1 <= token_number <= n_tokens:
        fix = f"name one from 1 to {n_tokens}" if n_tokens else "write more"
        raise UsageError(f"the text has no token {token_number}", fix=fix)
    if n_read < 1:
        raise UsageError("nothing precedes the first token", fix="name a later one, or write more text")
    longest = loaded.model.context or loaded.model.max_positions
    if longest is not None and n_read > longest:
        what = f"the text has {n_read} tokens before the one predicted, but the model reads {longest}"
        raise UsageError(what, fix="shorten it, or name an earlier token")
    norms = compute_norms_by_steps_back(loaded.model, tokens[: n_read + 1])
    return GradientFlow(pieces[:n_read], pieces[n_read], norms)


def _encode_text(loaded: LoadedModel, text: str, before: Sequence[int]) -> tuple[list[int], list[str]]:
    """Returns the ids of a text, after those that stand before it; and how they are displayed."""
    tokens = [*before, *loaded.tokenizer.encode(text)]
    return tokens, list(map(loaded.tokenizer.display_token, tokens))


def _require_left_to_right(
    lm: LanguageModel,
) -> TransformerDecoder | RecurrentDecoder | BidirectionalLanguageModel:
    """Returns the model. Raises UsageError unless it is a Transformer decoder or a recurrent language model."""
    if not isinstance(lm, TransformerDecoder | RecurrentDecoder | BidirectionalLanguageModel) or lm.reads != "past":
        what = "this model does not read from left to right by states that learn from gradients"
        raise UsageError(what, fix="name a run of a Transformer decoder, or of a recurrent language model")
    return lm


def compute_norms_by_steps_back(lm: LanguageModel, tokens: Sequence[int]) -> GradientNormsByStepsBack:
    """Computes the norms for the prediction of the last token from all others. Leaves the model as it was.

    Raises UsageError for models other than Transformer decoders and recurrent language models.
    """
    lm = _require_left_to_right(lm)
    device = next(lm.parameters()).device
    tokens_1T = torch.tensor([list(tokens)], device=device)
    batch, target_1 = Batch(tokens_1T[:, :-1]), tokens_1T[:, -1]
    with evaluation_mode(lm), _unfreeze_temporarily(lm), torch.enable_grad():
        norms = {}
        if isinstance(lm, TransformerDecoder):
            layers = lm.hidden_states_by_layer(batch)
            loss = F.cross_entropy(lm.logits(layers[-1][:, -1]), target_1)
            for number, (gradient_TD,) in enumerate(torch.autograd.grad(loss, layers)):
                norms[f"layer {number}" if number else "embeddings"] = _gradient_norms_by_steps_back(gradient_TD)
        else:
            with record_step_states(lm) as states_of:
                hidden_1TD = lm.forward(batch).hidden_BTD
            loss = F.cross_entropy(lm.logits(hidden_1TD[:, -1]), target_1)
            for number, states in enumerate(filter(None, states_of), 1):
                titles = (f"layer {number}", f"layer {number}, cells")
                for title, part in zip(titles, zip(*states, strict=True), strict=False):
                    # Nothing reads the last memory cells again.
                    rows = torch.autograd.grad(loss, part, retain_graph=True, allow_unused=True, materialize_grads=True)
                    norms[title] = _gradient_norms_by_steps_back(torch.cat(rows))
    return GradientNormsByStepsBack(float(loss.detach()), norms)


def measure_state_contraction_on_text(loaded: LoadedModel, text: str, seed: int = 0) -> StateContraction:
    """Measures how two states of a recurrent model, which is not packed, converge over a text; in float64 on the CPU.

    seed: of the random state. Raises UsageError for a model without a state from step to step, and for an empty text.
    """
    tokens, pieces = _encode_text(loaded, text, loaded.prompt_format.opening)
    if not tokens:
        raise UsageError("the text has no tokens", fix="write more")
    lm = _require_left_to_right(loaded.model)
    if isinstance(lm, TransformerDecoder):
        what = "a Transformer carries no state from step to step: each position reads all earlier ones"
        raise UsageError(what, fix="omit --starts, or name a run of a recurrent language model")
    return measure_state_contraction(deepcopy(lm).cpu().double(), tokens, seed)._replace(tokens=pieces)


def measure_state_contraction(lm: LanguageModel, tokens: Sequence[int], seed: int = 0) -> StateContraction:
    """Measures how two states of a recurrent model converge over token ids."""
    zero_1S = _join_states(lm.initial_state(Batch(torch.tensor([[0]]))))
    random_1S = torch.rand(zero_1S.shape, generator=torch.Generator().manual_seed(seed)).to(zero_1S) * 2 - 1
    states_2S = torch.cat((zero_1S, random_1S))
    distances, largest = [float(random_1S.norm())], []
    for token in tokens:
        # Each number of s_t has its own row, so that one pass gives all rows of the Jacobian.
        rows_SS = states_2S[:1].repeat(states_2S.shape[1], 1).requires_grad_()
        with torch.enable_grad():
            (jacobian_SS,) = torch.autograd.grad(_advance_states(lm, token, rows_SS).diagonal().sum(), rows_SS)
        largest.append(float(torch.linalg.matrix_norm(jacobian_SS, 2)))
        states_2S = _advance_states(lm, token, states_2S).detach()
        distances.append(float((states_2S[0] - states_2S[1]).norm()))
    measured = list(takewhile(lambda d: ROUNDING_SHARE * distances[0] < d < math.inf, distances))
    rate = (measured[-1] / measured[0]) ** (1 / max(1, len(measured) - 1))
    bounds = distances[0] * torch.tensor(rate, dtype=torch.float64) ** torch.arange(len(distances))
    return StateContraction(
        tokens=[],
        distances=_replace_non_finite(distances),
        rate=rate,
        bounds=_replace_non_finite(bounds.tolist()),
        largest=_replace_non_finite(largest),
    )


def _join_states(state: DecodeState) -> Tensor:
    """Concatenates the states of all layers (B, S), without the memory of attention, which no later state reads."""
    return torch.cat([part for layer in state.layers if not isinstance(layer, KeyValueCache) for part in layer], -1)


def _advance_states(lm: LanguageModel, token: int, states_BS: Tensor) -> Tensor:
    """Returns the states (B, S) after one more token."""
    tokens_B1 = torch.full((len(states_BS), 1), token)
    empty = lm.initial_state(Batch(tokens_B1))
    cells = [layer for layer in empty.layers if not isinstance(layer, KeyValueCache)]
    parts = iter(states_BS.chunk(sum(map(len, cells)), -1))
    layers = [tuple(next(parts) for _ in cell) for cell in cells]
    state = replace(empty, layers=(*layers, *empty.layers[len(cells) :]))
    return _join_states(lm.forward_incremental(tokens_B1, state)[1])


@contextmanager
def _unfreeze_temporarily(lm: LanguageModel) -> Iterator[None]:
    """Lets frozen parameters require gradients, so that there is a graph below frozen layers too."""
    frozen = nn.ParameterList(parameter for parameter in lm.parameters() if not parameter.requires_grad)
    try:
        frozen.requires_grad_(True)
        yield
    finally:
        frozen.requires_grad_(False)


def _gradient_norms_by_steps_back(gradient_TD: Tensor) -> list[float | None]:
    """Returns the norm at each step, the last step first."""
    # Squares of small gradients are below the smallest float32. Below its normal numbers a gradient is rounding error.
    rounded_TD = gradient_TD.where(gradient_TD.abs() >= torch.finfo(gradient_TD.dtype).tiny, 0.0)
    return _replace_non_finite(rounded_TD.cpu().double().norm(dim=-1).flip(0).tolist())


def _replace_non_finite(numbers: Sequence[float]) -> list[float | None]:
    """Returns the numbers, with None for infinities and NaN."""
    return [number if math.isfinite(number) else None for number in numbers]
