"""Several processes in one: threads that tell each other what processes would."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from lmtool.compute import processes
from lmtool.compute.device import Compute
from lmtool.compute.processes import World

Given = TypeVar("Given")


def together(
    patch: pytest.MonkeyPatch, size: int, work: Callable[[World], Given], joining: Sequence[ModuleType] = ()
) -> list[Given]:
    """What `work` gives in each of so many processes, which add up their tensors as processes do.

    joining: modules that join the processes by themselves.
    """
    meeting, own = threading.Barrier(size), threading.local()
    told: dict[int, Tensor] = {}

    def all_reduced(tensor: Tensor) -> Tensor:
        told[own.rank] = tensor
        meeting.wait()
        shapes = {(one.shape, one.dtype) for one in told.values()}
        total = torch.stack([told[rank] for rank in range(size)]).sum(0).to(tensor.dtype)
        meeting.wait()
        assert len(shapes) == 1, "processes told each other different things"
        return total

    @contextmanager
    def joined(compute: Compute) -> Iterator[World]:
        yield World(own.rank, size)

    def process(rank: int) -> Given:
        own.rank = rank
        try:
            return work(World(rank, size))
        except BaseException:
            meeting.abort()  # or the others would wait for ever
            raise

    with patch.context() as own_patch, ThreadPoolExecutor(size) as threads:
        own_patch.setattr(processes, "_all_reduced", all_reduced)
        for module in joining:
            own_patch.setattr(module, "joined", joined)
        return list(threads.map(process, range(size)))
