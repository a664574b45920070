"""How large a recipe's model is, by arithmetic alone, so that one that cannot fit is refused before it is allocated."""

import os
from collections.abc import Mapping
from pathlib import Path

from lmtool.errors import RecipeError
from lmtool.recipe.spec import Adam, AdamW, LearnedPosition, Muon, Recipe, Sgd, Transformer

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def parameter_count(model: Transformer, vocab_size: int) -> int:
    """The trained numbers of a model.

    vocab_size: of the tokenizer; `model.vocab_size` goes before it.
    """
    return sum(_parameters(model, vocab_size).values())


def training_bytes(recipe: Recipe, vocab_size: int | None = None) -> int:
    """A low estimate of the memory that training takes on one device, in bytes.

    float32 weights, their gradients, the optimizer's moments, and the activations of one micro-batch (one sequence for
    `auto`) in 16 bits: 34 d_model bytes for each token and layer (Korthikanti et al. 2022, Reducing Activation
    Recomputation, without the attention matrix, and with the recipe's d_ff).
    vocab_size: of the tokenizer, by default the most that the recipe allows it.
    """
    return sum(_training_bytes(recipe, _vocab_size(recipe) if vocab_size is None else vocab_size).values())


def check_fits(
    recipe: Recipe, memory_bytes: int, vocab_size: int | None = None, origins: Mapping[str, str] | None = None
) -> None:
    """Refuse a recipe whose training cannot fit into a memory.

    memory_bytes: of the device. vocab_size: of the tokenizer, by default the most that the recipe allows it.
    origins: as `load` gives them, to name the line of the key that matters most.
    Raises: RecipeError, which names parameters, bytes needed and bytes there.
    """
    vocab_size = _vocab_size(recipe) if vocab_size is None else vocab_size
    needed = training_bytes(recipe, vocab_size)
    if needed <= memory_bytes:
        return
    key, value = _largest(recipe, vocab_size)
    origin = (origins or {}).get(key, "default")
    place = key if origin == "default" else f"{origin}: {key}"
    count = parameter_count(recipe.model, vocab_size)
    raise RecipeError(
        [
            f"{place}: {value:,} is too large: {count:,} parameters take at least {_readable(needed)} to train, "
            f"and there are {_readable(memory_bytes)}"
        ]
    )


def machine_memory() -> int | None:
    """Bytes of memory that this process may use: the machine's, or its control group's where less; None if unknown."""
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    for file in _CGROUP_LIMITS:
        try:
            sizes.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(sizes)


def _vocab_size(recipe: Recipe) -> int:
    """The most entries the tokenizer may have, or 0 where only the text or a file can say."""
    return getattr(recipe.tokenizer, "vocab_size", 0)


def _parameters(model: Transformer, vocab_size: int) -> dict[str, int]:
    """Parameters by what they are: vectors of the layers, matrices of the layers, and the parts around the layers."""
    width, inner = model.d_model, model.d_ff or 4 * model.d_model
    kv_width = width // model.n_heads * (model.n_kv_heads or model.n_heads)
    into = 2 if model.activation == "swiglu" else 1
    norm = width * (2 if model.bias and model.norm.kind == "layer" else 1)
    biases = (width + 2 * kv_width) + width + into * inner + width if model.bias else 0
    matrices = width * (width + 2 * kv_width) + width * width + into * width * inner + inner * width
    rows = model.vocab_size or vocab_size
    position = model.position
    return {
        "layer vectors": model.n_layers * (biases + 2 * norm),
        "layer matrices": model.n_layers * matrices,
        "embedding": rows * width,
        "head": rows * ((0 if model.tie_embeddings else width) + (1 if model.head_bias else 0)),
        "positions": (position.size or model.context) * width if isinstance(position, LearnedPosition) else 0,
        "final norm": norm if model.norm.place == "pre" else 0,
    }


def _training_bytes(recipe: Recipe, vocab_size: int) -> dict[str, int]:
    model, optimizer = recipe.model, recipe.optimizer
    parameters = _parameters(model, vocab_size)
    match optimizer:
        case Adam() | AdamW():
            moments = matrix_moments = 2
        case Sgd():
            moments = matrix_moments = 1 if optimizer.momentum else 0
        case Muon():
            moments, matrix_moments = 2, 1
    need = {
        name: count * 4 * (2 + (matrix_moments if name == "layer matrices" else moments))
        for name, count in parameters.items()
    }
    sequences = 1 if recipe.training.micro_batch == "auto" else recipe.training.micro_batch
    inner = model.d_ff or 4 * model.d_model
    need["activations"] = sequences * model.context * model.n_layers * (18 * model.d_model + 4 * inner)
    return need


def _largest(recipe: Recipe, vocab_size: int) -> tuple[str, int]:
    """The key, and its value, of what takes the most memory."""
    model = recipe.model
    need = _training_bytes(recipe, vocab_size)
    layers = need["layer vectors"] + need["layer matrices"]
    largest = max((need["embedding"] + need["head"], 0), (need["positions"], 1), (layers, 2), (need["activations"], 3))[
        1
    ]
    if largest == 0:
        return ("model.vocab_size", model.vocab_size) if model.vocab_size else ("tokenizer.vocab_size", vocab_size)
    if largest == 1:
        size = model.position.size if isinstance(model.position, LearnedPosition) else None
        return ("model.position.size", size) if size else ("model.context", model.context)
    if largest == 2:
        return max(("model.n_layers", model.n_layers), ("model.d_model", model.d_model), key=lambda item: item[1])
    micro_batch = recipe.training.micro_batch
    if micro_batch != "auto" and micro_batch > model.context:
        return "training.micro_batch", micro_batch
    return "model.context", model.context


def _readable(count: int) -> str:
    """Bytes with a unit, so that 24 GiB reads as 25.8 GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"
