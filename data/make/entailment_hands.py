"""Stories of entailment.csv about possessions: who has what and whose it is, who and what is where, how many.

A family writes a statement and returns what tells a story that fits a label. Plans are enumerated and sorted once: an
event is a tuple of its kind and the roles in it (people 0, 1, 2; places 0, 1, 2; numbers), where 0 is what the statement
names.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from entailment_scene import OPPOSITE, Event, Plan, Scene, Sorted, Thread, Weighed, equal, misleading, sort, verdict
from lexicon import TREASURES, number, plural
from telling import Lazy
from world import PLACES, Thing

ROLES = (0, 1, 2)


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


def transfers() -> list[Plan]:
    """Courses of one thing through three hands. Only who owns a thing lends, gives or passes it on."""
    found: list[Plan] = []

    def extend(plan: Plan, n_left: int) -> None:
        if len(plan) > 1:
            found.append(plan)
        states = owners(plan)
        if not n_left or len(states) > 1:
            return
        ((holder, owner),) = states
        others = [other for other in ROLES if other != holder]
        if holder != owner:
            extend((*plan, ("return", holder, owner)), n_left - 1)
            extend((*plan, ("lend", holder, next(o for o in others if o != owner))), n_left - 1)
            return
        for other in others:
            for kind in ("give", "lend", "let have"):
                extend((*plan, (kind, holder, other)), n_left - 1)
        extend((*plan, ("pass on", holder)), n_left - 1)

    for first in ROLES:
        extend((("have", first),), 2)
    return found


@functools.cache
def hand_plans(asked: str) -> Sorted:
    """By whether person 0 has the thing (asked "has") or owns it ("owns")."""
    part = 0 if asked == "has" else 1
    by_label = sort(transfers(), lambda plan: verdict(state[part] == 0 for state in owners(plan)))
    return {
        label: [plan for plan in plans if any(0 in event[1:] for event in plan)] for label, plans in by_label.items()
    }


HAND_WAYS = {
    "have": (
        "{p} had a {x.new}.",
        "{p} won a {x.new} <at the fair|in a raffle|at cards>.",
        "{p} got a {x.new} for {p.his} birthday.",
        "{p} bought a {x.new} at the market.",
    ),
    "give": (
        "{p.he} gave the {x} to {q} <as a present|for good|for {q.his} birthday>.",
        "{p.he} sold the {x} to {q}<| for two coins>.",
        "{p.he} made {q} a present of the {x}.",
        "{q} liked the {x} so much that {p} gave it to {q.him} for good.",
    ),
    "lend": (
        "{p.he} lent the {x} to {q}.",
        "{q} borrowed the {x} from {p}.",
        "{p.he} lent {q} the {x} for a <week|few days>.",
    ),
    "relend": (
        "{p.he} lent the {x} on to {q}.",
        "{q} <asked for|wanted> the {x} too, and {p} passed it on to {q.him} for a while.",
    ),
    "return": (
        "{p.he} <gave|brought> the {x} back to {q}.",
        "{q} asked for the {x}, and {p} gave it back.",
        "{q} came for the {x} and got it back.",
    ),
    "pass on": (
        "{p.he} gave the {x} to one of the other two as a present, but would not say to whom.",
        "Later {p} sold the {x} to one of the other two; which of them, is not told.",
    ),
    "let have": (
        "{p.he} let {q} have the {x}, perhaps as a loan and perhaps as a gift.",
        "{p.he} handed {q} the {x} without saying whether it was a gift or a loan.",
    ),
}


def hands(t: Scene) -> Callable[[str], None]:
    cast = [t.person() for _ in ROLES]
    mine, other = t.item(TREASURES), t.item(TREASURES)
    t.set(a=cast[0], x=mine)
    asked, right = t.fork(
        (2.0, "{a} has the {x}.", ("has", True)),
        (1.0, "The {x} is with {a}.", ("has", True)),
        (2.0, "{a} does not have the {x}.", ("has", False)),
        (1.0, "The {x} is not with {a}.", ("has", False)),
        (1.0, "The {x} belongs to {a}.", ("owns", True)),
        (1.0, "{a} owns the {x}.", ("owns", True)),
        (1.0, "The {x} does not belong to {a}.", ("owns", False)),
        (1.0, "{a} does not own the {x}.", ("owns", False)),
    )

    def follow(plans: Sequence[Weighed], thing: Thing, people: Sequence[Any]) -> Thread:
        owner = [0]

        def ways(event: Event) -> Sequence[str]:
            kind, *roles = event
            t.set(x=thing, **{slot: people[role] for slot, role in zip("pq", roles, strict=False)})
            return HAND_WAYS["relend" if kind == "lend" and owner[0] != roles[0] else kind]

        def told(event: Event) -> None:
            if event[0] in ("have", "give"):
                owner[0] = event[-1]

        return Thread(plans, ways, told)

    def story(label: str) -> None:
        plans = hand_plans(asked)
        wanted = equal(plans[label if right else OPPOSITE[label]])
        misled = misleading(plans, label)
        shuffled = t.choose((cast, [cast[1], cast[0], cast[2]]))
        t.set(**dict(zip("uvw", t.choose(list(itertools.permutations(cast))), strict=True)))
        t.say("{u}, {v} and {w} were <friends|neighbours|cousins|at school together>.")
        t.weave(follow(wanted, mine, cast), follow(misled, other, shuffled))

    return story


# --- who is where ---------------------------------------------------------------------------------------------------


def moves() -> list[Plan]:
    """Courses of a person (with a thing) over places 0, 1, 2."""
    found: list[Plan] = []

    def extend(plan: Plan, here: int, has: bool, n_left: int) -> None:
        if len(plan) > 1:
            found.append(plan)
        if not n_left:
            return
        for there in ROLES:
            if there != here:
                extend((*plan, ("go", there)), there, has, n_left - 1)
                if has:
                    extend((*plan, ("leave and go", there)), there, False, n_left - 1)
        found.append((*plan, ("vanish",)))
        if has:
            found.append((*plan, ("leave and vanish",)))

    for here in ROLES:
        extend((("begin", here),), here, True, 2)
    return found


def sites(plan: Plan) -> list[tuple[int, int]]:
    """All (place of the person, place of the thing) that are possible; 3 is a place without a number."""
    here, there, has = 0, 0, True
    for kind, *rest in plan:
        if kind == "begin":
            here = there = rest[0]
        if kind in ("leave and go", "leave and vanish"):
            has = False
        if kind in ("go", "leave and go"):
            here = rest[0]
            there = here if has else there
        if kind in ("vanish", "leave and vanish"):
            return [(other, other if has else there) for other in (0, 1, 2, 3) if other != here]
    return [(here, there)]


@functools.cache
def site_plans(asked: int) -> Sorted:
    found = sort(moves(), lambda plan: verdict(state[asked] == 0 for state in sites(plan)))
    named = [plan for plan in found["contradiction"] if any(0 in event[1:] for event in plan)]
    return found | {"contradiction": named}


SITE_WAYS = {
    "begin": (
        "{p} was {l.at} with a {x.new}.",
        "{p} found a {x.new} {l.at} and picked it up.",
        "{p} <sat|stood|waited> {l.at}, with a {x.new} in {p.his} hand.",
    ),
    "go": ("{p.he} <went|walked|hurried> {l.to} with the {x}.", "{p.he} took the {x} along {l.to}."),
    "bare go": ("{p.he} <went|walked|hurried> <on |>{l.to}.", "Then {p} <set off for {l}|made {p.his} way {l.to}>."),
    "leave and go": (
        "{p.he} left the {x} lying there and went {l.to}.",
        "{p.he} put down the {x} and walked {l.to} without it.",
    ),
    "vanish": (
        "Then {p} went off with the {x}, and nobody knows where.",
        "{p.he} left with the {x} and did not say where {p.he} was going.",
    ),
    "bare vanish": (
        "Then {p} went off, and nobody knows where.",
        "{p.he} left and did not say where {p.he} was going.",
    ),
    "leave and vanish": (
        "{p.he} put down the {x} and left, nobody knows where to.",
        "{p.he} left the {x} behind and went off without a word.",
    ),
}


def places(t: Scene) -> Callable[[str], None]:
    people = [t.person(), t.person()]
    things = [t.item(TREASURES), t.item(TREASURES)]
    t.set(a=people[0], x=things[0], l=Lazy(PLACES))
    asked, right = t.fork(
        (2.0, "{a} is {l.at}.", (0, True)),
        (1.0, "{a} is not {l.at}.", (0, False)),
        (2.0, "The {x} is {l.at}.", (1, True)),
        (1.0, "The {x} is not {l.at}.", (1, False)),
    )
    known: dict[Any, Any] = {0: t["l"]}

    def follow(plans: Sequence[Weighed], person: Any, thing: Thing) -> Thread:
        has = [True]

        def ways(event: Event) -> Sequence[str]:
            kind, *roles = event
            t.set(p=person, x=thing)
            for role in roles:
                t["l"] = known.get(role) or Lazy([place for place in PLACES if place not in known.values()])
            return SITE_WAYS[kind if has[0] or kind not in ("go", "vanish") else f"bare {kind}"]

        def told(event: Event) -> None:
            kind, *roles = event
            for role in roles:
                known[role] = t["l"]
            has[0] &= "leave" not in kind

        return Thread(plans, ways, told)

    def story(label: str) -> None:
        plans = site_plans(asked)
        misled = misleading(plans, label)
        wanted = equal(plans[label if right else OPPOSITE[label]])
        t.weave(follow(wanted, people[0], things[0]), follow(misled, people[1], things[1]))

    return story


# --- how many -------------------------------------------------------------------------------------------------------

GOODS = """apple|plum|marble|walnut|egg|coin|biscuit|carrot|feather|seashell|candle|pear|chestnut|pebble|button|stamp
onion|turnip|pancake|peach""".replace("\n", "|").split("|")
MOST = 14


def amounts(plan: Plan, wide: bool) -> set[int]:
    """All numbers that are possible at the end; with wide, "a few" is taken to mean almost anything."""
    now: set[int] = set()
    low, high = (1, 8) if wide else (2, 4)
    for kind, n in plan:
        match kind:
            case "begin":
                now = {n}
            case "more":
                now = {old + n for old in now}
            case "less":
                now = {old - n for old in now}
            case "some more":
                now = {old + few for old in now for few in range(low, high + 1)}
            case "some less":
                now = {old - few for old in now for few in range(low, high + 1) if old - few >= 1}
    return now


@functools.cache
def ledgers() -> tuple[Plan, ...]:
    """Courses of a number of things."""
    found: list[Plan] = []
    for first in range(2, 13):
        begin = ("begin", first)
        steps = [("more", n) for n in range(1, 7)] + [("less", n) for n in range(1, 7)]
        for one in steps:
            left = first + (one[1] if one[0] == "more" else -one[1])
            if not 1 <= left <= MOST:
                continue
            found.append((begin, one))
            for two in steps:
                if (
                    two[0] != one[0]
                    and two[1] != one[1]
                    and 1 <= left + (two[1] if two[0] == "more" else -two[1]) <= MOST
                ):
                    found.append((begin, one, two))
            found += [(begin, one, ("some more", 0))] * 4 + [(begin, one, ("some less", 0))] * 4 * (left > 4)
        found += [(begin, ("some more", 0))] * 4 + [(begin, ("some less", 0))] * 4 * (first > 4)
    return tuple(found)


@functools.cache
def count_plans(relation: str, n: int) -> Sorted:
    """By whether the number at the end is n ("exactly"), more than n, or fewer than n."""
    tests = {"exactly": n.__eq__, "more": n.__lt__, "fewer": n.__gt__}

    def judge(plan: Plan) -> str | None:
        wide, narrow = (verdict(tests[relation](last) for last in amounts(plan, width)) for width in (True, False))
        return wide if wide == narrow else None

    found = sort(ledgers(), judge)
    near = [plan for plan in found["contradiction"] if abs(min(amounts(plan, False)) - n) <= 4]
    return found | {"contradiction": near}


COUNT_WAYS = {
    "begin": (
        "{p} had {n} {xs}.",
        "{p} started the day with {n} {xs}.",
        "{p} had {n} {xs} in the morning.",
        "{p} had {n} {xs} to begin with.",
    ),
    "more": (
        "{p.he} found {n} more {xs}.",
        "{p.he} bought {n} more {xs}.",
        "{q} gave {p.him} {n} more {xs}.",
        "{p.he} was given {n} more {xs} by {q}.",
        "Then {p} won {n} {xs} from {q}.",
    ),
    "less": (
        "{p.he} gave {n} {xs} to {q}.",
        "{p.he} lost {n} {xs}.",
        "{p.he} sold {n} {xs}.",
        "{p.he} gave away {n} {xs}.",
        "Then {q} took {n} {xs} from {p}.",
        "{p.he} lost {n} {xs} to {q} in a bet.",
    ),
    "some more": ("{p.he} <found|bought|got> a few more {xs}.", "{q} gave {p.him} a few more {xs}."),
    "some less": (
        "{p.he} gave a few {xs} to {q}.",
        "{p.he} <lost|sold|gave away> a few {xs}.",
        "Then {q} took a few {xs} from {p}.",
    ),
}
# Numbers follow no choice within a template, so that the parser sees at once which plan it cannot be.


def counts(t: Scene) -> Callable[[str], None]:
    people = [t.person() for _ in ROLES]
    t.set(a=people[0], n=Lazy([N(n) for n in range(3, 11)]), xs=Lazy([plural(good) for good in GOODS]))
    relation = t.fork(
        (2.0, "{a} <has|now has> exactly {n} {xs}.", "exactly"),
        (1.0, "{a} has more than {n} {xs}.", "more"),
        (1.0, "{a} has fewer than {n} {xs}.", "fewer"),
    )
    n, mine = int(t["n"]), t["xs"]

    def follow(plans: Sequence[Weighed], person: Any, goods: list[Any]) -> Thread:
        def ways(event: Event) -> Sequence[str]:
            kind, amount = event
            single = next(good for good in GOODS if plural(good) == goods[0]) if amount == 1 else ""
            t.set(p=person, q=people[2], n=N(amount), xs=single or goods[0])
            return COUNT_WAYS[kind]

        def told(event: Event) -> None:
            goods[0] = t["xs"] if event[0] == "begin" else goods[0]

        return Thread(plans, ways, told)

    def story(label: str) -> None:
        misled = misleading(count_plans("exactly", n), label)
        wanted = equal(count_plans(relation, n)[label])
        others = Lazy([plural(good) for good in GOODS if plural(good) != mine])
        t.weave(follow(wanted, people[0], [mine]), follow(misled, people[1], [others]))

    return story


class N(int):
    """A number that is written in words."""

    def __str__(self) -> str:
        return number(int(self))
