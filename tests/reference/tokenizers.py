"""Byte pair encoding as its paper has it (Sennrich, Haddow and Birch 2016, section 3.2): words as tuples of strings.

And the longest matches of WordPiece.
"""

import re
from collections.abc import Collection, Mapping, Sequence
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


GPT2_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
"""Where Radford et al. (2019) cut a text before merging, for ASCII."""


def bpe_words(text: str) -> list[str]:
    """The words of an ASCII text, in each of which its merges stay. Space and line end are written as visible ones."""
    return [word.replace(" ", "\u0120").replace("\n", "\u010a") for word in GPT2_WORD.findall(text)]


def longest_matches(word: str, vocabulary: Collection[str]) -> list[str]:
    """WordPiece (Wu et al. 2016, section 4.1; Devlin et al. 2019): from the left, always the longest piece there is.

    Pieces after the first one are in the vocabulary with ## in front. A word with a part that is no piece is [UNK]
    whole, as is one of more than 100 characters.
    """
    pieces: list[str] = []
    left = word if len(word) <= 100 else ""
    while left:
        mark = "##" if pieces else ""
        found = [left[:n] for n in range(1, len(left) + 1) if mark + left[:n] in vocabulary]
        if not found:
            return ["[UNK]"]
        pieces.append(mark + found[-1])
        left = left[len(found[-1]) :]
    return pieces or ["[UNK]"]
