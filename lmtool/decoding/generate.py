"""Token ids in, one event per generated token out: prefill, cached decoding steps, continuous batching.

Shapes: B rows, V vocabulary.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import filterfalse, islice

import torch

from lmtool.decoding.beam import BeamSearch
from lmtool.decoding.chain import Chain
from lmtool.decoding.reader import Prompt, Reader
from lmtool.decoding.request import Request, Strategy, TokenEvent, random_key
from lmtool.decoding.settings import Beam, Greedy, Overflow, Sample
from lmtool.errors import UsageError
from lmtool.model.language_model import DecodeState, LanguageModel

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

    The model is in evaluation mode while the iterator runs.

    Raises UsageError when the model has no next token, and as `Reader.fit` does. Iterating raises NumericalError when
    the model's logits are not finite, and UsageError when the filters exclude all tokens.
    """
    if model.reads == "both":
        raise UsageError(
            f"a bidirectional model has no next token, which {settings.name} needs",
            fix="fill masks with --strategy mask-predict",
        )
    if n < 1 or max_rows < 1:
        raise UsageError(f"{n} samples of each prompt, {max_rows} at once", fix="ask for at least 1 of each")
    reader = Reader(model)
    places = [f"prompt {i} of {len(prompts)}" if len(prompts) > 1 else "" for i in range(1, len(prompts) + 1)]
    fitting = [
        reader.fit(prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt)), overflow, where)
        for prompt, where in zip(prompts, places, strict=True)
    ]
    banned = torch.tensor(sorted(banned_ids), dtype=torch.long, device=reader.device)
    strategy: Strategy
    if isinstance(settings, Beam):
        strategy = BeamSearch(settings, end_ids, banned, details, ends)
    else:
        strategy = Chain(settings, end_ids, banned, details)
    return Generation(model, reader, strategy, _requests(fitting, settings.seed, n, first), max_rows)


def _requests(prompts: list[Prompt], seed: int, n: int, first: int) -> Iterator[Request]:
    """All requests in order; sample numbers continue over equal prompts."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, prompt in enumerate(prompts):
        ids = (*(prompt.source or ()), *prompt.tokens)
        for sample in range(n):
            number = first + seen[ids] + sample
            yield Request(i, sample, number, prompt, random_key(seed, number, ids))
        seen[ids] += n


class Generation(Iterator[TokenEvent]):
    """The events of `generate`, in the order of generation."""

    def __init__(
        self, model: LanguageModel, reader: Reader, strategy: Strategy, requests: Iterator[Request], max_rows: int
    ) -> None:
        self._model = model
        self._reader = reader
        self._strategy = strategy
        self._stopped: set[tuple[int, int]] = set()
        self._events = self._run(requests, max(1, max_rows // strategy.n_hypotheses))

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
            reading: list[Request] = []  # their hypotheses are the rows of `state`, without the last token of each
            unread: list[Request] = []  # their hypotheses need a new prefill
            state: DecodeState | None = None
            while True:
                for request in islice(filterfalse(self._is_stopped, waiting), at_once - len(reading) - len(unread)):
                    request.began = time.perf_counter()
                    self._strategy.begin(request)
                    unread.append(request)
                if not reading and not unread:
                    return
                last = [one.window.tokens[-1] for request in reading for one in request.hypotheses]
                windows = [one.window for request in unread for one in request.hypotheses]
                logits_BV, states = self._reader.read(last, state, windows)
                requests = reading + unread
                counts = [len(request.hypotheses) for request in requests]
                parents, events = self._strategy.step(logits_BV, requests)
                yield from filterfalse(self._is_stopped, events)
                reading, unread, kept, start = [], [], [], 0
                for request, own, count in zip(requests, parents, counts, strict=True):
                    if request.hypotheses and not self._is_stopped(request):
                        if self._reader.has_room(request.hypotheses[0].window):
                            reading.append(request)
                            kept += [start + parent for parent in own]
                        else:
                            self._slide(request)
                            unread.append(request)
                    start += count
                state = _chosen(states, kept)
        finally:
            self._model.train(was_training)

    def _slide(self, request: Request) -> None:
        request.hypotheses = [replace(one, window=self._reader.slid(one.window)) for one in request.hypotheses]


def _chosen(states: Sequence[DecodeState], rows: Sequence[int]) -> DecodeState | None:
    """The state of these rows, numbered through all states, in that order; None for no rows.

    Rows are selected before states are joined, so that hypotheses of a beam search share a cache line from the first
    step.
    """
    chosen, first = [], 0
    for state in states:
        own = [row - first for row in rows if first <= row < first + state.n_rows]
        first += state.n_rows
        if own:
            chosen.append(state if own == list(range(state.n_rows)) else state.pick(own))
    return DecodeState.join(chosen).trimmed() if chosen else None
