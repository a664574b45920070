"""The step of one text as a list of operations, which a C kernel computes in turn without returning to Python.

The structures are those of rowstep.c, which says what their fields mean.
"""

from ctypes import Structure, Union, c_float, c_int32, c_void_p

import torch
from torch import Tensor

from lmtool.compute.kernels.build import fields, library
from lmtool.compute.kernels.matrices import Matrix

ACTIVATIONS = ("relu", "tanh", "gelu", "gelu-tanh", "silu")


class LinearStep(Structure):
    _fields_ = (("matrix", Matrix), ("adds", c_int32))


class NormStep(Structure):
    _fields_ = (*fields(c_void_p, "gain bias"), *fields(c_int32, "n_parts width is_centred"), ("eps", c_float))


class RotateStep(Structure):
    _fields_ = (*fields(c_void_p, "cosines sines"), *fields(c_int32, "n_heads width n_rotated"))


class AttendStep(Structure):
    _fields_ = (
        *fields(c_void_p, "keys values bias"),
        *fields(c_int32, "n_heads n_kv_heads key_width value_width n_slots window n_source"),
        ("scale", c_float),
    )


class ActivateStep(Structure):
    _fields_ = fields(c_int32, "function width is_gated")


class AddStep(Structure):
    _fields_ = fields(c_int32, "width")


class CopyStep(Structure):
    _fields_ = fields(c_int32, "width")


class _AnyStep(Union):
    _fields_ = (
        ("linear", LinearStep),
        ("norm", NormStep),
        ("rotate", RotateStep),
        ("attend", AttendStep),
        ("activate", ActivateStep),
        ("add", AddStep),
        ("copy", CopyStep),
    )


KINDS = {kind: (number, name) for number, (name, kind) in enumerate(_AnyStep._fields_)}
"""The number of each kind of step in C, and its name in the union."""


class _Operation(Structure):
    _fields_ = (*fields(c_int32, "kind src dst"), ("step", _AnyStep))


class Program:
    """Operations on vectors in a scratch memory, of float32."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._held: list[Tensor] = []
        self._size = 0

    def reserve(self, n: int) -> int:
        """The place of a vector of n numbers in the memory."""
        first = self._size
        self._size += -(-n // 16) * 16
        return first

    def hold(self, t: Tensor | None) -> int | None:
        """The address of a tensor's numbers in float32, which are kept."""
        if t is None:
            return None
        self._held.append(t.detach().float().contiguous())
        return self._held[-1].data_ptr()

    def add(self, step: Structure, src: int, dst: int) -> None:
        """Add an operation. src, dst: places of its input and output."""
        number, name = KINDS[type(step)]
        self._operations.append(_Operation(number, src, dst, _AnyStep(**{name: step})))

    def build(self) -> None:
        """Make the memory and the list; no operation is added after it."""
        self.memory = torch.zeros(self._size)
        self._list = (_Operation * len(self._operations))(*self._operations)

    def set_source(self, n_source: int) -> None:
        """Let attention to a source read this many positions of it."""
        for operation in self._list:
            if operation.kind == KINDS[AttendStep][0] and operation.step.attend.n_source:
                operation.step.attend.n_source = n_source

    def run(self, position: int) -> None:
        """Compute one position, whose keys and values the caches hold then."""
        kernels = library()
        assert kernels is not None
        kernels.step(self._list, len(self._list), self.memory.data_ptr(), position, torch.get_num_threads())
