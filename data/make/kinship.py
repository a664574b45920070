"""kinship.csv: two-way entailment in another part of the world: who is related to whom, and who is how old.

As in entailment.csv the statement is drawn first, then the label, and then facts of which the statement surely follows
(entailment) or does not (not_entailment: it is false, or may be either).
"""

import functools
from collections.abc import Callable, Sequence

import lexicon
from choice import Teller
from labelled import Table
from lexicon import SEX, Number
from scene import Event, Plan, Scene, weigh_equally
from telling import Lazy
from words import load, table
from world import Person

LABELS = ("entailment", "not_entailment")
WORDS = load("kinship")
RELATIONS = {row.kind: row for row in table(WORDS["relations"])}
KIND_OF = {word: row.kind for row in RELATIONS.values() for word in (row.he, row.she)}
COMPOSED = {(row.first, row.second): row.whole for row in table(WORDS["composed"])}

# Signs: older (1), of the same age (0) or younger (-1). Who is older is said of a and c, and of c and b.
AGES = {
    "entailment": ((1, 1), (1, 1), (1, 0), (0, 1)),
    "not_entailment": ((1, -1), (-1, 1), (-1, -1), (0, -1), (-1, 0)),
}


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


def word_for(relation: str, person: Person) -> Lazy:
    """What somebody is to another, as a word that fits the sex."""
    return Lazy(lambda: [getattr(RELATIONS[relation], person.sex or "he")])


def ways(t: Scene, told: Plan) -> list[str]:
    """Sets the slots for the last fact told, and returns the templates for it."""
    kind, person, *more = told[-1]
    t.set(p=person)
    if kind in ("older", "older or parent", "apart"):
        by, other = more
        if by == 0:
            t.set(q=other)
            return t.templates("twins")
        older, younger = (person, other) if by > 0 else (other, person)
        t.set(p=older, q=younger, gap="a year" if abs(by) == 1 else f"{lexicon.number(abs(by))} years")
        if kind != "older or parent":
            return t.templates(kind)
        return t.templates("older") + ways(t, (("link", older, "parent", younger),))
    if kind == "link":
        relation, other = more
        t.set(q=other, k=word_for(relation, person), l=word_for(RELATIONS[relation].converse, other))
    elif kind == "age":
        t.set(n=Number(more[0]))
    return t.templates(kind)


def weave(t: Scene, *threads: Sequence[Plan]) -> None:
    """Tell the facts of each thread, one of whose plans holds."""
    t.weave(*[(weigh_equally(plans), functools.partial(ways, t)) for plans in threads])


def single_facts(*events: Event) -> list[Plan]:
    """Plans of a single fact."""
    return [(event,) for event in events]


def perhaps(t: Scene, kind: str, *people: Person) -> list[list[Plan]]:
    """With probability 0.4, a thread that says something else of one of them."""
    return [single_facts(*[(kind, person) for person in people])] if t.chance(0.4) else []


def relatives(t: Scene) -> str:
    """Who is whose uncle."""
    a, b = t.new_people(2)
    kinds = sorted(set(COMPOSED.values()))
    t.set(a=a, b=b, r=Lazy(lambda: [getattr(RELATIONS[kind], a.sex or "he") for kind in kinds]))
    t.say("{a} is {b}'s {r}.")
    label = t.draw_label(LABELS)
    pairs = links(KIND_OF[t["r"]], label)
    married = [pair.index("spouse") if "spouse" in pair else None for pair in pairs]
    # who is married shows in a name long before it is said, so it is drawn apart from the rest
    which = t.choose((None, 0, 1), [float(married.count(index)) for index in (None, 0, 1)])
    partner = None if which is None else (a, b)[which]
    c = Person(t.name_of("c", lambda name: partner is None or SEX[name] != partner.sex))
    plans: list[Plan] = []
    for (first, second), index in zip(pairs, married, strict=True):
        if index == which:
            plan = (("link", a, first, c), ("link", c, second, b))
            plans += [plan, plan[::-1]]
    [other] = t.new_people(1)  # from what the other is to the family nothing follows for them
    others = single_facts(*[("link", other, kind, one) for kind in ("child", "nephew", "uncle") for one in (a, b, c)])
    weave(t, plans, others, *perhaps(t, "work", a, b, c))
    return label


def ages(t: Scene) -> str:
    """Who is older."""
    a, b = t.new_people(2)
    t.set(a=a, b=b)
    right = t.fork([(1.0, "{a} is older than {b}.", "1"), (1.0, "{a} is younger than {b}.", "-1")])
    label = t.draw_label(LABELS)
    c, d = t.new_people(2)
    first, second = (int(right) * sign for sign in t.choose(AGES[label]))
    others = single_facts(*[("older", d, sign, one) for sign in (1, -1) for one in (a, b, c)])
    deciding = single_facts(("older or parent", a, first, c)), single_facts(("older", c, second, b))
    weave(t, *deciding, others, *perhaps(t, "work", a, b, c, d))
    return label


def years(t: Scene) -> str:
    """How old somebody is."""
    [a] = t.new_people(1)
    t.set(a=a, n=Lazy([Number(n) for n in range(7, 16)]))
    t.say("{a} is {n} years old.")
    n, label = int(t["n"]), t.draw_label(LABELS)
    c, d = t.new_people(2)
    plans: list[Plan] = []
    for by in (-3, -2, -1, 1, 2, 3):  # years that a is older than c
        for wrong in sorted({2 * by, -1, 1, 2, -2}) if label == "not_entailment" else (0,):
            plan = (("age", c, n - by + wrong), ("apart", a, by, c))
            plans += [plan, plan[::-1]]
    others = single_facts(*[("apart", d, by, one) for by in (-4, -3, -2, -1, 1, 2, 3, 4) for one in (a, c)])
    weave(t, plans, others, *perhaps(t, "hobby", d))
    return label


def row(teller: Teller) -> str:
    """Write the statement, a line end and the facts; the label."""
    t = Scene(teller, WORDS)
    t.set(trade=Lazy(lexicon.TRADES, "zipf"))
    family: Callable[[Scene], str] = teller.choose((relatives, ages, years), (5.0, 4.0, 3.0))
    return family(t)


KINSHIP = Table("kinship", ("premise", "hypothesis"), LABELS, row, train_size=400, test_size=400)
