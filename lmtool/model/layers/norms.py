"""Normalisation: LayerNorm and RMSNorm.

Shapes: D normalised width, all other dimensions in front of it.
"""

from typing import cast

from torch import Tensor, nn

from lmtool.compute.kernels import ops
from lmtool.recipe.spec.transformer import Norm


def build_norm(spec: Norm, width: int, bias: bool) -> nn.Module:
    """Builds LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), or an identity.

    bias: whether LayerNorm has a bias if the spec does not say.
    """
    match spec.kind:
        case "layer":
            return nn.LayerNorm(width, eps=spec.eps, bias=bias if spec.bias is None else spec.bias)
        case "rms":
            return OffsetRMSNorm(width, eps=spec.eps) if spec.unit_offset else RMSNorm(width, eps=spec.eps)
        case "none":
            return nn.Identity()


class RMSNorm(nn.RMSNorm):
    """x / (mean(x^2) + eps)^0.5 * w (Zhang and Sennrich 2019)."""

    def gain(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.gain(), cast(float, self.eps))


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose gain is 1 + w (Gemma Team 2024)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def gain(self) -> Tensor:
        return 1 + self.weight


class HeadNorm(RMSNorm):
    """RMSNorm of each part of its width: of single heads, or of all jointly (Dehghani et al. 2023; OLMo Team 2025)."""

    def forward(self, x: Tensor) -> Tensor:
        parts = x.to(self.weight.dtype).reshape(*x.shape[:-1], -1, *self.normalized_shape)
        return super().forward(parts).view(x.shape).to(x.dtype)
