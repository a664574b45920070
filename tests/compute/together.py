"""Several processes in one: threads that tell each other what processes would, and notice where their ways part.

Each collective is entered by all, with tensors of one shape and type, before any goes on; so is the end. What real
processes would wait for without end, since one of them never comes, is an error here.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from lmtool.compute import device, processes
from lmtool.compute.device import ExecutionContext
from lmtool.compute.fsdp import _linears_by_layer
from lmtool.compute.processes import World
from lmtool.model import LanguageModel
from lmtool.runs import load
from lmtool.training import job, session

Given = TypeVar("Given")


@dataclass
class Meeting:
    """Where threads meet. entered: the collectives, in order. asides: meetings of other threads of theirs."""

    size: int
    entered: list[Hashable] = field(default_factory=list)
    asides: list["Meeting"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._barrier = threading.Barrier(self.size)
        self._told: dict[int, tuple[Hashable, Any]] = {}

    def enter(self, rank: int, what: Hashable, value: Any = None) -> list[Any]:
        """The values of all, once all have entered. Raises AssertionError where they entered different collectives."""
        self._told[rank] = what, value
        self._barrier.wait()
        kinds, values = zip(*(self._told[other] for other in range(self.size)), strict=True)
        self._barrier.wait()
        assert len(set(kinds)) == 1, f"processes enter different collectives: {' / '.join(str(k)[:99] for k in kinds)}"
        if rank == 0:
            self.entered.append(what)
        return [*values]

    def abort(self) -> None:
        """End all waiting, with an error."""
        for meeting in (self, *self.asides):
            meeting._barrier.abort()


def together(patch: pytest.MonkeyPatch, size: int, work: Callable[[World], Given]) -> list[Given]:
    """What `work` gives in each of so many processes; see `meet`."""
    return meet(patch, size, work)[0]


def meet(patch: pytest.MonkeyPatch, size: int, work: Callable[[World], Given]) -> tuple[list[Given], list[Hashable]]:
    """What `work` gives in each of so many processes, and the collectives that they entered.

    A model that is replicated has its gradients averaged, all at the end of a backward pass; one that is shared is
    whole in each as well, but each layer of it is entered by all.
    """
    meeting, own = Meeting(size), threading.local()
    local = _Local(meeting, lambda: int(own.rank))

    def process(rank: int) -> Given:
        own.rank = rank
        try:
            found = work(World(rank, size))
            meeting.enter(rank, "the end")
        except BaseException:
            meeting.abort()
            raise
        return found

    with patch.context() as own_patch, ThreadPoolExecutor(size) as threads:
        local.patch(own_patch)
        begun = [threads.submit(process, rank) for rank in range(size)]
        errors = [error for one in begun if (error := one.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [one.result() for one in begun], meeting.entered


@dataclass
class _Local:
    """What stands for collectives. rank: of the thread that asks."""

    meeting: Meeting
    rank: Callable[[], int]

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(processes, "_all_reduce_", self._all_reduced)
        patch.setattr(World, "barrier", lambda _: self._enter("barrier"))
        patch.setattr(World, "create_text_exchange_group", lambda _: self._aside())
        patch.setattr(World, "wrap_data_parallel", lambda _, module: self.exchanging(module))
        patch.setattr(World, "skip_gradient_sync", lambda _, module: _alone(module))
        patch.setattr(device, "join_process_group_once", self._joined)
        # threads draw from one generator, so that none may train while another one initializes its model
        drawing, genuine = threading.Lock(), job.build_for_training  # type: ignore[attr-defined]

        def build_for_training(*arguments: Any, **options: Any) -> Any:
            self._enter("initializes")
            with drawing:
                found = genuine(*arguments, **options)
            self._enter("initialized")
            return found

        patch.setattr(job, "build_for_training", build_for_training)
        for module in (session, load):
            patch.setattr(module, "ShardedModel", partial(Shared, self))
            patch.setattr(module, "ShardNewParameters", lambda *_: None)

    def _enter(self, *what: Hashable, value: Any = None) -> list[Any]:
        return self.meeting.enter(self.rank(), what, value)

    def _all_reduced(self, tensor: Tensor) -> Tensor:
        told = self._enter("sum", tensor.shape, tensor.dtype, value=tensor.clone())
        return torch.stack(told).sum(0).to(tensor.dtype)

    @contextmanager
    def _joined(self, _: torch.device) -> Iterator[World]:
        yield World(self.rank(), self.meeting.size)

    def _aside(self) -> "_Aside":
        side_group, *_ = self._enter("create_text_exchange_group", value=Meeting(self.meeting.size))
        self.meeting.asides.append(side_group)
        return _Aside(self.rank(), self.meeting.size, side_group)

    def exchanging(self, module: nn.Module) -> nn.Module:
        """A module whose gradients are averaged at the end of a backward pass, unless it is `alone`."""
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        touched: set[str] = set()

        def touch(name: str, _: Tensor) -> None:
            if not touched:
                torch.autograd.Variable._execution_engine.queue_callback(exchange)
            touched.add(name)

        def exchange() -> None:
            assert touched == trained.keys(), f"no gradient of {trained.keys() - touched}"
            touched.clear()
            if getattr(module, "is_alone", False):
                return
            shapes = tuple((name, parameter.shape, parameter.dtype) for name, parameter in trained.items())
            told = self._enter("gradients", shapes, value=[parameter.grad for parameter in trained.values()])
            for parameter, *gradients in zip(trained.values(), *told, strict=True):
                parameter.grad = sum(gradients[1:], gradients[0]) / self.meeting.size

        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(partial(touch, name))  # type: ignore[no-untyped-call]
        return module


@contextmanager
def _alone(module: nn.Module) -> Iterator[None]:
    vars(module)["is_alone"] = True
    try:
        yield
    finally:
        vars(module)["is_alone"] = False


@dataclass(frozen=True)
class _Aside:
    """Stands for `processes.TextExchangeGroup`."""

    rank: int
    size: int
    meeting: Meeting

    def gather_texts(self, text: str) -> list[str]:
        return self.meeting.enter(self.rank, "texts", text)


class Shared:
    """Stands for `ShardedModel`: all enter each pass through a layer, forward and backward, unless they have
    gathered all weights."""

    def __init__(self, local: _Local, lm: LanguageModel, module: nn.Module, compute: ExecutionContext) -> None:
        self.module = local.exchanging(module)
        self._local = local
        self._is_whole = False
        for number, linears in enumerate(_linears_by_layer(lm)):
            first = next(iter(linears))
            first.register_forward_pre_hook(partial(self._gather, f"forward {number}"))
            first.register_forward_hook(partial(self._gather_again, f"backward {number}"))

    def _gather_again(self, what: str, _: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(partial(self._gather, what))  # type: ignore[no-untyped-call]

    def _gather(self, what: str, *_: Any) -> None:
        if not self._is_whole:
            self._local._enter(what)

    @contextmanager
    def gather_by_layer(self) -> Iterator[None]:
        self._gather("root")
        yield

    @contextmanager
    def gather_all_for_inference(self) -> Iterator[None]:
        self._gather("all")
        self._is_whole = True
        yield
        self._is_whole = False
