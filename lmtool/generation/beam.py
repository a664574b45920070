"""Beam search and diverse beam search. Each hypothesis of a request is a row.

Shapes: B rows, V vocabulary, L live hypotheses of one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor

from lmtool.generation.detokenizer import contains_stop_string
from lmtool.generation.request import BeamNode, FinishReason, Token
from lmtool.generation.strategy import (
    Hypothesis,
    NewTokens,
    RequestState,
    Strategy,
    StrategyStep,
    no_allowed_token_error,
)


@dataclass(frozen=True)
class BeamHypothesis(Hypothesis):
    """A hypothesis of beam search.

    total: sum of its log-probabilities, after filters. node: its index in the tree. finish, score: of a finished one.
    """

    tokens: tuple[Token, ...] = ()
    total: float = 0.0
    node: int | None = None
    finish: FinishReason | None = None
    score: float = 0.0


@dataclass
class DiverseBeamGroup:
    """A group of diverse beam search. n_live: number of its live hypotheses. finished: its best finished ones."""

    n_live: int = 1
    finished: list[BeamHypothesis] = field(default_factory=list)


@dataclass
class BeamState:
    """The state of a beam search. nodes: the tree of all hypotheses, if details are requested."""

    groups: list[DiverseBeamGroup]
    nodes: list[BeamNode] = field(default_factory=list)


class BeamSearch(Strategy):
    """Keeps the best hypotheses of each request.

    At each step every live hypothesis is expanded by every token. The best candidates are taken in order: one that ends
    is finished if it is among the first `num_beams`, the others stay live (as in Transformers).
    """

    @torch.inference_mode()
    def choose_next_tokens(self, logits_BV: Tensor, states: Sequence[RequestState]) -> list[StrategyStep]:
        logprobs_BV = logits_BV.log_softmax(-1)
        scores_BV = self._process_logits(logprobs_BV, [one for state in states for one in state.hypotheses])
        steps, first = [], 0
        for state in states:
            rows = slice(first, first + len(state.hypotheses))
            steps.append(self._step_request(state, logprobs_BV[rows], scores_BV[rows]))
            first = rows.stop
        return steps

    @property
    def _group_width(self) -> int:
        return self.params.num_beams // self.params.groups

    def _step_request(self, state: RequestState, logprobs_LV: Tensor, scores_LV: Tensor) -> StrategyStep:
        """Takes a step of all groups of a request. The last step has the best texts, the first of them with the tree.

        scores_LV: processed log-probabilities.
        """
        limit = state.get_limit_finish_reason(state.n_steps + 1)
        state.search = search = state.search or BeamState([DiverseBeamGroup() for _ in range(self.params.groups)])
        beams = [one if isinstance(one, BeamHypothesis) else BeamHypothesis(**vars(one)) for one in state.hypotheses]
        extended: list[tuple[int, BeamHypothesis]] = []
        chosen_V = scores_LV.new_zeros(scores_LV.shape[-1], dtype=torch.float64)
        first = 0
        for group in search.groups:
            rows = slice(first, first + group.n_live)
            live = beams[rows]
            if not live:
                continue
            totals = torch.tensor([one.total for one in live], dtype=torch.float64, device=scores_LV.device)
            totals_LV = scores_LV[rows] + totals[:, None]
            best = self._top_candidates(totals_LV - self.params.diversity * chosen_V)
            if not best and not group.finished:
                raise no_allowed_token_error(live)
            candidates = self._extend_hypotheses(state, live, best, logprobs_LV[rows], totals_LV)
            kept = self._store_finished_and_select_live(state, search, group, candidates, limit)
            for row, hypothesis in kept:
                chosen_V[hypothesis.text[-1]] += 1
                extended.append((first + row, hypothesis))
            group.n_live = len(kept)
            first = rows.stop
        if extended:
            return StrategyStep([hypothesis for _, hypothesis in extended], [row for row, _ in extended], [])
        finished = [one for group in search.groups for one in group.finished]
        returned = sorted(finished, key=attrgetter("score"), reverse=True)[: self.params.num_return]
        ranks = {one.node: rank for rank, one in enumerate(returned)}
        tree = tuple(replace(node, rank=ranks.get(i)) for i, node in enumerate(search.nodes)) or None
        texts = [NewTokens(one.tokens, one.finish, rank, one.score) for rank, one in enumerate(returned)]
        return StrategyStep([], [], [texts[0]._replace(tree=tree), *texts[1:]])

    def _top_candidates(self, totals_LV: Tensor) -> list[tuple[int, int]]:
        """Returns (row, token) of the best candidates, enough to fill a group; ties in order."""
        n = min((1 + max(1, len(self.end_ids))) * self._group_width, totals_LV.numel())
        flat = totals_LV.flatten()
        least = flat.topk(n).values[-1]
        candidates = ((flat >= least) & (flat > -torch.inf)).nonzero()[:, 0]
        order = flat[candidates].sort(descending=True, stable=True).indices[:n]
        return [divmod(index, totals_LV.shape[-1]) for index in candidates[order].tolist()]

    def _extend_hypotheses(
        self,
        state: RequestState,
        live: Sequence[BeamHypothesis],
        best: Sequence[tuple[int, int]],
        logprobs_LV: Tensor,
        totals_LV: Tensor,
    ) -> list[tuple[int, BeamHypothesis]]:
        """Extends live hypotheses by the best (row, token), and returns each with its row. Its node is its parent's."""
        if not best:
            return []
        rows, ids = torch.tensor(best, device=logprobs_LV.device).T
        # excluded tokens have a total of -inf
        tokens = self.make_tokens_with_constrained_logprobs(
            logprobs_LV[rows], totals_LV[rows], ids, [live[row].form for row, _ in best]
        )
        candidates = []
        for (row, _), token, total in zip(best, tokens, totals_LV[rows, ids].tolist(), strict=True):
            one = replace(live[row].with_token(token.id), tokens=(*live[row].tokens, token), total=total)
            finish: FinishReason | None = "end" if token.id in self.end_ids else None
            if finish is None and (
                one.is_complete or contains_stop_string(state.request, one.text[-one.n_generated :])
            ):
                finish = "stop"
            candidates.append((row, replace(one, finish=finish)))
        return candidates

    def _store_finished_and_select_live(
        self,
        state: RequestState,
        search: BeamState,
        group: DiverseBeamGroup,
        candidates: Sequence[tuple[int, BeamHypothesis]],
        limit_reason: FinishReason | None,
    ) -> list[tuple[int, BeamHypothesis]]:
        """Returns the candidates that stay live, none if the group is done; finishes those that end."""
        live: list[tuple[int, BeamHypothesis]] = []
        for rank, (row, one) in enumerate(candidates):
            finish = one.finish or limit_reason
            if finish is None and len(live) < self._group_width:
                live.append((row, self._append_tree_node_if_detailed(search, one)))
            elif finish is not None and rank < self._group_width:
                score = one.total / one.n_generated**self.params.length_penalty
                group.finished.append(
                    self._append_tree_node_if_detailed(search, replace(one, finish=finish, score=score))
                )
        group.finished = sorted(group.finished, key=attrgetter("score"), reverse=True)[: self._group_width]
        return [] if self._is_group_done(group, [one for _, one in live], state.request.params.max_new_tokens) else live

    def _append_tree_node_if_detailed(self, search: BeamState, one: BeamHypothesis) -> BeamHypothesis:
        """Adds a hypothesis, whose node is still its parent's, to the tree if details are requested."""
        if not self.n_alternatives:
            return one
        score = None if one.finish is None else one.score
        search.nodes.append(BeamNode(one.node, one.text[-1], one.total, one.finish, score))
        return replace(one, node=len(search.nodes) - 1)

    def _is_group_done(self, group: DiverseBeamGroup, live: list[BeamHypothesis], max_new_tokens: int) -> bool:
        """Whether the search of a group is done; see `early_stopping`."""
        if not live:
            return True
        if len(group.finished) < self._group_width:
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
