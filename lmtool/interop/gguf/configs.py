"""The configuration of a model in the keys of a GGUF file and in Transformers' config.json, both ways."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.families.config import Config
from lmtool.interop.gguf.architectures import ARCHITECTURES, SIZE_KEYS, Architecture, Sizes, TensorPair
from lmtool.interop.gguf.container import Container
from lmtool.interop.names import AS_DIRECTORY
from lmtool.printable import plain

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies: one for each pair of a head."""

_YARN = {"beta_slow": 1.0, "beta_fast": 32.0}
"""What llama.cpp has for all models with YaRN."""


@dataclass(frozen=True)
class GgufTerms:
    """What a file holds of a model. values: by their keys. computed: tensors that Transformers makes of its config."""

    architecture: str
    values: dict[str, Any]
    pairs: list[TensorPair]
    computed: dict[str, Tensor]


def describe(container: Container) -> tuple[dict[str, Any], list[TensorPair]]:
    """The config.json of the model in a file, and its tensors.

    Raises CheckpointError for an unknown architecture, a key that may change what it computes, and tensors that are
    missing, unknown or of another shape.
    """
    name, tensors = container.values.get("general.architecture"), container.tensors
    architecture = next((one for one in ARCHITECTURES if one.name == name), None)
    where = plain(str(container.path))
    if architecture is None:
        known = ", ".join(one.name for one in ARCHITECTURES)
        raise Config({}, where).refusal(f"architecture {plain(str(name))[:40]} is none of {known}")
    if "token_embd.weight" not in tensors:
        raise container.damage("the tensor token_embd.weight is missing")
    mine = {key: value for key, value in container.values.items() if key.startswith(f"{architecture.name}.")}
    keys = Config(mine, where)
    divisors = container.read(FREQUENCIES).numpy() if FREQUENCIES in tensors else None
    config, sizes = _describe(architecture, keys, tensors["token_embd.weight"].shape[0], divisors)
    keys.check_all_read()
    if sizes.n_layers > len(tensors):
        raise container.damage(f"it has {len(tensors)} tensors for {sizes.n_layers} layers")
    output = "output.weight"
    copied = output in tensors and container.same(output, "token_embd.weight")  # as older converters write tied ones
    tied = output not in tensors or copied
    options = [key for key, kinds in architecture.options.items() if f"blk.0.{kinds[0]}.bias" in tensors]
    pairs = [*architecture.pairs(sizes, tied=tied, options=options)]
    _check_tensors(pairs, {output} if copied else set(), keys, container)
    return {**config, "tie_word_embeddings": tied, **{key: key in options for key in architecture.options}}, pairs


def _describe(
    architecture: Architecture, keys: Config, vocab_size: int, divisors: np.ndarray[Any, Any] | None
) -> tuple[dict[str, Any], Sizes]:
    """What the keys of a file say of a config.json. divisors: the tensor FREQUENCIES, if there is one."""
    name = architecture.name
    sizes = _sizes_of_file(architecture, keys, vocab_size)
    eps, eps_name = architecture.epsilon
    config: dict[str, Any] = {
        "model_type": architecture.model_types[0],
        "vocab_size": vocab_size,
        **{theirs: getattr(sizes, ours) for ours, theirs in architecture.size_names.items()},
        eps_name: keys.take(f"{name}.{eps}", float),
        **{key: values[0] for key, values in architecture.implied.items()},
    }
    more = {"num_key_value_heads": sizes.n_kv_heads, "head_dim": sizes.head_width}
    config |= {key: value for key, value in more.items() if key in architecture.has}
    if "use_parallel_residual" in architecture.has:
        config["use_parallel_residual"] = keys.take(f"{name}.use_parallel_residual", bool)
    if architecture.rope != "none":
        config["rope_parameters"] = _rope_of_file(architecture, sizes, keys, divisors)
    keys.ignore(*(f"{name}.{key}" for key in ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")))
    keys.expect(f"{name}.attention.causal", True)
    keys.expect(f"{name}.expert_count", 0)
    keys.expect(f"{name}.expert_used_count", 0)
    return config, sizes


def _check_tensors(pairs: Sequence[TensorPair], copies: set[str], keys: Config, container: Container) -> None:
    """Raise CheckpointError when a file has not just these tensors."""
    expected = {pair.stored: pair.shape for pair in pairs}
    unknown = sorted(container.tensors.keys() - expected.keys() - copies - {FREQUENCIES})
    if unknown:
        raise keys.refusal(f"it has unknown tensors: {plain(', '.join(unknown))[:120]}")
    for name, shape in expected.items():
        if name not in container.tensors:
            raise container.damage(f"the tensor {name} is missing")
        if container.tensors[name].shape != shape:
            raise container.damage(f"the tensor {name} is of shape {container.tensors[name].shape}, not {shape}")


def _sizes_of_file(architecture: Architecture, keys: Config, vocab_size: int) -> Sizes:
    name = architecture.name

    def size(key: str, default: int | None = None) -> int:
        return keys.positive(f"{name}.{key}", int, default)

    sizes = {ours: size(key) for ours, key in SIZE_KEYS.items()}
    heads = sizes["n_heads"]
    head = size("attention.key_length", max(1, sizes["d_model"] // heads))
    keys.expect(f"{name}.attention.value_length", head)
    if "head_dim" not in architecture.has and head * heads != sizes["d_model"]:
        raise keys.refusal(f"{heads} heads of width {head} do not make up a width of {sizes['d_model']}")
    kv_heads = size("attention.head_count_kv", heads)
    if "num_key_value_heads" not in architecture.has and kv_heads != heads:
        raise keys.refusal(f"{name}.attention.head_count_kv is {kv_heads} for {heads} heads")
    if heads % kv_heads:
        raise keys.refusal(f"{heads} heads cannot share {kv_heads} heads of keys and values")
    rotary = head
    if architecture.rope != "none":
        rotary = size("rope.dimension_count", head)
        if rotary > head or rotary % 2 or (rotary < head and architecture.rope == "full"):
            raise keys.refusal(f"{name}.rope.dimension_count is {rotary} for heads of width {head}")
    return Sizes(**sizes, n_kv_heads=kv_heads, head_width=head, rotary=rotary, vocab_size=vocab_size)


def _rope_of_file(
    architecture: Architecture, sizes: Sizes, keys: Config, divisors: np.ndarray[Any, Any] | None
) -> dict[str, object]:
    """`rope_parameters` of Transformers. The defaults are llama.cpp's."""
    name = f"{architecture.name}.rope"
    base = keys.take(f"{name}.freq_base", float, 10000.0)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": base}
    if architecture.rope == "partial":
        rope["partial_rotary_factor"] = sizes.rotary / sizes.head_width
    kind = keys.take(f"{name}.scaling.type", str, "linear")
    factor = keys.optional(f"{name}.scaling.factor", float) or keys.optional(f"{name}.scale_linear", float)
    original = keys.take(f"{name}.scaling.original_context_length", int, sizes.context)
    if not base > 0 or not (factor is None or 0 < factor < math.inf):
        raise keys.refusal(f"{name}.freq_base is {base} and {name}.scaling.factor {factor}")
    match kind:
        case "none":
            pass
        case "linear":
            if factor not in (None, 1):
                rope |= {"rope_type": "linear", "factor": factor}
        case "yarn" if factor is not None:
            rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        case _:
            raise keys.refusal(f"{name}.scaling.type is {plain(kind)[:40]}")
    if divisors is not None:
        scaling = _llama3_of(divisors, base, sizes.rotary)
        if scaling is None or rope["rope_type"] != "default":
            raise keys.refusal(f"{FREQUENCIES} is not a scaling of the kind of Llama 3")
        rope |= scaling
    return rope


def _llama3_divisors(
    base: float, rotary: int, factor: float, low: float, high: float, original: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What Llama 3 divides its rotary frequencies by: 1 for waves shorter than original/high, `factor` for waves longer
    than original/low, in between a linear mixture of the frequencies (Llama 3.1, 2024). One for each pair of a head.
    """
    turns = original * base ** -(np.arange(0, rotary, 2) / rotary) / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - kept) / factor + kept)


def _llama3_of(divisors: np.ndarray[Any, Any], base: float, rotary: int) -> dict[str, object] | None:
    """The parameters that give these divisors, if some published ones do."""
    if divisors.shape != (rotary // 2,) or not np.isfinite(divisors).all() or divisors.min() < 1:
        return None
    factor = float(str(divisors.max()))
    for original in (8192, *(1 << n for n in range(8, 21))):
        expected = _llama3_divisors(base, rotary, factor, 1, 4, original)
        if np.allclose(divisors, expected, rtol=1e-4):
            limits = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
            return {"rope_type": "llama3", "factor": factor, **limits}
    return None


def inexpressible(key: str, what: str) -> UsageError:
    """An error about a key of a config.json or tokenizer.json that no GGUF file has."""
    return UsageError(f"GGUF cannot express this model: {key} is {plain(what)[:160]}", where=key, fix=AS_DIRECTORY)


def express(config: Mapping[str, Any]) -> GgufTerms:
    """The inverse of `describe`, for a config.json that a family publishes.

    What a file would say is described again, and compared: nothing is written as something else. Raises UsageError
    naming all keys that no GGUF file has.
    """
    model_type = config["model_type"]
    architecture = next((one for one in ARCHITECTURES if model_type in one.model_types), None)
    if architecture is None:
        raise inexpressible("model_type", repr(model_type))
    # null is as good as missing, and GPT-2 may omit the width of its feed-forward network
    config = {key: value for key, value in config.items() if value is not None}
    config = {"n_inner": 4 * config[architecture.size_names["d_model"]], **config}
    rope = {key: value for key, value in config.get("rope_parameters", {}).items() if value != _YARN.get(key)}
    sizes = _sizes_of_config(architecture, config, rope.get("partial_rotary_factor", 1.0))
    values: dict[str, Any] = {key: getattr(sizes, ours) for ours, key in SIZE_KEYS.items()}
    eps, eps_name = architecture.epsilon
    values |= {eps: config[eps_name], "vocab_size": sizes.vocab_size}
    if "num_key_value_heads" in architecture.has:
        values["attention.head_count_kv"] = sizes.n_kv_heads
    if "head_dim" in architecture.has:
        values |= {"attention.key_length": sizes.head_width, "attention.value_length": sizes.head_width}
    if "use_parallel_residual" in architecture.has:
        values["use_parallel_residual"] = config["use_parallel_residual"]
    computed = {} if architecture.rope == "none" else _express_rope(values, rope, sizes)
    values = {f"{architecture.name}.{key}": value for key, value in values.items()}
    for key, value in values.items():
        if isinstance(value, int | float) and value >= 1 << 31:
            raise inexpressible(key, str(value))
    again, _ = _describe(architecture, Config(values, ""), sizes.vocab_size, None)
    wanted = {**config, "rope_parameters": rope}
    alike = {key: (value, *architecture.implied.get(key, ())) for key, value in again.items() if key != "model_type"}
    others = [key for key, values in alike.items() if key in wanted and wanted[key] not in values]
    if (config.get("sliding_window") or sizes.context) < sizes.context:
        others.append("sliding_window")
    if others:
        raise inexpressible(", ".join(others), ", ".join(repr(config[key])[:60] for key in others))
    options = [key for key in architecture.options if config.get(key)]
    pairs = [*architecture.pairs(sizes, tied=config["tie_word_embeddings"], options=options)]
    pairs += [TensorPair(key, key, tuple(tensor.shape)) for key, tensor in computed.items()]
    return GgufTerms(architecture.name, values, pairs, computed)


def _sizes_of_config(architecture: Architecture, config: Mapping[str, Any], rotary_share: float) -> Sizes:
    sizes = {ours: config[key] for ours, key in architecture.size_names.items()}
    heads = sizes["n_heads"]
    width = config.get("head_dim", sizes["d_model"] // heads)
    return Sizes(
        **sizes,
        n_kv_heads=config.get("num_key_value_heads", heads),
        head_width=width,
        rotary=int(width * rotary_share),
        vocab_size=config["vocab_size"],
    )


def _express_rope(values: dict[str, Any], rope: dict[str, Any], sizes: Sizes) -> dict[str, Tensor]:
    """Add the keys of the rotary embedding; what keys cannot express is taken out of `rope`, as tensor FREQUENCIES."""
    values |= {"rope.dimension_count": sizes.rotary, "rope.freq_base": rope["rope_theta"]}
    if "partial_rotary_factor" in rope:
        rope["partial_rotary_factor"] = sizes.rotary / sizes.head_width
    match rope["rope_type"]:
        case "linear" if rope["factor"] == 1:
            rope["rope_type"] = "default"
            del rope["factor"]
        case "linear" | "yarn" as kind:
            values |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
            if kind == "yarn":
                values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        case "llama3" if rope["factor"] >= 1:
            factor, low, high = rope.pop("factor"), rope.pop("low_freq_factor"), rope.pop("high_freq_factor")
            original = rope.pop("original_max_position_embeddings")
            rope["rope_type"] = "default"
            divisors = _llama3_divisors(rope["rope_theta"], sizes.rotary, factor, low, high, original)
            return {FREQUENCIES: torch.from_numpy(divisors.astype(np.float32))}
    return {}
