"""Greedy decoding and sampling: each request is one hypothesis, extended by one token per step.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.request import Hypothesis, Request, Strategy, TokenEvent, chosen, nothing_left, uniform
from lmtool.decoding.settings import Sample


class Sampler(Strategy):
    """`Greedy` and `Sample`."""

    def begin(self, request: Request) -> None:
        request.hypotheses = [Hypothesis(request.start, request.start.text)]

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn, by uniform numbers."""
        return isinstance(self._limits, Sample)

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        filtered_BV = self.filtered(logits_BV, [request.hypotheses[0] for request in requests])
        ids = self.choose(filtered_BV, [uniform(request.key, request.n_steps) for request in requests])
        return [[0]] * len(requests), self.extend(requests, ids, logits_BV, filtered_BV)

    def filtered(self, logits_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """The logits of the token after each hypothesis, after all filters.

        Raises NumericalError when they are not finite, and UsageError when the filters exclude all tokens.
        """
        filtered_BV = self._steered(logits_BV, hypotheses)
        if (filtered_BV.amax(-1) == -torch.inf).any():
            raise nothing_left()
        return filters.apply(filtered_BV, self._limits) if isinstance(self._limits, Sample) else filtered_BV

    def choose(self, filtered_BV: Tensor, uniforms: Sequence[float]) -> list[int]:
        """The token of each row: the most probable one, or the one drawn by its uniform number in [0, 1)."""
        if not self.samples:
            return filtered_BV.argmax(-1).tolist()
        uniform_B = torch.tensor(uniforms, dtype=torch.float64, device=filtered_BV.device)
        return filters.draw(filtered_BV, uniform_B).tolist()

    def extend(
        self, requests: Sequence[Request], ids: Sequence[int], logits_BV: Tensor, filtered_BV: Tensor
    ) -> list[TokenEvent]:
        """Add a token to the hypothesis of each request, which was chosen among these logits; returns the events."""
        ids_B = torch.tensor(ids, device=logits_BV.device)
        choices = chosen(logits_BV.log_softmax(-1), filtered_BV, ids_B, self.n_alternatives)
        events = []
        for request, choice in zip(requests, choices, strict=True):
            request.n_steps += 1
            finish = "end" if self.ends(choice.token) else self._cut(request)
            request.hypotheses = [] if finish else [request.hypotheses[0].plus(choice.token)]
            events.append(request.event(choice, finish))
        return events

    def ends(self, token: int) -> bool:
        """Whether the text ends with this token."""
        return token in self._end_ids
