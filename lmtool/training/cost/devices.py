"""Devices to train on: those of this machine, and others by name."""

from dataclasses import dataclass

from lmtool.compute.device import configure_compute, device_memory_bytes
from lmtool.compute.device_kinds import DEVICE_KINDS
from lmtool.recipe.spec.recipe import Recipe


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


def resolve_device_group(recipe: Recipe, n_devices: int, device_kind: str | None) -> DeviceGroup:
    """Returns devices of a named kind, or else those of this machine."""
    device, precision = recipe.training.device, recipe.training.precision
    if device_kind is None:
        compute = configure_compute(device, precision)
        name, memory = compute.describe().partition(",")[0], device_memory_bytes(compute.device)
        return DeviceGroup(compute.precision, compute.device.type != "cpu", n_devices, name, memory)
    named = DEVICE_KINDS[device_kind]
    narrow = named.precision if precision == "auto" else precision
    return DeviceGroup(narrow, True, n_devices, device_kind, named.memory, named.peak_flops)
