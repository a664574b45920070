"""Vocabularies as files of their own: vocab.json, merges.txt and vocab.txt."""

from collections.abc import Sequence
from pathlib import Path

from lmtool.interop.tokenization.settings import read_json, read_text, refusal
from lmtool.text.tokenizer import LARGEST_VOCABULARY

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
_WHITE_SPACE += "\u202f\u205f\u3000"
"""Unicode's White_Space, which is less than what str.rstrip takes away."""


def read_vocabulary(path: Path) -> dict[str, int]:
    """Ids by token of a vocab.json. Raises CheckpointError when it is damaged, or an id is too large or twice there."""
    vocabulary = read_json(path)
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise refusal("the vocabulary is not an object of tokens and ids", str(path))
    for token_id in vocabulary.values():
        if type(token_id) is not int or not 0 <= token_id < LARGEST_VOCABULARY:
            raise refusal(f"an id of a token is not a number from 0 to {LARGEST_VOCABULARY - 1:,}", str(path))
    if len(set(vocabulary.values())) < len(vocabulary):
        raise refusal("two tokens have the same id", str(path))
    return vocabulary


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Pairs of tokens that BPE merges, the first first. Raises CheckpointError for a line that is no pair."""
    merges = []
    for number, line in enumerate(_lines(path), start=1):
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise refusal(f"line {number} is not a pair of tokens", str(path))
        merges.append((pair[0], pair[1]))
    return merges


def read_word_pieces(path: Path) -> dict[str, int]:
    """Ids by piece of a vocab.txt, one piece a line; of equal lines, the last counts."""
    return {line.rstrip(_WHITE_SPACE): token_id for token_id, line in enumerate(_lines(path))}


def recover_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """The merges of a BPE of SentencePiece, which keeps only their results, in the order in which it learned them.

    Each cut of a piece in two pieces may have been the merge. Of one piece, those with a shorter first part go first.
    """
    known = set(pieces)
    cuts = ((piece, i) for piece in pieces for i in range(1, len(piece)) if piece[:i] in known)
    return [(piece[:i], piece[i:]) for piece, i in cuts if piece[i:] in known]


def _lines(path: Path) -> list[str]:
    """Lines as Rust divides a text: also a carriage return before the end belongs to the end."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
