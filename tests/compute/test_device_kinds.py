"""GPUs by name."""

import pytest

from lmtool.compute.device_kinds import DEVICE_KINDS, find_peak_flops


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("AMD Instinct MI300X OAM", "mi300x"),
    ],
)
def test_the_peak_is_that_of_the_kind(name: str, kind: str) -> None:
    assert find_peak_flops(name) == DEVICE_KINDS[kind].peak_flops


@pytest.mark.parametrize(
    "name",
    ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 D", "Other"],
)
def test_variants_with_another_peak_and_parts_have_none(name: str) -> None:
    assert find_peak_flops(name) is None
