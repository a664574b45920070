"""How a key of a published configuration becomes keys of a recipe, and back.

The values of a recipe are by their dotted keys: those of `model` as they are, such as "norm.eps", and those of
`objective` with that before them. The key of a rule is the published one; `recipe_key` is that of the recipe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmtool.interop.families.config import StrictConfigReader

RecipeValues = dict[str, Any]
ConfigValues = dict[str, Any]
"""Values of a published configuration by their keys."""
HEAD_OBJECTIVES = ("classification", "tagging", "question-answering")
"""Kinds of objectives with a head on the hidden states of a model."""


class InexpressibleRecipe(Exception):
    """Raised when a family cannot express a recipe.

    key: the first key of the recipe that the family has no value for.
    obstacles: all of these keys, and why, in a few words.
    """

    def __init__(self, obstacles: Mapping[str, str]) -> None:
        self.key, why = next(iter(obstacles.items()))
        super().__init__(f"{self.key}: {why}")
        self.obstacles = dict(obstacles)


class KeyRule:
    """Reads and writes one key. This base class is for a key that changes no logits, and is not written."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        """Reads the key, and sets its meaning in `values`, which hold that of earlier keys. Raises CheckpointError."""
        config.ignore_keys(key)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        """Returns the value of the key for these values, and of other keys that go with it.

        For a value that the format does not support, returns the nearest one, and sets in `unsupported`, by the key of
        the recipe, what the format supports instead.
        """
        return {}


_TYPE_BY_RECIPE_KEY: Mapping[str, type] = {
    **dict.fromkeys(("norm.eps", "dropout", "ffn_dropout"), float),
    **dict.fromkeys(("tie_embeddings", "parallel", "scale_embedding", "bias", "qkv_bias", "head_bias"), bool),
}
"""Types of values that are no sizes."""


@dataclass(frozen=True)
class CopiedValueRule(KeyRule):
    """A value that keys of the recipe, separated by spaces, have as well.

    Of several published keys for one of the recipe, further ones may be missing and must agree; where dropouts do not
    agree, the recipe has none.

    divides: the key of a size that this number must divide; any does without it.
    """

    recipe_keys: str
    divides: str = ""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        first, *_ = recipe_keys = self.recipe_keys.split()
        if first in values and config.values.get(key) is None:
            config.ignore_keys(key)
            return
        kind = _TYPE_BY_RECIPE_KEY.get(first, int)
        is_size = kind is int or first == "norm.eps"
        value: Any = config.read_positive(key, kind) if is_size else config.read(key, kind)
        if first == "n_layers" and value > len(config.tensor_names):
            raise config.import_error(f"{key} is {value}, more layers than there are tensors")
        if values.setdefault(first, value) != value:
            if kind is not float:
                differing = f"{key} is {value}, where others say {values[first]}"
                raise config.import_error(f"{differing}, which no recipe can express")
            value = 0.0
        values.update(dict.fromkeys(recipe_keys, value))

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        first = self.recipe_keys.partition(" ")[0]
        if self.divides and values[self.divides] % values[first]:
            unsupported[first] = f"one that divides {self.divides}"
        return {key: values[first]}


@dataclass(frozen=True)
class WriteOnlyRule(KeyRule):
    """A key that is written with a value of the recipe, or null, and ignored when it is read."""

    recipe_key: str = ""

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values.get(self.recipe_key)}


@dataclass(frozen=True)
class DerivedDefaultSizeRule(KeyRule):
    """A size that follows from others where it is not given. written: whether the key is written."""

    recipe_key: str
    written: bool = True

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        config.ignore_keys(key)
        default = self._default_size(values)
        size = None if config.values.get(key) is None else config.read_positive(key, int)
        # the width of the network of GPT-2 is given in any case
        values[self.recipe_key] = size or default if self.recipe_key == "d_ff" else None if size == default else size

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        default = self._default_size(values)
        size = default if values[self.recipe_key] is None else values[self.recipe_key]
        if size != default and not self.written:
            unsupported[self.recipe_key] = f"{default:g}"
        return {key: size} if self.written else {}

    def _default_size(self, values: RecipeValues) -> Any:
        width = values["d_model"] / values["n_heads"]
        sizes = {"head_width": width, "value_width": values.get("head_width") or width, "n_kv_heads": values["n_heads"]}
        return sizes.get(self.recipe_key) or values["d_model"] * (4 if self.recipe_key == "d_ff" else 1)


@dataclass(frozen=True)
class ConstantRule(KeyRule):
    """A key that has one value, which is written."""

    value: Any

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        config.check_value_if_set(key, self.value)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: self.value}


@dataclass(frozen=True)
class CheckedConfigSectionRule(KeyRule):
    """An object of keys whose values are listed, the first of which is written. ignored: keys that change no logits."""

    allowed: Mapping[str, Sequence[Any]]
    ignored: Sequence[str] = ()

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        section = config.read_section(key)
        for name, allowed in self.allowed.items():
            section.check_value_if_set(name, *allowed)
        section.ignore_keys(*self.ignored)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: {name: next(iter(allowed), None) for name, allowed in self.allowed.items()}}


_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
    **{"relu": "relu", "relu2": "relu-squared", "silu": "silu", "swish": "silu"},
}
_GATED_ACTIVATIONS = {"gelu": "geglu-exact", "gelu-tanh": "geglu", "silu": "swiglu"}
ACTIVATION_CHOICES: Mapping[str, Mapping[str, str]] = {
    "activations": _ACTIVATIONS,
    "gates": {name: _GATED_ACTIVATIONS[ours] for name, ours in _ACTIVATIONS.items() if ours in _GATED_ACTIVATIONS},
}
"""Activations of recipes by Transformers' names of nonlinearities, and of those of gates, the usual name first."""


class MappedValueRule(KeyRule):
    """Maps each published value to one of the recipe, the usual one first. Keys for one of the recipe must agree.

    choices: by the key of the recipe, or a name in ACTIVATION_CHOICES.
    """

    def __init__(self, choices: Mapping[str, Mapping[Any, Any]] | str) -> None:
        by_key = {"activation": ACTIVATION_CHOICES[choices]} if isinstance(choices, str) else choices
        self.recipe_key: str
        self.choices: Mapping[Any, Any]
        ((self.recipe_key, self.choices),) = by_key.items()

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        config.check_value_if_set(key, *self.choices)
        value = self.choices[config.read(key, type(next(iter(self.choices))))]
        if values.setdefault(self.recipe_key, value) != value:
            raise config.inexpressible_value_error(key)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        wanted = values[self.recipe_key]
        if wanted not in self.choices.values():
            unsupported[self.recipe_key] = ", ".join(dict.fromkeys(map(str, self.choices.values())))
        return {key: next((name for name, ours in self.choices.items() if ours == wanted), next(iter(self.choices)))}


@dataclass(frozen=True)
class IfObjectiveRule(KeyRule):
    """A rule that is read for some kinds of objectives only. always_written: it is written for all kinds."""

    kinds: str
    rule: KeyRule
    always_written: bool

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        if values["objective.kind"] in self.kinds.split():
            self.rule.read_key(config, key, values)
        config.ignore_keys(key)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        is_written = self.always_written or values["objective.kind"] in self.kinds.split()
        return self.rule.write_key(values, key, unsupported) if is_written else {}


class HeadDropoutRule(KeyRule):
    """The dropout of a head on the hidden states; that of the layers where it is missing."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        dropout = config.read(key, float, values["dropout"])
        if values["objective.kind"] in HEAD_OBJECTIVES:
            values["objective.dropout"] = dropout

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values["objective.dropout"]} if values["objective.kind"] in HEAD_OBJECTIVES else {}


@dataclass(frozen=True)
class TiedEmbeddingsRule(KeyRule):
    """Whether the output matrix is the embedding. without_output: kinds of objectives without an output matrix."""

    without_output: str

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        kind = values["objective.kind"]
        is_without = kind in HEAD_OBJECTIVES or kind in self.without_output.split()
        values["tie_embeddings"] = config.read(key, bool) or is_without

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values["tie_embeddings"] or values["objective.kind"] in self.without_output.split()}


@dataclass(frozen=True)
class HasTensorRule(KeyRule):
    """A boolean that no key says but the presence of the tensor with this name. negated: its absence."""

    recipe_key: str
    negated: bool = False

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        values[self.recipe_key] = (key in config.tensor_names) != self.negated


# Positions and windows


@dataclass(frozen=True)
class PositionTableRule(KeyRule):
    """The rows of a table of positions, from the one of `position.offset` on.

    rows: the recipe says how many there are, or not, or those beyond the first two are counted.
    """

    rows: Literal["sized", "unsized", "beyond"]

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        offset = values.get("position.offset", 0)
        rows = config.read_positive(key, int) + (offset if self.rows == "beyond" else 0)
        if rows <= offset:
            raise config.import_error(f"{key} {rows} leaves no positions after the padding token's")
        values["context"] = rows - offset
        if self.rows != "unsized":
            values |= {"position.size": rows, "position.offset": offset}

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values["position.size"] - (2 if self.rows == "beyond" else 0)}


class PaddingIdPositionOffsetRule(KeyRule):
    """The id of the padding token; positions are counted from the row after its own."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        padding = config.read(key, int, 1)
        if padding < 0:
            raise config.import_error(f"{key} is {padding}, and positions are counted from it")
        values["position.offset"] = padding + 1

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: max(0, values["position.offset"] - 1)}


_SCALING_KEYS = {
    "factor": "factor",
    "original_context": "original_max_position_embeddings",
    "low_frequency": "low_freq_factor",
    "high_frequency": "high_freq_factor",
    "slow_turns": "beta_slow",
    "fast_turns": "beta_fast",
    "attention_factor": "attention_factor",
}
"""Keys of a rotary scaling in recipes, and in Transformers."""
_SCALING_NUMBERS: Mapping[str, Sequence[str]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_frequency", "high_frequency"),
    "yarn": ("factor", "slow_turns", "fast_turns"),
}
"""Numbers of each kind of rotary scaling."""


@dataclass(frozen=True)
class RotaryRule(KeyRule):
    """Rotary positions, which are `rope_parameters` in Transformers 5, and were `rope_theta` and `rope_scaling`.

    theta_key, share_key: keys outside of the parameters: the base, and the rotated share of a head, if there is one.
    can_scale: whether longer contexts may be scaled.
    """

    theta_key: str = "rope_theta"
    share_key: str = ""
    can_scale: bool = True

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        theta = config.read(self.theta_key, float, 10_000.0)
        share = config.read(self.share_key, float, 1.0) if self.share_key else 1.0
        # Transformers takes the older name when both are there
        section = config.read_section("rope_scaling" if config.values.get("rope_scaling") else key)
        config.ignore_keys("rope_scaling", key)
        values["position.theta"] = section.read("rope_theta", float, theta)
        values["position.share"] = section.read("partial_rotary_factor", float, share)
        if values["position.share"] != 1 and not self.share_key:
            raise config.import_error(f"partial_rotary_factor {values['position.share']} is not for this model_type")
        name = "rope_type" if "rope_type" in section.values else "type"
        section.ignore_keys("type")
        kind = section.read(name, str, "default")
        if kind not in _SCALING_NUMBERS:
            raise section.inexpressible_value_error(name)
        scaling: RecipeValues = {"kind": "none" if kind == "default" else kind}
        turns = {"slow_turns": 1.0, "fast_turns": 32.0}
        for number in _SCALING_NUMBERS[kind]:
            scaling[number] = section.read(_SCALING_KEYS[number], float, turns.get(number))
        if kind in ("llama3", "yarn"):
            scaling["original_context"] = section.read(_SCALING_KEYS["original_context"], int, values["context"])
        if kind == "yarn":
            for name, allowed in (("mscale", ()), ("mscale_all_dim", ()), ("truncate", (True,))):
                section.check_value_if_set(name, *allowed)
            scaling["attention_factor"] = section.read_optional("attention_factor", float)
        values |= {f"position.scaling.{name}": value for name, value in scaling.items()}

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        kind = values["position.scaling.kind"]
        if kind != "none" and not self.can_scale:
            unsupported["position.scaling.kind"], kind = "none", "none"
            values = {name: value for name, value in values.items() if not name.startswith("position.scaling.")}
        scaling = {"rope_type": "default" if kind == "none" else kind}
        for name, published_name in _SCALING_KEYS.items():
            if (value := values.get(f"position.scaling.{name}")) is not None:
                scaling[published_name] = value
        theta, share = values["position.theta"], values["position.share"]
        keys = {self.theta_key: theta, **({self.share_key: share} if self.share_key else {})}
        keys[key] = {"rope_theta": theta, **scaling, **({"partial_rotary_factor": share} if self.share_key else {})}
        return keys if kind == "none" else {**keys, "rope_scaling": scaling}


FULL, SLIDING = "full_attention", "sliding_attention"
"""Transformers' names of attention to all positions, and within a window."""


def read_full_attention_layers_if_set(config: StrictConfigReader, n_layers: int) -> list[int] | None:
    """Reads from `layer_types` which layers have full attention; all others have windows. None without the key.

    Raises CheckpointError when it names other kinds of attention, or not that of each layer.
    """
    kinds = config.read_optional("layer_types", list)
    if kinds is None:
        return None
    if len(kinds) != n_layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.import_error(f"layer_types does not name {FULL} or {SLIDING} for each layer")
    return [i for i, kind in enumerate(kinds) if kind == FULL]


def layer_types(values: RecipeValues) -> list[str]:
    """The kind of attention of each layer."""
    full = values["pattern.full_layers"] if values["pattern.kind"] == "window" else range(values["n_layers"])
    return [FULL if i in full else SLIDING for i in range(values["n_layers"])]


def set_attention_windows_(values: RecipeValues, size: int | None, full_layers: Sequence[int]) -> None:
    """Sets windows of `size` positions in all layers but `full_layers`; none without a size."""
    if size is None or len(full_layers) == values["n_layers"]:
        values["pattern.kind"] = "full"
    else:
        values |= {"pattern.kind": "window", "pattern.size": size, "pattern.full_layers": list(full_layers)}


class WindowRule(KeyRule):
    """The size of windows in all layers, or null."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        set_attention_windows_(values, config.read_optional(key, int), ())

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values["pattern.size"] if values["pattern.kind"] == "window" else None}


# Tasks and labels

_TASK_BY_PROBLEM_TYPE = {
    "single_label_classification": "class",
    "multi_label_classification": "multi",
    "regression": "number",
}
"""Tasks by `problem_type`."""
MAX_UNNAMED_LABELS = 10_000


class LabelsRule(KeyRule):
    """The labels in the order of the scores; as many as Transformers makes up when none are named."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        values["objective.labels"] = read_labels_or_default_names(config)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return make_labels_config(values["objective.labels"])


@dataclass(frozen=True)
class ProblemTypeAndLabelsRule(KeyRule):
    """The task, by `problem_type`, and the labels of a *ForSequenceClassification. One label is a regression.

    scores: with a bias, or not, so that numbers are in their own unit.
    """

    scores: Literal["biased", "unbiased"] = "biased"

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        labels = read_labels_or_default_names(config)
        config.check_value_if_set(key, *_TASK_BY_PROBLEM_TYPE)
        task = _TASK_BY_PROBLEM_TYPE.get(config.read_optional(key, str) or "", "class" if len(labels) > 1 else "number")
        values["objective.task"] = task
        if task != "number":
            values["objective.labels"] = labels
        elif len(labels) != 1:
            raise config.import_error(f"{key} is 'regression' of {len(labels)} numbers, which no recipe can express")
        else:
            values |= {"objective.center": 0.0, "objective.scale": 1.0}

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        """Raises InexpressibleRecipe when Transformers would take the labels for another task."""
        task, labels = values["objective.task"], values["objective.labels"]
        if task == "auto":
            raise InexpressibleRecipe({"objective.task": "auto, which a labelled table decides"})
        if task == "number":
            labels = ("number",)
            units = {"objective.center": 0.0, "objective.scale": 1.0} if self.scores == "unbiased" else {}
            unsupported |= {name: f"{unit}, without a bias" for name, unit in units.items() if values[name] != unit}
        elif not labels:
            raise InexpressibleRecipe({"objective.labels": "none, which a labelled table decides"})
        elif task == "class" and len(labels) == 1:
            raise InexpressibleRecipe({"objective.labels": "a single one, which Transformers takes for a number"})
        elif len(set(labels)) < len(labels):
            raise InexpressibleRecipe({"objective.labels": "two of the same name"})
        return {
            key: next(kind for kind, name in _TASK_BY_PROBLEM_TYPE.items() if name == task),
            **make_labels_config(labels),
        }


def make_labels_config(labels: Sequence[str]) -> ConfigValues:
    """The keys `id2label` and `label2id` of a configuration."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def read_labels_or_default_names(config: StrictConfigReader) -> list[str]:
    """Reads the labels of a configuration. Raises CheckpointError when labels lack a name of their own."""
    named = config.read_optional("id2label", dict)
    if named is None:
        n_labels = config.read_positive("num_labels", int, 2)
        if n_labels > MAX_UNNAMED_LABELS:
            raise config.import_error(f"num_labels is {n_labels}")
        return [f"LABEL_{i}" for i in range(n_labels)]
    config.check_value_if_set("num_labels", len(named))
    by_id = {str(key): label for key, label in named.items()}
    labels = [by_id.get(str(i)) for i in range(len(named))]
    names = [label for label in labels if isinstance(label, str)]
    if not names or len(set(names)) != len(named):
        raise config.import_error("id2label does not give each class a name of its own")
    return names
