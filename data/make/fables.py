"""Write data/fables.txt: several hundred short tales from a small simulated world, the same bytes every time.

    python data/make/fables.py [FILE]

A plot casts its characters, decides what they do (keep a promise or break it, heed a warning or not), lets the world
answer (who can swim, what rusts, what the river takes) and tells it. The rest of the file is how sentences are made.
"""

import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import world

SEED = 7
TALES = 700
SHORTEST, LONGEST = 40, 150  # words

SPEECH = "asked|laughed|begged|said|cried|shouted|whispered|answered"
CHOICE = re.compile(r"<([^<>]*)>")
BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=(?!one\b|use|uni)[aeiou]|hour\b|honest)")
SENTENCE_START = re.compile(rf'(^|[.!?]"? )(?!(?:{SPEECH})\b)([a-z])')

T = TypeVar("T")


class Someone:
    """A character: what it is called in one sentence, and its pronouns."""

    def __init__(self, noun: str, name: str, woman: bool, mood: str) -> None:
        self.noun, self.name, self.label = noun, name, name
        self.he, self.him, self.his = ("she", "her", "her") if woman else ("he", "him", "his")
        self.intro = " ".join(f"a {mood} {noun}".split()) + (f" <named|called> {name}" if name else "")

    def __str__(self) -> str:
        return self.label


class Tale:
    """One tale while it is told. Choices use random() alone, whose sequence Python promises to keep."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sentences: list[str] = []
        self.slots: dict[str, object] = {}
        self.woman = self.chance()

    def chance(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def set(self, **slots: object) -> None:
        self.slots |= slots

    def time(self, seasons: str = "spring summer autumn winter") -> None:
        """Set {when}, {season} and {sky}, a sentence on the weather."""
        season = self.pick(seasons.split())
        weather = self.pick(sorted(world.SKIES[season]))
        when = "<one {weather} {hour} in {season}|on a {weather} {season} {hour}>"
        hour = self.pick(["morning", "afternoon", "day"])
        self.set(when=when, season=season, weather=weather, hour=hour, sky=world.SKIES[season][weather])

    def person(self, mood: str, *nouns: str) -> Someone:
        """A person of one of the nouns, of the other sex than the last character, so that pronouns stay clear."""
        self.woman = not self.woman
        names = (world.WOMEN if self.woman else world.MEN).split()
        common = ["girl", "old woman", "widow"] if self.woman else ["boy", "old man", "woodcutter"]
        noun = self.pick(self.untaken(nouns or [*common, *sorted(world.GOODS)]))
        return Someone(noun, self.pick(self.untaken(names)), self.woman, self.expand(mood))

    def child(self, mood: str) -> Someone:
        return self.person(mood, "boy" if self.woman else "girl")

    def animal(self, mood: str, *nouns: str) -> Someone:
        self.woman = not self.woman
        animal = Someone(self.pick(self.untaken(nouns)), "", self.woman, self.expand(mood))
        animal.label = f"the {animal.noun}"
        return animal

    def untaken(self, words: Sequence[str]) -> list[str]:
        """Those that are not yet the name or noun of a character."""
        taken = {word for s in self.slots.values() if isinstance(s, Someone) for word in (s.name, s.noun)}
        return [word for word in words if word not in taken]

    def expand(self, template: str) -> str:
        """Fill slots and make choices until none are left."""
        while "{" in template or "<" in template:
            template = CHOICE.sub(lambda match: self.pick(match[1].split("|")), template, count=1)
            if "<" not in template:
                template = template.format(**self.slots)
        return template

    def say(self, *ways: str) -> None:
        """Tell one thing in one of several ways."""
        for someone in self.slots.values():
            if isinstance(someone, Someone) and someone.name:
                someone.label = someone.name if self.chance(0.8) else f"the {someone.noun}"
        text = BEFORE_VOWEL.sub(r"\1n ", " ".join(self.expand(self.pick(ways)).split()))
        self.sentences.append(SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text))

    def maybe(self, *ways: str) -> None:
        if self.chance():
            self.say(*ways)


def known(thing: str) -> str:
    """What "a thing" is called when it is spoken of again."""
    return thing.replace("a ", "the ", 1)


def animals_that(*skills: str) -> list[str]:
    return [animal for animal, skill in world.SKILLS.items() if skill in skills]


def borrow(t: Tale) -> None:
    """Something is lent; it comes back as promised, or not."""
    kept = t.chance()
    t.time("spring autumn")
    t.set(a=t.person("<honest|careful|faithful>" if kept else "<careless|forgetful|lazy>"))
    t.set(b=t.person("<||kind|patient>"), day=t.pick(["Monday", "Tuesday", "Thursday", "Friday", "Saturday"]))
    tool, why, use, harm = t.pick(world.TOOLS)
    other = t.pick([row[0] for row in world.TOOLS if row[0] != tool])
    t.set(tool=tool, why=why, use=use, harm=harm, other=other, next=t.pick(["week", "month"]))
    t.say(
        "{when}, {a.intro} needed a {tool}, because {why}.",
        "{when}, {why}, and {a.intro} had no {tool}.",
        "{a.intro} was in trouble: {why}, and there was no {tool} in the house.",
    )
    t.maybe("{sky}")
    t.say("{b.intro} <lived next door and|lived across the lane and|> had a good one.")
    t.say(
        '"Take it," said {b}, "and bring it back on {day}." {a} promised.',
        '"You may have it," said {b}, "if I get it back on {day}." "On {day}, before dark," {a} promised.',
        "{b} lent it gladly, and {a} promised to bring it back on {day}.",
    )
    t.say("<With it|With its help|The same day> {a} {use}<| and was very pleased>.")
    if kept:
        t.say("On {day} <it was late|rain fell|the wind was cold> and {a} was tired, but a promise is a promise.")
        t.say("{a.he} cleaned the {tool} and brought it back<| before dark|, with a cake on top>.")
        t.say("The next {next} {a} needed a {other}, and {b} <gave it without a question|carried it over in person>.")
        t.maybe("A thing that comes home in time is easily lent again.", "Trust grows a little with each promise kept.")
        return
    t.say("But when the work was done, {a.he} left the {tool} <outside|in the rain|behind the house> and forgot it.")
    t.say("{day} came and went. When {b} <came to fetch|went to look for> the {tool}, {harm}.")
    t.say('"I trusted you," said {b}.', '{b} said only, "You promised."', "{b} took it home without a word.")
    t.say("The next {next} {a} needed a {other}, but {b} shook {b.his} head.")
    if t.chance():
        t.say("Then {a} was ashamed. {a.he} worked three evenings until the {tool} was as good as new.")
        t.say('{b} looked at it from all sides<, and then at {a}|>. "Now we can be neighbours again," {b.he} said.')
    else:
        t.say("So {a} had to <do without|walk to the next village for one|buy one, and it cost all {a.his} savings>.")
        t.maybe("Who breaks a promise breaks more than a {tool}.", "A promise is soon made and slowly mended.")


def lost(t: Tale) -> None:
    """A lost thing lies where only one animal can reach it; that animal is paid as promised, or not."""
    paid = t.chance(0.6)
    t.time()
    place, skill, fetch = t.pick(world.HIDING)
    t.set(a=t.child("<|clever|dreamy|little>"), thing=t.pick(world.TREASURES), place=place, fetch=fetch)
    eaters = [animal for animal in animals_that(skill) if animal in world.FOOD]
    b = t.animal("<young|old|friendly>", *eaters)
    c = t.animal("<|grey|wise>", *[animal for animal in world.FOOD if world.SKILLS[animal] not in (skill, "run")])
    t.set(b=b, c=c, skill=skill, other=world.SKILLS[c.noun], food=world.FOOD[b.noun])
    t.set(the_food=known(world.FOOD[b.noun]))
    t.say(
        "{when}, {a.intro} lost {a.his} grandmother's {thing}.",
        "{when}, {a.intro} put {a.his} hand into {a.his} pocket, and {a.his} {thing} was gone.",
    )
    t.say("{a.he} searched the <garden|yard> and the whole road, <but in vain|and at last sat down to cry>.")
    t.say(
        '{c.intro} had seen it. "It lies {place}," said {c}. "I can {other}, but I cannot {skill}. Ask the {b.noun}."',
        '"I know where it is," said {c.intro}. "It is {place}. You must ask somebody who can {skill}."',
    )
    t.say("So {a} went to {b.intro} and promised {b.him} {food} <for it|if {b.he} would help>.")
    t.say("{b} {fetch}.")
    if paid:
        t.say("{a} <thanked {b.him} and ran home|laughed for joy>. Before night {a.he} came back with {the_food}.")
        t.say(
            "From that day {b} and {a} <were friends|greeted each other by name>.",
            "{b} had never eaten so well.",
            "Both slept well that night, {a} with the {thing} and {b} with a full stomach.",
        )
    else:
        t.say("{a} was so happy that {a.he} forgot <the promise|everything>, and {b} waited in vain for {the_food}.")
        t.say("A week later the {thing} was lost again, in the same place. {b} <yawned|looked the other way>.")
        t.say('"First bring me what you owe me," {b.he} said. {a} <blushed|hung {a.his} head> and brought it at once.')
        t.maybe("Then the two of them began again from the beginning.", "Thanks are best while they are warm.")


def prepare(t: Tale) -> None:
    """Winter comes to one who gathered and one who did not."""
    changed = t.chance()
    t.set(a=t.animal("<lazy|merry|careless>", "hare", "fox", "badger", "cat", "crow"))
    t.set(b=t.animal("<busy|careful|hard-working>", "squirrel", "mouse", "mole", "hedgehog", "beaver"))
    t.say("All <summer|autumn> long, {b.intro} <carried|dragged> <nuts|seeds|roots|berries> into {b.his} house.")
    t.say("{a.intro} <lay in the sun|sang in the grass|counted the clouds> and <watched|smiled at> {b.him}.")
    t.say(
        '"Come and help," said {b}. "The winter is long." "It is warm today," answered {a}. "I will begin tomorrow."',
        '"You should fill your house too," said {b}. "There is time enough," said {a}.',
        '"Why do you work so hard?" asked {a}. "Because snow does not ask who is ready," answered {b}.',
    )
    t.say("The next day was warm too, and so {a} never began.", "The days grew shorter, and {a} did not see it.")
    t.say("In <November|December> the snow came. It covered the <fields|forest>, and {a} found nothing to eat.")
    t.say("On the third day {a.he} knocked at the door of {b}<|, thin and ashamed>.")
    t.say(
        '"Come in," said {b}. "There is enough for two, but next year you will work beside me." {a} promised it.',
        "{b} set a second plate on the table and asked only one thing: that {a} should help the next year.",
    )
    if changed:
        t.say(
            "And {a} kept {a.his} word. When summer came, {a.he} was the first in the field <each morning|every day>."
        )
        t.say("The next winter there were two full houses<, and the two ate together by turns|>.")
        t.maybe("It is easier to begin today.", "Help teaches more than scolding.")
    else:
        t.say("But when the sun was warm again, {a} forgot it and <slept|sang|dreamed> as before.")
        t.say(
            "The next winter {a.he} knocked once more. {b} gave {a.him} one small meal and a broom.",
            "The next winter {b} opened the door only after {a} had shovelled the snow away.",
        )
        t.say('"Work first," {b.he} said, "and then soup."', "After that {a} remembered.")


def repay(t: Tale) -> None:
    """A small animal is spared, and saves the big one."""
    small, danger, rescue = t.pick(world.DEBTS)
    t.time("spring summer autumn")
    t.set(a=t.animal("<big|strong|proud>", "bear", "wolf", "deer", "horse", "fox"), danger=danger, rescue=rescue)
    t.set(b=t.animal("<little|young|tiny>", small))
    t.say("{when}, {b.intro} <hopped over the nose|stepped on the tail|sneezed into the ear> of {a.intro}.")
    t.say("{a} <woke|jumped up> and held {b.him} down with one foot.")
    t.say(
        '"Let me go," begged {b}, "and one day I will help you." "You?" laughed {a}, and let {b.him} go.',
        '"Please," said {b}, "I did not see you. I will never forget it if you let me go." {a} lifted {a.his} foot.',
        '"I am hardly a mouthful," said {b}, "but I might become a friend." That pleased {a}, and {b} was free.',
    )
    t.say("<A month later|In the same year>, {a} {danger}.", "Not long afterwards {a} {danger}.")
    t.say("{a.he} <roared|called>, but all {a.his} strong friends were far away.", "None of {a.his} big friends came.")
    t.say("Only {b} heard of it and came at once. {b.he} {rescue}.", "Then {b} came. {b.he} {rescue}.")
    t.say(
        '{a} looked down at {b}. "I did not think that you could help me," {a.he} said. "I was wrong."',
        '"You kept your word," said {a} in wonder.',
        '"So small a friend," said {a}, "and so great a help."',
    )
    t.maybe("A small friend is still a friend.", "Mercy is never wasted.", "Nobody is too small to keep a promise.")


def trade(t: Tale) -> None:
    """One wants what the second has, who wants what the third has."""
    t.time("autumn")
    t.set(a=t.child("<|clever|poor>"))
    b = t.person("", *world.GOODS)
    t.set(b=b)
    c = t.person("", *world.GOODS)
    (good, why), (price, need) = world.GOODS[b.noun], world.GOODS[c.noun]
    t.set(c=c, good=good, why=why, price=price, need=need, chore=t.pick(world.CHORES), more=t.pick(world.CHORES))
    t.set(the_good=known(good), the_price=known(price))
    t.say(
        "{when}, {a.intro} went to {b.intro} for {good}, because {why}.",
        "{a.intro} needed {good}, because {why}. So {a.he} went to {b.intro}.",
    )
    t.maybe("{sky}")
    t.say(
        '"Keep your money," said {b}. "Bring me {price}, and it is yours."',
        "{b} wanted no money, only {price}, because {need}.",
    )
    t.say("{price} was to be had from {c.intro}, at the other end of the village.", "So {a} walked on to {c.intro}.")
    t.say('"I need a pair of hands," said {c}, "and then you shall have it."', "{c} asked for a little help in return.")
    t.say("{a} {chore}, and {c} gave {a.him} {the_price}.")
    if t.chance(0.4):
        t.say("But {a.he} ran so fast that {a.he} fell, and everything lay in the <mud|ditch>.")
        t.say("So {a.he} went back and {more}. This time {a.he} walked slowly.")
    t.say("{b} <was content|smiled|nodded> and handed over {the_good}.")
    t.say(
        "It had taken the whole day and not cost a penny.",
        "In the evening everybody had what they needed.",
        "{a} carried it home <singing|under the first stars>.",
    )


def race(t: Tale) -> None:
    """The fast one runs against the slow one."""
    lost_it = t.chance(0.65)
    t.time("spring summer autumn")
    t.set(a=t.animal("<proud|boastful>" if lost_it else "<swift|good>", "fox", "hare", "horse", "dog", "cat"))
    t.set(b=t.animal("<patient|steady|quiet>", *animals_that("plod"), "mole", "duck", "donkey"))
    t.set(goal=t.pick(world.GOALS), c=t.animal("", "owl", "crow", "goat", "magpie", "badger"))
    t.say(
        '{when}, {a.intro} met {b.intro}. "I could run to {goal} while you turn round," said {a}.',
        '{when}, {a.intro} asked {b.intro}, "Shall we race to {goal}?" "Why not?" said {b}.',
    )
    t.maybe("{sky}")
    t.say("{c.intro} <gave the sign|was the judge>, and they set off.")
    t.say(
        "{a} <shot away like an arrow|was out of sight before one could count to ten>, and {b} <walked|plodded> behind."
    )
    if lost_it:
        t.say(
            "Halfway {a} <was tired of winning and lay down to sleep|stopped to drink and began to dream>.",
            "Halfway {a} met some friends and told them how well {a.he} was running.",
            "At the halfway stone {a} saw a butterfly and ran after it, deep into the <wood|meadow>.",
        )
        t.say("{b} <did not stop|did not look left or right>. One step came after another.")
        t.say("When {a} remembered the race, {b} was already at {goal}.")
        t.say('"The {b.noun} has won," {c} told everybody.', '"How did you do it?" asked {a}. "I went on," said {b}.')
        t.maybe("Legs are not everything.", "Slow is quick enough, if it does not stop.")
    else:
        t.say("{a} did not stop once, and {c} called {a.him} the winner.")
        t.say("But then {a} turned round, ran back and walked the rest of the way beside {b}.")
        t.say(
            '"Why did you come back?" asked {b}. "Because it is dull to win alone," answered {a}.',
            "They came to {goal} side by side, talking, and had forgotten who was first.",
        )


def stranger(t: Tale) -> None:
    """A traveller is turned away at one door and let in at another."""
    t.time("winter autumn")
    t.set(a=t.person("rich", *sorted(world.GOODS)), b=t.person("poor", "woodcutter" if t.woman else "widow"))
    who, thanks, lack = t.pick(world.TRAVELLERS)
    t.set(who=who, thanks=thanks, lack=lack)
    t.say("{when}, {who} came through the village<, tired and hungry,|> and knocked at the door of {a.intro}.")
    t.say("{sky}")
    t.say(
        '"We have no room," said {a}, though <four beds stood empty|the house had seven rooms>, and shut the door.',
        '"Go to the inn," said {a} through the window. The inn was two hours away.',
    )
    t.say("In the last house lived {b.intro}, who had one bed and half a loaf.")
    t.say('"Come in," said {b}. "<Half of half a loaf is still bread|Soup grows when one adds water>."')
    t.say("{b.he} <slept on the bench|sat up by the stove> and gave the guest the bed.")
    t.say("In the morning the guest {thanks}.", "Before leaving, the guest {thanks}.")
    t.say("<Not long afterwards|The same year>, {lack}.")
    if t.chance():
        t.say("{a} remembered the knock at the door and <was sorry|thought about it for a long time>.")
        t.say("Since then a lamp has been burning in {a.his} window<, and nobody is sent away|>.")
    else:
        t.say('"Some people have all the luck," {a.he} said. But it was not luck.', "And {a.he} never knew why.")
        t.maybe("A shut door keeps out good things too.", "Bread that is shared feeds two people, and sometimes three.")


def secret(t: Tale) -> None:
    """A secret is told in trust, and kept or not."""
    kept = t.chance()
    t.time("spring")
    t.set(a=t.child("<quiet|faithful>" if kept else "<talkative|boastful|lively>"))
    t.set(b=t.person("<shy|lonely|kind>", "shepherd", "weaver", "gardener", "potter", "miller", "cobbler"))
    what, told, silent = t.pick(world.SECRETS)
    t.set(what=what, told=told, silent=silent)
    t.say("{when}, {b.intro} told {a.intro} a secret: {what}.", "{b.intro} trusted {a.intro} and told {a.him} {what}.")
    t.say(
        '"Promise that you will not tell anybody," said {b}, and {a} promised.',
        '"Can you keep it?" asked {b}. "<Like a stone|Like a locked box>," said {a}.',
    )
    if kept:
        t.say("At school the others <begged|teased> {a.him} and offered {a.him} <sweets|a kite|two marbles>.")
        t.say("{a} <pressed {a.his} lips together|shook {a.his} head|talked about the weather>.")
        t.say("{silent}.")
        t.maybe("There is no better box for a secret than a friend.", '"You are a true friend," said {b}.')
        return
    t.say("For two days {a.he} <kept|carried> it like a hot potato.", "It lasted until noon.")
    t.say("Then {a.he} told {a.his} cousin, only {a.his} cousin, and {a.his} cousin told only the baker's wife.")
    t.say("{told}.")
    t.say('"It was only one word," said {a}. "A spark is small too," said {b}.', "{b} did not scold. That was worse.")
    if t.chance():
        t.say("{a} could not call the word back. But {a.he} came every day to help, and in autumn {b} smiled again.")
    else:
        t.say("From then on {b} spoke with {a.him} only about the weather.")


def warning(t: Tale) -> None:
    """A warning is heeded, or not."""
    heeded = t.chance(0.4)
    seasons, wish, warned, harm, rescue, luck = t.pick(world.HAZARDS)
    t.time(seasons)
    t.set(a=t.child("<thoughtful|sensible>" if heeded else "<reckless|headstrong|hasty>"))
    t.set(b=t.person("<old|wise|>", *sorted(world.GOODS)))
    t.set(wish=wish, warned=warned, harm=harm, rescue=rescue, luck=luck)
    t.say("{when}, {a.intro} wanted {wish}.")
    t.say('"Do not do it," said {b.intro}. "I know that {warned}."', '{b.intro} called out, "Take care! {warned}."')
    if heeded:
        t.say("{a} <sighed|was sorry for it|stood still>, but {a.he} <believed|listened to> {b.him}.")
        t.say("{luck}.")
        t.say(
            '"You were right," said {a}.',
            "{a} grew pale and then laughed.",
            "Since then {a} has always asked {b} first.",
        )
        t.maybe("A warning costs nothing and may save much.", "Good advice is a light in the fog.")
        return
    t.say('"<You worry too much|I have done it before|Nothing will happen>," said {a} and <ran on|did not listen>.')
    t.say("And then {harm}.")
    t.say("{b} heard {a.him} cry and <dropped everything|came running>. {b.he} {rescue}.")
    t.say("{a} <trembled|was pale> and <could not speak|held on to {b.his} hand>.")
    t.say(
        '"Next time I will listen," {a.he} said<| at last>. And {a.he} did.',
        "{b} only made tea.",
        '"Did I not tell you?" said {b}, but {b.he} said it kindly.',
    )
    t.maybe("Ears are there to save the legs.", "It is cheaper to believe than to try.")


def garden(t: Tale) -> None:
    """The same seeds, two gardeners."""
    t.set(a=t.person("<hasty|lazy|forgetful>"), b=t.person("<patient|careful>"), seeds=t.pick(world.SEEDS))
    t.say("In <April|spring>, {a.intro} and {b.intro} planted {seeds} in the same earth, on the same day.")
    t.say("For a week both <looked for the first green|carried water> every evening.")
    if t.chance():
        t.say("Then {a} dug one up to see whether it was growing, and the next day another.")
        t.say('"They grow when nobody looks," said {b}. "I cannot wait," said {a}.')
        t.say("By May {a.he} had dug up all of them.")
    else:
        t.say("Then <the fair came|the weather grew hot>, and {a} stayed <away|in the shade>.")
        t.say('"Your {seeds} are thirsty," said {b}. "It will surely rain," said {a}.')
        t.say("It did not rain for <four|five|six> weeks, and {a.his} {seeds} <dried up|turned to straw>.")
    t.say("{b} <pulled the weeds|picked off the snails> and brought <a bucket|a can> of water every <day|evening>.")
    t.say("In <August|September> {b.his} garden was so full of {seeds} that {b.he} could not eat them all.")
    if t.chance():
        t.say('{b} carried a basket to {a} and a handful of seed with it. "For next year," {b.he} said.')
        t.say("The next year there were two green gardens<, and a gate between them|>.")
    else:
        t.say(
            '"You were lucky," said {a}. "Yes," said {b}, "every evening."',
            "{a} bought {seeds} at the market that year.",
        )
        t.maybe("A garden keeps count of the days.", "Water is cheap in spring and dear in summer.")


def errand(t: Tale) -> None:
    """A message has to arrive in time."""
    in_time = t.chance()
    what, to, good, late = t.pick(world.ERRANDS)
    delay, stop = t.pick(world.DELAYS)
    t.time("spring autumn")
    t.set(a=t.child("<quick|faithful|trusty>" if in_time else "<dreamy|curious|playful>"))
    t.set(b=t.person("<|old|worried>", "teacher", "woodcutter" if t.woman else "widow", "farmer", "shepherd"))
    t.set(what=what, to=to, good=good, late=late, delay=delay, stop=stop)
    t.say("{when}, {b.intro} sent {a.intro} to {to} with {what}.")
    t.maybe("{sky}")
    t.say('"Do not stop on the way," said {b}. "It must be there in time."', '"Hurry," said {b}. "It matters."')
    t.say("{a} <ran|set off at once>. But {delay}.")
    if in_time:
        t.say("{a} would have liked to stay. {a.he} <looked once, shut {a.his} eyes|thought of {b}> and <ran|went> on.")
        t.say("{a.he} arrived <out of breath|with wet shoes>, but in time: {good}.")
        t.say(
            "On the way home there was time for everything.",
            '"I knew whom to send," said {b}.',
            "{a} got <a slice of cake|a red apple>, and it was well earned.",
        )
    else:
        t.say("{a} stopped, only for a moment, and {stop}.")
        t.say("When {a.he} came to the house of {to}, it was too late: {late}.")
        t.say(
            "{a} told {b} the truth, <and it was not easy|with tears>.",
            "Nobody scolded {a.him}. {a.he} wished that they had.",
        )
        t.maybe("A moment is short only for the one who is playing.", '"Now you know what a moment costs," said {b}.')


def noise(t: Tale) -> None:
    """Everybody is afraid of a noise; one goes to look."""
    sound, where, animal, trouble, help_ = t.pick(world.NOISES)
    t.time()
    t.set(a=t.child("<brave|calm|curious>"), sound=sound, where=where, trouble=trouble, help=help_)
    t.set(b=t.animal("", animal), c=t.person("", *sorted(world.GOODS)))
    t.say(
        "One {season} night there was a <strange|terrible|hollow> {sound} {where}.",
        "For three nights the village heard a {sound} {where}.",
    )
    t.say(
        '"A ghost," <whispered|said> {c.intro} and <locked the door|pulled the blanket over {c.his} ears>.',
        '"It is a wolf at least," said {c.intro}, and everybody stayed indoors.',
    )
    t.say("<Only {a.intro}|But {a.intro}> <wanted to know|thought that ghosts have better things to do>.")
    t.say("{a.he} <took a lantern|lit a candle>, <held {a.his} breath|counted to three> and went to look.")
    t.say("{a.his} knees <shook|were soft>, but {a.his} feet went on.", "With every step the {sound} grew louder.")
    t.say("It was nothing but a {b.noun}. {b.he} {trouble}.", "There was no ghost, only a {b.noun} who {trouble}.")
    t.say("{a} <laughed|spoke softly to {b.him}> and {help}.")
    t.say(
        "After that it was quiet, and {c} said that {c.he} had known it all along.",
        'In the morning {c} asked about the ghost. "It has gone home," said {a}.',
        "The {b.noun} stayed with {a.him} for breakfast.",
    )
    t.maybe("Fear is biggest in the dark.", "Most ghosts want help.", "A lantern is stronger than a hundred stories.")


def quarrel(t: Tale) -> None:
    """Two claim one thing, and a judge finds out whose it is."""
    thing, test, wrong, right, proof = t.pick(world.CLAIMS)
    t.time()
    t.set(a=t.person("<greedy|loud|cunning>"), b=t.person("<quiet|honest|gentle>"))
    t.set(c=t.person("<old|wise>", "teacher", "judge"), thing=thing, test=test, wrong=wrong, right=right, proof=proof)
    t.say(
        "{when}, {a.intro} and {b.intro} came before {c.intro}, and both claimed the same {thing}.",
        "{a.intro} and {b.intro} quarrelled about a {thing}. In the end they went to {c.intro}.",
    )
    t.say('"It is mine," <cried|shouted> {a}. "It is mine," said {b}<, not so loudly|>.')
    t.say("The {c.noun} thought for a while and {test}.")
    t.say("{a} {wrong} {b} {right}")
    t.say("{proof}.")
    t.say('"<The {thing} goes home with|It belongs to> {b}," said the {c.noun}.')
    if t.chance():
        t.say('{a} <grew red|looked at {a.his} boots>. "I wanted one so much," {a.he} said.')
        t.say(
            '"Then ask," said {b}. "I would lend it to you on Sundays."',
            "And because {a.he} said it, {b} forgave {a.him}.",
        )
    else:
        t.say(
            "{a} had to <sweep the market for a month|pay for the {c.noun}'s supper>.",
            "{a} went off without a greeting.",
        )
        t.maybe("The truth need not shout.", "Who owns a thing knows it with closed eyes.")


def thief(t: Tale) -> None:
    """Something is gone; the wrong one is blamed, until somebody looks."""
    season, gone, trace, culprit, found = t.pick(world.THEFTS)
    t.time(season)
    t.set(a=t.person("<hot-tempered|hasty|grumpy>"), b=t.child("<|poor|freckled>"))
    t.set(c=t.animal("", culprit), gone=gone, trace=trace, found=found)
    t.say("{when}, {a.intro} found {gone}.", "{when}, {a.intro} came home and saw {gone}.")
    t.say(
        '"I know who it was," {a.he} cried at once, because {b.intro} had <walked by|looked over the fence> that day.',
        "{a.he} ran straight to {b.intro}, who had walked by that {hour}.",
    )
    t.say('"I did not touch it," said {b}. Nobody believed {b.him}.', "{b} said no, but {a} would not listen.")
    t.say("So {b} <went and looked|knelt down and looked closely>, and there was {trace}.")
    t.say("{b.he} called {a} to come and see, and {found}.")
    t.say('{a} <scratched {a.his} head|grew very quiet>. "I was wrong," {a.he} said<, and it cost {a.him} something|>.')
    t.say(
        "{b} was invited to <supper|Sunday lunch>, and the {c.noun} was not.",
        "To make it good, {a.he} gave {b} <a pear|a cake|a whole basket of plums>.",
        '"Look first and shout afterwards," said {b}, and both laughed.',
    )


def narrow(t: Tale) -> None:
    """Two meet on a plank that is wide enough for one."""
    polite = t.chance()
    t.time()
    t.set(a=t.animal("<stubborn|proud>", "goat", "sheep", "donkey", "badger", "dog"))
    t.set(b=t.animal("<polite|gentle>" if polite else "<stubborn|haughty>", "goat", "fox", "cat", "horse", "bear"))
    t.say("{when}, {a.intro} and {b.intro} met in the middle of a narrow plank over the stream.")
    t.maybe("{sky}")
    t.say('"Go back," said {a}. "I am in a hurry."', '"Make way," said {a}. "I am tired."')
    if polite:
        t.say('{b} <thought about it|looked at the water>. "It is cold for a bath," {b.he} said, and went back.')
        t.say("{a} <marched across|went over> without a word of thanks.")
        t.say("But that <evening|night> {a} <lay awake|thought of it again>, and it would not leave {a.him} in peace.")
        t.say("The next day they met there again. This time it was {a} who <stepped back|turned round and waited>.")
        t.maybe(
            "Politeness goes round and comes back.", '"After you," {a.he} said.', "Then they laughed, both of them."
        )
    else:
        t.say('"Never," said {b}. "My father crossed this plank before yours was born."', '"So are others," said {b}.')
        t.say("They <pushed|argued> until <noon|the sun was low>, head against head. Neither gave way.")
        t.say("Then the plank <cracked|tipped>, and both lay in the cold water.")
        t.say("They crawled out, {a} on the left bank and {b} on the right, where they had started.")
        t.say("Now nobody could cross at all.", "A wren who had seen everything <laughed|told it> for a week.")
        t.maybe("Two hard heads make one wet day.", "Who cannot step back cannot get across.")


def lesson(t: Tale) -> None:
    """Somebody learns to do a thing, a little every day, or gives up."""
    went_on = t.chance(0.6)
    art, first, proof = t.pick(world.LESSONS)
    t.set(a=t.child("<stubborn|patient|eager>" if went_on else "<impatient|fickle>"), art=art, first=first, proof=proof)
    t.set(b=t.person("<old|strict|kind>", "teacher", "cobbler", "woodcutter" if t.woman else "widow"))
    t.time()
    t.say("{a.intro} wanted to learn {art}, and {b.intro} promised to show {a.him} how.")
    t.say("The first time, {first}.", "When {a.he} tried it for the first time, {first}.")
    t.say(
        '"Again tomorrow," said {b}.',
        '"Good," said {b}. "Now only a thousand times more."',
        '"Everybody begins like that," said {b}.',
    )
    if went_on:
        t.say("{a} came the next day and the day after. <In rain and snow|Through the whole winter> {a.he} came.")
        t.say(
            "At first <nothing changed|nobody noticed anything>. Then, little by little, it <went better|grew easier>."
        )
        t.say("A year later, {proof}.", "And the following {season}, {proof}.")
        t.say(
            'People asked how it was done. "One day at a time," said {a}.',
            "{b} sat in the corner and <wiped {b.his} eyes|nodded>.",
            "{a} thought of the first day and smiled.",
        )
    else:
        t.say("The second time it was <no better|even worse>. On the third day {a} stayed at home.")
        t.say("{a.he} tried fishing instead, and then drums, and then nothing at all.")
        t.say('A year later {a} saw another child learn it in one winter. "I could have done that too," {a.he} said.')
        t.say(
            '"Yes," said {b}, "and you still can." The next morning {a} was at the door.', "{b} only <smiled|sighed>."
        )
        t.maybe("It is the fourth day that makes a master.", "What is begun every week is never finished.")


PLOTS: list[Callable[[Tale], None]] = [
    borrow, lost, prepare, repay, trade, race, stranger, secret, warning, garden, errand, noise, quarrel, thief, narrow,
    lesson,
]  # fmt: skip


def tales(seed: int = SEED, count: int = TALES) -> list[str]:
    """`count` different tales, as many of each plot as of any other, in a shuffled order."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        tale = Tale(rng)
        PLOTS[len(found) % len(PLOTS)](tale)
        text = " ".join(tale.sentences)
        if SHORTEST <= len(text.split()) <= LONGEST:
            found[text] = None
    return sorted(found, key=lambda _: rng.random())


def main() -> None:
    default = Path(__file__).parents[1] / "fables.txt"
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    target.write_text("\n\n".join(tales()) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
