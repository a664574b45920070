"""kinship.csv: two-way entailment in another part of the world: who is related to whom, and who is how old.

As in entailment.csv the statement is drawn first, then the label, then a family of which the statement is surely true
(entailment) or is not (not_entailment: it is false, or may be either).

    python data/make/entailment_kinship.py [FOLDER]      writes kinship.csv and kinship.test.csv
"""

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lexicon
from choice import Teller
from entailment_hands import N
from entailment_scene import Scene
from labelled import Table
from telling import Lazy

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
CONVERSE = {"parent": "child", "child": "parent", "sibling": "sibling", "spouse": "spouse", "uncle": "nephew", "nephew": "uncle"}
OLDER = {"parent", "grandparent"}  # than their own

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
    turned = [(second, first) for first, second in true] + [(CONVERSE[first], CONVERSE[second]) for first, second in true]
    near = [pair for pair in turned if pair in COMPOSED and COMPOSED[pair] != relation]
    return near * 2 + [pair for pair, composed in COMPOSED.items() if composed != relation]


def sexed(relation: str, person: Any) -> str:
    return WORDS[relation][person.sex == "she"]


class Kin:
    """A relation as it is written of somebody: {k} is "mother" or "father"."""

    def __init__(self, relation: str, person: Any) -> None:
        self.relation, self.person = relation, person

    def render(self, form: str, said: dict[str, Any]) -> Any:
        if self.person.sex is None:
            return self.person.field("name", visible=False)
        return sexed(self.relation, self.person)


def say_link(t: Scene, first: Any, relation: str, second: Any) -> None:
    """ "first is second's mother", or the same said of second."""
    t.set(p=first, q=second, k=Kin(relation, first), l=Kin(CONVERSE[relation], second))
    t.say("{p} is {q}'s {k}.", "{q} is {p}'s {l}.", "{q} has a {k} called {p}.", "{p} has a {l} called {q}.")


def bystander(t: Scene, family: list[Any]) -> None:
    """Say how somebody else belongs to one of the family."""
    other, near = t.person(), t.choose(family)
    say_link(t, other, t.choose(("child", "nephew", "uncle", "parent") if len(family) > 3 else ("child", "nephew", "uncle")), near)


def relatives(t: Scene) -> Callable[[str], None]:
    a, b, c = family = [t.person() for _ in range(3)]
    t.set(a=a, b=b)
    relation = Lazy(sorted(set(COMPOSED.values())))
    t["r"] = Lazy(lambda: [Named(relation, sexed(relation, a)) for relation in sorted(set(COMPOSED.values()))])
    t.say("{a} is {b}'s {r}.", "{b} is {a}'s {r}.")

    return lambda label: None
