"""How a recurrent network forgets its first state: two states that read the same text come together, or do not.

Shapes: B states, S numbers of a state: those of all layers, and of an LSTM's memory cells.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.analysis.gradients import finite, left_to_right, tokens_of
from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.inference.load import Loaded, load_run
from lmtool.model import LanguageModel
from lmtool.model.language_model import DecodeState, KeyValue
from lmtool.model.transformer import TransformerDecoder

ROUNDING = 1e-13
"""Share of the first distance below which a difference of numbers in float64 is rounding."""

ITERATIONS = 100
"""Of the power method, for a singular value."""


class Contraction(NamedTuple):
    """Two states over the steps of one text: s_0 is zero, s'_0 is drawn from [-1, 1].

    distances: ||s_t - s'_t|| for t from 0. rate: λ, the geometric mean of their ratios from step to step, up to where
    they are rounding. bounds: λ^t ||s_0 - s'_0||. largest: for each step from 1 the largest singular value of the
    Jacobian ds_t / ds_{t-1} at the first state; were all of them at most one λ at all states, the distances would be at
    most λ^t ||s_0 - s'_0||. None where not finite.
    """

    distances: list[float | None]
    rate: float
    bounds: list[float | None]
    largest: list[float | None]


class TwoStarts(NamedTuple):
    """Those of a run's model on a text. pieces: the tokens that are read."""

    pieces: list[str]
    contraction: Contraction
    loaded: Loaded


def two_starts(reference: str, text: str, seed: int = 0) -> TwoStarts:
    """How two states of a run's model come together over a text. seed: of the random one. In float64, on the CPU.

    Raises UsageError for a model without a state from step to step, and for a text without tokens.
    """
    loaded = load_run(reference, CPU)
    tokens, pieces = tokens_of(loaded, text)
    if not tokens:
        raise UsageError("the text has no tokens", fix="write more")
    return TwoStarts(pieces, contraction(loaded.model.double(), tokens, seed), loaded)


def contraction(lm: LanguageModel, tokens: Sequence[int], seed: int = 0) -> Contraction:
    """The distance of two states that read the same tokens, and by how much a step can stretch it."""
    if isinstance(lm, TransformerDecoder):
        what = "a Transformer carries no state from step to step: each position reads all earlier ones"
        raise UsageError(what, fix="omit --starts, or name a run of a recurrent language model")
    left_to_right(lm)
    with torch.no_grad():
        zero_1S = _joined(lm.start(Batch(torch.tensor([[0]]))))
    random_1S = torch.rand(zero_1S.shape, generator=torch.Generator().manual_seed(seed)).to(zero_1S) * 2 - 1
    states_2S = torch.cat((zero_1S, random_1S))
    distances, largest = [float(random_1S.norm())], []
    for token in tokens:
        jacobian_SS = _jacobian(lm, token, states_2S[0])
        largest.append(_largest_singular_value(jacobian_SS))
        with torch.no_grad():
            states_2S = _step(lm, token, states_2S)
        distances.append(float((states_2S[0] - states_2S[1]).norm()))
    apart_T = torch.tensor(distances, dtype=torch.float64) / distances[0]
    is_rounding = ~((apart_T > ROUNDING) & apart_T.isfinite())
    steps = max(1, int(is_rounding.int().argmax()) - 1 if is_rounding.any() else len(tokens))
    rate = apart_T[steps] ** (1 / steps)
    bounds = distances[0] * rate ** torch.arange(len(distances))
    return Contraction(finite(distances), float(rate), finite(bounds.tolist()), finite(largest))


def _joined(state: DecodeState) -> Tensor:
    """The states of all layers (B, S), without the memory of attention, which no later state reads."""
    return torch.cat([part for layer in state.layers if not isinstance(layer, KeyValue) for part in layer], -1)


def _step(lm: LanguageModel, token: int, states_BS: Tensor) -> Tensor:
    """The states after one more token."""
    tokens_B1 = torch.full((len(states_BS), 1), token)
    empty = lm.start(Batch(tokens_B1))
    cells = [layer for layer in empty.layers if not isinstance(layer, KeyValue)]
    parts = iter(states_BS.chunk(sum(map(len, cells)), -1))
    layers = [tuple(next(parts) for _ in cell) for cell in cells]
    return _joined(lm.advance(tokens_B1, replace(empty, layers=(*layers, *empty.layers[len(cells) :])))[1])


def _jacobian(lm: LanguageModel, token: int, state_S: Tensor) -> Tensor:
    """ds_t / ds_{t-1} (S, S), by one pass over a row for each number of s_t."""
    rows_SS = state_S.detach().expand(len(state_S), -1).clone().requires_grad_()
    with torch.enable_grad():
        (jacobian_SS,) = torch.autograd.grad(_step(lm, token, rows_SS).diagonal().sum(), rows_SS)
    return jacobian_SS


def _largest_singular_value(matrix: Tensor) -> float:
    """By the power method, which takes far less time than all singular values."""
    vector = torch.ones(matrix.shape[1], dtype=matrix.dtype)
    for _ in range(ITERATIONS):
        vector = F.normalize(matrix.T @ (matrix @ vector), dim=0)
    return float((matrix @ vector).norm())
