"""Programs that write texts: the probability of a text, the words that they write, and the world they tell of."""

import collections
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import choice
import pytest
import telling
import words
import world

from tests.generators.reading import bits_of


def glued(teller: Any) -> None:
    teller.emit(teller.choose(("x", "xx"), (3, 1)))
    teller.emit(teller.choose(("xx", "x", "y"), (2, 1, 1)))


def test_the_probability_of_a_text_is_the_sum_over_its_derivations() -> None:
    assert len(choice.derivations(glued, "Xxx")) == 2  # x+xx and xx+x
    assert bits_of(glued, "Xxx") == pytest.approx(-math.log2(3 / 4 * 2 / 4 + 1 / 4 * 1 / 4))
    texts = {choice.written(glued, random.Random(seed)).text for seed in range(200)}
    assert sum(2 ** -bits_of(glued, text) for text in texts) == pytest.approx(1)
    for never in ("Xz", "X", "Xxy "):
        assert bits_of(glued, never) == math.inf


def test_draws_follow_the_weights() -> None:
    rng = random.Random(0)
    seen = collections.Counter(choice.written(lambda t: t.choose("abc", (5, 3, 2)), rng).value for _ in range(5_000))
    assert [seen[x] / 5_000 for x in "abc"] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["a ", "egg and a ", "pear"], "An egg and a pear"),
        (["it is a ", "hour", ". a ", "use"], "It is an hour. A use"),
        (['he said. "', 'no"'], 'He said. "No"'),
        (['"what?" ', "he asked. ", "ann"], '"What?" he asked. Ann'),
        (['"what?" ^"', "a ", "egg", '!"'], '"What?" "An egg!"'),
        (['"^what!" ^', "he left"], '"What!" He left'),
    ],
)
def test_text_is_typeset_across_chunks(chunks: list[str], text: str) -> None:
    def program(teller: Any) -> None:
        for chunk in chunks:
            teller.emit(chunk)

    assert choice.written(program, random.Random(0)).text == text
    assert bits_of(program, text) == 0


def test_a_template_draws_its_choices_when_they_are_written_and_is_parsed_back() -> None:
    def program(teller: Any) -> None:
        story = telling.Story(teller)
        story["fruit"] = telling.Lazy(["apple", "pear"], (1, 3))
        story.say("<One|A> <red |>{fruit}.", "Two {fruit}s<, or <three|four>|>.")
        story.maybe("It was the {fruit}.", p=0.25)

    for seed in range(50):
        one = choice.written(program, random.Random(seed))
        [back] = choice.derivations(program, one.text)
        assert back.bits == one.bits
    assert bits_of(program, "An apple. It was the apple.") == pytest.approx(1 + 1 + 1 + 2 + 2)
    assert bits_of(program, "An apple. It was the pear.") == math.inf


@pytest.mark.parametrize("template", ["<a|b", "a>"])
def test_unmatched_brackets_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="unmatched"):
        telling.compiled(template)


TOPICS = sorted(path.stem for path in (Path(words.__file__).parent / "words").glob("*.yaml"))


def texts(value: Any) -> Iterator[str]:
    """All strings of what a file holds, line by line."""
    if isinstance(value, str):
        yield from value.splitlines()
    else:
        for below in value.values() if isinstance(value, dict) else value:
            yield from texts(below)


@pytest.mark.parametrize("topic", TOPICS)
def test_lines_are_whole_words_and_their_brackets_match(topic: str) -> None:
    for text in texts(words.load(topic)):
        assert text == text.strip() or text.endswith(" "), text
        telling.compiled(text)


def test_blocks_are_read_line_by_line_and_refused_where_a_part_is_missing() -> None:
    assert words.fork("2 kept: one\n0.5 lost: two: three\n") == [(2.0, "one", "kept"), (0.5, "two: three", "lost")]
    with pytest.raises(ValueError, match="one"):
        words.fork("2 one\n")
    [row] = words.table("noun | plural\nfox | foxes\n")
    assert (row.noun, row.plural, str(row)) == ("fox", "foxes", "fox")
    with pytest.raises(TypeError):
        words.table("noun | plural\nfox\n")
    assert words.load("numbers")["numbers"][0] == "no"  # not False


TOM, ANN = world.Person("Tom", "baker"), world.Person("Anna", "girl")


def told(*lines: str, **slots: object) -> str:
    story = telling.Story(choice.Teller(random.Random(0)))
    story.set(**slots)
    for line in lines:
        story.say(line)
    return "".join(story.teller.printed)


def test_what_happens_once_cannot_happen_again() -> None:
    here, kite = world.World(), world.Thing("kite", {"kite": ["red "]})
    here.known.add((TOM, "rain"))
    here.give(None, kite, TOM)
    here.move(None, 5, "coin", TOM)
    here.smash(kite)
    here.vow(TOM, "mend the roof")
    acts: dict[str, Callable[[], object]] = {
        "does not have it": lambda: here.give(TOM, kite, ANN),
        "too few": lambda: here.move(TOM, 3, "coin", ANN),
        "not broken": lambda: here.mend(kite),
        "no open promise": lambda: here.decide(TOM, "no", "mend the roof"),
    }
    for refused, act in acts.items():
        act()
        with pytest.raises(world.Impossible, match=refused):
            act()
    assert here.holders[kite] is ANN
    assert (here.counts[TOM, "coin"], here.counts[ANN, "coin"]) == (2, 3)
    assert here.promises[TOM, "mend the roof"] is False
    with pytest.raises(world.Impossible, match="does not know"):
        here.tell(ANN, "rain", TOM)
    here.tell(TOM, "rain", ANN)
    here.tell(ANN, "rain", TOM)


def test_a_pronoun_means_the_last_of_that_sex_and_reaches_over_no_role() -> None:
    lines = (
        "{a} saw {c}, and {a.he} waved to {c.him}.",
        "{b} saw {a}. {b.he} left, and {a.he} stayed with {a.his} hat.",
    )
    assert told(*lines, a=TOM, b=world.Person("Peter", "miller"), c=ANN) == (
        "Tom saw Anna, and he waved to her. Peter saw Tom. Peter left, and Tom stayed with his hat."
    )
    over_a_role = told("{a} saw a {e.noun}, and {e} saw {a.him}.", a=TOM, e=world.Role("miller"))
    assert over_a_role == "Tom saw a miller, and the miller saw Tom."
