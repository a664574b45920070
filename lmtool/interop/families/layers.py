"""What families share both ways: sizes, nonlinearities, positions, kinds of layers, and the modules of weights.

Rotary positions are `rope_parameters` in Transformers 5, `rope_theta` and `rope_scaling` before it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from lmtool.interop.families.config import Config, Obstacles
from lmtool.interop.families.layouts import SAME, Joined, Layout, Weight
from lmtool.recipe.spec.position import LearnedPosition, RelativePosition, RotaryPosition, SinusoidalPosition
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

P = TypeVar("P", LearnedPosition, RelativePosition, RotaryPosition, SinusoidalPosition)


def size_keys(n_layers: str, d_model: str, n_heads: str, context: str, d_ff: str | None = None) -> dict[str, str]:
    """Their keys by ours."""
    keys = {"vocab_size": "vocab_size", "n_layers": n_layers, "d_model": d_model, "n_heads": n_heads}
    return {**keys, **({} if d_ff is None else {"d_ff": d_ff}), "context": context}


USUAL_SIZES = size_keys(
    "num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "intermediate_size"
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

_GATED = {"gelu": "geglu-exact", "gelu-tanh": "geglu", "silu": "swiglu"}
"""Activations of recipes by the nonlinearity of their gate."""

GATES = {theirs: _GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in _GATED}
"""Transformers' names of the nonlinearities of gates, the usual one first, and the activations of recipes."""

Modules = Mapping[str, str]
"""Embeddings, linear layers and norms of ours, and those of theirs that each is made of, parted by spaces."""

QKV = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
"""Queries, keys and values by their most common names."""


def attention(number: int, norm: str, qkv: str, out: str) -> Modules:
    """The modules of self-attention as sublayer `number` of a layer."""
    return {f"{number}.norm": norm, f"{number}.mixer.qkv": qkv, f"{number}.mixer.out": out}


def cross_attention(number: int, norm: str, q: str, kv: str, out: str) -> Modules:
    """The same of attention to the source."""
    return {f"{number}.norm": norm, f"{number}.mixer.q": q, f"{number}.mixer.kv": kv, f"{number}.mixer.out": out}


def feed_forward(number: int, norm: str, up: str, out: str) -> Modules:
    """The same of a feed-forward network."""
    return {f"{number}.norm": norm, f"{number}.mixer.up": up, f"{number}.mixer.out": out}


def read_activation(
    config: Config, key: str, default: str | None = None, choices: Mapping[str, str] = ACTIVATIONS
) -> str:
    """The recipe's activation. Raises CheckpointError for one that recipes do not have."""
    config.expect(key, *choices)
    return choices[config.take(key, str, default)]


def write_activation(
    model: Transformer, family: str, obstacles: Obstacles, choices: Mapping[str, str] = ACTIVATIONS
) -> str:
    """Transformers' name of the activation; of the first of these, and an obstacle, when it is another one."""
    for theirs, ours in choices.items():
        if ours == model.activation:
            return theirs
    listed = ", ".join(dict.fromkeys(choices.values()))
    obstacles["model.activation"] = f"{model.activation}, where {family} has {listed}"
    return next(iter(choices))


def is_gated(model: Transformer) -> bool:
    """Whether the activation of the feed-forward networks has a gate."""
    return model.activation in GATES.values()


def position_of(model: Transformer, family: str, obstacles: Obstacles, nearest: P) -> P:
    """The position of a model; `nearest`, and an obstacle, when it is of another kind."""
    if not isinstance(model.position, type(nearest)):
        obstacles["model.position.kind"] = f"{model.position.kind}, where {family} has {nearest.kind}"
        return nearest
    return model.position


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


def read_rotary(config: Config, context: int, theta: float, share: float = 1.0) -> dict[str, Any]:
    """`position` of a recipe. Raises CheckpointError for a scaling that no recipe expresses.

    context: that of the model. theta, share: base and rotated share of a head, as given beside the parameters, which
    may hold other ones.
    """
    # Transformers takes the older name when both are there
    name = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    config.ignore("rope_scaling", "rope_parameters")
    values = config.section(name)
    return {
        "kind": "rotary",
        "theta": values.take("rope_theta", float, theta),
        "share": values.take("partial_rotary_factor", float, share),
        "scaling": _scaling(values, context),
    }


def _scaling(values: Config, context: int) -> dict[str, Any]:
    name = "rope_type" if "rope_type" in values.values else "type"
    values.ignore("type")
    scaling: dict[str, Any] = {"kind": values.take(name, str, "default")}
    match scaling["kind"]:
        case "default":
            return {"kind": "none"}
        case "linear":
            keys: tuple[str, ...] = ("factor",)
        case "llama3":
            keys = ("factor", "low_frequency", "high_frequency")
        case "yarn":
            values.expect("mscale")
            values.expect("mscale_all_dim")
            values.expect("truncate", True)
            keys = ("factor", "slow_turns", "fast_turns")
            scaling["attention_factor"] = values.optional("attention_factor", float)
        case _:
            raise values.inexpressible(name)
    defaults = {"slow_turns": 1.0, "fast_turns": 32.0}
    scaling |= {key: values.take(_SCALING[key], float, defaults.get(key)) for key in keys}
    if scaling["kind"] != "linear":
        scaling["original_context"] = values.take(_SCALING["original_context"], int, context)
    return scaling


def write_rotary(model: Transformer, family: str, obstacles: Obstacles) -> tuple[RotaryPosition, dict[str, Any]]:
    """The rotary position of a model, see `position_of`, and the keys of both its forms, without the rotated share."""
    position = position_of(model, family, obstacles, RotaryPosition(kind="rotary"))
    kind = position.scaling.kind
    scaling = {_SCALING[key]: value for key, value in position.scaling if key in _SCALING and value is not None}
    scaling = {"rope_type": "default" if kind == "none" else kind, **scaling}
    keys = {"rope_theta": position.theta, "rope_parameters": {"rope_theta": position.theta, **scaling}}
    return position, keys if kind == "none" else {**keys, "rope_scaling": scaling}


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


def of_stack(model: Transformer, stack: str, layer: str, parts: Modules) -> dict[str, str]:
    """The modules of all layers of a stack.

    layer: their name of a layer, with {} for its number. parts: of a layer, ours named with the number of the sublayer.
    """
    per_layer = 1 + max(int(part.partition(".")[0]) for part in parts)
    modules = {}
    for number in range(model.n_layers):
        for part, theirs in parts.items():
            sublayer, _, name = part.partition(".")
            ours = f"{stack}.sublayers.{per_layer * number + int(sublayer)}.{name}"
            modules[ours] = " ".join(f"{layer.format(number)}.{one}" for one in theirs.split())
    return modules


def parameters_of(model: Transformer, modules: Modules) -> Iterator[Weight]:
    """The weights of modules, and their biases if they have any."""
    for ours, theirs in modules.items():
        names = theirs.split()
        layout = _joined(model, ours, len(names))
        for kind in ("weight", "bias") if _has_bias(model, ours) else ("weight",):
            yield Weight(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in names), layout)


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
