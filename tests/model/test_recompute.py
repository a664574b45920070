"""Layers whose activations are computed again in the backward pass."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lmtool.batch import Batch
from lmtool.model import LanguageModel, build
from lmtool.model.layers.stack import enable_activation_recomputation_
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer

SMALL: dict[str, Any] = {"n_layers": 3, "d_model": 16, "n_heads": 2, "context": 80, "dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {"position": {"kind": "rotary"}, "n_kv_heads": 1, "norm": {"kind": "rms"}, "activation": "swiglu"},
    "parallel and shared layers": {"parallel": True, "share_layers": True},
    "window": {"pattern": {"kind": "window", "size": 8, "full_layers": [1]}, "position": {"kind": "alibi"}},
    "encoder-decoder with a learned bias": {"shape": "encoder-decoder", "position": {"kind": "relative"}},
}


def learned(model: LanguageModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a seeded pass, and all gradients."""
    model.zero_grad()
    torch.manual_seed(3)
    output = model(batch)
    loss = model.logits(output.hidden_BTD).log_softmax(-1)[..., 3].sum()
    torch.autograd.backward(loss)
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def a_batch(rows: int = 2, length: int = 80) -> Batch:
    torch.manual_seed(1)
    tokens_BT, source_BS = torch.randint(0, 9, (rows, length)), torch.randint(0, 9, (rows, 5))
    return Batch(tokens_BT, source_BS=source_BS, keep_BT=torch.arange(length) < torch.tensor([[length], [length - 3]]))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_recomputing_gives_the_same_loss_and_gradients(name: str, autocast: bool) -> None:
    """Bit for bit, dropout included, but for the order in which gradients of several layers are added up.

    Layers share a learned bias, and the states of an encoder.
    """
    torch.manual_seed(0)
    model = build(Transformer.model_validate({"kind": "transformer", **SMALL, **MODELS[name]}), 9)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, gradients = learned(model, a_batch())
        assert enable_activation_recomputation_(model)
        again, recomputed = learned(model, a_batch())
    assert torch.equal(loss, again)
    assert gradients.keys() == recomputed.keys()
    for parameter, gradient in gradients.items():
        if parameter.endswith("position.table.weight") or (autocast and "encoder" in name):
            assert float((gradient - recomputed[parameter]).norm()) <= 1e-2 * float(gradient.norm())
        else:
            assert torch.equal(gradient, recomputed[parameter]), parameter


def test_models_without_a_stack_do_not_recompute() -> None:
    model = build(Recurrent.model_validate({"kind": "recurrent", "d_model": 4, "context": 4}), 5)
    assert not enable_activation_recomputation_(model)


def peak(model: LanguageModel, batch: Batch) -> int:
    """Bytes of activations: the most that is allocated within a pass, beyond the gradients of the weights."""
    learned(model, batch)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        learned(model, batch)
    changes = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    # gradients are freed at the beginning of the pass, and there at its end
    return most


def test_twelve_layers_keep_a_third_of_their_activations() -> None:
    """Of the activations, at a length where they outweigh the weights."""
    spec = {"kind": "transformer", "n_layers": 12, "d_model": 32, "n_heads": 2, "context": 128, "dropout": 0.1}
    model = build(Transformer.model_validate(spec), 9)
    batch = a_batch(2, 128)
    kept = peak(model, batch)
    assert enable_activation_recomputation_(model)
    ratio = peak(model, batch) / kept
    assert 0.05 < ratio <= 0.35
