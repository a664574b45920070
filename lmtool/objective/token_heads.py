"""Tagging and extractive question answering: predict the tag of each word, or the ends of an answer.

Shapes: B rows, T positions, W words, C tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch, padded
from lmtool.model import LanguageModel
from lmtool.model.token_heads import SpanReader, Tagger
from lmtool.objective.base import Example, Loss, Vocabulary
from lmtool.objective.classification import RowObjective
from lmtool.objective.cross_entropy import with_auxiliary


@dataclass(frozen=True)
class TaggingObjective(RowObjective):
    """-log p of the tags of a sentence, by a softmax for each word or by a CRF; the mean is over words."""

    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded rows. Examples without a label give a batch without tags."""
        places = [example.places for example in examples if example.places is not None]
        tags = [example.label.astype(np.int64) for example in examples if example.label is not None]
        # no batch is narrower than a word
        places_BW = padded([*places, np.array([-1])], -1)[0][: len(places)]
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

    def count(self, batch: Batch) -> int:
        return len(batch.tokens_BT)

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


def _rows(
    examples: Sequence[Example],
    vocabulary: Vocabulary,
    *,
    places_BW: Tensor | None = None,
    tags_BW: Tensor | None = None,
    spans_B2: Tensor | None = None,
) -> Batch:
    tokens_BT, keep_BT = padded([example.tokens for example in examples], vocabulary.pad)
    segments = [example.segments for example in examples if example.segments is not None]
    return Batch(
        tokens_BT,
        keep_BT=keep_BT,
        segments_BT=padded(segments, 0)[0] if segments else None,
        places_BW=places_BW,
        tags_BW=tags_BW,
        spans_B2=spans_B2,
    )
