"""Parameter count and training memory of a recipe, to refuse models that cannot fit before they are allocated."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lmtool.errors import RecipeError
from lmtool.model import LanguageModel, build
from lmtool.model.layers.attention import find_layer_matrices_and_part_rows
from lmtool.model.layers.ngrams import FrequentNgramEmbedding
from lmtool.model.lora import add_adapters_and_freeze_
from lmtool.model.transformer import TransformerModel
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.objective import ReplacedTokens
from lmtool.recipe.spec.recipe import Model, Recipe, make_generator_spec
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile
from lmtool.recipe.spec.training import Lora
from lmtool.recipe.spec.transformer import DenseFeedForward, FullPattern, Transformer

USUAL_MAXIMA = {
    "model.context": 1024,
    "model.vocab_size": 50_000,
    "model.d_model": 768,
    "model.n_layers": 12,
    "model.d_ff": 3072,
    "model.head_width": 64,
    "model.value_width": 64,
    "model.score_width": 768,
    "model.embedding_width": 768,
    "model.buckets": 1_000_000,
    "model.features.width": 2048,
    "model.features.mixed_layers": 50,
    "model.ngram_embedding.entries": 1_000_000,
    "model.position.size": 1024,
    "model.position.offset": 2,
    "tokenizer.vocab_size": 50_000,
    "training.micro_batch": 64,
}
"""Recipe keys that make a model large, with their usual maximum."""


class MatrixAndOtherParameters(NamedTuple):
    """Number of trained parameters: in the matrices of layers, which Muon updates, and others."""

    matrices: int
    others: int

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return self.matrices + self.others


class PersistentTrainingBytes(NamedTuple):
    """Bytes that a model in training holds from step to step, in float32, and its number of parameters.

    gradients: without those of an n-gram table, of which a step on one CPU has only a few rows.
    table_gradients: of all rows of the table, as on accelerators and with several processes.
    absent_gradients: that frozen weights would have, without those of the table.
    """

    parameters: int
    weights: int
    gradients: int
    moments: int
    table_gradients: int = 0
    absent_gradients: int = 0

    @property
    def sum(self) -> int:
        """Bytes of weights, gradients and moments."""
        return self.weights + self.gradients + self.moments


BYTES_PER_FROZEN_WEIGHT = {"none": 4, "int8": 1, "int4": 0.625}
"""Bytes of a frozen weight under adapters, by how it is quantized."""

UNCOUNTABLE = MatrixAndOtherParameters(0, 2**60)
"""Count of models in which a single tensor has more bytes than torch can count."""


class _SkipInitialization(TorchFunctionMode):
    """Skips random initialisation: meta tensors have no storage, and drawing on the meta device imports a compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_on_meta(spec: Model, vocab_size: int) -> LanguageModel:
    """Builds the model of a spec on the meta device: shapes without storage."""
    with torch.device("meta"), _SkipInitialization():
        return build(spec, vocab_size)


@lru_cache(maxsize=64)
def count_parameters(spec: Model, vocab_size: int) -> MatrixAndOtherParameters:
    """Counts the trained parameters of a model whose embedding has `vocab_size` rows.

    Layers are identical, so the count is extrapolated from models of one and two layers.
    """
    n_layers = dict(spec).get("n_layers", 0)
    if n_layers > 2:
        one, two = (count_parameters(spec.with_unvalidated_values({"n_layers": n}), vocab_size) for n in (1, 2))
        return MatrixAndOtherParameters(*(a + (n_layers - 1) * (b - a) for a, b in zip(one, two, strict=True)))
    try:
        model = build_on_meta(spec, vocab_size)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        return UNCOUNTABLE
    matrices = sum(matrix.numel() for matrix in find_layer_matrices_and_part_rows(model))
    return MatrixAndOtherParameters(matrices, sum(parameter.numel() for parameter in model.parameters()) - matrices)


@lru_cache(maxsize=64)
def count_adapter_parameters(spec: Transformer, lora: Lora) -> int:
    """Counts the parameters of a model's adapters, by those of models of one and two layers.

    Raises UsageError when no matrix is of the targeted kinds.
    """
    if spec.n_layers > 2:
        one, two = (count_adapter_parameters(spec.with_unvalidated_values({"n_layers": n}), lora) for n in (1, 2))
        return one + (spec.n_layers - 1) * (two - one)
    model = build_on_meta(spec, vocab_size=2)
    with torch.device("meta"):
        add_adapters_and_freeze_(model, lora.with_unvalidated_values({"quantize": "none"}))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def estimate_persistent_memory(recipe: Recipe, vocab_size: int) -> PersistentTrainingBytes:
    """Estimates the memory of weights, gradients and moments of a recipe whose embedding has `vocab_size` rows.

    Frozen weights, under adapters or a trained head, have neither gradients nor moments. The head, which is small in
    comparison, is not counted.
    """
    model, tuning = recipe.model, recipe.tuning
    size = count_parameters(model, vocab_size)
    if isinstance(recipe.objective, ReplacedTokens) and isinstance(model, Transformer):
        generator = count_parameters(make_generator_spec(model, recipe.objective), vocab_size)
        size = MatrixAndOtherParameters(size.matrices + generator.matrices, size.others + generator.others)
    table = model.ngram_embedding if isinstance(model, Transformer) else None
    entries = 0 if table is None else table.entries
    in_table = entries * (dict(model).get("embedding_width") or model.d_model) if entries else 0
    dense, trained = size.parameters - in_table, size
    n_adapters = count_adapter_parameters(model, tuning.lora) if tuning.lora and isinstance(model, Transformer) else 0
    if tuning.lora is not None or tuning.freeze == "body":
        trained, entries, in_table = MatrixAndOtherParameters(n_adapters, 0), 0, 0
    elif tuning.freeze == "embeddings":
        others = size.others - vocab_size * model.d_model - in_table
        trained, entries, in_table = MatrixAndOtherParameters(size.matrices, max(0, others)), 0, 0
    elif dict(model).get("freeze_embeddings"):
        trained = MatrixAndOtherParameters(size.matrices, max(0, size.others - vocab_size * model.d_model))
    # an n-gram table has one moment for each entry
    moments = recipe.optimizer.count_states(trained.matrices, trained.others - in_table) + entries
    with_gradients = trained.parameters - in_table
    bytes_of_matrix = BYTES_PER_FROZEN_WEIGHT[tuning.lora.quantize] if tuning.lora is not None else 4
    return PersistentTrainingBytes(
        parameters=size.parameters,
        weights=4 * (size.others + n_adapters) + int(bytes_of_matrix * size.matrices),
        gradients=4 * with_gradients,
        moments=4 * moments,
        table_gradients=4 * in_table,
        absent_gradients=4 * (dense - with_gradients),
    )


def estimate_min_training_bytes(recipe: Recipe, n_shards: int = 1) -> int:
    """Returns a lower bound on the training memory of one device, in bytes.

    It counts what is held from step to step, and the activations of one micro-batch (one sequence for `auto`).

    Args:
        n_shards: number of devices that share weights, gradients and moments.
    """
    held = estimate_persistent_memory(recipe, _max_embedding_rows_or_zero(recipe))
    sequences = 1 if recipe.training.micro_batch == "auto" else recipe.training.micro_batch
    activations = sequences * recipe.model.context * recipe.model.activation_bytes
    return held.sum // n_shards + activations


def check_training_fits_memory(
    recipe: Recipe, memory_bytes: int, key_origins: Mapping[str, str] | None = None, n_shards: int = 1
) -> None:
    """Raises RecipeError for a recipe whose training cannot fit into a memory.

    Args:
        memory_bytes: memory of the device.
        key_origins: from `load`, to name the line of the key that is most to blame.
        n_shards: see `estimate_min_training_bytes`.
    """
    needed = estimate_min_training_bytes(recipe, n_shards)
    if needed <= memory_bytes:
        return
    sizes = [(key, value) for key, value in _integer_fields(recipe) if key in USUAL_MAXIMA and value]
    key, value = max(sizes, key=lambda size: math.log(size[1]) - math.log(USUAL_MAXIMA[size[0]]))
    origin = (key_origins or {}).get(key, "default")
    where = key if origin == "default" else f"{origin}: {key}"
    size = count_parameters(recipe.model, _max_embedding_rows_or_zero(recipe))
    parameters = "over 10^18" if size == UNCOUNTABLE else _format_count(size.parameters)
    take = f"{parameters} parameters take at least {_format_bytes(needed)} of memory to train"
    raise RecipeError(
        [f"{where}: {_format_count(value)} is too much: {take}, and there is {_format_bytes(memory_bytes)}"]
    )


def count_training_flops_per_token(lm: LanguageModel, spec: Model) -> int | None:
    """Returns the FLOPs of training on one token, 6 N + 12 L H Q T (Chowdhery et al. 2022, PaLM, appendix B).

    N counts all parameters but those that are only looked up, L layers, H heads, Q their width, T the context.
    Returns None for models other than decoders of dense layers with full attention, and where weights are frozen.
    """
    if not (
        isinstance(spec, Transformer)
        and isinstance(lm, TransformerModel)
        and spec.shape == "decoder"
        and isinstance(spec.pattern, FullPattern)
        and isinstance(spec.feed_forward, DenseFeedForward)
        and not spec.share_layers
        and all(parameter.requires_grad for parameter in lm.parameters())
    ):
        return None
    output = lm.head.projection_parameters()[0]
    tables = [part.weight for part in lm.modules() if isinstance(part, nn.Embedding | FrequentNgramEmbedding)]
    looked_up = sum(table.numel() for table in tables if table is not output)
    n_used = sum(parameter.numel() for parameter in lm.parameters()) - looked_up
    head_width = spec.head_width or spec.d_model // spec.n_heads
    return 6 * n_used + 12 * spec.n_layers * spec.n_heads * head_width * spec.context


def _integer_fields(spec: Spec, path: str = "") -> Iterator[tuple[str, int]]:
    """Yields the dotted key and the value of each integer in a spec."""
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _integer_fields(value, f"{path}{name}.")
        elif isinstance(value, int):
            yield f"{path}{name}", value


def _max_embedding_rows_or_zero(recipe: Recipe) -> int:
    """Returns an upper bound on the embedding rows; 0 if only the text or a tokenizer file determines them."""
    tokenizer = recipe.tokenizer
    named = 0 if isinstance(tokenizer, CharTokenizer | TokenizerFile) else tokenizer.vocab_size
    return recipe.model.vocab_size or named


def _format_count(value: int) -> str:
    return f"{value:,}" if value < 10**24 else f"about 10^{math.log10(value):.0f}"


def _format_bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{_format_count(count // size) if count >= 100 * size else f'{count / size:.1f}'} {unit}"
    return f"{count} bytes"
