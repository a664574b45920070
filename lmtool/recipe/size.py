"""How large a recipe's model is, by arithmetic alone, so that one that cannot fit is refused before it is allocated."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lmtool.errors import RecipeError
from lmtool.recipe.spec import (
    CELLS,
    Averaging,
    CharTokenizer,
    LearnedPosition,
    Model,
    NGram,
    Recipe,
    Recurrent,
    RelativePosition,
    ScoreName,
    SkipGram,
    TokenizerFile,
    Transformer,
)


class _Weights(NamedTuple):
    """How many numbers a model trains: in the matrices of its layers, and in all else."""

    matrices: int
    rest: int


def parameter_count(model: Model, vocab_size: int) -> int:
    """The trained numbers of a model whose embedding has `vocab_size` rows; an n-gram model has none, it counts."""
    return sum(_weights(model, vocab_size))


def training_bytes(recipe: Recipe, vocab_size: int | None = None) -> int:
    """A low estimate of the memory that training takes on one device, in bytes.

    float32 weights, their gradients, the optimizer's moments, and the activations of one micro-batch (one sequence for
    `auto`) in 16 bits: 34 d_model bytes for each token and layer (Korthikanti et al. 2022, Reducing Activation
    Recomputation in Large Transformer Models), here with the recipe's d_ff and without the attention matrix. Where only
    adapters or a head learn, all else has neither gradients nor moments.
    vocab_size: of the tokenizer, where it is known; else the most that the recipe allows.
    """
    model = recipe.model
    matrices, rest = _weights(model, _rows(recipe, vocab_size))
    moments = recipe.optimizer.moments(matrices, rest)
    sequences = 1 if recipe.training.micro_batch == "auto" else recipe.training.micro_batch
    activations = sequences * model.context * _activation_bytes(model)
    if recipe.tuning.lora is not None or recipe.tuning.freeze == "body":
        # what learns is small beside what stays
        return 4 * (matrices + rest) + activations
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


def _weights(model: Model, rows: int) -> _Weights:
    match model:
        case Transformer():
            return _transformer_weights(model, rows)
        case Recurrent():
            return _recurrent_weights(model, rows)
        case NGram():
            return _Weights(0, 0)
        case SkipGram():
            return _Weights(0, 2 * rows * model.d_model)
        case Averaging():
            vectors = 0 if model.one_hot else (rows + model.n_hashed) * model.d_model
            return _Weights(0, vectors + model.n_layers * model.d_model * (model.d_model + 1))


def _transformer_weights(model: Transformer, rows: int) -> _Weights:
    width, heads, head = model.d_model, model.n_heads, model.d_model // model.n_heads
    kv_width = head * (model.n_kv_heads or heads)
    inner, into = _inner(model), 2 if model.activation in ("swiglu", "geglu") else 1
    norm = width * (2 if model.bias and model.norm.kind == "layer" else 1)
    stacks = 2 if model.shape == "encoder-decoder" else 1
    attentions = model.n_layers * (3 if stacks == 2 else 1)
    networks = model.n_layers * stacks
    score = heads * _score_weights(model.score, head, model.rank or head)
    matrices = attentions * (2 * width * (width + kv_width)) + networks * (into + 1) * width * inner
    rest = attentions * (norm + score) + networks * norm
    if model.bias:
        rest += attentions * 2 * (width + kv_width) + networks * (into * inner + width)
    match model.position:
        case LearnedPosition(size=size):
            rest += (size or model.context) * width
        case RelativePosition(buckets=buckets):
            rest += stacks * buckets * heads
        case _:
            pass
    rest += norm * (stacks * (model.norm.place == "pre") + model.norm.embedding) + model.n_segments * width
    rest += rows * width * (1 if model.tie_embeddings else 2) + rows * model.head_bias
    if model.head_transform:
        rest += width * (width + 1) + norm
    if model.next_sentence_head:
        rest += width * (width + 1) + 2 * width + 2
    return _Weights(matrices, rest)


def _score_weights(score: ScoreName, width: int, rank: int) -> int:
    """Trained numbers of one score between vectors of a width."""
    match score:
        case "bilinear":
            return width * width
        case "reduced-rank":
            return 2 * width * rank
        case "additive":
            return 2 * width * width + width
        case _:
            return 0


def _recurrent_weights(model: Recurrent, rows: int) -> _Weights:
    gates, parts = CELLS[model.cell]
    width, attention = model.d_model, model.attention
    matrices, biases = model.n_layers * 2 * gates * width**2, model.n_layers * 2 * gates * width
    head = width
    rest = 0
    match model.shape:
        case "bidirectional":
            matrices, biases = 2 * matrices, 2 * biases
        case "encoder-decoder" if model.bidirectional_encoder:
            # two directions of half the width, and a bridge from their last states to the decoder's first
            matrices += model.n_layers * 3 * gates * width**2 // 2
            biases *= 2
            rest += model.n_layers * parts * width * (width + 1)
        case "encoder-decoder":
            matrices, biases = 2 * matrices, 2 * biases
        case "decoder":
            pass
    if attention is not None:
        if attention.select not in ("sum", "mean"):
            rest += _score_weights(attention.score, width, attention.rank or max(1, width // 4))
        if attention.feed == "input":
            rest += gates * width**2
        elif model.tie_embeddings:
            rest += 2 * width**2
        else:
            head = 2 * width
    rest += rows * (width + (0 if model.tie_embeddings else head) + model.head_bias)
    return _Weights(matrices, biases + rest)


def _activation_bytes(model: Model) -> int:
    """For each position of a row."""
    match model:
        case Transformer():
            return model.n_layers * (18 * model.d_model + 4 * _inner(model))
        case Recurrent():
            return model.n_layers * 24 * model.d_model
        case NGram() | SkipGram() | Averaging():
            return 0


def _inner(model: Transformer) -> int:
    return model.d_ff or 4 * model.d_model


def _rows(recipe: Recipe, vocab_size: int | None) -> int:
    """Rows of the embedding; 0 where only the text or a tokenizer's file can say."""
    tokenizer = recipe.tokenizer
    named = 0 if isinstance(tokenizer, CharTokenizer | TokenizerFile) else tokenizer.vocab_size
    return recipe.model.vocab_size or vocab_size or named


def _sizes(recipe: Recipe) -> Iterator[tuple[float, str, int]]:
    """What makes a model large: how far above the usual it is, its key and its value."""
    model = recipe.model
    sizes: list[tuple[str, int | None, int]] = [
        ("model.context", model.context, 1024),
        ("model.vocab_size" if model.vocab_size else "tokenizer.vocab_size", _rows(recipe, None) or None, 50_000),
        ("training.micro_batch", None if (size := recipe.training.micro_batch) == "auto" else size, 64),
    ]
    if not isinstance(model, NGram):
        sizes.append(("model.d_model", model.d_model, 768))
    if isinstance(model, Transformer | Recurrent | Averaging):
        sizes.append(("model.n_layers", model.n_layers or None, 12))
    if isinstance(model, Averaging):
        sizes.append(("model.buckets", model.n_hashed or None, 1_000_000))
    if isinstance(model, Transformer):
        table = model.position.size if isinstance(model.position, LearnedPosition) else None
        sizes += [("model.d_ff", model.d_ff, 3072), ("model.position.size", table, 1024)]
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
