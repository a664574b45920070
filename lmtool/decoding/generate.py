"""Token ids in, one event per generated token out: requests in a running batch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import filterfalse, islice

import torch

from lmtool.decoding.beam import BeamSearch
from lmtool.decoding.chain import Chain
from lmtool.decoding.reader import Prompt, Reader
from lmtool.decoding.request import ALTERNATIVES, Request, Strategy, TokenEvent, random_key
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.settings import Beam, Greedy, Overflow, Sample, refuse_draft
from lmtool.decoding.speculative import Draft, SpeculativeBatch
from lmtool.errors import UsageError
from lmtool.model.language_model import LanguageModel

__all__ = ["Generation", "Prompt", "TokenEvent", "generate"]


def generate(
    model: LanguageModel,
    prompts: Sequence[Prompt | Sequence[int]],
    settings: Greedy | Sample | Beam,
    *,
    n: int = 1,
    first: int = 0,
    end_ids: Collection[int] = (),
    banned_ids: Collection[int] = (),
    ends: Callable[[int, Sequence[int]], bool] | None = None,
    overflow: Overflow = "refuse",
    max_rows: int = 16,
    details: bool = False,
    draft: Draft | None = None,
) -> "Generation":
    """Continue each prompt `n` times; an iterator of events, interleaved over requests.

    The tokens of a request are a function of the model, the settings, the prompt and the sample number. Other requests,
    their order and `max_rows`, the maximum batch size, affect only the rounding of sums; with `max_rows` 1 not even
    that. A prompt given k times in `prompts` has k * n samples. A beam search has one sample, whose hypotheses are
    returned at the end, best first.

    The input is at most `model.context` tokens. When prompt and generated tokens exceed it, the oldest are dropped and
    the last half of the context is prefilled again, so that text can be of any length.

    prompts: ids alone are a prompt without a source.
    first: number of the first sample.
    end_ids: tokens that end a request; they are events too.
    banned_ids: tokens that are never generated.
    ends: of a beam search, the stopping criterion, given the prompt's index and the generated ids.
    overflow: how to treat prompts longer than the context; see `Reader.fit`.
    details: add ranks and the probability removed by filters to events.
    draft: proposes tokens, which the model verifies several at once: speculative decoding. Requests are then computed
        one at a time. What is sampled is a function of the draft too, if it is a model.

    The model is in evaluation mode while the iterator runs.

    Raises UsageError when the model has no next token, when the draft cannot propose tokens for it or for the settings,
    and as `Reader.fit` does. Iterating raises NumericalError when
    the model's logits are not finite, and UsageError when the filters exclude all tokens.
    """
    if model.reads == "both":
        raise UsageError(
            f"a bidirectional model has no next token, which {settings.name} needs",
            fix="fill masks with --strategy mask-predict",
        )
    if n < 1 or max_rows < 1:
        raise UsageError(f"{n} samples of each prompt, {max_rows} at once", fix="ask for at least 1 of each")
    if draft is not None:
        refuse_draft(settings)
        draft.check(model, 1 + max(set(range(model.vocab_size)) - set(banned_ids), default=-1))
    reader = Reader(model)
    places = [f"prompt {i} of {len(prompts)}" if len(prompts) > 1 else "" for i in range(1, len(prompts) + 1)]
    fitting = [
        reader.fit(prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)), overflow, where)
        for prompt, where in zip(prompts, places, strict=True)
    ]
    banned = torch.tensor(sorted(banned_ids), dtype=torch.long, device=reader.device)
    n_alternatives = ALTERNATIVES if details else 0
    strategy: Strategy
    if isinstance(settings, Beam):
        strategy = BeamSearch(settings, end_ids, banned, n_alternatives, ends)
    else:
        strategy = Chain(settings, end_ids, banned, n_alternatives)
    requests = requests_of(fitting, strategy, settings.seed, settings.max_new_tokens, n, first)
    if draft is not None:
        return Generation(model, SpeculativeBatch(reader, draft), requests, 1)
    return Generation(model, RunningBatch(reader), requests, max(1, max_rows // strategy.n_hypotheses))


def requests_of(
    prompts: Sequence[Prompt], strategy: Strategy, seed: int, max_new_tokens: int, n: int = 1, first: int = 0
) -> Iterator[Request]:
    """The n requests of each prompt, in order; sample numbers continue over equal prompts."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, prompt in enumerate(prompts):
        ids = (*(prompt.source or ()), *prompt.tokens)
        for sample in range(n):
            number = first + seen[ids] + sample
            yield Request(i, sample, number, prompt, random_key(seed, number, ids), strategy, max_new_tokens)
        seen[ids] += n


class Generation(Iterator[TokenEvent]):
    """The events of `generate`, in the order of generation."""

    def __init__(
        self, model: LanguageModel, batch: RunningBatch | SpeculativeBatch, requests: Iterator[Request], at_once: int
    ) -> None:
        self._model = model
        self._batch = batch
        self._stopped: set[tuple[int, int]] = set()
        self._events = self._run(requests, at_once)

    def __next__(self) -> TokenEvent:
        return next(self._events)

    def stop(self, prompt: int, sample: int) -> None:
        """Cancel a request: no more events of it follow. Its last event was just returned, or it has not started."""
        self._stopped.add((prompt, sample))

    def _is_stopped(self, request: Request | TokenEvent) -> bool:
        return (request.prompt, request.sample) in self._stopped

    def _run(self, waiting: Iterator[Request], at_once: int) -> Iterator[TokenEvent]:
        was_training = self._model.training
        self._model.eval()
        try:
            while True:
                n_free = at_once - len(self._batch.requests)
                for request in islice(filterfalse(self._is_stopped, waiting), n_free):
                    self._batch.join(request)
                if not self._batch.requests:
                    return
                yield from filterfalse(self._is_stopped, self._batch.step())
                for request in filter(self._is_stopped, self._batch.requests):
                    self._batch.leave(request)
        finally:
            self._model.train(was_training)
