"""Skip-gram: predict the neighbours of each word, by a softmax or against noise words (Mikolov et al. 2013).

Shapes: B centres, N neighbours of a centre, K noise words, L words of a stretch of text, D model width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lmtool.batch import IGNORE, Batch
from lmtool.errors import DataError
from lmtool.model import LanguageModel, Output
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import chunk_rows, with_auxiliary
from lmtool.recipe.spec import SkipGramWindow

MEASURING_SEED = 0
"""Decides reaches and noise where a text is measured, so that equal texts measure alike."""

CACHED_ROWS = 256
"""Centres scored at once: their vectors and those of their words stay in the cache of a CPU core."""

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class SkipGramObjective(Objective):
    """Mean over pairs (centre c, neighbour o) of -log softmax(u . v_c)[o], or of

        -log s(u_o . v_c) - sum_k log s(-u_k . v_c)

    with K noise words k. A row of a batch is a centre with all its neighbours in one stretch, which share one set of
    noise words (Ji et al. 2016): the expectation is that of noise for each pair, and a third of the vectors are read.

    vocabulary.counts: of the training text; they give the noise and say which words are frequent.
    Raises DataError when the training text has no word that the tokenizer knows.
    """

    unit: ClassVar[Literal["token", "pair"]] = "pair"

    spec: SkipGramWindow
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        if not self._counts_V.any():
            raise DataError("the training text has no word that the tokenizer knows", fix="give more text")

    def cut(self, context: int) -> Cut:
        """Stretches that do not overlap; a pair stands in one stretch."""
        return Cut("stream", context, context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """One row for each centre: the words that subsampling leaves, with reaches and noise drawn by example."""
        parts = []
        for example in examples:
            words_L, document_L = self._words(example.tokens)
            kept_L = example.rng.random(len(words_L)) < self._keep_V[words_L]
            parts.append(self._pairs(words_L[kept_L], document_L[kept_L], example.rng))
        return self._batch(parts)

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Pairs of a text to measure: nothing is left out, and reaches and noise are always the same."""
        parts = []
        for tokens, first in spans:
            rng = np.random.Generator(np.random.PCG64(MEASURING_SEED))
            words_L, document_L = self._words(tokens[max(0, first - 1) :])
            parts.append(self._pairs(words_L, document_L, rng))
        return self._batch(parts)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        return with_auxiliary(*self._read(model, batch), batch.targets_BT)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """What is minimised is what is measured, per pair."""
        return self._read(model, batch)[0]

    def _read(self, model: LanguageModel, batch: Batch) -> tuple[Loss, Tensor | None]:
        """The loss of all pairs, and the auxiliary losses of the centres, if the model has any."""
        if batch.targets_BT is None:
            raise ValueError("a batch without targets has no loss")
        output: Output = model(batch)
        hidden_BD, targets_BN = output.hidden_BTD[:, 0], batch.targets_BT
        if batch.negatives_BK is None:
            total = self._softmax(model, hidden_BD, targets_BN)
        else:
            (table_VD,) = model.head_parameters()
            total = against_noise(hidden_BD, table_VD, targets_BN, batch.negatives_BK)
        return Loss(total, (targets_BN != IGNORE).sum()), output.auxiliary_B

    @staticmethod
    def _softmax(model: LanguageModel, hidden_BD: Tensor, targets_BN: Tensor) -> Tensor:
        """-log p of all neighbours; logits exist for some centres at a time, and again when their gradient is taken."""
        rows = chunk_rows(hidden_BD.device, model.vocab_size)

        def part(hidden_BD: Tensor, targets_BN: Tensor) -> Tensor:
            logits_BV = model.logits(hidden_BD)
            log_p_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
            return -(log_p_BV.gather(1, targets_BN.clamp(min=0)) * (targets_BN != IGNORE)).sum()

        if len(hidden_BD) <= rows:
            return part(hidden_BD, targets_BN)
        chunks = zip(torch.split(hidden_BD, rows), torch.split(targets_BN, rows), strict=True)
        return torch.stack([cast(Tensor, checkpoint(part, *chunk, use_reentrant=False)) for chunk in chunks]).sum()

    @cached_property
    def _counts_V(self) -> IntArray:
        assert self.vocabulary.counts is not None
        counts_V = self.vocabulary.counts.copy()
        counts_V[: self.vocabulary.specials] = 0
        return counts_V

    @cached_property
    def _keep_V(self) -> NDArray[np.float64]:
        """Probability that a word of a share f of the text stays: sqrt(t / f) + t / f, as word2vec.c has it."""
        if not self.spec.subsample:
            return np.ones(len(self._counts_V))
        share_V = np.maximum(1, self._counts_V) / self._counts_V.sum() / self.spec.subsample
        keep_V: NDArray[np.float64] = np.minimum(1.0, share_V**-0.5 + 1 / share_V)
        return keep_V

    @cached_property
    def _noise_V(self) -> NDArray[np.float64]:
        """Running sum of the noise's probabilities, which are as counts to the power of 0.75."""
        mass_V = np.where(self._counts_V > 0, np.maximum(1, self._counts_V) ** float(self.spec.power), 0.0)
        sums_V: NDArray[np.float64] = np.cumsum(mass_V / mass_V.sum())
        return sums_V

    def _words(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """The words among tokens, and the number of the document that each stands in."""
        is_word = tokens >= self.vocabulary.specials
        return tokens[is_word], np.cumsum(tokens == self.vocabulary.bos)[is_word]

    def _pairs(
        self, words_L: IntArray, document_L: IntArray, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Each word (L, 1) with the neighbours within its reach (L, 2 window) and its noise (L, K)."""
        W, L = self.spec.window, len(words_L)
        reach_L = rng.integers(1, W, L, endpoint=True)
        drawn_LK = rng.random((L, self.spec.negatives)) * self._noise_V[-1]
        noise_LK = np.searchsorted(self._noise_V, drawn_LK, side="right")
        offset_N = np.concatenate((np.arange(-W, 0), np.arange(1, W + 1)))
        place_LN = np.arange(L)[:, None] + offset_N
        near_LN = np.abs(offset_N) <= reach_L[:, None]
        inside_LN = (place_LN >= 0) & (place_LN < L)
        place_LN = np.where(inside_LN, place_LN, 0)
        if L:
            near_LN &= inside_LN & (document_L[place_LN] == document_L[:, None])
            neighbours_LN = np.where(near_LN, words_L[place_LN], IGNORE)
        else:
            neighbours_LN = np.empty((0, 2 * W), dtype=np.int64)
        return words_L[:, None], neighbours_LN, noise_LK

    def _batch(self, parts: Sequence[tuple[IntArray, IntArray, IntArray]]) -> Batch:
        centres_B1, neighbours_BN, noise_BK = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)
        )
        return Batch(centres_B1, neighbours_BN, negatives_BK=noise_BK if self.spec.negatives else None)


def against_noise(hidden_BD: Tensor, table_VD: Tensor, targets_BN: Tensor, negatives_BK: Tensor) -> Tensor:
    """Sum over pairs of -log s(u_o . v_c) - sum_k log s(-u_k . v_c), each row's noise counting for all its pairs."""
    total: Tensor = _AgainstNoise.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        hidden_BD, table_VD, targets_BN, negatives_BK
    )
    return total


class _AgainstNoise(torch.autograd.Function):
    """With the gradient in closed form: that of a score u . v is s(score) less 1 for a neighbour, s(score) for noise.

    So the vectors of all words of all rows never lie side by side: scores are computed some rows at a time, a centre's
    gradient is a weighted sum of rows of the table, and a word's a weighted sum of centres.
    """

    @staticmethod
    def forward(ctx: Any, hidden_BD: Tensor, table_VD: Tensor, targets_BN: Tensor, negatives_BK: Tensor) -> Tensor:
        is_pair_BN = targets_BN != IGNORE
        n_pairs_B1 = is_pair_BN.sum(1, keepdim=True)
        words_BM = torch.cat((targets_BN.clamp(min=0), negatives_BK), 1)
        N = targets_BN.shape[1]
        parts = zip(torch.split(words_BM, CACHED_ROWS), torch.split(hidden_BD, CACHED_ROWS), strict=True)
        # vectors beside vectors: a product with a single column is four times as slow
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
        # one bag of centres for each word
        words, n_words = words_BM.flatten(), len(table_VD)
        order = _order(words, n_words)
        count_V = torch.bincount(words, minlength=n_words)
        to_table_VD = F.embedding_bag(
            order // words_BM.shape[1],
            hidden_BD.to(table_VD.dtype),
            count_V.cumsum(0) - count_V,
            per_sample_weights=slope_BM.flatten()[order],
            mode="sum",
        )
        return to_hidden_BD.to(hidden_BD.dtype), to_table_VD, None, None


def _order(words: Tensor, n_words: int) -> Tensor:
    """The places of words, those of the first word first."""
    if words.device.type != "cpu":
        return words.argsort(stable=True)
    # numpy sorts numbers of 16 bits ten times as fast
    return torch.from_numpy(np.argsort(words.numpy().astype(np.min_scalar_type(n_words)), kind="stable"))
