"""The step of one text as a list of typed steps, which a C kernel computes in turn without returning to Python.

The structures are those of rowstep.c, which says what their fields mean.
"""

from ctypes import Structure, Union, c_float, c_int32, c_void_p

import torch
from torch import Tensor

from lmtool.compute.kernels.build import c_fields, load_kernels
from lmtool.compute.kernels.matrices import CMatrix

ACTIVATIONS = ("relu", "tanh", "gelu", "gelu-tanh", "silu", "relu-squared")


class LinearStep(Structure):
    _fields_ = (("matrix", CMatrix), ("adds", c_int32))


class NormStep(Structure):
    _fields_ = (*c_fields(c_void_p, "gain bias"), *c_fields(c_int32, "n_parts width is_centered"), ("eps", c_float))


class RotateStep(Structure):
    _fields_ = (*c_fields(c_void_p, "cosines sines"), *c_fields(c_int32, "n_heads width n_rotated"))


class AttendStep(Structure):
    _fields_ = (
        *c_fields(c_void_p, "keys values bias"),
        *c_fields(c_int32, "n_heads n_kv_heads key_width value_width n_slots window n_source"),
        ("scale", c_float),
    )


class ActivateStep(Structure):
    _fields_ = c_fields(c_int32, "function width is_gated")


class AddStep(Structure):
    _fields_ = (*c_fields(c_int32, "width"), *c_fields(c_float, "own_scale scale"))


class CopyStep(Structure):
    _fields_ = c_fields(c_int32, "width")


class GateStep(Structure):
    _fields_ = c_fields(c_int32, "n_gates width")


class _AnyStep(Union):
    _fields_ = (
        ("linear", LinearStep),
        ("norm", NormStep),
        ("rotate", RotateStep),
        ("attend", AttendStep),
        ("activate", ActivateStep),
        ("add", AddStep),
        ("copy", CopyStep),
        ("gate", GateStep),
    )


STEP_KINDS = {kind: (number, name) for number, (name, kind) in enumerate(_AnyStep._fields_)}
"""The number of each kind of step in C, and its name in the union."""


class _Operation(Structure):
    _fields_ = (*c_fields(c_int32, "kind src dst"), ("step", _AnyStep))


class DecodeStepProgram:
    """A list of steps on vectors of float32 in a scratch memory."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._stored: list[Tensor] = []
        self._size = 0

    def reserve_vector(self, length: int) -> int:
        """Reserves memory for a vector of this length. Returns its place."""
        first = self._size
        self._size += -(-length // 16) * 16
        return first

    def store_as_float32_and_get_address(self, tensor: Tensor | None) -> int | None:
        """Keeps the numbers of a tensor in float32. Returns their address."""
        if tensor is None:
            return None
        self._stored.append(tensor.detach().float().contiguous())
        return self._stored[-1].data_ptr()

    def add_step(self, step: Structure, src: int, dst: int) -> None:
        """Adds a step. src, dst: places of its input and output."""
        number, name = STEP_KINDS[type(step)]
        self._operations.append(_Operation(number, src, dst, _AnyStep(**{name: step})))

    def allocate(self) -> None:
        """Allocates the memory and the list; no step is added after it."""
        self.memory = torch.zeros(self._size)
        self._list = (_Operation * len(self._operations))(*self._operations)

    def set_source_length(self, n_source: int) -> None:
        """Lets attention to a source read this many positions of it."""
        for operation in self._list:
            if operation.kind == STEP_KINDS[AttendStep][0] and operation.step.attend.n_source:
                operation.step.attend.n_source = n_source

    def run(self, position: int) -> None:
        """Computes one position, and writes its keys and values to the caches."""
        kernels = load_kernels()
        assert kernels is not None
        kernels.step(self._list, len(self._list), self.memory.data_ptr(), position, torch.get_num_threads())
