"""How the next tokens are chosen: the interface of strategies, greedy decoding and sampling.

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
from lmtool.generation.params import SamplingParams, filter_logits
from lmtool.generation.request import Alternative, BeamNode, FinishReason, Request, Token
from lmtool.generation.text import IncrementalText
from lmtool.tokenization.prompt_format import Prompt


@dataclass(frozen=True)
class Hypothesis:
    """A partial text, which is one row of the state; immutable.

    window: the model's input: prompt and generated ids, or the end of these.
    text: all of them.
    n_generated: number of generated ids at its end.
    form: where it is in the form that it must have; None for anything.
    """

    window: Prompt
    text: tuple[int, ...]
    n_generated: int = 0
    form: FormState | None = None

    def plus(self, token: int) -> Self:
        """The hypothesis extended by one token."""
        window = replace(self.window, tokens=(*self.window.tokens, token))
        form = None if self.form is None else self.form.plus(token)
        return replace(self, window=window, text=(*self.text, token), n_generated=self.n_generated + 1, form=form)

    @property
    def is_complete(self) -> bool:
        """Whether it has its form, and nothing else can follow."""
        return self.form is not None and self.form.is_complete


@dataclass(eq=False)
class RequestState:
    """A request in the engine: one hypothesis, or several of one length in beam search; none when it is done.

    key: the seed of its random numbers.
    form: the beginning of the form that its text has.
    texts: of each sample that it gives.
    prompt: the tokens of its prompt that were read, if they are wanted.
    n_steps: steps of decoding so far.
    n_reused: as in `Token`. proposed, accepted: as in `Completion`.
    began: the time at which it was added.
    ahead: the place in the form after the token that is about to be taken, so that what is known of it is kept.
    search: what its strategy keeps of it between steps.
    """

    id: int
    request: Request
    strategy: "Strategy"
    key: bytes
    form: FormState | None
    hypotheses: Sequence[Hypothesis]
    texts: dict[int, IncrementalText]
    prompt: list[Token] = field(default_factory=list)
    n_steps: int = 0
    n_reused: int = 0
    proposed: int = 0
    accepted: int = 0
    began: float = 0.0
    ahead: FormState | None = None
    search: Any = None

    def limit_reached(self, n_steps: int) -> FinishReason | None:
        """Why it ends after so many steps whatever its tokens are."""
        params = self.request.params
        if n_steps == params.max_new_tokens:
            return "length"
        return "time" if params.max_time is not None and time.perf_counter() - self.began >= params.max_time else None


class Written(NamedTuple):
    """New tokens of a text. finish: why it ends with the last one. sample, score, tree: as in `Completion`."""

    tokens: Sequence[Token]
    finish: FinishReason | None = None
    sample: int = 0
    score: float | None = None
    tree: tuple[BeamNode, ...] | None = None


class RequestStep(NamedTuple):
    """A step of one request: the hypotheses that go on, the row of each before it, and what was written."""

    hypotheses: Sequence[Hypothesis]
    rows: Sequence[int]
    written: Sequence[Written]


class Strategy(ABC):
    """How tokens are chosen for requests whose parameters differ at most in seed, length and form.

    n_alternatives: as in `Request`.
    """

    def __init__(
        self, params: SamplingParams, end_ids: Collection[int], banned: Tensor, n_alternatives: int = 0
    ) -> None:
        self.params, self.end_ids, self.n_alternatives = params, frozenset(end_ids), n_alternatives
        self._banned = banned

    @abstractmethod
    def step(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[RequestStep]:
        """One step of each request, whose hypotheses are the rows of the logits, in order.

        Raises NumericalError when the logits are not finite, and UsageError when the filters exclude all tokens; then
        no state has changed, but of beam search.
        """

    def _steer(self, scores_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Scores after the filters of all strategies, -inf at excluded tokens. Raises NumericalError."""
        check_finite(scores_BV)
        forms, unfiltered_BV = [one.form for one in hypotheses], scores_BV
        scores_BV = scores_BV.index_fill(-1, self._banned.to(scores_BV.device), -torch.inf)
        texts, n_generated = [one.text for one in hypotheses], [one.n_generated for one in hypotheses]
        steered_BV = filters.steer(scores_BV, self.params, texts, n_generated, self.end_ids)
        return filters.restrict_to_forms(steered_BV, forms, self.end_ids, unfiltered_BV)


class Sampler(Strategy):
    """Greedy decoding and sampling: each request is one hypothesis, extended by one token per step."""

    @torch.inference_mode()
    def step(
        self, logits_BV: Tensor, states: Sequence[RequestState], proposed: tuple[int, Tensor] | None = None
    ) -> list[RequestStep]:
        """As of every strategy. proposed: a token that a draft drew for the only row, and its distribution (V,)."""
        filtered_BV = self.filter(logits_BV, [state.hypotheses[0] for state in states])
        numbers = [uniform(state.key, state.n_steps) for state in states]
        if proposed is None:
            ids = self.choose(filtered_BV, numbers)
        else:
            accept = uniform(derive_key(states[0].key, "accept"), states[0].n_steps)
            p_V = filtered_BV[0].softmax(-1, dtype=torch.float64)
            ids = [verify(p_V, proposed[1], proposed[0], accept, *numbers)[0]]
        ids = [self._close_in_time(state, token) for state, token in zip(states, ids, strict=True)]
        logprobs_BV = logits_BV.log_softmax(-1)
        tokens = make_tokens(logprobs_BV, filtered_BV, torch.tensor(ids, device=logits_BV.device), self.n_alternatives)
        tokens = with_constrained(tokens, logprobs_BV, [state.hypotheses[0].form for state in states], self.end_ids)
        longer = [state.hypotheses[0].plus(token.id) for state, token in zip(states, tokens, strict=True)]
        return [self.extend(*each) for each in zip(states, tokens, longer, strict=True)]

    def filter(self, logits_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """The logits of the token after each hypothesis, after all filters. Raises as `step` does."""
        filtered_BV = self._steer(logits_BV, hypotheses)
        empty_B = (filtered_BV.amax(-1) == -torch.inf).tolist()
        if any(empty_B):
            raise nothing_left(compress(hypotheses, empty_B))
        return filter_logits(filtered_BV, self.params) if self.params.strategy == "sample" else filtered_BV

    def choose(self, filtered_BV: Tensor, numbers: Sequence[float]) -> list[int]:
        """The token of each row: the most probable one, or the one drawn by its uniform number in [0, 1)."""
        if not self.params.is_random:
            return filtered_BV.argmax(-1).tolist()
        uniform_B = torch.tensor(numbers, dtype=torch.float64, device=filtered_BV.device)
        return filters.draw(filtered_BV, uniform_B).tolist()

    def extend(self, state: RequestState, token: Token, extended: Hypothesis) -> RequestStep:
        """The step of a request that takes this token, with the hypothesis that has it."""
        n_steps = state.n_steps + 1
        finish = state.limit_reached(n_steps)
        if extended.is_complete or self._has_full_form(extended.form, state.request.params.max_new_tokens - n_steps):
            finish = "stop"
        if token.id in self.end_ids:
            finish = "end"
        return RequestStep([] if finish else [extended], [] if finish else [0], [Written([token], finish)])

    def _close_in_time(self, state: RequestState, token: int) -> int:
        """The token, or the one that begins to close the form of a text which could not be closed after it."""
        form = state.hypotheses[0].form
        if form is None or not form.form.complete or token in self.end_ids:
            return token
        state.ahead = form.plus(token)
        if form.can_close_after(token, state.request.params.max_new_tokens - state.n_steps - 1):
            return token
        if form.may_end and self.end_ids:
            return min(self.end_ids)
        return form.closing_after[0] if form.closing_after else token

    def _has_full_form(self, form: FormState | None, n_left: int) -> bool:
        """Whether a text that is to be complete has its form, and no token is left, or none that ends it later."""
        if form is None or not (form.form.complete and form.may_end):
            return False
        return n_left == 0 or not (self.end_ids or (form.closing_after and len(form.closing_after) <= n_left))


def verify(p_V: Tensor, q_V: Tensor, token: int, acceptance: float, number: float) -> tuple[int, bool]:
    """The next token, and whether it is the proposed one: Leviathan et al. 2023, Algorithm 1.

    A token drawn from q is accepted with probability min(1, p / q); otherwise the next token is drawn from the
    normalized positive part of p - q. So it has the distribution p.

    p_V, q_V: probabilities under the model and the draft. acceptance, number: independent, uniform in [0, 1).
    """
    if acceptance * q_V[token] < p_V[token]:
        return token, True
    rest_V = (p_V - q_V).clamp(min=0)
    if not rest_V.any():  # p and q differ by rounding only
        rest_V = p_V
    return int(filters.draw(rest_V.log()[None], rest_V.new_tensor([number]))), False


def random_key(seed: int, draw: int, ids: Sequence[int]) -> bytes:
    """Seed of one request: SHA-256 of "seed draw id id id ...", space-separated decimal numbers."""
    return hashlib.sha256(" ".join(map(str, (seed, draw, *ids))).encode()).digest()


def derive_key(key: bytes, name: str) -> bytes:
    """The seed of further random numbers of a request: SHA-256 of its own and a name."""
    return hashlib.sha256(key + name.encode()).digest()


def uniform(key: bytes, number: int) -> float:
    """Counter-based random number in [0, 1): 53 bits of SHA-256(key, number)."""
    digest = hashlib.sha256(key + number.to_bytes(8, "big")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def check_finite(logits_BV: Tensor) -> None:
    """Raises NumericalError when logits are NaN or infinite."""
    if not logits_BV.amax(-1).isfinite().all():
        raise NumericalError("the model's logits are not finite", fix="generate from an earlier checkpoint")


def nothing_left(hypotheses: Iterable[Hypothesis] = ()) -> UsageError:
    """The error of texts that all tokens are excluded of: by the form of one alone, or by filters."""
    for form in (one.form for one in hypotheses):
        if form is not None and not form.allowed_V.any():
            return form.form.wrong()
    return UsageError("the filters exclude every token", fix="loosen no-repeat-ngram, logit-bias or the form")


def make_tokens(logprobs_BV: Tensor, filtered_BV: Tensor, ids_B: Tensor, n_alternatives: int) -> list[Token]:
    """The token that was chosen in each row, with so many alternatives; without details for none.

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


def with_constrained(
    tokens: Sequence[Token], logprobs_BV: Tensor, forms: Sequence[FormState | None], end_ids: Collection[int]
) -> list[Token]:
    """The tokens, with their log-probability among those that the form of each row allows, if it has one."""
    found = []
    for token, logprobs_V, form in zip(tokens, logprobs_BV, forms, strict=True):
        if form is not None:
            is_certain = bool(form.forced)
            constrained = 0.0 if is_certain else min(0.0, token.logprob - _log_mass(logprobs_V, form, end_ids))
            token = replace(token, constrained=constrained)
        found.append(token)
    return found


def _log_mass(logprobs_V: Tensor, form: FormState, end_ids: Collection[int]) -> float:
    """Log of the total probability of the tokens that a form allows; by the others where these have little."""
    allowed_V = np.zeros(len(logprobs_V), dtype=np.bool_)
    allowed_V[: len(form.allowed_V)] = form.allowed_V
    allowed_V[list(end_ids)] = form.may_end
    of_others = float(logprobs_V[np.flatnonzero(~allowed_V)].exp().sum()) if allowed_V.mean() > 0.5 else 1.0
    return math.log1p(-of_others) if of_others < 0.5 else float(logprobs_V[np.flatnonzero(allowed_V)].logsumexp(-1))
