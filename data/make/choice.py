"""Programs that write text by random choices, and the exact probability of what they write.

A *program* is any function `program(teller)`. It asks `teller.choose(options, weights)` and writes with
`teller.emit(text)`. It runs in two ways:

    written(program, rng)          -> Written(text, bits, value)   choices are drawn; bits = -log2 of their probability
    derivations(program, text)     -> [Written, ...]               every sequence of choices that writes this text

The second runs the program against a given text. A choice whose text does not agree with what must come next is pruned
at once when the caller says how each option begins (`head`), and otherwise at the first `emit` that disagrees; the
program is then run again from its start up to the last choice with an untried option. So the cost stays near linear as
long as a choice shows soon after it is made: draw late, just before the words that reveal it. A program must be a pure
function of its choices: no other randomness, no state that outlives it.

Text is typeset on its way: "a" before a vowel becomes "an", the first letter of a sentence becomes a capital, and the
letter after the mark ^ too.
"""

import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MOST_RUNS = 200_000  # of a program on one text: more means that choices are made long before they show

BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=\"?(?!one\b|once\b|uni|use|euro|ewe\b)[aeiou]|hour|hon(?:est|our)|heir)")
CAPITAL = re.compile(r'((?<=[.!?] )"?|(?<=\." )"?|\^"?)([a-z])')
HELD = re.compile(r'\^"?(?:[Aa] ?)?$|(?:^|(?<=[ "]))[Aa] ?$')


class Mismatch(Exception):
    """The choices made so far cannot write the given text."""


@functools.lru_cache(100_000)
def typeset(raw: str, tail: str) -> tuple[str, str]:
    """(text, held): raw as it is printed after `tail`, and the end of it that waits for the next word."""
    held = ""
    if waits := HELD.search(raw):
        raw, held = raw[: waits.start()], raw[waits.start() :]
    if not raw:
        return "", held
    text = BEFORE_VOWEL.sub(r"\1n ", raw)
    text = CAPITAL.sub(lambda match: match[1].replace("^", "") + match[2].upper(), tail + text)[len(tail) :]
    return text.replace("^", ""), held


class Teller:
    """What a program chooses with and writes to. It draws each choice by random(), whose sequence Python promises."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bits = 0.0
        self.printed: list[str] = []
        self.tail = ". "  # the last characters printed; a text begins as a sentence does
        self.held = ""

    def choose(
        self, options: Sequence[T], weights: Sequence[float] | None = None, head: Callable[[T], str] | None = None
    ) -> T:
        """One of the options, with probability proportional to its weight (equal without weights).

        head(option): words that are certain to be emitted next if it is taken ("" if nothing is certain).
        """
        if len(options) == 1:
            return options[0]
        weights = weights or [1.0] * len(options)
        index = self.pick(options, weights, head)
        self.bits -= math.log2(weights[index] / math.fsum(weights))
        return options[index]

    def pick(self, options: Sequence[T], weights: Sequence[float], head: Callable[[T], str] | None) -> int:
        left = self.rng.random() * math.fsum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return max(index for index, weight in enumerate(weights) if weight)

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.choose((True, False), (p, 1 - p))

    def emit(self, raw: str) -> None:
        """Typeset text and write it. Raises Mismatch if it is not what the given text says."""
        text, self.held = typeset(self.held + raw, self.tail)
        if text:
            self.print(text)
            self.tail = (self.tail + text)[-3:]

    def print(self, text: str) -> None:
        """Write text as it is."""
        self.printed.append(text)


class Follower(Teller):
    """Takes the choices of `path`, then the first that fits the text; notes the others in `untried`."""

    def __init__(self, text: str, path: list[int]) -> None:
        super().__init__(random.Random(0))
        self.text, self.position = text, 0
        self.path, self.n_chosen = path, 0
        self.untried: list[list[int]] = []

    def pick(self, options: Sequence[T], weights: Sequence[float], head: Callable[[T], str] | None) -> int:
        self.n_chosen += 1
        if self.n_chosen <= len(self.path):
            return self.path[self.n_chosen - 1]
        live = [index for index, weight in enumerate(weights) if weight > 0]
        if head:
            ahead = {i: typeset(self.held + head(options[i]), self.tail)[0] for i in live}
            live = [i for i in live if self.text.startswith(ahead[i], self.position)]
        if not live:
            raise Mismatch
        self.untried += [[*self.path, index] for index in live[1:]]
        self.path = [*self.path, live[0]]
        return live[0]

    def print(self, text: str) -> None:
        if not self.text.startswith(text, self.position):
            raise Mismatch
        self.position += len(text)


Program = Callable[[Teller], Any]
Files = Iterator[tuple[str, bytes, dict[str, Any]]]  # the name of each, its bytes, and its limit


class Written(NamedTuple):
    """A text, -log2 of the probability of the choices that wrote it, and what the program returned."""

    text: str
    bits: float
    value: Any


def written(program: Program, rng: random.Random) -> Written:
    """Run the program with choices drawn from rng."""
    teller = Teller(rng)
    value = program(teller)
    return Written("".join(teller.printed), teller.bits, value)


def draw_texts(program: Program, seed: str) -> Iterator[Written]:
    """What the program writes, text after text, without end; a text that was drawn before is passed over."""
    seen: set[str] = set()
    for index in itertools.count():
        one = written(program, random.Random(f"{seed} {index}"))
        if one.text not in seen:
            seen.add(one.text)
            yield one


def draw_files(program: Program, seed: str, sizes: dict[str, int]) -> Iterator[tuple[str, list[Written]]]:
    """The name of each file and its texts, as many as it is to have."""
    texts = draw_texts(program, seed)
    for name, size in sizes.items():
        yield name, list(itertools.islice(texts, size))


def measure_entropy(texts: Sequence[str], bits: Sequence[float], unit: str) -> dict[str, Any]:
    """The limit of texts that were written with so many bits. The end of a text is part of what is to be predicted."""
    total, size = math.fsum(bits), sum(len(text.encode()) for text in texts)
    return {
        f"{unit}s": len(texts),
        "bytes": size,
        "bits": round(total, 3),
        f"bits_per_{unit}": round(total / len(texts), 4),
        "bits_per_byte": round(total / size, 6),
    }


def derivations(program: Program, text: str) -> list[Written]:
    """Every sequence of choices by which the program writes the text. Raises RuntimeError after MOST_RUNS runs."""
    found: list[Written] = []
    untried: list[list[int]] = [[]]
    n_runs = 0
    while untried:
        n_runs += 1
        if n_runs > MOST_RUNS:
            raise RuntimeError(f"{MOST_RUNS} runs do not suffice to parse {text[:60]!r}")
        teller = Follower(text, untried.pop())
        try:
            value = program(teller)
            if teller.position == len(text) and not teller.held:
                found.append(Written(text, teller.bits, value))
        except Mismatch:
            pass
        untried += teller.untried
    return found


def zipf(n: int, shift: float = 4.0) -> list[float]:
    """Weights of n options in order of how common they are: 1 / (rank + shift). Zipf (1935), Mandelbrot (1953)."""
    return [1.0 / (rank + shift) for rank in range(1, n + 1)]
