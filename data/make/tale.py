"""What all plots share: the cast, the time and the weather, walks over the map, and endings that look back."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import lexicon
from choice import Teller, zipf
from telling import Lazy, Story
from world import PLACES, SEX, Animal, Person, Role, World

CHILD_MOODS = ("little ", "curious ", "shy ", "clever ", "dreamy ", "cheerful ", "stubborn ", "brave ", "lively ")
MOODS = (
    "",
    "young ",
    "careful ",
    "patient ",
    "friendly ",
    "quiet ",
    "busy ",
    "proud ",
    "honest ",
    "forgetful ",
    "kind ",
)
MOODS += ("hard-working ", "cheerful ", "stern ", "lonely ", "clever ", "talkative ", "gentle ", "absent-minded ")

YOUNG_KIN = ("friend", "cousin", "neighbour", "brother", "sister", "schoolmate")
OLD_KIN = ("neighbour", "uncle", "aunt", "grandmother", "grandfather", "teacher", "godmother", "godfather")
KIN_SEX = {"brother": "he", "sister": "she", "uncle": "he", "aunt": "she", "grandmother": "she", "grandfather": "he"}
SEX |= KIN_SEX | {"godmother": "she", "godfather": "he"}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

# weather: months, what one sees, in the evening
WEATHER: dict[str, tuple[str, tuple[str, ...], str]] = {
    "rainy": (
        "April May June September October November",
        (
            "<Rain|Water> dripped from every roof.",
            "The paths were soft with mud.",
            "Puddles stood in <the street|every yard>.",
        ),
        "<the rain had stopped|the clouds had gone|it was still raining a little>",
    ),
    "windy": (
        "March April September October November",
        (
            "The wind <rattled the shutters|shook the trees|chased the clouds across the sky>.",
            "<Dust and straw|Scraps of paper> <danced|whirled> in the air.",
        ),
        "<the wind had dropped|the wind was only a whisper|the trees stood still again>",
    ),
    "sunny": (
        "May June July August April September",
        (
            "The sun <shone on the roofs|was already warm>.",
            "Not a cloud was <in the sky|to be seen>.",
            "<Bees|Swallows> were <busy|everywhere>.",
        ),
        "<the sky was red|the first stars were out|the swallows were flying low>",
    ),
    "cold": (
        "November December January February March",
        (
            "Smoke rose straight from the chimneys.",
            "The puddles were covered with thin ice.",
            "Breath hung in the air like smoke.",
        ),
        "<the stars glittered|the windows were white with frost|a fire was burning in every house>",
    ),
    "snowy": (
        "December January February",
        (
            "Snow lay <deep |>on the roofs.",
            "The <fences|hedges> wore white caps.",
            "Every footstep <could be seen|creaked> in the snow.",
        ),
        "<new snow had covered the footprints|the snow shone blue in the moonlight|more snow was falling>",
    ),
    "foggy": (
        "October November March December February",
        (
            "The fog <hid the church tower|lay thick on the fields>.",
            "One could hardly see the <next house|other side of the road>.",
        ),
        "<the fog had lifted|the moon broke through the fog|the fog was as thick as before>",
    ),
    "hot": (
        "July August June",
        (
            "Even the dogs lay still in the shade.",
            "The <air|road> shimmered in the heat.",
            "No rain had fallen for weeks.",
        ),
        "<a cool breeze came up|it was a little cooler|the crickets were singing>",
    ),
    "mild": (
        "March April May",
        (
            "A blackbird was singing <on the gate|on the roof>.",
            "The <air|wind> smelled of earth.",
            "The first <buds|flowers> were open.",
        ),
        "<the air was still mild|a soft rain began|lamps were being lit>",
    ),
}


OTHERS = re.compile(
    r"\b(?:(?:grand|god)?(?:mother|father)|aunt|uncle|sister|brother|neighbour|friend|boy|girl|child|man|woman|lady|soldier|"
    r"doctor|judge|teacher|mayor|innkeeper|traveller|widow|barber|peddler|tinker|postmaster|sweep|watchman|priest)\b"
)


def grown_out(someone: Person) -> tuple[str, ...]:
    """Relations that somebody no longer has: a grown-up has no schoolmates and no teacher."""
    grown = isinstance(someone.noun, str) and someone.noun not in lexicon.CHILDREN
    return ("schoolmate", "teacher") if grown else ()


TRADES, STRANGERS = lexicon.TRADES[::2], lexicon.TRADES[1::2]
"""Trades of those who have a name, and of those who are only called by their trade."""


class Num(int):
    def __str__(self) -> str:
        return lexicon.number(int(self))


class SideStory(NamedTuple):
    """begin(tale) tells how it begins and returns what tells its end."""

    begin: Callable[["Tale"], Callable[[], None]]
    where: str  # out (it begins on the road) or any


class Tale(Story):
    """A story with a world. Slots: a, b, c people; weather, month, hour."""

    def __init__(self, teller: Teller, threads: Sequence["SideStory"]) -> None:
        super().__init__(teller)
        self.threads = threads
        self.world = World()
        self.cast: list[Person | Role] = []
        self.plot = ""
        self.payoff: Callable[[], None] | None = None
        self.aside = ""  # the side story that was begun
        self.passers_by = False
        self.set(
            weather=Lazy(list(WEATHER), "zipf"),
            month=Lazy(self.months),
            hour=Lazy(("morning", "afternoon", "day"), (3, 2, 1)),
            day=Lazy(DAYS),
        )

    # --- the cast -----------------------------------------------------------------------------------------------

    def person(
        self, slot: str, nouns: Any, moods: Any = MOODS, other: Person | None = None, weights: Any = "zipf"
    ) -> Person:
        """A new character in a slot, of the other sex than `other`."""
        someone = Person(None, nouns, moods)

        def names() -> list[str]:
            sex = SEX.get(someone.noun) if isinstance(someone.noun, str) else None
            if other is not None and sex is None:
                sex = "he" if other.sex == "she" else "she"
            pool = [name for pair in zip(lexicon.WOMEN, lexicon.MEN, strict=False) for name in pair]
            taken = [one.name for one in self.cast if isinstance(one, Person)]
            return [name for name in pool if name not in taken and sex in (None, SEX[name])]

        someone.name = Lazy(names, lambda options: zipf(len(options), 12.0))
        if not isinstance(nouns, str):

            def fitting() -> list[str]:
                sex = SEX[someone.name] if isinstance(someone.name, str) else None
                fit = [n for n in (nouns() if callable(nouns) else nouns) if sex is None or SEX.get(n) in (None, sex)]
                return [n for n in fit if someone.mood != "" or n not in lexicon.CHILDREN]

            someone.noun = Lazy(fitting, weights)
        if not isinstance(moods, str):
            someone.mood = Lazy(moods, "zipf")
        self.cast.append(someone)
        self[slot] = someone
        return someone

    def child(self, slot: str = "a", other: Person | None = None) -> Person:
        nouns = lambda: [n for n in lexicon.CHILDREN if other is None or SEX[n] != other.sex]  # noqa: E731
        return self.person(slot, nouns, CHILD_MOODS, other)

    def trader(self, slot: str = "a", other: Person | None = None, trades: Any = TRADES) -> Person:
        """Somebody with a trade that nobody else in the story has."""
        return self.person(slot, lambda: self.free(trades), MOODS, other)

    def kin(self, slot: str, other: Person, nouns: tuple[str, ...] = YOUNG_KIN) -> Person:
        """A relation or friend of `other`, of the other sex."""
        return self.person(
            slot,
            lambda: [n for n in self.free(nouns) if SEX.get(n) != other.sex and n not in grown_out(other)],
            "",
            other,
        )

    def role(self, slot: str, trades: Any = STRANGERS, moods: Any = MOODS) -> Role:
        """Somebody who is called by a trade that nobody else in the story has."""
        someone = Role(Lazy(lambda: self.free(trades), "zipf"), Lazy(moods, "zipf"))
        self.cast.append(someone)
        self[slot] = someone
        return someone

    def hero(self, slot: str = "a", other: Person | None = None) -> Person:
        """The main character: a child or somebody with a trade."""
        every = [*lexicon.CHILDREN, "widow", *TRADES]
        frequent = {"girl": 0.9, "boy": 0.9, "widow": 0.1}
        common = dict(zip(TRADES, zipf(len(TRADES)), strict=True)) | frequent

        def nouns() -> list[str]:
            free = self.free(every)
            return [noun for noun in every if noun in free or noun in lexicon.CHILDREN]

        return self.person(slot, nouns, other=other, weights=lambda options: [common[noun] for noun in options])

    def free(self, words: Any) -> list[str]:
        """Those words that are no one's noun yet."""
        taken = {someone.noun for someone in self.cast if isinstance(someone.noun, str)}
        return [word for word in words if word not in taken]

    def pet(
        self, slot: str = "d", moods: tuple[str, ...] = ("", "old ", "young ", "grey ", "white ", "brown ")
    ) -> Animal:
        """An animal of a kind that is not in the story yet."""
        others = [value.noun for value in self.slots.values() if isinstance(value, Animal)]
        kinds = [noun for noun in lexicon.ANIMALS if noun not in others]
        animal = Animal(Lazy(kinds, "zipf"), Lazy(moods), Lazy(lexicon.PET_NAMES, "zipf"))
        self[slot] = animal
        return animal

    def place(self, slot: str) -> None:
        """A place, drawn when it is named."""
        self[slot] = Lazy(PLACES, "zipf")

    def number(self, slot: str, low: int, high: int) -> None:
        """A number from low to high, drawn when it is named. t[slot] is an int that is written as a word."""
        self[slot] = Lazy([Num(n) for n in range(low, high + 1)])

    def months(self) -> list[str]:
        return WEATHER[self["weather"]][0].split()

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """As in Story. Where somebody without a slot was spoken of, the next pronoun might mean that one: none is used."""
        which = super().say(*ways, weights=weights)
        if self.passers_by:
            self.said.clear()
            self.passers_by = False
        return which

    def emit(self, text: str, slot: Any = None) -> None:
        super().emit(text, slot)
        if not isinstance(slot, Person | Role) and OTHERS.search(text):
            self.passers_by = True

    # --- telling ------------------------------------------------------------------------------------------------

    def date(self) -> None:
        """When it is, and perhaps what the weather looks like."""
        if self.say(WHEN, "It was a {weather} {hour} in {month}.", weights=(3, 1)):
            self.say(*WEATHER[self["weather"]][1])
        else:
            self.gap = " "

    def begin(self, *clauses: str) -> None:
        """Say one of the clauses, which go on after "One rainy day,". What they all begin with is written first."""
        shared = (intro for intro in INTRO.values() if all(clause.startswith(intro) for clause in clauses))
        intro = next(shared, "")
        self.write(self.gap + intro)
        self.gap = ""
        self.say(*[clause.removeprefix(intro) for clause in clauses])

    def evening(self) -> str:
        return WEATHER[self["weather"]][2]

    def plant(self, where: str, p: float = 0.4) -> None:
        """Perhaps begin a side story, which pay() ends. where: out (on the road) or any."""
        if not self.chance(p):
            return
        one = self.choose([one for one in self.threads if one.where in (where, "any")])
        self.aside = one.begin.__name__
        self.payoff = one.begin(self)

    def order(self, *people: Person) -> list[Person]:
        """The people in an order that shows when they are next named."""
        taken: list[Person] = []
        for _ in people:
            taken.append(self.choose([one for one in people if one not in taken]))
        return taken

    def pay(self) -> None:
        """End the side story, if one was begun."""
        if self.payoff:
            self.payoff()
        self.payoff = None

    def close(self, p: float = 0.4) -> None:
        """Perhaps look back at the day, if it had a date, or at the evening's weather."""
        weather, month = self.slots["weather"], self.slots["month"]
        if not isinstance(weather, str):
            self.maybe("And that was the end of it.", "People talked about it for a long time.", p=p / 2)
            return
        day = "that {weather} day" + " in {month}" * isinstance(month, str)
        self.maybe(
            f"{{a}} <never forgot|often thought of|liked to tell of> {day}.",
            "And all that on one {weather} day!",
            f"When {{a}} went to bed, {self.evening()}.",
            "{a} wrote about it in {a.his} diary, <three whole pages|and underlined one word twice|with a drawing>.",
            f"So ended {day}.",
            p=p,
        )


WHEN = "<One {weather} {hour} in {month},|On a {weather} {month} {hour},|One {weather} {hour},>"
INTRO = {
    s: f"<a {{{s}.mood}}{{{s}.noun}} <named|called> {{{s}}}|{{{s}}}, a {{{s}.mood}}{{{s}.noun}},>" for s in "abcdef"
}
END_INTRO = {s: f"a {{{s}.mood}}{{{s}.noun}} <named|called> {{{s}}}" for s in "abcdef"}
