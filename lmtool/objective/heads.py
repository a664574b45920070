"""Objectives of heads: classification, regression, tagging and extractive question answering.

Shapes: B rows, T positions, W words, C classes, labels or tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch, padded
from lmtool.model import LanguageModel
from lmtool.model.heads import Answer, Classifier, SpanReader, Tagger
from lmtool.objective.base import Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import chunked_cross_entropy, smoothed_cross_entropy, with_auxiliary
from lmtool.recipe.spec.objective import Classification


class RowObjective(Objective):
    """Base of the objectives of heads, whose rows are those of a table."""

    def count(self, batch: Batch) -> int:
        return len(batch.tokens_BT)


@dataclass(frozen=True)
class ClassificationObjective(RowObjective):
    """Mean over rows of the head's loss, plus lm_weight times the language model's mean loss over tokens.

    class: softmax cross-entropy. multi: sigmoid cross-entropy, mean over the labels. number: squared error.
    """

    spec: Classification
    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without labels."""
        answers: dict[str, Tensor] = {}
        if self.spec.lm_weight:
            next_tokens = [np.append(example.tokens[1:], IGNORE) for example in examples]
            answers["targets_BT"], _ = padded(next_tokens, IGNORE)
        labels = [example.label for example in examples if example.label is not None]
        if labels and self.spec.task == "class":
            answers["labels_B"] = torch.from_numpy(np.stack(labels))[:, 0].long()
        elif labels:
            answers["values_BC"] = torch.from_numpy(np.stack(labels)).float()
        return _rows(examples, self.vocabulary, **answers)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        return self.loss_of(model, model.answer(batch), batch)

    def loss_of(self, model: Classifier, answer: Answer, batch: Batch) -> Loss:
        """The training loss of a given answer of the model."""
        scores_BC, hidden_BTD, auxiliary_B = answer
        loss = self.head_loss(scores_BC, batch, self.spec.label_smoothing, self._weights)
        if batch.targets_BT is not None:
            assert hidden_BTD is not None
            lm_loss = self._lm_loss(model, hidden_BTD, batch.targets_BT)
            loss = replace(loss, total=loss.total + self.spec.lm_weight * lm_loss)
        return with_auxiliary(loss, auxiliary_B, None)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        return self.head_loss(model.answer(batch).scores_BC, batch)

    @cached_property
    def _weights(self) -> Tensor | None:
        weights = self.spec.class_weights
        if weights == "balanced":
            raise ValueError("class weights are not computed from the table yet")
        return None if weights is None else torch.tensor(weights)

    def head_loss(
        self, scores_BC: Tensor, batch: Batch, smoothing: float = 0.0, weights_C: Tensor | None = None
    ) -> Loss:
        """The loss of given scores. smoothing, weights_C: of classes."""
        targets = batch.labels_B if self.spec.task == "class" else batch.values_BC
        if targets is None:
            raise ValueError(f"a batch without {'numbers' if self.spec.task == 'number' else 'labels'} has no loss")
        match self.spec.task:
            case "class":
                weights_B = None if weights_C is None else weights_C.to(scores_BC.device)[targets]
                total = smoothed_cross_entropy(scores_BC, targets, smoothing, weights_B)
            case "multi":
                total = F.binary_cross_entropy_with_logits(scores_BC, targets, reduction="none").mean(1).sum()
            case _:
                total = (scores_BC - targets).square().sum()
        return Loss(total, torch.tensor(len(scores_BC), device=scores_BC.device))

    @staticmethod
    def _lm_loss(model: LanguageModel, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum over rows of the mean over their tokens, so that no split of a batch changes it."""
        n_B = (targets_BT != IGNORE).sum(1).clamp(min=1)
        rows = zip(hidden_BTD, targets_BT, n_B, strict=True)
        return torch.stack([chunked_cross_entropy(model, h_TD, targets_T) / n for h_TD, targets_T, n in rows]).sum()


@dataclass(frozen=True)
class TaggingObjective(RowObjective):
    """-log p of the tags of a sentence, by a softmax for each word or by a CRF; the mean is over words."""

    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without tags."""
        starts = [example.word_starts for example in examples if example.word_starts is not None]
        tags = [example.label.astype(np.int64) for example in examples if example.label is not None]
        # no batch is narrower than a word
        places_BW = padded([*starts, np.array([-1])], -1)[0][: len(starts)]
        tags_BW = padded([*tags, np.array([IGNORE])], IGNORE)[0][: len(tags)] if tags else None
        return _rows(examples, self.vocabulary, places_BW=places_BW, tags_BW=tags_BW)

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags_BW is None else int((batch.tags_BW != IGNORE).sum())

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Tagger)
        scores_BWC, auxiliary_B = model.word_scores(batch)
        return with_auxiliary(self.head_loss(model, scores_BWC, batch), auxiliary_B, batch.tags_BW)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Tagger)
        return self.head_loss(model, model.word_scores(batch).scores_BTC, batch)

    @staticmethod
    def head_loss(model: Tagger, scores_BWC: Tensor, batch: Batch) -> Loss:
        """The loss of given scores."""
        if batch.tags_BW is None:
            raise ValueError("a batch without tags has no loss")
        keep_BW = batch.tags_BW != IGNORE
        return Loss(-model.log_p(scores_BWC, batch.tags_BW, keep_BW).sum(), keep_BW.sum())


@dataclass(frozen=True)
class AnswerSpanObjective(RowObjective):
    """Mean of -log p of the first and of the last token of an answer, each by a softmax over the tokens of a row."""

    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without answers."""
        spans = [example.label.astype(np.int64) for example in examples if example.label is not None]
        return _rows(examples, self.vocabulary, spans_B2=torch.from_numpy(np.stack(spans)) if spans else None)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, SpanReader)
        scores_BTC, auxiliary_B = model.scores(batch)
        return with_auxiliary(self.head_loss(scores_BTC, batch), auxiliary_B, None)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, SpanReader)
        return self.head_loss(model.scores(batch).scores_BTC, batch)

    @staticmethod
    def head_loss(scores_BT2: Tensor, batch: Batch) -> Loss:
        """The loss of given scores."""
        if batch.spans_B2 is None:
            raise ValueError("a batch without answers has no loss")
        if batch.keep_BT is not None:
            scores_BT2 = scores_BT2.masked_fill(~batch.keep_BT[..., None], -torch.inf)
        total = F.cross_entropy(scores_BT2, batch.spans_B2, reduction="sum") / 2
        return Loss(total, torch.tensor(len(scores_BT2), device=scores_BT2.device))


def _rows(examples: Sequence[Example], vocabulary: Vocabulary, **answers: Tensor | None) -> Batch:
    """Right-padded rows. answers: fields of `Batch`."""
    tokens_BT, keep_BT = padded([example.tokens for example in examples], vocabulary.pad)
    segments = [example.segments for example in examples if example.segments is not None]
    return Batch(tokens_BT, keep_BT=keep_BT, segments_BT=padded(segments, 0)[0] if segments else None, **answers)
