"""Weight matrices repacked in the layout and dtype that are fastest for inference."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.compute.kernels.matrices import MatrixProduct, NativeMatrix
from lmtool.compute.kernels.products import DequantizingProduct, build_head_product, build_product
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import find_linears


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
            return args[1].product.dequantize_int8_rows(args[0])
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
        product = build_product(linear.weight.detach(), precision, device)
        linear.weight = PackedMatrix(_shape_placeholder(linear.weight), product)
    for head in [part for part in model.modules() if isinstance(part, LanguageModel)]:
        matrix = next((p for p in head.head_parameters() if p.ndim == 2 and len(p) == head.vocab_size), None)
        if matrix is None or isinstance(matrix, PackedMatrix):
            continue
        product = build_head_product(matrix.detach(), precision, device)
        gives_rows = isinstance(product, NativeMatrix) and product.dtype == "int8" and head.token_vectors() is matrix
        packed = PackedMatrix(_shape_placeholder(matrix.detach()) if gives_rows else matrix.detach(), product)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter is matrix:
                    setattr(module, name, packed)


def _shape_placeholder(weight: Tensor) -> Tensor:
    """Returns a one-element placeholder with the shape of a matrix that is kept in packed form only."""
    return torch.full((), torch.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)


def quantize_weights_(model: nn.Module, precision: str, *, store_dequantized: bool) -> None:
    """Rounds the matrices of layers to int8 or int4. store_dequantized: keep rounded values in the weights' dtype."""
    for linear in find_linears(model):
        product = DequantizingProduct(linear.weight.detach(), precision)
        if store_dequantized:
            linear.weight.data.copy_(product.dequantize())
        else:
            linear.weight = PackedMatrix(_shape_placeholder(linear.weight.detach()), product)


def has_quantized_inputs(model: nn.Module) -> bool:
    """Returns whether products of a model quantize their inputs."""
    return any(isinstance(p, PackedMatrix) and p.product.quantizes_inputs for p in model.parameters())


def dense_weight(weight: Tensor) -> Tensor:
    """Returns the values of a weight, packed or not."""
    return cast(Tensor, weight.product.dequantize()) if isinstance(weight, PackedMatrix) else weight
