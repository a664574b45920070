"""The parts of a model as a tree, with their parameters and floating point operations: arithmetic, no computation.

Counted are the operations of matrix products in a forward pass, a multiplication and an addition as two; norms,
nonlinearities, softmax and look-ups are a small remainder. Attention counts the pairs of query and key that its mask
allows, although some kernels compute all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import cast

import torch
from torch import nn

from lmtool.batch import Mask
from lmtool.model.averaging import AveragingModel
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import CrossAttention, ProjectionFreeAttention, SelfAttention, output_widths
from lmtool.model.layers.blocks import FeedForward, LanguageModelHead
from lmtool.model.layers.cells import Cell
from lmtool.model.layers.memory_attention import RecurrentStateAttention
from lmtool.model.layers.positions import AlibiPositions, RotaryPositions, SinusoidalPositions
from lmtool.model.layers.scores import AdditiveScore, BilinearScore, DisentangledScore, ReducedRankScore, Score
from lmtool.model.layers.stack import Stack, Sublayer
from lmtool.model.recurrent import BidirectionalLanguageModel, RecurrentModel
from lmtool.model.seq2seq import RecurrentEncoder, RecurrentEncoderDecoder
from lmtool.model.size import build_on_meta
from lmtool.model.transformer import TransformerEncoder, TransformerModel
from lmtool.model.word_vectors import SkipGramModel
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

WEIGHTLESS_PARTS = {SinusoidalPositions: "sinusoidal", AlibiPositions: "alibi", RotaryPositions: "rotary"}
"""Parts without weights that are shown all the same, and their shape."""

MIXER_NAMES: Mapping[type, str] = {
    SelfAttention: "self-attention",
    ProjectionFreeAttention: "plain self-attention",
    CrossAttention: "cross-attention",
    FeedForward: "feed-forward",
}
"""Names of mixers."""

_TIED = ", the embedding's weights"


@dataclass(frozen=True)
class ModelPart:
    """A part of a model.

    shape: of its weights, as "in -> out" for linear maps. own_parameters, own_flops: of one copy, without the parts
    below it; flops are those of one row. `children` are the parts of one copy. Weights that several parts share count
    where they first occur.
    """

    name: str
    shape: str
    own_parameters: int = 0
    own_flops: int = 0
    times: int = 1
    children: tuple["ModelPart", ...] = ()

    @cached_property
    def parameters(self) -> int:
        """Of all its `times` equal copies, with the parts below them."""
        return self.times * (self.own_parameters + sum(child.parameters for child in self.children))

    @cached_property
    def flops(self) -> int:
        """The same of floating point operations."""
        return self.times * (self.own_flops + sum(child.flops for child in self.children))


@dataclass(frozen=True)
class _InputSizes:
    """What a part is applied to: positions of the row, pairs of query and key, positions of the source.

    cross_pairs: pairs of query and source. width: of the states in a recurrent model's memory.
    """

    positions: int
    pairs: int = 0
    source: int = 0
    cross_pairs: int = 0
    width: int = 0


def summarize_model(spec: Model, vocab_size: int, n_tokens: int, n_source_tokens: int | None = None) -> ModelPart:
    """The tree of the model that `spec` describes, without a head for labels, and its FLOPs for a row of `n_tokens`.

    n_source_tokens: of the source of an encoder-decoder; as many as the target by default. A prefix LM's row begins
    with `default_prefix_length` it.
    Nothing is allocated, however large the model.
    """
    n_layers = dict(spec).get("n_layers", 0)
    model = build_on_meta(
        spec.with_unvalidated_values({"n_layers": min(n_layers, 2)}) if n_layers else spec, vocab_size
    )
    parts = _summarize_model_parts(model, spec, n_layers, n_tokens, n_source_tokens or n_tokens)
    return ModelPart(spec.title, "", children=tuple(parts))


def default_prefix_length(n_tokens: int) -> int:
    """Length of the prefix of a prefix LM's row: half of it."""
    return n_tokens // 2


def make_layer_mask(spec: Transformer, n_tokens: int, *, causal: bool, layer: int = 0) -> Mask:
    """The mask of the self-attention of a layer, for a row of one text."""
    prefix_B = torch.tensor([default_prefix_length(n_tokens)]) if spec.shape == "prefix" else None
    match spec.pattern:
        case WindowPattern(full_layers=full, size=size, dilation=dilation, global_tokens=n_global) if layer not in full:
            return Mask(causal, size, dilation, n_global, prefix_B)
        case _:
            return Mask(causal, prefix_B=prefix_B)


def count_attention_pairs(mask: Mask, n_tokens: int) -> int:
    """Number of pairs of query and key that the mask of one text allows; in linear time, unlike `Mask.to_tensor`."""
    query_T = torch.arange(n_tokens)
    # a query sees the keys before this one, but for the window
    end_T = query_T + 1 if mask.causal else torch.full_like(query_T, n_tokens)
    if mask.prefix_B is not None:
        end_T = end_T.clamp(min=min(int(mask.prefix_B), n_tokens))
    if mask.window is None:
        return int(end_T.sum())
    most = mask.window - 1
    before_T = (query_T // mask.dilation).clamp(max=most)
    after_T = ((end_T - 1 - query_T) // mask.dilation).clamp(max=most)
    global_near_T = (before_T - (query_T - mask.n_global) // mask.dilation).clamp(min=0)
    local_T = before_T + 1 + after_T + end_T.clamp(max=mask.n_global) - global_near_T
    return int(torch.where(query_T < mask.n_global, end_T, local_T).sum())


def _summarize_model_parts(
    model: LanguageModel, spec: Model, n_layers: int, n_tokens: int, n_source_tokens: int
) -> Iterator[ModelPart]:
    """The parts of a model, which was built with at most two layers, for `n_layers`. n_tokens: of a row."""
    row, text = _InputSizes(n_tokens), _InputSizes(1)
    match model:
        case TransformerModel() if isinstance(spec, Transformer):
            of_text = (model.pooler, model.next_sentence) if isinstance(model, TransformerEncoder) else ()
            for name, module in model.named_children():
                if isinstance(module, Stack):
                    yield _summarize_stack(
                        name, module, spec, n_source_tokens if name == "encoder" else n_tokens, n_source_tokens
                    )
                elif module is not model.head:
                    yield from _summarize_nonempty_module(name, module, text if module in of_text else row, n_layers)
            yield from _summarize_nonempty_module("head", model.head, row, n_layers)
        case RecurrentModel():
            reach = _InputSizes(n_tokens, n_tokens * (n_tokens - 1) // 2, width=model.embedding.embedding_dim)
            if isinstance(model, RecurrentEncoderDecoder):
                reach = replace(reach, source=n_source_tokens, cross_pairs=n_tokens * n_source_tokens)
            for name, module in model.named_children():
                if module is not model.head:
                    yield from _summarize_nonempty_module(name, module, reach, n_layers)
            # a bidirectional model applies the head to the states of both directions
            times = 2 if isinstance(model, BidirectionalLanguageModel) else 1
            width = model.head_input_width
            shape = f"{width} -> {model.vocab_size}" + (_TIED if model.head is None else "")
            parameters = sum(part.numel() for part in model.head_parameters() if part is not model.embedding.weight)
            yield ModelPart("head", shape, parameters, times * 2 * width * model.vocab_size * n_tokens)
        case AveragingModel():
            for name, module in model.named_children():
                yield from _summarize_nonempty_module(name, module, text, n_layers)
        case SkipGramModel():
            yield from _summarize_nonempty_module("centres", model.centres, row, n_layers)
            weight = model.neighbours.weight
            yield ModelPart("neighbours", _format_shape(weight), weight.numel(), 2 * weight.numel() * n_tokens)
            for name, bias in model.named_parameters(recurse=False):
                yield ModelPart(name, _format_shape(bias), bias.numel(), 0)


def _summarize_stack(name: str, stack: Stack, spec: Transformer, n_tokens: int, n_source_tokens: int) -> ModelPart:
    """A stack; all layers from the second on are as that one, but for their masks. Shared weights are the first's."""
    full = spec.pattern.full_layers if isinstance(spec.pattern, WindowPattern) else ()
    changes = chain((0, 1, spec.n_layers), full, (layer + 1 for layer in full))
    pairs: dict[bool, int] = {}
    layers = []
    for first, stop in pairwise(sorted({layer for layer in changes if layer <= spec.n_layers})):
        if (first in full) not in pairs:
            pairs[first in full] = count_attention_pairs(
                make_layer_mask(spec, n_tokens, causal=stack.mask.causal, layer=first), n_tokens
            )
        reach = _InputSizes(n_tokens, pairs[first in full], n_source_tokens, n_tokens * n_source_tokens)
        built = 0 if spec.share_layers else min(first, 1) * stack.sublayers_per_layer
        sublayers = stack.sublayers[built : built + stack.sublayers_per_layer]
        parts: Iterable[ModelPart] = chain.from_iterable(
            _summarize_nonempty_module("", sublayer, reach, 1) for sublayer in sublayers
        )
        if spec.share_layers and first:
            parts = map(_without_weights, parts)
        layers.append(ModelPart("layer", "", times=stop - first, children=tuple(parts)))
    below = _summarize_nonempty_module("position", stack.position, _InputSizes(n_tokens), 1)
    above = _summarize_nonempty_module("norm", stack.norm, _InputSizes(n_tokens), 1)
    equal = groupby(layers, lambda layer: replace(layer, times=1))
    merged = (replace(one, times=sum(layer.times for layer in group)) for one, group in equal)
    return ModelPart(name, "", children=(*below, *merged, *above))


def _without_weights(part: ModelPart) -> ModelPart:
    """A part whose weights are those of another one."""
    return replace(part, own_parameters=0, children=tuple(map(_without_weights, part.children)))


def _summarize_nonempty_module(
    name: str, module: nn.Module | None, sizes: _InputSizes, n_layers_in_full_model: int
) -> Iterator[ModelPart]:
    """Yields the part of a module, if it has any weights or does anything.

    n_layers_in_full_model: length of the lists of layers.
    """
    match module:
        case None:
            return
        case nn.ModuleList():
            yield from _summarize_repeated_layers(name, module, sizes, n_layers_in_full_model)
        case Sublayer():
            yield _summarize_sublayer(module, sizes, n_layers_in_full_model)
        case Cell():
            weights = [parameter for parameter in module.parameters() if parameter.ndim == 2]
            shape = f"{weights[0].shape[1]} -> {module.d_out}, {module.kind}"
            flops = 2 * sizes.positions * sum(weight.numel() for weight in weights)
            yield ModelPart(name, shape, sum(p.numel() for p in module.parameters()), flops)
        case _:
            below: list[ModelPart] = []
            for key, child in module.named_children():
                read = sizes
                if isinstance(module, RecurrentEncoder):
                    read = _InputSizes(1 if key == "bridge" else sizes.source)
                elif isinstance(module, CrossAttention) and key == "kv":
                    read = _InputSizes(sizes.source)
                below += _summarize_nonempty_module(key, child, read, n_layers_in_full_model)
            parameters = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            shape, flops = _own_shape_and_flops(module, sizes)
            part = ModelPart(name, shape, parameters, flops, children=tuple(below))
            is_shown = type(module) in WEIGHTLESS_PARTS or isinstance(module, RecurrentEncoder)
            if part.parameters or part.flops or is_shown:
                yield part


def _summarize_repeated_layers(
    name: str, modules: nn.ModuleList, sizes: _InputSizes, n_layers_in_full_model: int
) -> Iterator[ModelPart]:
    """Yields the layers, all from the second on as the last one that was built."""
    if not len(modules):
        return
    (first,) = _summarize_nonempty_module("layer", modules[0], sizes, n_layers_in_full_model)
    (last,) = _summarize_nonempty_module("layer", modules[-1], sizes, n_layers_in_full_model)
    # a bridge has a map for each part of the state of each layer
    times = n_layers_in_full_model * len(modules) // min(n_layers_in_full_model, 2)
    if last != first:
        # the first reads features of another model too
        yield replace(first, name=name)
        times -= 1
    yield replace(last, name=name, times=times)


def _summarize_sublayer(module: Sublayer, sizes: _InputSizes, n_layers_in_full_model: int) -> ModelPart:
    """A mixer with its norm."""
    mixer = cast(nn.Module, module.mixer)
    (part,) = _summarize_nonempty_module(
        MIXER_NAMES.get(type(mixer), type(mixer).__name__), mixer, sizes, n_layers_in_full_model
    )
    scales = () if module.x0_scale is None else (ModelPart("scales of x and x0", "1 + 1", 2),)
    norms = tuple(_summarize_nonempty_module(f"norm ({module.norm_place})", module.norm, sizes, n_layers_in_full_model))
    return replace(
        part,
        shape=part.shape if module.residual else f"{part.shape}{', ' * bool(part.shape)}not added to its input",
        children=(*scales, *norms, *part.children) if module.norm_place == "pre" else (*scales, *part.children, *norms),
    )


def _own_shape_and_flops(module: nn.Module, sizes: _InputSizes) -> tuple[str, int]:
    """The shape of a module, and its FLOPs without those of its children."""
    n = sizes.positions
    match module:
        case CrossAttention() | SelfAttention() | ProjectionFreeAttention():
            heads = module.score, module.n_heads, module.head_width, module.value_width
            if isinstance(module, CrossAttention):
                return _describe_heads(module), _attention_flops(*heads, n, sizes.source, sizes.cross_pairs)
            return _describe_heads(module), _attention_flops(*heads, n, n, sizes.pairs)
        case RecurrentStateAttention():
            n_keys, pairs = (sizes.source, sizes.cross_pairs) if sizes.source else (n, sizes.pairs)
            return module.select, _attention_flops(module.score, 1, sizes.width, sizes.width, n, n_keys, pairs)
        case LanguageModelHead():
            table = module.used_parameters()[0]
            shape = f"{table.shape[1]} -> {table.shape[0]}" + (_TIED if module.own is None else "")
            return shape, 2 * n * table.numel()
        case nn.Linear():
            shape = f"{module.in_features} -> {' + '.join(map(str, output_widths(module)))}"
            return shape, 2 * n * module.weight.numel()
        case _:
            weights = list(module.parameters(recurse=False))
            return WEIGHTLESS_PARTS.get(type(module), _format_shape(weights[0]) if weights else ""), 0


def _describe_heads(module: SelfAttention | ProjectionFreeAttention | CrossAttention) -> str:
    values = "" if module.value_width == module.head_width else f", values of {module.value_width}"
    grouped = "" if module.n_kv_heads == module.n_heads else f", {module.n_kv_heads} of keys and values"
    maps = ", without maps" if isinstance(module, ProjectionFreeAttention) else ""
    return f"{module.n_heads} heads of {module.head_width}{values}{grouped}{maps}"


def _attention_flops(
    score: Score | None, n_heads: int, width: int, value_width: int, n_queries: int, n_keys: int, n_pairs: int
) -> int:
    """FLOPs of scores and weighted sums of the values, without linear maps into and out of the heads.

    width: of a head's queries and keys. n_pairs: of query and key that the mask allows.
    """
    per_pair, per_query, per_key, of_table = width, 0, 0, 0
    match score:
        case None:
            per_pair = 0
        case BilinearScore():
            per_query = score.weight_NHH.numel()
        case ReducedRankScore():
            per_pair, per_query = score.query_NHR.shape[-1], score.query_NHR.numel()
            per_key = per_query
        case AdditiveScore():
            per_pair, per_query = score.out_NH1.shape[1], score.query_NHH.numel()
            per_key = per_query
        case DisentangledScore():
            per_query = score.n_embeddings * n_heads * width
            per_key = per_query
            of_table = score.n_embeddings * (score.key_NDH.numel() + score.query_NDH.numel())
    return 2 * (n_heads * n_pairs * (per_pair + value_width) + n_queries * per_query + n_keys * per_key + of_table)


def _format_shape(weight: torch.Tensor) -> str:
    return " x ".join(map(str, weight.shape))
