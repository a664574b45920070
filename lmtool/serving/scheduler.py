"""One thread that runs a model for many: texts join and leave its running batch between tokens."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch

from lmtool.compute.machine import machine_memory
from lmtool.decoding.constrained import beginning, vocabulary_of
from lmtool.decoding.generate import requests_of
from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.prefixes import PrefixCache
from lmtool.decoding.request import Choice, Request, TokenEvent
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.settings import Greedy, Sample
from lmtool.decoding.text import Completion, GeneratedText, without_text
from lmtool.inference.generator import TextGenerator
from lmtool.model.language_model import KeyValue
from lmtool.serving.errors import QueueFull, ShuttingDown
from lmtool.serving.metrics import Metrics
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

CHUNK = 256
"""Maximum tokens of prompts that are read between two tokens of the texts that are generated."""

COPIES = 4
"""How often keys and values may be in memory while rows join a batch and its cache is enlarged."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class GenerationRequest:
    """A request to generate n texts after each prompt.

    settings: of decoding.
    stop: as in `Options`.
    n_alternatives: as in `Strategy`.
    wants_prompt: the probabilities of the tokens of the prompts as well; for models without a source.
    """

    prompt_format: PromptFormat
    prompts: tuple[Prompt, ...]
    settings: Greedy | Sample
    n: int = 1
    stop: tuple[str, ...] = ()
    n_alternatives: int = 0
    wants_prompt: bool = False


@dataclass(frozen=True)
class Progress:
    """One more token of a text.

    index: of the text, sample 0 of prompt 0 first, then sample 1 of prompt 0.
    text: what it adds, whole characters only.
    completion: of the last one.
    read: with the first token, those of the prompt, if they are wanted.
    """

    index: int
    text: str
    event: TokenEvent
    completion: Completion | None
    read: tuple[Choice, ...]


@dataclass(eq=False)
class _Client:
    """A client.

    waiting: texts not yet in the batch.
    updates: what it reads next.
    came: the time.
    gone: nobody reads the updates.
    """

    waiting: "deque[_Text]"
    updates: "asyncio.Queue[Progress | Exception]"
    came: float
    gone: bool = False


@dataclass(eq=False)
class _Text:
    """One of the texts of a client.

    index: as in `Progress`.
    reach: the slots of the KV cache that it fills when it is complete.
    """

    client: _Client
    index: int
    request: Request
    reach: int
    generated_text: GeneratedText


class Scheduler:
    """Generates texts for many clients at once, each text as `generate` would alone.

    A text waits until the batch has room for it, first come first served; clients with several texts take turns.
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
        self._runner = ModelRunner(model)
        self.slot_bytes = _slot_bytes(self._runner, generator) if generator.writes else 0
        if n_slots is None:
            is_gpu = self._runner.device.type == "cuda"
            free = torch.cuda.mem_get_info(self._runner.device)[0] if is_gpu else machine_memory()
            n_slots = default_slots(self.slot_bytes, n_rows, model.context, free)
        self.n_slots: float = math.inf if n_slots is None else n_slots
        keeps = keeps_prefixes and self.slot_bytes and model.reads == "past" and self._runner.goes_back
        self.prefix_bytes = int(self.n_slots) * self.slot_bytes if keeps and n_slots is not None else 0
        self._prefixes = PrefixCache(self.prefix_bytes)
        self._samplers: WeakValueDictionary[Any, Sampler] = WeakValueDictionary()
        self._banned: dict[frozenset[int], torch.Tensor] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Client] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._batch = self._new_batch()
        self._texts: dict[int, _Text] = {}  # in the batch, by the number that stands for the prompt in their events
        self._numbers = count()
        self._ends = self.refuses = False  # whether the thread ends; whether no more clients are taken
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._loop: asyncio.AbstractEventLoop  # from `open` on

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. loop: of all clients."""
        self._loop = loop
        self._thread.start()

    def describe(self) -> str:
        """The limits of the batch, in a line."""
        rows = f"up to {self.n_rows} texts at once"
        if not self.slot_bytes or math.isinf(self.n_slots):
            return rows
        most = COPIES * self.n_slots * self.slot_bytes
        kept = f", {self.prefix_bytes / 1e9:.2g} GB of prefixes" if self.prefix_bytes else ""
        return f"{rows}, {int(self.n_slots):,} tokens in flight, {most / 1e9:.2g} GB of keys and values at most{kept}"

    def _new_batch(self) -> RunningBatch:
        drafter = self._generator.drafter
        draft = None if drafter is None else drafter.draft
        return RunningBatch(self._runner, CHUNK, self._prefixes, draft, isolates=True)

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

    def fitted(self, prompt: Prompt) -> Prompt:
        """A prompt that the model can read. Raises UsageError for all others."""
        return self._runner.fit(prompt, "refuse", "")

    @asynccontextmanager
    async def generate(self, generation: GenerationRequest) -> AsyncIterator[AsyncIterator[Progress]]:
        """The tokens of all texts as they come; the texts that are not complete at the end are given up.

        Raises QueueFull and ShuttingDown, and when it iterates what the model raises.
        """
        client = await asyncio.to_thread(self._client, generation)
        with self._changed:
            self._admit()
            self._queue.append(client)
            self._changed.notify()

        async def updates() -> AsyncIterator[Progress]:
            n_left = len(generation.prompts) * generation.n
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
            self._admit()
            self._calls.append((call, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _admit(self) -> None:
        if self.refuses:
            raise ShuttingDown
        if len(self._queue) + len(self._calls) >= self.n_queued:
            raise QueueFull

    def _client(self, generation: GenerationRequest) -> _Client:
        client = _Client(deque(), asyncio.Queue(), time.perf_counter())
        sampler, settings = self._sampler(generation), generation.settings
        most, form = settings.max_new_tokens, None
        if settings.form is not None:
            form = beginning(settings.form, generation.prompt_format.tokenizer)
        for i, request in enumerate(requests_of(generation.prompts, sampler, settings.seed, most, generation.n)):
            numbered = replace(request, prompt=next(self._numbers), wants_prompt=generation.wants_prompt, form=form)
            text = GeneratedText.of(generation.prompt_format, request.start, settings.seed, generation.stop, form)
            client.waiting.append(_Text(client, i, numbered, self._reach(request), text))
        return client

    def _sampler(self, generation: GenerationRequest) -> Sampler:
        """The strategy of a request; one object for all that differ in seed, length and form only."""
        ends = frozenset(generation.prompt_format.end_ids)
        allowed = ends.union(generation.prompt_format.shown)
        least = max(1, generation.settings.min_new_tokens)
        settings = replace(generation.settings, seed=0, form=None, max_new_tokens=least)
        key = (settings, ends, allowed, generation.n_alternatives)
        sampler = self._samplers.get(key)
        if sampler is None:
            if allowed not in self._banned:
                ids = sorted(without_text(generation.prompt_format, self._generator.loaded.model.vocab_size) - ends)
                self._banned[allowed] = torch.tensor(ids, dtype=torch.long, device=self._runner.device)
            sampler = self._samplers[key] = Sampler(settings, ends, self._banned[allowed], generation.n_alternatives)
        return sampler

    def _run(self) -> None:
        self._generator.loaded.model.eval()
        if self._generator.writes:
            vocabulary_of(self._generator.loaded.tokenizer)  # no thread runs while a part of it is made
        while True:
            with self._changed:
                while not (self._ends or self._queue or self._calls or self._texts):
                    self._changed.wait()
                if self._ends:
                    return
                call = self._calls.popleft() if self._calls else None
                self._queue = deque(client for client in self._queue if not client.gone)
            try:
                self._turn(call)
            except Exception as error:  # the batch as a whole fails: all texts in it do, and none later
                self._deliver([(client, error) for client in {text.client for text in self._texts.values()}])
                self._texts, self._batch = {}, self._new_batch()

    def _turn(self, call: "tuple[Callable[[], Any], Future[Any]] | None") -> None:
        """What is done between two tokens, and the next token of each text."""
        for text in [text for text in self._texts.values() if text.client.gone]:
            self._remove(text)
        if call is not None and call[1].set_running_or_notify_cancel():
            compute, future = call
            try:
                future.set_result(compute())
            except Exception as error:
                future.set_exception(error)
        self._fill()
        if self._texts:
            self._step()
        self._metrics.running.set(len(self._texts))
        self._metrics.waiting.set(len(self._queue))

    def _remove(self, text: _Text) -> None:
        del self._texts[text.request.prompt]
        self._batch.leave(text.request)
        self._metrics.proposed_tokens.inc(text.request.proposed)
        self._metrics.accepted_tokens.inc(text.request.accepted)

    def _fill(self) -> None:
        """Let texts that wait join the batch, one of each client in turn, as many as there is room for."""
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
            with self._ending(client):
                self._batch.join(text.request)
                self._texts[text.request.prompt] = text
                self._metrics.prompt_tokens.inc(len(text.request.start.text))

    def _reach(self, request: Request) -> int:
        """The slots of the KV cache that a text fills when it is complete."""
        source = 0 if request.start.source is None else len(request.start.source)
        tokens = len(request.start.tokens) + request.max_new_tokens
        room = self._runner.room(request.start)
        return source + (tokens if room is None else min(tokens, room))

    def _step(self) -> None:
        """One step of the batch."""
        with self._generator.computing():
            events = self._batch.step()
        updates = list[_Update]((self._texts[one.prompt].client, error) for one, error in self._batch.failures)
        for event in events:
            if event.prompt not in self._texts:  # a stop string came before this one of several tokens
                continue
            with self._ending(self._texts[event.prompt].client):
                updates.append(self._progress(event))
        self._deliver(updates)

    @contextmanager
    def _ending(self, client: _Client) -> Iterator[None]:
        """A context whose exceptions end what a client asks for, and nothing else."""
        try:
            yield
        except Exception as error:
            self._deliver([(client, error)])

    def _deliver(self, updates: "list[_Update]") -> None:
        for client, update in updates:
            client.gone |= isinstance(update, Exception)
        self._loop.call_soon_threadsafe(_deliver, updates)

    def _progress(self, event: TokenEvent) -> "_Update":
        text = self._texts[event.prompt]
        shown = text.generated_text.push(event)
        completion = text.generated_text.completion()
        if event.steps == 1:
            self._metrics.first_token.observe(time.perf_counter() - text.client.came)
            self._metrics.reused_tokens.inc(text.request.n_reused)
        self._metrics.generated_tokens.inc()
        if completion is not None:
            self._remove(text)
        read = tuple(text.request.read) if event.steps == 1 else ()
        return text.client, Progress(text.index, shown, event, completion, read)


_Update = tuple[_Client, Progress | Exception]


def _deliver(updates: list[_Update]) -> None:
    for client, update in updates:
        client.updates.put_nowait(update)


def _slot_bytes(runner: ModelRunner, generator: TextGenerator) -> int:
    """Bytes of the keys and values of one token of a text."""
    one = Prompt((0,), (0,) if generator.loaded.model.reads == "source" else None)
    with generator.computing():
        _, state = runner.advance([one.tokens], runner.start([one]))
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
