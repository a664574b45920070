"""Writes and reads safetensors files, digesting while writing.

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
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

_Value = TypeVar("_Value")


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for.

    outlines: their types and shapes, as tensors without storage.
    """

    def __init__(self, outlines: Mapping[str, Tensor]) -> None:
        self.outlines = outlines

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)


class MadeTensors(LazyTensors):
    """Those that `make` makes, of these outlines."""

    def __init__(self, outlines: Mapping[str, Tensor], make: Callable[[str], Tensor]) -> None:
        super().__init__(outlines)
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self._make(name)


def check(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError when these tensors cannot be saved: tied to each other, or of a type the format lacks."""
    owners: dict[tuple[torch.device, int], str] = {}
    for name, tensor in outlines(tensors).items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r} has the type {tensor.dtype}, which checkpoints do not support")
        if tensor.is_meta:
            continue
        owner = owners.setdefault((tensor.device, tensor.data_ptr()), name)
        if owner != name and tensor.numel():
            raise ValueError(f"tensors {owner!r} and {name!r} share memory: save one of them")


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in CPU memory, which no later change of the tensors reaches."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, one tensor at a time in CPU memory."""
    # Wide dtypes first, as in the library, so that every tensor is aligned.
    of = outlines(tensors)
    names = sorted(of, key=lambda name: (-of[name].itemsize, name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + of[name].nbytes
        header[name] = {"dtype": _NAMES[of[name].dtype], "shape": list(of[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


class SavedTensors(LazyTensors):
    """The tensors of safetensors files, in CPU memory.

    Of a tensor that several files have, each holds rows, one file after the other.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises CheckpointError when a file is not one, or has not the rows of the others' tensors."""
        whole: dict[str, Tensor] = {}
        super().__init__(whole)
        # files, the name in them, and where in the tensor their rows end
        self._held: dict[str, list[tuple[Any, str, int]]] = {}
        for path in paths:
            try:
                file: Any = open_safetensors(path)
                outlines = {name: _outline(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
            except (SafetensorError, OSError, KeyError) as error:
                raise _unreadable(path, f"cannot be read: {str(error).splitlines()[0]}") from error
            for name, outline in outlines.items():
                if name in self._held:
                    before = whole[name]
                    if not outline.ndim or (before.shape[1:], before.dtype) != (outline.shape[1:], outline.dtype):
                        raise _unreadable(path, f"has no rows of {name!r:.80} as other files have")
                    outline = outline.new_empty(len(before) + len(outline), *outline.shape[1:])
                whole[name] = outline
                self._held.setdefault(name, []).append((file, name, len(outline) if outline.ndim else 0))

    def __getitem__(self, name: str) -> Tensor:
        held = self._held[name]
        if len(held) == 1:
            file, key, _ = held[0]
            whole: Tensor = file.get_tensor(key)
            return whole
        return self.rows(name, slice(None))

    def rows(self, name: str, rows: slice) -> Tensor:
        """Consecutive rows of a tensor, from those files only that have some of them."""
        outline = self.outlines[name]
        start, stop, _ = rows.indices(len(outline))
        parts, first = [], 0
        for file, key, end in self._held[name]:
            if start < end and stop > first:
                parts.append(file.get_slice(key)[max(start, first) - first : min(stop, end) - first])
            first = end
        return torch.cat(parts) if parts else outline.new_empty(0, *outline.shape[1:], device="cpu")

    def below(self, prefix: str) -> Self:
        """Those whose names begin so, without this beginning."""
        part = copy(self)
        part.outlines, part._held = _below(self.outlines, prefix), _below(self._held, prefix)
        return part


def open_safetensors(path: Path) -> Any:
    """A safetensors file, open by the library, which maps it into memory. Raises SafetensorError or OSError.

    Where the file system has no mmap, the library maps a temporary copy, which goes when it is closed.
    """
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        if not system.lacks_mmap(error):
            raise
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copied_file:
        shutil.copyfile(path, copied_file.name)
        return safe_open(copied_file.name, framework="pt")


def below(tensors: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """Those of the tensors whose names begin so, without this beginning."""
    return tensors.below(prefix) if isinstance(tensors, SavedTensors) else _below(tensors, prefix)


def _below(values: Mapping[str, _Value], prefix: str) -> dict[str, _Value]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def outlines(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors of the same types and shapes, without storage where these are still to be read."""
    return tensors.outlines if isinstance(tensors, LazyTensors) else tensors


def rows_of(tensors: Mapping[str, Tensor], name: str, rows: slice) -> Tensor:
    """Consecutive rows of one of the tensors, of which no others are read."""
    return tensors.rows(name, rows) if isinstance(tensors, SavedTensors) else tensors[name][rows]


def _outline(saved: Any) -> Tensor:
    """Raises KeyError for a type that checkpoints do not have."""
    return torch.empty(saved.get_shape(), dtype=_TYPES[saved.get_dtype()], device="meta")


def _unreadable(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path.name} {problem}", where=str(path), fix="name another checkpoint of the run")
