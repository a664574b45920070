"""Classification and regression: predict the label of each row of a table.

Shapes: B rows, T positions, C classes or labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch, padded
from lmtool.model import LanguageModel
from lmtool.model.classifier import Answer, Classifier
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import chunked_cross_entropy, smoothed_cross_entropy, with_auxiliary
from lmtool.recipe.spec.objective import Classification


class RowObjective(Objective):
    """Base of the objectives of heads, whose rows are those of a table."""

    def cut(self, context: int) -> Cut:
        raise TypeError("rows of a table are not cut from a text")

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        raise TypeError("rows of a table are not scored as a text")


@dataclass(frozen=True)
class ClassificationObjective(RowObjective):
    """Mean over rows of the head's loss, plus lm_weight times the language model's mean loss over tokens.

    class: softmax cross-entropy. multi: sigmoid cross-entropy, mean over the labels. number: squared error.
    """

    spec: Classification
    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without labels."""
        tokens_BT, keep_BT = padded([example.tokens for example in examples], self.vocabulary.pad)
        segments = [example.segments for example in examples if example.segments is not None]
        targets_BT = None
        if self.spec.lm_weight:
            targets_BT, _ = padded([np.append(example.tokens[1:], IGNORE) for example in examples], IGNORE)
        labels = [example.label for example in examples if example.label is not None]
        answers = torch.from_numpy(np.stack(labels)) if labels else None
        return Batch(
            tokens_BT,
            targets_BT,
            keep_BT=keep_BT,
            segments_BT=padded(segments, 0)[0] if segments else None,
            labels_B=answers[:, 0].long() if answers is not None and self.spec.task == "class" else None,
            values_BC=answers.float() if answers is not None and self.spec.task != "class" else None,
        )

    def count(self, batch: Batch) -> int:
        return len(batch.tokens_BT)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        return self.loss_of(model, model.answer(batch), batch)

    def loss_of(self, model: Classifier, answer: Answer, batch: Batch) -> Loss:
        """The training loss of a given answer of the model."""
        scores_BC, hidden_BTD, auxiliary_B = answer
        total = self._head_loss(scores_BC, batch, self.spec.label_smoothing, self._weights)
        if batch.targets_BT is not None:
            assert hidden_BTD is not None
            total = total + self.spec.lm_weight * self._lm_loss(model, hidden_BTD, batch.targets_BT)
        loss = Loss(total, torch.tensor(len(scores_BC), device=scores_BC.device))
        return with_auxiliary(loss, auxiliary_B, None)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        return self.head_loss(model.answer(batch).scores_BC, batch)

    def head_loss(self, scores_BC: Tensor, batch: Batch) -> Loss:
        """The unweighted loss of given scores."""
        total = self._head_loss(scores_BC, batch, 0.0, None)
        return Loss(total, torch.tensor(len(scores_BC), device=scores_BC.device))

    @cached_property
    def _weights(self) -> Tensor | None:
        weights = self.spec.class_weights
        if weights == "balanced":
            raise ValueError("class weights are not computed from the table yet")
        return None if weights is None else torch.tensor(weights)

    def _head_loss(self, scores_BC: Tensor, batch: Batch, smoothing: float, weights_C: Tensor | None) -> Tensor:
        match self.spec.task:
            case "class":
                if batch.labels_B is None:
                    raise ValueError("a batch without labels has no loss")
                weights_B = None if weights_C is None else weights_C.to(scores_BC.device)[batch.labels_B]
                return smoothed_cross_entropy(scores_BC, batch.labels_B, smoothing, weights_B)
            case "multi":
                if batch.values_BC is None:
                    raise ValueError("a batch without labels has no loss")
                return F.binary_cross_entropy_with_logits(scores_BC, batch.values_BC, reduction="none").mean(1).sum()
            case _:
                if batch.values_BC is None:
                    raise ValueError("a batch without numbers has no loss")
                return (scores_BC - batch.values_BC).square().sum()

    @staticmethod
    def _lm_loss(model: LanguageModel, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum over rows of the mean over their tokens, so that no split of a batch changes it."""
        n_B = (targets_BT != IGNORE).sum(1).clamp(min=1)
        rows = zip(hidden_BTD, targets_BT, n_B, strict=True)
        return torch.stack(
            [
                chunked_cross_entropy(model.logits, model.head_parameters(), hidden_TD, targets_T, model.vocab_size) / n
                for hidden_TD, targets_T, n in rows
            ]
        ).sum()
