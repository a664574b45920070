"""Encoder-decoders with the layers of Vaswani et al. 2017: BART, Marian and PEGASUS."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.layouts import AsRow, Halves, Weight
from lmtool.interop.families.modules import Modules, parameters_of, read_activation, write_activation
from lmtool.interop.families.seq2seq import EncoderDecoder
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.recipe.spec.objective import AnyObjective
from lmtool.recipe.spec.position import LearnedPosition, SinusoidalPosition
from lmtool.recipe.spec.transformer import NormPlace, Transformer

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
    """An encoder-decoder with the layers of BART, which are those of Vaswani et al. 2017.

    place: of its norms; before sublayers, stacks have a norm at their end. normalize_embedding, static_positions,
    extra_positions: what old files say of its embeddings.
    """

    prefix = "model."
    redundant: ClassVar[tuple[str, ...]] = (
        r"model\.(encoder|decoder)\.(embed_tokens\.weight|version)",
        r"lm_head\.weight",
    )
    stack = "model.{}"
    place: ClassVar[NormPlace] = "post"
    normalize_embedding: ClassVar[bool] = False
    static_positions: ClassVar[bool] = True
    extra_positions: ClassVar[int] = 2

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        config.ignore("classif_dropout", "classifier_dropout", "attention_dropout", "init_std", "_num_labels")
        config.ignore("encoder_layerdrop", "decoder_layerdrop", "output_past", "force_bos_token_to_be_generated")
        # of the output bias, which the tensors tell
        config.ignore("add_bias_logits")
        config.expect("normalize_before", self.place == "pre")
        config.expect("add_final_layer_norm", self.place == "pre")
        config.expect("normalize_embedding", self.normalize_embedding)
        config.expect("static_position_embeddings", self.static_positions)
        config.expect("extra_pos_embeddings", self.extra_positions)
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
            "activation": read_activation(config, "activation_function", "gelu"),
            "norm": {"kind": "layer", "place": self.place, "eps": 1e-5, "embedding": self.normalize_embedding},
            "scale_embedding": config.take("scale_embedding", bool, False),
            "head_bias": "final_logits_bias" in names,
            "dropout": config.take("dropout", float, 0.1),
            "ffn_dropout": config.take("activation_dropout", float, 0.0),
        }

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        stacks = ("encoder", "decoder")
        return {
            **super()._config(model, objective),
            **{f"{stack}_layers": model.n_layers for stack in stacks},
            **{f"{stack}_attention_heads": model.n_heads for stack in stacks},
            **{f"{stack}_ffn_dim": model.inner_width for stack in stacks},
            "activation_function": write_activation(model, self.model_type),
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
        if self.place == "pre":
            norms = {f"{stack}.norm": (f"model.{stack}.layer_norm",) for stack in ("encoder", "decoder")}
            found += parameters_of(model, norms)
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

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, LearnedPosition):
            why = f"{model.position.kind}, where bart has learned"
            raise Inexpressible("model.position.kind", why, {"position": LearnedPosition(offset=2)})
        size = (model.position.size or model.context + model.position.offset) - 2
        return {**super()._config(model, objective), "max_position_embeddings": size}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = super().weights(model, objective)
        for inputs, stack in (("inputs", "encoder"), ("target_inputs", "decoder")):
            table = Weight(f"{inputs}.position.table.weight", (f"model.{stack}.embed_positions.weight",))
            found += [table, *parameters_of(model, {f"{inputs}.norm": (f"model.{stack}.layernorm_embedding",)})]
        return found


class Sinusoidal(BartLike):
    """Base of families with sinusoids in halves.

    A model whose sinusoids alternate is the same one with another order of the entries of its hidden states.
    """

    redundant = (*BartLike.redundant, r"model\.(encoder|decoder)\.embed_positions\.weight")

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        return {**super()._model(config, names), "position": {"kind": "sinusoidal", "layout": "halves"}}

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, SinusoidalPosition):
            why = f"{model.position.kind}, where {self.model_type} has sinusoidal"
            raise Inexpressible("model.position.kind", why, {"position": SinusoidalPosition()})
        return {**super()._config(model, objective), "max_position_embeddings": model.context}

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


class Marian(Sinusoidal):
    """Marian (Junczys-Dowmunt et al. 2018), the translators of OPUS-MT."""

    model_type = "marian"
    architecture = "MarianMTModel"

    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        model = super()._model(config, names)
        config.expect("share_encoder_decoder_embeddings", True)
        config.expect("decoder_vocab_size", model["vocab_size"])
        return model

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        return {
            **super()._config(model, objective),
            "share_encoder_decoder_embeddings": True,
            "decoder_vocab_size": model.vocab_size,
        }


class Pegasus(Sinusoidal):
    """PEGASUS (Zhang et al. 2020), with norms before sublayers."""

    model_type = "pegasus"
    architecture = "PegasusForConditionalGeneration"
    place = "pre"
    extra_positions = 1

    def constants(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        positions = SinusoidalPositions(model.d_model, halves=True)
        table = positions(torch.zeros(model.context, model.d_model), torch.arange(model.context))
        return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
