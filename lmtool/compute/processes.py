"""Data-parallel processes: ranks and collective communication.

`torchrun` starts the processes and sets their ranks in the environment; each joins here. Gradients are all-reduced
by DistributedDataParallel (Li et al. 2020), over nccl between GPUs and gloo between CPUs.
"""

import atexit
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from socket import socket, socketpair
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lmtool.batch import widest_float_dtype
from lmtool.compute import torch_private
from lmtool.errors import ResourceError, UsageError
from lmtool.printable import first_line, printable

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=6)
"""Other processes may be tokenizing a large corpus."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

JOIN_POLL_SECONDS = 1.0
"""Time after which a wait for a thread lets signals be handled."""

PARENT_POLL_SECONDS = 1.0
"""Time between two looks whether torchrun is still there."""

ORPHAN_SECONDS = 30.0
"""Time that a process has to save and end after torchrun has ended; torchrun itself gives its processes as much."""

_SHOW_CURSOR = b"\x1b[?25h"


@dataclass(frozen=True)
class World:
    """This process's rank in the run. Rank 0 writes files and prints.

    sharded: the processes share the weights of the model that they train.
    is_lockstep: each layer of the model is computed by all at the same time, since they share it.
    device: where collectives find their tensors.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False
    is_lockstep: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap_data_parallel(self, module: nn.Module) -> nn.Module:
        """Wraps a module so that its backward pass averages gradients over all processes."""
        if self.size == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        # what stands for quantized weights has no memory to exchange
        empty = [name for name, p in module.named_parameters() if 0 in p.stride()]
        torch_private.ignore_parameters_(module, empty)
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)

    def skip_gradient_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which a backward pass accumulates the gradients of this process, without exchanging them.

        module: wrapped, or sharded by `fully_shard`.
        """
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        # importing it takes a second, which only programs that shard have spent
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None and isinstance(module, fsdp.FSDPModule):
            return _skip_fsdp_gradient_sync(module)
        return nullcontext()

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sums each value over all processes."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=widest_float_dtype(self.device), device=self.device)
        return [float(value) for value in _all_reduce_(tensor).tolist()]

    def all_reduce_max(self, number: int) -> int:
        """Returns the largest of the numbers of all processes."""
        return int(max(self.all_reduce_sum([number * (rank == self.rank) for rank in range(self.size)])))

    def own_items(self, n_items: int) -> range:
        """The items that are this process's share."""
        return range(self.rank, n_items, self.size)

    def gather_arrays(self, arrays: Mapping[int, NDArray[Any]], n_items: int, dtype: DTypeLike) -> list[NDArray[Any]]:
        """Gathers the arrays of all items from the processes' shares.

        arrays: one- or two-dimensional, by the items of this process.
        """
        if self.size == 1 or not n_items:
            return [arrays[i] for i in range(n_items)]
        # each entry is non-zero in one process only, so the sum is a copy
        shapes_N2 = np.zeros((n_items, 2), dtype=np.int64)
        for i, array in arrays.items():
            shapes_N2[i] = array.shape if array.ndim == 2 else (-1, len(array))
        shapes_N2 = _all_reduce_(torch.from_numpy(shapes_N2).to(self.device)).cpu().numpy()
        stops_N = np.cumsum(np.abs(shapes_N2).prod(1))
        flat = np.zeros(stops_N[-1], dtype=dtype)
        for i, array in arrays.items():
            flat[stops_N[i] - array.size : stops_N[i]] = array.reshape(-1)
        flat = _all_reduce_(torch.from_numpy(flat).to(self.device)).cpu().numpy()
        parts = np.split(flat, stops_N[:-1])
        return [
            part if rows < 0 else part.reshape(rows, columns)
            for part, (rows, columns) in zip(parts, shapes_N2.tolist(), strict=True)
        ]

    def broadcast_text(self, text: str) -> str:
        """Returns the text of the main process in all processes."""
        texts = {0: np.frombuffer(text.encode(errors="surrogateescape"), dtype=np.uint8)} if self.is_main else {}
        (encoded,) = self.gather_arrays(texts, 1, np.uint8)
        return encoded.tobytes().decode(errors="surrogateescape")

    def call_main_first(self, function: Callable[[], T]) -> T:
        """Calls a function in the main process first, so that the others can use what it has cached."""
        if not self.is_main:
            self.barrier()
        result = function()
        if self.is_main:
            self.barrier()
        return result

    def create_text_exchange_group(self) -> "TextExchangeGroup":
        """Creates a second group of the processes, with its own connections; all must call this at the same time."""
        self.barrier()  # here one that has ended is an error, and in the call below a page of frames on stderr
        with convert_peer_errors():
            return TextExchangeGroup(self.rank, self.size, dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            with convert_peer_errors():
                dist.barrier()


@dataclass(frozen=True)
class TextExchangeGroup:
    """Processes that exchange texts over connections of their own: in a thread, while another one trains."""

    rank: int
    size: int
    group: dist.ProcessGroup

    def gather_texts(self, text: str) -> list[str]:
        """Gathers the texts that all processes give at the same time, in the order of ranks."""
        encoded = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with convert_peer_errors():
            dist.all_gather(lengths, torch.tensor([len(encoded)]), group=self.group)
            longest = int(max(lengths))
            texts = [encoded.new_empty(longest) for _ in range(self.size)]
            dist.all_gather(texts, nn.functional.pad(encoded, (0, longest - len(encoded))), group=self.group)
        return [bytes(part[: int(n)].numpy()).decode() for part, n in zip(texts, lengths, strict=True)]


@contextmanager
def _skip_fsdp_gradient_sync(module: "FSDPModule") -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _all_reduce_(tensor: torch.Tensor) -> torch.Tensor:
    """Sums a tensor over all processes, in place, and returns it."""
    with convert_peer_errors():
        dist.all_reduce(tensor)
    return tensor


def local_rank() -> int:
    """Local rank of this process, which is the index of its GPU."""
    return _read_environment_number("LOCAL_RANK", 0)


def local_size() -> int:
    """Number of processes on this machine."""
    return _read_environment_number("LOCAL_WORLD_SIZE", 1)


def is_main_process() -> bool:
    """Whether this is rank 0 or a single process, also before the processes have joined. Raises UsageError."""
    return world_size() == 1 or _read_environment_number("RANK", 0) == 0


def world_size() -> int:
    """Number of processes of this run. Raises UsageError."""
    return _read_environment_number("WORLD_SIZE", 1)


def _read_environment_number(name: str, default: int) -> int:
    """Reads a number that torchrun sets in the environment. Raises UsageError."""
    text = os.environ.get(name, str(default))
    lowest = int(name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= lowest):
        what = f"{text!r:.40} is not {'a number of processes' if lowest else 'the rank of a process'}"
        fix = f"start the processes with torchrun, or unset {name}"
        raise UsageError(what, where=f"environment variable {name}", fix=fix)
    return int(text)


@contextmanager
def join_process_group_once(device: torch.device) -> Iterator[World]:
    """A context in which the processes of torchrun are one group; without torchrun a single process.

    They form the group the first time and leave it when the program ends, because they can meet at an address only
    once.
    """
    size = world_size()
    if size == 1:
        yield World()
        return
    if not dist.is_initialized():
        _init_process_group(device, size)
    with convert_peer_errors():
        yield World(dist.get_rank(), dist.get_world_size(), device=device)


def _init_process_group(device: torch.device, size: int) -> None:
    """Connects the processes. Raises UsageError for a wrong environment, and ResourceError when they cannot meet."""
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing or not 0 <= _read_environment_number("RANK", 0) < size:
        what = f"{', '.join(missing)} not set" if missing else f"RANK is {os.environ['RANK']}"
        what = f"the environment names {size} processes, but {what}"
        raise UsageError(what, where="WORLD_SIZE", fix="start them with torchrun, or unset WORLD_SIZE")
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        _call_interruptibly(partial(dist.init_process_group, backend, timeout=COLLECTIVE_TIMEOUT))
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        what = f"the {size} processes cannot meet: {first_line(error, 200)}"
        fix = "choose a free port (torchrun --master-port), the same for all, and see that all are started"
        raise ResourceError(what, where=f"MASTER_ADDR:MASTER_PORT {printable(address)[:100]}", fix=fix) from error
    atexit.register(_destroy_process_group)
    watch_second_signal_and_parent()


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _call_interruptibly(function: Callable[[], None]) -> None:
    """Calls what waits for other processes in compiled code, so that signals are handled meanwhile."""
    errors: list[Exception] = []

    def call() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        # without a limit, a signal just before the wait would be handled after it, which may be never
        thread.join(JOIN_POLL_SECONDS)
    if errors:
        raise errors[0]


@contextmanager
def convert_peer_errors() -> Iterator[None]:
    """Converts an error of communication to PeerEnded, when it says that another process has ended."""
    try:
        yield
    except RuntimeError as error:
        is_known = any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "peer"))
        if not is_known and not isinstance(error, dist.DistError):
            raise
        fix = "read the first error above; then continue with `lmtool resume`, also with fewer processes"
        raise PeerEnded("another process of this run has ended, so this one ends too", fix=fix) from error


class PeerEnded(ResourceError):
    """Another process of the run has ended."""


def watch_second_signal_and_parent() -> None:
    """Makes this process exit at once at the second signal to stop, and takes the end of torchrun for a signal.

    The first one is for the handlers of the program. Does nothing outside of the main thread, which has these.
    """
    if current_thread() is not main_thread():
        return
    received, sent = socketpair()  # Windows waits for no pipe
    sent.setblocking(False)
    signal.set_wakeup_fd(sent.detach(), warn_on_full_buffer=False)
    Thread(target=_watch_second_signal_and_parent, args=(received, os.getppid()), name="signals", daemon=True).start()


def _watch_second_signal_and_parent(signal_socket: socket, parent_pid: int) -> None:
    """Exits at the second signal, and sends itself SIGTERM when its parent has ended. Never returns.

    signal_socket: receives the number of each signal.
    """
    n_received, timeout_seconds = 0, PARENT_POLL_SECONDS
    while True:
        if select.select([signal_socket], [], [], timeout_seconds)[0]:
            for number in signal_socket.recv(64):
                n_received += number in STOP_SIGNALS
                if n_received > 1:
                    if os.isatty(2):
                        os.write(2, _SHOW_CURSOR)
                    os._exit(128 + number)
        elif os.getppid() != parent_pid:
            timeout_seconds = ORPHAN_SECONDS
            os.kill(os.getpid(), signal.SIGTERM)
