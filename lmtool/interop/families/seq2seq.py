"""Encoder-decoders of Transformers: BART, Marian and PEGASUS, which are as in Vaswani et al. 2017, and T5."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Obstacles
from lmtool.interop.families.family import Described, Family
from lmtool.interop.families.layouts import AsRow, Weight, in_halves
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.printable import plain
from lmtool.recipe.spec.objective import AnyObjective
from lmtool.recipe.spec.position import LearnedPosition, RelativePosition, SinusoidalPosition
from lmtool.recipe.spec.transformer import Transformer

UNSUPPORTED = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForCausalLM")
"""Ends of the names of architectures with heads that no recipe of an encoder-decoder has."""
OTHER_HEADS = ("classification_head.", "qa_outputs.")
"""Beginnings of the names of their tensors."""


class EncoderDecoder(Family):
    """An encoder-decoder whose decoder predicts tokens.

    architecture: its class. stack: their name of the encoder and decoder, with {} for which.
    """

    shape = "encoder-decoder"
    of_shape: ClassVar = {"is_encoder_decoder": (True,), "is_decoder": (False,)}
    architecture: ClassVar[str]
    stack: ClassVar[str]

    def describe(self, config: Config, names: Collection[str]) -> Described:
        architecture = config.architecture()
        others = [f"tensor {name}" for name in sorted(names) if name.startswith(OTHER_HEADS)]
        if architecture.endswith(UNSUPPORTED):
            others.insert(0, architecture)
        if others:
            raise config.refusal(f"a recipe of an encoder-decoder has no head as {plain(others[0])[:60]}")
        for stack in ("encoder", "decoder"):
            if not any(name.startswith(f"{self.stack.format(stack)}.") for name in names):
                raise config.refusal(f"it has no {stack}")
        self._prepare(config)
        return Described({"shape": "encoder-decoder", **self._model(config, names)}, {"kind": "seq2seq"})

    @abstractmethod
    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        """The recipe's `model`, without its shape."""

    def _architecture(self, model: Transformer, objective: AnyObjective) -> str:
        return self.architecture

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        sizes = self._size_keys(model)
        copied = {other: sizes[name] for other, name in self.others.items() if "decoder" in other}
        return {"is_encoder_decoder": True, "pad_token_id": None, **sizes, **copied}

    def _layers(self, model: Transformer, layer: str, encoder: layers.Modules, decoder: layers.Modules) -> list[Weight]:
        """layer: their name of a layer in a stack. encoder, decoder: the modules of a layer."""
        modules: dict[str, str] = {}
        for stack, parts in (("encoder", encoder), ("decoder", decoder)):
            modules |= layers.of_stack(model, stack, f"{self.stack.format(stack)}.{layer}", parts)
        return [*layers.parameters_of(model, modules)]


_FIRST = layers.attention(0, "self_attn_layer_norm", layers.QKV, "self_attn.out_proj")
_KV = "encoder_attn.k_proj encoder_attn.v_proj"
_CROSS = layers.cross_attention(1, "encoder_attn_layer_norm", "encoder_attn.q_proj", _KV, "encoder_attn.out_proj")
_NETWORK = ("final_layer_norm", "fc1", "fc2")


class BartLike(EncoderDecoder):
    """An encoder-decoder with the layers of BART, which are those of Vaswani et al. 2017.

    norm: in the recipe; before sublayers, stacks have a norm at their end. static_positions, extra_positions: what old
    files say of its embeddings.
    """

    prefix = "model."
    redundant: ClassVar[tuple[str, ...]] = (
        r"model\.(encoder|decoder)\.(embed_tokens\.weight|version)",
        r"lm_head\.weight",
    )
    stack = "model.{}"
    sizes: ClassVar = layers.size_keys(
        "encoder_layers", "d_model", "encoder_attention_heads", "max_position_embeddings", "encoder_ffn_dim"
    )
    others: ClassVar[Mapping[str, str]] = {
        **{f"decoder_{size}": f"encoder_{size}" for size in ("layers", "attention_heads", "ffn_dim")},
        **{"num_hidden_layers": "encoder_layers", "num_attention_heads": "encoder_attention_heads"},
        "hidden_size": "d_model",
    }
    expected: ClassVar[Mapping[str, tuple[object, ...]]] = {"tie_word_embeddings": (True,)}
    ignored = (
        *("classif_dropout", "classifier_dropout", "attention_dropout", "init_std", "_num_labels"),
        *("encoder_layerdrop", "decoder_layerdrop", "output_past", "force_bos_token_to_be_generated"),
        "add_bias_logits",  # of the output bias, which the tensors tell
    )
    norm: ClassVar[Mapping[str, Any]] = {"kind": "layer", "place": "post", "eps": 1e-5, "embedding": False}
    static_positions: ClassVar[bool] = True
    extra_positions: ClassVar[int] = 2

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        for key in ("normalize_before", "add_final_layer_norm"):
            config.expect(key, self.norm["place"] == "pre")
        config.expect("normalize_embedding", self.norm["embedding"])
        config.expect("static_position_embeddings", self.static_positions)
        config.expect("extra_pos_embeddings", self.extra_positions)
        return {
            **self._sizes(config, context=1024),
            "activation": layers.read_activation(config, "activation_function", "gelu"),
            "norm": self.norm,
            "scale_embedding": config.take("scale_embedding", bool, False),
            "head_bias": "final_logits_bias" in names,
            "dropout": config.take("dropout", float, 0.1),
            "ffn_dropout": config.take("activation_dropout", float, 0.0),
        }

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        return {
            **super()._config(model, objective, obstacles),
            "activation_function": layers.write_activation(model, self.model_type, obstacles),
            "scale_embedding": model.scale_embedding,
            "tie_word_embeddings": True,
            "dropout": model.dropout,
            "attention_dropout": model.dropout,
            "activation_dropout": model.ffn_dropout,
        }

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = [Weight("inputs.tokens.weight", ("model.shared.weight",))]
        if model.head_bias:
            weights.append(Weight("head.bias", ("final_logits_bias",), AsRow()))
        encoder = {**_FIRST, **layers.feed_forward(1, *_NETWORK)}
        decoder = {**_FIRST, **_CROSS, **layers.feed_forward(2, *_NETWORK)}
        if self.norm["place"] == "pre":
            norms = {f"{stack}.norm": f"model.{stack}.layer_norm" for stack in ("encoder", "decoder")}
            weights += layers.parameters_of(model, norms)
        return [*weights, *self._layers(model, "layers.{}", encoder, decoder)]


class Bart(BartLike):
    """BART (Lewis et al. 2020)."""

    model_type = "bart"
    architecture = "BartForConditionalGeneration"
    norm: ClassVar = {**BartLike.norm, "embedding": True}
    static_positions = False

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        model = super()._model(config, names)
        position = {"kind": "learned", "size": model["context"] + 2, "offset": 2}
        return {**model, "position": position, "separate_inputs": True}

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        position = layers.position_of(model, self.model_type, obstacles, LearnedPosition(offset=2))
        size = (position.size or model.context + position.offset) - 2
        return {**super()._config(model, objective, obstacles), "max_position_embeddings": size}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = super().weights(model, objective)
        for inputs, stack in (("inputs", "encoder"), ("target_inputs", "decoder")):
            table = Weight(f"{inputs}.position.table.weight", (f"model.{stack}.embed_positions.weight",))
            weights += [table, *layers.parameters_of(model, {f"{inputs}.norm": f"model.{stack}.layernorm_embedding"})]
        return weights


class Sinusoidal(BartLike):
    """Base of families with sinusoids in halves.

    A model whose sinusoids alternate is the same one with another order of the entries of its hidden states.
    """

    redundant = (*BartLike.redundant, r"model\.(encoder|decoder)\.embed_positions\.weight")

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        return {**super()._model(config, names), "position": {"kind": "sinusoidal", "layout": "halves"}}

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        layers.position_of(model, self.model_type, obstacles, SinusoidalPosition())
        return super()._config(model, objective, obstacles)

    def _alike(self, model: Transformer) -> dict[str, Any]:
        return {"position": SinusoidalPosition(layout="halves")}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = super().weights(model, objective)
        if isinstance(model.position, SinusoidalPosition) and model.position.layout == "alternating":
            return [_in_halves(weight) for weight in weights]
        return weights


def _in_halves(weight: Weight) -> Weight:
    """With the hidden states of theirs in halves: the outputs of `out` and norms, the inputs of all other matrices."""
    module, _, kind = weight.ours.rpartition(".")
    if module.endswith((".out", ".norm")):
        return replace(weight, layout=in_halves(0, weight.layout))
    if kind == "weight":
        return replace(weight, layout=in_halves(1, weight.layout))
    return weight


class Marian(Sinusoidal):
    """Marian (Junczys-Dowmunt et al. 2018), the translators of OPUS-MT."""

    model_type = "marian"
    architecture = "MarianMTModel"
    others: ClassVar = {**BartLike.others, "decoder_vocab_size": "vocab_size"}
    expected: ClassVar = {**BartLike.expected, "share_encoder_decoder_embeddings": (True,)}

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        return {**super()._config(model, objective, obstacles), "share_encoder_decoder_embeddings": True}


class Pegasus(Sinusoidal):
    """PEGASUS (Zhang et al. 2020), with norms before sublayers."""

    model_type = "pegasus"
    architecture = "PegasusForConditionalGeneration"
    norm: ClassVar = {**BartLike.norm, "place": "pre"}
    extra_positions = 1

    def constants(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        positions = SinusoidalPositions(model.d_model, halves=True)
        table = positions(torch.zeros(model.context, model.d_model), torch.arange(model.context))
        return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


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
    sizes: ClassVar = layers.size_keys("num_layers", "d_model", "num_heads", "n_positions", "d_ff")
    others: ClassVar = {"num_decoder_layers": "num_layers"}
    ignored = ("classifier_dropout", "output_past")

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        dropout = config.take("dropout_rate", float, 0.1)
        return {
            **self._sizes(config, context=512),
            "head_width": config.positive("d_kv", int),
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
        untied = "lm_head.weight" in names
        if scaled is None:
            if not tied and not untied:
                raise config.refusal("tie_word_embeddings is False, but there is no lm_head.weight")
            return {"tie_embeddings": tied, "scale_head": tied}
        return {"tie_embeddings": not untied, "scale_head": scaled}

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        position = layers.position_of(model, self.model_type, obstacles, RelativePosition(kind="relative"))
        gated = layers.is_gated(model)
        name = layers.write_activation(model, self.model_type, obstacles, layers.GATES if gated else layers.ACTIVATIONS)
        return {
            **super()._config(model, objective, obstacles),
            "d_kv": model.head_width or model.d_model // model.n_heads,
            "feed_forward_proj": f"gated-{name}" if gated else name,
            "dense_act_fn": name,
            "is_gated_act": gated,
            "relative_attention_num_buckets": position.buckets,
            "relative_attention_max_distance": position.max_distance,
            "layer_norm_epsilon": model.norm.eps,
            "tie_word_embeddings": model.tie_embeddings,
            "scale_decoder_outputs": model.scale_head,
            "dropout_rate": model.dropout,
        }

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = [Weight("inputs.tokens.weight", ("shared.weight",))]
        if not model.tie_embeddings:
            weights.append(Weight("head.own", ("lm_head.weight",)))
        for stack in ("encoder", "decoder"):
            table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            norm = layers.parameters_of(model, {f"{stack}.norm": f"{stack}.final_layer_norm"})
            weights += [Weight(f"{stack}.position.table.weight", (table,)), *norm]

        def network(number: int) -> layers.Modules:
            theirs = f"layer.{number}.DenseReluDense"
            up = f"{theirs}.wi_0 {theirs}.wi_1" if layers.is_gated(model) else f"{theirs}.wi"
            return layers.feed_forward(number, f"layer.{number}.layer_norm", up, f"{theirs}.wo")

        within, across = "layer.0.SelfAttention", "layer.1.EncDecAttention"
        first = layers.attention(0, "layer.0.layer_norm", f"{within}.q {within}.k {within}.v", f"{within}.o")
        cross = layers.cross_attention(1, "layer.1.layer_norm", f"{across}.q", f"{across}.k {across}.v", f"{across}.o")
        encoder, decoder = {**first, **network(1)}, {**first, **cross, **network(2)}
        return [*weights, *self._layers(model, "block.{}", encoder, decoder)]


def _t5_activation(config: Config) -> str:
    """Of `dense_act_fn` and `is_gated_act`, which older files leave to be told from `feed_forward_proj`."""
    kind = config.take("feed_forward_proj", str, "relu")
    gate, _, name = kind.rpartition("-")
    if gate not in ("", "gated"):
        config.expect("feed_forward_proj")
    choices = layers.GATES if config.take("is_gated_act", bool, gate == "gated") else layers.ACTIVATIONS
    if config.optional("dense_act_fn", str) is not None:
        return layers.read_activation(config, "dense_act_fn", name, choices)
    # so called by its authors
    name = "gelu_new" if kind == "gated-gelu" else name
    described = Config({"feed_forward_proj": name}, config.where)
    return layers.read_activation(described, "feed_forward_proj", choices=choices)
