"""entailment.csv: a short story, and a statement about how things are at its end.

A row is written backwards. First the statement is drawn, then the label, and only then a story after which the
statement is true (entailment), false (contradiction), or may be either (neutral). So every statement is as likely under
each label, and nothing can be guessed from the statement alone.

A story interleaves threads, each of which follows one thing (or person, or promise): one thread decides the label, the
other is there to mislead. What a thread can tell is worked out from the world: all its courses of events are simulated,
and sorted by whether the statement is then true in all worlds that are still possible, in none, or in some.

A family of statements is a function that writes one and returns what tells a story that fits a label. Its plans are
tuples of events, and an event is a tuple of its kind and the roles in it (people, places, numbers), where 0 is what the
statement names. words/entailment.yaml has the ways of telling each kind of event.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from choice import Teller
from labelled import Table
from lexicon import DAYS, TREASURES, Number, plural
from scene import LABELS, OPPOSITE, Event, Plan, Scene, Sorted, Thread, courses, equal, misleading, sort, verdict
from telling import Lazy
from words import before, load, table
from world import PLACES

WORDS, THINGS = load("entailment"), load("things")
ROLES = (0, 1, 2)
Tell = Callable[[str], None]


def tell(
    t: Scene, plans: Sorted, says: str, follow: Callable[..., Thread], cast: Sequence[Any], others: Callable[[], Any]
) -> Tell:
    """Tells what decides the label, with the cast, and beside it what misleads, with others, if any."""

    def story(label: str) -> None:
        threads = [follow(equal(plans[label if says == "yes" else OPPOSITE[label]]), *cast)]
        other = others()
        t.weave(*threads, *([follow(misleading(plans, label), *other)] if other else []))

    return story


# --- who has it, whose it is ----------------------------------------------------------------------------------------


def owners(plan: Plan) -> list[tuple[int, int]]:
    """All (holder, owner) that are possible at the end of a plan of transfers."""
    states = [(-1, -1)]
    for kind, who, *rest in plan:
        to = rest[0] if rest else -1
        match kind:
            case "have":
                states = [(who, who)]
            case "give":
                states = [(to, to)]
            case "lend":
                states = [(to, owner) for _, owner in states]
            case "return":
                states = [(owner, owner) for _, owner in states]
            case "pass on":  # to one of the two others, who is not named
                states = [(other, other) for other in ROLES if other != who]
            case "let have":  # as a gift or as a loan
                states = [(to, owner) for _, owner in states] + [(to, to)]
    return list(dict.fromkeys(states))


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
    found = sort(every, lambda plan: verdict(state[asked == "owns"] == 0 for state in owners(plan)))
    return {label: [plan for plan in plans if names_first(plan)] for label, plans in found.items()}


def names_first(plan: Plan) -> bool:
    return any(0 in event[1:] for event in plan)


def hands(t: Scene) -> Tell:
    cast = [t.person() for _ in ROLES]
    things = [t.item(TREASURES), t.item(TREASURES)]
    t.set(a=cast[0], x=things[0])
    asked, says = t.claim(WORDS["hands"]).split()

    def follow(plans: Any, thing: Any, people: Sequence[Any]) -> Thread:
        owner = [0]

        def ways(event: Event) -> str:
            kind, *roles = event
            t.set(x=thing, **{slot: people[role] for slot, role in zip("pq", roles, strict=False)})
            return "relend" if kind == "lend" and owner[0] != roles[0] else kind

        def told(event: Event) -> None:
            if event[0] in ("have", "give"):
                owner[0] = event[-1]

        return t.thread(plans, WORDS["hands"], ways, told)

    def others() -> tuple[Any, ...]:
        shuffled = t.choose((cast, [cast[1], cast[0], cast[2]]))
        t.set(**dict(zip("uvw", t.choose(list(itertools.permutations(cast))), strict=True)))
        t.say("{u}, {v} and {w} were <friends|neighbours|cousins|at school together>.")
        return things[1], shuffled

    return tell(t, hand_plans(asked), says, follow, (things[0], cast), others)


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
    every = courses([("begin", here) for here in ROLES], moves)
    found = sort(every, lambda plan: verdict(state[asked == "thing"] == 0 for state in sites(plan)))
    return found | {"contradiction": [plan for plan in found["contradiction"] if names_first(plan)]}


def places(t: Scene) -> Tell:
    people = [t.person(), t.person()]
    things = [t.item(TREASURES), t.item(TREASURES)]
    t.set(a=people[0], x=things[0], l=Lazy(PLACES))
    asked, says = t.claim(WORDS["places"]).split()
    known: dict[Any, Any] = {0: t["l"]}

    def follow(plans: Any, person: Any, thing: Any) -> Thread:
        has = [True]

        def ways(event: Event) -> str:
            kind, *roles = event
            t.set(p=person, x=thing)
            t.recall("l", PLACES, known, *roles)
            return str(kind if has[0] or kind not in ("go", "vanish") else f"bare {kind}")

        def told(event: Event) -> None:
            kind, *roles = event
            known.update(dict.fromkeys(roles, t.slots["l"]))
            has[0] &= "leave" not in kind

        return t.thread(plans, WORDS["places"], ways, told)

    return tell(t, site_plans(asked), says, follow, (people[0], things[0]), lambda: (people[1], things[1]))


# --- how many -------------------------------------------------------------------------------------------------------

MOST = 14
CHANGES = {"more": 1, "less": -1, "some more": 1, "some less": -1}


def amounts(plan: Plan, wide: bool) -> set[int]:
    """All numbers that are possible at the end; with wide, "a few" is taken to mean almost anything."""
    (_, first), *changes = plan
    now = {first}
    for kind, n in changes:
        few = range(1, 9) if wide else range(2, 5)
        left = {old + CHANGES[kind] * m for old in now for m in (few if n == 0 else [n])}
        now = {m for m in left if m >= 1} if kind == "some less" else left
    return now


def changes(plan: Plan) -> list[Event]:
    """How a number of things can change next."""
    last, n = plan[-1]
    if last.startswith("some"):
        return []
    [now] = amounts(plan, False)
    found = [(kind, m) for kind in ("more", "less") for m in range(1, 7) if 1 <= now + CHANGES[kind] * m <= MOST]
    found = [(kind, m) for kind, m in found if (kind != last and m != n) or last == "begin"]
    return [*found, *[("some more", 0)] * 4, *[("some less", 0)] * 4 * (now > 4)]


@functools.cache
def count_plans(relation: str, n: int) -> Sorted:
    """By whether the number at the end is n ("exactly"), more than n, or fewer than n."""
    is_so = {"exactly": n.__eq__, "more": n.__lt__, "fewer": n.__gt__}[relation]

    def judge(plan: Plan) -> str | None:
        wide, narrow = (verdict(is_so(last) for last in amounts(plan, width)) for width in (True, False))
        return wide if wide == narrow else None

    found = sort(courses([("begin", first) for first in range(2, 13)], changes), judge)
    near = [plan for plan in found["contradiction"] if abs(min(amounts(plan, False)) - n) <= 4]
    return found | {"contradiction": near}


def counts(t: Scene) -> Tell:
    people = [t.person() for _ in ROLES]
    goods = {plural(good): good for good in THINGS["goods"]}
    t.set(a=people[0], n=Lazy([Number(n) for n in range(3, 11)]), xs=Lazy(list(goods)))
    relation = t.claim(WORDS["counts"])
    n, mine = int(t["n"]), t["xs"]

    def follow(plans: Any, person: Any, what: list[Any]) -> Thread:
        def ways(event: Event) -> str:
            kind, amount = event
            t.set(p=person, q=people[2], n=Number(amount), xs=goods[what[0]] if amount == 1 else what[0])
            return str(kind)

        def told(event: Event) -> None:
            what[0] = t["xs"] if event[0] == "begin" else what[0]

        return t.thread(plans, WORDS["counts"], ways, told)

    def story(label: str) -> None:
        misled, wanted = misleading(count_plans("exactly", n), label), equal(count_plans(relation, n)[label])
        others = Lazy([good for good in goods if good != mine])
        t.weave(follow(wanted, people[0], [mine]), follow(misled, people[1], [others]))

    return story


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
    return sort(every, lambda plan: verdict(BROKEN[plan[-1][0]]))


def breakage(t: Scene) -> Tell:
    people = [t.person(), t.person()]
    things = [t.item(FRAGILE), t.item(FRAGILE)]
    t.set(x=things[0])
    says = t.claim(WORDS["breakage"])

    def follow(plans: Any, thing: Any, one: Any, other: Any) -> Thread:
        def ways(event: Event) -> str:
            t.set(p=one, q=other, x=thing)
            return str(event[0])

        return t.thread(plans, WORDS["breakage"], ways)

    return tell(t, break_plans(), says, follow, (things[0], *people), lambda: (things[1], *people[::-1]))


# --- who believes what ----------------------------------------------------------------------------------------------


@functools.cache
def belief_plans(asked: str) -> Sorted:
    """By where the thing is at the end (asked "is"), or where person 0 thinks it is ("thinks"): in spot 0 or not.

    Person 1 hides it in one spot, and moves it to another while person 0 is there, away, or perhaps looking.
    """
    found: dict[Plan, set[bool]] = {}
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
            found[("hide", first), *plan] = {spot == 0 for spot in (real if asked == "is" else thought)}
    return sort(list(found), lambda plan: verdict(found[plan]))


def beliefs(t: Scene) -> Tell:
    people = [t.person(), t.person()]
    thing = t.item({noun: [""] for noun in THINGS["small"]})
    t.set(a=people[0], x=thing, s=Lazy(THINGS["spots"]))
    asked, says = t.claim(WORDS["beliefs"]).split()
    known: dict[Any, Any] = {0: t["s"]}

    def ways(event: Event) -> str:
        kind, *roles = event
        t.set(p=people[0], q=people[1], x=thing)
        t.recall("s", THINGS["spots"], known, *roles)
        return str(kind)

    def told(event: Event) -> None:
        known.update(dict.fromkeys(event[1:], t.slots["s"]))

    def follow(plans: Any) -> Thread:
        return t.thread(plans, WORDS["beliefs"], ways, told)

    return tell(t, belief_plans(asked), says, follow, (), lambda: None)


# --- whether a promise was kept -------------------------------------------------------------------------------------

TASKS = table(WORDS["tasks"])


@functools.cache
def promise_plans() -> Sorted:
    """By whether what was promised on Monday for one day (2 to 5, Monday is 0) was done by then."""
    found: dict[Plan, set[bool]] = {}
    for due in range(2, 6):
        for done in range(1, 7):
            found[("promise", due), ("do", done)] = {done <= due}
        for unknown in ("someday", "hearsay"):
            found[("promise", due), (unknown,)] = UNKNOWN
    return sort(list(found), lambda plan: verdict(found[plan]))


def promises(t: Scene) -> Tell:
    people = [t.person() for _ in ROLES]
    t.set(a=people[0])
    says = t.claim(WORDS["promises"])
    known: dict[Any, Any] = {}

    def follow(plans: Any, one: Any) -> Thread:
        def ways(event: Event) -> str:
            kind, *days = event
            t.set(p=one, q=people[2], d=DAYS[days[0]] if days else "")
            t.recall("task", TASKS, known, one)
            return str(kind)

        def told(event: Event) -> None:
            known[one] = t["task"]

        return t.thread(plans, WORDS["promises"], ways, told)

    return tell(t, promise_plans(), says, follow, people[:1], lambda: people[1:2])


# --- who came first -------------------------------------------------------------------------------------------------


def reaches(plan: Plan, start: int, goal: int) -> bool:
    """Whether start comes before goal by the comparisons of the plan."""
    seen, grown = {start}, True
    while grown:
        more = {second for _, first, second in plan if first in seen} - seen
        seen |= more
        grown = bool(more)
    return goal in seen


@functools.cache
def order_plans() -> Sorted:
    """Three comparisons that link four people, by whether person 0 comes before person 1; none compares these two."""
    pairs = [pair for pair in itertools.permutations(range(4), 2) if set(pair) != {0, 1}]
    every = [tuple(("compare", *pair) for pair in three) for three in itertools.permutations(pairs, 3)]

    def judge(plan: Plan) -> str | None:
        both_ways = (*plan, *(("compare", second, first) for _, first, second in plan))
        if not all(reaches(both_ways, 0, other) for other in range(4)):
            return None
        if reaches(plan, 0, 1):
            return "entailment"
        return "contradiction" if reaches(plan, 1, 0) else "neutral"

    return sort(every, judge)


def arrivals(t: Scene) -> Tell:
    people = [t.person() for _ in range(4)]
    t.set(a=people[0], b=people[1], order=Lazy(table(WORDS["orders"])))
    says = t.claim(WORDS["arrivals"])

    def ways(event: Event) -> str:
        kind, first, second = event
        t.set(p=people[first], q=people[second])
        return str(kind)

    def follow(plans: Any) -> Thread:
        return t.thread(plans, WORDS["arrivals"], ways)

    def others() -> None:
        t.set(**dict(zip("wxyz", t.choose(list(itertools.permutations(people))), strict=True)))
        t.say("{w}, {x}, {y} and {z} {order.begin}.")

    return tell(t, order_plans(), says, follow, (), others)


FAMILIES = {hands: 3.0, places: 4.0, counts: 4.0, breakage: 3.0, beliefs: 3.0, promises: 3.0, arrivals: 4.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the story; the label."""
    return Scene(teller).row(FAMILIES, LABELS)


ENTAILMENT = Table(
    "entailment",
    ("premise", "hypothesis"),
    ("hypothesis", "premise"),
    LABELS,
    row,
    train_size=4000,
    test_size=1000,
    seed=7,
)
