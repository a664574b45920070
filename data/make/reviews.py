"""reviews.csv: short reviews of shops, meals and books; the label is what the writer makes of it, all in all.

Each review takes a side (or none) by one argument: plain praise or blame, a contrast, hearsay believed or not, a change,
a comparison, advice, or irony that only its end gives away. The same words serve both sides, since adjectives are often
denied, and what is granted ("true, the soup was thin, but ...") counts for less than what it is granted for. A few mild
texts ("It could be worse.") come with either of two labels; what that costs is known exactly (see labelled.py).

    python data/make/reviews.py [FOLDER]      writes reviews.csv and reviews.test.csv
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lexicon
import reviews_words as words
from choice import Teller
from labelled import Table
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
            day=Lazy(DAYS),
            hour=Lazy(HOURS[:-2]),
            hour2=Lazy(lambda: HOURS[HOURS.index(self["hour"]) + 1 :][:3]),
            name=Lazy(lexicon.WOMEN + lexicon.MEN, "zipf"),
            trade=Lazy(lexicon.TRADES, "zipf"),
        )

    def talk_of(self, special: list[Aspect], common: list[Aspect], clauses: list[Aspect]) -> None:
        self.topics = [(one, 3.0) for one in special] + [(one, 1.0) for one in common] + [(one, 0.6) for one in clauses]

    def side(self, sign: int) -> None:
        """Fill the slots whose words depend on the side taken."""
        good = {"better": ("worse", "better"), "loves": ("hates", "loves"), "loved": ("hated", "loved")}
        self.set(
            p=Said(self, sign), p2=Said(self, sign), p3=Said(self, sign), q=Said(self, -sign), q2=Said(self, -sign)
        )
        self.set(bp=Bare(self, sign), bp2=Bare(self, sign), bq=Bare(self, -sign), bq2=Bare(self, -sign))
        self.set(mid=Middling(self), mid2=Middling(self))
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
        for one, other in ((1, -1), (-1, 1)):
            for x in aspect.of[one]:
                for y in aspect.of[other]:
                    share = 6.0 / (len(aspect.of[1]) * len(aspect.of[-1]))
                    found.append((f"{aspect.head}neither {x} nor {y}", share))
                    found.append((f"{aspect.head}not {x}, but not {y} either", share))
        return found


# --- arguments ------------------------------------------------------------------------------------------------------

PLAIN = ("{p}<.|, and {p2}.|. {p2}.|, {p2}, and {p3}.>",)
CONTRAST = (
    "{q}, but <{p}, and <that is what counts|for me that settles it|nothing matters more to me>"
    "|that <hardly matters|is a small thing|counts for little>, because {p}>.",
    "<It is true that|True,|I grant that> {q}. But {p}, and I care more about that.",
    "{p}, and it <changes nothing|matters little|makes no difference> that {q}.",
    "That {q} <cannot change my mind|is not the point|is beside the point>: {p}.",
    "<Never mind|What does it matter> that {q}: {p}.",
)
HEARSAY = (
    "<People say|My {kin} told me|I had heard|I had been told|The neighbours say|In the village they say> that "
    "<{q}. <I cannot agree|That is <quite wrong|nonsense|not true>|I found the opposite|Not a word of it is true>"
    "|{p}. <I can only agree|That is <quite right|no exaggeration|true>|I found the same|Every word of it is true>>.",
)
ADVICE = (
    "If you like {bp} and {bp2}, <go there|this is the place to go|waste no time>.",
    "If you like {bq} and {bq2}, <go elsewhere|this is not the place to go|do not waste your time>.",
    "{bq}? {bq2}? <Not here|Nothing of the kind|Not a trace of either>.",
    "{bp}? {bp2}? <Both are here|You will find both|Enough of both>.",
    "I <expected|had expected> {bp} and {bp2}, and that is <just|exactly> what I <got|found>.",
    "I <expected|had expected> {bq} and {bq2}, and <found nothing of the kind|I was quite wrong>.",
)
BARE_CONTRAST = ("{q}, but {p}.", "{p}, <although|even if> {q}.")
TURNS = "<And yet|Still,|All the same,|Even so,|In spite of all that,>"
BALANCE = tuple(
    contrast
    + " <One makes up for the other|The one balances the other|I cannot say which matters more|I am of two minds>."
    for contrast in ("{q}, but {p}.", "{p}, but {q}.", "{p}, and {q}.", "{q}, and {p}.")
)
MIDDLING = ("{mid}.", "{mid}, and {mid2}.", "{mid}. {mid2}.")
OPINIONS = (
    "My {kin} thinks that {p}, my {kin2} that {q}. <Both are right in a way|I can understand both|I side with neither>.",
    "My {kin} thinks that {q}, my {kin2} that {p}. <Both are right in a way|I can understand both|I side with neither>.",
    "Some say that {p}, others that {q}. <I would say neither|It lies in between|I find it hard to say>.",
    "Some say that {q}, others that {p}. <I would say neither|It lies in between|I find it hard to say>.",
)


TURNED = (f"{{q}}<|, and {{q2}}>. {TURNS}", "Although {q},", "<That|The fact that> {q} does not matter to me:")
"""These are followed by a close that goes the other way."""


class Domain:
    """What is reviewed: how it is named, what there is to say of it, and the ways of arguing that are its own.

    taken[sign] and untaken are the arguments of who takes a side or none: name -> (probability, ways of saying it).
    """

    def __init__(
        self,
        subject: str,
        starts: Sequence[str],
        facts: Sequence[str],
        closes: dict[int, Sequence[str]],
        ironies: str,
        done: str,
        loves: str,
        change: tuple[str, ...],
        sometimes: tuple[str, ...],
        unknown: str,
    ) -> None:
        self.starts = (f"{subject}.", *[start.replace("{x}", subject) for start in starts])
        self.start_weights = (0.4, *[0.6 / len(starts)] * len(starts))
        self.facts, self.closes = list(facts), closes
        self.mild = ("It <could|might> be {unbetter}.", f"I have {done} {{unbetter}} {{kinds}}.", "One could do {unbetter}.")
        so = "so did I" if loves == "loved" else "so do I"
        compare = (
            f"<I have never {done}|It would be hard to find|I do not know> a {{better}} {{kind}}.",
            "It <is not hard|would be easy> to find a {unbetter} {kind}.",
            "There is no {better} {kind} <in the village|for miles around|between here and the sea>.",
            f"I have {done} {{better}} {{kinds}}, but <not often|I cannot remember when|you could count them on one hand>.",
            f"I have {done} {{unbetter}} {{kinds}}, and <plenty of them|many a time|more often than I can count>.",
            f"My {{kin}} {{un{loves}}} it, <but I cannot see why|and is quite wrong|but then, my {{kin}} has no taste>.",
            f"My {{kin}} {{{loves}}} it, <and {so}|and I can see why|and is quite right>.",
        )
        self.taken: dict[int, Arguments] = {}
        for sign in (1, -1):
            ends = {1: 1, -1: 2}
            self.taken[sign] = {
                "plain": (0.14, PLAIN),
                "contrast": (0.17, CONTRAST),
                "turned": (0.08, TURNED),
                "granted": (0.07, tuple(f"{close[:-1]}, even though {{q}}." for close in closes[sign])),
                "hearsay": (0.11, HEARSAY),
                "change": (0.08, change),
                "compare": (0.12, compare),
                "advice": (0.12, ADVICE),
                "irony": (0.11, tuple(f"{row[0]} {row[ends[sign]]}" for row in words.lines(ironies))),
            }
        same = (f"I have {done} better {{kinds}}, and I have {done} worse ones.", "It is neither better nor worse than others.")
        self.untaken: Arguments = {
            "balance": (0.27, BALANCE),
            "middling": (0.24, MIDDLING),
            "sometimes": (0.15, sometimes),
            "opinions": (0.13, OPINIONS),
            "same": (0.06, same),
            "facts": (0.15, tuple(facts)),
        }
        hears = f"<People say|I hear|My {{kin}} says> that <{{p}}|{{q}}>{unknown}"
        self.unvisited: Arguments = self.untaken | {"unknown": (0.07, (hears,))}


Arguments = dict[str, tuple[float, tuple[str, ...]]]

SHOP = Domain(
    "<the {kind} {spot}|{name}'s {kind} {spot}|{name}'s {kind}>",
    words.SHOP_STARTS,
    words.SHOP_FACTS,
    words.SHOP_CLOSES,
    words.SHOP_IRONY,
    "been to",
    "loves",
    (
        "<A year ago|In the old days|Last spring> one could say that "
        "<{q}. <Not any more|Those days are <over|gone>>|{q}. <Now|Today> {p}|{p}. <One still can|Nothing has changed>>.",
    ),
    ("On some days {p}, on others {q}.", "In the morning {p}, in the afternoon {q}.", "On {day}s {q}, but on other days {p}."),
    ", but I have never been inside.",
)
MEAL = Domain(
    "the {dish} at the {colour} {beast}",
    words.MEAL_STARTS,
    words.MEAL_FACTS,
    words.MEAL_CLOSES,
    words.MEAL_IRONY,
    "eaten",
    "loved",
    (
        "The last time <{q}. <This time|Now> {p}|{p}, and <nothing has changed|it was the same again>>.",
        "I thought at first that {q}. <I was wrong|Not so>.",
    ),
    ("One evening {p}, the next {q}.", "At our end of the table {p}, at the other end {q}.", "On {day} {q}, on the day after {p}."),
    ", but I have not tried it myself.",
)
BOOK = Domain(
    "<The {word} {noun}|The {noun} {place}|{name} and the {noun}|A {noun} for {name}|The {Trade}'s {noun}>",
    words.BOOK_STARTS,
    words.BOOK_FACTS,
    words.BOOK_CLOSES,
    words.BOOK_IRONY,
    "read",
    "loves",
    (
        "For a few pages I thought that {q}. I was <wrong|mistaken>.",
        "After a few pages I thought that {p}, and I <was not wrong|never had to change my mind>.",
        "At the first reading I found that {q}. At the second I had to take it back.",
    ),
    ("In the first half {p}, in the second {q}.", "In the first half {q}, in the second {p}.", "On some pages {q}, on others {p}."),
    ", but I have not read it myself.",
)
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
    special = words.aspects("\n".join(f"the {n} | {'is' if n in words.MASS else 'are'} | {a[0]} | {a[1]}" for n, a in goods))
    t.talk_of(special, words.aspects(words.SHOP.replace("{keeper}", keeper)), words.clauses(words.SHOP_CLAUSES))
    t.set(kinds=lexicon.plural(kind), keeper=keeper, goods=Lazy([noun for noun, _ in goods]))
    return SHOP, been


def meal(t: Review) -> tuple[Domain, bool]:
    t.set(dish=Lazy(DISHES), colour=Lazy(words.INN_WORDS), beast=Lazy(words.INN_BEASTS))
    been = start(t, MEAL)
    kind = t["dish"].kind
    good, bad = words.DISHES[kind][1]
    t.talk_of(words.aspects(f"the {kind} | was | {good} | {bad}"), words.aspects(words.MEAL), words.clauses(words.MEAL_CLAUSES))
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


def review(teller: Teller) -> str:
    """Write one review; its label."""
    t = Review(teller)
    domain, been = teller.choose((shop, meal, book))(t)
    facts = list(domain.facts)
    label = teller.choose(list(SIGN))
    sign = SIGN[label]
    mild = teller.choose((None, domain.mild, BARE_CONTRAST), (0.9, 0.05, 0.05) if sign else (0.92, 0.04, 0.04))
    if mild:
        t.side(sign or teller.choose((1, -1)))
        t.say(*mild)
        tell_fact(t, facts, 0.3)
    elif sign:
        t.side(sign)
        name, _ = argue(t, domain.taken[sign])
        if name == "turned":
            t.gap = " "
            t.say(*domain.closes[sign])
        t.side(sign)
        t.maybe("{p}.", "<And|Besides,|What is more,> {p}.", p=0.25)
        tell_fact(t, facts, 0.15)
        if name not in ("turned", "granted"):
            t.maybe(*domain.closes[sign], p=0.45)
    else:
        t.side(1)
        name, way = argue(t, domain.untaken if been else domain.unvisited)
        if name == "facts":
            facts.remove(way)
            tell_fact(t, facts, 1.0)
            tell_fact(t, facts, 0.5)
        tell_fact(t, facts, 0.3)
        t.maybe("{mid2}.", p=0.2)
        t.maybe(*domain.closes[0], p=0.3)
    return label


REVIEWS = Table("reviews", ("text",), ("text",), tuple(SIGN), review, train_size=3000, test_size=1000, seed=7)


def limits() -> dict[str, dict[str, Any]]:
    """What is known of each file: see labelled.py."""
    return {name: limit for name, _, limit in REVIEWS.files()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    for name, data, _ in REVIEWS.files():
        (folder / name).write_bytes(data)
