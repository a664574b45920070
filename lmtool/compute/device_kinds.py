"""GPUs by name, with what their makers state of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuDatasheet:
    """Figures of a kind of GPU, as its maker states them.

    peak_flops: FLOP/s of dense matrix products in 16 bits with sums in float32.
    memory: bytes.
    torch_name: regular expression of its name in torch. Variants with another peak, and parts of a GPU, have others.
    """

    peak_flops: float
    memory: int
    torch_name: str
    precision: str = "bfloat16"


DEVICE_KINDS: Mapping[str, GpuDatasheet] = {
    # NVIDIA T4 Tensor Core GPU datasheet
    "t4": GpuDatasheet(65e12, 16 * 10**9, r"(Tesla|NVIDIA) T4", "float16"),
    # NVIDIA V100 Tensor Core GPU datasheet, SXM
    "v100": GpuDatasheet(125e12, 32 * 10**9, r"Tesla V100-SXM[23]-(16|32)GB", "float16"),
    # NVIDIA Ampere GA102 GPU architecture whitepaper
    "rtx3090": GpuDatasheet(71e12, 24 * 10**9, r"NVIDIA GeForce RTX 3090"),
    # NVIDIA Ada GPU architecture whitepaper
    "rtx4090": GpuDatasheet(165e12, 24 * 10**9, r"NVIDIA GeForce RTX 4090"),
    # NVIDIA L4 Tensor Core GPU datasheet; half of its figure with sparsity
    "l4": GpuDatasheet(121e12, 24 * 10**9, r"NVIDIA L4"),
    # NVIDIA L40S datasheet
    "l40s": GpuDatasheet(362e12, 48 * 10**9, r"NVIDIA L40S"),
    # NVIDIA A100 Tensor Core GPU datasheet, all variants
    "a100": GpuDatasheet(312e12, 80 * 10**9, r"(NVIDIA )?A100[- ](SXM4-[48]0GB|PCIE-40GB|80GB PCIe)"),
    # NVIDIA H100 Tensor Core GPU datasheet, SXM; half of its figure with sparsity
    "h100": GpuDatasheet(989e12, 80 * 10**9, r"NVIDIA H100 80GB HBM3"),
    # NVIDIA H200 Tensor Core GPU datasheet, SXM; half of its figure with sparsity
    "h200": GpuDatasheet(989e12, 141 * 10**9, r"NVIDIA H200"),
    # NVIDIA HGX B200 datasheet; a sixteenth of its figure for eight GPUs with sparsity
    "b200": GpuDatasheet(2250e12, 180 * 10**9, r"NVIDIA B200"),
    # AMD Instinct MI300X accelerator data sheet
    "mi300x": GpuDatasheet(1307e12, 192 * 10**9, r"AMD Instinct MI300X( OAM)?"),
}


def find_peak_flops(torch_name: str) -> float | None:
    """Returns the peak FLOP/s of the GPU that torch names so; None if it is not known."""
    kinds = DEVICE_KINDS.values()
    return next((kind.peak_flops for kind in kinds if re.fullmatch(kind.torch_name, torch_name)), None)
