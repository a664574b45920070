"""An HTTP server that runs until a signal."""

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
from lmtool.errors import ResourceError
from lmtool.generation.generate import TextGenerator
from lmtool.serving.application import ModelEndpoints
from lmtool.serving.guard import AccessAndLoggingMiddleware, AccessPolicy, log
from lmtool.serving.metrics import Metrics
from lmtool.serving.scheduler import Scheduler
from lmtool.serving.service import ModelService, SearchableTexts
from lmtool.storage.durable import convert_os_errors

MAX_CONNECTIONS = 512
"""Maximum open connections."""

MAX_CONNECTIONS_PER_CLIENT = 256
"""Maximum open connections of one client: an IPv4 address, or a 64-bit network of IPv6."""

IDLE_SECONDS = 30
"""Time within which a client must send the head of a request, or read some of its response."""


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a server.

    port: 0 for any free one. grace: seconds for requests to complete after a signal. suffix: end of the printed
    address. max_tokens: maximum new tokens of a text. index: texts to search. n_rows, n_slots, n_queued,
    keeps_prefixes: see `Scheduler`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    access: AccessPolicy | None = None
    grace: float = 30.0
    max_tokens: int = 4096
    n_rows: int = 64
    n_slots: int | None = None
    n_queued: int = 256
    keeps_prefixes: bool = True
    logs_prompts: bool = False
    index: SearchableTexts | None = None
    logs_requests: bool = True
    suffix: str = ""


class BackgroundWorker(Protocol):
    """Computes responses from `open` to `close`, and accepts no more requests after `stop_accepting`."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def stop_accepting(self) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> str: ...


class _TimeoutAndEvictionConnection(H11Protocol):
    """A connection that is closed when its client is idle, and after invalid HTTP.

    If there are too many, of one client or in all, the one that has waited longest for the head of a request is closed,
    or the new one if none waits. So clients that send requests get in, whatever others leave open.
    """

    _timer: asyncio.TimerHandle | None = None
    _network = ""
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._network = self.loop.time(), _client_network(self.client)
        every = [
            one
            for one in self.connections
            if isinstance(one, _TimeoutAndEvictionConnection) and not one.transport.is_closing()
        ]
        alike = [one for one in every if one._network == self._network]
        crowd = alike if len(alike) > MAX_CONNECTIONS_PER_CLIENT else every if len(every) > MAX_CONNECTIONS else []
        if crowd:
            waiting = [one for one in crowd if one is not self and one._waits_for_head]
            min(waiting, key=lambda one: one._since, default=self).transport.close()
        if not transport.is_closing():
            self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._restart_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        self._restart_timer()

    @property
    def _waits_for_head(self) -> bool:
        return not self.cycle or self.cycle.response_complete

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(IDLE_SECONDS, self._close_if_idle, self.transport.get_write_buffer_size())

    def _close_if_idle(self, previous_write_buffer_bytes: int) -> None:
        """Closes the connection if it waits for the client, who has read nothing since the last check.

        Parts of a head do not count: only a whole head begins a request.
        previous_write_buffer_bytes: number of bytes that were buffered at the last check.
        """
        waits = self.flow.write_paused or self.transport.is_closing() or self._waits_for_head
        if waits and self.transport.get_write_buffer_size() >= previous_write_buffer_bytes:
            self.transport.abort()
        else:
            self._restart_timer()

    def send_400_response(self, msg: str) -> None:
        """Rejects invalid HTTP, unless a response has begun, and ends the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


def _client_network(client: tuple[str, int] | None) -> str:
    """Returns what identifies a client: its IPv4 address, or its IPv6 network, whose addresses have one owner."""
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or int(address) >> 64)


class _ServerWithoutSignals(uvicorn.Server):
    """Leaves signals to `serve_until_signal`."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build_server(generator: TextGenerator, config: ServerConfig) -> tuple[AccessAndLoggingMiddleware, Scheduler]:
    """Builds the application for a model, and the scheduler that computes its responses."""
    metrics = Metrics()
    scheduler = Scheduler(
        generator,
        metrics,
        n_rows=config.n_rows,
        n_slots=config.n_slots,
        n_queued=config.n_queued,
        keeps_prefixes=config.keeps_prefixes,
    )
    service = ModelService(generator, scheduler, config.max_tokens, config.index)
    endpoints = ModelEndpoints(service, metrics, logs_prompts=config.logs_prompts)
    access = config.access or AccessPolicy(config.host, None)
    return AccessAndLoggingMiddleware(endpoints.app, access, metrics), scheduler


def serve_until_signal(
    app: AccessAndLoggingMiddleware, worker: BackgroundWorker, config: ServerConfig, print_line: Callable[[str], None]
) -> int:
    """Serves an application until a signal. Returns the number of the signal.

    app, worker: of a model those of `build_server`.
    print_line: prints a line for the user: the limits, and the address once the server listens.
    Raises ResourceError if it cannot listen on the address.
    """

    async def run(listener: socket.socket) -> int:
        received: asyncio.Queue[int] = asyncio.Queue()
        system.handle_signals(asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM), received.put_nowait)
        async with running_server(app, worker, listener):
            host, port = listener.getsockname()[:2]
            print_line(f"http://{f'[{host}]' if ':' in host else host}:{port}{config.suffix}")
            number = await received.get()
            worker.stop_accepting()
            if app.n_open:
                print_line(
                    f"finishing {app.n_open} requests, for at most {config.grace:g} s; another signal ends at once"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(config.grace):
                    while app.n_open and received.empty():
                        await asyncio.sleep(0.02)
        return number

    with open_listener(config.host, config.port) as listener:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        for name in ("lmtool", "uvicorn.error"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [handler], False
        log.setLevel(logging.INFO if config.logs_requests else logging.WARNING)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        print_line(worker.describe())
        return asyncio.run(run(listener))


@asynccontextmanager
async def running_server(
    app: AccessAndLoggingMiddleware, worker: BackgroundWorker, listener: socket.socket
) -> AsyncIterator[None]:
    """Runs a server on a listening socket inside the context."""
    config = uvicorn.Config(
        app,
        http=_TimeoutAndEvictionConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
        backlog=MAX_CONNECTIONS,
    )
    server = _ServerWithoutSignals(config)
    worker.open(asyncio.get_running_loop())
    gc.collect()
    gc.freeze()  # garbage collection stops all threads, so it skips the model and the libraries
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        gc.unfreeze()
        server.should_exit = True
        await asyncio.to_thread(worker.close)
        await running


def open_listener(host: str, port: int) -> socket.socket:
    """Opens a socket that listens on an address. Raises ResourceError."""
    with convert_os_errors(f"there is no address {host}", "--host", "name an address of this machine"):
        passive = socket.AI_PASSIVE
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)[0]
        listener = socket.socket(family, kind, protocol)
    try:
        with convert_os_errors("cannot listen", f"{host}, port {port}", "choose another --port"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(MAX_CONNECTIONS)
    except ResourceError:
        listener.close()
        raise
    return listener
