"""entailment.csv: a short story, and a statement about how things are at its end (see scene.py).

After the story the statement is true (entailment), false (contradiction), or may be either (neutral). One of its two
threads, each of which follows one thing (or person, or promise), decides that; the other is there to mislead. What a
thread can tell is worked out from the world: all its courses of events are simulated, and sorted by whether the
statement is then true in all worlds that are still possible, in none, or in some.

In an event people, places and the like are numbers, where 0 is what the statement names. words/entailment.yaml has the
ways of telling each kind of event.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from choice import Teller
from labelled import Table
from lexicon import DAYS, TREASURES, Number, plural
from scene import Event, Plan, Scene, Weighed, distinct, equal
from telling import Lazy
from words import before, load, table
from world import PLACES, Person, Thing

LABELS = ("entailment", "neutral", "contradiction")
OPPOSITE = {"entailment": "contradiction", "neutral": "neutral", "contradiction": "entailment"}
WORDS, THINGS = load("entailment"), load("things")
ROLES = (0, 1, 2)

Sorted = dict[str, list[Plan]]


def courses(firsts: Sequence[Event], after: Callable[[Plan], list[Event]]) -> list[Plan]:
    """All courses of two or three events; after(plan) is what can come next."""
    found: list[Plan] = []
    for first in firsts:
        for second in after((first,)):
            found.append((first, second))
            found += [(first, second, third) for third in after((first, second))]
    return found


def sort(worlds: Iterable[tuple[Plan, Iterable[bool]]]) -> Sorted:
    """Plans by label, from whether the statement is true in each of the worlds that are possible after a plan."""
    found: Sorted = {label: [] for label in LABELS}
    for plan, outcomes in worlds:
        is_so = set(outcomes)
        found["neutral" if len(is_so) == 2 else "entailment" if is_so == {True} else "contradiction"].append(plan)
    return found


def naming_0(plans: Sequence[Plan]) -> list[Plan]:
    return [plan for plan in plans if any(0 in event[1:] for event in plan)]


def deciding(plans: Sorted, label: str, says: str) -> Weighed:
    """The plans that give the label to a statement that says yes or no."""
    return equal(plans[label if says == "yes" else OPPOSITE[label]])


def misleading(plans: Sorted, label: str) -> Weighed:
    """The shortest plans for another thread than that which decides the label: often open where that one is not."""
    shares = (2.0, 1.0, 2.0) if label == "neutral" else (1.0, 8.0, 1.0)
    found: Weighed = []
    for other, share in zip(LABELS, shares, strict=True):
        least = min(map(len, plans[other]))
        shortest = [plan for plan in plans[other] if len(plan) == least]
        found += [(plan, share / sum(shares) / len(shortest)) for plan in shortest]
    return found


# --- who has it, whose it is ----------------------------------------------------------------------------------------


def owners(plan: Plan) -> list[tuple[int, int]]:
    """All (holder, owner) that are possible at the end of a plan of transfers."""
    states = [(-1, -1)]
    for kind, who, *rest in plan:
        to = rest[0] if rest else who
        match kind:
            case "have" | "give":
                states = [(to, to)]
            case "lend":
                states = [(to, owner) for _, owner in states]
            case "return":
                states = [(owner, owner) for _, owner in states]
            case "pass on":  # to one of the two others, who is not named
                states = [(other, other) for other in ROLES if other != who]
            case "let have":  # as a gift or as a loan
                states = [*((to, owner) for _, owner in states), (to, to)]
    return states


def transfers(plan: Plan) -> list[Event]:
    """What can happen next to a thing in three hands. Only who owns a thing lends, gives or passes it on."""
    (holder, owner), *more = owners(plan)
    others = [other for other in ROLES if other != holder]
    if more:
        return []
    if holder != owner:
        return [("return", holder, owner), ("lend", holder, next(other for other in others if other != owner))]
    ways = [(kind, holder, other) for other in others for kind in ("give", "lend", "let have")]
    return [*ways, ("pass on", holder)]


@functools.cache
def hand_plans(asked: str) -> Sorted:
    """By whether person 0 has the thing, or owns it."""
    every = courses([("have", first) for first in ROLES], transfers)
    found = sort((plan, [state[asked == "owns"] == 0 for state in owners(plan)]) for plan in every)
    return {label: naming_0(plans) for label, plans in found.items()}


def hands(t: Scene) -> str:
    people = [t.person() for _ in ROLES]
    thing, other = t.item(TREASURES), t.item(TREASURES)
    t.set(a=people[0], x=thing)
    asked, says = t.claim()
    plans, label = hand_plans(asked), t.label(LABELS)

    def ways(thing: Thing, people: Sequence[Person], told: Plan) -> list[str]:
        *past, (kind, *roles) = told
        t.set(x=thing, **{slot: people[role] for slot, role in zip("pq", roles, strict=False)})
        return t.ways("relend" if kind == "lend" and owners(tuple(past)) != [(roles[0], roles[0])] else kind)

    shuffled = t.choose((people, [people[1], people[0], people[2]]))
    t.set(**dict(zip("uvw", t.choose(list(itertools.permutations(people))), strict=True)))
    t.say("{u}, {v} and {w} were <friends|neighbours|cousins|at school together>.")
    decides = (deciding(plans, label, says), partial(ways, thing, people))
    t.weave(decides, (misleading(plans, label), partial(ways, other, shuffled)))
    return label


# --- who is where ---------------------------------------------------------------------------------------------------


def moves(plan: Plan) -> list[Event]:
    """Where a person (with a thing) can go next, of places 0, 1, 2."""
    _, *here = plan[-1]
    if not here:
        return []
    leaves = ["", "leave and "] if not any("leave" in event[0] for event in plan) else [""]
    found: list[Event] = [(f"{leave}go", there) for there in ROLES if there != here[0] for leave in leaves]
    return found + [(f"{leave}vanish",) for leave in leaves]


def sites(plan: Plan) -> list[tuple[int, int]]:
    """All (place of the person, place of the thing) that are possible; 3 is a place without a number."""
    here, there, has = 0, 0, True
    for kind, *rest in plan:
        has &= "leave" not in kind
        if "vanish" in kind:
            return [(other, other if has else there) for other in (*ROLES, 3) if other != here]
        here = rest[0]
        there = here if has else there
    return [(here, there)]


@functools.cache
def site_plans(asked: str) -> Sorted:
    """By whether the person is in place 0, or the thing."""
    every = courses([("begin", here) for here in ROLES], moves)
    found = sort((plan, [state[asked == "thing"] == 0 for state in sites(plan)]) for plan in every)
    return found | {"contradiction": naming_0(found["contradiction"])}


def places(t: Scene) -> str:
    people, things = (t.person(), t.person()), (t.item(TREASURES), t.item(TREASURES))
    site = distinct(PLACES)
    t.set(a=people[0], x=things[0], l=site(0))
    asked, says = t.claim()
    plans, label = site_plans(asked), t.label(LABELS)

    def ways(person: Person, thing: Thing, told: Plan) -> list[str]:
        *past, (kind, *roles) = told
        t.set(p=person, x=thing)
        if roles:
            t["l"] = site(roles[0])
        return t.ways(f"bare {kind}" if any("leave" in before for before, *_ in past) else kind)

    decides = (deciding(plans, label, says), partial(ways, people[0], things[0]))
    t.weave(decides, (misleading(plans, label), partial(ways, people[1], things[1])))
    return label


# --- how many -------------------------------------------------------------------------------------------------------

MOST = 14
CHANGES = {"more": 1, "less": -1, "some more": 1, "some less": -1}


def amounts(plan: Plan, few: range) -> set[int]:
    """All numbers that are possible at the end, if "a few" (an amount of 0) are so many."""
    (_, first), *changes = plan
    now = {first}
    for kind, n in changes:
        left = {old + CHANGES[kind] * m for old in now for m in (few if n == 0 else [n])}
        now = {m for m in left if m >= 1} if kind == "some less" else left
    return now


def changes(plan: Plan) -> list[Event]:
    """How a number of things can change next."""
    last, n = plan[-1]
    if last.startswith("some"):
        return []
    [now] = amounts(plan, range(0))
    found = [(kind, m) for kind in ("more", "less") for m in range(1, 7) if 1 <= now + CHANGES[kind] * m <= MOST]
    found = [(kind, m) for kind, m in found if (kind != last and m != n) or last == "begin"]
    return [*found, *[("some more", 0)] * 4, *[("some less", 0)] * 4 * (now > 4)]


@functools.cache
def count_plans(relation: str, n: int) -> Sorted:
    """By whether the number at the end is n ("exactly"), more than n, or fewer than n.

    Plans are left out whose label would change if "a few" were taken to mean almost anything.
    """
    is_so = {"exactly": n.__eq__, "more": n.__lt__, "fewer": n.__gt__}[relation]
    worlds = []
    for plan in courses([("begin", first) for first in range(2, 13)], changes):
        narrow, wide = ({is_so(last) for last in amounts(plan, few)} for few in (range(2, 5), range(1, 9)))
        if narrow == wide:
            worlds.append((plan, narrow))
    found = sort(worlds)
    near = [plan for plan in found["contradiction"] if abs(min(amounts(plan, range(2, 5))) - n) <= 4]
    return found | {"contradiction": near}


def counts(t: Scene) -> str:
    people = [t.person() for _ in ROLES]
    goods = {plural(good): good for good in THINGS["goods"]}
    goods_of = distinct(list(goods))
    t.set(a=people[0], n=Lazy([Number(n) for n in range(3, 11)]), xs=goods_of(people[0]))
    [relation] = t.claim()
    n, label = int(t["n"]), t.label(LABELS)

    def ways(person: Person, told: Plan) -> list[str]:
        kind, amount = told[-1]
        what = goods_of(person)
        t.set(p=person, q=people[2], n=Number(amount), xs=goods[what.value] if amount == 1 else what)
        return t.ways(kind)

    decides = (equal(count_plans(relation, n)[label]), partial(ways, people[0]))
    t.weave(decides, (misleading(count_plans("exactly", n), label), partial(ways, people[1])))
    return label


# --- what is broken -------------------------------------------------------------------------------------------------

FRAGILE = {noun: before(looks) for noun, looks in THINGS["fragile"].items()}
UNKNOWN = {True, False}
BROKEN = {"whole": {False}, "begin broken": {True}, "break": {True}, "mend": {False}, "try": UNKNOWN, "fall": UNKNOWN}


@functools.cache
def break_plans() -> Sorted:
    """By whether the thing is broken at the end."""

    def after(plan: Plan) -> list[Event]:
        is_broken = BROKEN[plan[-1][0]]
        if is_broken == UNKNOWN:
            return []
        return [("mend",), ("try",)] if is_broken == {True} else [("break",), ("fall",)]

    every = courses([("whole",), ("begin broken",)], after)
    every.sort(key=lambda plan: (plan[0] != ("whole",), len(plan)))
    return sort((plan, BROKEN[plan[-1][0]]) for plan in every)


def breakage(t: Scene) -> str:
    people, things = (t.person(), t.person()), (t.item(FRAGILE), t.item(FRAGILE))
    t.set(x=things[0])
    [says] = t.claim()
    plans, label = break_plans(), t.label(LABELS)

    def ways(thing: Thing, one: Person, other: Person, told: Plan) -> list[str]:
        t.set(p=one, q=other, x=thing)
        return t.ways(told[-1][0])

    decides = (deciding(plans, label, says), partial(ways, things[0], *people))
    t.weave(decides, (misleading(plans, label), partial(ways, things[1], *people[::-1])))
    return label


# --- who believes what ----------------------------------------------------------------------------------------------


@functools.cache
def belief_plans(asked: str) -> Sorted:
    """By where the thing is at the end (asked "is"), or where person 0 thinks it is ("thinks"): in spot 0 or not.

    Person 1 hides it in one spot, and moves it to another while person 0 is there, away, or perhaps looking.
    """
    worlds: dict[Plan, set[bool]] = {}
    for first, second in ((0, 1), (1, 0)):  # a statement always names one of the two
        for plan, thought in (
            ((("watch",), ("move", second)), {second}),
            ((("leave",), ("move", second)), {first}),
            ((("leave",), ("move", second), ("return",)), {first}),
            ((("leave",), ("move", second), ("told", second)), {second}),
            ((("leave",), ("move", second), ("peep",)), {first, second}),
            ((("leave",), ("move perhaps", second), ("return",)), {first}),
        ):
            real = {first, second} if ("move perhaps", second) in plan else {second}
            worlds[("hide", first), *plan] = {spot == 0 for spot in (real if asked == "is" else thought)}
    return sort(worlds.items())


def beliefs(t: Scene) -> str:
    people = [t.person(), t.person()]
    spot = distinct(THINGS["spots"])
    t.set(a=people[0], x=t.item({noun: [""] for noun in THINGS["small"]}), s=spot(0))
    asked, says = t.claim()
    label = t.label(LABELS)
    t.set(p=people[0], q=people[1])

    def ways(told: Plan) -> list[str]:
        kind, *roles = told[-1]
        if roles:
            t["s"] = spot(roles[0])
        return t.ways(kind)

    t.weave((deciding(belief_plans(asked), label, says), ways))
    return label


# --- whether a promise was kept -------------------------------------------------------------------------------------


@functools.cache
def promise_plans() -> Sorted:
    """By whether what was promised on Monday for one day (2 to 5, Monday is 0) was done by then."""
    worlds: dict[Plan, set[bool]] = {}
    for due in range(2, 6):
        worlds |= {(("promise", due), ("do", done)): {done <= due} for done in range(1, 7)}
        worlds |= {(("promise", due), (unknown,)): UNKNOWN for unknown in ("someday", "hearsay")}
    return sort(worlds.items())


def promises(t: Scene) -> str:
    people = [t.person() for _ in ROLES]
    task = distinct(table(WORDS["tasks"]))
    t.set(a=people[0])
    [says] = t.claim()
    plans, label = promise_plans(), t.label(LABELS)

    def ways(person: Person, told: Plan) -> list[str]:
        kind, *days = told[-1]
        t.set(p=person, q=people[2], d=DAYS[days[0]] if days else "", task=task(person))
        return t.ways(kind)

    decides = (deciding(plans, label, says), partial(ways, people[0]))
    t.weave(decides, (misleading(plans, label), partial(ways, people[1])))
    return label


# --- who came first -------------------------------------------------------------------------------------------------


def reachable(plan: Plan, start: int) -> set[int]:
    """Who comes after start by the comparisons of the plan, and start."""
    seen = {start}
    for _ in plan:
        seen |= {second for _, first, second in plan if first in seen}
    return seen


@functools.cache
def order_plans() -> Sorted:
    """Three comparisons that link four people, by whether person 0 comes before person 1; none compares these two."""
    pairs = [pair for pair in itertools.permutations(range(4), 2) if set(pair) != {0, 1}]
    worlds: dict[Plan, set[bool]] = {}
    for three in itertools.permutations(pairs, 3):
        plan = tuple(("compare", *pair) for pair in three)
        if len(reachable((*plan, *(("compare", second, first) for first, second in three)), 0)) == 4:
            worlds[plan] = {True} if 1 in reachable(plan, 0) else {False} if 0 in reachable(plan, 1) else UNKNOWN
    return sort(worlds.items())


def arrivals(t: Scene) -> str:
    people = [t.person() for _ in range(4)]
    t.set(a=people[0], b=people[1], order=Lazy(table(WORDS["orders"])))
    [says] = t.claim()
    label = t.label(LABELS)

    def ways(told: Plan) -> list[str]:
        kind, first, second = told[-1]
        t.set(p=people[first], q=people[second])
        return t.ways(kind)

    t.set(**dict(zip("wxyz", t.choose(list(itertools.permutations(people))), strict=True)))
    t.say("{w}, {x}, {y} and {z} {order.begin}.")
    t.weave((deciding(order_plans(), label, says), ways))
    return label


FAMILIES = {hands: 3.0, places: 4.0, counts: 4.0, breakage: 3.0, beliefs: 3.0, promises: 3.0, arrivals: 4.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the story; the label."""
    family = teller.choose(list(FAMILIES), list(FAMILIES.values()))
    return family(Scene(teller, WORDS[family.__name__]))


ENTAILMENT = Table("entailment", ("premise", "hypothesis"), LABELS, row, train_size=4000, test_size=1000)
