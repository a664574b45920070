"""GloVe: fit logarithms of co-occurrence counts by weighted least squares (Pennington et al. 2014).

Shapes: B rows, P pairs of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.model import LanguageModel
from lmtool.model.skipgram import GloveModel
from lmtool.objective.base import Cut, Example, Loss, Objective
from lmtool.objective.skipgram import SkipGramObjective
from lmtool.recipe.spec.objective import WeightedCounts


@dataclass(frozen=True)
class GloveObjective(Objective):
    """Sum over pairs (i, j) of f(X_ij) (w_i . u_j + b_i + c_j - log X_ij)^2, f(x) = min(1, (x / x_max)^power).

    An example has words i, context words j and their counts X; see `lmtool.training.pairs`. In evaluation, where counts
    of another text would be of another scale, the loss is that of context words under p(j | i).

    pairs: for evaluation.
    """

    unit: ClassVar[Literal["token", "pair"]] = "pair"

    spec: WeightedCounts
    pairs: SkipGramObjective

    def cut(self, context: int) -> Cut:
        return self.pairs.cut(context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        words, contexts, counts = zip(
            *((one.tokens, one.other, one.label) for one in examples if one.other is not None), strict=True
        )
        return Batch(
            torch.from_numpy(np.stack(words)),
            torch.from_numpy(np.stack(contexts)),
            values_BC=torch.from_numpy(np.stack(counts).astype(np.float32)),
        )

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        return self.pairs.collate_spans(spans)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if batch.targets_BT is None or batch.values_BC is None or not isinstance(model, GloveModel):
            raise ValueError("the loss is of counts, for a GloVe model")
        scores_BP = model.scores(batch.tokens_BT, batch.targets_BT)
        weights_BP = (batch.values_BC / self.spec.x_max).clamp(max=1) ** self.spec.power
        errors_BP = scores_BP - batch.values_BC.log()
        return Loss((weights_BP * errors_BP.square()).sum(), torch.full_like(batch.targets_BT[0, 0], errors_BP.numel()))

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.pairs.score(model, batch)
