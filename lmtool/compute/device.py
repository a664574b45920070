"""The device and precision to compute with."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import torch

from lmtool.batch import widest_float_dtype
from lmtool.compute.machine import keep_freed_memory, machine_memory, n_cores, threads_are_set
from lmtool.compute.processes import World, joined, local_rank
from lmtool.errors import ResourceError
from lmtool.recipe.spec.base import DeviceName, PrecisionName

InferenceName = PrecisionName | Literal["bf16", "int8", "int4"]
"""Precisions for inference: bf16 is short for bfloat16; int8 and int4 quantize weights."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES |= {"int8": torch.float32, "int4": torch.float32}


def limit_threads() -> None:
    """Lower torch's number of threads to `n_cores`, unless a variable of the environment sets it."""
    if not threads_are_set() and torch.get_num_threads() > n_cores():
        torch.set_num_threads(n_cores())


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """A context in which torch computes on a CPU with that many threads; None for as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


limit_threads()  # when torch is imported, so that programs may choose another number later
keep_freed_memory()


@dataclass(frozen=True)
class Compute:
    """A device, the dtype of its matrix products, and the processes that compute together.

    Norms, losses and master weights stay float32.
    """

    device: torch.device
    precision: str
    world: World = field(default_factory=World)

    @contextmanager
    def joined(self) -> "Iterator[Compute]":
        """The same in the processes of torchrun as one group."""
        with joined(self.device) as world:
            yield replace(self, world=world)

    def in_step(self) -> "Compute":
        """The same where all processes compute each layer at the same time."""
        return replace(self, world=replace(self.world, in_step=True))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which matrix products run in this precision."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @property
    def sum_dtype(self) -> torch.dtype:
        """The widest floating-point dtype of the device."""
        return widest_float_dtype(self.device)

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients need loss scaling against underflow: float16."""
        return self.dtype == torch.float16

    def describe(self) -> str:
        """Device and precision, for display."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        return f"{name}, {self.precision}"


CPU = Compute(torch.device("cpu"), "float32")


def choose_compute(device: DeviceName, precision: InferenceName) -> Compute:
    """The device and precision of a recipe; the best available for `auto`.

    Raises ResourceError when the device is not available, and UsageError for a rank that is no number.
    """
    chosen, rank = torch.device(_resolve_device(device)), local_rank()
    if chosen.type == "cuda":
        chosen = torch.device("cuda", rank)
        torch.cuda.set_device(chosen)
        # TensorFloat-32 for the float32 products that remain; an explicit float32 means float32
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    if precision == "auto":
        return Compute(chosen, _auto_precision(chosen))
    return Compute(chosen, "bfloat16" if precision == "bf16" else precision)


def device_memory(device: torch.device) -> int | None:
    """Memory of a device in bytes: a GPU's own, or else that of the process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return machine_memory()


def _resolve_device(device: DeviceName) -> str:
    is_usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [name for name in is_usable if is_usable[name]]
    if device == "auto":
        return usable[0]
    if device not in usable:
        what = f"the device {device} is not available here"
        fix = "train with -s training.device=auto; generate and eval take --device auto"
        raise ResourceError(what, where=f"torch {torch.__version__} finds: {', '.join(usable)}", fix=fix)
    return device


def _auto_precision(device: torch.device) -> str:
    match device.type:
        case "cuda":
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        case "cpu":
            # torch before 2.12 does not report it
            known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
            return "bfloat16" if known.get("avx512_bf16") or known.get("amx_bf16") else "float32"
    return "float32"


@cache
def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has products in bfloat16; without AVX-512 or the like oneDNN has none, and others are slow."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]
