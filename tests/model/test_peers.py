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


def joined(peer: dict[str, Tensor], model: LanguageModel, names: dict[str, tuple[str, ...]]) -> None:
    """Copy weights that they keep apart and we keep as one; all of theirs must be used."""
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        with torch.no_grad():
            parameter.copy_(torch.cat([peer.pop(f"{theirs}.{kind}") for theirs in names[module]]))
    assert not peer


@pytest.mark.parametrize("theta", [10_000.0, 50.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_llama(dtype: torch.dtype, tolerance: float, theta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

    config = LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=24,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        bos_token_id=0,
        eos_token_id=0,
    )
    peer = LlamaForCausalLM(config).to(dtype).eval()
    if dtype == torch.float64:
        # theirs compute these in float32 whatever the model is

        def waves(self: LlamaRotaryEmbedding, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            angles = position_ids[..., None] * theta ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
            doubled = torch.cat((angles, angles), -1)
            return doubled.cos(), doubled.sin()

        def norm(self: LlamaRMSNorm, x: Tensor) -> Tensor:
            return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

        monkeypatch.setattr(LlamaRotaryEmbedding, "forward", waves)
        monkeypatch.setattr(LlamaRMSNorm, "forward", norm)
    randomise(peer)
    model = tiny.model(
        dtype=dtype,
        d_model=32,
        n_kv_heads=2,
        d_ff=24,
        activation="swiglu",
        norm={"kind": "rms", "eps": 1e-6},
        bias=False,
        tie_embeddings=False,
        position={"kind": "rotary", "theta": theta},
    )
    names: dict[str, tuple[str, ...]] = {"inputs.tokens": ("model.embed_tokens",), "stack.norm": ("model.norm",)}
    for layer in range(2):
        attention, ffn, theirs = (
            f"stack.sublayers.{2 * layer}",
            f"stack.sublayers.{2 * layer + 1}",
            f"model.layers.{layer}",
        )
        names |= {
            f"{attention}.norm": (f"{theirs}.input_layernorm",),
            f"{attention}.mixer.qkv": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
            f"{attention}.mixer.out": (f"{theirs}.self_attn.o_proj",),
            f"{ffn}.norm": (f"{theirs}.post_attention_layernorm",),
            f"{ffn}.mixer.up": (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"),
            f"{ffn}.mixer.out": (f"{theirs}.mlp.down_proj",),
        }
    weights = peer.state_dict()
    weights["lm_head.own"] = weights.pop("lm_head.weight")
    joined(weights, model, {**names, "head": ("lm_head",)})
    tokens_BT = tiny.tokens(3, 20)
    with torch.no_grad():
        wanted = peer(tokens_BT).logits
    for logits in (model.logits(model(Batch(tokens_BT))), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n_heads", [4, 6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_bloom(dtype: torch.dtype, tolerance: float, n_heads: int) -> None:
    """ALiBi, also with a number of heads that is no power of two; their softmax is float32 whatever the model is."""
    from transformers import BloomConfig, BloomForCausalLM

    width = 4 * n_heads
    config = BloomConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=width,
        n_layer=2,
        n_head=n_heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    peer = BloomForCausalLM(config).to(dtype).eval()
    randomise(peer)
    model = tiny.model(
        dtype=dtype,
        d_model=width,
        n_heads=n_heads,
        activation="gelu-tanh",
        norm={"embedding": True},
        position={"kind": "alibi"},
    )
    weights = peer.transformer.state_dict()
    for layer in range(2):
        for kind in ("weight", "bias"):
            # theirs has query, key and value of a head beside each other
            key = f"h.{layer}.self_attention.query_key_value.{kind}"
            heads = weights[key].view(n_heads, 3, 4, *weights[key].shape[1:])
            weights[key] = heads.transpose(0, 1).reshape(weights[key].shape)
    names: dict[str, tuple[str, ...]] = {
        "inputs.tokens": ("word_embeddings",),
        "inputs.norm": ("word_embeddings_layernorm",),
        "stack.norm": ("ln_f",),
    }
    for layer in range(2):
        attention, ffn, theirs = f"stack.sublayers.{2 * layer}", f"stack.sublayers.{2 * layer + 1}", f"h.{layer}"
        names |= {
            f"{attention}.norm": (f"{theirs}.input_layernorm",),
            f"{attention}.mixer.qkv": (f"{theirs}.self_attention.query_key_value",),
            f"{attention}.mixer.out": (f"{theirs}.self_attention.dense",),
            f"{ffn}.norm": (f"{theirs}.post_attention_layernorm",),
            f"{ffn}.mixer.up": (f"{theirs}.mlp.dense_h_to_4h",),
            f"{ffn}.mixer.out": (f"{theirs}.mlp.dense_4h_to_h",),
        }
    joined(weights, model, names)
    tokens_BT = tiny.tokens(3, 20)
    with torch.no_grad():
        wanted = peer(tokens_BT).logits
    for logits in (model.logits(model(Batch(tokens_BT))), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)
