"""Weight matrices repacked in the layout and dtype that are fastest for inference.

Shapes: I input width, O output width, R rows of a product.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.compute.device import multiplies_bfloat16
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import linears_of

Product = Callable[[Tensor, Tensor | None], Tensor]
"""W x + b of inputs (..., I), with bias (O,) or none."""


ROWS = 16
"""Number of input rows that the layout is optimised for; any number works."""


class PackedMatrix(nn.Parameter):
    """A weight whose products are computed by `product`; a plain tensor to all functions but `F.linear`."""

    product: Product

    def __new__(cls, weight: Tensor, product: Product) -> "PackedMatrix":
        made = torch.Tensor._make_subclass(cls, weight, False)
        made.product = product
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and isinstance(args[1], PackedMatrix):
            return args[1].product(args[0], args[2] if len(args) > 2 else None)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def pack(model: nn.Module, precision: str, device: torch.device) -> None:
    """Pack the matrices of attention, feed-forward layers and head, in place; for inference only from then on.

    float32: the same values in the memory layout of the CPU kernel. bfloat16, float16: rounded to these, as are the
        inputs of each product; the residual stream stays float32. int8: see `quantized`. The head always gives float32
        logits: in bfloat16 many would tie, and rounding would choose among them.

    A tied head is stored twice, as the embedding needs single rows. Recurrent layers are unchanged.
    """
    for linear in linears_of(model):
        linear.weight = PackedMatrix(_shape_of(linear.weight), _product(linear.weight.detach(), precision, device))
    for head in [part for part in model.modules() if isinstance(part, LanguageModel)]:
        matrix = next((p for p in head.head_parameters() if p.ndim == 2 and len(p) == head.vocab_size), None)
        if matrix is None or isinstance(matrix, PackedMatrix):
            continue
        packed = PackedMatrix(matrix.detach(), _head_product(matrix.detach(), precision, device))
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter is matrix:
                    setattr(module, name, packed)


def _shape_of(weight: Tensor) -> Tensor:
    """A one-element placeholder with the shape of the matrix, which is kept in packed form only."""
    return torch.full((), torch.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)


def _product(weight: Tensor, precision: str, device: torch.device) -> Product:
    if precision == "int8":
        return _Int8(weight)
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision, torch.float32)
    if device.type != "cpu" or dtype == torch.float16 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return _plain(weight.to(dtype))
    is_widened = dtype == torch.bfloat16 and not multiplies_bfloat16(device)
    return _widened(weight.to(dtype)) if is_widened else _by_onednn(weight.to(dtype))


def _head_product(weight: Tensor, precision: str, device: torch.device) -> Product:
    if precision in ("float32", "int8"):
        return _product(weight, precision, device)
    by_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    if device.type == "cpu" and by_fbgemm and hasattr(torch.ops.quantized, "linear_prepack_fp16"):
        return _in_half(weight)
    return _product(weight, "float32", device)


def _plain(weight: Tensor) -> Product:
    """A product in the weight's dtype."""
    dtype = weight.dtype
    return lambda x, bias: F.linear(x.to(dtype), weight, None if bias is None else bias.to(dtype))


def _widened(weight: Tensor) -> Product:
    """A product of values in the weight's dtype, computed in float32 and rounded to that dtype."""

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(weight.dtype).float()
        return F.linear(x.to(weight.dtype).float(), weight.float(), bias).to(weight.dtype)

    return product


def _by_onednn(weight: Tensor) -> Product:
    """A product in the weight's dtype by oneDNN, with a weight in its blocked layout."""
    dtype = weight.dtype
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
    # the overload by name, as resolving it takes as long as a small product
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(dtype)
        return cast(Tensor, multiply(x.to(dtype), packed, bias, "none", [], ""))

    return product


def _in_half(weight: Tensor) -> Product:
    """A float16 weight with float32 inputs, accumulation and outputs."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x.float(), packed)
        return product if bias is None else product + bias

    return product


def quantized(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 values from -127 to 127 and a scale per row (absmax)."""
    scale_O1 = weight_OI.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight_OI.dtype).tiny) / 127
    return (weight_OI / scale_O1).round(), scale_O1


class _Int8:
    """int8 weights with a scale per output; with kernel support also int8 inputs with a scale per row.

    Integer sums are exact, and scaled here: the kernels of one and of many rows of some processors round that each in
    its own way. So results do not depend on other rows of the batch.
    """

    def __init__(self, weight: Tensor) -> None:
        whole_OI, scale_O1 = quantized(weight.float())
        self.weight = whole_OI.to(torch.int8)
        self.scale_O = scale_O1[:, 0]
        self.zero_O = torch.zeros_like(self.scale_O, dtype=torch.int64)
        self.by_onednn = weight.device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        if self.by_onednn:
            self.weight = torch.ops.onednn.qlinear_prepack(self.weight, [ROWS, weight.shape[1]])
            self.scale_O, self.one_O = self.scale_O / LEVELS, torch.ones_like(self.scale_O)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.float()
        if not self.by_onednn:
            product = F.linear(x, self.weight.to(x.dtype)) * self.scale_O
            return product if bias is None else product + bias
        largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp_(min=1e-30)
        whole = torch.addcmul(MIDDLE, x, largest.reciprocal(), value=LEVELS).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise.default(
            *(whole, 1.0, LEVELS + 1, self.weight, self.one_O, self.zero_O),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )
        scale = largest * self.scale_O
        return product * scale if bias is None else torch.addcmul(bias, product, scale)


def _has_vnni() -> bool:
    """Whether the CPU accumulates int8 products without overflow; torch before 2.12 does not report it."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_vnni") or known.get("avx_vnni"))


LEVELS = 127 if _has_vnni() else 63
"""Largest quantized input; with 7 bits the sum of two products fits 16 bits."""

MIDDLE = torch.tensor(LEVELS + 1.5)
"""Offset that makes quantized inputs positive, as the kernel requires; the half turns truncation into rounding."""
