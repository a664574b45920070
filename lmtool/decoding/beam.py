"""Beam search and diverse beam search; each hypothesis of a request is a row.

Shapes: B rows, V vocabulary, L live hypotheses of one group.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from lmtool.decoding.request import (
    BeamNode,
    Finish,
    Hypothesis,
    Request,
    Strategy,
    TokenEvent,
    chosen,
    nothing_left,
    with_constrained,
)
from lmtool.decoding.settings import Beam


@dataclass(frozen=True)
class _BeamHypothesis(Hypothesis):
    """A hypothesis with the sum of its log-probabilities, after filters; finish, score: of a finished one.

    node: its index in the tree.
    """

    events: tuple[TokenEvent, ...] = ()
    total: float = 0.0
    node: int | None = None
    finish: Finish | None = None
    score: float = 0.0


@dataclass
class _Group:
    """n_live: number of the request's live hypotheses in this group. finished: the best finished ones."""

    n_live: int = 1
    finished: list[_BeamHypothesis] = field(default_factory=list)


@dataclass
class _Search:
    """The search of a request. tree: all hypotheses, if details are requested."""

    groups: list[_Group]
    tree: list[BeamNode] = field(default_factory=list)


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
        self._searches: dict[tuple[int, int], _Search] = {}
        self._width = settings.num_beams // settings.groups
        self.n_hypotheses = settings.num_beams

    def begin(self, request: Request) -> None:
        groups = [_Group() for _ in range(self._settings.groups)]
        self._searches[request.prompt, request.sample] = _Search(groups)
        request.hypotheses = [_BeamHypothesis(request.start, request.start.text, form=request.form)] * len(groups)

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        logprobs_BV = logits_BV.log_softmax(-1)
        steered_BV = self._steered(logprobs_BV, [one for request in requests for one in request.hypotheses])
        parents, events, first = [], [], 0
        for request in requests:
            rows = slice(first, first + len(request.hypotheses))
            parents.append(self._advance(request, logprobs_BV[rows], steered_BV[rows]))
            first = rows.stop
            if not request.hypotheses:
                events += self._results(request)
        return parents, events

    def _advance(self, request: Request, logprobs_LV: Tensor, steered_LV: Tensor) -> list[int]:
        """One step of all groups; sets the request's new hypotheses, and returns the parent of each."""
        request.n_steps += 1
        cut = self._cut(request)
        search = self._searches[request.prompt, request.sample]
        extended: list[tuple[int, _BeamHypothesis]] = []
        chosen_V = steered_LV.new_zeros(steered_LV.shape[-1], dtype=torch.float64)
        first = 0
        for group in search.groups:
            rows = slice(first, first + group.n_live)
            live = [one for one in request.hypotheses[rows] if isinstance(one, _BeamHypothesis)]
            if not live:
                continue
            totals = torch.tensor([one.total for one in live], dtype=torch.float64, device=steered_LV.device)
            totals_LV = steered_LV[rows] + totals[:, None]
            best = self._best(totals_LV - self._settings.diversity * chosen_V)
            if not best and not group.finished:
                raise nothing_left(live)
            candidates = self._candidates(request, live, best, logprobs_LV[rows], totals_LV)
            kept = self._keep(search, group, candidates, cut)
            for row, hypothesis in kept:
                chosen_V[hypothesis.text[-1]] += 1
                extended.append((first + row, hypothesis))
            group.n_live = len(kept)
            first = rows.stop
        request.hypotheses = [hypothesis for _, hypothesis in extended]
        return [row for row, _ in extended]

    def _candidates(
        self,
        request: Request,
        live: Sequence[_BeamHypothesis],
        best: Sequence[tuple[int, int]],
        logprobs_LV: Tensor,
        totals_LV: Tensor,
    ) -> list[tuple[int, _BeamHypothesis]]:
        """Live hypotheses extended by the best (row, token), and the row of each. Their node is still the parent's."""
        if not best:
            return []
        rows, ids = torch.tensor(best, device=logprobs_LV.device).T
        # excluded tokens have a total of -inf
        choices = chosen(logprobs_LV[rows], totals_LV[rows], ids, self.n_alternatives)
        choices = with_constrained(choices, logprobs_LV[rows], [live[row].form for row, _ in best], self._end_ids)
        candidates = []
        for (row, token), choice, total in zip(best, choices, totals_LV[rows, ids].tolist(), strict=True):
            one = replace(live[row].plus(token), events=(*live[row].events, request.event(choice)), total=total)
            candidates.append((row, replace(one, finish=self._finish(request, one))))
        return candidates

    def _keep(
        self, search: _Search, group: _Group, candidates: Sequence[tuple[int, _BeamHypothesis]], cut: Finish | None
    ) -> list[tuple[int, _BeamHypothesis]]:
        """The candidates that stay live, none when the group is done; those that end are finished."""
        live: list[tuple[int, _BeamHypothesis]] = []
        for rank, (row, one) in enumerate(candidates):
            finish = one.finish or cut
            if finish is None and len(live) < self._width:
                live.append((row, self._recorded(search, one)))
            elif finish is not None and rank < self._width:
                score = one.total / one.n_written**self._settings.length_penalty
                group.finished.append(self._recorded(search, replace(one, finish=finish, score=score)))
        group.finished = sorted(group.finished, key=attrgetter("score"), reverse=True)[: self._width]
        return [] if self._is_done(group, [one for _, one in live]) else live

    def _recorded(self, search: _Search, one: _BeamHypothesis) -> _BeamHypothesis:
        """The hypothesis, whose node is still its parent's, with a node of the tree; without details there is none."""
        if not self.n_alternatives:
            return one
        score = None if one.finish is None else one.score
        search.tree.append(BeamNode(one.node, one.text[-1], one.total, one.finish, score))
        return replace(one, node=len(search.tree) - 1)

    def _best(self, totals_LV: Tensor) -> list[tuple[int, int]]:
        """(row, token) of the best candidates, enough to fill a group; ties in order."""
        n = min((1 + max(1, len(self._end_ids))) * self._width, totals_LV.numel())
        flat = totals_LV.flatten()
        least = flat.topk(n).values[-1]
        candidates = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        order = flat[candidates].sort(descending=True, stable=True).indices[:n]
        return [divmod(index, totals_LV.shape[-1]) for index in candidates[order].tolist()]

    def _finish(self, request: Request, hypothesis: _BeamHypothesis) -> Finish | None:
        text = hypothesis.text
        if text[-1] in self._end_ids:
            return "end"
        stops = self._ends is not None and self._ends(request.prompt, text[len(text) - hypothesis.n_written :])
        return "stop" if stops or hypothesis.is_complete else None

    def _is_done(self, group: _Group, live: list[_BeamHypothesis]) -> bool:
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
        search = self._searches.pop((request.prompt, request.sample))
        finished = [one for group in search.groups for one in group.finished]
        returned = sorted(finished, key=attrgetter("score"), reverse=True)[: self._settings.num_return]
        ranks = {one.node: rank for rank, one in enumerate(returned)}
        tree = tuple(replace(node, rank=ranks.get(i)) for i, node in enumerate(search.tree)) or None
        events = []
        for rank, one in enumerate(returned):
            events += [replace(event, sample=rank, draw=0) for event in one.events]
            last = replace(events[-1], finish=one.finish, score=one.score, steps=request.n_steps)
            events[-1] = last if rank else replace(last, tree=tree)
        return events
