"""Plots of things that are lost, borrowed or mended. Each is told by a function of a Tale."""

import lexicon
from colour import detail, habit
from lexicon import many
from tale import DAYS, END_INTRO, INTRO, Tale
from telling import Lazy, rows
from world import Break, Lend, Mend, Pass, Return, Take, Thing


def lost(t: Tale) -> None:
    """A thing is lost at one of three places; what a witness saw says at which."""
    a, x = t.hero(), t.treasure()
    t.begin(
        f"{INTRO['a']} lost {{a.his}} {{x.adj}}{{x}}.",
        f"{INTRO['a']} <noticed|found out> that {{a.his}} {{x.adj}}{{x}} was gone.",
        f"{INTRO['a']} reached into {{a.his}} <pocket|bag> for {{a.his}} {{x.adj}}{{x}}, but it was not there.",
        f"{INTRO['a']} sat on the <doorstep|garden wall> and was close to tears. {{a.his}} {{x.adj}}{{x}} was lost.",
        f"{INTRO['a']} came home without {{a.his}} {{x.adj}}{{x}} and <could not say where it was|had no idea where it might be>.",
    )
    habit(t)
    t.world.put(x, a)
    t.maybe(
        "It had been a present from {a.his} <grandmother|grandfather|godmother|best friend|favourite aunt|uncle>.",
        "{a.he} <would not have sold it for anything in the world|had owned it for years|loved it more than anything>.",
        "{a.he} turned <every pocket|the whole house> inside out, but in vain.",
        '"It cannot have grown legs," <said|remarked> {a.his} <mother|father>.',
        "{a.he} looked under the bed, behind the stove and even in the <bread bin|teapot>.",
        "Without it {a.he} felt <only half dressed|quite poor|as if a tooth were missing>.",
    )
    t.place("p")
    t.place("q", "p")
    t.place("r", "p", "q")
    t.say(
        "{a} <thought back|counted on {a.his} fingers>: first {a.he} had been {p.at}, then {q.at}, and last {r.at}.",
        "That <day|morning> {a} had been {p.at}, after that {q.at}, and <at the end|finally> {r.at}.",
        "Where had {a} been? {p.at}, then {q.at}, and after that {r.at}.",
        '"Begin at the beginning," {a} told {a.himself}. First {p.at}, next {q.at}, last of all {r.at}.',
    )
    detail(t)
    t.plant("out")
    t.kin("b", a)
    t.say(
        "{a} told {a.his} {b.noun} {b} about the {x}.",
        "On the road {a.he} met {a.his} {b.noun} {b}<, who listened to the whole story|>.",
        "{a.he} asked {a.his} {b.noun} {b} for <help|advice>.",
        "Luckily {a.his} {b.noun} {b} <had sharp eyes|never forgot a thing|was at home>.",
        '"Have you seen my {x}?" {a} asked {a.his} {b.noun} {b}.',
    )
    place = t[
        t.fork(
            (
                1,
                '"<You still had it when you left {q}|I saw it in your hand when you came from {q}|You were holding it when you left {q}>," <said {b}|{b} said>.',
                "r",
            ),
            (1, '"You had it {p.at}," said {b}, "but not any more when I saw you {q.at}."', "p"),
            (1, '"<Well|Let me think>," said {b}, "{p.at} you had it, but {r.at} you did not."', "q"),
        )
    ]
    t.set(found=place, spot=Lazy(lexicon.SPOTS[place.key]))
    t.say(
        '"Then it <must be|can only be> {found.at}," said {a}, and <off {a.he} ran|together they went to look>.',
        "{a} <thought for a moment|nodded> and went straight back {found.to}.",
        "{a} did not need to hear more and <ran|hurried> {found.to}.",
        'Then there was only one place left. "{found.to}!" cried {a}.'.replace('"{', '"^{'),
        'So it had to be {found.at}. "<Come along|Come with me>!" cried {a}.',
    )
    t.world.put(x, place)
    t.world.put(a, place)
    t.say(
        "And there, {spot}, lay the {x}.",
        "{a.he} searched for <a while|half an hour>, and there it was: {spot}.",
        "{b} saw it first: the {x} lay {spot}.",
        "Something <glittered|caught the light> {spot}. It was the {x}.",
        "{spot} {a.he} found it, <a little dusty|quite unharmed|as if somebody had put it there>.",
    )
    t.world.do(Take(a, x))
    t.pay()
    t.say(
        '"<From now on|After this> I will <look after it better|keep it on a string>," said {a}.',
        "{a} <hugged|thanked> {b} and did not let go of the {x} <all the way home|until bedtime>.",
        '"What would I do without you?" said {a}. {b} <only laughed|blushed with pleasure>.',
        "{a} put the {x} <deep into {a.his} pocket|where it belonged> and kept one hand on it.",
        "{a} danced home with the {x} and told everybody <about {b}|how clever {b} was>.",
        '"You have the memory of an elephant," {a} told {b}.',
        "Ever since, {a} looks back <twice|once more> before leaving a place.",
    )


TOOLS = rows(
    "name why done harm cure",
    """
    ladder | the gutter was blocked | cleaned the gutter | a rung broke | put in a new rung
    saw | a tree had fallen across the path | cut up the tree | a tooth broke off | had it filed sharp again
    wheelbarrow | there was a heap of stones to move | moved all the stones | the wheel came off | put the wheel back on
    spade | a hole had to be dug for the new gatepost | dug the hole | the handle snapped | fitted a new handle
    kettle | guests were coming to tea | made tea for everybody | the lid got a dent | hammered out the dent
    lantern | the cellar was as dark as a sack | cleared out the cellar | the glass cracked | put in a new glass
    hammer | the fence had come loose | nailed up the fence | the head flew off | wedged the head on again
    bicycle | a parcel had to be delivered | delivered the parcel | a tyre burst | patched the tyre
    rope | the bucket had sunk to the bottom of the well | pulled up the bucket | it began to fray | spliced the worn part
    fishing net | the trout were running | caught six fine trout | a fish tore a hole in it | knotted up the hole
    sewing basket | the curtains were torn | sewed up the curtains | the best needle broke | bought a new needle
    axe | there was no firewood left | chopped a pile of firewood | the blade got a notch | ground out the notch
    cart | a wardrobe had to be moved | moved the wardrobe | an axle cracked | fixed the axle
    hedge trimmer | the hedge had grown over the gate | trimmed the hedge | a screw came loose | tightened the screw
    sledge | a sack of coal had to be fetched | fetched the coal | one runner split | glued the runner
    baking tin | there was a cake to bake | baked a plum cake | the rim got bent | bent the rim straight
    paint roller | the kitchen wall was grey with smoke | painted the kitchen | the grip cracked | bound the grip with wire
    pump | the cellar was full of water | pumped the cellar dry | a valve got stuck | cleaned the valve
    telescope | there was an eclipse to be seen | watched the eclipse | a lens slipped out | set the lens in again
    """,
)


def borrowed(t: Tale) -> None:
    """A tool is lent until a day, perhaps lent on or harmed; it comes back in time, or late, or not well."""
    a = t.trader()
    b = t.trader("b", a)
    t["tool"] = Lazy(TOOLS, "zipf")
    t.begin(
        f"{INTRO['a']} needed a {{tool}}, because {{tool.why}}.",
        f"{INTRO['a']} had no {{tool}}, and {{tool.why}}.",
        f"{INTRO['a']} was in a fix: {{tool.why}}, and {{a.he}} had no {{tool}}.",
    )
    habit(t)
    t.say(
        f"So {{a.he}} <went to|knocked at the door of> {END_INTRO['b']} and asked for one.",
        f"{INTRO['b']} had a <good|fine|brand-new> one.",
        f"Next door lived {END_INTRO['b']}, who had one.",
        f"{{a.he}} thought of {END_INTRO['b']} and went to ask.",
    )
    t.say(
        '"<Take mine|You may have mine>," said {b}, "but I need it again on {day}." {a} <promised|nodded>.',
        '"Gladly," said {b}, "if I have it back by {day}." "By {day}," {a} promised, "you have my word."',
        '"Until {day} I can spare it," said {b}. "Not a day longer, then," said {a}.',
        "{b} lent it gladly, and {a} promised to bring it back on {day}.",
    )
    x = Thing(str(t["tool"]), "")
    t.world.put(x, b)
    t.world.do(Lend(b, x, a))
    t.say(
        "The same <day|afternoon> {a} {tool.done}.",
        "With it {a} {tool.done}<, and the work was soon finished|>.",
        "{a} took the {tool} home and {tool.done}.",
        "{a} <rolled up {a.his} sleeves|set to work at once|lost no time> and {tool.done}.",
        "Before <supper|dark> {a} {tool.done}.",
    )
    detail(t)
    t.plant("out", days=True)
    t["eve"] = DAYS[DAYS.index(t["day"]) - 1]
    t.role("c")
    happens = t.fork(
        (1, "But on {eve} {tool.harm}.", harmed),
        (
            1.2,
            "{eve} came, and {a.he} <cleaned the {tool}|wiped the {tool} with a cloth|put the {tool} beside the door>.",
            in_time,
        ),
        (
            1,
            "Then a {c.mood}{c.noun} asked for the {tool} too, and {a} <could not say no|did not think of {day}>.",
            lent_on,
        ),
    )
    happens(t, a, b, t["c"], x)


def in_time(t, a, b, c, x) -> None:
    t.pay()
    t.world.do(Return(a, x, b))
    t.say(
        "On {day} {b} had {b.his} {tool} again, <clean and dry|cleaner than ever>.",
        "On {day} {a} brought it back, and a <jar of jam|bag of walnuts|cake> with it.",
    )
    t.say(
        '"You may ask me any time," said {b}.',
        "What comes home in time is easily lent again.",
        '"I wish all my neighbours were like you," said {b}.',
        "And {b}, who had not <really |>expected it before the weekend, was <pleased|surprised>.",
        "{b} put the kettle on, and they talked until it was dark.",
    )


def lent_on(t, a, b, c, x) -> None:
    t.world.do(Lend(a, x, c))
    t.say("On {eve} it was still with {c}.", "{eve} came, and {c} still had it.")
    if t.fork((1, "{a} remembered and ran to fetch it.", True), (1, "{a} had <quite |>forgotten about it.", False)):
        t.world.do(Lend(c, x, a))
        t.world.do(Return(a, x, b))
        t.pay()
        t.say(
            'On {day}, before breakfast, there was {a} with the {tool} at the door. "You are <early|as good as your word>," said {b}.',
            'When {b} opened the window on {day}, {a} was waiting below with the {tool}. "A promise is a promise," {a} <said|panted>.',
        )
        t.maybe('"Next time I will not lend what is not mine," thought {a}.')
        return
    t.say(
        "On {day} {b} <came|knocked>. {a} <blushed|turned red> and had to say that {c} had the {tool}.",
        'On {day} {b} asked for the {tool}. "I do not have it," {a} had to say. "{c} has it."',
    )
    t.say(
        '"I lent it to you and not to {c}," said {b}, and went to fetch it.',
        '"Then I will get it from {c}," said {b}, "and next time you may ask somebody else."',
    )
    t.world.do(Lend(c, x, b))
    t.say("{a} was sorry, but sorry comes late.", "It was <a month|a long time> before {b} lent {a} anything again.")
    t.pay()


def harmed(t, a, b, c, x) -> None:
    t.world.do(Break(x))
    then = t.fork(
        (2, '"I must put that right," said {a}, and {tool.cure}.', "mended"),
        (1, "{a} did not dare to say so and took it back as it was.", "hidden"),
        (1.5, "There was no time to mend it. {a} went to {b} and told the truth.", "told"),
    )
    t.world.do(Return(a, x, b))
    if then == "mended":
        t.world.do(Mend(a, x))
        t.say(
            '"Why, it is better than before!" said {b} on {day}.',
            "On {day} {b} got it back and never noticed a thing, until {a} told {b.him}.",
        )
        t.say(
            "The two of them have been <good friends|fond of each other> ever since.",
            "After that {a} could borrow whatever {a.he} liked.",
        )
    elif then == "hidden":
        t.say("{b} saw it at once and <was silent for a while|shook {b.his} head>.", "It took {b} one look.")
        t.say(
            '"Things break," {b.he} said, "but you could have told me."',
            '"I do not mind about the {tool}," {b.he} said. "I mind that you said nothing."',
        )
        t.say(
            "{a} lay awake that night, and in the morning {a.he} {tool.cure}.",
            "So {a} {tool.cure} after all, and {b} <forgave {a.him}|smiled again>.",
        )
    else:
        t.say(
            '"Thank you for telling me," said {b}. "We will mend it together."',
            '{b} <sighed|laughed>. "Then come in," {b.he} said, "and we will see what can be done."',
        )
        t.say(
            "An hour later the {tool} was as good as new.",
            "It took them <an hour|all afternoon>, and they had a good talk besides.",
        )
    t.pay()


MENDS = rows(
    "name trade fault again",
    """
    clock | clockmaker | had stopped at half past four | ticked as if it had never stopped
    table | carpenter | had lost a leg | stood as firm as a rock
    window | glazier | had a long crack | let in nothing but light
    knife | blacksmith | was as blunt as a spoon | cut paper like butter
    coat | tailor | had lost its lining | was as warm as an oven
    atlas | bookbinder | had lost its back | opened like a new one
    necklace | jeweller | had a broken clasp | closed with a tiny click
    chest | locksmith | would not open | opened at the first turn of the key
    saddle | saddler | had split at the seam | creaked like new leather
    barrel | cooper | leaked at every seam | held every drop
    fiddle | musician | had lost two strings | sang like a lark
    roof | roofer | let the rain in | kept out the worst rain
    wall | mason | had fallen down in one corner | stood straight again
    sail | sailor | was torn from top to bottom | filled with the first breath of wind
    blanket | weaver | had a burn in the middle | showed no trace of the fire
    jug | potter | had lost its handle | poured without a drip
    """,
)
JOBS = """sweep the workshop|carry in the firewood|polish the windows|sort the nails|feed the chickens|fetch water from the well
weed the garden|deliver three parcels|mind the shop for an hour|stack the shelves|wash the aprons|peel a bucket of potatoes
rake the leaves|grease the hinges|whitewash the fence|beat the carpets|shell the peas""".replace("\n", "|").split("|")
DID = {
    "feed": "fed",
    "mind": "minded",
    "beat": "beat",
    "weed": "weeded",
    "sweep": "swept",
    "carry": "carried",
    "sort": "sorted",
}


def past(job: str) -> str:
    """sweep the workshop -> swept the workshop"""
    verb, _, rest = job.partition(" ")
    return f"{DID.get(verb) or verb + ('d' if verb.endswith('e') else 'ed')} {rest}"


def repair(t: Tale) -> None:
    """Something is mended for money; who has too little pays the rest by work."""
    a = t.child()
    t["m"] = Lazy(MENDS, "zipf")
    owner = "<mother|father|uncle|aunt|grandmother|grandfather>"
    t.begin(
        f"{INTRO['a']} decided that it could not go on like this.",
        f"{INTRO['a']} <woke up with a plan|had an idea>.",
        f"{INTRO['a']} wanted to <surprise {{a.his}} family|do something useful>.",
    )
    habit(t)
    t.say(
        "<For weeks|Since the spring|For a long time> the {m} in {a.his} <grandmother's|grandfather's|parents'> house {m.fault}.",
        f"The {{m}} that {{a.his}} {owner} <was so fond of|used every day|had inherited> {{m.fault}}.",
        f'"If only somebody could see to it," {{a.his}} {owner} always said, for the {{m}} {{m.fault}}.',
    )
    t.plant("out", coins=False)
    b = t.person("b", t["m"].trade, other=a)
    t.number("have", 3, 9)
    t.say(
        "So {a.he} took {have} coins from {a.his} <money box|drawer> and went to {b}, the {b.noun}.",
        "{a} had {have} coins, and with them {a.he} went to {b}, the {b.noun}.",
        "{a} put {a.his} {have} coins into a sock and <knocked|rang> at the door of {b}, the {b.noun}.",
        "There was a {b.noun} in the village called {b}. {a} went there with {have} coins in {a.his} hand.",
    )
    t.number("price", 3, 11)
    coins = t["have"]
    t.world.counts[a, "coin"] = coins
    t.say(
        '{b} <looked closely|put on {b.his} spectacles|scratched {b.his} chin>. "<That will be|I can do it for> {price} coins," {b.he} said.',
        '"<Hm|Well, well>," said {b}. "<That will cost you|It will take an hour and cost> {price} coins."',
        "{b} <thought it over|did some sums on a slate> and asked {price} coins for the work.",
        '"<An easy matter|A tricky thing>," said {b}. "Let us say {price} coins."',
    )
    price = t["price"]
    detail(t)
    if coins >= price:
        t.world.do(Pass(a, price, "coin", b))
        t["left"] = many(coins - price, "coin")
        t.say(
            "{a} <counted|put> the money on the table and had {left} left."
            if coins > price
            else "{a} <counted|put> the money on the table, down to the last coin.",
            "{a} paid at once and kept {left}." if coins > price else "{a} paid with everything {a.he} had.",
        )
    else:
        t.world.do(Pass(a, coins, "coin", b))
        t.set(short=many(price - coins, "coin"), job=Lazy(JOBS, "zipf"))
        t.say(
            '"I am {short} short," <said|whispered> {a}.',
            '"I have only {have}," said {a}. "That is {short} too few."',
            "{a} <blushed|sighed>. ^{a.he} was {short} short.",
        )
        t.say(
            '"Then {job} for me," said {b}, "and we are even."',
            "They agreed that {a} should {job} for the rest.",
            '"Can you {job}?" asked {b}. "Then you need not worry about the rest."',
        )
        t["did"] = past(t["job"])
        t.say(
            "So {a} {did}, while {b} set to work.",
            "{a} {did}<, and sang while {a.he} did it|, and did it well|>.",
            "While {b} worked, {a} {did}.",
        )
    t.pay()
    t.say(
        "In the evening the {m} {m.again}.",
        "When {a} came home, the {m} {m.again}.",
        "Before dark everything was done, and the {m} {m.again}.",
    )
    t.say(
        '"Who did that?" asked {a.his} <mother|father>. {a} <smiled|looked at the ceiling> and said nothing.',
        "Nobody was prouder that night than {a}.",
        "And nobody ever learned what {a} had <paid|done> for it.",
        '"{b} is a magician," said {a}. "No," said {a.his} <mother|father>, "you are."',
        "{a} <could not stop looking at it|slept with a smile>.",
    )
