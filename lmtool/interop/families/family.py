"""A published family of models as data, and the engine that reads its rows in both directions.

A family is rows of its configuration, (their key, our key or a rule), and rows of its tensors, (our module, theirs).
Reading the rows gives the recipe of a published model; writing them gives the configuration of a recipe, and reading
that again tells what the family cannot express. A row of a module counts where a model has that module.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, Literal

from gguf import MODEL_ARCH_NAMES, TensorNameMap, get_tensor_name_map
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from lmtool.errors import CheckpointError
from lmtool.interop.families.config import Config
from lmtool.interop.families.layouts import SAME, Copied, Joined, Layout, Weight, ZeroRow, rescaled
from lmtool.interop.families.rules import HEADS, Inexpressible, KeyRule, RecipeValues
from lmtool.model.heads import pooling
from lmtool.model.size import outline
from lmtool.printable import printable
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, HeadSpec
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.transformer import Transformer

BODY = Embedding(kind="embedding")
"""The objective of a body without a head."""

Rearrange = Callable[[Transformer, Layout], Layout]
"""The layout of a tensor, from that of a tensor that theirs has as it is, or in pieces."""


@dataclass(frozen=True, kw_only=True)
class PublishedHead:
    """A head for one kind of objective, as a class of Transformers has it.

    objective: its kind. ending: of the name of the class. modules: beside those of the body; theirs are whole names.
    config: rows of keys. fixed: values of the recipe. by_class: only the name of the class tells it from other heads.
    constants: tensors that files hold although nothing reads them.
    """

    objective: str
    ending: str
    modules: Mapping[str, str]
    config: Mapping[str, KeyRule]
    fixed: Mapping[str, Any]
    by_class: bool
    constants: Mapping[str, Callable[[Transformer], Tensor]]

    def required_tensors(self) -> list[str]:
        """Names of the tensors that tell that a model has this head."""
        parts = (theirs.split() for ours, theirs in self.modules.items() if not ours.startswith(_OPTIONAL))
        return [f"{name}.weight" for names in parts for name in names]

    def matches(self, config: Config) -> bool:
        """Whether a model has this head."""
        is_class = config.architecture().endswith(self.ending) or not self.by_class
        return is_class and config.names >= {*self.required_tensors()}


_OPTIONAL = ("head.own", "head.bias")
"""Tensors that not all models with a head have."""
_WITH_HEAD = re.compile(
    "For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|NextSentencePrediction|CausalLM)$"
)


@dataclass(frozen=True)
class Described:
    """Sections of the recipe of a published model, as plain values. beside: its head lies beside its body."""

    model: dict[str, Any]
    objective: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of Transformers, or an architecture of GGUF files.

    name: of its classes, to which the ending of a head is added.
    config: rules of keys, in the order in which they are written.
    modules: theirs by ours, several of theirs parted by spaces; in layers "{}" stands for the number of the layer, in
        ours followed by that of the sublayer. "NAME untied" is for an output matrix of its own, and "NAME plain" for a
        network without a gate, in place of NAME. Names are below `prefix`, which files of a body alone omit.
    heads: by name; the one that the class names, or the one with most modules that a model has, is its head. Objectives
        that none is for are published as a body, where there is such a head.
    fixed: values of a recipe that all its models have.
    defaults: values of keys that files omit, as in the class of the configuration; a null is not missing.
    aliases: further names of keys, which have the same value where both are there.
    allowed: the only values of keys that a recipe expresses. ignored: keys that change no logits.
    redundant: names of tensors that are not needed: buffers, and copies of tied ones.
    renames: parts of names in some files, with what they are called in most.
    layouts: of tensors, by the name of ours; the first counts.
    tokenizer: the class of its tokenizers, where files do not say.
    architecture: of GGUF files.
    """

    model_type: str
    shape: Literal["decoder", "encoder", "encoder-decoder"]
    name: str
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
    layouts: Mapping[str, Rearrange] = field(default_factory=dict)
    tokenizer: str = ""
    architecture: str = ""

    def canonical_names(self, names: Collection[str]) -> dict[str, str]:
        """The names of tensors in files by those of a model with a head, with what they are called in most files."""
        is_bare = not any(name.startswith(self.prefix) for name in names)
        by_name = {}
        for name in names:
            shown = f"{self.prefix}{name}" if is_bare else name
            for old, new in self.renames.items():
                shown = shown.replace(old, new)
            by_name[shown] = name
        return by_name

    def describe(self, config: Config) -> Described:
        """The recipe of a model with this configuration, every key of which that changes the logits is read.

        Raises CheckpointError for what no recipe expresses.
        """
        architecture = config.architecture()
        heads = (one for one in self.heads.values() if one.matches(config))
        head = max(heads, key=lambda one: (one.by_class, len(one.required_tensors())))
        if _WITH_HEAD.search(architecture) and not architecture.endswith(head.ending):
            raise config.refusal(f"a recipe has no head as {printable(architecture)[:60]}")
        for other, name in self.aliases.items():
            config.rename(other, name)
        config.assume(self.defaults)
        for key, values_allowed in self.allowed.items():
            config.expect(key, *values_allowed)
        config.ignore("is_decoder", "cross_attention_hidden_size", "sentence_transformers", *self.ignored)
        values = {"kind": "transformer", "shape": self.shape, **self.fixed, "objective.kind": head.objective}
        values |= head.fixed
        for key, rule in self._rules_for(head):
            rule.read(config, key, values)
        tree: dict[str, Any] = {"objective": {}}
        for key, value in values.items():
            *sections, last = key.split(".")
            if sections == ["pattern"] and last != "kind" and values["pattern.kind"] == "full":
                continue
            section = tree
            for name in sections:
                section = section.setdefault(name, {})
            section[last] = value
        return Described(model=tree, objective=tree.pop("objective"))

    def publish(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        """The inverse of `describe`, for a model with a `vocab_size`: the keys of its configuration.

        What is published is described again, and compared in all keys that change the outputs: nothing is exported as
        something else. An `Embedding` asks for the body alone. Raises Inexpressible with all keys that stand in the
        way: where the configuration has no value for one, the others are those of the nearest recipe.
        """
        if model.shape != self.shape:
            raise Inexpressible({"model.shape": f"{model.shape}, where {self.model_type} has {self.shape}"})
        if model.vocab_size is None:
            raise Inexpressible({"model.vocab_size": "not given, and the tokenizer's is not available here"})
        head, available, obstacles = self.head_for(model, objective), dict[str, str](), dict[str, str]()
        if not model.inner_width:
            obstacles["d_ff"] = f"0, where {self.model_type} has feed-forward networks"
            model = model.with_values({"d_ff": 4 * model.d_model})
        wanted = self._replace_equivalents(recipe_values(model, objective))
        nearest = {**_NEAREST, "position.size": model.context, **self.fixed, **wanted}
        config: dict[str, Any] = {}
        if not self.architecture:
            names = {"architectures": [self.name + head.ending], "model_type": self.model_type}
            config = {**names, "vocab_size": model.vocab_size}
        try:
            for key, rule in self._rules_for(head):
                config |= rule.write(nearest, key, available)
            found = recipe_values(*self._read_back(config, model, objective))
            for key, value in _differences(wanted, found, isinstance(objective, Embedding)):
                has = available.pop(key, _format_value(found.get(key)))
                obstacles[key] = f"{_format_value(value)}, where {self.model_type} has {has}"
        except Inexpressible as error:
            obstacles |= error.obstacles
        for key, has in available.items():
            obstacles.setdefault(key, f"{_format_value(wanted[key])}, where {self.model_type} has {has}")
        # what could not be described again had a reason, and values that follow from others differ with these
        follow = {"model", *(key for key, value in _flatten(model) if value is None)}
        obstacles = {key: why for key, why in obstacles.items() if key not in follow} or obstacles
        if obstacles:
            dotted = {key: key if key.startswith(("objective.", "model")) else f"model.{key}" for key in obstacles}
            raise Inexpressible({dotted[key]: why for key, why in obstacles.items()})
        return config

    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        """All tensors that the objective reads; theirs are named with `prefix`.

        An objective with a head has those of the head and, named `body.`, of its model, whose own head is not read.
        """
        head, body = self.head_for(model, objective), "body." if isinstance(objective, HeadSpec) else ""
        has, weights = {*_parameters(model), *_head_parameters(model, objective)}, []
        for ours, first, theirs in self._iterate_modules(model, head):
            stored = [self._stored_name(name, model.n_layers) for name in theirs]
            for kind in ("", ".weight", ".bias"):
                if f"{first}{kind}" in has and None not in stored:
                    layout = self._layout(model, objective, f"{ours}{kind}", len(theirs))
                    name = f"{'' if ours in head.modules else body}{ours}{kind}"
                    weights.append(Weight(name, tuple(f"{one}{kind}" for one in stored), layout))
        return weights

    def constants(self, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
        """Tensors that their files hold beside the weights."""
        return {name: make(model) for name, make in self.head_for(model, objective).constants.items()}

    def head_for(self, model: Transformer, objective: AnyObjective) -> PublishedHead:
        """The head that an objective is published with."""
        of_kind = [head for head in self.heads.values() if head.objective == _objective_kind(objective)]
        if not of_kind and isinstance(objective, HeadSpec):
            raise Inexpressible({"objective.kind": f"{objective.kind}, for which {self.model_type} has no head"})
        asks = [one for one in of_kind if one.fixed.get("next_sentence_head", False) == model.next_sentence_head]
        return next(iter([*asks, *of_kind]), self.heads.get("embedding") or self.heads["causal"])

    def _replace_equivalents(self, values: RecipeValues) -> RecipeValues:
        """The values, those that the family has no word for by others that mean the same there."""
        if "inputs.segments" in self.modules:
            values["n_segments"] = values["n_segments"] or 1  # which is all zeros
        if "position.layout" in self.fixed and "position.layout" in values:
            values["position.layout"] = self.fixed["position.layout"]  # with the entries of hidden states in its order
        if self.architecture and values["pattern.kind"] == "window" and values["pattern.size"] >= values["context"]:
            values = {key: value for key, value in values.items() if not key.startswith("pattern.")}
            values["pattern.kind"] = "full"
        return values

    def _stored_name(self, name: str, n_layers: int) -> str | None:
        """The name of a module of Transformers in its files; None when an architecture of GGUF does not have it."""
        if not self.architecture:
            return name
        stored: str | None = _gguf_names(self.architecture, n_layers).get_name(name, try_suffixes=(".weight",))
        return stored

    def _rules_for(self, head: PublishedHead) -> Iterator[tuple[str, KeyRule]]:
        """Those of the head, in place of the family's or before them."""
        more = {key: rule for key, rule in head.config.items() if key not in self.config}
        yield from {**more, **self.config, **head.config}.items()

    def _read_back(
        self, config: dict[str, Any], model: Transformer, objective: AnyObjective
    ) -> tuple[Transformer, AnyObjective]:
        """What a published configuration is described as."""
        names = {name for weight in self.weights(model, objective) for name in weight.theirs}
        try:
            described = self.describe(
                Config(config, "config.json", {*names, *self.head_for(model, objective).required_tensors()})
            )
            again = Transformer.model_validate(described.model)
            head: AnyObjective = TypeAdapter(AnyObjective).validate_python(described.objective)
        except CheckpointError as error:
            raise Inexpressible({"model": error.what}) from error
        except ValidationError as error:
            # sizes that a family has no keys for, so that those of a recipe do not fit together there
            first = error.errors()[0]
            if first["type"] != "value_error":
                raise Inexpressible({"model": f"{self.model_type} has no such sizes"}) from error
            key, _, why = str(first["ctx"]["error"]).splitlines()[0].partition(" ")
            raise Inexpressible({f"model.{key}": f"{why}, as it must in {self.model_type}"}) from error
        return again, head

    def _iterate_modules(self, model: Transformer, head: PublishedHead) -> Iterator[tuple[str, str, list[str]]]:
        """Rows of modules, those of layers once for each: ours, the name that it has in the first layers, theirs."""
        variants = {"untied": not model.tie_embeddings, "plain": "glu" not in model.activation}
        own = {ours: [f"{self.prefix}{name}" for name in theirs.split()] for ours, theirs in self.modules.items()}
        rows: dict[str, list[str]] = {}
        for row, theirs in (own | {ours: theirs.split() for ours, theirs in head.modules.items()}).items():
            ours, _, variant = row.partition(" ")
            if variants.get(variant, True):
                rows[ours] = theirs
        if "inputs.segments" in rows and not model.n_segments:
            rows["inputs.tokens"] += rows.pop("inputs.segments")
        yield from ((ours, ours, theirs) for ours, theirs in rows.items() if "{}" not in ours)
        for stack in ("stack", "encoder", "decoder"):
            layer = [
                (ours.split(".", 3)[2:], names) for ours, names in rows.items() if ours.startswith(f"{stack}.{{}}.")
            ]
            per_layer = 1 + max((int(sublayer) for (sublayer, _), _ in layer), default=0)
            for n, ((sublayer, name), theirs) in product(range(model.n_layers), layer):
                # the second layer stands for all after it
                ours, first = (f"{stack}.sublayers.{per_layer * i + int(sublayer)}.{name}" for i in (n, min(n, 1)))
                yield ours, first, [one.format(n) for one in theirs]

    def _layout(self, model: Transformer, objective: AnyObjective, ours: str, n: int) -> Layout:
        """How a tensor of ours is made of n of theirs."""
        layout: Layout = SAME
        if ours == "inputs.tokens.weight" and n > 1:
            layout = ZeroRow()
        elif n > 1 and ours == "head.bias":
            layout = Copied()
        elif n > 1:
            layout = Joined(joined_widths(model, ours)[-n:])
        number = objective if isinstance(objective, Classification) and objective.task == "number" else None
        if number and ours in ("head.weight", "head.bias") and (number.center, number.scale) != (0.0, 1.0):
            layout = rescaled(number.scale or 1.0, (number.center or 0.0) if ours == "head.bias" else 0.0)
        rearranged = (make(model, layout) for pattern, make in self.layouts.items() if re.search(pattern, ours))
        return next(rearranged, layout)


def joined_widths(model: Transformer, ours: str) -> tuple[int, ...]:
    """Widths of the parts of a joined matrix: of gate and value, or of queries, keys and values."""
    if ".up" in ours:
        return (model.inner_width,) * 2
    width = model.head_width or model.d_model // model.n_heads
    n_kv_heads = model.n_kv_heads or model.n_heads
    return width * model.n_heads, width * n_kv_heads, (model.value_width or width) * n_kv_heads


@lru_cache(maxsize=8)
def _gguf_names(architecture: str, n_layers: int) -> TensorNameMap:
    return get_tensor_name_map(next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture), n_layers)


@lru_cache(maxsize=64)
def _parameters(model: Transformer) -> frozenset[str]:
    """The names of the parameters of a model, of its first two layers only. Raises Inexpressible beyond all sizes."""
    assert model.vocab_size is not None
    try:
        return frozenset(
            outline(model.with_values({"n_layers": min(model.n_layers, 2)}), model.vocab_size).state_dict()
        )
    except (RuntimeError, TypeError) as error:
        raise Inexpressible({"model": "larger than what any program could hold"}) from error


def _head_parameters(model: Transformer, objective: AnyObjective) -> Iterator[str]:
    """Those of a head on the model."""
    if isinstance(objective, HeadSpec):
        yield from ("head.weight", "dense.weight", "dense_norm.weight")
        yield from ["dense.bias"] * model.bias + ["dense_norm.bias"] * bool(_norm_bias(model))
        yield from ["head.bias"] * getattr(objective, "bias", True)


# What a recipe means

_NEAREST: RecipeValues = {
    "position.offset": 0,
    **{"position.theta": 10_000.0, "position.window_theta": None, "position.share": 1.0},
    **{"position.scaling.kind": "none", "position.buckets": 32, "position.max_distance": 128},
}
"""What is written for parts of a position that a recipe does not have."""

_IN_TRAINING = ("kind", "context", "dropout", "ffn_dropout", "init")
"""Keys of a Transformer that change no logits. The context does so by the size of the position table, which is one of
its own."""

_OF_HEAD = ("head_transform", "head_bias", "next_sentence_head", "span_boundary_head", "tie_embeddings", "scale_head")
"""Keys of a Transformer's own head, which classifiers and text embeddings do not use."""

_OF_OBJECTIVE = (
    *("kind", "task", "layers", "single_score", "pool", "dense", "dense_norm", "bias"),
    *("crf", "sentence_order", "permutation"),
)
"""Keys of an objective that change the outputs."""


def recipe_values(model: Transformer, objective: AnyObjective) -> RecipeValues:
    """A recipe by its dotted keys, with all defaults filled in."""
    values = dict(_flatten(model))
    width = model.head_width or model.d_model // model.n_heads
    values |= {"head_width": width, "value_width": model.value_width or width, "d_ff": model.inner_width}
    values["n_kv_heads"] = model.n_kv_heads or model.n_heads
    values["qkv_bias"] = model.bias if model.qkv_bias is None else model.qkv_bias
    values["norm.bias"] = _norm_bias(model)
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
        values["objective.pool"] = pooling(objective, model)
    return values


def _norm_bias(model: Transformer) -> bool | None:
    """Whether norms have a bias; None where they are of a kind that has none."""
    if model.norm.kind != "layer":
        return None
    return model.bias if model.norm.bias is None else model.norm.bias


def _objective_kind(objective: AnyObjective) -> str:
    """The kind of an objective; those that predict the next token are one."""
    return "causal" if objective.kind in ("seq2seq", "prefix", "span-corruption") else objective.kind


def _flatten(spec: Spec, section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in spec:
        if isinstance(value, Spec) and hasattr(value, "kind"):
            yield from _flatten(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _differences(wanted: RecipeValues, found: RecipeValues, is_body: bool) -> Iterator[tuple[str, Any]]:
    """Keys, with the values wanted, in which what is published computes something else; of parts of two kinds only the
    kind. is_body: the head is not asked for."""
    ignored = {*_IN_TRAINING, *(_OF_HEAD if is_body or wanted["objective.kind"] in HEADS else ())}
    for key, value in wanted.items():
        section, _, name = key.rpartition(".")
        if section == "objective":
            counts = not is_body and (name in _OF_OBJECTIVE or (name == "labels" and "objective.crf" in wanted))
        else:
            counts = key not in ignored
        kinds = [f"{key[:end]}.kind" for end, letter in enumerate(key) if letter == "."]
        is_other_part = any(wanted[kind] != found.get(kind) for kind in kinds if kind in wanted and kind != key)
        if counts and value != found.get(key) and not is_other_part:
            yield key, value


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
