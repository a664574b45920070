"""tags.conll: sentences of the world, each word with the tag of the entity it belongs to (BIO): who, which pet, which boat,
where, when.

The names are shared out so that no list of words suffices: a boat or a pet may be called Rosa, a street after Miller, the
month of May names a boat; the words around a name decide what it names, and they always do.

    python data/make/tags.py [FOLDER]      writes tags.conll and tags.test.conll
"""

import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import lexicon
from choice import Drawing, Teller

SEED = 1
TYPES = ("PERSON", "PET", "BOAT", "PLACE", "DATE")

FIRST = [name for pair in zip(lexicon.WOMEN, lexicon.MEN, strict=True) for name in pair]
LAST = ("Miller", "Cooper", "Mason", "Potter", "Weaver", "Cook", "Carter", "Fisher", "Shepherd", "Baker", "Taylor")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("Golden", "Silver", "Merry", "Red", "Old", "Proud")
BEASTS = ("Goose", "Heron", "Otter", "Pony", "Swan", "Trout")
ANIMALS = tuple(lexicon.ANIMALS)
GOODS = tuple(lexicon.TREASURES)
TRADES = tuple(lexicon.TRADES)

SENTENCES = (
    "{PERSON} lent {PERSON} a {good} on {DATE} .",
    "On {DATE} {PERSON} met {PERSON} at {PLACE} .",
    "{PERSON} , the {trade} , has lived at {PLACE} since {DATE} .",
    "Have you seen {PERSON} ? asked the {trade} of {PLACE} .",
    "Mrs {LAST} and her {animal} {PET} walked to {PLACE} .",
    "Mr {LAST} sold the {good} to {PERSON} in {DATE} .",
    "{PET} , the {animal} of {PERSON} , slept beside the {good} .",
    "A {animal} called {PET} followed {PERSON} as far as {PLACE} .",
    "The {animal} had no name , so the {trade} called it {PET} .",
    "In {DATE} {PERSON} rowed the {BOAT} across the lake .",
    "The {BOAT} sailed on {DATE} with {PERSON} at the helm .",
    "{PERSON} painted the name {BOAT} on the bow of the boat .",
    "The harbour was empty , for the {BOAT} and the {BOAT} had sailed .",
    "Nobody at {PLACE} knew to whom the {good} belonged .",
    "The {trade} fed {PET} , the hungry {animal} , every {DATE} .",
    "{PERSON} lost a {good} in {PLACE} and found it on board the {BOAT} .",
    "Between {DATE} and {DATE} the {trade} wrote to {PERSON} twice .",
    "When the {BOAT} leaked , {PERSON} and the {trade} mended her at {PLACE} .",
    "It was {DATE} when the {animal} {PET} came home to {PERSON} .",
    "The {trade} and the {trade} looked for the {good} all day .",
)
"""Entities are in capitals, with LAST for a surname alone."""

SPLIT = re.compile(r"\{(\w+)\}")


def person(t: Teller) -> str:
    first = t.choose(FIRST)
    return f"{first} {t.choose(LAST)}" if t.chance(0.35) else first


def pet(t: Teller) -> str:
    return t.choose(lexicon.PET_NAMES) if t.chance(0.6) else t.choose(FIRST)


def boat(t: Teller) -> str:
    kind = t.choose(("name", "beast", "month", "pet"), (4, 3, 1, 2))
    if kind == "beast":
        return f"{t.choose(COLOURS)} {t.choose(BEASTS)}"
    return t.choose({"name": FIRST, "month": MONTHS, "pet": lexicon.PET_NAMES}[kind])


def place(t: Teller) -> str:
    kind = t.choose(("street", "inn", "bridge", "port"), (3, 3, 2, 1))
    if kind == "inn":
        return f"the {t.choose(COLOURS)} {t.choose(BEASTS)}"
    if kind == "port":
        return f"Port {t.choose(FIRST)}"
    return f"{t.choose(LAST if t.chance(0.6) else FIRST)} {t.choose(('Street', 'Lane', 'Hill') if kind == 'street' else ('Bridge', 'Mill'))}"


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
OTHERS = {"good": GOODS, "trade": TRADES, "animal": ANIMALS}

Sentence = tuple[tuple[str, str], ...]


def sentence(t: Teller) -> Sentence:
    """One sentence: its words and their tags."""
    found: list[tuple[str, str]] = []
    for i, part in enumerate(SPLIT.split(t.choose(SENTENCES))):
        if i % 2 == 0:
            found += [(word, "O") for word in part.split()]
        elif part in OTHERS:
            found += [(word, "O") for word in t.choose(OTHERS[part]).split()]
        else:
            of, draw = ENTITIES[part]
            # the article of an inn is no part of its name
            article, name = re.fullmatch(r"(the )?(.*)", draw(t)).groups()  # type: ignore[union-attr]
            found += [("the", "O")] * bool(article)
            found += [(word, f"{'I' if n else 'B'}-{of}") for n, word in enumerate(name.split())]
    first, tag = found[0]
    return ((first[0].upper() + first[1:], tag), *found[1:])


class Tagged:
    """Two files of sentences, no two of them equal."""

    def __init__(self, train_size: int, test_size: int) -> None:
        self.sizes = {"tags.conll": train_size, "tags.test.conll": test_size}

    def drawn(self) -> Iterator[Sentence]:
        seen: set[Sentence] = set()
        index = 0
        while True:
            one = sentence(Drawing(random.Random(f"tags {SEED} {index}")))
            index += 1
            if one not in seen:
                seen.add(one)
                yield one

    @cached_property
    def parts(self) -> dict[str, list[Sentence]]:
        source = self.drawn()
        return {name: [next(source) for _ in range(size)] for name, size in self.sizes.items()}

    def files(self) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        """(name, bytes, limit) of both files."""
        for name, rows in self.parts.items():
            counts = {of: sum(tag == f"B-{of}" for row in rows for _, tag in row) for of in TYPES}
            limit: dict[str, Any] = {"rows": len(rows), "entities": counts}
            if name.endswith(".test.conll"):
                limit["best_f1"] = 1.0
            yield name, conll(rows), limit


def conll(rows: list[Sentence]) -> bytes:
    """A word and its tag on each line, and an empty line after each sentence."""
    return "".join("".join(f"{word} {tag}\n" for word, tag in row) + "\n" for row in rows).encode()


TAGS = Tagged(1100, 400)

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    for name, content, _ in TAGS.files():
        (folder / name).write_bytes(content)
