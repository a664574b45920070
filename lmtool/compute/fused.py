"""Parts of a training step that a C kernel computes in one pass each on a CPU, with their gradients.

torch has several operations for each, every one of which reads and writes all numbers. A part that is not served by a
kernel is computed by those. Shapes: R rows of C numbers, B rows, T positions, N heads, H head width, A rotated
components, V vocabulary.
"""

from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lmtool.compute.native import Rotation, library

GRAIN = 2**15
"""Numbers for which a further thread is worth its start."""

Map = Callable[[Tensor], Tensor]


def is_served(*tensors: Tensor) -> bool:
    """Whether kernels compute with these: all of a CPU, of one type, float32 or bfloat16, and with memory.

    torch.compile writes such kernels itself, and a fake tensor has no memory.
    """
    dtype = tensors[0].dtype
    return (
        dtype in (torch.float32, torch.bfloat16)
        and all(x.device.type == "cpu" and x.dtype == dtype and type(x) in (Tensor, nn.Parameter) for x in tensors)
        and not torch.compiler.is_compiling()
        and library() is not None
    )


def _call(name: str, *arguments: Any, of: Tensor) -> None:
    """Call a kernel, with pointers for tensors; `of`: the numbers that its threads share."""
    threads = min(torch.get_num_threads(), 1 + of.numel() // GRAIN)
    values = (a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
    getattr(library(), name)(*values, threads)


def _is_narrow(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


class LinearMap(torch.autograd.Function):
    """A linear map by a function `forth`, whose gradient comes by a function `back`, its transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Map, back: Map) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        return forth(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad).to(ctx.dtype), None, None


def mapped(x: Tensor, forth: Map, back: Map) -> Tensor:
    """The same as a function. Neither map keeps x, which so is free after it."""
    result: Tensor = LinearMap.apply(x, forth, back)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


def dropped(x: Tensor, p: float) -> Tensor:
    """x / (1 - p), and 0 with probability p, rounded to 2^-32; of its gradient the same, by the same random bits."""
    seed, below = int(torch.empty((), dtype=torch.int64).random_()), min(round(p * 2**32), 2**32 - 1)

    def drop(x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        _call("drop", x, out, x.numel(), seed, below, 2**32 / (2**32 - below), _is_narrow(x), of=x)
        return out

    return mapped(x, drop, drop)


def rotated(x_BNTH: Tensor, cos_P1TA: Tensor, sin_P1TA: Tensor) -> Tensor:
    """Pairs (i, i + A/2) of the first A components rotated by the angles of a row, or of all: (B, N, T, H)."""
    cos_P1TA, sin_P1TA = cos_P1TA.contiguous(), sin_P1TA.contiguous()
    of_row = cos_P1TA[0].numel() if len(cos_P1TA) > 1 else 0

    def rotate(x_BNTH: Tensor, sign: float) -> Tensor:
        x_BNTH = x_BNTH if x_BNTH.stride(-1) == 1 else x_BNTH.contiguous()
        out = x_BNTH.new_empty(x_BNTH.shape)
        rotation = Rotation(*x_BNTH.shape, cos_P1TA.shape[-1], *x_BNTH.stride()[:3], of_row)
        _call("rotate_heads", byref(rotation), x_BNTH, out, cos_P1TA, sin_P1TA, sign, _is_narrow(out), of=out)
        return out

    return mapped(x_BNTH, partial(rotate, sign=1.0), partial(rotate, sign=-1.0))


class Gated(torch.autograd.Function):
    """silu(g) v of rows that begin with g (R, C) and go on with v: (R, C)."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor) -> Tensor:
        inner = inner.contiguous()
        ctx.save_for_backward(inner)
        width = inner.shape[-1] // 2
        out = inner.new_empty(*inner.shape[:-1], width)
        _call("gate", inner, None, out, out.numel() // max(1, width), width, _is_narrow(out), of=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inner,) = ctx.saved_tensors
        grad, slope, width = grad.contiguous(), torch.empty_like(inner), grad.shape[-1]
        _call("gate", inner, grad, slope, grad.numel() // max(1, width), width, _is_narrow(grad), of=grad)
        return slope


class Normalised(torch.autograd.Function):
    """x / (mean(x^2) + eps)^0.5 * gain, in float32 (Zhang and Sennrich 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain_C: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out, factors_R = torch.empty_like(x), x.new_empty(x.shape[:-1])
        _call("normalise", x, gain_C, out, factors_R, factors_R.numel(), len(gain_C), eps, of=x)
        ctx.save_for_backward(x, gain_C, factors_R)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain_C, factors_R = ctx.saved_tensors
        grad, slope = grad.contiguous(), torch.empty_like(x)
        of_threads = x.new_zeros(torch.get_num_threads(), len(gain_C))
        sizes = factors_R.numel(), len(gain_C)
        _call("normalise_slopes", x, gain_C, factors_R, grad, slope, of_threads, *sizes, of=x)
        return slope, of_threads.sum(0), None


def cross_entropy(
    logits_RV: Tensor, targets_R: Tensor, weights_R: Tensor, masses: tuple[float, float], with_slope: bool
) -> tuple[Tensor, Tensor | None]:
    """w (-masses[0] log p(target) - masses[1] sum_k log p(k)) of each row, in float32, and its gradient."""
    logits_RV = logits_RV.contiguous()
    loss_R = torch.empty(len(logits_RV))
    slope_RV = torch.empty_like(logits_RV) if with_slope else None
    _call(
        "cross_entropy",
        *(logits_RV, slope_RV, loss_R, targets_R.contiguous(), weights_R.float().contiguous(), torch.tensor(masses)),
        *(*logits_RV.shape, _is_narrow(logits_RV)),
        of=logits_RV,
    )
    return loss_R, slope_RV
