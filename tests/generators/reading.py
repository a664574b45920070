"""Readers of what the generators write: faults of style, the probability of a text, every tree of a sentence."""

import csv
import importlib
import io
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from choice import derivations
from english import expand
from translation import Node, lengths, shares

DATA = Path(__file__).parents[2] / "data"

VOWEL_SOUND = r"(?!(?:one|once|use|used|useful|uni\w*|euro\w*|ewe)\b)(?:[aeiou]\w*|hour\w*|honest\w*|heir\w*)"


def complaints(text: str) -> list[tuple[str, str]]:
    """What a copy editor would mark, as (rule, words)."""
    rules = {
        "template": r"[{}<>|^]|  | [,.;:?!]|,,|\.\.|,\.",
        "a before a vowel": rf"\b[Aa] {VOWEL_SOUND}",
        "an before a consonant": rf"\b[Aa]n (?!{VOWEL_SOUND})\w+",
        "two articles": r"\b(?:the|an?) (?:the|an?)\b",
        "doubled word": r"\b([a-zA-Z]+) \1\b",
        "small start": r'(?:^|\. |\.\" |[!?] |: "|[.!?]" ")[a-z]',
        "one of many": r"(?<![-\w])[Oo]ne (?:coins|steps|days)\b",
        "capital inside": r"(?<=[a-z,] )(?:A|The|He|She|It) ",
    }
    found = [(rule, match[0]) for rule, pattern in rules.items() for match in re.finditer(pattern, text)]
    if text.count('"') % 2:
        found.append(("quotes", text[-20:]))
    if text[-1] not in '.!?"':
        found.append(("end", text[-20:]))
    return found


def bits_of(program: Callable[[Any], Any], text: str) -> float:
    """-log2 of the probability that the program writes exactly this text; infinite if it cannot."""
    every: list[float] = [derivation.bits for derivation in derivations(program, text)]
    if not every:
        return math.inf
    least = min(every)
    return least - math.log2(math.fsum(2.0 ** (least - bits) for bits in every))


@cache
def first_words(symbol: Any) -> frozenset[str]:
    """How the symbol may begin; "" is among them if it may be nothing."""
    if symbol[0] == "w":
        return frozenset([symbol[1].split()[0]])
    found: set[str] = set()
    for _, becomes in expand(symbol):
        for kid in becomes:
            found |= first_words(kid) - {""}
            if "" not in first_words(kid):
                break
        else:
            found.add("")
    return frozenset(found)


def readings(text: str) -> list[tuple[Node, float]]:
    """Every tree of the sentence, and -log2 of its probability among sentences of its length."""
    tokens = tuple(
        "a" if t in ("an", "An") else t for t in text.replace(",", " ,").replace(".", " .").replace("?", " ?").split()
    )
    n = len([t for t in tokens if t not in ",.?"])

    def same(word: str, at: int) -> bool:
        return at < len(tokens) and (tokens[at] == word or (at == 0 and tokens[0] == word[:1].upper() + word[1:]))

    @cache
    def spans(symbol: Any, at: int) -> list[tuple[int, Node, float]]:
        if symbol[0] == "w":
            said = symbol[1].split()
            fits = all(same(word, at + i) for i, word in enumerate(said))
            return [(at + len(said), Node(symbol), 0.0)] if fits else []
        found = []
        for share, (_, becomes) in zip(shares(symbol), expand(symbol), strict=True):
            partly: list[tuple[int, tuple[Node, ...], float]] = [(at, (), -math.log2(share))]
            for kid in becomes:
                partly = [
                    (end, (*nodes, node), bits + more)
                    for start, nodes, bits in partly
                    if "" in first_words(kid) or any(same(word, start) for word in possible(start) & first_words(kid))
                    for end, node, more in spans(kid, start)
                ]
                if not partly:
                    break
            found += [(end, Node(symbol, nodes), bits) for end, nodes, bits in partly]
        return found

    @cache
    def possible(at: int) -> frozenset[str]:
        word = tokens[at] if at < len(tokens) else ""
        return frozenset([word, word[:1].lower() + word[1:]] if at == 0 else [word])

    whole = math.log2(lengths((("S",),))[n])
    return [(node, bits + whole) for end, node, bits in spans(("S",), 0) if end == len(tokens)]


def generator(name: str) -> Any:
    return getattr(importlib.import_module(name), name.upper())


def rows(name: str) -> list[list[dict[str, str]]]:
    """Of training, and of the test."""
    files = (DATA / f"{name}.csv", DATA / f"{name}.test.csv")
    return [list(csv.DictReader(io.StringIO(file.read_bytes().decode(), newline=""))) for file in files]
