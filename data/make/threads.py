"""Side stories: each is begun in the middle of a plot and returns the function that ends it, before the plot ends.

They use the main character {a}, people {e} and {f} who have a trade and no name, further things and places.
"""

from collections.abc import Callable

import lexicon
from colour import COLOURS, GARMENTS
from lexicon import many, number, plural
from tale import OLD_KIN, SideStory, Tale
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
    e = t.role("e")
    t.number("part", 2, min(5, had))
    t.say(
        "{part} of them {a.he} gave to {e}, who had not eaten since yesterday.",
        "{a.he} gave {part} to a {e.mood}{e.noun}<, who looked hungry|>.",
        "When {e} came by, {a} gave away {part}.",
        '"May I?" asked {e}, and took {part}.',
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


def bet(t: Tale) -> End:
    """A bet on the weather, which the weather decides."""
    t["stake"] = Lazy(STAKES, "zipf")
    t.role("e")
    weather = t.slots["weather"]
    t["guess"] = Lazy(GUESSES.get(weather if isinstance(weather, str) else "", ("rain", "thunder", "hail")))
    t.say(
        '{e} <looked at the sky|stood at the gate>. "It will {guess} before evening, you will see." "I bet {stake} that it will not," said {a}.',
        '"It will {guess} before evening," said {e}. "I bet {stake} that it will not," said {a}.',
        "A {e.mood}{e.noun} bet {a} {stake} that it would {guess} before evening. {a} <laughed|did not believe it>.",
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
            '"You need a name," {a} told {s}, which was busy with {s.food}. "I shall call you {s.name}."',
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
    t.number("owed", 3, 9)
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
        t["still"] = many(owed - int(t["paid"]), "coin")
        if owed == t["paid"]:
            t.say("So the debt was paid.", "Now {a} did not owe a coin to anybody.")
        else:
            t.say("That left {still} to pay.", '"{still} to go," said {e} kindly.'.replace('"{', '"^{'))

    return end


WANTS = """salt|pepper|soap|tea|coffee|flour|rice|mustard|vinegar|candles|matches|string|needles|ink|nails|butter|lentils|raisins|starch|yeast
sugar|oil|wool|chalk""".replace("\n", "|").split("|")


def shopping(t: Tale) -> End:
    """A list of three things, of which one may be forgotten."""
    for slot, others in (("s1", ()), ("s2", ("s1",)), ("s3", ("s1", "s2"))):
        t[slot] = Lazy(lambda others=others: [one for one in WANTS if one not in [t[slot] for slot in others]], "zipf")
    t.say(
        "There was a shopping list in {a.his} pocket: {s1}, {s2} and {s3}.",
        "{a} also had to buy {s1}, {s2} and {s3}.",
        '"^{s1}, {s2} and {s3}," {a} kept repeating, so as not to forget what had to be bought.',
    )

    def end() -> None:
        lost = t.choose((None, "s1", "s2", "s3"), (2.0, 1.0, 1.0, 1.0))
        if lost is None:
            t.say(
                "{a} came home with {s1}, {s2} and {s3}, and nothing was forgotten.",
                "The {s1}, the {s2} and the {s3} were in {a.his} basket, every one of them.",
            )
            return
        got = [slot for slot in ("s1", "s2", "s3") if slot != lost]
        t.set(g1=t[got[0]], g2=t[got[1]], not_got=t[lost])
        t.say(
            "{a} came home with {g1} and {g2}, but the {not_got} had been forgotten.",
            "The {g1} and the {g2} were in {a.his} basket, but the {not_got} had stayed in the shop.",
        )

    return end


FLOWERS = """daisies|poppies|bluebells|cowslips|cornflowers|violets|marigolds|lilies|primroses|foxgloves|buttercups|tulips|asters|peonies|sweet peas
dandelions|crocuses|pansies""".replace("\n", "|").split("|")
WILD = rows(
    "noun did",
    """
    hedgehog | had rolled itself up
    squirrel | was burying nuts
    fox | stood quite still
    heron | stood on one leg
    badger | was digging a hole
    hare | sat up and listened
    otter | slid into the water
    deer | lifted its head
    woodpecker | was hammering
    kingfisher | flashed past
    toad | blinked in the grass
    weasel | ran along a wall
    magpie | was carrying a spoon
    owl | turned its head
    lizard | was sunning itself
    mole | looked out of its hill
    bat | hung upside down
    swan | was asleep
    """,
)
WILDS = [
    "meadow",
    "forest",
    "lake",
    "orchard",
    "farm",
    "spring",
    "hill",
    "pasture",
    "beach",
    "quarry",
    "mill",
    "castle",
    "tower",
    "well",
    "harbour",
    "bridge",
]
ROOMS = ["kitchen table", "window sill", "piano", "mantelpiece", "bedside table", "front step", "desk", "dresser"]


def nosegay(t: Tale) -> End:
    """Flowers are picked for somebody, and stand in a room in the evening."""
    t["flowers"] = Lazy(FLOWERS, "zipf")
    t["kin"] = Lazy(lambda: t.free(("mother", "grandmother", "aunt", "father", "grandfather", "uncle")), "zipf")
    t.number("stems", 3, 12)
    t.say(
        "At the roadside {a} picked {stems} {flowers} for {a.his} {kin}.",
        "{a} was holding {stems} {flowers}, a present for {a.his} {kin}.",
    )

    def end() -> None:
        t["room"] = Lazy(ROOMS, "zipf")
        t.say(
            "That evening the {stems} {flowers} stood on the {room}, and {a.his} {kin} was pleased.",
            "{a.his} {kin} put the {flowers} into a <jug|glass|vase> on the {room}, all {stems} of them.",
            "The {flowers} were <limp|a little crushed> by then, but {a.his} {kin} loved them.",
        )

    return end


def sight(t: Tale) -> End:
    """A wild animal is seen somewhere, and told of later."""
    t["wild"] = Lazy(WILD, "zipf")
    t.place("site", among=WILDS)
    t.say(
        "{site.at} {a} had seen a {wild}. It {wild.did}.",
        "{a} had come upon a {wild} {site.at}.",
        "That morning there had been a {wild} {site.at}, and {a} had watched it for a long time.",
    )

    def end() -> None:
        t.say(
            "Before going to bed {a} drew a picture of the {wild}<, with the words: seen {site.at}|>.",
            '"I saw a {wild} {site.at}," {a} told {a.his} <mother|father|neighbour>, who would not believe it.',
            "And the next day {a} went {site.to} again, but the {wild} <was there no more|did not show itself>.",
            "That night {a} dreamed of the {wild}.",
        )

    return end


def clothes(t: Tale) -> End:
    """Something is worn that does not come home as it was."""
    t.set(wear=Lazy(GARMENTS, "zipf"), hue=Lazy(COLOURS, "zipf"))
    t.say(
        "For the first time {a} was wearing the new {hue} {wear}.",
        "{a} had put on {a.his} best {wear}, the {hue} one.",
        '"Take care of your {hue} {wear}," {a.his} <mother|father|grandmother|aunt> had told {a}.',
    )

    def end() -> None:
        t.say(
            "The {hue} {wear} was <torn|stained|wet through>, but {a} only noticed it at home.",
            "At home {a} brushed the {hue} {wear} and hung it up. It was as good as new.",
            "Only the {hue} {wear} had lost a button.",
            "And there was not a spot on the {hue} {wear}.",
        )

    return end


DISHES = """pea soup|stew|plum jam|porridge|cabbage|chestnuts|beans|broth|rice pudding|apple sauce|goulash|lentils|dumplings|potatoes|beetroot
mushroom soup|onion soup|chutney""".replace("\n", "|").split("|")


def pot(t: Tale) -> End:
    """A pot was left on the stove."""
    t["dish"] = Lazy(DISHES, "zipf")
    t.say(
        "At home a pot of {dish} was simmering, and {a} must not be late.",
        "{a} had left a pot of {dish} on the stove.",
        '"I must be back before the {dish} <burns|boils over>," thought {a}.',
    )

    def end() -> None:
        t.say(
            "{a} was home just in time for the {dish}. It was <done to a turn|better than ever>.",
            "When {a} came home, there was a black cloud in the kitchen. The {dish} had burnt.",
            "The {dish} had boiled over, and {a} scrubbed the stove until midnight.",
            "The {dish} had been saved by {a.his} <sister|brother|neighbour>, who had smelled it through the window.",
        )

    return end


THREADS = (
    SideStory(fruit, "out", people=True),
    SideStory(errand, "out", people=True),
    SideStory(bet, "any", people=True, lasts=False),
    SideStory(message, "out", people=True),
    SideStory(riddle, "any", people=True),
    SideStory(debt, "any", people=True, coins=True),
    SideStory(nosegay, "out", people=True, lasts=False),
    SideStory(stray, "out", people=False),
    SideStory(cache, "out", people=False),
    SideStory(shopping, "out", people=False, lasts=False),
    SideStory(sight, "any", people=False),
    SideStory(clothes, "out", people=False),
    SideStory(pot, "out", people=False, lasts=False),
)
