"""The configuration of a model in the keys of a GGUF file and in Transformers' config.json, both ways."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.families import layers
from lmtool.interop.families.config import HARMLESS, Config
from lmtool.interop.gguf.architectures import ARCHITECTURES, SIZE_KEYS, Architecture, Sizes, TensorPair
from lmtool.interop.gguf.container import Container
from lmtool.printable import plain

T = TypeVar("T")

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies: one for each pair of a head."""


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
    name = container.values.get("general.architecture")
    architecture = next((one for one in ARCHITECTURES if one.name == name), None)
    where = plain(str(container.path))
    if architecture is None:
        known = ", ".join(one.name for one in ARCHITECTURES)
        raise Config({}, where).refusal(f"architecture {plain(str(name))[:40]} is none of {known}")
    mine = {key: value for key, value in container.values.items() if key.startswith(f"{architecture.name}.")}
    return _describe(architecture, Config(mine, where), container)


def _describe(
    architecture: Architecture, keys: Config, container: Container
) -> tuple[dict[str, Any], list[TensorPair]]:
    name, tensors = architecture.name, container.tensors
    sizes = _sizes_of_file(architecture, keys, container)
    eps, eps_name = architecture.epsilon
    config: dict[str, Any] = {
        "model_type": architecture.model_types[0],
        "vocab_size": sizes.vocab_size,
        **{theirs: getattr(sizes, ours) for ours, theirs in architecture.size_names.items()},
        eps_name: keys.take(f"{name}.{eps}", float),
        **{key: values[0] for key, values in architecture.implied.items()},
    }
    more = {"num_key_value_heads": sizes.n_kv_heads, "head_dim": sizes.head_width}
    config |= {key: value for key, value in more.items() if key in architecture.has}
    if "use_parallel_residual" in architecture.has:
        config["use_parallel_residual"] = keys.take(f"{name}.use_parallel_residual", bool)
    if architecture.rope != "none":
        config["rope_parameters"] = _rope_of_file(architecture, sizes, keys, container)
    keys.ignore(*(f"{name}.{key}" for key in ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")))
    keys.expect(f"{name}.attention.causal", True)
    keys.expect(f"{name}.expert_count", 0)
    keys.expect(f"{name}.expert_used_count", 0)
    keys.check_all_read()

    output = "output.weight"
    copied = output in tensors and container.same(output, "token_embd.weight")  # as older converters write tied ones
    config["tie_word_embeddings"] = tied = output not in tensors or copied
    options = [key for key, kinds in architecture.options.items() if f"blk.0.{kinds[0]}.bias" in tensors]
    config |= {key: key in options for key in architecture.options}
    pairs = [*architecture.pairs(sizes, tied=tied, options=options)]
    _check_tensors(pairs, {output} if copied else set(), keys, container)
    return config, pairs


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


def _sizes_of_file(architecture: Architecture, keys: Config, container: Container) -> Sizes:
    name = architecture.name

    def size(key: str, default: int | None = None) -> int:
        value = keys.take(f"{name}.{key}", int, default)
        if not 0 < value < 1 << 31:
            raise keys.refusal(f"{name}.{key} is {value}")
        return value

    sizes = {ours: size(key) for ours, key in SIZE_KEYS.items()}
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None:
        raise container.damage("the tensor token_embd.weight is missing")
    if sizes["n_layers"] > len(container.tensors):
        raise container.damage(f"it has {len(container.tensors)} tensors for {sizes['n_layers']} layers")
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
    return Sizes(**sizes, n_kv_heads=kv_heads, head_width=head, rotary=rotary, vocab_size=embedding.shape[0])


def _rope_of_file(architecture: Architecture, sizes: Sizes, keys: Config, container: Container) -> dict[str, object]:
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
    if FREQUENCIES in container.tensors:
        divisors = container.read(FREQUENCIES).numpy()
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


class _PublishedKeys:
    """The values of a config.json that is to be expressed. Remembers which ones were; null is as good as missing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._read: set[str] = set()
        self._obstacles: list[str] = []

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key. Raises UsageError when it is of another type, missing without a default, or not
        below 2**31.
        """
        self._read.add(name)
        value: Any = self._values.get(name, default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, int | float) and not abs(value) < 1 << 31):
            raise self.refusal(name)
        taken: T = value
        return taken

    def expect(self, name: str, *allowed: object) -> None:
        """Read a key that must be missing or one of these values, else the next error names it too."""
        self._read.add(name)
        if name in self._values and self._values[name] not in allowed:
            self._obstacles.append(name)

    def size(self, name: str, default: int | None = None) -> int:
        """The value of a key that is a positive number. Raises UsageError."""
        value = self.take(name, int, default)
        if value < 1:
            raise self.refusal(name)
        return value

    def ignore(self, *names: str) -> None:
        """Keys that repeat what others say."""
        self._read.update(names)

    def has(self, name: str) -> bool:
        return name in self._values

    def check_all_read(self) -> None:
        """Raise UsageError for keys of other values than expected, and those not read and not known to be harmless."""
        unread = [key for key in self._values if key not in self._read and key not in HARMLESS and key not in _UNUSED]
        if self._obstacles or unread:
            raise self.refusal(*unread)

    def refusal(self, *names: str) -> UsageError:
        """An error about these keys, and those of other values than expected."""
        told = dict.fromkeys((*self._obstacles, *names))
        values = {name: repr(self._values[name])[:60] if name in self._values else "missing" for name in told}
        return inexpressible(", ".join(values), ", ".join(values.values()))


_UNUSED = frozenset(
    (
        *("attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
        *("max_window_layers", "n_ctx", "reorder_and_upcast_attn", "is_decoder", "is_encoder_decoder"),
        *("cross_attention_hidden_size", "add_bos_token", "mlp_dropout"),
    )
)
"""Keys of these architectures' config.json that do not change the logits."""


def inexpressible(key: str, what: str) -> UsageError:
    """An error about a key of a config.json or tokenizer.json that no GGUF file has."""
    return UsageError(
        f"GGUF cannot express this model: {key} is {plain(what)[:160]}",
        where=key,
        fix="export it as a directory, by a name that does not end in .gguf",
    )


def express(config: Mapping[str, Any]) -> GgufTerms:
    """The inverse of `describe`. Raises UsageError naming a key that no GGUF file has."""
    keys = _PublishedKeys(config)
    model_type = keys.take("model_type", str)
    architecture = next((one for one in ARCHITECTURES if model_type in one.model_types), None)
    if architecture is None:
        raise keys.refusal("model_type")
    name = architecture.name
    for key, allowed in architecture.implied.items():
        keys.expect(key, *allowed)
    rope, rotary_share = _rope_of_config(keys)
    sizes = _sizes_of_config(architecture, keys, rotary_share)
    window = keys.size("sliding_window", sizes.context)
    # Mistral's window is in use when it is given; Qwen's when another key says so too.
    if keys.take("use_sliding_window", bool, model_type == "mistral") and window < sizes.context:
        raise keys.refusal("sliding_window")
    keys.expect("layer_types", [layers.FULL] * sizes.n_layers)

    values: dict[str, Any] = {key: getattr(sizes, ours) for ours, key in SIZE_KEYS.items()}
    eps, eps_name = architecture.epsilon
    values |= {eps: keys.take(eps_name, float), "vocab_size": sizes.vocab_size}
    if "num_key_value_heads" in architecture.has:
        values["attention.head_count_kv"] = sizes.n_kv_heads
    if "head_dim" in architecture.has:
        values |= {"attention.key_length": sizes.head_width, "attention.value_length": sizes.head_width}
    if "use_parallel_residual" in architecture.has:
        values["use_parallel_residual"] = keys.take("use_parallel_residual", bool, True)
    computed = {} if architecture.rope == "none" else _express_rope(values, rope, sizes)
    tied = keys.take("tie_word_embeddings", bool, architecture.family.defaults.get("tie_word_embeddings", True))
    options = [key for key in architecture.options if keys.take(key, bool, False)]
    keys.check_all_read()
    pairs = [*architecture.pairs(sizes, tied=tied, options=options)]
    pairs += [TensorPair(key, key, tuple(tensor.shape)) for key, tensor in computed.items()]
    return GgufTerms(name, {f"{name}.{key}": value for key, value in values.items()}, pairs, computed)


def _sizes_of_config(architecture: Architecture, keys: _PublishedKeys, rotary_share: float) -> Sizes:
    names = architecture.size_names
    d = keys.size(names["d_model"])
    defaults = {"n_inner": 4 * d}
    sizes = {ours: keys.size(key, defaults.get(key)) for ours, key in names.items()}
    heads = sizes["n_heads"]
    if d % heads and not keys.has("head_dim"):
        raise keys.refusal(names["n_heads"])
    head, kv_heads = d // heads, heads
    if "head_dim" in architecture.has:
        head = keys.size("head_dim", head)
    else:
        keys.expect("head_dim", head)
    if "num_key_value_heads" in architecture.has:
        kv_heads = keys.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise keys.refusal("num_key_value_heads")
    rotary = int(head * rotary_share)
    if architecture.rope != "none" and (not 0 < rotary <= head or rotary % 2):
        raise keys.refusal("partial_rotary_factor")
    if architecture.rope == "full" and rotary < head:
        raise keys.refusal("partial_rotary_factor")
    vocab_size = keys.size("vocab_size")
    return Sizes(**sizes, n_kv_heads=kv_heads, head_width=head, rotary=rotary, vocab_size=vocab_size)


def _rope_of_config(keys: _PublishedKeys) -> tuple[_PublishedKeys, float]:
    """The rotary parameters, and the share of a head that is rotated.

    Older files have them in several keys, which newer ones may repeat.
    """
    if keys.has("rope_parameters"):
        rope = dict(keys.take("rope_parameters", dict))
        keys.ignore("rope_scaling", "rope_theta", "rotary_emb_base", "rotary_pct")
    else:
        rope = dict(keys.take("rope_scaling", dict, {}))
        rope["rope_theta"] = keys.take("rope_theta", float, keys.take("rotary_emb_base", float, 10000.0))
        rope["partial_rotary_factor"] = keys.take("rotary_pct", float, 1.0)
    inner = _PublishedKeys(rope)
    return inner, inner.take("partial_rotary_factor", float, 1.0)


def _express_rope(values: dict[str, Any], rope: _PublishedKeys, sizes: Sizes) -> dict[str, Tensor]:
    """Add the keys of the rotary embedding; returns the tensor FREQUENCIES when keys cannot express it."""
    base = rope.take("rope_theta", float, 10000.0)
    kind = rope.take("rope_type", str, rope.take("type", str, "default"))
    values |= {"rope.dimension_count": sizes.rotary, "rope.freq_base": base}
    computed = {}
    match kind:
        case "default":
            pass
        case "linear":
            values |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.take("factor", float)}
        case "yarn":
            rope.expect("beta_fast", 32)
            rope.expect("beta_slow", 1)
            rope.expect("truncate", True)
            original = rope.size("original_max_position_embeddings", sizes.context)
            values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope.take("factor", float)}
            values["rope.scaling.original_context_length"] = original
        case "llama3":
            low, high = rope.take("low_freq_factor", float), rope.take("high_freq_factor", float)
            factor, original = rope.take("factor", float), rope.size("original_max_position_embeddings")
            if factor < 1 or low >= high:
                raise rope.refusal("factor" if factor < 1 else "high_freq_factor")
            divisors = _llama3_divisors(base, sizes.rotary, factor, low, high, original)
            computed[FREQUENCIES] = torch.from_numpy(divisors.astype(np.float32))
        case _:
            raise rope.refusal("rope_type")
    rope.check_all_read()
    return computed
