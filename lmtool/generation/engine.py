"""The engine: requests in, tokens out.

Shapes: B rows, T positions of a chunk, D model width, V vocabulary.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.generation.beam import BeamSearch
from lmtool.generation.constrained import check_form_and_create_state
from lmtool.generation.detokenizer import IncrementalDetokenizer, find_special_and_unused_ids
from lmtool.generation.drafts import Draft, ProposalCoroutine
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request, Token, build_completion
from lmtool.generation.strategy import (
    Hypothesis,
    RequestState,
    Sampler,
    Strategy,
    StrategyStep,
    make_tokens,
    request_key,
)
from lmtool.model.language_model import DecodeState, LanguageModel, evaluation_mode
from lmtool.tokenization.prompt_format import Prompt

MIN_FORCED_TOKENS = 8
"""Minimum forced tokens that are read in a pass of their own while other texts are generated."""

MAX_PADDING_RATIO = 1.25
"""Maximum ratio of the longest to the shortest prompt that are read together."""

log = logging.getLogger("lmtool.generation")


@dataclass(eq=False)
class _PrefillBatch:
    """Prompts that are read together, each distinct one once, before their requests generate.

    They have equal lengths, or are read whole with padding to the longest.

    cache: state after the first `n_read` tokens of the windows, which are its rows; None before the first are read;
        then `n_read` tokens of each are in the prefix cache.
    n_forced: how many of the last tokens of the window of a single request its form forces. forced: these, once read.
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
    Hypotheses are rows of one decoding state; rows join it and leave it. The tokens of a request are a function of the
    model and the request: other requests affect only the rounding of sums.

    The input of the model is at most its context. When prompt and generated tokens exceed it, the oldest are dropped
    and the last half of the context is read again, so a text can have any length. The model must be in evaluation mode.

    failures: (request id, error) of each request that failed in the last step.
    n_proposed, n_accepted: tokens of all requests so far that a draft proposed, and that were accepted.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        chunk: int | None = None,
        prefixes: PrefixCache | None = None,
        draft: Draft | None = None,
        only_exact_drafts: bool = False,
        isolate_failures: bool = False,
    ) -> None:
        """Args:
        chunk: maximum prompt tokens that are read in a step, or None for whole prompts; a source is always read at
            once.
        prefixes: prefix cache, used if the model supports it.
        draft: proposes tokens while a single request is left; see `Draft`.
        only_exact_drafts: uses the draft only where it leaves the text unchanged; otherwise sampled text may depend on
            the draft.
        isolate_failures: when a computation for several requests fails, repeats it for each alone and ends only those
            that fail again.
        """
        self._model, self.runner = model, ModelRunner(model)
        self._chunk, self._isolate_failures = chunk, isolate_failures
        self._prefixes = prefixes if prefixes and self.runner.supports_prefix_cache else PrefixCache(0)
        self._draft, self._only_exact_drafts = draft, only_exact_drafts
        self._proposals: tuple[RequestState, ProposalCoroutine] | None = None  # of the last request with a draft
        self._masks = ThreadPoolExecutor(1, "masks")  # computes the tokens that forms allow while the model runs
        self._ids = count()
        self._states: dict[int, RequestState] = {}
        self._waiting: list[RequestState] = []
        self._prefills: list[_PrefillBatch] = []
        self._running: list[tuple[RequestState, list[int]]] = []  # with its rows, counted over all of `_caches`
        self._caches: list[DecodeState] = []
        self._strategies: WeakValueDictionary[Any, Strategy] = WeakValueDictionary()
        self._banned: dict[Any, Tensor] = {}
        self.failures: list[tuple[int, Exception]] = []
        self.n_proposed = self.n_accepted = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no requests."""
        return not self._states

    def __len__(self) -> int:
        """Number of requests."""
        return len(self._states)

    def create_request_state(self, request: Request) -> RequestState:
        """Creates the state of a request, for `add`, in any thread.

        Raises UsageError for parameters that contradict one another, and as `check_form_and_create_state` does.
        """
        params, prompt, form = request.params, request.prompt, None
        if params.form is not None:
            assert request.prompt_format is not None
            if request.stop or request.prefix:
                what = "a form contradicts stop strings and a prefix, which would be no part of it"
                raise UsageError(what, fix="omit them, or write them into the form")
            form = check_form_and_create_state(params.form, request.prompt_format.tokenizer, params.max_new_tokens)
        if not all(request.stop):
            raise UsageError("a stop string is empty", fix="give it at least one character")
        key = request_key(params.seed, request.draw, (*(prompt.source or ()), *prompt.tokens))
        hypotheses = [Hypothesis(prompt, prompt.text, form=form)] * params.groups
        texts = {0: IncrementalDetokenizer(request, form)}
        return RequestState(
            next(self._ids), request, self._get_or_create_strategy(request), key, form, hypotheses, texts
        )

    def add(self, request: Request | RequestState) -> int:
        """Adds a request, prepared or not, whose prompt fits the context. Returns its id. Raises as
        `create_request_state` does.
        """
        state = request if isinstance(request, RequestState) else self.create_request_state(request)
        state.began = time.perf_counter()
        self._states[state.id] = state
        self._waiting.append(state)
        return state.id

    def cancel(self, id: int) -> None:
        """Ends a request, if it is not complete, and frees its rows."""
        state = self._states.pop(id, None)
        if state is not None:
            state.hypotheses = ()
        if not self._states:
            self._caches = []

    def cancel_all(self) -> None:
        """Cancels all requests, even after an error that left the engine inconsistent."""
        self._states, self._waiting, self._prefills, self._running, self._caches = {}, [], [], [], []

    def run(
        self,
        states: Iterator[RequestState],
        step_context: Callable[[], AbstractContextManager[object]],
        max_requests: int = 1,
    ) -> Iterator[Token]:
        """Adds prepared requests, at most `max_requests` at once, and yields the tokens of all steps.

        step_context: a context around each step, such as one that sets a precision.
        Requests that are not complete when the iterator is closed are cancelled.
        """
        ids: list[int] = []
        try:
            with evaluation_mode(self._model):
                while True:
                    ids += [self.add(state) for state in islice(states, max_requests - len(self))]
                    if self.is_idle:
                        return
                    with step_context():  # not while the caller runs
                        tokens = self.step()
                    yield from tokens
        finally:
            for id in ids:
                self.cancel(id)

    def step(self) -> list[Token]:
        """Generates a token of each running request, several of a single one with a draft, and reads prompts.

        A beam search returns the tokens of all its texts at its end.

        Raises NumericalError when logits are not finite, UsageError when filters exclude all tokens, and what the model
        raises. An engine that isolates failures raises only for lack of memory.
        """
        self.failures = []
        cache = self._join_running_rows_and_requeue_rest()
        self._prefills += [_PrefillBatch(group, _distinct_windows(group)) for group in self._group_waiting_requests()]
        running, self._waiting = [state for state, _ in self._running], []
        stepped: list[RequestState] = []
        logits: list[Tensor] = []
        self._running, self._caches = [], []
        if cache is not None and not self._prefills and self._can_speculate(running):
            return self._speculate(running[0], cache)
        if cache is not None:
            with self._isolating_failures(running):
                forms = {one.form for state in running for one in state.hypotheses if one.form is not None}
                masks = [self._masks.submit(form.cache_allowed_tokens) for form in forms]
                texts = [one.window.tokens for state in running for one in state.hypotheses]
                hidden_BD, cache = self.runner.decode_step_([tokens[-1] for tokens in texts], cache)
                wait(masks)
                self._prefixes.store(texts, cache, 1)
                logits.append(self.runner.compute_logits(hidden_BD, _hypothesis_texts(running)))
                self._caches.append(cache)
                stepped += running
        tokens: list[Token] = []
        for prefill, n in self._split_chunk_budget():
            states, prefill.states = prefill.states, []
            with self._isolating_failures(states):
                hidden_BTD, cache = self._prefill_chunk_(prefill, n, states)
                if not prefill.n_left:
                    tokens += self._emit_forced_tokens(prefill, states)
                if not prefill.n_left and states[0].hypotheses:
                    last = [len(window.tokens) - 1 - prefill.n_read for window in prefill.windows]
                    hidden_BD = hidden_BTD[range(len(last)), last]
                    rows = [prefill.windows.index(one.window) for state in states for one in state.hypotheses]
                    if rows != list(range(cache.n_rows)):
                        # samples of one prompt soon diverge, so they do not share a cache line
                        hidden_BD, cache = hidden_BD[rows], cache.select_rows(rows, separate_lines=True)
                    logits.append(self.runner.compute_logits(hidden_BD, _hypothesis_texts(states)))
                    self._caches.append(cache)
                    stepped += states
                prefill.states = states
        self._prefills = [prefill for prefill in self._prefills if prefill.states and prefill.n_left]
        return tokens + (self._choose_and_emit_tokens(torch.cat(logits), stepped) if stepped else [])

    def _get_or_create_strategy(self, request: Request) -> Strategy:
        """Returns the strategy of a request: one object for all requests that differ only in seed, length and form."""
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
                    banned |= find_special_and_unused_ids(text_format, self.runner.vocab_size) - ends
                self._banned[vocabulary] = torch.tensor(sorted(banned), dtype=torch.long, device=self.runner.device)
            strategy_class = BeamSearch if params.strategy == "beam" else Sampler
            strategy = strategy_class(general, ends, self._banned[vocabulary], request.n_alternatives)
            self._strategies[key] = strategy
        return strategy

    def _choose_and_emit_tokens(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[Token]:
        """Takes a strategy step of each request, at once for all that share a strategy. Returns the new tokens."""
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
            for i, one in zip(group, strategy.choose_next_tokens(rows_BV, [states[i] for i in group]), strict=True):
                rows_of[i] = [starts[i] + row for row in one.rows]
                with self._isolating_failures([states[i]]):
                    tokens.extend(self._emit_tokens(states[i], one))

        for strategy, group in groups.items():
            try:
                step(strategy, group)
            except Exception:
                if not self._isolate_failures:
                    raise
                for i in group:
                    with self._isolating_failures([states[i]]):
                        step(strategy, [i])
        self._running = [(state, rows_of[i]) for i, state in enumerate(states) if state.hypotheses]
        return tokens

    def _emit_tokens(self, state: RequestState, step: StrategyStep) -> Iterator[Token]:
        """Updates a request by a step of its strategy; yields its new tokens with their text."""
        state.n_steps += 1
        state.hypotheses = step.hypotheses
        for update in step.updates:
            if update.sample not in state.texts:
                state.texts[update.sample] = IncrementalDetokenizer(state.request, state.form)
            text = state.texts[update.sample]
            for i, token in enumerate(update.tokens, 1):
                shown, finish = text.push(token, update.finish if i == len(update.tokens) else None)
                if len(text.tokens) == 1:
                    token = replace(token, prompt=tuple(state.prompt), n_reused=state.n_reused)
                completion = None
                if finish is not None:
                    state.hypotheses = ()
                    completion = build_completion(
                        text.tokens,
                        request=state.id,
                        sample=update.sample,
                        draw=0 if isinstance(state.strategy, BeamSearch) else state.request.draw,
                        text=text.text,
                        steps=state.n_steps,
                        seed=state.request.params.seed,
                        finish_reason=finish,
                        score=update.score,
                        tree=update.tree,
                        proposed=state.proposed,
                        accepted=state.accepted,
                    )
                yield replace(token, text=shown, request=state.id, sample=update.sample, completion=completion)
        if not state.hypotheses:
            self.cancel(state.id)

    def _emit_forced_tokens(self, prefill: _PrefillBatch, states: Sequence[RequestState]) -> list[Token]:
        """Returns the forced tokens that were read at once."""
        if not prefill.n_forced:
            return []
        (state,) = states
        assert isinstance(state.strategy, Sampler)
        form = state.hypotheses[0].form
        assert form is not None
        after = form.with_forced_tokens(tuple(token.id for token in prefill.forced))
        tokens: list[Token] = []
        for token in prefill.forced:
            extended = replace(state.hypotheses[0], form=None).with_token(token.id)
            extended = replace(extended, form=after if token is prefill.forced[-1] else form)
            tokens += self._emit_tokens(state, state.strategy.make_step(state, token, extended))
            if not state.hypotheses:
                break
        return tokens

    def _can_speculate(self, running: Sequence[RequestState]) -> bool:
        """Whether the draft can propose tokens of the running requests."""
        if self._draft is None or len(running) != 1:
            return False
        strategy = running[0].strategy
        return isinstance(strategy, Sampler) and (not self._only_exact_drafts or self._draft.is_exact(strategy))

    @torch.inference_mode()
    def _speculate(self, state: RequestState, cache: DecodeState) -> list[Token]:
        """Returns the tokens of the only request that the draft proposes and the model accepts, and one more.

        cache: state after all but the last token of the window, which fits the context; it becomes invalid.
        """
        tokens: list[Token] = []
        with self._isolating_failures([state]):
            (hypothesis,), sampler, draft = state.hypotheses, state.strategy, self._draft
            assert isinstance(sampler, Sampler)
            assert draft is not None
            if self._proposals is None or self._proposals[0] is not state:
                self._proposals = state, draft.start_proposals(state, sampler, self.runner.vocab_size)
                next(self._proposals[1])
            left = self.runner.tokens_left(hypothesis.window)
            # not limited by max_new_tokens, so that a longer text begins with the shorter one
            n_wanted = draft.n_tokens if left is None else min(draft.n_tokens, left)
            proposal = self._proposals[1].send((hypothesis, n_wanted))
            read, n = hypothesis.window.tokens, len(proposal.tokens)
            hidden_1TD, cache = self.runner.read_tokens([[read[-1], *proposal.tokens]], cache.to_growable())
            texts = self.runner.get_ngram_contexts((*hypothesis.text, *proposal.tokens), n + 1)
            logits_TV = self.runner.compute_logits(hidden_1TD[0], texts)
            state.proposed += n
            self.n_proposed += n
            for i in range(n + 1):
                proposed = None if proposal.p_NV is None or i == n else (proposal.tokens[i], proposal.p_NV[i])
                (step,) = sampler.choose_next_tokens(logits_TV[i : i + 1], [state], proposed)
                is_accepted = i < n and step.updates[0].tokens[0].id == proposal.tokens[i]
                state.accepted += is_accepted
                self.n_accepted += is_accepted
                tokens += self._emit_tokens(state, step)
                if not (is_accepted and state.hypotheses):
                    break
            kept = cache.truncate(cache.length - (n + 1 - len(tokens)))
            assert kept is not None
            cache = kept.invalidate_continuations_()
            self._prefixes.store([(*read, *(token.id for token in tokens[:-1]))], cache, len(tokens))
            if state.hypotheses:
                self._caches, self._running = [cache], [(state, [0])]
        return tokens

    @contextmanager
    def _isolating_failures(self, states: Sequence[RequestState]) -> Iterator[None]:
        """Catches exceptions: ends a single request, and makes each of several be read again alone."""
        try:
            yield
        except Exception as error:
            is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not self._isolate_failures or (is_memory and len(states) > 1):
                raise
            if len(states) == 1:
                (state,) = states
                self.failures.append((state.id, error))
                self.cancel(state.id)
                return
            log.warning("computing %d requests apart", len(states), exc_info=error)
            for state in states:
                state.prompt = state.prompt if state.n_steps else []
                self._prefills.append(_PrefillBatch([state], _distinct_windows([state])))

    def _join_running_rows_and_requeue_rest(self) -> DecodeState | None:
        """Returns the state of the running rows, in order.

        Texts that exceed the context slide and wait to be read again; forced tokens become a prefill.
        """
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
                forced = self._forced_tokens_worth_reading(state, is_alone=len(running) == 1)
                cache = _select_and_join_rows(self._caches, rows) if forced else None
                if cache is not None:
                    window = state.hypotheses[0].window
                    longer = replace(window, tokens=(*window.tokens, *forced))
                    prefill = _PrefillBatch([state], [longer], cache.to_growable(), len(window.tokens) - 1, len(forced))
                    self._prefills.append(prefill)
                    continue
                self._running.append((state, rows))
                kept += rows
            else:
                slide = self.runner.slide_window
                state.hypotheses = [replace(one, window=slide(one.window)) for one in state.hypotheses]
                self._waiting.append(state)
        return _select_and_join_rows(self._caches, kept)

    def _forced_tokens_worth_reading(self, state: RequestState, *, is_alone: bool) -> tuple[int, ...]:
        """Returns the next tokens that the form of a request forces, if there are enough to read them at once."""
        form = state.hypotheses[0].form
        if form is None or not isinstance(state.strategy, Sampler):
            return ()
        n = state.request.params.max_new_tokens - state.n_steps
        left = self.runner.tokens_left(state.hypotheses[0].window)
        forced = form.forced_tokens[: n if left is None else min(n, left)]
        return forced if len(forced) >= (1 if is_alone else MIN_FORCED_TOKENS) else ()

    def _prefill_chunk_(
        self, prefill: _PrefillBatch, n_tokens: int, states: Sequence[RequestState]
    ) -> tuple[Tensor, DecodeState]:
        """Reads `n_tokens` more tokens of each window. Returns hidden states (B, T, D) and the new state."""
        cache = prefill.cache
        if cache is None:
            cache = self._prefixes.build_state_of_cached_prefixes(
                [window.tokens[: prefill.n_read] for window in prefill.windows]
            )
            prefill.n_read = 0 if cache is None else cache.length
            for state in states:
                if state.n_steps == 0:
                    state.n_reused = prefill.n_read
        n_read_before, prefill.n_read = prefill.n_read, prefill.n_read + n_tokens
        if cache is None and self._draft is not None and self._chunk is None and len(prefill.windows) == 1:
            # the runner keeps a whole prompt for further samples
            hidden_BTD, cache = self.runner.prefill_or_reuse_last(prefill.windows[0])
        else:
            tokens = [window.tokens[n_read_before : prefill.n_read] for window in prefill.windows]
            hidden_BTD, cache = self.runner.read_tokens(
                tokens, cache or self.runner.create_initial_state(prefill.windows)
            )
        self._prefixes.store([window.tokens[: prefill.n_read] for window in prefill.windows], cache, n_tokens)
        lengths = [len(window.tokens) for window in prefill.windows]
        prefill.cache = cache if min(lengths) == max(lengths) else cache.truncate_rows(lengths)
        if prefill.n_forced:
            prefill.forced += self._score_next_window_tokens(
                hidden_BTD[0], states[0], prefill.windows[0], n_read_before, is_forced=True
            )
            return hidden_BTD, prefill.cache
        known: dict[tuple[int, int], list[Token]] = {}  # shared by samples of one prompt
        for state in states:
            if state.request.prompt_logprobs and state.n_steps == 0:
                row = prefill.windows.index(state.request.prompt)
                key = row, state.strategy.n_alternatives
                if key not in known:
                    known[key] = self._score_next_window_tokens(
                        hidden_BTD[row], state, state.request.prompt, n_read_before
                    )
                state.prompt += known[key]
        return hidden_BTD, prefill.cache

    def _count_tokens_cached_for_all(self, states: Sequence[RequestState]) -> int:
        """Returns how many first tokens of all windows are cached; the last is always read, for its logits."""
        if any(state.request.prompt_logprobs for state in states):
            return 0
        return self._prefixes.n_cached_tokens([one.window.tokens[:-1] for state in states for one in state.hypotheses])

    def _group_waiting_requests(self) -> Iterator[list[RequestState]]:
        """Yields groups of waiting requests to read together: of equal lengths, or of similar ones if read whole."""
        group: list[RequestState] = []
        for state in sorted(self._waiting, key=self._prompt_lengths):
            lengths = n_source, n, _ = self._prompt_lengths(state)
            n_first = self._prompt_lengths(group[0]) if group else lengths
            is_near = self._chunk is None and n_source == 0 == n_first[0] and n <= MAX_PADDING_RATIO * n_first[1]
            if lengths != n_first and not (is_near and self.runner.can_rewind):
                yield group
                group = []
            group.append(state)
        if group:
            yield group

    def _prompt_lengths(self, state: RequestState) -> tuple[int, int, int]:
        """Returns the lengths of the source, of the window, and of its cached prefix."""
        window = state.hypotheses[0].window
        return len(window.source or ()), len(window.tokens), self._count_tokens_cached_for_all([state])

    def _split_chunk_budget(self) -> list[tuple[_PrefillBatch, int]]:
        """Returns the prompts to read in this step, and how many tokens of each.

        Half of the chunk goes to the oldest prompt, so that none starves, and the rest to the shortest ones, so that
        they do not wait for a long one.
        """
        for prefill in self._prefills:
            if prefill.cache is None:  # others may have read its prefix meanwhile
                prefill.n_read = self._count_tokens_cached_for_all(prefill.states)
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

    def _score_next_window_tokens(
        self, hidden_TD: Tensor, state: RequestState, window: Prompt, n_read_before: int, *, is_forced: bool = False
    ) -> list[Token]:
        """Makes tokens of the window's ids after those just read. is_forced: the form excludes all others."""
        following = window.tokens[n_read_before + 1 : n_read_before + 1 + len(hidden_TD)]
        if not following:
            return []
        texts = self.runner.get_ngram_contexts(window.tokens[: n_read_before + len(following)], len(following))
        logprobs_TV = self.runner.compute_logits(hidden_TD[: len(following)], texts).log_softmax(-1)
        ids_T = torch.tensor(following, device=logprobs_TV.device)
        if not is_forced:
            return make_tokens(logprobs_TV, logprobs_TV, ids_T, state.strategy.n_alternatives)
        only_TV = torch.full_like(logprobs_TV, -torch.inf).scatter(1, ids_T[:, None], 0.0)
        tokens = make_tokens(logprobs_TV, only_TV, ids_T, state.strategy.n_alternatives)
        return [replace(token, constrained=0.0) for token in tokens]


def _hypothesis_texts(states: Sequence[RequestState]) -> list[tuple[int, ...]]:
    """Returns the ids of all hypotheses of requests, which are the rows of a step."""
    return [one.text for state in states for one in state.hypotheses]


def _distinct_windows(states: Sequence[RequestState]) -> list[Prompt]:
    """Returns the distinct windows of requests."""
    return list(dict.fromkeys(one.window for state in states for one in state.hypotheses))


def _select_and_join_rows(caches: Sequence[DecodeState], global_rows: Sequence[int]) -> DecodeState | None:
    """Joins these rows of several states, in that order; rows are counted over all states. None for no rows.

    Rows are selected before states are joined, so that hypotheses of a beam search share a cache line from the first
    step.
    """
    parts, first = [], 0
    for cache in caches:
        picked = [row - first for row in global_rows if first <= row < first + cache.n_rows]
        first += cache.n_rows
        if picked:
            parts.append(cache if picked == list(range(cache.n_rows)) else cache.select_rows(picked))
    return DecodeState.join_rows(parts).trim_common_padding() if parts else None
