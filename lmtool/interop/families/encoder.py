"""Encoders of Transformers, with a head of masked language modelling, of classification, or none."""

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Inexpressible, Obstacles, read_labels, read_task
from lmtool.interop.families.family import SINGLE_STACK, Described, Family
from lmtool.interop.families.layouts import SAME, Copied, Layout, Rescaled, Weight, ZeroRow
from lmtool.printable import plain
from lmtool.recipe.spec.objective import (
    AnyObjective,
    Classification,
    Embedding,
    HeadSpec,
    Masked,
    TokenHead,
)
from lmtool.recipe.spec.transformer import Transformer

UNSUPPORTED = ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")
"""Ends of the names of architectures whose tensors may look like those of another head."""

PublishedHead = Literal["masked", "classification", "tagging", "question-answering", "embedding"]

TOKEN_HEADS: Mapping[PublishedHead, tuple[str, str]] = {
    "tagging": ("ForTokenClassification", "classifier"),
    "question-answering": ("ForQuestionAnswering", "qa_outputs"),
}
"""Heads that score tokens: the end of the name of the class, and the module of the scores."""

CLASSES: Mapping[str, str] = {
    "classification": "ForSequenceClassification",
    "masked": "ForMaskedLM",
    **{kind: ending for kind, (ending, _) in TOKEN_HEADS.items()},
}
"""The ends of the names of classes by the kind of the objective."""


class Encoder(Family):
    """An encoder, whose head is that of masked language modelling, of classification, or none.

    name: of its classes, without `For...`.
    lm_dense, lm_norm, lm_output: modules of the masked language model's head.
    lm_bias: the bias of a tied output matrix, where it is not that of `lm_output`.
    pooler: a module of the body that only its own heads read.
    dense, dense_norm, scores: modules of the classifier; it has the nonlinearity `dense_kind`.
    next_sentence: modules of the head of next-sentence prediction, ours and theirs, if it has one.
    scores_tokens: it has the heads of `TOKEN_HEADS`.
    """

    shape = "encoder"
    of_shape = SINGLE_STACK
    name: ClassVar[str]
    lm_dense: ClassVar[str]
    lm_norm: ClassVar[str]
    lm_output: ClassVar[str]
    lm_bias: ClassVar[str | None] = None
    pooler: ClassVar[str | None] = None
    dense: ClassVar[str]
    dense_norm: ClassVar[str | None] = None
    dense_kind: ClassVar[Literal["tanh", "relu", "gelu"]]
    scores: ClassVar[str]
    next_sentence: ClassVar[layers.Modules] = {}
    scores_tokens: ClassVar[bool] = True
    renamed = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))

    def describe(self, config: Config, names: Collection[str]) -> Described:
        head = self._head(config, names)
        self._prepare(config)
        # the settings of sentence-transformers for what follows the scores
        config.ignore("sentence_transformers")
        model = {"shape": "encoder", **self._model(config, head)}
        tied = config.take("tie_word_embeddings", bool, True)
        objective: dict[str, Any] = {"kind": head}
        if head == "classification":
            objective |= {**read_task(config), **self._classifier(config), "dropout": self._dropout(config)}
        if head in TOKEN_HEADS:
            objective["dropout"] = self._dropout(config)
        if head == "tagging":
            objective["labels"] = read_labels(config)
        if head == "masked":
            bias = model.pop("head_bias", True)
            model |= {"head_transform": True, "head_bias": bias, "tie_embeddings": tied}
            weights = {f"{theirs}.weight" for theirs in self.next_sentence.values()}
            model["next_sentence_head"] = bool(weights) and weights.issubset(names)
        return Described(model, objective)

    def _head(self, config: Config, names: Collection[str]) -> PublishedHead:
        """Which head the tensors are of. Raises CheckpointError when it is another one."""
        architecture = config.architecture()
        for kind, (ending, scores) in TOKEN_HEADS.items():
            if self.scores_tokens and architecture.endswith(ending) and f"{scores}.weight" in names:
                return kind
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

    def _classifier(self, config: Config) -> dict[str, Any]:
        """Pooling and dense layer of the classifier."""
        norm = self.dense_norm is not None
        return {"pool": "first", "dense": self.dense_kind, "dense_norm": norm, "bias": True}

    @abstractmethod
    def _dropout(self, config: Config) -> float:
        """The dropout of a head."""

    @abstractmethod
    def _model(self, config: Config, head: str) -> dict[str, Any]:
        """The recipe's `model` without what the head decides, except a `head_bias` that the output matrix lacks."""

    def _architecture(self, model: Transformer, objective: AnyObjective) -> str:
        if isinstance(objective, TokenHead) and not self.scores_tokens:
            raise Inexpressible({"objective.kind": f"{objective.kind}, for which {self.model_type} has another head"})
        if isinstance(objective, Masked) and model.next_sentence_head and self.next_sentence:
            return f"{self.name}ForPreTraining"
        return self.name + CLASSES.get(objective.kind, "Model")

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        return {"pad_token_id": None, "tie_word_embeddings": model.tie_embeddings or not isinstance(objective, Masked)}

    def _alike(self, model: Transformer) -> dict[str, Any]:
        # without segments, it is as with one that is all zeros
        return {"n_segments": model.n_segments or 1} if self._has_segments() else {}

    def _has_segments(self) -> bool:
        return "inputs.segments" in self.top

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = self._body(model)
        if isinstance(objective, HeadSpec):
            body = (Weight(f"body.{one.ours}", one.theirs, one.layout) for one in weights)
            if isinstance(objective, Classification):
                return [*body, *self._classifier_weights(model, objective)]
            scores = TOKEN_HEADS[objective.kind][1]
            return [*body, *(Weight(f"head.{kind}", (f"{scores}.{kind}",)) for kind in ("weight", "bias"))]
        if isinstance(objective, Masked):
            weights += layers.parameters_of(model, {"head.dense": self.lm_dense, "head.norm": self.lm_norm})
            if not model.tie_embeddings:
                weights.append(Weight("head.own", (f"{self.lm_output}.weight",)))
            if model.head_bias:
                weights.append(self._output_bias(model))
            if model.next_sentence_head:
                weights += layers.parameters_of(model, self.next_sentence)
        return weights

    def constants(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        if self.pooler is None or not isinstance(objective, Embedding):
            return {}
        width = model.d_model
        return {f"{self.pooler}.weight": torch.zeros(width, width), f"{self.pooler}.bias": torch.zeros(width)}

    def _output_bias(self, model: Transformer) -> Weight:
        bias = f"{self.lm_output}.bias"
        if self.lm_bias is None or model.tie_embeddings:
            return Weight("head.bias", (self.lm_bias or bias,))
        return Weight("head.bias", (bias, self.lm_bias), Copied())

    def _body(self, model: Transformer) -> list[Weight]:
        modules = self._modules(model)
        if not model.norm.first:
            del modules["stack.sublayers.0.norm"]
        if model.n_segments or not self._has_segments():
            return [*layers.parameters_of(model, modules)]
        segments, tokens = modules.pop("inputs.segments"), modules.pop("inputs.tokens")
        both = Weight("inputs.tokens.weight", (f"{tokens}.weight", f"{segments}.weight"), ZeroRow())
        return [both, *layers.parameters_of(model, modules)]

    def _classifier_weights(self, model: Transformer, objective: Classification) -> list[Weight]:
        modules = {"dense": self.dense}
        if self.dense_norm is not None:
            modules["dense_norm"] = self.dense_norm
        of_scores: Layout = SAME
        of_bias: Layout = SAME
        center, scale = objective.center or 0.0, objective.scale or 1.0
        if objective.task == "number" and (center, scale) != (0.0, 1.0):
            of_scores, of_bias = Rescaled(scale), Rescaled(scale, center)
        return [
            *layers.parameters_of(model, modules),
            Weight("head.weight", (f"{self.scores}.weight",), of_scores),
            Weight("head.bias", (f"{self.scores}.bias",), of_bias),
        ]
