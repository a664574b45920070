"""The engine: requests in, tokens out.

Shapes: B rows, T positions of a chunk, D model width, V vocabulary.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.generation.beam import BeamSearch
from lmtool.generation.constrained import begin_form
from lmtool.generation.drafts import Draft, Proposal, Proposals
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.prefixes import PrefixCache
from lmtool.generation.request import Completion, FinishReason, Request, Token, completion_of
from lmtool.generation.strategy import Hypothesis, RequestState, Sampler, Strategy, Written, make_tokens, random_key
from lmtool.generation.text import IncrementalText, ids_without_text
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.tokenization.prompt_format import Prompt

LEAST_JUMP = 8
"""Tokens that follow for certain which are worth a pass of their own while other texts are generated."""

MAX_PADDING = 1.25
"""Longest of the prompts that are read together, as a multiple of the shortest."""

log = logging.getLogger("lmtool.generation")


@dataclass(eq=False)
class _Prefill:
    """Prompts that are read together, each distinct one once, before their requests generate.

    They are of equal lengths, or read whole, to the length of the longest.

    cache: after the first `n_read` tokens of each of the windows, its rows; None before the first are read, where
        `n_read` tokens of each are known.
    n_forced: the last tokens of the window of a single request that its form makes certain; forced: these.
    """

    states: list[RequestState]
    windows: list[Prompt]
    cache: DecodeState | None = None
    n_read: int = 0
    n_forced: int = 0
    forced: list[Token] = field(default_factory=list)

    @property
    def n_left(self) -> int:
        return max(len(window.tokens) for window in self.windows) - self.n_read


class Engine:
    """Generates the texts of many requests at once: continuous batching (Yu et al. 2022).

    Requests are added and cancelled between steps. Each step generates one token of each request whose prompt is read.
    Hypotheses are rows of one decoding state, to which rows are joined and from which they are selected. The tokens of
    a request are a function of the model and the request: others affect only the rounding of sums.

    The input of the model is at most its context. When prompt and generated tokens exceed it, the oldest are dropped
    and the last half of the context is read again, so that text can be of any length. The model is one in evaluation
    mode.

    failures: the requests that ended by an error in the last step, and the errors.
    n_proposed, n_accepted: tokens that a draft proposed, and that were accepted, of all requests so far.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        chunk: int | None = None,
        prefixes: PrefixCache | None = None,
        draft: Draft | None = None,
        keeps_texts: bool = False,
        isolates: bool = False,
    ) -> None:
        """chunk: maximum tokens of prompts that are read in a step, or None for whole prompts; a source is always read
        at once. prefixes: where the state of what texts begin with is kept, for models that allow it. draft: proposes
        tokens of a text that is alone; with `keeps_texts` only where the text stays the same, else what is sampled is a
        function of the draft too, if it is a model. isolates: what fails of several requests is computed again of each
        alone, and only those that then fail end.
        """
        self.runner = ModelRunner(model)
        self._chunk, self._isolates = chunk, isolates
        self._prefixes = prefixes if prefixes and self.runner.keeps_prefixes else PrefixCache(0)
        self._draft, self._keeps_texts = draft, keeps_texts
        self._proposals: tuple[RequestState, Proposals] | None = None  # of the last request with a draft
        self._masks = ThreadPoolExecutor(1, "masks")  # what may follow is computed beside the model
        self._ids = count()
        self._states: dict[int, RequestState] = {}
        self._waiting: list[RequestState] = []
        self._prefills: list[_Prefill] = []
        self._running: list[tuple[RequestState, list[int]]] = []  # with its rows, numbered through all of `_caches`
        self._caches: list[DecodeState] = []
        self._strategies: WeakValueDictionary[Any, Strategy] = WeakValueDictionary()
        self._banned: dict[Any, Tensor] = {}
        self.failures: list[tuple[int, Exception]] = []
        self.n_proposed = self.n_accepted = 0

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._states

    def __len__(self) -> int:
        """How many requests are left."""
        return len(self._states)

    def prepare(self, request: Request) -> RequestState:
        """What can be done for a request before it is added, in any thread.

        Raises UsageError where parameters contradict one another, and where the form cannot be as it is asked for.
        """
        params, prompt, form = request.params, request.prompt, None
        if params.form is not None:
            assert request.prompt_format is not None
            if request.stop or request.prefix:
                what = "a form contradicts stop strings and a prefix, which would be no part of it"
                raise UsageError(what, fix="omit them, or write them into the form")
            form = begin_form(params.form, request.prompt_format.tokenizer, params.max_new_tokens)
        if not all(request.stop):
            raise UsageError("a stop string is empty", fix="give it at least one character")
        key = random_key(params.seed, request.draw, (*(prompt.source or ()), *prompt.tokens))
        hypotheses = [Hypothesis(prompt, prompt.text, form=form)] * params.groups
        texts = {0: IncrementalText(request, form)}
        return RequestState(next(self._ids), request, self._strategy(request), key, form, hypotheses, texts)

    def add(self, request: Request | RequestState) -> int:
        """Add a request, or a prepared one, whose prompt fits the context. Returns its id; raises as `prepare`."""
        state = request if isinstance(request, RequestState) else self.prepare(request)
        state.began = time.perf_counter()
        self._states[state.id] = state
        self._waiting.append(state)
        return state.id

    def cancel(self, id: int) -> None:
        """End a request, if it is left: no more tokens of it follow, and its rows are free."""
        state = self._states.pop(id, None)
        if state is not None:
            state.hypotheses = ()
        if not self._states:
            self._caches = []

    def clear(self) -> None:
        """Cancel all requests, also after an error that left them incomplete."""
        self._states, self._waiting, self._prefills, self._running, self._caches = {}, [], [], [], []

    def step(self) -> list[Token]:
        """Generate one token of each request that is read, or more of one that is alone; then read on.

        A beam search gives the tokens of all its texts at its end.

        Raises NumericalError when logits are not finite, UsageError when filters exclude all tokens, and what the model
        raises; an engine that isolates only where memory is short for all together.
        """
        self.failures = []
        cache = self._collect_rows()
        self._prefills += [_Prefill(group, _windows(group)) for group in self._group_waiting()]
        running, self._waiting = [state for state, _ in self._running], []
        stepped: list[RequestState] = []
        logits: list[Tensor] = []
        self._running, self._caches = [], []
        if cache is not None and not self._prefills and self._takes_draft(running):
            return self._speculate(running[0], cache)
        if cache is not None:
            with self._isolated(running):
                forms = {one.form for state in running for one in state.hypotheses if one.form is not None}
                masks = [self._masks.submit(form.prepare) for form in forms]
                texts = [one.window.tokens for state in running for one in state.hypotheses]
                hidden_BD, cache = self.runner.step([tokens[-1] for tokens in texts], cache)
                wait(masks)
                self._prefixes.keep(texts, cache, 1)
                logits.append(self.runner.logits(hidden_BD))
                self._caches.append(cache)
                stepped += running
        tokens: list[Token] = []
        for prefill, n in self._split_chunk():
            states, prefill.states = prefill.states, []
            with self._isolated(states):
                hidden_BTD, cache = self._read(prefill, n, states)
                if not prefill.n_left:
                    tokens += self._take_forced(prefill, states)
                if not prefill.n_left and states[0].hypotheses:
                    last = [len(window.tokens) - 1 - prefill.n_read for window in prefill.windows]
                    hidden_BD = hidden_BTD[range(len(last)), last]
                    rows = [prefill.windows.index(one.window) for state in states for one in state.hypotheses]
                    if rows != list(range(cache.n_rows)):
                        # samples of one prompt soon diverge, so they do not share a cache line
                        hidden_BD, cache = hidden_BD[rows], cache.pick(rows, apart=True)
                    logits.append(self.runner.logits(hidden_BD))
                    self._caches.append(cache)
                    stepped += states
                prefill.states = states
        self._prefills = [prefill for prefill in self._prefills if prefill.states and prefill.n_left]
        return tokens + (self._choose(torch.cat(logits), stepped) if stepped else [])

    def _strategy(self, request: Request) -> Strategy:
        """The strategy of a request; one object for all that differ in seed, length and form only."""
        params, text_format = request.params, request.prompt_format
        shown = frozenset(text_format.visible_special_tokens if text_format else ())
        ends = request.end_ids if text_format is None else frozenset(text_format.end_ids)
        vocabulary = (text_format and text_format.tokenizer, shown, ends, request.banned_ids)
        general = replace(params, seed=0, form=None, max_new_tokens=max(1, params.min_new_tokens))
        key = (general, vocabulary, request.n_alternatives)
        strategy = self._strategies.get(key)
        if strategy is None:
            if vocabulary not in self._banned:
                banned = set(request.banned_ids)
                if text_format is not None:
                    banned |= ids_without_text(text_format, self.runner.vocab_size) - ends
                self._banned[vocabulary] = torch.tensor(sorted(banned), dtype=torch.long, device=self.runner.device)
            kind = BeamSearch if params.strategy == "beam" else Sampler
            strategy = kind(general, ends, self._banned[vocabulary], request.n_alternatives)
            self._strategies[key] = strategy
        return strategy

    def _choose(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[Token]:
        """One step of each request's strategy; of equal ones at once."""
        counts = [len(state.hypotheses) for state in states]
        starts, n_rows = [0, *accumulate(counts)], sum(counts)
        groups: dict[Strategy, list[int]] = {}
        for i, state in enumerate(states):
            groups.setdefault(state.strategy, []).append(i)
        tokens: list[Token] = []
        rows_of: dict[int, list[int]] = {}

        def step(strategy: Strategy, group: Sequence[int]) -> None:
            rows = [starts[i] + j for i in group for j in range(counts[i])]
            rows_BV = logits_BV if len(rows) == n_rows else logits_BV[rows]
            for i, one in zip(group, strategy.step(rows_BV, [states[i] for i in group]), strict=True):
                rows_of[i] = [starts[i] + row for row in one.rows]
                with self._isolated([states[i]]):
                    tokens.extend(self._take(states[i], one.hypotheses, one.written))

        for strategy, group in groups.items():
            try:
                step(strategy, group)
            except Exception:
                if not self._isolates:
                    raise
                for i in group:
                    with self._isolated([states[i]]):
                        step(strategy, [i])
        self._running = [(state, rows_of[i]) for i, state in enumerate(states) if state.hypotheses]
        return tokens

    def _take(
        self, state: RequestState, hypotheses: Sequence[Hypothesis], written: Sequence[Written]
    ) -> Iterator[Token]:
        """Give a request the hypotheses after one more step; yields what was written, with its text."""
        state.n_steps += 1
        state.hypotheses = hypotheses
        for one in written:
            if one.sample not in state.texts:
                state.texts[one.sample] = IncrementalText(state.request, state.form)
            text = state.texts[one.sample]
            for i, token in enumerate(one.tokens, 1):
                shown, finish = text.push(token, one.finish if i == len(one.tokens) else None)
                if len(text.tokens) == 1:
                    token = replace(token, prompt=tuple(state.prompt), n_reused=state.n_reused)
                completion = None
                if finish is not None:
                    state.hypotheses = ()
                    completion = _complete(state, one, text, finish)
                yield replace(token, text=shown, request=state.id, sample=one.sample, completion=completion)
        if not state.hypotheses:
            self.cancel(state.id)

    def _take_forced(self, prefill: _Prefill, states: Sequence[RequestState]) -> list[Token]:
        """The tokens of a form that were read at once."""
        if not prefill.n_forced:
            return []
        (state,) = states
        assert isinstance(state.strategy, Sampler)
        form = state.hypotheses[0].form
        assert form is not None
        after = form.skip_forced(tuple(token.id for token in prefill.forced))
        tokens: list[Token] = []
        for token in prefill.forced:
            extended = replace(state.hypotheses[0], form=None).plus(token.id)
            extended = replace(extended, form=after if token is prefill.forced[-1] else form)
            step = state.strategy.extend(state, token, extended)
            tokens += self._take(state, step.hypotheses, step.written)
            if not state.hypotheses:
                break
        return tokens

    def _takes_draft(self, running: Sequence[RequestState]) -> bool:
        """Whether a draft proposes tokens of what is generated."""
        if self._draft is None or len(running) != 1:
            return False
        strategy = running[0].strategy
        return isinstance(strategy, Sampler) and (not self._keeps_texts or self._draft.keeps_texts(strategy))

    @torch.inference_mode()
    def _speculate(self, state: RequestState, cache: DecodeState) -> list[Token]:
        """The tokens of the only request that a draft proposes and the model accepts, and one more.

        cache: after all but the last token of the window, which fits the context; it is not valid any more.
        """
        tokens: list[Token] = []
        with self._isolated([state]):
            (hypothesis,), sampler = state.hypotheses, state.strategy
            assert isinstance(sampler, Sampler)
            read = hypothesis.window.tokens
            proposal = self._propose(state, sampler)
            n = len(proposal.tokens)
            hidden_1TD, cache = self.runner.advance([[read[-1], *proposal.tokens]], cache.growing())
            logits_TV = self.runner.logits(hidden_1TD[0])
            state.proposed += n
            self.n_proposed += n
            for i in range(n + 1):
                drawn = None if proposal.p_NV is None or i == n else (proposal.tokens[i], proposal.p_NV[i])
                (step,) = sampler.step(logits_TV[i : i + 1], [state], drawn)
                is_accepted = i < n and step.written[0].tokens[0].id == proposal.tokens[i]
                state.accepted += is_accepted
                self.n_accepted += is_accepted
                tokens += self._take(state, step.hypotheses, step.written)
                if not (is_accepted and state.hypotheses):
                    break
            kept = cache.upto(cache.length - (n + 1 - len(tokens)))
            assert kept is not None
            cache = kept.reclaimed()
            self._prefixes.keep([(*read, *(token.id for token in tokens[:-1]))], cache, len(tokens))
            if state.hypotheses:
                self._caches, self._running = [cache], [(state, [0])]
        return tokens

    def _propose(self, state: RequestState, sampler: Sampler) -> Proposal:
        """What the draft proposes after the only hypothesis of a request."""
        assert self._draft is not None
        if self._proposals is None or self._proposals[0] is not state:
            self._proposals = state, self._draft.propose(state, sampler, self.runner.vocab_size)
            next(self._proposals[1])
        left = self.runner.tokens_left(state.hypotheses[0].window)
        # not limited by max_new_tokens, so that a longer text begins with the shorter one
        n = self._draft.n_tokens if left is None else min(self._draft.n_tokens, left)
        return self._proposals[1].send((state.hypotheses[0], n))

    @contextmanager
    def _isolated(self, states: Sequence[RequestState]) -> Iterator[None]:
        """A context whose exceptions end a request that is alone; several are to be read again, each alone."""
        try:
            yield
        except Exception as error:
            is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not self._isolates or (is_memory and len(states) > 1):
                raise
            if len(states) == 1:
                (state,) = states
                self.failures.append((state.id, error))
                self.cancel(state.id)
                return
            log.warning("computing %d requests apart", len(states), exc_info=error)
            for state in states:
                state.prompt = state.prompt if state.n_steps else []
                self._prefills.append(_Prefill([state], _windows([state])))

    def _collect_rows(self) -> DecodeState | None:
        """The state of the rows that still run, in order; texts that reached the context slide, to be read again."""
        self._waiting = [state for state in self._waiting if state.hypotheses]
        for prefill in self._prefills:
            prefill.states = [state for state in prefill.states if state.hypotheses]
        self._prefills = [prefill for prefill in self._prefills if prefill.states]
        running, self._running = self._running, []
        kept: list[int] = []
        for state, rows in running:
            if not state.hypotheses:
                continue
            if self.runner.fits_context(state.hypotheses[0].window):
                jump = self._forced_tokens(state, alone=len(running) == 1)
                cache = _pick_rows(self._caches, rows) if jump else None
                if cache is not None:
                    window = state.hypotheses[0].window
                    longer = replace(window, tokens=(*window.tokens, *jump))
                    prefill = _Prefill([state], [longer], cache.growing(), len(window.tokens) - 1, len(jump))
                    self._prefills.append(prefill)
                    continue
                self._running.append((state, rows))
                kept += rows
            else:
                windows = [self.runner.slide(one.window) for one in state.hypotheses]
                state.hypotheses = [
                    replace(one, window=window) for one, window in zip(state.hypotheses, windows, strict=True)
                ]
                self._waiting.append(state)
        return _pick_rows(self._caches, kept)

    def _forced_tokens(self, state: RequestState, *, alone: bool) -> tuple[int, ...]:
        """The next tokens of a request that its form makes certain, if it is worth the while to read them at once."""
        form = state.hypotheses[0].form
        if form is None or not isinstance(state.strategy, Sampler):
            return ()
        n = state.request.params.max_new_tokens - state.n_steps
        left = self.runner.tokens_left(state.hypotheses[0].window)
        forced = form.forced[: n if left is None else min(n, left)]
        return forced if len(forced) >= (1 if alone else LEAST_JUMP) else ()

    def _read(self, prefill: _Prefill, n: int, states: Sequence[RequestState]) -> tuple[Tensor, DecodeState]:
        """Read n more tokens of each window for these requests. Returns hidden states (B, T, D) and the new state."""
        cache = prefill.cache or self._start(prefill, states)
        begun, prefill.n_read = prefill.n_read, prefill.n_read + n
        if cache is None:
            hidden_BTD, cache = self.runner.read_prompt(prefill.windows[0])
        else:
            tokens = [window.tokens[begun : prefill.n_read] for window in prefill.windows]
            hidden_BTD, cache = self.runner.advance(tokens, cache)
        self._prefixes.keep([window.tokens[: prefill.n_read] for window in prefill.windows], cache, n)
        lengths = [len(window.tokens) for window in prefill.windows]
        prefill.cache = cache if min(lengths) == max(lengths) else cache.each_upto(lengths)
        if prefill.n_forced:
            prefill.forced += self._read_tokens(hidden_BTD[0], states[0], prefill.windows[0], begun, is_forced=True)
            return hidden_BTD, prefill.cache
        known: dict[tuple[int, int], list[Token]] = {}  # samples of one prompt have the same
        for state in states:
            if state.request.wants_prompt and state.n_steps == 0:
                row = prefill.windows.index(state.request.prompt)
                key = row, state.strategy.n_alternatives
                if key not in known:
                    known[key] = self._read_tokens(hidden_BTD[row], state, state.request.prompt, begun)
                state.prompt += known[key]
        return hidden_BTD, prefill.cache

    def _start(self, prefill: _Prefill, states: Sequence[RequestState]) -> DecodeState | None:
        """The state before the first tokens that are read for these requests, after those whose state is kept.

        None for a whole prompt of which a draft may want further samples.
        """
        known = self._prefixes.state([window.tokens[: prefill.n_read] for window in prefill.windows])
        prefill.n_read = 0 if known is None else known.length
        for state in states:
            if state.n_steps == 0:
                state.n_reused = prefill.n_read
        if known is None and self._draft is not None and self._chunk is None and len(prefill.windows) == 1:
            return None
        return known or self.runner.start(prefill.windows)

    def _n_known(self, states: Sequence[RequestState]) -> int:
        """How many tokens of all windows need not be read: not the last of any, whose logits are wanted."""
        if any(state.request.wants_prompt for state in states):
            return 0
        return self._prefixes.n_known([one.window.tokens[:-1] for state in states for one in state.hypotheses])

    def _group_waiting(self) -> Iterator[list[RequestState]]:
        """The waiting requests, those that are read together: whole prompts also of about the same length."""
        group: list[RequestState] = []
        for state in sorted(self._waiting, key=self._lengths):
            lengths = n_source, n, _ = self._lengths(state)
            n_first = self._lengths(group[0]) if group else lengths
            is_near = self._chunk is None and n_source == 0 == n_first[0] and n <= MAX_PADDING * n_first[1]
            if lengths != n_first and not (is_near and self.runner.goes_back):
                yield group
                group = []
            group.append(state)
        if group:
            yield group

    def _lengths(self, state: RequestState) -> tuple[int, int, int]:
        """Of its source, of its tokens, and of those that need not be read."""
        window = state.hypotheses[0].window
        return len(window.source or ()), len(window.tokens), self._n_known([state])

    def _split_chunk(self) -> list[tuple[_Prefill, int]]:
        """How many tokens of which prompts are read in this step.

        Half of the chunk is for those that came first, so that all are read some time, and the rest for the shortest:
        they do not wait for a long one.
        """
        for prefill in self._prefills:
            if prefill.cache is None:  # others may have read meanwhile what it begins with
                prefill.n_read = self._n_known(prefill.states)
        if self._chunk is None or not self._prefills:
            return [(prefill, prefill.n_left) for prefill in self._prefills]
        room, shares = self._chunk, dict.fromkeys(self._prefills, 0)
        first = self._prefills[0]
        shares[first] = min(first.n_left, max(1, room // 2 // len(first.windows)))
        room -= shares[first] * len(first.windows)
        for prefill in sorted(self._prefills, key=lambda one: one.n_left * len(one.windows)):
            more = min(prefill.n_left - shares[prefill], max(0, room) // len(prefill.windows))
            shares[prefill] += more
            room -= more * len(prefill.windows)
        return [(prefill, n) for prefill, n in shares.items() if n]

    def _read_tokens(
        self, hidden_TD: Tensor, state: RequestState, window: Prompt, begun: int, *, is_forced: bool = False
    ) -> list[Token]:
        """The tokens of a window that follow those which were just read. is_forced: its form excludes all others."""
        following = window.tokens[begun + 1 : begun + 1 + len(hidden_TD)]
        if not following:
            return []
        logprobs_TV = self.runner.logits(hidden_TD[: len(following)]).log_softmax(-1)
        ids_T = torch.tensor(following, device=logprobs_TV.device)
        if not is_forced:
            return make_tokens(logprobs_TV, logprobs_TV, ids_T, state.strategy.n_alternatives)
        only_TV = torch.full_like(logprobs_TV, -torch.inf).scatter(1, ids_T[:, None], 0.0)
        tokens = make_tokens(logprobs_TV, only_TV, ids_T, state.strategy.n_alternatives)
        return [replace(token, constrained=0.0) for token in tokens]


def _complete(state: RequestState, written: Written, text: IncrementalText, finish: FinishReason) -> Completion:
    request = state.request
    return completion_of(
        text.tokens,
        request=state.id,
        prompt="",
        sample=written.sample,
        draw=0 if isinstance(state.strategy, BeamSearch) else request.draw,
        text=text.text,
        steps=state.n_steps,
        seed=request.params.seed,
        finish_reason=finish,
        score=written.score,
        tree=written.tree,
        proposed=state.proposed,
        accepted=state.accepted,
    )


def _windows(states: Sequence[RequestState]) -> list[Prompt]:
    """The distinct windows of requests."""
    return list(dict.fromkeys(one.window for state in states for one in state.hypotheses))


def _pick_rows(caches: Sequence[DecodeState], rows: Sequence[int]) -> DecodeState | None:
    """The state of these rows, numbered through all states, in that order; None for no rows.

    Rows are selected before states are joined, so that hypotheses of a beam search share a cache line from the first
    step.
    """
    parts, first = [], 0
    for cache in caches:
        picked = [row - first for row in rows if first <= row < first + cache.n_rows]
        first += cache.n_rows
        if picked:
            parts.append(cache if picked == list(range(cache.n_rows)) else cache.pick(picked))
    return DecodeState.join(parts).trimmed() if parts else None
