"""How a key of a published configuration becomes keys of a recipe, and back.

The values of a recipe are by their dotted keys: those of `model` as they are, such as "norm.eps", and those of
`objective` with that before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmtool.interop.families.config import Config

RecipeValues = dict[str, Any]
HEADS = ("classification", "tagging", "question-answering")
"""Objectives with a head on the hidden states of a model."""


class Inexpressible(Exception):
    """A family cannot express a recipe.

    key: the first key that stands in the way.
    obstacles: all of them, and why, in a few words.
    """

    def __init__(self, obstacles: Mapping[str, str]) -> None:
        self.key, why = next(iter(obstacles.items()))
        super().__init__(f"{self.key}: {why}")
        self.obstacles = dict(obstacles)


class KeyRule:
    """A key of theirs, in both directions. By itself, one that changes no logits, and is not written."""

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        """Set what the key says in `values`, which have what earlier keys say. Raises CheckpointError."""
        config.ignore(key)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        """The key for these values, and others that go with it.

        What is written for a value that theirs has no word for is near it; `available` then gets what there is instead,
        by the key of ours.
        """
        return {}


_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("norm.eps", "dropout", "ffn_dropout"), float),
    **dict.fromkeys(("tie_embeddings", "parallel", "scale_embedding", "bias", "qkv_bias", "head_bias"), bool),
}
"""Types of values that are no sizes."""


@dataclass(frozen=True)
class SameRule(KeyRule):
    """The same value under keys of ours, parted by spaces.

    Of several keys of theirs for one of ours, further ones may be missing and must agree; of dropouts that do not agree
    there is none.
    """

    ours: str

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        first, *_ = names = self.ours.split()
        if first in values and config.values.get(key) is None:
            config.ignore(key)
            return
        kind = _KINDS.get(first, int)
        is_size = kind is int or first == "norm.eps"
        value: Any = config.positive(key, kind) if is_size else config.take(key, kind)
        if first == "n_layers" and value > len(config.names):
            raise config.refusal(f"{key} is {value}, more layers than there are tensors")
        if values.setdefault(first, value) != value:
            if kind is not float:
                raise config.refusal(f"{key} is {value}, where others say {values[first]}, which no recipe can express")
            value = 0.0
        values.update(dict.fromkeys(names, value))

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values[self.ours.partition(" ")[0]]}


@dataclass(frozen=True)
class WrittenRule(KeyRule):
    """A key that is written with a value of ours, or null, and says nothing that matters when it is read."""

    ours: str = ""

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values.get(self.ours)}


class DivisorRule(SameRule):
    """A number of heads that must divide the width."""

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        if values["d_model"] % values[self.ours]:
            available[self.ours] = "one that divides d_model"
        return super().write(values, key, available)


@dataclass(frozen=True)
class DerivedRule(KeyRule):
    """A size that follows from others where it is not given. written: it is a key of what is published."""

    ours: str
    written: bool = True

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        config.ignore(key)
        size, usual = None if config.values.get(key) is None else config.positive(key, int), self._usual(values)
        # the width of the network of GPT-2 is given in any case
        values[self.ours] = size or usual if self.ours == "d_ff" else None if size == usual else size

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        usual = self._usual(values)
        size = usual if values[self.ours] is None else values[self.ours]
        if size != usual and not self.written:
            available[self.ours] = f"{usual:g}"
        return {key: size} if self.written else {}

    def _usual(self, values: RecipeValues) -> Any:
        width = values["d_model"] / values["n_heads"]
        sizes = {"head_width": width, "value_width": values.get("head_width") or width, "n_kv_heads": values["n_heads"]}
        return sizes.get(self.ours) or values["d_model"] * (4 if self.ours == "d_ff" else 1)


@dataclass(frozen=True)
class ConstantRule(KeyRule):
    """A key that has one value, which is written."""

    value: Any

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        config.expect(key, self.value)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: self.value}


@dataclass(frozen=True)
class SectionRule(KeyRule):
    """An object of keys that have one value each. ignored: keys that change no logits."""

    only: Mapping[str, Sequence[Any]]
    ignored: Sequence[str] = ()

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        section = config.section(key)
        for name, allowed in self.only.items():
            section.expect(name, *allowed)
        section.ignore(*self.ignored)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: {name: next(iter(allowed), None) for name, allowed in self.only.items()}}


_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
    **{"relu": "relu", "silu": "silu", "swish": "silu"},
}
_GATED = {"gelu": "geglu-exact", "gelu-tanh": "geglu", "silu": "swiglu"}
CHOICES: Mapping[str, Mapping[str, str]] = {
    "activations": _ACTIVATIONS,
    "gates": {theirs: _GATED[ours] for theirs, ours in _ACTIVATIONS.items() if ours in _GATED},
}
"""Transformers' names of nonlinearities, and of those of gates, the usual one first, and the activations of recipes."""


class ChoiceRule(KeyRule):
    """A value of ours for each of theirs, of which the usual one comes first. Several keys for one of ours must agree.

    choices: by the key of ours, or the name of those of an activation.
    """

    def __init__(self, choices: Mapping[str, Mapping[Any, Any]] | str) -> None:
        by_key: Mapping[str, Mapping[Any, Any]] = (
            {"activation": CHOICES[choices]} if isinstance(choices, str) else choices
        )
        ((self.ours, self.choices),) = by_key.items()

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        config.expect(key, *self.choices)
        value = self.choices[config.take(key, type(next(iter(self.choices))))]
        if values.setdefault(self.ours, value) != value:
            raise config.inexpressible(key)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        theirs = next((theirs for theirs, ours in self.choices.items() if ours == values[self.ours]), None)
        if theirs is None:
            available[self.ours] = ", ".join(dict.fromkeys(map(str, self.choices.values())))
        return {key: next(iter(self.choices)) if theirs is None else theirs}


@dataclass(frozen=True)
class IfObjectiveRule(KeyRule):
    """A rule that is read for some kinds of objectives only. written: it is written for all."""

    kinds: str
    rule: KeyRule
    written: bool

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        if values["objective.kind"] in self.kinds.split():
            self.rule.read(config, key, values)
        config.ignore(key)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        is_asked = self.written or values["objective.kind"] in self.kinds.split()
        return self.rule.write(values, key, available) if is_asked else {}


class HeadDropoutRule(KeyRule):
    """The dropout of a head on the hidden states; that of the layers where it is missing."""

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        dropout = config.take(key, float, values["dropout"])
        if values["objective.kind"] in HEADS:
            values["objective.dropout"] = dropout

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values["objective.dropout"]} if values["objective.kind"] in HEADS else {}


@dataclass(frozen=True)
class TiedRule(KeyRule):
    """Whether the output matrix is the embedding. but: kinds of objectives whose models have no output matrix."""

    but: str

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        kind = values["objective.kind"]
        values["tie_embeddings"] = config.take(key, bool) or kind in HEADS or kind in self.but.split()

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values["tie_embeddings"] or values["objective.kind"] in self.but.split()}


@dataclass(frozen=True)
class HasTensorRule(KeyRule):
    """A truth value that no key says but the tensor of this name. absent: it is true without the tensor."""

    ours: str
    absent: bool = False

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        values[self.ours] = (key in config.names) != self.absent


# Positions and windows


@dataclass(frozen=True)
class LearnedRowsRule(KeyRule):
    """The rows of a table of positions, from the one of `position.offset` on.

    rows: the recipe says how many there are, or not, or those beyond the first two are counted.
    """

    rows: Literal["sized", "unsized", "beyond"]

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        offset = values.get("position.offset", 0)
        rows = config.positive(key, int) + (offset if self.rows == "beyond" else 0)
        if rows <= offset:
            raise config.refusal(f"{key} {rows} leaves no positions after the padding token's")
        values["context"] = rows - offset
        if self.rows != "unsized":
            values |= {"position.size": rows, "position.offset": offset}

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values["position.size"] - (2 if self.rows == "beyond" else 0)}


class PaddingRowRule(KeyRule):
    """Positions start after the row of the padding token's id."""

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        padding = config.take(key, int, 1)
        if padding < 0:
            raise config.refusal(f"{key} is {padding}, and positions are counted from it")
        values["position.offset"] = padding + 1

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: max(0, values["position.offset"] - 1)}


_SCALING = {
    "factor": "factor",
    "original_context": "original_max_position_embeddings",
    "low_frequency": "low_freq_factor",
    "high_frequency": "high_freq_factor",
    "slow_turns": "beta_slow",
    "fast_turns": "beta_fast",
    "attention_factor": "attention_factor",
}
"""Keys of a rotary scaling in recipes, and in Transformers."""
_SCALINGS: Mapping[str, Sequence[str]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_frequency", "high_frequency"),
    "yarn": ("factor", "slow_turns", "fast_turns"),
}


@dataclass(frozen=True)
class RotaryRule(KeyRule):
    """Rotary positions, which are `rope_parameters` in Transformers 5, and were `rope_theta` and `rope_scaling`.

    theta, share: keys of the base, and of the rotated share of a head, if there is one, beside the parameters. scales:
    whether longer contexts may be scaled.
    """

    theta: str = "rope_theta"
    share: str = ""
    scales: bool = True

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        theta = config.take(self.theta, float, 10_000.0)
        share = config.take(self.share, float, 1.0) if self.share else 1.0
        # Transformers takes the older name when both are there
        section = config.section("rope_scaling" if config.values.get("rope_scaling") else key)
        config.ignore("rope_scaling", key)
        values["position.theta"] = section.take("rope_theta", float, theta)
        values["position.share"] = section.take("partial_rotary_factor", float, share)
        if values["position.share"] != 1 and not self.share:
            raise config.refusal(f"partial_rotary_factor {values['position.share']} is not for this model_type")
        name = "rope_type" if "rope_type" in section.values else "type"
        section.ignore("type")
        kind = section.take(name, str, "default")
        if kind not in _SCALINGS:
            raise section.inexpressible(name)
        scaling: RecipeValues = {"kind": "none" if kind == "default" else kind}
        turns = {"slow_turns": 1.0, "fast_turns": 32.0}
        scaling |= {ours: section.take(_SCALING[ours], float, turns.get(ours)) for ours in _SCALINGS[kind]}
        if kind in ("llama3", "yarn"):
            scaling["original_context"] = section.take(_SCALING["original_context"], int, values["context"])
        if kind == "yarn":
            for name, allowed in (("mscale", ()), ("mscale_all_dim", ()), ("truncate", (True,))):
                section.expect(name, *allowed)
            scaling["attention_factor"] = section.optional("attention_factor", float)
        values |= {f"position.scaling.{ours}": value for ours, value in scaling.items()}

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        kind = values["position.scaling.kind"]
        if kind != "none" and not self.scales:
            available["position.scaling.kind"], kind = "none", "none"
            values = {name: value for name, value in values.items() if not name.startswith("position.scaling.")}
        scaling = {"rope_type": "default" if kind == "none" else kind}
        for ours, theirs in _SCALING.items():
            if (value := values.get(f"position.scaling.{ours}")) is not None:
                scaling[theirs] = value
        theta, share = values["position.theta"], values["position.share"]
        keys = {self.theta: theta, **({self.share: share} if self.share else {})}
        keys[key] = {"rope_theta": theta, **scaling, **({"partial_rotary_factor": share} if self.share else {})}
        return keys if kind == "none" else {**keys, "rope_scaling": scaling}


FULL, SLIDING = "full_attention", "sliding_attention"


def read_full_layers(config: Config, n_layers: int) -> list[int] | None:
    """The layers with full attention in `layer_types`, where all others have windows; None without the key.

    Raises CheckpointError when it names other kinds of attention, or not that of each layer.
    """
    kinds = config.optional("layer_types", list)
    if kinds is None:
        return None
    if len(kinds) != n_layers or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.refusal(f"layer_types does not name {FULL} or {SLIDING} for each layer")
    return [i for i, kind in enumerate(kinds) if kind == FULL]


def layer_types(values: RecipeValues) -> list[str]:
    """The kind of attention of each layer."""
    full = values["pattern.full_layers"] if values["pattern.kind"] == "window" else range(values["n_layers"])
    return [FULL if i in full else SLIDING for i in range(values["n_layers"])]


def set_windows(values: RecipeValues, size: int | None, full_layers: Sequence[int]) -> None:
    """Set the pattern of windows in all but these layers; without a size there are none."""
    if size is None or len(full_layers) == values["n_layers"]:
        values["pattern.kind"] = "full"
    else:
        values |= {"pattern.kind": "window", "pattern.size": size, "pattern.full_layers": list(full_layers)}


class WindowRule(KeyRule):
    """Windows in all layers, or null."""

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        set_windows(values, config.optional(key, int), ())

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return {key: values["pattern.size"] if values["pattern.kind"] == "window" else None}


# Tasks and labels

_TASKS = {"single_label_classification": "class", "multi_label_classification": "multi", "regression": "number"}
"""Tasks by `problem_type`."""
_MOST = 10_000
"""Labels that a configuration may ask for without naming them."""


class LabelsRule(KeyRule):
    """The labels in the order of the scores; as many as Transformers makes up when none are named."""

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        values["objective.labels"] = read_labels(config)

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        return write_labels(values["objective.labels"])


@dataclass(frozen=True)
class TaskRule(KeyRule):
    """The task of a *ForSequenceClassification, which takes one label for regression by default, and its labels.

    scores: with a bias, or not, so that numbers are in their own unit.
    """

    scores: Literal["biased", "unbiased"] = "biased"

    def read(self, config: Config, key: str, values: RecipeValues) -> None:
        labels = read_labels(config)
        config.expect(key, *_TASKS)
        task = _TASKS.get(config.optional(key, str) or "", "class" if len(labels) > 1 else "number")
        values["objective.task"] = task
        if task != "number":
            values["objective.labels"] = labels
        elif len(labels) != 1:
            raise config.refusal(f"{key} is 'regression' of {len(labels)} numbers, which no recipe can express")
        else:
            values |= {"objective.center": 0.0, "objective.scale": 1.0}

    def write(self, values: RecipeValues, key: str, available: dict[str, str]) -> RecipeValues:
        """Raises Inexpressible when Transformers would take the labels for another task."""
        task, labels = values["objective.task"], values["objective.labels"]
        if task == "auto":
            raise Inexpressible({"objective.task": "auto, which a labelled table decides"})
        if task == "number":
            labels = ("number",)
            usual = {"objective.center": 0.0, "objective.scale": 1.0} if self.scores == "unbiased" else {}
            available |= {ours: f"{value}, without a bias" for ours, value in usual.items() if values[ours] != value}
        elif not labels:
            raise Inexpressible({"objective.labels": "none, which a labelled table decides"})
        elif task == "class" and len(labels) == 1:
            raise Inexpressible({"objective.labels": "a single one, which Transformers takes for a number"})
        elif len(set(labels)) < len(labels):
            raise Inexpressible({"objective.labels": "two of the same name"})
        return {key: next(kind for kind, one in _TASKS.items() if one == task), **write_labels(labels)}


def write_labels(labels: Sequence[str]) -> RecipeValues:
    """The keys of labels."""
    return {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }


def read_labels(config: Config) -> list[str]:
    """The labels of a configuration. Raises CheckpointError when labels lack a name of their own."""
    named = config.optional("id2label", dict)
    if named is None:
        n_labels = config.positive("num_labels", int, 2)
        if n_labels > _MOST:
            raise config.refusal(f"num_labels is {n_labels}")
        return [f"LABEL_{i}" for i in range(n_labels)]
    config.expect("num_labels", len(named))
    by_id = {str(key): label for key, label in named.items()}
    labels = [by_id.get(str(i)) for i in range(len(named))]
    names = [label for label in labels if isinstance(label, str)]
    if not names or len(set(names)) != len(named):
        raise config.refusal("id2label does not give each class a name of its own")
    return names
