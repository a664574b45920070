"""reviews.csv: short reviews of shops, meals and books; the label is what the writer makes of it, all in all.

Each review takes a side (or none) by one argument: plain praise or blame, a contrast, hearsay believed or not, a
change, a comparison, advice, or irony that only its end gives away. The same words serve both sides, since adjectives
are often denied, and what is granted ("true, the soup was thin, but ...") counts for less than what it is granted for.
A few mild texts ("It could be worse.") come with either of two labels; what that costs is known exactly (see
labelled.py).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import lexicon
from choice import Teller
from labelled import Table
from telling import Ask, Lazy, Story
from words import load, table

SIGN = {"negative": -1, "neutral": 0, "positive": 1}
COMMON = load("reviews")
KIN = table(COMMON["kin"])
QUALITIES = {row.name: (row.good, row.bad) for row in table(COMMON["qualities"])}
OPPOSED = {tuple(pair.split("/")) for pair in COMMON["opposites"]}
HOURS = lexicon.NUMBERS["numbers"][5:12]

STRONGER = (("", 6.0), ("really ", 1.5), ("truly ", 1.0), ("simply ", 1.0))
DENIED = (("not ", 3.0), ("anything but ", 1.5), ("far from ", 1.5), ("by no means ", 1.0), ("not in the least ", 1.0))
NEVER = ("never ", 2.0)  # of what one sees more than once
P_DENIED = 0.45


@dataclass(frozen=True, eq=False)
class Aspect:
    """Something that is good or bad. of[1] are its good words, of[-1] the bad ones: adjectives, or whole clauses."""

    head: str
    of: dict[int, tuple[str, ...]]
    bare: str = ""  # the noun without its article, to be put after an adjective; "" where that is not said


def split(cell: str) -> tuple[str, ...]:
    return tuple(cell.split(", "))


@functools.cache
def aspect(noun: str, verb: str, good: str, bad: str) -> Aspect:
    return Aspect(f"{noun} {verb} ", {1: split(good), -1: split(bad)}, noun.removeprefix("the "))


@functools.cache
def clauses(block: str) -> list[Aspect]:
    return [Aspect("", {1: (row.good,), -1: (row.bad,)}) for row in table(block)]


def opposites(aspect: Aspect) -> list[tuple[str, str]]:
    """(good, bad) of an aspect, where the one is the opposite of the other."""
    return [(good, bad) for good in aspect.of[1] for bad in aspect.of[-1] if (good, bad) in OPPOSED]


def both_ways(aspect: Aspect) -> list[tuple[str, str]]:
    pairs = opposites(aspect)
    return pairs + [pair[::-1] for pair in pairs]


class Dish(NamedTuple):
    """A dish and its kind: pea, soup."""

    name: str
    kind: str
    quality: str

    def __str__(self) -> str:
        return self.name if self.name.endswith(self.kind) else f"{self.name} {self.kind}"


Arguments = dict[str, tuple[float, list[str]]]


class Domain:
    """What is reviewed: how it is named, what there is to say of it, and the ways of arguing.

    taken[sign] and untaken are the arguments of who takes a side or none: name -> (probability, ways of saying it);
    unvisited are those of who was not there.
    """

    def __init__(self, topic: str) -> None:
        self.words = words = COMMON | load(f"reviews_{topic}")
        starts = self.written(words["starts"].replace("{x}", words["subject"]))
        self.starts = [f"{words['subject']}.", *starts]
        self.start_weights = (0.4, *[0.6 / len(starts)] * len(starts))
        self.facts, self.mild, self.bare_contrast = (self.written(words[k]) for k in ("facts", "mild", "bare_contrast"))
        self.closes = {SIGN[label]: self.written(block) for label, block in words["closes"].items()}
        ironies = {1: "good", -1: "bad"}
        self.taken = {}
        for sign, end in ironies.items():
            own = {
                "granted": [f"{close[:-1]}, even though {{q}}." for close in self.closes[sign]],
                "irony": [f"{row.both} {getattr(row, end)}" for row in table(words["ironies"])],
            }
            self.taken[sign] = self.arguments("taken", own)
        self.untaken = self.arguments("untaken", {})
        self.unvisited = self.untaken | self.arguments("unvisited", {})

    def written(self, block: str) -> list[str]:
        """The lines of a block, with what stands for other phrases written out."""
        for name in ("hears", "turns", "undecided"):
            block = block.replace(f"{{{name}}}", self.words[name])
        return block.splitlines()

    def arguments(self, kind: str, own: dict[str, list[str]]) -> Arguments:
        return {
            name: (float(p), own.get(name) or self.written(self.words[name])) for name, p in self.words[kind].items()
        }


SHOP, MEAL, BOOK = (Domain(topic) for topic in ("shops", "meals", "books"))
SHOPS = {row.kind: row for row in table(SHOP.words["kinds"])}
DISHES = [Dish(name, row.kind, row.quality) for row in table(MEAL.words["kinds"]) for name in split(row.names)]


class Review(Story):
    """One review while it is written. p slots are clauses on the writer's side, q slots on the other; see `side`."""

    def __init__(self, teller: Teller) -> None:
        super().__init__(teller)
        self.used: set[Aspect] = set()
        self.topics: list[tuple[Aspect, float]] = []
        self.denied: tuple[tuple[str, float], ...] = DENIED
        self.set(
            kin=Lazy(KIN),
            kin2=Lazy(lambda: [one for one in KIN if one is not self["kin"]]),
            kin3=Lazy(lambda: [one for one in KIN if one is not self.slots["kin"]]),
            day=Lazy(lexicon.DAYS),
            hour=Lazy(HOURS[:-2]),
            hour2=Lazy(lambda: HOURS[HOURS.index(self["hour"]) + 1 :][:3]),
            name=Lazy(lexicon.WOMEN + lexicon.MEN),
            man=Lazy(lexicon.MEN),
            trade=Lazy(lexicon.TRADES, "zipf"),
            trade2=Lazy(lambda: [one for one in lexicon.TRADES if one != self.slots["trade"]], "zipf"),
        )

    def begin(self, domain: Domain) -> bool:
        """Begin the review; whether it says that the writer was there."""
        words = domain.words
        self.set(done=words["done"], so=words["so"], was=words["was"])
        self.likes = words["likes"]
        return self.say(*domain.starts, weights=domain.start_weights) > 0

    def talk_of(self, special: list[Aspect], common: list[Aspect], clauses: list[Aspect]) -> None:
        self.topics = [(one, 3.0) for one in special] + [(one, 1.0) for one in common] + [(one, 0.6) for one in clauses]

    def side(self, sign: int) -> None:
        """Fill the slots whose words depend on the side taken."""
        self["easy"] = Lazy(("not easy", "hard") if sign > 0 else ("easy", "not hard"))
        self["better"], self["unbetter"] = ("better", "worse")[::sign]
        self["dislikes"], self["likes"] = self.likes[::sign]
        for slot in ("p", "p2", "p3", "q", "q2"):
            self[slot] = Said(self, sign if slot[0] == "p" else -sign)
        for slot in ("bp", "bp2", "bq", "bq2"):
            self[slot] = Bare(self, sign if slot[1] == "p" else -sign)
        self.set(mid=Middling(self), mid2=Middling(self), varying=Varying(self))

    def left(self, phrase: "Phrase") -> list[tuple[Aspect, float]]:
        """What has not been spoken of and can be said in this phrase."""
        return [(one, weight) for one, weight in self.topics if one not in self.used and phrase.fits(one)]


class Phrase:
    """A slot that is filled by something not yet spoken of in the review: first what, then how."""

    def __init__(self, review: Review, sign: int = 0) -> None:
        self.review, self.sign = review, sign
        self.aspect: Aspect | None = None
        self.text = ""

    def fits(self, aspect: Aspect) -> bool:
        return True

    def ways(self, aspect: Aspect) -> list[tuple[str, float]]:
        """What can be written of the aspect, and how often."""
        raise NotImplementedError

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if self.text:
            return self.text
        if self.aspect is None:
            topics = self.review.left(self)
            return Ask(
                [one for one, _ in topics], [w for _, w in topics], lambda i: self.begins(topics[i][0]), self.take
            )
        ways = self.ways(self.aspect)
        return Ask([text for text, _ in ways], [w for _, w in ways], lambda i: ways[i][0], self.put)

    def begins(self, aspect: Aspect) -> str:
        return aspect.head or aspect.of[self.sign][0]

    def take(self, aspect: Aspect) -> None:
        self.aspect = aspect
        self.review.used.add(aspect)

    def put(self, text: str) -> None:
        self.text = text


class Said(Phrase):
    """A clause that is good (sign 1) or bad (-1), outright or by denying the opposite."""

    def ways(self, aspect: Aspect) -> list[tuple[str, float]]:
        if not aspect.head:
            return [(text, 1.0) for text in aspect.of[self.sign]]
        found = []
        for share, adverbs, sign in ((1 - P_DENIED, STRONGER, self.sign), (P_DENIED, self.review.denied, -self.sign)):
            total = sum(weight for _, weight in adverbs) * len(aspect.of[sign])
            found += [(aspect.head + a + x, share * w / total) for a, w in adverbs for x in aspect.of[sign]]
        return found


class Bare(Phrase):
    """Good or bad things without a verb: "stale bread", "a slow waiter"."""

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        if self.text:
            return self.text
        found = []
        for aspect, weight in self.review.left(self):
            single = aspect.head.endswith(("is ", "was ")) and aspect.bare not in COMMON["mass"] + COMMON["uncounted"]
            for word in aspect.of[self.sign]:
                text = "a " * single + f"{word} {aspect.bare}"
                found.append((aspect, text, weight / len(aspect.of[self.sign])))
        return Ask(found, [weight for _, _, weight in found], lambda i: found[i][1], self.take_both)

    def fits(self, aspect: Aspect) -> bool:
        return bool(aspect.bare)

    def take_both(self, way: tuple[Aspect, str, float]) -> None:
        self.take(way[0])
        self.put(way[1])


class Middling(Phrase):
    """A clause that is neither good nor bad."""

    def fits(self, aspect: Aspect) -> bool:
        return bool(aspect.head)

    def ways(self, aspect: Aspect) -> list[tuple[str, float]]:
        found = [
            (aspect.head + word, 3.0) for word in ("nothing special", "as one would expect", "average", "ordinary")
        ]
        pairs = both_ways(aspect)
        for x, y in pairs:
            found.append((f"{aspect.head}neither {x} nor {y}", 12.0 / len(pairs)))
            found.append((f"{aspect.head}not {x}, but not {y} either", 12.0 / len(pairs)))
        return found


class Varying(Phrase):
    """A clause whose opposite goes into the slot `other`: "the soup was hot" (on others "cold")."""

    def fits(self, aspect: Aspect) -> bool:
        return aspect.bare in COMMON["varying"] and bool(opposites(aspect))

    def ways(self, aspect: Aspect) -> list[tuple[str, float]]:
        said = dict.fromkeys(word for pair in opposites(aspect) for word in pair)
        return [(aspect.head + word, 1.0) for word in said]

    def put(self, text: str) -> None:
        assert self.aspect is not None
        self.text = text
        word = text.removeprefix(self.aspect.head)
        self.review.set(other=Lazy([y for x, y in both_ways(self.aspect) if x == word]))


def shop(t: Review) -> tuple[Domain, bool]:
    words = SHOP.words
    t.denied = (*DENIED, NEVER)
    t.set(kind=Lazy(list(SHOPS)), spot=Lazy(words["places"]))
    been = t.begin(SHOP)
    kind = SHOPS[t["kind"]]
    goods = dict(one.rsplit(" ", 1) for one in split(kind.goods))
    special = [aspect(f"the {n}", "is" if n in COMMON["mass"] else "are", *QUALITIES[q]) for n, q in goods.items()]
    common = [aspect(*row) for row in table(words["aspects"].replace("{keeper}", kind.keeper))]
    t.talk_of(special, common, clauses(words["clauses"]))
    t.set(kinds=lexicon.plural(kind.kind), keeper=kind.keeper, goods=Lazy(list(goods)))
    return SHOP, been


def meal(t: Review) -> tuple[Domain, bool]:
    words = MEAL.words
    t.set(dish=Lazy(DISHES), colour=Lazy(words["inn_words"]), beast=Lazy(words["inn_beasts"]))
    been = t.begin(MEAL)
    _, kind, quality = t["dish"]
    sweet = kind in words["sweets"]
    t["side"] = Lazy(words["sweet_sides" if sweet else "sides"])
    common = [aspect(*row) for row in table(words["aspects"])]
    t.talk_of(
        [aspect(f"the {kind}", "was", *QUALITIES[quality])],
        [one for one in common if not sweet or one.bare not in words["not_with_sweets"]],
        [one for one in clauses(words["clauses"]) if not sweet or "salt" not in one.of[1][0]],
    )
    t.set(kind=kind, kinds=lexicon.plural(kind))
    return MEAL, been


def book(t: Review) -> tuple[Domain, bool]:
    words = BOOK.words
    t.denied = (*DENIED, NEVER)
    t.set(word=Lazy(words["title_words"]), noun=Lazy(words["title_nouns"]), place=Lazy(words["title_places"]))
    t.set(Trade=Lazy([trade.capitalize() for trade in lexicon.TRADES], "zipf"))
    been = t.begin(BOOK)
    t.talk_of([], [aspect(*row) for row in table(words["aspects"])], clauses(words["clauses"]))
    t.set(kind=Lazy(words["kinds"]), kinds=Lazy([lexicon.plural(kind) for kind in words["kinds"]]))
    return BOOK, been


def argue(t: Review, arguments: Arguments) -> tuple[str, str]:
    """Make one of the arguments; its name, and the template that was used."""
    every = [(name, way, p / len(ways)) for name, (p, ways) in arguments.items() for way in ways]
    which = t.say(*[way for _, way, _ in every], weights=[p for _, _, p in every])
    return every[which][0], every[which][1]


def tell_fact(t: Review, facts: list[str], p: float) -> None:
    """Tell one of the facts, with probability p, and cross it off."""
    told = t.say("", *facts, weights=[1 - p, *[p / len(facts)] * len(facts)])
    if told:
        del facts[told - 1]


Subject = Callable[[Review], tuple[Domain, bool]]


def review(teller: Teller, subjects: Sequence[Subject] = (shop, meal, book)) -> str:
    """Write one review of a subject; its label."""
    t = Review(teller)
    domain, been = teller.choose(subjects)(t)
    facts = list(domain.facts)
    label = teller.choose(list(SIGN))
    sign = SIGN[label]
    mild = teller.choose((None, domain.mild, domain.bare_contrast), (0.9, 0.05, 0.05) if sign else (0.92, 0.04, 0.04))
    if mild:
        t.side(sign or teller.choose((1, -1)))
        t.say(*mild)
        tell_fact(t, facts, 0.2)
    elif sign:
        t.side(sign)
        name, _ = argue(t, domain.taken[sign])
        if name == "turned":
            t.gap = " "
            t.say(*domain.closes[sign])
        t.side(sign)
        t.maybe("{p}.", "<And|Besides,|What is more,> {p}.", p=0.2)
        tell_fact(t, facts, 0.1)
        if name not in ("turned", "granted"):
            t.maybe(*domain.closes[sign], p=0.45)
    else:
        t.side(1)
        name, way = argue(t, domain.untaken if been else domain.unvisited)
        if name == "facts":
            facts.remove(way)
            tell_fact(t, facts, 1.0)
            tell_fact(t, facts, 0.3)
        tell_fact(t, facts, 0.2)
        t.side(1)
        t.maybe("{mid}.", p=0.2)
        t.maybe(*domain.closes[0], p=0.3)
    return label


REVIEWS = Table("reviews", ("text",), ("text",), tuple(SIGN), review, train_size=3000, test_size=1000, seed=7)
