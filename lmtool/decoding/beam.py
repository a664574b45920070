"""Beam search and diverse beam search; each hypothesis of a request is a row.

Shapes: B rows, V vocabulary, L live hypotheses of one group.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from lmtool.decoding.request import (
    Alternative,
    BeamNode,
    Finish,
    Hypothesis,
    Request,
    Strategy,
    TokenEvent,
    best_tokens,
    check_finite,
    mass_removed,
    nothing_left,
    ranks,
)
from lmtool.decoding.settings import Beam

_Details = tuple[float, tuple[Alternative, ...]]
"""Of a hypothesis: the probability that filters removed, and the most probable tokens after it."""


@dataclass(frozen=True)
class _LiveHypothesis(Hypothesis):
    """A live hypothesis. total: the sum of its log-probabilities, after filters. node: its index in the tree."""

    events: tuple[TokenEvent, ...] = ()
    total: float = 0.0
    node: int | None = None


@dataclass(frozen=True)
class _FinishedHypothesis:
    """A finished hypothesis. node: as in `_LiveHypothesis`."""

    events: tuple[TokenEvent, ...]
    score: float
    finish: Finish
    node: int | None


@dataclass
class _Group:
    """n_live: number of the request's live hypotheses in this group. finished: the best finished ones."""

    n_live: int = 1
    finished: list[_FinishedHypothesis] = field(default_factory=list)


class BeamSearch(Strategy):
    """`Beam`: keeps the best hypotheses of each request.

    At each step every live hypothesis is expanded by every token. The best candidates are taken in order: one that ends
    is finished if it is among the first `num_beams`, the others stay live (as in Transformers). ends: the caller's
    stopping criterion on the ids generated so far.
    """

    def __init__(
        self,
        settings: Beam,
        end_ids: Collection[int],
        banned: Tensor,
        n_alternatives: int,
        ends: Callable[[int, Sequence[int]], bool] | None,
    ) -> None:
        super().__init__(settings, end_ids, banned, n_alternatives)
        self._settings = settings
        self._ends = ends
        self._groups: dict[tuple[int, int], list[_Group]] = {}
        self._trees: dict[tuple[int, int], list[BeamNode]] = {}
        self._width = settings.num_beams // settings.groups
        self.n_hypotheses = settings.num_beams

    def begin(self, request: Request) -> None:
        first = _LiveHypothesis(request.start, request.start.text)
        groups = [_Group() for _ in range(self._settings.groups)]
        self._groups[request.prompt, request.sample] = groups
        self._trees[request.prompt, request.sample] = []
        request.hypotheses = [first] * len(groups)

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        check_finite(logits_BV)
        logprobs_BV = logits_BV.log_softmax(-1)
        steered_BV = self._steered(logprobs_BV, [one for request in requests for one in request.hypotheses])
        n_best = self.n_alternatives
        removed = mass_removed(logprobs_BV, steered_BV) if n_best else None
        best = best_tokens(logprobs_BV, steered_BV, n_best) if n_best else None
        parents, events, first = [], [], 0
        for request in requests:
            rows = slice(first, first + len(request.hypotheses))
            parents.append(
                self._advance(
                    request,
                    logprobs_BV[rows],
                    steered_BV[rows],
                    list(zip(removed[rows], best[rows], strict=True)) if removed and best else None,
                )
            )
            first = rows.stop
            if not request.hypotheses:
                events += self._results(request)
        return parents, events

    def _advance(
        self, request: Request, logprobs_LV: Tensor, steered_LV: Tensor, details: list[_Details] | None
    ) -> list[int]:
        """One step of all groups; sets the request's new hypotheses, and returns the parent of each."""
        tree = self._trees[request.prompt, request.sample]
        late = request.is_late(self._settings.max_time)
        request.n_steps += 1
        if request.n_steps == self._settings.max_new_tokens or late:
            cut: Finish | None = "time" if late and request.n_steps < self._settings.max_new_tokens else "length"
        else:
            cut = None
        parents: list[int] = []
        hypotheses: list[Hypothesis] = []
        taken_V = steered_LV.new_zeros(steered_LV.shape[-1], dtype=torch.float64)
        first = 0
        for group in self._groups[request.prompt, request.sample]:
            own = [one for one in request.hypotheses[first : first + group.n_live] if isinstance(one, _LiveHypothesis)]
            if not own:
                continue
            totals = torch.tensor([one.total for one in own], dtype=torch.float64, device=steered_LV.device)
            totals_LV = steered_LV[first : first + len(own)] + totals[:, None]
            chosen = self._best(totals_LV - self._settings.diversity * taken_V)
            if not chosen and not group.finished:
                raise nothing_left()
            live: list[tuple[int, _LiveHypothesis]] = []
            for place, (parent, token) in enumerate(chosen):
                hypothesis = self._plus(
                    request,
                    own[parent],
                    token,
                    float(totals_LV[parent, token]),
                    logprobs_LV[first + parent],
                    details[first + parent] if details else None,
                )
                finish = self._finish(request, hypothesis, cut)
                node = BeamNode(own[parent].node, token, hypothesis.total)
                if finish is None:
                    if len(live) < self._width:
                        live.append((first + parent, replace(hypothesis, node=self._record(tree, node))))
                elif place < self._width:
                    score = hypothesis.total / hypothesis.n_written**self._settings.length_penalty
                    number = self._record(tree, replace(node, finish=finish, score=score))
                    group.finished.append(_FinishedHypothesis(hypothesis.events, score, finish, number))
            group.finished = sorted(group.finished, key=attrgetter("score"), reverse=True)[: self._width]
            if self._is_done(group, [hypothesis for _, hypothesis in live]):
                live = []
            for parent, hypothesis in live:
                taken_V[hypothesis.text[-1]] += 1
                parents.append(parent)
                hypotheses.append(hypothesis)
            group.n_live = len(live)
            first += len(own)
        request.hypotheses = hypotheses
        return parents

    def _record(self, tree: list[BeamNode], node: BeamNode) -> int | None:
        """The index of a new node in the tree; None without details, which keep no tree."""
        if not self.n_alternatives:
            return None
        tree.append(node)
        return len(tree) - 1

    def _best(self, totals_LV: Tensor) -> list[tuple[int, int]]:
        """(row, token) of the best candidates, enough to fill a group; ties in order."""
        n = min((1 + max(1, len(self._end_ids))) * self._width, totals_LV.numel())
        flat = totals_LV.flatten()
        least = flat.topk(n).values[-1]
        found = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        order = flat[found].sort(descending=True, stable=True).indices[:n]
        vocab_size = totals_LV.shape[-1]
        return [divmod(place, vocab_size) for place in found[order].tolist()]

    def _plus(
        self,
        request: Request,
        hypothesis: _LiveHypothesis,
        token: int,
        total: float,
        logprobs_V: Tensor,
        details: _Details | None,
    ) -> _LiveHypothesis:
        event = TokenEvent(request.prompt, 0, token, float(logprobs_V[token]), None, steps=request.n_steps)
        if details is not None:
            (rank,) = ranks(logprobs_V[None], torch.tensor([token], device=logprobs_V.device))
            removed, alternatives = details
            event = replace(event, rank=rank, removed=removed, alternatives=alternatives)
        return replace(hypothesis.plus(token), events=(*hypothesis.events, event), total=total)

    def _finish(self, request: Request, hypothesis: _LiveHypothesis, cut: Finish | None) -> Finish | None:
        text = hypothesis.text
        if text[-1] in self._end_ids:
            return "end"
        if self._ends is not None and self._ends(request.prompt, text[len(text) - hypothesis.n_written :]):
            return "stop"
        return cut

    def _is_done(self, group: _Group, live: list[_LiveHypothesis]) -> bool:
        """Whether the search is done; see `Beam.early_stopping`."""
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
        possible: float = max(one.total for one in live) / length**penalty
        return possible <= group.finished[-1].score

    def _results(self, request: Request) -> list[TokenEvent]:
        """The events of the best hypotheses of all groups."""
        groups = self._groups.pop((request.prompt, request.sample))
        tree = self._trees.pop((request.prompt, request.sample))
        finished = sorted((one for group in groups for one in group.finished), key=attrgetter("score"), reverse=True)
        events = []
        returned = finished[: self._settings.num_return]
        for rank, one in enumerate(returned):
            if one.node is not None:
                tree[one.node] = replace(tree[one.node], rank=rank)
        for rank, one in enumerate(returned):
            events += [replace(event, sample=rank) for event in one.events]
            kept = tuple(tree) if self.n_alternatives and not rank else None
            events[-1] = replace(events[-1], finish=one.finish, score=one.score, steps=request.n_steps, tree=kept)
        return events
