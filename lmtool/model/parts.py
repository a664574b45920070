"""Parts that Transformers are made of: norms, positions, the position-wise feed-forward network.

Shapes: B rows, T positions, D model width. P is B, or 1 where all rows have the same positions.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.model.attention import Attend, JoinedLinear, Mixer
from lmtool.model.language_model import LayerState
from lmtool.recipe.spec import LearnedPosition, Norm, SinusoidalPosition, Transformer


def build_norm(spec: Norm, width: int, bias: bool) -> nn.Module:
    """LayerNorm with gamma and beta (Ba et al. 2016), or RMSNorm with gamma alone (Zhang and Sennrich 2019)."""
    match spec.kind:
        case "layer":
            return nn.LayerNorm(width, eps=spec.eps, bias=bias)
        case "rms":
            return nn.RMSNorm(width, eps=spec.eps)


class LearnedPositions(nn.Module):
    """A trained vector for each position."""

    def __init__(self, size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, d_model)

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        summed: Tensor = x_BTD + self.table(positions_PT)
        return summed


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) the cosine of the same (Vaswani et al. 2017)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        # float64, because float32 loses the fast waves' phase at far positions; mps has none
        wide = torch.float32 if x_BTD.device.type == "mps" else torch.float64
        exponents = torch.arange(0, self.d_model, 2, device=x_BTD.device, dtype=wide) / self.d_model
        angles = positions_PT[..., None] * 10000.0**-exponents
        waves = torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)
        return x_BTD + waves.to(x_BTD.dtype)


def build_position(spec: Transformer) -> nn.Module | None:
    """The module that adds positions to embeddings, or None when none are added."""
    match spec.position:
        case LearnedPosition(size=size):
            return LearnedPositions(size or spec.context, spec.d_model)
        case SinusoidalPosition():
            return SinusoidalPositions(spec.d_model)
        case _:
            return None


class FeedForward(Mixer):
    """Position-wise feed-forward network: W2 f(W1 x), or SwiGLU's W2 (silu(W1 x) * W3 x) (Shazeer 2020)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.up = JoinedLinear(d_model, (d_ff, d_ff) if activation == "swiglu" else (d_ff,), bias)
        self.out = nn.Linear(d_ff, d_model, bias=bias)

    def start(self, n_rows: int) -> LayerState:
        return ()

    def forward(self, x_BTD: Tensor, attend: Attend, past: LayerState | None) -> tuple[Tensor, LayerState | None]:
        inner = self._activate(self.up(x_BTD))
        return self.out(F.dropout(inner, self.dropout, self.training)), past

    def _activate(self, inner: Tensor) -> Tensor:
        match self.activation:
            case "relu":
                return F.relu(inner)
            case "gelu":
                return F.gelu(inner)
            case "gelu-tanh":
                return F.gelu(inner, approximate="tanh")
        gate, value = inner.chunk(2, -1)
        return F.silu(gate) * value


def embedding_scale(spec: Transformer) -> float:
    """What embeddings are multiplied by before positions are added."""
    return math.sqrt(spec.d_model) if spec.scale_embedding else 1.0
