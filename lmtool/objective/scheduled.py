"""Scheduled sampling: some input tokens in training are sampled from the model (Bengio et al. 2015).

Positions and random numbers are fixed when a batch is collated, independent of splits of the batch, resuming and the
number of processes. No gradient flows through the sampled tokens.

Shapes: B rows, T positions, R texts, L positions of a text, M sampled tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.model.language_model import evaluation_mode
from lmtool.objective.base import Example, Loss, Objective
from lmtool.objective.cross_entropy import add_auxiliary_loss, rows_per_chunk, token_loss_and_output
from lmtool.recipe.spec.objective import Causal, Prefix, ScheduledSampling, Seq2Seq, SpanCorruption


def true_token_probability(spec: ScheduledSampling, training_fraction: float) -> float:
    """Returns the probability of keeping the true token after this fraction of training.

    It decays in one of the paper's three ways, i being the step in percent of all steps: linear max(floor, 1 - k i),
    exponential k^i, inverse sigmoid k / (k + exp(i / k)).
    """
    i = 100 * training_fraction
    match spec.growth:
        case "linear":
            share = 1 - (spec.k or 0.01) * i
        case "exponential":
            share = (spec.k or 0.98) ** i
        case "inverse-sigmoid":
            k = spec.k or 15.0
            share = 1 / (1 + math.exp(i / k - math.log(k)))
    return max(spec.floor, share)


def draw_scheduled_sampling_numbers(
    spec: ScheduledSampling | None, examples: Sequence[Example], length: int, training_fraction: float
) -> Tensor | None:
    """Returns `Batch.draws_BT` for rows of `length` tokens; None without scheduled sampling.

    Each position takes two numbers of its row's generator, so that the length of other rows changes nothing.
    """
    if spec is None:
        return None
    numbers_BT2 = np.stack([example.rng.random((length, 2)) for example in examples])
    stays_BT = numbers_BT2[..., 0] < true_token_probability(spec, training_fraction)
    return torch.from_numpy(np.where(stays_BT, -1.0, numbers_BT2[..., 1]).astype(np.float32))


def sample_input_tokens(model: LanguageModel, batch: Batch) -> Batch:
    """Returns the batch with tokens sampled from the model where `draws_BT` is set, without dropout.

    A token is sampled only where the previous position has a target; `draws_BT` of the result is set there alone. A
    recurrent model samples step by step, given previously sampled tokens, as in the paper. A Transformer samples all
    tokens in one extra forward pass, given the true tokens (Mihaylova and Martins 2019). It does so even if no token is
    to be sampled, because the processes of sharded weights must take the same passes.
    """
    if batch.draws_BT is None or batch.targets_BT is None:
        return batch
    drawn_BT = batch.draws_BT >= 0
    drawn_BT[:, 0] = False
    drawn_BT[:, 1:] &= batch.targets_BT[:, :-1] != IGNORE
    if batch.keep_BT is not None:
        drawn_BT &= batch.keep_BT
    draws_BT = batch.draws_BT.masked_fill(~drawn_BT, -1.0)
    if model.recurrent and not drawn_BT.any():
        return replace(batch, draws_BT=draws_BT)
    with evaluation_mode(model), torch.no_grad():
        if model.recurrent:
            tokens_BT = _sample_step_by_step(model, batch, draws_BT)
        else:
            hidden_BTD, tokens_BT = model(batch).hidden_BTD, batch.tokens_BT.clone()
            tokens_BT[drawn_BT] = sample_tokens(model, hidden_BTD[:, :-1][drawn_BT[:, 1:]], draws_BT[drawn_BT])
    # torch 2.10 would reuse weights that autocast cast here, without gradients, in the training pass
    torch.clear_autocast_cache()
    return replace(batch, tokens_BT=tokens_BT, draws_BT=draws_BT)


def _sample_step_by_step(model: LanguageModel, batch: Batch, draws_BT: Tensor) -> Tensor:
    """Samples tokens given those sampled before, from one column with a sampled token to the next."""
    if batch.documents_BT is not None:
        return _sample_document_by_document(model, batch, draws_BT, batch.documents_BT)
    tokens_BT, state, read = batch.tokens_BT.clone(), model.initial_state(batch), 0
    drawn_BT = draws_BT >= 0
    for column in drawn_BT.any(0).nonzero()[:, 0].tolist():
        hidden_BTD, state = model.forward_incremental(tokens_BT[:, read:column], state)
        drawn_B, read = drawn_BT[:, column], column
        tokens_BT[drawn_B, column] = sample_tokens(model, hidden_BTD[drawn_B, -1], draws_BT[drawn_B, column])
    return tokens_BT


def _sample_document_by_document(model: LanguageModel, batch: Batch, draws_BT: Tensor, documents_BT: Tensor) -> Tensor:
    """Samples like `_sample_step_by_step`, with each document of a row as its own right-padded row."""
    begins_BT = torch.ones_like(draws_BT, dtype=torch.bool)
    begins_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    text_N = begins_BT.flatten().cumsum(0) - 1
    starts_R = begins_BT.flatten().nonzero()[:, 0]
    position_N = torch.arange(len(text_N), device=text_N.device) - starts_R[text_N]
    size = (len(starts_R), int(position_N.max()) + 1)

    def split_documents(values_BT: Tensor, filler: float) -> Tensor:
        values_RL = values_BT.new_full(size, filler)
        values_RL[text_N, position_N] = values_BT.flatten()
        return values_RL

    tokens_RL = _sample_step_by_step(model, Batch(split_documents(batch.tokens_BT, 0)), split_documents(draws_BT, -1))
    return tokens_RL[text_N, position_N].view_as(batch.tokens_BT)


def sample_tokens(model: LanguageModel, hidden_MD: Tensor, draws_M: Tensor) -> Tensor:
    """Samples tokens (M,) by inverse CDF: the first whose cumulative probability exceeds the number in `draws_M`."""
    rows = rows_per_chunk(hidden_MD.device, model.vocab_size)
    parts = []
    for hidden, numbers in zip(torch.split(hidden_MD, rows), torch.split(draws_M, rows), strict=True):
        logits_MV = model.logits(hidden)
        sums_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32)).softmax(-1).cumsum(-1)
        mass_M1 = numbers[:, None].to(sums_MV.dtype) * sums_MV[:, -1:]
        parts.append(torch.searchsorted(sums_MV, mass_M1, right=True)[:, 0].clamp(max=model.vocab_size - 1))
    return torch.cat(parts)


class TokenObjective(Objective):
    """Base of objectives whose loss is the cross-entropy of a batch's targets."""

    spec: Causal | Prefix | Seq2Seq | SpanCorruption

    def sample_inputs(self, model: LanguageModel, batch: Batch) -> Batch:
        return sample_input_tokens(model, batch)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        smoothing = 0.0 if isinstance(self.spec, SpanCorruption) else self.spec.label_smoothing
        loss, output = token_loss_and_output(model, sample_input_tokens(model, batch), smoothing)
        return add_auxiliary_loss(loss, output.auxiliary_B, batch.targets_BT)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return token_loss_and_output(model, batch)[0]
