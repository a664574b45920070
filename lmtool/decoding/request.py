"""Shared by all left-to-right strategies: hypotheses, requests, events, and the strategy interface.

Shapes: B rows, V vocabulary.
"""

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.constrained import FormState
from lmtool.decoding.settings import Limits
from lmtool.errors import NumericalError, UsageError
from lmtool.tokenization.prompt_format import Prompt

Finish = Literal["end", "stop", "length", "time"]

ALTERNATIVES = 5
"""Most probable tokens that details list for each generated one."""


@dataclass(frozen=True)
class Alternative:
    """A token that could have been generated. logprob: as in `Choice`. kept: no filter excluded it."""

    token: int
    logprob: float
    kept: bool


@dataclass(frozen=True)
class Choice:
    """A token of a text, and how probable it was.

    token: its id.
    logprob: its natural log-probability under the model's distribution, before temperature and filters.
    rank: of the token in that distribution, from 1.
    removed: its total probability of tokens excluded by filters.
    alternatives: its most probable tokens, most probable first. All three None unless requested.
    constrained: the log-probability among the tokens that the form of the text allows; None without a form.
    """

    token: int
    logprob: float
    rank: int | None = None
    removed: float | None = None
    alternatives: tuple[Alternative, ...] | None = None
    constrained: float | None = None


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of a beam search that was live or finished; together they are the tree that was searched.

    parent: index of the hypothesis that it extends by `token`, None for the prompt.
    total: sum of its log-probabilities, after filters.
    finish: why it ended, None while live.
    score: of a finished one.
    rank: among those that are returned, from 0; None for all others.
    """

    parent: int | None
    token: int
    total: float
    finish: Finish | None = None
    score: float | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenEvent(Choice):
    """One generated token.

    prompt, sample: indices of the request, from 0; for beam search the sample is the rank of the hypothesis.
    finish: why the text ends with this token: "end" for an end token, "stop" for a stopping criterion, "length" for
        max_new_tokens, "time" for max_time; None before.
    score: of a finished hypothesis of a beam search, with its last token.
    steps: number of decoding steps so far; of a beam search, in total, with the last token of a hypothesis.
    draw: sample number used to seed randomness, which continues over equal prompts.
    tree: the hypotheses of the whole search, with the last token of the best one, if requested.
    proposed, accepted: with a draft, tokens of the text so far that it proposed, and that were accepted; else 0.
    """

    prompt: int
    sample: int
    finish: Finish | None = None
    score: float | None = None
    steps: int = 0
    draw: int = 0
    tree: tuple[BeamNode, ...] | None = None
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A partial text, which is one row of the state; immutable.

    window: the model's input: prompt and generated ids, or the end of these.
    text: all of them.
    n_written: number of generated ids at its end.
    form: where it is in the form that it must have; None for anything.
    """

    window: Prompt
    text: tuple[int, ...]
    n_written: int = 0
    form: FormState | None = None

    def plus(self, token: int) -> Self:
        """The hypothesis extended by one token."""
        window = replace(self.window, tokens=(*self.window.tokens, token))
        form = None if self.form is None else self.form.plus(token)
        return replace(self, window=window, text=(*self.text, token), n_written=self.n_written + 1, form=form)

    @property
    def is_complete(self) -> bool:
        """Whether it has its form, and nothing else can follow."""
        return self.form is not None and self.form.is_complete


@dataclass
class Request:
    """An active request: one hypothesis, or several of one length in beam search.

    draw: sample number used to seed randomness.
    key: the seed.
    strategy: how its tokens are chosen.
    max_new_tokens: after these it ends.
    wants_prompt: the probabilities of the tokens of its prompt are collected in `read`, from the second one on; for
        models without a source.
    form: the beginning of the form that its text has.
    ahead: the place in the form after the token that is about to be taken, so that what is known of it is kept.
    n_reused: tokens of its prompt that were not read, because keys and values of them were kept.
    proposed, accepted: as in `TokenEvent`.
    """

    prompt: int
    sample: int
    draw: int
    start: Prompt
    key: bytes
    strategy: "Strategy"
    max_new_tokens: int
    wants_prompt: bool = False
    form: FormState | None = None
    ahead: FormState | None = None
    read: list[Choice] = field(default_factory=list)
    hypotheses: Sequence[Hypothesis] = ()
    n_steps: int = 0
    n_reused: int = 0
    proposed: int = 0
    accepted: int = 0
    began: float = 0.0

    def event(self, choice: Choice, finish: Finish | None = None) -> TokenEvent:
        """The event of one more token."""
        names = "prompt", "sample", "draw", "proposed", "accepted"
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        return TokenEvent(**vars(choice), **fields, finish=finish, steps=self.n_steps)


def random_key(seed: int, draw: int, ids: Sequence[int]) -> bytes:
    """Seed of one request: SHA-256 of "seed draw id id id ...", space-separated decimal numbers."""
    return hashlib.sha256(" ".join(map(str, (seed, draw, *ids))).encode()).digest()


def draws(texts: Sequence[tuple[int, ...]], n: int, first: int) -> Iterator[tuple[int, int, int]]:
    """(index of the text, sample, draw) of n samples of each text; draws are numbered on over equal texts."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, ids in enumerate(texts):
        yield from ((i, sample, first + seen[ids] + sample) for sample in range(n))
        seen[ids] += n


def n_shared(*texts: Sequence[object]) -> int:
    """Length of their longest common prefix."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))))


def uniform(key: bytes, number: int) -> float:
    """Counter-based random number in [0, 1): 53 bits of SHA-256(key, number)."""
    digest = hashlib.sha256(key + number.to_bytes(8, "big")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


class RequestBatch(ABC):
    """Requests that are decoded together, which join and leave between tokens."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []

    @property
    def requests(self) -> list[Request]:
        """The requests in it."""
        return [request for request in self._waiting if request.hypotheses]

    def join(self, request: Request) -> None:
        """Add a request, after those in it."""
        request.began = time.perf_counter()
        request.strategy.begin(request)
        self._waiting.append(request)

    def leave(self, request: Request) -> None:
        """Cancel a request of the batch: no more events of it follow."""
        request.hypotheses = ()

    @abstractmethod
    def step(self) -> list[TokenEvent]:
        """Generate one token or more of some requests. Returns the events."""


class Strategy(ABC):
    """A decoding strategy, of requests with the same settings but for the seed and the maximum number of tokens.

    n_hypotheses: maximum hypotheses of one request. n_alternatives: how many of the most probable tokens events list,
    with the rank of the token and the probability removed by filters; 0 for events without these details.
    """

    n_hypotheses = 1

    def __init__(self, settings: Limits, end_ids: Collection[int], banned: Tensor, n_alternatives: int) -> None:
        self._limits = settings
        self._end_ids = frozenset(end_ids)
        self._banned = banned
        self.n_alternatives = n_alternatives

    @abstractmethod
    def begin(self, request: Request) -> None:
        """Give a new request its first hypotheses."""

    @abstractmethod
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        """Take one step of each request, whose hypotheses are the rows of the logits, in order.

        Sets the live hypotheses of each request, none when it is done. Returns the parent index of each within its
        request's previous hypotheses; and the events. A step that raises has changed no request, but of beam search.
        """

    def _steered(self, scores_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Scores after the filters shared by all strategies, -inf at excluded tokens.

        Raises NumericalError when they are not finite.
        """
        check_finite(scores_BV)
        forms, unfiltered_BV = [one.form for one in hypotheses], scores_BV
        scores_BV = scores_BV.index_fill(-1, self._banned.to(scores_BV.device), -torch.inf)
        texts, n_written = [one.text for one in hypotheses], [one.n_written for one in hypotheses]
        steered_BV = filters.steer(scores_BV, self._limits, texts, n_written, self._end_ids)
        return filters.within(steered_BV, forms, self._end_ids, unfiltered_BV)

    def _cut(self, request: Request) -> Finish | None:
        """Why a request ends after this step whatever its tokens are."""
        if request.n_steps == request.max_new_tokens:
            return "length"
        limit = self._limits.max_time
        return "time" if limit is not None and time.perf_counter() - request.began >= limit else None


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


def chosen(logprobs_BV: Tensor, filtered_BV: Tensor, ids_B: Tensor, n_alternatives: int) -> list[Choice]:
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
    return [Choice(*row) for row in zip(*columns, strict=True)]


def with_constrained(
    choices: Sequence[Choice], logprobs_BV: Tensor, forms: Sequence[FormState | None], end_ids: Collection[int]
) -> list[Choice]:
    """The choices, with their log-probability among the tokens that the form of each row allows, if it has one."""
    beside = []
    for choice, logprobs_V, form in zip(choices, logprobs_BV, forms, strict=True):
        if form is not None:
            is_certain = bool(form.forced)
            constrained = 0.0 if is_certain else min(0.0, choice.logprob - _log_mass(logprobs_V, form, end_ids))
            choice = replace(choice, constrained=constrained)
        beside.append(choice)
    return beside


def _log_mass(logprobs_V: Tensor, form: FormState, end_ids: Collection[int]) -> float:
    """Log of the total probability of the tokens that a form allows; by the others where these have little."""
    allowed_V = np.zeros(len(logprobs_V), dtype=np.bool_)
    allowed_V[: len(form.allowed_V)] = form.allowed_V
    allowed_V[list(end_ids)] = form.may_end
    of_others = float(logprobs_V[np.flatnonzero(~allowed_V)].exp().sum()) if allowed_V.mean() > 0.5 else 1.0
    return math.log1p(-of_others) if of_others < 0.5 else float(logprobs_V[np.flatnonzero(allowed_V)].logsumexp(-1))
