"""Weight matrices in the layouts of the kernels in C.

Shapes: I input width, O output width, N blocks of 16 outputs, G groups of 32 inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from ctypes import Structure, byref, c_int32, c_void_p
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.compute.kernels.build import c_fields, load_kernels
from lmtool.compute.kernels.kernel_checks import is_kernel_right

KERNEL_DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")

BLOCK_OUTPUTS = 16
"""Outputs whose weights lie together, so that a vector instruction reads those of all."""

INT4_GROUP_SIZE = 32
"""Inputs whose weights of 4 bits share a scale and a minimum, as in GGUF's Q4_0 and Q4_1."""


class CMatrix(Structure):
    """A matrix for C: see kernels.h."""

    _fields_ = (*c_fields(c_void_p, "weight scale bias"), *c_fields(c_int32, "n_in n_out dtype"))


class Int8Weight(NamedTuple):
    """Weights of 8 bits: whole_OI, from -127 to 127, times scale_O1."""

    whole_OI: Tensor
    scale_O1: Tensor

    def dequantize(self) -> Tensor:
        """The weights (O, I) in float32."""
        return self.whole_OI * self.scale_O1


class Int4GroupedWeight(NamedTuple):
    """Weights of 4 bits: codes, from 0 to 15, times scale_OG + least_OG.

    pairs_OGJ: codes of a group, inputs 0 to 15 in the low halves of bytes, and 16 to 31 in the high ones.
    """

    pairs_OGJ: Tensor
    scale_OG: Tensor
    least_OG: Tensor

    def dequantize(self) -> Tensor:
        """The weights (O, I) in float32."""
        codes_OGI = torch.cat((self.pairs_OGJ & 15, self.pairs_OGJ >> 4), -1)
        return (codes_OGI * self.scale_OG.float()[..., None] + self.least_OG.float()[..., None]).flatten(1)


def quantize_int8(weight_OI: Tensor) -> Int8Weight:
    """Rounds weights to symmetric int8 values with a scale per row (absmax)."""
    weight_OI = weight_OI.float()
    scale_O1 = weight_OI.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return Int8Weight((weight_OI / scale_O1).round().to(torch.int8), scale_O1)


def quantize_int4(weight_OI: Tensor) -> Int4GroupedWeight:
    """Rounds weights to 4 bits, each group on the grid that is nearer to it by squared error.

    One reaches from its least value to its largest (Q4_1), one is symmetric and has its largest in magnitude exactly
    (Q4_0). So weights that lie on either are kept. Scales and minima are float16.
    """
    weight_OGI = weight_OI.float().view(len(weight_OI), -1, INT4_GROUP_SIZE)
    least, largest = weight_OGI.aminmax(dim=-1)
    extreme = torch.where(largest > -least, largest, least)
    grids = []
    for scale, lowest in (((largest - least) / 15, least), (extreme / -8, extreme)):
        scale, lowest = scale.half(), lowest.half()
        wide = torch.where(scale == 0, 1, scale.float())
        codes = ((weight_OGI - lowest.float()[..., None]) / wide[..., None]).round().clamp(0, 15).to(torch.uint8)
        low, high = codes.chunk(2, -1)
        grids.append(Int4GroupedWeight(low | high << 4, scale, lowest))
    errors = [(grid.dequantize() - weight_OI).view_as(weight_OGI).square().sum(-1) for grid in grids]
    first = errors[0] <= errors[1]
    return Int4GroupedWeight(
        *(torch.where(first[..., None] if a.ndim > 2 else first, a, b) for a, b in zip(*grids, strict=True))
    )


class MatrixProduct(ABC):
    """W x + b of inputs (..., I), with bias (O,) or none. quantizes_inputs: inputs are rounded, too."""

    quantizes_inputs: bool = False

    @abstractmethod
    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor: ...

    def dequantize(self) -> Tensor | None:
        """The weights (O, I) in the type in which they are kept; None where a library has them in its own form."""
        return None

    @cached_property
    def native(self) -> "NativeMatrix | None":
        """The same product by the kernels, if they have it; the weights are there twice from then on."""
        weight_OI = self.dequantize()
        if weight_OI is None:
            return None
        return NativeMatrix.create_if_supported(weight_OI, str(weight_OI.dtype).removeprefix("torch."))


class ProductByRowCount(MatrixProduct):
    """The product of one row by the kernels, which read a matrix faster, and of several by another."""

    def __init__(self, one_row: "NativeMatrix", several_rows: MatrixProduct) -> None:
        self.one_row, self.several_rows = one_row, several_rows

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return (self.one_row if x.numel() == x.shape[-1] else self.several_rows)(x, bias)


class NativeMatrix(MatrixProduct):
    """A matrix whose products the kernels compute; int8 and int4 need inputs in whole groups."""

    def __init__(self, weight_OI: Tensor, dtype: str) -> None:
        self.n_out, self.n_in = weight_OI.shape
        self.dtype = dtype
        self.quantizes_inputs = dtype in ("int8", "int4")
        padded = F.pad(weight_OI, (0, 0, 0, -self.n_out % BLOCK_OUTPUTS))
        self.scale: Tensor | None = None
        match dtype:
            case "int8":
                whole_OI, scale_O1 = quantize_int8(padded)
                positive_OI = whole_OI.view(torch.uint8) + 128
                self.weight = positive_OI.view(-1, BLOCK_OUTPUTS, self.n_in // 4, 4).transpose(1, 2)
                self.scale = scale_O1[:, 0].contiguous()
            case "int4":
                self.weight = _pack_groups(quantize_int4(padded))
            case _:
                converted = padded.to(getattr(torch, dtype))
                self.weight = converted.view(-1, BLOCK_OUTPUTS, self.n_in).transpose(1, 2)
        self.weight = self.weight.contiguous()

    @classmethod
    def create_if_supported(cls, weight_OI: Tensor, dtype: str) -> "NativeMatrix | None":
        """Creates a matrix; None where the kernels do not multiply by such a one."""
        is_whole = dtype not in ("int8", "int4") or weight_OI.shape[1] % INT4_GROUP_SIZE == 0
        can_multiply = is_whole and weight_OI.device.type == "cpu"
        right = can_multiply and is_kernel_right(f"of {dtype} matrices", _PRODUCT_COMPARISONS[dtype])
        return cls(weight_OI, dtype) if right else None

    @property
    def native(self) -> "NativeMatrix":
        return self

    def dequantize_int8_rows(self, indices: Tensor) -> Tensor:
        """Selects rows (..., I) of an int8 matrix, in float32."""
        assert self.scale is not None
        whole = self.weight[indices // BLOCK_OUTPUTS, :, indices % BLOCK_OUTPUTS].flatten(-2)
        return (whole.float() - 128) * self.scale[indices][..., None]

    def to_c(self, bias_address: int | None) -> CMatrix:
        """The matrix for C, which is valid while this one is there. bias_address: of numbers in float32."""
        scale = None if self.scale is None else self.scale.data_ptr()
        return CMatrix(
            self.weight.data_ptr(), scale, bias_address, self.n_in, self.n_out, KERNEL_DTYPES.index(self.dtype)
        )

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b of inputs (..., I), in float32."""
        kernels = load_kernels()
        assert kernels is not None
        x = x.float().contiguous()
        bias = None if bias is None else bias.float()
        product = x.new_empty(*x.shape[:-1], self.n_out)
        matrix, n_rows = self.to_c(None if bias is None else bias.data_ptr()), product.numel() // self.n_out
        kernels.multiply(byref(matrix), x.data_ptr(), product.data_ptr(), n_rows, torch.get_num_threads())
        return product


def _pack_groups(weights: Int4GroupedWeight) -> Tensor:
    """Packs weights in blocks of bytes (N, G, 320), as the kernels read them."""
    pairs = weights.pairs_OGJ.view(-1, BLOCK_OUTPUTS, weights.scale_OG.shape[1], 4, 4).permute(0, 2, 3, 1, 4)
    ends = [
        t.view(-1, BLOCK_OUTPUTS, t.shape[1]).transpose(1, 2).contiguous() for t in (weights.scale_OG, weights.least_OG)
    ]
    return torch.cat((pairs.flatten(2), *(end.view(torch.uint8) for end in ends)), -1)


def _compare_products(dtype: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Compares products of 15 rows: 8, 4, 2 and one, which have loops of their own."""
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(40, 256, generator=generator)
    x = torch.randint(-63, 64, (15, 256), generator=generator).float()
    x[:, ::INT4_GROUP_SIZE] = 63  # so that inputs are hardly rounded
    if dtype in ("int8", "int4"):
        kept_OI = (quantize_int8 if dtype == "int8" else quantize_int4)(weight_OI).dequantize()
    else:
        kept_OI = weight_OI.to(getattr(torch, dtype)).float()
    yield NativeMatrix(weight_OI, dtype)(x, None), x @ kept_OI.T


_PRODUCT_COMPARISONS = {dtype: partial(_compare_products, dtype) for dtype in KERNEL_DTYPES}
