"""The recipe language describes published families: the same logits as Transformers' models with the same weights."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from lmtool.batch import Batch
from tests.support import tiny
from tests.support.torch_layers import bert_names, joined, randomise

SIZES: dict[str, Any] = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **more}}


OURS: dict[str, Any] = {
    "n_layers": 3,
    "d_model": 32,
    "n_kv_heads": 2,
    "d_ff": 24,
    "activation": "swiglu",
    "norm": {"kind": "rms", "eps": 1e-6},
    "bias": False,
    "tie_embeddings": False,
    "position": {"kind": "rotary", "theta": 100.0},
}


def scaled(scaling: dict[str, Any]) -> dict[str, Any]:
    return {**OURS, "position": {**OURS["position"], "scaling": scaling}}


DECODERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {**GROUPED, **rope()}, OURS),
    "llama with biases, tied": (
        "Llama",
        {**GROUPED, **rope(), "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {**OURS, "bias": True, "tie_embeddings": True},
    ),
    "llama, linear": (
        "Llama",
        {**GROUPED, **rope(rope_type="linear", factor=2.0)},
        scaled({"kind": "linear", "factor": 2.0}),
    ),
    "llama 3": (
        "Llama",
        {
            **GROUPED,
            **rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
        scaled({"kind": "llama3", "factor": 8.0, "original_context": 32}),
    ),
    "llama, yarn": (
        "Llama",
        {
            **GROUPED,
            "head_dim": 16,
            **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0),
        },
        {
            **scaled({"kind": "yarn", "factor": 4.0, "original_context": 16, "fast_turns": 4.0}),
            "head_width": 16,
        },
    ),
    "mistral": (
        "Mistral",
        {**GROUPED, **rope(), "sliding_window": 4},
        {**OURS, "pattern": {"kind": "window", "size": 4}},
    ),
    "qwen2": ("Qwen2", {**GROUPED, **rope()}, {**OURS, "qkv_bias": True}),
    "qwen2 with windows": (
        "Qwen2",
        {**GROUPED, **rope(), "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
        {**OURS, "qkv_bias": True, "pattern": {"kind": "window", "size": 4, "full_layers": [0, 1]}},
    ),
    "qwen3": ("Qwen3", {**GROUPED, **rope(), "head_dim": 12}, {**OURS, "head_width": 12, "qk_norm": "head"}),
    "gemma": (
        "Gemma",
        {**GROUPED, **rope(), "head_dim": 12, "hidden_activation": "gelu_pytorch_tanh"},
        {
            **OURS,
            "head_width": 12,
            "activation": "geglu",
            "norm": {"kind": "rms", "eps": 1e-6, "unit_offset": True},
            "scale_embedding": True,
            "tie_embeddings": True,
        },
    ),
    "olmo2": (
        "Olmo2",
        {**GROUPED, **rope()},
        {**OURS, "norm": {"kind": "rms", "eps": 1e-6, "place": "output"}, "qk_norm": "joint"},
    ),
}


def llama_names(family: str) -> dict[str, tuple[str, ...]]:
    """Their names of the parts of a decoder, by ours."""
    before = ("post_attention_layernorm", "post_feedforward_layernorm")
    of_attention, of_network = before if family == "olmo2" else ("input_layernorm", "post_attention_layernorm")
    names: dict[str, tuple[str, ...]] = {"inputs.tokens": ("model.embed_tokens",), "stack.norm": ("model.norm",)}
    for layer in range(3):
        attention, ffn = f"stack.sublayers.{2 * layer}", f"stack.sublayers.{2 * layer + 1}"
        theirs = f"model.layers.{layer}"
        names |= {
            f"{attention}.norm": (f"{theirs}.{of_attention}",),
            f"{attention}.mixer.qkv": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
            f"{attention}.mixer.q_norm": (f"{theirs}.self_attn.q_norm",),
            f"{attention}.mixer.k_norm": (f"{theirs}.self_attn.k_norm",),
            f"{attention}.mixer.out": (f"{theirs}.self_attn.o_proj",),
            f"{ffn}.norm": (f"{theirs}.{of_network}",),
            f"{ffn}.mixer.up": (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"),
            f"{ffn}.mixer.out": (f"{theirs}.mlp.down_proj",),
        }
    return {**names, "head": ("lm_head",)}


def peer_of(name: str, head: str, config: dict[str, Any]) -> Any:
    """A Transformers model with random weights in float32."""
    made = getattr(transformers, f"{name}Config")(**config, attn_implementation="eager")
    peer = getattr(transformers, f"{name}For{head}")(made).eval()
    randomise(peer)
    return peer


def assert_equal(model: Any, peer: Any, tokens_BT: Tensor, keep_BT: Tensor | None = None) -> None:
    """Logits in training and in inference, at all positions that are no padding."""
    with torch.no_grad():
        wanted = peer(tokens_BT, attention_mask=None if keep_BT is None else keep_BT.long()).logits
    kept = torch.ones_like(tokens_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            logits = model.logits(model(Batch(tokens_BT, keep_BT=keep_BT)).hidden_BTD)
        torch.testing.assert_close(logits[kept], wanted[kept], rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family: str) -> None:
    name, config, ours = DECODERS[family]
    peer = peer_of(name, "CausalLM", config)
    model = tiny.model(dtype=torch.float32, **ours)
    weights = peer.state_dict()
    own_head = weights.pop("lm_head.weight")
    if not ours["tie_embeddings"]:
        weights["lm_head.own"] = own_head
    joined(weights, model, llama_names(family))
    assert_equal(model, peer, tiny.tokens(3, 40))


@pytest.mark.parametrize(("share", "parallel"), [(0.25, True), (1.0, True), (0.5, False)])
def test_gpt_neox(share: float, parallel: bool) -> None:
    config = {
        **SIZES,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": share},
        "use_parallel_residual": parallel,
        "tie_word_embeddings": False,
    }
    peer = peer_of("GPTNeoX", "CausalLM", config)
    model = tiny.model(
        dtype=torch.float32,
        n_layers=3,
        d_model=32,
        d_ff=24,
        parallel=parallel,
        tie_embeddings=False,
        position={"kind": "rotary", "theta": 100.0, "share": share},
    )
    weights = peer.state_dict()
    weights["lm_head.own"] = weights.pop("lm_head.weight")
    names: dict[str, tuple[str, ...]] = {
        "inputs.tokens": ("gpt_neox.embed_in",),
        "stack.norm": ("gpt_neox.final_layer_norm",),
        "head": ("lm_head",),
    }
    for layer in range(3):
        attention, ffn = f"stack.sublayers.{2 * layer}", f"stack.sublayers.{2 * layer + 1}"
        theirs = f"gpt_neox.layers.{layer}"
        for kind in ("weight", "bias"):
            # theirs interleaves query, key and value by head
            key = f"{theirs}.attention.query_key_value.{kind}"
            heads = weights[key].view(4, 3, 8, *weights[key].shape[1:])
            weights[key] = heads.transpose(0, 1).reshape(weights[key].shape)
        names |= {
            f"{attention}.norm": (f"{theirs}.input_layernorm",),
            f"{attention}.mixer.qkv": (f"{theirs}.attention.query_key_value",),
            f"{attention}.mixer.out": (f"{theirs}.attention.dense",),
            f"{ffn}.norm": (f"{theirs}.post_attention_layernorm",),
            f"{ffn}.mixer.up": (f"{theirs}.mlp.dense_h_to_4h",),
            f"{ffn}.mixer.out": (f"{theirs}.mlp.dense_4h_to_h",),
        }
    joined(weights, model, names)
    assert_equal(model, peer, tiny.tokens(3, 40))


def test_modernbert() -> None:
    """Full attention in every third layer, with wavelengths of its own; the first layer has one norm less."""
    config = {
        **SIZES,
        "num_hidden_layers": 4,
        "global_attn_every_n_layers": 3,
        "local_attention": 8,
        "global_rope_theta": 1000.0,
        "local_rope_theta": 100.0,
        "norm_eps": 1e-5,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "reference_compile": False,
    }
    peer = peer_of("ModernBert", "MaskedLM", config)
    model = tiny.model(
        dtype=torch.float32,
        shape="encoder",
        n_layers=4,
        d_model=32,
        d_ff=24,
        pattern={"kind": "window", "size": 5, "full_layers": [0, 3]},
        position={"kind": "rotary", "theta": 1000.0, "window_theta": 100.0},
        norm={"embedding": True, "first": False},
        activation="geglu-exact",
        head_transform=True,
        head_bias=True,
        bias=False,
    )
    weights = peer.state_dict()
    del weights["decoder.weight"]
    names: dict[str, tuple[str, ...]] = {
        "inputs.tokens": ("model.embeddings.tok_embeddings",),
        "inputs.norm": ("model.embeddings.norm",),
        "stack.norm": ("model.final_norm",),
        "head": ("decoder",),
        "head.dense": ("head.dense",),
        "head.norm": ("head.norm",),
    }
    for layer in range(4):
        attention, ffn = f"stack.sublayers.{2 * layer}", f"stack.sublayers.{2 * layer + 1}"
        theirs = f"model.layers.{layer}"
        names |= {
            f"{attention}.norm": (f"{theirs}.attn_norm",),
            f"{attention}.mixer.qkv": (f"{theirs}.attn.Wqkv",),
            f"{attention}.mixer.out": (f"{theirs}.attn.Wo",),
            f"{ffn}.norm": (f"{theirs}.mlp_norm",),
            f"{ffn}.mixer.up": (f"{theirs}.mlp.Wi",),
            f"{ffn}.mixer.out": (f"{theirs}.mlp.Wo",),
        }
    joined(weights, model, names)
    tokens_BT = tiny.tokens(3, 40)
    assert_equal(model, peer, tokens_BT, torch.arange(40) < torch.tensor([[40], [21], [33]]))


def seq2seq_names(stack: str, per_layer: int) -> dict[str, tuple[str, ...]]:
    """Marian's and BART's names of the parts of a stack of two layers, by ours."""
    names: dict[str, tuple[str, ...]] = {}
    for layer in range(2):
        ours = [f"{stack}.sublayers.{per_layer * layer + i}" for i in range(per_layer)]
        theirs = f"model.{stack}.layers.{layer}"
        names |= {
            f"{ours[0]}.norm": (f"{theirs}.self_attn_layer_norm",),
            f"{ours[0]}.mixer.qkv": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
            f"{ours[0]}.mixer.out": (f"{theirs}.self_attn.out_proj",),
            f"{ours[-1]}.norm": (f"{theirs}.final_layer_norm",),
            f"{ours[-1]}.mixer.up": (f"{theirs}.fc1",),
            f"{ours[-1]}.mixer.out": (f"{theirs}.fc2",),
        }
        if per_layer == 3:
            names |= {
                f"{ours[1]}.norm": (f"{theirs}.encoder_attn_layer_norm",),
                f"{ours[1]}.mixer.q": (f"{theirs}.encoder_attn.q_proj",),
                f"{ours[1]}.mixer.kv": tuple(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"),
                f"{ours[1]}.mixer.out": (f"{theirs}.encoder_attn.out_proj",),
            }
    return names


@pytest.mark.parametrize("name", ["Marian", "Bart"])
def test_encoder_decoders(name: str) -> None:
    config: dict[str, Any] = {"vocab_size": tiny.VOCAB, "d_model": 16, "max_position_embeddings": 24}
    config |= dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
    config |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    config |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
    config |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    config |= {"activation_function": "swish" if name == "Marian" else "gelu", "scale_embedding": name == "Marian"}
    made = getattr(transformers, f"{name}Config")(**config, forced_eos_token_id=None)
    kind = transformers.MarianMTModel if name == "Marian" else transformers.BartForConditionalGeneration
    peer: Any = kind(made).eval()
    sinusoids = [peer.model.encoder.embed_positions.weight.clone(), peer.model.decoder.embed_positions.weight.clone()]
    randomise(peer)
    torch.nn.init.normal_(peer.final_logits_bias)
    ours: dict[str, Any] = {
        "shape": "encoder-decoder",
        "d_ff": 24,
        "norm": {"place": "post", "embedding": name == "Bart"},
        "head_bias": True,
        "position": {"kind": "learned", "size": 26, "offset": 2},
        "separate_inputs": True,
    }
    names: dict[str, tuple[str, ...]] = {"inputs.tokens": ("model.shared",), "head": ("head",)}
    if name == "Marian":
        ours |= {"activation": "silu", "position": {"kind": "sinusoidal", "layout": "halves"}}
        ours |= {"separate_inputs": False, "scale_embedding": True}
        with torch.no_grad():
            for table, one in zip(sinusoids, (peer.model.encoder, peer.model.decoder), strict=True):
                one.embed_positions.weight.copy_(table)
    else:
        for inputs, stack in (("inputs", "encoder"), ("target_inputs", "decoder")):
            names[f"{inputs}.position.table"] = (f"model.{stack}.embed_positions",)
            names[f"{inputs}.norm"] = (f"model.{stack}.layernorm_embedding",)
    model = tiny.model(dtype=torch.float32, **ours)
    weights = peer.state_dict()
    weights["head.bias"] = weights.pop("final_logits_bias")[0]
    for key in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        del weights[key]
    if name == "Marian":
        del weights["model.encoder.embed_positions.weight"], weights["model.decoder.embed_positions.weight"]
    joined(weights, model, {**names, **seq2seq_names("encoder", 2), **seq2seq_names("decoder", 3)})
    source_BS, tokens_BT = tiny.tokens(3, 20), tiny.tokens(3, 17, seed=1)
    keep_BS = torch.arange(20) < torch.tensor([[20], [1], [15]])
    with torch.no_grad():
        wanted = peer(source_BS, attention_mask=keep_BS.long(), decoder_input_ids=tokens_BT).logits
        hidden = model(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=keep_BS)).hidden_BTD
        logits = model.logits(hidden)
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_electra() -> None:
    """The generator, which fills masks; its embeddings are narrower than its layers."""
    config = {
        **{key: value for key, value in SIZES.items() if not key.startswith(("bos", "eos"))},
        "embedding_size": 12,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "num_hidden_layers": 2,
    }
    peer = peer_of("Electra", "MaskedLM", config)
    model = tiny.model(
        dtype=torch.float32,
        **{**tiny.BERT, "next_sentence_head": False},
        d_model=32,
        d_ff=24,
        context=64,
        embedding_width=12,
    )
    weights = peer.state_dict()
    weights["head.bias"] = weights.pop("generator_lm_head.bias")
    del weights["generator_lm_head.weight"]
    names = {
        **bert_names("electra"),
        "inputs.project": ("electra.embeddings_project",),
        "head": ("head",),
        "head.dense": ("generator_predictions.dense",),
        "head.norm": ("generator_predictions.LayerNorm",),
    }
    joined(weights, model, names)
    assert_equal(model, peer, tiny.tokens(3, 40), torch.arange(40) < torch.tensor([[40], [21], [33]]))
