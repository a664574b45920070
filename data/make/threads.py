"""Side stories: each is begun in the middle of a plot and returns the function that ends it, before the plot ends.

They use the main character {a}, a further person {e}, a further thing {y2} and places of their own.
"""

from collections.abc import Callable

import lexicon
from lexicon import many, number, plural
from tale import END_INTRO, INTRO, OLD_KIN, Tale
from telling import Lazy, rows
from world import Decide, Pass, Promise, Tell, Vow

End = Callable[[], None]

FRUIT = [
    "apple",
    "walnut",
    "bun",
    "biscuit",
    "pear",
    "pretzel",
    "hazelnut",
    "toffee",
    "fig",
    "chestnut",
    "carrot",
    "peppermint",
    "almond",
    "date",
    "roll",
]


class Fruit(str):
    @property
    def many(self) -> str:
        return plural(self)


def fruit(t: Tale) -> End:
    """A number of something to eat, of which some is given away: the rest is told at the end."""
    t["fruit"] = Lazy([Fruit(word) for word in FRUIT], "zipf")
    t.number("had", 4, 12)
    t.say(
        "That morning {a} had bought {had} {fruit.many} from <a cart|a farmer's wife|a boy with a basket>.",
        "<All this time|That day> there was a paper bag with {had} {fruit.many} in {a.his} pocket.",
        "{a.his} <mother|aunt|godmother> had given {a.him} {had} {fruit.many} <to eat on the way|for the day>.",
    )
    noun, had = t["fruit"], int(t["had"])
    t.world.do(Pass(None, had, noun, t["a"]))
    e = t.trader("e")
    t.number("part", 2, min(5, had))
    t.say(
        "{part} of them {a.he} gave to {e}, the {e.noun}, who had not eaten since yesterday.",
        f"{{a.he}} gave {{part}} to {END_INTRO['e']}<, who looked hungry|>.",
        "When {e}, the {e.noun}, came by, {a} gave away {part}.",
        '"May I?" asked {e}, the {e.noun}, and took {part}.',
    )
    part = int(t["part"])
    t.world.do(Pass(t["a"], part, noun, e))
    left = t.world.count(t["a"], noun)

    def end() -> None:
        t.set(over=many(left, noun), over0=number(left))
        if left == 0:
            t.say(
                "{a} felt for the {fruit.many}, but the bag was empty. They were all with {e}.",
                "There were no {fruit.many} left for {a}, who had given {part} out of {had} away.",
            )
        elif left == 1:
            t.say(
                "Only one {fruit} was left, and {a} ate it.", "{a} shared the last {fruit} with a <sparrow|squirrel>."
            )
        else:
            t.say(
                "{over} were left in the bag, and {a} ate them <one by one|with pleasure>.",
                "Of the {had} {fruit.many} {a} still had {over0}.",
                "{a} looked into the paper bag: {over} were still there.",
                "And there were still {over} for supper.",
            )

    return end


ERRANDS = """a spool of white thread|a pound of salt|a bottle of ink|a new wick for the lamp|a packet of needles|a dozen eggs
a bunch of parsley|a ball of string|a cake of soap|a jar of mustard|a box of matches|a bag of flour|a piece of ginger
a bundle of candles|a sheet of stamps|a tin of shoe polish|a pot of glue|a loaf of rye bread|a sack of birdseed
a reel of blue ribbon|a stick of sealing wax|a pinch of saffron""".replace("\n", "|").split("|")


def errand(t: Tale) -> End:
    """Something is to be brought home for somebody: it is, or it is forgotten."""
    t["wanted"] = Lazy(ERRANDS, "zipf")
    e = t.kin("e", t["a"], OLD_KIN)
    t.say(
        '"<Please bring|Bring> me {wanted} when you come back," {a.his} {e.noun} {e} had said.',
        "{a.his} {e.noun} {e} had asked {a.him} to bring home {wanted}, and {a} had promised to.",
        '"And do not forget {wanted}!" {a.his} {e.noun} {e} had called after {a.him}.',
        "{a} also had to think of {wanted}. It was for {a.his} {e.noun} {e}.",
        "There was a knot in {a.his} handkerchief, so that {a.he} should not forget {wanted} for {a.his} {e.noun} {e}.",
    )
    vow = Promise(t["a"], e, f"bring {t['wanted']}")
    t.world.do(Vow(vow))
    t["wanted2"] = "the " + t["wanted"].split(" ", 1)[1]

    def end() -> None:
        kept = t.fork(
            (2, "{a} <had not forgotten|remembered> {wanted2} for {e}, who was <very |>glad of it.", True),
            (1, "{a} also <laid|put> {wanted2} on the kitchen table, as {e} had asked.", True),
            (1, 'Only one thing had been forgotten: {wanted2} for {e}. "Tomorrow," {a} said with a red face.', False),
            (1, "But where was {wanted2}? {a} had not thought of it once, and {e} had to <wait|do without>.", False),
        )
        t.world.do(Decide(vow, kept))

    return end


def bet(t: Tale) -> End:
    """A bet on the weather, which the weather decides."""
    t["stake"] = Lazy(STAKES, "zipf")
    t.person("e", lambda: t.free(lexicon.TRADES), "")
    weather = t.slots["weather"]
    t["guess"] = Lazy(GUESSES.get(weather if isinstance(weather, str) else "", ("rain", "thunder", "hail")))
    t.say(
        '{e}, the {e.noun}, <looked at the sky|stood at the gate>. "It will {guess} before evening," {e.he} said. "I bet {stake} that it will not," said {a}.',
        '"It will {guess} before evening," said {e}, the {e.noun}. "I bet {stake} that it will not," said {a}.',
        f"{INTRO['e']} bet {{a}} {{stake}} that it would {{guess}} before evening. {{a}} <laughed|did not believe it>.",
    )
    t["stake2"] = "the " + t["stake"].split(" ", 1)[1]

    def end() -> None:
        came = t.fork(
            (1, "<Towards evening|Late in the afternoon> it <did|really did> {guess}.", True),
            (1, "<But it|It> did not {guess} all day.", False),
        )
        t.set(winner=t["e"] if came else t["a"], loser=t["a"] if came else t["e"])
        t.say(
            "So {winner} had won {stake2}, and {loser} paid up <with a smile|without grumbling>.",
            "{loser} had lost the bet, and {winner} got {stake2}.",
        )

    return end


GUESSES = {
    "rainy": ("clear up", "hail"),
    "windy": ("rain", "thunder"),
    "sunny": ("rain", "thunder", "cloud over"),
    "cold": ("snow", "thaw"),
    "snowy": ("thaw", "clear up"),
    "foggy": ("clear up", "rain"),
    "hot": ("thunder", "rain", "cool down"),
    "mild": ("rain", "turn cold"),
}
STAKES = """a cherry tart|a mug of cider|a bowl of plum jam|a slice of walnut cake|a honey cake|a bag of almonds|a roast apple
a glass of lemonade|a pancake with syrup|a smoked herring|a cinnamon roll|a pot of broth|a cheese pie""".replace(
    "\n", "|"
).split("|")


def stray(t: Tale) -> End:
    """An animal comes along, and gets its food, a name and a place to sleep."""
    t.pet("s")
    t.say(
        "It was then that a {s.mood}{s.noun} <appeared|came round the corner>. It sat down beside {a} as if they had been friends for years.",
        "A {s.mood}{s.noun} without a <collar|master> began to follow {a}, and could not be sent away.",
        "A {s.mood}{s.noun} <had come along all the way|followed {a} everywhere>, and nobody knew whose it was.",
        "<Behind the church|At the corner> a <lost|hungry> {s.mood}{s.noun} joined {a} and would not leave.",
    )

    def end() -> None:
        t.say(
            "{s} was still there, so {a} gave it {s.food} and called it {s.name}.",
            "As nobody <asked for|missed> {s}, it stayed with {a}. Its name was {s.name} from then on.",
            "{s} {s.sound}. It wanted {s.food}, and it wanted a name. {a} chose {s.name}.",
            '"You need a name," {a} told {s}, which was eating {s.food}. "I shall call you {s.name}."',
            "{s} got {s.food} and slept {s.home} that night. {a} called it {s.name}.",
        )

    return end


NEWS = """the bridge will be closed tomorrow|the baker's cat has had kittens|there will be a dance on Saturday|the new stove has come
supper will be an hour late|the choir sings at six|the boat leaves before sunrise|the white hen has come back|the letter has arrived
the doctor cannot come today|the apples are ripe|the meeting is at the inn|the shoes are ready|school begins an hour later
the cow has had a calf|the mill is standing still|the fair starts on Sunday|the well has been cleaned|the piano has been tuned
the ferry is not running|the cellar key has been found|the bees have swarmed""".replace("\n", "|").split("|")


def message(t: Tale) -> End:
    """News that is to be carried from one person to another, and arrives, or not."""
    t["news"] = Lazy(NEWS, "zipf")
    t.person("e", lambda: t.free(lexicon.TRADES), "")
    f = t.person("f", lambda: t.free(lexicon.TRADES), "")
    t.say(
        '"If you see {f}, the {f.noun}," {e}, the {e.noun}, had asked {a}, "say that {news}."',
        '<On the way|At the corner> {e}, the {e.noun}, stopped {a}. "Tell {f}, the {f.noun}, that {news}," {e.he} said.',
    )
    fact = t["news"]
    t.world.known.add((t["a"], fact))

    def end() -> None:
        if t.fork(
            (2, '{a} also found {f}. "{e} <says|wants you to know> that {news}," {a.he} <said|reported>.', True),
            (
                1,
                'In the end {a} knocked at the door of {f}. "^{news}!" {a.he} said, "and {e} sends you greetings."',
                True,
            ),
            (1, "{f} never heard the news from {e}. {a} had <forgotten all about it|not thought of it again>.", False),
        ):
            t.world.do(Tell(t["a"], fact, f))

    return end


def cache(t: Tale) -> End:
    """Something is hidden at a place, and looked for there."""
    y = t.treasure("g")
    t.place("h")
    t.say(
        "So as not to lose {a.his} {g.adj}{g}, {a} had <hidden|left> it {h.at}.",
        "{a} had only one worry: {a.he} had left {a.his} {g.adj}{g} {h.at}.",
        "That morning {a} had hidden a {g.adj}{g} {h.at}, for fear of <thieves|the rain|losing it>.",
    )
    t.used.add(y.noun)
    t["hide"] = Lazy(lexicon.SPOTS[t["h"].key])
    t.say("It lay {hide}<, well wrapped up|, where nobody would look|>.")
    t.world.put(y, t["h"])

    def end() -> None:
        t.say(
            "On the way home {a} stopped {h.at} and looked {hide}. The {g} was <still there|gone>.",
            "Then {a} went {h.to} for the {g}. It was <still|no longer> {hide}.",
            "Before going home {a} fetched the {g}, which lay {hide}, as {a.he} had left it.",
            "The {g} was no longer {h.at}. Somebody must have looked {hide}.",
            "And the {g}? It was still {h.at}, {hide}, and {a} took it home.",
        )

    return end


RIDDLES = rows(
    "answer question",
    """
    the wind | What has no hands and yet knocks at the door?
    a candle | What grows smaller the longer it stands?
    an egg | What must be broken before it can be used?
    a shadow | What follows you by day and leaves you at night?
    a river | What runs all day and never leaves its bed?
    a needle | What has one eye and cannot see?
    a hole | What grows bigger the more you take from it?
    a clock | What has a face and two hands, but no head?
    a towel | What gets wetter the more it dries?
    tomorrow | What is always coming and never arrives?
    a coin | What has a head and a tail, but no body?
    a comb | What has many teeth and never bites?
    a map | What has towns without houses and rivers without water?
    your name | What is yours, though others use it more than you do?
    silence | What is broken as soon as you speak of it?
    a footprint | What do you leave behind the more of it you take?
    a sponge | What is full of holes and still holds water?
    an echo | What answers in every language and never went to school?
    the moon | Which lamp needs no oil and goes out once a month?
    a bell | What has a tongue and cannot talk until it is struck?
    """,
)


def riddle(t: Tale) -> End:
    """A riddle whose answer comes at the end, or is given up."""
    t["riddle"] = Lazy(RIDDLES, "zipf")
    t.person("e", lambda: t.free(lexicon.TRADES), "")
    t.say(
        f'{INTRO["e"]} had asked {{a}} a riddle: "{{riddle.question}}"',
        '"{riddle.question}" asked {e}, the {e.noun}, who <happened to pass|loved riddles>. {a} did not know.',
        'All day {a} had been thinking about a riddle that {e}, the {e.noun}, had told {a.him}: "{riddle.question}"',
        '{e}, the {e.noun}, <came by|was in a good mood>. "{riddle.question}" {e.he} asked. "I will think about it," said {a}.',
    )

    def end() -> None:
        t.say(
            '"^{riddle.answer}," said {a} to {e} that evening. "The answer is {riddle.answer}." And it was.',
            'Suddenly {a} knew the answer to the riddle. "^{riddle.answer}!" {a.he} called out.',
            "{a} gave up the riddle. The answer, said {e}, was {riddle.answer}.",
            '"Well?" asked {e}. "You are thinking of {riddle.answer}," said {a}. {e} was <impressed|almost disappointed>.',
            'When {a} saw {e} again, the answer to the riddle was ready: "^{riddle.answer}!"',
        )

    return end


THREADS = (
    (fruit, "out"),
    (errand, "out"),
    (bet, "any"),
    (stray, "out"),
    (message, "out"),
    (cache, "out"),
    (riddle, "any"),
)
