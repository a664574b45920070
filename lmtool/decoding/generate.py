"""Token ids in, one event per generated token out: requests in a running batch."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import filterfalse, islice
from typing import Any

import torch

from lmtool.decoding.beam import BeamSearch
from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.request import ALTERNATIVES, Request, RequestBatch, Strategy, TokenEvent, draws, random_key
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.settings import TOKEN_OPTIONS, Beam, Greedy, Sample, TokenOptions, refuse_draft
from lmtool.decoding.speculative import Draft, SpeculativeBatch
from lmtool.errors import UsageError
from lmtool.model.language_model import LanguageModel, evaluating
from lmtool.tokenization.prompt_format import Prompt


def generate(
    model: LanguageModel,
    prompts: Sequence[Prompt | Sequence[int]],
    settings: Greedy | Sample | Beam,
    options: TokenOptions = TOKEN_OPTIONS,
    draft: Draft | None = None,
    **changes: Any,
) -> Iterator[TokenEvent]:
    """Continue prompts; the events are in the order of generation, interleaved over requests.

    The tokens of a request are a function of the model, the settings, the prompt and the sample number. Other requests,
    their order and `max_rows`, the maximum batch size, affect only the rounding of sums; with `max_rows` 1 not even
    that. A prompt given k times in `prompts` has k * n samples. A beam search has one sample, whose hypotheses are
    returned at the end, best first.

    The input is at most `model.context` tokens. When prompt and generated tokens exceed it, the oldest are dropped and
    the last half of the context is prefilled again, so that text can be of any length.

    prompts: ids alone are a prompt without a source.
    draft: proposes tokens, which the model verifies several at once: speculative decoding. Requests are then computed
        one at a time. What is sampled is a function of the draft too, if it is a model.
    changes: fields of `TokenOptions`.

    Raises UsageError when the model has no next token, when the draft cannot propose tokens for it or for the settings,
    and as `ModelRunner.fit` does. The model is in evaluation mode while the iterator runs. Iterating raises
    NumericalError when the model's logits are not finite, and UsageError when the filters exclude all tokens.
    """
    options = replace(options, **changes)
    if model.reads == "both":
        what = f"a bidirectional model does not predict the next token, as {settings.name} needs"
        raise UsageError(what, fix="fill masks with --strategy mask-predict")
    if draft is not None:
        refuse_draft(settings)
        draft.check(model, 1 + max(set(range(model.vocab_size)) - set(options.banned_ids), default=-1))
    runner = ModelRunner(model)
    names = [f"prompt {i} of {len(prompts)}" if len(prompts) > 1 else "" for i in range(1, len(prompts) + 1)]
    fitting = [
        runner.fit(prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)), options.overflow, name)
        for prompt, name in zip(prompts, names, strict=True)
    ]
    banned = torch.tensor(sorted(options.banned_ids), dtype=torch.long, device=runner.device)
    common = options.end_ids, banned, ALTERNATIVES if options.details else 0
    strategy: Strategy = Sampler(settings, *common)
    if isinstance(settings, Beam):
        strategy = BeamSearch(settings, *common, options.ends)
    batch: RequestBatch = RunningBatch(runner) if draft is None else SpeculativeBatch(runner, draft)
    requests = requests_of(fitting, strategy, settings.seed, settings.max_new_tokens, options.n, options.first)
    at_once = max(1, options.max_rows // strategy.n_hypotheses) if draft is None else 1
    waiting = (replace(request, form=options.form) for request in requests)
    return _run(model, batch, waiting, at_once, options.stopped)


def _run(
    model: LanguageModel,
    batch: RequestBatch,
    waiting: Iterator[Request],
    at_once: int,
    stopped: Container[tuple[int, int]],
) -> Iterator[TokenEvent]:
    def is_stopped(request: Request | TokenEvent) -> bool:
        return (request.prompt, request.sample) in stopped

    with evaluating(model):
        while True:
            for request in islice(filterfalse(is_stopped, waiting), at_once - len(batch.requests)):
                batch.join(request)
            if not batch.requests:
                return
            yield from filterfalse(is_stopped, batch.step())
            for request in filter(is_stopped, batch.requests):
                batch.leave(request)


def requests_of(
    prompts: Sequence[Prompt], strategy: Strategy, seed: int, max_new_tokens: int, n: int = 1, first: int = 0
) -> Iterator[Request]:
    """The n requests of each prompt, in order; sample numbers continue over equal prompts."""
    texts = [(*(prompt.source or ()), *prompt.tokens) for prompt in prompts]
    for i, sample, draw in draws(texts, n, first):
        yield Request(i, sample, draw, prompts[i], random_key(seed, draw, texts[i]), strategy, max_new_tokens)
