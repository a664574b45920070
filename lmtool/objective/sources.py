"""Sequence-to-sequence objectives: pairs, prefix language modelling, and span corruption (T5).

Shapes: B rows, T positions of the target, S positions of the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from lmtool.arrays import Ints
from lmtool.batch import IGNORE, Batch, pad_right_with_keep_mask
from lmtool.objective.base import Example, TextCutSettings, VocabularyInfo, rng_from_tokens
from lmtool.objective.scheduled import TokenObjective, draw_scheduled_sampling_numbers
from lmtool.recipe.spec.objective import Prefix, Seq2Seq, SpanCorruption


class SourceTargetPair(NamedTuple):
    """A source and its target.

    start_ids: the first inputs of the decoder, which are not predicted.
    targets: the tokens after them, IGNORE where there is no loss.
    """

    source: Ints
    start_ids: tuple[int, ...]
    targets: Ints


def collate_pairs(pairs: Sequence[SourceTargetPair], shares_row: bool, pad_id: int) -> Batch:
    """Collates pairs to a right-padded batch. shares_row: whether source and target share a row."""
    rows, targets = [], []
    for source, start_ids, target in pairs:
        before = source if shares_row else source[:0]
        rows.append(np.concatenate((before, start_ids, np.where(target == IGNORE, pad_id, target)[:-1])))
        targets.append(np.concatenate((np.full(len(before) + len(start_ids) - 1, IGNORE), target)))
    tokens_BT, keep_BT = pad_right_with_keep_mask(rows, pad_id)
    batch = Batch(tokens_BT, pad_right_with_keep_mask(targets, IGNORE)[0], keep_BT)
    if shares_row:
        return replace(batch, prefix_B=torch.tensor([len(pair.source) for pair in pairs]))
    source_BS, source_keep_BS = pad_right_with_keep_mask([pair.source for pair in pairs], pad_id)
    return replace(batch, source_BS=source_BS, source_keep_BS=source_keep_BS)


@dataclass(frozen=True)
class PrefixObjective(TokenObjective):
    """Mean over the tokens after a prefix of -log p(w_{i+1} | the prefix, w_..w_i) (Raffel et al. 2020).

    A prefix LM is given the first token after the prefix; an encoder-decoder predicts it from [BOS]. The token that
    starts a document is never a target.
    """

    spec: Prefix
    vocabulary: VocabularyInfo
    shares_row: bool

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows as for a causal model."""
        return TextCutSettings("stream", context + 1, context)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Splits each window at random, or at the recipe's fraction."""
        pairs = []
        for example in examples:
            n = len(example.tokens)
            if self.spec.fraction is None:
                split = int(example.rng.integers(1, n - 1)) if n > 2 else 1
            else:
                split = min(max(1, round(self.spec.fraction * n)), max(1, n - 2))
            pairs.append(self._split_at(example.tokens, split))
        return collate_pairs(pairs, self.shares_row, self.vocabulary.pad)

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates rows whose prefix is everything before the first scored token, at least one token."""
        first = int(self.shares_row)
        pairs = [self._split_at(tokens, start - first) for tokens, start in tokens_and_first_scored]
        return collate_pairs(pairs, self.shares_row, self.vocabulary.pad)

    def _split_at(self, tokens: Ints, split: int) -> SourceTargetPair:
        behind = tokens[split:]
        targets = np.where(behind == self.vocabulary.unpredicted_bos, IGNORE, behind)
        if not self.shares_row:
            return SourceTargetPair(tokens[:split], self.vocabulary.target_start_ids, targets)
        return SourceTargetPair(tokens[:split], (int(behind[0]),), targets[1:])


@dataclass(frozen=True)
class SpanCorruptionObjective(TokenObjective):
    """Generate the removed spans, each after its sentinel (Raffel et al. 2020).

    "a b c d e" with "b" and "d e" removed: the source is a <0> c <1>, the target <0> b <1> d e <2>. Lengths of spans
    and gaps are random: round(rate n) tokens in round(that / mean_length) spans, at least one of each. [EOS] can
    take the place of the last sentinel, or follow it.
    """

    spec: SpanCorruption
    vocabulary: VocabularyInfo
    shares_row: bool

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows whose source fills the context."""
        length = context
        while self._source_and_target_lengths(length + 1)[0] <= context:
            length += 1
        if self.shares_row:
            while length > 2 and sum(self._source_and_target_lengths(length)) > context:
                length -= 1
        return TextCutSettings("stream", length, length)

    def max_scored_tokens(self, context: int) -> int:
        """Leaves room for special tokens, in the training format and if all scored tokens are one removed span."""
        return max(1, min(context - 3, self.choose_text_cut(context).length - 1))

    def _count_noise_tokens_and_spans(self, n_tokens: int) -> tuple[int, int]:
        """Returns how many of n tokens are removed, and in how many spans."""
        n_noise = min(max(1, round(self.spec.rate * n_tokens)), max(1, n_tokens - 1))
        n_spans = max(1, round(n_noise / self.spec.mean_length))
        return n_noise, min(n_spans, n_noise, max(1, n_tokens - n_noise), max(1, len(self.vocabulary.sentinels) - 1))

    def _source_and_target_lengths(self, n: int) -> tuple[int, int]:
        """Returns the lengths of the source and the target of n tokens."""
        n_noise, n_spans = self._count_noise_tokens_and_spans(n)
        return n - n_noise + n_spans, n_noise + n_spans + (2 if self.spec.end == "both" else 1)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        corrupted = (self.corrupt_to_source_and_target(example.tokens, example.rng) for example in examples)
        pairs = [SourceTargetPair(source, self.vocabulary.target_start_ids, target) for source, target in corrupted]
        return collate_pairs(pairs, self.shares_row, self.vocabulary.pad)

    def corrupt_to_source_and_target(self, tokens: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Returns the source and the target of a text."""
        n_noise, n_spans = self._count_noise_tokens_and_spans(len(tokens))
        noise = _random_composition(n_noise, n_spans, rng)
        rest = _random_composition(len(tokens) - n_noise, n_spans, rng)
        source: list[int] = []
        target: list[int] = []
        parts = iter(np.split(tokens, np.cumsum([n for pair in zip(rest, noise, strict=True) for n in pair])))
        for sentinel, kept, removed in zip(self.vocabulary.sentinels[:n_spans], parts, parts, strict=False):
            source += [*kept.tolist(), sentinel]
            target += [sentinel, *removed.tolist()]
        if self.spec.end != "eos" and n_spans < len(self.vocabulary.sentinels):
            target.append(self.vocabulary.sentinels[n_spans])
        if self.spec.end != "sentinel" or n_spans == len(self.vocabulary.sentinels):
            target.append(self.vocabulary.eos)
        return np.array(source), np.array(target)

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates rows whose scored tokens form one removed span at the end."""
        sentinel = self.vocabulary.sentinels[0]
        pairs = []
        for tokens, first in tokens_and_first_scored:
            behind = np.where(tokens[first:] == self.vocabulary.unpredicted_bos, IGNORE, tokens[first:])
            source = np.append(tokens[:first], sentinel)
            pairs.append(SourceTargetPair(source, self.vocabulary.target_start_ids, np.concatenate(([IGNORE], behind))))
        return collate_pairs(pairs, self.shares_row, sentinel)

    def collate_validation(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates rows as in training, but with the same removed spans each time."""
        return self.collate([Example(tokens, rng_from_tokens(tokens)) for tokens, _ in tokens_and_first_scored])


@dataclass(frozen=True)
class Seq2SeqObjective(TokenObjective):
    """Mean over the tokens of a target, its [EOS] included, of -log p(w_t | w_<t, source) (Sutskever et al. 2014).

    is_causal: whether a decoder reads source and target as one text, from left to right.
    """

    spec: Seq2Seq
    vocabulary: VocabularyInfo
    shares_row: bool
    is_causal: bool = False

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Right-pads pairs. The target follows the tokens that start one; for a decoder it follows its source.

        Raises ValueError for an example without a target.
        """
        start_ids = self.vocabulary.target_start_ids
        pairs = [SourceTargetPair(one.tokens, start_ids, one.second) for one in examples if one.second is not None]
        if len(pairs) < len(examples):
            raise ValueError("a source without a target has no loss")
        if self.is_causal:
            # the first token of the target is predicted from the last one of the source
            rows = [np.concatenate((source, target))[:-1] for source, _, target in pairs]
            targets = []
            for example, (source, _, target) in zip(examples, pairs, strict=True):
                kept = np.full_like(source, IGNORE)
                if example.has_loss is not None:
                    kept = np.where(example.has_loss, source, IGNORE)
                targets.append(np.concatenate((kept, target))[1:])
            tokens_BT, keep_BT = pad_right_with_keep_mask(rows, self.vocabulary.pad)
            batch = Batch(tokens_BT, pad_right_with_keep_mask(targets, IGNORE)[0], keep_BT)
        else:
            batch = collate_pairs(pairs, self.shares_row, self.vocabulary.pad)
        spec, length = self.spec.scheduled_sampling, batch.tokens_BT.shape[1]
        return replace(batch, draws_BT=draw_scheduled_sampling_numbers(spec, examples, length, training_fraction))


def _random_composition(n: int, n_parts: int, rng: np.random.Generator) -> list[int]:
    """Draws a uniformly random composition of n into `n_parts` integers of at least 1; the first are 0 if n < parts."""
    if n < n_parts:
        return [0] * (n_parts - n) + [1] * n
    cuts = np.sort(rng.permutation(n - 1)[: n_parts - 1]) + 1
    sizes: list[int] = np.diff(cuts, prepend=0, append=n).tolist()
    return sizes
