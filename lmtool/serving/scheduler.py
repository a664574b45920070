"""A thread that runs the engine for many clients."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from lmtool.compute.machine import physical_memory_limit_bytes
from lmtool.generation.constrained import get_spelled_vocabulary
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request, Token
from lmtool.generation.strategy import RequestState
from lmtool.model.language_model import KeyValueCache
from lmtool.serving.errors import QueueFull, ShuttingDown
from lmtool.serving.metrics import Metrics
from lmtool.tokenization.prompt_format import Prompt

CHUNK_TOKENS = 256
"""Maximum prompt tokens that are read in a step of the engine."""

MAX_CACHE_COPIES = 4
"""Maximum copies of keys and values in memory while rows join a batch and its cache grows."""

Result = TypeVar("Result")


@dataclass(eq=False)
class _Client:
    """A client whose texts are queued or in the engine.

    waiting: texts that are not in the engine yet.
    updates: tokens for it to read, or an error.
    arrived: time of its request.
    is_gone: whether nobody reads the updates any more.
    """

    waiting: "deque[_ScheduledText]"
    updates: "asyncio.Queue[Token | Exception]"
    arrived: float
    is_gone: bool = False


@dataclass(eq=False)
class _ScheduledText:
    """A text of a client.

    index: index of its request among those of the client.
    max_slots: slots of the KV cache that it fills when it is complete.
    begun: whether its first token was generated.
    """

    client: _Client
    index: int
    state: RequestState
    max_slots: int
    begun: bool = False


class Scheduler:
    """Generates texts for many clients at once, each as `generate` would alone.

    A text waits until the engine has room for it, first come first served; clients with several texts take turns. The
    limits are a number of rows and a budget of slots of the KV cache: rows times the slots that the longest may fill. A
    text longer than the whole budget runs alone.

    n_slots: the budget.
    bytes_per_token: bytes of keys and values of one token.
    n_rows: maximum rows.
    n_queued: maximum waiting clients.
    keeps_prefixes: whether there is a prefix cache, of as many tokens as the budget, if the model supports it.
    """

    def __init__(
        self,
        generator: TextGenerator,
        metrics: Metrics,
        *,
        n_rows: int = 64,
        n_slots: int | None = None,
        n_queued: int = 256,
        keeps_prefixes: bool = True,
    ) -> None:
        self._generator, self._metrics = generator, metrics
        model = generator.loaded.model
        self.n_rows, self.n_queued = n_rows, n_queued
        runner = ModelRunner(model)
        self.bytes_per_token = _measure_cache_bytes_per_token(runner, generator) if generator.writes else 0
        if n_slots is None:
            is_gpu = runner.device.type == "cuda"
            free = torch.cuda.mem_get_info(runner.device)[0] if is_gpu else physical_memory_limit_bytes()
            n_slots = choose_cache_token_budget(self.bytes_per_token, n_rows, model.context, free)
        self.n_slots: float = math.inf if n_slots is None else n_slots
        keeps = keeps_prefixes and self.bytes_per_token and runner.supports_prefix_cache
        self.prefix_bytes = int(self.n_slots) * self.bytes_per_token if keeps and n_slots is not None else 0
        self._changed = threading.Condition()
        self._queue: deque[_Client] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        prefixes = PrefixCache(self.prefix_bytes)
        self._engine = Engine(
            model,
            chunk=CHUNK_TOKENS,
            prefixes=prefixes,
            draft=generator.draft,
            only_exact_drafts=True,
            isolate_failures=True,
        )
        self._texts: dict[int, _ScheduledText] = {}  # in the engine, by the id of the request
        self._ends = self.is_closing = False  # whether the thread ends; whether new clients are rejected
        self._thread = threading.Thread(target=self._run_loop, name="model", daemon=True)
        self._loop: asyncio.AbstractEventLoop  # set by `open`

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the thread. loop: the event loop of all clients."""
        self._loop = loop
        self._thread.start()

    def describe(self) -> str:
        """Returns the limits of the engine, in a line."""
        rows = f"up to {self.n_rows} texts at once"
        if not self.bytes_per_token or math.isinf(self.n_slots):
            return rows
        most = MAX_CACHE_COPIES * self.n_slots * self.bytes_per_token
        kept = f", {self.prefix_bytes / 1e9:.2g} GB of prefixes" if self.prefix_bytes else ""
        return f"{rows}, {int(self.n_slots):,} tokens in flight, {most / 1e9:.2g} GB of keys and values at most{kept}"

    def stop_accepting(self) -> None:
        """Rejects clients from now on."""
        self.is_closing = True

    def close(self) -> None:
        """Ends the thread after the current step. Waiting clients get ShuttingDown."""
        with self._changed:
            self._ends = self.is_closing = True
            self._changed.notify()
        self._thread.join()
        waiting = {text.client for text in self._texts.values()} | set(self._queue)
        self._deliver([(client, ShuttingDown()) for client in waiting])
        for _, future in self._calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(ShuttingDown())

    def fit_prompt(self, prompt: Prompt) -> Prompt:
        """Returns the prompt if it fits the context. Raises UsageError as `ModelRunner.fit_prompt` does."""
        return self._engine.runner.fit_prompt(prompt, "refuse", "")

    @asynccontextmanager
    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[AsyncIterator[Token]]:
        """Generates the texts of requests. Yields an iterator of their tokens; `Token.request` is the index of each.

        Requests that are not complete when the context ends are cancelled.

        Raises QueueFull and ShuttingDown; iterating raises what the model raises.
        """
        client = await asyncio.to_thread(self._create_client_with_states, requests)
        with self._changed:
            self._check_not_closing_or_full()
            self._queue.append(client)
            self._changed.notify()

        async def updates() -> AsyncIterator[Token]:
            n_left = len(requests)
            while n_left:
                update = await client.updates.get()
                await asyncio.sleep(0)  # lets other tasks run while the queue has more
                if isinstance(update, Exception):
                    raise update
                n_left -= update.completion is not None
                yield update

        try:
            yield updates()
        finally:
            with self._changed:
                client.is_gone = True
                self._changed.notify()

    async def run_between_steps(self, call: Callable[[], Result]) -> Result:
        """Runs a short computation with the model between two steps of the engine, and returns its result.

        Raises QueueFull and ShuttingDown.
        """
        future: Future[Result] = Future()
        with self._changed:
            self._check_not_closing_or_full()
            self._calls.append((call, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _check_not_closing_or_full(self) -> None:
        if self.is_closing:
            raise ShuttingDown
        if len(self._queue) + len(self._calls) >= self.n_queued:
            raise QueueFull

    def _create_client_with_states(self, requests: Sequence[Request]) -> _Client:
        client = _Client(deque(), asyncio.Queue(), time.perf_counter())
        for i, request in enumerate(requests):
            prompt, state = request.prompt, self._engine.create_request_state(request)
            n_tokens = len(prompt.tokens) + request.params.max_new_tokens
            room = self._engine.runner.max_window_tokens(prompt)
            n_slots = len(prompt.source or ()) + (n_tokens if room is None else min(n_tokens, room))
            client.waiting.append(_ScheduledText(client, i, state, n_slots))
        return client

    def _run_loop(self) -> None:
        self._generator.loaded.model.eval()
        if self._generator.writes:
            # blocks all threads for a while, so it is made first
            get_spelled_vocabulary(self._generator.loaded.tokenizer)
        while True:
            with self._changed:
                while not (self._ends or self._queue or self._calls or self._texts):
                    self._changed.wait()
                if self._ends:
                    return
                call = self._calls.popleft() if self._calls else None
                self._queue = deque(client for client in self._queue if not client.is_gone)
            try:
                self._run_iteration(call)
            except Exception as error:  # the engine failed as a whole: end all its texts
                self._deliver([(client, error) for client in {text.client for text in self._texts.values()}])
                self._texts = {}
                self._engine.cancel_all()

    def _run_iteration(self, call: "tuple[Callable[[], Any], Future[Any]] | None") -> None:
        """Removes and admits clients, runs at most one computation, then takes a step of the engine."""
        for id in [id for id, text in self._texts.items() if text.client.is_gone]:
            del self._texts[id]
            self._engine.cancel(id)
        if call is not None and call[1].set_running_or_notify_cancel():
            compute, future = call
            try:
                future.set_result(compute())
            except Exception as error:
                future.set_exception(error)
        self._admit_waiting()
        if self._texts:
            self._step_engine_and_deliver()
        self._metrics.running.set(len(self._texts))
        self._metrics.waiting.set(len(self._queue))

    def _admit_waiting(self) -> None:
        """Adds waiting texts to the engine while there is room, one of each client in turn."""
        longest = max((text.max_slots for text in self._texts.values()), default=0)
        while self._queue and len(self._texts) < self.n_rows:
            client = self._queue[0]
            text = client.waiting[0]
            longest = max(longest, text.max_slots)
            if self._texts and (len(self._texts) + 1) * longest > self.n_slots:
                return
            client.waiting.popleft()
            with self._changed:
                self._queue.popleft()
                if client.waiting:
                    self._queue.append(client)
            try:
                self._texts[self._engine.add(text.state)] = text
                self._metrics.prompt_tokens.inc(len(text.state.request.prompt.text))
            except Exception as error:  # fails for this client alone
                self._deliver([(client, error)])

    def _step_engine_and_deliver(self) -> None:
        """Takes a step of the engine and delivers its tokens."""
        engine = self._engine
        before = engine.n_proposed, engine.n_accepted
        with self._generator.step_context():
            tokens = engine.step()
        self._metrics.proposed_tokens.inc(engine.n_proposed - before[0])
        self._metrics.accepted_tokens.inc(engine.n_accepted - before[1])
        updates = list[_Update]((self._texts.pop(id).client, error) for id, error in engine.failures)
        for token in tokens:
            text = self._texts.get(token.request)
            if text is None:  # it failed after this token
                continue
            if not text.begun:
                self._metrics.first_token.observe(time.perf_counter() - text.client.arrived)
                self._metrics.reused_tokens.inc(token.n_reused)
                text.begun = True
            self._metrics.generated_tokens.inc()
            if token.completion is not None:
                del self._texts[token.request]
            updates.append((text.client, replace(token, request=text.index)))
        self._deliver(updates)

    def _deliver(self, updates: "list[_Update]") -> None:
        def put() -> None:
            for client, update in updates:
                client.updates.put_nowait(update)

        for client, update in updates:
            client.is_gone |= isinstance(update, Exception)
        self._loop.call_soon_threadsafe(put)


_Update = tuple[_Client, Token | Exception]


def _measure_cache_bytes_per_token(runner: ModelRunner, generator: TextGenerator) -> int:
    """Measures the bytes of keys and values of one token."""
    one = Prompt((0,), (0,) if generator.loaded.model.reads == "source" else None)
    with generator.step_context():
        _, state = runner.read_tokens([one.tokens], runner.create_initial_state([one]))
    caches = [layer for layer in state.layers if isinstance(layer, KeyValueCache)]
    return sum(t.numel() * t.element_size() for cache in caches for t in cache) // max(1, state.length)


def choose_cache_token_budget(
    bytes_per_token: int, n_rows: int, context: int | None, memory_bytes: int | None
) -> int | None:
    """Returns how many tokens' keys and values fit a quarter of the memory, at most as many as the rows can have.

    memory_bytes: None if unknown. Returns None if only rows are limited: for a model without keys and values.
    """
    if not bytes_per_token or (memory_bytes is None and context is None):
        return None
    most = math.inf if context is None else n_rows * context
    room = math.inf if memory_bytes is None else memory_bytes // 4 // (MAX_CACHE_COPIES * bytes_per_token)
    return int(max(context or 1, min(most, room)))
