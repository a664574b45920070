"""Plots of people: a secret, a storm, an illness, a stray animal, a suspicion, a lesson."""

import lexicon
from colour import detail, habit
from tale import END_INTRO, INTRO, Tale
from telling import Lazy, rows
from world import PLACES, Decide, Promise, Tell, Vow

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
    the coal cellar leads into the castle | the coal cellar led into the castle | the coal cellar
    the wild strawberries are already ripe by the quarry | the wild strawberries were already ripe by the quarry | the strawberries
    the tallest sunflower is held up by a broomstick | the tallest sunflower was held up by a broomstick | the sunflower
    the swans on the lake have five cygnets | the swans on the lake had five cygnets | the swans
    the prize pumpkin comes from a shop in town | the prize pumpkin came from a shop in town | the pumpkin
    an otter lives under the pier | an otter lived under the pier | the otter
    the new bell has a crack | the new bell had a crack | the new bell
    a wild cat hides in the ruined tower | a wild cat hid in the ruined tower | the wild cat
    the stationmaster keeps a crocodile in the bath | the stationmaster kept a crocodile in the bath | the crocodile
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
        'That was too much for one alone. "{b}," {a} whispered to {a.his} {b.noun}, "{secret.now}!"',
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
    t.plant("out", days=True)
    c = t.role("c")
    kept = t.fork(
        (1, 'The next day {c} asked why {b} was smiling so. "^{a} told me a good joke," said {b}.', True),
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
        '"Who told you about {secret.short}?" {a} asked {c}. "^{b} did."',
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
    """A storm breaks something; what is needed to mend it is counted together from several neighbours."""
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
    t.number("need", 8, 18)
    t.say(
        '"I need {need} {dam.need}," said {a}, "and I have none."',
        "{need} {dam.need} were needed to mend it, and {a} had <not a single one|none>.",
        '{a} <walked around it|counted on {a.his} fingers>. "{need} {dam.need}," {a.he} <said|sighed>. "Where shall I get {need} {dam.need}?"',
    )
    need = int(t["need"])
    t.trader("b", a)
    t.number("n1", 2, need - 3)
    t.say(
        f"{INTRO['b']} <came over the road|was the first to come> and brought {{n1}}.",
        f"Then {END_INTRO['b']} came with {{n1}} {{dam.need}} <on a cart|in a wheelbarrow|over one shoulder>.",
    )
    n1 = int(t["n1"])
    t["missing"] = lexicon.number(need - n1)
    t.maybe('"Now there are {missing} missing," <counted|said> {a}.', "{a} <counted|reckoned>: {missing} to go.")
    detail(t)
    t.plant("out", 0.6, days=True)
    t.role("c")
    t.number("n2", 1, need - n1)
    t.say(
        "A {c.mood}{c.noun} <had|gave them> {n2}<, left over from last year|>.",
        "They got {n2} more from a {c.mood}{c.noun}.",
        "A {c.mood}{c.noun} looked in the shed and found {n2}.",
    )
    n2 = int(t["n2"])
    gap = need - n1 - n2
    t.set(gap=lexicon.number(gap))
    if gap:
        t.say(
            "So only {gap} had to be bought.",
            "{a} bought the last {gap} in town.",
        )
    else:
        t.say("That was exactly enough.", '"That makes {need}!" cried {a}.')
    t.say(
        "{a}, {b} and {c} worked side by side and {dam.done}.",
        "By <noon|evening> the three of them had {dam.done}.",
    ) if t["dam"].done.split()[0] in ("put", "built", "set", "laid", "hung") else t.say(
        "{a}, {b} and {c} worked side by side and {dam.done}.",
        "Together the three of them {dam.done} before dark.",
    )
    t.pay()
    t.say(
        "Afterwards there was <pea soup|stew|fresh bread and cheese> for everybody at {a}'s table.",
        '"What would one do without neighbours?" said {a}.',
        "{b} and {c} would not take a penny for it.",
        "And {a} <baked a cake|baked a pie|cooked a pot of jam> for {b} and another for {c}.",
        "When {b} needed help <in the spring|a month later>, {a} was the first to come.",
        '"Let the next storm come," said {a}. "We are ready."',
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
    others = [trade for trade in lexicon.TRADES if trade not in ("doctor", "nurse")]
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
    t.plant("any", days=True)
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
                "{a} did not <wait to be asked|hesitate>. For {days} days {a.he} did everything for {b}, for that was only fair.",
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


def missing(t: Tale) -> None:
    """An animal has run away; witnesses send the searcher along the map, and its favourite food brings it back."""
    t.hero()
    t.pet("d")
    t.begin(
        f"{INTRO['a']} could not find {{a.his}} {{d.mood}}{{d.noun}} {{d.name}} anywhere.",
        f"{INTRO['a']} found the gate open. {{d.name}}, {{a.his}} {{d.mood}}{{d.noun}}, was gone.",
    )
    habit(t)
    t.maybe(
        "Usually it <slept|could be found> {d.home}, but it was not there.",
        '"{d.name}! {d.name}!" {a.he} called, <until {a.he} was hoarse|but nothing moved>.',
    )
    t.place("p")
    t.role("b")
    t.say(
        '"I saw a {d.noun} {p.at} <an hour ago|this morning>," said {b}.',
        "A {b.mood}{b.noun} had seen a {d.noun} {p.at}.",
    )
    t.say(
        f"So {{a.he}} <hurried|ran|went> {{p.to}}, {t.way()}.",
        "{a} thanked {b} and <ran|hurried> {p.to}.",
        "Off went {a} {p.to}, calling all the way.",
    )
    detail(t)
    t.plant("out", 0.6)
    near = [PLACES[key] for key in t["p"].near]
    t["q"] = Lazy(near)
    t.say(
        "{p.at} {a} found <fresh tracks|nothing but tracks>, and they led {q.to}.",
        '{p.at} a <child|fisher|woman with a basket> pointed with one finger. "That way, {q.to}!"',
        '"You are too late," said a <boy|hunter|woman> {p.at}. "It went {q.to}."',
        "But {d.name} was no longer {p.at}. Somebody had seen it go {q.to}.",
    )
    t["spot"] = Lazy(lexicon.SPOTS[t["q"].key])
    t.say(
        "And {q.at}, {spot}, was {d.name}.",
        "{q.at} something {d.sound}. There was {d.name}, {spot}.",
    )
    if t.fork(
        (2, "It was <stuck|caught|tangled in a rope> and could not get away.", True),
        (2, "It did not want to come.", False),
        (1, "It <looked up|seemed very pleased with itself>.", None),
    ):
        t.say(
            "{a} <freed it|cut it loose> and led it all the way home.",
            "It took <both hands|some time and a penknife> to free it.",
            '"Hold still," said {a}, and {d.name} held still until it was free.',
        )
    else:
        t.say(
            "But {a} had brought {d.food}, and {d.name} could not resist.",
            "{a} put {d.food} on the ground and waited. At last {d.name} came.",
            "{a} held out {d.food}, and {d.name} {d.move} after {a.him} all the way home.",
        )
    t.pay()
    t.say(
        "That night {d.name} slept {d.home} again.",
        "{a} gave {b} <a basket of pears|a jar of jam|a big piece of cake> for having seen it.",
        "From that day on the gate was always <shut|bolted>.",
        "{d.name} was none the worse for it, and {a} was <hoarse|happy|dead tired>.",
        "{b} came by in the evening to see {d.name}, and {d.name} {d.sound}.",
        "In the evening {d.name} got {d.food} and {a} got some sleep.",
    )
