"""Decoding strategies: their interface, greedy decoding and sampling.

Shapes: B rows, V vocabulary.
"""

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from lmtool.errors import NumericalError, UsageError
from lmtool.generation import filters
from lmtool.generation.constrained import FormState
from lmtool.generation.detokenizer import IncrementalDetokenizer
from lmtool.generation.params import SamplingParams, apply_sampling_filters
from lmtool.generation.request import Alternative, BeamNode, FinishReason, Request, Token
from lmtool.tokenization.prompt_format import Prompt


@dataclass(frozen=True)
class Hypothesis:
    """A partial text, which is one row of a batch; immutable.

    window: the model's input: prompt and generated ids, or the last of these.
    text: all ids, prompt included.
    n_generated: number of generated ids at its end.
    form: its place in the form that constrains it; None for no constraint.
    """

    window: Prompt
    text: tuple[int, ...]
    n_generated: int = 0
    form: FormState | None = None

    def with_token(self, token: int) -> Self:
        """Returns the hypothesis extended by one token."""
        window = replace(self.window, tokens=(*self.window.tokens, token))
        form = None if self.form is None else self.form.with_token(token)
        return replace(self, window=window, text=(*self.text, token), n_generated=self.n_generated + 1, form=form)

    @property
    def is_complete(self) -> bool:
        """Whether the form is complete and nothing else can follow."""
        return self.form is not None and self.form.is_complete


@dataclass(eq=False)
class RequestState:
    """A request in the engine: one hypothesis, or several of one length in beam search; none when it is done.

    key: seed of its random numbers.
    form: start of the form that constrains its text.
    texts: detokenizer of each sample.
    prompt: tokens of the prompt read so far, if requested.
    n_steps: decoding steps so far.
    n_reused: as in `Token`. proposed, accepted: as in `Completion`.
    began: time at which it was added.
    next_form: place in the form after the token being chosen; the reference keeps its cached values alive.
    search: state that its strategy keeps between steps.
    """

    id: int
    request: Request
    strategy: "Strategy"
    key: bytes
    form: FormState | None
    hypotheses: Sequence[Hypothesis]
    texts: dict[int, IncrementalDetokenizer]
    prompt: list[Token] = field(default_factory=list)
    n_steps: int = 0
    n_reused: int = 0
    proposed: int = 0
    accepted: int = 0
    began: float = 0.0
    next_form: FormState | None = None
    search: Any = None

    def get_limit_finish_reason(self, n_steps: int) -> FinishReason | None:
        """Returns why the text ends after so many steps, whatever its tokens are; None if it goes on."""
        params = self.request.params
        if n_steps == params.max_new_tokens:
            return "length"
        return "time" if params.max_time is not None and time.perf_counter() - self.began >= params.max_time else None


class NewTokens(NamedTuple):
    """New tokens of a text. finish: why the text ends with the last one. sample, score, tree: as in `Completion`."""

    tokens: Sequence[Token]
    finish: FinishReason | None = None
    sample: int = 0
    score: float | None = None
    tree: tuple[BeamNode, ...] | None = None


class StrategyStep(NamedTuple):
    """The result of one step of a request.

    hypotheses: those that go on. rows: row of each before the step, counted from the first of the request.
    updates: new tokens of its texts.
    """

    hypotheses: Sequence[Hypothesis]
    rows: Sequence[int]
    updates: Sequence[NewTokens]


class Strategy(ABC):
    """Chooses tokens for requests whose parameters differ at most in seed, length and form.

    n_alternatives: as in `Request`.
    """

    def __init__(
        self, params: SamplingParams, end_ids: Collection[int], banned_ids: Tensor, n_alternatives: int = 0
    ) -> None:
        self.params, self.end_ids, self.n_alternatives = params, frozenset(end_ids), n_alternatives
        self._banned_ids = banned_ids

    @abstractmethod
    def choose_next_tokens(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[StrategyStep]:
        """Takes one step of each request, whose hypotheses are the rows of the logits, in order.

        Raises NumericalError when the logits are not finite, and UsageError when the filters exclude all tokens; then
        no state has changed except in beam search.
        """

    def _process_logits(self, scores_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Applies the processors of all strategies; -inf at excluded tokens. Raises NumericalError."""
        check_finite(scores_BV)
        forms, unfiltered_BV = [one.form for one in hypotheses], scores_BV
        scores_BV = scores_BV.index_fill(-1, self._banned_ids.to(scores_BV.device), -torch.inf)
        texts, n_generated = [one.text for one in hypotheses], [one.n_generated for one in hypotheses]
        scores_BV = filters.apply_logits_processors(scores_BV, self.params, texts, n_generated, self.end_ids)
        return filters.exclude_by_forms(scores_BV, forms, self.end_ids, unfiltered_BV)

    def make_tokens_with_constrained_logprobs(
        self, logprobs_BV: Tensor, filtered_BV: Tensor, ids_B: Tensor, forms: Sequence[FormState | None]
    ) -> list[Token]:
        """Makes a token of each row, with its log-probability among the tokens that the form of the row allows."""
        tokens = make_tokens(logprobs_BV, filtered_BV, ids_B, self.n_alternatives)
        for i, form in enumerate(forms):
            if form is not None:
                log_mass = _log_allowed_probability(logprobs_BV[i], form, self.end_ids)
                constrained = 0.0 if form.forced_tokens else min(0.0, tokens[i].logprob - log_mass)
                tokens[i] = replace(tokens[i], constrained=constrained)
        return tokens


class Sampler(Strategy):
    """Greedy decoding and sampling: each request is one hypothesis, extended by one token per step."""

    @torch.inference_mode()
    def choose_next_tokens(
        self, logits_BV: Tensor, states: Sequence[RequestState], proposed: tuple[int, Tensor] | None = None
    ) -> list[StrategyStep]:
        """See `Strategy.choose_next_tokens`.

        proposed: a token that a draft sampled for the only row, and its distribution (V,).
        """
        filtered_BV = self.filter_logits(logits_BV, [state.hypotheses[0] for state in states])
        numbers = [uniform_random(state.key, state.n_steps) for state in states]
        if proposed is None:
            ids = self.choose_ids(filtered_BV, numbers)
        else:
            accept = uniform_random(derive_key(states[0].key, "accept"), states[0].n_steps)
            p_V = filtered_BV[0].softmax(-1, dtype=torch.float64)
            ids = [verify_draft_token(p_V, proposed[1], proposed[0], accept, *numbers)[0]]
        ids = [self._close_form_before_limit(state, token) for state, token in zip(states, ids, strict=True)]
        forms = [state.hypotheses[0].form for state in states]
        ids_B = torch.tensor(ids, device=logits_BV.device)
        tokens = self.make_tokens_with_constrained_logprobs(logits_BV.log_softmax(-1), filtered_BV, ids_B, forms)
        longer = [state.hypotheses[0].with_token(token.id) for state, token in zip(states, tokens, strict=True)]
        return [self.make_step(*each) for each in zip(states, tokens, longer, strict=True)]

    def filter_logits(self, logits_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Applies all filters to the logits of the token after each hypothesis. Raises as `choose_next_tokens` does."""
        filtered_BV = self._process_logits(logits_BV, hypotheses)
        empty_B = (filtered_BV.amax(-1) == -torch.inf).tolist()
        if any(empty_B):
            raise no_allowed_token_error(compress(hypotheses, empty_B))
        return apply_sampling_filters(filtered_BV, self.params) if self.params.strategy == "sample" else filtered_BV

    def choose_ids(self, filtered_BV: Tensor, uniforms: Sequence[float]) -> list[int]:
        """Returns the most probable id of each row, or the one sampled by its uniform number in [0, 1)."""
        if not self.params.is_random:
            return filtered_BV.argmax(-1).tolist()
        uniform_B = torch.tensor(uniforms, dtype=torch.float64, device=filtered_BV.device)
        return filters.sample_ids(filtered_BV, uniform_B).tolist()

    def make_step(self, state: RequestState, token: Token, extended: Hypothesis) -> StrategyStep:
        """Returns the step of a request that takes this token, and whether the text ends with it.

        extended: its hypothesis with the token.
        """
        n_steps, form = state.n_steps + 1, extended.form
        finish = state.get_limit_finish_reason(n_steps)
        if extended.is_complete:
            finish = "stop"
        elif form is not None and form.form.complete and form.may_end:
            n_left = state.request.params.max_new_tokens - n_steps
            # no later end of the form fits into the tokens left
            if n_left == 0 or not (self.end_ids or 0 < len(form.completing_tokens or ()) <= n_left):
                finish = "stop"
        if token.id in self.end_ids:
            finish = "end"
        return StrategyStep([] if finish else [extended], [] if finish else [0], [NewTokens([token], finish)])

    def _close_form_before_limit(self, state: RequestState, token: int) -> int:
        """Returns the token, or one that begins to close the form if the form could not be closed after this one."""
        form = state.hypotheses[0].form
        if form is None or not form.form.complete or token in self.end_ids:
            return token
        state.next_form = form.with_token(token)
        if form.can_close_after(token, state.request.params.max_new_tokens - state.n_steps - 1):
            return token
        if form.may_end and self.end_ids:
            return min(self.end_ids)
        return form.completing_tokens[0] if form.completing_tokens else token


def verify_draft_token(p_V: Tensor, q_V: Tensor, token: int, acceptance: float, uniform: float) -> tuple[int, bool]:
    """Returns the next token, and whether it is the proposed one: Leviathan et al. 2023, Algorithm 1.

    A token sampled from q is accepted with probability min(1, p / q); otherwise the next token is sampled from the
    normalized positive part of p - q. So it has the distribution p.

    p_V, q_V: probabilities under the model and the draft. acceptance, uniform: independent, uniform in [0, 1).
    """
    if acceptance * q_V[token] < p_V[token]:
        return token, True
    rest_V = (p_V - q_V).clamp(min=0)
    if not rest_V.any():  # p and q differ by rounding only
        rest_V = p_V
    return int(filters.sample_ids(rest_V.log()[None], rest_V.new_tensor([uniform]))), False


def request_key(seed: int, draw: int, ids: Sequence[int]) -> bytes:
    """Returns the random seed of a request: SHA-256 of "seed draw id id id ...", space-separated decimal numbers."""
    return hashlib.sha256(" ".join(map(str, (seed, draw, *ids))).encode()).digest()


def derive_key(key: bytes, name: str) -> bytes:
    """Returns the seed of further random numbers of a request: SHA-256 of its own seed and a name."""
    return hashlib.sha256(key + name.encode()).digest()


def uniform_random(key: bytes, number: int) -> float:
    """Returns a counter-based random number in [0, 1): 53 bits of SHA-256(key, number)."""
    digest = hashlib.sha256(key + number.to_bytes(8, "big")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def check_finite(logits_BV: Tensor) -> None:
    """Raises NumericalError when logits are NaN or infinite."""
    if not logits_BV.amax(-1).isfinite().all():
        raise NumericalError("the model's logits are not finite", fix="generate from an earlier checkpoint")


def no_allowed_token_error(hypotheses: Iterable[Hypothesis] = ()) -> UsageError:
    """Returns the error for hypotheses after which every token is excluded, by a form or by filters."""
    for form in (one.form for one in hypotheses):
        if form is not None and not form.allowed_non_end_V.any():
            return form.form.make_error()
    return UsageError("the filters exclude every token", fix="loosen no-repeat-ngram, logit-bias or the form")


def make_tokens(logprobs_BV: Tensor, filtered_BV: Tensor, ids_B: Tensor, n_alternatives: int) -> list[Token]:
    """Makes a token of the chosen id of each row, with so many alternatives; without details for 0.

    filtered_BV: -inf at the tokens that filters excluded.
    """
    logprob_B1 = logprobs_BV.gather(-1, ids_B[:, None])
    columns = [ids_B.tolist(), logprob_B1[:, 0].tolist()]
    if n_alternatives:
        rank_B = 1 + (logprobs_BV > logprob_B1).sum(-1)
        removed_B = logprobs_BV.exp().masked_fill(filtered_BV > -torch.inf, 0.0).sum(-1)
        best = logprobs_BV.topk(min(n_alternatives, logprobs_BV.shape[-1]))
        kept_BK = filtered_BV.gather(-1, best.indices) > -torch.inf
        rows = zip(best.indices.tolist(), best.values.tolist(), kept_BK.tolist(), strict=True)
        alternatives = [tuple(Alternative(*parts) for parts in zip(*row, strict=True)) for row in rows]
        columns += [rank_B.tolist(), removed_B.tolist(), alternatives]
    return [Token(*row) for row in zip(*columns, strict=True)]


def _log_allowed_probability(logprobs_V: Tensor, form: FormState, end_ids: Collection[int]) -> float:
    """Returns the log of the total probability that a form allows, computed from the smaller set of tokens."""
    allowed_V = form.mask_allowed_tokens(len(logprobs_V), end_ids)
    excluded = float(logprobs_V[np.flatnonzero(~allowed_V)].exp().sum()) if allowed_V.mean() > 0.5 else 1.0
    return math.log1p(-excluded) if excluded < 0.5 else float(logprobs_V[np.flatnonzero(allowed_V)].logsumexp(-1))
