"""A server in this process, and runs that are small enough to serve."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx
import openai

from lmtool.generation.generate import TextGenerator
from lmtool.serving.scheduler import Scheduler
from lmtool.serving.server import ServerConfig, build_server, open_listener, running_server


@dataclass
class Served:
    """A server. address: of it."""

    address: str
    generator: TextGenerator
    scheduler: Scheduler

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, which does not try again."""
        return openai.OpenAI(base_url=f"{self.address}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def connect(self, source: str = "") -> socket.socket:
        """A connection without requests so far, from an address."""
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0) if source else None)

    def http(self, **options: Any) -> httpx.Client:
        """A plain client."""
        return httpx.Client(base_url=self.address, timeout=60, **options)


@contextmanager
def served(run: str, serving: ServerConfig | None = None) -> Iterator[Served]:
    """Serve a run on a free port."""
    generator = TextGenerator.open(run, device="cpu")
    guard, scheduler = build_server(generator, serving or ServerConfig())
    listening, ending = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    found = open_listener("127.0.0.1", 0)

    async def answer() -> None:
        async with AsyncExitStack() as stack:
            with patch.object(gc, "collect"):  # of all that the tests hold, which takes longer than most of them
                await stack.enter_async_context(running_server(guard, scheduler, found))
            listening.set()
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(answer()))
    thread.start()
    try:
        assert listening.wait(60)
        yield Served(f"http://127.0.0.1:{found.getsockname()[1]}", generator, scheduler)
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


def samples(text: str) -> dict[str, float]:
    """The samples of the text format of Prometheus."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def until(is_so: Callable[[], bool]) -> bool:
    """Whether something becomes true within 20 seconds; a connection that is refused meanwhile is not."""
    for _ in range(1000):
        with suppress(httpx.TransportError):
            if is_so():
                return True
        time.sleep(0.02)
    return False
