"""The running batch: requests of any settings, which join and leave it between tokens.

Shapes: B rows, T positions of a chunk, D model width, V vocabulary.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.request import Choice, Request, RequestBatch, Strategy, TokenEvent, chosen
from lmtool.model.language_model import DecodeState
from lmtool.tokenization.prompt_format import Prompt

PADDED = 1.25
"""Longest of the prompts that are read together, as a multiple of the shortest."""

log = logging.getLogger("lmtool.decoding")


@dataclass(eq=False)
class _Reading:
    """Prompts that are read together, each distinct one once, before their requests generate.

    They are of equal lengths, or read whole, to the length of the longest.

    state: after the first `n_read` tokens of each of the windows, its rows.
    """

    requests: list[Request]
    windows: list[Prompt]
    state: DecodeState | None = None
    n_read: int = 0

    @property
    def n_left(self) -> int:
        return max(len(window.tokens) for window in self.windows) - self.n_read


class RunningBatch(RequestBatch):
    """Requests that are decoded together: continuous batching (Yu et al. 2022).

    Each step generates one token of each request whose prompt is read. Hypotheses are rows of one decoding state, to
    which rows are joined and from which they are selected; they affect only the rounding of each other's sums.

    chunk: maximum tokens of prompts that are read in a step, or None for whole prompts. A source is always read at
    once. isolates: what fails of several requests is computed again of each alone, and only those that then fail end.

    failures: the requests that ended so in the last step, and their errors.
    """

    def __init__(self, runner: ModelRunner, chunk: int | None = None, *, isolates: bool = False) -> None:
        super().__init__()
        self._runner = runner
        self._chunk = chunk
        self._isolates = isolates
        self._readings: list[_Reading] = []
        self._running: list[tuple[Request, list[int]]] = []  # with its rows, numbered through all of `_states`
        self._states: list[DecodeState] = []
        self.failures: list[tuple[Request, Exception]] = []

    @property
    def requests(self) -> list[Request]:
        """The requests in it, running ones first."""
        every = [*(request for request, _ in self._running), *(one for part in self._readings for one in part.requests)]
        return [*(request for request in every if request.hypotheses), *super().requests]

    def leave(self, request: Request) -> None:
        """As of any batch; the rows of the last one are free then."""
        super().leave(request)
        if not self.requests:
            self._states = []

    def step(self) -> list[TokenEvent]:
        """Generate one token of each request that is read; then read on. Returns the events.

        Raises NumericalError when logits are not finite, UsageError when filters exclude all tokens, and what the model
        raises; a batch that isolates only where memory is short for all together.
        """
        state = self._settled()
        self._readings += [_Reading(alike, _windows(alike)) for alike in self._alike()]
        running, self._waiting = [request for request, _ in self._running], []
        requests: list[Request] = []
        logits: list[Tensor] = []
        self._running, self._states, self.failures = [], [], []
        if state is not None:
            with self._isolated(running):
                last = [one.window.tokens[-1] for request in running for one in request.hypotheses]
                hidden_BD, state = self._runner.step(last, state)
                logits.append(self._runner.logits(hidden_BD))
                self._states.append(state)
                requests += running
        for reading, n in self._shares():
            prompted, reading.requests = reading.requests, []
            with self._isolated(prompted):
                hidden_BTD, state = self._read(reading, n, prompted)
                if not reading.n_left:
                    last = [len(window.tokens) - 1 - reading.n_read for window in reading.windows]
                    hidden_BD = hidden_BTD[range(len(last)), last]
                    rows = [reading.windows.index(one.window) for request in prompted for one in request.hypotheses]
                    if rows != list(range(state.n_rows)):
                        # samples of one prompt soon diverge, so they do not share a cache line
                        hidden_BD, state = hidden_BD[rows], state.pick(rows, apart=True)
                    logits.append(self._runner.logits(hidden_BD))
                    self._states.append(state)
                    requests += prompted
                reading.requests = prompted
        self._readings = [reading for reading in self._readings if reading.requests and reading.n_left]
        return self._generate(torch.cat(logits), requests) if requests else []

    @contextmanager
    def _isolated(self, requests: Sequence[Request]) -> Iterator[None]:
        """A context whose exceptions end a request that is alone; several are to be read again, each alone."""
        try:
            yield
        except Exception as error:
            is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not self._isolates or (is_memory and len(requests) > 1):
                raise
            if len(requests) == 1:
                (request,) = requests
                request.hypotheses = ()
                self.failures.append((request, error))
                return
            log.warning("computing %d requests apart", len(requests), exc_info=error)
            for request in requests:
                request.read = request.read if request.n_steps else []
                self._readings.append(_Reading([request], _windows([request])))

    def _settled(self) -> DecodeState | None:
        """The state of the rows that still run, in order; texts that reached the context slide, to be read again."""
        self._waiting = super().requests
        for reading in self._readings:
            reading.requests = [request for request in reading.requests if request.hypotheses]
        self._readings = [reading for reading in self._readings if reading.requests]
        running, self._running = self._running, []
        kept: list[int] = []
        for request, rows in running:
            if not request.hypotheses:
                continue
            if self._runner.has_room(request.hypotheses[0].window):
                self._running.append((request, rows))
                kept += rows
            else:
                windows = [self._runner.slid(one.window) for one in request.hypotheses]
                request.hypotheses = [
                    replace(one, window=window) for one, window in zip(request.hypotheses, windows, strict=True)
                ]
                self._waiting.append(request)
        return _picked(self._states, kept)

    def _read(self, reading: _Reading, n: int, requests: Sequence[Request]) -> tuple[Tensor, DecodeState]:
        """Read n more tokens of each window for these requests. Returns hidden states (B, T, D) and the new state."""
        state = self._runner.start(reading.windows) if reading.state is None else reading.state
        begun, reading.n_read = reading.n_read, reading.n_read + n
        tokens = [window.tokens[begun : reading.n_read] for window in reading.windows]
        hidden_BTD, state = self._runner.advance(tokens, state)
        lengths = [len(window.tokens) for window in reading.windows]
        reading.state = state if min(lengths) == max(lengths) else state.each_upto(lengths)
        for request in requests:
            if request.wants_prompt and request.n_steps == 0:
                row = reading.windows.index(request.start)
                request.read += self._probabilities(hidden_BTD[row], request, begun)
        return hidden_BTD, reading.state

    def _alike(self) -> Iterator[list[Request]]:
        """The waiting requests, those that are read together: whole prompts also of about the same length."""
        alike: list[Request] = []
        for request in sorted(self._waiting, key=_lengths):
            n_source, n = _lengths(request)
            n_first = _lengths(alike[0]) if alike else (n_source, n)
            is_near = self._chunk is None and n_source == 0 == n_first[0] and n <= PADDED * n_first[1]
            if (n_source, n) != n_first and not (is_near and self._runner.goes_back):
                yield alike
                alike = []
            alike.append(request)
        if alike:
            yield alike

    def _shares(self) -> list[tuple[_Reading, int]]:
        """How many tokens of which prompts are read in this step.

        Half of the chunk is for those that came first, so that all are read some time, and the rest for the shortest:
        they do not wait for a long one.
        """
        if self._chunk is None or not self._readings:
            return [(reading, reading.n_left) for reading in self._readings]
        room, shares = self._chunk, dict.fromkeys(self._readings, 0)
        first = self._readings[0]
        shares[first] = min(first.n_left, max(1, room // 2 // len(first.windows)))
        room -= shares[first] * len(first.windows)
        for reading in sorted(self._readings, key=lambda one: one.n_left * len(one.windows)):
            more = min(reading.n_left - shares[reading], max(0, room) // len(reading.windows))
            shares[reading] += more
            room -= more * len(reading.windows)
        return [(reading, n) for reading, n in shares.items() if n]

    def _probabilities(self, hidden_TD: Tensor, request: Request, begun: int) -> list[Choice]:
        """Of the tokens of the prompt that follow those which were just read."""
        following = request.start.tokens[begun + 1 : begun + 1 + len(hidden_TD)]
        if not following:
            return []
        logprobs_TV = self._runner.logits(hidden_TD[: len(following)]).log_softmax(-1)
        ids_T = torch.tensor(following, device=logprobs_TV.device)
        return chosen(logprobs_TV, logprobs_TV, ids_T, request.strategy.n_alternatives)

    def _generate(self, logits_BV: Tensor, requests: Sequence[Request]) -> list[TokenEvent]:
        """One step of each request's strategy; of equal ones at once."""
        counts = [len(request.hypotheses) for request in requests]
        starts, n_rows = [0, *accumulate(counts)], sum(counts)
        groups: dict[Strategy, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(request.strategy, []).append(i)
        events: list[TokenEvent] = []
        parents: dict[int, list[int]] = {}

        def step(strategy: Strategy, group: Sequence[int]) -> None:
            rows = [starts[i] + j for i in group for j in range(counts[i])]
            rows_BV = logits_BV if len(rows) == n_rows else logits_BV[rows]
            stepped, new = strategy.step(rows_BV, [requests[i] for i in group])
            events.extend(new)
            parents.update((i, [starts[i] + parent for parent in its]) for i, its in zip(group, stepped, strict=True))

        for strategy, group in groups.items():
            try:
                step(strategy, group)
            except Exception:
                if not self._isolates:
                    raise
                for i in group:
                    with self._isolated([requests[i]]):
                        step(strategy, [i])
        self._running = [(request, parents[i]) for i, request in enumerate(requests) if request.hypotheses]
        return events


def _windows(requests: Sequence[Request]) -> list[Prompt]:
    """The distinct windows of requests."""
    return list(dict.fromkeys(one.window for request in requests for one in request.hypotheses))


def _lengths(request: Request) -> tuple[int, int]:
    window = request.hypotheses[0].window
    return len(window.source or ()), len(window.tokens)


def _picked(states: Sequence[DecodeState], rows: Sequence[int]) -> DecodeState | None:
    """The state of these rows, numbered through all states, in that order; None for no rows.

    Rows are selected before states are joined, so that hypotheses of a beam search share a cache line from the first
    step.
    """
    parts, first = [], 0
    for state in states:
        picked = [row - first for row in rows if first <= row < first + state.n_rows]
        first += state.n_rows
        if picked:
            parts.append(state if picked == list(range(state.n_rows)) else state.pick(picked))
    return DecodeState.join(parts).trimmed() if parts else None
