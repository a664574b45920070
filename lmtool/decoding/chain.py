"""Greedy decoding and sampling: each request is one hypothesis, extended by one token per step.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmtool.decoding import filters
from lmtool.decoding.request import (
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
    uniform,
)
from lmtool.decoding.settings import Sample


class Chain(Strategy):
    """`Greedy` and `Sample`."""

    def begin(self, request: Request) -> None:
        request.hypotheses = [Hypothesis(request.start, request.start.text)]

    @torch.inference_mode()
    def step(self, logits_BV: Tensor, requests: Sequence[Request]) -> tuple[list[list[int]], list[TokenEvent]]:
        check_finite(logits_BV)
        logprobs_BV = logits_BV.log_softmax(-1)
        filtered_BV = self._steered(logits_BV, [request.hypotheses[0] for request in requests])
        if (filtered_BV.amax(-1) == -torch.inf).any():
            raise nothing_left()
        if isinstance(self._limits, Sample):
            numbers = [uniform(request.key, request.n_steps) for request in requests]
            uniform_B = torch.tensor(numbers, dtype=torch.float64, device=logits_BV.device)
            filtered_BV = filters.apply(filtered_BV, self._limits)
            ids_B = filters.draw(filtered_BV, uniform_B)
        else:
            ids_B = filtered_BV.argmax(-1)
        rank = ranks(logprobs_BV, ids_B) if self._details else None
        removed = mass_removed(logprobs_BV, filtered_BV) if self._details else None
        best = best_tokens(logprobs_BV, filtered_BV) if self._details else None
        logprob = logprobs_BV.gather(-1, ids_B[:, None])[:, 0].tolist()
        events = []
        for i, (request, token) in enumerate(zip(requests, ids_B.tolist(), strict=True)):
            request.n_steps += 1
            finish = self._finish(request, token)
            request.hypotheses = [] if finish else [request.hypotheses[0].plus(token)]
            events.append(
                TokenEvent(
                    request.prompt,
                    request.sample,
                    token,
                    logprob[i],
                    finish,
                    rank[i] if rank else None,
                    removed[i] if removed else None,
                    steps=request.n_steps,
                    draw=request.draw,
                    alternatives=best[i] if best else None,
                )
            )
        return [[0]] * len(requests), events

    def _finish(self, request: Request, token: int) -> Finish | None:
        if token in self._end_ids:
            return "end"
        if request.n_steps == self._limits.max_new_tokens:
            return "length"
        return "time" if request.is_late(self._limits.max_time) else None
