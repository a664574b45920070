from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[str, str]


def most_frequent_pair(words: Mapping[tuple[str, ...], int]) -> Pair | None:
    counts: Counter[Pair] = Counter()
    for pieces, n in words.items():
        for pair in pairwise(pieces):
            counts[pair] += n
    return min(counts, key=lambda pair: (-counts[pair], pair), default=None)


def merged(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    found: list[str | list[str]] = []
    for piece in pieces:
        if found and isinstance(found[-1], list) and (found[-1][0], piece) == tuple(pair):
            found[-1] = "".join(pair)
        else:
            found.append([piece])
    return tuple(piece if isinstance(piece, str) else piece[0] for piece in found)


def train(counts: Mapping[str, int], n_merges: int) -> list[Pair]:
    words = Counter({tuple(word): n for word, n in counts.items()})
    merges: list[Pair] = []
    while len(merges) < n_merges and (pair := most_frequent_pair(words)):
        merges.append(pair)
        shorter: Counter[tuple[str, ...]] = Counter()
        for pieces, n in words.items():
            shorter[merged(pieces, pair)] += n
        words = shorter
    return merges


def encode(word: str, merges: Sequence[Pair]) -> tuple[str, ...]:
    pieces = tuple(word)
    for pair in merges:
        pieces = merged(pieces, pair)
    return pieces
