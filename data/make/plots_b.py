"""Plots of bargains: a promise, a market day, a chain of barter."""

from colour import detail, habit
from lexicon import many, plural
from tale import DAYS, END_INTRO, INTRO, Tale
from telling import Lazy, rows
from world import Decide, Give, Pass, Promise, Vow

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
    t.plant("out", days=True)
    t.kin("c", b, ("friend", "cousin", "schoolmate"))
    t["lure"] = Lazy(TEMPTATIONS, "zipf")
    t["eve"] = DAYS[DAYS.index(t["day"]) - 1]
    t.say(
        '<For a while|At first> all went well. But on {eve} {a.his} {c.noun} {c} <came running|knocked>. "We are going to {lure}! Are you coming?"',
        'Then, on {eve}, {a.his} {c.noun} {c} wanted {a.him} to {lure}. "Just this once," <begged {c}|{c} said>.',
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
            '"{c} made me do it," <muttered|said> {a}. "No," said {b}. "You gave me your word, and {c} did not."',
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


THANKS = """a silver coin|a bag of sweets|a wooden whistle|a picture book|a jar of honey|a snow globe|a red balloon|a box of paints
a bag of marbles|a pair of warm mittens|a postcard of the sea|a gingerbread heart|a real sailor's cap|a paper fan""".replace(
    "\n", "|"
).split("|")
MAKE_UP = """swept the yard|carried water|chopped kindling|dug over the garden|cleaned the windows|scrubbed the floor
pulled up weeds|picked stones from the field""".replace("\n", "|").split("|")

GOODS = """egg|apple|pear|cheese|loaf|candle|basket|cabbage|jar of honey|trout|pumpkin|broom|clay pot|bunch of dried flowers|turnip
bottle of cider|feather pillow|wooden spoon|bar of soap|straw hat|goose|ball of wool|wreath|duckling
mousetrap|doormat|pepper mill|paper kite|sausage|sack of oats|bag of chestnuts|beehive""".replace("\n", "|").split("|")


class Good(str):
    @property
    def many(self) -> str:
        return plural(self)


def market(t: Tale) -> None:
    """A day of selling: so many brought, sold at a price, and money that must add up."""
    a = t.hero()
    t.number("n", 6, 12)
    t["good"] = Lazy([Good(good) for good in GOODS], "zipf")
    t.begin(
        f"{INTRO['a']} <carried|took|brought> {{n}} {{good.many}} to the market.",
        f"{INTRO['a']} set up a <little |>stall in the market square. There were {{n}} {{good.many}} to sell.",
    )
    habit(t)
    n, good = t["n"], t["good"]
    t.world.counts[a, good] = n
    t.number("price", 2, 4)
    t.say(
        '"Only {price} coins each!" {a.he} called.',
        "Each of them cost {price} coins.",
        "{a.he} asked {price} coins for one and would not take less.",
        "A sign said in <large|crooked|neat> letters: {price} coins each.",
        '"What do they cost?" people asked. "{price} coins apiece," said {a}.',
    )
    price = t["price"]
    detail(t)
    t.plant("any", coins=False)
    t.role("b")
    t.number("k", 2, 4)
    t.say(
        "A {b.mood}{b.noun} <was the first to buy|came first> and took {k}.",
        "The first customer was a {b.mood}{b.noun}, who bought {k} of them.",
        "For an hour nobody came. Then a {b.mood}{b.noun} bought {k}.",
        "{a} sold {k} of them to a {b.mood}{b.noun}.",
    )
    k = t["k"]
    for event in (Pass(a, k, good, t["b"]), Pass(None, k * price, "coin", a)):
        t.world.do(event)
    t["sum"] = many(k * price, "coin")
    t.maybe("That made {sum}.", "{sum} <went into {a.his} purse|clinked in {a.his} purse>.")
    left = n - k
    t.number("j", 2, min(4, left))
    t.role("c")
    trouble = t.fork(
        (2, "Then a {c.mood}{c.noun} came by and wanted {j}.", "sold"),
        (1, "Then a <dog|goat|donkey> knocked against the stall, and {j} {good.many} landed in the mud.", "spoilt"),
        (
            1,
            "A <poor|tired|hungry> <traveller|widow> had no money. {a} gave {j} {good.many} away for nothing.",
            "given",
        ),
    )
    j = t["j"]
    left -= j
    t.world.do(Pass(a, j, good, None))
    if trouble == "sold":
        t.world.do(Pass(None, j * price, "coin", a))
        t.say(
            '"{price} coins each," said {a}, and {c} paid without a word.',
            "{c} tried to beat down the price, but {a} would not hear of it and was paid in full.",
        )
    sold = t.world.count(a, "coin")
    t.set(
        left=many(left, good) if left else f"not one {good}",
        coins=many(sold, "coin"),
        were="was" if left < 2 else "were",
    )
    t.pay()
    t.say(
        "When the bells rang for evening, {left} {were} left, and there were {coins} in the purse.",
        "{a} packed up in the evening. {a.he} <counted|had> {coins}, and {left} {were} left over.",
        '"{coins}," {a.he} counted in the evening, "and {left} {were} not sold."'
        if left
        else '"{coins}," {a.he} counted in the evening, "and everything is gone!"',
    )
    spend(t, a, sold)


def spend(t: Tale, a, coins: int) -> None:
    """Something is bought with the money, if there is enough of it."""
    t["w"] = Lazy(WARES, "zipf")
    t.number("cost", 5, 15)
    t.say(
        "On the way home {a.he} passed a <shop|stall> where a {w} cost {cost} coins.",
        "For a long time {a.he} had wished for a {w}. It cost {cost} coins.",
    )
    cost = t["cost"]
    if coins >= cost:
        t.world.do(Pass(a, cost, "coin", None))
        t["rest"] = many(coins - cost, "coin")
        t.say(
            "{a.he} bought it and still had {rest}." if coins > cost else "{a.he} bought it with {a.his} last coin.",
            "So the {w} came home with {a.him}, and {rest} as well."
            if coins > cost
            else "It took everything in the purse, but the {w} was {a.his}.",
        )
    else:
        t["short"] = many(cost - coins, "coin")
        t.say(
            "{short} too few! But there would be another market day.",
            '{a} was {short} short. "Next week," {a.he} told {a.himself}.',
        )


WARES = """warm shawl|pocket mirror|wooden chair|copper pan|paper lantern|wool blanket|map of the world|pair of skates|looking glass
china cup|feather duster|rocking horse|fur cap|fishing rod|box of chalks|garden rake|hand drum|oil lamp|book of riddles
birdcage|chess set|pair of slippers|tin soldier|barometer|kaleidoscope""".replace("\n", "|").split("|")


def barter(t: Tale) -> None:
    """One wants what the second has, who wants what the third has, and so on back to the first."""
    a = t.child()
    x, y, z = t.treasure("x"), t.treasure("y"), t.treasure("z")
    b = t.trader("b", a)
    t.begin(
        f"{INTRO['a']} saw a {{x.adj}}{{x}} in the <window|hands> of {END_INTRO['b']}.",
        f"{INTRO['a']} fell in love with a {{x.adj}}{{x}}. It belonged to {END_INTRO['b']}.",
        f"{INTRO['a']} wanted nothing so much as the {{x.adj}}{{x}} of {END_INTRO['b']}.",
        f"{INTRO['a']} <could not sleep for thinking of|dreamed about> a {{x.adj}}{{x}} that {END_INTRO['b']} had shown {{a.him}}.",
    )
    habit(t)
    t.used.add(x.noun)
    t.world.put(x, b)
    t.say(
        '"I do not want money for it," said {b}. "But I have <always wanted|been looking for> a {y}."',
        '"You can have it," said {b}, "for a {y}. Mine <is lost|fell into the lake|was stolen>."',
        '"Bring me a {y}," said {b}, "and it is yours."',
        "{b} would not sell it, but might exchange it for a {y}.",
    )
    detail(t)
    t.plant("out")
    t.used.add(y.noun)
    c = t.role("c")
    t.say(
        "The only {y} in the village belonged to {c}.",
        "{a} knew that {c} had a {y}.",
        "{a} asked at every door, and at last a {c.mood}{c.noun} brought out a {y.adj}{y}.",
    )
    t.world.put(y, c)
    t.say(
        '"I might part with it," said {c}, "if I got a {z}."',
        '"A fair exchange is no robbery," said {c}. "I could do with a {z}."',
        'And what did {c} want for it? "A {z}," said {c}, "nothing more and nothing less."',
        "{c} would give it away for a {z} and for nothing else.",
    )
    t.used.add(z.noun)
    t.world.put(z, a)
    t.say(
        "Now {a} had a {z} at home<, a birthday present from long ago|, which {a.he} hardly ever used>.",
        "A {z}! {a} had one <under the bed|in a drawer|on the shelf>.",
    )
    if t.fork(
        (3, "{a.he} <ran home for it|fetched it at once>, and {c} gave {a.him} the {y}.", True),
        (1, "{a.he} fetched it and looked at it once more. No, {a.he} could not part with it.", False),
    ):
        for event in (Give(a, z, c), Give(c, y, a), Give(a, y, b), Give(b, x, a)):
            t.world.do(event)
        t.say(
            "{b} was delighted with the {y}, and {a} went home with the {x}.",
            "With the {y} {a.he} hurried to {b}, and now the {x} belonged to {a}.",
            "Ten minutes later {b} had the {y} and {a} had the {x}.",
        )
        t.pay()
        t.say(
            "That evening {a} had the {x}, {b} had the {y} and {c} had the {z}, and all three were content.",
            "{c} had the {z} now, {b} the {y}, and {a} the {x}: nobody had paid a penny, and everybody was richer.",
            '"Who has my old {z} now?" {a} asked {a.himself} before going to sleep. It was {c}, of course.',
        )
        return
    t.pay()
    t.say(
        '"Keep your {z}," said {c} kindly. "Some things are not for trading."',
        "So {c} kept the {y}, {b} kept the {x}, and {a} kept the {z}.",
    )
    t.say(
        "And {a} <played with|admired> the {z} again, for the first time in years.",
        "Strange: now that it was nearly gone, {a} liked the {z} better than before.",
        "{a} walked home slowly, the {z} <in both hands|against {a.his} heart>.",
    )
