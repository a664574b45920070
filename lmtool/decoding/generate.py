"""Prompts of token ids in, tokens out, one event for each: prefill, cached steps, and rows that come and go.

Shapes: B rows, T positions of a prompt, D model width, V vocabulary.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse, groupby, islice
from typing import Literal

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.decoding import filters
from lmtool.decoding.settings import Greedy, Sample, Settings
from lmtool.errors import NumericalError, UsageError
from lmtool.model.language_model import DecodeState, LanguageModel


@dataclass(frozen=True)
class Event:
    """One token written.

    prompt, sample: which request, counted from 0.
    token: its id.
    logprob: its natural log-probability under the model's own distribution, before any temperature or filter.
    finish: why the request ends with this token: "end" for an end token, "length" for max_new_tokens; None before.
    """

    prompt: int
    sample: int
    token: int
    logprob: float
    finish: Literal["end", "length"] | None


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    *,
    n: int = 1,
    end_ids: Collection[int] = (),
    banned_ids: Collection[int] = (),
    truncate: bool = False,
    max_rows: int = 16,
) -> "Generation":
    """Continue each prompt `n` times; an iterator of events, in which the requests take turns.

    The tokens of a request are a function of the model, the settings, the prompt and the number of the sample. Other
    requests, their order and `max_rows`, the most requests in work at once, change nothing but the rounding of sums.
    A prompt that stands k times in `prompts` is a prompt with k * n samples.

    A model reads at most `model.context` tokens. When prompt and written tokens outgrow it, the older ones are
    dropped and the last half of the context is read anew, so that text can be of any length.

    end_ids: tokens that end a request. They are events too.
    banned_ids: tokens that are never chosen.
    truncate: cut prompts longer than the context from the left.

    The model is in evaluation mode while the iterator runs.

    Raises UsageError when a prompt is empty, longer than the context, or holds an id that the model does not know.
    Iterating raises NumericalError when the model's logits are not finite.
    """
    places = [f"prompt {i} of {len(prompts)}" if len(prompts) > 1 else "" for i in range(1, len(prompts) + 1)]
    cut = [_fit(model, list(prompt), truncate, where) for prompt, where in zip(prompts, places, strict=True)]
    if n < 1 or max_rows < 1:
        raise UsageError(f"{n} samples of each prompt, {max_rows} at once", fix="ask for at least 1 of each")
    return Generation(model, _requests(cut, settings, n), settings, end_ids, banned_ids, max_rows)


def _fit(model: LanguageModel, prompt: list[int], truncate: bool, where: str) -> list[int]:
    if not prompt:
        raise UsageError("the prompt has no tokens", where=where, fix="start from the token that begins a text")
    if not 0 <= min(prompt) <= max(prompt) < model.vocab_size:
        raise UsageError(f"the prompt has ids outside 0..{model.vocab_size - 1}, the model's vocabulary", where=where)
    if model.context is None or len(prompt) <= model.context:
        return prompt
    if not truncate:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, but the model's context is {model.context}",
            where=where,
            fix="shorten it, or cut it from the left with --truncate",
        )
    return prompt[-model.context :]


@dataclass
class _Request:
    """A request in work.

    window: the tokens that the model sees: the prompt and what was written, or the end of that.
    key: seeds the request's randomness.
    """

    prompt: int
    sample: int
    window: list[int]
    key: bytes
    n_written: int = 0
    finish: Literal["end", "length"] | None = None

    def uniform(self) -> float:
        """The random number in [0, 1) for the next token: 53 bits of SHA-256(key, number of the token)."""
        digest = hashlib.sha256(self.key + self.n_written.to_bytes(8, "big")).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def _requests(prompts: list[list[int]], settings: Settings, n: int) -> Iterator[_Request]:
    """All requests in order. The key is SHA-256 of "seed sample id id id ...", decimal numbers apart by a space."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, ids in enumerate(prompts):
        for sample in range(n):
            words = (settings.seed, seen[tuple(ids)] + sample, *ids)
            key = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
            yield _Request(i, sample, list(ids), key)
        seen[tuple(ids)] += n


class Generation(Iterator[Event]):
    """The events of `generate`, in the order in which they come about."""

    def __init__(
        self,
        model: LanguageModel,
        requests: Iterator[_Request],
        settings: Settings,
        end_ids: Collection[int],
        banned_ids: Collection[int],
        max_rows: int,
    ) -> None:
        self._model = model
        self._settings = settings
        self._end_ids = frozenset(end_ids)
        self._device = next(chain(model.parameters(), model.buffers())).device
        self._banned = torch.tensor(sorted(banned_ids), dtype=torch.long, device=self._device)
        self._stopped: set[tuple[int, int]] = set()
        self._events = self._run(requests, max_rows)

    def __next__(self) -> Event:
        return next(self._events)

    def stop(self, prompt: int, sample: int) -> None:
        """End a request whose last event has just come, or that has not begun: no more events of it follow."""
        self._stopped.add((prompt, sample))

    def _is_stopped(self, row: _Request) -> bool:
        return (row.prompt, row.sample) in self._stopped

    def _run(self, waiting: Iterator[_Request], max_rows: int) -> Iterator[Event]:
        was_training = self._model.training
        self._model.eval()
        try:
            rows: list[_Request] = []  # row i of `state` has read all but the last token of rows[i].window
            unread: list[_Request] = []  # whose window is new
            state = None
            while True:
                unread += islice(filterfalse(self._is_stopped, waiting), max_rows - len(rows) - len(unread))
                if not rows and not unread:
                    return
                logits_BV, state = self._advance(rows, state, unread)
                rows += unread
                tokens, logprobs = self._choose(logits_BV, rows)
                for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
                    row.window.append(token)
                    row.n_written += 1
                    row.finish = self._finish(row, token)
                    yield Event(row.prompt, row.sample, token, logprob, row.finish)
                stay, unread = [], []
                for i, row in enumerate(rows):
                    if row.finish or self._is_stopped(row):
                        continue
                    if self._model.context is not None and len(row.window) > self._model.context:
                        row.window = row.window[-max(1, self._model.context // 2) :]
                        unread.append(row)
                    else:
                        stay.append(i)
                if len(stay) < len(rows):
                    rows = [rows[i] for i in stay]
                    state = state[torch.tensor(stay, device=self._device)].trimmed() if rows else None
        finally:
            self._model.train(was_training)

    def _finish(self, row: _Request, token: int) -> Literal["end", "length"] | None:
        if token in self._end_ids:
            return "end"
        return "length" if row.n_written == self._settings.max_new_tokens else None

    @torch.inference_mode()
    def _advance(
        self, rows: list[_Request], state: DecodeState | None, unread: list[_Request]
    ) -> tuple[Tensor, DecodeState]:
        """Logits (B, V) of the next token of `rows`, then of `unread`, and the state of all of them."""
        hiddens, states = [], []
        if state is not None:
            tokens_B1 = torch.tensor([row.window[-1:] for row in rows], device=self._device)
            hidden_B1D, state = self._model.advance(tokens_B1, state)
            hiddens.append(hidden_B1D[:, -1])
            states.append(state)
        if unread:
            hidden_BD, state = self._read([tuple(row.window) for row in unread])
            hiddens.append(hidden_BD)
            states.append(state)
        # In bfloat16 many logits would be equal, and rounding would choose among them.
        with torch.autocast(self._device.type, enabled=False):
            logits_BV = self._model.logits(torch.cat(hiddens)).float()
        return logits_BV, _join(states)

    def _read(self, windows: list[tuple[int, ...]]) -> tuple[Tensor, DecodeState]:
        """Read whole windows: equal ones once, and those of one length together, so that no padding ever enters."""
        distinct = sorted(dict.fromkeys(windows), key=len)
        hiddens, states = [], []
        for _, group in groupby(distinct, key=len):
            tokens_BT = torch.tensor(list(group), device=self._device)
            hidden_BTD, state = self._model.advance(tokens_BT, self._model.start(Batch(tokens_BT)))
            hiddens.append(hidden_BTD[:, -1])
            states.append(state)
        index = {window: i for i, window in enumerate(distinct)}
        rows_B = torch.tensor([index[window] for window in windows], device=self._device)
        return torch.cat(hiddens)[rows_B], _join(states)[rows_B]

    @torch.inference_mode()
    def _choose(self, logits_BV: Tensor, rows: list[_Request]) -> tuple[list[int], list[float]]:
        if logits_BV.device.type == "mps":  # which has no float64
            logits_BV = logits_BV.cpu()
        if not logits_BV.amax(-1).isfinite().all():
            raise NumericalError("the model's logits are not finite", fix="generate from an earlier checkpoint")
        logprobs_BV = logits_BV.log_softmax(-1)
        allowed_BV = logits_BV.index_fill(-1, self._banned.to(logits_BV.device), -torch.inf)
        match self._settings:
            case Greedy():
                ids_B = allowed_BV.argmax(-1)
            case Sample() as settings:
                uniform_B = torch.tensor([row.uniform() for row in rows], dtype=torch.float64, device=logits_BV.device)
                ids_B = filters.draw(filters.apply(allowed_BV, settings), uniform_B)
        return ids_B.tolist(), logprobs_BV.gather(-1, ids_B[:, None])[:, 0].tolist()


def _join(states: list[DecodeState]) -> DecodeState:
    return states[0] if len(states) == 1 else DecodeState.join(states)
