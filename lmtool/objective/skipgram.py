"""Word vectors: predict the context words of each word, by softmax or negative sampling (Mikolov et al. 2013), or how
often they are near each other (GloVe, Pennington et al. 2014).

Shapes: B centres, N context words of a centre, K noise words, L words of a window of text, D model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch
from lmtool.errors import DataError
from lmtool.model import HiddenOutput, LanguageModel
from lmtool.model.word_vectors import GloveModel
from lmtool.objective.base import Example, Loss, Objective, TextCutSettings, VocabularyInfo
from lmtool.objective.cross_entropy import add_auxiliary_loss, sum_loss_in_chunks
from lmtool.recipe.spec.objective import SkipGramPrediction, WeightedCounts

EVALUATION_SEED = 0
"""Seed of window sizes and noise in evaluation, so that scores are reproducible."""

CENTRES_PER_CHUNK = 256
"""Centres per chunk: their vectors and those of their words fit a CPU core's cache."""

IntArray = NDArray[np.int64]


class CentreContextNoise(NamedTuple):
    """Centres, their context words, IGNORE where there are fewer, and their noise words."""

    centres_L1: IntArray
    contexts_LN: IntArray
    noise_LK: IntArray


@dataclass(frozen=True)
class SkipGramObjective(Objective):
    """Mean over pairs (centre c, context word o) of -log softmax(u . v_c)[o], or with negative sampling of

        -log s(u_o . v_c) - sum_k log s(-u_k . v_c)

    with K noise words k. A row of a batch is a centre with all its context words, which share one set of noise words
    (Ji et al. 2016). That has the same expectation as separate noise, at a third of the memory traffic.

    vocabulary.counts: of the training text, for the noise distribution and subsampling.
    Raises DataError when the training text has no word of the vocabulary.
    """

    unit: ClassVar[Literal["token", "pair"]] = "pair"

    spec: SkipGramPrediction
    vocabulary: VocabularyInfo

    def __post_init__(self) -> None:
        if not self._word_counts_V.any():
            raise DataError("the training text has no word of the vocabulary", fix="give more text")

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows that do not overlap; pairs do not cross them."""
        return TextCutSettings("stream", context, context)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Makes a row of each centre word that subsampling keeps, with window sizes and noise drawn per example."""
        parts = []
        for example in examples:
            words_L, document_L = self._words_and_documents(example.tokens)
            kept_L = example.rng.random(len(words_L)) < self._keep_probability_V[words_L]
            parts.append(self._draw_pairs(words_L[kept_L], document_L[kept_L], example.rng))
        return self._collate_pairs(parts)

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Makes pairs for evaluation: without subsampling, and with the same window sizes and noise each time."""
        parts = []
        for tokens, first in tokens_and_first_scored:
            rng = np.random.Generator(np.random.PCG64(EVALUATION_SEED))
            words_L, document_L = self._words_and_documents(tokens[max(0, first - 1) :])
            parts.append(self._draw_pairs(words_L, document_L, rng))
        return self._collate_pairs(parts)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        return add_auxiliary_loss(*self._pair_loss_and_auxiliary(model, batch), batch.targets_BT)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the training loss without auxiliary losses."""
        return self._pair_loss_and_auxiliary(model, batch)[0]

    def _pair_loss_and_auxiliary(self, model: LanguageModel, batch: Batch) -> tuple[Loss, Tensor | None]:
        """Returns the loss of all pairs, and the auxiliary losses of the centres, if any."""
        targets_BN = batch.required_targets_BT
        output: HiddenOutput = model(batch)
        hidden_BD = self._input_vectors(output, batch)
        if batch.negatives_BK is None:

            def softmax_loss(logits_BV: Tensor, part: slice) -> Tensor:
                log_p_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
                return -(log_p_BV.gather(1, targets_BN[part].clamp(min=0)) * (targets_BN[part] != IGNORE)).sum()

            # one chunk of logits is in memory at a time
            total = sum_loss_in_chunks(model, hidden_BD, softmax_loss)
        else:
            (table_VD,) = model.head_parameters()
            total = negative_sampling_loss(hidden_BD, table_VD, targets_BN, batch.negatives_BK)
        return Loss(total, (targets_BN != IGNORE).sum()), output.auxiliary_B

    @staticmethod
    def _input_vectors(output: HiddenOutput, batch: Batch) -> Tensor:
        """Returns the vector (B, D) that each row's targets are predicted from."""
        return output.hidden_BTD[:, 0]

    @cached_property
    def _word_counts_V(self) -> IntArray:
        assert self.vocabulary.counts is not None
        counts_V = self.vocabulary.counts.copy()
        counts_V[: self.vocabulary.size][~self.vocabulary.is_not_special_V] = 0
        return counts_V

    @cached_property
    def _keep_probability_V(self) -> NDArray[np.float64]:
        """Probability that subsampling keeps a word of relative frequency f: sqrt(t / f) + t / f, as in word2vec.c."""
        if not self.spec.subsample:
            return np.ones(len(self._word_counts_V))
        share_V = np.maximum(1, self._word_counts_V) / self._word_counts_V.sum() / self.spec.subsample
        keep_V: NDArray[np.float64] = np.minimum(1.0, share_V**-0.5 + 1 / share_V)
        return keep_V

    @cached_property
    def _cumulative_noise_V(self) -> NDArray[np.float64]:
        """Cumulative noise distribution, proportional to counts^0.75."""
        mass_V = np.where(self._word_counts_V > 0, np.maximum(1, self._word_counts_V) ** float(self.spec.power), 0.0)
        return np.cumsum(mass_V / mass_V.sum())

    def _words_and_documents(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the words among tokens, and the document index of each."""
        is_word = self.vocabulary.is_not_special_V[tokens]
        return tokens[is_word], np.cumsum(tokens == self.vocabulary.bos)[is_word]

    def _draw_pairs(self, words_L: IntArray, document_L: IntArray, rng: np.random.Generator) -> CentreContextNoise:
        """Returns each word (L, 1), the context words in its window (L, 2 window) and its noise words (L, K)."""
        W, L = self.spec.window, len(words_L)
        reach_L = np.full(L, W) if self.spec.fixed else rng.integers(1, W, L, endpoint=True)
        drawn_LK = rng.random((L, self.spec.negatives)) * self._cumulative_noise_V[-1]
        offset_N = np.concatenate((np.arange(-W, 0), np.arange(1, W + 1)))
        position_LN = np.arange(L)[:, None] + offset_N
        near_LN = np.abs(offset_N) <= reach_L[:, None]
        inside_LN = (position_LN >= 0) & (position_LN < L)
        position_LN = np.where(inside_LN, position_LN, 0)
        near_LN &= inside_LN & (document_L[position_LN] == document_L[:, None])
        neighbours_LN = np.where(near_LN, words_L[position_LN], IGNORE)
        if self.spec.apart:
            drawn_LK = self._exclude_neighbours_from_draws(drawn_LK, neighbours_LN)
        noise_LK = np.searchsorted(self._cumulative_noise_V, drawn_LK, side="right")
        return CentreContextNoise(words_L[:, None], neighbours_LN, noise_LK)

    def _exclude_neighbours_from_draws(
        self, uniform_draws_LK: NDArray[np.float64], neighbours_LN: IntArray
    ) -> NDArray[np.float64]:
        """Maps uniform draws to the noise distribution without the intervals of each row's neighbours.

        Draws are unchanged where the neighbours are all words that there are.
        """
        sorted_LN = np.sort(neighbours_LN, 1)
        is_first_LN = np.diff(sorted_LN, axis=1, prepend=IGNORE) != 0
        is_first_LN &= sorted_LN != IGNORE
        word_LN = np.maximum(sorted_LN, 0)
        start_LN = np.concatenate(([0.0], self._cumulative_noise_V[:-1]))[word_LN]
        mass_LN = np.where(is_first_LN, self._cumulative_noise_V[word_LN] - start_LN, 0.0)
        left_L1 = self._cumulative_noise_V[-1] - mass_LN.sum(1, keepdims=True)
        place_LK = uniform_draws_LK * left_L1 / self._cumulative_noise_V[-1]
        for start_L, mass_L in zip(start_LN.T, mass_LN.T, strict=True):
            place_LK += np.where(place_LK >= start_L[:, None], mass_L[:, None], 0.0)
        place_LK = np.minimum(place_LK, np.nextafter(self._cumulative_noise_V[-1], 0))
        return np.where(left_L1 > 1e-9 * self._cumulative_noise_V[-1], place_LK, uniform_draws_LK)

    def _collate_pairs(self, parts: Sequence[CentreContextNoise]) -> Batch:
        centres_B1, neighbours_BN, noise_BK = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)
        )
        return Batch(centres_B1, neighbours_BN, negatives_BK=noise_BK if self.spec.negatives else None)


class CbowObjective(SkipGramObjective):
    """CBOW: each word c is predicted from the mean of the vectors of its context words o,

        -log s(u_c . h) - sum_k log s(-u_k . h), h = (v_1 + ... + v_n) / n

    or -log softmax(u . h)[c]. A row of a batch has the context words of a centre as tokens.
    """

    @staticmethod
    def _input_vectors(output: HiddenOutput, batch: Batch) -> Tensor:
        assert batch.keep_BT is not None
        n_B1 = batch.keep_BT.sum(1, keepdim=True).clamp(min=1)
        return (output.hidden_BTD * batch.keep_BT[..., None]).sum(1) / n_B1

    def _collate_pairs(self, parts: Sequence[CentreContextNoise]) -> Batch:
        of_centres = super()._collate_pairs(parts)
        neighbours_BN = of_centres.targets_BT
        assert neighbours_BN is not None
        keep_BN = neighbours_BN != IGNORE
        targets_B1 = of_centres.tokens_BT.masked_fill(~keep_BN.any(1, keepdim=True), IGNORE)
        words_BN = neighbours_BN.clamp(min=0)
        return Batch(words_BN, targets_B1, keep_BT=keep_BN, negatives_BK=of_centres.negatives_BK)


@dataclass(frozen=True)
class GloveObjective(SkipGramObjective):
    """Sum over pairs (i, j) of f(X_ij) (w_i . u_j + b_i + c_j - log X_ij)^2, f(x) = min(1, (x / x_max)^power).

    An example has words i, context words j and their counts X; see `lmtool.training.cooccurrences`. In evaluation
    the loss is that of context words under p(j | i), because counts of another text would have another scale.

    spec: how pairs of evaluation are made. weights: of the training loss.
    """

    weights: WeightedCounts

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        rows = ((one.tokens, one.second, one.label) for one in examples)
        words_BP, contexts_BP, counts_BP = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        return Batch(words_BP, contexts_BP, values_BC=counts_BP.float())

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if batch.targets_BT is None or batch.values_BC is None or not isinstance(model, GloveModel):
            raise ValueError("the loss is of counts, for a GloVe model")
        scores_BP = model.estimate_log_counts(batch.tokens_BT, batch.targets_BT)
        weights_BP = (batch.values_BC / self.weights.x_max).clamp(max=1) ** self.weights.power
        errors_BP = scores_BP - batch.values_BC.log()
        return Loss((weights_BP * errors_BP.square()).sum(), torch.full_like(batch.targets_BT[0, 0], errors_BP.numel()))


def negative_sampling_loss(hidden_BD: Tensor, table_VD: Tensor, targets_BN: Tensor, negatives_BK: Tensor) -> Tensor:
    """Returns the sum over pairs of -log s(u_o . v_c) - sum_k log s(-u_k . v_c); all pairs of a row share its noise."""
    apply: Callable[..., Tensor] = _NegativeSamplingLoss.apply
    return apply(hidden_BD, table_VD, targets_BN, negatives_BK)


class _NegativeSamplingLoss(torch.autograd.Function):
    """Computes gradients in closed form: that of a score u . v is s(score) - 1 for context words, s(score) for noise.

    So the word vectors of all rows are never gathered at once: scores are computed in chunks of rows, a centre's
    gradient is a weighted sum of rows of the table, and a word's gradient a weighted sum of centres.
    """

    @staticmethod
    def forward(ctx: Any, hidden_BD: Tensor, table_VD: Tensor, targets_BN: Tensor, negatives_BK: Tensor) -> Tensor:
        is_pair_BN = targets_BN != IGNORE
        n_pairs_B1 = is_pair_BN.sum(1, keepdim=True)
        words_BM = torch.cat((targets_BN.clamp(min=0), negatives_BK), 1)
        N = targets_BN.shape[1]
        parts = zip(torch.split(words_BM, CENTRES_PER_CHUNK), torch.split(hidden_BD, CENTRES_PER_CHUNK), strict=True)
        # batched vectors: a product with a single column is four times as slow
        scores = [torch.bmm(h[:, None], F.embedding(w, table_VD).transpose(1, 2))[:, 0] for w, h in parts]
        score_BM = torch.cat(scores).to(table_VD.dtype)
        pair_BN, noise_BK = score_BM[:, :N], score_BM[:, N:]
        slope_BM = torch.cat(((pair_BN.sigmoid() - 1) * is_pair_BN, noise_BK.sigmoid() * n_pairs_B1), 1)
        ctx.save_for_backward(hidden_BD, table_VD, words_BM, slope_BM)
        return -(F.logsigmoid(pair_BN) * is_pair_BN).sum() - (F.logsigmoid(-noise_BK) * n_pairs_B1).sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_total,) = grad_outputs
        hidden_BD, table_VD, words_BM, slope_BM = ctx.saved_tensors
        slope_BM = slope_BM * grad_total
        to_hidden_BD = F.embedding_bag(words_BM, table_VD, per_sample_weights=slope_BM, mode="sum")
        # one bag of centres per word
        words, n_words = words_BM.flatten(), len(table_VD)
        order = _argsort_words(words, n_words)
        count_V = torch.bincount(words, minlength=n_words)
        to_table_VD = F.embedding_bag(
            order // words_BM.shape[1],
            hidden_BD.to(table_VD.dtype),
            count_V.cumsum(0) - count_V,
            per_sample_weights=slope_BM.flatten()[order],
            mode="sum",
        )
        return to_hidden_BD.to(hidden_BD.dtype), to_table_VD, None, None


def _argsort_words(words: Tensor, n_words: int) -> Tensor:
    """Returns the stable argsort of words below `n_words`."""
    if words.device.type != "cpu":
        return words.argsort(stable=True)
    # numpy sorts 16-bit integers ten times as fast
    return torch.from_numpy(np.argsort(words.numpy().astype(np.min_scalar_type(n_words)), kind="stable"))
