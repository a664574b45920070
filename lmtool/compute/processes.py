"""One process or many: who this one is among them, and what they tell each other.

`torchrun` starts the processes and says through the environment who they are; each joins here. Gradients are exchanged
by DistributedDataParallel (Li et al. 2020), over nccl between GPUs and gloo between CPUs.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lmtool.compute.device import Compute
from lmtool.errors import ResourceError

Made = TypeVar("Made")

PATIENCE = timedelta(hours=6)
"""How long a process waits for the others, which may have a large corpus to tokenize."""


@dataclass(frozen=True)
class World:
    """This process among those of the run. Rank 0 is the one that writes and prints."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module, compute: Compute) -> nn.Module:
        """The same module, whose backward pass averages gradients over all processes."""
        if self.size == 1:
            return module
        devices = [compute.device] if compute.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)

    def alone(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which the backward pass of a wrapped module exchanges nothing: gradients pile up here."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def sum(self, values: Sequence[float], compute: Compute) -> list[float]:
        """The sums over all processes of each value."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=compute.sum_dtype, device=compute.device)
        return [float(value) for value in _all_reduced(tensor).tolist()]

    def share(self, n: int) -> range:
        """Which of n items this process computes."""
        return range(self.rank, n, self.size)

    def gather(
        self, found: Mapping[int, NDArray[Any]], n: int, dtype: DTypeLike, compute: Compute
    ) -> list[NDArray[Any]]:
        """The arrays of items 0 to n - 1, of which each process has found those of its share; one or two dimensions."""
        if self.size == 1 or not n:
            return [found[i] for i in range(n)]
        # every number is given by one process, so that sums are copies
        shapes_N2 = np.zeros((n, 2), dtype=np.int64)
        for i, array in found.items():
            shapes_N2[i] = array.shape if array.ndim == 2 else (-1, len(array))
        shapes_N2 = _all_reduced(torch.from_numpy(shapes_N2).to(compute.device)).cpu().numpy()
        stops_N = np.cumsum(np.abs(shapes_N2).prod(1))
        flat = np.zeros(stops_N[-1], dtype=dtype)
        for i, array in found.items():
            flat[stops_N[i] - array.size : stops_N[i]] = array.reshape(-1)
        flat = _all_reduced(torch.from_numpy(flat).to(compute.device)).cpu().numpy()
        parts = np.split(flat, stops_N[:-1])
        return [
            part if rows < 0 else part.reshape(rows, columns)
            for part, (rows, columns) in zip(parts, shapes_N2.tolist(), strict=True)
        ]

    def from_main(self, text: str, compute: Compute) -> str:
        """The text that the main process has."""
        given = {0: np.frombuffer(text.encode(), dtype=np.uint8)} if self.is_main else {}
        (found,) = self.gather(given, 1, np.uint8, compute)
        return found.tobytes().decode()

    def main_first(self, make: Callable[[], Made]) -> Made:
        """What `make` gives: in the main process first, so that the others find in the cache what takes long."""
        if not self.is_main:
            self.wait()
        made = make()
        if self.is_main:
            self.wait()
        return made

    def wait(self) -> None:
        """Go on when all processes have come here."""
        if self.size > 1:
            with peers_may_end():
                dist.barrier()


def _all_reduced(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, in its place."""
    with peers_may_end():
        dist.all_reduce(tensor)
    return tensor


def local_rank() -> int:
    """The number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """True in the process that writes and prints, also before the processes have joined."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(compute: Compute) -> Iterator[World]:
    """Join the processes that torchrun started, and leave them at the end; alone when there are none."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    dist.init_process_group("nccl" if compute.device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


@contextmanager
def peers_may_end() -> Iterator[None]:
    """Say plainly that another process is gone, when talking to it fails."""
    try:
        yield
    except dist.DistError as error:
        raise _peer_ended() from error
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "peer")):
            raise
        raise _peer_ended() from error


def _peer_ended() -> ResourceError:
    return ResourceError(
        "another process of this run has ended, so this one ends too",
        fix="read the first error above; then go on with `lmtool resume`, also with fewer processes",
    )
