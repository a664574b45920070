"""A server that listens until it is told to end."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmtool import system
from lmtool.durable import refusing
from lmtool.errors import ResourceError
from lmtool.generation.generate import TextGenerator
from lmtool.search.index import Index
from lmtool.serving.application import Application
from lmtool.serving.guard import Access, Guard, log
from lmtool.serving.metrics import Metrics
from lmtool.serving.scheduler import Scheduler
from lmtool.serving.service import Service

MAX_CONNECTIONS = 512
"""Maximum open connections."""

MAX_OF_CLIENT = 256
"""Maximum open connections of one client, an address or a network of 64 bits of IPv6."""

IDLE_SECONDS = 30
"""Time in which a client must send the whole head of its first or next request, or read something of its answer."""


@dataclass(frozen=True)
class Serving:
    """How to serve. port: 0 for any free one. grace: seconds that requests have to complete after a signal.

    suffix: of the address that is told. logs_requests: with a line each.
    max_tokens: maximum new tokens of a text. index: of the model's texts. n_rows, n_slots, n_queued, keeps_prefixes: as
    of `Scheduler`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    access: Access | None = None
    grace: float = 30.0
    max_tokens: int = 4096
    n_rows: int = 64
    n_slots: int | None = None
    n_queued: int = 256
    keeps_prefixes: bool = True
    logs_prompts: bool = False
    index: Index | None = None
    logs_requests: bool = True
    suffix: str = ""


class Worker(Protocol):
    """What computes answers: it begins to with `open`, takes no more after `refuse`, and ends with `close`."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def refuse(self) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> str: ...


class _Connection(H11Protocol):
    """A connection that is closed when its client is idle, and after what is no HTTP.

    Where there are too many, of one client or of all, the one among them is closed that has waited longest for the head
    of a request, or the new one if none waits. So whoever sends a request is let in, whatever others leave open.
    """

    _timer: asyncio.TimerHandle | None = None
    _network = ""
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._network = self.loop.time(), _network_of(self.client)
        every = [one for one in self.connections if isinstance(one, _Connection) and not one.transport.is_closing()]
        alike = [one for one in every if one._network == self._network]
        crowd = alike if len(alike) > MAX_OF_CLIENT else every if len(every) > MAX_CONNECTIONS else []
        if crowd:
            waiting = [one for one in crowd if one is not self and one._waits_for_head]
            min(waiting, key=lambda one: one._since, default=self).transport.close()
        if not transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        self._wait()

    @property
    def _waits_for_head(self) -> bool:
        return not self.cycle or self.cycle.response_complete

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(IDLE_SECONDS, self._check, self.transport.get_write_buffer_size())

    def _check(self, unread: int) -> None:
        """End the connection if all that it waits for is the client, which has read nothing since so much was unread.

        Parts of a head do not count: only a whole one begins a request.
        """
        waits = self.flow.write_paused or self.transport.is_closing() or self._waits_for_head
        if waits and self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless an answer has begun; either way nothing more is answered."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


def _network_of(client: tuple[str, int] | None) -> str:
    """What counts as one client: its address, or of IPv6 the network, which has all its addresses from one owner."""
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or int(address) >> 64)


class _Server(uvicorn.Server):
    """Leaves signals to `serve`."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def assemble(generator: TextGenerator, serving: Serving) -> tuple[Guard, Scheduler]:
    """The application that answers for a model, and what computes its answers."""
    metrics = Metrics()
    scheduler = Scheduler(
        generator,
        metrics,
        n_rows=serving.n_rows,
        n_slots=serving.n_slots,
        n_queued=serving.n_queued,
        keeps_prefixes=serving.keeps_prefixes,
    )
    service = Service(generator, scheduler, serving.max_tokens)
    application = Application(service, metrics, serving.index, logs_prompts=serving.logs_prompts)
    return Guard(application.app, serving.access or Access(serving.host, None), metrics), scheduler


def serve(generator: TextGenerator, serving: Serving, tell: Callable[[str], None]) -> int:
    """Answer requests until a signal comes. Returns the number of the signal.

    tell: of lines for the user: the budget, and the address once it listens.
    Raises ResourceError where the address cannot be listened on.
    """
    return answer_until_signal(*assemble(generator, serving), serving, tell)


def answer_until_signal(guard: Guard, worker: Worker, serving: Serving, tell: Callable[[str], None]) -> int:
    """Answer requests to an application until a signal comes. Returns, tells and raises as `serve` does."""
    with listen(serving.host, serving.port) as listener:
        _log_to_stderr(logging.INFO if serving.logs_requests else logging.WARNING)
        tell(worker.describe())
        return asyncio.run(_serve(guard, worker, listener, serving, tell))


async def _serve(
    guard: Guard, worker: Worker, listener: socket.socket, serving: Serving, tell: Callable[[str], None]
) -> int:
    received: asyncio.Queue[int] = asyncio.Queue()
    system.on_signals(asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM), received.put_nowait)
    async with answering(guard, worker, listener):
        host, port = listener.getsockname()[:2]
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}{serving.suffix}")
        number = await received.get()
        worker.refuse()
        if guard.n_open:
            tell(f"finishing {guard.n_open} requests, for at most {serving.grace:g} s; another signal ends at once")
        with suppress(TimeoutError):
            async with asyncio.timeout(serving.grace):
                while guard.n_open and received.empty():
                    await asyncio.sleep(0.02)
    return number


@asynccontextmanager
async def answering(guard: Guard, worker: Worker, listener: socket.socket) -> AsyncIterator[None]:
    """A context in which requests that come to a socket are answered."""
    config = uvicorn.Config(
        guard,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
        backlog=MAX_CONNECTIONS,
    )
    server = _Server(config)
    worker.open(asyncio.get_running_loop())
    gc.collect()
    gc.freeze()  # no thread runs while garbage is looked for, which the model and the libraries are not
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        gc.unfreeze()
        server.should_exit = True
        await asyncio.to_thread(worker.close)
        await running


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address: who connects waits until it is served. Raises ResourceError."""
    with refusing(f"there is no address {host}", "--host", "name an address of this machine"):
        passive = socket.AI_PASSIVE
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)[0]
        listener = socket.socket(family, kind, protocol)
    try:
        with refusing("cannot listen", f"{host}, port {port}", "choose another --port"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(MAX_CONNECTIONS)
    except ResourceError:
        listener.close()
        raise
    return listener


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("lmtool", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    log.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
