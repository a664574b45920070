"""The Stack: sublayers and final norm. Every Transformer is one or two of these with different masks.

Shapes: B rows, T positions, S positions so far, D model width. P is B, or 1 where all rows have the same positions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmtool.batch import Mask
from lmtool.compute.kernels import ops
from lmtool.model.language_model import HiddenOutput, ModulesByDepth, append_to_last_layer, sum_auxiliary_losses
from lmtool.model.layers import attention
from lmtool.model.layers.attention import (
    AttentionHeadSizes,
    AttentionOp,
    CrossAttention,
    Mixer,
    MixerOutput,
)
from lmtool.model.layers.blocks import FeedForward, init_linears_and_embeddings_
from lmtool.model.layers.norms import HeadNorm, build_norm
from lmtool.model.layers.observing import find_attention_modules
from lmtool.model.layers.positions import build_attention_position, build_window_position
from lmtool.model.layers.scores import DisentangledScore, Score, build_score
from lmtool.model.state import Caches, KeyValueCache, LayerState, Memory
from lmtool.recipe.spec.position import DisentangledPosition
from lmtool.recipe.spec.transformer import DenseFeedForward, NormPlace, Transformer, WindowPattern


class Sublayer(nn.Module):
    """A mixer f with a residual connection: x + f(norm(x)), norm(x + f(x)), or x + norm(f(x)), by norm_place.

    residual: if False, f(norm(x)) or norm(f(x)).
    x_scale, x0_scale: of the stream and of the embeddings, whose sum its layer reads; of the first sublayer of a layer,
        if any.
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
        self.x_scale: nn.Parameter | None = None
        self.x0_scale: nn.Parameter | None = None

    def forward(
        self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None, mixer_input_BTD: Tensor | None = None
    ) -> MixerOutput:
        """Returns the new residual stream, and what else the mixer returned.

        Args:
            x_BTD: the residual stream.
            mixer_input_BTD: what the mixer reads; None for the residual stream.
        """
        read: Tensor = x_BTD if mixer_input_BTD is None else mixer_input_BTD
        if self.norm_place == "pre":
            read = self.norm(read)
        # states of fixed size are per row; for keys and values a mask separates the rows of a line
        splits_lines = attend.mask.width > 1 and cache and not isinstance(cache, KeyValueCache | Memory)
        if splits_lines:
            read = read.reshape(len(read) * attend.mask.width, -1, read.shape[-1])
        mixed, new_cache, auxiliary_B = self.mixer(read, attend, cache)
        if splits_lines:
            mixed = mixed.reshape(x_BTD.shape)
        if self.norm_place == "output":
            mixed = self.norm(mixed.to(x_BTD.dtype))
        mixed = ops.dropout(mixed, self.dropout, self.training)
        x_BTD = x_BTD + mixed if self.residual else mixed.to(x_BTD.dtype)
        return MixerOutput(self.norm(x_BTD) if self.norm_place == "post" else x_BTD, new_cache, auxiliary_B)


CacheAndLoss = tuple[LayerState | None, Tensor | None]
"""What a sublayer leaves besides its output: its new cache, and the auxiliary loss of each row."""


class Stack(nn.Module):
    """Layers and a final norm, which turn input embeddings into hidden states.

    causal: whether self-attention is causal.
    add_cross_attention: whether each layer also has cross-attention to a source.
    mask: the attention mask of a row that is one text.
    sublayers: those of all layers; or of one layer, which is passed n_layers times (Lan et al. 2020, ALBERT).
    full_layers: indices of the layers without the window of the mask.
    parallel: whether all sublayers of a layer read its input.
    adds_to_layer_input: whether all sublayers of a layer are added to its input.
    recomputes_activations: in training, keep only the input of each layer and compute its activations again in the
        backward pass (Chen et al. 2016), with the same dropout.
    """

    __call__: Callable[..., tuple[HiddenOutput, tuple[Any, ...]]]
    recomputes_activations: bool = False

    def __init__(self, spec: Transformer, causal: bool, add_cross_attention: bool = False) -> None:
        super().__init__()
        self.mask, self.full_layers = Mask(causal), frozenset[int]()
        if isinstance(spec.pattern, WindowPattern):
            self.mask = Mask(causal, spec.pattern.size, spec.pattern.dilation, spec.pattern.global_tokens)
            self.full_layers = frozenset(spec.pattern.full_layers)
        # positions of a prefix attend in both directions, so their relative distances have two signs
        self.position = build_attention_position(spec, bidirectional=not causal or spec.shape == "prefix")
        # in a tuple, so that a module that all layers share is not registered twice
        self.window_position = (build_window_position(spec, self.position),)
        self.sublayers = nn.ModuleList(
            Sublayer(
                mixer, build_norm(spec.norm, spec.d_model, spec.bias), spec.norm.place, spec.dropout, spec.residual
            )
            for _ in range(1 if spec.share_layers else spec.n_layers)
            for mixer in _build_layer_mixers(spec, add_cross_attention)
        )
        self.n_passes = spec.n_layers if spec.share_layers else 1
        if not spec.norm.first:
            self.sublayers_in_order()[0].norm = nn.Identity()
        self.sublayers_per_layer = len(self.sublayers) * self.n_passes // spec.n_layers
        if spec.x0:
            for first in cast(Iterable[Sublayer], self.sublayers[:: self.sublayers_per_layer]):
                first.x_scale, first.x0_scale = (nn.Parameter(torch.empty(1)) for _ in range(2))
                nn.init.ones_(first.x_scale)
                nn.init.zeros_(first.x0_scale)
        for part in find_attention_modules(self).values():
            part.n_layers = self.n_passes
        self.parallel = spec.parallel
        self.adds_to_layer_input = spec.residual_from == "layer"
        self.norm = nn.Identity() if spec.norm.place == "post" else build_norm(spec.norm, spec.d_model, spec.bias)
        init_linears_and_embeddings_(self, spec)
        if spec.init.scale_residual and spec.residual:
            # smaller projections into the residual stream (Radford et al. 2019)
            sublayers = self.sublayers_in_order()
            for sublayer in sublayers[: len(self.sublayers)]:
                for projection in sublayer.mixer.output_projections():
                    nn.init.normal_(projection.weight, std=spec.init.std * len(sublayers) ** -0.5)

    def sublayers_in_order(self) -> list[Sublayer]:
        """Returns the sublayers in the order of a forward pass, shared ones once for each layer."""
        return cast(list[Sublayer], [*self.sublayers] * self.n_passes)

    def initial_state_per_sublayer(self, n_rows: int, source_BSD: Tensor | None = None) -> tuple[LayerState, ...]:
        """Returns the initial cache of every sublayer."""
        sublayers = self.sublayers_in_order()
        memories = repeat(None, len(sublayers)) if source_BSD is None else self.project_source_per_sublayer(source_BSD)
        pairs = zip(sublayers, memories, strict=True)
        return tuple(memory or sublayer.mixer.initial_state(n_rows) for sublayer, memory in pairs)

    def project_source_per_sublayer(self, source_BSD: Tensor) -> Caches:
        """Returns keys and values of the source for every sublayer with cross-attention, None for the others."""
        mixers = [sublayer.mixer for sublayer in self.sublayers_in_order()]
        return tuple(
            mixer.project_source(source_BSD) if isinstance(mixer, CrossAttention) else None for mixer in mixers
        )

    def forward(
        self,
        x_BTD: Tensor,
        positions_PS: Tensor,
        mask: Mask,
        caches: Caches = (),
        source_keep_BS: Tensor | None = None,
        hidden_states_by_layer: list[Tensor] | None = None,
    ) -> tuple[HiddenOutput, tuple[LayerState | None, ...]]:
        """Returns the hidden states (B, T, D) of the inputs, which continue the cached positions, and the new caches.

        Args:
            positions_PS: of all positions, cached ones first.
            mask: covers all positions.
            caches: of each sublayer; none in a full forward pass but those of a source.
            source_keep_BS: False at padding of the source; None without padding.
            hidden_states_by_layer: if given, collects the inputs and the output of each layer, the last after the norm.
        """
        T = x_BTD.shape[1]
        sublayers = self.sublayers_in_order()
        caches = caches or (None,) * len(sublayers)
        source = None
        if memory := next((cache for cache in caches if isinstance(cache, Memory)), None):
            positions_1S = torch.arange(memory.k_BNSH.shape[2], device=x_BTD.device)[None]
            source = AttentionOp(Mask(keep_BS=source_keep_BS), T, positions_1S)
        if _must_use_text_positions_for_windows(mask, positions_PS):
            mask = replace(mask, text_positions_PS=positions_PS)
        position = self.position if mask.window is None else self.window_position[0]
        attend = attend_fully = AttentionOp(mask, T, positions_PS, position, source)
        if self.full_layers:
            full_mask = replace(mask, window=None, dilation=1, n_global=0, text_positions_PS=None)
            attend_fully = AttentionOp(full_mask, T, positions_PS, self.position, source)
        recomputes = self.recomputes_activations and self.training and torch.is_grad_enabled()
        outputs: list[CacheAndLoss] = []
        x0_BTD = x_BTD
        for layer, first in enumerate(range(0, len(sublayers), self.sublayers_per_layer)):
            if hidden_states_by_layer is not None:
                hidden_states_by_layer.append(x_BTD)
            part = slice(first, first + self.sublayers_per_layer)
            attend_here = attend_fully if layer in self.full_layers else attend
            inputs = sublayers[part], x_BTD, x0_BTD, attend_here, caches[part]
            if recomputes:
                x_BTD, others = checkpoint(self._run_layer, *inputs, shares_bias=False, use_reentrant=False)
            else:
                x_BTD, others = self._run_layer(*inputs)
            outputs += others
        hidden_BTD: Tensor = self.norm(x_BTD)
        if hidden_states_by_layer is not None:
            hidden_states_by_layer.append(hidden_BTD)
        new_caches, auxiliaries = zip(*outputs, strict=True)
        return HiddenOutput(hidden_BTD, sum_auxiliary_losses(auxiliaries)), new_caches

    def _run_layer(
        self,
        sublayers: Sequence[Sublayer],
        x_BTD: Tensor,
        x0_BTD: Tensor,
        attend: AttentionOp,
        caches: Caches,
        shares_bias: bool = True,
    ) -> tuple[Tensor, list[CacheAndLoss]]:
        """Returns the output of one layer, and what each of its sublayers leaves besides.

        x0_BTD: the input of the first layer.
        shares_bias: whether a positional bias with a gradient is shared with other layers.
        """
        attend = attend if shares_bias else attend.with_unshared_bias()
        outputs = []
        first = sublayers[0]
        if first.x_scale is not None and first.x0_scale is not None:
            x_BTD = first.x_scale * x_BTD + first.x0_scale * x0_BTD
        input_BTD = x_BTD
        for sublayer, cache in zip(sublayers, caches, strict=True):
            read_BTD = input_BTD if self.parallel else x_BTD
            stream_BTD = input_BTD if self.adds_to_layer_input else x_BTD
            x_BTD, new_cache, auxiliary_B = sublayer(stream_BTD, attend, cache, read_BTD)
            outputs.append((new_cache, auxiliary_B))
        return x_BTD, outputs

    def modules_by_depth(self) -> ModulesByDepth:
        """Returns the sublayers of each layer, the last one with the final norm; shared ones are one layer."""
        sublayers, n = list(self.sublayers), self.sublayers_per_layer
        return append_to_last_layer((sublayers[i : i + n] for i in range(0, len(sublayers), n)), self.norm)


def enable_activation_recomputation_(model: nn.Module) -> bool:
    """Makes the stacks of a model recompute their activations. Returns whether it has any that did not yet."""
    stacks = [part for part in model.modules() if isinstance(part, Stack) and not part.recomputes_activations]
    for stack in stacks:
        stack.recomputes_activations = True
    return bool(stacks)


def _must_use_text_positions_for_windows(mask: Mask, positions_PS: Tensor) -> bool:
    """Returns whether a window must use positions in the text, because they differ from those in the row.

    Right padding shifts nothing, and distances within isolated documents do not change. Rows that share a cache line
    are interleaved in it.
    """
    if mask.window is not None and mask.extra_mask_BQS is not None:
        return True
    if mask.window is None or (mask.keep_BS is None and (mask.documents_BS is None or not mask.n_global)):
        return False
    moved_PS = positions_PS != torch.arange(positions_PS.shape[1], device=positions_PS.device)
    return bool((moved_PS if mask.keep_BS is None else moved_PS & mask.keep_BS).any())


def _build_layer_mixers(spec: Transformer, add_cross_attention: bool) -> Sequence[Mixer]:
    mixers = [build_mixer(spec)]
    if add_cross_attention:
        mixers.append(CrossAttention(_head_sizes(spec), spec.dropout, _build_score(spec, is_cross_attention=True)))
    return [*mixers, build_feed_forward(spec)] if spec.inner_width else mixers


def build_mixer(spec: Transformer) -> Mixer:
    """Builds the token mixer of a layer."""
    match spec.mixer:
        case "attention":
            heads = _head_sizes(spec)
            gate_width = {"none": 0, "headwise": 1, "elementwise": heads.value_width}[spec.attention_gate]
            return attention.SelfAttention(heads, spec.dropout, _build_score(spec), _build_qk_norms(spec), gate_width)
        case "plain-attention":
            return attention.ProjectionFreeAttention(_head_sizes(spec), spec.dropout, _build_score(spec))


def build_feed_forward(spec: Transformer) -> Mixer:
    """Builds the position-wise sublayer of a layer."""
    match spec.feed_forward:
        case DenseFeedForward():
            return FeedForward(spec.d_model, spec.inner_width, spec.activation, spec.bias, spec.ffn_dropout)


def _head_sizes(spec: Transformer) -> AttentionHeadSizes:
    width = spec.head_width or spec.d_model // spec.n_heads
    qkv_bias = spec.bias if spec.qkv_bias is None else spec.qkv_bias
    n_kv, value_width = spec.n_kv_heads or spec.n_heads, spec.value_width or width
    return AttentionHeadSizes(spec.d_model, spec.n_heads, n_kv, width, value_width, bias=spec.bias, qkv_bias=qkv_bias)


def _build_score(spec: Transformer, is_cross_attention: bool = False) -> Score:
    """Builds the score of self-attention, or of attention to a source, which has no positions."""
    width = _head_sizes(spec).width
    if isinstance(spec.position, DisentangledPosition) and not is_cross_attention:
        return DisentangledScore(spec.n_heads, width, spec.d_model, 2 * spec.position.max_distance)
    return build_score(spec.score, spec.n_heads, width, spec.rank or width, spec.score_width or width)


def _build_qk_norms(spec: Transformer) -> tuple[HeadNorm, HeadNorm] | None:
    """Builds the norms of queries and of keys, if there are any."""
    if spec.qk_norm == "none":
        return None
    heads = _head_sizes(spec)
    n, n_kv = (heads.n_heads, heads.n_kv_heads) if spec.qk_norm == "joint" else (1, 1)
    return HeadNorm(n * heads.width, eps=spec.norm.eps), HeadNorm(n_kv * heads.width, eps=spec.norm.eps)
