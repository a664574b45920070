"""reviews.csv: short reviews of shops, meals and books; the label is what the writer makes of it, all in all.

Each review takes a side (or none) by one argument: plain praise or blame, a contrast, hearsay believed or not, a
change, a comparison, advice, or irony that only its end gives away. The same words serve both sides, since adjectives
are often denied, and what is granted ("true, the soup was thin, but ...") counts for less than what it is granted for.
A few mild texts ("It could be worse.") come with either of two labels; what that costs is known exactly (see
labelled.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import lexicon
from choice import Teller
from labelled import Table
from telling import Ask, Lazy, Story
from words import load, table, weighted

SIGN = {"negative": -1, "neutral": 0, "positive": 1}
COMMON = load("reviews")
TOPICS = {topic: COMMON | load(f"reviews_{topic}") for topic in ("shops", "meals", "books")}
KIN = table(COMMON["kin"])
QUALITIES = {row.name: row for row in table(COMMON["qualities"])}
OPPOSED = {tuple(pair.split("/")) for pair in COMMON["opposites"]}
HOURS = lexicon.NUMBERS["numbers"][5:12]
P_DENIED = 0.45

Ways = list[tuple[str, float]]  # what can be written of an aspect, and how often


class Aspect(NamedTuple):
    """Something that is good or bad: "the soup was " and adjectives; or no head and whole clauses."""

    head: str
    good: list[str]
    bad: list[str]
    bare: str = ""  # the noun without its article, to be put after an adjective; "" where that is not said

    def words(self, sign: int) -> list[str]:
        return self.good if sign > 0 else self.bad

    def opposites(self) -> list[tuple[str, str]]:
        """Pairs of which one is the opposite of the other: all (good, bad), then all (bad, good)."""
        pairs = [(good, bad) for good in self.good for bad in self.bad if (good, bad) in OPPOSED]
        return pairs + [pair[::-1] for pair in pairs]


def aspect(noun: str, verb: str, good: str, bad: str) -> Aspect:
    return Aspect(f"{noun} {verb} ", good.split(", "), bad.split(", "), noun.removeprefix("the "))


SHOPS = {row.kind: row for row in table(TOPICS["shops"]["kinds"])}
DISHES = {f"{name} {row.kind}": row for row in table(TOPICS["meals"]["kinds"]) for name in row.names.split(", ")}


class Review(Story):
    """One review while it is written. p slots are clauses on the writer's side, q slots on the other; see `side`."""

    def __init__(self, teller: Teller, words: Mapping[str, Any]) -> None:
        super().__init__(teller)
        self.words = words
        self.topics: list[tuple[Aspect, float]] = []  # what has not been spoken of
        self.facts = self.lines(words["facts"])  # those that have not been told
        self.set(
            dish=Lazy(list(DISHES)),
            kin=Lazy(KIN),
            kin2=Lazy(lambda: [one for one in KIN if one is not self["kin"]]),
            kin3=Lazy(lambda: [one for one in KIN if one is not self.slots["kin"].value]),
            day=Lazy(lexicon.DAYS),
            hour=Lazy(HOURS[:-2]),
            hour2=Lazy(lambda: HOURS[HOURS.index(self["hour"]) + 1 :][:3]),
            name=Lazy(lexicon.WOMEN + lexicon.MEN),
            man=Lazy(lexicon.MEN),
            trade=Lazy(lexicon.TRADES, "zipf"),
            trade2=Lazy(lambda: [one for one in lexicon.TRADES if one != self.slots["trade"].value], "zipf"),
            Trade=Lazy([trade.capitalize() for trade in lexicon.TRADES], "zipf"),
            **{slot: words[slot] for slot in ("done", "so", "was")},
            **{slot: Lazy(options) for slot, options in ({"kind": list(SHOPS)} | words["slots"]).items()},
        )

    def lines(self, block: str) -> list[str]:
        """The lines of a block, with what stands for other phrases written out."""
        for name in ("hears", "turns", "undecided", "subject"):
            block = block.replace(f"{{{name}}}", self.words[name])
        return block.splitlines()

    def begin(self) -> bool:
        """Name what is reviewed; whether the writer says to have been there."""
        starts = self.lines(self.words["starts"])
        weights = (0.4, *[0.6 / len(starts)] * len(starts))
        return self.say(f"{self.words['subject']}.", *starts, weights=weights) > 0

    def talk_of(self, special: list[Aspect], unfit: Sequence[str] = ()) -> None:
        """Set what there is to say, without what is unfit."""
        common = table(self.words["aspects"].replace("{keeper}", self.slots.get("keeper", "")))
        every = [(one, 3.0) for one in special] + [(aspect(*row), 1.0) for row in common]
        every += [(Aspect("", [row.good], [row.bad]), 0.6) for row in table(self.words["clauses"])]
        self.topics = [(one, weight) for one, weight in every if not {one.bare, *one.good} & {*unfit}]

    def side(self, sign: int) -> None:
        """Fill the slots whose words depend on the side taken."""
        self["easy"] = Lazy(("not easy", "hard") if sign > 0 else ("easy", "not hard"))
        self["better"], self["unbetter"] = ("better", "worse")[::sign]
        self["dislikes"], self["likes"] = self.words["likes"][::sign]
        for slot in ("p", "p2", "p3", "q", "q2"):
            self[slot] = Phrase(self, partial(self.judge, sign if slot[0] == "p" else -sign))
        for slot in ("bp", "bp2", "bq", "bq2"):
            self[slot] = Phrase(self, partial(name_bare, sign if slot[1] == "p" else -sign), at_once=True)
        varying = Phrase(self, say_varying)
        self.set(mid=Phrase(self, say_middling), mid2=Phrase(self, say_middling), varying=varying)
        self["other"] = Lazy(lambda: varying.opposites())

    def judge(self, sign: int, one: Aspect) -> Ways:
        """A clause that is good (sign 1) or bad (-1), outright or by denying the opposite."""
        if not one.head:
            return [(text, 1.0) for text in one.words(sign)]
        found = []
        for share, adverbs, said in ((1 - P_DENIED, "stronger", sign), (P_DENIED, "denied", -sign)):
            lines = weighted(self.words[adverbs])
            total = sum(weight for weight, _ in lines) * len(one.words(said))
            for weight, adverb in lines:
                ways = [one.head + (adverb and adverb + " ") + word for word in one.words(said)]
                found += [(way, share * weight / total) for way in ways]
        return found

    def argue(self, shares: Mapping[str, str], label: str) -> str:
        """Make one of the arguments for the label; its name."""
        every: list[tuple[str, str, float]] = []
        for name, share in shares.items():
            if name == "granted":
                ways = [f"{close[:-1]}, even though {{q}}." for close in self.closes(label)]
            elif name == "irony":
                ways = [f"{row.both} {getattr(row, label)}" for row in table(self.words["ironies"])]
            else:
                ways = self.facts if name == "facts" else self.lines(self.words[name])
            every += [(name, way, float(share) / len(ways)) for way in ways]
        name, way, _ = every[self.say(*[way for _, way, _ in every], weights=[weight for *_, weight in every])]
        if name == "facts":
            self.facts.remove(way)
        return name

    def closes(self, label: str) -> list[str]:
        return self.lines(self.words["closes"][label])

    def tell_fact(self, p: float) -> None:
        """Tell one of the facts, with probability p, and cross it off."""
        told = self.say("", *self.facts, weights=[1 - p, *[p / len(self.facts)] * len(self.facts)])
        if told:
            del self.facts[told - 1]


class Phrase:
    """A slot that is filled by something not yet spoken of in the review: first what, then how, or both at once.

    ways(aspect) is empty if the aspect does not fit.
    """

    def __init__(self, review: Review, ways: Callable[[Aspect], Ways], at_once: bool = False) -> None:
        self.review, self.ways, self.at_once = review, ways, at_once
        self.aspect: Aspect | None = None
        self.text = ""

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if self.text:
            return self.text
        options: list[tuple[Aspect, str, float]] = []
        if self.aspect is not None:
            options = [(self.aspect, text, weight) for text, weight in self.ways(self.aspect)]
        for one, weight in self.review.topics if self.aspect is None else []:
            if self.at_once:
                options += [(one, text, weight * share) for text, share in self.ways(one)]
            elif self.ways(one):
                options.append((one, "", weight))
        return Ask(options, [weight for *_, weight in options], self.head, self.take)

    def head(self, option: tuple[Aspect, str, float]) -> str:
        one, text, _ = option
        return text or one.head or self.ways(one)[0][0]

    def take(self, option: tuple[Aspect, str, float]) -> None:
        self.aspect, self.text, _ = option
        self.review.topics = [topic for topic in self.review.topics if topic[0] != self.aspect]

    def opposites(self) -> list[str]:
        """What could be said instead, of the opposite."""
        assert self.aspect is not None
        return [y for x, y in self.aspect.opposites() if self.aspect.head + x == self.text]


def name_bare(sign: int, one: Aspect) -> Ways:
    """Good or bad things without a verb: "stale bread", "a slow waiter"."""
    single = one.head.endswith(("is ", "was ")) and one.bare not in COMMON["mass"] + COMMON["uncounted"]
    words = one.words(sign) if one.bare else []
    return [("a " * single + f"{word} {one.bare}", 1 / len(words)) for word in words]


def say_middling(one: Aspect) -> Ways:
    """A clause that is neither good nor bad."""
    if not one.head:
        return []
    found = [(one.head + word, 3.0) for word in COMMON["middling_words"]]
    pairs = one.opposites()
    for x, y in pairs:
        found.append((f"{one.head}neither {x} nor {y}", 12.0 / len(pairs)))
        found.append((f"{one.head}not {x}, but not {y} either", 12.0 / len(pairs)))
    return found


def say_varying(one: Aspect) -> Ways:
    """A clause whose opposite goes into the slot `other`: "the soup was hot" (on others "cold")."""
    if one.bare not in COMMON["varying"]:
        return []
    return [(one.head + word, 1.0) for word in dict.fromkeys(word for pair in one.opposites() for word in pair)]


def fill_shop(t: Review) -> None:
    """Fill the slots that depend on the kind of shop."""
    kind = SHOPS[t["kind"]]
    goods = dict(one.rsplit(" ", 1) for one in kind.goods.split(", "))
    t.set(kinds=lexicon.plural(kind.kind), keeper=kind.keeper, goods=Lazy(list(goods)))
    special = []
    for noun, quality in goods.items():
        special.append(aspect(f"the {noun}", "is" if noun in COMMON["mass"] else "are", *QUALITIES[quality][1:]))
    t.talk_of(special)


def fill_meal(t: Review) -> None:
    kind, quality, _ = DISHES[t["dish"]]
    sweet = kind in t.words["sweets"]
    t.set(kind=kind, kinds=lexicon.plural(kind), side=Lazy(t.words["sweet_sides" if sweet else "sides"]))
    special = [aspect(f"the {kind}", "was", *QUALITIES[quality][1:])]
    t.talk_of(special, t.words["not_with_sweets"] if sweet else ())


def fill_book(t: Review) -> None:
    t["kinds"] = Lazy([lexicon.plural(kind) for kind in t.words["slots"]["kind"]])
    t.talk_of([])


def review(teller: Teller) -> str:
    """Write one review; its label."""
    topic, fill = teller.choose((("shops", fill_shop), ("meals", fill_meal), ("books", fill_book)))
    t = Review(teller, TOPICS[topic])
    been = t.begin()
    fill(t)
    label = teller.choose(list(SIGN))
    sign = SIGN[label]
    mild = teller.choose(("", "mild", "bare_contrast"), (0.9, 0.05, 0.05) if sign else (0.92, 0.04, 0.04))
    if mild:
        t.side(sign or teller.choose((1, -1)))
        t.say(*t.lines(t.words[mild]))
        t.tell_fact(0.2)
    elif sign:
        t.side(sign)
        name = t.argue(t.words["taken"], label)
        if name == "turned":
            t.gap = " "
            t.say(*t.closes(label))
        t.side(sign)
        t.maybe("{p}.", "<And|Besides,|What is more,> {p}.", p=0.2)
        t.tell_fact(0.1)
        if name not in ("turned", "granted"):
            t.maybe(*t.closes(label), p=0.45)
    else:
        t.side(1)
        name = t.argue(t.words["untaken"] | ({} if been else t.words["unvisited"]), label)
        if name == "facts":
            t.tell_fact(1.0)
            t.tell_fact(0.3)
        t.tell_fact(0.2)
        t.side(1)
        t.maybe("{mid}.", p=0.2)
        t.maybe(*t.closes(label), p=0.3)
    return label


REVIEWS = Table("reviews", ("text",), tuple(SIGN), review, train_size=3000, test_size=1000)
