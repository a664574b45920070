"""The simulated world: who and what is in it, what can happen, and what is true afterwards.

    world = World()
    tom, ann = Person("Tom", "baker"), Person("Ann", "girl")
    kite = Thing("kite", "red ")
    world.put(kite, tom)
    world.do(Give(tom, kite, ann))        # raises Impossible when a precondition fails
    world.holder(kite) is ann; world.count(ann, "coin"); world.knows(ann, fact); world.history

An event has `possible(world)`, which says what forbids it ("" when nothing does), and `apply(world)`. Fields of entities
may be Lazy: then the word is drawn when it is first written.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import lexicon
from telling import Ask, Lazy

PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
    "it": {"he": "it", "him": "it", "his": "its", "himself": "itself"},
}
SEX = {name: "she" for name in lexicon.WOMEN} | {name: "he" for name in lexicon.MEN}
SEX |= dict.fromkeys(lexicon.SHE, "she") | dict.fromkeys(lexicon.HE, "he")


class Impossible(Exception):
    """An event whose preconditions do not hold."""


class Entity:
    """Something with fields that may be Lazy; render() writes one of its forms."""

    def field(self, name: str, visible: bool = True) -> Any:
        """The value of a field, or the Ask that draws it."""
        value = getattr(self, name)
        if not isinstance(value, Lazy):
            return value
        options, weights = value.resolved()
        return Ask(options, weights, (lambda i: str(options[i])) if visible else None, lambda v: setattr(self, name, v))


class Person(Entity):
    """Forms: {a} name; {a.noun}; {a.mood}; {a.he} {a.him} {a.his} {a.himself}.

    A pronoun is written only if it would be understood to mean this person, who must then be the last of that sex
    spoken of; otherwise the name is.
    """

    def __init__(self, name: Any, noun: Any, mood: Any = "") -> None:
        self.name, self.noun, self.mood = name, noun, mood

    def __repr__(self) -> str:
        return f"Person({self.name}, {self.noun})"

    @property
    def sex(self) -> str | None:
        """he or she, once the name or the noun shows it."""
        if isinstance(self.name, str):
            return SEX[self.name]
        return None if isinstance(self.noun, Lazy) else SEX.get(self.noun)

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form in ("noun", "mood"):
            value = self.field(form)
        elif form in PRONOUNS["he"]:
            if self.sex is None:
                return self.field("name", visible=False)
            mine = said.get(self.sex) is self or form == "himself"
            value = PRONOUNS[self.sex][form] if mine else self.name + "'s" * (form == "his")
        else:
            value = self.field("name")
        if self.sex and not isinstance(value, Ask):
            said[self.sex] = self
        return value


class Role(Entity):
    """Somebody without a name, of whom the village has one. Forms: {c} the baker; {c.noun}; {c.mood}.

    No pronoun means a role, and after it no pronoun means anybody else before that one is named again.
    """

    sex = None

    def __init__(self, noun: Any, mood: Any = "") -> None:
        self.noun, self.mood = noun, mood

    def __repr__(self) -> str:
        return f"Role({self.noun})"

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form == "mood":
            return self.field("mood")
        value = self.field("noun")
        if isinstance(value, Ask):
            texts = value.texts
            value.texts = texts if form else (lambda i: f"the {texts(i)}")
            return value
        said.clear()
        return value if form else f"the {value}"


class Animal(Entity):
    """Forms: {d} the dog; {d.noun}; {d.name}; {d.mood}; {d.he} it; and what lexicon.ANIMALS knows of it."""

    def __init__(self, noun: Any, mood: Any = "", name: Any = "") -> None:
        self.noun, self.mood, self.name = noun, mood, name

    def __repr__(self) -> str:
        return f"Animal({self.noun})"

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form in ("noun", "name", "mood"):
            return self.field(form)
        if form in PRONOUNS["it"]:
            return PRONOUNS["it"][form]
        noun = self.field("noun", visible=False)
        if isinstance(noun, Ask):
            return noun
        return getattr(lexicon.ANIMALS[noun], form) if form else f"the {noun}"


class Thing(Entity):
    """Forms: {x} the bare noun, {x.adj} its adjective with a space or "", {x.the} the kite, {x.full} red kite."""

    def __init__(self, noun: Any, adj: Any = "") -> None:
        self.noun, self.adj = noun, adj

    def __repr__(self) -> str:
        return f"Thing({self.adj}{self.noun})"

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form == "adj":
            return self.field("adj")
        noun = self.field("noun", visible=form in ("", "noun"))
        if isinstance(noun, Ask):
            return noun
        return {"the": f"the {noun}", "full": f"{self.adj}{noun}"}.get(form, noun)


@dataclass(frozen=True, eq=False)
class Place:
    """Forms: {p} the mill; {p.at} at the mill; {p.to} to the mill."""

    name: str
    prep: str

    def __str__(self) -> str:
        return self.name

    @property
    def at(self) -> str:
        return f"{self.prep} {self.name}"

    @property
    def to(self) -> str:
        return f"to {self.name}"


PLACES = [Place(*row) for row in lexicon.PLACES]


@dataclass(eq=False)
class Promise:
    """what is a bare infinitive: "bring back the saw on Friday". kept is None until it is decided."""

    by: Any
    to: Any
    what: str
    kept: bool | None = None


@dataclass
class World:
    """What is true now. holders: who has a thing."""

    holders: dict[Any, Any] = field(default_factory=dict)
    counts: Counter[tuple[Any, str]] = field(default_factory=Counter)
    promises: list[Promise] = field(default_factory=list)
    broken: set[Any] = field(default_factory=set)
    known: set[tuple[Any, str]] = field(default_factory=set)
    history: list["Event"] = field(default_factory=list)

    def put(self, thing: Any, holder: Any) -> None:
        """Say who has a thing."""
        self.holders[thing] = holder

    def holder(self, thing: Any) -> Any:
        return self.holders.get(thing)

    def count(self, holder: Any, noun: str) -> int:
        """How many of a countable good (coin, apple) someone has."""
        return self.counts[holder, noun]

    def knows(self, who: Any, fact: str) -> bool:
        return (who, fact) in self.known

    def do(self, event: "Event") -> None:
        """Let it happen. Raises Impossible."""
        if why := event.possible(self):
            raise Impossible(f"{event}: {why}")
        event.apply(self)
        self.history.append(event)


class Event:
    """Something that happens. Subclasses are dataclasses."""

    def possible(self, world: World) -> str:
        return ""

    def apply(self, world: World) -> None:
        pass


@dataclass
class Give(Event):
    """The thing changes hands."""

    who: Any
    thing: Thing
    to: Any

    def possible(self, world: World) -> str:
        return "" if world.holder(self.thing) is self.who else "does not have it"

    def apply(self, world: World) -> None:
        world.holders[self.thing] = self.to


@dataclass
class Break(Event):
    thing: Thing

    def possible(self, world: World) -> str:
        return "already broken" if self.thing in world.broken else ""

    def apply(self, world: World) -> None:
        world.broken.add(self.thing)


@dataclass
class Mend(Event):
    who: Any
    thing: Thing

    def possible(self, world: World) -> str:
        return "" if self.thing in world.broken else "not broken"

    def apply(self, world: World) -> None:
        world.broken.discard(self.thing)


@dataclass
class Pass(Event):
    """n of a countable good go from one to another; who or to is None for nature (picked, eaten, spent, lost)."""

    who: Any
    n: int
    noun: str
    to: Any

    def possible(self, world: World) -> str:
        return "has too few" if self.who is not None and world.count(self.who, self.noun) < self.n else ""

    def apply(self, world: World) -> None:
        if self.who is not None:
            world.counts[self.who, self.noun] -= self.n
        if self.to is not None:
            world.counts[self.to, self.noun] += self.n


@dataclass
class Tell(Event):
    who: Any
    fact: str
    to: Any

    def possible(self, world: World) -> str:
        return "" if world.knows(self.who, self.fact) else "does not know it"

    def apply(self, world: World) -> None:
        world.known.add((self.to, self.fact))


@dataclass
class Vow(Event):
    """A promise is made; Decide keeps or breaks it."""

    promise: Promise

    def apply(self, world: World) -> None:
        world.promises.append(self.promise)


@dataclass
class Decide(Event):
    promise: Promise
    kept: bool

    def possible(self, world: World) -> str:
        return "" if self.promise in world.promises and self.promise.kept is None else "no open promise"

    def apply(self, world: World) -> None:
        self.promise.kept = self.kept
