"""Matrices in the layouts of the kernels: products, and weights of 4 bits, against plain versions."""

from ctypes import c_int32

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from lmtool.compute.kernels import build, matrices
from lmtool.compute.kernels.matrices import INT4_GROUP_SIZE, NativeMatrix, quantize_int4, quantize_int8

compiled = pytest.mark.skipif(build.load_kernels() is None, reason="no C compiler")


@compiled
@pytest.mark.parametrize("dtype", matrices.KERNEL_DTYPES)
@pytest.mark.parametrize(("n_out", "n_in"), [(5, 32), (16, 64), (33, 320)])
def test_products_are_those_of_the_rounded_weights(dtype: str, n_out: int, n_in: int) -> None:
    """Of the weights as they are kept; quantised inputs are rounded by a 127th or 63rd of their largest."""
    torch.manual_seed(n_out)
    weight, bias = torch.randn(n_out, n_in), torch.randn(n_out)
    kept = {"int8": lambda: torch.mul(*quantize_int8(weight)), "int4": lambda: quantize_int4(weight).dequantize()}
    dense = kept.get(dtype, lambda: weight.to(getattr(torch, dtype)).float())()
    matrix = NativeMatrix(weight, dtype)
    for n_rows in (1, 8, 19):
        x = torch.randn(n_rows, n_in)
        away = 2e-2 if dtype.startswith("int") else 1e-5
        assert (matrix(x, bias) - (x @ dense.T + bias)).norm() < away * (x @ dense.T).norm()
        assert (matrix(x, None) - x @ dense.T).norm() < away * (x @ dense.T).norm()


@compiled
def test_rows_of_a_matrix_of_eight_bits_can_be_read() -> None:
    weight, indices = torch.randn(37, 64), torch.tensor([[0, 36], [15, 16]])
    dense = torch.mul(*quantize_int8(weight))
    assert torch.equal(NativeMatrix(weight, "int8").dequantize_int8_rows(indices), dense[indices])


@compiled
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_inputs_that_are_whole_numbers_are_multiplied_exactly(dtype: str) -> None:
    """Against sums of Python's whole numbers."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(0, 16, (20, 64), generator=generator)
    whole[:, ::INT4_GROUP_SIZE] = 0
    whole[:, 1::INT4_GROUP_SIZE] = 15
    if dtype == "int8":
        whole = torch.randint(-127, 128, (20, 64), generator=generator)
        whole[:, 0] = 127
    kernels = build.load_kernels()
    assert kernels is not None
    most = c_int32.in_dll(kernels, "max_quantized_input").value
    x = torch.randint(-most, most + 1, (3, 64), generator=generator)
    x[:, ::INT4_GROUP_SIZE] = most
    found = NativeMatrix(whole.float(), dtype)(x.float(), None)
    wanted = [[sum(a * b for a, b in zip(row, out, strict=True)) for out in whole.tolist()] for row in x.tolist()]
    assert found.round().tolist() == wanted


@compiled
@pytest.mark.parametrize("dtype", matrices.KERNEL_DTYPES)
def test_other_rows_change_no_product(dtype: str) -> None:
    torch.manual_seed(0)
    matrix, x = NativeMatrix(torch.randn(40, 96), dtype), torch.randn(11, 96) * torch.logspace(-2, 2, 11)[:, None]
    together = matrix(x, None)
    for row, found in zip(x, together, strict=True):
        torch.testing.assert_close(matrix(row[None], None)[0], found, rtol=0 if "int" in dtype else 1e-6, atol=1e-5)


@compiled
@pytest.mark.parametrize("dtype", matrices.KERNEL_DTYPES)
def test_nan_stays_in_its_row(dtype: str) -> None:
    x = torch.randn(3, 64)
    x[1, 40] = torch.nan
    assert NativeMatrix(torch.randn(16, 64), dtype)(x, None).isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_weights_of_a_gguf_file_are_kept(kind: GGMLQuantizationType) -> None:
    """A second rounding on the grid of a group finds the same numbers."""
    weight = np.random.default_rng(1).standard_normal((48, 256)).astype(np.float32)
    weight[3], weight[5, :40] = 0, 7
    once = torch.from_numpy(dequantize(quantize(weight, kind), kind).astype(np.float32))
    torch.testing.assert_close(quantize_int4(once).dequantize(), once, rtol=1e-3, atol=1e-6)


def test_groups_of_four_bits_have_the_nearer_of_two_grids() -> None:
    """Against loops over both grids of each group."""
    weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 1.0, -2.0])[:, None]
    found = quantize_int4(weight).dequantize()
    for row, kept in zip(
        weight.view(-1, INT4_GROUP_SIZE).tolist(), found.view(-1, INT4_GROUP_SIZE).tolist(), strict=True
    ):
        extreme = max(row, key=abs)
        errors = []
        for step, least in (((max(row) - min(row)) / 15, min(row)), (extreme / -8, extreme)):
            step, least = (float(np.float16(value)) for value in (step, least))
            codes = [min(15, max(0, round((value - least) / step))) for value in row]
            errors.append(sum((code * step + least - value) ** 2 for code, value in zip(codes, row, strict=True)))
        assert sum((a - b) ** 2 for a, b in zip(row, kept, strict=True)) == pytest.approx(min(errors), rel=1e-3)
