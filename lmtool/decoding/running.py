"""The running batch: requests of any settings, which join and leave it between tokens.

Shapes: B rows, T positions of a chunk, D model width, V vocabulary.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.prefixes import PrefixCache
from lmtool.decoding.request import Choice, Request, RequestBatch, Strategy, TokenEvent, chosen
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.speculative import Draft, Speculation
from lmtool.model.language_model import DecodeState
from lmtool.tokenization.prompt_format import Prompt

JUMP = 8
"""Tokens that follow for certain which are worth a pass of their own while other texts are generated."""

PADDED = 1.25
"""Longest of the prompts that are read together, as a multiple of the shortest."""

log = logging.getLogger("lmtool.decoding")


@dataclass(eq=False)
class _Reading:
    """Prompts that are read together, each distinct one once, before their requests generate.

    They are of equal lengths, or read whole, to the length of the longest.

    state: after the first `n_read` tokens of each of the windows, its rows; None before the reading begins, where
        `n_read` tokens of each are known.
    n_forced: the last tokens of the window of a single request that its form makes certain; choices: these.
    """

    requests: list[Request]
    windows: list[Prompt]
    state: DecodeState | None = None
    n_read: int = 0
    n_forced: int = 0
    choices: list[Choice] = field(default_factory=list)

    @property
    def n_left(self) -> int:
        return max(len(window.tokens) for window in self.windows) - self.n_read


class RunningBatch(RequestBatch):
    """Requests that are decoded together: continuous batching (Yu et al. 2022).

    Each step generates one token of each request whose prompt is read. Hypotheses are rows of one decoding state, to
    which rows are joined and from which they are selected; they affect only the rounding of each other's sums.

    chunk: maximum tokens of prompts that are read in a step, or None for whole prompts. A source is always read at
    once. prefixes: where the state of what texts begin with is kept, for models that allow it. draft: proposes tokens
    of a text that is alone, if the text stays the same. isolates: what fails of several requests is computed again of
    each alone, and only those that then fail end.

    failures: the requests that ended so in the last step, and their errors.
    """

    def __init__(
        self,
        runner: ModelRunner,
        chunk: int | None = None,
        prefixes: PrefixCache | None = None,
        draft: Draft | None = None,
        *,
        isolates: bool = False,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._chunk = chunk
        self._prefixes = prefixes or PrefixCache(0)
        self._speculation = None if draft is None else Speculation(runner, draft)
        self._isolates = isolates
        self._masks = ThreadPoolExecutor(1, "masks")  # what may follow is computed beside the model
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
        """Generate one token of each request that is read, or more of one that is alone; then read on.

        Returns the events.

        Raises NumericalError when logits are not finite, UsageError when filters exclude all tokens, and what the model
        raises; a batch that isolates only where memory is short for all together.
        """
        state = self._settled()
        self._readings += [_Reading(alike, _windows(alike)) for alike in self._alike()]
        running, self._waiting = [request for request, _ in self._running], []
        requests: list[Request] = []
        logits: list[Tensor] = []
        self._running, self._states, self.failures = [], [], []
        alone = self._speculation if len(running) == 1 and not self._readings else None
        if state is not None and alone is not None and alone.keeps(running[0]):
            return self._speculate(alone, running[0], state)
        if state is not None:
            with self._isolated(running):
                forms = {one.form for request in running for one in request.hypotheses if one.form is not None}
                masks = [self._masks.submit(form.prepare) for form in forms]
                texts = [one.window.tokens for request in running for one in request.hypotheses]
                hidden_BD, state = self._runner.step([tokens[-1] for tokens in texts], state)
                wait(masks)
                self._prefixes.keep(texts, state, 1)
                logits.append(self._runner.logits(hidden_BD))
                self._states.append(state)
                requests += running
        events: list[TokenEvent] = []
        for reading, n in self._shares():
            prompted, reading.requests = reading.requests, []
            with self._isolated(prompted):
                hidden_BTD, state = self._read(reading, n, prompted)
                if not reading.n_left:
                    events += self._jumped(reading, prompted)
                if not reading.n_left and prompted[0].hypotheses:
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
        return events + (self._generate(torch.cat(logits), requests) if requests else [])

    def _jumped(self, reading: _Reading, requests: Sequence[Request]) -> list[TokenEvent]:
        """The events of the tokens of a form that were read at once."""
        if not reading.n_forced:
            return []
        (request,) = requests
        assert isinstance(request.strategy, Sampler)
        form = request.hypotheses[0].form
        assert form is not None
        after = form.through(tuple(choice.token for choice in reading.choices))
        events = []
        for choice in reading.choices:
            extended = replace(request.hypotheses[0], form=None).plus(choice.token)
            extended = replace(extended, form=after if choice is reading.choices[-1] else form)
            events.append(request.strategy.take(request, choice, extended))
            if not request.hypotheses:
                break
        return events

    def _speculate(self, speculation: Speculation, request: Request, state: DecodeState) -> list[TokenEvent]:
        """Tokens of the only request, with a draft. state: that of its row."""
        events: list[TokenEvent] = []
        with self._isolated([request]):
            read = request.hypotheses[0].window.tokens
            events, state = speculation.step(request, state)
            self._prefixes.keep([(*read, *(event.token for event in events[:-1]))], state, len(events))
            self._states, self._running = [state], [(request, [0])] if request.hypotheses else []
        return events

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
                jump = self._jump(request, alone=len(running) == 1)
                state = _picked(self._states, rows) if jump else None
                if state is not None:
                    window = request.hypotheses[0].window
                    longer = replace(window, tokens=(*window.tokens, *jump))
                    reading = _Reading([request], [longer], state.growing(), len(window.tokens) - 1, len(jump))
                    self._readings.append(reading)
                    continue
                self._running.append((request, rows))
                kept += rows
            else:
                windows = [self._runner.slid(one.window) for one in request.hypotheses]
                request.hypotheses = [
                    replace(one, window=window) for one, window in zip(request.hypotheses, windows, strict=True)
                ]
                self._waiting.append(request)
        return _picked(self._states, kept)

    def _jump(self, request: Request, *, alone: bool) -> tuple[int, ...]:
        """The next tokens of a request that its form makes certain, if it is worth the while to read them at once."""
        form = request.hypotheses[0].form
        if form is None or not isinstance(request.strategy, Sampler):
            return ()
        n = request.max_new_tokens - request.n_steps
        left = self._runner.left(request.hypotheses[0].window)
        forced = form.forced[: n if left is None else min(n, left)]
        return forced if len(forced) >= (1 if alone else JUMP) else ()

    def _read(self, reading: _Reading, n: int, requests: Sequence[Request]) -> tuple[Tensor, DecodeState]:
        """Read n more tokens of each window for these requests. Returns hidden states (B, T, D) and the new state."""
        state = reading.state or self._begin(reading, requests)
        begun, reading.n_read = reading.n_read, reading.n_read + n
        tokens = [window.tokens[begun : reading.n_read] for window in reading.windows]
        hidden_BTD, state = self._runner.advance(tokens, state)
        self._prefixes.keep([window.tokens[: reading.n_read] for window in reading.windows], state, n)
        lengths = [len(window.tokens) for window in reading.windows]
        reading.state = state if min(lengths) == max(lengths) else state.each_upto(lengths)
        if reading.n_forced:
            reading.choices += self._probabilities(hidden_BTD[0], requests[0], reading.windows[0], begun)
            return hidden_BTD, reading.state
        known: dict[tuple[int, int], list[Choice]] = {}  # samples of one prompt have the same
        for request in requests:
            if request.wants_prompt and request.n_steps == 0:
                row = reading.windows.index(request.start)
                key = row, request.strategy.n_alternatives
                if key not in known:
                    known[key] = self._probabilities(hidden_BTD[row], request, request.start, begun)
                request.read += known[key]
        return hidden_BTD, reading.state

    def _begin(self, reading: _Reading, requests: Sequence[Request]) -> DecodeState:
        """The state before the first tokens that are read for these requests, after those whose state is kept."""
        known = self._prefixes.state([window.tokens[: reading.n_read] for window in reading.windows])
        reading.n_read = 0 if known is None else known.length
        for request in requests:
            if request.n_steps == 0:
                request.n_reused = reading.n_read
        return known or self._runner.start(reading.windows)

    def _n_known(self, requests: Sequence[Request]) -> int:
        """How many tokens of all windows need not be read: not the last of any, whose logits are wanted."""
        if any(request.wants_prompt for request in requests):
            return 0
        return self._prefixes.n_known([one.window.tokens[:-1] for request in requests for one in request.hypotheses])

    def _alike(self) -> Iterator[list[Request]]:
        """The waiting requests, those that are read together: whole prompts also of about the same length."""
        alike: list[Request] = []
        for request in sorted(self._waiting, key=self._lengths):
            lengths = n_source, n, _ = self._lengths(request)
            n_first = self._lengths(alike[0]) if alike else lengths
            is_near = self._chunk is None and n_source == 0 == n_first[0] and n <= PADDED * n_first[1]
            if lengths != n_first and not (is_near and self._runner.goes_back):
                yield alike
                alike = []
            alike.append(request)
        if alike:
            yield alike

    def _lengths(self, request: Request) -> tuple[int, int, int]:
        """Of its source, of its tokens, and of those that need not be read."""
        window = request.hypotheses[0].window
        return len(window.source or ()), len(window.tokens), self._n_known([request])

    def _shares(self) -> list[tuple[_Reading, int]]:
        """How many tokens of which prompts are read in this step.

        Half of the chunk is for those that came first, so that all are read some time, and the rest for the shortest:
        they do not wait for a long one.
        """
        for reading in self._readings:
            if reading.state is None:  # others may have read meanwhile what it begins with
                reading.n_read = self._n_known(reading.requests)
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

    def _probabilities(self, hidden_TD: Tensor, request: Request, window: Prompt, begun: int) -> list[Choice]:
        """Of the tokens of a window that follow those which were just read."""
        following = window.tokens[begun + 1 : begun + 1 + len(hidden_TD)]
        if not following:
            return []
        logprobs_TV = self._runner.logits(hidden_TD[: len(following)]).log_softmax(-1)
        ids_T = torch.tensor(following, device=logprobs_TV.device)
        if window is request.start:
            return chosen(logprobs_TV, logprobs_TV, ids_T, request.strategy.n_alternatives)
        only_TV = torch.full_like(logprobs_TV, -torch.inf).scatter(1, ids_T[:, None], 0.0)  # the form excludes the rest
        choices = chosen(logprobs_TV, only_TV, ids_T, request.strategy.n_alternatives)
        return [replace(choice, constrained=0.0) for choice in choices]

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
