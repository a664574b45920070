"""Ways of arguing for one's opinion of a shop, a meal or a book.

In templates p slots are clauses on the writer's side and q slots on the other (reviews.py fills them); bp and bq are
things without a verb, mid clauses are neither good nor bad; {better} is "worse" for who finds fault.
"""

from collections.abc import Mapping, Sequence

import reviews_words as words

Arguments = dict[str, tuple[float, tuple[str, ...]]]

PLAIN = ("{p}<.|, and {p2}.|. {p2}.|, {p2}, and {p3}.>",)
CONTRAST = (
    "{q}, but <{p}, and <that is what counts|for me that settles it|nothing matters more to me>"
    "|that <hardly matters|is a small thing|counts for little>, because {p}>.",
    "<It is true that|True,|I grant that> {q}. But {p}, and I care more about that.",
    "{p}, and it <changes nothing|matters little|makes no difference> that {q}.",
    "That {q} <cannot change my mind|is not the point|is beside the point>: {p}.",
    "<Never mind that {q}: |What does it matter that {q}? >{p}.",
)
HEARS = "<People say|The neighbours say|In the village they say|My {kin} says|I have heard|I have been told>"
HEARD = "<People said|The neighbours said|My {kin} had told me|I had heard|I had been told>"
BELIEVED = (
    " that "
    "<{q}. <I cannot agree|That is <quite wrong|nonsense|not true>|I found the opposite|Not a word of it is true>"
    "|{p}. <I can only agree|That is <quite right|no exaggeration|true>|I found the same|Every word of it is true>>."
)
ADVICE = (
    "If you like {bp} and {bp2}, <go there|this is the place to go|waste no time>.",
    "If you like {bq} and {bq2}, <go elsewhere|this is not the place to go|do not waste your time>.",
    "{bq}? {bq2}? <Not here|Nothing of the kind|Not a trace of either>.",
    "{bp}? {bp2}? <Both are here|You will find both|Enough of both>.",
    "I <expected|had expected> {bp} and {bp2}, and that is <just|exactly> what I <got|found>.",
    "I <expected|had expected> {bq} and {bq2}, and <found nothing of the kind|I was quite wrong>.",
)
BARE_CONTRAST = ("{q}, but {p}.", "{p}, <although|even if> {q}.")
TURNS = "<And yet|Still,|All the same,|Even so,|In spite of all that,>"
UNDECIDED = "<One makes up for the other|The one balances the other|I cannot say which matters more|I am of two minds>"
BALANCE = tuple(
    f"{one}<, but|; on the other hand,> {other}. {UNDECIDED}." for one, other in (("{p}", "{q}"), ("{q}", "{p}"))
)
MIDDLING = ("{mid}<.|, and {mid2}.|. {mid2}.>",)
OPINIONS = (
    "My {kin} thinks that {p}, my {kin2} that {q}. <Both are right in a way|I can understand both|I side with neither>.",
    "My {kin} thinks that {q}, my {kin2} that {p}. <Both are right in a way|I can understand both|I side with neither>.",
    "Some say that {p}, others that {q}. <There is something in both|Let others judge|I find it hard to say>.",
    "Some say that {q}, others that {p}. <There is something in both|Let others judge|I find it hard to say>.",
)


TURNED = (f"{{q}}<|, and {{q2}}>. {TURNS}", "Although {q},", "<That|The fact that> {q} does not matter to me:")
"""These are followed by a close that goes the other way."""


class Domain:
    """What is reviewed: how it is named, what there is to say of it, and the ways of arguing that are its own.

    taken[sign] and untaken are the arguments of who takes a side or none: name -> (probability, ways of saying it).
    """

    def __init__(
        self,
        subject: str,
        starts: Sequence[str],
        facts: Sequence[str],
        closes: Mapping[int, Sequence[str]],
        ironies: str,
        done: str,
        loves: str,
        hears: str,
        change: tuple[str, ...],
        sometimes: tuple[str, ...],
        unknown: str,
    ) -> None:
        self.starts = (f"{subject}.", *[start.replace("{x}", subject) for start in starts])
        self.start_weights = (0.4, *[0.6 / len(starts)] * len(starts))
        self.facts, self.closes = list(facts), closes
        self.mild = (
            "It <could|might> be {unbetter}.",
            f"I have {done} {{unbetter}} {{kinds}}.",
            "One could do {unbetter}.",
        )
        so, is_ = ("so did I", "was") if loves == "loved" else ("so do I", "is")
        compare = (
            f"<I have never {done}|It would be hard to find|I do not know> a {{better}} {{kind}}.",
            "It is {easy} to find a better {kind}.",
            "There is no {better} {kind} <in the village|for miles around|between here and the sea>.",
            f"I have {done} {{better}} {{kinds}}, but <not often|I cannot remember when|you could count them on one hand>.",
            f"I have {done} a great many {{kinds}}, but <none|hardly one> that was {{better}}.",
            f"My {{kin}} {{un{loves}}} it, <but I cannot see why|and {is_} quite wrong|but then, my {{kin}} has no taste>.",
            f"My {{kin}} {{{loves}}} it, <and {so}|and I can see why|and {is_} quite right>.",
        )
        self.taken: dict[int, Arguments] = {}
        for sign in (1, -1):
            ends = {1: 1, -1: 2}
            self.taken[sign] = {
                "plain": (0.14, PLAIN),
                "contrast": (0.17, CONTRAST),
                "turned": (0.08, TURNED),
                "granted": (0.07, tuple(f"{close[:-1]}, even though {{q}}." for close in closes[sign])),
                "hearsay": (0.11, (hears + BELIEVED,)),
                "change": (0.08, change),
                "compare": (0.12, compare),
                "advice": (0.12, ADVICE),
                "irony": (0.11, tuple(f"{row[0]} {row[ends[sign]]}" for row in words.lines(ironies))),
            }
        same = (
            f"I have {done} better {{kinds}}, and I have {done} worse ones.",
            "It is neither better nor worse than others.",
        )
        self.untaken: Arguments = {
            "balance": (0.27, BALANCE),
            "middling": (0.24, MIDDLING),
            "sometimes": (0.15, sometimes),
            "opinions": (0.13, OPINIONS),
            "same": (0.06, same),
            "facts": (0.15, tuple(facts)),
        }
        self.unvisited: Arguments = self.untaken | {"unknown": (0.07, (f"{hears} that <{{p}}|{{q}}>{unknown}",))}


SHOP = Domain(
    "<the {kind} {spot}|{name}'s {kind} {spot}|{name}'s {kind}>",
    words.SHOP_STARTS,
    words.SHOP_FACTS,
    words.SHOP_CLOSES,
    words.SHOP_IRONY,
    "been to",
    "loves",
    HEARS,
    (
        "<A year ago|In the old days|Last spring> one could say that "
        "<{q}. <Not any more|Those days are <over|gone>>|{q}. <Now|Today> {p}|{p}. <One still can|Nothing has changed>>.",
    ),
    ("On some days {varying}, on others {other}.", "In the morning {varying}, in the afternoon {other}."),
    ", but I have never been inside.",
)
MEAL = Domain(
    "the {dish} at the {colour} {beast}",
    words.MEAL_STARTS,
    words.MEAL_FACTS,
    words.MEAL_CLOSES,
    words.MEAL_IRONY,
    "eaten",
    "loved",
    HEARD,
    (
        "The last time <{q}. <This time|Now> {p}|{p}, and <nothing has changed|it was the same again>>.",
        "I thought at first that {q}. <I was wrong|Not so>.",
    ),
    ("One evening {varying}, the next {other}.", "On {day} {varying}, on the day after {other}."),
    ", but I was not there myself.",
)
BOOK = Domain(
    "<The {word} {noun}|The {noun} {place}|{name} and the {noun}|{name}'s {noun}|The {Trade}'s {noun}>",
    words.BOOK_STARTS,
    words.BOOK_FACTS,
    words.BOOK_CLOSES,
    words.BOOK_IRONY,
    "read",
    "loves",
    HEARS,
    (
        "For a few pages I thought that {q}. I was <wrong|mistaken>.",
        "After a few pages I thought that {p}, and I <was not wrong|never had to change my mind>.",
        "At the first reading I found that {q}. At the second I had to take it back.",
    ),
    ("In the first half {varying}, in the second {other}.", "On some pages {varying}, on others {other}."),
    ", but I have not read it myself.",
)
