"""kinship.csv: two-way entailment in another part of the world: who is related to whom, and who is how old.

As in entailment.csv the statement is drawn first, then the label, and then facts of which the statement surely follows
(entailment) or does not (not_entailment: it is false, or may be either).

    python data/make/entailment_kinship.py [FOLDER]      writes kinship.csv and kinship.test.csv
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lexicon
from choice import Teller
from entailment_hands import N
from entailment_scene import Plan, Scene, Thread, equal
from labelled import Table
from telling import Lazy
from world import Person

LABELS = ("entailment", "not_entailment")

# What a's relation to b is called, if a is a man and if a is a woman, and its converse.
WORDS = {
    "parent": ("father", "mother"),
    "child": ("son", "daughter"),
    "sibling": ("brother", "sister"),
    "spouse": ("husband", "wife"),
    "grandparent": ("grandfather", "grandmother"),
    "grandchild": ("grandson", "granddaughter"),
    "uncle": ("uncle", "aunt"),
    "nephew": ("nephew", "niece"),
    "cousin": ("cousin", "cousin"),
    "parent-in-law": ("father-in-law", "mother-in-law"),
    "child-in-law": ("son-in-law", "daughter-in-law"),
    "sibling-in-law": ("brother-in-law", "sister-in-law"),
}
CONVERSE = {
    "parent": "child",
    "child": "parent",
    "sibling": "sibling",
    "spouse": "spouse",
    "uncle": "nephew",
    "nephew": "uncle",
}

# (relation of a to c, relation of c to b) -> relation of a to b
COMPOSED = {
    ("parent", "parent"): "grandparent",
    ("child", "child"): "grandchild",
    ("sibling", "parent"): "uncle",
    ("child", "sibling"): "nephew",
    ("child", "uncle"): "cousin",
    ("nephew", "parent"): "cousin",
    ("parent", "spouse"): "parent-in-law",
    ("spouse", "child"): "child-in-law",
    ("sibling", "spouse"): "sibling-in-law",
    ("spouse", "sibling"): "sibling-in-law",
}


@functools.cache
def links(relation: str, label: str) -> list[tuple[str, str]]:
    """Two links from a over c to b that make the relation, or that make another."""
    true = [pair for pair, composed in COMPOSED.items() if composed == relation]
    if label == "entailment":
        return true
    # the same two links in the other order or turned about, and those of other relations, are what misleads best
    turned = [(second, first) for first, second in true] + [
        (CONVERSE[first], CONVERSE[second]) for first, second in true
    ]
    near = [pair for pair in turned if pair in COMPOSED and COMPOSED[pair] != relation]
    return near * 2 + [pair for pair, composed in COMPOSED.items() if composed != relation]


class Relation(str):
    """What somebody is to another, as a word that fits the sex."""

    kind: str

    @classmethod
    def of(cls, kind: str, person: Person) -> "Relation":
        relation = cls(WORDS[kind][person.sex == "she"])
        relation.kind = kind
        return relation


def link_ways(t: Scene, one: Person, kind: str, other: Person) -> Sequence[str]:
    """one is the parent (or what kind says) of the other; said so, or the other way about."""
    t.set(
        p=one, q=other, k=Lazy(lambda: [Relation.of(kind, one)]), l=Lazy(lambda: [Relation.of(CONVERSE[kind], other)])
    )
    return "{p} is {q}'s {k}.", "{p} is the {k} of {q}.", "{q} is {p}'s {l}.", "{q} is the {l} of {p}."


def fact(ways: Callable[..., Sequence[str]], *cases: tuple[Any, ...]) -> Thread:
    """A sentence of its own: ways(*case), for one of the cases."""
    return Thread(equal([(case,) for case in cases]), lambda case: ways(*case))


def aside(t: Scene, family: Sequence[Person]) -> Thread:
    """Somebody else and how he or she belongs to the family, from which nothing follows for the others."""
    other = t.person()
    cases = [(kind, index) for kind in ("child", "nephew", "uncle") for index in range(len(family))]
    return fact(lambda kind, index: link_ways(t, other, kind, family[index]), *cases)


def hobby(t: Scene, child: Person) -> list[Thread]:
    """Perhaps, what a child likes."""

    def ways() -> Sequence[str]:
        t.set(p=child)
        return "{p} plays the <flute|fiddle|drum|harmonica>.", "{p} <keeps|has> <rabbits|hens|a goat|a tortoise>."

    return [fact(ways, ())] if t.chance(0.4) else []


def work(t: Scene, family: Sequence[Person]) -> list[Thread]:
    """Perhaps, what one of them does for a living."""

    def ways(index: int) -> Sequence[str]:
        t.set(p=family[index], trade=Lazy(lexicon.TRADES, "zipf"))
        return "{p} is a {trade}.", "{p} works as a {trade}."

    return [fact(ways, *[(index,) for index in range(len(family))])] if t.chance(0.4) else []


def relatives(t: Scene) -> Callable[[str], None]:
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
        family = (a, b, c)
        both = Thread(equal(plans), lambda event: link_ways(*event))
        t.weave(both, aside(t, family), *work(t, family))

    return facts


# older (1), of the same age (0) or younger (-1): a than c, c than b
AGES = {
    "entailment": ((1, 1), (1, 1), (1, 0), (0, 1)),
    "not_entailment": ((1, -1), (-1, 1), (-1, -1), (0, -1), (-1, 0)),
}


def age_ways(t: Scene, one: Person, sign: int, other: Person, related: bool = False) -> Sequence[str]:
    """one is older than the other (sign 1), or younger (-1), or a twin; if related, perhaps a parent."""
    if not sign:
        t.set(p=one, q=other)
        return "{p} and {q} are twins.", "{q} and {p} are twins.", "{p} was born on the same day as {q}."
    older, younger = (one, other) if sign > 0 else (other, one)
    kin = link_ways(t, older, "parent", younger) if related else ()
    t.set(p=older, q=younger)
    return (
        "{p} is older than {q}.",
        "{q} is younger than {p}.",
        "{p} was born <two|three|five> years before {q}.",
        "{q} was born <two|three|five> years after {p}.",
        *kin,
    )


def ages(t: Scene) -> Callable[[str], None]:
    """Who is older."""
    a, b = t.person(), t.person()
    t.set(a=a, b=b)
    right = t.fork((1.0, "{a} is older than {b}.", 1), (1.0, "{a} is younger than {b}.", -1))

    def facts(label: str) -> None:
        c, d = t.person(), t.person()
        first, second = (right * sign for sign in t.choose(AGES[label]))
        others = [(t, d, sign, one) for sign in (1, -1) for one in (a, b, c)]
        one, two = fact(age_ways, (t, a, first, c, True)), fact(age_ways, (t, c, second, b))
        t.weave(one, two, fact(age_ways, *others), *work(t, (a, b, c, d)))

    return facts


def years(t: Scene) -> Callable[[str], None]:
    """How old somebody is."""
    a = t.person()
    t.set(a=a, n=Lazy([N(n) for n in range(7, 16)]))
    t.say("{a} is {n} years old.")
    n = int(t["n"])

    def age(person: Person, now: int) -> Sequence[str]:
        t.set(p=person, n=N(now))
        return "{p} is {n} years old.", "{p} has just turned {n}."

    def apart(person: Person, by: int, other: Person) -> Sequence[str]:
        more, less = (person, other) if by > 0 else (other, person)
        t.set(p=more, q=less, gap="a year" if abs(by) == 1 else f"{lexicon.number(abs(by))} years")
        return "{p} is {gap} older than {q}.", "{q} is {gap} younger than {p}."

    def facts(label: str) -> None:
        c, d = t.person(), t.person()
        plans: list[Plan] = []
        for by in (-3, -2, -1, 1, 2, 3):  # years that a is older than c
            for wrong in sorted({2 * by, -1, 1, 2, -2}) if label == "not_entailment" else (0,):
                pair = ((age, c, n - by + wrong), (apart, a, by, c))
                plans += [pair, pair[::-1]]
        others = [(d, far, one) for far in (-4, -3, -2, -1, 1, 2, 3, 4) for one in (a, c)]
        both = Thread(equal(plans), lambda event: event[0](*event[1:]))
        t.weave(both, fact(apart, *others), *hobby(t, d))

    return facts


FAMILIES = {relatives: 5.0, ages: 4.0, years: 3.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the facts; the label."""
    t = Scene(teller)
    facts = teller.choose(list(FAMILIES), list(FAMILIES.values()))(t)
    label = teller.choose(LABELS)
    t.premise()
    facts(label)
    return label


KINSHIP = Table(
    "kinship",
    ("premise", "hypothesis"),
    ("hypothesis", "premise"),
    LABELS,
    row,
    train_size=400,
    test_size=400,
    seed=7,
)


def limits() -> dict[str, dict[str, Any]]:
    """What is known of each file: see labelled.py."""
    return {name: limit for name, _, limit in KINSHIP.files()}


if __name__ == "__main__":
    KINSHIP.write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
