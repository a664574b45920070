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

from lmtool.arrays import Floats
from lmtool.batch import IGNORE, Batch, pad_right_with_keep_mask
from lmtool.model import LanguageModel
from lmtool.model.heads import Classifier, HeadOutput, LanguageModelWithTaskHead, Tagger
from lmtool.objective.base import Example, Loss, Objective, VocabularyInfo
from lmtool.objective.contrastive import RowVectorsAndAuxiliary, WholeBatchObjective, class_cosine_pair_loss
from lmtool.objective.cross_entropy import add_auxiliary_loss, sum_cross_entropy_in_chunks, sum_smoothed_cross_entropy
from lmtool.recipe.spec.objective import Classification


class HeadObjective(Objective):
    """Base of the objectives of heads, whose rows are those of a table."""

    @abstractmethod
    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """Returns the loss of the scores that `LanguageModelWithTaskHead.run_head` returned for the batch."""

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        output = cast(LanguageModelWithTaskHead, model).run_head(batch)
        return add_auxiliary_loss(self.head_loss(model, output.scores, batch), output.auxiliary_B, batch.tags_BW)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.head_loss(model, cast(LanguageModelWithTaskHead, model).run_head(batch).scores, batch)

    def count_targets(self, batch: Batch) -> int:
        return len(batch.tokens_BT)


@dataclass(frozen=True)
class ClassificationObjective(HeadObjective):
    """Mean over rows of the head's loss, plus lm_weight times the language model's mean loss over tokens.

    class: softmax cross-entropy. multi: sigmoid cross-entropy, mean over the labels. number: squared error.
    """

    spec: Classification
    vocabulary: VocabularyInfo

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Right-pads the rows. Examples without a label give a batch without labels."""
        fields: dict[str, Tensor] = {}
        if self.spec.lm_weight:
            next_tokens = [np.append(example.tokens[1:], IGNORE) for example in examples]
            fields["targets_BT"], _ = pad_right_with_keep_mask(next_tokens, IGNORE)
        labels = [example.label for example in examples if example.label is not None]
        if labels and self.spec.task == "class":
            fields["labels_B"] = torch.from_numpy(np.stack(labels))[:, 0].long()
        elif labels:
            fields["values_BC"] = torch.from_numpy(np.stack(labels)).float()
        return _collate_rows(examples, self.vocabulary, **fields)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        return self.training_loss_from_output(model, model.run_head(batch), batch)

    def training_loss_from_output(self, model: Classifier, output: HeadOutput, batch: Batch) -> Loss:
        """Returns the training loss of what `model.run_head` returned for the batch."""
        loss = self.head_loss(model, output.scores, batch, is_training=True)
        if batch.targets_BT is not None:
            assert output.hidden_BTD is not None
            # the mean over each row's tokens, so that no split of a batch changes it
            n_B = (batch.targets_BT != IGNORE).sum(1).clamp(min=1)
            rows = zip(output.hidden_BTD, batch.targets_BT, n_B, strict=True)
            means = [sum_cross_entropy_in_chunks(model, h_TD, targets_T) / n for h_TD, targets_T, n in rows]
            loss = replace(loss, total=loss.total + self.spec.lm_weight * torch.stack(means).sum())
        return add_auxiliary_loss(loss, output.auxiliary_B, None)

    @cached_property
    def _class_weights_C(self) -> Tensor | None:
        weights = self.spec.class_weights
        if weights == "balanced":
            raise ValueError("class weights are not computed from the table yet")
        return None if weights is None else torch.tensor(weights)

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch, is_training: bool = False) -> Loss:
        """Returns the loss of scores (B, C). is_training: with label smoothing and class weights."""
        targets = batch.labels_B if self.spec.task == "class" else batch.values_BC
        if targets is None:
            raise ValueError(f"a batch without {'numbers' if self.spec.task == 'number' else 'labels'} has no loss")
        match self.spec.task:
            case "class":
                smoothing = self.spec.label_smoothing if is_training else 0.0
                weights_C = self._class_weights_C if is_training else None
                weights_B = None if weights_C is None else weights_C.to(scores.device)[targets]
                total = sum_smoothed_cross_entropy(scores, targets, smoothing, weights_B)
            case "multi":
                total = F.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1).sum()
            case _:
                total = (scores - targets).square().sum()
        return Loss(total, torch.tensor(len(scores), device=scores.device))

    def compute_head_loss_sum_and_gradient(self, scores_RC: Floats, target_RC: Floats) -> tuple[float, Floats]:
        """Returns the sum over rows of `head_loss` in training, and its gradient by the scores, in closed form.

        A head on fixed features is fitted by it: automatic differentiation takes five times as long for a few rows.

        Args:
            scores_RC: of a linear head; (R, 1) where a single score is that of the second of two classes.
            target_RC: 1 for the classes or labels of a row, else 0; or the number of each row (R, 1).
        """
        from scipy.special import expit

        if self.spec.task == "number":
            error_RC = scores_RC - target_RC
            return float(np.square(error_RC).sum()), 2 * error_RC
        weights: float | Floats = 1 / target_RC.shape[1]
        if self.spec.task == "class":
            class_weights = self._class_weights_C
            weights = 1.0 if class_weights is None else target_RC @ class_weights.double().numpy()[:, None]
            spread = self.spec.label_smoothing / max(1, target_RC.shape[1] - 1)
            target_RC = spread + (1 - self.spec.label_smoothing - spread) * target_RC
            target_RC = target_RC[:, -scores_RC.shape[1] :]
        if self.spec.task == "class" and scores_RC.shape[1] > 1:
            largest_R1 = scores_RC.max(1, keepdims=True)
            exponential_RC = np.exp(scores_RC - largest_R1)
            sum_R1 = exponential_RC.sum(1, keepdims=True)
            log_partition, probability_RC = largest_R1 + np.log(sum_R1), exponential_RC / sum_R1
        else:
            log_partition, probability_RC = np.logaddexp(0.0, scores_RC), expit(scores_RC)
        weighted_RC = weights * target_RC
        loss = float((weights * log_partition).sum() - (weighted_RC * scores_RC).sum())
        return loss, weights * probability_RC - weighted_RC


@dataclass(frozen=True)
class SetFitObjective(WholeBatchObjective, ClassificationObjective):
    """Brings the vectors of texts of one class near each other, by the cosines of all pairs of rows of a batch.

    SetFit (Tunstall et al. 2022) trains so. A head is fitted to the vectors afterwards (`training.convex`), and scored
    like any other.
    """

    def embed_texts_by_row(self, model: LanguageModel, batch: Batch) -> RowVectorsAndAuxiliary:
        vectors_BD, auxiliary_B = cast(Classifier, model).pool_head_input_states(batch)
        return RowVectorsAndAuxiliary(vectors_BD[:, None].float(), auxiliary_B)

    def batch_loss(self, vectors_NKD: Tensor, labels_N: Tensor | None) -> Tensor:
        if labels_N is None:
            raise ValueError("a batch without classes has no loss")
        return class_cosine_pair_loss(vectors_NKD[:, 0], labels_N)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return ClassificationObjective.score(self, model, batch)

    def unused_parameters(self, model: LanguageModel) -> list[Parameter]:
        return list(cast(Classifier, model).head.parameters())


@dataclass(frozen=True)
class TaggingObjective(HeadObjective):
    """-log p of the tags of a sentence, by a softmax for each word or by a CRF; the mean is over words."""

    vocabulary: VocabularyInfo

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Right-pads the rows. Examples without a label give a batch without tags."""
        starts = [example.word_starts for example in examples if example.word_starts is not None]
        tags = [example.label.astype(np.int64) for example in examples if example.label is not None]
        # no batch is narrower than a word
        places_BW = pad_right_with_keep_mask([*starts, np.array([-1])], -1)[0][: len(starts)]
        tags_BW = pad_right_with_keep_mask([*tags, np.array([IGNORE])], IGNORE)[0][: len(tags)] if tags else None
        return _collate_rows(examples, self.vocabulary, places_BW=places_BW, tags_BW=tags_BW)

    def count_targets(self, batch: Batch) -> int:
        return 0 if batch.tags_BW is None else int((batch.tags_BW != IGNORE).sum())

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """Returns the loss of the scores of words (B, W, C)."""
        if batch.tags_BW is None:
            raise ValueError("a batch without tags has no loss")
        keep_BW = batch.tags_BW != IGNORE
        return Loss(-cast(Tagger, model).tag_sequence_log_probs(scores, batch.tags_BW, keep_BW).sum(), keep_BW.sum())


@dataclass(frozen=True)
class AnswerSpanObjective(HeadObjective):
    """Mean of -log p of the first and of the last token of an answer, each by a softmax over the tokens of a row."""

    vocabulary: VocabularyInfo

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Right-pads the rows. Examples without a label give a batch without answers."""
        spans = [example.label.astype(np.int64) for example in examples if example.label is not None]
        return _collate_rows(examples, self.vocabulary, spans_B2=torch.from_numpy(np.stack(spans)) if spans else None)

    def head_loss(self, model: LanguageModel, scores: Tensor, batch: Batch) -> Loss:
        """Returns the loss of the scores of tokens (B, T, 2)."""
        if batch.spans_B2 is None:
            raise ValueError("a batch without answers has no loss")
        if batch.keep_BT is not None:
            scores = scores.masked_fill(~batch.keep_BT[..., None], -torch.inf)
        total = F.cross_entropy(scores, batch.spans_B2, reduction="sum") / 2
        return Loss(total, torch.tensor(len(scores), device=scores.device))


def _collate_rows(examples: Sequence[Example], vocabulary: VocabularyInfo, **batch_fields: Tensor | None) -> Batch:
    """Right-pads rows to a batch that also has `batch_fields`."""
    tokens_BT, keep_BT = pad_right_with_keep_mask([example.tokens for example in examples], vocabulary.pad)
    segments = [example.segments for example in examples if example.segments is not None]
    return Batch(
        tokens_BT,
        keep_BT=keep_BT,
        segments_BT=pad_right_with_keep_mask(segments, 0)[0] if segments else None,
        **batch_fields,
    )
