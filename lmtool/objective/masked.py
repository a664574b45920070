"""Masked language modelling: predict selected tokens from all others (BERT, RoBERTa, SpanBERT).

Shapes: B rows, T positions, D model width, N tokens of a text, C classes of next-sentence prediction: no, yes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch, pad_rows, widest_float_dtype
from lmtool.model import LanguageModel, Output
from lmtool.model.transformer import TransformerEncoder
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary, rng_of
from lmtool.objective.cross_entropy import chunked_cross_entropy, loss_of_hidden, with_auxiliary
from lmtool.recipe.spec.objective import Masked, SpanMasking

NEXT_SENTENCE, SENTENCE_ORDER = "next-sentence-accuracy", "sentence-order-accuracy"
"""Metrics: accuracy of what is told of two texts."""

Ints = NDArray[np.int64]
Words = Ints | list[Ints]
"""Positions of single tokens, or of the tokens of each word."""


class _Row(NamedTuple):
    """Inputs, targets, where a second text begins, if any, and the order of the targets, if they have one."""

    tokens: Ints
    targets: Ints
    second: int | None = None
    order: Ints | None = None


@dataclass(frozen=True)
class MaskedObjective(Objective):
    """Mean over selected tokens of -log p(w | the others) (Devlin et al. 2019).

    Rows are [CLS] text [SEP]. Of the N tokens of a row that are not special, round(rate N), at least one, are selected,
    anew in each epoch (dynamic masking, Liu et al. 2019); of these n, round(mask_share n) become [MASK],
    round(random_share n) a random non-special token; the rest is unchanged. With `independent` each token is selected
    with probability `rate`, one at least, and becomes one of these with the probability of its share, by itself. With
    `whole_words` N and n count words, all tokens of which are selected and replaced alike, as RoBERTa's code does it.

    With `next_sentence` rows are [CLS] A [SEP] B [SEP], each text a segment, and the mean next-sentence cross-entropy
    is added; with `sentence_order` likewise that of B following A, not A following B (Lan et al. 2020). In it each row
    is weighted by its number of selected tokens, so it does not depend on how a batch is split.

    With `span_boundary` the loss of each selected token is added when it is predicted from the tokens beside its span
    and its place in it (Joshi et al. 2020). Spans that touch are one. Scores are of the masked tokens alone.

    With `permutation` selected tokens stay, and each is predicted from those that are not selected, and from the
    selected ones before it in a random order z: -log p(w_z(i) | others, w_z(1)..w_z(i-1)) (Yang et al. 2019).
    """

    measures_in_one_pass = False

    spec: Masked
    vocabulary: Vocabulary

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self._told,) if self.spec.pair_objective else ()

    @property
    def _told(self) -> str:
        """What is told of two texts."""
        return SENTENCE_ORDER if self.spec.sentence_order else NEXT_SENTENCE

    def cut(self, context: int) -> Cut:
        """Windows or pairs, less the room for [CLS] and each [SEP]."""
        if self.spec.pair_objective:
            return Cut("swapped pair" if self.spec.sentence_order else "pair", context - 3, context - 3)
        return Cut("stream", context - 2, context - 2)

    def window(self, context: int) -> int:
        """All tokens of a window, with [CLS] and [SEP]."""
        return max(1, context - 3)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Rows with the selected tokens replaced; targets are the original tokens."""
        batch = self._rows([self._corrupted(example.tokens, example.rng, example.other) for example in examples])
        if not self.spec.pair_objective:
            return batch
        return replace(batch, labels_B=torch.tensor([int(example.follows) for example in examples]))

    def collate_spans(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """Uncorrupted rows; targets are all scored tokens except special ones. See `measure`."""
        rows = []
        for tokens, first in spans:
            is_scored = (np.arange(len(tokens)) >= first) & self.vocabulary.is_word_V[tokens]
            rows.append(_Row(tokens, np.where(is_scored, tokens, IGNORE)))
        return self._rows(rows)

    def collate_validation(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """As in training, but with the same selected tokens each time."""
        return self._rows([self._corrupted(tokens, rng_of(tokens)) for tokens, _ in spans])

    def idle(self, model: LanguageModel) -> list[Parameter]:
        if not isinstance(model, TransformerEncoder):
            return []
        heads_of_pairs = () if self.spec.pair_objective else (model.pooler, model.next_sentence)
        heads = (*heads_of_pairs, None if self.spec.span_boundary else model.span_boundary)
        return [parameter for head in heads if head is not None for parameter in head.parameters()]

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        loss, output = self._of_chosen(model, batch)
        loss = with_auxiliary(loss, output.auxiliary_B, batch.targets_BT)
        if self.spec.span_boundary:
            loss = replace(loss, total=loss.total + self._from_boundaries(model, output.hidden_BTD, batch))
        if batch.labels_B is None:
            return loss
        nats_B = F.cross_entropy(self._follows(model, output.hidden_BTD), batch.labels_B, reduction="none")
        return with_auxiliary(loss, nats_B, batch.targets_BT)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """Over the selected tokens alone; and next-sentence accuracy for rows of two texts."""
        loss, output = self._of_chosen(model, batch)
        if batch.labels_B is None:
            return loss
        right = (self._follows(model, output.hidden_BTD).argmax(1) == batch.labels_B).sum()
        return replace(loss, metrics={self._told: (right, len(batch.labels_B))})

    @staticmethod
    def _of_chosen(model: LanguageModel, batch: Batch) -> tuple[Loss, Output]:
        """The loss of the selected tokens, the only ones with logits; and the model's output."""
        targets_BT = batch.required_targets_BT
        output: Output = model(batch)
        chosen_BT = targets_BT != IGNORE
        return loss_of_hidden(model, output.hidden_BTD[chosen_BT], targets_BT[chosen_BT]), output

    @staticmethod
    def _from_boundaries(model: LanguageModel, hidden_BTD: Tensor, batch: Batch) -> Tensor:
        """The summed loss of the selected tokens, each from the states on both sides of the run that it is in."""
        if not isinstance(model, TransformerEncoder) or model.span_boundary is None or batch.targets_BT is None:
            raise ValueError("only an encoder with a span_boundary_head predicts from the boundaries of spans")
        chosen_BT = batch.targets_BT != IGNORE
        t_BT = torch.arange(chosen_BT.shape[1], device=chosen_BT.device).expand_as(chosen_BT)
        left_BT = t_BT.masked_fill(chosen_BT, 0).cummax(1).values
        right_BT = t_BT.masked_fill(chosen_BT, chosen_BT.shape[1] - 1).flip(1).cummin(1).values.flip(1)
        row_M, t_M = chosen_BT.nonzero(as_tuple=True)
        left_M, right_M = left_BT[chosen_BT], right_BT[chosen_BT]
        states_MD = model.span_boundary(hidden_BTD[row_M, left_M], hidden_BTD[row_M, right_M], t_M - left_M - 1)
        return chunked_cross_entropy(model.span_boundary, states_MD, batch.targets_BT[chosen_BT])

    @staticmethod
    def _follows(model: LanguageModel, hidden_BTD: Tensor) -> Tensor:
        """Scores (B, 2) in float32 or wider."""
        if not isinstance(model, TransformerEncoder):
            raise ValueError("only an encoder has next-sentence prediction")
        scores_BC = model.next_sentence_logits(hidden_BTD)
        return scores_BC.to(torch.promote_types(scores_BC.dtype, torch.float32))

    def measure(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed pseudo-log-likelihood: each target is masked on its own (Salazar et al. 2020)."""
        wanted_BT = batch.required_targets_BT
        total = torch.zeros((), dtype=widest_float_dtype(batch.tokens_BT.device), device=batch.tokens_BT.device)
        for t in range(batch.tokens_BT.shape[1]):
            rows_B = (wanted_BT[:, t] != IGNORE).nonzero()[:, 0]
            if not len(rows_B):
                continue
            tokens_BT = batch.tokens_BT[rows_B]
            tokens_BT[:, t] = self.vocabulary.mask
            targets_BT = torch.full_like(tokens_BT, IGNORE)
            targets_BT[:, t] = wanted_BT[rows_B, t]
            keep_BT = None if batch.keep_BT is None else batch.keep_BT[rows_B]
            masked = Batch(tokens_BT, targets_BT, keep_BT)
            if self.spec.permutation:
                # the last one of an order: no other position sees it, so that one stream is enough
                others_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) != t
                masked = replace(masked, extra_mask_BTT=others_T.expand(len(rows_B), len(others_T), -1))
            total += self._of_chosen(model, masked)[0].total
        return Loss(total.float(), (wanted_BT != IGNORE).sum())

    def _corrupted(self, first_N: Ints, rng: np.random.Generator, second_N: Ints | None = None) -> _Row:
        """The corrupted tokens of a text, or of two, and the targets."""
        tokens_N = np.concatenate([text for text in (first_N, second_N) if text is not None])
        spec, words = self.spec, self._words(tokens_N, len(first_N))
        if spec.independent:
            chosen = rng.permutation(each(np.arange(len(words)), spec.rate, rng))
            rest = max(0.0, 1 - spec.mask_share - spec.random_share)
            n_mask, n_random, _ = rng.multinomial(len(chosen), (spec.mask_share, spec.random_share, rest))
        else:
            chosen = choose(np.arange(len(words)), spec.rate, spec.spans, rng)
            if spec.spans is None:
                chosen = rng.permutation(chosen)
            n_mask = round(spec.mask_share * len(chosen))
            n_random = min(round(spec.random_share * len(chosen)), len(chosen) - n_mask)
        if spec.permutation:
            return _Row(tokens_N, np.full(len(tokens_N), IGNORE), order=rng.permutation(_at(words, chosen)))
        masked, changed, kept = (_at(words, part) for part in np.split(chosen, (n_mask, n_mask + n_random)))
        targets_N = np.full(len(tokens_N), IGNORE)
        for part in (masked, changed, kept):
            targets_N[part] = tokens_N[part]
        tokens_N[masked] = self.vocabulary.mask
        others = np.flatnonzero(self.vocabulary.is_word_V)
        tokens_N[changed] = others[rng.integers(0, len(others), len(changed))]
        return _Row(tokens_N, targets_N, None if second_N is None else len(first_N))

    def _words(self, tokens_N: Ints, second: int) -> Words:
        """Positions of tokens that are not special; with `whole_words` those of each word. second: of the next text."""
        positions = np.flatnonzero(self.vocabulary.is_word_V[tokens_N])
        if not self.spec.whole_words:
            return positions
        assert self.vocabulary.joins_2V is not None
        goes_on, leaves_open = self.vocabulary.joins_2V[:, tokens_N[positions]]
        apart = (np.diff(positions) > 1) | (positions[1:] == second)
        return np.split(positions, np.flatnonzero(apart | ~(leaves_open[:-1] & goes_on[1:])) + 1)

    def _in_order(self, tokens: Sequence[Ints], orders: Sequence[Ints]) -> Batch:
        """Rows of two streams: the tokens, and behind them a [MASK] for each position of an order, at that position.

        A token sees those that are in no order and those up to itself in it; a [MASK] those before it in the order, and
        not itself; no position sees a [MASK].
        """
        streams, targets, positions = [], [], []
        T = max(len(row) + len(order) for row, order in zip(tokens, orders, strict=True))
        extra_mask_BTT = torch.zeros(len(tokens), T, T, dtype=torch.bool)
        for row, order, seen_TT in zip(tokens, orders, extra_mask_BTT, strict=True):
            rank = np.zeros(len(row), dtype=np.int64)
            rank[order] = np.arange(1, len(order) + 1)
            latest = np.concatenate((rank, rank[order] - 1))
            seen_TT[: len(latest), : len(row)] = torch.from_numpy(rank <= latest[:, None])
            streams.append(np.concatenate((row, np.full(len(order), self.vocabulary.mask))))
            targets.append(np.concatenate((np.full(len(row), IGNORE), row[order])))
            positions.append(np.concatenate((np.arange(len(row)), order)))
        tokens_BT, keep_BT = pad_rows(streams, self.vocabulary.pad)
        batch = Batch(tokens_BT, pad_rows(targets, IGNORE)[0], keep_BT)
        return replace(batch, extra_mask_BTT=extra_mask_BTT, positions_BT=pad_rows(positions, 0)[0])

    def _rows(self, rows: Sequence[_Row]) -> Batch:
        """[CLS] text [SEP], or [CLS] text [SEP] text [SEP], right-padded."""
        tokens, targets, segments = [], [], []
        for row in rows:
            ends = [len(row.tokens)] if row.second is None else [row.second, len(row.tokens)]
            # [CLS] before the first text and [SEP] after each
            tokens.append(np.insert(row.tokens, [0, *ends], [self.vocabulary.cls, *[self.vocabulary.sep] * len(ends)]))
            targets.append(np.insert(row.targets, [0, *ends], IGNORE))
            segments.append((np.arange(len(tokens[-1])) > ends[0] + 1).astype(np.int64))
        if self.spec.permutation and any(row.order is not None for row in rows):
            return self._in_order(tokens, [row.order + 1 for row in rows if row.order is not None])
        tokens_BT, keep_BT = pad_rows(tokens, self.vocabulary.pad)
        segments_BT = pad_rows(segments, 0)[0] if any(row.second is not None for row in rows) else None
        return Batch(tokens_BT, pad_rows(targets, IGNORE)[0], keep_BT, segments_BT=segments_BT)


def _at(words: Words, chosen: Ints) -> Ints:
    """The positions of the chosen words."""
    if isinstance(words, np.ndarray):
        return words[chosen]
    return np.concatenate([np.empty(0, dtype=np.int64), *(words[i] for i in chosen)])


def each(positions: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """Positions to predict: each with probability `rate`, by itself; one at random where that leaves none."""
    chosen = positions[rng.random(len(positions)) < rate]
    return chosen if len(chosen) else rng.permutation(positions)[:1]


def choose(positions: Ints, rate: float, spans: SpanMasking | None, rng: np.random.Generator) -> Ints:
    """Positions to predict: round(rate n) of them, at least one unless there are none.

    Single positions at random, or contiguous spans with geometrically distributed lengths, redrawn above max_length,
    until enough are selected (Joshi et al. 2020).
    """
    wanted = min(len(positions), max(1, round(rate * len(positions))))
    if spans is None:
        return rng.permutation(positions)[:wanted]
    chosen: dict[int, None] = {}
    while len(chosen) < wanted:
        length = int(rng.geometric(spans.p))
        if length > spans.max_length:
            continue
        start = int(rng.integers(len(positions)))
        for index in range(start, min(start + length, len(positions))):
            if len(chosen) < wanted:
                chosen[index] = None
    return positions[np.array(list(chosen), dtype=np.int64)]
