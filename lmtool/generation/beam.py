"""Beam search and diverse beam search; each hypothesis of a request is a row.

Shapes: B rows, V vocabulary, L live hypotheses of one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from lmtool.generation.request import BeamNode, FinishReason, Token
from lmtool.generation.strategy import (
    Hypothesis,
    RequestState,
    RequestStep,
    Strategy,
    Written,
    make_tokens,
    nothing_left,
    with_constrained,
)
from lmtool.generation.text import reaches_stop


@dataclass(frozen=True)
class BeamHypothesis(Hypothesis):
    """A hypothesis with the sum of its log-probabilities, after filters; finish, score: of a finished one.

    node: its index in the tree.
    """

    tokens: tuple[Token, ...] = ()
    total: float = 0.0
    node: int | None = None
    finish: FinishReason | None = None
    score: float = 0.0


@dataclass
class BeamGroup:
    """n_live: number of the request's live hypotheses in this group. finished: the best finished ones."""

    n_live: int = 1
    finished: list[BeamHypothesis] = field(default_factory=list)


@dataclass
class BeamTree:
    """The search of a request. nodes: all hypotheses, if details are requested."""

    groups: list[BeamGroup]
    nodes: list[BeamNode] = field(default_factory=list)


class BeamSearch(Strategy):
    """Keeps the best hypotheses of each request.

    At each step every live hypothesis is expanded by every token. The best candidates are taken in order: one that ends
    is finished if it is among the first `num_beams`, the others stay live (as in Transformers).
    """

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[RequestStep]:
        logprobs_BV = logits_BV.log_softmax(-1)
        steered_BV = self._steer(logprobs_BV, [one for state in states for one in state.hypotheses])
        steps, first = [], 0
        for state in states:
            rows = slice(first, first + len(state.hypotheses))
            steps.append(self._step_all_groups(state, logprobs_BV[rows], steered_BV[rows]))
            first = rows.stop
        return steps

    @property
    def _width(self) -> int:
        return self.params.num_beams // self.params.groups

    def _step_all_groups(self, state: RequestState, logprobs_LV: Tensor, steered_LV: Tensor) -> RequestStep:
        limit = state.limit_reached(state.n_steps + 1)
        state.search = search = state.search or BeamTree([BeamGroup() for _ in range(self.params.groups)])
        beams = [one if isinstance(one, BeamHypothesis) else BeamHypothesis(**vars(one)) for one in state.hypotheses]
        extended: list[tuple[int, BeamHypothesis]] = []
        chosen_V = steered_LV.new_zeros(steered_LV.shape[-1], dtype=torch.float64)
        first = 0
        for group in search.groups:
            rows = slice(first, first + group.n_live)
            live = beams[rows]
            if not live:
                continue
            totals = torch.tensor([one.total for one in live], dtype=torch.float64, device=steered_LV.device)
            totals_LV = steered_LV[rows] + totals[:, None]
            best = self._best(totals_LV - self.params.diversity * chosen_V)
            if not best and not group.finished:
                raise nothing_left(live)
            candidates = self._expand(state, live, best, logprobs_LV[rows], totals_LV)
            kept = self._keep(state, search, group, candidates, limit)
            for row, hypothesis in kept:
                chosen_V[hypothesis.text[-1]] += 1
                extended.append((first + row, hypothesis))
            group.n_live = len(kept)
            first = rows.stop
        written = [] if extended else self._results(search)
        return RequestStep([hypothesis for _, hypothesis in extended], [row for row, _ in extended], written)

    def _best(self, totals_LV: Tensor) -> list[tuple[int, int]]:
        """(row, token) of the best candidates, enough to fill a group; ties in order."""
        n = min((1 + max(1, len(self.end_ids))) * self._width, totals_LV.numel())
        flat = totals_LV.flatten()
        least = flat.topk(n).values[-1]
        candidates = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        order = flat[candidates].sort(descending=True, stable=True).indices[:n]
        return [divmod(index, totals_LV.shape[-1]) for index in candidates[order].tolist()]

    def _expand(
        self,
        state: RequestState,
        live: Sequence[BeamHypothesis],
        best: Sequence[tuple[int, int]],
        logprobs_LV: Tensor,
        totals_LV: Tensor,
    ) -> list[tuple[int, BeamHypothesis]]:
        """Live hypotheses extended by the best (row, token), and the row of each. Their node is still the parent's."""
        if not best:
            return []
        rows, ids = torch.tensor(best, device=logprobs_LV.device).T
        # excluded tokens have a total of -inf
        tokens = make_tokens(logprobs_LV[rows], totals_LV[rows], ids, self.n_alternatives)
        tokens = with_constrained(tokens, logprobs_LV[rows], [live[row].form for row, _ in best], self.end_ids)
        candidates = []
        for (row, _), token, total in zip(best, tokens, totals_LV[rows, ids].tolist(), strict=True):
            one = replace(live[row].plus(token.id), tokens=(*live[row].tokens, token), total=total)
            finish: FinishReason | None = "end" if token.id in self.end_ids else None
            if finish is None and (one.is_complete or reaches_stop(state.request, one.text[-one.n_generated :])):
                finish = "stop"
            candidates.append((row, replace(one, finish=finish)))
        return candidates

    def _keep(
        self,
        state: RequestState,
        search: BeamTree,
        group: BeamGroup,
        candidates: Sequence[tuple[int, BeamHypothesis]],
        limit: FinishReason | None,
    ) -> list[tuple[int, BeamHypothesis]]:
        """The candidates that stay live, none when the group is done; those that end are finished."""
        live: list[tuple[int, BeamHypothesis]] = []
        for rank, (row, one) in enumerate(candidates):
            finish = one.finish or limit
            if finish is None and len(live) < self._width:
                live.append((row, self._append_node(search, one)))
            elif finish is not None and rank < self._width:
                score = one.total / one.n_generated**self.params.length_penalty
                group.finished.append(self._append_node(search, replace(one, finish=finish, score=score)))
        group.finished = sorted(group.finished, key=attrgetter("score"), reverse=True)[: self._width]
        return [] if self._is_done(group, [one for _, one in live], state.request.params.max_new_tokens) else live

    def _append_node(self, search: BeamTree, one: BeamHypothesis) -> BeamHypothesis:
        """The hypothesis, whose node is still its parent's, with a node of the tree; without details there is none."""
        if not self.n_alternatives:
            return one
        score = None if one.finish is None else one.score
        search.nodes.append(BeamNode(one.node, one.text[-1], one.total, one.finish, score))
        return replace(one, node=len(search.nodes) - 1)

    def _is_done(self, group: BeamGroup, live: list[BeamHypothesis], max_new_tokens: int) -> bool:
        """Whether the search is done; see `early_stopping`."""
        if not live:
            return True
        if len(group.finished) < self._width:
            return False
        penalty = self.params.length_penalty
        match self.params.early_stopping:
            case "yes":
                return True
            case "never" if penalty > 0:
                length = max_new_tokens
            case _:
                length = live[0].n_generated
        possible: float = max(one.total for one in live) / length**penalty
        return possible <= group.finished[-1].score

    def _results(self, search: BeamTree) -> list[Written]:
        """The best hypotheses of all groups, the first with the tree, which has their ranks."""
        finished = [one for group in search.groups for one in group.finished]
        returned = sorted(finished, key=attrgetter("score"), reverse=True)[: self.params.num_return]
        ranks = {one.node: rank for rank, one in enumerate(returned)}
        tree = tuple(replace(node, rank=ranks.get(i)) for i, node in enumerate(search.nodes)) or None
        found = [Written(one.tokens, one.finish, rank, one.score) for rank, one in enumerate(returned)]
        return [found[0]._replace(tree=tree), *found[1:]]
