"""Greedy decoding and sampling: each request is one hypothesis, extended by one token per step.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.constrained import FormState
from lmtool.decoding.request import (
    Choice,
    Finish,
    Hypothesis,
    Request,
    Strategy,
    TokenEvent,
    chosen,
    nothing_left,
    uniform,
    with_constrained,
)
from lmtool.decoding.settings import Sample, has_chance


class Sampler(Strategy):
    """`Greedy` and `Sample`."""

    def begin(self, request: Request) -> None:
        request.hypotheses = [Hypothesis(request.start, request.start.text, form=request.form)]

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn, by uniform numbers."""
        return has_chance(self._limits)

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        filtered_BV = self.filtered(logits_BV, [request.hypotheses[0] for request in requests])
        ids = self.choose(filtered_BV, [uniform(request.key, request.n_steps) for request in requests])
        ids = [self.in_time(request, token) for request, token in zip(requests, ids, strict=True)]
        return [[0]] * len(requests), self.extend(requests, ids, logits_BV, filtered_BV)

    def filtered(self, logits_BV: Tensor, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """The logits of the token after each hypothesis, after all filters.

        Raises NumericalError when they are not finite, and UsageError when the filters exclude all tokens.
        """
        filtered_BV = self._steered(logits_BV, hypotheses)
        empty_B = (filtered_BV.amax(-1) == -torch.inf).tolist()
        if any(empty_B):
            raise nothing_left(compress(hypotheses, empty_B))
        return filters.apply(filtered_BV, self._limits) if isinstance(self._limits, Sample) else filtered_BV

    def choose(self, filtered_BV: Tensor, uniforms: Sequence[float]) -> list[int]:
        """The token of each row: the most probable one, or the one drawn by its uniform number in [0, 1)."""
        if not self.samples:
            return filtered_BV.argmax(-1).tolist()
        uniform_B = torch.tensor(uniforms, dtype=torch.float64, device=filtered_BV.device)
        return filters.draw(filtered_BV, uniform_B).tolist()

    def in_time(self, request: Request, token: int) -> int:
        """The token, or the one that begins to close the form of a text which could not be closed after it."""
        form = request.hypotheses[0].form
        n_left = request.max_new_tokens - request.n_steps - 1
        if form is None or not form.form.complete or self.ends(token):
            return token
        request.ahead = form.plus(token)
        if form.fits(token, n_left):
            return token
        if form.may_end and self._end_ids:
            return min(self._end_ids)
        return form.further[0] if form.further else token

    def _is_full(self, request: Request, form: FormState | None) -> bool:
        """Whether a text that is to be complete has its form, and no token is left, or none that ends it later."""
        if form is None or not (form.form.complete and form.may_end):
            return False
        n_left = request.max_new_tokens - request.n_steps
        return n_left == 0 or not (self._end_ids or (form.further and len(form.further) <= n_left))

    def extend(
        self, requests: Sequence[Request], ids: Sequence[int], logits_BV: Tensor, filtered_BV: Tensor
    ) -> list[TokenEvent]:
        """Add a token to the hypothesis of each request, which was chosen among these logits; returns the events."""
        ids_B = torch.tensor(ids, device=logits_BV.device)
        forms = [request.hypotheses[0].form for request in requests]
        logprobs_BV = logits_BV.log_softmax(-1)
        choices = chosen(logprobs_BV, filtered_BV, ids_B, self.n_alternatives)
        choices = with_constrained(choices, logprobs_BV, forms, self._end_ids)
        # what can fail comes before any request is changed
        longer = [request.hypotheses[0].plus(choice.token) for request, choice in zip(requests, choices, strict=True)]
        return [self.take(*each) for each in zip(requests, choices, longer, strict=True)]

    def take(self, request: Request, choice: Choice, extended: Hypothesis) -> TokenEvent:
        """Give a request its hypothesis with one more token; returns the event of that."""
        request.n_steps += 1
        ends = "stop" if extended.is_complete or self._is_full(request, extended.form) else self._cut(request)
        finish: Finish | None = "end" if self.ends(choice.token) else ends
        request.hypotheses = [] if finish else [extended]
        return request.event(choice, finish)

    def ends(self, token: int) -> bool:
        """Whether the text ends with this token."""
        return token in self._end_ids
