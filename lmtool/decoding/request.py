"""What all strategies that write from left to right share: hypotheses, requests, events, and a strategy's interface.

Shapes: B rows, V vocabulary.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.reader import Prompt
from lmtool.decoding.settings import Limits
from lmtool.errors import NumericalError, UsageError

Finish = Literal["end", "stop", "length", "time"]


@dataclass(frozen=True)
class TokenEvent:
    """One token written.

    prompt, sample: which request, counted from 0; of a beam search the sample is the rank of the hypothesis.
    token: its id.
    logprob: its natural log-probability under the model's own distribution, before any temperature or filter.
    finish: why the text ends with this token: "end" for an end token, "stop" when it was asked to stop here, "length"
        for max_new_tokens, "time" for max_time; None before.
    rank: place of the token in the model's own distribution, from 1. removed: the probability there of all tokens that
        were not to be chosen. Both None unless they are asked for.
    score: of a finished hypothesis of a beam search, with its last token.
    steps: how many times the model was asked so far; of a beam search, in all, with the last token of a hypothesis.
    draw: the number of the sample as it enters the randomness: a prompt that comes again continues the count.
    """

    prompt: int
    sample: int
    token: int
    logprob: float
    finish: Finish | None
    rank: int | None = None
    removed: float | None = None
    score: float | None = None
    steps: int = 0
    draw: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A text as far as it is written, which is one row of the state; a value.

    window: what the model sees: the prompt and what was written, or the end of that.
    text: all of it. n_written: how many ids at its end are new.
    """

    window: Prompt
    text: tuple[int, ...]
    n_written: int = 0

    def plus(self, token: int) -> Self:
        """The hypothesis continued by one token."""
        window = replace(self.window, tokens=(*self.window.tokens, token))
        return replace(self, window=window, text=(*self.text, token), n_written=self.n_written + 1)


@dataclass
class Request:
    """A request in work: one hypothesis, or of a beam search several of one length.

    draw: the number of the sample as it enters the randomness. key: seeds that.
    """

    prompt: int
    sample: int
    draw: int
    start: Prompt
    key: bytes
    hypotheses: Sequence[Hypothesis] = ()
    n_steps: int = 0
    began: float = 0.0

    def is_late(self, max_time: float | None) -> bool:
        """True when the time for this request is over."""
        return max_time is not None and time.perf_counter() - self.began >= max_time


def random_key(seed: int, draw: int, ids: Sequence[int]) -> bytes:
    """What seeds one request: SHA-256 of "seed draw id id id ...", decimal numbers apart by a space."""
    return hashlib.sha256(" ".join(map(str, (seed, draw, *ids))).encode()).digest()


def uniform(key: bytes, number: int) -> float:
    """A random number in [0, 1), of any number of them: 53 bits of SHA-256(key, number)."""
    digest = hashlib.sha256(key + number.to_bytes(8, "big")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


class Strategy(ABC):
    """Chooses tokens. n_hypotheses: most hypotheses of one request."""

    n_hypotheses = 1

    def __init__(self, settings: Limits, end_ids: Collection[int], banned: Tensor, details: bool) -> None:
        self._limits = settings
        self._end_ids = frozenset(end_ids)
        self._banned = banned
        self._details = details

    @abstractmethod
    def begin(self, request: Request) -> None:
        """Give a new request its first hypotheses."""

    @abstractmethod
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        """Take one step of each request, whose hypotheses are the rows of the logits in their order.

        Gives a request the hypotheses to continue, none when it is done. Returns, for each of them, the number of the
        former hypothesis of the request that it extends; and the events.
        """

    def _steered(self, scores_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Scores with -inf for tokens that may not be chosen, after the filters of all strategies."""
        scores_BV = scores_BV.index_fill(-1, self._banned.to(scores_BV.device), -torch.inf)
        texts, n_written = [one.text for one in hypotheses], [one.n_written for one in hypotheses]
        return filters.steer(scores_BV, self._limits, texts, n_written, self._end_ids)


def check_finite(logits_BV: Tensor) -> None:
    """Raises NumericalError when logits are NaN or infinite."""
    if not logits_BV.amax(-1).isfinite().all():
        raise NumericalError("the model's logits are not finite", fix="generate from an earlier checkpoint")


def nothing_left() -> UsageError:
    """The error of a step at which no token may be chosen."""
    return UsageError("the filters leave no token to choose", fix="loosen no-repeat-ngram or logit-bias")


def ranks(logprobs_BV: Tensor, ids_B: Tensor) -> list[int]:
    """How many tokens of each row are more probable than the chosen one, and one."""
    chosen_B1 = logprobs_BV.gather(-1, ids_B[:, None])
    return [1 + n for n in (logprobs_BV > chosen_B1).sum(-1).tolist()]


def mass_removed(logprobs_BV: Tensor, filtered_BV: Tensor) -> list[float]:
    """The probability of all tokens that the filters gave -inf."""
    removed: list[float] = logprobs_BV.exp().masked_fill(filtered_BV > -torch.inf, 0.0).sum(-1).tolist()
    return removed
