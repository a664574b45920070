"""Assignment 1: byte pair encoding (Sennrich, Haddow and Birch 2016).

The course: docs/course.md, "Byte pair encoding". Pieces are strings, and merges stop at the borders of words.
"""

from collections.abc import Mapping, Sequence

Pair = tuple[str, str]


def most_frequent_pair(words: Mapping[tuple[str, ...], int]) -> Pair | None:
    """The adjacent pair of pieces that occurs most often, or None where no word has two pieces.

    words: how often each word occurs, as the pieces that it is cut into: {("l", "o", "w"): 5, ("lo", "w"): 1}. A pair
    may occur several times in one word. Of equally frequent pairs the one that is smaller as a tuple of strings.
    """
    raise NotImplementedError


def merged(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """The pieces of a word, with each occurrence of the pair joined, from the left.

    ("a", "a", "a") and the pair ("a", "a") give ("aa", "a").
    """
    raise NotImplementedError


def train(counts: Mapping[str, int], n_merges: int) -> list[Pair]:
    """The merges, in order, that words with these counts give: at most n_merges, fewer where no pair is left.

    Words begin as single characters. Each step merges the most frequent pair everywhere.
    """
    raise NotImplementedError


def encode(word: str, merges: Sequence[Pair]) -> tuple[str, ...]:
    """The pieces of a word: its characters, after all merges in the order in which they were learnt."""
    raise NotImplementedError
