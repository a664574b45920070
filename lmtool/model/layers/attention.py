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
from lmtool.compute.kernels import ops
from lmtool.model.language_model import KeyValue, LayerState, Memory
from lmtool.model.layers.kernels import FlexKernel, Kernel, StepKernel, WindowKernel, wide
from lmtool.model.layers.observing import Attending, Observer
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RotaryPositions
from lmtool.model.layers.scores import Score

FEW = 16
"""Up to this many queries after cached keys are computed one by one on CPUs in inference; see `_Steps`."""

FLEX_DEVICES = ("cuda",)
FLEX_FROM = 1024
"""From this many positions on, eight of its blocks, FlexAttention computes masks and biases in compiled models."""

FLEX_WIDTH = 16
"""Minimum width of heads in FlexAttention."""

FLEX_POSITIONS = (AttentionPositions, RotaryPositions, AlibiPositions)
"""Positional encodings that FlexAttention has, these and no others derived from them."""


class Attend:
    """softmax(score(q, k) + mask) v under one mask: built once per forward pass and shared by all layers of a stack.

    Masks, biases and rotations are computed lazily, on first use. Layers without attention read padding and document
    boundaries of their positions, the queries, from it: `keep_BT` and `begins_BT`.

    mask: which keys each query attends to.
    positions_PS: positions of all keys, the last `n_queries` being the queries'.
    rule: positional encoding inside attention; None for none.
    source: cross-attention, for layers that have it.
    """

    def __init__(
        self,
        mask: Mask,
        n_queries: int,
        positions_PS: Tensor,
        rule: AttentionPositions | None = None,
        source: "Attend | None" = None,
    ) -> None:
        self.mask = mask
        self.source = source
        self._n_queries, self._n_keys, self._device = n_queries, positions_PS.shape[1], positions_PS.device
        self._rule = rule
        self._positions_PS = positions_PS
        self._query_PT = positions_PS[:, self._n_keys - n_queries :]
        self._rotations: dict[torch.dtype, tuple[Tensor, Tensor] | None] = {}
        # no cached properties, since torch.compile stops at their locks
        self._begins_BT: Tensor | None = None
        self._kernel: Kernel | WindowKernel | StepKernel | None = None
        # one at most; torch.compile may forget that an attribute was set, but not what is in a list
        self._flex: list[FlexKernel] = []

    @property
    def keep_BT(self) -> Tensor | None:
        """False at padding queries; None without padding."""
        return None if self.mask.keep_BS is None else self.mask.keep_BS[:, self._n_keys - self._n_queries :]

    @property
    def begins_BT(self) -> Tensor | None:
        """True at the first query of each isolated document; None where a row is one text."""
        if self._begins_BT is None and (begins_BS := self.mask.document_starts_BS) is not None:
            self._begins_BT = begins_BS[:, self._n_keys - self._n_queries :]
        return self._begins_BT

    @property
    def in_blocks(self) -> bool:
        """Whether attention is computed block by block, not for all query-key pairs."""
        return self._n_queries == self._n_keys and WindowKernel.applies(self.mask, self._n_keys)

    def apart(self) -> "Attend":
        """The same without its bias, if that is learned and so has a gradient: it is computed anew."""
        if self._rule is None or not any(parameter.requires_grad for parameter in self._rule.parameters()):
            return self
        anew = copy(self)
        anew._kernel = None
        return anew

    def rotate(self, x_BNTH: Tensor) -> Tensor:
        """Queries and new keys of all heads, rotated to the positions of the queries."""
        if self._rule is None:
            return x_BNTH
        if x_BNTH.dtype not in self._rotations:
            self._rotations[x_BNTH.dtype] = self._rule.rotations(self._query_PT, x_BNTH.shape[-1], x_BNTH.dtype)
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
        """The weighted sums of the values: (B, N, T, H). Groups of N / K query heads share a key-value head.

        keys_BKSH: output of `score.keys`. score: the scaled dot product when None. observer: gets the weights (B, N, T,
        S), computed beside the sums from the same queries, keys and addends, since the fused kernel never forms them.
        """
        score = score or Score(q_BNTH.shape[-1] ** -0.5)
        q_BNTH = score.queries(q_BNTH)
        if self._rule is not None:
            score = self._rule.placed(score, self._positions_PS)
        if observer is None and self._flexes(q_BNTH, v_BKSH, dropout, score):
            if not self._flex:
                self._flex.append(FlexKernel(self.mask, self._positions_PS, self._rule))
            return self._flex[0](q_BNTH, keys_BKSH, v_BKSH, score)
        kernel = self._kernel = self._kernel or self._prepare()
        if observer is not None:
            with torch.autocast(q_BNTH.device.type, enabled=False):
                observer(kernel.weights(wide(q_BNTH), wide(keys_BKSH), score))
        return kernel(q_BNTH, keys_BKSH, v_BKSH, dropout, score)

    def _flexes(self, q_BNTH: Tensor, v_BKSH: Tensor, dropout: float, score: Score) -> bool:
        """Whether FlexAttention computes it, which is compiled: only in compiled models, so that no other waits for it.

        Where SDPA has the mask built in, that is faster; a dilated window is dense in blocks of its own.
        """
        mask, rule = self.mask, self._rule
        return (
            torch.compiler.is_compiling()
            and self._device.type in FLEX_DEVICES
            and FLEX_FROM <= self._n_keys == self._n_queries
            and min(q_BNTH.shape[-1], v_BKSH.shape[-1]) >= FLEX_WIDTH
            and score.scale is not None
            and not dropout
            and (rule is None or type(rule) in FLEX_POSITIONS)
            and (isinstance(rule, AlibiPositions) or not (mask.is_only_causal or mask.allows_all))
            and mask.dilation == 1
            and mask.extra_mask_BQS is None
        )

    def _prepare(self) -> "Kernel | WindowKernel | StepKernel":
        mask, n_queries, n_keys, device = self.mask, self._n_queries, self._n_keys, self._device
        if self.in_blocks:
            return WindowKernel(mask, self._positions_PS, self._rule)
        few = 1 < n_queries <= min(FEW, n_keys - 1) and mask.width == 1
        if few and mask.is_only_causal and device.type == "cpu" and not torch.is_grad_enabled():
            lengths = range(n_keys - n_queries + 1, n_keys + 1)
            steps = [Attend(mask, 1, self._positions_PS[:, :n], self._rule) for n in lengths]
            return StepKernel([step._prepare() for step in steps], n_keys)
        bias_PNTS = None if self._rule is None else self._rule.bias(self._query_PT, self._positions_PS)
        fused_causal = mask.is_only_causal and n_queries == n_keys and bias_PNTS is None
        sees_all = mask.allows_all or fused_causal or (mask.is_only_causal and n_queries == 1)
        allowed_BTS = None if sees_all else mask.to_tensor(n_queries, n_keys, device)
        return Kernel(allowed_BTS, bias_PNTS, fused_causal, n_keys, device)


class Mixed(NamedTuple):
    """Output of a mixer.

    x_BTD: added to the residual stream.
    now: the updated cache, which may be None without a cache.
    auxiliary_B: as in `Output`.
    """

    x_BTD: Tensor
    now: LayerState | None = None
    auxiliary_B: Tensor | None = None


Adaptable = tuple[tuple[str, tuple[str, ...]], ...]
"""Linear maps by name, each with the names of its parts as adapter targets."""


class Mixer(nn.Module, ABC):
    """A sublayer's function, without the residual connection; `out` is its projection into the residual stream."""

    out: nn.Linear

    def projections(self) -> Sequence[nn.Linear]:
        """Its projections into the residual stream: `out`, or those of the mixers it is composed of."""
        return (self.out,)

    @abstractmethod
    def start(self, n_rows: int) -> LayerState:
        """The cache before the first token, but see `CrossAttention.read`."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        """The output for x, which continues the cached `past`; and the updated cache, unless `past` is None.

        `past` is None in a full forward pass; only then is there an auxiliary loss. `attend` holds the padding mask and
        the boundaries of isolated documents. A mixer whose cache is a plain tuple gets rows that share a cache line
        separately; all others get the whole line.
        """

    def adaptable(self) -> Adaptable:
        """Its linear maps that can have adapters."""
        return ()


class JoinedLinear(nn.Linear):
    """Several linear maps of one input computed as one; `widths` are their output widths."""

    def __init__(self, d_in: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias=bias)
        self.widths = widths

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The output of each map."""
        return torch.split(self(x), list(self.widths), -1)


class Heads(NamedTuple):
    """Sizes of an attention: `n` heads of queries and `n_kv` of keys of `width`, and of values of `value_width`."""

    d_model: int
    n: int
    n_kv: int
    width: int
    value_width: int
    bias: bool = True
    qkv_bias: bool = True


class _MultiHead(Attending, Mixer):
    """Base of attention with several heads."""

    def __init__(self, sizes: Heads, dropout: float, score: Score | None, **maps: nn.Linear) -> None:
        """maps: into the heads, by name; without any, there is none out of them either."""
        super().__init__()
        self.n_heads, self.n_kv_heads = sizes.n, sizes.n_kv
        self.head_width, self.value_width = sizes.width, sizes.value_width
        self.dropout = dropout
        for name, linear in maps.items():
            self.add_module(name, linear)
        self.score = score or Score(self.head_width**-0.5)
        if maps:
            self.out = nn.Linear(sizes.n * sizes.value_width, sizes.d_model, bias=sizes.bias)

    def attended(self, attend: Attend, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        """The outputs of the heads side by side (B, T, N H), for queries, transformed keys, and values."""
        dropout = self.dropout if self.training else 0.0
        return attend(q_BNTH, k_BKSH, v_BKSH, dropout, self.score, self.observer).transpose(1, 2).flatten(2)

    def append_to_cache(
        self, past: LayerState | None, k_BKTH: Tensor, v_BKTH: Tensor
    ) -> KeyValue | tuple[Tensor, Tensor]:
        """Transformed keys, and values, after those of a cache, which is then the updated one; alone without any."""
        k_BKTH = self.score.keys(k_BKTH)
        return past.plus(k_BKTH, v_BKTH) if isinstance(past, KeyValue) else (k_BKTH, v_BKTH)


class SelfAttention(_MultiHead):
    """Multi-head self-attention (Vaswani et al. 2017), with grouped key-value heads (Ainslie et al. 2023)."""

    qkv: JoinedLinear

    def __init__(
        self, sizes: Heads, dropout: float, score: Score | None = None, norms: tuple[nn.Module, nn.Module] | None = None
    ) -> None:
        """norms: of queries and of keys."""
        widths = (sizes.n * sizes.width, sizes.n_kv * sizes.width, sizes.n_kv * sizes.value_width)
        super().__init__(sizes, dropout, score, qkv=JoinedLinear(sizes.d_model, widths, sizes.qkv_bias))
        self.q_norm, self.k_norm = norms or (nn.Identity(), nn.Identity())
        self._norms = norms is not None

    def start(self, n_rows: int) -> KeyValue:
        """An empty KV cache."""
        none = self.qkv.weight.new_empty(n_rows, self.n_kv_heads, 0, self.head_width)
        return KeyValue(self.score.keys(none), none.new_empty(n_rows, self.n_kv_heads, 0, self.value_width))

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        qkv: Tensor = self.qkv(x_BTD)
        if self._norms:
            q, k, v = torch.split(qkv, list(self.qkv.widths), -1)
            qkv = torch.cat((self.q_norm(q), self.k_norm(k), v), -1)
        n_values = self.qkv.widths[-1]
        qk, v = torch.split(qkv, [qkv.shape[-1] - n_values, n_values], -1)
        qk, v = _by_head(qk, self.head_width), _by_head(v, self.value_width)
        q, k = torch.split(attend.rotate(qk), [qk.shape[1] - self.n_kv_heads, self.n_kv_heads], 1)
        seen = self.append_to_cache(past, k, v)
        return Mixed(self.out(self.attended(attend, q, *seen)), None if past is None else seen)

    def adaptable(self) -> Adaptable:
        return ("qkv", ("query", "key", "value")), ("out", ("output",))


class PlainAttention(_MultiHead):
    """Self-attention without maps: weighted means of the states themselves, sum_s softmax_s(score(h_t, h_s)) h_s.

    With several heads each has its part of the states, and their outputs stand side by side.
    """

    origin: Tensor

    def __init__(self, sizes: Heads, dropout: float, score: Score) -> None:
        super().__init__(sizes, dropout, score)
        # nothing, on the device and in the dtype of the model
        self.register_buffer("origin", torch.tensor(()), persistent=False)

    def projections(self) -> Sequence[nn.Linear]:
        return ()

    def start(self, n_rows: int) -> KeyValue:
        """An empty cache of states."""
        none = self.origin.new_empty(n_rows, self.n_heads, 0, self.head_width)
        return KeyValue(self.score.keys(none), none)

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        v = _by_head(x_BTD, self.head_width)
        q = attend.rotate(v)
        seen = self.append_to_cache(past, q, v)
        return Mixed(self.attended(attend, q, *seen), None if past is None else seen)


class CrossAttention(_MultiHead):
    """Cross-attention: queries from the decoder, keys and values from the encoder's last layer."""

    q: nn.Linear
    kv: JoinedLinear

    def __init__(self, sizes: Heads, dropout: float, score: Score | None = None) -> None:
        widths = (sizes.n_kv * sizes.width, sizes.n_kv * sizes.value_width)
        q = nn.Linear(sizes.d_model, sizes.n * sizes.width, bias=sizes.qkv_bias)
        super().__init__(sizes, dropout, score, q=q, kv=JoinedLinear(sizes.d_model, widths, sizes.qkv_bias))

    def start(self, n_rows: int) -> LayerState:
        raise RuntimeError("cross-attention starts by reading a source")

    def read(self, source_BSD: Tensor) -> Memory:
        """Keys and values of a source."""
        k, v = self.kv.parts(source_BSD)
        return Memory(self.score.keys(_by_head(k, self.head_width)), _by_head(v, self.value_width))

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> Mixed:
        assert isinstance(past, Memory)
        assert attend.source is not None
        q_BNTH = _by_head(self.q(x_BTD), self.head_width)
        return Mixed(self.out(self.attended(attend.source, q_BNTH, past.k_BNSH, past.v_BNSH)), past)

    def adaptable(self) -> Adaptable:
        return ("q", ("query",)), ("kv", ("key", "value")), ("out", ("output",))


def _by_head(x_BTD: Tensor, width: int) -> Tensor:
    """The heads of joined ones (B, N, T, width)."""
    return x_BTD.view(*x_BTD.shape[:2], -1, width).transpose(1, 2)


def mixers_of(model: nn.Module) -> list[Mixer]:
    """All mixers of a model, in module order, nested ones included."""
    return [module for module in model.modules() if isinstance(module, Mixer)]


def linears_of(model: nn.Module) -> list[nn.Linear]:
    """The linear maps in the mixers of a model, each once, in module order."""
    linears = (part for mixer in mixers_of(model) for part in mixer.modules() if isinstance(part, nn.Linear))
    return list(dict.fromkeys(linears))


def widths_of(linear: nn.Linear) -> tuple[int, ...]:
    """Output widths of the maps that a linear map computes jointly; else the one of its own."""
    return linear.widths if isinstance(linear, JoinedLinear) else (linear.out_features,)


def layer_matrices(model: nn.Module) -> dict[nn.Parameter, list[int]]:
    """Weights of the linear maps inside layers, each with the row counts of its parts; no embeddings or heads."""
    blocks = {cast(nn.Parameter, linear.weight): list(widths_of(linear)) for linear in linears_of(model)}
    for kernel in (module for module in model.modules() if isinstance(module, nn.RNNBase)):
        # one part per gate
        blocks |= {w: [kernel.hidden_size] * (len(w) // kernel.hidden_size) for w in kernel.parameters() if w.ndim == 2}
    return blocks
