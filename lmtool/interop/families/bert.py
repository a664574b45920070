"""Encoders with learned positions and norms after each sublayer: BERT, RoBERTa, DistilBERT and ELECTRA."""

from collections.abc import Mapping
from typing import Any, ClassVar

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Obstacles
from lmtool.interop.families.encoder import Encoder
from lmtool.interop.families.layouts import Weight
from lmtool.recipe.spec.objective import AnyObjective, HeadSpec, Masked
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.transformer import Transformer

_QKV = "attention.self.query attention.self.key attention.self.value"


class PostNormEncoder(Encoder):
    """An encoder with learned positions and norms after each sublayer.

    keys: of the configuration, where they are not called as in BERT.
    lm_gelu: the masked language model's head has the exact GELU, whatever the layers have.
    """

    sizes = layers.USUAL_SIZES
    expected: ClassVar[Mapping[str, Any]] = {"position_embedding_type": ("absolute",), "is_decoder": (False,)}
    top: ClassVar[layers.Modules] = {
        "inputs.tokens": "embeddings.word_embeddings",
        "inputs.position.table": "embeddings.position_embeddings",
        "inputs.segments": "embeddings.token_type_embeddings",
        "inputs.norm": "embeddings.LayerNorm",
    }
    layer = "encoder.layer.{}"
    parts: ClassVar[layers.Modules] = {
        **layers.attention(0, "attention.output.LayerNorm", _QKV, "attention.output.dense"),
        **layers.feed_forward(1, "output.LayerNorm", "intermediate.dense", "output.dense"),
    }
    keys: ClassVar[Mapping[str, str]] = {}
    lm_gelu: ClassVar[bool] = False

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        config.ignore(self._key("attention_probs_dropout_prob"))
        if head == "masked" and self.lm_gelu:
            config.expect(self._key("hidden_act"), "gelu")
        sizes, offset = self._sizes(config, context=512), self._offset(config)
        size, eps = sizes["context"], config.positive("layer_norm_eps", float, 1e-12)
        if size <= offset:
            raise config.refusal(f"max_position_embeddings {size} leaves no positions after the padding token's")
        return {
            **sizes,
            "context": size - offset,
            "activation": layers.read_activation(config, self._key("hidden_act"), "gelu"),
            "position": {"kind": "learned", "size": size, "offset": offset},
            "norm": {"kind": "layer", "place": "post", "eps": eps, "embedding": True},
            "n_segments": config.positive("type_vocab_size", int, 2) if self._has_segments() else 0,
            "dropout": config.take(self._key("hidden_dropout_prob"), float, 0.1),
        }

    def _dropout(self, config: Config) -> float:
        dropout = config.optional(self._key("classifier_dropout"), float)
        return config.take(self._key("hidden_dropout_prob"), float, 0.1) if dropout is None else dropout

    def _key(self, name: str) -> str:
        return self.keys.get(name, name)

    def _offset(self, config: Config) -> int:
        """The row of the first position."""
        return 0

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        position = layers.position_of(model, self.model_type, obstacles, LearnedPosition())
        if isinstance(objective, Masked) and self.lm_gelu and model.activation != "gelu":
            obstacles["model.activation"] = f"{model.activation}, where the head of {self.model_type} has gelu"
            model = model.with_values({"activation": "gelu"})
        config = {
            **super()._config(model, objective, obstacles),
            **self._size_keys(model),
            "max_position_embeddings": position.size or model.context + position.offset,
            "hidden_act": layers.write_activation(model, self.model_type, obstacles),
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.dropout,
        }
        if isinstance(objective, HeadSpec):
            config["classifier_dropout"] = objective.dropout
        # DistilBERT has neither
        if self._has_segments():
            config |= {"type_vocab_size": model.n_segments or 1, "layer_norm_eps": model.norm.eps}
        return {self._key(key): value for key, value in config.items()}


class Bert(PostNormEncoder):
    """BERT (Devlin et al. 2019), with or without its next-sentence head."""

    model_type = "bert"
    expected: ClassVar = {
        **PostNormEncoder.expected,
        # of the original code, whose pooler is as here
        "directionality": ("bidi",),
        "pooler_type": ("first_token_transform",),
    }
    ignored = ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")
    prefix = "bert."
    redundant = (
        r"bert\.embeddings\.(position_ids|token_type_ids)",
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.predictions\.(bias|decoder\.weight|decoder\.bias)",
    )
    name = "Bert"
    lm_dense = "cls.predictions.transform.dense"
    lm_norm = "cls.predictions.transform.LayerNorm"
    lm_output = "cls.predictions.decoder"
    lm_bias = "cls.predictions.bias"
    dense = pooler = "bert.pooler.dense"
    dense_kind = "tanh"
    scores = "classifier"
    next_sentence: ClassVar = {"pooler": "bert.pooler.dense", "next_sentence": "cls.seq_relationship"}


class Roberta(PostNormEncoder):
    """RoBERTa (Liu et al. 2019), whose positions start after the row of the padding token's id."""

    model_type = "roberta"
    prefix = "roberta."
    redundant = (
        r"roberta\.embeddings\.(position_ids|token_type_ids)",
        r"roberta\.pooler\.dense\.(weight|bias)",
        r"lm_head\.(bias|decoder\.weight|decoder\.bias)",
    )
    name = "Roberta"
    lm_dense = "lm_head.dense"
    lm_norm = "lm_head.layer_norm"
    lm_output = "lm_head.decoder"
    lm_bias = "lm_head.bias"
    pooler = "roberta.pooler.dense"
    lm_gelu = True
    dense = "classifier.dense"
    dense_kind = "tanh"
    scores = "classifier.out_proj"

    def _offset(self, config: Config) -> int:
        padding = config.take("pad_token_id", int, 1)
        if padding < 0:
            raise config.refusal(f"pad_token_id is {padding}, and positions are counted from it")
        return padding + 1

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        config = super()._config(model, objective, obstacles)
        offset = model.position.offset if isinstance(model.position, LearnedPosition) else 1
        if not offset:
            obstacles["model.position.offset"] = "0, where roberta's is the padding token's id and 1"
        return {**config, "pad_token_id": max(0, offset - 1)}


class DistilBert(PostNormEncoder):
    """DistilBERT (Sanh et al. 2019): BERT without segments."""

    model_type = "distilbert"
    expected: ClassVar = {**PostNormEncoder.expected, "layer_norm_eps": (1e-12,)}
    # sinusoidal positions are those at the start of training, kept in the file like any others
    ignored = ("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "output_past")
    prefix = "distilbert."
    redundant = (r"distilbert\.embeddings\.position_ids", r"vocab_projector\.weight")
    sizes: ClassVar = layers.size_keys("n_layers", "dim", "n_heads", "max_position_embeddings", "hidden_dim")
    keys: ClassVar[Mapping[str, str]] = {
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    }
    name = "DistilBert"
    top: ClassVar = {ours: theirs for ours, theirs in PostNormEncoder.top.items() if ours != "inputs.segments"}
    layer = "transformer.layer.{}"
    parts: ClassVar[layers.Modules] = {
        **layers.attention(0, "sa_layer_norm", "attention.q_lin attention.k_lin attention.v_lin", "attention.out_lin"),
        **layers.feed_forward(1, "output_layer_norm", "ffn.lin1", "ffn.lin2"),
    }
    lm_dense = "vocab_transform"
    lm_norm = "vocab_layer_norm"
    lm_output = "vocab_projector"
    dense = "pre_classifier"
    dense_kind = "relu"
    scores = "classifier"


class Electra(PostNormEncoder):
    """ELECTRA (Clark et al. 2020): the generator fills masks; the discriminator is a body, without its own head."""

    model_type = "electra"
    # only its head for multiple choice has a summary
    ignored = ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
    prefix = "electra."
    redundant = (
        r"electra\.embeddings\.(position_ids|token_type_ids)",
        r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)",
        r"generator_lm_head\.weight",
    )
    name = "Electra"
    lm_dense = "generator_predictions.dense"
    lm_norm = "generator_predictions.LayerNorm"
    lm_output = "generator_lm_head"
    lm_gelu = True
    dense = "classifier.dense"
    dense_kind = "gelu"
    scores = "classifier.out_proj"

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        model = super()._model(config, head)
        width = config.positive("embedding_size", int, 128)
        return {**model, "embedding_width": None if width == model["d_model"] else width}

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        config = super()._config(model, objective, obstacles)
        return {**config, "embedding_size": model.embedding_width or model.d_model}

    def _body(self, model: Transformer) -> list[Weight]:
        weights = super()._body(model)
        if model.embedding_width is not None:
            weights += layers.parameters_of(model, {"inputs.project": "electra.embeddings_project"})
        return weights
