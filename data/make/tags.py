"""tags.conll: sentences of the world, each word with the tag of the entity it belongs to (BIO): who, which pet, which
boat, where, when.

The names are shared out so that no list of words suffices: a boat or a pet may be called Rosa, a street after Miller,
the month of May names a boat; the words around a name decide what it names, and they always do.
"""

import re
from collections import Counter
from typing import Any

import lexicon
from choice import Files, Teller, draw_files
from words import load, weighted

SIZES = {"tags.conll": 1100, "tags.test.conll": 400}
TYPES = ("PERSON", "PET", "BOAT", "PLACE", "DATE")
WORDS = load("tags")
LISTS: dict[str, list[str]] = WORDS["lists"] | {
    "name": lexicon.NAMES,
    "pet": lexicon.PET_NAMES,
    "day": lexicon.DAYS,
    "month": load("days")["months"],
    "date": [str(n) for n in range(1, 29)],
    "good": list(lexicon.TREASURES),
    "trade": lexicon.TRADES,
    "animal": list(lexicon.ANIMALS),
}


def expand(t: Teller, symbol: str) -> str:
    """A word of a list, or what a rule of words/tags.yaml writes."""
    if symbol in LISTS:
        return t.choose(LISTS[symbol])
    rules = weighted(WORDS["rules"][symbol])
    written = t.choose([text for _, text in rules], [weight for weight, _ in rules])
    return re.sub(r"\{(\w+)\}", lambda match: expand(t, match[1]), written)


def sentence(t: Teller) -> list[str]:
    """Write a sentence, a word and its tag on each line, and an empty line after it; the tags."""
    words: list[str] = []
    tags: list[str] = []
    for part in re.findall(r"\{.*?\}|[^{}]+", t.choose(WORDS["sentences"].splitlines())):
        kind, _, symbol = part.strip("{}").partition(".")
        more = (expand(t, symbol or kind) if part[0] == "{" else part).split()
        words += more
        if kind in TYPES:
            n_outside = more[0] == "the"  # the article of an inn is no part of its name
            tags += ["O"] * n_outside + [f"B-{kind}"] + [f"I-{kind}"] * (len(more) - n_outside - 1)
        else:
            tags += ["O"] * len(more)
    words[0] = words[0][0].upper() + words[0][1:]
    t.print("".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n")
    return tags


def files() -> Files:
    for name, rows in draw_files(sentence, "tags 1", SIZES):
        counts = Counter(tag for row in rows for tag in row.value)
        limit: dict[str, Any] = {"rows": len(rows), "entities": {kind: counts[f"B-{kind}"] for kind in TYPES}}
        yield name, "".join(row.text for row in rows).encode(), limit | ({"best_f1": 1.0} if ".test." in name else {})
