"""Data-parallel processes: ranks and collective communication.

`torchrun` starts the processes and sets their ranks in the environment; each joins here. Gradients are all-reduced
by DistributedDataParallel (Li et al. 2020), over nccl between GPUs and gloo between CPUs.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lmtool.compute.device import Compute
from lmtool.compute.watching import watch_signals
from lmtool.errors import ResourceError, UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Made = TypeVar("Made")

PATIENCE = timedelta(hours=6)
"""Timeout of collectives; others may be tokenizing a large corpus."""


@dataclass(frozen=True)
class World:
    """This process's rank in the run. Rank 0 writes files and prints.

    in_step: each layer of the model is computed by all at the same time, since they share it.
    """

    rank: int = 0
    size: int = 1
    in_step: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module, compute: Compute) -> nn.Module:
        """The module wrapped so that its backward pass averages gradients over all processes."""
        if self.size == 1:
            return module
        devices = [compute.device] if compute.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)

    def alone(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which a backward pass accumulates the gradients of this process, without exchanging them.

        module: wrapped, or sharded by `fully_shard`.
        """
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        # importing it takes a second, which only programs that shard have spent
        fsdp = sys.modules.get("torch.distributed.fsdp")
        return _unsynced(module) if fsdp is not None and isinstance(module, fsdp.FSDPModule) else nullcontext()

    def sum(self, values: Sequence[float], compute: Compute) -> list[float]:
        """All-reduced sum of each value."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=compute.sum_dtype, device=compute.device)
        return [float(value) for value in _all_reduced(tensor).tolist()]

    def most(self, number: int, compute: Compute) -> int:
        """The largest of the numbers of all processes."""
        return int(max(self.sum([number * (rank == self.rank) for rank in range(self.size)], compute)))

    def share(self, n: int) -> range:
        """This process's share of n items."""
        return range(self.rank, n, self.size)

    def gather(
        self, found: Mapping[int, NDArray[Any]], n: int, dtype: DTypeLike, compute: Compute
    ) -> list[NDArray[Any]]:
        """The arrays of items 0 to n - 1, gathered from the processes' shares; one- or two-dimensional."""
        if self.size == 1 or not n:
            return [found[i] for i in range(n)]
        # each entry is non-zero in one process only, so the sum is a copy
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
        """Broadcast the text of the main process."""
        given = {0: np.frombuffer(text.encode(errors="surrogateescape"), dtype=np.uint8)} if self.is_main else {}
        (found,) = self.gather(given, 1, np.uint8, compute)
        return found.tobytes().decode(errors="surrogateescape")

    def main_first(self, make: Callable[[], Made]) -> Made:
        """The result of `make`, called in the main process first, so that the others can use its cache."""
        if not self.is_main:
            self.wait()
        made = make()
        if self.is_main:
            self.wait()
        return made

    def aside(self) -> "Aside":
        """The processes once more, with connections of their own; all must ask for them at the same time."""
        self.wait()  # here one that has ended is an error, and in the call below a page of frames on stderr
        with peers_may_end():
            return Aside(self.rank, self.size, dist.new_group(backend="gloo", timeout=PATIENCE))

    def wait(self) -> None:
        """Barrier: wait for all processes."""
        if self.size > 1:
            with peers_may_end():
                dist.barrier()


@dataclass(frozen=True)
class Aside:
    """Processes that tell each other texts over connections of their own: in a thread, while another one trains."""

    rank: int
    size: int
    group: dist.ProcessGroup

    def texts(self, text: str) -> list[str]:
        """The texts that all processes give at the same time, in the order of ranks."""
        own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with peers_may_end():
            dist.all_gather(lengths, torch.tensor([len(own)]), group=self.group)
            longest = int(max(lengths))
            found = [own.new_empty(longest) for _ in range(self.size)]
            dist.all_gather(found, nn.functional.pad(own, (0, longest - len(own))), group=self.group)
        return [bytes(part[: int(n)].numpy()).decode() for part, n in zip(found, lengths, strict=True)]


@contextmanager
def _unsynced(module: "FSDPModule") -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _all_reduced(tensor: torch.Tensor) -> torch.Tensor:
    """All-reduce a tensor to its sum, in place."""
    with peers_may_end():
        dist.all_reduce(tensor)
    return tensor


def local_rank() -> int:
    """Local rank of this process, which is the index of its GPU."""
    return _number("LOCAL_RANK", 0)


def local_size() -> int:
    """Number of processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def is_main() -> bool:
    """True in rank 0, also before the processes have joined, and in a process alone, whatever rank the environment
    names. Raises UsageError."""
    return world_size() == 1 or _number("RANK", 0) == 0


def world_size() -> int:
    """Number of processes of this run. Raises UsageError."""
    return _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    """A number that torchrun sets in the environment. Raises UsageError."""
    text = os.environ.get(name, str(default))
    lowest = int(name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= lowest):
        raise UsageError(
            f"{text!r:.40} is not a number of processes" if lowest else f"{text!r:.40} is not the rank of a process",
            where=f"environment variable {name}",
            fix=f"start the processes with torchrun, or unset {name}",
        )
    return int(text)


@contextmanager
def joined(compute: Compute) -> Iterator[World]:
    """The processes of torchrun as one group, which they form the first time and leave when the program ends, since
    they can meet at an address only once; a single process without torchrun."""
    size = world_size()
    if size == 1:
        yield World()
        return
    if not dist.is_initialized():
        _meet(compute, size)
    with peers_may_end():
        yield World(dist.get_rank(), dist.get_world_size())


def _meet(compute: Compute, size: int) -> None:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing or not 0 <= _number("RANK", 0) < size:
        what = f"{', '.join(missing)} not set" if missing else f"RANK is {os.environ['RANK']}"
        raise UsageError(
            f"the environment names {size} processes, but {what}",
            where="WORLD_SIZE",
            fix="start them with torchrun, or unset WORLD_SIZE",
        )
    backend = "nccl" if compute.device.type == "cuda" else "gloo"
    try:
        _interruptible(partial(dist.init_process_group, backend, timeout=PATIENCE))
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ResourceError(
            f"the {size} processes cannot meet: {plain(str(error).splitlines()[0])[:200]}",
            where=f"MASTER_ADDR:MASTER_PORT {plain(place)[:100]}",
            fix="choose a free port (torchrun --master-port), the same for all, and see that all are started",
        ) from error
    atexit.register(_leave)
    watch_signals()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _interruptible(meet: Callable[[], None]) -> None:
    """Call what waits for other processes in compiled code, so that signals are handled meanwhile."""
    errors: list[Exception] = []

    def call() -> None:
        try:
            meet()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@contextmanager
def peers_may_end() -> Iterator[None]:
    """Report that another process has ended when communication with it fails."""
    try:
        yield
    except dist.DistError as error:
        raise _peer_ended() from error
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "peer")):
            raise
        raise _peer_ended() from error


class PeerEnded(ResourceError):
    """Another process of the run has ended."""


def _peer_ended() -> PeerEnded:
    return PeerEnded(
        "another process of this run has ended, so this one ends too",
        fix="read the first error above; then continue with `lmtool resume`, also with fewer processes",
    )
