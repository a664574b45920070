"""The simulated world: who and what is in it, what can happen, and what is true afterwards.

    world = World()
    tom, ann = Person("Tom", "baker"), Person("Anna", "girl")
    kite = Thing("kite", {"kite": ["red "]})
    world.give(None, kite, tom)
    world.give(tom, kite, ann)        # raises Impossible when a precondition fails
    world.holders[kite] is ann

The fields of people, animals and things may be Lazy: then the word is drawn when it is first written.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import lexicon
from choice import zipf
from lexicon import SEX
from telling import Ask, Lazy, distinct
from words import table

PRONOUNS = {row.he: row._asdict() for row in table(lexicon.PEOPLE["pronouns"])}


class Impossible(Exception):
    """An event whose preconditions do not hold."""


class Entity:
    """Something with words that may be Lazy. render() writes one of its forms."""

    noun: Lazy
    name: Lazy
    mood: Lazy

    def __init__(self, noun: Any, **words: Any) -> None:
        for name, word in {"noun": noun, **words}.items():
            setattr(self, name, word if isinstance(word, Lazy) else Lazy([word], value=word))

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        return getattr(self, form or "noun").ask()


class Person(Entity):
    """Forms: {a} name; {a.noun}; {a.mood}; {a.he} {a.him} {a.his} {a.himself}.

    A pronoun is written only if it would be understood to mean this person, who must then be the last of that sex
    spoken of; otherwise the name is.
    """

    def __init__(self, name: Any, noun: Any = "", mood: Any = "") -> None:
        super().__init__(noun, mood=mood, name=name)

    @property
    def sex(self) -> str | None:
        """he or she, once the name or the noun shows it."""
        return SEX.get(self.name.value or self.noun.value)

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form not in PRONOUNS["he"]:
            text = super().render(form or "name", said)
        elif self.sex is None:
            return self.name.ask(text=None)
        elif said.get(self.sex) is self or form == "himself":
            text = PRONOUNS[self.sex][form]
        else:
            text = self.name.ask(lambda name: name + "'s" * (form == "his"))
        if self.sex and isinstance(text, str):
            said[self.sex] = self
        return text


class Role(Entity):
    """Somebody without a name, of whom the village has one. Forms: {c} the baker; {c.noun}; {c.mood}.

    No pronoun means a role, and after it no pronoun means anybody else before that one is named again.
    """

    sex = None

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        text = super().render(form, said) if form else self.noun.ask("the {}".format)
        if form != "mood" and isinstance(text, str):
            said.clear()
        return text


class Animal(Entity):
    """Forms: {d} the dog; {d.noun}; {d.name}; {d.mood}; {d.he} it; and what lexicon.ANIMALS knows of it."""

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form in ("noun", "name", "mood"):
            return super().render(form, said)
        if form in PRONOUNS["it"]:
            return PRONOUNS["it"][form]
        return self.noun.ask(lambda noun: getattr(lexicon.ANIMALS[noun], form) if form else f"the {noun}")


class Thing(Entity):
    """Forms: {x} the bare noun; {x.new} the noun with one of its adjectives, which end in a space, if any."""

    def __init__(self, noun: Any, looks: Mapping[str, Sequence[str]]) -> None:
        super().__init__(noun)
        self.looks, self.described = looks, ""

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form != "new":
            return super().render(form, said)
        if self.described:
            return self.described
        nouns = [self.noun.value] if self.noun.value else self.noun.resolved()[0]
        both = [(adj, noun) for noun in nouns for adj in self.looks[noun]]
        return Ask(both, [1.0 / len(self.looks[noun]) for _, noun in both], "".join, self.take)

    def take(self, both: tuple[str, str]) -> None:
        self.described, self.noun.value = "".join(both), both[1]


class Place(NamedTuple):
    """Forms: {p} the mill; {p.at} at the mill; {p.to} to the mill."""

    name: str
    at: str
    to: str

    def __str__(self) -> str:
        return self.name


PLACES = [Place(row.name, f"{row.prep} {row.name}", f"to {row.name}") for row in lexicon.PLACES]


def distinct_names() -> Callable[..., Lazy]:
    """Gives each key a name of its own."""
    return distinct(lexicon.NAMES, lambda options: zipf(len(options), 12.0))


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Impossible(why)


@dataclass
class World:
    """What is true now, and the events that change it. Each raises Impossible if it cannot happen."""

    holders: dict[Any, Any] = field(default_factory=dict)  # thing -> who has it
    counts: Counter[tuple[Any, str]] = field(default_factory=Counter)  # (who, countable good) -> how many
    promises: dict[tuple[Any, str], bool | None] = field(default_factory=dict)  # (who, what) -> kept, None: still open
    broken: set[Any] = field(default_factory=set)
    known: set[tuple[Any, str]] = field(default_factory=set)  # (who, fact)

    def give(self, who: Any, thing: Any, to: Any) -> None:
        """The thing changes hands; who is None if it is found."""
        require(self.holders.get(thing) is who, "does not have it")
        self.holders[thing] = to

    def smash(self, thing: Any) -> None:
        require(thing not in self.broken, "already broken")
        self.broken.add(thing)

    def mend(self, thing: Any) -> None:
        require(thing in self.broken, "not broken")
        self.broken.discard(thing)

    def move(self, who: Any, n: int, noun: str, to: Any) -> None:
        """n of a countable good go from one to another; who or to is None for nature (picked, eaten, spent, lost)."""
        require(who is None or self.counts[who, noun] >= n, "has too few")
        self.counts[who, noun] -= n
        self.counts[to, noun] += n

    def tell(self, who: Any, fact: str, to: Any) -> None:
        """Someone tells another what is so, or finds it out, if who is None."""
        require(who is None or (who, fact) in self.known, "does not know it")
        self.known.add((to, fact))

    def vow(self, who: Any, what: str) -> None:
        self.promises[who, what] = None

    def decide(self, who: Any, kept: str, what: str) -> None:
        """A promise is kept (yes) or broken (no)."""
        require((who, what) in self.promises and self.promises[who, what] is None, "no open promise")
        self.promises[who, what] = kept == "yes"
