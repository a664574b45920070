"""translation.tsv and translation.test.tsv: English sentences and their translation into Orune.

    python data/make/translation.py --words 13 18 FILE          print the rows whose source has 13 to 18 words

A sentence of n words is drawn from the grammar of english.py on the condition that it has n words: each
choice is weighted by how probable it makes that length, which is computed exactly. So its probability is the product of
the rules' weights over that of the length. n is one of 3 to 30: the four buckets equally often, and within a bucket
every length. A sentence drawn before is drawn again, so its probability is also divided by what the others had left.
"""

import math
import random
import sys
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import english
from choice import Files, Teller, measure_entropy, written
from orune import translate

SEED = 11
BUCKETS = ((3, 7), (8, 12), (13, 18), (19, 30))
LONGEST = 30
SIZES = {"translation.tsv": 12_000, "translation.test.tsv": 1_000}


class Node(NamedTuple):
    """A symbol of the grammar and what it became."""

    symbol: Any
    kids: tuple["Node", ...] = ()

    @property
    def meaning(self) -> tuple[str, ...]:
        """What a leaf means; nothing for other nodes."""
        return self.symbol[2] if self.symbol[0] == "w" else ()


class Row(NamedTuple):
    source: str
    target: str
    tree: Node
    bits: float  # -log2 of the probability of the source among sentences of its length
    drawn: float  # what that is when those drawn before are out


def n_words(symbol: Any) -> int:
    return len(symbol[1].split()) if symbol[1] not in ",.?" else 0


@lru_cache(30_000)
def lengths(symbols: tuple[Any, ...]) -> list[float]:
    """lengths[n]: the probability that the symbols together become n words."""
    found = [0.0] * (LONGEST + 1)
    if not symbols:
        found[0] = 1.0
    elif len(symbols) > 1:
        rest = lengths(symbols[1:])
        for n, p in enumerate(lengths(symbols[:1])):
            if p:
                for m in range(LONGEST + 1 - n):
                    found[n + m] += p * rest[m]
    elif symbols[0][0] == "w":
        found[n_words(symbols[0])] = 1.0
    else:
        for share, (_, becomes) in zip(shares(symbols[0]), english.expand(symbols[0]), strict=True):
            for n, p in enumerate(lengths(becomes)):
                found[n] += share * p
    return found


@cache
def shares(symbol: Any) -> list[float]:
    """The probability of each rule of the symbol."""
    weights = [weight for weight, _ in english.expand(symbol)]
    return [weight / math.fsum(weights) for weight in weights]


@lru_cache(5_000)
def fitting(symbol: Any, after: tuple[Any, ...], left: int) -> list[float]:
    """Weights of the symbol's rules when `left` words remain for it and for what comes after."""
    rest = lengths(after)
    return [
        share * math.fsum(p * rest[left - n] for n, p in enumerate(lengths(becomes)[: left + 1]) if p)
        for share, (_, becomes) in zip(shares(symbol), english.expand(symbol), strict=True)
    ]


def sentence(teller: Teller, n: int) -> Node:
    """Write a sentence of n words, and return its tree."""
    left, joined = n, True

    def grow(symbol: Any, after: tuple[Any, ...]) -> Node:
        nonlocal left, joined
        if symbol[0] == "w":
            left -= n_words(symbol)
            text = symbol[1]
            teller.emit(text if text in ",.?" or joined else " " + text)
            joined = text == "a"
            if joined:
                teller.emit(" ")
            return Node(symbol)
        rules = [becomes for _, becomes in english.expand(symbol)]
        becomes = teller.choose(rules, fitting(symbol, after, left))
        return Node(symbol, tuple(grow(kid, (*becomes[i + 1 :], *after)) for i, kid in enumerate(becomes)))

    return grow(("S",), ())


def translation(tree: Node) -> str:
    """The translation of a tree."""
    return " ".join(form.text for form in translate(tree)) + "."


def length_bits(n: int) -> float:
    """-log2 of the probability of the length n."""
    return math.log2(len(BUCKETS) * next(high - low + 1 for low, high in BUCKETS if low <= n <= high))


@cache
def rows() -> dict[str, list[Row]]:
    """The rows of each file. Lengths come in turn, each file then in a random order."""
    rng = random.Random(SEED)
    seen: set[str] = set()
    spent = dict.fromkeys(range(3, LONGEST + 1), 0.0)  # the probability of the sentences of a length drawn before
    made: dict[str, list[Row]] = {}
    for name, count in SIZES.items():
        drawn = []
        for i in range(count):
            low, high = BUCKETS[i % len(BUCKETS)]
            n = low + i // len(BUCKETS) % (high - low + 1)
            said = written(partial(sentence, n=n), rng)
            while said.text in seen:
                said = written(partial(sentence, n=n), rng)
            seen.add(said.text)
            bits = said.bits + length_bits(n) + math.log2(1 - spent[n])
            drawn.append(Row(said.text, translation(said.value), said.value, said.bits, bits))
            spent[n] += 2.0**-said.bits
        order = [rng.random() for _ in drawn]
        made[name] = [row for _, row in sorted(zip(order, drawn, strict=True), key=lambda pair: pair[0])]
    return made


def files() -> Files:
    """Both files. Bytes and bits are those of the sources alone, since the target follows from the source."""
    for name, made in rows().items():
        n_words = [len(row.source.split()) for row in made]
        buckets = {f"{low}-{high}": sum(low <= n <= high for n in n_words) for low, high in BUCKETS}
        limit = measure_entropy([row.source for row in made], [row.drawn for row in made], "row")
        limit |= {"target_bits": 0.0, "accuracy": 1.0, "bleu": 100.0, "rows_by_source_words": buckets}
        table = "source\ttarget\n" + "".join(f"{row.source}\t{row.target}\n" for row in made)
        yield name, table.encode(), limit


def print_rows(low: int, high: int, path: Path) -> None:
    """Print the rows of a table whose source has as many words."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    print("\n".join([header, *(line for line in lines if low <= len(line.split("\t")[0].split()) <= high)]))


if __name__ == "__main__":
    print_rows(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
