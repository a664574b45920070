"""Weight matrices repacked in the layout and dtype that are fastest for inference.

Shapes: I input width, O output width, R rows of a product.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.compute.device import DTYPES, has_fast_bfloat16
from lmtool.compute.kernels.matrices import (
    GROUP_SIZE,
    Int4GroupedWeight,
    Int8Weight,
    MatrixProduct,
    NativeMatrix,
    quantize_int4,
    quantize_int8,
)
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import find_linears

OPTIMAL_ROWS = 16
"""Number of input rows that layouts are optimised for; any number works."""


class PackedMatrix(nn.Parameter):
    """A weight whose products are computed by `product`. All functions but `F.linear` see a plain tensor.

    `F.embedding` too gets its rows from a matrix that is kept in packed form only.
    """

    product: MatrixProduct

    def __new__(cls, weight: Tensor, product: MatrixProduct) -> "PackedMatrix":
        matrix = super().__new__(cls, weight, False)
        matrix.product = product
        return matrix

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and isinstance(args[1], PackedMatrix):
            return args[1].product(args[0], args[2] if len(args) > 2 else None)
        if func is F.embedding and args[1].stride(0) == 0:
            return args[1].product.select_rows(args[0])
        return nn.Parameter.__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch leaves it untyped


def pack_weights_(model: nn.Module, precision: str, device: torch.device) -> None:
    """Packs the matrices of attention, feed-forward layers and head. The model is for inference only from then on.

    A tied head is stored twice, because the embedding needs single rows, which only the kernels' int8 layout gives.
    Recurrent layers are unchanged. The head always gives float32 logits: in bfloat16 many would tie, and rounding would
    choose among them.

    Args:
        precision: float32: the same values in the memory layout of the CPU kernel. bfloat16, float16: rounded to
            these, as are the inputs of each product; the residual stream stays float32. int8, int4: see `quantize_int8`
            and `quantize_int4`; the head has 8 bits.
    """
    for linear in find_linears(model):
        product = _build_product(linear.weight.detach(), precision, device)
        linear.weight = PackedMatrix(_shape_placeholder(linear.weight), product)
    for head in [part for part in model.modules() if isinstance(part, LanguageModel)]:
        matrix = next((p for p in head.head_parameters() if p.ndim == 2 and len(p) == head.vocab_size), None)
        if matrix is None or isinstance(matrix, PackedMatrix):
            continue
        product = _build_head_product(matrix.detach(), precision, device)
        gives_rows = isinstance(product, NativeMatrix) and product.dtype == "int8" and head.token_vectors() is matrix
        packed = PackedMatrix(_shape_placeholder(matrix.detach()) if gives_rows else matrix.detach(), product)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter is matrix:
                    setattr(module, name, packed)


def _shape_placeholder(weight: Tensor) -> Tensor:
    """Returns a one-element placeholder with the shape of a matrix that is kept in packed form only."""
    return torch.full((), torch.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)


def _build_product(weight: Tensor, precision: str, device: torch.device) -> MatrixProduct:
    if precision in ("int8", "int4"):
        precision = precision if weight.shape[1] % GROUP_SIZE == 0 else "int8"
        if (matrix := NativeMatrix.create(weight, precision)) is not None:
            return matrix
        is_avx = device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        return _OneDnnInt8Product(weight) if precision == "int8" and is_avx else DequantizedProduct(weight, precision)
    weight = weight.to(DTYPES[precision])
    if device.type != "cpu" or precision == "float16" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return _DenseProduct(weight)
    is_slow = precision == "bfloat16" and not has_fast_bfloat16(device)
    return _Float32Product(weight) if is_slow else _OneDnnProduct(weight)


def _build_head_product(weight: Tensor, precision: str, device: torch.device) -> MatrixProduct:
    if precision in ("float32", "int8", "int4"):
        return _build_product(weight, "float32" if precision == "float32" else "int8", device)
    by_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    if device.type == "cpu" and by_fbgemm and hasattr(torch.ops.quantized, "linear_prepack_fp16"):
        return _Float16Product(weight)
    return _build_product(weight, "float32", device)


class _DenseProduct(MatrixProduct):
    """A product in the weight's dtype."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.weight.dtype
        return F.linear(x.to(dtype), self.weight, None if bias is None else bias.to(dtype))

    def dequantize(self) -> Tensor:
        return self.weight


class _Float32Product(_DenseProduct):
    """A product of values in the weight's dtype, computed in float32 and rounded to that dtype."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.weight.dtype
        bias = None if bias is None else bias.to(dtype).float()
        return F.linear(x.to(dtype).float(), self.weight.float(), bias).to(dtype)


class _OneDnnProduct(MatrixProduct):
    """A product in the weight's dtype by oneDNN, with a weight in its blocked layout."""

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        # both operators are private, like those of onednn below; read in torch 2.13
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), OPTIMAL_ROWS)
        # the overload by name, because resolving it takes as long as a small product
        self.multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(self.dtype)
        return cast(Tensor, self.multiply(x.to(self.dtype), self.packed, bias, "none", [], ""))

    def dequantize(self) -> Tensor:
        return cast(Tensor, self.packed.to_dense())


class _Float16Product(MatrixProduct):
    """A float16 weight with float32 inputs, accumulation and outputs."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        return product if bias is None else product + bias

    def dequantize(self) -> Tensor:
        return cast(Tensor, torch.ops.quantized.linear_unpack_fp16(self.packed)[0]).half()


class DequantizedProduct(MatrixProduct):
    """Weights of 4 bits if the inputs are whole groups, else of 8, which are dequantized for each product.

    Gradients pass through it; the weights are dequantized again for them, so that none are kept in between.
    """

    def __init__(self, weight: Tensor, precision: str) -> None:
        quantize = quantize_int4 if precision == "int4" and weight.shape[1] % GROUP_SIZE == 0 else quantize_int8
        self.weights: Int8Weight | Int4GroupedWeight = quantize(weight)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = _DequantizedLinear.apply(x, self)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return product if bias is None else product + bias

    def dequantize(self) -> Tensor:
        return self.weights.dequantize()


class _DequantizedLinear(torch.autograd.Function):
    """W x, of which neither x nor the dequantized W is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: DequantizedProduct) -> Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        return F.linear(x, weight.dequantize().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return (grads[0] @ ctx.weight.dequantize().to(grads[0].dtype)).to(ctx.dtype), None


def quantize_weights_(model: nn.Module, precision: str, *, keep_dtype: bool) -> None:
    """Rounds the matrices of layers to int8 or int4. keep_dtype: store the rounded values in the dtype of weights."""
    for linear in find_linears(model):
        product = DequantizedProduct(linear.weight.detach(), precision)
        if keep_dtype:
            linear.weight.data.copy_(product.dequantize())
        else:
            linear.weight = PackedMatrix(_shape_placeholder(linear.weight.detach()), product)


def has_quantized_inputs(model: nn.Module) -> bool:
    """Returns whether products of a model quantize their inputs."""
    return any(isinstance(p, PackedMatrix) and p.product.quantizes_inputs for p in model.parameters())


def dense_weight(weight: Tensor) -> Tensor:
    """Returns the values of a weight, packed or not."""
    return cast(Tensor, weight.product.dequantize()) if isinstance(weight, PackedMatrix) else weight


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


def _has_vnni() -> bool:
    """Returns whether the CPU accumulates int8 products without overflow; torch before 2.12 does not report it."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_vnni") or known.get("avx_vnni"))


MAX_QUANTIZED_INPUT = 127 if _has_vnni() else 63
"""Largest quantized input. With 7 bits the sum of two products fits in 16 bits."""

ROUNDING_OFFSET = torch.tensor(MAX_QUANTIZED_INPUT + 1.5)
"""Offset that makes quantized inputs positive, as the kernel requires; the half turns truncation into rounding."""
