"""T5: an encoder-decoder with relative positions and RMSNorm."""

from collections.abc import Collection
from typing import Any

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.layouts import Weight
from lmtool.interop.families.modules import (
    ACTIVATIONS,
    GATES,
    is_gated,
    parameters_of,
    read_activation,
    write_activation,
)
from lmtool.interop.families.seq2seq import EncoderDecoder
from lmtool.recipe.spec.objective import AnyObjective
from lmtool.recipe.spec.position import RelativePosition
from lmtool.recipe.spec.transformer import Transformer


class T5(EncoderDecoder):
    """T5 (Raffel et al. 2020), and its later versions with a gate and an output matrix of their own."""

    model_type = "t5"
    redundant = (
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"lm_head\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )
    architecture = "T5ForConditionalGeneration"
    stack = "{}"

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        config.ignore("classifier_dropout", "output_past")
        n_layers = config.positive("num_layers", int)
        if config.positive("num_decoder_layers", int, n_layers) != n_layers:
            raise config.refusal(f"num_decoder_layers is not num_layers {n_layers}, which no recipe can express")
        dropout = config.take("dropout_rate", float, 0.1)
        return {
            "vocab_size": config.positive("vocab_size", int),
            "n_layers": n_layers,
            "d_model": config.positive("d_model", int),
            "n_heads": config.positive("num_heads", int),
            "head_width": config.positive("d_kv", int),
            "d_ff": config.positive("d_ff", int),
            "context": config.positive("n_positions", int, 512),
            "activation": _t5_activation(config),
            "position": {
                "kind": "relative",
                "buckets": config.positive("relative_attention_num_buckets", int, 32),
                "max_distance": config.positive("relative_attention_max_distance", int, 128),
            },
            "score": "dot",
            "norm": {"kind": "rms", "eps": config.positive("layer_norm_epsilon", float, 1e-6)},
            "bias": False,
            **self._output(config, names),
            "dropout": dropout,
            "ffn_dropout": dropout,
        }

    def _output(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        """In old files, an output matrix of its own and no scale come together."""
        tied, scaled = config.take("tie_word_embeddings", bool, True), config.optional("scale_decoder_outputs", bool)
        own = "lm_head.weight" in names
        if scaled is None:
            if not tied and not own:
                raise config.refusal("tie_word_embeddings is False, but there is no lm_head.weight")
            return {"tie_embeddings": tied, "scale_head": tied}
        return {"tie_embeddings": not own, "scale_head": scaled}

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, RelativePosition):
            why = f"{model.position.kind}, where t5 has relative"
            raise Inexpressible("model.position.kind", why, {"position": RelativePosition(kind="relative")})
        gated = is_gated(model)
        name = write_activation(model, self.model_type, GATES if gated else ACTIVATIONS)
        return {
            **super()._config(model, objective),
            "num_layers": model.n_layers,
            "num_decoder_layers": model.n_layers,
            "num_heads": model.n_heads,
            "d_kv": model.head_width or model.d_model // model.n_heads,
            "d_ff": model.inner_width,
            "n_positions": model.context,
            "feed_forward_proj": f"gated-{name}" if gated else name,
            "dense_act_fn": name,
            "is_gated_act": gated,
            "relative_attention_num_buckets": model.position.buckets,
            "relative_attention_max_distance": model.position.max_distance,
            "layer_norm_epsilon": model.norm.eps,
            "tie_word_embeddings": model.tie_embeddings,
            "scale_decoder_outputs": model.scale_head,
            "dropout_rate": model.dropout,
        }

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = [Weight("inputs.tokens.weight", ("shared.weight",))]
        if not model.tie_embeddings:
            found.append(Weight("head.own", ("lm_head.weight",)))
        for stack in ("encoder", "decoder"):
            table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            found += [
                Weight(f"{stack}.position.table.weight", (table,)),
                *parameters_of(model, {f"{stack}.norm": (f"{stack}.final_layer_norm",)}),
            ]
        up = ("wi_0", "wi_1") if is_gated(model) else ("wi",)

        def network(number: int) -> dict[str, tuple[str, ...]]:
            theirs = f"layer.{number}.DenseReluDense"
            return {
                f"{number}.mixer.up": tuple(f"{theirs}.{part}" for part in up),
                f"{number}.mixer.out": (f"{theirs}.wo",),
                f"{number}.norm": (f"layer.{number}.layer_norm",),
            }

        own, across = "layer.0.SelfAttention", "layer.1.EncDecAttention"
        attention = {
            "0.mixer.qkv": (f"{own}.q", f"{own}.k", f"{own}.v"),
            "0.mixer.out": (f"{own}.o",),
            "0.norm": ("layer.0.layer_norm",),
        }
        cross_attention = {
            "1.mixer.q": (f"{across}.q",),
            "1.mixer.kv": (f"{across}.k", f"{across}.v"),
            "1.mixer.out": (f"{across}.o",),
            "1.norm": ("layer.1.layer_norm",),
        }
        encoder, decoder = {**attention, **network(1)}, {**attention, **cross_attention, **network(2)}
        return [*found, *self._layers(model, "block.{}", encoder, decoder)]


def _t5_activation(config: Config) -> str:
    """Of `dense_act_fn` and `is_gated_act`, which older files leave to be told from `feed_forward_proj`."""
    kind = config.take("feed_forward_proj", str, "relu")
    gate, _, name = kind.rpartition("-")
    if gate not in ("", "gated"):
        config.expect("feed_forward_proj")
    choices = GATES if config.take("is_gated_act", bool, gate == "gated") else ACTIVATIONS
    if config.optional("dense_act_fn", str) is not None:
        return read_activation(config, "dense_act_fn", name, choices)
    # so called by its authors
    name = "gelu_new" if kind == "gated-gelu" else name
    return read_activation(Config({"feed_forward_proj": name}, config.where), "feed_forward_proj", choices=choices)
