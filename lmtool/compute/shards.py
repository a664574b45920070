"""Tensors that are sharded by rows over processes: the rows of this process, and what processes exchange.

A model is built within `ShardNewParameters`: its parameters have no storage, and only the rows of one process beside
them. When it is trained they are DTensors. Of R rows, n processes have ceil(R / n) each, and the last ones what is
left, as torch.chunk divides them.

Shapes: R rows, C columns.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.overrides import TorchFunctionMode

from lmtool.compute.processes import convert_peer_errors

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class RowsWithRange(NamedTuple):
    """The rows that a process holds of a parameter without storage, and their range."""

    rows: Tensor
    at: slice


_SHARD_ATTRIBUTE = "row_shard"
"""The attribute of such a parameter that holds its RowsWithRange."""

_INITIALIZERS = frozenset(("normal_", "uniform_", "kaiming_uniform_", "zero_", "fill_"))
"""What gives new parameters their values."""


class ShardNewParameters(TorchFunctionMode):
    """A context in which new modules hold only the rows of one process, with the values of whole ones.

    Each parameter is initialised as a whole by the same random numbers, then cut, before the next one is.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self._rank, self._size = rank, size
        self._buffer = torch.empty(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            return func(*args, **kwargs | {"device": "meta"})
        tensor = args[0] if args else kwargs.get("tensor")
        if func.__name__ not in _INITIALIZERS or not tensor.is_meta:
            return func(*args, **kwargs)
        whole = self._view_buffer(tensor.shape, tensor.dtype)
        func(*(whole, *args[1:]) if args else (), **kwargs if args else kwargs | {"tensor": whole})
        if not isinstance(tensor, nn.Parameter):
            return whole.clone()
        at = row_range(len(whole), self._rank, self._size)
        if is_sharded(tensor):
            get_local_rows(tensor).copy_(whole[at])
        else:
            vars(tensor)[_SHARD_ATTRIBUTE] = RowsWithRange(whole[at].clone(), at)
        return tensor

    def _view_buffer(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Returns a view of a buffer that all parameters reuse, so that they leave no freed memory between the rows."""
        n = shape.numel()
        if len(self._buffer) < n or self._buffer.dtype != dtype:
            self._buffer = torch.empty(n, dtype=dtype)
        return self._buffer[:n].view(shape)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded, so that this process holds only its own rows of it."""
    return _SHARD_ATTRIBUTE in vars(tensor) or _is_distributed(tensor)


def _is_distributed(tensor: Tensor) -> bool:
    # importing it takes a second, which only programs that shard have spent
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def get_local_rows(tensor: Tensor) -> Tensor:
    """The rows that this process holds, in the same memory; all of a tensor that is not sharded."""
    if _SHARD_ATTRIBUTE in vars(tensor):
        shard: RowsWithRange = vars(tensor)[_SHARD_ATTRIBUTE]
        return shard.rows
    if not _is_distributed(tensor):
        return tensor
    rows: Tensor = cast("DTensor", tensor.detach()).to_local()
    return rows


def process_group(tensor: Tensor) -> ProcessGroup:
    """The processes over which a tensor is sharded."""
    group: ProcessGroup = cast("DTensor", tensor).device_mesh.get_group()
    return group


def row_range(n_rows: int, rank: int, size: int) -> slice:
    """The range of the rows that a process holds."""
    per_process = math.ceil(n_rows / size)
    return slice(min(rank * per_process, n_rows), min((rank + 1) * per_process, n_rows))


def get_local_row_range(sharded_tensor: Tensor) -> slice:
    """The range of the rows of a sharded tensor that this process holds."""
    if _SHARD_ATTRIBUTE in vars(sharded_tensor):
        shard: RowsWithRange = vars(sharded_tensor)[_SHARD_ATTRIBUTE]
        return shard.at
    group = process_group(sharded_tensor)
    return row_range(len(sharded_tensor), dist.get_rank(group), dist.get_world_size(group))


def select_own_tensors(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Selects what a process saves: its rows of sharded tensors, and in rank 0 all other tensors too."""
    own = {name: get_local_rows(tensor) for name, tensor in tensors.items() if rank == 0 or is_sharded(tensor)}
    return {name: rows for name, rows in own.items() if rank == 0 or len(rows)}


def make_sharded_like(local_rows: Tensor, sharded_tensor: Tensor) -> Tensor:
    """Makes a tensor sharded like `sharded_tensor`, with as many rows, of which each process holds `local_rows`."""
    from torch.distributed.tensor import DTensor

    assert isinstance(sharded_tensor, DTensor)
    whole = torch.empty(len(sharded_tensor), *local_rows.shape[1:], device="meta")
    return DTensor.from_local(
        local_rows,
        sharded_tensor.device_mesh,
        sharded_tensor.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def all_reduce_norm(group: ProcessGroup, local_norm: Tensor) -> Tensor:
    """Returns the norm of all rows, from that of the rows of each process."""
    squared = local_norm.square()
    with convert_peer_errors():
        dist.all_reduce(squared, group=group)
    return squared.sqrt()


class WholeMatrixExchange:
    """Gathers whole matrices in processes that compute with them, and scatters the results as rows.

    Matrix i belongs to process i modulo their number, so each computes with its part of the matrices only.
    """

    def __init__(self, group: ProcessGroup, shapes: Sequence[tuple[int, int]]) -> None:
        """shapes: rows and columns of each matrix."""
        self._group = group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._shapes = shapes

    @property
    def owned(self) -> range:
        """The numbers of the matrices of this process."""
        return self._owned_by(self._rank)

    def _owned_by(self, rank: int) -> range:
        return range(rank, len(self._shapes), self._size)

    def gather_owned_matrices(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Gathers the matrices of this process (R, C), from the rows that each process has of all."""
        sent = [_concatenate((rows[i] for i in self._owned_by(rank)), rows[0]) for rank in range(self._size)]
        numels = [[self._numel(i, rank) for i in self.owned] for rank in range(self._size)]
        by_rank = zip(self._all_to_all(sent, list(map(sum, numels))), numels, strict=True)
        parts = [iter(torch.split(received, numels_of_rank)) for received, numels_of_rank in by_rank]
        return [torch.cat([next(part) for part in parts]).view(self._shapes[i]) for i in self.owned]

    def scatter_owned_matrices(self, matrices: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """Scatters the matrices of each process. Returns this process's rows of all.

        like: a tensor of their type.
        """
        sent = [
            _concatenate((m[row_range(len(m), rank, self._size)] for m in matrices), like) for rank in range(self._size)
        ]
        numels = [[self._numel(i, self._rank) for i in self._owned_by(rank)] for rank in range(self._size)]
        rows: dict[int, Tensor] = {}
        for rank, received in enumerate(self._all_to_all(sent, list(map(sum, numels)))):
            for i, part in zip(self._owned_by(rank), torch.split(received, numels[rank]), strict=True):
                rows[i] = part.view(-1, self._shapes[i][1])
        return [rows[i] for i in range(len(self._shapes))]

    def _numel(self, matrix: int, rank: int) -> int:
        n_rows, n_columns = self._shapes[matrix]
        return len(range(n_rows)[row_range(n_rows, rank, self._size)]) * n_columns

    def _all_to_all(self, sent: Sequence[Tensor], received_numels: Sequence[int]) -> list[Tensor]:
        """Sends a tensor to each process. Returns those that each process sent to this one."""
        received = sent[0].new_empty(sum(received_numels))
        with convert_peer_errors():
            dist.all_to_all_single(
                received, torch.cat(list(sent)), list(received_numels), [len(one) for one in sent], group=self._group
            )
        return list(torch.split(received, list(received_numels)))


def _concatenate(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Concatenates all elements; of no tensors in an empty one of the type of `like`."""
    return torch.cat([like.new_empty(0), *(tensor.reshape(-1) for tensor in tensors)])
