"""Interpolation of a language model with an n-gram model of the same tokens.

Shapes: B rows, N scored tokens, C tokens of context, V vocabulary of the language model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.model.language_model import ProbabilityInterpolation
from lmtool.model.ngram import NGramModel


@dataclass(frozen=True, eq=False)
class NGramInterpolation(ProbabilityInterpolation):
    """p = (1 - w) p_model + w p_ngram (Jelinek and Mercer 1980).

    ngram: on the CPU; it has at most as many ids as the language model. weight: w, between 0 and 1.
    """

    ngram: NGramModel
    weight: float

    def describe(self) -> str:
        return f"interpolated with a {self.ngram.order}-gram model, weight {self.weight:.2f}"

    def get_contexts(self, ids: Sequence[int], positions: Iterable[int]) -> list[Sequence[int]]:
        n = self.ngram.n_context_tokens
        return [ids[max(0, at + 1 - n) : at + 1] for at in positions]

    def interpolate_next_token_log_probs(self, logits_BV: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
        rows = [self.ngram.next_token_probabilities(text[-self.ngram.n_context_tokens :]) for text in texts]
        ngram_BV = torch.from_numpy(np.log(np.stack(rows))).to(logits_BV)
        ngram_BV = F.pad(ngram_BV, (0, logits_BV.shape[-1] - ngram_BV.shape[-1]), value=-torch.inf)
        return self._interpolate(logits_BV.log_softmax(-1), ngram_BV)

    def interpolate_target_log_probs(self, logprobs_N: Tensor, batch: Batch, is_scored_BT: Tensor) -> Tensor:
        cpu = self.ngram.grams_GN.device
        batch, is_scored_BT = batch.to(cpu), is_scored_BT.to(cpu)
        context_NC = self.ngram(batch).hidden_BTD[is_scored_BT]
        ngram_N = self.ngram.token_log_probs(context_NC, batch.required_targets_BT[is_scored_BT])
        return self._interpolate(logprobs_N, ngram_N.to(logprobs_N))

    def _interpolate(self, model: Tensor, ngram: Tensor) -> Tensor:
        return torch.logaddexp(math.log1p(-self.weight) + model, math.log(self.weight) + ngram)
