"""Stories of entailment.csv about states: what is broken, who believes what, whether a promise was kept, who came first.

Families and plans are as in entailment_hands.py.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from entailment_scene import OPPOSITE, Event, Plan, Scene, Sorted, Thread, Weighed, equal, misleading, sort, verdict
from telling import Lazy, rows
from world import Thing

# --- what is broken -------------------------------------------------------------------------------------------------

FRAGILE = {
    "music box": ("lacquered ", "tiny ", "walnut "),
    "lantern": ("paper ", "copper ", "storm "),
    "drum": ("little ", "painted ", "tin "),
    "kite": ("red ", "striped ", "silk "),
    "watch": ("pocket ", "gold ", "heavy "),
    "umbrella": ("black ", "checked ", "silk "),
    "telescope": ("brass ", "folding ", "short "),
    "clock": ("kitchen ", "cuckoo ", "old "),
    "lamp": ("reading ", "oil ", "green "),
    "chair": ("kitchen ", "wicker ", "garden "),
    "sledge": ("wooden ", "long ", "blue "),
    "puppet": ("wooden ", "cheerful ", "felt "),
    "fiddle": ("brown ", "small ", "old "),
    "fishing rod": ("long ", "bamboo ", "new "),
    "wheelbarrow": ("green ", "old ", "little "),
    "doll's house": ("pink ", "tall ", "wooden "),
}
BROKEN = {
    "whole": {False},
    "begin broken": {True},
    "break": {True},
    "mend": {False},
    "try": {True, False},
    "fall": {True, False},
}


@functools.cache
def break_plans() -> Sorted:
    """By whether the thing is broken at the end."""
    found: list[Plan] = []
    for first in ("whole", "begin broken"):
        for rest in (r for n in (1, 2) for r in itertools.product(("break", "mend", "try", "fall"), repeat=n)):
            plan, sound = (first, *rest), True
            for before, after in itertools.pairwise(plan):
                sound &= BROKEN[before] == ({True} if after in ("mend", "try") else {False})
            if sound:
                found.append(tuple((kind,) for kind in plan))
    return sort(found, lambda plan: verdict(BROKEN[plan[-1][0]]))


BREAK_WAYS = {
    "whole": (
        "{p} had a {x.new}.",
        "{p} was proud of {p.his} {x.new}.",
        "{p} carried a {x.new} <home|down the road>.",
    ),
    "begin broken": ("{p} had a broken {x}.", "{p} found a broken {x} in the attic.", "{p}'s {x.new} was broken."),
    "break": (
        "{q} dropped the {x}, and it broke.",
        "The {x} fell <off a cart|down the stairs|into a ditch> and broke.",
        "{q} sat down on the {x} and broke it.",
        "A branch fell on the {x} and broke it.",
    ),
    "mend": (
        "{q} mended the {x} <with some glue|in an hour|that evening>.",
        "A neighbour repaired the {x}.",
        "{p} mended the {x} with <great care|a new screw>.",
        "{p} took the {x} to <a workshop|{q}> and got it back in one piece.",
    ),
    "try": (
        "{q} tried to mend the {x}, and has not said yet whether it worked.",
        "{p} left the {x} <at a workshop|with {q}>, and has heard nothing since.",
    ),
    "fall": (
        "The {x} fell into the cellar, and nobody has looked at it yet.",
        "{q} dropped the {x}, hid it at once, and would not say whether it broke.",
    ),
}


def breakage(t: Scene) -> Callable[[str], None]:
    people = [t.person(), t.person()]
    things = [t.item(FRAGILE), t.item(FRAGILE)]
    t.set(x=things[0])
    right = t.fork(
        (2.0, "The {x} is broken<| now>.", True),
        (1.0, "The {x} needs mending.", True),
        (2.0, "The {x} is not broken.", False),
        (1.0, "The {x} is in one piece.", False),
    )

    def follow(plans: Sequence[Weighed], thing: Thing, one: Any, other: Any) -> Thread:
        def ways(event: Event) -> Sequence[str]:
            t.set(p=one, q=other, x=thing)
            return BREAK_WAYS[event[0]]

        return Thread(plans, ways)

    def story(label: str) -> None:
        plans = break_plans()
        wanted = equal(plans[label if right else OPPOSITE[label]])
        misled = misleading(plans, label)
        t.weave(follow(wanted, things[0], *people), follow(misled, things[1], *people[::-1]))

    return story


# --- who believes what ----------------------------------------------------------------------------------------------

SPOTS = """cupboard|basket|drawer|blue jug|old chest|sewing box|bread bin|coal bucket|flower pot|piano stool|top hat
toolbox|hay barrel|clothes chest|rain boot|wooden crate""".replace("\n", "|").split("|")
SMALL = {
    noun: ("",)
    for noun in """key|letter|ring|marble|coin|whistle|button|penknife|locket|thimble|compass|brooch|medal|seashell
harmonica|comb|map|ticket""".replace("\n", "|").split("|")
}


@functools.cache
def belief_plans(asked: str) -> Sorted:
    """By where the thing is at the end (asked "is"), or where person 0 thinks it is ("thinks"): in spot 0 or not.

    Person 1 hides it in one spot, and person 1 moves it to another while person 0 is there, away, or perhaps looking.
    """
    found: dict[Plan, set[bool]] = {}
    for first, second in ((0, 1), (1, 0)):  # a statement always names one of the two
        hidden = ("hide", first)
        for plan, thought in (
            ((hidden, ("watch",), ("move", second)), {second}),
            ((hidden, ("leave",), ("move", second)), {first}),
            ((hidden, ("leave",), ("move", second), ("return",)), {first}),
            ((hidden, ("leave",), ("move", second), ("told", second)), {second}),
            ((hidden, ("leave",), ("move", second), ("peep",)), {first, second}),
            ((hidden, ("leave",), ("move perhaps", second), ("return",)), {first}),
        ):
            real = {first, second} if ("move perhaps", second) in plan else {second}
            found[plan] = {spot == 0 for spot in (real if asked == "is" else thought)}
    return sort(list(found), lambda plan: verdict(found[plan]))


BELIEF_WAYS = {
    "hide": (
        "{q} <put|hid> the {x} in the {s}, and {p} saw it.",
        "{p} and {q} put the {x} in the {s} together.",
        "{p} watched {q} put the {x} in the {s}.",
    ),
    "watch": (
        "{p} <stayed in the room and looked on|stood beside {q.him} and looked on|stayed where {p.he} was, and watched>.",
    ),
    "leave": (
        "{p.he} <went out|went home|left the room>.",
        "Then {p} went to <feed the hens|fetch water|post a letter>.",
    ),
    "move": (
        "{q} moved the {x} into the {s}.",
        "Then {q} took the {x} out again and put it in the {s}.",
    ),
    "move perhaps": ("{q} <wanted|meant> to move the {x} to the {s}, and nobody knows whether {q.he} did.",),
    "return": ("{p} came back later, and nobody told {p.him} anything.", "When {p} returned, {q} said nothing."),
    "told": (
        "Later {q} told {p} that the {x} was in the {s} now, and {p} believed it.",
        "{q} wrote {p} a note: the {x} was now in the {s}, and {p} believed it.",
    ),
    "peep": (
        "Perhaps {p} saw that through the window, and perhaps {p.he} did not.",
        "Nobody could say whether {p} had heard of that.",
    ),
}


def beliefs(t: Scene) -> Callable[[str], None]:
    people = [t.person(), t.person()]
    thing = t.item(SMALL)
    t.set(a=people[0], x=thing, s=Lazy(SPOTS))
    asked, right = t.fork(
        (3.0, "{a} thinks that the {x} is in the {s}.", ("thinks", True)),
        (1.0, "{a} does not think that the {x} is in the {s}.", ("thinks", False)),
        (2.0, "The {x} is in the {s}<| now>.", ("is", True)),
        (1.0, "The {x} is not in the {s}.", ("is", False)),
    )
    known: dict[Any, Any] = {0: t["s"]}

    def ways(event: Event) -> Sequence[str]:
        kind, *roles = event
        t.set(p=people[0], q=people[1], x=thing)
        for role in roles:
            t["s"] = known.get(role) or Lazy([spot for spot in SPOTS if spot not in known.values()])
        return BELIEF_WAYS[kind]

    def told(event: Event) -> None:
        for role in event[1:]:
            known[role] = t["s"]

    def story(label: str) -> None:
        t.weave(Thread(equal(belief_plans(asked)[label if right else OPPOSITE[label]]), ways, told))

    return story


# --- whether a promise was kept ---------------------------------------------------------------------------------------

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TASKS = rows(
    "do did",
    """
    mend the gate | mended the gate
    paint the boat | painted the boat
    bring back the ladder | brought back the ladder
    chop the firewood | chopped the firewood
    sweep the chimney | swept the chimney
    pick the plums | picked the plums
    wash the windows | washed the windows
    repair the roof | repaired the roof
    clean the hen house | cleaned the hen house
    sharpen the knives | sharpened the knives
    write to the doctor | wrote to the doctor
    pay the miller | paid the miller
    return the wheelbarrow | returned the wheelbarrow
    dig over the garden | dug over the garden
    fetch the coal | fetched the coal
    """,
)


@functools.cache
def promise_plans() -> Sorted:
    """By whether what was promised on Monday for one day (2 to 5, Monday is 0) was done by then."""
    found: dict[Plan, set[bool]] = {}
    for due in range(2, 6):
        for done in range(1, 7):
            found[("promise", due), ("do", done)] = {done <= due}
        for unknown in ("someday", "hearsay"):
            found[("promise", due), (unknown,)] = {True, False}
    return sort(list(found), lambda plan: verdict(found[plan]))


PROMISE_WAYS = {
    "promise": (
        "On Monday {p} promised {q} to {task.do} by {d}.",
        '"I shall {task.do} by {d}," {p} promised {q} on Monday.',
    ),
    "do": ("{p.he} {task.did} on {d}.", "On {d} {p} {task.did}.", "It was {d} when {p} {task.did}."),
    "someday": ("{p.he} {task.did} that week, but nobody remembers on which day.", "One day that week {p} {task.did}."),
    "hearsay": (
        "Nobody has seen yet whether {p} {task.did} in time.",
        "{q} was away all week and does not know when {p} {task.did}.",
    ),
}


def promises(t: Scene) -> Callable[[str], None]:
    people = [t.person() for _ in range(3)]
    t.set(a=people[0])
    right = t.fork(
        (2.0, "{a} kept {a.his} promise.", True),
        (1.0, "{a} did in time what {a.he} had promised.", True),
        (2.0, "{a} broke {a.his} promise.", False),
        (1.0, "{a} did not keep {a.his} promise.", False),
    )

    drawn: dict[Any, Any] = {}

    def follow(plans: Sequence[Weighed], one: Any) -> Thread:
        def ways(event: Event) -> Sequence[str]:
            kind, *days = event
            t.set(p=one, q=people[2])
            t["task"] = drawn.get(one) or Lazy([task for task in TASKS if task not in drawn.values()])
            for day in days:
                t["d"] = DAYS[day]
            return PROMISE_WAYS[kind]

        def told(event: Event) -> None:
            drawn[one] = t["task"]

        return Thread(plans, ways, told)

    def story(label: str) -> None:
        plans = promise_plans()
        wanted = equal(plans[label if right else OPPOSITE[label]])
        misled = misleading(plans, label)
        t.weave(follow(wanted, people[0]), follow(misled, people[1]))

    return story


# --- who came first -------------------------------------------------------------------------------------------------

ORDERS = rows(
    "more less begin more_than less_than",
    """
    arrived before | arrived after | were all invited to the inn | got there before | got there after
    is taller than | is shorter than | stood back to back to see who was tallest | is taller than | is shorter than
    swam faster than | swam more slowly than | swam across the lake | was quicker than | was slower than
    lives nearer to the sea than | lives farther from the sea than | live in one street that leads to the sea | lives nearer to it than | lives farther from it than
    caught more fish than | caught fewer fish than | went fishing on the lake | did better than | did worse than
    """,
)


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
    """Three comparisons that link four people; by whether person 0 comes before person 1, whom none compares directly."""
    found: list[Plan] = []
    pairs = [pair for pair in itertools.permutations(range(4), 2) if set(pair) != {0, 1}]
    for three in itertools.permutations(pairs, 3):
        linked = {frozenset(pair) for pair in three}
        roots = list(range(4))
        for one, other in three:
            roots = [roots[one] if root == roots[other] else root for root in roots]
        if len(linked) == 3 and len(set(roots)) == 1:
            found.append(tuple(("compare", *pair) for pair in three))

    def judge(plan: Plan) -> str:
        if reaches(plan, 0, 1):
            return "entailment"
        return "contradiction" if reaches(plan, 1, 0) else "neutral"

    return sort(found, judge)


def arrivals(t: Scene) -> Callable[[str], None]:
    people = [t.person() for _ in range(4)]
    t.set(a=people[0], b=people[1], order=Lazy(ORDERS))
    right = t.fork((1.0, "{a} {order.more} {b}.", True), (1.0, "{a} {order.less} {b}.", False))

    def ways(event: Event) -> Sequence[str]:
        _, first, second = event
        t.set(p=people[first], q=people[second])
        return "{p} <{order.more}|{order.more_than}> {q}.", "{q} <{order.less}|{order.less_than}> {p}."

    def story(label: str) -> None:
        t.set(**dict(zip("wxyz", t.choose(list(itertools.permutations(people))), strict=True)))
        t.say("{w}, {x}, {y} and {z} {order.begin}.")
        t.weave(Thread(equal(order_plans()[label if right else OPPOSITE[label]]), ways))

    return story
