"""BPE dropout: other segmentations of a text's words, drawn anew each time it is read in training."""

import random
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lmtool.text.tokenizer import Tokenizer

SEGMENTATIONS = 64
"""Segmentations drawn for each word; a new one for each occurrence would take as long as a training step."""

MOST_CACHED = 1 << 18
"""Segmentations kept in memory."""


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
        self._rate = rate
        self._seed = seed
        self._segmented = lru_cache(MOST_CACHED)(self._segment)

    def __call__(self, text: str, rng: np.random.Generator) -> NDArray[np.int64]:
        """Ids of `text`, each word in one of its segmentations."""
        words = self._words(text)
        drawn = rng.integers(SEGMENTATIONS, size=len(words)).tolist()
        ids = [i for word, k in zip(words, drawn, strict=True) for i in self._segmented(word, k)]
        return np.array(ids, dtype=np.int64)

    def _segment(self, word: str, k: int) -> tuple[int, ...]:
        """Before each merge, every possible one is skipped with probability `rate`; none is left at the end."""
        chance = random.Random(f"{self._seed} {k} {word}")
        pieces = list(word)
        while True:
            ranks = (self._rank_of.get(pair) for pair in pairwise(pieces))
            possible = [(rank, i) for i, rank in enumerate(ranks) if rank is not None]
            left = [found for found in possible if chance.random() >= self._rate]
            if not left:
                return tuple(self._id_of[piece] for piece in pieces)
            _, i = min(left)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
