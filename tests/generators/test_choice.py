"""The probability of a text, from its choices and back."""

import collections
import math
import random
from typing import Any

import choice  # type: ignore[import-not-found]
import pytest
import telling  # type: ignore[import-not-found]

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
