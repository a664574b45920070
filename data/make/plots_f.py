"""Plots of three: a contest, a night watch, exchanged coats, a school play."""

import lexicon
from colour import detail, habit
from lexicon import number
from tale import INTRO, Num, Tale
from telling import Lazy, rows

CONTESTS = rows(
    "thing unit verb",
    """
    pumpkin | pounds | weighed
    sunflower | hands | measured
    cabbage | pounds | weighed
    leek | inches | measured
    cheese | pounds | weighed
    sausage | feet | measured
    marrow | inches | measured
    beetroot | ounces | weighed
    loaf | pounds | weighed
    scarf | feet | measured
    radish | ounces | weighed
    """,
)
HONOURS = """the blue ribbon|the golden spade|a silver spoon|the seat beside the mayor|a barrel of cider|a new watering can|the big cup
a wreath of laurel|a photograph in the newspaper|the right to ring the bell""".replace("\n", "|").split("|")


def contest(t: Tale) -> None:
    """Whose is the largest? Three numbers are compared; sometimes the first is not honest."""
    t.set(k=Lazy(CONTESTS, "zipf"), honour=Lazy(HONOURS, "zipf"))
    t.say(
        "Once a year the village wanted to know who had the largest {k}.",
        "The day of the great {k} contest had come<, and nobody had slept much|>.",
        "Whoever brought the largest {k} to the fair got {honour}.",
    )
    a = t.hero()
    t.hero("b", a)
    t.role("c")
    t.say(
        "{a}, a {a.mood}{a.noun}, {b}, a {b.mood}{b.noun}, and the village {c.noun} had each brought one.",
        "Three had got through to the last round: {a}, a {a.mood}{a.noun}, {b}, a {b.mood}{b.noun}, and the village {c.noun}.",
    )
    t.say(
        "The judge <wore white gloves|walked round them twice|cleaned a pair of spectacles|asked for silence>.",
        "<The mayor made a speech|The band played a march|People stood on benches>, and then it began.",
        "There was such a crowd that the children climbed <onto the roofs|into the trees>.",
    )
    detail(t)
    t.plant("any", 0.6)
    t.number("na", 12, 40)
    t.say(
        "{a}'s {k} was {k.verb} first." + ' "^{na} {k.unit}!" <called|announced> the judge.',
        "{a} went first: {na} {k.unit}.",
    )
    na = int(t["na"])
    t["nb"] = Lazy(lambda: [Num(n) for n in range(12, 41) if n != na])
    t.say(
        "Then came {b} with {nb} {k.unit}.",
        "{b} had {nb} {k.unit} to show.",
        "{b}'s {k} came to {nb} {k.unit}.",
    )
    nb = int(t["nb"])
    t.set(lead=a if na > nb else t["b"], behind=t["b"] if na > nb else a, gap=number(abs(na - nb)))
    t.maybe(
        "So {lead} was in the lead by {gap}." if abs(na - nb) > 1 else "So {lead} was in the lead by a hair.",
        "{lead} <smiled|breathed again>, and {behind} <frowned|looked at the ground>.",
    )
    t["nc"] = Lazy(lambda: [Num(n) for n in range(12, 41) if n not in (na, nb)])
    t.say(
        'Last of all it was the turn of {c}. "{nc} {k.unit}!"'.replace('"{', '"^{'),
        "And {c}? {nc} {k.unit}, not one more.",
        "{c}'s {k} had {nc} {k.unit}.",
    )
    order = sorted((a, t["b"], t["c"]), key=lambda one: -{a: na, t["b"]: nb, t["c"]: int(t["nc"])}[one])
    t.set(w1=order[0], w2=order[1], w3=order[2])
    if t.chance(0.7):
        t.say(
            "So {w1} won, before {w2} and {w3}.",
            "{w1} was given {honour}, {w2} was second, and {w3} came last.",
            "The judge shook hands with {w1}, then with {w2}, then with {w3}.",
        )
        t.pay()
        t.say(
            "{w1} let everybody <touch|admire> it.",
            '"And next year," said {w3}, "you will see something."',
            '{w2} asked {w1} for the secret. "I sing to it," <said|whispered> {w1}.',
            "Only {w3}'s <cat|goat|grandmother> was not impressed.",
        )
        return
    t.say(
        "{w1} was already bowing when something fell <to the ground|out of it>: a lump of lead.",
        "But then somebody noticed that the {k} of {w1} was <glued together|made of two|stuffed with stones>.",
    )
    t.say(
        "So {w2} got {honour}, and {w3} was second.",
        "{w1} had to go home without a word, and {w2} got {honour}.",
    )
    t.pay()
    t.say(
        "{w1} <did not show up|came only to watch> the next year.",
        '"It was only a joke," said {w1}, but nobody laughed.',
        "A year later {w1} came back with an honest one. It was the smallest of all, and everybody clapped.",
    )


GUARDED = rows(
    "what event left",
    """
    the sheep | a wolf howled behind the fence | all the sheep were there
    the plum trees | somebody shook a branch | not a plum was missing
    the fire in the kiln | the flame went blue | the pots came out without a crack
    the dam | water came through a crack | the village was dry
    the sick mare | the mare stood up | the mare was eating oats
    the wedding cake | a mouse came out of the wall | the cake was whole
    the telescope | a shooting star fell | there were three new pages of notes
    the tower | a light blinked on the sea | a ship had found its way
    the egg in the incubator | the egg began to crack | a small owl sat in the straw
    the treasure chest | a step creaked on the stairs | the chest was still locked
    """,
)


def watch(t: Tale) -> None:
    """Three share the night; the hour at which something happens says whose watch it was."""
    t["g"] = Lazy(GUARDED, "zipf")
    a = t.hero()
    t.begin(
        f"{INTRO['a']} was told to watch over {{g.what}} all night.",
        f"{INTRO['a']} did not dare to leave {{g.what}} alone for the night.",
    )
    habit(t)
    t.kin("b", a)
    t.role("c")
    t.say(
        '"Alone I shall fall asleep," {a} told {a.his} {b.noun} {b} and {c}. "Let us take turns."',
        "{a.his} {b.noun} {b} and {c} offered to help.",
    )
    first, second, third = t.order(a, t["b"], t["c"])
    t.set(w1=first, w2=second, w3=third)
    t.say(
        "{w1} would watch from nine to midnight, {w2} from midnight to three, and {w3} from three to six.",
        "They drew straws: {w1} got the hours until midnight, {w2} those until three, and {w3} the rest.",
        "It was agreed that {w1} should begin, that {w2} should take over at midnight, and {w3} at three.",
    )
    t.plant("any", 0.6, days=True)
    t["hour2"] = Lazy(("ten", "eleven", "one", "two", "four", "five"))
    t.say(
        "The clock had just struck {hour2} when {g.event}.",
        "At {hour2} {g.event}.",
        "For a long time nothing happened. Then, at {hour2}, {g.event}.",
    )
    shift = {"ten": 0, "eleven": 0, "one": 1, "two": 1, "four": 2, "five": 2}[t["hour2"]]
    on = (first, second, third)[shift]
    others = [one for one in (first, second, third) if one is not on]
    t.set(on=on, o1=others[0], o2=others[1])
    if t.fork(
        (2, "{on} <was wide awake|noticed it at once|did not hesitate> and woke {o1} and {o2}.", True),
        (1, "{on} <was asleep|had nodded off>, chin on chest.", False),
    ):
        t.say(
            "Together they did what had to be done.",
            "{o1} came with a lamp and {o2} with a <broom|bucket|blanket>.",
            '"Well watched!" whispered {o2}.',
        )
        t.say("In the morning {g.left}.", "When the sun rose, {g.left}.")
        t.pay()
        t.say(
            '"We owe it to {on}," said {o1}, and {o2} nodded.',
            "Then all three slept until noon.",
            "{on} got the <largest|first> cup of coffee.",
        )
        return
    t.say(
        "But {o1} had only pretended to sleep and took care of it.",
        "Luckily {o2} was a light sleeper and jumped up.",
    )
    t.say("In the morning {g.left}.", "When the sun rose, {g.left}.")
    t.say(
        '"Who had the watch at {hour2}?" asked {o1}. It had been {on}, and {on} turned red.',
        '"At {hour2} it was your turn, {on}," said {o2}. "But we will not tell."',
    )
    t.pay()
    t.say(
        "{on} made breakfast for all of them.",
        "The next night {on} asked for the longest watch.",
        "To make up for it {on} carried home all three blankets.",
    )


POCKETS = """a train ticket|a half-eaten pear|a love letter|a dead beetle|a monocle|a bunch of keys|a tin soldier|a set of false teeth
a live frog|a fishing hook|a string of pearls|a bag of liquorice|a baby's shoe|a mouth organ|a screwdriver|a lemon|a tape measure""".replace(
    "\n", "|"
).split("|")


OUTSIDERS = [trade for trade in lexicon.TRADES if trade != "innkeeper"]


class Bare:
    """A slot without its article."""

    def __init__(self, t: Tale, slot: str) -> None:
        self.t, self.slot = t, slot

    def __str__(self) -> str:
        return str(self.t[self.slot]).split(" ", 1)[1]


def coats(t: Tale) -> None:
    """Two equal coats are exchanged by mistake; what is in the pocket says whose it is."""
    t.trader(trades=OUTSIDERS)
    t.begin(
        f"{INTRO['a']} hung {{a.his}} coat on a hook at the inn.",
        f"{INTRO['a']} went to the inn for a <plate of soup|cup of tea> and took off {{a.his}} coat.",
    )
    habit(t)
    t.say(
        "It was {a} who left last, and there was only one coat on the hook.",
        "After an hour {a.he} paid, took {a.his} coat from the hook and went home.",
    )
    t.set(p1=Lazy(POCKETS, "zipf"), p2=Lazy(lambda: [thing for thing in POCKETS if thing != t["p1"]], "zipf"))
    t.set(n1=Bare(t, "p1"), n2=Bare(t, "p2"))
    t.say(
        "But in the pocket was {p1} which {a.he} had never seen before.",
        "On the way {a.he} put a hand into the pocket and pulled out {p1}.",
        "It felt <tighter|wider|heavier> than before. In one pocket {a.he} found {p1}.",
    )
    t.say(
        '"This is not my coat," said {a}. "In mine there was {p2}."',
        "In {a.his} own coat there had been {p2}. So this was somebody else's.",
    )
    detail(t)
    t.plant("out", 0.6)
    for slot in "bc":
        t.role(slot, OUTSIDERS)
    t.say(
        "{a} <ran back|went back> to the inn. Who had left before? Only {b} and {c}.",
        '"Only {b} and {c} have been here," the innkeeper remembered.',
    )
    first = t.fork(
        (1, "{a} tried {b} first.", "b"),
        (1, "{a} knocked at {c}'s door.", "c"),
    )
    other = "c" if first == "b" else "b"
    t.set(u=t[first], v=t[other])
    if t.fork(
        (
            1,
            '"{p2}?" said {u}. "No, my coat has <a fur collar|silver buttons>. Ask {v}."'.replace('"{', '"^{', 1),
            True,
        ),
        (1, '"I have been wondering about this {n2} all evening," <cried|laughed> {u}.', False),
    ):
        t.say(
            "And indeed {v} was already standing in the road with the {n2} in one hand.",
            "{a} found {v} at home, turning the {n2} over and over.",
        )
        t["owner"] = t[other]
    else:
        t["owner"] = t[first]
    t.say(
        "So {a} got back the {n2}, and {owner} got back the {n1}.",
        "They exchanged their coats under the lamp. The {n1} went to {owner}, and the {n2} to {a}.",
        "{owner} was very glad to see the {n1} again.",
    )
    t.pay()
    t.say(
        '"We should <sew in our names|buy different coats>," said {owner}.',
        "Since then {a} and {owner} sit at the same table at the inn.",
        "{a} never asked why {owner} went about with {p1} in a pocket.",
    )


ROLES = (
    "the king",
    "the dragon",
    "the thief",
    "the moon",
    "the smuggler",
    "the wise old owl",
    "the ghost",
    "the queen's horse",
    "the fool",
    "the sea",
)
HITCHES = rows(
    "hitch why",
    """
    went as hoarse as a crow | could only croak like a raven
    sprained an ankle | could not stand
    got the hiccups | could not say three words together
    was stung on the nose | looked like a turnip
    fell asleep behind the curtain | could not be woken
    got stage fright | sat trembling in a cupboard
    caught the measles | was covered with red spots
    """,
)


def play(t: Tale) -> None:
    """Three have parts in a play; one cannot appear, and who steps in has two parts to play."""
    a = t.child()
    t.begin(
        f"{INTRO['a']} stood behind the curtain of the <school|village hall|barn>.",
        f"{INTRO['a']} could not eat a bite. It was the day of the play.",
    )
    habit(t)
    t.kin("b", a, ("friend", "cousin", "schoolmate"))
    t.child("c")
    t["ra"] = Lazy(ROLES, "zipf")
    t["rb"] = Lazy(lambda: [role for role in ROLES if role != t["ra"]], "zipf")
    t["rc"] = Lazy(lambda: [role for role in ROLES if role not in (t["ra"], t["rb"])], "zipf")
    t.say(
        "{a} was to be {ra}, {a.his} {b.noun} {b} was to be {rb}, and a {c.mood}{c.noun} named {c} had the part of {rc}.",
        "The parts had been given out <in the spring|weeks ago>: {ra} for {a}, {rb} for {a.his} {b.noun} {b}, and {rc} for a {c.mood}{c.noun} named {c}.",
    )
    detail(t)
    t.plant("any", 0.6)
    t["h"] = Lazy(HITCHES, "zipf")
    out = t.fork(
        (1, "An hour before the beginning {b} {h.hitch}.", "b"),
        (1, "Then came the news: {c} {h.why}.", "c"),
        (1, "At noon {c} {h.hitch}.", "c"),
    )
    saver = "c" if out == "b" else "b"
    t.set(out=t[out], saver=t[saver], ro=t[f"r{out}"], rs=t[f"r{saver}"])
    t.say(
        '"Without {ro} there is no play," <groaned|said> the teacher. "^{rs} is never on the stage with {ro}," said {saver}. "I could do both."',
        '"Who knows the words of {ro}?" the teacher asked. "I do," said {saver}. "I have heard {out} practise a hundred times."',
        'There they stood, and {ro} was missing. All eyes turned to {saver}. "I will try," {saver} said in a small voice.',
        '"We must send the people home," <groaned|said> the teacher. "No," said {saver}, "I know all the words of {ro} by heart."',
        "Nobody but {saver} had ever learned the words of {ro}<, and nobody else dared to|>.",
    )
    t.say(
        "So that evening {saver} was both {rs} and {ro}, and {a} was {ra}.",
        "And so it was done: {a} played {ra}, and {saver} played {rs} and {ro}, one after the other.",
        "Between two scenes {saver} turned from {rs} into {ro}, and nobody noticed.",
    )
    t.say(
        "Only once did {saver} say a line of {rs} in the costume of {ro}, and the people <laughed|thought it was meant so>.",
        "When {ro} came on, {out} whispered every word in the last row.",
        "The loudest applause was for {ro}.",
    )
    t.pay()
    t.say(
        '"You did it better than I could have," said {out}.',
        "{saver} <bowed twice|had to bow twice>, once as {rs} and once as {ro}.",
        "The next year {out} was given {ro} again, and {saver} the largest part of all.",
        "Afterwards there was <cake|soup> for {a}, {b} and {c}.",
    )
