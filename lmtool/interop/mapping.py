"""What families share: their nonlinearities, names of layers, and the proof that an exported model is the same one."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lmtool.errors import CheckpointError
from lmtool.interop.family import SAME, Config, Family, Inexpressible, Joined, Layout, Published, Weight
from lmtool.recipe.spec import (
    AnyObjective,
    Classification,
    Embedding,
    LearnedPosition,
    Prefix,
    RotaryPosition,
    SpanCorruption,
    Transformer,
    WindowPattern,
)

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Transformers' names of nonlinearities, the usual one first, and those of recipes."""
GATED = {"gelu": "geglu-exact", "gelu-tanh": "geglu", "silu": "swiglu"}
"""Activations of recipes that are gated by a nonlinearity."""

UNREAD_BY_HEADS = frozenset(("head_transform", "head_bias", "next_sentence_head", "tie_embeddings", "scale_head"))
"""Keys of a Transformer's own head, which classifiers and text embeddings do not use."""
WITHOUT_EFFECT = frozenset(("kind", "context", "dropout", "ffn_dropout", "init"))
"""Keys of a Transformer that do not change its logits."""

Modules = Mapping[str, tuple[str, ...]]
"""Linear layers and norms of ours, and those of theirs that each is made of."""


def activation(config: Config, key: str, default: str, gated: bool = False) -> str:
    """The recipe's name of the nonlinearity in a key. Raises CheckpointError for one that recipes do not have."""
    known = _gates() if gated else ACTIVATIONS
    config.expect(key, *known)
    return known[config.take(key, str, default)]


def their_activation(model: Transformer, gated: bool = False) -> str:
    """Transformers' name of the nonlinearity. Raises Inexpressible when it is gated, or not, unlike the family's."""
    for theirs, ours in (_gates() if gated else ACTIVATIONS).items():
        if model.activation == ours:
            return theirs
    raise Inexpressible("model.activation", f"{model.activation} is {'not ' if gated else ''}gated")


def _gates() -> dict[str, str]:
    return {theirs: GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in GATED}


def layers(model: Transformer, stack: str, layer: str, parts: Modules) -> dict[str, tuple[str, ...]]:
    """The modules of all layers of a stack.

    layer: their name of a layer, with {} for its number. parts: of a layer, ours named with the number of the sublayer.
    """
    per_layer = 1 + max(int(part.partition(".")[0]) for part in parts)
    found = {}
    for number in range(model.n_layers):
        for part, theirs in parts.items():
            sublayer, _, name = part.partition(".")
            ours = f"{stack}.sublayers.{per_layer * number + int(sublayer)}.{name}"
            found[ours] = tuple(f"{layer.format(number)}.{one}" for one in theirs)
    return found


def affine(model: Transformer, modules: Modules) -> Iterator[Weight]:
    """The weights of linear layers and norms, and their biases if the model has them."""
    head = model.head_width or model.d_model // model.n_heads
    for ours, theirs in modules.items():
        layout: Layout = SAME
        if len(theirs) > 1:
            width = (model.d_ff or 4 * model.d_model) if ours.endswith(".up") else model.n_heads * head
            layout = Joined((width,) * len(theirs))
        for kind in ("weight", "bias") if model.bias else ("weight",):
            yield Weight(f"{ours}.{kind}", tuple(f"{one}.{kind}" for one in theirs), layout)


def confirmed(
    family: Family, published: Published, model: Transformer, objective: AnyObjective, **alike: Any
) -> Published:
    """`published`, if it is described as this recipe again. Raises Inexpressible with the first key that differs.

    Compares all keys that change the logits, so that nothing is exported as something else.
    alike: values of the model's keys by which the family expresses it without a difference.
    """
    names = {name for weight in family.weights(model, objective) for name in weight.theirs}
    labels = {}
    if isinstance(objective, Classification):
        n_scores = 1 if objective.task == "number" else len(objective.labels)
        labels = {"id2label": {str(number): str(number) for number in range(n_scores)}}
    try:
        described = family.describe(Config({**published.config, **labels}, "config.json"), names)
        found = Transformer.model_validate({"kind": "transformer", **described.model})
        head: AnyObjective = TypeAdapter(AnyObjective).validate_python(described.objective)
    except CheckpointError as error:
        raise Inexpressible("model", error.what) from error
    except ValidationError as error:
        raise Inexpressible("model", f"{family.model_type} has no such sizes") from error
    unread = UNREAD_BY_HEADS if isinstance(objective, Classification | Embedding) else frozenset()
    wanted = model.model_copy(update=alike)
    _compare(family, "model", _resolved(wanted, unread), _resolved(found, unread))
    _compare(family, "objective", _head(wanted, objective), _head(found, head))
    return published


def _resolved(model: Transformer, unread: Collection[str]) -> dict[str, Any]:
    """Values of the keys that change the logits, with all defaults filled in."""
    position: dict[str, Any] = {}
    if isinstance(model.position, LearnedPosition):
        position = {"size": model.position.size or model.context + model.position.offset}
    if isinstance(model.position, RotaryPosition) and isinstance(model.pattern, WindowPattern):
        position = {"window_theta": model.position.window_theta or model.position.theta}
    filled = model.model_copy(
        update={
            "head_width": model.head_width or model.d_model // model.n_heads,
            "n_kv_heads": model.n_kv_heads or model.n_heads,
            "d_ff": model.d_ff or 4 * model.d_model,
            "qkv_bias": model.bias if model.qkv_bias is None else model.qkv_bias,
            "position": model.position.model_copy(update=position),
        }
    )
    return filled.model_dump(exclude={*WITHOUT_EFFECT, *unread})


def _head(model: Transformer, objective: AnyObjective) -> dict[str, Any]:
    """What of an objective changes the outputs, with `auto` decided."""
    if not isinstance(objective, Classification):
        return {"kind": "seq2seq" if isinstance(objective, Prefix | SpanCorruption) else objective.kind}
    pool, dense = objective.pool, objective.dense
    encoder = model.shape == "encoder"
    if pool == "auto":
        pool = "first" if encoder else "last"
    if dense == "auto":
        dense = "tanh" if encoder and pool == "first" else "none"
    return {
        "kind": objective.kind,
        "task": objective.task,
        "layers": objective.layers,
        "pool": pool,
        "dense": dense,
        "dense_norm": objective.dense_norm,
        "bias": encoder if objective.bias is None else objective.bias,
    }


def _compare(family: Family, where: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        other = found.get(key)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            _compare(family, f"{where}.{key}", value, other)
            continue
        raise Inexpressible(f"{where}.{key}", f"{_shown(value)}, where {family.model_type} has {_shown(other)}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)
