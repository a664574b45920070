"""The words of the world: people, places and their map, animals, things. Lists go from common to rare (see zipf)."""

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

# key, name, preposition of being there, how one passes it, neighbours: one village, always the same
MAP = (
    ("square", "the market square", "in", "across the market square", ("church", "bridge", "school", "inn", "station")),
    ("church", "the church", "at", "past the church", ("square", "library", "hill")),
    ("library", "the library", "in", "past the library", ("church",)),
    ("bridge", "the bridge", "on", "over the bridge", ("square", "mill", "meadow")),
    ("mill", "the mill", "at", "past the mill", ("bridge", "orchard")),
    ("orchard", "the orchard", "in", "through the orchard", ("mill", "farm")),
    ("farm", "the farm", "on", "past the farm", ("orchard", "quarry")),
    ("quarry", "the old quarry", "in", "around the old quarry", ("farm",)),
    ("meadow", "the meadow", "in", "across the meadow", ("bridge", "forest", "lake")),
    ("forest", "the forest", "in", "through the forest", ("meadow", "spring", "tower")),
    ("spring", "the spring", "at", "past the spring", ("forest",)),
    ("tower", "the ruined tower", "at", "past the ruined tower", ("forest",)),
    ("lake", "the lake", "by", "along the lake", ("meadow", "boathouse")),
    ("boathouse", "the boathouse", "in", "past the boathouse", ("lake",)),
    ("school", "the school", "at", "past the school", ("square", "playground")),
    ("playground", "the playground", "in", "across the playground", ("school",)),
    ("inn", "the inn", "at", "past the inn", ("square", "harbour", "well")),
    ("well", "the old well", "at", "past the old well", ("inn",)),
    ("harbour", "the harbour", "at", "along the harbour", ("inn", "beach", "lighthouse")),
    ("beach", "the beach", "on", "along the beach", ("harbour", "cave")),
    ("cave", "the cave", "in", "past the cave", ("beach",)),
    ("lighthouse", "the lighthouse", "at", "past the lighthouse", ("harbour",)),
    ("station", "the station", "at", "past the station", ("square", "castle")),
    ("castle", "the castle", "at", "past the castle", ("station",)),
    ("hill", "the windy hill", "on", "over the windy hill", ("church", "pasture")),
    ("pasture", "the pasture", "in", "across the pasture", ("hill",)),
)

# where a small thing lies, by place
SPOTS = {
    "square": ("under a market stall", "beside the fountain", "between two cobblestones"),
    "church": ("on the stone steps", "under the last bench", "behind the heavy door"),
    "library": ("between two thick books", "on the window seat", "behind the atlas"),
    "bridge": ("by the railing", "in a crack between the planks", "beside the lamp post"),
    "mill": ("behind the flour sacks", "beside the millstone", "under the wooden stairs"),
    "orchard": ("under the oldest pear tree", "behind the cider press", "beside the ladder"),
    "farm": ("in the hay", "behind the milk cans", "next to the henhouse"),
    "quarry": ("between two grey rocks", "beside the rusty cart", "under a thorn bush"),
    "meadow": ("in the long grass", "beside the crooked fence", "among the clover"),
    "forest": ("under a fallen oak", "among the ferns", "in a patch of moss"),
    "spring": ("on a flat stone", "beside the clear water", "under the hazel bush"),
    "tower": ("on the broken stairs", "in a dark corner", "under the ivy"),
    "lake": ("among the reeds", "at the end of the pier", "in the wet sand"),
    "boathouse": ("under an old sail", "in the smallest boat", "behind the oars"),
    "school": ("under a desk", "in the coat room", "behind the blackboard"),
    "playground": ("beside the swings", "under the slide", "in the sandbox"),
    "inn": ("under the long table", "beside the fireplace", "behind the big barrel"),
    "well": ("on the mossy rim", "beside the bucket", "in the nettles"),
    "harbour": ("among the fishing nets", "behind a stack of crates", "beside a coil of rope"),
    "beach": ("among the shells", "beside a piece of driftwood", "under an upturned boat"),
    "cave": ("on a narrow ledge", "behind a wet rock", "in a heap of pebbles"),
    "lighthouse": ("on the spiral stairs", "beside the great lamp", "under a bench by the door"),
    "station": ("under a bench on the platform", "beside the ticket window", "in the waiting room"),
    "castle": ("in the empty moat", "beside the iron gate", "under a stone lion"),
    "hill": ("under a lonely pine", "beside the wooden cross", "in the heather"),
    "pasture": ("beside the water trough", "under the gate", "in the sheepfold"),
}


class Kind(NamedTuple):
    """What is known of an animal. food has its article; home says where it sleeps."""

    food: str
    sound: str
    home: str
    move: str


ANIMALS = {
    "dog": Kind("a bone", "barked", "in its basket", "ran"),
    "cat": Kind("a saucer of milk", "mewed", "beside the stove", "crept"),
    "goat": Kind("a cabbage leaf", "bleated", "in the shed", "climbed"),
    "hen": Kind("a handful of corn", "clucked", "in the henhouse", "strutted"),
    "donkey": Kind("a carrot", "brayed", "in the stable", "trotted"),
    "rabbit": Kind("a bunch of clover", "drummed with its feet", "in its hutch", "hopped"),
    "pony": Kind("a sugar lump", "whinnied", "in the stable", "trotted"),
    "goose": Kind("a crust of bread", "hissed", "beside the pond", "waddled"),
    "duck": Kind("a crust of bread", "quacked", "beside the pond", "waddled"),
    "lamb": Kind("a bottle of milk", "bleated", "in the sheepfold", "skipped"),
    "parrot": Kind("a walnut", "whistled", "in its cage", "flew"),
    "pig": Kind("a bucket of peelings", "grunted", "in the sty", "trotted"),
    "tortoise": Kind("a lettuce leaf", "hissed softly", "in a box of straw", "crawled"),
    "jackdaw": Kind("a cherry", "cawed", "on the roof beam", "flew"),
    "ferret": Kind("an egg", "chattered", "in its hutch", "slipped"),
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
