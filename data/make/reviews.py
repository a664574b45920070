"""reviews.csv: short reviews of shops, meals and books; the label is what the writer makes of it, all in all.

Each review takes a side (or none) by one argument: plain praise or blame, a contrast, hearsay believed or not, a change,
a comparison, advice, or irony that only its end gives away. The same words serve both sides, since adjectives are often
denied, and what is granted ("true, the soup was thin, but ...") counts for less than what it is granted for. A few mild
texts ("It could be worse.") come with either of two labels; what that costs is known exactly (see labelled.py).

    python data/make/reviews.py [FOLDER]      writes reviews.csv and reviews.test.csv
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lexicon
import reviews_words as words
from choice import Teller
from labelled import Table
from reviews_arguments import BARE_CONTRAST, BOOK, MEAL, SHOP, Arguments, Domain
from reviews_words import Aspect
from telling import Ask, Lazy, Story, rows

SIGN = {"negative": -1, "neutral": 0, "positive": 1}

KIN = rows(
    "noun himself",
    """
    sister | herself
    aunt | herself
    uncle | himself
    brother | himself
    grandmother | herself
    grandfather | himself
    daughter | herself
    son | himself
    mother | herself
    father | himself
    """,
)
HOURS = lexicon.NUMBERS[5:12]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

STRONGER = (("", 6.0), ("really ", 1.5), ("truly ", 1.0), ("simply ", 1.0))
DENIED = (("not ", 3.0), ("anything but ", 1.5), ("far from ", 1.5), ("by no means ", 1.0), ("not in the least ", 1.0))
NEVER = ("never ", 2.0)  # of what one sees more than once
P_DENIED = 0.45


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
            day=Lazy(DAYS),
            hour=Lazy(HOURS[:-2]),
            hour2=Lazy(lambda: HOURS[HOURS.index(self["hour"]) + 1 :][:3]),
            name=Lazy(lexicon.WOMEN + lexicon.MEN),
            man=Lazy(lexicon.MEN),
            trade=Lazy(lexicon.TRADES, "zipf"),
            trade2=Lazy(lambda: [one for one in lexicon.TRADES if one != self.slots["trade"]], "zipf"),
        )

    def talk_of(self, special: list[Aspect], common: list[Aspect], clauses: list[Aspect]) -> None:
        self.topics = [(one, 3.0) for one in special] + [(one, 1.0) for one in common] + [(one, 0.6) for one in clauses]

    def side(self, sign: int) -> None:
        """Fill the slots whose words depend on the side taken."""
        self["easy"] = Lazy(("not easy", "hard") if sign > 0 else ("easy", "not hard"))
        good = {"better": ("worse", "better"), "loves": ("hates", "loves"), "loved": ("hated", "loved")}
        self.set(
            p=Said(self, sign), p2=Said(self, sign), p3=Said(self, sign), q=Said(self, -sign), q2=Said(self, -sign)
        )
        self.set(bp=Bare(self, sign), bp2=Bare(self, sign), bq=Bare(self, -sign), bq2=Bare(self, -sign))
        self.set(mid=Middling(self), mid2=Middling(self), varying=Varying(self))
        for slot, pair in good.items():
            self.slots[slot], self.slots[f"un{slot}"] = pair[sign > 0], pair[sign < 0]

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
            single = aspect.head.endswith(("is ", "was ")) and aspect.bare not in words.UNCOUNTED
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
        pairs = words.opposites(aspect)
        for x, y in pairs + [pair[::-1] for pair in pairs]:
            found.append((f"{aspect.head}neither {x} nor {y}", 6.0 / len(pairs)))
            found.append((f"{aspect.head}not {x}, but not {y} either", 6.0 / len(pairs)))
        return found


class Varying(Phrase):
    """A clause whose opposite goes into the slot `other`: "the soup was hot" (on others "cold")."""

    def fits(self, aspect: Aspect) -> bool:
        return aspect.bare in words.VARYING and bool(words.opposites(aspect))

    def ways(self, aspect: Aspect) -> list[tuple[str, float]]:
        said = dict.fromkeys(word for pair in words.opposites(aspect) for word in pair)
        return [(aspect.head + word, 1.0) for word in said]

    def put(self, text: str) -> None:
        assert self.aspect is not None
        self.text = text
        word = text.removeprefix(self.aspect.head)
        pairs = words.opposites(self.aspect)
        self.review.set(other=Lazy([y for x, y in pairs + [pair[::-1] for pair in pairs] if x == word]))


DISHES = [words.Dish(name, kind) for kind, (names, _) in words.DISHES.items() for name in words.split(names)]


def start(t: Review, domain: Domain) -> bool:
    """Begin the review; whether it says that the writer was there."""
    return t.say(*domain.starts, weights=domain.start_weights) > 0


def shop(t: Review) -> tuple[Domain, bool]:
    t.denied = (*DENIED, NEVER)
    t.set(kind=Lazy(list(words.SHOPS)), spot=Lazy(words.SPOTS))
    been = start(t, SHOP)
    kind = t["kind"]
    keeper, goods = words.SHOPS[kind]
    special = words.aspects(
        "\n".join(f"the {n} | {'is' if n in words.MASS else 'are'} | {a[0]} | {a[1]}" for n, a in goods)
    )
    t.talk_of(special, words.aspects(words.SHOP.replace("{keeper}", keeper)), words.clauses(words.SHOP_CLAUSES))
    t.set(kinds=lexicon.plural(kind), keeper=keeper, goods=Lazy([noun for noun, _ in goods]))
    return SHOP, been


def meal(t: Review) -> tuple[Domain, bool]:
    t.set(dish=Lazy(DISHES), colour=Lazy(words.INN_WORDS), beast=Lazy(words.INN_BEASTS))
    been = start(t, MEAL)
    kind = t["dish"].kind
    good, bad = words.DISHES[kind][1]
    sweet = kind in words.SWEETS
    t["side"] = Lazy(("cream", "custard", "a cup of tea") if sweet else ("bread", "cabbage", "a glass of cider"))
    t.talk_of(
        words.aspects(f"the {kind} | was | {good} | {bad}"),
        [one for one in words.aspects(words.MEAL) if not sweet or one.bare not in words.NOT_WITH_SWEETS],
        [one for one in words.clauses(words.MEAL_CLAUSES) if not sweet or "salt" not in one.of[1][0]],
    )
    t.set(kind=kind, kinds="trout" if kind == "trout" else lexicon.plural(kind))
    return MEAL, been


def book(t: Review) -> tuple[Domain, bool]:
    t.denied = (*DENIED, NEVER)
    t.set(word=Lazy(words.TITLE_WORDS), noun=Lazy(words.TITLE_NOUNS), place=Lazy(words.TITLE_PLACES))
    t.set(Trade=Lazy([trade.capitalize() for trade in lexicon.TRADES], "zipf"))
    been = start(t, BOOK)
    kind = Lazy(words.BOOK_KINDS)
    t.talk_of([], words.aspects(words.BOOK), words.clauses(words.BOOK_CLAUSES))
    t.set(kind=kind, kinds=Lazy([lexicon.plural(kind) for kind in words.BOOK_KINDS]))
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
    mild = teller.choose((None, domain.mild, BARE_CONTRAST), (0.9, 0.05, 0.05) if sign else (0.92, 0.04, 0.04))
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


def limits() -> dict[str, dict[str, Any]]:
    """What is known of each file: see labelled.py."""
    return {name: limit for name, _, limit in REVIEWS.files()}


if __name__ == "__main__":
    REVIEWS.write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
