"""How far back gradients reach: the norms of the gradient of one token's loss in the states before it.

Shapes: T positions, D state width.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.compute.device import choose_compute
from lmtool.errors import UsageError
from lmtool.inference.load import Loaded, load_run
from lmtool.model import LanguageModel
from lmtool.model.language_model import evaluating
from lmtool.model.layers.cells import CellState, stepwise
from lmtool.model.recurrent import BidirectionalModel, RecurrentDecoder
from lmtool.model.transformer import TransformerDecoder
from lmtool.recipe.spec.base import DeviceName


class GradientNorms(NamedTuple):
    """Norms of the gradient of the loss of one prediction, k steps back from the position that makes it.

    loss: in nats. norms: for each kind of state, the norm of the gradient in the state k steps back, by k from 0. Those
    of a Transformer are the embeddings and the residual stream after each layer, the last after the final norm. Those
    of a recurrent model are the states of each layer, and of an LSTM also its memory cells. None where not finite.
    """

    loss: float
    norms: dict[str, list[float | None]]


class GradientFlow(NamedTuple):
    """The norms for a text. pieces: the tokens read, up to the position that predicts. target: the token predicted."""

    pieces: list[str]
    target: str
    gradient: GradientNorms
    loaded: Loaded


def gradients(reference: str, text: str, token: int | None = None, *, device: DeviceName = "auto") -> GradientFlow:
    """The gradient norms of a run's model on a text.

    token: the token whose loss it is, counted from 1; the last by default. Raises UsageError for a model that does not
    read from left to right or counts n-grams, a text longer than its context, and a token that is not in the text or
    has none before it.
    """
    loaded = load_run(reference, choose_compute(device, "float32"))
    tokens, pieces = tokens_of(loaded, text)
    n_before = len(loaded.prompt_format.opening)
    n_tokens = len(tokens) - n_before
    token = n_tokens if token is None else token
    n_read = n_before + token - 1
    if not 1 <= token <= n_tokens:
        fix = f"name one from 1 to {n_tokens}" if n_tokens else "write more"
        raise UsageError(f"the text has no token {token}", fix=fix)
    if n_read < 1:
        raise UsageError("nothing precedes the first token", fix="name a later one, or write more text")
    longest = loaded.model.context or loaded.model.longest
    if longest is not None and n_read > longest:
        what = f"the text has {n_read} tokens before the one predicted, but the model reads {longest}"
        raise UsageError(what, fix="shorten it, or name an earlier token")
    norms = gradient_norms(loaded.model, tokens[: n_read + 1])
    return GradientFlow(pieces[:n_read], pieces[n_read], norms, loaded)


def tokens_of(loaded: Loaded, text: str) -> tuple[list[int], list[str]]:
    """The ids of a text, after the token that begins one, if the model has such a token; and how they are shown."""
    tokens = [*loaded.prompt_format.opening, *loaded.tokenizer.encode(text)]
    return tokens, list(map(loaded.tokenizer.piece, tokens))


def left_to_right(lm: LanguageModel) -> TransformerDecoder | RecurrentDecoder | BidirectionalModel:
    """The same model. Raises UsageError for others than Transformer decoders and recurrent language models."""
    if not isinstance(lm, TransformerDecoder | RecurrentDecoder | BidirectionalModel) or lm.reads != "past":
        what = "this model does not read from left to right by states that learn from gradients"
        raise UsageError(what, fix="name a run of a Transformer decoder, or of a recurrent language model")
    return lm


def gradient_norms(lm: LanguageModel, tokens: Sequence[int]) -> GradientNorms:
    """The norms for the prediction of the last token from all others. The model is left as it was.

    Raises UsageError for models other than Transformer decoders and recurrent language models.
    """
    lm = left_to_right(lm)
    device = next(lm.parameters()).device
    tokens_1T = torch.tensor([list(tokens)], device=device)
    batch, target_1 = Batch(tokens_1T[:, :-1]), tokens_1T[:, -1]
    with evaluating(lm), _all_trainable(lm), torch.enable_grad():
        norms = {}
        if isinstance(lm, TransformerDecoder):
            layers = lm.layers(batch)
            loss = F.cross_entropy(lm.logits(layers[-1][:, -1]), target_1)
            for number, (gradient_TD,) in enumerate(torch.autograd.grad(loss, layers)):
                norms[f"layer {number}" if number else "embeddings"] = _listed(gradient_TD)
        else:
            with stepwise(lm) as states_of:
                hidden_1TD = lm.forward(batch).hidden_BTD
            loss = F.cross_entropy(lm.logits(hidden_1TD[:, -1]), target_1)
            for number, states in enumerate(filter(None, states_of), 1):
                norms |= _of_states(loss, f"layer {number}", states)
    return GradientNorms(float(loss.detach()), norms)


@contextmanager
def _all_trainable(lm: LanguageModel) -> Iterator[None]:
    """Parameters that are frozen have gradients, so that there is a graph below frozen layers too."""
    frozen = [parameter for parameter in lm.parameters() if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _of_states(loss: Tensor, name: str, states: Sequence[CellState]) -> dict[str, list[float | None]]:
    """The norm after each step of a recurrent layer, the last step first; for each part of the state."""
    norms = {}
    for part, title in zip(zip(*states, strict=True), (name, f"{name}, cells"), strict=False):
        # nothing reads the last memory cells again
        rows = torch.autograd.grad(loss, part, retain_graph=True, allow_unused=True, materialize_grads=True)
        norms[title] = _listed(torch.cat(rows))
    return norms


def _listed(gradient_TD: Tensor) -> list[float | None]:
    # squares of small gradients are below the smallest float32
    return finite(gradient_TD.cpu().double().norm(dim=-1).flip(0).tolist())


def finite(numbers: Sequence[float]) -> list[float | None]:
    """The numbers, with None for infinities and NaN."""
    return [number if math.isfinite(number) else None for number in numbers]
