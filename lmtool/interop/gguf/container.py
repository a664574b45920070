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

from lmtool.errors import CheckpointError
from lmtool.printable import printable, printable_repr
from lmtool.storage import durable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ITEMS = 1 << 24
"""Maximum items of a list, bytes of a string, values, and tensors: many times what any model has."""
DEQUANTIZED_ROWS = 4096
"""Rows of a matrix that are dequantized at once."""

_NUMBER_CODES = {
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
_FLOAT_DTYPES = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class _MalformedFile(Exception):
    """Raised for content that the format does not allow."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is stored. shape: outermost dimension first. start, end: in bytes from the start of the file."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the values as they are read: float32 for quantized ones."""
        return _FLOAT_DTYPES.get(self.type, torch.float32)


class GgufContainer:
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
                raise self.damage_error("it does not begin with the letters GGUF")
            self.values, self.tensors = _HeaderReader(self._bytes).read_values_and_tensors()
        except OSError as error:
            what = f"{printable(path.name)} cannot be read: {error.strerror}"
            fix = "name a .gguf file, the directory of a model, or hf:ORG/NAME"
            raise CheckpointError(what, where=printable(str(path)), fix=fix) from error
        except _MalformedFile as error:
            raise self.damage_error(str(error)) from error

    def damage_error(self, what: str) -> CheckpointError:
        """An error about a file that is not as the format has it."""
        return CheckpointError(
            f"{printable(self.path.name)[:80]} is not an intact GGUF file: {what}",
            where=printable(str(self.path)),
            fix="copy or download it again; GGUF versions 2 and 3, little endian, in one file, can be read",
        )

    def read_tensor_dequantized_if_needed(self, name: str) -> Tensor:
        """Reads a tensor and dequantizes it; the memory in use is that of this tensor."""
        stored = self.tensors[name]
        content = np.frombuffer(self._bytes, np.uint8, stored.end - stored.start, stored.start)
        if stored.type in _FLOAT_DTYPES:
            return torch.from_numpy(content.copy()).view(stored.dtype).view(stored.shape)
        rows = content.reshape(math.prod(stored.shape[:-1]), -1)
        values = np.empty((len(rows), stored.shape[-1]), np.float32)
        with np.errstate(all="ignore"):  # damaged scales give infinities, as damaged floats do
            for start in range(0, len(rows), DEQUANTIZED_ROWS):
                part = slice(start, start + DEQUANTIZED_ROWS)
                values[part] = dequantize(rows[part], stored.type)
        return torch.from_numpy(values).view(stored.shape)

    def has_equal_tensors(self, first: str, second: str) -> bool:
        """Whether two tensors are equal byte for byte. The first bytes of unequal ones mostly differ."""
        a, b = self.tensors[first], self.tensors[second]
        step, length = 1 << 20, a.end - a.start
        return (a.type, a.shape) == (b.type, b.shape) and all(
            self._bytes[a.start + at : a.start + min(at + step, length)]
            == self._bytes[b.start + at : b.start + min(at + step, length)]
            for at in range(0, length, step)
        )


class _HeaderReader:
    """Reads a header from its beginning. Raises _MalformedFile."""

    def __init__(self, content: mmap | bytes) -> None:
        self._content = content
        self._at = len(MAGIC)

    def read_values_and_tensors(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        """Reads all values and where each tensor is stored, by their names."""
        version = self._read_number("<I")
        if version not in VERSIONS:
            raise _MalformedFile(f"its version is {version}")
        n_tensors, n_values = self._read_count(24), self._read_count(13)
        values: dict[str, Any] = {}
        for _ in range(n_values):
            key = self._read_text()
            if key in values:
                raise _MalformedFile(f"the key {printable_repr(key, 80)} is there twice")
            values[key] = self._read_value(self._read_value_type())
        infos = []
        for _ in range(n_tensors):
            name, n_dims = self._read_text(), self._read_number("<I")
            if n_dims > 4:
                raise _MalformedFile(f"the tensor {printable_repr(name, 80)} has {n_dims} dimensions")
            # the file has the innermost dimension first
            shape = tuple(self._read_number("<Q") for _ in range(n_dims))[::-1]
            type_number, offset = self._read_number("<I"), self._read_number("<Q")
            infos.append((name, type_number, shape, offset))
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise _MalformedFile("general.alignment is not a power of two")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, type_number, shape, offset in infos:
            shown = f"the tensor {printable_repr(name, 80)}"
            if name in tensors:
                raise _MalformedFile(f"{shown} is there twice")
            tensor_type = _find_readable_tensor_type(type_number)
            if tensor_type is None:
                raise _MalformedFile(f"{shown} is of type {type_number}, which cannot be dequantized")
            block, size = GGML_QUANT_SIZES[tensor_type]
            if min(shape, default=0) < 1 or shape[-1] % block or offset % alignment:
                raise _MalformedFile(f"{shown} has an impossible shape or offset")
            end = base + offset + math.prod(shape) // block * size
            if end > len(self._content):
                raise _MalformedFile(f"{shown} ends at byte {end} of {len(self._content)}")
            tensors[name] = StoredTensor(tensor_type, shape, base + offset, end)
        return values, tensors

    def _read_value(self, value_type: GGUFValueType) -> Any:
        if value_type is GGUFValueType.STRING:
            return self._read_text()
        if value_type is GGUFValueType.FLOAT32:
            return float(str(np.float32(self._read_number("<f"))))
        if value_type is not GGUFValueType.ARRAY:
            return self._read_number(_NUMBER_CODES[value_type])
        item_type = self._read_value_type()
        if item_type is GGUFValueType.STRING:
            return [self._read_text() for _ in range(self._read_count(8))]
        if item_type is GGUFValueType.ARRAY:
            raise _MalformedFile("it holds a list of lists")
        dtype = np.dtype(_NUMBER_CODES[item_type])
        return np.frombuffer(self._read_bytes(self._read_count(dtype.itemsize) * dtype.itemsize), dtype)

    def _read_value_type(self) -> GGUFValueType:
        type_number = self._read_number("<I")
        try:
            return GGUFValueType(type_number)
        except ValueError as error:
            raise _MalformedFile(f"it holds a value of type {type_number}") from error

    def _read_count(self, min_item_bytes: int) -> int:
        """Reads the number of items that follow, of at least `min_item_bytes` each."""
        count: int = self._read_number("<Q")
        if count * min_item_bytes > len(self._content) - self._at or count > MAX_ITEMS:
            raise _MalformedFile(f"{count} items are announced in {len(self._content)} bytes")
        return count

    def _read_text(self) -> str:
        try:
            return self._read_bytes(self._read_count(1)).decode()
        except UnicodeDecodeError as error:
            raise _MalformedFile(f"a string before byte {self._at} is not UTF-8") from error

    def _read_number(self, code: str) -> Any:
        return struct.unpack(code, self._read_bytes(struct.calcsize(code)))[0]

    def _read_bytes(self, length: int) -> bytes:
        if length > len(self._content) - self._at:
            raise _MalformedFile(f"it ends at byte {len(self._content)}, inside its header")
        self._at += length
        return self._content[self._at - length : self._at]


@cache
def _find_readable_tensor_type(type_number: int) -> GGMLQuantizationType | None:
    """Finds a type of tensors by its number; None when its values cannot be read."""
    try:
        tensor_type = GGMLQuantizationType(type_number)
        if tensor_type not in _FLOAT_DTYPES:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor_type][1]), np.uint8), tensor_type)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return tensor_type
