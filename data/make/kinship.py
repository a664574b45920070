"""kinship.csv: two-way entailment in another part of the world: who is related to whom, and who is how old.

As in entailment.csv the statement is drawn first, then the label, and then facts of which the statement surely follows
(entailment) or does not (not_entailment: it is false, or may be either).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import lexicon
from choice import Teller
from labelled import Table
from lexicon import Number
from scene import Plan, Scene, Thread, equal
from telling import Lazy
from words import load, table
from world import Person

LABELS = ("entailment", "not_entailment")
WORDS = load("kinship")
WAYS = {name: block.splitlines() for name, block in WORDS.items()}
RELATIONS = {row.kind: row for row in table(WORDS["relations"])}
COMPOSED = {(row.first, row.second): row.whole for row in table(WORDS["composed"])}

Ways = Sequence[str]
Tell = Callable[[str], None]


@functools.cache
def links(relation: str, label: str) -> list[tuple[str, str]]:
    """Two links from a over c to b that make the relation, or that make another."""
    true = [pair for pair, composed in COMPOSED.items() if composed == relation]
    if label == "entailment":
        return true
    # the same two links in the other order or turned about, and those of other relations, are what misleads best
    turned = [(second, first) for first, second in true]
    turned += [(RELATIONS[first].converse, RELATIONS[second].converse) for first, second in true]
    near = [pair for pair in turned if pair in COMPOSED and COMPOSED[pair] != relation]
    return near * 2 + [pair for pair, composed in COMPOSED.items() if composed != relation]


class Relation(str):
    """What somebody is to another, as a word that fits the sex."""

    kind: str

    @classmethod
    def of(cls, kind: str, person: Person) -> "Relation":
        relation = cls(getattr(RELATIONS[kind], person.sex or "he"))
        relation.kind = kind
        return relation


def link_ways(t: Scene, one: Person, kind: str, other: Person) -> Ways:
    """one is the parent (or what kind says) of the other; said so, or the other way about."""
    converse = RELATIONS[kind].converse
    t.set(p=one, q=other, k=Lazy(lambda: [Relation.of(kind, one)]), l=Lazy(lambda: [Relation.of(converse, other)]))
    return WAYS["link"]


def said(t: Scene, name: str, **slots: Any) -> Ways:
    t.set(**slots)
    return WAYS[name]


def fact(ways: Callable[..., Ways], *cases: tuple[Any, ...]) -> Thread:
    """A sentence of its own: ways(*case), for one of the cases."""
    return Thread(equal([(case,) for case in cases]), lambda case: ways(*case))


def work(t: Scene, family: Sequence[Person]) -> list[Thread]:
    """Perhaps, what one of them does for a living."""
    trade = Lazy(lexicon.TRADES, "zipf")
    cases = [(index,) for index in range(len(family))]
    ways = lambda index: said(t, "work", p=family[index], trade=trade)  # noqa: E731
    return [fact(ways, *cases)] if t.chance(0.4) else []


def relatives(t: Scene) -> Tell:
    """Who is whose uncle."""
    a, b = t.person(), t.person()
    kinds = sorted(set(COMPOSED.values()))
    t.set(a=a, b=b, r=Lazy(lambda: [Relation.of(kind, a) for kind in kinds]))
    t.say("{a} is {b}'s {r}.")
    kind = t["r"].kind

    def facts(label: str) -> None:
        pairs = links(kind, label)
        married = [pair.index("spouse") if "spouse" in pair else None for pair in pairs]
        # who is married shows in a name long before it is said, so it is drawn apart from the rest
        which = t.choose((None, 0, 1), [float(married.count(index)) for index in (None, 0, 1)])
        partner = None if which is None else (a, b)[which]
        c = t.person(lambda: {"he": "she", "she": "he", None: None}[partner.sex if partner else None])
        plans: list[Plan] = []
        for (first, second), index in zip(pairs, married, strict=True):
            if index == which:
                told = ((t, a, first, c), (t, c, second, b))
                plans += [told, told[::-1]]
        family, other = (a, b, c), t.person()  # from what the other is to the family nothing follows for them
        cases = [(t, other, kind, one) for kind in ("child", "nephew", "uncle") for one in family]
        both = Thread(equal(plans), lambda event: link_ways(*event))
        t.weave(both, fact(link_ways, *cases), *work(t, family))

    return facts


# older (1), of the same age (0) or younger (-1): a than c, c than b
AGES = {
    "entailment": ((1, 1), (1, 1), (1, 0), (0, 1)),
    "not_entailment": ((1, -1), (-1, 1), (-1, -1), (0, -1), (-1, 0)),
}


def age_ways(t: Scene, one: Person, sign: int, other: Person, related: bool = False) -> Ways:
    """one is older than the other (sign 1), or younger (-1), or a twin; if related, perhaps a parent."""
    if not sign:
        return said(t, "twins", p=one, q=other)
    older, younger = (one, other)[::sign]
    kin = link_ways(t, older, "parent", younger) if related else []
    return [*said(t, "older", p=older, q=younger), *kin]


def ages(t: Scene) -> Tell:
    """Who is older."""
    a, b = t.person(), t.person()
    t.set(a=a, b=b)
    right = t.fork([(1.0, "{a} is older than {b}.", "1"), (1.0, "{a} is younger than {b}.", "-1")])

    def facts(label: str) -> None:
        c, d = t.person(), t.person()
        first, second = (int(right) * sign for sign in t.choose(AGES[label]))
        others = [(t, d, sign, one) for sign in (1, -1) for one in (a, b, c)]
        one, two = fact(age_ways, (t, a, first, c, True)), fact(age_ways, (t, c, second, b))
        t.weave(one, two, fact(age_ways, *others), *work(t, (a, b, c, d)))

    return facts


def years(t: Scene) -> Tell:
    """How old somebody is."""
    a = t.person()
    t.set(a=a, n=Lazy([Number(n) for n in range(7, 16)]))
    t.say("{a} is {n} years old.")
    n = int(t["n"])

    def age(person: Person, now: int) -> Ways:
        return said(t, "age", p=person, n=Number(now))

    def apart(person: Person, by: int, other: Person) -> Ways:
        more, less = (person, other) if by > 0 else (other, person)
        gap = "a year" if abs(by) == 1 else f"{lexicon.number(abs(by))} years"
        return said(t, "apart", p=more, q=less, gap=gap)

    def facts(label: str) -> None:
        c, d = t.person(), t.person()
        plans: list[Plan] = []
        for by in (-3, -2, -1, 1, 2, 3):  # years that a is older than c
            for wrong in sorted({2 * by, -1, 1, 2, -2}) if label == "not_entailment" else (0,):
                pair = ((age, c, n - by + wrong), (apart, a, by, c))
                plans += [pair, pair[::-1]]
        others = [(d, far, one) for far in (-4, -3, -2, -1, 1, 2, 3, 4) for one in (a, c)]
        both = Thread(equal(plans), lambda event: event[0](*event[1:]))
        hobby = [fact(lambda: said(t, "hobby", p=d), ())] if t.chance(0.4) else []
        t.weave(both, fact(apart, *others), *hobby)

    return facts


FAMILIES = {relatives: 5.0, ages: 4.0, years: 3.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the facts; the label."""
    return Scene(teller).row(FAMILIES, LABELS)


KINSHIP = Table(
    "kinship", ("premise", "hypothesis"), ("hypothesis", "premise"), LABELS, row, train_size=400, test_size=400, seed=7
)
