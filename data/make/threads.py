"""Side stories: each is begun in the middle of a plot and returns the function that ends it, before the plot ends.

They use the main character {a}, people {e} and {f} who have a trade and no name, further things and animals.
"""

from collections.abc import Callable

from lexicon import many
from tale import OLD_KIN, SideStory, Tale
from telling import Lazy, rows
from world import Decide, Pass, Promise, Tell, Vow

End = Callable[[], None]

ERRANDS = """a spool of white thread|a pound of salt|a bottle of ink|a new wick for the lamp|a dozen eggs
a bunch of parsley|a ball of string|a cake of soap|a jar of mustard|a box of matches|a bag of flour
a bundle of candles|a pot of glue|a loaf of rye bread""".replace("\n", "|").split("|")


def errand(t: Tale) -> End:
    """Something is to be brought home for somebody: it is, or it is forgotten."""
    t["wanted"] = Lazy(ERRANDS, "zipf")
    a = t["a"]
    e = t["kin"] = Lazy(lambda: [noun for noun in t.free(OLD_KIN) if noun != "teacher"], "zipf")
    t.say(
        '"<Please bring|Bring> me {wanted} when you come back," {a.his} {kin} had said.',
        "{a.his} {kin} had asked {a.him} to bring home {wanted}, and {a} had promised to.",
        '"And do not forget {wanted}!" {a.his} {kin} had called after {a.him}.',
        "{a} also had to think of {wanted}. It was for {a.his} {kin}.",
        "There was a knot in {a.his} handkerchief, so that {a.he} should not forget {wanted} for {a.his} {kin}.",
    )
    vow = Promise(a, e, f"bring {t['wanted']}")
    t.world.do(Vow(vow))
    t["wanted2"] = "the " + t["wanted"].split(" ", 1)[1]

    def end() -> None:
        kept = t.fork(
            (2, "{a} <had not forgotten|remembered> {wanted2} for {a.his} {kin}, who was <very |>glad of it.", True),
            (1, "{a} also <laid|put> {wanted2} on the kitchen table, as {a.his} {kin} had asked.", True),
            (
                1,
                'Only one thing had been forgotten: {wanted2} for {a.his} {kin}. "Tomorrow," {a} said with a red face.',
                False,
            ),
            (
                1,
                "But where was {wanted2}? {a} had not thought of it once, and {a.his} {kin} had to <wait|do without>.",
                False,
            ),
        )
        t.world.do(Decide(vow, kept))

    return end


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
            '"You need a name," {a} told {s}, which was busy with {s.food}. "I shall call you {s.name}."',
            "{s} got {s.food} and slept {s.home} that night. {a} called it {s.name}.",
        )

    return end


NEWS = """the bridge will be closed tomorrow|the baker's cat has had kittens|there will be a dance on Saturday|the new stove has come
the boat leaves before sunrise|the white hen has come back|the letter has arrived
the doctor cannot come today|the apples are ripe|the shoes are ready|school begins an hour later
the cow has had a calf|the mill is standing still|the fair starts on Sunday|the well has been cleaned""".replace(
    "\n", "|"
).split("|")


def message(t: Tale) -> End:
    """News that is to be carried from one person to another, and arrives, or not."""
    t["news"] = Lazy(NEWS, "zipf")
    t.role("e")
    f = t.role("f")
    t.say(
        '"If you see {f}," {e} had asked {a}, "say that {news}."',
        '<On the way|At the corner> {e} stopped {a}. "Tell {f} that {news}."',
    )
    fact = t["news"]
    t.world.known.add((t["a"], fact))

    def end() -> None:
        if t.fork(
            (2, '{a} also found {f}. "^{e} <says|wants you to know> that {news}," {a} <said|reported>.', True),
            (1, 'In the end {a} knocked at {f}\'s door. "^{news}," said {a}, "and {e} sends you greetings."', True),
            (1, "{f} never got the news from {e}. {a} had <forgotten all about it|not thought of it again>.", False),
        ):
            t.world.do(Tell(t["a"], fact, f))

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
    tomorrow | What is always coming and never arrives?
    a coin | What has a head and a tail, but no body?
    a comb | What has many teeth and never bites?
    your name | What is yours, though others use it more than you do?
    an echo | What answers in every language and never went to school?
    a bell | What has a tongue and cannot talk until it is struck?
    """,
)


def riddle(t: Tale) -> End:
    """A riddle whose answer comes at the end, or is given up."""
    t["riddle"] = Lazy(RIDDLES, "zipf")
    t.role("e")
    t.say(
        'A {e.mood}{e.noun} had asked {a} a riddle: "{riddle.question}"',
        '"{riddle.question}" asked {e}, who <happened to pass|loved riddles>. {a} did not know.',
        'All day {a} had been thinking about one of {e}\'s riddles: "{riddle.question}"',
        '{e} <came by|was in a good mood>. "{riddle.question}" "I will think about it," said {a}.',
    )

    def end() -> None:
        t.say(
            '"^{riddle.answer}!" said {a} to {e} that evening. And that was the answer.',
            'Suddenly {a} knew the answer to the riddle. "^{riddle.answer}!" {a.he} called out.',
            "{a} gave up the riddle. The answer, said {e}, was {riddle.answer}.",
            '"Well?" asked {e}. "You are thinking of {riddle.answer}," said {a}. {e} was <impressed|almost disappointed>.',
            'When {a} saw {e} again, the answer to the riddle was ready: "^{riddle.answer}!"',
        )

    return end


def debt(t: Tale) -> End:
    """Coins are borrowed, and some are paid back: how many are still owed is told at the end."""
    t.number("owed", 3, 7)
    t.role("e")
    t.say(
        "{a} still owed {e} {owed} coins.",
        "There was one thing {a} did not like to think of: {a.he} owed {e} {owed} coins.",
        "{e} had lent {a} {owed} coins, and now it was time to pay them back.",
    )
    owed = int(t["owed"])
    t.number("paid", 2, owed)

    def end() -> None:
        t.say(
            "{a} paid {e} {paid} coins.",
            "{a} <met|went to> {e} and counted {paid} coins onto the table.",
            '"Here are {paid} coins for you," {a} told {e}.',
        )
        paid = int(t["paid"])
        t.world.do(Pass(None, paid, "coin", t["a"]))
        t.world.do(Pass(t["a"], paid, "coin", t["e"]))
        t["still"] = many(owed - paid, "coin")
        if owed == paid:
            t.say("So the debt was paid.", "Now {a} did not owe a coin to anybody.")
        else:
            t.say("That left {still} to pay.", '"{still} to go," said {e} kindly.'.replace('"{', '"^{'))

    return end


THREADS = (
    SideStory(errand, "out"),
    SideStory(message, "out"),
    SideStory(stray, "out"),
    SideStory(riddle, "any"),
    SideStory(debt, "any"),
)
