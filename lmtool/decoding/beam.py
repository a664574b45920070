"""Beam search: the best texts so far, several at a time, each a row; diverse groups of them.

Shapes: B rows, V vocabulary, L live texts of one group.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from lmtool.decoding.request import (
    Event,
    Finish,
    Request,
    Row,
    Strategy,
    check_finite,
    mass_removed,
    nothing_left,
    ranks,
)
from lmtool.decoding.settings import Beam


@dataclass(frozen=True)
class _Token:
    """One token of a text; the fields are those of an event."""

    token: int
    logprob: float
    rank: int | None
    removed: float | None


@dataclass(frozen=True)
class _Live(Row):
    """A text that is gone on with. total: the sum of its log-probabilities, after filters."""

    written: tuple[_Token, ...] = ()
    total: float = 0.0


@dataclass(frozen=True)
class _Finished:
    """A text that is set aside."""

    written: tuple[_Token, ...]
    score: float
    finish: Finish


@dataclass
class _Group:
    """n_live: how many rows of the request are its own. finished: the best texts that are set aside."""

    n_live: int = 1
    finished: list[_Finished] = field(default_factory=list)


class BeamSearch(Strategy):
    """`Beam`: keeps the best texts of each request as its rows.

    At each step every live text has as many candidates as there are tokens. The best ones are looked at, in order:
    one that ends is set aside if it is among the first `num_beams`, the others are gone on with (as in Transformers).
    ends: whether a text ends with the ids written so far, for a reason of its own.
    """

    def __init__(
        self,
        settings: Beam,
        end_ids: Collection[int],
        banned: Tensor,
        details: bool,
        ends: Callable[[int, Sequence[int]], bool] | None,
    ) -> None:
        super().__init__(settings, end_ids, banned, details)
        self._settings = settings
        self._ends = ends
        self._groups: dict[tuple[int, int], list[_Group]] = {}
        self._width = settings.num_beams // settings.groups
        self.rows_each = settings.num_beams

    def begin(self, request: Request) -> None:
        first = _Live(request.start, request.start.text)
        groups = [_Group() for _ in range(self._settings.groups)]
        self._groups[request.prompt, request.sample] = groups
        request.rows = [first] * len(groups)

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[Event]]:
        check_finite(logits_BV)
        logprobs_BV = logits_BV.log_softmax(-1)
        steered_BV = self._steered(logprobs_BV, [row for request in requests for row in request.rows])
        removed = mass_removed(logprobs_BV, steered_BV) if self._details else None
        parents, events, first = [], [], 0
        for request in requests:
            rows = slice(first, first + len(request.rows))
            parents.append(
                self._advance(request, logprobs_BV[rows], steered_BV[rows], removed[rows] if removed else None)
            )
            first = rows.stop
            if not request.rows:
                events += self._results(request)
        return parents, events

    def _advance(
        self, request: Request, logprobs_LV: Tensor, steered_LV: Tensor, removed: list[float] | None
    ) -> list[int]:
        """One step of all groups; gives the parents of the new rows, and the request its rows."""
        late = request.is_late(self._settings.max_time)
        request.n_steps += 1
        if request.n_steps == self._settings.max_new_tokens or late:
            cut: Finish | None = "time" if late and request.n_steps < self._settings.max_new_tokens else "length"
        else:
            cut = None
        parents: list[int] = []
        rows: list[Row] = []
        taken_V = steered_LV.new_zeros(steered_LV.shape[-1], dtype=torch.float64)
        first = 0
        for group in self._groups[request.prompt, request.sample]:
            texts = [row for row in request.rows[first : first + group.n_live] if isinstance(row, _Live)]
            if not texts:
                continue
            totals = torch.tensor([text.total for text in texts], dtype=torch.float64, device=steered_LV.device)
            totals_LV = steered_LV[first : first + len(texts)] + totals[:, None]
            chosen = self._best(totals_LV - self._settings.diversity * taken_V)
            if not chosen and not group.finished:
                raise nothing_left()
            live: list[tuple[int, _Live]] = []
            for place, (parent, token) in enumerate(chosen):
                text = self._plus(
                    texts[parent],
                    token,
                    float(totals_LV[parent, token]),
                    logprobs_LV[first + parent],
                    removed[first + parent] if removed else None,
                )
                finish = self._finish(request, text, cut)
                if finish is None:
                    if len(live) < self._width:
                        live.append((first + parent, text))
                elif place < self._width:
                    score = text.total / text.n_written**self._settings.length_penalty
                    group.finished.append(_Finished(text.written, score, finish))
            group.finished = sorted(group.finished, key=attrgetter("score"), reverse=True)[: self._width]
            if self._is_done(group, [text for _, text in live]):
                live = []
            for parent, text in live:
                taken_V[text.text[-1]] += 1
                parents.append(parent)
                rows.append(text)
            group.n_live = len(live)
            first += len(texts)
        request.rows = rows
        return parents

    def _best(self, totals_LV: Tensor) -> list[tuple[int, int]]:
        """(row, token) of the best candidates, enough of them that a full set of them goes on; equal ones in order."""
        n = min((1 + max(1, len(self._end_ids))) * self._width, totals_LV.numel())
        flat = totals_LV.flatten()
        least = flat.topk(n).values[-1]
        found = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        order = flat[found].sort(descending=True, stable=True).indices[:n]
        vocab_size = totals_LV.shape[-1]
        return [divmod(place, vocab_size) for place in found[order].tolist()]

    def _plus(self, text: _Live, token: int, total: float, logprobs_V: Tensor, removed: float | None) -> _Live:
        rank = None
        if removed is not None:
            (rank,) = ranks(logprobs_V[None], torch.tensor([token], device=logprobs_V.device))
        written = _Token(token, float(logprobs_V[token]), rank, removed)
        return replace(text.plus(token), written=(*text.written, written), total=total)

    def _finish(self, request: Request, text: _Live, cut: Finish | None) -> Finish | None:
        if text.text[-1] in self._end_ids:
            return "end"
        if self._ends is not None and self._ends(request.prompt, text.text[len(text.text) - text.n_written :]):
            return "stop"
        return cut

    def _is_done(self, group: _Group, live: list[_Live]) -> bool:
        """Whether nothing better is to come, or it is not waited for; see `Beam.early_stopping`."""
        if not live:
            return True
        if len(group.finished) < self._width:
            return False
        penalty = self._settings.length_penalty
        match self._settings.early_stopping:
            case "yes":
                return True
            case "never" if penalty > 0:
                length = self._settings.max_new_tokens
            case _:
                length = live[0].n_written
        possible: float = max(text.total for text in live) / length**penalty
        return possible <= group.finished[-1].score

    def _results(self, request: Request) -> list[Event]:
        """The events of the best texts of all groups."""
        groups = self._groups.pop((request.prompt, request.sample))
        texts = sorted((t for group in groups for t in group.finished), key=attrgetter("score"), reverse=True)
        events = []
        for rank, text in enumerate(texts[: self._settings.num_return]):
            events += [
                Event(request.prompt, rank, token.token, token.logprob, None, token.rank, token.removed, steps=i)
                for i, token in enumerate(text.written, 1)
            ]
            events[-1] = replace(events[-1], finish=text.finish, score=text.score, steps=request.n_steps)
        return events
