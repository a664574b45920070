"""Word lists and phrase tables, out of words/*.yaml.

A word list is a flow list, from common to rare where it says so. Phrases stand one a line in a block, and so do the
rows of a table, whose first line names its columns. Where something is more likely than something else, a line is
`weight phrase`; where what happens is chosen together with how it is told, `weight outcome: phrase`. Every scalar is a
string: "no" and "on" are words.
"""

import collections
import functools
from pathlib import Path
from typing import Any

import yaml

Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
Fork = list[tuple[float, str, str]]


@functools.cache
def load(topic: str) -> Any:
    """What words/<topic>.yaml says."""
    return yaml.load((Path(__file__).parent / "words" / f"{topic}.yaml").read_text(encoding="utf-8"), Loader)


@functools.cache
def table(block: str) -> list[Any]:
    """The rows of a block as named tuples, which are written as their first field."""
    head, *lines = block.splitlines()
    base = collections.namedtuple("Row", head.split(" | "))  # type: ignore[misc]
    kind = type("Row", (base,), {"__str__": lambda self: str(self[0]), "__slots__": ()})
    return [kind(*[cell.strip() for cell in line.split(" | ")]) for line in lines]


@functools.cache
def weighted(block: str) -> list[tuple[float, str]]:
    """(weight, phrase) of each line. Raises ValueError."""
    return [(float(weight), phrase) for weight, _, phrase in (line.partition(" ") for line in block.splitlines())]


@functools.cache
def fork(block: str) -> Fork:
    """(weight, phrase, outcome) of each line. Raises ValueError."""
    ways = []
    for weight, rest in weighted(block):
        outcome, colon, phrase = rest.partition(": ")
        if not colon:
            raise ValueError(f"no way of a fork: {rest}")
        ways.append((weight, phrase, outcome))
    return ways


def before(words: list[str]) -> list[str]:
    """Adjectives as they stand before a noun, with a space after each but the empty one."""
    return [word and word + " " for word in words]
