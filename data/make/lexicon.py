"""The words of the world: people, places, animals, things. Lists go from common to rare (see zipf)."""

from typing import NamedTuple

# Few enough to be met often, and no two begin with the same letter.
WOMEN = ["Anna", "Clara", "Emma", "Rosa", "Martha", "Greta", "Ida", "Kate", "Nora", "Vera", "Zoe"]
MEN = ["Tom", "Ben", "Jack", "Peter", "Henry", "Sam", "Leo", "Otto", "David", "Felix", "Walter"]

SHE = ("girl", "widow")
HE = ("boy",)

TRADES = [
    "baker",
    "farmer",
    "miller",
    "gardener",
    "teacher",
    "carpenter",
    "fisher",
    "blacksmith",
    "weaver",
    "potter",
    "tailor",
    "shoemaker",
    "shepherd",
    "doctor",
    "innkeeper",
    "painter",
    "sailor",
    "clockmaker",
    "librarian",
    "beekeeper",
    "woodcutter",
    "cook",
    "grocer",
    "musician",
    "mason",
    "cheesemaker",
    "cobbler",
    "carter",
    "glazier",
    "bookbinder",
    "jeweller",
    "locksmith",
    "saddler",
    "cooper",
    "nurse",
    "roofer",
]

CHILDREN = ("girl", "boy")

# name, preposition of being there
PLACES = (
    ("the market square", "in"),
    ("the church", "at"),
    ("the library", "in"),
    ("the bridge", "on"),
    ("the mill", "at"),
    ("the orchard", "in"),
    ("the farm", "on"),
    ("the old quarry", "in"),
    ("the meadow", "in"),
    ("the forest", "in"),
    ("the spring", "at"),
    ("the ruined tower", "at"),
    ("the lake", "by"),
    ("the boathouse", "in"),
    ("the school", "at"),
    ("the playground", "in"),
    ("the inn", "at"),
    ("the old well", "at"),
    ("the harbour", "at"),
    ("the beach", "on"),
    ("the cave", "in"),
    ("the lighthouse", "at"),
    ("the station", "at"),
    ("the castle", "at"),
    ("the windy hill", "on"),
    ("the pasture", "in"),
)


class Kind(NamedTuple):
    """What is known of an animal. food has its article; home says where it sleeps."""

    food: str
    sound: str
    home: str


ANIMALS = {
    "dog": Kind("a bone", "barked", "in its basket"),
    "cat": Kind("a saucer of milk", "mewed", "beside the stove"),
    "goat": Kind("a cabbage leaf", "bleated", "in the shed"),
    "hen": Kind("a handful of corn", "clucked", "in the henhouse"),
    "donkey": Kind("a carrot", "brayed", "in the stable"),
    "rabbit": Kind("a bunch of clover", "drummed with its feet", "in its hutch"),
    "pony": Kind("a sugar lump", "whinnied", "in the stable"),
    "goose": Kind("a crust of bread", "hissed", "beside the pond"),
    "duck": Kind("a crust of bread", "quacked", "beside the pond"),
    "lamb": Kind("a bottle of milk", "bleated", "in the sheepfold"),
    "parrot": Kind("a walnut", "whistled", "in its cage"),
    "pig": Kind("a bucket of peelings", "grunted", "in the sty"),
    "tortoise": Kind("a lettuce leaf", "hissed softly", "in a box of straw"),
    "jackdaw": Kind("a cherry", "cawed", "on the roof beam"),
    "ferret": Kind("an egg", "chattered", "in its hutch"),
}

PET_NAMES = [
    "Muffin",
    "Pickle",
    "Snowball",
    "Rascal",
    "Noodle",
    "Bramble",
    "Fidget",
    "Jasper",
    "Quincy",
    "Domino",
    "Hobnob",
    "Tiptoe",
]

# small things that are lost, found, hidden and given, and what they are made of or look like
TREASURES = {
    "ring": ("silver ", "gold ", "thin ", "copper "),
    "key": ("brass ", "rusty ", "little ", "iron "),
    "whistle": ("tin ", "wooden ", "silver "),
    "button": ("pearl ", "shiny ", "blue "),
    "penknife": ("old ", "sharp ", "red "),
    "scarf": ("striped ", "woollen ", "green ", "yellow "),
    "locket": ("gold ", "oval ", "tiny "),
    "hat": ("straw ", "felt ", "black ", "feathered "),
    "flute": ("wooden ", "silver ", "bamboo "),
    "marble": ("glass ", "green ", "cloudy "),
    "brooch": ("amber ", "garnet ", "enamel "),
    "compass": ("brass ", "pocket ", "sailor's "),
    "doll": ("rag ", "china ", "wooden "),
    "thimble": ("silver ", "dented ", "porcelain "),
    "notebook": ("leather ", "blue ", "small "),
    "purse": ("velvet ", "beaded ", "brown "),
    "comb": ("ivory ", "tortoiseshell ", "carved "),
    "ball": ("red ", "leather ", "spotted "),
    "watch": ("pocket ", "gold ", "heavy "),
    "glove": ("fur ", "woollen ", "grey ", "leather "),
    "drum": ("little ", "painted ", "tin "),
    "lantern": ("paper ", "copper ", "storm "),
    "medal": ("bronze ", "tarnished ", "swimming "),
    "bracelet": ("coral ", "bead ", "plaited "),
    "harmonica": ("battered ", "shiny ", "small "),
    "paintbrush": ("fine ", "long ", "badger-hair "),
    "seashell": ("pink ", "spiral ", "speckled "),
    "puppet": ("wooden ", "felt ", "cheerful "),
    "magnifying glass": ("round ", "old ", "heavy "),
    "music box": ("lacquered ", "tiny ", "walnut "),
    "spinning top": ("striped ", "wooden ", "tin "),
    "inkwell": ("glass ", "pewter ", "blue "),
    "umbrella": ("black ", "checked ", "silk "),
    "telescope": ("brass ", "folding ", "short "),
}

NUMBERS = [
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]


def number(n: int) -> str:
    """0 -> no, 1 -> one, ... 99 -> ninety-nine."""
    if n < len(NUMBERS):
        return NUMBERS[n]
    tens = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")[n // 10 - 2]
    return tens + (f"-{NUMBERS[n % 10]}" if n % 10 else "")


IRREGULAR = {
    "trout": "trout",
    "loaf": "loaves",
    "goose": "geese",
    "penknife": "penknives",
    "fish": "fish",
    "knife": "knives",
}


def many(n: int, noun: str) -> str:
    """ "one apple", "three apples", "no apples"."""
    return f"{number(n)} {noun if n == 1 else plural(noun)}"


def plural(noun: str) -> str:
    head, space, rest = noun.partition(" of ")
    if space:
        return plural(head) + space + rest
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
