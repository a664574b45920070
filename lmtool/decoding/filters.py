"""Logit filters, pure functions from logits to logits with -inf at excluded tokens; and sampling.

They are applied in the order of Hugging Face Transformers. First those of every left-to-right strategy (`steer`): bias,
repetition penalty, frequency and presence penalty, no-repeat n-grams, minimum length. Then those of sampling (`apply`),
in the order of the fields of `Sampling`: so top-p uses probabilities at the given temperature, among the tokens that
top-k kept. Ties are broken in favour of the lowest ids.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtool.decoding.constrained import FormState
from lmtool.decoding.settings import Limits, LogitBias, Sampling

Filter = Callable[[Tensor, Any], Tensor]


def steer(
    logits_BV: Tensor,
    settings: Limits,
    texts: Sequence[Sequence[int]],
    n_written: Sequence[int],
    end_ids: Collection[int],
) -> Tensor:
    """The filters of `Limits`, in the documented order.

    texts: the ids of each row so far, prompt included. n_written: number of new ones.
    """
    if settings.logit_bias:
        logits_BV = logit_bias(logits_BV, settings.logit_bias, texts)
    if settings.repetition_penalty != 1:
        logits_BV = repetition_penalty(logits_BV, settings.repetition_penalty, texts)
    if settings.frequency_penalty or settings.presence_penalty:
        new = [text[len(text) - n :] for text, n in zip(texts, n_written, strict=True)]
        logits_BV = count_penalties(logits_BV, settings.frequency_penalty, settings.presence_penalty, new)
    if settings.no_repeat_ngram:
        logits_BV = no_repeat_ngram(logits_BV, settings.no_repeat_ngram, texts)
    if end_ids and min(n_written) < settings.min_new_tokens:
        early = [i for i, n in enumerate(n_written) if n < settings.min_new_tokens]
        logits_BV = _without(logits_BV, [(i, token) for i in early for token in end_ids])
    return logits_BV


def within(
    logits_BV: Tensor, forms: Sequence[FormState | None], end_ids: Collection[int], unfiltered_BV: Tensor
) -> Tensor:
    """Excludes tokens that the form of a row does not allow there.

    One that follows for certain has its unfiltered logit, whatever other filters exclude.
    """
    if not any(forms):
        return logits_BV
    excluded_BV = np.zeros(logits_BV.shape, dtype=np.bool_)
    for excluded_V, form in zip(excluded_BV, forms, strict=True):
        if form is not None:
            allowed_V = form.allowed_V
            np.logical_not(allowed_V, out=excluded_V[: len(allowed_V)])
            excluded_V[len(allowed_V) :] = True
            excluded_V[list(end_ids)] = not form.may_end
    logits_BV = logits_BV.masked_fill(torch.from_numpy(excluded_BV).to(logits_BV.device), -torch.inf)
    certain = [(i, form.forced[0]) for i, form in enumerate(forms) if form is not None and form.forced]
    if not certain:
        return logits_BV
    rows_N, tokens_N = torch.tensor(certain, device=logits_BV.device).T
    return logits_BV.index_put((rows_N, tokens_N), unfiltered_BV[rows_N, tokens_N])


def apply(logits_BV: Tensor, settings: Sampling) -> Tensor:
    """The active filters of sampling, in the order of the fields of `Sampling`."""
    for field in fields(Sampling):
        value = getattr(settings, field.name)
        if value is not None:
            logits_BV = FILTERS[field.name](logits_BV, value)
    return logits_BV


def logit_bias(logits_BV: Tensor, biases: LogitBias, texts: Sequence[Sequence[int]] | None = None) -> Tensor:
    """Each bias added to the logit of the last id of its sequence, in rows that end with the preceding ids.

    texts: the ids of each row so far; not used for sequences of one id.
    """
    added_BV = torch.zeros_like(logits_BV)
    for n, biased in _biased_after(biases).items():
        if not n:
            ids_N, bias_N = biased[()]
            added_BV[:, ids_N.to(added_BV.device)] += bias_N.to(added_BV)
            continue
        for added_V, text in zip(added_BV, texts or (), strict=False):
            if (here := biased.get(tuple(text[-n:]))) is not None:
                added_V[here[0].to(added_V.device)] += here[1].to(added_V)
    return logits_BV + added_BV


@lru_cache(maxsize=64)
def _biased_after(biases: LogitBias) -> dict[int, dict[tuple[int, ...], tuple[Tensor, Tensor]]]:
    """Ids and their biases after each sequence of preceding ids, by the length of these; of equal ones the sum."""
    totals: dict[int, dict[tuple[int, ...], dict[int, float]]] = {}
    for (*before, last), bias in biases:
        after = totals.setdefault(len(before), {}).setdefault(tuple(before), {})
        after[last] = after.get(last, 0.0) + bias
    return {
        n: {before: (torch.tensor([*sums]), torch.tensor([*sums.values()])) for before, sums in after.items()}
        for n, after in totals.items()
    }


def repetition_penalty(logits_BV: Tensor, penalty: float, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits of tokens in the text so far, divided by the penalty where positive, else multiplied (Keskar et al. 2019).

    The paper divides all; multiplying negative ones, as Transformers does, keeps a penalty from becoming a reward.
    """
    seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
    for i, text in enumerate(texts):
        seen_BV[i, list(set(text))] = True
    penalised_BV = torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return torch.where(seen_BV, penalised_BV, logits_BV)


def count_penalties(logits_BV: Tensor, frequency: float, presence: float, new: Sequence[Sequence[int]]) -> Tensor:
    """logit - count * frequency - (count > 0) * presence, where count is how often the token is in the new text.

    As the API of OpenAI defines its `frequency_penalty` and `presence_penalty`. new: the generated ids of each row.
    """
    counts_BV = torch.zeros_like(logits_BV)
    for i, ids in enumerate(new):
        counts_BV[i] = torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=counts_BV.shape[1])
    return logits_BV - counts_BV * frequency - (counts_BV > 0) * presence


def no_repeat_ngram(logits_BV: Tensor, n: int, texts: Sequence[Sequence[int]]) -> Tensor:
    """Excludes tokens that would repeat an n-gram of the text (Paulus et al. 2018)."""
    repeated = []
    for i, text in enumerate(texts):
        last = list(text[len(text) - n + 1 :])
        starts = range(len(text) - n + 1)
        repeated += [(i, text[j + n - 1]) for j in starts if list(text[j : j + n - 1]) == last]
    return _without(logits_BV, repeated)


def temperature(logits_BV: Tensor, t: float) -> Tensor:
    """Logits divided by `t`; shifted so that the highest is 0.

    As t goes to 0 sampling becomes greedy; at 0 only the most probable token is kept, the lowest id among ties.
    """
    if t == 0:
        return torch.full_like(logits_BV, -torch.inf).scatter(-1, logits_BV.argmax(-1, keepdim=True), 0.0)
    highest_B1 = logits_BV.amax(-1, keepdim=True)
    # The shift avoids inf - inf for a tiny t; a t below the dtype's smallest normal number would divide by 0.
    return (logits_BV - highest_B1) / max(t, torch.finfo(logits_BV.dtype).tiny)


def top_k(logits_BV: Tensor, k: int) -> Tensor:
    """The k highest logits of each row, exactly k of them (Fan et al. 2018).

    Transformers keeps all ties with the k-th token; here only the lowest ids among them, so that k = 1 is greedy.
    """
    if k >= logits_BV.shape[-1]:
        return logits_BV
    keep_BV = _highest(logits_BV, logits_BV.topk(k).values[:, -1:], k)
    return logits_BV.masked_fill(~keep_BV, -torch.inf)


def top_p(logits_BV: Tensor, p: float) -> Tensor:
    """Nucleus: the fewest most probable tokens with total probability p (Holtzman et al. 2020); never empty."""
    if p == 1:  # rounding would drop tokens from the tail
        return logits_BV
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    vocab_size = logits_BV.shape[-1]
    for n_sorted in (64, 4096, vocab_size):  # usually few suffice, and a full sort can take longer than the model
        sorted_BK = mass_BV.topk(min(n_sorted, vocab_size)).values
        total_BK = sorted_BK.cumsum(-1)
        if (total_BK[:, -1] >= p).all():
            break
    n_kept_B1 = (total_BK - sorted_BK < p).sum(-1, keepdim=True)
    keep_BV = _highest(mass_BV, sorted_BK.gather(-1, n_kept_B1 - 1), n_kept_B1)
    return logits_BV.masked_fill(~keep_BV, -torch.inf)


def min_p(logits_BV: Tensor, p: float) -> Tensor:
    """Tokens at least p times as probable as the most probable one (Nguyen et al. 2025)."""
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    return logits_BV.masked_fill(mass_BV < p * mass_BV.amax(-1, keepdim=True), -torch.inf)


def typical_p(logits_BV: Tensor, p: float) -> Tensor:
    """The smallest set of tokens with -log p nearest to the entropy and total probability p; never empty.

    Locally typical sampling (Meister et al. 2023). Ties are broken in favour of the lowest ids.
    """
    if p == 1:
        return logits_BV
    logprobs_BV = logits_BV.log_softmax(-1, dtype=torch.float64)
    mass_BV = logprobs_BV.exp()
    entropy_B1 = -torch.where(mass_BV > 0, mass_BV * logprobs_BV, 0.0).sum(-1, keepdim=True)
    near_BV, order_BV = (logprobs_BV + entropy_B1).abs().sort(dim=-1, stable=True)
    sorted_BV = mass_BV.gather(-1, order_BV)
    # A token of probability 0 is infinitely far from the entropy, so it is last.
    keep_BV = (sorted_BV.cumsum(-1) - sorted_BV < p) & near_BV.isfinite()
    return logits_BV.masked_fill(~keep_BV.scatter(-1, order_BV, keep_BV), -torch.inf)


FILTERS: dict[str, Filter] = {one.__name__: one for one in (temperature, top_k, top_p, min_p, typical_p)}
"""The filter of each field of `Sampling`, by its name."""


def draw(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Ids (B,) sampled from softmax(logits) by inverse CDF at float64 `uniform_B` in [0, 1).

    Each row uses one number and depends on its own logits only. Tokens of probability 0 are never sampled.
    """
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    total_BV = mass_BV.cumsum(-1)  # a GPU's cumulative sum can rise, by rounding, where the probability is 0
    return ((total_BV > uniform_B[:, None] * total_BV[:, -1:]) & (mass_BV > 0)).int().argmax(-1)


def _highest(scores_BV: Tensor, lowest_B1: Tensor, n: Tensor | int) -> Tensor:
    """Mask of the n highest scores of each row, of which `lowest_B1` is the lowest; lower ids first among ties."""
    above_BV = scores_BV > lowest_B1
    tied_BV = scores_BV == lowest_B1
    room_B1 = n - above_BV.sum(-1, keepdim=True)
    return above_BV | (tied_BV & (tied_BV.cumsum(-1) <= room_B1))


def _without(logits_BV: Tensor, excluded: Sequence[tuple[int, int]]) -> Tensor:
    """Sets these (row, token) to -inf."""
    if not excluded:
        return logits_BV
    rows_N, tokens_N = torch.tensor(excluded, device=logits_BV.device).T
    return logits_BV.index_put((rows_N, tokens_N), logits_BV.new_tensor(-torch.inf))
