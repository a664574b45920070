"""The same logits as Transformers' models with the same weights."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.model import LanguageModel
from lmtool.model.transformer import TransformerEncoder, TransformerEncoderDecoder
from tests.support import tiny
from tests.support.torch_layers import bert_names, joined, randomise

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
    for logits in (model.logits(model(Batch(tokens_BT)).hidden_BTD), model.logits(no_grad_forward(model, tokens_BT))):
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
    for logits in (model.logits(model(Batch(tokens_BT)).hidden_BTD), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


def no_grad_forward(model: LanguageModel, tokens_BT: Tensor) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(Batch(tokens_BT)).hidden_BTD
    return hidden


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
    for logits in (model.logits(model(Batch(tokens_BT)).hidden_BTD), model.logits(no_grad_forward(model, tokens_BT))):
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
            # theirs interleaves query, key and value by head
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
    for logits in (model.logits(model(Batch(tokens_BT)).hidden_BTD), model.logits(no_grad_forward(model, tokens_BT))):
        torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


BERT_SIZES: dict[str, Any] = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_bert(dtype: torch.dtype, tolerance: float, grad: bool) -> None:
    """Scores of masked tokens and of the next sentence, with two segments and with padding."""
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(**BERT_SIZES, max_position_embeddings=24, type_vocab_size=2)
    peer = BertForPreTraining(config).to(dtype).eval()
    randomise(peer)
    model = tiny.model(dtype=dtype, **tiny.BERT)
    assert isinstance(model, TransformerEncoder)
    weights = peer.state_dict()
    del weights["cls.predictions.decoder.weight"], weights["cls.predictions.decoder.bias"]
    head = {
        "head": ("cls.predictions",),
        "head.dense": ("cls.predictions.transform.dense",),
        "head.norm": ("cls.predictions.transform.LayerNorm",),
        "pooler": ("bert.pooler.dense",),
        "next_sentence": ("cls.seq_relationship",),
    }
    joined(weights, model, {**bert_names("bert"), **head})
    tokens_BT = tiny.tokens(3, 20)
    segments_BT = (torch.arange(20) >= torch.tensor([[7], [20], [12]])).long()
    keep_BT = torch.arange(20) < torch.tensor([[20], [20], [15]])
    with torch.no_grad():
        wanted = peer(tokens_BT, attention_mask=keep_BT.long(), token_type_ids=segments_BT)
    with torch.set_grad_enabled(grad):
        hidden = model(Batch(tokens_BT, keep_BT=keep_BT, segments_BT=segments_BT)).hidden_BTD
        logits, pair = model.logits(hidden), model.next_sentence_logits(hidden)
    torch.testing.assert_close(logits[keep_BT], wanted.prediction_logits[keep_BT], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(pair, wanted.seq_relationship_logits, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_roberta(dtype: torch.dtype, tolerance: float) -> None:
    """Its positions begin in row 2 of their table, and its one segment adds the same vector everywhere."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(**BERT_SIZES, max_position_embeddings=26, type_vocab_size=1, pad_token_id=1)
    peer = RobertaForMaskedLM(config).to(dtype).eval()
    randomise(peer)
    model = tiny.model(dtype=dtype, **{**tiny.BERT, "n_segments": 0, "next_sentence_head": False})
    weights = peer.state_dict()
    del weights["lm_head.decoder.weight"], weights["lm_head.decoder.bias"]
    segment = weights.pop("roberta.embeddings.token_type_embeddings.weight")
    positions = "roberta.embeddings.position_embeddings.weight"
    weights[positions] = weights[positions][2:] + segment
    head = {"head": ("lm_head",), "head.dense": ("lm_head.dense",), "head.norm": ("lm_head.layer_norm",)}
    joined(weights, model, {**bert_names("roberta"), **head})
    tokens_BT = tiny.tokens(3, 20)
    tokens_BT[tokens_BT == 1] = 2  # theirs takes 1 for padding
    with torch.no_grad():
        wanted = peer(tokens_BT).logits
    logits = model.logits(model(Batch(tokens_BT)).hidden_BTD)
    torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_t5(dtype: torch.dtype, tolerance: float, version: str, grad: bool) -> None:
    """1.0: ReLU and a tied, scaled head; 1.1: GEGLU and an untied one (Shazeer 2020)."""
    from transformers import T5Config, T5ForConditionalGeneration

    gated = version == "1.1"
    config = T5Config(
        vocab_size=tiny.VOCAB,
        d_model=16,
        d_kv=6 if gated else 4,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=12,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
    )
    peer = T5ForConditionalGeneration(config).to(dtype).eval()
    randomise(peer)
    if dtype == torch.float64:
        # theirs normalises in float32
        for module in peer.modules():
            if type(module).__name__ == "T5LayerNorm":
                module.forward = functools.partial(exact_rms, module)  # type: ignore[method-assign]
    model = tiny.model(dtype=dtype, **{**tiny.T5, **({**tiny.FAMILIES["t5 1.1"], "d_ff": None} if gated else {})})
    names: dict[str, tuple[str, ...]] = {"inputs.tokens": ("shared",), "head": ("lm_head",)}
    weights = peer.state_dict()
    del weights["encoder.embed_tokens.weight"], weights["decoder.embed_tokens.weight"]
    own_head = weights.pop("lm_head.weight")
    if gated:
        weights["lm_head.own"] = own_head
    for stack, per_layer in (("encoder", 2), ("decoder", 3)):
        first = f"{stack}.block.0.layer.0.SelfAttention"
        names |= {
            f"{stack}.position.table": (f"{first}.relative_attention_bias",),
            f"{stack}.norm": (f"{stack}.final_layer_norm",),
        }
        for layer in range(2):
            ours = [f"{stack}.sublayers.{per_layer * layer + i}" for i in range(per_layer)]
            theirs = [f"{stack}.block.{layer}.layer.{i}" for i in range(per_layer)]
            names |= {f"{one}.norm": (f"{other}.layer_norm",) for one, other in zip(ours, theirs, strict=True)}
            names |= {
                f"{ours[0]}.mixer.qkv": tuple(f"{theirs[0]}.SelfAttention.{part}" for part in "qkv"),
                f"{ours[0]}.mixer.out": (f"{theirs[0]}.SelfAttention.o",),
                f"{ours[-1]}.mixer.up": tuple(
                    f"{theirs[-1]}.DenseReluDense.{part}" for part in (("wi_0", "wi_1") if gated else ("wi",))
                ),
                f"{ours[-1]}.mixer.out": (f"{theirs[-1]}.DenseReluDense.wo",),
            }
            if stack == "decoder":
                names |= {
                    f"{ours[1]}.mixer.q": (f"{theirs[1]}.EncDecAttention.q",),
                    f"{ours[1]}.mixer.kv": tuple(f"{theirs[1]}.EncDecAttention.{part}" for part in "kv"),
                    f"{ours[1]}.mixer.out": (f"{theirs[1]}.EncDecAttention.o",),
                }
    joined(weights, model, names)
    source_BS, tokens_BT = tiny.tokens(3, 20), tiny.tokens(3, 17, seed=1)
    keep_BS = torch.arange(20) < torch.tensor([[20], [1], [15]])
    with torch.no_grad():
        wanted = peer(source_BS, attention_mask=keep_BS.long(), decoder_input_ids=tokens_BT).logits
    with torch.set_grad_enabled(grad):
        logits = model.logits(model(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=keep_BS)).hidden_BTD)
    torch.testing.assert_close(logits, wanted, rtol=tolerance, atol=tolerance)


def exact_rms(norm: torch.nn.Module, x: Tensor) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return x * scale * norm.weight  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_torch_transformer(dtype: torch.dtype, tolerance: float, pre: bool, grad: bool) -> None:
    """Encoder and decoder layers of Vaswani et al. 2017, between our embedding and our head."""
    layer: dict[str, Any] = {"d_model": 16, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
    layer |= {"norm_first": pre, "layer_norm_eps": 1e-3}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), 2, nn.LayerNorm(16, 1e-3) if pre else None, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2, nn.LayerNorm(16, 1e-3) if pre else None)
    peer = nn.Transformer(16, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).to(dtype).eval()
    randomise(peer)
    norm = {"kind": "layer", "place": "pre" if pre else "post", "eps": 1e-3}
    model = tiny.model(dtype=dtype, **{**tiny.VASWANI, "norm": norm})
    assert isinstance(model, TransformerEncoderDecoder)
    weights = peer.state_dict()
    for stack, per_layer in (("encoder", 2), ("decoder", 3)):
        ours = dict(getattr(model, stack).named_parameters())
        for number in range(2):
            parts = [f"sublayers.{per_layer * number + i}" for i in range(per_layer)]
            theirs = f"{stack}.layers.{number}"
            for kind in ("weight", "bias"):
                for i, part in enumerate(parts):
                    put(ours[f"{part}.norm.{kind}"], weights.pop(f"{theirs}.norm{i + 1}.{kind}"))
                put(ours[f"{parts[0]}.mixer.qkv.{kind}"], weights.pop(f"{theirs}.self_attn.in_proj_{kind}"))
                put(ours[f"{parts[0]}.mixer.out.{kind}"], weights.pop(f"{theirs}.self_attn.out_proj.{kind}"))
                put(ours[f"{parts[-1]}.mixer.up.{kind}"], weights.pop(f"{theirs}.linear1.{kind}"))
                put(ours[f"{parts[-1]}.mixer.out.{kind}"], weights.pop(f"{theirs}.linear2.{kind}"))
                if stack == "decoder":
                    across = weights.pop(f"{theirs}.multihead_attn.in_proj_{kind}")
                    put(ours[f"{parts[1]}.mixer.q.{kind}"], across[:16])
                    put(ours[f"{parts[1]}.mixer.kv.{kind}"], across[16:])
                    put(ours[f"{parts[1]}.mixer.out.{kind}"], weights.pop(f"{theirs}.multihead_attn.out_proj.{kind}"))
        if pre:
            for kind in ("weight", "bias"):
                put(ours[f"norm.{kind}"], weights.pop(f"{stack}.norm.{kind}"))
    assert not weights
    source_BS, tokens_BT = tiny.tokens(3, 14), tiny.tokens(3, 17, seed=1)
    keep_BS = torch.arange(14) < torch.tensor([[14], [1], [9]])
    positions = [torch.arange(n)[None] for n in (14, 17)]
    with torch.no_grad():
        wanted = peer(
            model.inputs(source_BS, positions[0], None, None),
            model.inputs(tokens_BT, positions[1], None, None),
            tgt_mask=torch.ones(17, 17).triu(1).bool(),
            src_key_padding_mask=~keep_BS,
            memory_key_padding_mask=~keep_BS,
        )
    with torch.set_grad_enabled(grad):
        hidden = model(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=keep_BS)).hidden_BTD
    torch.testing.assert_close(hidden, wanted, rtol=tolerance, atol=tolerance)


def put(parameter: Tensor, weight: Tensor) -> None:
    assert parameter.shape == weight.shape
    with torch.no_grad():
        parameter.copy_(weight)
