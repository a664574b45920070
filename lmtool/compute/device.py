"""The device and precision to compute with."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import torch

from lmtool.batch import widest_float_dtype
from lmtool.compute import torch_private
from lmtool.compute.device_kinds import find_peak_flops
from lmtool.compute.machine import (
    count_cores,
    has_thread_setting,
    make_glibc_keep_freed_memory,
    physical_memory_limit_bytes,
)
from lmtool.compute.processes import World, join_process_group_once, local_rank
from lmtool.errors import ResourceError
from lmtool.recipe.spec.base import DeviceName, PrecisionName

InferenceName = PrecisionName | Literal["bf16", "int8", "int4"]
"""Precisions for inference: bf16 is short for bfloat16; int8 and int4 quantize weights."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES |= {"int8": torch.float32, "int4": torch.float32}


def limit_threads() -> None:
    """Lowers torch's number of threads to that of cores, unless a variable of the environment sets it."""
    if not has_thread_setting() and torch.get_num_threads() > count_cores():
        torch.set_num_threads(count_cores())


@contextmanager
def use_cpu_threads(n_threads: int | None) -> Iterator[None]:
    """A context in which torch computes on a CPU with that many threads; None for as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


limit_threads()  # when torch is imported, so that programs may choose another number later
make_glibc_keep_freed_memory()


@dataclass(frozen=True)
class ExecutionContext:
    """A device, the dtype of its matrix products, and the processes that compute together.

    Norms, losses and master weights stay float32.
    """

    device: torch.device
    precision: str
    world: World = field(default_factory=World)

    @contextmanager
    def join_process_group_once(self) -> "Iterator[ExecutionContext]":
        """A context in which the processes of torchrun form one group, of which the result has the world."""
        with join_process_group_once(self.device) as world:
            yield replace(self, world=world)

    def with_lockstep(self) -> "ExecutionContext":
        """Returns the same for a model of which all processes compute each layer at the same time."""
        return replace(self, world=replace(self.world, is_lockstep=True))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which matrix products run in this precision."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @property
    def widest_dtype(self) -> torch.dtype:
        """The widest floating-point dtype of the device."""
        return widest_float_dtype(self.device)

    @property
    def needs_loss_scaling(self) -> bool:
        """Whether gradients would underflow without loss scaling: in float16."""
        return self.dtype == torch.float16

    @property
    def total_peak_flops(self) -> float | None:
        """Peak FLOP/s of the GPUs of all processes together in 16 bits; None if it is not known, as on a CPU."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return None
        peak = find_peak_flops(torch.cuda.get_device_name(self.device))
        return None if peak is None else peak * self.world.size

    def describe(self) -> str:
        """Describes device and precision, for display."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        return f"{name}, {self.precision}"


CPU = ExecutionContext(torch.device("cpu"), "float32")


def configure_compute(device: DeviceName, precision: InferenceName) -> ExecutionContext:
    """Chooses the device and precision of a recipe; the best available for `auto`.

    Of several GPUs it takes that of the local rank, and makes it the current one of torch. It also sets whether torch
    may compute float32 products in TensorFloat-32.

    Raises ResourceError when the device is not available, and UsageError for a rank that is no number.
    """
    chosen, rank = torch.device(_resolve_device(device)), local_rank()
    if chosen.type == "cuda":
        chosen = torch.device("cuda", rank)
        torch.cuda.set_device(chosen)
        # TensorFloat-32 for the float32 products that remain; an explicit float32 means float32
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    if precision == "auto":
        return ExecutionContext(chosen, _fastest_precision(chosen))
    return ExecutionContext(chosen, "bfloat16" if precision == "bf16" else precision)


def device_memory_bytes(device: torch.device) -> int | None:
    """The memory of a device: a GPU's own, or else that of the process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return physical_memory_limit_bytes()


def _resolve_device(device: DeviceName) -> str:
    """The name of an available device. Raises ResourceError."""
    is_usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [name for name in is_usable if is_usable[name]]
    if device == "auto":
        return usable[0]
    if device not in usable:
        what = f"the device {device} is not available here"
        fix = "train with -s training.device=auto; generate and eval take --device auto"
        raise ResourceError(what, where=f"torch {torch.__version__} finds: {', '.join(usable)}", fix=fix)
    return device


def cpu_capabilities() -> Mapping[str, Any]:
    """Returns which instructions this CPU has, by name; torch before 2.12 reports none."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def _fastest_precision(device: torch.device) -> str:
    """The precision in which a device computes fast: the one of 16 bits that it has instructions for, or float32."""
    match device.type:
        case "cuda":
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        case "cpu":
            known = cpu_capabilities()
            return "bfloat16" if known.get("avx512_bf16") or known.get("amx_bf16") else "float32"
    return "float32"


@cache
def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether a device has fast products in bfloat16. On a CPU oneDNN has them, with AVX-512 or the like."""
    return device.type != "cpu" or torch_private.has_onednn_bfloat16()
