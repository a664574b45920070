"""A published family of models as data, and the engine that reads its rows in both directions.

A family has rows of configuration (published key, key of the recipe or rule) and rows of modules (lmtool's module,
published modules). Reading the rows gives the recipe of a published model. Writing them gives the configuration of a
recipe, and reading that again shows what the family cannot express. A row of a module counts where a model has that
module.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Literal, NamedTuple

from gguf import MODEL_ARCH_NAMES, TensorNameMap, get_tensor_name_map
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from lmtool.errors import CheckpointError
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.layouts import (
    DUPLICATED,
    SAME,
    WITH_ZERO_ROW,
    ParameterLayout,
    ParameterMapping,
    make_concatenated_layout,
    make_rescaled_layout,
)
from lmtool.interop.families.rules import HEAD_OBJECTIVES, InexpressibleRecipe, KeyRule, RecipeValues
from lmtool.model.heads import resolve_pooling
from lmtool.model.size import build_on_meta
from lmtool.printable import printable
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, HeadSpec
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.transformer import Transformer

BODY_OBJECTIVE = Embedding(kind="embedding")
"""The objective of a body without a head."""


class _ModuleNameMapping(NamedTuple):
    """A module of lmtool, the same module in the first two layers, and the published modules that it is made of."""

    name: str
    name_in_first_layers: str
    published_names: list[str]


LayoutFactory = Callable[[Transformer, ParameterLayout], ParameterLayout]
"""Makes the layout of a tensor, given the one that it has in families without a row for it."""


@dataclass(frozen=True, kw_only=True)
class PublishedHead:
    """A head for one kind of objective, as a class of Transformers has it.

    class_suffix: the end of the name of that class.
    modules: besides those of the body; published names are whole.
    config: rules of keys.
    fixed: values of the recipe.
    by_class: only the name of the class tells it from other heads.
    constants: makers of the tensors that files hold although nothing reads them.
    """

    objective: str
    class_suffix: str
    modules: Mapping[str, str]
    config: Mapping[str, KeyRule]
    fixed: Mapping[str, Any]
    by_class: bool
    constants: Mapping[str, Callable[[Transformer], Tensor]]

    def required_tensors(self) -> list[str]:
        """The published names of the tensors that every model with this head has."""
        required = (names for module, names in self.modules.items() if not module.startswith(("head.own", "head.bias")))
        return [f"{name}.weight" for names in required for name in names.split()]

    def matches(self, config: StrictConfigReader) -> bool:
        """Whether a model has this head."""
        is_class = config.read_architecture().endswith(self.class_suffix) or not self.by_class
        return is_class and config.tensor_names >= {*self.required_tensors()}


_WITH_HEAD = re.compile(
    "For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|NextSentencePrediction|CausalLM)$"
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of Transformers, or an architecture of GGUF files.

    class_prefix: the start of the names of its classes, to which a head adds its `class_suffix`.
    config: rules of keys, in the order in which they are written.
    modules: published modules, separated by spaces, by those of lmtool. In layers "{}" stands for the number of the
        layer, in lmtool's followed by that of the sublayer. "NAME untied" is for an output matrix of its own, and "NAME
        plain" for a network without a gate, in place of NAME. Names are below `prefix`, which files of a body omit.
    heads: by name. The one that the class names, or the one with most modules that a model has, is its head.
        Objectives that none is for are published as a body, where there is such a head.
    fixed: values of a recipe that all models of the family have.
    defaults: values of keys that files omit, as in the class of the configuration; a null is not missing.
    aliases: further names of keys, which have the same value where both are there.
    allowed: the only values of keys that a recipe expresses. ignored: keys that change no logits.
    redundant: patterns of names of tensors that are not needed: buffers, and copies of tied ones.
    renames: parts of names in some files, with what they are called in most.
    layouts: by patterns of lmtool's names of tensors; the first that matches counts.
    tokenizer: the class of its tokenizers, where files do not say.
    architecture: of GGUF files.
    """

    model_type: str
    shape: Literal["decoder", "encoder", "encoder-decoder"]
    class_prefix: str
    config: Mapping[str, KeyRule]
    modules: Mapping[str, str]
    heads: Mapping[str, PublishedHead]
    prefix: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    allowed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    redundant: Sequence[str] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, LayoutFactory] = field(default_factory=dict)
    tokenizer: str = ""
    architecture: str = ""

    def map_canonical_to_stored_names(self, stored_names: Collection[str]) -> dict[str, str]:
        """Returns the names of tensors in a file, by the names in most files of models with a head."""
        is_bare = not any(name.startswith(self.prefix) for name in stored_names)
        by_canonical = {}
        for stored in stored_names:
            canonical = f"{self.prefix}{stored}" if is_bare else stored
            for old, new in self.renames.items():
                canonical = canonical.replace(old, new)
            by_canonical[canonical] = stored
        return by_canonical

    def read_recipe_from_config(self, config: StrictConfigReader) -> dict[str, dict[str, Any]]:
        """Returns the sections `model` and `objective` of the recipe of a published model, as plain values.

        Every key that changes the logits is read. Raises CheckpointError for what no recipe expresses.
        """
        architecture = config.read_architecture()
        heads = (head for head in self.heads.values() if head.matches(config))
        head = max(heads, key=lambda head: (head.by_class, len(head.required_tensors())))
        if _WITH_HEAD.search(architecture) and not architecture.endswith(head.class_suffix):
            raise config.import_error(f"a recipe has no head as {printable(architecture)[:60]}")
        for alias, key in self.aliases.items():
            config.merge_alias_or_raise_(alias, key)
        config.set_defaults_(self.defaults)
        for key, values_allowed in self.allowed.items():
            config.check_value_if_set(key, *values_allowed)
        config.ignore_keys("is_decoder", "cross_attention_hidden_size", "sentence_transformers", *self.ignored)
        values = {"kind": "transformer", "shape": self.shape, **self.fixed, "objective.kind": head.objective}
        values |= head.fixed
        for key, rule in self._iterate_rules_with_head(head):
            rule.read_key(config, key, values)
        model: dict[str, Any] = {"objective": {}}
        for dotted_key, value in values.items():
            *sections, last = dotted_key.split(".")
            section = model
            for name in sections:
                section = section.setdefault(name, {})
            section[last] = value
        return {"objective": model.pop("objective"), "model": model}

    def build_verified_config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        """Returns the configuration of a model with a `vocab_size`: the inverse of `read_recipe_from_config`.

        What is written is read again, and compared in all keys that change the outputs, so that nothing is exported as
        something else. An `Embedding` asks for the body alone. Raises InexpressibleRecipe with all keys that the family
        cannot express: where the configuration has no value for one, the others are those of the nearest recipe.
        """
        if model.shape != self.shape:
            raise InexpressibleRecipe({"model.shape": f"{model.shape}, where {self.model_type} has {self.shape}"})
        if model.vocab_size is None:
            raise InexpressibleRecipe({"model.vocab_size": "not given, and the tokenizer's is not available here"})
        head, unsupported, obstacles = self.find_head(model, objective), dict[str, str](), dict[str, str]()
        if not model.inner_width:
            obstacles["d_ff"] = f"0, where {self.model_type} has feed-forward networks"
            model = model.with_unvalidated_values({"d_ff": 4 * model.d_model})
        wanted = self._use_expressible_equivalents(flatten_recipe_with_defaults(model, objective))
        nearest = {**_ABSENT_POSITION_VALUES, "position.size": model.context, **self.fixed, **wanted}
        config: dict[str, Any] = {}
        if not self.architecture:
            names = {"architectures": [self.class_prefix + head.class_suffix], "model_type": self.model_type}
            config = {**names, "vocab_size": model.vocab_size}
        try:
            for key, rule in self._iterate_rules_with_head(head):
                config |= rule.write_key(nearest, key, unsupported)
            found = flatten_recipe_with_defaults(*self._read_config_back(config, model, objective))
            for key, value in _iterate_differences_that_change_outputs(wanted, found, isinstance(objective, Embedding)):
                has = unsupported.pop(key, _format_value(found.get(key)))
                obstacles[key] = f"{_format_value(value)}, where {self.model_type} has {has}"
        except InexpressibleRecipe as error:
            obstacles |= error.obstacles
        for key, has in unsupported.items():
            obstacles.setdefault(key, f"{_format_value(wanted[key])}, where {self.model_type} has {has}")
        # what could not be read again had a reason, and values that follow from others differ with these
        derived = {"model", *(key for key, value in _flatten_spec(model) if value is None)}
        obstacles = {key: why for key, why in obstacles.items() if key not in derived} or obstacles
        if obstacles:
            dotted = {key: key if key.startswith(("objective.", "model")) else f"model.{key}" for key in obstacles}
            raise InexpressibleRecipe({dotted[key]: why for key, why in obstacles.items()})
        return config

    def list_parameter_mappings(self, model: Transformer, objective: AnyObjective) -> list[ParameterMapping]:
        """Maps all tensors that the objective reads to published ones, which are named with `prefix`.

        An objective with a head has those of the head and, named `body.`, of its model, whose own head is not read.
        """
        head, body, mappings = self.find_head(model, objective), "", []
        parameters = {*_parameter_names_of_two_layer_model(model)}
        if isinstance(objective, HeadSpec):
            body = "body."
            parameters |= {"head.weight", "dense.weight", "dense_norm.weight"}
            biases = {
                "dense": model.bias,
                "dense_norm": _resolve_norm_bias(model),
                "head": getattr(objective, "bias", True),
            }
            parameters |= {f"{name}.bias" for name, has_bias in biases.items() if has_bias}
        for module in self._iterate_module_mappings(model, head):
            stored = [self._to_stored_name(name, model.n_layers) for name in module.published_names]
            for suffix in ("", ".weight", ".bias"):
                if f"{module.name_in_first_layers}{suffix}" in parameters and None not in stored:
                    layout = self._choose_layout(model, objective, f"{module.name}{suffix}", len(stored))
                    name = f"{'' if module.name in head.modules else body}{module.name}{suffix}"
                    mappings.append(ParameterMapping(name, tuple(f"{one}{suffix}" for one in stored), layout))
        return mappings

    def constant_tensors(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        """The tensors that files hold besides the weights."""
        return {name: make(model) for name, make in self.find_head(model, objective).constants.items()}

    def find_head(self, model: Transformer, objective: AnyObjective) -> PublishedHead:
        """Finds the head that an objective is published with. Raises InexpressibleRecipe without one."""
        heads = [head for head in self.heads.values() if head.objective == _objective_kind(objective)]
        if not heads and isinstance(objective, HeadSpec):
            raise InexpressibleRecipe({"objective.kind": f"{objective.kind}, for which {self.model_type} has no head"})
        same = [head for head in heads if head.fixed.get("next_sentence_head", False) == model.next_sentence_head]
        return next(iter([*same, *heads]), self.heads.get("embedding") or self.heads["causal"])

    def _use_expressible_equivalents(self, values: RecipeValues) -> RecipeValues:
        """Returns the values, those that the family cannot express replaced by others that mean the same there."""
        values = dict(values)
        if "inputs.segments" in self.modules:
            values["n_segments"] = values["n_segments"] or 1  # which is all zeros
        if "position.layout" in self.fixed and "position.layout" in values:
            values["position.layout"] = self.fixed["position.layout"]  # with the entries of hidden states in its order
        if self.architecture and values["pattern.kind"] == "window" and values["pattern.size"] >= values["context"]:
            values = {key: value for key, value in values.items() if not key.startswith("pattern.")}
            values["pattern.kind"] = "full"
        return values

    def _to_stored_name(self, transformers_name: str, n_layers: int) -> str | None:
        """Returns the name in files of a module of Transformers; None where a GGUF architecture lacks it."""
        if not self.architecture:
            return transformers_name
        stored: str | None = _gguf_name_map(self.architecture, n_layers).get_name(
            transformers_name, try_suffixes=(".weight",)
        )
        return stored

    def _iterate_rules_with_head(self, head: PublishedHead) -> Iterator[tuple[str, KeyRule]]:
        """Yields the rules of the family. Those of the head replace rules of the same key, and others come first."""
        more = {key: rule for key, rule in head.config.items() if key not in self.config}
        yield from {**more, **self.config, **head.config}.items()

    def _read_config_back(
        self, config: dict[str, Any], model: Transformer, objective: AnyObjective
    ) -> tuple[Transformer, AnyObjective]:
        """Reads a built configuration again. Returns the model and objective that it gives."""
        names = {name for one in self.list_parameter_mappings(model, objective) for name in one.published_names}
        names |= {*self.find_head(model, objective).required_tensors()}
        try:
            recipe = self.read_recipe_from_config(StrictConfigReader(config, "config.json", names))
            return (
                Transformer.model_validate(recipe["model"]),
                TypeAdapter(AnyObjective).validate_python(recipe["objective"]),
            )
        except CheckpointError as error:
            raise InexpressibleRecipe({"model": error.what}) from error
        except ValidationError as error:
            # sizes that a family has no keys for, so that those of a recipe do not fit together there
            first = error.errors()[0]
            if first["type"] != "value_error":
                raise InexpressibleRecipe({"model": f"{self.model_type} has no such sizes"}) from error
            key, _, why = str(first["ctx"]["error"]).splitlines()[0].partition(" ")
            raise InexpressibleRecipe({f"model.{key}": f"{why}, as it must in {self.model_type}"}) from error

    def _iterate_module_mappings(self, model: Transformer, head: PublishedHead) -> Iterator[_ModuleNameMapping]:
        """Iterates over modules, those of layers once for each layer."""
        variants = {"untied": not model.tie_embeddings, "plain": "glu" not in model.activation}
        rows = {module: [f"{self.prefix}{name}" for name in names.split()] for module, names in self.modules.items()}
        rows |= {module: names.split() for module, names in head.modules.items()}
        modules: dict[str, list[str]] = {}
        for row, names in rows.items():
            module, _, variant = row.partition(" ")
            if variants.get(variant, True):
                modules[module] = names
        if "inputs.segments" in modules and not model.n_segments:
            modules["inputs.tokens"] += modules.pop("inputs.segments")
        yield from (
            _ModuleNameMapping(module, module, names) for module, names in modules.items() if "{}" not in module
        )
        for stack in ("stack", "encoder", "decoder"):
            layer = [(m.split(".", 3)[2:], names) for m, names in modules.items() if m.startswith(f"{stack}.{{}}.")]
            n_sublayers = 1 + max((int(sublayer) for (sublayer, _), _ in layer), default=0)
            for n, ((sublayer, name), names) in product(range(model.n_layers), layer):
                # the second layer stands for all after it
                module, first = (f"{stack}.sublayers.{n_sublayers * i + int(sublayer)}.{name}" for i in (n, min(n, 1)))
                yield _ModuleNameMapping(module, first, [one.format(n) for one in names])

    def _choose_layout(
        self, model: Transformer, objective: AnyObjective, parameter_name: str, n_published_tensors: int
    ) -> ParameterLayout:
        """Chooses how a parameter of lmtool is made of published tensors."""
        layout = SAME
        if n_published_tensors > 1 and parameter_name == "inputs.tokens.weight":
            layout = WITH_ZERO_ROW
        elif n_published_tensors > 1 and parameter_name == "head.bias":
            layout = DUPLICATED
        elif n_published_tensors > 1:
            layout = make_concatenated_layout(get_fused_part_widths(model, parameter_name)[-n_published_tensors:])
        number = objective if isinstance(objective, Classification) and objective.task == "number" else None
        if number and parameter_name in ("head.weight", "head.bias") and (number.center, number.scale) != (0.0, 1.0):
            shift = (number.center or 0.0) if parameter_name == "head.bias" else 0.0
            layout = make_rescaled_layout(number.scale or 1.0, shift)
        rearranged = (
            make(model, layout) for pattern, make in self.layouts.items() if re.search(pattern, parameter_name)
        )
        return next(rearranged, layout)


def get_fused_part_widths(model: Transformer, fused_parameter_name: str) -> tuple[int, ...]:
    """Returns the widths of the parts of a fused matrix: of gate and value, or of queries, keys and values."""
    if ".up" in fused_parameter_name:
        return (model.inner_width,) * 2
    width = model.head_width or model.d_model // model.n_heads
    n_kv_heads = model.n_kv_heads or model.n_heads
    return width * model.n_heads, width * n_kv_heads, (model.value_width or width) * n_kv_heads


@lru_cache(maxsize=8)
def _gguf_name_map(architecture: str, n_layers: int) -> TensorNameMap:
    return get_tensor_name_map(next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture), n_layers)


@lru_cache(maxsize=64)
def _parameter_names_of_two_layer_model(model: Transformer) -> frozenset[str]:
    """The names of the parameters of a model, of its first two layers only. Raises InexpressibleRecipe beyond all
    sizes."""
    assert model.vocab_size is not None
    first_layers = model.with_unvalidated_values({"n_layers": min(model.n_layers, 2)})
    try:
        return frozenset(build_on_meta(first_layers, model.vocab_size).state_dict())
    except (RuntimeError, TypeError) as error:
        raise InexpressibleRecipe({"model": "larger than what any program could hold"}) from error


# What a recipe means

_ABSENT_POSITION_VALUES: RecipeValues = {
    "position.offset": 0,
    **{"position.theta": 10_000.0, "position.window_theta": None, "position.share": 1.0},
    **{"position.scaling.kind": "none", "position.buckets": 32, "position.max_distance": 128},
}
"""What is written for parts of a position that a recipe does not have."""

_TRAINING_KEYS = ("kind", "context", "dropout", "ffn_dropout", "init")
"""Keys of a Transformer that change no logits. The context does so by the size of the position table, which has a key
of its own."""

_HEAD_KEYS = ("head_transform", "head_bias", "next_sentence_head", "span_boundary_head", "tie_embeddings", "scale_head")
"""Keys of a Transformer's own head, which classifiers and text embeddings do not use."""

_OBJECTIVE_KEYS = (
    *("kind", "task", "layers", "single_score", "pool", "dense", "dense_norm", "bias"),
    *("crf", "sentence_order", "permutation"),
)
"""Keys of an objective that change the outputs."""


def flatten_recipe_with_defaults(model: Transformer, objective: AnyObjective) -> RecipeValues:
    """Returns the values of a recipe by their dotted keys, with the defaults that follow from others filled in."""
    values = dict(_flatten_spec(model))
    width = model.head_width or model.d_model // model.n_heads
    values |= {"head_width": width, "value_width": model.value_width or width, "d_ff": model.inner_width}
    values["n_kv_heads"] = model.n_kv_heads or model.n_heads
    values["qkv_bias"] = model.bias if model.qkv_bias is None else model.qkv_bias
    values["norm.bias"] = _resolve_norm_bias(model)
    if isinstance(model.position, LearnedPosition):
        values["position.size"] = model.position.size or model.context + model.position.offset
    if "pattern.full_layers" in values:
        values["pattern.full_layers"] = sorted(set(values["pattern.full_layers"]))
    if "position.share" in values:
        values["position.share"] = int(width * values["position.share"]) / width
        if values["position.window_theta"] == values["position.theta"]:
            values["position.window_theta"] = None
    values |= {f"objective.{key}": value for key, value in objective}
    values["objective.kind"] = _objective_kind(objective)
    if isinstance(objective, Classification):
        values["objective.pool"] = resolve_pooling(objective, model)
    return values


def _resolve_norm_bias(model: Transformer) -> bool | None:
    """Whether norms have a bias; None where they are of a kind that has none."""
    if model.norm.kind != "layer":
        return None
    return model.bias if model.norm.bias is None else model.norm.bias


def _objective_kind(objective: AnyObjective) -> str:
    """The kind of an objective; those that predict the next token are one."""
    return "causal" if objective.kind in ("seq2seq", "prefix", "span-corruption") else objective.kind


def _flatten_spec(spec: Spec, section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in spec:
        if isinstance(value, Spec) and hasattr(value, "kind"):
            yield from _flatten_spec(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _iterate_differences_that_change_outputs(
    wanted: RecipeValues, found: RecipeValues, body_only: bool
) -> Iterator[tuple[str, Any]]:
    """Yields the keys that change the outputs and differ in a published model, each with the wanted value.

    Where a part is of another kind, only its `kind` is yielded. body_only: ignores the keys of the head.
    """
    is_head_unused = body_only or wanted["objective.kind"] in HEAD_OBJECTIVES
    ignored = {*_TRAINING_KEYS, *(_HEAD_KEYS if is_head_unused else ())}
    for key, value in wanted.items():
        section, _, name = key.rpartition(".")
        counts = key not in ignored
        if section == "objective":
            counts = not body_only and (name in _OBJECTIVE_KEYS or (name == "labels" and "objective.crf" in wanted))
        kinds = [f"{key[:end]}.kind" for end, letter in enumerate(key) if letter == "."]
        is_other_part = any(wanted[kind] != found.get(kind) for kind in kinds if kind in wanted and kind != key)
        if counts and value != found.get(key) and not is_other_part:
            yield key, value


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
