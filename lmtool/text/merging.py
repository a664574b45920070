"""How byte pair encoding arrives at the pieces of a text: its merges, in order."""

from dataclasses import dataclass
from itertools import pairwise

from lmtool.text.tokenizer import Tokenizer


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
    found = [_merged(word, id_of, priority_of) for word in words]
    same = [token for word in found for token in word.pieces] == tokenizer.encode(text)
    return found if same else []


def _merged(word: str, id_of: dict[str, int], priority_of: dict[tuple[str, str], int]) -> MergedWord:
    pieces, merges = list(word), list[Merge]()
    begin = [id_of[piece] for piece in pieces]
    while True:
        possible = [(priority_of[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in priority_of]
        if not possible:
            return MergedWord(begin, merges)
        priority, i = min(possible)
        left, right = pieces[i : i + 2]
        pieces[i : i + 2] = [left + right]
        merges.append(Merge(priority, id_of[left], id_of[right], [id_of[piece] for piece in pieces]))
