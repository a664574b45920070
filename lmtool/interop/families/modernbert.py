"""ModernBERT: an encoder with rotary positions, gates, and windows in most layers."""

from typing import Any, ClassVar

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Obstacles
from lmtool.interop.families.encoder import Encoder
from lmtool.recipe.spec.objective import AnyObjective, Classification, Masked
from lmtool.recipe.spec.position import RotaryPosition
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

MOST = 10_000
"""Layers that a configuration may ask for without listing them."""


class ModernBert(Encoder):
    """ModernBERT (Warner et al. 2024): rotary positions, and full attention in some layers only."""

    model_type = "modernbert"
    ignored = (
        *("attention_dropout", "mlp_dropout", "initializer_cutoff_factor", "deterministic_flash_attn"),
        *("reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index"),
        *("layer_norm_eps", "position_embedding_type", "classifier_pooling", "classifier_dropout"),
        *("classifier_activation", "classifier_bias", "decoder_bias"),
    )
    prefix = "model."
    redundant = (r"decoder\.weight",)
    name = "ModernBert"
    top: ClassVar = {
        "inputs.tokens": "embeddings.tok_embeddings",
        "inputs.norm": "embeddings.norm",
        "stack.norm": "final_norm",
    }
    layer = "layers.{}"
    parts: ClassVar[layers.Modules] = {
        **layers.attention(0, "attn_norm", "attn.Wqkv", "attn.Wo"),
        **layers.feed_forward(1, "mlp_norm", "mlp.Wi", "mlp.Wo"),
    }
    sizes = layers.USUAL_SIZES
    lm_dense = dense = "head.dense"
    lm_norm = dense_norm = "head.norm"
    lm_output = "decoder"
    dense_kind = "gelu"
    scores = "classifier"
    scores_tokens = False

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        bias = config.take("attention_bias", bool, False)
        # recipes have biases everywhere or nowhere
        for key in ("mlp_bias", "norm_bias", "classifier_bias")[: 2 if head == "embedding" else 3]:
            if config.take(key, bool, False) != bias:
                raise config.refusal(f"{key} is not as attention_bias, which no recipe can express")
        gate = layers.read_activation(config, "hidden_activation", "gelu", layers.GATES)
        if head == "masked" and layers.read_activation(config, "classifier_activation", "gelu", layers.GATES) != gate:
            raise config.refusal("classifier_activation is not as hidden_activation, which no recipe can express")
        sizes = self._sizes(config, context=8192)
        n_layers = sizes["n_layers"]
        if n_layers > MOST:
            raise config.refusal(f"num_hidden_layers is {n_layers}")
        model = {
            **sizes,
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
        full = layers.read_full_layers(config, n_layers)
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

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        position = layers.position_of(model, self.model_type, obstacles, RotaryPosition(kind="rotary"))
        gate = layers.write_activation(model, self.model_type, obstacles, layers.GATES)
        window = 128
        if isinstance(model.pattern, WindowPattern):
            if model.pattern.size < 2:
                obstacles["model.pattern.size"] = "1, where modernbert sees a neighbour on each side"
            window = 2 * max(1, model.pattern.size - 1)
        config = {
            **super()._config(model, objective, obstacles),
            **self._size_keys(model),
            "hidden_activation": gate,
            "classifier_activation": gate if isinstance(objective, Masked) else "gelu",
            "norm_eps": model.norm.eps,
            "layer_types": layers.write_layer_types(model),
            "local_attention": window,
            "rope_parameters": {
                layers.FULL: {"rope_type": "default", "rope_theta": position.theta},
                layers.SLIDING: {"rope_type": "default", "rope_theta": position.window_theta or position.theta},
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
    scaled, thetas = config.section("rope_parameters"), []
    scaled.expect("rope_type", "default")  # those of both kinds, as Transformers 5.0 to 5.12 write them too
    scaled.expect("rope_theta")
    for kind, theta in ((layers.FULL, wide), (layers.SLIDING, narrow)):
        nested = scaled.section(kind)
        nested.expect("rope_type", "default")
        thetas.append(nested.positive("rope_theta", float, theta))
    return thetas[0], thetas[1]
