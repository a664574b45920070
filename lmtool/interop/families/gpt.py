"""GPT-2, GPT-NeoX (Pythia), BLOOM and MPT: decoders without gates, each with layouts of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Obstacles
from lmtool.interop.families.decoder import Decoder
from lmtool.interop.families.family import SINGLE_STACK
from lmtool.interop.families.layouts import Transposed, Weight, by_head
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.transformer import Transformer


class Gpt2(Decoder):
    """GPT-2 (Radford et al. 2019)."""

    model_type = "gpt2"
    prefix = "transformer."
    redundant = (r"transformer\.h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")
    name = "GPT2"
    causal = "LMHeadModel"
    sizes: ClassVar = layers.size_keys("n_layer", "n_embd", "n_head", "n_positions")
    defaults: ClassVar = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
    }
    others: ClassVar = {
        "num_hidden_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    }
    expected: ClassVar = {"scale_attn_by_inverse_layer_idx": (False,)}
    ignored = (
        *("n_ctx", "reorder_and_upcast_attn"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    )
    dropouts = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    fixed: ClassVar = {"position": {"kind": "learned"}}

    top: ClassVar = {"inputs.tokens": "wte", "inputs.position.table": "wpe", "stack.norm": "ln_f"}
    layer = "h.{}"
    parts: ClassVar = {
        **layers.attention(0, "ln_1", "attn.c_attn", "attn.c_proj"),
        **layers.feed_forward(1, "ln_2", "mlp.c_fc", "mlp.c_proj"),
    }

    def _own_model(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {
            "d_ff": config.positive("n_inner", int, 4 * sizes["d_model"]),
            "activation": layers.read_activation(config, "activation_function"),
            "score": "scaled-dot" if config.take("scale_attn_weights", bool) else "dot",
        }

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        rows = model.position.size if isinstance(model.position, LearnedPosition) else None
        return {
            "n_positions": rows or model.context,
            "n_inner": model.d_ff,
            "activation_function": layers.write_activation(model, self.model_type, obstacles),
            "scale_attn_weights": model.score != "dot",
        }

    def _laid_out(self, weight: Weight, model: Transformer) -> Weight:
        is_matrix = ".mixer." in weight.ours and weight.ours.endswith(".weight")
        return replace(weight, layout=Transposed()) if is_matrix else weight


class ByHeads(Decoder):
    """Base of families that interleave queries, keys and values by head."""

    parts: ClassVar = {
        **layers.attention(0, "input_layernorm", "attention.query_key_value", "attention.dense"),
        **layers.feed_forward(1, "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    }
    dropouts = ("hidden_dropout", "attention_dropout")

    def _laid_out(self, weight: Weight, model: Transformer) -> Weight:
        return replace(weight, layout=by_head(model.n_heads)) if ".mixer.qkv." in weight.ours else weight


class GptNeoX(ByHeads):
    """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023)."""

    model_type = "gpt_neox"
    prefix = "gpt_neox."
    redundant = (
        r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
        r"gpt_neox\.rotary_emb\.inv_freq",
        r"embed_out\.weight",
    )
    output = "embed_out.weight"
    renamed = (("lm_head.", "embed_out."),)
    name = "GPTNeoX"
    sizes = layers.USUAL_SIZES
    eps = "layer_norm_eps"
    defaults: ClassVar = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10_000.0,
    }
    expected: ClassVar = {"attention_bias": (True,)}
    ignored = ("classifier_dropout",)

    top: ClassVar = {"inputs.tokens": "embed_in", "stack.norm": "final_layer_norm"}
    layer = "layers.{}"

    def _own_model(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        # Transformers 4 wrote them under both names
        config.rename("rope_theta", "rotary_emb_base")
        config.rename("partial_rotary_factor", "rotary_pct")
        theta, share = config.take("rotary_emb_base", float), config.take("rotary_pct", float)
        return {
            "activation": layers.read_activation(config, "hidden_act"),
            "parallel": config.take("use_parallel_residual", bool),
            "position": layers.read_rotary(config, sizes["context"], theta, share),
        }

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        position, rotary = layers.write_rotary(model, self.model_type, obstacles)
        del rotary["rope_theta"]
        rotary["rope_parameters"]["partial_rotary_factor"] = position.share
        return {
            "hidden_act": layers.write_activation(model, self.model_type, obstacles),
            "use_parallel_residual": model.parallel,
            "rotary_emb_base": position.theta,
            "rotary_pct": position.share,
            **rotary,
        }


class Bloom(ByHeads):
    """BLOOM (BigScience 2022); the context is that of training, since ALiBi has no limit."""

    model_type = "bloom"
    prefix = "transformer."
    name = "Bloom"
    sizes: ClassVar = layers.size_keys("n_layer", "hidden_size", "n_head", "seq_length")
    defaults: ClassVar = {"layer_norm_epsilon": 1e-5, "seq_length": 2048}
    others: ClassVar = {"num_hidden_layers": "n_layer", "n_embed": "hidden_size", "num_attention_heads": "n_head"}
    expected: ClassVar = {
        "apply_residual_connection_post_layernorm": (False,),
        "n_inner": (),
        "skip_bias_add_qkv": (False,),
    }
    ignored = (
        *("pretraining_tp", "slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion"),
        *("bias_dropout_fusion", "skip_bias_add", "offset_alibi"),
    )
    norm: ClassVar = {"kind": "layer", "embedding": True}
    fixed: ClassVar = {"activation": "gelu-tanh", "position": {"kind": "alibi"}}

    top: ClassVar = {
        "inputs.tokens": "word_embeddings",
        "inputs.norm": "word_embeddings_layernorm",
        "stack.norm": "ln_f",
    }
    layer = "h.{}"
    parts: ClassVar = {
        **ByHeads.parts,
        **layers.attention(0, "input_layernorm", "self_attention.query_key_value", "self_attention.dense"),
    }


class Mpt(Decoder):
    """MPT (MosaicML 2023): ALiBi, and no biases anywhere; Transformers takes no texts longer than the context."""

    model_type = "mpt"
    prefix = "transformer."
    name = "Mpt"
    sizes: ClassVar = layers.size_keys("n_layers", "d_model", "n_heads", "max_seq_len")
    defaults: ClassVar = {"layer_norm_epsilon": 1e-5}
    others: ClassVar = {"num_hidden_layers": "n_layers", "hidden_size": "d_model", "num_attention_heads": "n_heads"}
    expected: ClassVar = {
        # the network of Transformers has no other
        "expansion_ratio": (4,),
        "logit_scale": (),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
    }
    ignored = (
        *("learned_pos_emb", "resid_pdrop", "emb_pdrop", "embedding_fraction"),
        *("init_device", "init_config", "verbose", "tokenizer_name"),
    )
    fixed: ClassVar = {"activation": "gelu", "bias": False, "position": {"kind": "alibi"}}

    top: ClassVar = {"inputs.tokens": "wte", "stack.norm": "norm_f"}
    layer = "blocks.{}"
    parts: ClassVar = {
        **layers.attention(0, "norm_1", "attn.Wqkv", "attn.out_proj"),
        **layers.feed_forward(1, "norm_2", "ffn.up_proj", "ffn.down_proj"),
    }
    attention: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "alibi": (True,),
        "alibi_bias_max": (8,),
        "attn_type": ("multihead_attention",),
        "attn_uses_sequence_id": (False,),
        "clip_qkv": (),
        "prefix_lm": (False,),
        "qk_ln": (False,),
        "softmax_scale": (),
    }

    def _own_model(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        section = config.section("attn_config")
        for key, allowed in ({**SINGLE_STACK, **self.attention}).items():
            section.expect(key, *allowed)
        section.ignore("attn_impl", "attn_pdrop")
        return {}

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        return {"attn_config": {key: next(iter(allowed), None) for key, allowed in self.attention.items()}}
