"""Masked language modelling: predict chosen tokens from all others (BERT, RoBERTa, SpanBERT).

Shapes: B rows, T positions, N tokens of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import summed_loss
from lmtool.recipe.spec import Masked, SpanMasking


@dataclass(frozen=True)
class MaskedObjective(Objective):
    """Mean over chosen tokens of -log p(w | the others) (Devlin et al. 2019).

    Rows are [CLS] text [SEP]. Of the N tokens of a row that are not special, round(rate N), at least one, are chosen
    anew each time (Liu et al. 2019); of these round(mask_share n) become [MASK] and round(random_share n) another
    entry at random, never a special one; the rest stays.
    """

    spec: Masked
    vocabulary: Vocabulary

    def cut(self, context: int) -> Cut:
        """Windows that leave room for [CLS] and [SEP]."""
        return Cut("stream", context - 2, context - 2)

    def window(self, context: int) -> int:
        """All tokens of a window are read, and [CLS] and [SEP] besides."""
        return max(1, context - 3)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Rows with what was chosen replaced; targets are the tokens that stood there."""
        return self._rows([self._corrupted(example.tokens, example.rng) for example in examples])

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Whole rows; targets are all tokens that are to be scored, special ones left out. See `measure`."""
        rows = []
        for tokens, first in spans:
            targets = np.where((np.arange(len(tokens)) >= first) & (tokens >= self.vocabulary.specials), tokens, IGNORE)
            rows.append((tokens, targets))
        return self._rows(rows)

    def collate_validation(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """As in training, but the same tokens of a text are chosen each time."""
        rows = []
        for tokens, _ in spans:
            rng = np.random.Generator(np.random.PCG64(tokens.astype(np.uint64)))
            rows.append(self._corrupted(tokens, rng))
        return self._rows(rows)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        return summed_loss(model, batch)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return summed_loss(model, batch)

    def measure(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed pseudo-log-likelihood: each target is masked by itself, all else is seen (Salazar et al. 2020)."""
        if batch.targets_BT is None:
            raise ValueError("a batch without targets has no loss")
        total = torch.zeros((), dtype=torch.float64, device=batch.tokens_BT.device)
        for t in range(batch.tokens_BT.shape[1]):
            rows_B = (batch.targets_BT[:, t] != IGNORE).nonzero()[:, 0]
            if not len(rows_B):
                continue
            tokens_BT = batch.tokens_BT[rows_B]
            tokens_BT[:, t] = self.vocabulary.mask
            targets_BT = torch.full_like(tokens_BT, IGNORE)
            targets_BT[:, t] = batch.targets_BT[rows_B, t]
            keep_BT = None if batch.keep_BT is None else batch.keep_BT[rows_B]
            total += summed_loss(model, Batch(tokens_BT, targets_BT, keep_BT)).total
        return Loss(total.float(), (batch.targets_BT != IGNORE).sum())

    def _corrupted(
        self, tokens_N: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens with the chosen ones replaced, and the targets."""
        chosen = choose(np.flatnonzero(tokens_N >= self.vocabulary.specials), self.spec.rate, self.spec.spans, rng)
        tokens_N, targets_N = tokens_N.copy(), np.full(len(tokens_N), IGNORE)
        targets_N[chosen] = tokens_N[chosen]
        if self.spec.spans is None:
            chosen = rng.permutation(chosen)
        n_mask = round(self.spec.mask_share * len(chosen))
        n_random = min(round(self.spec.random_share * len(chosen)), len(chosen) - n_mask)
        tokens_N[chosen[:n_mask]] = self.vocabulary.mask
        drawn = rng.integers(self.vocabulary.specials, self.vocabulary.size, n_random)
        tokens_N[chosen[n_mask : n_mask + n_random]] = drawn
        return tokens_N, targets_N

    def _rows(self, rows: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Batch:
        """[CLS] text [SEP], padded behind."""
        B, T = len(rows), max(len(tokens) for tokens, _ in rows) + 2
        tokens_BT, targets_BT = torch.full((B, T), self.vocabulary.pad), torch.full((B, T), IGNORE)
        keep_BT = torch.zeros(B, T, dtype=torch.bool)
        for row, (tokens, targets) in enumerate(rows):
            n = len(tokens)
            tokens_BT[row, 0], tokens_BT[row, n + 1] = self.vocabulary.cls, self.vocabulary.sep
            tokens_BT[row, 1 : n + 1] = torch.from_numpy(tokens)
            targets_BT[row, 1 : n + 1] = torch.from_numpy(targets)
            keep_BT[row, : n + 2] = True
        return Batch(tokens_BT, targets_BT, None if keep_BT.all() else keep_BT)


def choose(
    places: NDArray[np.int64], rate: float, spans: SpanMasking | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Which of the places are to be predicted: round(rate n) of them, at least one where there is any.

    Single ones at random, or spans of neighbouring places whose lengths are geometrically distributed, and drawn anew
    above max_length, until enough are chosen (Joshi et al. 2020).
    """
    wanted = min(len(places), max(1, round(rate * len(places))))
    if spans is None:
        return rng.permutation(places)[:wanted]
    chosen: dict[int, None] = {}
    while len(chosen) < wanted:
        length = int(rng.geometric(spans.p))
        if length > spans.max_length:
            continue
        start = int(rng.integers(len(places)))
        for place in range(start, min(start + length, len(places))):
            if len(chosen) < wanted:
                chosen[place] = None
    return places[np.array(list(chosen), dtype=np.int64)]
