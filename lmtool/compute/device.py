"""Where and in which number type to compute."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from lmtool.errors import ResourceError
from lmtool.recipe.spec import DeviceName, PrecisionName

InferenceName = PrecisionName | Literal["bf16", "int8"]
"""Precisions of a model that only reads: bf16 is short for bfloat16, int8 that of the weights of its matrices."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}


@dataclass(frozen=True)
class Compute:
    """A device, and the type of its matrix products; norms, losses and the weights in training stay float32."""

    device: torch.device
    precision: str

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
        """The widest type that the device adds in."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def scales_gradients(self) -> bool:
        """True where small gradients would vanish without a scale: float16."""
        return self.dtype == torch.float16

    def describe(self) -> str:
        """One phrase for people: device and precision."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        return f"{name}, {self.precision}"


def resolve(device: DeviceName, precision: InferenceName, local_rank: int = 0) -> Compute:
    """The device and precision that a recipe asks for, or the best there are for `auto`.

    Raises ResourceError when a device is asked for that is not there.
    """
    found = torch.device(_resolve_device(device))
    if found.type == "cuda":
        found = torch.device("cuda", local_rank)
        torch.cuda.set_device(found)
        # TensorFloat-32 for the float32 products that remain; an explicit float32 means float32
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    if precision == "auto":
        return Compute(found, _auto_precision(found))
    return Compute(found, "bfloat16" if precision == "bf16" else precision)


def _resolve_device(device: DeviceName) -> str:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, is_there in there.items() if is_there)
    if not there[device]:
        usable = ", ".join(name for name, is_there in there.items() if is_there)
        raise ResourceError(
            f"the device {device} is not available here",
            where=f"torch {torch.__version__} finds: {usable}",
            fix="train with -s training.device=auto; generate and eval take --device auto",
        )
    return device


def _auto_precision(device: torch.device) -> str:
    match device.type:
        case "cuda":
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
        case "cpu":
            # torch before 2.12 cannot tell
            known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
            return "bfloat16" if known.get("avx512_bf16") or known.get("amx_bf16") else "float32"
    return "float32"
