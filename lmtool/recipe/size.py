"""How large a recipe's model is, by arithmetic alone, so that one that cannot fit is refused before it is allocated."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lmtool.errors import RecipeError
from lmtool.recipe.spec import (
    Adam,
    AdamW,
    CharTokenizer,
    LearnedPosition,
    Muon,
    Recipe,
    Sgd,
    TokenizerFile,
    Transformer,
)


def parameter_count(model: Transformer, vocab_size: int) -> int:
    """The trained numbers of a model whose embedding has `vocab_size` rows."""
    width = model.d_model
    norm = width * (2 if model.bias and model.norm.kind == "layer" else 1)
    biases = width + 2 * _kv_width(model) + _into(model) * _inner(model) + 2 * width if model.bias else 0
    head = vocab_size * ((0 if model.tie_embeddings else width) + (1 if model.head_bias else 0))
    positions = (model.position.size or model.context) * width if isinstance(model.position, LearnedPosition) else 0
    final_norm = norm if model.norm.place == "pre" else 0
    layers = _layer_matrices(model) + model.n_layers * (biases + 2 * norm)
    return vocab_size * width + positions + layers + final_norm + head


def training_bytes(recipe: Recipe, vocab_size: int | None = None) -> int:
    """A low estimate of the memory that training takes on one device, in bytes.

    float32 weights, their gradients, the optimizer's moments, and the activations of one micro-batch (one sequence for
    `auto`) in 16 bits: 34 d_model bytes for each token and layer (Korthikanti et al. 2022, Reducing Activation
    Recomputation in Large Transformer Models), here with the recipe's d_ff and without the attention matrix.
    vocab_size: of the tokenizer, where it is known; else the most that the recipe allows.
    """
    model, optimizer = recipe.model, recipe.optimizer
    matrices = _layer_matrices(model)
    rest = parameter_count(model, _rows(recipe, vocab_size)) - matrices
    match optimizer:
        case Adam() | AdamW():
            moments = 2 * (matrices + rest)
        case Sgd():
            moments = matrices + rest if optimizer.momentum else 0
        case Muon():
            moments = matrices + 2 * rest
    sequences = 1 if recipe.training.micro_batch == "auto" else recipe.training.micro_batch
    activations = sequences * model.context * model.n_layers * (18 * model.d_model + 4 * _inner(model))
    return 4 * (2 * (matrices + rest) + moments) + activations


def check_fits(
    recipe: Recipe, memory_bytes: int, vocab_size: int | None = None, origins: Mapping[str, str] | None = None
) -> None:
    """Refuse a recipe whose training cannot fit into a memory.

    memory_bytes: of the device. vocab_size: of the tokenizer, where it is known; else the most that the recipe allows.
    origins: as `load` gives them, to name the line of the key that matters most.
    Raises: RecipeError, which names parameters, bytes needed and bytes there.
    """
    needed = training_bytes(recipe, vocab_size)
    if needed <= memory_bytes:
        return
    _, key, value = max(_sizes(recipe))
    origin = (origins or {}).get(key, "default")
    place = key if origin == "default" else f"{origin}: {key}"
    count = parameter_count(recipe.model, _rows(recipe, vocab_size))
    raise RecipeError(
        [
            f"{place}: {_number(value)} is too much: {_number(count)} parameters take at least {_bytes(needed)} "
            f"of memory to train, and there is {_bytes(memory_bytes)}"
        ]
    )


def machine_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process may use: the machine's, or its control group's where less; None if unknown.

    root: where the system's files are.
    """
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    for file in _limit_files(root):
        try:
            sizes.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes)


def _limit_files(root: Path) -> Iterator[Path]:
    """The files that may hold a limit: of the process's control group and of all above it, versions 2 and 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "sys/fs/cgroup" / controllers
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        inner = base / group.lstrip("/")
        yield from (folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _inner(model: Transformer) -> int:
    return model.d_ff or 4 * model.d_model


def _into(model: Transformer) -> int:
    """Matrices that lead into the feed-forward network: SwiGLU has one for the gate besides."""
    return 2 if model.activation == "swiglu" else 1


def _kv_width(model: Transformer) -> int:
    return model.d_model // model.n_heads * (model.n_kv_heads or model.n_heads)


def _layer_matrices(model: Transformer) -> int:
    """Entries of the matrices in all layers."""
    attention = 2 * model.d_model + 2 * _kv_width(model)
    return model.n_layers * model.d_model * (attention + (_into(model) + 1) * _inner(model))


def _rows(recipe: Recipe, vocab_size: int | None) -> int:
    """Rows of the embedding; 0 where only the text or a tokenizer's file can say."""
    tokenizer = recipe.tokenizer
    named = 0 if isinstance(tokenizer, CharTokenizer | TokenizerFile) else tokenizer.vocab_size
    return recipe.model.vocab_size or vocab_size or named


def _sizes(recipe: Recipe) -> Iterator[tuple[float, str, int]]:
    """What makes a model large: how far above the usual it is, its key and its value."""
    model = recipe.model
    sizes = [
        ("model.n_layers", model.n_layers, 12),
        ("model.d_model", model.d_model, 768),
        ("model.d_ff", model.d_ff, 3072),
        ("model.context", model.context, 1024),
        ("model.position.size", model.position.size if isinstance(model.position, LearnedPosition) else None, 1024),
        ("model.vocab_size" if model.vocab_size else "tokenizer.vocab_size", _rows(recipe, None) or None, 50_000),
        ("training.micro_batch", None if (size := recipe.training.micro_batch) == "auto" else size, 64),
    ]
    for key, value, usual in sizes:
        if value is not None:
            yield math.log(value) - math.log(usual), key, value


def _number(value: int) -> str:
    return f"{value:,}" if value < 10**24 else f"about 10^{math.log10(value):.0f}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 100 * size:
            return f"{_number(count // size)} {unit}"
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
