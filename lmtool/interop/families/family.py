"""A published family of models, as the recipe language describes it: configuration and weights, in both directions."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from lmtool.errors import CheckpointError
from lmtool.interop.families import layers
from lmtool.interop.families.config import Config, Inexpressible, Obstacles, write_task
from lmtool.interop.families.layouts import Weight
from lmtool.model.heads import pooling
from lmtool.recipe.spec.objective import (
    AnyObjective,
    Causal,
    Classification,
    Embedding,
    HeadSpec,
    Masked,
    Prefix,
    Seq2Seq,
    SpanCorruption,
    TokenHead,
)
from lmtool.recipe.spec.position import LearnedPosition, RotaryPosition
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

BODY = Embedding(kind="embedding")
"""The objective of a body without a head."""


SINGLE_STACK: Mapping[str, tuple[object, ...]] = dict.fromkeys(
    ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"), (False,)
)
"""Keys of a decoder beside an encoder, and their only values where there is one of them."""


@dataclass(frozen=True)
class Described:
    """Sections of the recipe of a published model, as plain values. beside: its head lies beside its body."""

    model: dict[str, Any]
    objective: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    beside: bool = False


class Family(ABC):
    """One `model_type` of Transformers.

    shape: of its models.
    sizes: their keys by those of sizes in the recipe.
    prefix: of the body in the names of a model with a head, which files of the body alone omit.
    others: other names of keys, which have the same value where both are there.
    defaults: values of keys that files omit, as in the class of the configuration.
    of_shape, expected: the only values of keys that a recipe expresses: of all families of a shape, and of this one.
    ignored: keys that change no logits.
    top: modules outside of layers, ours and theirs, below `prefix`.
    layer: their name of a layer, below `prefix`, with {} for its number.
    parts: the modules of a layer, ours with the number of the sublayer.
    redundant: regular expressions of names of tensors that are not needed: buffers, and copies of tied ones.
    renamed: parts of names in some files, with what they are called in most.
    """

    model_type: ClassVar[str]
    shape: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]]
    sizes: ClassVar[Mapping[str, str]]
    others: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    of_shape: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    expected: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    ignored: ClassVar[tuple[str, ...]] = ()
    prefix: ClassVar[str] = ""
    top: ClassVar[layers.Modules]
    layer: ClassVar[str]
    parts: ClassVar[layers.Modules]
    redundant: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()

    def _prepare(self, config: Config) -> None:
        """Read the keys that have no place in a recipe. Raises CheckpointError for values that none expresses."""
        for other, name in self.others.items():
            config.rename(other, name)
        config.assume(self.defaults)
        for key, allowed in {**self.of_shape, **self.expected}.items():
            config.expect(key, *allowed)
        config.ignore(*self.ignored)

    def _sizes(self, config: Config, **defaults: int) -> dict[str, int]:
        """The sizes of the recipe. defaults: of those that files may omit."""
        return {ours: config.positive(theirs, int, defaults.get(ours)) for ours, theirs in self.sizes.items()}

    def _size_keys(self, model: Transformer) -> dict[str, int]:
        """The inverse of `_sizes`."""
        values = {**dict(model), "d_ff": model.inner_width}
        return {theirs: values[ours] for ours, theirs in self.sizes.items()}

    def _modules(self, model: Transformer) -> dict[str, str]:
        """All modules of the body, of one stack."""
        top = {ours: f"{self.prefix}{theirs}" for ours, theirs in self.top.items()}
        return {**top, **layers.of_stack(model, "stack", f"{self.prefix}{self.layer}", self.parts)}

    @abstractmethod
    def describe(self, config: Config, names: Collection[str]) -> Described:
        """The recipe of a model with this configuration.

        names: of its tensors, as in a model with a head (with `prefix`), which tell the heads that it has.
        Reads every key that changes the logits. Raises CheckpointError, as `Config` does, for what no recipe expresses.
        """

    def publish(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        """The inverse of `describe`, for a model with a `vocab_size`: config.json, without special tokens.

        What is published is described again, and compared in all keys that change the outputs: nothing is exported as
        something else. An `Embedding` asks for the body alone. Raises Inexpressible with all keys that stand in the
        way: where the configuration has no value for one, the others are those of the nearest recipe.
        """
        obstacles: Obstacles = {}
        try:
            published = self._published(model, objective, obstacles)
            described = self._again(published, model, objective)
        except Inexpressible as error:
            raise Inexpressible(obstacles | error.obstacles) from error
        for key, why in self._differences(model, objective, *described):
            obstacles.setdefault(key, why)
        # values that follow from others differ with these
        follow = {f"model.{key}" for key, value in model if value is None}
        obstacles = {key: why for key, why in obstacles.items() if key not in follow} or obstacles
        if obstacles:
            raise Inexpressible(obstacles)
        return published

    def _published(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        """Of the nearest recipe, where the configuration has no value for something, which is added to `obstacles`."""
        if model.shape != self.shape:
            raise Inexpressible({"model.shape": f"{model.shape}, where {self.model_type} has {self.shape}"})
        if model.vocab_size is None:
            raise Inexpressible({"model.vocab_size": "not given, and the tokenizer's is not known here"})
        if not model.inner_width:
            obstacles["model.d_ff"] = f"0, where {self.model_type} has feed-forward networks"
            model = model.with_values({"d_ff": 4 * model.d_model})
        return {
            "architectures": [self._architecture(model, objective)],
            "model_type": self.model_type,
            "vocab_size": model.vocab_size,
            **write_task(objective),
            **self._config(model, objective, obstacles),
        }

    def _differences(
        self, model: Transformer, objective: AnyObjective, described: Transformer, head: AnyObjective
    ) -> Iterator[tuple[str, str]]:
        """Keys of a recipe in which what is published computes something else, and why."""
        unread = OF_HEAD if isinstance(objective, HeadSpec | Embedding) else frozenset()
        wanted = model.with_values(self._alike(model))
        yield from _compared(self.model_type, "model", _meaning(wanted, unread), _meaning(described, unread))
        if not isinstance(objective, Embedding):
            meanings = _meaning_of_head(wanted, objective), _meaning_of_head(described, head)
            yield from _compared(self.model_type, "objective", *meanings)

    @abstractmethod
    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        """All tensors that the objective reads; theirs are named with `prefix`.

        An objective with a head has those of the head and, named `body.`, of its model, whose own head is not read.
        """

    def constants(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        """Tensors that their files hold beside the weights: computed ones, and zeros for parts that nothing reads."""
        return {}

    @abstractmethod
    def _architecture(self, model: Transformer, objective: AnyObjective) -> str:
        """Name of Transformers' class."""

    @abstractmethod
    def _config(self, model: Transformer, objective: AnyObjective, obstacles: Obstacles) -> dict[str, Any]:
        """Its own keys of config.json. Where they have no value for the recipe's, that is added to `obstacles`."""

    def _alike(self, model: Transformer) -> dict[str, Any]:
        """Values of the model's keys by which the family expresses it without a difference."""
        return {}

    def _again(
        self, config: dict[str, Any], model: Transformer, objective: AnyObjective
    ) -> tuple[Transformer, AnyObjective]:
        """What a published configuration is described as."""
        names = {name for weight in self.weights(model, objective) for name in weight.theirs}
        try:
            described = self.describe(Config(config, "config.json"), names)
            again = Transformer.model_validate({"kind": "transformer", **described.model})
            head: AnyObjective = TypeAdapter(AnyObjective).validate_python(described.objective)
        except CheckpointError as error:
            raise Inexpressible({"model": error.what}) from error
        except ValidationError as error:
            raise self._misfit(error) from error
        return again, head

    def _misfit(self, error: ValidationError) -> Inexpressible:
        """An error about sizes that a family has no keys for, so that those of a recipe do not fit together there."""
        first = error.errors()[0]
        if first["type"] != "value_error":
            return Inexpressible({"model": f"{self.model_type} has no such sizes"})
        key, _, why = str(first["ctx"]["error"]).splitlines()[0].partition(" ")
        return Inexpressible({f"model.{key}": f"{why}, as it must in {self.model_type}"})


IN_TRAINING = frozenset(("kind", "context", "dropout", "ffn_dropout", "init"))
"""Keys of a Transformer that change no logits. The context does so by the size of the position table, which is one of
its own."""

OF_HEAD = frozenset(
    ("head_transform", "head_bias", "next_sentence_head", "span_boundary_head", "tie_embeddings", "scale_head")
)
"""Keys of a Transformer's own head, which classifiers and text embeddings do not use."""


def _meaning(model: Transformer, unread: Collection[str]) -> dict[str, Any]:
    """Values of the keys that change the logits, with all defaults filled in."""
    values = model.model_dump(exclude={*IN_TRAINING, *unread})
    values["head_width"] = model.head_width or model.d_model // model.n_heads
    values["value_width"] = model.value_width or values["head_width"]
    values["n_kv_heads"] = model.n_kv_heads or model.n_heads
    values["d_ff"] = model.inner_width
    values["qkv_bias"] = model.bias if model.qkv_bias is None else model.qkv_bias
    if isinstance(model.position, LearnedPosition):
        values["position"]["size"] = model.position.size or model.context + model.position.offset
    if isinstance(model.pattern, WindowPattern):
        values["pattern"]["full_layers"] = sorted(set(model.pattern.full_layers))
    if isinstance(model.position, RotaryPosition) and model.position.window_theta == model.position.theta:
        values["position"]["window_theta"] = None
    return values


def _meaning_of_head(model: Transformer, objective: AnyObjective) -> dict[str, Any]:
    """What of an objective changes the outputs, with `auto` decided."""
    if isinstance(objective, Causal | Seq2Seq | Prefix | SpanCorruption):
        return {"kind": "causal"}
    if isinstance(objective, TokenHead):
        return objective.model_dump(include={"kind", "labels", "layers", "crf"})
    if isinstance(objective, Masked):
        return objective.model_dump(include={"kind", "sentence_order", "permutation"})
    if not isinstance(objective, Classification):
        return {"kind": objective.kind}
    keys = ("kind", "task", "layers", "single_score", "pool", "dense", "dense_norm", "bias")
    return {key: getattr(objective, key) for key in keys} | {"pool": pooling(objective, model)}


def _compared(
    family: str, where: str, wanted: Mapping[str, Any], described: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Keys that differ, and why; of sections of two kinds only the kind."""
    is_other_kind = wanted.get("kind") != described.get("kind")
    for key, value in wanted.items():
        other = described.get(key)
        if value == other or (is_other_kind and key != "kind"):
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _compared(family, f"{where}.{key}", value, other)
        else:
            yield f"{where}.{key}", f"{_shown(value)}, where {family} has {_shown(other)}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
