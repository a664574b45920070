"""Assignment 1: byte pair encoding (Sennrich, Haddow and Birch 2016).

The course: docs/course.md, "Byte pair encoding". Pieces are strings; merges do not cross words.
"""

from collections.abc import Mapping, Sequence

Pair = tuple[str, str]


def most_frequent_pair(words: Mapping[tuple[str, ...], int]) -> Pair | None:
    """The adjacent pair of pieces that occurs most often, or None if no word has two pieces.

    words: the count of each word, given as its pieces: {("l", "o", "w"): 5, ("lo", "w"): 1}. A pair may occur several
    times in one word. Of equally frequent pairs, returns the one that is smaller as a tuple of strings.
    """
    raise NotImplementedError


def merged(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """The pieces of a word after joining each occurrence of the pair, from left to right.

    ("a", "a", "a") and the pair ("a", "a") give ("aa", "a").
    """
    raise NotImplementedError


def train(counts: Mapping[str, int], n_merges: int) -> list[Pair]:
    """The merges, in order, learned from words with these counts: at most n_merges, fewer if no pair is left.

    Words begin as single characters. Each step merges the most frequent pair everywhere.
    """
    raise NotImplementedError


def encode(word: str, merges: Sequence[Pair]) -> tuple[str, ...]:
    """The pieces of a word: its characters after all merges, applied in the order in which they were learned."""
    raise NotImplementedError
