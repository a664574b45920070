"""Products of weight matrices by the libraries that torch has, in the layout that each multiplies fastest.

They serve where the kernels in C do not: several rows in 16 and 32 bits, widths that are no whole groups, other
devices, and machines without a compiler. Operators of oneDNN are private names, read in torch 2.13 and 2.14.

Shapes: I input width, O output width.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.compute.device import DTYPES, cpu_capabilities, has_fast_bfloat16
from lmtool.compute.kernels.matrices import (
    INT4_GROUP_SIZE,
    Int4GroupedWeight,
    Int8Weight,
    MatrixProduct,
    NativeMatrix,
    quantize_int4,
    quantize_int8,
)

OPTIMAL_ROWS = 16
"""Number of input rows that layouts are optimised for; any number works."""

_KNOWN = cpu_capabilities()

MAX_QUANTIZED_INPUT = 127 if (_KNOWN.get("avx512_vnni") or _KNOWN.get("avx_vnni")) else 63
"""Largest quantized input. With 7 bits the sum of two products fits in 16 bits."""

ROUNDING_OFFSET = torch.tensor(MAX_QUANTIZED_INPUT + 1.5)
"""Offset that makes quantized inputs positive, as the kernel requires; the half turns truncation into rounding."""


def build_product(weight: Tensor, precision: str, device: torch.device) -> MatrixProduct:
    """Builds the product by a weight (O, I) that is fastest on a device. precision: see `pack_weights_`."""
    if precision in ("int8", "int4"):
        precision = precision if weight.shape[1] % INT4_GROUP_SIZE == 0 else "int8"
        if (matrix := NativeMatrix.create_if_supported(weight, precision)) is not None:
            return matrix
        is_avx = device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        return _OneDnnInt8Product(weight) if precision == "int8" and is_avx else DequantizingProduct(weight, precision)
    weight = weight.to(DTYPES[precision])
    if device.type != "cpu" or precision == "float16" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return _TorchLinearProduct(weight)
    is_slow = precision == "bfloat16" and not has_fast_bfloat16(device)
    return _UpcastProduct(weight) if is_slow else _OneDnnProduct(weight)


def build_head_product(weight: Tensor, model_precision: str, device: torch.device) -> MatrixProduct:
    """Builds the product by the head of a model, with outputs in float32 and weights of 8 bits or more."""
    if model_precision in ("float32", "int8", "int4"):
        return build_product(weight, "float32" if model_precision == "float32" else "int8", device)
    by_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    if device.type == "cpu" and by_fbgemm and hasattr(torch.ops.quantized, "linear_prepack_fp16"):
        return _Float16WeightProduct(weight)
    return build_product(weight, "float32", device)


class _TorchLinearProduct(MatrixProduct):
    """A product in the weight's dtype."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.weight.dtype
        return F.linear(x.to(dtype), self.weight, None if bias is None else bias.to(dtype))

    def dequantize(self) -> Tensor:
        return self.weight


class _UpcastProduct(_TorchLinearProduct):
    """A product of values in the weight's dtype, computed in float32 and rounded to that dtype."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.weight.dtype
        bias = None if bias is None else bias.to(dtype).float()
        return F.linear(x.to(dtype).float(), self.weight.float(), bias).to(dtype)


class _OneDnnProduct(MatrixProduct):
    """A product in the weight's dtype by oneDNN, with a weight in its blocked layout."""

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), OPTIMAL_ROWS)
        # the overload by name, because resolving it takes as long as a small product
        self.multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(self.dtype)
        return cast(Tensor, self.multiply(x.to(self.dtype), self.packed, bias, "none", [], ""))

    def dequantize(self) -> Tensor:
        return cast(Tensor, self.packed.to_dense())


class _Float16WeightProduct(MatrixProduct):
    """A float16 weight with float32 inputs, accumulation and outputs."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        return product if bias is None else product + bias

    def dequantize(self) -> Tensor:
        return cast(Tensor, torch.ops.quantized.linear_unpack_fp16(self.packed)[0]).half()


class DequantizingProduct(MatrixProduct):
    """Weights of 4 bits if the inputs are whole groups, else of 8, which are dequantized for each product.

    Gradients pass through it; the weights are dequantized again for them, so that none are kept in between.
    """

    def __init__(self, weight: Tensor, precision: str) -> None:
        quantize = quantize_int4 if precision == "int4" and weight.shape[1] % INT4_GROUP_SIZE == 0 else quantize_int8
        self.weights: Int8Weight | Int4GroupedWeight = quantize(weight)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = _DequantizingLinear.apply(x, self)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return product if bias is None else product + bias

    def dequantize(self) -> Tensor:
        return self.weights.dequantize()


class _DequantizingLinear(torch.autograd.Function):
    """W x, of which neither x nor the dequantized W is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: DequantizingProduct) -> Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        return F.linear(x, weight.dequantize().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return (grads[0] @ ctx.weight.dequantize().to(grads[0].dtype)).to(ctx.dtype), None


class _OneDnnInt8Product(MatrixProduct):
    """int8 weights with a scale per output, and int8 inputs with a scale per row.

    Integer sums are exact and are scaled here, because on some processors the kernels for one and for many rows round
    the scaling differently. So results do not depend on other rows of the batch.
    """

    quantizes_inputs = True

    def __init__(self, weight: Tensor) -> None:
        whole_OI, scale_O1 = quantize_int8(weight)
        self.weight = torch.ops.onednn.qlinear_prepack(whole_OI, [OPTIMAL_ROWS, weight.shape[1]])
        self.scale_O = scale_O1[:, 0] / MAX_QUANTIZED_INPUT
        self.zero_O, self.one_O = torch.zeros_like(self.scale_O, dtype=torch.int64), torch.ones_like(self.scale_O)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.float()
        largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp_(min=1e-30)
        whole = torch.addcmul(ROUNDING_OFFSET, x, largest.reciprocal(), value=MAX_QUANTIZED_INPUT).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise.default(
            *(whole, 1.0, MAX_QUANTIZED_INPUT + 1, self.weight, self.one_O, self.zero_O),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )
        scale = largest * self.scale_O
        return product * scale if bias is None else torch.addcmul(bias, product, scale)
