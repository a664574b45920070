"""Causal language modelling: predict each token from those before it, all positions at once.

Inputs are the true tokens (teacher forcing), or with scheduled sampling partly the model's own.

Shapes: B rows, T positions, D model width, M scored positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.objective.base import Cut, Example, Loss, Objective
from lmtool.objective.cross_entropy import summed_loss, training_loss
from lmtool.objective.scheduled import draws, mixed
from lmtool.recipe.spec.objective import Causal


@dataclass(frozen=True)
class CausalObjective(Objective):
    """Mean over tokens of -log p(w_{i+1} | w_1..w_i).

    bos_id: the token that starts a document. isolate_documents: mask attention across documents in a row. predicts_bos:
        bos_id also ends the document before, as in GPT-2, and so is predicted; else it is never a target.
    """

    spec: Causal
    bos_id: int
    isolate_documents: bool
    predicts_bos: bool = field(default=False, kw_only=True)

    def cut(self, context: int) -> Cut:
        """Windows of T + 1 tokens; the last token of each is the first of the next."""
        return Cut("stream", context + 1, context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Rows of T + 1 tokens each: the first T are inputs, the last T targets."""
        rows = torch.from_numpy(np.stack([example.tokens for example in examples]))
        tokens_BT, next_BT = rows[:, :-1].contiguous(), rows[:, 1:]
        targets_BT = next_BT if self.predicts_bos else next_BT.masked_fill(next_BT == self.bos_id, IGNORE)
        documents_BT = (tokens_BT == self.bos_id).cumsum(1) if self.isolate_documents else None
        draws_BT = draws(self.spec.scheduled_sampling, examples, tokens_BT.shape[1], done)
        return Batch(tokens_BT, targets_BT, documents_BT=documents_BT, draws_BT=draws_BT)

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Right-padded rows of any length for evaluation.

        spans: tokens of a row, and the index of the first one that is scored; those before it are context.
        """
        length = max(len(tokens) for tokens, _ in spans) - 1
        tokens_BT = torch.zeros(len(spans), length, dtype=torch.int64)
        targets_BT = torch.full((len(spans), length), IGNORE)
        for row, (tokens, first) in enumerate(spans):
            tokens_BT[row, : len(tokens) - 1] = torch.from_numpy(tokens[:-1])
            targets_BT[row, first - 1 : len(tokens) - 1] = torch.from_numpy(tokens[first:])
        return Batch(tokens_BT, targets_BT)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        return training_loss(model, mixed(model, batch), self.spec.label_smoothing)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return summed_loss(model, batch)
