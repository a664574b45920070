"""Rotary positions in config.json: `rope_parameters` of Transformers 5, `rope_theta` and `rope_scaling` before it."""

from typing import Any

from lmtool.interop.families.config import Config, Inexpressible
from lmtool.recipe.spec.position import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    RotaryPosition,
    RotaryScaling,
    YarnScaling,
)
from lmtool.recipe.spec.transformer import Transformer


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
    match kind := values.take(name, str, "default"):
        case "default":
            return {"kind": "none"}
        case "linear":
            return {"kind": kind, "factor": values.take("factor", float)}
        case "llama3":
            return {
                "kind": kind,
                "factor": values.take("factor", float),
                "original_context": values.take("original_max_position_embeddings", int, context),
                "low_frequency": values.take("low_freq_factor", float),
                "high_frequency": values.take("high_freq_factor", float),
            }
        case "yarn":
            values.expect("mscale")
            values.expect("mscale_all_dim")
            values.expect("truncate", True)
            return {
                "kind": kind,
                "factor": values.take("factor", float),
                "original_context": values.take("original_max_position_embeddings", int, context),
                "slow_turns": values.take("beta_slow", float, 1.0),
                "fast_turns": values.take("beta_fast", float, 32.0),
                "attention_factor": values.optional("attention_factor", float),
            }
    raise values.inexpressible(name)


def write_rotary(model: Transformer, family: str) -> tuple[RotaryPosition, dict[str, Any]]:
    """The rotary position of a model, and the keys of both forms for it, without the rotated share.

    Raises Inexpressible when its position is another one.
    """
    position = model.position
    if not isinstance(position, RotaryPosition):
        why = f"{position.kind}, where {family} has rotary"
        raise Inexpressible("model.position.kind", why, {"position": RotaryPosition(kind="rotary")})
    scaling = _written(position.scaling)
    keys: dict[str, Any] = {"rope_theta": position.theta}
    keys["rope_parameters"] = {"rope_theta": position.theta, **scaling}
    if scaling["rope_type"] != "default":
        keys["rope_scaling"] = scaling
    return position, keys


def _written(scaling: RotaryScaling) -> dict[str, Any]:
    match scaling:
        case NoScaling():
            return {"rope_type": "default"}
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_context,
                "low_freq_factor": scaling.low_frequency,
                "high_freq_factor": scaling.high_frequency,
            }
        case YarnScaling():
            written = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_context,
                "beta_slow": scaling.slow_turns,
                "beta_fast": scaling.fast_turns,
            }
            if scaling.attention_factor is not None:
                written["attention_factor"] = scaling.attention_factor
            return written
