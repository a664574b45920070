"""Decoders of Transformers, of which a family is what its class declares."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Inexpressible, Obstacles, read_task
from lmtool.interop.families.family import SINGLE_STACK, Described, Family
from lmtool.interop.families.layouts import Weight
from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, TokenHead
from lmtool.recipe.spec.transformer import Transformer


class Decoder(Family):
    """What all decoders have in common.

    name: of the classes.
    causal: what follows it in that of the language model.
    eps: their key of the epsilon of norms.
    dropouts: keys of all dropouts.
    fixed: what all its models have in the recipe, `norm` apart.
    """

    name: ClassVar[str]
    causal: ClassVar[str] = "ForCausalLM"
    eps: ClassVar[str] = "layer_norm_epsilon"
    output: ClassVar[str] = "lm_head.weight"
    of_shape = SINGLE_STACK
    redundant: ClassVar[tuple[str, ...]] = (r"lm_head\.weight",)
    dropouts: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[Mapping[str, Any]] = {}
    norm: ClassVar[Mapping[str, Any]] = {"kind": "layer"}

    shape = "decoder"

    def describe(self, config: Config, names: Collection[str]) -> Described:
        model = self._model(config, len(names))
        if "score.weight" not in names:
            return Described(model, {"kind": "causal"})
        # there is no matrix to predict tokens with
        model["tie_embeddings"] = True
        head = {"pool": "last", "dense": "none", "bias": False, "dropout": 0.0}
        return Described(model, {"kind": "classification", **read_task(config), **head})

    def _model(self, config: Config, most_layers: int) -> dict[str, Any]:
        """`model` of the recipe, of not more layers than this."""
        self._prepare(config)
        config.assume({"tie_word_embeddings": True})
        config.ignore("is_decoder", "cross_attention_hidden_size", *self.dropouts)
        sizes = self._sizes(config)
        if sizes["n_layers"] > most_layers:
            raise config.refusal(f"{self.sizes['n_layers']} is {sizes['n_layers']}, more than there are tensors")
        return {
            "kind": "transformer",
            "shape": "decoder",
            **sizes,
            **self.fixed,
            "norm": {**self.norm, "eps": config.take(self.eps, float)},
            "tie_embeddings": config.take("tie_word_embeddings", bool),
            "dropout": self._dropout(config),
            **self._own_model(config, sizes),
        }

    def _own_model(self, config: Config, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What of `model` this family does not declare. sizes: those of the recipe."""
        return {}

    def _dropout(self, config: Config) -> float:
        """That of all places, when it is the same in all."""
        rates = {config.optional(key, float) or 0.0 for key in self.dropouts}
        return rates.pop() if len(rates) == 1 else 0.0

    def _architecture(self, model: Transformer, objective: AnyObjective) -> str:
        if isinstance(objective, TokenHead):
            raise Inexpressible({"objective.kind": f"{objective.kind}, which is of encoders there"})
        endings = {"classification": "ForSequenceClassification", "embedding": "Model"}
        return self.name + endings.get(objective.kind, self.causal)

    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        if isinstance(objective, Classification) and objective.task == "number":
            for key, value in (("center", 0.0), ("scale", 1.0)):
                if getattr(objective, key) != value:
                    why = f"{getattr(objective, key)}, where {self.model_type} has scores without a bias"
                    obstacles[f"objective.{key}"] = why
        return {
            **self._size_keys(model),
            **dict.fromkeys(self.dropouts, model.dropout),
            self.eps: model.norm.eps,
            "tie_word_embeddings": model.tie_embeddings or isinstance(objective, Embedding),
            **self._own_config(model, obstacles),
        }

    def _own_config(self, model: Transformer, obstacles: Obstacles) -> dict[str, Any]:
        """The inverse of `_own_model`."""
        return {}

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        weights = [self._laid_out(weight, model) for weight in layers.parameters_of(model, self._modules(model))]
        if isinstance(objective, Classification):
            body = [replace(weight, ours=f"body.{weight.ours}") for weight in weights]
            return [*body, Weight("head.weight", ("score.weight",))]
        if not model.tie_embeddings and not isinstance(objective, Embedding):
            weights.append(Weight("head.own", (self.output,)))
        return weights

    def _laid_out(self, weight: Weight, model: Transformer) -> Weight:
        """A weight of the body with the layout that the family has for it."""
        return weight
