"""Encoders of Transformers: BERT, RoBERTa, DistilBERT, ELECTRA and ModernBERT."""

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

from lmtool.interop.family import (
    SAME,
    Config,
    Described,
    Family,
    Inexpressible,
    Layout,
    Published,
    Rescaled,
    Weight,
    ZeroRow,
)
from lmtool.interop.mapping import Modules, activation, affine, confirmed, layers, their_activation
from lmtool.printable import plain
from lmtool.recipe.spec import (
    AnyObjective,
    Classification,
    LearnedPosition,
    Masked,
    RotaryPosition,
    Transformer,
    WindowPattern,
)

TASKS = {
    "single_label_classification": "class",
    "multi_label_classification": "multi",
    "regression": "number",
}
"""Tasks of `problem_type`."""

UNSUPPORTED = ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")
"""Ends of the names of architectures with heads that no recipe has, though their tensors may look like another's."""

MOST = 10_000
"""Layers and labels that a configuration may ask for without listing them."""


class Encoder(Family):
    """An encoder, whose head is that of masked language modelling, of classification, or none.

    name: of its classes, without `For...`.
    tensors, modules: of the embeddings and the final norm, ours and theirs. layer: their name of a layer. parts: of it.
    lm_dense, lm_norm, lm_output: modules of the masked language model's head. lm_bias: the bias of a tied output
        matrix, where it is not that of `lm_output`.
    dense, dense_norm, scores: modules of the classifier; it has the nonlinearity `dense_kind`.
    """

    name: ClassVar[str]
    tensors: ClassVar[Mapping[str, str]]
    modules: ClassVar[Modules]
    layer: ClassVar[str]
    parts: ClassVar[Modules]
    lm_dense: ClassVar[str]
    lm_norm: ClassVar[str]
    lm_output: ClassVar[str]
    lm_bias: ClassVar[str | None] = None
    dense: ClassVar[str]
    dense_norm: ClassVar[str | None] = None
    dense_kind: ClassVar[Literal["tanh", "relu", "gelu"]]
    scores: ClassVar[str]
    renamed = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))

    def describe(self, config: Config, names: Collection[str]) -> Described:
        head = self._head(config, names)
        config.expect("is_encoder_decoder", False)
        # the settings of sentence-transformers for what follows the scores
        config.ignore("sentence_transformers")
        model = {"shape": "encoder", **self._model(config, head)}
        tied = config.take("tie_word_embeddings", bool, True)
        objective: dict[str, Any] = {"kind": head}
        if head == "classification":
            objective |= self._classifier(config)
        if head == "masked":
            bias = model.pop("head_bias", True)
            model |= {"head_transform": True, "head_bias": bias, "tie_embeddings": tied}
            model["next_sentence_head"] = self._has_next_sentence(names)
        return Described(model, objective)

    def _head(self, config: Config, names: Collection[str]) -> Literal["masked", "classification", "embedding"]:
        """Which head the tensors are of. Raises CheckpointError when it is another one."""
        architectures = config.optional("architectures", list) or [""]
        architecture = str(architectures[0])
        if architecture.endswith(UNSUPPORTED):
            raise config.refusal(f"a recipe has no head as {plain(architecture)[:60]}")
        if f"{self.scores}.weight" in names and f"{self.dense}.weight" in names:
            return "classification"
        if f"{self.lm_dense}.weight" in names:
            return "masked"
        redundant = re.compile("|".join(self.redundant))
        for name in sorted(names):
            if not name.startswith(self.prefix) and not redundant.fullmatch(name):
                raise config.refusal(f"a recipe has no head with a tensor {plain(name)[:60]}")
        return "embedding"

    def _has_next_sentence(self, names: Collection[str]) -> bool:
        return False

    def _classifier(self, config: Config) -> dict[str, Any]:
        labels = _labels(config)
        problem = config.optional("problem_type", str)
        if problem is None:
            task = "number" if len(labels) == 1 else "class"
        else:
            config.expect("problem_type", *TASKS)
            task = TASKS[problem]
        numbers: dict[str, Any] = {}
        if task == "number":
            if len(labels) != 1:
                raise config.refusal(f"it predicts {len(labels)} numbers, and a recipe's head one")
            labels, numbers = [], {"center": 0.0, "scale": 1.0}
        return {
            "task": task,
            "labels": labels,
            **numbers,
            "pool": "first",
            "dense": self.dense_kind,
            "dense_norm": self.dense_norm is not None,
            "bias": True,
        }

    @abstractmethod
    def _model(self, config: Config, head: str) -> dict[str, Any]:
        """The recipe's `model` without what the head decides, except a `head_bias` that the output matrix lacks."""

    def publish(self, model: Transformer, objective: AnyObjective) -> Published:
        labels: dict[str, Any] = {}
        match objective:
            case Classification():
                architecture = f"{self.name}ForSequenceClassification"
                if objective.task == "auto":
                    raise Inexpressible("objective.task", "auto, which a labelled table decides")
                if objective.task != "number" and not objective.labels:
                    raise Inexpressible("objective.labels", "none, which a labelled table decides")
                if objective.task == "class" and len(objective.labels) == 1:
                    raise Inexpressible("objective.labels", "a single one, which Transformers takes for a number")
                labels = {"problem_type": {task: theirs for theirs, task in TASKS.items()}[objective.task]}
            case Masked():
                architecture = self._masked_architecture(model)
            case _:
                architecture = f"{self.name}Model"
        config = {
            "architectures": [architecture],
            "model_type": self.model_type,
            "vocab_size": model.vocab_size,
            "pad_token_id": None,
            "tie_word_embeddings": model.tie_embeddings or not isinstance(objective, Masked),
            **labels,
            **self._config(model, objective),
        }
        # without segments, it is as with one that is all zeros
        alike = {"n_segments": model.n_segments or 1} if self._has_segments() else {}
        return confirmed(self, Published(architecture, config), model, objective, **alike)

    def _masked_architecture(self, model: Transformer) -> str:
        return f"{self.name}ForMaskedLM"

    @abstractmethod
    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        """Its own keys of config.json. Raises Inexpressible where they have no value for the recipe's."""

    def _has_segments(self) -> bool:
        return "inputs.segments.weight" in self.tensors

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = [*self._body(model)]
        if isinstance(objective, Classification):
            return [
                *(Weight(f"body.{one.ours}", one.theirs, one.layout) for one in found),
                *self._classifier_weights(model, objective),
            ]
        if isinstance(objective, Masked):
            found += affine(model, {"head.dense": (self.lm_dense,), "head.norm": (self.lm_norm,)})
            if not model.tie_embeddings:
                found.append(Weight("head.own", (f"{self.lm_output}.weight",)))
            if model.head_bias:
                tied = self.lm_bias if model.tie_embeddings else None
                found.append(Weight("head.bias", (tied or f"{self.lm_output}.bias",)))
        return found

    def _body(self, model: Transformer) -> list[Weight]:
        tensors = dict(self.tensors)
        segments = tensors.pop("inputs.segments.weight", None)
        found = [Weight(ours, (theirs,)) for ours, theirs in tensors.items()]
        if segments is not None and model.n_segments:
            found.append(Weight("inputs.segments.weight", (segments,)))
        elif segments is not None:
            tokens = found.pop(0)
            found.insert(0, Weight(tokens.ours, (*tokens.theirs, segments), ZeroRow()))
        modules = {**self.modules, **layers(model, "stack", self.layer, self.parts)}
        if not model.norm.first:
            del modules["stack.sublayers.0.norm"]
        return [*found, *affine(model, modules)]

    def _classifier_weights(self, model: Transformer, objective: Classification) -> list[Weight]:
        modules = {"dense": (self.dense,)}
        if self.dense_norm is not None:
            modules["dense_norm"] = (self.dense_norm,)
        of_scores: Layout = SAME
        of_bias: Layout = SAME
        center, scale = objective.center or 0.0, objective.scale or 1.0
        if objective.task == "number" and (center, scale) != (0.0, 1.0):
            of_scores, of_bias = Rescaled(scale), Rescaled(scale, center)
        return [
            *affine(model, modules),
            Weight("head.weight", (f"{self.scores}.weight",), of_scores),
            Weight("head.bias", (f"{self.scores}.bias",), of_bias),
        ]


def _labels(config: Config) -> list[str]:
    """Labels in the order of their ids; without any, as many as Transformers makes up."""
    given = config.optional("id2label", dict)
    if given is None:
        n_labels = config.positive("num_labels", int, 2)
        if n_labels > MOST:
            raise config.refusal(f"num_labels is {n_labels}")
        return [f"LABEL_{number}" for number in range(n_labels)]
    labels = [given.get(str(number)) for number in range(len(given))]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise config.refusal("id2label does not name the labels 0, 1, 2 ...")
    return [str(label) for label in labels]


class PostNormEncoder(Encoder):
    """An encoder with learned positions and norms after each sublayer.

    keys: of the configuration, where they are not called as in BERT.
    lm_gelu: the masked language model's head has the exact GELU, whatever the layers have.
    """

    keys: ClassVar[Mapping[str, str]] = {}
    lm_gelu: ClassVar[bool] = False

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        def key(name: str) -> str:
            return self.keys.get(name, name)

        config.expect("position_embedding_type", "absolute")
        config.expect("is_decoder", False)
        config.expect("add_cross_attention", False)
        config.ignore(key("attention_probs_dropout_prob"))
        if head == "masked" and self.lm_gelu:
            config.expect(key("hidden_act"), "gelu")
        size, offset = config.positive("max_position_embeddings", int, 512), self._offset(config)
        if size <= offset:
            raise config.refusal(f"max_position_embeddings {size} leaves no positions after the padding token's")
        return {
            "vocab_size": config.positive("vocab_size", int),
            "n_layers": config.positive(key("num_hidden_layers"), int),
            "d_model": config.positive(key("hidden_size"), int),
            "n_heads": config.positive(key("num_attention_heads"), int),
            "d_ff": config.positive(key("intermediate_size"), int),
            "context": size - offset,
            "activation": activation(config, key("hidden_act"), "gelu"),
            "position": {"kind": "learned", "size": size, "offset": offset},
            "norm": {"kind": "layer", "place": "post", "eps": self._eps(config), "embedding": True},
            "n_segments": config.positive("type_vocab_size", int, 2) if self._has_segments() else 0,
            "dropout": config.take(key("hidden_dropout_prob"), float, 0.1),
        }

    def _classifier(self, config: Config) -> dict[str, Any]:
        dropout = config.optional(self.keys.get("classifier_dropout", "classifier_dropout"), float)
        if dropout is None:
            dropout = config.take(self.keys.get("hidden_dropout_prob", "hidden_dropout_prob"), float, 0.1)
        return {**super()._classifier(config), "dropout": dropout}

    def _offset(self, config: Config) -> int:
        """The row of the first position."""
        return 0

    def _eps(self, config: Config) -> float:
        return config.positive("layer_norm_eps", float, 1e-12)

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, LearnedPosition):
            raise Inexpressible("model.position.kind", f"{model.position.kind}, where {self.model_type} has learned")
        if isinstance(objective, Masked) and self.lm_gelu and model.activation != "gelu":
            raise Inexpressible("model.activation", f"{model.activation}, where the head of {self.model_type} has gelu")
        config = {
            "num_hidden_layers": model.n_layers,
            "hidden_size": model.d_model,
            "num_attention_heads": model.n_heads,
            "intermediate_size": model.d_ff or 4 * model.d_model,
            "max_position_embeddings": model.position.size or model.context + model.position.offset,
            "hidden_act": their_activation(model),
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.dropout,
        }
        if isinstance(objective, Classification):
            config["classifier_dropout"] = objective.dropout
        # DistilBERT has neither
        if self._has_segments():
            config |= {"type_vocab_size": model.n_segments or 1, "layer_norm_eps": model.norm.eps}
        return {self.keys.get(key, key): value for key, value in config.items()}


def _bert_tensors(body: str) -> dict[str, str]:
    return {
        "inputs.tokens.weight": f"{body}.embeddings.word_embeddings.weight",
        "inputs.position.table.weight": f"{body}.embeddings.position_embeddings.weight",
        "inputs.segments.weight": f"{body}.embeddings.token_type_embeddings.weight",
    }


BERT_PARTS: Modules = {
    "0.mixer.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "0.mixer.out": ("attention.output.dense",),
    "0.norm": ("attention.output.LayerNorm",),
    "1.mixer.up": ("intermediate.dense",),
    "1.mixer.out": ("output.dense",),
    "1.norm": ("output.LayerNorm",),
}


class Bert(PostNormEncoder):
    """BERT (Devlin et al. 2019), with or without its next-sentence head."""

    model_type = "bert"
    prefix = "bert."
    redundant = (
        r"bert\.embeddings\.(position_ids|token_type_ids)",
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.predictions\.(bias|decoder\.weight|decoder\.bias)",
    )
    name = "Bert"
    tensors = _bert_tensors("bert")
    modules: ClassVar[Modules] = {"inputs.norm": ("bert.embeddings.LayerNorm",)}
    layer = "bert.encoder.layer.{}"
    parts = BERT_PARTS
    lm_dense = "cls.predictions.transform.dense"
    lm_norm = "cls.predictions.transform.LayerNorm"
    lm_output = "cls.predictions.decoder"
    lm_bias = "cls.predictions.bias"
    dense = "bert.pooler.dense"
    dense_kind = "tanh"
    scores = "classifier"
    next_sentence: ClassVar[Modules] = {"pooler": ("bert.pooler.dense",), "next_sentence": ("cls.seq_relationship",)}

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        # of the original code, whose pooler is as here
        config.expect("directionality", "bidi")
        config.expect("pooler_type", "first_token_transform")
        config.ignore("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")
        return super()._model(config, head)

    def _has_next_sentence(self, names: Collection[str]) -> bool:
        return all(f"{theirs}.weight" in names for (theirs,) in self.next_sentence.values())

    def _masked_architecture(self, model: Transformer) -> str:
        return "BertForPreTraining" if model.next_sentence_head else "BertForMaskedLM"

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        found = super().weights(model, objective)
        if isinstance(objective, Masked) and model.next_sentence_head:
            found += affine(model, self.next_sentence)
        return found


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
    tensors = _bert_tensors("roberta")
    modules: ClassVar[Modules] = {"inputs.norm": ("roberta.embeddings.LayerNorm",)}
    layer = "roberta.encoder.layer.{}"
    parts = BERT_PARTS
    lm_dense = "lm_head.dense"
    lm_norm = "lm_head.layer_norm"
    lm_output = "lm_head.decoder"
    lm_bias = "lm_head.bias"
    lm_gelu = True
    dense = "classifier.dense"
    dense_kind = "tanh"
    scores = "classifier.out_proj"

    def _offset(self, config: Config) -> int:
        padding = config.take("pad_token_id", int, 1)
        if padding < 0:
            raise config.refusal(f"pad_token_id is {padding}, and positions are counted from it")
        return padding + 1

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        config = super()._config(model, objective)
        assert isinstance(model.position, LearnedPosition)
        if not model.position.offset:
            raise Inexpressible("model.position.offset", "0, where roberta's is the padding token's id and 1")
        return {**config, "pad_token_id": model.position.offset - 1}


class DistilBert(PostNormEncoder):
    """DistilBERT (Sanh et al. 2019): BERT without segments."""

    model_type = "distilbert"
    prefix = "distilbert."
    redundant = (r"distilbert\.embeddings\.position_ids", r"vocab_projector\.weight")
    keys: ClassVar[Mapping[str, str]] = {
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    }
    name = "DistilBert"
    tensors: ClassVar[Mapping[str, str]] = {
        "inputs.tokens.weight": "distilbert.embeddings.word_embeddings.weight",
        "inputs.position.table.weight": "distilbert.embeddings.position_embeddings.weight",
    }
    modules: ClassVar[Modules] = {"inputs.norm": ("distilbert.embeddings.LayerNorm",)}
    layer = "distilbert.transformer.layer.{}"
    parts: ClassVar[Modules] = {
        "0.mixer.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "0.mixer.out": ("attention.out_lin",),
        "0.norm": ("sa_layer_norm",),
        "1.mixer.up": ("ffn.lin1",),
        "1.mixer.out": ("ffn.lin2",),
        "1.norm": ("output_layer_norm",),
    }
    lm_dense = "vocab_transform"
    lm_norm = "vocab_layer_norm"
    lm_output = "vocab_projector"
    dense = "pre_classifier"
    dense_kind = "relu"
    scores = "classifier"

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        # sinusoidal positions are those at the start of training, kept in the file like any others
        config.ignore("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "output_past")
        return super()._model(config, head)

    def _eps(self, config: Config) -> float:
        return 1e-12


class Electra(PostNormEncoder):
    """ELECTRA (Clark et al. 2020): the generator fills masks; the discriminator is a body, without its own head."""

    model_type = "electra"
    prefix = "electra."
    redundant = (
        r"electra\.embeddings\.(position_ids|token_type_ids)",
        r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)",
        r"generator_lm_head\.weight",
    )
    name = "Electra"
    tensors = _bert_tensors("electra")
    modules: ClassVar[Modules] = {"inputs.norm": ("electra.embeddings.LayerNorm",)}
    layer = "electra.encoder.layer.{}"
    parts = BERT_PARTS
    lm_dense = "generator_predictions.dense"
    lm_norm = "generator_predictions.LayerNorm"
    lm_output = "generator_lm_head"
    lm_gelu = True
    dense = "classifier.dense"
    dense_kind = "gelu"
    scores = "classifier.out_proj"

    def _model(self, config: Config, head: str) -> dict[str, Any]:
        # only its head for multiple choice has a summary
        config.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
        model = super()._model(config, head)
        width = config.positive("embedding_size", int, 128)
        return {**model, "embedding_width": None if width == model["d_model"] else width}

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        config = super()._config(model, objective)
        return {**config, "embedding_size": model.embedding_width or model.d_model}

    def _body(self, model: Transformer) -> list[Weight]:
        found = super()._body(model)
        if model.embedding_width is not None:
            found += affine(model, {"inputs.project": ("electra.embeddings_project",)})
        return found


class ModernBert(Encoder):
    """ModernBERT (Warner et al. 2024): rotary positions, and full attention in some layers only."""

    model_type = "modernbert"
    prefix = "model."
    redundant = (r"decoder\.weight",)
    name = "ModernBert"
    tensors: ClassVar[Mapping[str, str]] = {"inputs.tokens.weight": "model.embeddings.tok_embeddings.weight"}
    modules: ClassVar[Modules] = {"inputs.norm": ("model.embeddings.norm",), "stack.norm": ("model.final_norm",)}
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
        gate = activation(config, "hidden_activation", "gelu", gated=True)
        if head == "masked" and activation(config, "classifier_activation", "gelu", gated=True) != gate:
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
        kinds = config.optional("layer_types", list)
        if kinds is None:
            kinds = ["sliding_attention" if number % every else "full_attention" for number in range(n_layers)]
        if len(kinds) != n_layers or not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
            raise config.refusal("layer_types does not name full_attention or sliding_attention for each layer")
        full = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
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
        dropout = config.take("classifier_dropout", float, 0.0)
        return {**super()._classifier(config), "pool": pool, "dropout": dropout}

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        if not isinstance(model.position, RotaryPosition):
            raise Inexpressible("model.position.kind", f"{model.position.kind}, where modernbert has rotary")
        gate = their_activation(model, gated=True)
        kinds, window = ["full_attention"] * model.n_layers, 128
        if isinstance(model.pattern, WindowPattern):
            if model.pattern.size < 2:
                raise Inexpressible("model.pattern.size", "1, where modernbert sees a neighbour on each side")
            full, window = model.pattern.full_layers, 2 * (model.pattern.size - 1)
            kinds = ["full_attention" if n in full else "sliding_attention" for n in range(model.n_layers)]
        narrow = model.position.window_theta or model.position.theta
        config: dict[str, Any] = {
            "num_hidden_layers": model.n_layers,
            "hidden_size": model.d_model,
            "num_attention_heads": model.n_heads,
            "intermediate_size": model.d_ff or 4 * model.d_model,
            "max_position_embeddings": model.context,
            "hidden_activation": gate,
            "classifier_activation": gate if isinstance(objective, Masked) else "gelu",
            "norm_eps": model.norm.eps,
            "layer_types": kinds,
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


ENCODERS: tuple[Family, ...] = (Roberta(), DistilBert(), Bert(), Electra(), ModernBert())
"""The first that can express a recipe is the most natural: BERT expresses what DistilBERT does as well."""
