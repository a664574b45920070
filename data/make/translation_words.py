"""The words of the translation table: English forms, and for each the roots that say it in Orune (see language.py).

A noun is written `singular/plural=roots`; the plural is given when lexicon.plural() would get it wrong, and the roots
when one English word is several in Orune ("baker=bread:maker", the maker of bread). A verb is `base/past/participle`,
given when it is irregular. An underscore stands for a space, so "pick_up" is two English words and one root.
"""

from typing import NamedTuple

from lexicon import number, plural

MALE_NAMES = "Tom Ben Jack Peter Henry Hans Sam Oscar Hugo Max Paul Simon Leo Otto Emil David Luke Martin Felix Walter"
FEMALE_NAMES = (
    "Mary Anna Rosa Lily Emma Clara Ida Nora Ella Jane Martha Lucy Kate Ruth Greta Elsa Maud Hazel Edith Vera"
)

NOUNS = {  # by category: m and f and p are people (he, she, either), k their kin
    "m": """boy man/men king knight fisherman/fishermen=fish:hunter
        woodcutter=tree:cutter prince=king:boy monk""",
    "f": "girl woman/women queen widow princess/princesses=king:girl witch=spell:maker nun",
    "p": """teacher doctor child/children farmer baker=bread:maker miller=flour:maker gardener=garden:keeper tailor=cloth:cutter
        carpenter=wood:cutter shepherd=sheep:keeper blacksmith=iron:beater weaver=cloth:maker potter=pot:maker
        shoemaker=shoe:maker innkeeper=inn:keeper painter sailor=ship:walker clockmaker=clock:maker
        librarian=book:keeper beekeeper=bee:keeper cook grocer=food:seller bookseller=book:seller
        jeweller=jewel:maker locksmith=key:maker saddler=saddle:maker nurse musician guest thief/thieves stranger
        postman/postmen=letter:carrier soldier hunter servant judge pupil""",
    "k": """mother father sister brother son daughter friend neighbour uncle=father:brother aunt=mother:sister
        cousin=uncle:child grandmother=mother:mother grandfather=father:father""",
    "a": """dog cat horse goat hen donkey rabbit pony/ponies goose/geese duck pig parrot tortoise ferret fox/foxes wolf/wolves
        bear hedgehog squirrel owl raven mouse/mice rat cow bird frog monkey swan stork badger
        lamb=sheep:child kitten=cat:child puppy/puppies=dog:child calf/calves=cow:child chick=hen:child
        duckling=duck:child foal=horse:child piglet=pig:child fawn=deer:child crow otter turkey""",
    "t": """ring key whistle button penknife/penknives scarf/scarves locket hat flute marble brooch/brooches compass/compasses
        doll thimble notebook=letter:book purse=coin:bag comb ball watch/watches glove=hand:cloth drum lantern medal
        bracelet harmonica paintbrush/paintbrushes=paint:brush puppet inkwell=ink:pot umbrella=rain:roof
        telescope=star:eye kite basket bottle box/boxes bag letter book map rope hammer saw needle candle lamp mirror
        clock coin spoon cup plate bowl jug kettle bucket=water:pot broom shovel sack chest carpet blanket pillow coat
        shirt shoe boot belt dress/dresses apron saddle wheel cart ladder net oar drawing painting present jewel
        violin toy crown picture chain bell pot shell stone bone feather""",
    "e": """apple pear plum cherry/cherries walnut carrot turnip egg cake loaf/loaves=bread:piece pancake pie pumpkin
        sausage onion potato/potatoes lettuce strawberry/strawberries tomato/tomatoes cabbage biscuit nut""",
    "s": """bread milk cheese butter honey soup flour sugar salt tea water jam meat corn rice juice porridge""",  # uncountable
    "g": """tree bush/bushes rose tulip oak vine pine flower lily/lilies willow hedge sunflower=sun:flower poppy/poppies birch""",
    "w": "sun moon wind storm rain snow fog fire",  # the only ones of their kind, always with "the"
    "l": """church/churches=bell:house library/libraries=book:house bridge mill=flour:house orchard=apple:garden
        farm quarry/quarries=stone:pit meadow forest spring tower lake boathouse=boat:house school=child:house
        playground=toy:garden inn well harbour=ship:house beach/beaches cave lighthouse=light:tower station castle hill
        pasture garden barn kitchen stable=horse:house village town market shop=coin:house bakery/bakeries=bread:house
        hospital=doctor:house museum=picture:house park river street palace=king:house cellar island attic""",
    "u": "table bench/benches bed chair stove wall shelf/shelves door window=light:door gate fence roof cupboard fountain",
}

AT = {  # what one says of being there
    "at": "church mill spring harbour lighthouse station inn market well school",
    "on": "bridge farm playground beach hill pasture island street",
    "in": """library orchard quarry meadow forest tower lake boathouse cave castle garden barn kitchen stable village town shop
        bakery hospital museum park river palace cellar attic""",
    "under": "table bench bed chair stove bridge window",
    "behind": "door stove wall fence gate church mill barn inn school cupboard station",
    "near": "window fountain stove river lake gate bridge castle harbour forest well",
    "beside": "fountain gate door stove bed wall river well inn church",
    "in_front_of": "church school shop gate museum bakery hospital palace inn",
}
VIA = {
    "across": "bridge meadow river pasture street garden market",
    "through": "forest garden orchard village town park castle",
    "along": "river beach lake street harbour",
    "past": "church mill inn school well station lighthouse bakery",
    "around": "lake castle tower quarry hill island",
    "over": "bridge hill",
}

# Material + thing is two English words and one compound in Orune, head first: "stone bridge" is bridge-stone.
COMPOUNDS = {
    "silver": "ring key button locket whistle brooch watch spoon cup chain bell coin bowl medal bracelet thimble flute",
    "gold": "ring key button locket brooch watch cup chain coin bowl medal bracelet crown bell",
    "copper": "kettle pot bowl coin ring button lantern bell jug bracelet",
    "iron": "key chain hammer pot bell gate ring",
    "tin": "cup whistle box drum plate spoon toy lantern",
    "wooden": "box spoon bowl chest flute puppet ladder bucket shovel chair toy bench bridge table bed gate tower",
    "stone": "bridge wall tower jug bench barn",
    "glass": "bottle bowl marble jug button bell cup lamp",
    "paper": "bag lantern kite hat flower crown box",
    "straw": "hat basket bag doll roof",
    "leather": "bag belt glove purse boot ball shoe saddle",
    "apple": "tree pie cake juice jam",
    "cherry": "tree pie cake jam juice",
    "plum": "tree pie cake jam",
    "pear": "tree pie juice",
    "walnut": "tree cake",
    "rose": "bush",
    "onion": "soup pie",
    "fish": "soup pie",
    "honey": "cake biscuit",
}

ADJECTIVES = {  # the first line of each comes before the second when both are said
    "h": (
        "kind clever brave famous lonely proud shy lazy honest polite rude friendly patient",
        "old young tall short tired rich poor hungry happy sad angry quiet strange sick",
    ),
    "a": (
        "big small clever lazy brave shy fat thin gentle wild",
        "old young hungry thirsty tired black white grey brown spotted lame frightened",
    ),
    "t": (
        "beautiful useful strange big small heavy light tiny cheap expensive",
        "old new red blue green yellow white black dirty clean broken round precious empty",
    ),
    "e": ("big small delicious good", "fresh ripe sweet sour warm cold cheap"),
    "s": ("delicious good cheap", "fresh sweet warm cold sour"),
    "g": ("tall beautiful big small", "old young green dry wild"),
    "l": ("beautiful big small quiet strange famous", "old new dark cold empty narrow"),
    "u": ("big small heavy beautiful", "old new red green dirty round"),
}
PREDICATES = {  # said after "is", and with "than"
    "h": "kind clever brave proud shy lazy cheerful polite friendly patient old young tall rich poor happy sad quiet",
    "a": "big small clever lazy brave shy fat thin gentle wild old young",
    "t": "beautiful useful big small heavy light cheap expensive old new dirty clean precious",
    "e": "big sweet sour cheap fresh",
    "g": "tall beautiful big small old green",
    "l": "beautiful big small quiet old dark cold famous",
}
STATES = {  # said after "is" only
    "h": "tired hungry angry sick thirsty ready famous lonely alone",
    "a": "hungry thirsty tired lame frightened ready",
    "t": "broken red blue green yellow white black empty strange ready",
    "e": "ripe warm cold delicious good",
    "s": "delicious good cheap fresh sweet warm cold sour",
    "g": "dry young wild",
    "w": "near strange beautiful",
    "l": "empty new strange narrow",
}

VERBS = {  # by who does it and to what: h people, a animals; "0" to nothing
    "h0": """sing/sang/sung dance laugh smile cry sneeze yawn whisper=quietly:talk shout=loudly:talk talk work nod wave snore
        sleep/slept/slept wait fall_asleep/fell_asleep/fallen_asleep wake_up/woke_up/woken_up arrive disappear
        tremble jump swim/swam/swum kneel/knelt/knelt pray""",
    "a0": """sleep/slept/slept wait tremble jump wake_up/woke_up/woken_up arrive disappear play drink/drank/drunk
        fall_asleep/fell_asleep/fallen_asleep rest escape""",
    "t0": "break/broke/broken fall_down/fell_down/fallen_down disappear glitter",
    "g0": "grow/grew/grown bloom wither burn fall_down/fell_down/fallen_down",
    "e0": "burn disappear",
    "s0": "disappear",
    "l0": "disappear",
    "w0": "disappear return=back:come come/came/come stop begin/began/begun",
    "ht": """find/found/found lose/lost/lost hide/hid/hidden carry break/broke/broken mend sell/sold/sold buy/bought/bought
        steal/stole/stolen paint clean hold/held/held drop bring/brought/brought take/took/taken borrow wash
        look_for pick_up throw_away/threw_away/thrown_away polish need like see/saw/seen
        draw/drew/drawn open touch show/showed/shown keep/kept/kept""",
    "he": "eat/ate/eaten buy/bought/bought sell/sold/sold steal/stole/stolen smell bring/brought/brought like find/found/found wash",
    "hs": "buy/bought/bought sell/sold/sold smell bring/brought/brought like share",
    "hg": "plant water like paint see/saw/seen draw/drew/drawn",
    "hh": """see/saw/seen meet/met/met help love find/found/found follow call visit know/knew/known hear/heard/heard hug thank
        greet believe fear watch wake/woke/woken forgive/forgave/forgiven forget/forgot/forgotten look_for paint draw/drew/drawn
        punish teach/taught/taught""",
    "ha": """see/saw/seen find/found/found follow call feed/fed/fed catch/caught/caught stroke chase brush love hear/heard/heard
        watch fear look_for buy/bought/bought sell/sold/sold wash paint forget/forgot/forgotten""",
    "hl": "visit leave/left/left reach find/found/found see/saw/seen clean like enter paint draw/drew/drawn remember",
    "ah": "see/saw/seen follow bite/bit/bitten fear watch hear/heard/heard find/found/found wake/woke/woken lick know/knew/known love",
    "aa": "see/saw/seen chase follow bite/bit/bitten fear watch hear/heard/heard find/found/found wake/woke/woken",
    "at": "carry break/broke/broken find/found/found hide/hid/hidden push steal/stole/stolen see/saw/seen drop",
    "ae": "eat/ate/eaten smell steal/stole/stolen find/found/found see/saw/seen",
    "as": "smell steal/stole/stolen",
    "al": "reach leave/left/left see/saw/seen find/found/found",
    "give": "give/gave/given lend/lent/lent send/sent/sent hand promise",
    "get": "receive borrow buy/bought/bought steal/stole/stolen take/took/taken hide/hid/hidden",
    "go": "go/went/gone walk run/ran/run hurry=quickly:go travel creep/crept/crept ride/rode/ridden wander drive/drove/driven",
    "ago": "run/ran/run creep/crept/crept trot wander limp walk",
    "sit": "live sit/sat/sat stand/stood/stood lie/lay/lain stay",
    "lie": "lie/lay/lain hang/hung/hung stand/stood/stood",
    "think": "know/knew/known say/said/said think/thought/thought hope dream discover",
}
# What nobody tries to do, what nobody is told to do either, and what is done in no particular manner.
NOT_WANTED = "disappear lose tremble fear arrive sneeze yawn like receive snore drop know fall_asleep"
NOT_ORDERED = "live remember find see hear meet need smell discover love believe steal forget"
NO_MANNER = "break wake sleep promise jump call escape burn"
STATIVE = {
    *[
        "know",
        "like",
        "love",
        "need",
        "fear",
        "believe",
        "hear",
        "see",
        "smell",
        "remember",
        "forget",
        "hope",
        "live",
        "hang",
        "think",
        "dream",
    ]
}
INFINITIVES = "want try begin/began/begun learn decide"

MANNER = {
    "h": "slowly quickly quietly happily sadly angrily proudly again alone",
    "a": "slowly quickly quietly happily angrily again",
}
# One English phrase is one, two or three words in Orune.
TIMES = {
    "past": """yesterday=gone:day last_night=gone:night last_week=gone:week last_summer=gone:summer last_winter=gone:winter
        this_morning=morning on_Monday=Monday on_Friday=Friday in_the_evening=evening last_Sunday=gone:Sunday at_noon=noon""",
    "habit": "every_day=daily every_morning=morningly every_night=nightly on_Sundays=Sundayly in_winter=winter:in in_summer=summer:in at_night=night:in",
    "fut": "tomorrow=coming:day next_week=coming:week next_summer=coming:summer tonight=this:night soon next_winter=coming:winter later",
}
OFTEN = ["often", "always", "sometimes"]


class Word(NamedTuple):
    """One lexeme: its key, its forms in English, and the keys of its roots in Orune."""

    key: str
    forms: tuple[str, ...]
    roots: tuple[str, ...]


def ing(base: str) -> str:
    verb, space, rest = base.partition(" ")
    if verb in DOUBLED:
        verb += verb[-1]
    elif verb.endswith("ie"):
        verb = verb[:-2] + "y"
    elif verb.endswith("e") and not verb.endswith(("ee", "oe")):
        verb = verb[:-1]
    return verb + "ing" + space + rest


def past(base: str) -> str:
    verb, space, rest = base.partition(" ")
    if verb in DOUBLED:
        verb += verb[-1]
    if verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "i"
    return verb + ("d" if verb.endswith("e") else "ed") + space + rest


def third(base: str) -> str:
    verb, space, rest = base.partition(" ")
    return ("goes" if verb == "go" else plural(verb)) + space + rest


DOUBLED = {*["drop", "stop", "hug", "sit", "nod", "win", "run", "swim", "put", "begin", "trot", "forget", "travel"]}


def lexemes(text: str) -> list[tuple[list[str], list[str]]]:
    """[forms, roots] of each entry of a list above."""
    entries = []
    for entry in text.split():
        head, _, roots = entry.partition("=")
        forms = head.replace("_", " ").split("/")
        entries.append((forms, roots.split(":") if roots else [forms[0]]))
    return entries


def noun(forms: list[str], roots: list[str]) -> Word:
    return Word(forms[0], (forms[0], forms[1] if len(forms) > 1 else plural(forms[0])), tuple(roots))


def verb(forms: list[str], roots: list[str]) -> Word:
    """Forms: base, third person, past, participle, -ing."""
    base = forms[0]
    regular = past(base)
    first, second = forms[1:] if len(forms) == 3 else (regular, regular)
    return Word(base, (base, third(base), first, second, ing(base)), tuple(roots))


NOUN = {cat: [noun(*entry) for entry in lexemes(text)] for cat, text in NOUNS.items()}
VERB = {frame: [verb(*entry) for entry in lexemes(text)] for frame, text in VERBS.items()}
VERB["want"] = [verb(*entry) for entry in lexemes(INFINITIVES)]
BY_KEY = {word.key: word for cat in NOUN for word in NOUN[cat]}
TIME = {tense: [Word(forms[0], (forms[0],), tuple(r)) for forms, r in lexemes(text)] for tense, text in TIMES.items()}
NUMBERS = {number(n): n for n in (*range(2, 21), 24, 25, 30, 32, 40, 44, 48, 50, 56, 60)}


def comparative(adjective: str) -> str:
    if adjective in ("beautiful", "useful", "precious", "expensive", "famous", "cheerful", "patient", "polite"):
        return "more " + adjective
    if adjective in ("big", "fat", "thin", "sad"):
        return adjective + adjective[-1] + "er"
    if adjective.endswith("y") and adjective != "shy":
        return adjective[:-1] + "ier"
    return adjective + ("r" if adjective.endswith("e") else "er")
