"""The same logits as Transformers' models with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import LanguageModel
from tests.model import tiny

SIZES: dict[str, Any] = {"vocab_size": tiny.VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 24}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def copy_weights(peer: dict[str, Tensor], model: LanguageModel, names: dict[str, str]) -> None:
    """Their Conv1D keeps matrices as (in, out), ours are (out, in)."""
    for name, parameter in model.named_parameters():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        theirs_transposed = ".c_" in name and name.endswith("weight")
        weight = peer.pop(name)
        with torch.no_grad():
            parameter.copy_(weight.T if theirs_transposed else weight)


def randomise(peer: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)


def layer_names(norms: tuple[str, str]) -> dict[str, str]:
    names = {}
    for layer in range(2):
        attention, ffn, theirs = f"stack.sublayers.{2 * layer}.", f"stack.sublayers.{2 * layer + 1}.", f"h.{layer}."
        names |= {
            f"{attention}mixer.qkv": f"{theirs}attn.c_attn",
            f"{attention}mixer.out": f"{theirs}attn.c_proj",
            f"{attention}norm": theirs + norms[0],
            f"{ffn}mixer.up": f"{theirs}mlp.c_fc",
            f"{ffn}mixer.out": f"{theirs}mlp.c_proj",
            f"{ffn}norm": theirs + norms[1],
        }
    return names


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_gpt2(dtype: torch.dtype, tolerance: float) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    peer = GPT2LMHeadModel(GPT2Config(**SIZES, **NO_DROPOUT, bos_token_id=0, eos_token_id=0)).to(dtype).eval()
    randomise(peer)
    model = tiny.model(dtype=dtype, activation="gelu-tanh")
    names = {"inputs.tokens": "wte", "inputs.position.table": "wpe", **layer_names(("ln_1", "ln_2"))}
    weights = peer.transformer.state_dict()
    copy_weights(weights, model, {**names, "stack.norm": "ln_f"})
    assert not weights
    tokens_BT = tiny.tokens(3, 20)
    with torch.no_grad():
        wanted = peer(tokens_BT).logits
    for logits in (model.logits(model(Batch(tokens_BT))), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_gpt1(dtype: torch.dtype, tolerance: float) -> None:
    """Post-norm; what their configuration calls `gelu` is the tanh approximation, as in the original code."""
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    peer = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**SIZES, **NO_DROPOUT)).to(dtype).eval()
    randomise(peer)
    model = tiny.model(dtype=dtype, activation="gelu-tanh", norm={"kind": "layer", "place": "post"})
    weights = peer.transformer.state_dict()
    names = {"inputs.tokens": "tokens_embed", "inputs.position.table": "positions_embed"}
    copy_weights(weights, model, {**names, **layer_names(("ln_1", "ln_2"))})
    assert not weights
    tokens_BT = tiny.tokens(3, 20)
    with torch.no_grad():
        wanted = peer(tokens_BT).logits
    for logits in (model.logits(model(Batch(tokens_BT))), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


def no_grad_forward(model: LanguageModel, tokens_BT: Tensor) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(Batch(tokens_BT))
    return hidden
