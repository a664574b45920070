"""The container of GGUF: a header of typed values, then tensors, memory-mapped and dequantized one at a time.

The format is in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian. Every
length and offset is held against the size of the file before anything of that size is made.
"""

import errno
import math
import struct
from dataclasses import dataclass
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from torch import Tensor

from lmtool import durable
from lmtool.errors import CheckpointError
from lmtool.printable import printable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ITEMS = 1 << 24
"""Items of a list, bytes of a string, values or tensors: many times what any model has."""
ROWS = 4096
"""Rows that are dequantized at once."""

_NUMBERS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class _Damage(Exception):
    """What of a file is not as the format has it."""


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies. shape: outermost dimension first. start, end: in bytes from the start of the file."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the values as they are read: float32 for quantized ones."""
        return _FLOATS.get(self.kind, torch.float32)


class Container:
    """An open file. values: numbers, booleans, strings, lists of strings and numpy arrays, by their key.

    A 32-bit float is the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of a file. Raises CheckpointError when it is no GGUF file, or damaged."""
        self.path = path
        try:
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, "there is no such file")
            self._bytes = durable.map_file(path)
            if self._bytes[: len(MAGIC)] != MAGIC:
                raise self.damage("it does not begin with the letters GGUF")
            self.values, self.tensors = _Header(self._bytes).read()
        except OSError as error:
            what = f"{printable(path.name)} cannot be read: {error.strerror}"
            raise CheckpointError(what, where=printable(str(path)), fix="name a GGUF file that can be read") from error
        except _Damage as error:
            raise self.damage(str(error)) from error

    def damage(self, what: str) -> CheckpointError:
        """An error about a file that is not as the format has it."""
        return CheckpointError(
            f"{printable(self.path.name)[:80]} is not an intact GGUF file: {what}",
            where=printable(str(self.path)),
            fix="copy or download it again; GGUF versions 2 and 3, little endian, in one file, can be read",
        )

    def read(self, name: str) -> Tensor:
        """A tensor, dequantized; the memory in use is that of this tensor."""
        stored = self.tensors[name]
        held = np.frombuffer(self._bytes, np.uint8, stored.end - stored.start, stored.start)
        if stored.kind in _FLOATS:
            return torch.from_numpy(held.copy()).view(stored.dtype).view(stored.shape)
        width = stored.shape[-1]
        rows = held.reshape(math.prod(stored.shape[:-1]), -1)
        values = np.empty((len(rows), width), np.float32)
        with np.errstate(all="ignore"):  # damaged scales give infinities, as damaged floats do
            for start in range(0, len(rows), ROWS):
                values[start : start + ROWS] = dequantize(rows[start : start + ROWS], stored.kind)
        return torch.from_numpy(values).view(stored.shape)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are equal byte for byte. The first of unequal ones mostly differ early."""
        a, b = self.tensors[one], self.tensors[other]
        if (a.kind, a.shape) != (b.kind, b.shape):
            return False
        step = 1 << 20
        return all(
            self._bytes[a.start + at : min(a.start + at + step, a.end)]
            == self._bytes[b.start + at : min(b.start + at + step, b.end)]
            for at in range(0, a.end - a.start, step)
        )


class _Header:
    """Reads a header from its beginning."""

    def __init__(self, content: mmap | bytes) -> None:
        self._content = content
        self._at = len(MAGIC)

    def read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        version = self._number("<I")
        if version not in VERSIONS:
            raise _Damage(f"its version is {version}")
        n_tensors, n_values = self._count(24), self._count(13)
        values: dict[str, Any] = {}
        for _ in range(n_values):
            key = self._text()
            if key in values:
                raise _Damage(f"the key {_shown(key)} is there twice")
            values[key] = self._value(self._kind())
        infos = [self._info() for _ in range(n_tensors)]
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise _Damage("general.alignment is not a power of two")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, Stored] = {}
        for name, kind, shape, offset in infos:
            if name in tensors:
                raise _Damage(f"the tensor {_shown(name)} is there twice")
            tensors[name] = self._stored(name, kind, shape, base + offset, offset % alignment)
        return values, tensors

    def _stored(self, name: str, raw: int, shape: tuple[int, ...], start: int, off: int) -> Stored:
        kind = _readable(raw)
        if kind is None:
            raise _Damage(f"the tensor {_shown(name)} is of type {raw}, which cannot be dequantized")
        block, size = GGML_QUANT_SIZES[kind]
        if min(shape, default=0) < 1 or shape[-1] % block or off:
            raise _Damage(f"the tensor {_shown(name)} has an impossible shape or offset")
        end = start + math.prod(shape) // block * size
        if end > len(self._content):
            raise _Damage(f"the tensor {_shown(name)} ends at byte {end} of {len(self._content)}")
        return Stored(kind, shape, start, end)

    def _info(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type, shape and offset of a tensor; the file has the innermost dimension first."""
        name = self._text()
        n_dims = self._number("<I")
        if n_dims > 4:
            raise _Damage(f"the tensor {_shown(name)} has {n_dims} dimensions")
        shape = tuple(self._number("<Q") for _ in range(n_dims))[::-1]
        return name, self._number("<I"), shape, self._number("<Q")

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self._text()
        if kind is GGUFValueType.FLOAT32:
            return float(str(np.float32(self._number("<f"))))
        if kind is not GGUFValueType.ARRAY:
            return self._number(_NUMBERS[kind])
        inner = self._kind()
        if inner is GGUFValueType.STRING:
            return [self._text() for _ in range(self._count(8))]
        if inner is GGUFValueType.ARRAY:
            raise _Damage("it holds a list of lists")
        dtype = np.dtype(_NUMBERS[inner])
        return np.frombuffer(self._take(self._count(dtype.itemsize) * dtype.itemsize), dtype)

    def _kind(self) -> GGUFValueType:
        raw = self._number("<I")
        try:
            return GGUFValueType(raw)
        except ValueError as error:
            raise _Damage(f"it holds a value of type {raw}") from error

    def _count(self, least: int) -> int:
        """A number of items of at least this many bytes each, which follow."""
        count: int = self._number("<Q")
        if count * least > len(self._content) - self._at or count > MOST_ITEMS:
            raise _Damage(f"{count} items are announced in {len(self._content)} bytes")
        return count

    def _text(self) -> str:
        try:
            return self._take(self._count(1)).decode()
        except UnicodeDecodeError as error:
            raise _Damage(f"a string before byte {self._at} is not UTF-8") from error

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _take(self, length: int) -> bytes:
        if length > len(self._content) - self._at:
            raise _Damage(f"it ends at byte {len(self._content)}, inside its header")
        self._at += length
        return self._content[self._at - length : self._at]


@cache
def _readable(raw: int) -> GGMLQuantizationType | None:
    """A type of tensors by its number; None when its values cannot be read."""
    try:
        kind = GGMLQuantizationType(raw)
        if kind not in _FLOATS:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return kind


def _shown(name: str) -> str:
    return printable(repr(name))[:80]
