"""Tensors that are sharded by rows over processes: the rows of this process, and what processes exchange.

A model is built in a `ShardedBuild`: its parameters have no storage, and only the rows of one process beside them. When
it is trained they are DTensors. Of R rows, n processes have ceil(R / n) each, and the last ones what is left, as
torch.chunk divides them.

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

from lmtool.compute.processes import peers_may_end

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Share(NamedTuple):
    """The rows that a process holds of a parameter without storage, and which these are."""

    rows: Tensor
    at: slice


_SHARE = "share"
"""Attribute of such a parameter."""

_FILLS = frozenset(("normal_", "uniform_", "kaiming_uniform_", "zero_", "fill_"))
"""What gives new parameters their values."""


class ShardedBuild(TorchFunctionMode):
    """Where new modules hold only the rows of one process, with the values of whole ones.

    Each parameter is initialised as a whole by the same random numbers, then cut, before the next one is.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self._rank, self._size = rank, size
        self._room = torch.empty(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            return func(*args, **kwargs | {"device": "meta"})
        tensor = args[0] if args else kwargs.get("tensor")
        if func.__name__ not in _FILLS or not tensor.is_meta:
            return func(*args, **kwargs)
        whole = self._whole(tensor.shape, tensor.dtype)
        func(*(whole, *args[1:]) if args else (), **kwargs if args else kwargs | {"tensor": whole})
        if not isinstance(tensor, nn.Parameter):
            return whole.clone()
        at = rows_of(len(whole), self._rank, self._size)
        if is_sharded(tensor):
            own_rows(tensor).copy_(whole[at])
        else:
            vars(tensor)[_SHARE] = Share(whole[at].clone(), at)
        return tensor

    def _whole(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Memory for one parameter, the same for all, so that freed memory does not lie in pieces between the rows."""
        n = shape.numel()
        if len(self._room) < n or self._room.dtype != dtype:
            self._room = torch.empty(n, dtype=dtype)
        return self._room[:n].view(shape)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded, so that this process holds only its own rows of it."""
    return _SHARE in vars(tensor) or _is_distributed(tensor)


def _is_distributed(tensor: Tensor) -> bool:
    # importing it takes a second, which only programs that shard have spent
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def own_rows(tensor: Tensor) -> Tensor:
    """The rows that this process holds, in the same memory; all of a tensor that is not sharded."""
    if _SHARE in vars(tensor):
        share: Share = vars(tensor)[_SHARE]
        return share.rows
    if not _is_distributed(tensor):
        return tensor
    rows: Tensor = cast("DTensor", tensor.detach()).to_local()
    return rows


def group_of(tensor: Tensor) -> ProcessGroup:
    """The processes over which a tensor is sharded."""
    group: ProcessGroup = cast("DTensor", tensor).device_mesh.get_group()
    return group


def rows_of(n_rows: int, rank: int, size: int) -> slice:
    """Which of the rows a process holds."""
    share = math.ceil(n_rows / size)
    return slice(min(rank * share, n_rows), min((rank + 1) * share, n_rows))


def own_slice(tensor: Tensor) -> slice:
    """Which rows of a sharded tensor this process holds."""
    if _SHARE in vars(tensor):
        share: Share = vars(tensor)[_SHARE]
        return share.at
    group = group_of(tensor)
    return rows_of(len(tensor), dist.get_rank(group), dist.get_world_size(group))


def held(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What a process keeps of these tensors: its rows of those that are sharded; the first one, all others too."""
    kept = {name: own_rows(tensor) for name, tensor in tensors.items() if rank == 0 or is_sharded(tensor)}
    return {name: rows for name, rows in kept.items() if rank == 0 or len(rows)}


def sharded_like(rows: Tensor, tensor: Tensor) -> Tensor:
    """The sharded tensor of which each process holds `rows`, with as many rows as another sharded one."""
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    whole = torch.empty(len(tensor), *rows.shape[1:], device="meta")
    return DTensor.from_local(
        rows, tensor.device_mesh, tensor.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def norm_over(group: ProcessGroup, norm: Tensor) -> Tensor:
    """The norm of all rows, from that of the rows of each process."""
    squared = norm.square()
    with peers_may_end():
        dist.all_reduce(squared, group=group)
    return squared.sqrt()


class RowExchange:
    """Gives whole matrices to processes that compute with them, and brings the results back as shares.

    Matrix i belongs to process i modulo their number, so each computes with its part of the matrices only.
    """

    def __init__(self, group: ProcessGroup, shapes: Sequence[tuple[int, int]]) -> None:
        """shapes: rows and columns of each matrix."""
        self._group = group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._shapes = shapes

    @property
    def owned(self) -> range:
        """The matrices of this process."""
        return self._of(self._rank)

    def _of(self, rank: int) -> range:
        return range(rank, len(self._shapes), self._size)

    def gather(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """The matrices of this process (R, C), from the rows that each process has of all."""
        sent = [_flat((shares[i] for i in self._of(rank)), shares[0]) for rank in range(self._size)]
        numels = [[self._numel(i, rank) for i in self.owned] for rank in range(self._size)]
        by_rank = zip(self._swap(sent, list(map(sum, numels))), numels, strict=True)
        parts = [iter(torch.split(received, numels_of_rank)) for received, numels_of_rank in by_rank]
        return [torch.cat([next(part) for part in parts]).view(self._shapes[i]) for i in self.owned]

    def scatter(self, matrices: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """The rows that this process has of all matrices, from those that each process owns. like: of their type."""
        sent = [_flat((m[rows_of(len(m), rank, self._size)] for m in matrices), like) for rank in range(self._size)]
        numels = [[self._numel(i, self._rank) for i in self._of(rank)] for rank in range(self._size)]
        shares: dict[int, Tensor] = {}
        for rank, received in enumerate(self._swap(sent, list(map(sum, numels)))):
            for i, part in zip(self._of(rank), torch.split(received, numels[rank]), strict=True):
                shares[i] = part.view(-1, self._shapes[i][1])
        return [shares[i] for i in range(len(self._shapes))]

    def _numel(self, matrix: int, rank: int) -> int:
        n_rows, n_columns = self._shapes[matrix]
        held = rows_of(n_rows, rank, self._size)
        return len(range(n_rows)[held]) * n_columns

    def _swap(self, sent: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """What each process sent to this one. sent: to each. sizes: elements from each."""
        received = sent[0].new_empty(sum(sizes))
        with peers_may_end():
            dist.all_to_all_single(
                received, torch.cat(list(sent)), list(sizes), [len(one) for one in sent], group=self._group
            )
        return list(torch.split(received, list(sizes)))


def _flat(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """All elements in one row; none of the type of `like`."""
    return torch.cat([like.new_empty(0), *(tensor.reshape(-1) for tensor in tensors)])
