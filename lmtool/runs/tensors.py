"""Serializes and reads safetensors files.

The library's own writer reports a full disk as a string and would need a second pass for the digest; the format is a
JSON header and then the bytes (https://github.com/huggingface/safetensors#format). The library is used for reading.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmtool import system
from lmtool.errors import CheckpointError
from lmtool.printable import first_line

_DTYPE_NAMES = {
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
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}

_Value = TypeVar("_Value")


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read on access. meta_tensors: tensors of the same types and shapes without storage."""

    def __init__(self, meta_tensors: Mapping[str, Tensor]) -> None:
        self.meta_tensors = meta_tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.meta_tensors)

    def __len__(self) -> int:
        return len(self.meta_tensors)


class ComputedTensors(LazyTensors):
    """Tensors that `compute` computes on access."""

    def __init__(self, meta_tensors: Mapping[str, Tensor], compute: Callable[[str], Tensor]) -> None:
        super().__init__(meta_tensors)
        self._compute = compute

    def __getitem__(self, name: str) -> Tensor:
        return self._compute(name)


def check_dtypes_and_shared_memory(tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError for tensors that cannot be saved: that share memory, or of a type the format lacks."""
    owners: dict[tuple[torch.device, int], str] = {}
    for name, tensor in get_meta_tensors(tensors).items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise ValueError(f"tensor {name!r} has the type {tensor.dtype}, which checkpoints do not support")
        if tensor.is_meta:
            continue
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), name)
        if owner != name and tensor.numel():
            raise ValueError(f"tensors {owner!r} and {name!r} share memory: save one of them")


def copy_to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors to CPU memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def serialize_safetensors(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a safetensors file, with one tensor at a time in CPU memory."""
    # Wide dtypes first, as in the library, so that every tensor is aligned.
    meta = get_meta_tensors(tensors)
    names = sorted(meta, key=lambda name: (-meta[name].itemsize, name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + meta[name].nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[meta[name].dtype],
            "shape": list(meta[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


class SavedTensors(LazyTensors):
    """Tensors of safetensors files, read to CPU memory on access.

    If several files have a tensor, each has consecutive rows of it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises CheckpointError when a file is damaged, or its rows do not fit those of the others."""
        whole: dict[str, Tensor] = {}
        super().__init__(whole)
        # file, name in it, and end of its rows in the tensor
        self._held: dict[str, list[tuple[Any, str, int]]] = {}
        for path in paths:
            try:
                file: Any = open_safetensors(path)
                found = {name: _make_meta_tensor(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
            except (SafetensorError, OSError, KeyError) as error:
                raise _tensor_file_error(path, f"cannot be read: {first_line(error, 200)}") from error
            for name, meta in found.items():
                if name in self._held:
                    before = whole[name]
                    if not meta.ndim or (before.shape[1:], before.dtype) != (meta.shape[1:], meta.dtype):
                        raise _tensor_file_error(path, f"has no rows of {name!r:.80} as other files have")
                    meta = meta.new_empty(len(before) + len(meta), *meta.shape[1:])
                whole[name] = meta
                self._held.setdefault(name, []).append((file, name, len(meta) if meta.ndim else 0))

    def __getitem__(self, name: str) -> Tensor:
        held = self._held[name]
        if len(held) == 1:
            file, key, _ = held[0]
            whole: Tensor = file.get_tensor(key)
            return whole
        return self.read_rows(name, slice(None))

    def read_rows(self, name: str, rows: slice) -> Tensor:
        """Reads consecutive rows of a tensor from the files that have some of them."""
        meta = self.meta_tensors[name]
        start, stop, _ = rows.indices(len(meta))
        parts, first = [], 0
        for file, key, end in self._held[name]:
            if start < end and stop > first:
                parts.append(file.get_slice(key)[max(start, first) - first : min(stop, end) - first])
            first = end
        return torch.cat(parts) if parts else meta.new_empty(0, *meta.shape[1:], device="cpu")

    def select_and_strip_prefix(self, prefix: str) -> Self:
        """Returns the tensors whose names begin with `prefix`, and removes it from the names."""
        part = copy(self)
        part.meta_tensors, part._held = _strip_prefix(self.meta_tensors, prefix), _strip_prefix(self._held, prefix)
        return part


def open_safetensors(path: Path) -> Any:
    """Opens and memory-maps a safetensors file, or a temporary copy if the file system has no mmap.

    Raises SafetensorError or OSError.
    """
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        if not system.is_mmap_unsupported(error):
            raise
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copied_file:
        shutil.copyfile(path, copied_file.name)
        return safe_open(copied_file.name, framework="pt")


def select_and_strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """Returns the tensors whose names begin with `prefix`, and removes it from the names."""
    return (
        tensors.select_and_strip_prefix(prefix) if isinstance(tensors, SavedTensors) else _strip_prefix(tensors, prefix)
    )


def _strip_prefix(values: Mapping[str, _Value], prefix: str) -> dict[str, _Value]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def get_meta_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns tensors of the same types and shapes, without reading any."""
    return tensors.meta_tensors if isinstance(tensors, LazyTensors) else tensors


def read_tensor_rows(tensors: Mapping[str, Tensor], name: str, rows: slice) -> Tensor:
    """Reads consecutive rows of one tensor, and no others."""
    return tensors.read_rows(name, rows) if isinstance(tensors, SavedTensors) else tensors[name][rows]


def _make_meta_tensor(saved: Any) -> Tensor:
    """Raises KeyError for a type that checkpoints do not have."""
    return torch.empty(saved.get_shape(), dtype=_DTYPES[saved.get_dtype()], device="meta")


def _tensor_file_error(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path.name} {problem}", where=str(path), fix="name another checkpoint of the run")
