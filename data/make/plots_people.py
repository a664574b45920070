"""Plots of people: a promise, a secret, an illness, a suspicion."""

from colour import detail, habit
from tale import END_INTRO, INTRO, STRANGERS, TRADES, Tale
from telling import Lazy, rows
from world import Decide, Promise, Tell, Vow

CARES = rows(
    "do missed sign",
    """
    water the flowers | had not watered the flowers | the leaves hung down like wet paper
    feed the rabbits | had not fed the rabbits | the hutch door was gnawed through
    wind the clock | had not wound the clock | the clock stood still
    collect the eggs | had not collected the eggs | a fox had been in the nest
    milk the goat | had not milked the goat | the goat was bleating with pain
    air the cellar | had not aired the cellar | there was mould on the cheeses
    turn the cheeses | had not turned the cheeses | the cheeses had gone flat and sour
    shut the gate at night | had not shut the gate | two sheep were missing
    keep the stove burning | had not kept the stove burning | the pipes were frozen
    feed the canary | had not fed the canary | the canary had not a note left in it
    water the tomatoes | had not watered the tomatoes | the tomatoes had shrunk to raisins
    feed the goldfish | had not fed the goldfish | the goldfish was as thin as a needle
    oil the mill wheel | had not oiled the mill wheel | the mill wheel screamed like a pig
    mind the baby ducks | had not minded the baby ducks | one duckling was missing
    carry in the milk | had not carried in the milk | a row of sour bottles stood at the door
    dust the piano | had not dusted the piano | a spider lived between the keys
    empty the rain barrel | had not emptied the rain barrel | the kitchen floor was wet
    light the lamp at the gate | had not lit the lamp | the mail coach had driven past
    """,
)


TEMPTATIONS = """build a raft|watch the puppet show|see the travelling circus|climb the tower|explore the cave|play cards|fly kites
listen to the brass band|build a tree house|look at the new locomotive|ride the carousel|act out a play|look for fossils|feed the bears
row to the island|dress up as ghosts|spy on the smugglers|roast potatoes in a fire|ring doorbells and run away""".replace(
    "\n", "|"
).split("|")


THANKS = """a silver coin|a bag of sweets|a wooden whistle|a picture book|a jar of honey|a snow globe|a red balloon|a box of paints
a bag of marbles|a pair of warm mittens|a postcard of the sea|a gingerbread heart|a real sailor's cap|a paper fan""".replace(
    "\n", "|"
).split("|")


MAKE_UP = """swept the yard|carried water|chopped kindling|dug over the garden|cleaned the windows|scrubbed the floor
pulled up weeds|picked stones from the field""".replace("\n", "|").split("|")


def promise(t: Tale) -> None:
    """Somebody looks after something until a day, and is tempted away."""
    b = t.trader("b")
    a = t.child("a", b)
    t["care"] = Lazy(CARES, "zipf")
    t.begin(
        f"{INTRO['b']} had to <go on a journey|leave the village for a few days>.",
        f"{INTRO['b']} packed a <suitcase|bag> to <visit a sick friend|go to a wedding|see the sea>.",
    )
    t.say(
        f'"Could you {{care.do}} until I am back on {{day}}?" {{b.he}} asked {END_INTRO["a"]}, who lived next door.',
        f'"I shall be back on {{day}}," {{b}} told {END_INTRO["a"]}. "Will you {{care.do}} while I am away?"',
    )
    vow = Promise(a, b, t["care"].do)
    t.world.do(Vow(vow))
    t.say(
        '"I promise," said {a}<, and {b.he} gave {a.him} the key|>.',
        "{a} <promised it|gave {a.his} word|shook hands on it>.",
        '"You can rely on me," said {a}.',
        '"Of course," said {a}. "That is easy."',
        "{a} <nodded|beamed>. Nothing was easier than that.",
    )
    habit(t)
    detail(t)
    t.plant("out")
    t.kin("c", b, ("friend", "cousin", "schoolmate"))
    t["lure"] = Lazy(TEMPTATIONS, "zipf")
    t.say(
        '<For a while|At first> all went well. But one evening {a.his} {c.noun} {c} <came running|knocked>. "We are going to {lure}! Are you coming?"',
        'Then, one afternoon, {a.his} {c.noun} {c} wanted {a.him} to {lure}. "Just this once," <begged {c}|{c} said>.',
    )
    outcome = t.fork(
        (2, '"Not before I have done what I promised," said {a}, and <went to work|shook {a.his} head>.', "kept"),
        (
            1,
            '{a} looked at the <door|sky>. "First help me," {a.he} said, "then I will come." And {c} helped.',
            "helped",
        ),
        (2, "{a} <hesitated|thought of {b}>, but only for a moment. They stayed out until it was dark.", "broken"),
        (1, "{a} went along. In the middle of the fun {a.he} remembered the promise and <ran|raced> back.", "late"),
    )
    kept = outcome != "broken"
    t.world.do(Decide(vow, kept))
    if kept:
        t.pay()
        t.say(
            "On {day} {b} came home and found everything in order.",
            "{b} came back on {day} and looked around. Nothing was <wrong|amiss>.",
            "And when {b} <opened the gate|put down {b.his} bags> on {day}, all was well.",
            'On {day} there was {b} again. "Did you {care.do}?" "I did," said {a}.',
        )
        t["thanks"] = Lazy(THANKS, "zipf")
        t.say(
            '"You kept your word," {b.he} said, and gave {a} {thanks}.',
            '"A promise kept is worth a present," said {b}, and it was {thanks}.',
            "{b} was so pleased that {a} got {thanks}.",
            '"I knew it," said {b}. ^{b.he} had brought {a.him} {thanks} from the journey.',
        )
        return
    t.pay()
    t.say(
        "On {day} {b} came home. {a} {care.missed}, and {care.sign}.",
        "But {a} {care.missed}. When {b} came home on {day}, {care.sign}.",
    )
    if t.fork(
        (2, '"It is my fault," said {a}. "I will make up for it."', True),
        (
            1,
            '"It was {c} who made me do it," <muttered|said> {a}. "No," said {b}. "You gave me your word, and {c} did not."',
            False,
        ),
    ):
        t.set(job=Lazy(MAKE_UP, "zipf"))
        t.say(
            "And for a whole <week|month> {a.he} {job} without being asked.",
            "The next Saturday {a.he} {job} from morning till night, and {b} forgave {a.him}.",
        )
    else:
        t.say(
            "The next time {b} went away, {b.he} gave the key to somebody else.",
            "{a} had nothing to answer. It was a long way home that evening.",
            '{a} looked at {a.his} shoes. "That is true," {a.he} said at last.',
        )


SECRETS = rows(
    "now fact short",
    """
    there is a nest with four young owls in the church tower | there was a nest with four young owls in the church tower | the young owls
    the innkeeper's famous soup comes out of a tin | the innkeeper's famous soup came out of a tin | the soup
    a fox with three cubs lives under the old wagon | a fox with three cubs lived under the old wagon | the fox cubs
    the mayor wears a wig | the mayor wore a wig | the wig
    the biggest mushrooms grow behind the graveyard wall | the biggest mushrooms grew behind the graveyard wall | the mushrooms
    the ghost in the attic is only an owl | the ghost in the attic was only an owl | the ghost
    the schoolteacher writes love poems | the schoolteacher wrote love poems | the poems
    a hedgehog sleeps in the rowing boat all winter | a hedgehog slept in the rowing boat all winter | the hedgehog
    there will be a surprise party for the old ferryman | there would be a surprise party for the old ferryman | the party
    the statue in the park is hollow | the statue in the park was hollow | the statue
    the wild strawberries are already ripe by the quarry | the wild strawberries were already ripe by the quarry | the strawberries
    the swans on the lake have five cygnets | the swans on the lake had five cygnets | the swans
    the prize pumpkin comes from a shop in town | the prize pumpkin came from a shop in town | the pumpkin
    an otter lives under the pier | an otter lived under the pier | the otter
    a wild cat hides in the ruined tower | a wild cat hid in the ruined tower | the wild cat
    """,
)


def secret(t: Tale) -> None:
    """One tells a second, who keeps it or tells a third."""
    a = t.hero()
    b = t.kin("b", a, ("friend", "cousin", "neighbour", "brother", "sister"))
    t["secret"] = Lazy(SECRETS, "zipf")
    t.begin(
        f"{INTRO['a']} <found out|discovered> that {{secret.fact}}.",
        f"{INTRO['a']} came home <breathless|with shining eyes>.",
        f"{INTRO['a']} <learned|saw> something that nobody else knew: {{secret.fact}}.",
    )
    habit(t)
    t.say(
        '"Can you keep a secret?" {a} asked {a.his} {b.noun} {b}. "^{secret.now}!"',
        'Only {a.his} {b.noun} {b} was told: "Listen, {secret.now}. You must not tell anybody!"',
        'That was too much for one alone, and {a} whispered to {a.his} {b.noun} {b}: "^{secret.now}!"',
    )
    fact = t["secret"].fact
    t.world.known.add((a, fact))
    t.world.do(Tell(a, fact, b))
    vow = Promise(b, a, "tell nobody")
    t.world.do(Vow(vow))
    t.say(
        '"Not a word to <anyone|a living soul>," <promised {b}|{b} promised>.',
        '"My lips are sealed," said {b}.',
        "{b} laid a hand on {b.his} heart and promised to tell no one.",
        "{b} <swore|promised> to be as silent as <the grave|a fish|a stone>.",
    )
    detail(t)
    t.plant("out")
    c = t.role("c")
    kept = t.fork(
        (1, 'The next day {c} asked why {b} was smiling so. "I heard a good joke from {a}," said {b}.', True),
        (
            1,
            "{c} offered {b} <a silver coin|a bag of sweets> for the secret, but {b} <only smiled|gave nothing away>.",
            True,
        ),
        (
            2,
            "But the secret <burned on {b.his} tongue|was too good>, and the very next day {b} told it to {c}.",
            False,
        ),
    )
    t.world.do(Decide(vow, kept))
    if kept:
        t.say(
            "So only two people knew about {secret.short}: {a} and {b}.",
            "And {c} never learned about {secret.short}.",
            "A year later still nobody but {a} and {b} knew about {secret.short}.",
        )
        t.pay()
        t.say(
            '"I can tell you anything," said {a}<, and {b} was very proud|>.',
            "From then on the two shared every secret they had.",
            '"Have you told anybody?" {a} asked after a week. "Told what?" said {b}, and they both laughed.',
            "{a} never had a better friend than {b}.",
        )
        return
    t.world.do(Tell(b, fact, c))
    t.say(
        "By <evening|noon|Sunday> the whole <village|street> was talking about {secret.short}.",
        "{c} told two others, and soon everybody was talking about {secret.short}.",
    )
    t.say(
        '"I told only you," {a} said to {b}. "So it was you who talked."',
        '"Who told you about {secret.short}?" {a} asked {c}. It had been {b}.',
        "{a} knew at once who had talked. Nobody but {b} had known.",
    )
    t.say(
        '"<I am so sorry|It just slipped out>," said {b}, and {b.he} meant it.',
        "{b} <hung {b.his} head|wept> and begged {a} to forgive {b.him}.",
        '"^{c} asked so nicely," said {b} in a small voice.',
        "{b} did not deny it.",
    )
    t.pay()
    t.say(
        "{a} forgave {b}, but kept the next secret to {a.himself}.",
        '"I forgive you," said {a} after a while, "but the next one I will tell the cat."',
        '"Trust is like a plate," said {a}. "It can be glued, but one sees the crack."',
        "It took <a week|many days> before the two spoke to each other again.",
    )


ILLS = rows(
    "ill cure",
    """
    a cough | onion juice with honey
    a fever | lime-blossom tea
    a sore throat | warm milk with sage
    the mumps | soup and a thick scarf
    a bad stomach | camomile tea and dry toast
    a sprained ankle | a cold wet bandage
    the measles | a dark room and much patience
    a toothache | cloves and a brave heart
    a broken arm | a plaster cast and six weeks of rest
    a terrible cold | hot lemon with ginger
    a stiff back | a hot brick wrapped in flannel
    """,
)


DUTIES = """wind up the church clock|light the street lamps|ring the school bell|deliver the milk|feed the swans|water the geraniums
open the lock gate|carry the letters|sweep the square|turn the mill wheel|count the sheep|bake the rolls|fetch the newspapers
fill the ink pots|trim the lamp|muck out the stable|sound the fog horn|rake the gravel""".replace("\n", "|").split("|")


PAST = {
    "wind": "wound",
    "light": "lit",
    "ring": "rang",
    "feed": "fed",
    "sweep": "swept",
    "carry": "carried",
    "trim": "trimmed",
}


def did(duty: str) -> str:
    verb, _, rest = duty.partition(" ")
    return f"{PAST.get(verb) or verb + ('d' if verb.endswith('e') else 'ed')} {rest}"


def illness(t: Tale) -> None:
    """Somebody is ill, and another does the work; later it is the other way round."""
    others = [trade for trade in TRADES if trade != "nurse"]
    a = t.trader(trades=others)
    t.set(ill=Lazy(ILLS, "zipf"), duty=Lazy(DUTIES, "zipf"))
    t.begin(
        f"{INTRO['a']} woke up with {{ill}}.",
        f"{INTRO['a']} had to stay in bed with {{ill}}.",
        f"{INTRO['a']} could not get up. It was {{ill}}.",
    )
    habit(t)
    t.say(
        '"{ill.cure}," <ordered|said> the doctor, "and a week in bed."',
        "The doctor came and <prescribed|ordered> {ill.cure}.",
    )
    t.say(
        '"But who will {duty}?" <groaned|asked|sighed> {a}.',
        "{a} thought only of one thing: somebody had to {duty}.",
    )
    t.trader("b", a, others)
    t["did"] = did(t["duty"])
    t.say(
        f'"I will," said {END_INTRO["b"]}.',
        f"{INTRO['b']} heard of it and came at once.",
        f"<Luckily|Fortunately> there was {END_INTRO['b']}.",
    )
    t.plant("any")
    t.number("days", 3, 9)
    t.say(
        "For {days} days {b} {did}, <in all weathers|before {b.his} own work|without ever being late>.",
        "{b} {did} for {days} days and would not hear of thanks.",
        "Every one of those {days} days {b} {did}<, and {b.his} own work besides|>.",
        "{b} {did} for {days} days, and every evening {b.he} <brought {a} a newspaper|told {a} what had happened|sat for a while at {a.his} bed>.",
    )
    t.say(
        "Then {a} was <well|on {a.his} feet> again.",
        "After that {a} was <as fit as a fiddle|up and about>.",
    )
    t.pay()
    back = t.fork(
        (2, "<In the same winter|A month later|Not long afterwards> it was {b} who fell ill.", "ill"),
        (1, '"How can I thank you?" asked {a}. "One day I shall be ill," said {b}, "and then you will come."', "joke"),
    )
    if back == "ill":
        if t.fork(
            (
                3,
                "{a} did not <wait to be asked|hesitate>. For as many days {a.he} did everything for {b}, for that was only fair.",
                True,
            ),
            (
                1,
                "{a} sent <flowers|a card|a basket of fruit>, but {a.he} did not come. {b} <was disappointed|looked at the door for a long time>.",
                False,
            ),
        ):
            t.say(
                "That is how friends are made.",
                "Nobody kept count after that.",
                "Then they were even, and friends besides.",
                '"You need not have come," said {b}. "You came to me," said {a}.',
                "{b} said it was almost worth being ill.",
            )
        else:
            t.say(
                "A week later {a} <was ashamed|could not bear it> and came after all, with a pot of soup.",
                "Some people <forget quickly|remember only what they are owed>.",
            )
    else:
        t.say("And so it came, two years later.", '{a} laughed. "That I promise," {a.he} said.')


CLUES = rows(
    "clue cleared",
    """
    a footprint of a very large boot | wore size thirty-six
    a long red hair | was as bald as an egg
    a smell of fish | could not bear the sight of a fish
    a splash of green paint | had never held a brush
    a feather from a goose | kept no animals at all
    a crumb of poppy seed cake | never ate anything sweet
    a broken bootlace | wore clogs summer and winter
    a drop of candle wax | had only oil lamps
    a tuft of grey wool | owned nothing woollen
    a muddy paw print | was afraid of dogs
    a button made of horn | had all buttons in place
    """,
)


FOODS = """a plum cake|an apple pie|a cheese|a roast goose|a ham|a cherry tart|a raisin loaf|a smoked trout|a custard|a treacle pudding
a walnut cake|a meat pie|an almond ring|a strawberry jelly|a chocolate roll|a rhubarb crumble""".replace(
    "\n", "|"
).split("|")


# those whom no clue could be said to clear
SUSPECTS = [trade for trade in STRANGERS if trade not in ("painter", "farmer")]


def suspicion(t: Tale) -> None:
    """Something was taken. Of two who might have done it one is cleared; the other did it."""
    t.hero()
    t["food"] = Lazy(FOODS, "zipf")
    t.begin(
        f"{INTRO['a']} put {{food}} on the window sill.",
        f"{INTRO['a']} left {{food}} on the kitchen table.",
        f"{INTRO['a']} set {{food}} outside to cool.",
    )
    habit(t)
    t["food2"] = "the " + t["food"].split(" ", 1)[1]
    t.plant("any")
    t.say(
        "When {a.he} came back, {food2} <was gone|had disappeared>.",
        "Ten minutes later {food2} <was gone|had vanished>.",
        "{a} turned {a.his} back for a moment, and {food2} <was no longer there|had disappeared without a trace>.",
        "At noon nothing was left of {food2} but an empty plate.",
    )
    for slot in "bc":
        t.role(slot, SUSPECTS)
    t.say(
        "Only two people had <passed|come by>: {b} and {c}.",
        "It could only have been {b} or {c}.",
    )
    innocent, thief = t.order(t["b"], t["c"])
    t.set(u=innocent, w=thief)
    t.place("p")
    t.set(k=Lazy(CLUES, "zipf"))
    if t.fork(
        (1, "{a} looked closely and found {k.clue}.", "clue"),
        (1, "There was one clue: {k.clue}.", "clue"),
        (
            1,
            "But {u} had been {p.at} the whole <morning|time>, as <two nuns|the mayor|half the school> could swear.",
            "",
        ),
        (1, '"I was {p.at} all morning," said {u}, and several people could bear it out.', ""),
    ):
        t.say(
            "It could not have come from {u}, who {k.cleared}.",
            "Not {u}, thought {a}, for {u} {k.cleared}.",
            'That cleared one of them. "^{u} {k.cleared}," {a} remembered.',
        )
    t.say(
        "So it must have been {w}.",
        "That left only {w}.",
        "Two less one is one, and the one was {w}.",
        "If it was not {u}, it was {w}.",
    )
    t.say(
        '{a} went straight to {w}. "How did you like {food2}?"',
        '"Where is {food2}?" {a} asked {w} without any greeting.',
    )
    if t.fork(
        (2, "{w} turned <scarlet|pale> and confessed.", True),
        (1, '"Delicious," {w} admitted. "I could not help it."', True),
        (1, '"I was so hungry," <whispered|sobbed> {w}.', True),
        (1, '"^what is left of it is in my cupboard," said {w}, looking at the floor.', True),
        (1, "{w} opened a cupboard. There it stood, and not a bite was missing.", False),
    ):
        t.pay()
        t.say(
            "The next day there was a new one on the sill, <bigger|even better> than the first.",
            '"Next time just ask," said {a}, and they had tea together.',
            "{w} had to <beat the carpets|chop wood|scrub the stairs> for a week, and did it gladly.",
        )
    else:
        t.say(
            '"Your cat was after it," said {w}. "I only saved it." {a} begged {w} for forgiveness.',
            '"A magpie was after it," said {w}. "I carried it in for you." {a} was ashamed.',
        )
        t.pay()
        t.say(
            "They ate it together, down to the last crumb.",
            "{w} got the largest slice, of course.",
            "After that {a} never accused anybody before asking.",
        )
