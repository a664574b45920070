"""Gradients of a loss in past states, against finite differences."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.evaluation.gradients import compute_norms_by_steps_back
from tests.support.errors import refuses
from tests.support.gradients import TOKENS, D, model


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("attention", [None, {"score": "dot"}])
def test_recurrent_states_by_finite_differences(cell: str, attention: Any) -> None:
    """Of all that goes on from a state; with attention its own memory holds it as well."""
    lm = model(kind="recurrent", cell=cell, attention=attention)
    tokens = torch.tensor([TOKENS])
    found = compute_norms_by_steps_back(lm, TOKENS).norms

    def loss_after(position: int, part: int, component: int, shift: float) -> float:
        with torch.no_grad():
            _, state = lm.forward_incremental(tokens[:, : position + 1], lm.initial_state(Batch(tokens[:, :0])))
            first = [one.clone() for one in state.layers[0]]
            if part:
                # a memory cell is also read through the state, output gate times tanh(cell)
                before, after = torch.tanh(first[1][0, component]), torch.tanh(first[1][0, component] + shift)
                first[1][0, component] += shift
                shift = float(first[0][0, component] / before * (after - before))
            first[0][0, component] += shift
            layers = [tuple(first), *state.layers[1:]]
            if attention is not None:
                k, v = (one.clone() for one in state.layers[1])
                k[0, 0, -1, component] += shift
                v[0, 0, -1, component] += shift
                layers[1] = type(state.layers[1])(k, v)
            hidden, _ = lm.forward_incremental(tokens[:, position + 1 : -1], replace(state, layers=tuple(layers)))
            return float(F.cross_entropy(lm.logits(hidden[:, -1]), tokens[:, -1]))

    for part, name in enumerate(found):
        for k in range(1, len(TOKENS) - 1):
            position = len(TOKENS) - 2 - k
            slopes = [
                (loss_after(position, part, i, 1e-5) - loss_after(position, part, i, -1e-5)) / 2e-5 for i in range(D)
            ]
            assert found[name][k] == pytest.approx(torch.tensor(slopes).norm().item(), rel=1e-4), (name, k)
    assert list(found) == (["layer 1", "layer 1, cells"] if cell == "lstm" else ["layer 1"])


def test_embeddings_of_a_transformer_by_finite_differences() -> None:
    lm = model(kind="transformer", n_layers=2, n_heads=2, position={"kind": "rotary", "theta": 50.0}, d_model=8)
    found = compute_norms_by_steps_back(lm, TOKENS)
    tokens = torch.tensor([TOKENS])

    def loss(token: int = 0, component: int = 0, shift: float = 0.0) -> Tensor:
        row = lm.inputs.tokens.weight[token]
        row[component] += shift
        value = F.cross_entropy(lm.logits(lm(Batch(tokens[:, :-1])).hidden_BTD[:, -1]), tokens[:, -1])
        row[component] -= shift
        return value

    with torch.no_grad():
        assert found.loss == pytest.approx(float(loss()))
        for k, token in enumerate(reversed(TOKENS[:-1])):
            slopes = torch.stack([(loss(token, i, 1e-5) - loss(token, i, -1e-5)) / 2e-5 for i in range(8)])
            assert found.norms["embeddings"][k] == pytest.approx(slopes.norm().item(), rel=1e-4)
    assert list(found.norms) == ["embeddings", "layer 1", "layer 2"]
    assert found.norms["layer 2"][1:] == [0.0] * (len(TOKENS) - 2)


def test_below_the_normal_numbers_a_gradient_is_zero() -> None:
    """Where an Elman network has forgotten all, its curve ends, instead of a plateau of the smallest numbers."""
    lm = model(kind="recurrent", cell="rnn", context=60).float()
    with torch.no_grad():
        lm.rnn.cells[0].kernel.weight_hh_l0.mul_(0.01)
    by_layer: Any = compute_norms_by_steps_back(lm, TOKENS * 8).norms
    norms = by_layer["layer 1"]
    assert norms[-1] == 0 < norms[5]
    assert all(norm == 0 or norm >= torch.finfo(torch.float32).tiny for norm in norms)
    assert norms == sorted(norms, reverse=True)


def test_the_model_is_left_as_it_was() -> None:
    lm = model(kind="recurrent", cell="lstm", n_layers=2).train()
    lm.embedding.weight.requires_grad_(False)
    before = lm(Batch(torch.tensor([TOKENS]))).hidden_BTD
    compute_norms_by_steps_back(lm, TOKENS)
    assert lm.training
    assert not lm.embedding.weight.requires_grad
    assert all(parameter.grad is None for parameter in lm.parameters())
    assert torch.equal(lm(Batch(torch.tensor([TOKENS]))).hidden_BTD, before)


@pytest.mark.parametrize("shape", ["encoder", "prefix", "encoder-decoder"])
def test_models_that_read_not_only_what_came_before_are_refused(shape: str) -> None:
    kind = {"kind": "recurrent"} if shape == "encoder-decoder" else {"kind": "transformer", "n_heads": 2}
    with refuses("usage"):
        compute_norms_by_steps_back(model(shape=shape, **kind), TOKENS)


def test_both_directions_of_elmo_read_forwards() -> None:
    lm = model(kind="recurrent", shape="bidirectional", cell="gru")
    assert list(compute_norms_by_steps_back(lm, TOKENS).norms) == ["layer 1"]
