"""Normalisation: LayerNorm, and RMSNorm with a backward pass that is fast on CPUs.

Shapes: D normalised width, all other dimensions in front of it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lmtool.recipe.spec.transformer import Norm

_BY_KERNEL = ("cpu", "meta")
"""Devices with the backward pass below; a GPU has a fused one, and without storage the same is kept for it."""


def build_norm(spec: Norm, width: int, bias: bool) -> nn.Module:
    """LayerNorm with gamma and beta (Ba et al. 2016), RMSNorm with gamma (Zhang and Sennrich 2019), or neither."""
    match spec.kind:
        case "layer":
            return nn.LayerNorm(width, eps=spec.eps, bias=bias)
        case "rms":
            return OffsetRMSNorm(width, eps=spec.eps) if spec.unit_offset else RMSNorm(width, eps=spec.eps)
        case "none":
            return nn.Identity()


class RMSNorm(nn.RMSNorm):
    """x / (mean(x^2) + eps)^0.5 * w (Zhang and Sennrich 2019)."""

    def gain(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        gain_D = self.gain()
        is_plain = x.dtype == gain_D.dtype and x.device.type in _BY_KERNEL and not torch.compiler.is_compiling()
        if is_plain and torch.is_grad_enabled():
            normed: Tensor = _RmsNorm.apply(x, gain_D, self.eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return normed
        return F.rms_norm(x, self.normalized_shape, gain_D, self.eps)


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


class _RmsNorm(torch.autograd.Function):
    """F.rms_norm with the gradients of LayerNorm's kernel, in a third of autograd's time.

    With mean 0 that kernel's gradient in x is r (g w - mean(g w) - y mean(g w y)), y = r x, from which only the mean of
    g w is to be taken out.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
        normed: Tensor
        normed, r = torch.ops.aten._fused_rms_norm.default(x, list(gain_D.shape), gain_D, eps)
        ctx.save_for_backward(x, gain_D, r)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, gain_D, r = ctx.saved_tensors
        grad = grad.contiguous()
        wanted = [*ctx.needs_input_grad[:2], False]
        grad_x, grad_gain_D, _ = torch.ops.aten.native_layer_norm_backward.default(
            grad, x.contiguous(), list(gain_D.shape), torch.zeros_like(r), r, gain_D, None, wanted
        )
        if wanted[0]:
            grad_x.add_((grad @ gain_D)[..., None] * r, alpha=1 / len(gain_D))
        return grad_x, grad_gain_D, None
