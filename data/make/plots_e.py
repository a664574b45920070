"""Plots of finding out: a suspicion, a lesson, a hidden box, a letter, a contest, a wrong coat."""

import lexicon
from colour import detail, habit
from tale import INTRO, OLD_KIN, Tale
from telling import Lazy, rows
from world import PLACES, Thing, way_words

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
SUSPECTS = [
    trade for trade in lexicon.TRADES if trade not in ("painter", "fisher", "shepherd", "weaver", "farmer", "tailor")
]


def suspicion(t: Tale) -> None:
    """Something was taken. Of three who might have done it two are cleared; who is left did it."""
    t.hero()
    t["food"] = Lazy(FOODS, "zipf")
    t.begin(
        f"{INTRO['a']} put {{food}} on the window sill.",
        f"{INTRO['a']} left {{food}} on the kitchen table.",
        f"{INTRO['a']} set {{food}} outside to cool.",
    )
    habit(t)
    t["food2"] = "the " + t["food"].split(" ", 1)[1]
    t.plant("any", 0.6)
    t.say(
        "When {a.he} came back, {food2} <was gone|had disappeared>.",
        "Ten minutes later {food2} <was gone|had vanished>.",
        "{a} turned {a.his} back for a moment, and {food2} <was no longer there|had disappeared without a trace>.",
        "At noon nothing was left of {food2} but an empty plate.",
    )
    for slot in "bcd":
        t.role(slot, SUSPECTS)
    t.say(
        "Only three people had <passed|come by>: {b}, {c} and {d}.",
        "It could only have been {b}, {c} or {d}.",
    )
    people = [t["b"], t["c"], t["d"]]
    u, v, w = t.order(*people)
    t.set(u=u, v=v, w=w, k1=Lazy(CLUES, "zipf"))
    t.say(
        "{a} looked closely and found {k1.clue}.",
        "There was one clue: {k1.clue}.",
        "Then {a} noticed {k1.clue}.",
    )
    t.say(
        "It could not have come from {u}, who {k1.cleared}.",
        "Not {u}, thought {a}, for {u} {k1.cleared}.",
        'That cleared one of them. "^{u} {k1.cleared}," {a} remembered.',
    )
    t.place("p")
    t.say(
        "And {v} had been {p.at} the whole <morning|time>, as <two nuns|the mayor|half the school> could swear.",
        "And at that very hour {v} had been seen {p.at}.",
        '"I was {p.at} all morning," said {v}, and several people could bear it out.',
        "{v} had spent the whole time {p.at}, which was easily proved.",
    )
    t.say(
        "So it must have been {w}.",
        "That left only {w}.",
        "Three less two is one, and the one was {w}.",
        "If it was not {u} and not {v}, it was {w}.",
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


SKILLS = rows(
    "skill step1 step2 need",
    """
    swim | keep the head up | kick like a frog | a child fell into the lake
    whistle on two fingers | roll back the tongue | blow as if cooling soup | the flock ran off into the hills
    tie a sailor's knot | make a loop | pull the end through twice | a boat broke loose in the harbour
    read a map | find north | count the hills | the whole school lost its way in the fog
    bake bread | wait for the dough | listen to the crust | the baker fell ill on the day before the fair
    ride | sit straight | keep the heels down | the doctor had to be fetched at night
    row | look back often | pull with the shoulders | the ferry ran onto a sandbank
    play the fiddle | hold the bow lightly | count to three | the band lost its fiddler on the morning of a wedding
    light a fire without matches | gather dry moss | blow gently | the stove went out in the mountain hut
    milk a cow | warm the hands first | hum a quiet song | both dairymaids caught the flu
    walk on a rope | look straight ahead | breathe slowly | a kitten got stuck on a high beam
    carve wood | follow the grain | cut away from the thumb | the puppet theatre lost its king
    bandage a leg | keep it still | wrap it firmly | a lamb broke its leg
    write backwards | hold the pen in the left hand | think in a mirror | a letter came in mirror writing
    ring the church bell | pull with the whole body | let go in time | the bell ringer slept through a fire
    calm a horse | speak softly | never look it in the eye | the mayor's horse bolted
    tell the weather | watch the swallows | smell the wind | the fishers wanted to know if they could go out
    """,
)


def lesson(t: Tale) -> None:
    """A child learns something in two steps and needs it."""
    a = t.child()
    t.kin("b", a, OLD_KIN)
    t["skill"] = Lazy(SKILLS, "zipf")
    t.begin(
        f'{INTRO["a"]} asked {{a.his}} {{b.noun}} {{b}}, "Will you teach me to {{skill.skill}}?"',
        f"{INTRO['a']} wanted to learn to {{skill.skill}}. {{a.his}} {{b.noun}} {{b}} knew how to do it.",
    )
    habit(t)
    detail(t)
    t.plant("out", 0.6, days=True)
    t.say(
        '"There are two rules," said {b}. "First you must {skill.step1}, and then you must {skill.step2}."',
        '"It is <not hard|simple>," <said {b}|{b} explained>. "You {skill.step1}, and you {skill.step2}. That is all."',
    )
    t.number("tries", 3, 7)
    t.say(
        "{a} tried {tries} times, and {tries} times it went wrong.",
        "The first {tries} times it would not work at all.",
        "It took {tries} days and many tears.",
    )
    t.say(
        '"I shall never learn it," said {a}. "What was the first rule?" <asked {b}|{b} asked>. "To {skill.step1}."',
        '"You forgot the second rule," said {b}. Of course: {skill.step2}!',
    )
    t.say("And then, <suddenly|all at once|on the next try>, {a} could do it.", "And the next time it worked.")
    t.pay()
    t.say(
        "<A month|Half a year|Not two weeks> later {skill.need}.",
        "That same <autumn|winter|summer> {skill.need}.",
    )
    t.say(
        '"I can {skill.skill}," said {a}. Everybody <stared|laughed|looked round>.',
        "Nobody there knew how to {skill.skill}. Nobody but {a}.",
    )
    t.say(
        "First {skill.step1}, {a.he} said to {a.himself}, and then {skill.step2}.",
        '"^{skill.step1}," {a.he} murmured, "and then {skill.step2}."',
        "{a} remembered both rules: {skill.step1}, and {skill.step2}.",
        "How did it go? {skill.step1}, {skill.step2}. {a.his} hands <trembled|were quite steady>.",
    )
    t.say(
        "It worked, and {b} was the <proudest person in the village|happiest teacher in the world>.",
        '"Who taught you that?" they asked. "{b} did," said {a}.',
        "Everything went well, and afterwards {a} ran to tell {b}.",
        '"And I thought you would never learn it," said {b} that evening, with a wink.',
    )


TREES = [
    "oak",
    "lime tree",
    "willow",
    "apple tree",
    "birch",
    "yew",
    "chestnut tree",
    "gatepost",
    "milestone",
    "stone cross",
    "weathercock",
    "pump",
]
DIRECTIONS = ("north", "south", "east", "west")
DIGGABLE = [
    "meadow",
    "orchard",
    "forest",
    "farm",
    "mill",
    "spring",
    "lake",
    "hill",
    "church",
    "pasture",
    "beach",
    "castle",
    "well",
    "quarry",
    "tower",
    "school",
    "playground",
]
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
INSIDE = """a bundle of letters|a dozen old coins|a dried rose|a map of the stars|a child's shoe|a wooden soldier without a head
a recipe for plum cake|a bag of seeds|a silver spoon|a lock of hair|a captain's logbook|a tin of buttons|a note that said "Well done"
another map|a pair of glass earrings""".replace("\n", "|").split("|")


def box(t: Tale) -> None:
    """A slip of paper says where a box is buried; the steps are followed, once with a mistake."""
    a = t.hero()
    t.begin(
        f"{INTRO['a']} found a slip of paper in an old <book|coat|teapot|violin case>.",
        f"{INTRO['a']} found a <yellow|crumpled> slip of paper behind a loose <brick|board>.",
    )
    habit(t)
    t.place("p", among=DIGGABLE)
    t.set(tree=Lazy(TREES, "zipf"), d1=Lazy(DIRECTIONS))
    t["d2"] = Lazy(lambda: DIRECTIONS[2:] if t["d1"] in DIRECTIONS[:2] else DIRECTIONS[:2])
    t.number("n1", 3, 30)
    t.number("n2", 3, 30)
    t.say(
        '"Go {p.to}," it said. "From the {tree} {n1} steps {d1}, then {n2} steps {d2}. Dig!"',
        'It said: "{p.at}. ^{n1} steps {d1} of the {tree}, then {n2} to the {d2}."'.replace('"{p.at}', '"^{p.at}'),
    )
    t["o1"] = OPPOSITE[t["d1"]]
    t.kin("b", a)
    t["way"] = way_words(PLACES["square"], t["p"])
    t.say(
        "{a} <told|asked> no one but {a.his} {b.noun} {b}, and the two of them went {way} with a spade.",
        "{a} took a spade and {a.his} {b.noun} {b}, and they went {way}.",
    )
    detail(t)
    t.plant("out", 0.5)
    t.say(
        "There stood the {tree}.",
        "The {tree} was easy to find.",
        "They asked for the {tree}, and a <child|cowherd> showed them.",
    )
    if t.fork(
        (1, "{b} counted {n1} steps to the {d1} and {n2} to the {d2}.", True),
        (1, "{b} counted {n1} steps to the {o1} and {n2} to the {d2}. They dug and dug, but there was nothing.", False),
    ):
        t.say(
            "{a} dug. At the depth of <an arm|a boot> the spade struck <iron|wood>.",
            "They took turns with the spade until it rang.",
        )
    else:
        t.say(
            '"To the {d1}, it says, and not to the {o1}!" cried {a}. They began again, and there it was.',
            '{a} looked at the paper once more. "You went {o1}," {a.he} said. "It says {d1}." And now the spade struck wood.',
        )
    t["inside"] = Lazy(INSIDE, "zipf")
    t.say(
        "In the <little|rusty|wooden> box lay {inside}<, and nothing else|>.",
        "It was a box, and in the box was {inside}.",
    )
    t.say(
        '"Is that all?" asked {b}. {a} thought it was <wonderful|a great treasure>.',
        "{a} and {b} looked at each other and <laughed until they cried|did not say a word>.",
        '"Who may have <buried|hidden> it?" they wondered.',
        '{b} turned it over in both hands. "Somebody must have loved this," {b.he} said.',
        "It was not gold and it was not silver, and yet they would not have exchanged it.",
        '"Better than nothing," said {b}. "Much better," said {a}.',
    )
    t.pay()
    t.say(
        "They put the slip into the box and buried it again, {n1} steps {d1} and {n2} steps {d2} of the {tree}.",
        "To this day the box stands on {a}'s shelf.",
        "{b} kept the box, and {a} kept what was in it.",
        "The paper went back where {a} had found it, for the next one.",
    )


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
        f"So {{a}} carried the letter to {{c}}, {t.way()}.",
        "{a} <said thank you|wiped it dry> and went to look for {c}.",
        "It was a long way to {c}'s house, but {a} did not mind.",
    )
    detail(t)
    t.plant("out", 0.6)
    wrong = t.fork(
        (1, "{c} tore it open at once and read it twice.", False),
        (1, '{c} opened it, read one line and folded it up again. "This is for {d}."', True),
    )
    t["reader"] = t["d"] if wrong else t["c"]
    if wrong:
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


TIDINGS = """my brother is coming home|my son has found work|I am a grandparent|the debt is paid|my sister is getting married
the ship was saved|I have won the first prize|they will print my poem|my old teacher is alive|the house is ours|he has forgiven me
the war is over|the doctors say I am well|she said yes|I am to play in the great hall|the lost trunk has been found""".replace(
    "\n", "|"
).split("|")
