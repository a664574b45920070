"""Byte pair encoding as its paper has it (Sennrich, Haddow and Birch 2016, section 3.2): words as tuples of strings."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def most_frequent_pair(words: Mapping[tuple[str, ...], int]) -> Pair | None:
    """Of equally frequent ones the smaller."""
    best: Pair | None = None
    most = 0
    for pair in sorted({(a, b) for pieces in words for a, b in pairwise(pieces)}):
        n = sum(count * sum(p == pair for p in pairwise(w)) for w, count in words.items())
        if n > most:
            best, most = pair, n
    return best


def merged(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """Each occurrence of the pair as one piece, from the left."""
    left, done = list(pieces), []
    while left:
        n = 2 if tuple(left[:2]) == tuple(pair) else 1
        done.append("".join(left[:n]))
        left = left[n:]
    return tuple(done)


def bpe_merges(counts: Mapping[str, int], n_merges: int) -> list[Pair]:
    """What is merged, in order; merges never cross the border of a word."""
    words = [(tuple(word), n) for word, n in counts.items()]
    merges: list[Pair] = []
    for _ in range(n_merges):
        together: dict[tuple[str, ...], int] = {}
        for pieces, n in words:
            together[pieces] = together.get(pieces, 0) + n
        pair = most_frequent_pair(together)
        if pair is None:
            break
        merges.append(pair)
        words = [(merged(pieces, pair), n) for pieces, n in words]
    return merges


def bpe_pieces(word: str, merges: Sequence[Pair]) -> tuple[str, ...]:
    """A word after all merges, in the order in which they were learnt."""
    pieces = tuple(word)
    for pair in merges:
        pieces = merged(pieces, pair)
    return pieces
