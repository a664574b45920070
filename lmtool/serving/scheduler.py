"""One thread around an engine, which generates for many clients."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from lmtool.compute.machine import machine_memory
from lmtool.generation.constrained import spelled_vocabulary
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request, Token
from lmtool.generation.strategy import RequestState
from lmtool.model.language_model import KeyValue
from lmtool.serving.errors import QueueFull, ShuttingDown
from lmtool.serving.metrics import Metrics
from lmtool.tokenization.prompt_format import Prompt

CHUNK = 256
"""Maximum tokens of prompts that are read between two tokens of the texts that are generated."""

COPIES = 4
"""How often keys and values may be in memory while rows join a batch and its cache is enlarged."""

Result = TypeVar("Result")


@dataclass(eq=False)
class _Client:
    """A client.

    waiting: texts not yet in the engine.
    updates: what it reads next.
    came: the time.
    gone: nobody reads the updates.
    """

    waiting: "deque[_Text]"
    updates: "asyncio.Queue[Token | Exception]"
    came: float
    gone: bool = False


@dataclass(eq=False)
class _Text:
    """One of the texts of a client.

    index: of its request among those of the client.
    reach: the slots of the KV cache that it fills when it is complete.
    """

    client: _Client
    index: int
    state: RequestState
    reach: int
    begun: bool = False


class Scheduler:
    """Generates texts for many clients at once, each text as `generate` would alone.

    A text waits until the engine has room for it, first come first served; clients with several texts take turns.
    The room is a number of rows, and a budget of tokens in flight: rows times the tokens that the longest of them may
    reach, as many as the KV cache has slots. A text that is longer than the whole budget runs alone.

    n_slots: the budget.
    slot_bytes: of keys and values of one slot.
    n_rows: maximum rows.
    n_queued: maximum clients that wait.
    keeps_prefixes: whether keys and values of texts are kept for others that begin with the same tokens, of models that
        allow it: as many tokens as the budget has.
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
        self.slot_bytes = _slot_bytes(runner, generator) if generator.writes else 0
        if n_slots is None:
            is_gpu = runner.device.type == "cuda"
            free = torch.cuda.mem_get_info(runner.device)[0] if is_gpu else machine_memory()
            n_slots = default_slots(self.slot_bytes, n_rows, model.context, free)
        self.n_slots: float = math.inf if n_slots is None else n_slots
        keeps = keeps_prefixes and self.slot_bytes and runner.supports_prefix_cache
        self.prefix_bytes = int(self.n_slots) * self.slot_bytes if keeps and n_slots is not None else 0
        self._changed = threading.Condition()
        self._queue: deque[_Client] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        prefixes = PrefixCache(self.prefix_bytes)
        self._engine = Engine(
            model, chunk=CHUNK, prefixes=prefixes, draft=generator.draft, only_exact_drafts=True, isolate_failures=True
        )
        self._texts: dict[int, _Text] = {}  # in the engine, by the id of the request
        self._ends = self.refuses = False  # whether the thread ends; whether no more clients are taken
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._loop: asyncio.AbstractEventLoop  # from `open` on

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. loop: of all clients."""
        self._loop = loop
        self._thread.start()

    def describe(self) -> str:
        """The limits of the engine, in a line."""
        rows = f"up to {self.n_rows} texts at once"
        if not self.slot_bytes or math.isinf(self.n_slots):
            return rows
        most = COPIES * self.n_slots * self.slot_bytes
        kept = f", {self.prefix_bytes / 1e9:.2g} GB of prefixes" if self.prefix_bytes else ""
        return f"{rows}, {int(self.n_slots):,} tokens in flight, {most / 1e9:.2g} GB of keys and values at most{kept}"

    def refuse(self) -> None:
        """From now on take no more clients."""
        self.refuses = True

    def close(self) -> None:
        """End the thread, after the token that it computes; who still waits for something is told ShuttingDown."""
        with self._changed:
            self._ends = self.refuses = True
            self._changed.notify()
        self._thread.join()
        waiting = {text.client for text in self._texts.values()} | set(self._queue)
        self._deliver([(client, ShuttingDown()) for client in waiting])
        for _, future in self._calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(ShuttingDown())

    def check_prompt(self, prompt: Prompt) -> Prompt:
        """A prompt that the model can read. Raises UsageError for all others."""
        return self._engine.runner.fit_prompt(prompt, "refuse", "")

    @asynccontextmanager
    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[AsyncIterator[Token]]:
        """The tokens of all requests as they come, `Token.request` being the index of each.

        Requests that are not complete at the end are cancelled.

        Raises QueueFull and ShuttingDown, and when it iterates what the model raises.
        """
        client = await asyncio.to_thread(self._client, requests)
        with self._changed:
            self._check_queue()
            self._queue.append(client)
            self._changed.notify()

        async def updates() -> AsyncIterator[Token]:
            n_left = len(requests)
            while n_left:
                update = await client.updates.get()
                await asyncio.sleep(0)  # a queue that holds more would not let others have their turn
                if isinstance(update, Exception):
                    raise update
                n_left -= update.completion is not None
                yield update

        try:
            yield updates()
        finally:
            with self._changed:
                client.gone = True
                self._changed.notify()

    async def compute(self, call: Callable[[], Result]) -> Result:
        """The result of a short computation with the model, between two tokens. Raises QueueFull and ShuttingDown."""
        future: Future[Result] = Future()
        with self._changed:
            self._check_queue()
            self._calls.append((call, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _check_queue(self) -> None:
        if self.refuses:
            raise ShuttingDown
        if len(self._queue) + len(self._calls) >= self.n_queued:
            raise QueueFull

    def _client(self, requests: Sequence[Request]) -> _Client:
        client = _Client(deque(), asyncio.Queue(), time.perf_counter())
        for i, request in enumerate(requests):
            client.waiting.append(_Text(client, i, self._engine.prepare(request), self._slots_needed(request)))
        return client

    def _run(self) -> None:
        self._generator.loaded.model.eval()
        if self._generator.writes:
            spelled_vocabulary(self._generator.loaded.tokenizer)  # no thread runs while a part of it is made
        while True:
            with self._changed:
                while not (self._ends or self._queue or self._calls or self._texts):
                    self._changed.wait()
                if self._ends:
                    return
                call = self._calls.popleft() if self._calls else None
                self._queue = deque(client for client in self._queue if not client.gone)
            try:
                self._iterate(call)
            except Exception as error:  # the engine as a whole fails: all texts in it do, and none later
                self._deliver([(client, error) for client in {text.client for text in self._texts.values()}])
                self._texts = {}
                self._engine.clear()

    def _iterate(self, call: "tuple[Callable[[], Any], Future[Any]] | None") -> None:
        """What is done between two tokens, and the next token of each text."""
        for id in [id for id, text in self._texts.items() if text.client.gone]:
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
            self._step()
        self._metrics.running.set(len(self._texts))
        self._metrics.waiting.set(len(self._queue))

    def _admit_waiting(self) -> None:
        """Let texts that wait join the engine, one of each client in turn, as many as there is room for."""
        longest = max((text.reach for text in self._texts.values()), default=0)
        while self._queue and len(self._texts) < self.n_rows:
            client = self._queue[0]
            text = client.waiting[0]
            longest = max(longest, text.reach)
            if self._texts and (len(self._texts) + 1) * longest > self.n_slots:
                return
            client.waiting.popleft()
            with self._changed:
                self._queue.popleft()
                if client.waiting:
                    self._queue.append(client)
            with self._failing_alone(client):
                self._texts[self._engine.add(text.state)] = text
                self._metrics.prompt_tokens.inc(len(text.state.request.prompt.text))

    def _slots_needed(self, request: Request) -> int:
        """The slots of the KV cache that a text fills when it is complete."""
        prompt = request.prompt
        tokens, room = len(prompt.tokens) + request.params.max_new_tokens, self._engine.runner.max_length(prompt)
        return len(prompt.source or ()) + (tokens if room is None else min(tokens, room))

    def _step(self) -> None:
        """One step of the engine."""
        engine = self._engine
        before = engine.n_proposed, engine.n_accepted
        with self._generator.computing():
            tokens = engine.step()
        self._metrics.proposed_tokens.inc(engine.n_proposed - before[0])
        self._metrics.accepted_tokens.inc(engine.n_accepted - before[1])
        updates = list[_Update]((self._texts.pop(id).client, error) for id, error in engine.failures)
        for token in tokens:
            text = self._texts.get(token.request)
            if text is None:  # it failed after this one
                continue
            if not text.begun:
                self._metrics.first_token.observe(time.perf_counter() - text.client.came)
                self._metrics.reused_tokens.inc(token.n_reused)
                text.begun = True
            self._metrics.generated_tokens.inc()
            if token.completion is not None:
                del self._texts[token.request]
            updates.append((text.client, replace(token, request=text.index)))
        self._deliver(updates)

    @contextmanager
    def _failing_alone(self, client: _Client) -> Iterator[None]:
        """A context whose exceptions end what a client asks for, and nothing else."""
        try:
            yield
        except Exception as error:
            self._deliver([(client, error)])

    def _deliver(self, updates: "list[_Update]") -> None:
        for client, update in updates:
            client.gone |= isinstance(update, Exception)
        self._loop.call_soon_threadsafe(_deliver, updates)


_Update = tuple[_Client, Token | Exception]


def _deliver(updates: list[_Update]) -> None:
    for client, update in updates:
        client.updates.put_nowait(update)


def _slot_bytes(runner: ModelRunner, generator: TextGenerator) -> int:
    """Bytes of the keys and values of one token of a text."""
    one = Prompt((0,), (0,) if generator.loaded.model.reads == "source" else None)
    with generator.computing():
        _, state = runner.read_tokens([one.tokens], runner.start_state([one]))
    caches = [layer for layer in state.layers if isinstance(layer, KeyValue)]
    return sum(t.numel() * t.element_size() for cache in caches for t in cache) // max(1, state.length)


def default_slots(slot_bytes: int, n_rows: int, context: int | None, memory: int | None) -> int | None:
    """Tokens in flight that a quarter of the memory has room for, and no more than the rows can hold.

    memory: in bytes; None if unknown. None where the rows alone are a limit: a model without keys and values.
    """
    if not slot_bytes or (memory is None and context is None):
        return None
    most = math.inf if context is None else n_rows * context
    room = math.inf if memory is None else memory // 4 // (COPIES * slot_bytes)
    return int(max(context or 1, min(most, room)))
