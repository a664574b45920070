from collections import Counter
from itertools import pairwise


def most_frequent_pair(words):
    counts = Counter()
    for pieces, n in words.items():
        for pair in pairwise(pieces):
            counts[pair] += n
    return min(counts, key=lambda pair: (-counts[pair], pair), default=None)


def merged(pieces, pair):
    found = []
    for piece in pieces:
        if found and isinstance(found[-1], list) and (found[-1][0], piece) == tuple(pair):
            found[-1] = "".join(pair)
        else:
            found.append([piece])
    return tuple(piece if isinstance(piece, str) else piece[0] for piece in found)


def train(counts, n_merges):
    words = Counter({tuple(word): n for word, n in counts.items()})
    merges = []
    while len(merges) < n_merges and (pair := most_frequent_pair(words)):
        merges.append(pair)
        shorter = Counter()
        for pieces, n in words.items():
            shorter[merged(pieces, pair)] += n
        words = shorter
    return merges


def encode(word, merges):
    pieces = tuple(word)
    for pair in merges:
        pieces = merged(pieces, pair)
    return pieces
