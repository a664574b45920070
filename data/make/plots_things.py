"""Plots of things: a lost letter, two coats, what a storm broke, what is watched over at night."""

import lexicon
from colour import detail, habit
from tale import END_INTRO, INTRO, TRADES, Tale
from telling import Lazy, rows
from world import Break, Give, Mend, Pass, Thing

TIDINGS = """my brother is coming home|my son has found work|I am a grandparent|the debt is paid|my sister is getting married
the ship was saved|I have won the first prize|they will print my poem|my old teacher is alive|the house is ours|he has forgiven me
the war is over|the doctors say I am well|she said yes|I am to play in the great hall|the lost trunk has been found""".replace(
    "\n", "|"
).split("|")


def letter(t: Tale) -> None:
    """A letter with a half washed-off address goes from hand to hand until it reaches the right one."""
    t.trader("a")
    t["ditch"] = Lazy(("gutter", "hedge", "ditch", "mud", "canal", "nettles", "road"), "zipf")
    t.begin(
        f"{INTRO['a']} found a letter in the {{ditch}}.",
        f"{INTRO['a']} picked up a wet letter from the {{ditch}}.",
        f"{INTRO['a']} saw something white in the {{ditch}}. It was a letter.",
    )
    habit(t)
    for slot in "bcd":
        t.role(slot)
    t.place("p")
    t.say(
        'The rain had washed off the name, and only "{p.at}" could still be read.'.replace('"{p', '"^{p'),
        "There was no name on it, only the words: {p.at}.",
    )
    t.say(
        "So {a.he} took it {p.to}, where {a.he} met {b}.",
        "{a} went {p.to} and showed it to {b}.",
    )
    t.say(
        '"Not for me," said {b}. "I expect no letter. But {c} has been waiting for one for weeks."',
        '{b} held it up to the light. "That is for {c}, I should think."',
    )
    letter_ = Thing("letter", "")
    t.world.put(letter_, t["a"])
    t.say(
        "So {a} carried the letter to {c}<, whistling|>.",
        "{a} <said thank you|wiped it dry> and went to look for {c}.",
        "It was a long way to {c}'s house, but {a} did not mind.",
    )
    detail(t)
    t.plant("out")
    wrong = t.fork(
        (1, "{c} tore it open at once and read it twice.", False),
        (1, '{c} opened it, read one line and folded it up again. "This is for {d}."', True),
    )
    t.world.do(Give(t["a"], letter_, t["c"]))
    t["reader"] = t["d"] if wrong else t["c"]
    if wrong:
        t.world.do(Give(t["c"], letter_, t["d"]))
        t.say(
            "So it went on to {d}, who opened it with trembling hands.",
            "{a} ran to {d} with it before the shops closed.",
        )
    t["tidings"] = Lazy(TIDINGS, "zipf")
    t.say(
        '"{tidings}!" cried {reader}.'.replace('"{', '"^{'),
        '{reader} laughed and cried. "^{tidings}!"',
    )
    t.pay()
    t.say(
        "{a} had to stay <for supper|for a glass of wine>, for without {a}, {reader} would never have known.",
        "If {a} had not picked it up, {reader} would be waiting still.",
        "That is how {a} and {reader} became friends.",
        '"You brought it through wind and weather," said {reader}, "and I shall never forget it."',
        "{a} went home <humming|whistling>. One letter more had found its house.",
    )


POCKETS = """a train ticket|a half-eaten pear|a love letter|a dead beetle|a monocle|a bunch of keys|a tin soldier|a set of false teeth
a live frog|a fishing hook|a string of pearls|a bag of liquorice|a baby's shoe|a mouth organ|a screwdriver|a lemon|a tape measure""".replace(
    "\n", "|"
).split("|")


class Bare:
    """A slot without its article."""

    def __init__(self, t: Tale, slot: str) -> None:
        self.t, self.slot = t, slot

    def __str__(self) -> str:
        return str(self.t[self.slot]).split(" ", 1)[1]


def coats(t: Tale) -> None:
    """Two equal coats are exchanged by mistake; what is in the pocket says whose it is."""
    t.trader(trades=[trade for trade in TRADES if trade != "innkeeper"])
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
    t.plant("out")
    for slot in "bc":
        t.role(slot)
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


DAMAGE = rows(
    "what need done",
    """
    the roof of the barn | tiles | put new tiles on the roof
    the fence around the garden | boards | nailed the boards to the posts
    the door of the henhouse | planks | built a new door for the hens
    the glass of the greenhouse | panes | set the new panes
    the bridge over the ditch | beams | laid the new beams
    the wall of the stable | bricks | bricked up the hole
    the shutters of the schoolroom | hinges | hung the shutters again
    the wings of the little windmill | sails | stretched new sails over the wings
    the chimney of the bakery | stones | built up the chimney stone by stone
    the awning over the shop | poles | put the awning up again
    """,
)


def storm(t: Tale) -> None:
    """A storm breaks something; a neighbour has a part of what is needed to mend it."""
    a = t.trader()
    t["dam"] = Lazy(DAMAGE, "zipf")
    t.say(
        "In the night <a storm|a gale|a thunderstorm> came <over the hills|from the sea|down the valley>.",
        "Nobody in the village slept, because the storm <howled|roared|raged> till morning.",
        "<All evening|Since noon> the sky had been <yellow|as black as ink>, and at midnight the storm broke.",
    )
    t.say(
        f"It did not spare {END_INTRO['a']}: {{dam.what}} lay in pieces.",
        f"In the morning {INTRO['a']} stood before what was left of {{dam.what}}.",
    )
    t.number("need", 3, 7)
    t.say(
        '"I need {need} {dam.need}," said {a}, "and I have none."',
        "{need} {dam.need} were needed to mend it, and {a} had <not a single one|none>.",
        '{a} <walked around it|counted on {a.his} fingers>. "{need} {dam.need}," {a.he} <said|sighed>. "Where shall I get {need} {dam.need}?"',
    )
    need = int(t["need"])
    t.trader("b", a)
    t.number("n1", 2, need - 1)
    t.say(
        f"{INTRO['b']} <came over the road|was the first to come> and brought {{n1}}.",
        f"Then {END_INTRO['b']} came with {{n1}} {{dam.need}} <on a cart|in a wheelbarrow|over one shoulder>.",
    )
    n1, noun, broken = int(t["n1"]), t["dam"].need, Thing(t["dam"].what)
    t.world.do(Break(broken))
    t.world.do(Pass(None, n1, noun, t["b"]))
    t.world.do(Pass(t["b"], n1, noun, a))
    t["gap"] = lexicon.number(need - n1)
    t.maybe('"Now there are {gap} missing," <counted|said> {a}.', "{a} <counted|reckoned>: {gap} to go.")
    detail(t)
    t.plant("out")
    t.say("So only {gap} had to be bought.", "{a} bought the last {gap} in town.")
    t.world.do(Pass(None, need - n1, noun, a))
    t.world.do(Mend(a, broken))
    t.say(
        "{a} and {b} worked side by side and {dam.done}.",
        "Together the two of them {dam.done} before dark.",
    )
    t.pay()
    t.say(
        "Afterwards there was <pea soup|stew|fresh bread and cheese> at {a}'s table.",
        '"What would one do without neighbours?" said {a}.',
        "{b} would not take a penny for it.",
        "And {a} <baked a cake|baked a pie|cooked a pot of jam> for {b}.",
        "When {b} needed help <in the spring|a month later>, {a} was the first to come.",
        '"Let the next storm come," said {a}. "We are ready."',
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
    """Two share the night; the hour at which something happens says whose watch it was."""
    t["g"] = Lazy(GUARDED, "zipf")
    a = t.hero()
    t.begin(
        f"{INTRO['a']} was told to watch over {{g.what}} all night.",
        f"{INTRO['a']} did not dare to leave {{g.what}} alone for the night.",
    )
    habit(t)
    t.kin("b", a)
    t.say(
        '"Alone I shall fall asleep," {a} told {a.his} {b.noun} {b}. "Let us take turns."',
        "{a.his} {b.noun} {b} offered to help.",
    )
    first, second = t.order(a, t["b"])
    t.set(w1=first, w2=second)
    t.say(
        "{w1} would watch from nine to midnight, and {w2} from midnight to six.",
        "They drew straws: {w1} got the hours until midnight, and {w2} the rest.",
        "It was agreed that {w1} should begin, and that {w2} should take over at midnight.",
    )
    t.plant("any")
    t["struck"] = Lazy(("ten", "eleven", "one", "two", "four"))
    t.say(
        "The clock had just struck {struck} when {g.event}.",
        "At {struck} {g.event}.",
        "For a long time nothing happened. Then, at {struck}, {g.event}.",
    )
    on, other = (first, second) if t["struck"] in ("ten", "eleven") else (second, first)
    t.set(on=on, other=other)
    if t.fork(
        (2, "{on} <was wide awake|noticed it at once|did not hesitate> and woke {other}.", True),
        (1, "{on} <was asleep|had nodded off>, chin on chest.", False),
    ):
        t.say(
            "Together they did what had to be done.",
            "{other} came with a <lamp|broom|bucket>.",
            '"Well watched!" whispered {other}.',
        )
        t.say("In the morning {g.left}.", "When the sun rose, {g.left}.")
        t.pay()
        t.say(
            '"We owe it to {on}," said {other}.',
            "Then both of them slept until noon.",
            "{on} got the <largest|first> cup of coffee.",
        )
        return
    t.say(
        "But {other} had only pretended to sleep and took care of it.",
        "Luckily {other} was a light sleeper and jumped up.",
    )
    t.say("In the morning {g.left}.", "When the sun rose, {g.left}.")
    t.say(
        '"Who had the watch at {struck}?" asked {other}. It had been {on}, and {on} turned red.',
        '"At {struck} it was your turn, {on}," said {other}. "But I will not tell."',
    )
    t.pay()
    t.say(
        "{on} made breakfast for both of them.",
        "The next night {on} asked for the longest watch.",
        "To make up for it {on} carried home both blankets.",
    )
