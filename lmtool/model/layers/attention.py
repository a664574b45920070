"""Multi-head attention, and the choice of the kernel that computes it.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width, D model width, P is B or 1 where
all rows have the same positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from lmtool.batch import Mask
from lmtool.compute.kernels import gpu, ops
from lmtool.model.language_model import KeyValueCache, LayerState, Memory
from lmtool.model.layers.kernels import AttentionKernel, DenseAttentionKernel, PerQueryCausalKernel, WindowKernel
from lmtool.model.layers.observing import ObservableAttention, Observer
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RotaryPositions
from lmtool.model.layers.scores import Score

MAX_STEPWISE_QUERIES = 16
"""On CPUs, inference computes up to this many queries after cached keys one by one; see `PerQueryCausalKernel`."""

FLEX_POSITIONS = (AttentionPositions, RotaryPositions, AlibiPositions)
"""Positional encodings that FlexAttention can compute; not their subclasses."""


class AttentionOp:
    """Computes softmax(score(q, k) + mask) v under one mask, for all layers of a stack in one forward pass.

    Masks, biases and rotations are computed on first use. Layers without attention read the padding and the document
    boundaries of their positions, the queries, from it: `keep_BT` and `is_later_document_start_BT`.

    mask: which keys each query attends to.
    positions_PS: positions of all keys; the last `n_queries` are those of the queries.
    position: positional encoding inside attention; None for none.
    source: the operation for cross-attention, for stacks that have it.
    """

    def __init__(
        self,
        mask: Mask,
        n_queries: int,
        positions_PS: Tensor,
        position: AttentionPositions | None = None,
        source: "AttentionOp | None" = None,
    ) -> None:
        self.mask = mask
        self.source = source
        self._n_queries, self._n_keys, self._device = n_queries, positions_PS.shape[1], positions_PS.device
        self._position = position
        self._positions_PS = positions_PS
        self._query_PT = positions_PS[:, self._n_keys - n_queries :]
        self._rotations: dict[torch.dtype, tuple[Tensor, Tensor] | None] = {}
        # not cached properties, because torch.compile stops at their locks
        self._document_starts_BT: Tensor | None = None
        self._kernel: AttentionKernel | None = None
        # at most one; torch.compile may forget that an attribute was set, but not what is in a list
        self._flex: list[gpu.FlexAttention] = []

    @property
    def keep_BT(self) -> Tensor | None:
        """False at padding queries; None without padding."""
        return None if self.mask.keep_BS is None else self.mask.keep_BS[:, self._n_keys - self._n_queries :]

    @property
    def is_later_document_start_BT(self) -> Tensor | None:
        """True at the first query of each isolated document after the first of a row; None where a row is one text."""
        if self._document_starts_BT is None and (begins_BS := self.mask.document_starts_after_first_BS) is not None:
            self._document_starts_BT = begins_BS[:, self._n_keys - self._n_queries :]
        return self._document_starts_BT

    @property
    def uses_window_blocks(self) -> bool:
        """Whether attention is computed block by block, not for all query-key pairs."""
        return self._n_queries == self._n_keys and WindowKernel.is_cheaper_than_dense(self.mask, self._n_keys)

    def with_unshared_bias(self) -> "AttentionOp":
        """Returns a copy that computes the bias again, if it has a gradient; else itself."""
        if self._position is None or not any(parameter.requires_grad for parameter in self._position.parameters()):
            return self
        unshared = copy(self)
        unshared._kernel = None
        return unshared

    def rotate(self, x_BNTH: Tensor) -> Tensor:
        """Rotates queries and new keys of all heads to the positions of the queries."""
        if self._position is None:
            return x_BNTH
        if x_BNTH.dtype not in self._rotations:
            self._rotations[x_BNTH.dtype] = self._position.cosines_and_sines(
                self._query_PT, x_BNTH.shape[-1], x_BNTH.dtype
            )
        rotation = self._rotations[x_BNTH.dtype]
        return x_BNTH if rotation is None else ops.rotary(x_BNTH, *rotation)

    def __call__(
        self,
        q_BNTH: Tensor,
        keys_BKSH: Tensor,
        v_BKSH: Tensor,
        dropout: float,
        score: Score | None = None,
        observer: Observer | None = None,
    ) -> Tensor:
        """Returns the weighted sums of the values (B, N, T, H). Groups of N / K query heads share a key-value head.

        Args:
            keys_BKSH: output of `score.transform_keys`.
            score: None for the scaled dot product.
            observer: gets the weights (B, N, T, S). They are computed separately from the same queries, keys and
                addends, because the fused kernel never forms them.
        """
        score = score or Score(q_BNTH.shape[-1] ** -0.5)
        q_BNTH = score.transform_queries(q_BNTH)
        if self._position is not None:
            score = self._position.bind_to_positions(score, self._positions_PS)
        if observer is None and self._prefers_flex_attention(q_BNTH, v_BKSH, dropout, score):
            if not self._flex:
                rule = self._position
                score_mod = rule.score_mod(self._positions_PS) if isinstance(rule, AlibiPositions) else None
                n_rows, n_keys, device = self.mask.n_rows, self._n_keys, self._device
                self._flex.append(gpu.FlexAttention(self.mask.allows, n_rows, n_keys, device, score_mod))
            assert score.scale is not None
            return self._flex[0](q_BNTH, keys_BKSH, v_BKSH, score.scale)
        kernel = self._kernel = self._kernel or self._choose_and_build_kernel()
        if observer is not None:
            dtype = torch.promote_types(q_BNTH.dtype, torch.float32)
            with torch.autocast(q_BNTH.device.type, enabled=False):
                observer(kernel.attention_weights(q_BNTH.to(dtype), keys_BKSH.to(dtype), score))
        return kernel(q_BNTH, keys_BKSH, v_BKSH, dropout, score)

    def _prefers_flex_attention(self, q_BNTH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> bool:
        """Returns whether to use FlexAttention.

        SDPA is faster where it has the mask built in; a dilated window is dense in the blocks of `WindowKernel`.
        """
        mask, rule = self.mask, self._position
        return (
            gpu.can_use_flex_attention(self._device, self._n_keys, min(q_BNTH.shape[-1], v_BKSH.shape[-1]))
            and self._n_keys == self._n_queries
            and score.scale is not None
            and not dropout
            and (rule is None or type(rule) in FLEX_POSITIONS)
            and (isinstance(rule, AlibiPositions) or not (mask.is_only_causal or mask.allows_all))
            and mask.dilation == 1
            and mask.extra_mask_BQS is None
        )

    def _choose_and_build_kernel(self) -> AttentionKernel:
        mask, n_queries, n_keys, device = self.mask, self._n_queries, self._n_keys, self._device
        if self.uses_window_blocks:
            return WindowKernel(mask, self._positions_PS, self._position)
        few = 1 < n_queries <= min(MAX_STEPWISE_QUERIES, n_keys - 1) and mask.width == 1
        if few and mask.is_only_causal and device.type == "cpu" and not torch.is_grad_enabled():
            lengths = range(n_keys - n_queries + 1, n_keys + 1)
            steps = [AttentionOp(mask, 1, self._positions_PS[:, :n], self._position) for n in lengths]
            return PerQueryCausalKernel([step._choose_and_build_kernel() for step in steps], n_keys)
        bias_PNTS = None if self._position is None else self._position.bias(self._query_PT, self._positions_PS)
        fused_causal = mask.is_only_causal and n_queries == n_keys and bias_PNTS is None
        sees_all = mask.allows_all or fused_causal or (mask.is_only_causal and n_queries == 1)
        allowed_BTS = None if sees_all else mask.to_tensor(n_queries, n_keys, device)
        return DenseAttentionKernel(allowed_BTS, bias_PNTS, fused_causal, n_keys, device)


class MixerOutput(NamedTuple):
    """Output of a mixer.

    x_BTD: what is added to the residual stream.
    cache: the updated cache; may be None if there was none.
    auxiliary_B: as in `HiddenOutput`.
    """

    x_BTD: Tensor
    cache: LayerState | None = None
    auxiliary_B: Tensor | None = None


AdapterTargets = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of linear maps, each with the adapter target that each of its parts belongs to."""


class Mixer(nn.Module, ABC):
    """A sublayer's function, without the residual connection; `out` is its projection into the residual stream."""

    out: nn.Linear

    def output_projections(self) -> Sequence[nn.Linear]:
        """Returns its projections into the residual stream: `out`, or those of the mixers it is composed of."""
        return (self.out,)

    @abstractmethod
    def initial_state(self, n_rows: int) -> LayerState:
        """Returns the cache before the first token; see `CrossAttention.project_source` for sources."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None) -> MixerOutput:
        """Returns the output for x, which continues the cached positions, and the updated cache.

        Args:
            attend: attention under the stack's mask, which also knows the padding and where isolated documents begin.
            cache: None in a full forward pass, the only one with an auxiliary loss. A mixer whose cache is a plain
                tuple gets rows that share a cache line separately; all others get the whole line.
        """

    def adapter_targets(self) -> AdapterTargets:
        """Returns its linear maps that can have adapters."""
        return ()


class JoinedLinear(nn.Linear):
    """Several linear maps of one input, computed as one. widths: their output widths."""

    def __init__(self, d_in: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias=bias)
        self.widths = widths

    def split_outputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the output of each map."""
        return torch.split(self(x), list(self.widths), -1)


class AttentionHeadSizes(NamedTuple):
    """Sizes of an attention. width: of a query or key head. value_width: of a value head. bias: of the output."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    width: int
    value_width: int
    bias: bool = True
    qkv_bias: bool = True


class _MultiHeadAttention(ObservableAttention, Mixer):
    """Base of attention with several heads."""

    def __init__(self, sizes: AttentionHeadSizes, dropout: float, score: Score | None, **maps: nn.Linear) -> None:
        """maps: projections into the heads, by name; without any there is no output projection either."""
        super().__init__()
        self.n_heads, self.n_kv_heads = sizes.n_heads, sizes.n_kv_heads
        self.head_width, self.value_width = sizes.width, sizes.value_width
        self.dropout = dropout
        for name, linear in maps.items():
            self.add_module(name, linear)
        self.score = score or Score(self.head_width**-0.5)
        if maps:
            self.out = nn.Linear(sizes.n_heads * sizes.value_width, sizes.d_model, bias=sizes.bias)

    def attend_heads(self, attend: AttentionOp, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        """Returns the concatenated outputs of the heads (B, T, N H). k_BKSH: transformed by the score."""
        dropout = self.dropout if self.training else 0.0
        return attend(q_BNTH, k_BKSH, v_BKSH, dropout, self.score, self.observer).transpose(1, 2).flatten(2)

    def transform_keys_for_score_and_append(
        self, cache: LayerState | None, k_BKTH: Tensor, v_BKTH: Tensor
    ) -> KeyValueCache | tuple[Tensor, Tensor]:
        """Transforms keys and returns the cache with them and the values; only these if there is no cache."""
        k_BKTH = self.score.transform_keys(k_BKTH)
        return cache.append(k_BKTH, v_BKTH) if isinstance(cache, KeyValueCache) else (k_BKTH, v_BKTH)


class SelfAttention(_MultiHeadAttention):
    """Multi-head self-attention (Vaswani et al. 2017), with grouped key-value heads (Ainslie et al. 2023)."""

    qkv: JoinedLinear

    def __init__(
        self,
        sizes: AttentionHeadSizes,
        dropout: float,
        score: Score | None = None,
        norms: Sequence[nn.Module] | None = None,
        gate_width: int = 0,
    ) -> None:
        """norms: of queries and of keys; None for neither. gate_width: gates of each head, 1 or the value width."""
        widths = (sizes.n_heads * sizes.width, sizes.n_kv_heads * sizes.width, sizes.n_kv_heads * sizes.value_width)
        super().__init__(sizes, dropout, score, qkv=JoinedLinear(sizes.d_model, widths, sizes.qkv_bias))
        self.q_norm, self.k_norm = norms or (nn.Identity(), nn.Identity())
        self._norms = norms is not None
        self.gate = nn.Linear(sizes.d_model, sizes.n_heads * gate_width, bias=False) if gate_width else None

    def initial_state(self, n_rows: int) -> KeyValueCache:
        k_BK0H = self.qkv.weight.new_empty(n_rows, self.n_kv_heads, 0, self.head_width)
        v_BK0H = k_BK0H.new_empty(n_rows, self.n_kv_heads, 0, self.value_width)
        return KeyValueCache(self.score.transform_keys(k_BK0H), v_BK0H)

    def forward(self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None) -> MixerOutput:
        qkv: Tensor = self.qkv(x_BTD)
        if self._norms:
            q, k, v = torch.split(qkv, list(self.qkv.widths), -1)
            qkv = torch.cat((self.q_norm(q), self.k_norm(k), v), -1)
        n_values = self.qkv.widths[-1]
        qk, v = torch.split(qkv, [qkv.shape[-1] - n_values, n_values], -1)
        qk, v = _split_heads(qk, self.head_width), _split_heads(v, self.value_width)
        q, k = torch.split(attend.rotate(qk), [qk.shape[1] - self.n_kv_heads, self.n_kv_heads], 1)
        keys_and_values = self.transform_keys_for_score_and_append(cache, k, v)
        mixed = self.attend_heads(attend, q, *keys_and_values)
        if self.gate is not None:
            by_head = (*mixed.shape[:2], self.n_heads, -1)
            mixed = (mixed.reshape(by_head) * torch.sigmoid(self.gate(x_BTD)).reshape(by_head)).flatten(2)
        return MixerOutput(self.out(mixed), None if cache is None else keys_and_values)

    def adapter_targets(self) -> AdapterTargets:
        return ("qkv", ("query", "key", "value")), ("out", ("output",))


class ProjectionFreeAttention(_MultiHeadAttention):
    """Self-attention without projections: weighted means of the states, sum_s softmax_s(score(h_t, h_s)) h_s.

    Each head has its part of the states, and their outputs are concatenated.
    """

    origin: Tensor

    def __init__(self, sizes: AttentionHeadSizes, dropout: float, score: Score) -> None:
        super().__init__(sizes, dropout, score)
        # an empty tensor on the device and in the dtype of the model
        self.register_buffer("origin", torch.tensor(()), persistent=False)

    def output_projections(self) -> Sequence[nn.Linear]:
        return ()

    def initial_state(self, n_rows: int) -> KeyValueCache:
        empty_BN0H = self.origin.new_empty(n_rows, self.n_heads, 0, self.head_width)
        return KeyValueCache(self.score.transform_keys(empty_BN0H), empty_BN0H)

    def forward(self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None) -> MixerOutput:
        v = _split_heads(x_BTD, self.head_width)
        q = attend.rotate(v)
        keys_and_values = self.transform_keys_for_score_and_append(cache, q, v)
        x_BTD = self.attend_heads(attend, q, *keys_and_values)
        return MixerOutput(x_BTD, None if cache is None else keys_and_values)


class CrossAttention(_MultiHeadAttention):
    """Cross-attention: queries from the decoder, keys and values from the encoder's last layer."""

    q: nn.Linear
    kv: JoinedLinear

    def __init__(self, sizes: AttentionHeadSizes, dropout: float, score: Score | None = None) -> None:
        widths = (sizes.n_kv_heads * sizes.width, sizes.n_kv_heads * sizes.value_width)
        q = nn.Linear(sizes.d_model, sizes.n_heads * sizes.width, bias=sizes.qkv_bias)
        super().__init__(sizes, dropout, score, q=q, kv=JoinedLinear(sizes.d_model, widths, sizes.qkv_bias))

    def initial_state(self, n_rows: int) -> LayerState:
        raise RuntimeError("cross-attention starts by reading a source")

    def project_source(self, source_BSD: Tensor) -> Memory:
        """Returns the keys and values of a source."""
        k, v = self.kv.split_outputs(source_BSD)
        return Memory(self.score.transform_keys(_split_heads(k, self.head_width)), _split_heads(v, self.value_width))

    def forward(self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None) -> MixerOutput:
        assert isinstance(cache, Memory)
        assert attend.source is not None
        q_BNTH = _split_heads(self.q(x_BTD), self.head_width)
        return MixerOutput(self.out(self.attend_heads(attend.source, q_BNTH, cache.k_BNSH, cache.v_BNSH)), cache)

    def adapter_targets(self) -> AdapterTargets:
        return ("q", ("query",)), ("kv", ("key", "value")), ("out", ("output",))


def _split_heads(x_BTD: Tensor, width: int) -> Tensor:
    """Splits the last dimension into heads (B, N, T, width)."""
    return x_BTD.view(*x_BTD.shape[:2], -1, width).transpose(1, 2)


def find_mixers(model: nn.Module) -> list[Mixer]:
    """Returns all mixers of a model, in module order, nested ones included."""
    return [module for module in model.modules() if isinstance(module, Mixer)]


def find_linears(model: nn.Module) -> list[nn.Linear]:
    """Returns the linear maps in the mixers of a model, each once, in module order."""
    linears = (part for mixer in find_mixers(model) for part in mixer.modules() if isinstance(part, nn.Linear))
    return list(dict.fromkeys(linears))


def output_widths(linear: nn.Linear) -> tuple[int, ...]:
    """Returns the output widths of the maps that a linear map computes jointly; else its own one."""
    return linear.widths if isinstance(linear, JoinedLinear) else (linear.out_features,)


def find_layer_matrices_and_part_rows(model: nn.Module) -> dict[nn.Parameter, list[int]]:
    """Returns the weight matrices inside layers, each with the row counts of its parts; no embeddings or heads."""
    blocks = {cast(nn.Parameter, linear.weight): list(output_widths(linear)) for linear in find_linears(model)}
    for kernel in (module for module in model.modules() if isinstance(module, nn.RNNBase)):
        # one part per gate
        blocks |= {w: [kernel.hidden_size] * (len(w) // kernel.hidden_size) for w in kernel.parameters() if w.ndim == 2}
    return blocks
