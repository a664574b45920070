"""Llama and its relatives: Mistral, Qwen 2 and 3, Gemma and OLMo 2."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Inexpressible, Obstacles
from lmtool.interop.families.decoder import Decoder
from lmtool.recipe.spec.transformer import Transformer, WindowPattern


class LlamaLike(Decoder):
    """Base of Llama and its relatives: rotary positions, gated networks, RMSNorm, grouped heads of any width.

    biased: the keys of biases, all or none of which a recipe expresses. activations: ours by theirs.
    """

    prefix = "model."
    redundant = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq", r"lm_head\.weight")
    sizes = layers.USUAL_SIZES
    eps = "rms_norm_eps"
    defaults: ClassVar = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    expected: ClassVar = {"attention_bias": (False,)}
    ignored: ClassVar[tuple[str, ...]] = ("attention_dropout",)
    norm: ClassVar = {"kind": "rms"}
    biased: ClassVar[tuple[str, ...]] = ()
    activations: ClassVar[Mapping[str, str]] = layers.GATES

    top: ClassVar = {"inputs.tokens": "embed_tokens", "stack.norm": "norm"}
    layer = "layers.{}"
    parts: ClassVar = {
        **layers.attention(0, "input_layernorm", layers.QKV, "self_attn.o_proj"),
        **layers.feed_forward(1, "post_attention_layernorm", "mlp.gate_proj mlp.up_proj", "mlp.down_proj"),
    }

    def _own_model(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        biases = {key: config.take(key, bool, False) for key in self.biased}
        if len(set(biases.values())) > 1:
            told = " and ".join(f"{key} {value}" for key, value in biases.items())
            raise config.refusal(f"no recipe can express {told}")
        width, n_kv_heads = config.optional("head_dim", int), config.optional("num_key_value_heads", int)
        position = layers.read_rotary(config, sizes["context"], config.take("rope_theta", float, 10_000.0))
        if position["share"] != 1:
            raise config.refusal(f"partial_rotary_factor {position['share']} is not for {self.model_type}")
        return {
            "head_width": None if width is not None and width * sizes["n_heads"] == sizes["d_model"] else width,
            "n_kv_heads": None if n_kv_heads == sizes["n_heads"] else n_kv_heads,
            "activation": layers.read_activation(config, "hidden_act", choices=self.activations),
            "position": position,
            "pattern": self._read_pattern(config, sizes["n_layers"]),
            "bias": any(biases.values()),
        }

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        _, rotary = layers.write_rotary(model, self.model_type, obstacles)
        return {
            "head_dim": model.head_width or model.d_model // model.n_heads,
            "num_key_value_heads": model.n_kv_heads or model.n_heads,
            "hidden_act": layers.write_activation(model, self.model_type, obstacles, self.activations),
            **rotary,
            **self._write_pattern(model),
            **dict.fromkeys(self.biased, model.bias),
        }

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        return {"kind": "full"}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        return {}


class Llama(LlamaLike):
    """Llama (Touvron et al. 2023; Grattafiori et al. 2024), TinyLlama, SmolLM."""

    model_type = "llama"
    name = "Llama"
    expected: ClassVar = {"rope_interleaved": (False,)}
    ignored = (*LlamaLike.ignored, "pretraining_tp", "is_llama_config")
    biased = ("attention_bias", "mlp_bias")

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        if model.d_model % model.n_heads:
            raise Inexpressible({"model.n_heads": f"{model.n_heads}, which in {self.model_type} must divide d_model"})
        return super()._own_config(model, obstacles)


class Mistral(LlamaLike):
    """Mistral (Jiang et al. 2023): sliding windows in all layers."""

    model_type = "mistral"
    name = "Mistral"
    defaults: ClassVar = {**LlamaLike.defaults, "num_key_value_heads": 8, "sliding_window": 4096}

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        size = config.optional("sliding_window", int)
        return {"kind": "full"} if size is None else {"kind": "window", "size": size}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        return {"sliding_window": model.pattern.size if isinstance(model.pattern, WindowPattern) else None}


class Qwen2(LlamaLike):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): biases of queries, keys and values; sliding windows in some layers."""

    model_type = "qwen2"
    name = "Qwen2"
    defaults: ClassVar = {**LlamaLike.defaults, "num_key_value_heads": 32, "sliding_window": 4096}
    expected: ClassVar = {"use_mrope": (False,)}
    fixed: ClassVar = {"qkv_bias": True}

    def _read_pattern(self, config: Config, n_layers: int) -> dict[str, Any]:
        size, first = config.optional("sliding_window", int), config.take("max_window_layers", int, 28)
        if not config.take("use_sliding_window", bool, False):
            size = None
        full: Sequence[int] | None = layers.read_full_layers(config, n_layers)
        if full is None:
            full = range(n_layers if size is None else min(first, n_layers))
        elif size is None and len(full) < n_layers:
            raise config.refusal("layer_types has sliding_attention without a sliding_window")
        if len(full) == n_layers:
            return {"kind": "full"}
        return {"kind": "window", "size": size, "full_layers": list(full)}

    def _write_pattern(self, model: Transformer) -> dict[str, Any]:
        windows = model.pattern if isinstance(model.pattern, WindowPattern) else None
        kinds = layers.write_layer_types(model)
        return {
            "use_sliding_window": windows is not None,
            "sliding_window": None if windows is None else windows.size,
            # before layer_types, the first of these layers with a window
            "max_window_layers": [*kinds, layers.SLIDING].index(layers.SLIDING),
            "layer_types": kinds,
        }


class Qwen3(Qwen2):
    """Qwen3 (Yang et al. 2025): no biases, but norms of queries and keys."""

    model_type = "qwen3"
    name = "Qwen3"
    defaults: ClassVar = {**Qwen2.defaults, "head_dim": 128}
    expected: ClassVar = LlamaLike.expected
    fixed: ClassVar = {"qk_norm": "head"}
    parts: ClassVar = {**LlamaLike.parts, "0.mixer.q_norm": "self_attn.q_norm", "0.mixer.k_norm": "self_attn.k_norm"}


class Gemma(LlamaLike):
    """Gemma (Gemma Team 2024)."""

    model_type = "gemma"
    name = "Gemma"
    defaults: ClassVar = {
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 16,
        "head_dim": 256,
    }
    expected: ClassVar = {
        **LlamaLike.expected,
        "hidden_activation": ("gelu_pytorch_tanh",),
        "use_bidirectional_attention": (False,),
    }
    # its first files say gelu, and mean the approximation
    activations: ClassVar = {"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}
    norm: ClassVar = {"kind": "rms", "unit_offset": True}
    fixed: ClassVar = {"scale_embedding": True}


class Olmo2(LlamaLike):
    """OLMo 2 (OLMo Team 2025): norms of the outputs of sublayers, and of all queries and keys jointly."""

    model_type = "olmo2"
    name = "Olmo2"
    defaults: ClassVar = {**LlamaLike.defaults, "rms_norm_eps": 1e-5}
    norm: ClassVar = {"kind": "rms", "place": "output"}
    fixed: ClassVar = {"qk_norm": "joint"}
    parts: ClassVar = {**Qwen3.parts, "0.norm": "post_attention_layernorm", "1.norm": "post_feedforward_layernorm"}
