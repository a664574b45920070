"""Bidirectional language modelling: predict each token from those before it, and again from those after it (ELMo).

Shapes: B rows, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.model.bidirectional import BidirectionalModel
from lmtool.objective.base import Cut, Example, Loss, Objective
from lmtool.objective.causal import CausalObjective
from lmtool.objective.cross_entropy import loss_of_hidden, with_auxiliary


@dataclass(frozen=True)
class BidirectionalObjective(Objective):
    """Mean over tokens of -log p(w_i | w_1..w_{i-1}) - log p(w_i | w_{i+1}..w_n), halved (Peters et al. 2018).

    Halved, so that the loss is comparable to that of a causal model. Evaluation uses the forward half alone, which is a
    language model like any other.

    forth: the objective of the forward half, which cuts and collates the rows.
    """

    forth: CausalObjective

    def cut(self, context: int) -> Cut:
        return self.forth.cut(context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        return self.forth.collate(examples, done)

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        return self.forth.collate_spans(spans)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if not isinstance(model, BidirectionalModel):
            raise ValueError("only a bidirectional model is trained in both directions")
        forward = self.forth.loss(model, batch)
        hidden_BTD, auxiliary_B = model.backward(batch)
        targets_BT = self.targets_before(batch)
        backward = loss_of_hidden(model, hidden_BTD.flatten(0, 1), targets_BT.flatten())
        backward = with_auxiliary(backward, auxiliary_B, targets_BT)
        return Loss((forward.total + backward.total) / 2, forward.count)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.forth.score(model, batch)

    def targets_before(self, batch: Batch) -> Tensor:
        """Targets of the backward half (B, T): the previous token, in the same document.

        The last token of a document is never a target, as the first one is for the forward half.
        """
        targets_BT = batch.tokens_BT.roll(1, 1)
        targets_BT[:, 0] = IGNORE
        return targets_BT.masked_fill(batch.tokens_BT == self.forth.bos_id, IGNORE)
