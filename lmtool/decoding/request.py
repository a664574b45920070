"""What all strategies that write from left to right share: rows, requests, events, and the interface of a strategy.

Shapes: B rows, V vocabulary.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.reader import Prompt
from lmtool.decoding.settings import Limits
from lmtool.errors import NumericalError, UsageError

Finish = Literal["end", "stop", "length", "time"]


@dataclass(frozen=True)
class Event:
    """One token written.

    prompt, sample: which request, counted from 0; of a beam search the sample is the rank of the text.
    token: its id.
    logprob: its natural log-probability under the model's own distribution, before any temperature or filter.
    finish: why the text ends with this token: "end" for an end token, "stop" when it was asked to stop here, "length"
        for max_new_tokens, "time" for max_time; None before.
    rank: place of the token in the model's own distribution, from 1. removed: the probability there of all tokens that
        were not to be chosen. Both None unless they are asked for.
    score: of a whole text of a beam search, with its last token.
    steps: how many times the model was asked so far; of a beam search, in all, with the last token of a text.
    draw: the number of the sample as it enters the randomness: a prompt that comes again goes on counting.
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
class Row:
    """One row of the state; a value.

    window: what the model sees: the prompt and what was written, or the end of that.
    text: all of it. n_written: how many ids at its end are new.
    """

    window: Prompt
    text: tuple[int, ...]
    n_written: int = 0

    def plus(self, token: int) -> Self:
        """The row with one more token."""
        window = replace(self.window, tokens=(*self.window.tokens, token))
        return replace(self, window=window, text=(*self.text, token), n_written=self.n_written + 1)

    def with_window(self, window: Prompt) -> Self:
        """The row as it sees less of the text."""
        return replace(self, window=window)


@dataclass
class Request:
    """A request in work: one row, or of a beam search several of one length.

    draw: the number of the sample as it enters the randomness. key: seeds that.
    """

    prompt: int
    sample: int
    draw: int
    start: Prompt
    key: bytes
    rows: list[Row] = field(default_factory=list)
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
    """Chooses tokens. rows_each: most rows of one request."""

    rows_each = 1

    def __init__(self, settings: Limits, end_ids: Collection[int], banned: Tensor, details: bool) -> None:
        self._limits = settings
        self._end_ids = frozenset(end_ids)
        self._banned = banned
        self._details = details

    @abstractmethod
    def begin(self, request: Request) -> None:
        """Give a new request its first rows."""

    @abstractmethod
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[Event]]:
        """Take one step of each request, whose rows are those of the logits in their order.

        Gives a request the rows to go on with, none when it is done. Returns the former row, counted within its
        request, that each of them goes on from; and the events.
        """

    def _steered(self, scores_BV: Tensor, rows: Sequence[Row]) -> Tensor:
        """Scores with -inf for tokens that may not be chosen, after the filters that every strategy has."""
        scores_BV = scores_BV.index_fill(-1, self._banned.to(scores_BV.device), -torch.inf)
        texts, n_written = [row.text for row in rows], [row.n_written for row in rows]
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
