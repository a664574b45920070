"""Plots of days out: a visit, a present, a race, a cake to divide, a suspicion, a lesson, a hidden box, a letter."""

from colour import detail, habit
from lexicon import many, number, plural
from tale import INTRO, OLD_KIN, Tale
from telling import Lazy, rows
from world import Give, Pass, route

TREATS = """pancake|dumpling|honey cake|meat pie|jam tart|apple turnover|cheese roll|poppy seed bun|waffle|sandwich|boiled egg
gingerbread man|rice cake|doughnut|oat biscuit|potato cake|fig roll|raisin bun""".replace("\n", "|").split("|")
HOSTS = """in a house by the mill|behind the church|in the red house at the harbour|above the library|in a cottage in the orchard
next to the school|in a hut at the lake|in the last house before the forest|in two rooms at the inn|at the foot of the windy hill
in a caravan on the meadow|near the lighthouse""".replace("\n", "|").split("|")


class Treat(str):
    @property
    def many(self) -> str:
        return plural(self)


def visit(t: Tale) -> None:
    """A basket with so many treats is carried to a relative; some are given away on the road, and counted on arrival."""
    a = t.child()
    t.kin("b", a, OLD_KIN)
    t.set(treat=Lazy([Treat(x) for x in TREATS], "zipf"), host=Lazy(HOSTS, "zipf"))
    t.number("n", 6, 12)
    t.begin(
        f"{INTRO['a']} set out with a basket of {{n}} {{treat.many}}.",
        f"{INTRO['a']} packed {{n}} {{treat.many}} into a basket.",
    )
    habit(t)
    t.say(
        "They were for {a.his} {b.noun} {b}, who lived {host}.",
        "{a.his} {b.noun} {b}, who lived {host}, <was alone that day|had not been well|had a birthday>.",
    )
    treat, n = t["treat"], int(t["n"])
    t.world.counts[a, treat] = n
    t.number("g", 1, 2)
    c = t.role("c")
    t.say(
        "On the road a {c.mood}{c.noun} asked for a taste, and {a} gave away {g}.",
        'At the corner stood a {c.mood}{c.noun}. "^how good that smells!" {a} laughed and handed over {g}.',
    )
    g = int(t["g"])
    t.world.do(Pass(a, g, treat, c))
    left = n - g
    detail(t)
    t.plant("out", 0.6)
    again = t.fork(
        (1, "A little later a <dog|goat|goose> <snatched one|ate one> out of the basket.", 1),
        (1, "At the bridge {a.he} sat down and ate two <of them |>{a.himself}.", 2),
        (1, "", 0),
    )
    left -= again
    t.set(left=many(left, treat), kept=number(left))
    if again:
        t.world.do(Pass(a, again, treat, None))
    t.say(
        '"<Come in|How good of you to come>!" said {b}, and looked into the basket. There were {left} in it.',
        "When {a} arrived, the basket held {left}.",
        'Then {a} stood at the door. "I have brought you {left}," {a.he} said.',
    )
    t.maybe(
        '"Your mother told me {n}," said {b}. {a} told the whole story.',
        '"Were there not {n}?" asked {b} with a smile.',
    )
    if left % 2 == 0:
        t["half"] = number(left // 2)
        t.say("They shared them, {half} for {b} and {half} for {a}.", "Each of them ate {half}, and nothing was left.")
    else:
        t["half"] = number(left // 2)
        t.say(
            "Each of them ate {half}, and the last one was for <the birds|the cat|later>.",
            "{half} for {a}, {half} for {b}, and one for <the birds|the cat|the postmaster>.",
        )
    t.pay()
    t.say(
        "It was <dark|late> when {a} came home with <an empty basket|the empty basket on {a.his} arm>.",
        '"Come again soon," said {b}<, and waved for a long time|>.',
        "Then {b} told stories of <long ago|the sea|the great flood> until the lamps were lit.",
        "The empty basket went home full of <apples|nuts|flowers|herbs>.",
    )


def present(t: Tale) -> None:
    """A present is looked for with so much money: two are too dear or not, and one is bought."""
    a = t.child()
    b = t.kin("b", a, ("friend", "cousin", "brother", "sister", "grandmother", "grandfather", "aunt", "uncle"))
    t.number("n", 5, 14)
    t.begin(
        f"{INTRO['a']} had {{n}} coins and no present for {{a.his}} {{b.noun}} {{b}}, whose birthday it was.",
        f"{INTRO['a']} emptied {{a.his}} money box. Out came {{n}} coins, to buy a present for {{a.his}} {{b.noun}} {{b}}.",
    )
    habit(t)
    n = int(t["n"])
    t.world.counts[a, "coin"] = n
    t.say(
        '"What does {b} like best?" {a.he} asked {a.himself}<, and could not decide|> on the way to the shops.',
        "{b} <had everything already|was hard to please|liked old things>, and so {a} <looked into every window|took a long time over it>.",
        "It had to be something <pretty|useful|special>, for {b} <deserved it|had been ill in the winter|had a great many wishes>.",
        '{a.his} <father|mother> only said, "Use your eyes and count your money."',
    )
    x, y = t.treasure("x"), t.treasure("y")
    t.number("cx", 4, 16)
    t.say(
        "The <first shop|shop at the corner> had a {x.adj}{x} for {cx} coins.",
        "In the first window lay a {x.adj}{x}. It cost {cx} coins.",
    )
    t.used.add(x.noun)
    cx = int(t["cx"])
    if cx > n:
        t["short"] = many(cx - n, "coin")
        t.say("That was {short} too much.", "{a} was {short} short.", '"Too dear for me," said {a}.')
        taken = False
    else:
        taken = t.fork(
            (1, "{a} <did not think twice|nodded> and bought it.", True),
            (1, '"{b} <has one already|would never use it>," said {a}, and went on.', False),
        )
    detail(t)
    t.plant("out", coins=False)
    gift, cost = x, cx
    if not taken:
        t.number("cy", 2, n)
        t.say(
            "In the next <shop|street> there was a {y.adj}{y} for {cy} coins, and that was <just right|the very thing>.",
            "At last {a.he} found a {y.adj}{y}. It cost {cy} coins, and {a} bought it.",
        )
        gift, cost = y, int(t["cy"])
    rest = n - cost
    t.world.do(Pass(a, cost, "coin", None))
    t.world.put(gift, a)
    t.set(gift=gift, rest=many(rest, "coin"))
    if rest:
        t.maybe(
            "There were {rest} left over, enough for <a ribbon|some red paper|a bunch of violets>.",
            "{rest} went back into the money box.",
            p=0.6,
        )
    else:
        t.maybe("That took every coin {a.he} had.", "Not a coin was left.", p=0.6)
    t.world.do(Give(a, gift, b))
    t.say(
        "{b} unpacked the {gift} and <was speechless|blushed with joy|laughed out loud>.",
        '"<A {gift}|A real {gift}>!" cried {b}. "How did you know?"',
        "When {b} saw the {gift}, <the room grew bright|there were tears of joy|nobody could get a word in>.",
        '"I hope you like it," said {a}. {b} held the {gift} up to the light and <beamed|nodded and nodded>.',
    )
    t.pay()
    t.say(
        "<From then on|For years> {b} never went anywhere without the {gift}.",
        '"It is the best present of all," said {b}<, and hugged {a}|>.',
        "Years later {b} still had the {gift}, and still <spoke of that birthday|knew who had given it>.",
        '"And now you must show me where you found the {gift}," said {b}.',
        "The {gift} lay beside {b}'s pillow that night.",
        "They had cake, and {b} gave {a} the <largest|first> piece.",
    )


VEHICLES = rows(
    "how verb mishap",
    """
    on foot | ran | stumbled over a root
    on skates | skated | slid into a snowdrift
    on bicycles | pedalled | lost a pedal
    in sacks | hopped | landed in the dust
    on sledges | raced | drove into a hedge
    on donkeys | rode | was carried off to a thistle
    on stilts | stalked | lost a stilt
    with wheelbarrows | ran | tipped over in a bend
    on ponies | galloped | was thrown into a ditch
    """,
)
PRIZES = """a ham|a blue ribbon|a silver cup|a basket of cherries|a new hat|a barrel of apples|a brass medal|a wreath of oak leaves
a bag of chestnuts|a cream cake|a goose|a wheel of cheese|a lantern|a pair of boots|a golden bell""".replace(
    "\n", "|"
).split("|")


def race(t: Tale) -> None:
    """Three race over the map; the order changes as one falls, and one may stop to help."""
    t.place("p")
    t.place("q", "p")
    a = t.hero()
    b, c = t.hero("b", a), t.role("c")
    t.set(v=Lazy(VEHICLES, "zipf"), prize=Lazy(PRIZES, "zipf"))
    t.say(
        "Every year there was a race from {p} to {q}.",
        "The great race went from {p} to {q}.",
    )
    t.say(
        "Everybody went {v.how}, and the prize was {prize}.", "They raced {v.how}, and the winner was to get {prize}."
    )
    t.say(
        "Three had put down their names: {a}, a {a.mood}{a.noun}, {b}, a {b.mood}{b.noun}, and the village {c.noun}.",
        "This time it was between {a}, a {a.mood}{a.noun}, {b}, a {b.mood}{b.noun}, and the village {c.noun}.",
    )
    t.plant("any", 0.6)
    first, second, third = t.order(a, b, c)
    t.set(f1=first, f2=second, f3=third)
    t.say(
        "{f1} took the lead at once, {f2} was close behind, and {f3} came last.",
        "At the <start|first bend> {f1} was in front, then {f2}, then {f3}.",
        "The <bell rang|flag fell>, and off they went: {f1} ahead, {f2} a length behind, {f3} at the end.",
        "{f3} had a bad start, {f2} a better one, and {f1} the best.",
    )
    way = route(t["p"], t["q"])[1:-1]
    if way:
        t["via"] = way[0].via
        t.maybe("They {v.verb} {via}.", "The course led {via}.")
    what = t.fork(
        (2, "Then {f1} {v.mishap}.", "fall"),
        (1, "Halfway {f2} passed {f1} and {f3} passed them both.", "pass"),
        (1, "<Nothing changed until|It stayed like that until> the last hundred steps.", "sprint"),
    )
    if what == "fall":
        helped = t.fork(
            (1, "{f2} <stopped|turned back> and helped {f1} up, while {f3} <hurried past|raced on>.", True),
            (1, "{f2} and {f3} <hurried past|did not look back>.", False),
        )
        order = (third, second, first) if helped else (second, third, first)
    elif what == "pass":
        order = (third, second, first)
        helped = False
    else:
        helped = False
        order = t.fork(
            (1, "There {f2} <drew level with|passed> {f1} and won by a nose.", (second, first, third)),
            (1, "But nobody could catch {f1}.", (first, second, third)),
        )
    t.set(w1=order[0], w2=order[1], w3=order[2])
    t.say(
        "So {w1} came in first, {w2} second and {w3} third.",
        "{w1} won, {w2} came second, and {w3} was last.",
        "The judge wrote it down: {w1} first, {w2} second, {w3} third.",
        "{w1} crossed the line, then {w2}, and {w3} <long|not long> afterwards.",
        "{w1} got {prize}, {w2} a handshake, and {w3} a glass of water.",
    )
    t.pay()
    if helped:
        t.say(
            "But the loudest cheer was for {f2}, who had <stopped|turned back> for {f1}.",
            "{f1} never forgot that {f2} had given up the race for a fallen rival.",
            '"The prize is yours," said {w1} to {f2}. "You helped {f1}, and I did not."',
        )
    else:
        t.say(
            '"Next year I will win," said {w3}, and <everybody|nobody> believed it.',
            "{w3} <did not mind|laughed about it>. Somebody has to be last.",
            "There was <lemonade|hot chocolate|dancing|music> afterwards, and {w3} was the merriest of all.",
            "{w1} <shook hands with|bowed to|embraced> {w2} and {w3}.",
            "That night they told the story of the race again and again, {w1} <most|loudest> of all.",
        )
