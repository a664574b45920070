"""Operators of layers. On a CPU, kernels in C compute each in one pass over its numbers, forward and backward.

torch has several operations for each, every one of which reads and writes all numbers. They are the plain formula of an
operator, which computes it on other devices, in other types and without a compiler. Each kernel is an operator of torch
with a fake implementation and a gradient, so that torch.compile sees it as one node of its graph.

torch.library.define is used instead of custom_op, whose operators import torch's compiler when they are first called:
0.9 seconds.

Shapes: R rows of C numbers, B rows, T positions, N heads, H head width, A rotated components, V vocabulary. P is B,
or 1 where all rows have the same positions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import c_int64
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lmtool.compute import torch_private
from lmtool.compute.kernels.build import load_kernels
from lmtool.compute.kernels.kernel_checks import is_kernel_right

NUMBERS_PER_THREAD = 2**15
"""Numbers for which a further thread is worth its start."""

KernelFunction = TypeVar("KernelFunction", bound=Callable[..., Any])

PLAIN_TYPES = (Tensor, nn.Parameter)
"""Types of tensors that have memory and no rules of their own."""

_FAKE_TENSORS_USE_KERNELS = ContextVar("fake_tensors_use_kernels", default=False)


@contextmanager
def use_kernels_for_fake_tensors() -> Iterator[None]:
    """Makes operators on fake tensors allocate what the kernels allocate, in place of the plain formulas."""
    before = _FAKE_TENSORS_USE_KERNELS.set(True)
    try:
        yield
    finally:
        _FAKE_TENSORS_USE_KERNELS.reset(before)


def has_kernels() -> bool:
    """Whether the kernels are there. They are compiled on first use."""
    return load_kernels() is not None


def has_kernel(name: str) -> bool:
    """Whether there is a right kernel of an operator; see `is_kernel_right`."""
    return is_kernel_right(name, _OPERATOR_COMPARISONS[name])


torch_private.mark_constant_(has_kernel)


def _can_use_kernel(name: str, *tensors: Tensor) -> bool:
    """Whether a kernel computes with these: all on a CPU, of one type, which the kernel has, and with memory; or fake
    ones, see `use_kernels_for_fake_tensors`."""
    dtype = tensors[0].dtype
    return (
        dtype in KERNEL_CHECKS[name].dtypes
        and all(x.device.type == "cpu" and x.dtype == dtype and _has_memory_or_allowed_fake(x) for x in tensors)
        and has_kernel(name)
    )


def _has_memory_or_allowed_fake(x: Tensor) -> bool:
    if type(x) in PLAIN_TYPES:
        return True
    # torch.compile stops at context variables
    return not torch.compiler.is_compiling() and _FAKE_TENSORS_USE_KERNELS.get()


def _call_kernel_unless_fake(name: str, *arguments: Any, work: Tensor) -> None:
    """Calls a kernel, with pointers for tensors and tuples; not for fake tensors. work: what its threads share."""
    if type(work) in PLAIN_TYPES:
        n_threads = min(torch.get_num_threads(), 1 + work.numel() // NUMBERS_PER_THREAD)
        getattr(load_kernels(), name)(*map(_to_c, arguments), n_threads)


def _to_c(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return (c_int64 * len(argument))(*argument)
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


def _is_bfloat16(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


def _register_operator(
    backward: Callable[..., tuple[Tensor, ...]] | None = None,
    saved_inputs: Sequence[int] = (),
    tags: Sequence[torch.Tag] = (),
) -> Callable[[KernelFunction], KernelFunction]:
    """Makes a function that calls a kernel an operator of torch, torch.ops.lmtool.NAME.

    It is that operator where torch.compile traces it. Otherwise the same functions make an autograd function, as the
    dispatch of an operator with a gradient in Python takes 2 to 4 % of a step of a small model.

    backward: gives the gradients of the first inputs. Its arguments are the inputs with the numbers `saved_inputs`,
        first the tensors, the outputs but the first, which have no gradient, and the gradient of the first output.
    """

    def register(kernel: KernelFunction) -> KernelFunction:
        name = kernel.__name__.removeprefix("_")
        schema = torch.library.infer_schema(kernel, mutates_args=())
        torch.library.define(f"lmtool::{name}", schema, tags=tags)
        torch.library.impl(f"lmtool::{name}", "cpu", kernel)
        torch.library.register_fake(f"lmtool::{name}", kernel)
        operator = getattr(torch.ops.lmtool, name).default
        eager: Callable[..., Any] = kernel
        if backward is not None:

            def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                others = output[1:] if isinstance(output, tuple) else ()
                saved = [inputs[i] for i in saved_inputs]
                ctx.save_for_backward(*(value for value in saved if isinstance(value, Tensor)), *others)
                ctx.numbers = [value for value in saved if not isinstance(value, Tensor)]
                ctx.n_inputs = len(inputs)
                ctx.mark_non_differentiable(*others)
                ctx.set_materialize_grads(False)

            @once_differentiable
            def compute_gradients(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
                found = backward(*ctx.saved_tensors, *ctx.numbers, grad)
                return *found, *(None,) * (ctx.n_inputs - len(found))

            def forward(ctx: Any, *inputs: Any) -> Any:
                output = kernel(*inputs)
                save_for_backward(ctx, inputs, output)
                return output

            torch.library.register_autograd(f"lmtool::{name}", compute_gradients, setup_context=save_for_backward)
            members = {"forward": staticmethod(forward), "backward": staticmethod(compute_gradients)}
            eager = type(name, (torch.autograd.Function,), members).apply  # type: ignore[attr-defined]

        def call(*arguments: Any) -> Any:
            is_traced = type(arguments[0]) not in PLAIN_TYPES or torch.compiler.is_compiling()
            return (operator if is_traced else eager)(*arguments)

        return cast(KernelFunction, call)

    return register


# RMSNorm


def rms_norm(x: Tensor, gain_C: Tensor, eps: float) -> Tensor:
    """x / (mean(x^2) + eps)^0.5 * gain (Zhang and Sennrich 2019)."""
    if _can_use_kernel("rms_norm", x, gain_C):
        return _rms_norm(x, gain_C, eps)[0]
    return F.rms_norm(x, gain_C.shape, gain_C, eps)


@_register_operator()
def _rms_norm_backward(x: Tensor, gain_C: Tensor, factors: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, grad = x.contiguous(), grad.contiguous()
    x_grad, gain_grads = torch.empty_like(x), x.new_zeros(torch.get_num_threads(), len(gain_C))
    _call_kernel_unless_fake(
        "rms_norm_backward", x, gain_C, factors, grad, x_grad, gain_grads, factors.numel(), len(gain_C), work=x
    )
    return x_grad, gain_grads.sum(0)


@_register_operator(_rms_norm_backward, saved_inputs=(0, 1))
def _rms_norm(x: Tensor, gain_C: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised rows, and the factor of each."""
    x = x.contiguous()
    out, factors = torch.empty_like(x), x.new_empty(x.shape[:-1])
    _call_kernel_unless_fake("rms_norm", x, gain_C, out, factors, factors.numel(), len(gain_C), eps, work=x)
    return out, factors


# SwiGLU


def swiglu(inner: Tensor) -> Tensor:
    """silu(g) v of rows that begin with g (..., C) and go on with v: (..., C) (Shazeer 2020)."""
    if _can_use_kernel("swiglu", inner):
        return _swiglu(inner)
    gate, value = inner.chunk(2, -1)
    return F.silu(gate) * value


@_register_operator()
def _swiglu_backward(inner: Tensor, grad: Tensor) -> Tensor:
    inner, grad = inner.contiguous(), grad.contiguous()
    inner_grad, width = torch.empty_like(inner), grad.shape[-1]
    _call_kernel_unless_fake(
        "swiglu", inner, grad, inner_grad, grad.numel() // max(1, width), width, _is_bfloat16(grad), work=grad
    )
    return inner_grad


@_register_operator(lambda inner, grad: (_swiglu_backward(inner, grad),), saved_inputs=(0,))
def _swiglu(inner: Tensor) -> Tensor:
    inner, width = inner.contiguous(), inner.shape[-1] // 2
    out = inner.new_empty(*inner.shape[:-1], width)
    _call_kernel_unless_fake(
        "swiglu", inner, None, out, out.numel() // max(1, width), width, _is_bfloat16(out), work=out
    )
    return out


# Rotary positions


def rotary(x_BNTH: Tensor, cos_P1TA: Tensor, signed_sin_P1TA: Tensor) -> Tensor:
    """Each pair (a, b) = (i, i + A/2) rotated by its angle: (a cos - b sin, b cos + a sin). The rest is unchanged.

    signed_sin_P1TA: negative for the first of each pair.
    """
    if _can_use_kernel("rotary", x_BNTH, cos_P1TA, signed_sin_P1TA):
        return _rotary(x_BNTH, cos_P1TA, signed_sin_P1TA, 1.0)
    A = cos_P1TA.shape[-1]
    turned = x_BNTH[..., :A]
    turned = torch.addcmul(turned * cos_P1TA, turned.roll(A // 2, -1), signed_sin_P1TA)
    return turned if x_BNTH.shape[-1] == A else torch.cat((turned, x_BNTH[..., A:]), -1)


@_register_operator(
    lambda cos, sin, sign, grad: (_rotary(grad, cos, sin, -sign),),  # type: ignore[has-type]  # of itself
    saved_inputs=(1, 2, 3),
)
def _rotary(x_BNTH: Tensor, cos_P1TA: Tensor, signed_sin_P1TA: Tensor, sign: float) -> Tensor:
    """Rotates by the angles; with sign -1 it rotates back, which is the gradient."""
    cos_P1TA, signed_sin_P1TA = cos_P1TA.contiguous(), signed_sin_P1TA.contiguous()
    x_BNTH = x_BNTH if x_BNTH.stride(-1) == 1 else x_BNTH.contiguous()
    out = x_BNTH.new_empty(x_BNTH.shape)
    row_stride = cos_P1TA[0].numel() if cos_P1TA.shape[0] > 1 else 0
    sizes = *x_BNTH.shape, cos_P1TA.shape[-1], *x_BNTH.stride()[:3], row_stride
    _call_kernel_unless_fake("rotary", sizes, x_BNTH, out, cos_P1TA, signed_sin_P1TA, sign, _is_bfloat16(out), work=out)
    return out


# Dropout


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x / (1 - p), and 0 with probability p, in training (Srivastava et al. 2014); otherwise x.

    Kernels round p to 2^-32, and compute random bits from a seed of 64 bits, in the backward pass again.
    """
    if not training or p == 0:
        return x
    if _can_use_kernel("dropout", x):
        return _dropout(x, p)[0]
    return F.dropout(x, p)


@_register_operator()
def _dropout_backward(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x, below = x.contiguous(), min(round(p * 2**32), 2**32 - 1)
    out = torch.empty_like(x)
    _call_kernel_unless_fake(
        "dropout", x, out, x.numel(), seed, below, 2**32 / (2**32 - below), _is_bfloat16(x), work=x
    )
    return out


@_register_operator(
    lambda seed, p, grad: (_dropout_backward(grad, seed, p),),
    saved_inputs=(1,),
    tags=(torch.Tag.nondeterministic_seeded,),
)
def _dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Returns the numbers after dropout, and the seed. The kernel drops gradients as it drops numbers."""
    seed = torch.empty((), dtype=torch.int64).random_()
    return _dropout_backward(x, seed, p), seed


# Cross-entropy


def cross_entropy(
    logits_RV: Tensor, targets_R: Tensor, weights_R: Tensor, target_mass: float, mass_per_class: float
) -> Tensor:
    """The sum of w (-target_mass log p(target) - mass_per_class sum_k log p(k)), computed in float32 or wider.

    Its gradient is computed with it, in half of autograd's passes over the logits.
    """
    if _can_use_kernel("cross_entropy", logits_RV):
        with_gradient = torch.is_grad_enabled() and logits_RV.requires_grad
        return _cross_entropy(logits_RV, targets_R, weights_R, target_mass, mass_per_class, with_gradient)[0]
    return cast(Tensor, _TorchCrossEntropySum.apply(logits_RV, targets_R, weights_R, target_mass, mass_per_class))  # type: ignore[no-untyped-call]


def _scale_logit_gradient(grad_RV: Tensor, loss_gradient: Tensor) -> Tensor:
    """The gradient of the logits, from that of a loss of which the gradient is 1."""
    if type(loss_gradient) is Tensor and loss_gradient.device.type == "cpu" and loss_gradient == 1:
        return grad_RV
    return grad_RV * loss_gradient.to(grad_RV.dtype)


@_register_operator(lambda grad_RV, grad: (_scale_logit_gradient(grad_RV, grad),))
def _cross_entropy(
    logits_RV: Tensor,
    targets_R: Tensor,
    weights_R: Tensor,
    target_mass: float,
    mass_per_class: float,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    logits_RV = logits_RV.contiguous()
    loss_R = torch.empty(logits_RV.shape[0])
    logits_grad = logits_RV.new_empty(logits_RV.shape if with_gradient else 0)
    _call_kernel_unless_fake(
        "cross_entropy",
        logits_RV,
        logits_grad if with_gradient else None,
        loss_R,
        targets_R.contiguous(),
        weights_R.float().contiguous(),
        torch.tensor((target_mass, mass_per_class)),
        *logits_RV.shape,
        _is_bfloat16(logits_RV),
        work=logits_RV,
    )
    return loss_R.sum(), logits_grad


class _TorchCrossEntropySum(torch.autograd.Function):
    """The plain formula, with the gradient p - q in closed form."""

    @staticmethod
    def forward(
        ctx: Any, logits_RV: Tensor, targets_R: Tensor, weights_R: Tensor, target_mass: float, mass_per_class: float
    ) -> Tensor:
        log_p_RV = logits_RV.log_softmax(-1, dtype=torch.promote_types(logits_RV.dtype, torch.float32))
        targets_R1 = targets_R[:, None]
        loss_R = -target_mass * log_p_RV.gather(-1, targets_R1)[:, 0]
        if mass_per_class:
            loss_R = loss_R - mass_per_class * log_p_RV.sum(-1)
        if ctx.needs_input_grad[0]:
            grad_RV = log_p_RV.exp_()
            if mass_per_class:
                grad_RV -= mass_per_class
            grad_RV.scatter_add_(-1, targets_R1, grad_RV.new_full(targets_R1.shape, -target_mass))
            grad_RV *= weights_R[:, None]
            # float16 would underflow before the gradient scale, applied later, can prevent it
            kept = torch.float32 if logits_RV.dtype == torch.float16 else logits_RV.dtype
            ctx.save_for_backward(grad_RV.to(kept))
        ctx.dtype = logits_RV.dtype
        return (loss_R * weights_R).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _scale_logit_gradient(ctx.saved_tensors[0], grads[0]).to(ctx.dtype), None, None, None, None


# Comparisons


class KernelCheck(NamedTuple):
    """A kernel and its formula as functions of one input (R, C), and the types of inputs that the kernel has."""

    kernel: Callable[[Tensor], Tensor]
    formula: Callable[[Tensor], Tensor]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)

    def compute_with_gradient(self, function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
        """Returns the value of one of the functions, and a gradient where it has one."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = function(x)
            return y.detach(), *(torch.autograd.grad(y.square().sum(), x) if y.requires_grad else ())


def draw_input() -> Tensor:
    """Draws an input (R, C) with which kernels are compared, always the same."""
    return torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))


def _rotate_head_for_check(rotate: Callable[..., Tensor], x: Tensor, *more: float) -> Tensor:
    """Rotates half of the components of one head, by the numbers of another."""
    angle_11TA = x.detach()[None, None, :, :256]
    cos, sin = angle_11TA.cos(), angle_11TA.sin()
    return rotate(x[None, None], torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), *more)


def _reproduce_kernel_dropout(x: Tensor) -> Tensor:
    """Drops what the kernel drops, by the same hash in whole numbers of torch."""
    seed, bits = int(_SEED), 2**32 - 1
    hashed = torch.arange(x.numel()) * 0x9E3779B9 + seed & bits
    hashed = (hashed ^ hashed >> 16) * 0x7FEB352D & bits
    hashed = (hashed ^ hashed >> 15 ^ seed >> 32) * 0x846CA68B & bits
    kept = (hashed ^ hashed >> 16) >= _P * 2**32
    return x * kept.view_as(x) / (1 - _P)


_EPS, _P, _SEED, _MASSES = 1e-5, 0.25, torch.tensor(0x123456789ABCDEF), (0.9, 1e-3)

KERNEL_CHECKS = {
    "rms_norm": KernelCheck(lambda x: _rms_norm(x, x[0], _EPS)[0], lambda x: rms_norm(x, x[0], _EPS), (torch.float32,)),
    "swiglu": KernelCheck(_swiglu, swiglu),
    "rotary": KernelCheck(
        lambda x: _rotate_head_for_check(_rotary, x, 1.0), lambda x: _rotate_head_for_check(rotary, x)
    ),
    "dropout": KernelCheck(
        lambda x: _dropout_backward(x.detach(), _SEED, _P), lambda x: _reproduce_kernel_dropout(x.detach())
    ),
    "cross_entropy": KernelCheck(
        lambda x: _cross_entropy(x, torch.arange(len(x)), torch.ones(len(x)), *_MASSES, True)[0],
        lambda x: cross_entropy(x, torch.arange(len(x)), torch.ones(len(x)), *_MASSES),
    ),
}
"""By the name of the operator."""


def _compare_kernel(check: KernelCheck) -> Iterator[tuple[Tensor, Tensor]]:
    """Compares a kernel in each of its types with the formula in float64, for which there are no kernels."""
    for dtype in check.dtypes:
        x = draw_input().to(dtype)
        yield from zip(
            check.compute_with_gradient(check.kernel, x),
            check.compute_with_gradient(check.formula, x.double()),
            strict=True,
        )


_OPERATOR_COMPARISONS = {name: partial(_compare_kernel, check) for name, check in KERNEL_CHECKS.items()}
