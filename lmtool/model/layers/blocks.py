"""Building blocks of Transformers: norms, embeddings, heads, the position-wise feed-forward network.

Shapes: B rows, T positions, D model width, V vocabulary. P is B, or 1 where all rows have the same positions.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.compute.kernels import ops
from lmtool.model.language_model import LayerState
from lmtool.model.layers.attention import (
    AdapterTargets,
    AttentionOp,
    JoinedLinear,
    Mixer,
    MixerOutput,
)
from lmtool.model.layers.norms import build_norm
from lmtool.model.layers.positions import build_position_embedding
from lmtool.recipe.spec.transformer import Norm, Transformer

GATE_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu-tanh", "geglu-exact": "gelu"}
"""The nonlinearity of the gate of each gated activation."""


class FeedForward(Mixer):
    """Position-wise feed-forward network: W2 f(W1 x), or gated W2 (f(W1 x) * W3 x) (Shazeer 2020)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.up = JoinedLinear(d_model, (d_ff, d_ff) if activation in GATE_ACTIVATIONS else (d_ff,), bias)
        self.out = nn.Linear(d_ff, d_model, bias=bias)

    def initial_state(self, n_rows: int) -> LayerState:
        return ()

    def forward(self, x_BTD: Tensor, attend: AttentionOp, cache: LayerState | None) -> MixerOutput:
        inner = apply_plain_or_gated_activation(self.up(x_BTD), self.activation)
        return MixerOutput(self.out(ops.dropout(inner, self.dropout, self.training)), cache)

    def adapter_targets(self) -> AdapterTargets:
        return ("up", ("feed-forward",) * len(self.up.widths)), ("out", ("feed-forward",))


class InputEmbeddings(nn.Module):
    """Input embeddings of a stack: token, segment and position, with norm and dropout, mapped to the model width.

    shared: the token embedding of another stack, to use instead of its own.
    """

    def __init__(self, spec: Transformer, vocab_size: int, shared: nn.Embedding | None = None) -> None:
        super().__init__()
        width = spec.embedding_width or spec.d_model
        if shared is None:
            shared = self.tokens = nn.Embedding(vocab_size, width)
        # in a tuple, so that the embedding of another stack is not registered here too
        self._tokens = (shared,)
        self.segments = nn.Embedding(spec.n_segments, width) if spec.n_segments else None
        self.position = build_position_embedding(spec)
        self.norm = build_norm(spec.norm, width, spec.bias) if spec.norm.embedding else nn.Identity()
        self.scale = math.sqrt(width) if spec.scale_embedding else 1.0
        self.dropout = spec.dropout
        init_linears_and_embeddings_(self, spec, spec.init.embedding_std)
        self.project = None
        if spec.embedding_width is not None:
            self.project = nn.Linear(width, spec.d_model, bias=spec.bias)
            init_linears_and_embeddings_(self.project, spec)

    def forward(
        self, tokens_BT: Tensor, positions_PT: Tensor, segments_BT: Tensor | None, added_BTD: Tensor | None
    ) -> Tensor:
        """Returns the embeddings (B, T, D). See `embed_before_projection`."""
        x_BTD = self.embed_before_projection(tokens_BT, positions_PT, segments_BT, added_BTD)
        return x_BTD if self.project is None else cast(Tensor, self.project(x_BTD)).to(x_BTD.dtype)

    def embed_before_projection(
        self, tokens_BT: Tensor, positions_PT: Tensor, segments_BT: Tensor | None, added_BTD: Tensor | None
    ) -> Tensor:
        """Returns the embeddings before they are mapped to the model width.

        Args:
            segments_BT: None if all tokens belong to the first segment.
            added_BTD: what else is added, if anything.
        """
        x_BTD: Tensor = self._tokens[0](tokens_BT) * self.scale
        if added_BTD is not None:
            x_BTD = x_BTD + added_BTD
        if self.segments is not None:
            x_BTD = x_BTD + (self.segments.weight[0] if segments_BT is None else self.segments(segments_BT))
        if self.position is not None:
            x_BTD = self.position(x_BTD, positions_PT)
        return ops.dropout(self.norm(x_BTD), self.dropout, self.training)


class ElectraGeneratorInputEmbeddings(InputEmbeddings):
    """All input embeddings of another stack, mapped to the width of a model (Clark et al. 2020)."""

    def __init__(self, inputs: InputEmbeddings, spec: Transformer) -> None:
        nn.Module.__init__(self)
        # in a tuple, so that they are not registered here too
        self._inputs = (inputs,)
        self.project = nn.Linear(spec.embedding_width or spec.d_model, spec.d_model, bias=spec.bias)
        init_linears_and_embeddings_(self.project, spec)

    @property
    def tokens(self) -> nn.Embedding:  # type: ignore[override]  # not registered
        return self._inputs[0].tokens

    def embed_before_projection(
        self, tokens_BT: Tensor, positions_PT: Tensor, segments_BT: Tensor | None, added_BTD: Tensor | None
    ) -> Tensor:
        return self._inputs[0].embed_before_projection(tokens_BT, positions_PT, segments_BT, added_BTD)


class LanguageModelHead(nn.Module):
    """Maps hidden states to logits, by the embedding matrix or one of its own. BERT transforms the states first."""

    def __init__(self, spec: Transformer, vocab_size: int, embedding: nn.Embedding) -> None:
        super().__init__()
        # the transform maps states to the width of the embeddings
        width = spec.embedding_width if spec.embedding_width and spec.head_transform else spec.d_model
        self.scale = spec.d_model**-0.5 if spec.scale_head else 1.0
        self.activation = GATE_ACTIVATIONS.get(spec.activation, spec.activation)
        self.dense = nn.Linear(spec.d_model, width, bias=spec.bias) if spec.head_transform else None
        self.norm = build_norm(spec.norm, width, spec.bias) if spec.head_transform else None
        self.own = None if spec.tie_embeddings else nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if spec.head_bias else None
        # in a tuple, so that it is not registered as a parameter of the head too
        self._embedding = (embedding,)
        init_linears_and_embeddings_(self, spec)
        if self.own is not None:
            nn.init.normal_(self.own, std=spec.init.std)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the logits (..., V) of hidden states (..., D)."""
        if self.dense is not None and self.norm is not None:
            hidden = self.norm(apply_plain_or_gated_activation(self.dense(hidden), self.activation))
        return self.project_to_vocabulary(hidden)

    def project_to_vocabulary(self, hidden: Tensor) -> Tensor:
        """Returns the logits of transformed states, which are as wide as the output matrix."""
        return F.linear(hidden if self.scale == 1.0 else hidden * self.scale, *self.projection_parameters())

    def used_parameters(self) -> tuple[Tensor, ...]:
        """Returns all parameters that `forward` uses."""
        shared = (self._embedding[0].weight,) if self.own is None else ()
        return (*shared, *self.parameters())

    def projection_parameters(self) -> tuple[Tensor, ...]:
        """Returns the output matrix and the bias, if there is one."""
        matrix = self._embedding[0].weight if self.own is None else self.own
        return (matrix,) if self.bias is None else (matrix, self.bias)


class SpanBoundaryHead(nn.Module):
    """Predicts a token of a masked span from the states l and r on both sides of the span and its position k in it.

    h = LN(gelu(U [l; r; p_k] + a)), y = LN(gelu(V h + b)), and logits by the output matrix of the model (Joshi et al.
    2020, section 3.2).
    """

    def __init__(self, spec: Transformer, vocab_size: int, head: LanguageModelHead) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        width, narrow = spec.d_model, spec.d_model if head.dense is None else head.dense.out_features
        self.positions = nn.Embedding(spec.context, width)
        self.inner, self.outer = nn.Linear(3 * width, width), nn.Linear(width, narrow)
        self.inner_norm, self.outer_norm = (build_norm(Norm(), size, bias=True) for size in (width, narrow))
        # in a tuple, so that it is not registered as a part of this head too
        self._head = (head,)
        init_linears_and_embeddings_(self, spec)

    def forward(self, left_MD: Tensor, right_MD: Tensor, position_M: Tensor) -> Tensor:
        """Returns the states of the tokens (M, width of the output matrix). position_M: counted from 0."""
        x_MD = torch.cat((left_MD, right_MD, self.positions(position_M)), -1)
        x_MD = self.inner_norm(F.gelu(self.inner(x_MD)))
        return cast(Tensor, self.outer_norm(F.gelu(self.outer(x_MD))))

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits (..., V) of states from `forward`."""
        return self._head[0].project_to_vocabulary(hidden)

    def head_parameters(self) -> tuple[Tensor, ...]:
        """Returns all parameters that `logits` uses."""
        return self._head[0].projection_parameters()


def apply_plain_or_gated_activation(x: Tensor, activation: str) -> Tensor:
    """Applies a nonlinearity. Of gated ones the first half of the last dimension is the gate, the second the value."""
    match activation:
        case "relu":
            return F.relu(x)
        case "relu-squared":
            return F.relu(x).square()
        case "tanh":
            return torch.tanh(x)
        case "gelu":
            return F.gelu(x)
        case "gelu-tanh":
            return F.gelu(x, approximate="tanh")
        case "silu":
            return F.silu(x)
        case "swiglu":
            return ops.swiglu(x)
    gate, value = x.chunk(2, -1)
    return apply_plain_or_gated_activation(gate, GATE_ACTIVATIONS[activation]) * value


def init_linears_and_embeddings_(module: nn.Module, spec: Transformer, std: float | None = None) -> None:
    """Sets matrices and embeddings to normal values, biases to zero (Radford et al. 2019). std: None for the spec's."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.normal_(layer.weight, std=std or spec.init.std)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
