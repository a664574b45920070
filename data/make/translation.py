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
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import english
from choice import Teller, written
from orune import translate

SEED = 11
BUCKETS = ((3, 7), (8, 12), (13, 18), (19, 30))
LONGEST = 30
SIZES = {"translation.tsv": 12_000, "translation.test.tsv": 1_000}


class Node(NamedTuple):
    """A symbol of the grammar and what it became."""

    symbol: Any
    kids: tuple["Node", ...] = ()


class Row(NamedTuple):
    source: str
    target: str
    tree: Node
    bits: float  # -log2 of the probability of the source among sentences of its length
    drawn: float  # what that is when those drawn before are out


def n_words(symbol: Any) -> int:
    return len(symbol[1].split()) if symbol[1] not in ",.?" else 0


def times(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """The product of two polynomials up to the longest length."""
    product = [0.0] * (LONGEST + 1)
    for i, x in enumerate(a):
        if x:
            for j in range(LONGEST + 1 - i):
                product[i + j] += x * b[j]
    return tuple(product)


def power(n: int) -> tuple[float, ...]:
    return tuple(float(i == n) for i in range(LONGEST + 1))


@lru_cache(30_000)
def lengths(symbols: tuple[Any, ...]) -> tuple[float, ...]:
    """lengths[n]: the probability that the symbols together become n words."""
    if not symbols:
        return power(0)
    if len(symbols) > 1:
        return times(lengths(symbols[:1]), lengths(symbols[1:]))
    if symbols[0][0] == "w":
        return power(n_words(symbols[0]))
    total = [0.0] * (LONGEST + 1)
    for share, (_, becomes) in zip(shares(symbols[0]), english.expand(symbols[0]), strict=True):
        for n, p in enumerate(lengths(becomes)):
            total[n] += share * p
    return tuple(total)


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


def bucket_of(n: int) -> tuple[int, int]:
    return next((low, high) for low, high in BUCKETS if low <= n <= high)


def length_bits(n: int) -> float:
    """-log2 of the probability of the length n."""
    low, high = bucket_of(n)
    return math.log2(len(BUCKETS) * (high - low + 1))


@cache
def rows(seed: int = SEED) -> dict[str, list[Row]]:
    """The rows of each file. Lengths come in turn, each file then in a random order."""
    rng = random.Random(seed)
    seen: dict[str, int] = {}
    spent = dict.fromkeys(range(3, LONGEST + 1), 0.0)
    made: dict[str, list[Row]] = {}
    for name, count in SIZES.items():
        made[name] = []
        for i in range(count):
            low, high = BUCKETS[i % len(BUCKETS)]
            n = low + i // len(BUCKETS) % (high - low + 1)
            while True:
                said = written(lambda teller, n=n: sentence(teller, n), rng)
                if said.text not in seen:
                    break
            seen[said.text] = n
            bits = said.bits + length_bits(n)
            made[name].append(
                Row(said.text, translation(said.value), said.value, said.bits, bits + math.log2(1 - spent[n]))
            )
            spent[n] += 2.0**-said.bits
        order = [rng.random() for _ in made[name]]
        made[name] = [row for _, row in sorted(zip(order, made[name], strict=True), key=lambda pair: pair[0])]
    return made


def table(made: list[Row]) -> str:
    return "source\ttarget\n" + "".join(f"{row.source}\t{row.target}\n" for row in made)


def files() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(name, bytes, limit) of both files.

    bytes and bits of a limit are those of the sources, without the tabs and line ends. The target follows from the
    source: it adds no bits, and its best accuracy and BLEU are full.
    """
    for name, made in rows().items():
        bits, size = math.fsum(row.drawn for row in made), sum(len(row.source.encode()) for row in made)
        buckets = Counter(bucket_of(len(row.source.split())) for row in made)
        yield (
            name,
            table(made).encode(),
            {
                "rows": len(made),
                "bytes": size,
                "bits": round(bits, 3),
                "bits_per_row": round(bits / len(made), 4),
                "bits_per_byte": round(bits / size, 6),
                "target_bits": 0.0,
                "accuracy": 1.0,
                "bleu": 100.0,
                "rows_by_source_words": {f"{low}-{high}": buckets[low, high] for low, high in BUCKETS},
            },
        )


def print_rows(low: int, high: int, path: Path) -> None:
    """Print the rows of a table whose source has as many words."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    print("\n".join([header, *(line for line in lines if low <= len(line.split("\t")[0].split()) <= high)]))


if __name__ == "__main__":
    print_rows(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
