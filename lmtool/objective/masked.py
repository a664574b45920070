"""Masked language modelling: predict selected tokens from all others (BERT, RoBERTa, SpanBERT).

Shapes: B rows, T positions, D model width, N tokens of a text, C classes of next-sentence prediction: no, yes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.arrays import Ints
from lmtool.batch import IGNORE, Batch, pad_right_with_keep_mask, widest_float_dtype
from lmtool.model import HiddenOutput, LanguageModel
from lmtool.model.transformer import TransformerEncoder
from lmtool.objective.base import Example, Loss, Objective, TextCutSettings, VocabularyInfo, rng_from_tokens
from lmtool.objective.cross_entropy import add_auxiliary_loss, cross_entropy_from_hidden, sum_cross_entropy_in_chunks
from lmtool.recipe.spec.objective import Masked, SpanMasking

NEXT_SENTENCE, SENTENCE_ORDER = "next-sentence-accuracy", "sentence-order-accuracy"
"""Metrics: share of the pairs of texts whose relation is predicted rightly."""

Words = Ints | list[Ints]
"""Positions of single tokens, or of the tokens of each word."""


class _CorruptedRow(NamedTuple):
    """A row without [CLS] and [SEP].

    second: index of the first token of a second text; None without one.
    order: positions in the order of their prediction, for permutation; else None.
    """

    tokens: Ints
    targets: Ints
    second: int | None = None
    order: Ints | None = None


@dataclass(frozen=True)
class MaskedObjective(Objective):
    """Mean over selected tokens of -log p(w | the others) (Devlin et al. 2019).

    Rows are [CLS] text [SEP]. Of the N tokens of a row that are not special, round(rate N), at least one, are selected,
    anew in each epoch (dynamic masking, Liu et al. 2019). Of these n, a share `mask_share` becomes [MASK],
    `random_share` a random non-special token; the rest is unchanged. Both counts are rounded at random, so that the
    shares hold on average in rows of any length. With `independent` each token is selected independently with
    probability `rate`, one at least, and replaced independently with the probability of each share.
    With `whole_words` N and n count words, all tokens of which are selected and replaced alike, as in RoBERTa's code.

    With `next_sentence` rows are [CLS] A [SEP] B [SEP], each text a segment, and the mean cross-entropy of whether B
    follows A is added; with `sentence_order` that of whether B follows A or A follows B (Lan et al. 2020). Each row is
    weighted by its number of selected tokens in it, so that it does not depend on how a batch is split.

    With `span_boundary` the loss of predicting each selected token from the tokens on both sides of its span and its
    position in the span is added (Joshi et al. 2020). Spans that touch are one. Scores are of the masked tokens alone.

    With `permutation` selected tokens stay, and each is predicted from those that are not selected, and from the
    selected ones before it in a random order z: -log p(w_z(i) | others, w_z(1)..w_z(i-1)) (Yang et al. 2019).
    """

    scores_text_in_one_pass = False

    spec: Masked
    vocabulary: VocabularyInfo

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (SENTENCE_ORDER if self.spec.sentence_order else NEXT_SENTENCE,) if self.spec.pair_objective else ()

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows or pairs that leave room for [CLS] and each [SEP]."""
        if self.spec.pair_objective:
            return TextCutSettings("swapped pair" if self.spec.sentence_order else "pair", context - 3, context - 3)
        return TextCutSettings("stream", context - 2, context - 2)

    def max_scored_tokens(self, context: int) -> int:
        """Leaves room for [CLS] and [SEP]."""
        return max(1, context - 3)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Collates rows with the selected tokens replaced; targets are the original tokens."""
        batch = self._add_special_tokens_and_collate(
            [self._corrupt(example.tokens, example.rng, example.second) for example in examples]
        )
        if not self.spec.pair_objective:
            return batch
        return replace(batch, labels_B=torch.tensor([int(example.second_follows) for example in examples]))

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates uncorrupted rows; targets are all scored tokens except special ones. See `score_text`."""
        rows = []
        for tokens, first in tokens_and_first_scored:
            is_scored = (np.arange(len(tokens)) >= first) & self.vocabulary.is_not_special_V[tokens]
            rows.append(_CorruptedRow(tokens, np.where(is_scored, tokens, IGNORE)))
        return self._add_special_tokens_and_collate(rows)

    def collate_validation(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates rows as in training, but with the same selected tokens each time."""
        return self._add_special_tokens_and_collate(
            [self._corrupt(tokens, rng_from_tokens(tokens)) for tokens, _ in tokens_and_first_scored]
        )

    def unused_parameters(self, model: LanguageModel) -> list[Parameter]:
        if not isinstance(model, TransformerEncoder):
            return []
        pair_heads = () if self.spec.pair_objective else (model.pooler, model.next_sentence)
        heads = (*pair_heads, None if self.spec.span_boundary else model.span_boundary)
        return [parameter for head in heads if head is not None for parameter in head.parameters()]

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        loss, output = self._selected_token_loss_and_output(model, batch)
        loss = add_auxiliary_loss(loss, output.auxiliary_B, batch.targets_BT)
        if self.spec.span_boundary:
            loss = replace(loss, total=loss.total + self._sum_span_boundary_loss(model, output.hidden_BTD, batch))
        if batch.labels_B is None:
            return loss
        nats_B = F.cross_entropy(self._next_sentence_scores(model, output.hidden_BTD), batch.labels_B, reduction="none")
        return add_auxiliary_loss(loss, nats_B, batch.targets_BT)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the summed -log p of the selected tokens, and for rows of two texts the metric of their relation."""
        loss, output = self._selected_token_loss_and_output(model, batch)
        if batch.labels_B is None:
            return loss
        right = (self._next_sentence_scores(model, output.hidden_BTD).argmax(1) == batch.labels_B).sum()
        return replace(loss, metrics=dict.fromkeys(self.metric_names, (right, len(batch.labels_B))))

    @staticmethod
    def _selected_token_loss_and_output(model: LanguageModel, batch: Batch) -> tuple[Loss, HiddenOutput]:
        """Returns the loss of the selected tokens, the only ones whose logits are computed, and the model's output."""
        targets_BT = batch.required_targets_BT
        output: HiddenOutput = model(batch)
        selected_BT = targets_BT != IGNORE
        return cross_entropy_from_hidden(model, output.hidden_BTD[selected_BT], targets_BT[selected_BT]), output

    @staticmethod
    def _sum_span_boundary_loss(model: LanguageModel, hidden_BTD: Tensor, batch: Batch) -> Tensor:
        """Returns the summed loss of the selected tokens, each predicted from the states on both sides of its run."""
        if not isinstance(model, TransformerEncoder) or model.span_boundary is None or batch.targets_BT is None:
            raise ValueError("only an encoder with a span_boundary_head predicts from the boundaries of spans")
        selected_BT = batch.targets_BT != IGNORE
        t_BT = torch.arange(selected_BT.shape[1], device=selected_BT.device).expand_as(selected_BT)
        left_BT = t_BT.masked_fill(selected_BT, 0).cummax(1).values
        right_BT = t_BT.masked_fill(selected_BT, selected_BT.shape[1] - 1).flip(1).cummin(1).values.flip(1)
        row_M, t_M = selected_BT.nonzero(as_tuple=True)
        left_M, right_M = left_BT[selected_BT], right_BT[selected_BT]
        states_MD = model.span_boundary(hidden_BTD[row_M, left_M], hidden_BTD[row_M, right_M], t_M - left_M - 1)
        return sum_cross_entropy_in_chunks(model.span_boundary, states_MD, batch.targets_BT[selected_BT])

    @staticmethod
    def _next_sentence_scores(model: LanguageModel, hidden_BTD: Tensor) -> Tensor:
        """Returns next-sentence scores (B, 2) in float32 or wider."""
        if not isinstance(model, TransformerEncoder):
            raise ValueError("only an encoder has next-sentence prediction")
        scores_BC = model.next_sentence_logits(hidden_BTD)
        return scores_BC.to(torch.promote_types(scores_BC.dtype, torch.float32))

    def score_text(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the summed negative pseudo-log-likelihood: each target is masked alone (Salazar et al. 2020)."""
        target_BT = batch.required_targets_BT
        total = torch.zeros((), dtype=widest_float_dtype(batch.tokens_BT.device), device=batch.tokens_BT.device)
        for t in range(batch.tokens_BT.shape[1]):
            rows_B = (target_BT[:, t] != IGNORE).nonzero()[:, 0]
            if not len(rows_B):
                continue
            tokens_BT = batch.tokens_BT[rows_B]
            tokens_BT[:, t] = self.vocabulary.mask
            targets_BT = torch.full_like(tokens_BT, IGNORE)
            targets_BT[:, t] = target_BT[rows_B, t]
            keep_BT = None if batch.keep_BT is None else batch.keep_BT[rows_B]
            masked = Batch(tokens_BT, targets_BT, keep_BT)
            if self.spec.permutation:
                # as the last position of an order, which no other sees, so that one stream is enough
                others_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) != t
                masked = replace(masked, extra_mask_BTT=others_T.expand(len(rows_B), len(others_T), -1))
            total += self._selected_token_loss_and_output(model, masked)[0].total
        return Loss(total.float(), (target_BT != IGNORE).sum())

    def _corrupt(self, first_N: Ints, rng: np.random.Generator, second_N: Ints | None = None) -> _CorruptedRow:
        """Selects tokens of a text, or of two, replaces them, and returns the row."""
        tokens_N = np.concatenate([text for text in (first_N, second_N) if text is not None])
        spec, words = self.spec, self._group_positions_by_word(tokens_N, len(first_N))
        if spec.independent:
            selected = rng.permutation(select_positions_independently(np.arange(len(words)), spec.rate, rng))
            rest = max(0.0, 1 - spec.mask_share - spec.random_share)
            n_mask, n_random, _ = rng.multinomial(len(selected), (spec.mask_share, spec.random_share, rest))
        else:
            selected = select_positions(np.arange(len(words)), spec.rate, spec.spans, rng)
            if spec.spans is None:
                selected = rng.permutation(selected)
            n_mask, n_random = round_shares_randomly(len(selected), (spec.mask_share, spec.random_share), rng)
        if spec.permutation:
            order = rng.permutation(_positions_of_words(words, selected))
            return _CorruptedRow(tokens_N, np.full(len(tokens_N), IGNORE), order=order)
        parts = np.split(selected, (n_mask, n_mask + n_random))
        masked, changed, kept = (_positions_of_words(words, part) for part in parts)
        targets_N = np.full(len(tokens_N), IGNORE)
        for part in (masked, changed, kept):
            targets_N[part] = tokens_N[part]
        tokens_N[masked] = self.vocabulary.mask
        others = np.flatnonzero(self.vocabulary.is_not_special_V)
        tokens_N[changed] = others[rng.integers(0, len(others), len(changed))]
        return _CorruptedRow(tokens_N, targets_N, None if second_N is None else len(first_N))

    def _group_positions_by_word(self, tokens_N: Ints, second_start: int) -> Words:
        """Returns the positions of tokens that are not special; with `whole_words` those of each word.

        second_start: index of the first token of the second text, at which a word ends.
        """
        positions = np.flatnonzero(self.vocabulary.is_not_special_V[tokens_N])
        if not self.spec.whole_words:
            return positions
        assert self.vocabulary.word_continuations_2V is not None
        goes_on, leaves_open = self.vocabulary.word_continuations_2V[:, tokens_N[positions]]
        apart = (np.diff(positions) > 1) | (positions[1:] == second_start)
        return np.split(positions, np.flatnonzero(apart | ~(leaves_open[:-1] & goes_on[1:])) + 1)

    def _collate_two_stream_rows(self, tokens: Sequence[Ints], orders: Sequence[Ints]) -> Batch:
        """Collates rows of two streams: the tokens, and then a [MASK] for each position of an order, at that position.

        A token sees the tokens in no order, and those of the order up to itself; a [MASK] only those before it. No
        position sees a [MASK].
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
        tokens_BT, keep_BT = pad_right_with_keep_mask(streams, self.vocabulary.pad)
        batch = Batch(tokens_BT, pad_right_with_keep_mask(targets, IGNORE)[0], keep_BT)
        return replace(batch, extra_mask_BTT=extra_mask_BTT, positions_BT=pad_right_with_keep_mask(positions, 0)[0])

    def _add_special_tokens_and_collate(self, rows: Sequence[_CorruptedRow]) -> Batch:
        """Right-pads rows [CLS] text [SEP], or [CLS] text [SEP] text [SEP]."""
        tokens, targets, segments = [], [], []
        for row in rows:
            ends = [len(row.tokens)] if row.second is None else [row.second, len(row.tokens)]
            # [CLS] before the first text and [SEP] after each
            tokens.append(np.insert(row.tokens, [0, *ends], [self.vocabulary.cls, *[self.vocabulary.sep] * len(ends)]))
            targets.append(np.insert(row.targets, [0, *ends], IGNORE))
            segments.append((np.arange(len(tokens[-1])) > ends[0] + 1).astype(np.int64))
        if self.spec.permutation and any(row.order is not None for row in rows):
            return self._collate_two_stream_rows(tokens, [row.order + 1 for row in rows if row.order is not None])
        tokens_BT, keep_BT = pad_right_with_keep_mask(tokens, self.vocabulary.pad)
        segments_BT = pad_right_with_keep_mask(segments, 0)[0] if any(row.second is not None for row in rows) else None
        return Batch(tokens_BT, pad_right_with_keep_mask(targets, IGNORE)[0], keep_BT, segments_BT=segments_BT)


def _positions_of_words(words: Words, indices: Ints) -> Ints:
    """Returns the positions of the words with these indices."""
    if isinstance(words, np.ndarray):
        return words[indices]
    return np.concatenate([np.empty(0, dtype=np.int64), *(words[i] for i in indices)])


def round_shares_randomly(n: int, shares: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Splits n into counts within 1 of share * n, whose means over random draws are share * n (systematic sampling).

    shares: of sum 1 at most; what they leave has no count.
    """
    bounds = np.minimum(np.floor(np.cumsum(shares) * n + rng.random()), n)
    return [int(count) for count in np.diff(bounds, prepend=0)]


def select_positions_independently(positions: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """Selects each position with probability `rate`, independently; one at random where that selects none."""
    selected = positions[rng.random(len(positions)) < rate]
    return selected if len(selected) else rng.permutation(positions)[:1]


def select_positions(positions: Ints, rate: float, spans: SpanMasking | None, rng: np.random.Generator) -> Ints:
    """Selects round(rate n) of n positions, at least one unless there are none.

    They are single ones at random, or contiguous spans with geometrically distributed lengths, which are redrawn above
    max_length, until enough are selected (Joshi et al. 2020).
    """
    n_selected = min(len(positions), max(1, round(rate * len(positions))))
    if spans is None:
        return rng.permutation(positions)[:n_selected]
    selected: dict[int, None] = {}
    while len(selected) < n_selected:
        length = int(rng.geometric(spans.p))
        if length > spans.max_length:
            continue
        start = int(rng.integers(len(positions)))
        for index in range(start, min(start + length, len(positions))):
            if len(selected) < n_selected:
                selected[index] = None
    return positions[np.array(list(selected), dtype=np.int64)]
