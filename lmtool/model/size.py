"""How large a recipe's model is, so that one that cannot fit is refused before it is allocated."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from lmtool.errors import RecipeError
from lmtool.model import LanguageModel, build
from lmtool.model.parameters import layer_matrices
from lmtool.recipe.spec import CharTokenizer, Model, Recipe, Spec, TokenizerFile

USUAL = {
    "model.context": 1024,
    "model.vocab_size": 50_000,
    "model.d_model": 768,
    "model.n_layers": 12,
    "model.d_ff": 3072,
    "model.buckets": 1_000_000,
    "model.position.size": 1024,
    "tokenizer.vocab_size": 50_000,
    "training.micro_batch": 64,
}
"""What makes a model large, and how large it usually is."""


class Size(NamedTuple):
    """How many numbers a model trains: in the matrices of its layers, which Muon takes, and in all else."""

    matrices: int
    rest: int

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.matrices + self.rest


BEYOND = Size(0, 2**60)
"""Stands for all sizes that are larger: one tensor alone has more bytes than torch can count."""


class _Unfilled(TorchFunctionMode):
    """Tensors get no random numbers, which they have no place for, and which meta devices load a compiler to draw."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def outline(spec: Model, vocab_size: int) -> LanguageModel:
    """The model that `spec` describes with all its shapes and without any of its numbers, on the meta device."""
    with torch.device("meta"), _Unfilled():
        return build(spec, vocab_size)


def size_of(spec: Model, vocab_size: int) -> Size:
    """The size of a model whose embedding has `vocab_size` rows; an n-gram model trains no numbers, it counts.

    Layers are alike, so that two tell the size of any number of them.
    """
    n_layers = dict(spec).get("n_layers", 0)
    if n_layers > 2:
        one, two = (size_of(spec.model_copy(update={"n_layers": n}), vocab_size) for n in (1, 2))
        matrices, rest = (first + (n_layers - 1) * (second - first) for first, second in zip(one, two, strict=True))
        return Size(matrices, rest)
    try:
        model = outline(spec, vocab_size)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        return BEYOND
    matrices = sum(matrix.numel() for matrix in layer_matrices(model))
    return Size(matrices, sum(parameter.numel() for parameter in model.parameters()) - matrices)


def training_bytes(recipe: Recipe) -> int:
    """A low estimate of the memory that training takes on one device, in bytes.

    float32 weights, their gradients, the optimizer's moments, and the activations of one micro-batch (one sequence for
    `auto`). Where only adapters or a head learn, all else has neither gradients nor moments.
    """
    size = size_of(recipe.model, _rows(recipe))
    sequences = 1 if recipe.training.micro_batch == "auto" else recipe.training.micro_batch
    activations = sequences * recipe.model.context * recipe.model.activation_bytes
    if recipe.tuning.lora is not None or recipe.tuning.freeze == "body":
        # what learns is small beside what stays
        return 4 * size.parameters + activations
    return 4 * (2 * size.parameters + recipe.optimizer.moments(*size)) + activations


def check_fits(recipe: Recipe, memory_bytes: int, origins: Mapping[str, str] | None = None) -> None:
    """Refuse a recipe whose training cannot fit into a memory.

    memory_bytes: of the device. origins: as `load` gives them, to name the line of the key that matters most.
    Raises: RecipeError, which names parameters, bytes needed and bytes there.
    """
    needed = training_bytes(recipe)
    if needed <= memory_bytes:
        return
    sizes = [(key, value) for key, value in _whole_numbers(recipe) if key in USUAL and value]
    key, value = max(sizes, key=lambda size: math.log(size[1]) - math.log(USUAL[size[0]]))
    origin = (origins or {}).get(key, "default")
    place = key if origin == "default" else f"{origin}: {key}"
    size = size_of(recipe.model, _rows(recipe))
    parameters = "over 10^18" if size == BEYOND else _number(size.parameters)
    take = f"{parameters} parameters take at least {_bytes(needed)} of memory to train"
    raise RecipeError([f"{place}: {_number(value)} is too much: {take}, and there is {_bytes(memory_bytes)}"])


def _whole_numbers(spec: Spec, path: str = "") -> Iterator[tuple[str, int]]:
    """The dotted key and the value of each whole number in a spec."""
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _whole_numbers(value, f"{path}{name}.")
        elif isinstance(value, int):
            yield f"{path}{name}", value


def _rows(recipe: Recipe) -> int:
    """Rows of the embedding, at most; 0 where only the text or a tokenizer's file can say."""
    tokenizer = recipe.tokenizer
    named = 0 if isinstance(tokenizer, CharTokenizer | TokenizerFile) else tokenizer.vocab_size
    return recipe.model.vocab_size or named


def _number(value: int) -> str:
    return f"{value:,}" if value < 10**24 else f"about 10^{math.log10(value):.0f}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{_number(count // size) if count >= 100 * size else f'{count / size:.1f}'} {unit}"
    return f"{count} bytes"
