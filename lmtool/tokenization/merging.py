"""Applies the merges of byte pair encoding to words: all of them, which can be shown, or a random subset (dropout)."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lmtool.tokenization.tokenizer import Tokenizer

SEGMENTATIONS_PER_WORD = 64
"""Random segmentations of a word; a new one for each occurrence would take as long as a training step."""

MAX_CACHED_SEGMENTATIONS = 1 << 18
"""Limit of the segmentations in memory."""


@dataclass(frozen=True)
class MergeRecord:
    """One merge. priority: its rank in the tokenizer from 1, the first to apply. pieces_after: of the word after it."""

    priority: int
    left: int
    right: int
    pieces_after: list[int]


@dataclass(frozen=True)
class WordMergeTrace:
    """A part of a text that no merge crosses, in token ids. initial_pieces: before the first merge."""

    initial_pieces: list[int]
    merges: list[MergeRecord]

    @property
    def pieces(self) -> list[int]:
        """Returns the tokens of the word."""
        return self.merges[-1].pieces_after if self.merges else self.initial_pieces


def _apply_merges_yielding_ranks_(
    pieces: list[str], ranks: Mapping[tuple[str, str], int], should_skip: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, str, str]]:
    """Merges the pieces of a word in place, the lowest rank first; yields rank, left and right piece of each merge.

    should_skip: whether a possible merge is left out this time.
    """
    while True:
        possible = [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not (kept := [merge for merge in possible if not should_skip()]):
            return
        rank, i = min(kept)
        left, right = pieces[i : i + 2]
        pieces[i : i + 2] = [left + right]
        yield rank, left, right


def trace_merges(tokenizer: Tokenizer, text: str) -> list[WordMergeTrace]:
    """Returns the words of a text with the merges of each in order.

    Returns no words for tokenizers that are not byte-level BPE, and for published ones whose merges do not give their
    tokens.
    """
    if tokenizer.kind != "bpe":
        return []
    id_of = {tokenizer.token_name(i): i for i in range(tokenizer.vocab_size)}
    priority_of = {merge: priority for priority, merge in enumerate(tokenizer.merges, 1)}
    words = tokenizer.pre_tokenize(text)
    if any(character not in id_of for word in words for character in word):
        return []
    merged = []
    for pieces in map(list, words):
        word = WordMergeTrace([id_of[piece] for piece in pieces], [])
        for priority, left, right in _apply_merges_yielding_ranks_(pieces, priority_of):
            word.merges.append(MergeRecord(priority, id_of[left], id_of[right], [id_of[piece] for piece in pieces]))
        merged.append(word)
    is_same = [token for word in merged for token in word.pieces] == tokenizer.encode(text)
    return merged if is_same else []


class BpeDropout:
    """Encodes texts with byte pair encoding that skips each merge with some probability (Provilkov et al. 2020).

    Segmentation k of a word is a function of (seed, word, k), and a text draws a k for each of its words, so that the
    result depends on the generator that is passed, and not on what was read before.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int) -> None:
        """rate: probability of skipping a merge, 0 <= rate <= 1; 0 gives the tokenizer's own ids.

        Raises ValueError when the tokenizer is not byte-level BPE trained by lmtool.
        """
        if tokenizer.kind != "bpe" or tokenizer.published is not None:
            raise ValueError(f"BPE dropout of a tokenizer of kind {tokenizer.kind}")
        self._words = tokenizer.pre_tokenize
        self._id_of = {tokenizer.token_name(i): i for i in range(tokenizer.vocab_size)}
        self._rank_of = {merge: rank for rank, merge in enumerate(tokenizer.merges)}
        self._rate, self._seed = rate, seed
        self._cached_segment = lru_cache(MAX_CACHED_SEGMENTATIONS)(self._sample_segmentation)

    def __call__(self, text: str, rng: np.random.Generator) -> NDArray[np.int64]:
        """Encodes a text, each word in one of its random segmentations."""
        words = self._words(text)
        drawn = rng.integers(SEGMENTATIONS_PER_WORD, size=len(words)).tolist()
        ids = [i for word, k in zip(words, drawn, strict=True) for i in self._cached_segment(word, k)]
        return np.array(ids, dtype=np.int64)

    def _sample_segmentation(self, word: str, sample_number: int) -> tuple[int, ...]:
        """Skips each possible merge with probability `rate` before each merge, until none is left."""
        chance, pieces = random.Random(f"{self._seed} {sample_number} {word}"), list(word)
        for _ in _apply_merges_yielding_ranks_(pieces, self._rank_of, lambda: chance.random() < self._rate):
            pass
        return tuple(self._id_of[piece] for piece in pieces)
