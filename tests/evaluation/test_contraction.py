"""Two states that read one text: their distances by a plain loop, and what a contraction is."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.evaluation.gradients import measure_state_contraction, measure_state_contraction_on_text
from tests.support.errors import refuses
from tests.support.gradients import TOKENS, D, model


def random_state(seed: int, width: int) -> Tensor:
    return torch.rand(1, width, generator=torch.Generator().manual_seed(seed)).double()[0] * 2 - 1


def test_distances_equal_a_plain_elman_network() -> None:
    lm = model(kind="recurrent", cell="rnn")
    w_in, w_past, b_in, b_past = (weight.detach() for weight in lm.rnn.cells[0].kernel.all_weights[0])
    one, other = torch.zeros(D, dtype=torch.float64), random_state(3, D)
    distances, largest = [float(other.norm())], []
    for token in TOKENS:
        x = lm.embedding.weight[token].detach()
        one, other = (torch.tanh(w_in @ x + b_in + w_past @ h + b_past) for h in (one, other))
        distances.append(float((one - other).norm()))
        # dh_t / dh_{t-1} = diag(1 - h_t^2) W
        largest.append(float(torch.linalg.svdvals(torch.diag(1 - one**2) @ w_past)[0]))
    found = measure_state_contraction(lm, TOKENS, seed=3)
    assert found.distances == pytest.approx(distances)
    assert found.largest == pytest.approx(largest)
    assert found.rate == pytest.approx((distances[-1] / distances[0]) ** (1 / len(TOKENS)))
    assert found.bounds == pytest.approx([found.rate**t * distances[0] for t in range(len(distances))])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_state_is_that_of_all_layers_and_cells(cell: str) -> None:
    lm = model(kind="recurrent", cell=cell, n_layers=2)
    empty = lm.initial_state(Batch(torch.zeros(2, 1, dtype=torch.int64)))
    parts = iter(random_state(0, sum(map(len, empty.layers)) * D).reshape(-1, D))
    layers = tuple(tuple(torch.stack((zero[0], next(parts))) for zero in layer) for layer in empty.layers)
    with torch.no_grad():
        _, state = lm.forward_incremental(torch.tensor([TOKENS] * 2), replace(empty, layers=layers))
    apart = math.hypot(*(float((part[0] - part[1]).norm()) for layer in state.layers for part in layer))
    assert measure_state_contraction(lm, TOKENS).distances[-1] == pytest.approx(apart)


def test_attention_does_not_change_the_states() -> None:
    plain, attentive = (
        model(kind="recurrent", cell="lstm", tie_embeddings=True, attention=attention)
        for attention in (None, {"score": "dot"})
    )
    attentive.load_state_dict(plain.state_dict() | {"join.weight": attentive.join.weight})
    assert measure_state_contraction(attentive, TOKENS) == measure_state_contraction(plain, TOKENS)


def test_an_orthogonal_matrix_below_one_is_a_contraction() -> None:
    """tanh never stretches, so all of the theorem holds: each step, and with it the distance after t steps."""
    found = measure_state_contraction(model(kind="recurrent", cell="rnn", recurrent_radius=0.7), TOKENS * 3)
    first, *_ = found.distances
    assert first is not None
    assert max(one for one in found.largest if one is not None) <= 0.7 + 1e-6
    for t, distance in enumerate(found.distances):
        assert distance is not None
        assert distance <= 0.7**t * first + 1e-6


@pytest.mark.parametrize(("radius", "low", "high"), [(1e6, 1e5, math.inf), (1e-3, 0.0, 1e-3)])
def test_rates_are_of_the_steps_before_states_explode_or_are_rounding(radius: float, low: float, high: float) -> None:
    lm = model(kind="recurrent", cell="rnn", nonlinearity="relu" if radius > 1 else "tanh", recurrent_radius=radius)
    found = measure_state_contraction(lm, TOKENS * 20)
    assert found.rate is not None
    assert low < found.rate < high
    assert (found.distances[-1] is None) == (radius > 1)


def loaded(lm: Any) -> Any:
    tokenizer = SimpleNamespace(encode=lambda text: TOKENS, display_token=str)
    return SimpleNamespace(model=lm, tokenizer=tokenizer, prompt_format=SimpleNamespace(opening=()))


def test_a_model_of_two_parts_is_refused_and_others_stay_as_they_are() -> None:
    with refuses("usage"):
        measure_state_contraction_on_text(loaded(model(kind="recurrent", shape="encoder-decoder")), "any")
    lm = model(kind="recurrent", cell="gru").float()
    assert measure_state_contraction_on_text(loaded(lm), "any").tokens == list(map(str, TOKENS))
    assert lm.embedding.weight.dtype == torch.float32
