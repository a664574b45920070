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
from typing import Any

from choice import Teller
from labelled import Table
from lexicon import DAYS, TREASURES, Number, plural
from scene import Event, Plan, Scene, Ways, Weighed, new_things, weigh_equally
from telling import Lazy, distinct
from words import before, load, table
from world import PLACES, Person

LABELS = ("entailment", "neutral", "contradiction")
OPPOSITE = {"entailment": "contradiction", "neutral": "neutral", "contradiction": "entailment"}
WORDS, THINGS = load("entailment"), load("things")
ROLES = (0, 1, 2)

Outcome = tuple[Plan, Sequence[Any]]  # a plan and the worlds that are possible after it
Sorted = dict[str, list[Plan]]


def simulate_courses(
    firsts: Sequence[tuple[Event, Any]], events: Sequence[Event], step: Callable[[Any, Event], Sequence[Any]]
) -> list[Outcome]:
    """All courses of two or three events; firsts are events with the world after them.

    step(world, event): the worlds that are possible after an event, none if it cannot happen. If there are several, it
    is the last event.
    """
    found: list[Outcome] = []

    def go_on(plan: Plan, world: Any) -> None:
        for event in events:
            if worlds := step(world, event):
                found.append(((*plan, event), worlds))
                if len(worlds) == 1 and len(plan) == 1:
                    go_on((*plan, event), worlds[0])

    for first, world in firsts:
        go_on((first,), world)
    return found


def sort_by_label(outcomes: Iterable[Outcome], is_so: Callable[[Any], bool] = bool) -> Sorted:
    """Plans by label: is_so(world) says whether the statement is true in a world."""
    found: Sorted = {label: [] for label in LABELS}
    for plan, worlds in outcomes:
        truths = {is_so(world) for world in worlds}
        found["neutral" if len(truths) == 2 else "entailment" if truths == {True} else "contradiction"].append(plan)
    return found


def naming_0(plans: Sequence[Plan]) -> list[Plan]:
    return [plan for plan in plans if any(0 in event[1:] for event in plan)]


def weigh_misleading(plans: Sorted, label: str) -> Weighed:
    """The shortest plans for another thread than that which decides the label: often open where that one is not."""
    shares = (2.0, 1.0, 2.0) if label == "neutral" else (1.0, 8.0, 1.0)
    found: Weighed = []
    for other, share in zip(LABELS, shares, strict=True):
        least = min(map(len, plans[other]))
        shortest = [plan for plan in plans[other] if len(plan) == least]
        found += [(plan, share / sum(shares) / len(shortest)) for plan in shortest]
    return found


def tell_threads(t: Scene, says: str, plans: Sorted, label: str, *threads: Ways) -> str:
    """Tell what gives the label to a statement that says yes or no, and beside it what misleads, if there is a second.

    Returns the label.
    """
    decisive = weigh_equally(plans[label if says == "yes" else OPPOSITE[label]])
    t.weave(*zip((decisive, weigh_misleading(plans, label)), threads, strict=False))
    return label


def transfer(world: tuple[int, int], event: Event) -> list[tuple[int, int]]:
    """What (holder, owner) of a thing may be after an event. Only who owns a thing lends, gives or passes it on."""
    (holder, owner), (kind, who, *to) = world, event
    if who != holder or holder in to:
        return []
    match kind, *to:
        case "return" | "lend", other:
            return [(other, owner)] if (other == owner) == (kind == "return") else []
        case "give", other if who == owner:
            return [(other, other)]
        case "let have", other if who == owner:  # as a gift or as a loan
            return [(other, owner), (other, other)]
        case ("pass on",) if who == owner:  # to one of the two others, who is not named
            return [(other, other) for other in ROLES if other != who]
    return []


@functools.cache
def hand_plans(asked: str) -> Sorted:
    """By whether person 0 has the thing, or owns it."""
    pairs = [(who, other) for other in ROLES for who in ROLES]
    events: list[Event] = [("return", *pair) for pair in pairs]
    events += [(kind, *pair) for pair in pairs for kind in ("give", "lend", "let have")]
    events += [("pass on", who) for who in ROLES]
    every = simulate_courses([(("have", who), (who, who)) for who in ROLES], events, transfer)
    found = sort_by_label(every, lambda world: world[asked == "owns"] == 0)
    return {label: naming_0(plans) for label, plans in found.items()}


def hands(t: Scene) -> str:
    """Who has what, and whose it is."""
    people, (thing, other) = t.new_people(3), new_things(2, TREASURES)
    t.set(a=people[0], x=thing)
    asked, says = t.make_claim()
    label = t.draw_label(LABELS)
    shuffled = t.choose((people, [people[1], people[0], people[2]]))
    t.set(**dict(zip("uvw", t.choose(list(itertools.permutations(people))), strict=True)))
    t.say("{u}, {v} and {w} were <friends|neighbours|cousins|at school together>.")

    def kind_of(told: Plan) -> str:
        *past, (kind, who, *_) = told
        owner = [to for before, *_, to in past if before in ("have", "give")][-1:]
        return "relend" if kind == "lend" and owner != [who] else kind

    own = t.thread_ways("pq", people.__getitem__, kind_of, x=thing)
    return tell_threads(
        t, says, hand_plans(asked), label, own, t.thread_ways("pq", shuffled.__getitem__, kind_of, x=other)
    )


def move(world: tuple[int, int, bool], event: Event) -> list[tuple[int, int, bool]]:
    """Where a person and a thing may be after an event, and whether it is still carried; 3 is a place not named."""
    (here, there, carried), (kind, *to) = world, event
    leaves = kind.startswith("leave")
    if here in to or (leaves and not carried):
        return []
    carried &= not leaves
    return [(other, other if carried else there, carried) for other in to or (*ROLES, 3) if other != here]


@functools.cache
def site_plans(asked: str) -> Sorted:
    """By whether the person is in place 0, or the thing."""
    events: list[Event] = [(kind, to) for to in ROLES for kind in ("go", "leave and go")]
    events += [("vanish",), ("leave and vanish",)]
    every = simulate_courses([(("begin", here), (here, here, True)) for here in ROLES], events, move)
    found = sort_by_label(every, lambda world: world[asked == "thing"] == 0)
    return found | {"contradiction": naming_0(found["contradiction"])}


def places(t: Scene) -> str:
    """Who is where, and what."""
    people, carried, site = t.new_people(2), new_things(2, TREASURES), distinct(PLACES)
    t.set(a=people[0], x=carried[0], l=site(0))
    asked, says = t.make_claim()

    def kind_of(told: Plan) -> str:
        return "bare " * any("leave" in kind for kind, *_ in told[:-1]) + told[-1][0]

    threads = [t.thread_ways("l", site, kind_of, p=p, x=x) for p, x in zip(people, carried, strict=True)]
    return tell_threads(t, says, site_plans(asked), t.draw_label(LABELS), *threads)


MOST = 14
CHANGES = {"more": 1, "less": -1, "some more": 1, "some less": -1}


def change(world: tuple[int, Event], event: Event, few: range) -> list[tuple[int, Event]]:
    """What the number of things may be after an event, and that event. An amount of 0 is "a few"."""
    (now, last), (kind, n) = world, event
    if n == 0:
        left = [now + CHANGES[kind] * m for m in few]
        return [(m, event) for m in left if m >= 1] if kind == "some more" or now > 4 else []
    left = now + CHANGES[kind] * n
    is_new = last[0] == "begin" or (kind != last[0] and n != last[1])
    return [(left, event)] if is_new and 1 <= left <= MOST else []


@functools.cache
def count_plans(relation: str, n: int) -> Sorted:
    """By whether the number at the end is n ("exactly"), more than n, or fewer than n.

    Plans are left out whose label would change if "a few" were taken to mean almost anything.
    """
    events: list[Event] = [(kind, m) for kind in ("more", "less") for m in range(1, 7)]
    events += [("some more", 0)] * 4 + [("some less", 0)] * 4
    firsts = [(("begin", first), (first, ("begin", first))) for first in range(2, 13)]
    narrow, wide = (simulate_courses(firsts, events, partial(change, few=few)) for few in (range(2, 5), range(1, 9)))
    is_so = {"exactly": n.__eq__, "more": n.__lt__, "fewer": n.__gt__}[relation]
    truths = [[{is_so(m) for m, _ in worlds} for _, worlds in outcomes] for outcomes in (narrow, wide)]
    clear = [outcome for outcome, one, other in zip(narrow, *truths, strict=True) if one == other]
    found = sort_by_label(clear, lambda world: is_so(world[0]))
    near = {plan for plan, worlds in clear if abs(min(worlds)[0] - n) <= 4}
    return found | {"contradiction": [plan for plan in found["contradiction"] if plan in near]}


def counts(t: Scene) -> str:
    """How many there are."""
    people, goods = t.new_people(3), {plural(good): good for good in THINGS["goods"]}
    goods_of = distinct(list(goods))
    t.set(a=people[0], n=Lazy([Number(n) for n in range(3, 11)]), xs=goods_of(people[0]))
    [relation] = t.make_claim()
    n, label = int(t["n"]), t.draw_label(LABELS)

    def ways(person: Person, told: Plan) -> list[str]:
        kind, amount = told[-1]
        what = goods_of(person)
        t.set(p=person, q=people[2], n=Number(amount), xs=goods[what.value] if amount == 1 else what)
        return t.templates(kind)

    misled = weigh_misleading(count_plans("exactly", n), label)
    t.weave(
        (weigh_equally(count_plans(relation, n)[label]), partial(ways, people[0])), (misled, partial(ways, people[1]))
    )
    return label


FRAGILE = {noun: before(looks) for noun, looks in THINGS["fragile"].items()}
BOTH = (True, False)
BREAKING = {("fall",): (False, BOTH), ("break",): (False, [True]), ("try",): (True, BOTH), ("mend",): (True, [False])}


def break_or_mend(is_broken: bool, event: Event) -> Sequence[bool]:
    """Whether a thing may be broken after an event."""
    before, after = BREAKING[event]
    return after if is_broken == before else []


@functools.cache
def break_plans() -> Sorted:
    """By whether the thing is broken at the end."""
    firsts = [(("whole",), False), (("begin broken",), True)]
    return sort_by_label(simulate_courses(firsts, list(BREAKING), break_or_mend))


def breakage(t: Scene) -> str:
    """What is broken."""
    (one, other), (thing, second) = t.new_people(2), new_things(2, FRAGILE)
    t.set(x=thing)
    [says] = t.make_claim()
    threads = t.thread_ways(p=one, q=other, x=thing), t.thread_ways(p=other, q=one, x=second)
    return tell_threads(t, says, break_plans(), t.draw_label(LABELS), *threads)


@functools.cache
def belief_plans(asked: str) -> Sorted:
    """By where the thing is at the end (asked "is"), or where person 0 thinks it is ("thinks"): in spot 0 or not.

    Person 1 hides it in one spot, and moves it to another while person 0 is there, away, or perhaps looking.
    """
    found: list[Outcome] = []
    for first, second in ((0, 1), (1, 0)):  # a statement always names one of the two
        for plan, thought in (
            ((("watch",), ("move", second)), [second]),
            ((("leave",), ("move", second)), [first]),
            ((("leave",), ("move", second), ("return",)), [first]),
            ((("leave",), ("move", second), ("told", second)), [second]),
            ((("leave",), ("move", second), ("peep",)), [first, second]),
            ((("leave",), ("move perhaps", second), ("return",)), [first]),
        ):
            real = [first, second] if ("move perhaps", second) in plan else [second]
            found.append(((("hide", first), *plan), real if asked == "is" else thought))
    return sort_by_label(found, lambda spot: spot == 0)


def beliefs(t: Scene) -> str:
    """Who believes what."""
    (one, other), spot = t.new_people(2), distinct(THINGS["spots"])
    t.set(a=one, x=Lazy(THINGS["small"]), s=spot(0))
    asked, says = t.make_claim()
    return tell_threads(t, says, belief_plans(asked), t.draw_label(LABELS), t.thread_ways("s", spot, p=one, q=other))


@functools.cache
def promise_plans() -> Sorted:
    """By whether what was promised on Monday for one day (2 to 5, Monday is 0) was done by then."""
    found: list[Outcome] = []
    for due in range(2, 6):
        found += [((("promise", due), ("do", done)), [done <= due]) for done in range(1, 7)]
        found += [((("promise", due), (unknown,)), BOTH) for unknown in ("someday", "hearsay")]
    return sort_by_label(found)


def promises(t: Scene) -> str:
    """Whether a promise was kept."""
    one, other, third = t.new_people(3)
    task = distinct(table(WORDS["tasks"]))
    t.set(a=one)
    [says] = t.make_claim()
    threads = [t.thread_ways("d", DAYS.__getitem__, p=p, q=third, task=task(p)) for p in (one, other)]
    return tell_threads(t, says, promise_plans(), t.draw_label(LABELS), *threads)


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
    found: list[Outcome] = []
    for three in itertools.permutations(pairs, 3):
        plan = tuple(("compare", *pair) for pair in three)
        if len(reachable((*plan, *(("compare", second, first) for first, second in three)), 0)) == 4:
            found.append((plan, [True] if 1 in reachable(plan, 0) else [False] if 0 in reachable(plan, 1) else BOTH))
    return sort_by_label(found)


def arrivals(t: Scene) -> str:
    """Who came first."""
    people = t.new_people(4)
    t.set(a=people[0], b=people[1], order=Lazy(table(WORDS["orders"])))
    [says] = t.make_claim()
    label = t.draw_label(LABELS)
    t.set(**dict(zip("wxyz", t.choose(list(itertools.permutations(people))), strict=True)))
    t.say("{w}, {x}, {y} and {z} {order.begin}.")
    return tell_threads(t, says, order_plans(), label, t.thread_ways("pq", people.__getitem__))


FAMILIES = {hands: 3.0, places: 4.0, counts: 4.0, breakage: 3.0, beliefs: 3.0, promises: 3.0, arrivals: 4.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the story; the label."""
    family = teller.choose(list(FAMILIES), list(FAMILIES.values()))
    return family(Scene(teller, WORDS[family.__name__]))


ENTAILMENT = Table("entailment", ("premise", "hypothesis"), LABELS, row, train_size=4000, test_size=1000)
