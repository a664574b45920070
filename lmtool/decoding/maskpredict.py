"""Mask-predict: fills the masks of a text with a bidirectional model.

Shapes: B rows, T positions, N requested positions, V vocabulary.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.decoding import filters
from lmtool.decoding.request import (
    Alternative,
    best_tokens,
    check_finite,
    mass_removed,
    nothing_left,
    random_key,
    ranks,
    uniform,
)
from lmtool.decoding.settings import MaskPredict
from lmtool.errors import UsageError
from lmtool.model.language_model import LanguageModel


@dataclass(frozen=True)
class Choice:
    """One token in place of a mask. rank, removed, alternatives: as in `TokenEvent`, when it was selected."""

    token: int
    logprob: float
    rank: int
    removed: float
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class Filled:
    """A text with filled masks.

    prompt, sample: which request. draw: sample number used to seed randomness. choices: one for each mask, in order.
    steps: number of forward passes.
    """

    prompt: int
    sample: int
    draw: int
    choices: tuple[Choice, ...]
    steps: int


_Search = Generator[tuple[list[int], list[int]], Tensor, list[Choice]]
"""Yields a text and the positions to score, is sent their logits (N, V), and returns the choices."""


def fill(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    mask_id: int,
    settings: MaskPredict,
    *,
    n: int = 1,
    first: int = 0,
    banned_ids: Collection[int] = (),
    max_rows: int = 16,
) -> Iterator[Filled]:
    """Fill the masks of each text `n` times; results in order of completion.

    A result is a function of the model, the settings, the text and the sample number, as in `generate`. Texts are
    batched by length, without padding.

    first: number of the first sample. banned_ids: tokens that are never predicted; [MASK] never is.

    Raises UsageError when the model is not bidirectional, and when a text has no mask or is longer than the context.
    Iterating raises NumericalError when the model's logits are not finite.
    """
    if model.reads != "both":
        raise UsageError(
            "mask-predict is for bidirectional models, which this one is not",
            fix="leave --strategy out, or choose greedy, sample or beam",
        )
    for i, ids in enumerate(texts, 1):
        where = f"prompt {i} of {len(texts)}" if len(texts) > 1 else ""
        if mask_id not in ids:
            raise UsageError("the prompt has no mask to fill", where=where, fix="put a mask at each position to fill")
        if model.context is not None and len(ids) > model.context:
            raise UsageError(
                f"the prompt has {len(ids)} tokens with its masks, but the model's context is {model.context}",
                where=where,
                fix="shorten it, or ask for fewer tokens",
            )
    return _run(model, texts, mask_id, settings, n, first, sorted({*banned_ids, mask_id}), max_rows)


@dataclass
class _Work:
    prompt: int
    sample: int
    draw: int
    search: _Search
    ids: list[int]
    wanted: list[int]
    steps: int = 0


def _run(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    mask_id: int,
    settings: MaskPredict,
    n: int,
    first: int,
    banned_ids: Sequence[int],
    max_rows: int,
) -> Iterator[Filled]:
    device = next(chain(model.parameters(), model.buffers())).device

    def begin() -> Iterator[_Work]:
        seen: Counter[tuple[int, ...]] = Counter()
        for i, text in enumerate(texts):
            ids = tuple(text)
            places = [place for place, token in enumerate(ids) if token == mask_id]
            for sample in range(n):
                draw = first + seen[ids] + sample
                if settings.by == "confidence":
                    search = _by_confidence(list(ids), places, mask_id, settings, banned_ids)
                else:
                    key = random_key(settings.seed, draw, ids)
                    search = _gibbs(list(ids), places, mask_id, settings, banned_ids, key)
                yield _Work(i, sample, draw, search, *next(search))
            seen[ids] += n

    was_training = model.training
    model.eval()
    try:
        waiting, working = begin(), list[_Work]()
        while True:
            working += islice(waiting, max_rows - len(working))
            if not working:
                return
            unfinished = []
            for _, equal in groupby(sorted(working, key=lambda work: len(work.ids)), key=lambda work: len(work.ids)):
                group = list(equal)
                for work, logits_NV in zip(group, _read(model, group, device), strict=True):
                    work.steps += 1
                    try:
                        work.ids, work.wanted = work.search.send(logits_NV)
                        unfinished.append(work)
                    except StopIteration as done:
                        yield Filled(work.prompt, work.sample, work.draw, tuple(done.value), work.steps)
            working = unfinished
    finally:
        model.train(was_training)


@torch.inference_mode()
def _read(model: LanguageModel, works: Sequence[_Work], device: torch.device) -> list[Tensor]:
    """The requested logits (N, V) of each; their texts have the same length."""
    tokens_BT = torch.tensor([work.ids for work in works], device=device)
    hidden_BTD = model(Batch(tokens_BT)).hidden_BTD
    wanted = [hidden_BTD[i, torch.tensor(work.wanted, device=device)] for i, work in enumerate(works)]
    with torch.autocast(device.type, enabled=False):
        logits_NV = model.logits(torch.cat(wanted)).float()
    if logits_NV.device.type == "mps":  # which has no float64
        logits_NV = logits_NV.cpu()
    check_finite(logits_NV)
    return list(torch.split(logits_NV, [len(work.wanted) for work in works]))


def _by_confidence(
    ids: list[int], places: list[int], mask_id: int, settings: MaskPredict, banned_ids: Sequence[int]
) -> _Search:
    """Ghazvininejad et al. 2019: round t of T re-masks and predicts the N (T - t) / T least confident tokens."""
    chosen: dict[int, Choice] = {}
    masked = places
    for done in range(settings.rounds):
        if done:
            n_masked = len(places) * (settings.rounds - done) // settings.rounds
            masked = sorted(sorted(places, key=lambda place: chosen[place].logprob)[:n_masked])
            if not masked:
                break
        for place in masked:
            ids[place] = mask_id
        logits_NV = yield ids, masked
        allowed_NV = _allowed(logits_NV, settings, banned_ids)
        choices = _choices(logits_NV, allowed_NV, allowed_NV.argmax(-1))
        for place, choice in zip(masked, choices, strict=True):
            ids[place], chosen[place] = choice.token, choice
    return [chosen[place] for place in places]


def _gibbs(
    ids: list[int], places: list[int], mask_id: int, settings: MaskPredict, banned_ids: Sequence[int], key: bytes
) -> _Search:
    """Wang and Cho 2019: Gibbs sampling, one token at a time given all others; each round in random order."""
    chosen: dict[int, Choice] = {}
    n_drawn = 0
    for _ in range(settings.rounds):
        order = sorted(range(len(places)), key=lambda i: uniform(key, n_drawn + i))
        n_drawn += len(places)
        for i in order:
            ids[places[i]] = mask_id
            logits_1V = yield ids, [places[i]]
            filtered_1V = filters.apply(_allowed(logits_1V, settings, banned_ids), settings)
            number = torch.tensor([uniform(key, n_drawn)], dtype=torch.float64, device=filtered_1V.device)
            n_drawn += 1
            (chosen[places[i]],) = _choices(logits_1V, filtered_1V, filters.draw(filtered_1V, number))
            ids[places[i]] = chosen[places[i]].token
    return [chosen[place] for place in places]


def _allowed(logits_NV: Tensor, settings: MaskPredict, banned_ids: Sequence[int]) -> Tensor:
    """The logits with -inf at excluded tokens."""
    allowed_NV = logits_NV.index_fill(-1, torch.tensor(banned_ids, device=logits_NV.device), -torch.inf)
    if settings.logit_bias:
        allowed_NV = filters.logit_bias(allowed_NV, settings.logit_bias)
    if (allowed_NV.amax(-1) == -torch.inf).any():
        raise nothing_left()
    return allowed_NV


def _choices(logits_NV: Tensor, allowed_NV: Tensor, ids_N: Tensor) -> list[Choice]:
    logprobs_NV = logits_NV.log_softmax(-1)
    logprobs = logprobs_NV.gather(-1, ids_N[:, None])[:, 0].tolist()
    removed, best = mass_removed(logprobs_NV, allowed_NV), best_tokens(logprobs_NV, allowed_NV)
    parts = zip(ids_N.tolist(), logprobs, ranks(logprobs_NV, ids_N), removed, best, strict=True)
    return [Choice(*part) for part in parts]
