"""How byte pair encoding arrives at the pieces of a text: its merges, in order, and other ones, drawn at random."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lmtool.tokenization.tokenizer import Tokenizer

SEGMENTATIONS = 64
"""Segmentations drawn for each word; a new one for each occurrence would take as long as a training step."""

MOST_CACHED = 1 << 18
"""Segmentations kept in memory."""


@dataclass(frozen=True)
class Merge:
    """One merge. priority: its number in the tokenizer, from 1; lower ones come first. pieces: of the word after it."""

    priority: int
    left: int
    right: int
    pieces: list[int]


@dataclass(frozen=True)
class MergedWord:
    """A part of a text that no merge crosses. begin: its pieces before the first merge, all as token ids."""

    begin: list[int]
    merges: list[Merge]

    @property
    def pieces(self) -> list[int]:
        """The tokens of the word."""
        return self.merges[-1].pieces if self.merges else self.begin


def _merge(
    pieces: list[str], rank_of: Mapping[tuple[str, str], int], skips: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, str, str]]:
    """Merge the pieces of a word in place, the lowest rank first; yields rank, left and right piece of each merge done.

    skips: whether a possible merge is left out this time.
    """
    while True:
        possible = [(rank_of[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in rank_of]
        if not (kept := [merge for merge in possible if not skips()]):
            return
        rank, i = min(kept)
        left, right = pieces[i : i + 2]
        pieces[i : i + 2] = [left + right]
        yield rank, left, right


def merged_words(tokenizer: Tokenizer, text: str) -> list[MergedWord]:
    """The words of a text and the merges of each, of which the first of the lowest priority number is always next.

    Empty for tokenizers that are not byte-level BPE, and for published ones that arrive at their pieces otherwise.
    """
    if tokenizer.kind != "bpe":
        return []
    id_of = {tokenizer.name(i): i for i in range(tokenizer.vocab_size)}
    priority_of = {merge: priority for priority, merge in enumerate(tokenizer.merges, 1)}
    words = tokenizer.words(text)
    if any(character not in id_of for word in words for character in word):
        return []
    merged = []
    for pieces in map(list, words):
        word = MergedWord([id_of[piece] for piece in pieces], [])
        for priority, left, right in _merge(pieces, priority_of):
            word.merges.append(Merge(priority, id_of[left], id_of[right], [id_of[piece] for piece in pieces]))
        merged.append(word)
    is_same = [token for word in merged for token in word.pieces] == tokenizer.encode(text)
    return merged if is_same else []


class BpeDropout:
    """Byte pair encoding where each possible merge is skipped with some probability (Provilkov et al. 2020).

    Segmentation k of a word is a function of (seed, word, k), and a text draws a k for each of its words, so that the
    result depends on the generator that is passed, and not on what was read before.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int) -> None:
        """rate: probability of skipping a merge, 0 <= rate <= 1; 0 gives the tokenizer's own ids.

        Raises ValueError when the tokenizer is not byte-level BPE trained by lmtool.
        """
        if tokenizer.kind != "bpe" or tokenizer.published is not None:
            raise ValueError(f"BPE dropout of a tokenizer of kind {tokenizer.kind}")
        self._words = tokenizer.words
        self._id_of = {tokenizer.name(i): i for i in range(tokenizer.vocab_size)}
        self._rank_of = {merge: rank for rank, merge in enumerate(tokenizer.merges)}
        self._rate, self._seed = rate, seed
        self._segmented = lru_cache(MOST_CACHED)(self._segment)

    def __call__(self, text: str, rng: np.random.Generator) -> NDArray[np.int64]:
        """Ids of `text`, each word in one of its segmentations."""
        words = self._words(text)
        drawn = rng.integers(SEGMENTATIONS, size=len(words)).tolist()
        ids = [i for word, k in zip(words, drawn, strict=True) for i in self._segmented(word, k)]
        return np.array(ids, dtype=np.int64)

    def _segment(self, word: str, k: int) -> tuple[int, ...]:
        """Before each merge, every possible one is skipped with probability `rate`; none is left at the end."""
        chance, pieces = random.Random(f"{self._seed} {k} {word}"), list(word)
        for _ in _merge(pieces, self._rank_of, lambda: chance.random() < self._rate):
            pass
        return tuple(self._id_of[piece] for piece in pieces)
