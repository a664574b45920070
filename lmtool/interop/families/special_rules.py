"""Rules of single families, and of GGUF files."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.rules import (
    ACTIVATION_CHOICES,
    FULL,
    SLIDING,
    ConfigValues,
    KeyRule,
    MappedValueRule,
    RecipeValues,
    layer_types,
    read_full_attention_layers_if_set,
    set_attention_windows_,
)


class QwenWindowsRule(KeyRule):
    """Windows in the layers from the one that `max_window_layers` counts on, or in those that `layer_types` names."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        size, first = config.read_optional("sliding_window", int), config.read("max_window_layers", int, 28)
        size = size if config.read(key, bool, False) else None
        n_layers = values["n_layers"]
        full = read_full_attention_layers_if_set(config, n_layers)
        if full is None:
            full = list(range(n_layers if size is None else min(max(first, 0), n_layers)))
        elif size is None and len(full) < n_layers:
            raise config.import_error("layer_types has sliding_attention without a sliding_window")
        set_attention_windows_(values, size, full)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        kinds, has_windows = layer_types(values), values["pattern.kind"] == "window"
        size = values["pattern.size"] if has_windows else None
        # before layer_types, the first of these layers with a window
        first = [*kinds, SLIDING].index(SLIDING)
        return {key: has_windows, "sliding_window": size, "max_window_layers": first, "layer_types": kinds}


class ModernBertWindowsRule(KeyRule):
    """Windows on both sides of a position, in the layers that are not full (ModernBERT)."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        every = config.read_positive("global_attn_every_n_layers", int, 3)
        window = config.read("local_attention", int, 128)
        full = read_full_attention_layers_if_set(config, values["n_layers"])
        if window < 2:
            raise config.import_error(f"local_attention is {window}, less than a neighbour on each side")
        set_attention_windows_(
            values, window // 2 + 1, [*range(0, values["n_layers"], every)] if full is None else full
        )

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        window = 2 * max(1, values["pattern.size"] - 1) if values["pattern.kind"] == "window" else 128
        return {key: layer_types(values), "local_attention": window}


class ModernBertRotaryRule(KeyRule):
    """Bases of the wavelengths in layers with full attention and in windowed ones (ModernBERT)."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        wide = config.read_positive("global_rope_theta", float, 160_000.0)
        # null in old files for that of the other layers
        narrow = wide if config.values.get("local_rope_theta", 0) is None else 10_000.0
        narrow = config.read_positive("local_rope_theta", float, narrow)
        config.check_value_if_set("rope_scaling")
        scaled, thetas = config.read_section(key), []
        scaled.check_value_if_set(
            "rope_type", "default"
        )  # those of both kinds, as Transformers 5.0 to 5.12 write them too
        scaled.check_value_if_set("rope_theta")
        for kind, theta in ((FULL, wide), (SLIDING, narrow)):
            nested = scaled.read_section(kind)
            nested.check_value_if_set("rope_type", "default")
            thetas.append(nested.read_positive("rope_theta", float, theta))
        has_windows = values["pattern.kind"] == "window"
        has_both = has_windows and bool(values["pattern.full_layers"])
        values["position.theta"] = thetas[has_windows and not has_both]
        values["position.window_theta"] = thetas[1] if has_both else None

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        wide = values["position.theta"]
        thetas = {FULL: wide, SLIDING: values["position.window_theta"] or wide}
        return {key: {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}}


class T5ActivationRule(KeyRule):
    """`dense_act_fn` and `is_gated_act`; older files have only `feed_forward_proj`, from which both follow."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        kind = config.read(key, str)
        gate, _, name = kind.rpartition("-")
        if gate not in ("", "gated"):
            config.check_value_if_set(key)
        choice = MappedValueRule("gates" if config.read("is_gated_act", bool, gate == "gated") else "activations")
        if config.read_optional("dense_act_fn", str) is not None:
            choice.read_key(config, "dense_act_fn", values)
        else:
            # so called by its authors
            name = "gelu_new" if kind == "gated-gelu" else name
            choice.read_key(StrictConfigReader({key: name}, config.where), key, values)

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        gated = values["activation"] in ACTIVATION_CHOICES["gates"].values()
        (name,) = MappedValueRule("gates" if gated else "activations").write_key(values, key, unsupported).values()
        return {key: f"gated-{name}" if gated else name, "dense_act_fn": name, "is_gated_act": gated}


class T5OutputTyingAndScaleRule(KeyRule):
    """Whether the output matrix is the embedding, and its scale. Old files of untied models have no scale."""

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        tied, scaled = config.read(key, bool), config.read_optional("scale_decoder_outputs", bool)
        untied = "lm_head.weight" in config.tensor_names
        if scaled is None and not tied and not untied:
            raise config.import_error(f"{key} is False, but there is no lm_head.weight")
        values["tie_embeddings"] = tied if scaled is None else not untied
        values["scale_head"] = tied if scaled is None else scaled

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        return {key: values["tie_embeddings"], "scale_decoder_outputs": values["scale_head"]}


@dataclass(frozen=True)
class GgufRopeConfigRule(KeyRule):
    """Rotary positions of GGUF files: `rope.*`, with the defaults of llama.cpp.

    The key is a tensor, the divisors of the frequencies of Llama 3. can_be_partial: a share of a head may be rotated.
    """

    can_be_partial: bool = False

    def read_key(self, config: StrictConfigReader, key: str, values: RecipeValues) -> None:
        width = values.get("head_width") or values["d_model"] // values["n_heads"]
        rotary = config.read_positive("rope.dimension_count", int, width)
        if rotary > width or rotary % 2 or (rotary < width and not self.can_be_partial):
            raise config.inexpressible_value_error("rope.dimension_count")
        base = config.read_positive("rope.freq_base", float, 10_000.0)
        kind = config.read("rope.scaling.type", str, "linear")
        name = "rope.scaling.factor" if config.values.get("rope.scaling.factor") else "rope.scale_linear"
        factor = config.read_positive(name, float, 1.0)
        original = config.read("rope.scaling.original_context_length", int, values["context"])
        config.ignore_keys("rope.scaling.factor", "rope.scale_linear")
        scaling: RecipeValues = {"kind": "none"}
        if kind == "yarn" and name in config.values:
            scaling = {"kind": kind, "factor": factor, "original_context": original}
        elif kind == "linear" and factor != 1:
            scaling = {"kind": kind, "factor": factor}
        elif kind not in ("none", "linear"):
            raise config.inexpressible_value_error("rope.scaling.type")
        if (divisors := config.read_optional(key, np.ndarray)) is not None:
            found = _find_llama3_scaling(divisors, base, rotary)
            if found is None or scaling["kind"] != "none":
                raise config.import_error(f"{key} is not a scaling of the kind of Llama 3")
            scaling = found
        values |= {"position.theta": base, "position.share": rotary / width}
        values |= {f"position.scaling.{name}": value for name, value in scaling.items()}

    def write_key(self, values: RecipeValues, key: str, unsupported: dict[str, str]) -> ConfigValues:
        rotary, base = int(values["head_width"] * values["position.share"]), values["position.theta"]
        keys: ConfigValues = {"rope.dimension_count": rotary, "rope.freq_base": base}
        if rotary < values["head_width"] and not self.can_be_partial:
            unsupported["position.share"] = "1.0"
        kind, factor = values["position.scaling.kind"], values.get("position.scaling.factor", 1.0)
        if kind == "none":
            return keys
        original: int = values.get("position.scaling.original_context") or values["context"]
        if kind == "llama3":
            low, high = values["position.scaling.low_frequency"], values["position.scaling.high_frequency"]
            if factor < 1 or (low, high) != (1, 4):
                unsupported |= {"position.scaling.factor": "at least 1, of frequencies 1 and 4"}
            return {**keys, key: _llama3_divisors(base, rotary, factor, low, high, original).astype(np.float32)}
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
        return {**keys, **({"rope.scaling.original_context_length": original} if kind == "yarn" else {})}


def _llama3_divisors(
    base: float,
    rotary_width: int,
    factor: float,
    low_frequency: float,
    high_frequency: float,
    original_context: float,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The divisors of the rotary frequencies of Llama 3 (2024), one for each pair of components of a head.

    1 for waves shorter than original_context / high_frequency, `factor` for waves longer than original_context /
    low_frequency, in between a linear mixture of the frequencies.
    """
    turns = original_context * base ** -(np.arange(0, rotary_width, 2) / rotary_width) / (2 * math.pi)
    kept = np.clip((turns - low_frequency) / (high_frequency - low_frequency), 0, 1)
    return 1 / ((1 - kept) / factor + kept)


def _find_llama3_scaling(divisors: np.ndarray[Any, Any], base: float, rotary_width: int) -> RecipeValues | None:
    """Finds the published scaling that has these divisors; None if there is none."""
    if divisors.shape != (rotary_width // 2,) or not np.isfinite(divisors).all() or divisors.min() < 1:
        return None
    factor = float(str(divisors.max()))
    for original in (8192, *(1 << n for n in range(5, 21))):
        if np.allclose(divisors, _llama3_divisors(base, rotary_width, factor, 1, 4, original), rtol=1e-4):
            limits = {"low_frequency": 1.0, "high_frequency": 4.0, "original_context": original}
            return {"kind": "llama3", "factor": factor, **limits}
    return None
