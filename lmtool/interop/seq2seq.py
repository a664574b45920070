"""Encoder-decoders of Transformers: T5, BART and Marian."""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

from lmtool.interop.family import AsRow, Config, Described, Family, Halves, Inexpressible, Published, Weight
from lmtool.interop.mapping import GATED, Modules, activation, affine, confirmed, layers, their_activation
from lmtool.printable import plain
from lmtool.recipe.spec import AnyObjective, LearnedPosition, RelativePosition, SinusoidalPosition, Transformer

UNSUPPORTED = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForCausalLM")
"""Ends of the names of architectures with heads that no recipe of an encoder-decoder has."""
OTHER_HEADS = ("classification_head.", "qa_outputs.")
"""Beginnings of the names of their tensors."""


class EncoderDecoder(Family):
    """An encoder-decoder whose decoder predicts tokens.

    architecture: its class. stack: their name of the encoder and decoder, with {} for which.
    """

    architecture: ClassVar[str]
    stack: ClassVar[str]

    def describe(self, config: Config, names: Collection[str]) -> Described:
        architectures = config.optional("architectures", list) or [""]
        architecture = str(architectures[0])
        others = [f"tensor {name}" for name in sorted(names) if name.startswith(OTHER_HEADS)]
        if architecture.endswith(UNSUPPORTED):
            others.insert(0, architecture)
        if others:
            raise config.refusal(f"a recipe of an encoder-decoder has no head as {plain(others[0])[:60]}")
        for stack in ("encoder", "decoder"):
            if not any(name.startswith(f"{self.stack.format(stack)}.") for name in names):
                raise config.refusal(f"it has no {stack}")
        config.expect("is_encoder_decoder", True)
        config.expect("is_decoder", False)
        return Described({"shape": "encoder-decoder", **self._model(config, names)}, {"kind": "seq2seq"})

    @abstractmethod
    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        """The recipe's `model`, without its shape."""

    def publish(self, model: Transformer, objective: AnyObjective) -> Published:
        config = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "is_encoder_decoder": True,
            "vocab_size": model.vocab_size,
            "pad_token_id": None,
            "d_model": model.d_model,
            **self._config(model),
        }
        return confirmed(self, Published(self.architecture, config), model, objective, **self._alike(model))

    @abstractmethod
    def _config(self, model: Transformer) -> dict[str, Any]:
        """Its own keys of config.json. Raises Inexpressible where they have no value for the recipe's."""

    def _alike(self, model: Transformer) -> dict[str, Any]:
        """Values of other keys by which the family expresses the model; see `confirmed`."""
        return {}

    def _layers(self, model: Transformer, layer: str, encoder: Modules, decoder: Modules) -> list[Weight]:
        """layer: their name of a layer in a stack. encoder, decoder: the modules of a layer."""
        modules: dict[str, tuple[str, ...]] = {}
        for stack, parts in (("encoder", encoder), ("decoder", decoder)):
            modules |= layers(model, stack, f"{self.stack.format(stack)}.{layer}", parts)
        return [*affine(model, modules)]


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

    def _config(self, model: Transformer) -> dict[str, Any]:
        if not isinstance(model.position, RelativePosition):
            raise Inexpressible("model.position.kind", f"{model.position.kind}, where t5 has relative")
        gated = _gated(model)
        name = their_activation(model, gated)
        return {
            "num_layers": model.n_layers,
            "num_decoder_layers": model.n_layers,
            "num_heads": model.n_heads,
            "d_kv": model.head_width or model.d_model // model.n_heads,
            "d_ff": model.d_ff or 4 * model.d_model,
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
                *affine(model, {f"{stack}.norm": (f"{stack}.final_layer_norm",)}),
            ]
        up = ("wi_0", "wi_1") if _gated(model) else ("wi",)

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


def _gated(model: Transformer) -> bool:
    return model.activation in GATED.values()


def _t5_activation(config: Config) -> str:
    """Of `dense_act_fn` and `is_gated_act`, which older files leave to be told from `feed_forward_proj`."""
    kind = config.take("feed_forward_proj", str, "relu")
    gate, _, name = kind.rpartition("-")
    if gate not in ("", "gated"):
        config.expect("feed_forward_proj")
    gated = config.take("is_gated_act", bool, gate == "gated")
    if config.optional("dense_act_fn", str) is not None:
        return activation(config, "dense_act_fn", name, gated)
    # so called by its authors
    name = "gelu_new" if kind == "gated-gelu" else name
    return activation(Config({"feed_forward_proj": name}, config.where), "feed_forward_proj", name, gated)


BART_ATTENTION: Modules = {
    "0.mixer.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "0.mixer.out": ("self_attn.out_proj",),
    "0.norm": ("self_attn_layer_norm",),
}
BART_CROSS_ATTENTION: Modules = {
    "1.mixer.q": ("encoder_attn.q_proj",),
    "1.mixer.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "1.mixer.out": ("encoder_attn.out_proj",),
    "1.norm": ("encoder_attn_layer_norm",),
}


def _bart_network(number: int) -> Modules:
    return {
        f"{number}.mixer.up": ("fc1",),
        f"{number}.mixer.out": ("fc2",),
        f"{number}.norm": ("final_layer_norm",),
    }


class BartLike(EncoderDecoder):
    """An encoder-decoder with the layers of BART, which are those of Vaswani et al. 2017."""

    prefix = "model."
    redundant: ClassVar[tuple[str, ...]] = (
        r"model\.(encoder|decoder)\.(embed_tokens\.weight|version)",
        r"lm_head\.weight",
    )
    stack = "model.{}"
    normalize_embedding: ClassVar[bool]
    static_positions: ClassVar[bool]

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        config.ignore("classif_dropout", "classifier_dropout", "attention_dropout", "init_std", "_num_labels")
        config.ignore("encoder_layerdrop", "decoder_layerdrop", "output_past", "force_bos_token_to_be_generated")
        # of the output bias, which the tensors tell
        config.ignore("add_bias_logits")
        config.expect("normalize_before", False)
        config.expect("add_final_layer_norm", False)
        config.expect("normalize_embedding", self.normalize_embedding)
        config.expect("static_position_embeddings", self.static_positions)
        config.expect("extra_pos_embeddings", 2)
        config.expect("tie_word_embeddings", True)
        d_model = config.positive("d_model", int)
        n_layers, n_heads = _same_in_both(config, "layers"), _same_in_both(config, "attention_heads")
        # other names of the same
        for name, value in (
            ("num_hidden_layers", n_layers),
            ("num_attention_heads", n_heads),
            ("hidden_size", d_model),
        ):
            config.expect(name, value)
        return {
            "vocab_size": config.positive("vocab_size", int),
            "n_layers": n_layers,
            "d_model": d_model,
            "n_heads": n_heads,
            "d_ff": _same_in_both(config, "ffn_dim"),
            "context": config.positive("max_position_embeddings", int, 1024),
            "activation": activation(config, "activation_function", "gelu"),
            "norm": {"kind": "layer", "place": "post", "eps": 1e-5, "embedding": self.normalize_embedding},
            "scale_embedding": config.take("scale_embedding", bool, False),
            "head_bias": "final_logits_bias" in names,
            "dropout": config.take("dropout", float, 0.1),
            "ffn_dropout": config.take("activation_dropout", float, 0.0),
        }

    def _config(self, model: Transformer) -> dict[str, Any]:
        stacks = ("encoder", "decoder")
        return {
            **{f"{stack}_layers": model.n_layers for stack in stacks},
            **{f"{stack}_attention_heads": model.n_heads for stack in stacks},
            **{f"{stack}_ffn_dim": model.d_ff or 4 * model.d_model for stack in stacks},
            "activation_function": their_activation(model),
            "scale_embedding": model.scale_embedding,
            "tie_word_embeddings": True,
            "dropout": model.dropout,
            "attention_dropout": model.dropout,
            "activation_dropout": model.ffn_dropout,
        }

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = [Weight("inputs.tokens.weight", ("model.shared.weight",))]
        if model.head_bias:
            found.append(Weight("head.bias", ("final_logits_bias",), AsRow()))
        encoder = {**BART_ATTENTION, **_bart_network(1)}
        decoder = {**BART_ATTENTION, **BART_CROSS_ATTENTION, **_bart_network(2)}
        return [*found, *self._layers(model, "layers.{}", encoder, decoder)]


def _same_in_both(config: Config, what: str) -> int:
    """A number of the encoder, which must be that of the decoder."""
    value, other = (config.positive(f"{stack}_{what}", int) for stack in ("encoder", "decoder"))
    if value != other:
        raise config.refusal(f"decoder_{what} is {other} and encoder_{what} {value}, which no recipe can express")
    return value


class Bart(BartLike):
    """BART (Lewis et al. 2020)."""

    model_type = "bart"
    architecture = "BartForConditionalGeneration"
    normalize_embedding = True
    static_positions = False

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        model = super()._model(config, names)
        position = {"kind": "learned", "size": model["context"] + 2, "offset": 2}
        return {**model, "position": position, "separate_inputs": True}

    def _config(self, model: Transformer) -> dict[str, Any]:
        if not isinstance(model.position, LearnedPosition):
            raise Inexpressible("model.position.kind", f"{model.position.kind}, where bart has learned")
        size = (model.position.size or model.context + model.position.offset) - 2
        return {**super()._config(model), "max_position_embeddings": size}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = super().weights(model, objective)
        for inputs, stack in (("inputs", "encoder"), ("target_inputs", "decoder")):
            table = Weight(f"{inputs}.position.table.weight", (f"model.{stack}.embed_positions.weight",))
            found += [table, *affine(model, {f"{inputs}.norm": (f"model.{stack}.layernorm_embedding",)})]
        return found


class Marian(BartLike):
    """Marian (Junczys-Dowmunt et al. 2018), the translators of OPUS-MT.

    Its sinusoids are in halves. A model whose sinusoids alternate is the same one with another order of the entries of
    its hidden states.
    """

    model_type = "marian"
    redundant = (*BartLike.redundant, r"model\.(encoder|decoder)\.embed_positions\.weight")
    architecture = "MarianMTModel"
    normalize_embedding = False
    static_positions = True

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        model = super()._model(config, names)
        config.expect("share_encoder_decoder_embeddings", True)
        config.expect("decoder_vocab_size", model["vocab_size"])
        return {**model, "position": {"kind": "sinusoidal", "layout": "halves"}}

    def _config(self, model: Transformer) -> dict[str, Any]:
        if not isinstance(model.position, SinusoidalPosition):
            raise Inexpressible("model.position.kind", f"{model.position.kind}, where marian has sinusoidal")
        return {
            **super()._config(model),
            "max_position_embeddings": model.context,
            "share_encoder_decoder_embeddings": True,
            "decoder_vocab_size": model.vocab_size,
        }

    def _alike(self, model: Transformer) -> dict[str, Any]:
        return {"position": SinusoidalPosition(layout="halves")}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = super().weights(model, objective)
        if isinstance(model.position, SinusoidalPosition) and model.position.layout == "alternating":
            return [_in_halves(weight) for weight in found]
        return found


def _in_halves(weight: Weight) -> Weight:
    """With the hidden states of theirs in halves: the outputs of `out` and norms, the inputs of all other matrices."""
    module, _, kind = weight.ours.rpartition(".")
    if module.endswith((".out", ".norm")):
        return replace(weight, layout=Halves(0, weight.layout))
    if kind == "weight":
        return replace(weight, layout=Halves(1, weight.layout))
    return weight


SEQ2SEQ: tuple[Family, ...] = (T5(), Bart(), Marian())
"""No recipe can be expressed by two of them."""
