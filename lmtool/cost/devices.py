"""Devices to train on: those of this machine, and others by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from lmtool.compute.device import choose_compute, device_memory_bytes
from lmtool.recipe.spec.recipe import Recipe


@dataclass(frozen=True)
class DeviceKind:
    """A device by name. peak: FLOP/s of dense products in 16 bits. memory: bytes. As their makers state them."""

    peak_flops: float
    memory: int
    precision: str = "bfloat16"


DEVICE_KINDS: Mapping[str, DeviceKind] = {
    "t4": DeviceKind(65e12, 16 * 10**9, "float16"),
    "v100": DeviceKind(125e12, 32 * 10**9, "float16"),
    "rtx3090": DeviceKind(71e12, 24 * 10**9),
    "rtx4090": DeviceKind(165e12, 24 * 10**9),
    "l4": DeviceKind(121e12, 24 * 10**9),
    "l40s": DeviceKind(362e12, 48 * 10**9),
    "a100": DeviceKind(312e12, 80 * 10**9),
    "h100": DeviceKind(989e12, 80 * 10**9),
    "h200": DeviceKind(989e12, 141 * 10**9),
    "b200": DeviceKind(2250e12, 180 * 10**9),
    "mi300x": DeviceKind(1307e12, 192 * 10**9),
}


@dataclass(frozen=True)
class DeviceGroup:
    """The devices that share a training.

    precision: of matrix products.
    on_gpu: with the kernels of a GPU, and without torch.compile, which keeps fewer activations.
    count: that exchange gradients.
    memory: bytes of each, None if unknown.
    peak: FLOP/s of each; None for those of this machine, whose time is measured.
    """

    precision: str
    on_gpu: bool
    count: int = 1
    name: str = ""
    memory: int | None = None
    peak_flops: float | None = None


def choose_devices(recipe: Recipe, n_devices: int, kind: str | None) -> DeviceGroup:
    """Those of a named kind, or else of this machine."""
    device, precision = recipe.training.device, recipe.training.precision
    if kind is None:
        compute = choose_compute(device, precision)
        name, memory = compute.describe().partition(",")[0], device_memory_bytes(compute.device)
        return DeviceGroup(compute.precision, compute.device.type != "cpu", n_devices, name, memory)
    named = DEVICE_KINDS[kind]
    narrow = named.precision if precision == "auto" else precision
    return DeviceGroup(narrow, True, n_devices, kind, named.memory, named.peak_flops)
