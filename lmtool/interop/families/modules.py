"""What families share in both directions: nonlinearities, kinds of layers, and the modules that weights belong to."""

from collections.abc import Iterator, Mapping

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.layouts import SAME, Joined, Layout, Weight
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

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

_GATED = {"gelu": "geglu-exact", "gelu-tanh": "geglu", "silu": "swiglu"}
"""Activations of recipes by the nonlinearity of their gate."""

GATES = {theirs: _GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in _GATED}
"""Transformers' names of the nonlinearities of gates, the usual one first, and the activations of recipes."""

Modules = Mapping[str, tuple[str, ...]]
"""Embeddings, linear layers and norms of ours, and those of theirs that each is made of."""


def read_activation(
    config: Config, key: str, default: str | None = None, choices: Mapping[str, str] = ACTIVATIONS
) -> str:
    """The recipe's activation. Raises CheckpointError for one that recipes do not have."""
    config.expect(key, *choices)
    return choices[config.take(key, str, default)]


def write_activation(model: Transformer, family: str, choices: Mapping[str, str] = ACTIVATIONS) -> str:
    """Transformers' name of the activation. Raises Inexpressible when it is none of these."""
    for theirs, ours in choices.items():
        if ours == model.activation:
            return theirs
    listed = ", ".join(dict.fromkeys(choices.values()))
    update = {"activation": next(iter(choices.values()))}
    raise Inexpressible("model.activation", f"{model.activation}, where {family} has {listed}", update)


def is_gated(model: Transformer) -> bool:
    """Whether the activation of the feed-forward networks has a gate."""
    return model.activation in GATES.values()


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


def write_layer_types(model: Transformer) -> list[str]:
    """The kind of attention of each layer."""
    full = model.pattern.full_layers if isinstance(model.pattern, WindowPattern) else range(model.n_layers)
    return [FULL if i in full else SLIDING for i in range(model.n_layers)]


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


def parameters_of(model: Transformer, modules: Modules) -> Iterator[Weight]:
    """The weights of modules, and their biases if they have any."""
    for ours, theirs in modules.items():
        layout = _joined(model, ours, len(theirs))
        for kind in ("weight", "bias") if _has_bias(model, ours) else ("weight",):
            yield Weight(f"{ours}.{kind}", tuple(f"{one}.{kind}" for one in theirs), layout)


def _joined(model: Transformer, ours: str, n: int) -> Layout:
    """How a module of ours is made of n of theirs."""
    if n == 1:
        return SAME
    if ours.endswith(".up"):
        return Joined((model.inner_width,) * n)
    width = model.head_width or model.d_model // model.n_heads
    queries, keys = width * model.n_heads, width * (model.n_kv_heads or model.n_heads)
    return Joined((queries, keys, keys)[-n:])


def _has_bias(model: Transformer, ours: str) -> bool:
    match ours.rpartition(".")[2]:
        case "tokens" | "segments" | "table" | "q_norm" | "k_norm":
            return False
        case "norm" | "dense_norm":
            return model.bias and model.norm.kind == "layer"
        case "qkv" | "q" | "kv":
            return model.bias if model.qkv_bias is None else model.qkv_bias
    return model.bias
