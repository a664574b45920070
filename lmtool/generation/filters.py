"""Logits processors of every left-to-right strategy, and sampling from logits. Excluded tokens get a logit of -inf.

They are applied in the order of Hugging Face Transformers: bias, repetition penalty, frequency and presence penalty,
no-repeat n-grams, minimum length. Sampling filters come after them; see `lmtool.generation.params`.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lmtool.generation.constrained import FormState
from lmtool.generation.params import LogitBias, SamplingParams


def apply_logits_processors(
    logits_BV: Tensor,
    params: SamplingParams,
    texts: Sequence[Sequence[int]],
    n_generated: Sequence[int],
    end_ids: Collection[int],
) -> Tensor:
    """Applies the processors of all strategies in the documented order.

    texts: the ids of each row so far, prompt included. n_generated: number of new ones.
    """
    if params.logit_bias:
        logits_BV = add_logit_bias(logits_BV, params.logit_bias, texts)
    if params.repetition_penalty != 1:
        logits_BV = apply_repetition_penalty(logits_BV, params.repetition_penalty, texts)
    if params.frequency_penalty or params.presence_penalty:
        new = [text[len(text) - n :] for text, n in zip(texts, n_generated, strict=True)]
        logits_BV = apply_count_penalties(logits_BV, params.frequency_penalty, params.presence_penalty, new)
    if params.no_repeat_ngram:
        logits_BV = exclude_repeated_ngrams(logits_BV, params.no_repeat_ngram, texts)
    if end_ids and min(n_generated) < params.min_new_tokens:
        early = [i for i, n in enumerate(n_generated) if n < params.min_new_tokens]
        logits_BV = _exclude_tokens(logits_BV, [(i, token) for i in early for token in end_ids])
    return logits_BV


def exclude_by_forms(
    logits_BV: Tensor, forms: Sequence[FormState | None], end_ids: Collection[int], unfiltered_for_forced_BV: Tensor
) -> Tensor:
    """Excludes tokens that the form of a row does not allow. A forced token keeps its unfiltered logit."""
    if not any(forms):
        return logits_BV
    excluded_BV = np.zeros(logits_BV.shape, dtype=np.bool_)
    for excluded_V, form in zip(excluded_BV, forms, strict=True):
        if form is not None:
            np.logical_not(form.mask_allowed_tokens(len(excluded_V), end_ids), out=excluded_V)
    logits_BV = logits_BV.masked_fill(torch.from_numpy(excluded_BV).to(logits_BV.device), -torch.inf)
    forced = [(i, form.forced_tokens[0]) for i, form in enumerate(forms) if form is not None and form.forced_tokens]
    if not forced:
        return logits_BV
    rows_N, tokens_N = torch.tensor(forced, device=logits_BV.device).T
    return logits_BV.index_put((rows_N, tokens_N), unfiltered_for_forced_BV[rows_N, tokens_N])


def add_logit_bias(logits_BV: Tensor, biases: LogitBias, texts: Sequence[Sequence[int]] | None = None) -> Tensor:
    """Adds each bias to the logit of the last id of its sequence, in rows that end with the preceding ids.

    texts: the ids of each row so far; not used for sequences of one id.
    """
    added_BV = torch.zeros_like(logits_BV)
    for n, biased in _group_biases_by_prefix_length(biases).items():
        if not n:
            ids_N, bias_N = biased[()]
            added_BV[:, ids_N.to(added_BV.device)] += bias_N.to(added_BV)
            continue
        for added_V, text in zip(added_BV, texts or (), strict=False):
            if (here := biased.get(tuple(text[-n:]))) is not None:
                added_V[here[0].to(added_V.device)] += here[1].to(added_V)
    return logits_BV + added_BV


@lru_cache(maxsize=64)
def _group_biases_by_prefix_length(biases: LogitBias) -> dict[int, dict[tuple[int, ...], tuple[Tensor, Tensor]]]:
    """Groups biased ids by their preceding ids, and these by their length; biases of the same id are summed."""
    totals: dict[int, dict[tuple[int, ...], dict[int, float]]] = {}
    for (*before, last), bias in biases:
        after = totals.setdefault(len(before), {}).setdefault(tuple(before), {})
        after[last] = after.get(last, 0.0) + bias
    return {
        n: {before: (torch.tensor([*sums]), torch.tensor([*sums.values()])) for before, sums in after.items()}
        for n, after in totals.items()
    }


def apply_repetition_penalty(logits_BV: Tensor, penalty: float, texts: Sequence[Sequence[int]]) -> Tensor:
    """Divides positive logits of tokens in the text by the penalty, multiplies negative ones (Keskar et al. 2019).

    The paper divides all; multiplying negative ones, as Transformers does, keeps a penalty from becoming a reward.
    """
    seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
    for i, text in enumerate(texts):
        seen_BV[i, list(set(text))] = True
    penalised_BV = torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return torch.where(seen_BV, penalised_BV, logits_BV)


def apply_count_penalties(logits_BV: Tensor, frequency: float, presence: float, new: Sequence[Sequence[int]]) -> Tensor:
    """Returns logit - count * frequency - (count > 0) * presence, with the count of the token in the new text.

    The API of OpenAI defines its `frequency_penalty` and `presence_penalty` so. new: the generated ids of each row.
    """
    counts_BV = torch.zeros_like(logits_BV)
    for i, ids in enumerate(new):
        counts_BV[i] = torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=counts_BV.shape[1])
    return logits_BV - counts_BV * frequency - (counts_BV > 0) * presence


def exclude_repeated_ngrams(logits_BV: Tensor, n: int, texts: Sequence[Sequence[int]]) -> Tensor:
    """Excludes tokens that would repeat an n-gram of the text (Paulus et al. 2018)."""
    repeated = []
    for i, text in enumerate(texts):
        last = list(text[len(text) - n + 1 :])
        starts = range(len(text) - n + 1)
        repeated += [(i, text[j + n - 1]) for j in starts if list(text[j : j + n - 1]) == last]
    return _exclude_tokens(logits_BV, repeated)


def sample_ids(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Samples ids (B,) from softmax(logits) by inverse CDF at float64 `uniform_B` in [0, 1).

    Each row uses one number and depends on its own logits only. Tokens of probability 0 are never sampled.
    """
    mass_BV = logits_BV.softmax(-1, dtype=torch.float64)
    total_BV = mass_BV.cumsum(-1)  # a GPU's cumulative sum can rise, by rounding, where the probability is 0
    return ((total_BV > uniform_B[:, None] * total_BV[:, -1:]) & (mass_BV > 0)).int().argmax(-1)


def _exclude_tokens(logits_BV: Tensor, excluded: Sequence[tuple[int, int]]) -> Tensor:
    """Sets the logits of these (row, token) pairs to -inf."""
    if not excluded:
        return logits_BV
    rows_N, tokens_N = torch.tensor(excluded, device=logits_BV.device).T
    return logits_BV.index_put((rows_N, tokens_N), logits_BV.new_tensor(-torch.inf))
