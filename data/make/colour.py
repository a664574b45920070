"""What gives a story its colour without moving it: habits, and things seen, heard and smelled on the way."""

from tale import Tale
from telling import Lazy


def words(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", "|").strip("|").split("|")]


HABITS = words(
    """never passed a cat without greeting it|counted the stairs aloud|whistled from morning till night|always had a pencil behind one ear
wore two different socks|could name every star|collected smooth stones|kept a diary|spoke to the trees|laughed at every joke twice
knew the times of all the trains|could stand on one hand|always carried a piece of string|slept with the window open in winter
ate apples with the core|never forgot a face|was afraid of geese|sang in the choir|had once met the king|could imitate any bird
owned eleven clocks|drew pictures on every scrap of paper|could not say no|blushed easily|told the longest stories
kept bees on the balcony|baked on Sundays|read while walking|wrote letters to strangers
drank nothing but cold tea|played chess against the wall|knew a proverb for everything
swam in the lake even in November|never hurried"""
)
SMELLS = words(
    """fresh bread|wet earth|smoke|lavender|tar|roasted coffee|mint|wood shavings|leather|seaweed|burnt sugar|hay|soap|cinnamon|fried onions
pine needles|old books|beeswax|vinegar|thyme|paint|horses|gingerbread|rope"""
)
INSTRUMENTS = words(
    """a fiddle|an accordion|a flute|a barrel organ|a trumpet|a piano|a guitar|a drum|a harp|a clarinet"""
)
TUNES = words(
    """a waltz|a march|an old song|a lullaby|a polka|a hymn|a sad tune|a sea shanty|the same three notes again and again|a dance from the south"""
)
SEEN = words(
    """two boys were rolling a hoop|a man was painting his fence|a hen led her chicks into a shed|three nuns went by under one umbrella
somebody was learning to ride a bicycle|a chimney sweep was eating his lunch|twins were quarrelling over a rope|a cart had lost a wheel
the postmaster was chasing his hat|a sheep looked over the wall|a cat sat in the flower box|a scarecrow wore a lady's hat
workmen were digging a trench|a soldier was reading a long letter|a goat had climbed onto a shed|two ladies admired a perambulator
a juggler was practising with apples|a kite hung in the telegraph wires
the night watchman was going to bed|a boy was balancing on a barrel|somebody had lost a slipper|a peddler was selling almanacs
a woman was carrying a grandfather clock|a donkey refused to cross the road|children were following a marching band"""
)
FAIR_SEEN = words(
    """a boy was fishing in the fountain|the priest was picking pears|sparrows were bathing in the dust|a woman was hanging out washing
an old couple sat hand in hand on a bench|a child had drawn a dragon on the pavement|a stork stood on one leg|a barber stood idle in his doorway
an artist had set up an easel|a dog lay asleep in a wheelbarrow|butterflies sat on the warm stones|girls were skipping to a rhyme
a gardener was tying up roses|two snails were racing on a wall|lovers had carved a heart into a tree"""
)
FAIR_SOUNDS = words(
    """a cuckoo called|bees were humming|frogs were croaking|swifts screamed|a lark was singing|a fountain splashed|crickets chirped"""
)
SOUNDS = words(
    """a door slammed|the church clock struck|a train whistled|somebody laughed|a bucket rattled|a horse neighed
a blacksmith's hammer rang|the mill wheel creaked|a baby was crying|geese passed overhead|a gate squeaked|an axe fell again and again
a shutter banged|a cock crowed far too late|a carriage rolled over the cobbles|a saw was singing|thunder grumbled"""
)
BREAKFASTS = words(
    """bread and honey|porridge|a boiled egg|cold potatoes|an omelette|toast and marmalade|yesterday's soup|a bowl of raspberries
cheese and radishes|dry rusks|nothing at all|pancakes|half a sausage|rice pudding|a slice of melon|muesli with nuts"""
)
THOUGHTS = words(
    """supper|the holidays|the sea|a dream from last night|the summer before|a song|far-off countries|hot chocolate
the price of coal|Christmas|an old quarrel|the moon|pirates|arithmetic|a good joke"""
)


def habit(t: Tale, p: float = 0.4) -> None:
    """Perhaps say what {a} is known for."""
    t["habit"] = Lazy(HABITS, "zipf")
    t.maybe(
        "{a} was <a person|somebody> who {habit}.",
        "Everybody <in the village |>knew {a}, who {habit}.",
        "{a} {habit}, <but that is another story|as everybody knew|and nobody knew why>.",
        p=p,
    )


def detail(t: Tale, p: float = 0.6) -> None:
    """Perhaps describe something by the way."""
    fair = t.slots["weather"] in ("sunny", "hot", "mild")
    t.set(
        smell=Lazy(SMELLS, "zipf"),
        smell2=Lazy(lambda: [smell for smell in SMELLS if smell != t["smell"]], "zipf"),
        instrument=Lazy(INSTRUMENTS, "zipf"),
        tune=Lazy(TUNES, "zipf"),
        seen=Lazy(FAIR_SEEN + SEEN if fair else SEEN, "zipf"),
        sound=Lazy(FAIR_SOUNDS + SOUNDS if fair else SOUNDS, "zipf"),
        breakfast=Lazy(BREAKFASTS, "zipf"),
        thought=Lazy(THOUGHTS, "zipf"),
    )
    t.maybe(
        "It smelled of {smell} and {smell2}.",
        "<Somewhere|In the distance|Behind a window> somebody was playing {tune} on {instrument}.",
        "<At the roadside|In front of the inn|In the street|Behind a hedge> {seen}.",
        "<Somewhere|Far away|Not far off> {sound}.",
        "{a} had eaten {breakfast} for breakfast and was <hungry again|in a good mood|still sleepy>.",
        "{a}'s head was full of {thought}.",
        "{a} hummed {tune} <softly|happily|merrily|out of tune|to keep up {a.his} courage|without noticing it>.",
        p=p,
    )
