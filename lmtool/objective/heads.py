"""Objectives of heads: classification, regression, tagging and extractive question answering.

Shapes: B rows, T positions, W words, C classes, labels or tags.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch, pad_rows
from lmtool.model import LanguageModel
from lmtool.model.heads import Answer, Classifier, SpanReader, Tagger
from lmtool.objective.base import Example, Loss, Objective, Vocabulary
from lmtool.objective.contrastive import BatchObjective, RowVectors, label_similarity
from lmtool.objective.cross_entropy import chunked_cross_entropy, smoothed_cross_entropy, with_auxiliary
from lmtool.recipe.spec.objective import Classification


class RowObjective(Objective):
    """Base of the objectives of heads, whose rows are those of a table."""

    @abstractmethod
    def read(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The scores of a head, and the auxiliary losses of the rows, if any."""

    @abstractmethod
    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """The loss of given scores."""

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        scores, auxiliary_B = self.read(model, batch)
        return with_auxiliary(self.head_loss(model, scores, batch), auxiliary_B, batch.tags_BW)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.head_loss(model, self.read(model, batch)[0], batch)

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
            answers["targets_BT"], _ = pad_rows(next_tokens, IGNORE)
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
        loss = self.head_loss(model, scores_BC, batch, trains=True)
        if batch.targets_BT is not None:
            assert hidden_BTD is not None
            lm_loss = self._lm_loss(model, hidden_BTD, batch.targets_BT)
            loss = replace(loss, total=loss.total + self.spec.lm_weight * lm_loss)
        return with_auxiliary(loss, auxiliary_B, None)

    def read(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
        scores_BC, _, auxiliary_B = cast(Classifier, model).answer(batch)
        return scores_BC, auxiliary_B

    @cached_property
    def _weights(self) -> Tensor | None:
        weights = self.spec.class_weights
        if weights == "balanced":
            raise ValueError("class weights are not computed from the table yet")
        return None if weights is None else torch.tensor(weights)

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch, trains: bool = False) -> Loss:
        """The loss of given scores (B, C). trains: with the smoothing and the weights of classes."""
        targets = batch.labels_B if self.spec.task == "class" else batch.values_BC
        if targets is None:
            raise ValueError(f"a batch without {'numbers' if self.spec.task == 'number' else 'labels'} has no loss")
        match self.spec.task:
            case "class":
                weights_C = self._weights if trains else None
                weights_B = None if weights_C is None else weights_C.to(scores.device)[targets]
                total = smoothed_cross_entropy(scores, targets, self.spec.label_smoothing if trains else 0.0, weights_B)
            case "multi":
                total = F.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1).sum()
            case _:
                total = (scores - targets).square().sum()
        return Loss(total, torch.tensor(len(scores), device=scores.device))

    @staticmethod
    def _lm_loss(model: LanguageModel, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum over rows of the mean over their tokens, so that no split of a batch changes it."""
        n_B = (targets_BT != IGNORE).sum(1).clamp(min=1)
        rows = zip(hidden_BTD, targets_BT, n_B, strict=True)
        return torch.stack([chunked_cross_entropy(model, h_TD, targets_T) / n for h_TD, targets_T, n in rows]).sum()


@dataclass(frozen=True)
class ContrastiveObjective(BatchObjective, ClassificationObjective):
    """Texts of one class are to have near vectors, by the cosines of all pairs of rows of a batch.

    A head is fitted to the vectors (`training.convex`), and scored as any other.
    """

    def vectors(self, model: LanguageModel, batch: Batch) -> RowVectors:
        vectors_BD, auxiliary_B = cast(Classifier, model).pooled(batch)
        return RowVectors(vectors_BD[:, None].float(), auxiliary_B)

    def batch_loss(self, vectors_NKD: Tensor, answers_N: Tensor | None) -> Tensor:
        if answers_N is None:
            raise ValueError("a batch without classes has no loss")
        return label_similarity(vectors_NKD[:, 0], answers_N)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return ClassificationObjective.score(self, model, batch)

    def idle(self, model: LanguageModel) -> list[Parameter]:
        return list(cast(Classifier, model).head.parameters())


@dataclass(frozen=True)
class TaggingObjective(RowObjective):
    """-log p of the tags of a sentence, by a softmax for each word or by a CRF; the mean is over words."""

    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without tags."""
        starts = [example.word_starts for example in examples if example.word_starts is not None]
        tags = [example.label.astype(np.int64) for example in examples if example.label is not None]
        # no batch is narrower than a word
        places_BW = pad_rows([*starts, np.array([-1])], -1)[0][: len(starts)]
        tags_BW = pad_rows([*tags, np.array([IGNORE])], IGNORE)[0][: len(tags)] if tags else None
        return _rows(examples, self.vocabulary, places_BW=places_BW, tags_BW=tags_BW)

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags_BW is None else int((batch.tags_BW != IGNORE).sum())

    def read(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
        return cast(Tagger, model).word_scores(batch)

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """The loss of given scores (B, W, C)."""
        if batch.tags_BW is None:
            raise ValueError("a batch without tags has no loss")
        keep_BW = batch.tags_BW != IGNORE
        return Loss(-cast(Tagger, model).log_p(scores, batch.tags_BW, keep_BW).sum(), keep_BW.sum())


@dataclass(frozen=True)
class AnswerSpanObjective(RowObjective):
    """Mean of -log p of the first and of the last token of an answer, each by a softmax over the tokens of a row."""

    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without answers."""
        spans = [example.label.astype(np.int64) for example in examples if example.label is not None]
        return _rows(examples, self.vocabulary, spans_B2=torch.from_numpy(np.stack(spans)) if spans else None)

    def read(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
        return cast(SpanReader, model).scores(batch)

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """The loss of given scores (B, T, 2)."""
        if batch.spans_B2 is None:
            raise ValueError("a batch without answers has no loss")
        if batch.keep_BT is not None:
            scores = scores.masked_fill(~batch.keep_BT[..., None], -torch.inf)
        total = F.cross_entropy(scores, batch.spans_B2, reduction="sum") / 2
        return Loss(total, torch.tensor(len(scores), device=scores.device))


def _rows(examples: Sequence[Example], vocabulary: Vocabulary, **answers: Tensor | None) -> Batch:
    """Right-padded rows. answers: fields of `Batch`."""
    tokens_BT, keep_BT = pad_rows([example.tokens for example in examples], vocabulary.pad)
    segments = [example.segments for example in examples if example.segments is not None]
    return Batch(tokens_BT, keep_BT=keep_BT, segments_BT=pad_rows(segments, 0)[0] if segments else None, **answers)
