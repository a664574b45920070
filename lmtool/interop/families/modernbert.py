"""ModernBERT: an encoder with rotary positions, gates, and windows in most layers."""

from typing import Any, ClassVar

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.encoder import Encoder
from lmtool.interop.families.modules import (
    GATES,
    Modules,
    read_activation,
    read_full_layers,
    write_activation,
    write_layer_types,
)
from lmtool.recipe.spec.objective import AnyObjective, Classification, Masked
from lmtool.recipe.spec.position import RotaryPosition
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

MOST = 10_000
"""Layers that a configuration may ask for without listing them."""


class ModernBert(Encoder):
    """ModernBERT (Warner et al. 2024): rotary positions, and full attention in some layers only."""

    model_type = "modernbert"
    prefix = "model."
    redundant = (r"decoder\.weight",)
    name = "ModernBert"
    modules: ClassVar[Modules] = {
        "inputs.tokens": ("model.embeddings.tok_embeddings",),
        "inputs.norm": ("model.embeddings.norm",),
        "stack.norm": ("model.final_norm",),
    }
    layer = "model.layers.{}"
    parts: ClassVar[Modules] = {
        "0.mixer.qkv": ("attn.Wqkv",),
        "0.mixer.out": ("attn.Wo",),
        "0.norm": ("attn_norm",),
        "1.mixer.up": ("mlp.Wi",),
        "1.mixer.out": ("mlp.Wo",),
        "1.norm": ("mlp_norm",),
    }
    lm_dense = dense = "head.dense"
    lm_norm = dense_norm = "head.norm"
    lm_output = "decoder"
    dense_kind = "gelu"
    scores = "classifier"
    scores_tokens = False

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        config.ignore("attention_dropout", "mlp_dropout", "initializer_cutoff_factor", "deterministic_flash_attn")
        config.ignore("reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index")
        config.ignore("layer_norm_eps", "position_embedding_type", "classifier_pooling", "classifier_dropout")
        config.ignore("classifier_activation", "classifier_bias", "decoder_bias")
        bias = config.take("attention_bias", bool, False)
        # recipes have biases everywhere or nowhere
        for key in ("mlp_bias", "norm_bias", "classifier_bias")[: 2 if head == "embedding" else 3]:
            if config.take(key, bool, False) != bias:
                raise config.refusal(f"{key} is not as attention_bias, which no recipe can express")
        gate = read_activation(config, "hidden_activation", "gelu", GATES)
        if head == "masked" and read_activation(config, "classifier_activation", "gelu", GATES) != gate:
            raise config.refusal("classifier_activation is not as hidden_activation, which no recipe can express")
        n_layers = config.positive("num_hidden_layers", int)
        if n_layers > MOST:
            raise config.refusal(f"num_hidden_layers is {n_layers}")
        model = {
            "vocab_size": config.positive("vocab_size", int),
            "n_layers": n_layers,
            "d_model": config.positive("hidden_size", int),
            "n_heads": config.positive("num_attention_heads", int),
            "d_ff": config.positive("intermediate_size", int),
            "context": config.positive("max_position_embeddings", int, 8192),
            "activation": gate,
            "norm": {"eps": config.positive("norm_eps", float, 1e-5), "embedding": True, "first": False},
            "bias": bias,
            "dropout": config.take("embedding_dropout", float, 0.0),
            **self._attention(config, n_layers),
        }
        if head == "masked":
            model["head_bias"] = config.take("decoder_bias", bool, True)
        return model

    def _attention(self, config: Config, n_layers: int) -> dict[str, Any]:
        """Positions and pattern."""
        every = config.positive("global_attn_every_n_layers", int, 3)
        full = read_full_layers(config, n_layers)
        if full is None:
            full = [*range(0, n_layers, every)]
        window = config.take("local_attention", int, 128)
        if window < 2:
            raise config.refusal(f"local_attention is {window}, less than a neighbour on each side")
        wide, narrow = _thetas(config)
        if len(full) == n_layers:
            return {"position": {"kind": "rotary", "theta": wide}}
        position = {"kind": "rotary", "theta": wide, "window_theta": narrow}
        if not full:
            position = {"kind": "rotary", "theta": narrow}
        return {"position": position, "pattern": {"kind": "window", "size": window // 2 + 1, "full_layers": full}}

    def _classifier(self, config: Config) -> dict[str, Any]:
        config.expect("classifier_activation", "gelu")
        config.expect("classifier_pooling", "cls", "mean")
        pool = {"cls": "first", "mean": "mean"}[config.take("classifier_pooling", str, "cls")]
        return {**super()._classifier(config), "pool": pool}

    def _dropout(self, config: Config) -> float:
        return config.take("classifier_dropout", float, 0.0)

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, RotaryPosition):
            why = f"{model.position.kind}, where modernbert has rotary"
            raise Inexpressible("model.position.kind", why, {"position": RotaryPosition(kind="rotary")})
        gate = write_activation(model, self.model_type, GATES)
        window = 128
        if isinstance(model.pattern, WindowPattern):
            if model.pattern.size < 2:
                update = {"pattern": model.pattern.model_copy(update={"size": 2})}
                raise Inexpressible("model.pattern.size", "1, where modernbert sees a neighbour on each side", update)
            window = 2 * (model.pattern.size - 1)
        narrow = model.position.window_theta or model.position.theta
        config = {
            **super()._config(model, objective),
            "num_hidden_layers": model.n_layers,
            "hidden_size": model.d_model,
            "num_attention_heads": model.n_heads,
            "intermediate_size": model.inner_width,
            "max_position_embeddings": model.context,
            "hidden_activation": gate,
            "classifier_activation": gate if isinstance(objective, Masked) else "gelu",
            "norm_eps": model.norm.eps,
            "layer_types": write_layer_types(model),
            "local_attention": window,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": model.position.theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": narrow},
            },
            "decoder_bias": model.head_bias,
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), model.bias),
            **dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), model.dropout),
        }
        if isinstance(objective, Classification):
            config["classifier_dropout"] = objective.dropout
            config["classifier_pooling"] = "mean" if objective.pool == "mean" else "cls"
        return config


def _thetas(config: Config) -> tuple[float, float]:
    """Bases of the wavelengths in layers with full attention and in windowed ones."""
    wide = config.positive("global_rope_theta", float, 160_000.0)
    # null in old files for that of the other layers
    narrow = wide if config.values.get("local_rope_theta", 0) is None else 10_000.0
    narrow = config.positive("local_rope_theta", float, narrow)
    config.expect("rope_scaling")
    scaled = config.optional("rope_parameters", dict)
    if scaled is None:
        return wide, narrow
    thetas = []
    for kind, theta in (("full_attention", wide), ("sliding_attention", narrow)):
        of_kind = scaled.get(kind, {})
        if not isinstance(of_kind, dict) or not of_kind.keys() <= {"rope_type", "rope_theta"}:
            raise config.refusal(f"rope_parameters of {kind} have keys that no recipe can express")
        nested = Config(of_kind, config.where)
        nested.expect("rope_type", "default")
        thetas.append(nested.positive("rope_theta", float, theta))
    if not scaled.keys() <= {"full_attention", "sliding_attention"}:
        raise config.refusal("rope_parameters have keys other than full_attention and sliding_attention")
    return thetas[0], thetas[1]
