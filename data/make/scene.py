"""A row of an entailment table while it is written: a statement, and a story that is told to fit it.

A row is written backwards. First the statement is drawn, then the label, and only then a story from which the statement
follows as the label says. So every statement is as likely under each label, and nothing can be guessed from the
statement alone.

The story interleaves threads. A thread has plans, one of which is told: tuples of events, and an event is a tuple of
its kind and of what has a part in it. Its `ways(told)` sets the slots for the last of the events told, and returns the
templates for it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from choice import Teller
from telling import Story, compiled, distinct
from words import fork
from world import Person, Thing, distinct_names

Event = tuple[Any, ...]
Plan = tuple[Event, ...]
Weighed = list[tuple[Plan, float]]  # plans and their probabilities
Ways = Callable[[Plan], Sequence[str]]


class Scene(Story):
    """A row with its people and things, whose names are drawn when they are first mentioned."""

    def __init__(self, teller: Teller, words: Mapping[str, str]) -> None:
        super().__init__(teller)
        self.words = words
        self.name_of = distinct_names()
        self.in_sentence: dict[str, set[Person]] = {}

    def new_people(self, n: int) -> list[Person]:
        """So many new people."""
        return [Person(self.name_of(object())) for _ in range(n)]

    def make_claim(self) -> list[str]:
        """Make one of the statements of the phrase table; the words of its outcome."""
        return self.fork(fork(self.words["statement"])).split()

    def draw_label(self, labels: Sequence[str]) -> str:
        """End the statement, and draw its label."""
        label = self.choose(labels)
        self.gap = "\n^"
        self.said.clear()
        return label

    def templates(self, kind: str) -> list[str]:
        """The templates of a kind of event."""
        return self.words[kind].splitlines()

    def thread_ways(
        self,
        roles: str = "",
        word_of: Callable[[Any], Any] = str,
        kind_of: Callable[[Plan], str] = lambda told: told[-1][0],
        **slots: Any,
    ) -> Ways:
        """The ways of a thread that sets slots, and for the roles of an event those of `roles` to word_of(role)."""

        def ways(told: Plan) -> list[str]:
            self.set(**slots, **{slot: word_of(role) for slot, role in zip(roles, told[-1][1:], strict=False)})
            return self.templates(kind_of(told))

        return ways

    def emit(self, text: str, slot: Any = None) -> None:
        super().emit(text, slot)
        if isinstance(slot, Person) and slot.sex:
            self.in_sentence.setdefault(slot.sex, set()).add(slot)

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """As in Story. Who shares a sentence with another of the same sex is called by name in the next one."""
        self.in_sentence = {}
        which = super().say(*ways, weights=weights)
        for sex, people in self.in_sentence.items():
            if len(people) > 1:
                del self.said[sex]
        return which

    def weave(self, *threads: tuple[Weighed, Ways]) -> None:
        """Tell the threads in turns, each along one of its plans.

        Thread, event and wording are drawn in one choice, so that it shows at once what was drawn.
        """
        left = [(plans, ways, 1) for plans, ways in threads]

        def head(option: tuple[int, Ways, Plan, str]) -> str:
            _, ways, told, template = option
            ways(told)
            return self.gap + self.head(compiled(template))

        while left:
            options: list[tuple[int, Ways, Plan, str]] = []
            weights: list[float] = []
            for index, (plans, ways, n) in enumerate(left):
                shares: dict[Plan, float] = defaultdict(float)
                for plan, weight in plans:
                    shares[plan[:n]] += weight
                total = math.fsum(shares.values())
                for told, share in shares.items():
                    templates = ways(told)
                    options += [(index, ways, told, template) for template in templates]
                    weights += [share / total / len(templates) / len(left)] * len(templates)
            index, ways, told, template = self.choose(options, weights, head)
            ways(told)
            self.say(template)
            n = len(told)
            plans = [(plan, weight) for plan, weight in left[index][0] if plan[:n] == told]
            going = [(plan, weight) for plan, weight in plans if len(plan) > n]
            goes_on = math.fsum(weight for _, weight in going) / math.fsum(weight for _, weight in plans)
            if going and (len(going) == len(plans) or self.chance(goes_on)):
                left[index] = (going, ways, n + 1)
            else:
                del left[index]


def new_things(n: int, looks: Mapping[str, Sequence[str]]) -> list[Thing]:
    """So many things, each of another noun with its adjectives."""
    noun_of = distinct(list(looks))
    return [Thing(noun_of(i), looks) for i in range(n)]


def weigh_equally(plans: Sequence[Plan]) -> Weighed:
    """Plans that are equally likely."""
    return [(plan, 1.0 / len(plans)) for plan in plans]
