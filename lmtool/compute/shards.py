"""Tensors that are sharded by rows over processes (DTensor): the rows of this process, and what processes exchange.

Of R rows, n processes have ceil(R / n) each, and the last ones what is left, as torch.chunk divides them.

Shapes: R rows, C columns.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from lmtool.compute.processes import peers_may_end

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded, so that this process holds only its own rows of it."""
    # importing it takes a second, which only programs that shard have spent
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def own_rows(tensor: Tensor) -> Tensor:
    """The rows that this process holds, in the same memory; all of a tensor that is not sharded."""
    if not is_sharded(tensor):
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
    group = group_of(tensor)
    return rows_of(len(tensor), dist.get_rank(group), dist.get_world_size(group))


def held(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What a process keeps of these tensors: its rows of those that are sharded; the first one, all others too."""
    found = {name: own_rows(tensor) for name, tensor in tensors.items() if rank == 0 or is_sharded(tensor)}
    return {name: rows for name, rows in found.items() if rank == 0 or len(rows)}


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
        own = self.owned
        sizes = [sum(self._numel(i, rank) for i in own) for rank in range(self._size)]
        by_rank = self._swap(sent, sizes)
        parts = [
            iter(torch.split(received, [self._numel(i, rank) for i in own])) for rank, received in enumerate(by_rank)
        ]
        return [torch.cat([next(part) for part in parts]).view(self._shapes[i]) for i in own]

    def scatter(self, matrices: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """The rows that this process has of all matrices, from those that each process owns. like: of their type."""
        sent = [_flat((m[rows_of(len(m), rank, self._size)] for m in matrices), like) for rank in range(self._size)]
        sizes = [sum(self._numel(i, self._rank) for i in self._of(rank)) for rank in range(self._size)]
        shares: dict[int, Tensor] = {}
        for rank, received in enumerate(self._swap(sent, sizes)):
            numels = [self._numel(i, self._rank) for i in self._of(rank)]
            for i, part in zip(self._of(rank), torch.split(received, numels), strict=True):
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
