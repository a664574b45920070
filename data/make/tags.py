"""tags.conll: sentences of the world, each word with the tag of the entity it belongs to (BIO): who, which pet, which
boat, where, when.

The names are shared out so that no list of words suffices: a boat or a pet may be called Rosa, a street after Miller,
the month of May names a boat; the words around a name decide what it names, and they always do.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import lexicon
from choice import Drawing, Teller
from lexicon import DAYS, NAMES, PET_NAMES
from words import load

SEED = 1
SIZES = {"tags.conll": 1100, "tags.test.conll": 400}
TYPES = ("PERSON", "PET", "BOAT", "PLACE", "DATE")
WORDS, MONTHS = load("tags"), load("days")["months"]
SENTENCES, LAST = WORDS["sentences"].splitlines(), WORDS["last"]

Sentence = tuple[tuple[str, str], ...]


def person(t: Teller) -> str:
    first = t.choose(NAMES)
    return f"{first} {t.choose(LAST)}" if t.chance(0.35) else first


def pet(t: Teller) -> str:
    return t.choose(PET_NAMES) if t.chance(0.6) else t.choose(NAMES)


def beast(t: Teller) -> str:
    return f"{t.choose(WORDS['colours'])} {t.choose(WORDS['beasts'])}"


def boat(t: Teller) -> str:
    kind = t.choose(("name", "beast", "month", "pet"), (4, 3, 1, 2))
    return beast(t) if kind == "beast" else t.choose({"name": NAMES, "month": MONTHS, "pet": PET_NAMES}[kind])


def place(t: Teller) -> str:
    kind = t.choose(("street", "inn", "bridge", "port"), (3, 3, 2, 1))
    if kind == "inn":
        return f"the {beast(t)}"
    if kind == "port":
        return f"Port {t.choose(NAMES)}"
    name = t.choose(LAST if t.chance(0.6) else NAMES)
    return f"{name} {t.choose(('Street', 'Lane', 'Hill') if kind == 'street' else ('Bridge', 'Mill'))}"


def date(t: Teller) -> str:
    kind = t.choose(("day", "month", "both"), (4, 3, 3))
    if kind == "both":
        return f"{int(t.choose(range(1, 29)))} {t.choose(MONTHS)}"
    return t.choose(DAYS if kind == "day" else MONTHS)


ENTITIES: dict[str, tuple[str, Callable[[Teller], str]]] = {
    "PERSON": ("PERSON", person),
    "LAST": ("PERSON", lambda t: t.choose(LAST)),
    "PET": ("PET", pet),
    "BOAT": ("BOAT", boat),
    "PLACE": ("PLACE", place),
    "DATE": ("DATE", date),
}
OTHERS = {"good": list(lexicon.TREASURES), "trade": lexicon.TRADES, "animal": list(lexicon.ANIMALS)}


def sentence(t: Teller) -> Sentence:
    """One sentence: its words and their tags."""
    found: list[tuple[str, str]] = []
    for i, part in enumerate(re.split(r"\{(\w+)\}", t.choose(SENTENCES))):
        if i % 2 == 0:
            found += [(word, "O") for word in part.split()]
        elif part in OTHERS:
            found += [(word, "O") for word in t.choose(OTHERS[part]).split()]
        else:
            of, draw = ENTITIES[part]
            name = draw(t)
            if name.startswith("the "):  # the article of an inn is no part of its name
                found.append(("the", "O"))
            found += [(word, f"{'I' if n else 'B'}-{of}") for n, word in enumerate(name.removeprefix("the ").split())]
    first, tag = found[0]
    return ((first[0].upper() + first[1:], tag), *found[1:])


def conll(rows: list[Sentence]) -> bytes:
    """A word and its tag on each line, and an empty line after each sentence."""
    return "".join("".join(f"{word} {tag}\n" for word, tag in row) + "\n" for row in rows).encode()


def files() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(name, bytes, limit) of both files. No two sentences are equal."""
    seen: dict[Sentence, None] = {}
    for index in itertools.count():
        seen.setdefault(sentence(Drawing(random.Random(f"tags {SEED} {index}"))))
        if len(seen) == sum(SIZES.values()):
            break
    every = iter(seen)
    for name, size in SIZES.items():
        rows = list(itertools.islice(every, size))
        counts = {of: sum(tag == f"B-{of}" for row in rows for _, tag in row) for of in TYPES}
        limit: dict[str, Any] = {"rows": len(rows), "entities": counts}
        yield name, conll(rows), limit | ({"best_f1": 1.0} if ".test." in name else {})
