"""How .txt files are divided into documents, inferred from their first lines."""

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from lmtool.text.files import suffix, text_blocks

Division = Literal["whole", "blank-line", "line"]

FILES = 64
"""Files whose first lines are read; the others are taken to be alike."""

LINES = 50
"""Lines that a list has at least."""

SHORT = 50
"""Characters of most lines of a list of names, words or commands."""

LONG = 400
"""Characters of most lines of a list of sentences."""

FEW_WORDS = 5
"""Distinct words of the mean line of such a list; verse and wrapped prose have more."""

RELATED = 1.2
"""Neighbouring lines with this many times the words in common of lines that are far apart are one text."""

WRAPPED = 0.8
"""Lines this long, as a share of the usual longest, are full; in wrapped prose most are."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A word, or a character of a script that writes no spaces."""


def infer_division(files: Sequence[Path]) -> Division:
    """The division of .txt files: lines of a list, paragraphs on one line each, or whole files.

    A list has letters, and neither blank nor indented lines. Its lines are short and of few words (names, words,
    commands), or they are not wrapped and have no more words in common with their neighbours than with others
    (captions).
    """
    heads = [next(text_blocks(path), "") for path in files[:FILES] if suffix(path) == ".txt"]
    if heads and all(_is_list(head) for head in heads):
        return "line"
    several = False
    for head in heads:
        blank = [not line.strip() for line in head.split("\n")]
        if any(not a and not b for a, b in pairwise(blank)):
            return "whole"
        several |= blank.count(False) > 1
    return "blank-line" if several else "whole"


def _is_list(head: str) -> bool:
    # the last line may be cut
    lines = [line.removesuffix("\r") for line in head.split("\n")[:-1]]
    full = [line for line in lines if line.strip()]
    if len(full) < LINES or len(lines) - len(full) > len(lines) / 100:
        return False
    if sum(line[0].isspace() for line in full) > len(full) / 100:
        return False
    usual = sorted(map(len, full))[int(0.95 * len(full))]
    visible = sum(len(line) - line.count(" ") for line in full)
    if sum(letter.isalpha() for line in full for letter in line) < visible / 2:
        return False
    words = [frozenset(map(str.lower, _WORD.findall(line))) for line in full]
    if usual <= SHORT and sum(map(len, words)) <= FEW_WORDS * len(full):
        return True
    n_filled = sum(len(line) >= WRAPPED * usual for line in full)
    return usual <= LONG and n_filled < len(full) / 2 and _relation(words) < RELATED


def _relation(words: Sequence[frozenset[str]]) -> float:
    """How many times as many words a line has in common with the next one as with one drawn from all lines."""
    shuffled = random.Random(0).sample(words, len(words))
    near = sum(_overlap(a, b) for a, b in pairwise(words))
    far = sum(_overlap(a, b) for a, b in zip(words, shuffled, strict=True) if a is not b)
    return near / far if far else float("inf") if near else 1.0


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)
