"""The stories: one plot of words/plots_*.yaml, told as a Tale.

A plot is a list of steps, each of which is a method of Tale with its arguments: {verb arguments: content}. A story has
slots: a, b, c people; weather, month, hour, day; and what its steps put into others.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import lexicon
from choice import Files, Teller, draw_files, measure_entropy, zipf
from lexicon import CHILDREN, SEX, Number
from telling import Lazy, Story
from words import before, fork, load, table
from world import PLACES, Animal, Person, Role, World, distinct_names

SEED = "story 7"
SIZES = {"stories.txt": 4500, "stories.valid.txt": 195}
SHORTEST, LONGEST = 60, 250  # words of a story

PEOPLE, COLOUR, WEATHER = load("people"), load("colour"), load("weather")
SKIES = WEATHER["kinds"]
PLOTS = load("plots_people") | load("plots_things")
SIDE_STORIES = load("side_stories")
THREADS = {name: one for name, one in SIDE_STORIES.items() if "where" in one}
DATED = ("promise", "secret", "illness", "suspicion", "letter", "coats", "watch")  # plots that begin with a date
UNDATED = ("storm",)

OTHERS = re.compile(rf"\b(?:{'|'.join(PEOPLE['others'])})\b")
TRADES, STRANGERS = lexicon.TRADES[::2], lexicon.TRADES[1::2]  # of those with a name, and of those without
MOODS, CHILD_MOODS = before(PEOPLE["moods"]), before(PEOPLE["child_moods"])

LATE_INTRO = "a {x.mood}{x.noun} <named|called> {x}"
INTRO = f"<{LATE_INTRO}|{{x}}, a {{x.mood}}{{x.noun}},>"


def phrases(block: str) -> list[str]:
    """The lines of a block, with the introductions of people written out."""
    block = re.sub(r"\{late intro (\w)\}", lambda match: LATE_INTRO.replace("{x", "{" + match[1]), block)
    return re.sub(r"\{intro (\w)\}", lambda match: INTRO.replace("{x", "{" + match[1]), block).splitlines()


class Tale(Story):
    """A story with a world."""

    def __init__(self, teller: Teller) -> None:
        super().__init__(teller)
        self.world = World()
        self.cast: list[Person | Role] = []
        self.name_of = distinct_names()
        self.plot = ""
        self.aside = ""  # the side story that was begun
        self.owing = False  # whether it has still to end
        self.passers_by = False
        self.set(
            weather=Lazy(list(SKIES), "zipf"),
            month=Lazy(lambda: SKIES[self["weather"]]["months"]),
            hour=Lazy(("morning", "afternoon", "day"), (3, 2, 1)),
            day=Lazy(lexicon.DAYS),
        )

    # --- steps --------------------------------------------------------------------------------------------------

    def play(self, steps: Sequence[Any]) -> None:
        """Do the steps. `fork`, `left` and `case` have an outcome; `when` does its steps if it is one that it names."""
        outcome = None
        for step in steps:
            [(head, content)] = step.items() if isinstance(step, dict) else [(step, None)]
            verb, *arguments = head.split()
            if verb == "when":
                if outcome in arguments:
                    self.play(content)
            elif verb in ("say", "begin", "maybe"):
                getattr(self, verb)(*phrases(content))
            elif verb == "fork":
                outcome = self.fork([(weight, *phrases(way), name) for weight, way, name in fork(content)])
            elif isinstance(content, dict):
                getattr(self, verb)(*arguments, **content)
            else:
                outcome = getattr(self, verb)(*arguments, *[content] * (content is not None)) or outcome

    def value(self, word: str) -> Any:
        """What a word of a step stands for: a slot, a field of one, a number, nature, or the word itself."""
        slot, _, form = word.partition(".")
        if slot in self.slots:
            return getattr(self[slot], form) if form else self[slot]
        return int(word) if word.isdigit() else None if word == "nature" else word

    case = value

    def draw(self, slot: str, *how: str) -> None:
        """Words of a list or table, common to rare; `evenly`; `unlike` those of another slot; `free`: no one's noun."""
        *how, options = how  # type: ignore[assignment]
        if isinstance(options, str):
            options = next(topic[options] for topic in (PLOTS, SIDE_STORIES, COLOUR, PEOPLE) if options in topic)
        every = table(options) if isinstance(options, str) else options

        def fitting() -> list[Any]:
            if how[:1] == ["unlike"]:
                return [one for one in every if one != self[how[1]]]
            return self.free(every) if how == ["free"] else every

        self[slot] = Lazy(fitting, None if how == ["evenly"] else "zipf")

    def number(self, slot: str, low: str, high: str, less: str = "0") -> None:
        """A number from low to high (less so many)."""
        self[slot] = Lazy([Number(n) for n in range(int(low), self.value(high) - int(less) + 1)])

    def left(self, slot: str, whole: str, part: str) -> str:
        self[slot] = Number(self[whole] - self[part])
        return "some" if self[slot] else "none"

    def let(self, slot: str, other: str) -> None:
        self[slot] = self[other]

    def order(self, *slots: Any) -> None:
        """People in an order that shows when they are next named."""
        *slots, people = slots
        left = [self[name] for name in people.split()]
        for slot in slots:
            self[slot] = self.choose(left)
            left = [one for one in left if one is not self[slot]]

    def happens(self, event: str, *words: str) -> None:
        """An event of the world."""
        getattr(self.world, event)(*map(self.value, words))

    # --- the cast -----------------------------------------------------------------------------------------------

    def person(
        self, slot: str, nouns: Callable[[], Sequence[str]], moods: Any = MOODS, other: str = "", weights: Any = "zipf"
    ) -> None:
        """A new character in a slot, of the other sex than the one in the slot `other`."""

        def fits(name: str) -> bool:
            sex = SEX.get(someone.noun.value)
            if other and sex is None:
                sex = "he" if self[other].sex == "she" else "she"
            return sex in (None, SEX[name])

        def fitting() -> list[str]:
            fit = [noun for noun in nouns() if someone.sex is None or SEX.get(noun) in (None, someone.sex)]
            return [noun for noun in fit if someone.mood.value != "" or noun not in CHILDREN]

        mood = moods if isinstance(moods, str) else Lazy(moods, "zipf")
        someone = Person(self.name_of(slot, fits), Lazy(fitting, weights), mood)
        self.cast.append(someone)
        self[slot] = someone

    def child(self, slot: str, unlike: str) -> None:
        self.person(slot, lambda: [noun for noun in CHILDREN if SEX[noun] != self[unlike].sex], CHILD_MOODS, unlike)

    def trader(self, slot: str, unlike: str = "", without: str = "") -> None:
        """Somebody with a trade that nobody else in the story has."""
        self.person(slot, lambda: self.free(TRADES, without), other=unlike)

    def kin(self, slot: str, of: str, nouns: Sequence[str] = PEOPLE["kin"]) -> None:
        """A relation or friend of another, of the other sex. A grown-up has no schoolmates."""

        def fitting() -> list[str]:
            grown = self[of].noun.value not in (None, *CHILDREN)
            return [noun for noun in self.free(nouns, "schoolmate" * grown) if SEX.get(noun) != self[of].sex]

        self.person(slot, fitting, "", of)

    def hero(self, slot: str) -> None:
        """The main character: a child or somebody with a trade."""
        common = {"girl": 0.9, "boy": 0.9, "widow": 0.1} | dict(zip(TRADES, zipf(len(TRADES)), strict=True))
        self.person(slot, lambda: list(common), weights=lambda options: [common[noun] for noun in options])

    def role(self, slot: str, without: str = "") -> None:
        """Somebody who is called by a trade that nobody else in the story has."""
        self[slot] = Role(Lazy(lambda: self.free(STRANGERS, without), "zipf"), mood=Lazy(MOODS, "zipf"))
        self.cast.append(self[slot])

    def free(self, words: Sequence[str], without: str = "") -> list[str]:
        """Those words that are no one's noun yet."""
        taken = [*without.split(), *(someone.noun.value for someone in self.cast)]
        return [word for word in words if word not in taken]

    def pet(self, slot: str) -> None:
        looks, names = Lazy(before(lexicon.ANIMAL["looks"])), Lazy(lexicon.PET_NAMES, "zipf")
        self[slot] = Animal(Lazy(list(lexicon.ANIMALS), "zipf"), mood=looks, name=names)

    def place(self, slot: str) -> None:
        self[slot] = Lazy(PLACES, "zipf")

    # --- telling ------------------------------------------------------------------------------------------------

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """As in Story. After somebody without a slot was spoken of, whom a pronoun might mean, none is used."""
        which = super().say(*ways, weights=weights)
        if self.passers_by:
            self.said.clear()
            self.passers_by = False
        return which

    def emit(self, text: str, slot: Any = None) -> None:
        super().emit(text, slot)
        if not isinstance(slot, Person | Role) and OTHERS.search(text):
            self.passers_by = True

    def date(self) -> None:
        """When it is, and perhaps what the weather looks like."""
        if self.say(*WEATHER["date"].splitlines(), weights=(3, 1)):
            self.say(*SKIES[self["weather"]]["seen"].splitlines())
        else:
            self.gap = " "

    def begin(self, *clauses: str) -> None:
        """Say one of the clauses, which go on after "One rainy day,". What they all begin with is written first."""
        intros = (INTRO.replace("{x", "{" + slot) for slot in "ab")
        intro = next((one for one in intros if all(clause.startswith(one) for clause in clauses)), "")
        self.write(self.gap + intro)
        self.gap = ""
        self.say(*[clause.removeprefix(intro) for clause in clauses])

    def habit(self) -> None:
        """Perhaps say what {a} is known for."""
        self.draw("habit", "habits")
        self.maybe(*COLOUR["habit"].splitlines(), p=0.4)

    def detail(self) -> None:
        """Perhaps describe something by the way."""
        fair = self.slots["weather"].value in ("sunny", "hot", "mild")
        for slot in ("smell", "instrument", "tune", "breakfast", "thought"):
            self.draw(slot, f"{slot}s")
        self.draw("smell2", "unlike", "smell", "smells")
        for slot, words in (("seen", "seen"), ("sound", "sounds")):
            self.draw(slot, COLOUR[f"fair_{words}"] * fair + COLOUR[words])  # type: ignore[arg-type]
        self.maybe(*COLOUR["detail"].splitlines(), p=0.6)

    def plant(self, where: str) -> None:
        """Perhaps begin a side story, which pay() ends. where: out (on the road) or any."""
        if self.chance(0.4):
            self.aside = self.choose([name for name, one in THREADS.items() if one["where"] in (where, "any")])
            self.owing = True
            self.play(THREADS[self.aside]["begin"])

    def pay(self) -> None:
        """End the side story, if one was begun."""
        if self.owing:
            self.play(THREADS[self.aside]["end"])
        self.owing = False

    def close(self) -> None:
        """Perhaps look back at the day, if it had a date, or at the evening's weather."""
        weather = self.slots["weather"].value
        if weather is None:
            self.maybe(*WEATHER["close"].splitlines(), p=0.2)
            return
        day = "that {weather} day" + " in {month}" * (self.slots["month"].value is not None)
        ways = WEATHER["close, dated"].replace("{the day}", day).replace("{the evening}", SKIES[weather]["evening"])
        self.maybe(*ways.splitlines(), p=0.4)


def story(teller: Teller) -> Tale:
    """Tell one story."""
    tale = Tale(teller)
    if teller.choose((True, False), (len(DATED), len(UNDATED))):
        tale.date()
        tale.plot = teller.choose(DATED)
    else:
        tale.plot = teller.choose(UNDATED)
    tale.play(PLOTS[tale.plot])
    return tale


def files() -> Files:
    for name, told in draw_files(story, SEED, SIZES):
        if wrong := [one.text for one in told if not SHORTEST <= len(one.text.split()) <= LONGEST]:
            raise ValueError(f"too short or too long: {wrong[0]}")
        texts = [one.text for one in told]
        yield name, ("\n\n".join(texts) + "\n").encode(), measure_entropy(texts, [one.bits for one in told], "document")
