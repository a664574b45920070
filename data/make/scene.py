"""A story that is told to fit a statement: its people and things, and the weaving of its threads."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lexicon
from choice import Teller, zipf
from lexicon import SEX
from telling import Ask, Lazy, Story, compiled
from words import fork
from world import Person, Thing

LABELS = ("entailment", "neutral", "contradiction")

Event = tuple[Any, ...]
Plan = tuple[Event, ...]
Weighed = tuple[Plan, float]
Nouns = Mapping[str, Sequence[str]]


def verdict(worlds: Iterable[bool]) -> str:
    """The label of a statement that is true or false in each of the worlds that are possible."""
    outcomes = set(worlds)
    return "neutral" if len(outcomes) == 2 else "entailment" if outcomes == {True} else "contradiction"


class Item(Thing):
    """A thing whose noun is unlike that of others. Its form {x.new} is the noun with an adjective."""

    def __init__(self, nouns: Nouns, others: Sequence[Thing]) -> None:
        self.nouns = nouns
        super().__init__(Lazy(lambda: [noun for noun in nouns if all(noun != other.noun for other in others)]), None)

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if form != "new":
            return super().render(form, said)
        if self.adj is not None:
            return f"{self.adj}{self.noun}"
        nouns = self.noun.resolved()[0] if isinstance(self.noun, Lazy) else [self.noun]
        both = [(adj, noun) for noun in nouns for adj in self.nouns[noun]]
        weights = [1.0 / len(self.nouns[noun]) for _, noun in both]
        return Ask(both, weights, lambda i: "".join(both[i]), self.take)

    def take(self, both: tuple[str, str]) -> None:
        self.adj, self.noun = both


class Spoken(dict[str, Any]):
    """Who was spoken of last, by sex; `since` holds all who were spoken of since it was made."""

    def __init__(self, before: dict[str, Any]) -> None:
        super().__init__(before)
        self.since: dict[str, list[Any]] = {}

    def __setitem__(self, sex: str, person: Any) -> None:
        super().__setitem__(sex, person)
        if person not in self.since.setdefault(sex, []):
            self.since[sex].append(person)


@dataclass(frozen=True)
class Thread:
    """Plans with their probabilities, one of which is told. ways(event) sets the slots for an event and returns the
    templates that tell it; told(event) is called when that is done."""

    plans: Sequence[Weighed]
    ways: Callable[[Event], Sequence[str]]
    told: Callable[[Event], None] = lambda event: None


class Scene(Story):
    """A row while it is written: people and things whose names are drawn when they are first mentioned."""

    def __init__(self, teller: Teller) -> None:
        super().__init__(teller)
        self.said: Spoken = Spoken({})
        self.people: list[Person] = []
        self.items: list[Item] = []

    def person(self, sex: Callable[[], str | None] = lambda: None) -> Person:
        """Somebody new, of the given sex if any; the first letter of the name is new as well."""

        def names() -> list[str]:
            taken = {one.name[0] for one in self.people if isinstance(one.name, str)}
            wanted = sex()
            return [name for name in lexicon.NAMES if name[0] not in taken and wanted in (None, SEX[name])]

        someone = Person(Lazy(names, lambda options: zipf(len(options), 12.0)), "")
        self.people.append(someone)
        return someone

    def item(self, nouns: Nouns) -> Item:
        """Something new out of nouns: noun -> adjectives."""
        item = Item(nouns, self.items)
        self.items.append(item)
        return item

    def row(self, families: Mapping[Callable[["Scene"], Callable[[str], None]], float], labels: Sequence[str]) -> str:
        """Write a statement of one of the families, a line end and the story; the label."""
        tell = self.choose(list(families), list(families.values()))(self)
        label = self.choose(labels)
        self.gap = "\n^"
        self.said = Spoken({})
        tell(label)
        return label

    def claim(self, words: Mapping[str, str]) -> str:
        """Make one of the statements of a family; what it asks about and says."""
        return self.fork(fork(words["statement"]))

    def thread(
        self,
        plans: Sequence[Weighed],
        words: Mapping[str, str],
        kind: Callable[[Event], str],
        told: Callable[[Event], None] = lambda event: None,
    ) -> Thread:
        """A thread whose ways are those of a kind of event in a phrase table; kind(event) also sets the slots."""
        return Thread(plans, lambda event: words[kind(event)].splitlines(), told)

    def recall(self, slot: str, words: Sequence[Any], known: Mapping[Any, Any], *roles: Any) -> None:
        """Set a slot to what a role is known to be, or to one of the words that no role is known to be."""
        for role in roles:
            self[slot] = known.get(role) or Lazy([word for word in words if word not in known.values()])

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """As in Story. Who shares a sentence with another of the same sex is called by name in the next one."""
        self.said = Spoken(self.said)
        which = super().say(*ways, weights=weights)
        for sex, people in self.said.since.items():
            if len(people) > 1:
                del self.said[sex]
        return which

    def weave(self, *threads: "Thread") -> None:
        """Tell the threads in turns, each along one of its plans.

        Thread, event and wording are drawn in one choice, so that it shows at once what was drawn.
        """
        left = [(thread, list(thread.plans), 0) for thread in threads]
        while left:
            every: list[tuple[int, Event, str]] = []
            weights: list[float] = []
            for index, (thread, plans, n_told) in enumerate(left):
                shares: dict[Event, float] = {}
                for plan, weight in plans:
                    shares[plan[n_told]] = shares.get(plan[n_told], 0.0) + weight
                total = math.fsum(shares.values())
                for event, share in shares.items():
                    ways = thread.ways(event)
                    every += [(index, event, way) for way in ways]
                    weights += [share / total / len(ways) / len(left)] * len(ways)

            def head(i: int, every: list[tuple[int, Event, str]] = every, left: list[Any] = left) -> str:
                index, event, way = every[i]
                left[index][0].ways(event)
                return self.gap + self.head(compiled(way))

            index, event, way = self.choose(every, weights, head)
            thread, plans, n_told = left[index]
            thread.ways(event)
            self.say(way)
            thread.told(event)
            plans = [(plan, weight) for plan, weight in plans if plan[n_told] == event]
            going = [(plan, weight) for plan, weight in plans if len(plan) > n_told + 1]
            goes_on = math.fsum(weight for _, weight in going) / math.fsum(weight for _, weight in plans)
            if going and (len(going) == len(plans) or self.chance(goes_on)):
                left[index] = (thread, going, n_told + 1)
            else:
                del left[index]


OPPOSITE = {"entailment": "contradiction", "neutral": "neutral", "contradiction": "entailment"}

Sorted = dict[str, list[Plan]]


def courses(firsts: Sequence[Event], after: Callable[[Plan], list[Event]]) -> list[Plan]:
    """All courses of two or three events; after(plan) is what can come next."""
    found: list[Plan] = []
    for plan in [(first,) for first in firsts]:
        for second in after(plan):
            found.append((*plan, second))
            found += [(*plan, second, third) for third in after((*plan, second))]
    return found


def sort(plans: Sequence[Plan], judge: Callable[[Plan], str | None]) -> Sorted:
    """Plans by label; those judged None fit no label."""
    found: Sorted = {label: [] for label in LABELS}
    for plan in plans:
        label = judge(plan)
        if label:
            found[label].append(plan)
    return found


def equal(plans: Sequence[Plan]) -> list[Weighed]:
    """Plans that are equally likely."""
    return [(plan, 1.0 / len(plans)) for plan in plans]


def misleading(plans: Sorted, label: str) -> list[Weighed]:
    """The shortest plans for another thread than that which decides the label: often open where that one is not."""
    shares = (2.0, 1.0, 2.0) if label == "neutral" else (1.0, 8.0, 1.0)
    found: list[Weighed] = []
    for other, share in zip(LABELS, shares, strict=True):
        least = min(map(len, plans[other]))
        shortest = [plan for plan in plans[other] if len(plan) == least]
        found += [(plan, share / sum(shares) / len(shortest)) for plan in shortest]
    return found
