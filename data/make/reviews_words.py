"""What reviews are about: shops, meals and books, and what can be said of each, well or ill.

Rows of aspects are `noun | verb | good adjectives | bad adjectives`; pairs are `good clause | bad clause`; ironies are
`what both begin with | good end | bad end`.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class Aspect:
    """Something that is good or bad. of[1] are its good words, of[-1] the bad ones: adjectives, or whole clauses."""

    head: str
    of: dict[int, tuple[str, ...]]
    bare: str  # the noun without its article, to be put after an adjective; "" where that is not said


class Dish(NamedTuple):
    """A dish and its kind: pea, soup."""

    name: str
    kind: str

    def __str__(self) -> str:
        return self.name if self.name.endswith(self.kind) else f"{self.name} {self.kind}"


def split(cell: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in cell.split(","))


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


@functools.cache
def aspects(table: str) -> list[Aspect]:
    found = []
    for noun, verb, good, bad in lines(table):
        bare = noun.removeprefix("the ")
        found.append(Aspect(f"{noun} {verb} ", {1: split(good), -1: split(bad)}, bare))
    return found


@functools.cache
def clauses(table: str) -> list[Aspect]:
    return [Aspect("", {1: (good,), -1: (bad,)}, "") for good, bad in lines(table)]


# --- shops ----------------------------------------------------------------------------------------------------------

FRESH = ("fresh, tasty, delicious", "stale, tasteless, dry")
GREEN = ("fresh, ripe, crisp", "withered, mouldy, bruised")
FLOWERS = ("fresh, fragrant, well tied", "faded, limp, badly tied")
MADE = ("well made, handsome, sturdy", "badly made, ugly, flimsy")
FINE = ("beautiful, delicate, well made", "clumsy, ugly, crooked")
CLOTH = ("warm, soft, well cut", "scratchy, thin, badly cut")

# kind, keeper, goods
SHOPS: dict[str, tuple[str, list[tuple[str, tuple[str, str]]]]] = {
    "bakery": ("baker", [("bread", FRESH), ("rolls", FRESH), ("cakes", FRESH)]),
    "grocery": ("grocer", [("vegetables", GREEN), ("apples", GREEN), ("pears", GREEN)]),
    "cheese shop": ("cheesemaker", [("cheese", FRESH), ("butter", FRESH), ("sausages", FRESH)]),
    "fish stall": ("fisher", [("herrings", FRESH), ("crabs", FRESH), ("trout", FRESH)]),
    "shoe shop": ("shoemaker", [("shoes", MADE), ("boots", MADE), ("slippers", CLOTH)]),
    "toy shop": ("toymaker", [("puppets", FINE), ("kites", FINE), ("spinning tops", MADE)]),
    "hat shop": ("hatter", [("hats", MADE), ("caps", CLOTH), ("bonnets", FINE)]),
    "clock shop": ("clockmaker", [("clocks", MADE), ("watches", FINE)]),
    "flower shop": ("florist", [("roses", FLOWERS), ("tulips", FLOWERS), ("wreaths", FINE)]),
    "pottery": ("potter", [("jugs", MADE), ("bowls", MADE), ("vases", FINE)]),
    "coat shop": ("tailor", [("coats", CLOTH), ("trousers", CLOTH), ("waistcoats", CLOTH)]),
    "basket shop": ("weaver", [("baskets", MADE), ("hampers", MADE), ("mats", MADE)]),
    "music shop": ("fiddle maker", [("flutes", FINE), ("fiddles", FINE), ("drums", MADE)]),
    "sweet shop": ("confectioner", [("toffees", FRESH), ("gingerbread", FRESH), ("marzipan", FRESH)]),
    "tea shop": ("tea merchant", [("tea", FRESH), ("biscuits", FRESH), ("jam", FRESH)]),
}
MASS = {"bread", "cheese", "butter", "trout", "gingerbread", "marzipan", "tea", "jam"}  # said with "is"
UNCOUNTED = MASS | {"service", "wine", "company", "dialogue", "print"}  # said without "a"
# what can be good on one day or page and bad on another
VARYING = split(
    """service, queue, baker, grocer, cheesemaker, fisher, florist, weaver, confectioner, apprentice, bread, rolls,
cakes, vegetables, apples, pears, cheese, butter, sausages, herrings, crabs, trout, soup, stew, roast, pie,
pudding, cake, omelette, waiter, room, cook, potatoes, sauce, wine, company, dialogue, jokes, pictures, style,
descriptions, characters, plot"""
)
# what one is when it is not the other: good, bad
OPPOSITES = """
fresh, stale | fresh, withered | fresh, faded | tasty, tasteless | tasty, bland | crisp, withered | well tied, badly tied
well made, badly made | handsome, ugly | sturdy, flimsy | beautiful, ugly | delicate, clumsy | soft, scratchy | warm, thin
well cut, badly cut | fair, unfair | low, high | reasonable, steep | honest, shameless | quick, slow | friendly, rude | short, long
short, endless | clean, dirty | bright, dark | tidy, untidy | warm, draughty | cheerful, grumpy | polite, rude | honest, dishonest
quick, sleepy | wide, small | good, poor | long, short | convenient, inconvenient | hot, cold | rich, thin | rich, watery
tender, tough | juicy, dry | crisp, soggy | light, heavy | creamy, lumpy | generous, mean | large, tiny | attentive, forgetful
cheerful, sullen | modest, shocking | reasonable, shameless | warm, cold | quiet, noisy | clean, sticky | careful, careless
gifted, hopeless | pleasant, sour | well cooked, raw | smooth, lumpy | pleasant, quarrelsome | gripping, dull | exciting, dull
clever, muddled | lively, lifeless | believable, wooden | moving, silly | satisfying, disappointing | exciting, slow | lively, stiff
natural, stiff | funny, feeble | elegant, clumsy | clear, wordy | likeable, tiresome | well built, shapeless | lively, tedious
vivid, pale | clear, faint
"""
OPPOSED = {split(pair) for line in lines(OPPOSITES) for pair in line}


def opposites(aspect: Aspect) -> list[tuple[str, str]]:
    """(good, bad) of an aspect, where the one is the opposite of the other."""
    return [(good, bad) for good in aspect.of[1] for bad in aspect.of[-1] if (good, bad) in OPPOSED]


SPOTS = """by the bridge|opposite the church|near the station|behind the school|at the harbour|below the castle|beside the library
in the market square|next to the inn|at the foot of the hill|near the old well|on the way to the mill|across from the lighthouse
at the edge of the meadow|on the farm road""".replace("\n", "|").split("|")

SHOP = """
the prices | are | fair, low, reasonable, honest | high, steep, shameless, unfair
the service | is | quick, friendly, patient | slow, rude, careless
the queue | is | short | long, endless
the shop | is | clean, bright, tidy, warm | dirty, dark, untidy, draughty
the {keeper} | is | kind, cheerful, honest, helpful, polite | grumpy, rude, impatient, lazy, dishonest
the apprentice | is | quick, attentive, polite | clumsy, sleepy, rude
the choice | is | wide, good, tempting | poor, small, disappointing
the opening hours | are | long, convenient | odd, short, inconvenient
"""
SHOP_CLAUSES = """
one is served at once | one waits for ever
nothing costs more than it should | everything costs more than it should
one's wishes are remembered | one's wishes are forgotten
everything is wrapped with care | nothing is wrapped with care
every mistake is put right at once | no mistake is ever put right
everybody is treated alike | nobody is treated well
one gets more than was promised | one gets less than was promised
children are welcome there | children are chased away
"""
SHOP_IRONY = """
Such quick service: I waited only two | minutes. | hours.
They were so busy when I came in: | they sent a boy out to help me. | they had to finish their game of cards.
What an honest shop! The {keeper} gave me back | the coin that I had dropped. | nearly half of my change.
The {keeper} never loses patience, | not even on market days. | having none to lose.
I have only one complaint: the shop | is not next door to my house. | has not been closed for good.
The shop is easy to find: | just follow the happy faces. | just follow the smell of wet dog.
The door is always | open to a late customer. | locked when the sign says open.
For the same thing I paid twice as much | elsewhere. | as elsewhere.
The {keeper} has a gift for | finding what you need. | being out when you need something.
The customer is king here, and I | felt like one. | know how badly some kings end.
My {kin3} tried to keep me from going in, | only to have the {goods} for {kin3.himself}. | and I should have listened.
I walked an hour to get here, and I would gladly have walked | two. | past.
Nobody leaves this shop with empty hands; I left it with | {goods} for the whole family. | a bill for {goods} I never saw.
The {keeper} knows all about {goods}, | and gladly shares it. | except how to sell them honestly.
My {goods} from here lasted | much longer than I had hoped. | all the way to the garden gate.
"""
SHOP_STARTS = (
    "On {day} I <went to|tried|visited> {x}.",
    "<Last|One> {day} my {kin} <took|dragged|sent> me to {x}.",
    "My {kin} and I <stopped|looked in> at {x}.",
    "I had <an hour|some time|a coin or two> to spare, so I went to {x}.",
    "I have been to {x} <twice|three times|once or twice> <this year|now>.",
    "<Every|Each> {day} I pass {x}, and <last week|yesterday> I went in.",
    "I live <not far from|two doors from|just behind> {x}.",
)
SHOP_FACTS = (
    "It opens at {hour} and closes on {day}s.",
    "They sell {goods}.",
    "The {keeper} is called {name}.",
    "I bought {goods} and went home.",
    "There is a bench <outside|by the door|at the window> and a bell over the door.",
    "It <has moved|moved last year> <from the square|to the other side of the road|into the old smithy>.",
    "One pays <at the counter|by the door>.",
    "On {day} it closes at {hour}.",
    "The {keeper} has <two apprentices|a {kin} who helps on {day}s|a grey cat>.",
    "<Last week|On {day}> they were painting the shutters.",
    "The {goods} are <in the window|on the left|on the upper shelf>.",
)
SHOP_CLOSES = {
    1: (
        "I shall be back< before the week is out| as soon as I can| on {day}|>.",
        "I <would|shall> go nowhere else.",
        "I <can|gladly> recommend it to anyone.",
        "I cannot <recommend|praise> it too highly.",
        "I have no reason to complain.",
        "I wish I had come here sooner.",
        "I tell everybody to go there.",
    ),
    -1: (
        "I shall not be back< before I am ninety| as long as I can walk elsewhere| on {day} or on any other day|>.",
        "I would rather go anywhere else.",
        "I <cannot|would not> recommend it to anyone.",
        "I cannot <recommend|praise> a thing about it.",
        "I have every reason to complain.",
        "I wish I had never come here.",
        "I tell everybody not to go there.",
    ),
    0: (
        "I may be back, or I may not.",
        "I would not walk far for it, but I would not walk around it either.",
        "I would neither recommend it nor warn <anyone|people> against it.",
        "I have no wish to praise it, and none to complain.",
        "I may go there again on {day}, or I may go elsewhere.",
    ),
}

# --- meals ----------------------------------------------------------------------------------------------------------

SOUP = ("hot, rich, tasty, well seasoned", "cold, thin, bland, watery")
ROAST = ("tender, juicy, crisp", "tough, dry, burnt")
PIE = ("crisp, hot, juicy", "soggy, burnt, cold")
SWEET = ("light, creamy, delicious", "heavy, lumpy, sour")

# kind -> (what comes before it, its adjectives)
DISHES = {
    "soup": ("pea, leek, onion, barley, bean, pumpkin, mushroom, cabbage, fish, chicken, beetroot, nettle", SOUP),
    "stew": ("mutton, rabbit, lentil, turnip, herring, venison, beef, goat", SOUP),
    "roast": ("Sunday, goose, pork, lamb, hare", ROAST),
    "pie": ("apple, plum, cherry, meat, potato, cheese, blackberry, rhubarb, pigeon, leek", PIE),
    "pudding": ("rice, bread, chocolate, lemon, plum, semolina, almond", SWEET),
    "cake": ("honey, walnut, carrot, apple, poppy seed, ginger", SWEET),
    "trout": ("fried, smoked, baked", ROAST),
    "omelette": ("mushroom, cheese, herb, farmhouse", PIE),
}
INN_WORDS = ["Golden", "Blue", "Old", "Merry", "Silver", "Red", "Sleepy", "White", "Crooked", "Black", "Jolly", "Green"]
INN_BEASTS = [
    "Goose",
    "Boat",
    "Bell",
    "Pony",
    "Kettle",
    "Anchor",
    "Cat",
    "Lantern",
    "Lamb",
    "Barrel",
    "Oak",
    "Tortoise",
    "Herring",
    "Wheel",
]
MEAL = """
the helping | was | generous, large | mean, tiny
the waiter | was | attentive, cheerful, quick | forgetful, sullen, slow
the bill | was | modest, fair, reasonable | shocking, unfair, shameless
the room | was | warm, quiet, cosy | cold, noisy, smoky
the table | was | clean, well laid | sticky, wobbly
the bread | was | fresh, warm | stale, dry
the cook | was | careful, gifted | careless, hopeless
the wine | was | good, pleasant | sour, thin
the potatoes | were | crisp, hot, well cooked | cold, raw, soggy
the sauce | was | smooth, rich | lumpy, greasy
the company | was | pleasant, cheerful | loud, quarrelsome
"""
MEAL_CLAUSES = """
nothing was left on my plate | nearly everything was left on my plate
we asked for more | we asked for something else
the cook knew what salt is for | the cook had forgotten the salt
everything came when it should | nothing came when it should
everybody at the table was full | nobody at the table was full
the waiter forgot nothing | the waiter forgot everything
"""
SWEETS = ("pudding", "cake")
NOT_WITH_SWEETS = ("potatoes", "sauce", "bread")
MEAL_IRONY = """
The waiter was so quick: my plate | came before I had unfolded my napkin. | was gone before I had lifted my fork.
I have never spent so long over a {kind}: | I did not want it to end. | it did not want to go down.
My only regret is that I | had no room for a second helping. | did not stay at home.
There was something in my {kind} that | tasted like my grandmother's kitchen. | looked like the cook's button.
The helping was just right for a | hungry woodcutter. | small canary.
The dog under the table got | nothing from me, for once. | everything from me, for once.
The waiter asked what else he could do for us. | Bring another helping, I said. | Open a window, I said.
The cook came out and asked how I liked it. | I asked for the recipe. | I asked for a doctor.
I left the table | late and perfectly happy. | early and perfectly hungry.
I shall remember that {kind} as long as | I live. | my stomach aches.
When the bill came, I thought they had | forgotten half of it. | added up the year as well.
At the next table somebody was shouting for | more. | help.
It was so quiet in the room that one could hear | the spoons scraping the plates clean. | the stomachs growling.
The {kind} was gone in a minute: | I ate it like a wolf. | I tipped it into a flower pot.
The cat looked at my {kind}, | but I would not share it. | but would not share it.
"""
MEAL_STARTS = (
    "On {day} I <had|ordered|tried> {x}.",
    "<Last|One> {day} my {kin} and I ate {x}.",
    "We stopped for {x} after a long walk <over the hill|through the forest|along the lake|past the mill>.",
    "My {kin} <ordered|treated me to> {x}.",
    "For my {kin}'s birthday we had {x}.",
    "It was raining, so we sat down to {x}.",
    "At {hour} in the evening I sat down to {x}.",
)
MEAL_FACTS = (
    "The {kind} came with {side}.",
    "We sat <by the window|near the fire|at the long table|in the garden>.",
    "The kitchen closes at <ten|midnight>.",
    "My {kin} had the same, and {name} had <fish|an egg|only tea>.",
    "The waiter is called {man}.",
    "On {day} they serve <lamb|herring|dumplings> instead.",
    "We came at {hour} and left at {hour2}.",
    "One orders at the counter.",
    "It is the only thing they cook on {day}.",
    "There were <two|three|five> other guests.",
)
MEAL_CLOSES = {
    1: (
        "I would <eat|order> it again< at any time| tomorrow| every {day}|>.",
        "I would go <a long way|any distance> for another helping.",
        "I <can|gladly> recommend it to anyone.",
        "I cannot <recommend|praise> it too highly.",
        "I have no reason to complain.",
        "I wish I had ordered two.",
        "I could hardly have had a better <supper|meal>.",
        "I told the cook never to change it.",
    ),
    -1: (
        "I would not <eat|order> it again< at any price| if I were starving|>.",
        "I would go <a long way|any distance> to avoid another helping.",
        "I <cannot|would not> recommend it to anyone.",
        "I cannot <recommend|praise> a single mouthful.",
        "I have every reason to complain.",
        "I wish I had ordered none.",
        "I could hardly have had a worse <supper|meal>.",
        "I told the cook never to make it again.",
    ),
    0: (
        "I might order it again, or I might not.",
        "I would not go far for another helping, but I would not send it back either.",
        "I would neither recommend it nor warn <anyone|people> against it.",
        "I have no wish to praise it, and none to complain.",
        "I was not sorry to have eaten it, and not sorry when it was gone.",
    ),
}

# --- books ----------------------------------------------------------------------------------------------------------

TITLE_WORDS = [
    "Last",
    "Silent",
    "Wandering",
    "Seventh",
    "Lost",
    "Borrowed",
    "Broken",
    "Secret",
    "Hidden",
    "Patient",
    "Forgotten",
    "Laughing",
]
TITLE_NOUNS = [
    "Lighthouse",
    "Ferryman",
    "Clock",
    "Tortoise",
    "Harbour",
    "Winter",
    "Lantern",
    "Orchard",
    "Bridge",
    "Miller",
    "Kite",
    "Island",
    "Piper",
    "Gate",
    "Letter",
    "Shepherd",
    "Umbrella",
    "Tower",
    "Compass",
    "Garden",
]
TITLE_PLACES = """at the Mill|of the Lake|by the Sea|on the Hill|in the Snow|under the Bridge|of Cold Harbour|in the Fog|at Midnight
behind the Wall|in August|without a Name""".replace("\n", "|").split("|")
BOOK_KINDS = ("book", "novel", "story", "tale")
BOOK = """
the plot | is | gripping, clever, exciting | dull, thin, muddled
the characters | are | lively, believable, charming | wooden, lifeless, dull
the ending | is | moving, satisfying, surprising | hurried, disappointing, silly
the beginning | is | exciting, funny, charming | slow, confusing, dull
the dialogue | is | lively, witty, natural | stiff, clumsy, endless
the jokes | are | fresh, good, funny | stale, feeble, tired
the pictures | are | beautiful, delicate, funny | ugly, clumsy, pale
the style | is | clear, elegant, graceful | stiff, clumsy, wordy
the hero | is | likeable, brave, believable | tiresome, vain, dull
the chapters | are | lively, well built | tedious, shapeless
the descriptions | are | vivid, precise | endless, pale
the print | is | clear, large | faint, tiny
"""
BOOK_CLAUSES = """
one laughs on every page | one yawns on every page
every page is worth reading | hardly a page is worth reading
one never knows what comes next | one always knows what comes next
one is sorry to part from the characters | one is glad to be rid of the characters
one wishes it were longer | it never seems to end
one wants to know how it ends | one wants it to end
"""
BOOK_IRONY = """
I was still awake over it at two in the morning: I could not | stop. | find where anything happened.
It is a wonderful book for | a long winter evening. | a table with one short leg.
I could have wept when I saw how | little was left. | much was left.
I have only one complaint: it has a | last page. | second page.
This book kept me | awake until dawn. | asleep until dawn.
I lent it to my best friend, who has not | given it back. | spoken to me since.
One thing surprised me: how | soon I came to the end. | anybody came to the end.
For this book you can skip | supper, but do not skip a line. | the first half, and then the second.
It belongs on every | bedside table. | bonfire.
I read it twice, because | I liked it so much. | I had forgotten it by the next morning.
It fell into the lake, and I | jumped in after it. | felt better at once.
My candle burned down before | I noticed. | anything happened.
The writer must have a good deal of | wit, and a warm heart. | paper, and nothing to do.
My {kin} fell silent over it, | spellbound. | and then began to snore.
I cannot tell you how it ends: | you must find out for yourself. | nobody has ever got so far.
"""
BOOK_STARTS = (
    "On {day} I <finished|bought|borrowed> {x}.",
    "My {kin} <gave me|lent me|read me> {x}.",
    "I <read|took> {x} on <a journey|a rainy {day}|the train to the sea>.",
    "We read {x} aloud <by the stove|on winter evenings|at school>.",
    "The library had {x}, so I <read it|took it home>.",
    "I <found|saw> {x} in the bookshop <by the bridge|in the square|near the station> and read it.",
    "Everybody <in the village|at the school> has read {x} by now, and so have I.",
)
BOOK_FACTS = (
    "It has <twelve|twenty|nine|thirty> chapters and <a map|ten pictures|no pictures>.",
    "It is about a {trade} who <finds a key|goes to sea|inherits a mill|loses a letter>.",
    "It takes place <on an island|in a harbour town|in the mountains> <a hundred years ago|in one night|in winter>.",
    "The hero is a {trade} called {man}.",
    "I read it in <three evenings|a week|two days>.",
    "The cover is <green|blue|grey|red>.",
    "The writer <was once a {trade2}|lives by the sea|is said to be over eighty>.",
    "The library has <two copies|one copy>.",
    "My {kin3} is reading it now.",
    "It is the <second|third> of <four|five|six> volumes.",
    "The first chapter tells of a {trade2}, the last of a wedding.",
)
BOOK_CLOSES = {
    1: (
        "I would read it again< at any time| tomorrow| every winter|>.",
        "I shall keep it< for ever| for my children|>.",
        "I <can|gladly> recommend it to anyone.",
        "I cannot <recommend|praise> it too highly.",
        "I have no reason to complain.",
        "I wish it were twice as long.",
        "I could not put it down.",
        "I have told everybody to read it.",
    ),
    -1: (
        "I would not read it again< at any price| if it were the last book on earth|>.",
        "I shall not keep it< for long| for my children|>.",
        "I <cannot|would not> recommend it to anyone.",
        "I cannot <recommend|praise> a single page.",
        "I have every reason to complain.",
        "I wish it were half as long.",
        "I could put it down <at any page|after every line>, and did.",
        "I have told everybody not to read it.",
    ),
    0: (
        "I might read it again, or I might not.",
        "I shall not keep it, but I shall not burn it either.",
        "I would neither recommend it nor warn <anyone|people> against it.",
        "I have no wish to praise it, and none to complain.",
        "I was not sorry to begin it, and not sorry to finish it.",
    ),
}
