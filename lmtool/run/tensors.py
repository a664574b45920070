"""Writes and reads safetensors files, digesting while writing.

The library's own writer reports a full disk as a string and would need a second pass for the digest; the format is a
JSON header and then the bytes (https://github.com/huggingface/safetensors#format). The library is used for reading.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lmtool.errors import CheckpointError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Deferred:
    """A tensor of known type and shape that is read when it is written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.itemsize


def check(tensors: Mapping[str, Tensor | Deferred]) -> None:
    """Raise ValueError when these tensors cannot be saved: tied to each other, or of a type the format lacks."""
    owners: dict[tuple[torch.device, int], str] = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r} has the type {tensor.dtype}, which checkpoints do not support")
        if isinstance(tensor, Deferred):
            continue
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), name)
        if owner != name and tensor.numel():
            raise ValueError(f"tensors {owner!r} and {name!r} share memory: save one of them")


def copied(tensors: Mapping[str, Tensor | Deferred]) -> dict[str, Tensor]:
    """Copies in CPU memory, which no later change of the tensors reaches."""
    return {
        name: tensor.read().cpu() if isinstance(tensor, Deferred) else tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
    }


def serialise(
    tensors: Mapping[str, Tensor | Deferred], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, one tensor at a time in CPU memory."""
    # Wide dtypes first, as in the library, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        tensor = tensors[name]
        whole = tensor.read() if isinstance(tensor, Deferred) else tensor
        flat = whole.detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, in CPU memory. Raises CheckpointError when it is not one."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {str(error).splitlines()[0]}",
            where=str(path),
            fix="name another checkpoint of the run",
        ) from error
