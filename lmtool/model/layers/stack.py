"""The Stack: sublayers and final norm. Every Transformer is one or two of these with different masks.

Shapes: B rows, T positions, S positions so far, D model width. P is B, or 1 where all rows have the same positions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmtool.batch import Mask
from lmtool.compute.kernels import ops
from lmtool.model.language_model import KeyValue, LayerState, Memory, Output, Parts, summed, topped
from lmtool.model.layers.attention import Attend, CrossAttention, Heads, Mixed, Mixer, PlainAttention, SelfAttention
from lmtool.model.layers.norms import HeadNorm, build_norm
from lmtool.model.layers.observing import attending
from lmtool.model.layers.parts import FeedForward, initialise
from lmtool.model.layers.positions import build_attention_position, build_window_position
from lmtool.model.layers.scores import Disentangled, Score, build_score
from lmtool.recipe.spec.position import DisentangledPosition
from lmtool.recipe.spec.transformer import DenseFeedForward, NormPlace, Transformer, WindowPattern


class Sublayer(nn.Module):
    """A mixer f with residual connection: x + f(norm(x)), norm(x + f(x)), or x + norm(f(x)), by norm_place.

    residual: without, f(norm(x)) or norm(f(x)).
    """

    def __init__(
        self, mixer: Mixer, norm: nn.Module, norm_place: NormPlace, dropout: float, residual: bool = True
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = norm
        self.norm_place = norm_place
        self.dropout = dropout
        self.residual = residual

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None, input_BTD: Tensor | None = None) -> Mixed:
        """input_BTD: what the mixer reads, if not the residual stream x."""
        read: Tensor = x_BTD if input_BTD is None else input_BTD
        if self.norm_place == "pre":
            read = self.norm(read)
        # fixed-size states are per row; keys and values are separated by a mask
        apart = attend.mask.width > 1 and past and not isinstance(past, KeyValue | Memory)
        if apart:
            read = read.reshape(len(read) * attend.mask.width, -1, read.shape[-1])
        mixed, now, auxiliary_B = self.mixer(read, attend, past)
        if apart:
            mixed = mixed.reshape(x_BTD.shape)
        if self.norm_place == "output":
            mixed = self.norm(mixed.to(x_BTD.dtype))
        mixed = ops.dropout(mixed, self.dropout, self.training)
        x_BTD = x_BTD + mixed if self.residual else mixed.to(x_BTD.dtype)
        return Mixed(self.norm(x_BTD) if self.norm_place == "post" else x_BTD, now, auxiliary_B)


class Stack(nn.Module):
    """Input embeddings to hidden states.

    causal: causal self-attention.
    source: each layer also has cross-attention.
    mask: the attention mask of a row that is one text.
    sublayers: those of all layers, or of one whose weights all share, which is then passed n_layers times (Lan et al.
        2020, ALBERT).
    full_layers: numbers of the layers without the window of the mask.
    parallel: all sublayers of a layer read its input. adds_to_layer: they add to it.
    recomputes: in training keep the input of each layer only, and compute its activations again in the backward pass
        (Chen et al. 2016), with the same dropout.
    """

    __call__: Callable[..., tuple[Output, tuple[Any, ...]]]
    recomputes: bool = False

    def __init__(self, spec: Transformer, causal: bool, source: bool = False) -> None:
        super().__init__()
        self.mask, self.full_layers = Mask(causal), frozenset[int]()
        if isinstance(spec.pattern, WindowPattern):
            self.mask = Mask(causal, spec.pattern.size, spec.pattern.dilation, spec.pattern.global_tokens)
            self.full_layers = frozenset(spec.pattern.full_layers)
        # prefix positions attend both ways, so their relative distances have two signs
        self.position = build_attention_position(spec, both_sides=not causal or spec.shape == "prefix")
        # in a tuple, so that a position of all layers is not registered twice
        self.window_position = (build_window_position(spec, self.position),)
        of_sublayers = spec.norm.place, spec.dropout, spec.residual
        self.sublayers = nn.ModuleList(
            Sublayer(mixer, build_norm(spec.norm, spec.d_model, spec.bias), *of_sublayers)
            for _ in range(1 if spec.share_layers else spec.n_layers)
            for mixer in _mixers(spec, source)
        )
        if not spec.norm.first:
            cast(Sublayer, self.sublayers[0]).norm = nn.Identity()
        self._passes = spec.n_layers if spec.share_layers else 1
        self.per_layer = len(self.sublayers) * self._passes // spec.n_layers
        for part in attending(self).values():
            part.n_layers = self._passes
        self.parallel = spec.parallel
        self.adds_to_layer = spec.residual_from == "layer"
        self.norm = nn.Identity() if spec.norm.place == "post" else build_norm(spec.norm, spec.d_model, spec.bias)
        initialise(self, spec)
        if spec.init.scale_residual and spec.residual:
            # smaller projections into the residual stream (Radford et al. 2019)
            n_sublayers = len(self.sublayers) * self._passes
            for projection in (part for sublayer in self.sublayers for part in _mixer(sublayer).projections()):
                nn.init.normal_(projection.weight, std=spec.init.std * n_sublayers**-0.5)

    def passed(self) -> list[nn.Module]:
        """The sublayers in the order of a forward pass, shared ones once for each layer."""
        return [*self.sublayers] * self._passes

    def _mixers(self) -> Iterator[Mixer]:
        """The top-level mixer of each sublayer in that order, without nested ones."""
        return map(_mixer, self.passed())

    def start(self, n_rows: int, source_BSD: Tensor | None = None) -> tuple[LayerState, ...]:
        """The initial cache of every sublayer."""
        memories = repeat(None) if source_BSD is None else self.sources(source_BSD)
        return tuple(memory or mixer.start(n_rows) for mixer, memory in zip(self._mixers(), memories, strict=False))

    def sources(self, source_BSD: Tensor) -> tuple[LayerState | None, ...]:
        """The source part of the state, which is all of it in training."""
        return tuple(mixer.read(source_BSD) if isinstance(mixer, CrossAttention) else None for mixer in self._mixers())

    def forward(
        self,
        x_BTD: Tensor,
        positions_PS: Tensor,
        mask: Mask,
        past: Sequence[LayerState | None] | None = None,
        source_mask: Mask | None = None,
        seen: list[Tensor] | None = None,
    ) -> tuple[Output, tuple[LayerState | None, ...]]:
        """Hidden states (B, T, D) of the inputs, which continue the cached `past`; and the updated cache.

        positions_PS: of all positions, cached ones first; mask covers all of them, source_mask the source.
        seen: if given, collects the inputs and the output of each layer, the last one after the final norm.
        """
        T = x_BTD.shape[1]
        sublayers = self.passed()
        past = past or (None,) * len(sublayers)
        source = None
        if source_mask is not None:
            n_source = next(state.k_BNSH.shape[2] for state in past if isinstance(state, Memory))
            source = Attend(source_mask, T, torch.arange(n_source, device=x_BTD.device)[None])
        if _has_shifted_windows(mask, positions_PS):
            mask = replace(mask, text_positions_PS=positions_PS)
        rule = self.position if mask.window is None else self.window_position[0]
        attend = everywhere = Attend(mask, T, positions_PS, rule, source)
        if self.full_layers:
            unlimited = replace(mask, window=None, dilation=1, n_global=0, text_positions_PS=None)
            everywhere = Attend(unlimited, T, positions_PS, self.position, source)
        now: list[LayerState | None] = []
        auxiliaries: list[Tensor | None] = []
        for layer, first in enumerate(range(0, len(sublayers), self.per_layer)):
            if seen is not None:
                seen.append(x_BTD)
            part = slice(first, first + self.per_layer)
            inputs = sublayers[part], x_BTD, everywhere if layer in self.full_layers else attend, past[part]
            if self.recomputes and self.training and torch.is_grad_enabled():
                x_BTD, after, losses = checkpoint(self._layer_apart, *inputs, use_reentrant=False)
            else:
                x_BTD, after, losses = self._layer(*inputs)
            now += after
            auxiliaries += losses
        hidden_BTD: Tensor = self.norm(x_BTD)
        if seen is not None:
            seen.append(hidden_BTD)
        return Output(hidden_BTD, summed(auxiliaries)), tuple(now)

    def _layer(
        self, sublayers: Sequence[nn.Module], x_BTD: Tensor, attend: Attend, past: Sequence[LayerState | None]
    ) -> tuple[Tensor, list[LayerState | None], list[Tensor | None]]:
        """The output of one layer, and the updated cache and the auxiliary loss of each of its sublayers."""
        now: list[LayerState | None] = []
        auxiliaries: list[Tensor | None] = []
        input_BTD = x_BTD
        for sublayer, state in zip(sublayers, past, strict=True):
            read_BTD = input_BTD if self.parallel else x_BTD
            stream_BTD = input_BTD if self.adds_to_layer else x_BTD
            x_BTD, after, auxiliary_B = sublayer(stream_BTD, attend, state, read_BTD)
            now.append(after)
            auxiliaries.append(auxiliary_B)
        return x_BTD, now, auxiliaries

    def _layer_apart(
        self, sublayers: Sequence[nn.Module], x_BTD: Tensor, attend: Attend, past: Sequence[LayerState | None]
    ) -> tuple[Tensor, list[LayerState | None], list[Tensor | None]]:
        """The same, but nothing that has a gradient is shared with other layers."""
        return self._layer(sublayers, x_BTD, attend.apart(), past)

    def parts(self) -> Parts:
        """The sublayers of each layer, the last one together with the final norm; shared ones are one layer."""
        sublayers, n = list(self.sublayers), self.per_layer
        return topped((sublayers[i : i + n] for i in range(0, len(sublayers), n)), self.norm)


def recompute_layers(model: nn.Module) -> bool:
    """Let the stacks of a model recompute their activations; whether it has any that did not yet."""
    stacks = [part for part in model.modules() if isinstance(part, Stack) and not part.recomputes]
    for stack in stacks:
        stack.recomputes = True
    return bool(stacks)


def _mixer(sublayer: nn.Module) -> Mixer:
    return cast(Mixer, sublayer.mixer)


def _has_shifted_windows(mask: Mask, positions_PS: Tensor) -> bool:
    """Whether a window must use positions in the text, because they differ from those in the row.

    Right padding shifts nothing, and distances within isolated documents do not change. Rows that share a cache line
    are interleaved in it.
    """
    if mask.window is not None and mask.extra_mask_BQS is not None:
        return True
    if mask.window is None or (mask.keep_BS is None and (mask.documents_BS is None or not mask.n_global)):
        return False
    moved_PS = positions_PS != torch.arange(positions_PS.shape[1], device=positions_PS.device)
    return bool((moved_PS if mask.keep_BS is None else moved_PS & mask.keep_BS).any())


def _mixers(spec: Transformer, source: bool) -> Sequence[Mixer]:
    mixers = [build_mixer(spec)]
    if source:
        mixers.append(CrossAttention(_heads(spec), spec.dropout, _score(spec, across=True)))
    return [*mixers, build_feed_forward(spec)] if spec.inner_width else mixers


def build_mixer(spec: Transformer) -> Mixer:
    """The token mixer of a layer."""
    match spec.mixer:
        case "attention":
            return SelfAttention(_heads(spec), spec.dropout, _score(spec), _qk_norms(spec))
        case "plain-attention":
            return PlainAttention(_heads(spec), spec.dropout, _score(spec))


def build_feed_forward(spec: Transformer) -> Mixer:
    """The position-wise sublayer of a layer."""
    sizes = (spec.d_model, spec.inner_width, spec.activation, spec.bias, spec.ffn_dropout)
    match spec.feed_forward:
        case DenseFeedForward():
            return FeedForward(*sizes)


def _heads(spec: Transformer) -> Heads:
    width = spec.head_width or spec.d_model // spec.n_heads
    qkv_bias = spec.bias if spec.qkv_bias is None else spec.qkv_bias
    n_kv, value_width = spec.n_kv_heads or spec.n_heads, spec.value_width or width
    return Heads(spec.d_model, spec.n_heads, n_kv, width, value_width, spec.bias, qkv_bias)


def _score(spec: Transformer, across: bool = False) -> Score:
    """That of self-attention, or of attention across to a source, which has no positions."""
    width = _heads(spec).width
    if isinstance(spec.position, DisentangledPosition) and not across:
        return Disentangled(spec.n_heads, width, spec.d_model, 2 * spec.position.max_distance)
    return build_score(spec.score, spec.n_heads, width, spec.rank or width, spec.score_width or width)


def _qk_norms(spec: Transformer) -> tuple[HeadNorm, HeadNorm] | None:
    """Of queries and keys."""
    if spec.qk_norm == "none":
        return None
    heads = _heads(spec)
    n, n_kv = (heads.n, heads.n_kv) if spec.qk_norm == "joint" else (1, 1)
    return HeadNorm(n * heads.width, eps=spec.norm.eps), HeadNorm(n_kv * heads.width, eps=spec.norm.eps)
