"""Sequence-to-sequence objectives: pairs, prefix language modelling, and span corruption (T5).

Shapes: B rows, T positions of the target, S positions of the source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch, pad_rows
from lmtool.objective.base import Cut, Example, Vocabulary, rng_of
from lmtool.objective.scheduled import TokenObjective, draws
from lmtool.recipe.spec.objective import Prefix, Seq2Seq, SpanCorruption

Ints = NDArray[np.int64]


class Pair(NamedTuple):
    """A source and its target.

    starts: the first inputs of the decoder, which are not predicted.
    targets: the tokens after them, IGNORE where there is no loss.
    """

    source: Ints
    starts: tuple[int, ...]
    targets: Ints


def batch_of(pairs: Sequence[Pair], shares_row: bool, pad: int) -> Batch:
    """The pairs as a right-padded batch. shares_row: source and target share one row."""
    rows, wanted = [], []
    for pair in pairs:
        before = pair.source if shares_row else pair.source[:0]
        rows.append(np.concatenate((before, pair.starts, np.where(pair.targets == IGNORE, pad, pair.targets)[:-1])))
        wanted.append(np.concatenate((np.full(len(before) + len(pair.starts) - 1, IGNORE), pair.targets)))
    tokens_BT, keep_BT = pad_rows(rows, pad)
    batch = Batch(tokens_BT, pad_rows(wanted, IGNORE)[0], keep_BT)
    if shares_row:
        return replace(batch, prefix_B=torch.tensor([len(pair.source) for pair in pairs]))
    source_BS, source_keep_BS = pad_rows([pair.source for pair in pairs], pad)
    return replace(batch, source_BS=source_BS, source_keep_BS=source_keep_BS)


@dataclass(frozen=True)
class PrefixObjective(TokenObjective):
    """Mean over the tokens after a prefix of -log p(w_{i+1} | the prefix, w_..w_i) (Raffel et al. 2020).

    A prefix LM is given the first token after the prefix; an encoder-decoder predicts it from [BOS]. The token that
    starts a document is never a target.
    """

    spec: Prefix
    vocabulary: Vocabulary
    shares_row: bool

    def cut(self, context: int) -> Cut:
        """As for a causal model."""
        return Cut("stream", context + 1, context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Each window split at random, or at the given fraction."""
        pairs = []
        for example in examples:
            n = len(example.tokens)
            if self.spec.fraction is None:
                split = int(example.rng.integers(1, n - 1)) if n > 2 else 1
            else:
                split = min(max(1, round(self.spec.fraction * n)), max(1, n - 2))
            pairs.append(self._split(example.tokens, split))
        return batch_of(pairs, self.shares_row, self.vocabulary.pad)

    def collate_spans(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """The prefix is everything before the first scored token, at least the beginning-of-text token."""
        first = int(self.shares_row)
        pairs = [self._split(tokens, start - first) for tokens, start in spans]
        return batch_of(pairs, self.shares_row, self.vocabulary.pad)

    def _split(self, tokens: Ints, split: int) -> Pair:
        behind = tokens[split:]
        targets = np.where(behind == self.vocabulary.start_of_text, IGNORE, behind)
        if not self.shares_row:
            return Pair(tokens[:split], self.vocabulary.starts, targets)
        return Pair(tokens[:split], (int(behind[0]),), targets[1:])


@dataclass(frozen=True)
class SpanCorruptionObjective(TokenObjective):
    """Generate the removed spans, each after its sentinel (Raffel et al. 2020).

    "a b c d e" with "b" and "d e" removed: the source is a <0> c <1>, the target <0> b <1> d e <2>. Lengths of spans
    and gaps are random: round(rate n) tokens in round(that / mean_length) spans, at least one of each. [EOS] can
    take the place of the last sentinel, or follow it.
    """

    spec: SpanCorruption
    vocabulary: Vocabulary
    shares_row: bool

    def cut(self, context: int) -> Cut:
        """Windows whose source fills the context."""
        length = context
        while self._lengths(length + 1)[0] <= context:
            length += 1
        if self.shares_row:
            while length > 2 and sum(self._lengths(length)) > context:
                length -= 1
        return Cut("stream", length, length)

    def window(self, context: int) -> int:
        """Leaves room for special tokens, both in the training format and as one removed span."""
        return max(1, min(context - 3, self.cut(context).length - 1))

    def _sizes(self, n: int) -> tuple[int, int]:
        """Number of tokens removed from n, and number of spans."""
        n_noise = min(max(1, round(self.spec.rate * n)), max(1, n - 1))
        n_spans = max(1, round(n_noise / self.spec.mean_length))
        return n_noise, min(n_spans, n_noise, max(1, n - n_noise), max(1, len(self.vocabulary.sentinels) - 1))

    def _lengths(self, n: int) -> tuple[int, int]:
        """Tokens of source and target of n tokens."""
        n_noise, n_spans = self._sizes(n)
        return n - n_noise + n_spans, n_noise + n_spans + (2 if self.spec.end == "both" else 1)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        corrupted = (self.corrupt(example.tokens, example.rng) for example in examples)
        pairs = [Pair(source, self.vocabulary.starts, target) for source, target in corrupted]
        return batch_of(pairs, self.shares_row, self.vocabulary.pad)

    def corrupt(self, tokens: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Source and target of a text."""
        n_noise, n_spans = self._sizes(len(tokens))
        noise = _partition(n_noise, n_spans, rng)
        rest = _partition(len(tokens) - n_noise, n_spans, rng)
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

    def collate_spans(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """All scored tokens form one removed span at the end of the text."""
        sentinel = self.vocabulary.sentinels[0]
        pairs = []
        for tokens, first in spans:
            behind = np.where(tokens[first:] == self.vocabulary.start_of_text, IGNORE, tokens[first:])
            source = np.append(tokens[:first], sentinel)
            pairs.append(Pair(source, self.vocabulary.starts, np.concatenate(([IGNORE], behind))))
        return batch_of(pairs, self.shares_row, sentinel)

    def collate_validation(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """As in training, but with the same removed spans each time."""
        return self.collate([Example(tokens, rng_of(tokens)) for tokens, _ in spans])


@dataclass(frozen=True)
class Seq2SeqObjective(TokenObjective):
    """Mean over the tokens of a target, its [EOS] included, of -log p(w_t | w_<t, source) (Sutskever et al. 2014).

    is_causal: for a decoder, which reads source and target as one text, from left to right.
    """

    spec: Seq2Seq
    vocabulary: Vocabulary
    shares_row: bool
    is_causal: bool = False

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded pairs; the target follows the tokens that start one, for a decoder its source.

        Raises ValueError for an example without a target.
        """
        batch = self._causal(examples) if self.is_causal else self._pairs(examples)
        return replace(batch, draws_BT=draws(self.spec.scheduled_sampling, examples, batch.tokens_BT.shape[1], done))

    def _pairs(self, examples: Sequence[Example]) -> Batch:
        pairs = [Pair(example.tokens, self.vocabulary.starts, _target(example)) for example in examples]
        return batch_of(pairs, self.shares_row, self.vocabulary.pad)

    def _causal(self, examples: Sequence[Example]) -> Batch:
        """Rows of a source and its target, the first token of which is predicted from the last one of the source."""
        rows, wanted = [], []
        for example in examples:
            source, target = example.tokens, _target(example)
            learned = np.zeros(len(source), dtype=bool) if example.learned is None else example.learned
            rows.append(np.concatenate((source, target))[:-1])
            wanted.append(np.concatenate((np.where(learned, source, IGNORE), target))[1:])
        tokens_BT, keep_BT = pad_rows(rows, self.vocabulary.pad)
        return Batch(tokens_BT, pad_rows(wanted, IGNORE)[0], keep_BT)


def _target(example: Example) -> Ints:
    if example.other is None:
        raise ValueError("a source without a target has no loss")
    return example.other


def _partition(n: int, parts: int, rng: np.random.Generator) -> list[int]:
    """A uniformly random composition of n into `parts` integers of at least 1; the first may be 0 if n is too small."""
    if n < parts:
        return [0] * (parts - n) + [1] * n
    cuts = np.sort(rng.permutation(n - 1)[: parts - 1]) + 1
    sizes: list[int] = np.diff(cuts, prepend=0, append=n).tolist()
    return sizes
