"""Causal language modelling: predict each token from those before it, all positions at once; or also backwards (ELMo).

Inputs are the true tokens (teacher forcing), or with scheduled sampling partly the model's own.

Shapes: B rows, T positions, D model width, M scored positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import IGNORE, Batch, pad_right_with_keep_mask
from lmtool.model import LanguageModel
from lmtool.model.recurrent import BidirectionalLanguageModel
from lmtool.objective.base import Example, Loss, TextCutSettings, VocabularyInfo
from lmtool.objective.cross_entropy import add_auxiliary_loss, cross_entropy_from_hidden
from lmtool.objective.scheduled import TokenObjective, draw_scheduled_sampling_numbers
from lmtool.recipe.spec.objective import Causal


@dataclass(frozen=True)
class CausalObjective(TokenObjective):
    """Mean over tokens of -log p(w_{i+1} | w_1..w_i).

    bos_id: the token that starts a document.
    isolate_documents: whether attention across documents of a row is masked.
    predicts_bos: whether `bos_id` is a target too, because it also ends the document before, as in GPT-2.
    """

    spec: Causal
    bos_id: int
    isolate_documents: bool
    predicts_bos: bool = field(default=False, kw_only=True)

    @classmethod
    def from_vocabulary(cls, spec: Causal, vocabulary: VocabularyInfo, isolate_documents: bool) -> Self:
        """Returns the objective with the special tokens of a vocabulary."""
        return cls(spec, vocabulary.bos, isolate_documents, predicts_bos=vocabulary.unpredicted_bos is None)

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows of T + 1 tokens; the last token of each is the first of the next."""
        return TextCutSettings("stream", context + 1, context)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Collates rows of T + 1 tokens each: the first T are inputs, the last T targets."""
        rows = torch.from_numpy(np.stack([example.tokens for example in examples]))
        tokens_BT, next_BT = rows[:, :-1].contiguous(), rows[:, 1:]
        targets_BT = next_BT if self.predicts_bos else next_BT.masked_fill(next_BT == self.bos_id, IGNORE)
        documents_BT = (tokens_BT == self.bos_id).cumsum(1) if self.isolate_documents else None
        draws_BT = draw_scheduled_sampling_numbers(
            self.spec.scheduled_sampling, examples, tokens_BT.shape[1], training_fraction
        )
        return Batch(tokens_BT, targets_BT, documents_BT=documents_BT, draws_BT=draws_BT)

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Right-pads rows of any length for evaluation; see `Objective.collate_for_scoring`."""
        rows = [tokens[:-1] for tokens, _ in tokens_and_first_scored]
        targets = [
            np.concatenate((np.full(first - 1, IGNORE), tokens[first:])) for tokens, first in tokens_and_first_scored
        ]
        return Batch(pad_right_with_keep_mask(rows, 0)[0], pad_right_with_keep_mask(targets, IGNORE)[0])


@dataclass(frozen=True)
class BidirectionalObjective(CausalObjective):
    """Mean over tokens of -log p(w_i | w_1..w_{i-1}) - log p(w_i | w_{i+1}..w_n), halved (Peters et al. 2018).

    Halved, so that the loss is comparable to that of a causal model. Evaluation uses the forward half alone, which is a
    language model like any other.
    """

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if not isinstance(model, BidirectionalLanguageModel):
            raise ValueError("only a bidirectional model is trained in both directions")
        forward = super().loss(model, batch)
        hidden_BTD, auxiliary_B = model.forward_right_to_left(batch)
        targets_BT = self.backward_targets(batch)
        backward = cross_entropy_from_hidden(model, hidden_BTD.flatten(0, 1), targets_BT.flatten())
        backward = add_auxiliary_loss(backward, auxiliary_B, targets_BT)
        return Loss((forward.total + backward.total) / 2, forward.count)

    def backward_targets(self, batch: Batch) -> Tensor:
        """Returns the targets of the backward half (B, T): the previous token, in the same document.

        The token that starts a document predicts nothing.
        """
        targets_BT = batch.tokens_BT.roll(1, 1)
        targets_BT[:, 0] = IGNORE
        return targets_BT.masked_fill(batch.tokens_BT == self.bos_id, IGNORE)
