"""Heads that score tokens: of tags, and of the ends of an answer.

Shapes: B rows, T positions, W words, D width of hidden states, C tags.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.classifier import HeadedModel, new_linear, states_width
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.crf import LinearChain
from lmtool.model.layers.dropout import drop
from lmtool.recipe.spec.objective import QuestionAnswering, Tagging, TokenHead
from lmtool.recipe.spec.recipe import Model


class TokenScores(NamedTuple):
    """Scores of tokens, in float32. auxiliary_B: as in `Output`."""

    scores_BTC: Tensor
    auxiliary_B: Tensor | None


class TokenHeadModel(HeadedModel):
    """A language model with a linear head on each hidden state: y_t = W dropout(h_t) + b."""

    def __init__(self, body: LanguageModel, spec: TokenHead, model: Model, n_scores: int) -> None:
        super().__init__(body)
        self.dropout = spec.dropout
        if spec.layers == "mix":
            self.mix = self._new_mix()
        self.head = new_linear(states_width(body, spec.layers, model), n_scores, bias=True)
        self._freeze_beside_states()

    def scores(self, batch: Batch) -> TokenScores:
        """The scores of each token of a batch (B, T, C)."""
        hidden_BTD, auxiliary_B = self.states(batch)
        return TokenScores(self.head(drop(hidden_BTD, self.dropout, self.training)).float(), auxiliary_B)


class Tagger(TokenHeadModel):
    """A language model that scores the tags of words by the states of their first tokens; with a CRF, of sentences."""

    def __init__(self, body: LanguageModel, spec: Tagging, model: Model) -> None:
        super().__init__(body, spec, model, len(spec.labels))
        self.crf = LinearChain(len(spec.labels)) if spec.crf else None

    def word_scores(self, batch: Batch) -> TokenScores:
        """The scores of the tags of each word (B, W, C); any at padding."""
        assert batch.places_BW is not None
        scores_BTC, auxiliary_B = self.scores(batch)
        rows_B1 = torch.arange(len(scores_BTC), device=scores_BTC.device)[:, None]
        return TokenScores(scores_BTC[rows_B1, batch.places_BW.clamp(min=0)], auxiliary_B)

    def log_p(self, scores_BWC: Tensor, tags_BW: Tensor, keep_BW: Tensor) -> Tensor:
        """Log-probability of the tags of each row (B,), given the scores of its words. keep_BW: False at padding."""
        if self.crf is not None:
            return self.crf.log_p(scores_BWC, tags_BW, keep_BW)
        log_p_BWC = scores_BWC.log_softmax(-1)
        return (log_p_BWC.gather(2, tags_BW.where(keep_BW, 0)[..., None])[..., 0] * keep_BW).sum(1)

    def decode(self, scores_BWC: Tensor, keep_BW: Tensor) -> Tensor:
        """The most probable tags of each row (B, W); any at padding."""
        return scores_BWC.argmax(-1) if self.crf is None else self.crf.decode(scores_BWC, keep_BW)


class SpanReader(TokenHeadModel):
    """A language model that scores each token as the first and as the last of an answer (Devlin et al. 2019)."""

    def __init__(self, body: LanguageModel, spec: QuestionAnswering, model: Model) -> None:
        super().__init__(body, spec, model, 2)
