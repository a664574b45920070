"""tags.conll and questions.json are what their generators write; readers that share nothing with them agree."""

import importlib
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("module", ["tags", "questions"])
def test_the_generator_writes_the_committed_bytes(module: str) -> None:
    for file, content, _ in importlib.import_module(module).files():
        assert (DATA / file).read_bytes() == content
        assert len(content) < 150_000


def sentences(name: str) -> list[list[tuple[str, str]]]:
    blocks = (DATA / name).read_text(encoding="utf-8").strip().split("\n\n")
    return [[tuple(line.split(" ")) for line in block.split("\n")] for block in blocks]  # type: ignore[misc]


def test_tags_are_well_formed_and_no_list_of_words_suffices() -> None:
    train, test = sentences("tags.conll"), sentences("tags.test.conll")
    assert (len(train), len(test)) == (1100, 400)
    assert len({tuple(row) for row in train + test}) == 1500
    for row in train + test:
        for (_, before), (_, tag) in pairwise([("", "O"), *row]):
            assert tag[0] != "I" or before[1:] == tag[1:]
    of_word: dict[str, Counter[str]] = {}
    for row in train:
        for word, tag in row:
            of_word.setdefault(word, Counter())[tag] += 1
    named = [(word, tag) for row in test for word, tag in row if tag != "O"]
    right = sum(word in of_word and of_word[word].most_common(1)[0][0] == tag for word, tag in named)
    assert 0.5 < right / len(named) < 0.8


def passages(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text(encoding="utf-8"))["data"][0]["paragraphs"]  # type: ignore[no-any-return]


EVENT = re.compile(
    r"(?:On (?P<When>\w+) )?(?P<who>\w+) (?P<verb>\w+) (?P<what>the .+?) to (?P<to>\w+)"
    r"(?: (?P<Where>(?:at|in|on|by) the .+?))?(?: because (?P<Why>.+))?"
)
PAST = {"give": "gave", "sell": "sold", "lend": "lent", "show": "showed"}
DID = r"did (?P<who>\w+) (?P<verb>\w+)"
QUESTIONS = {
    r"Who (?P<verb>\w+) the (?P<what>.+) to (?P<to>\w+)\?": "who",
    rf"To whom {DID} the (?P<what>.+)\?": "to",
    rf"What {DID} to (?P<to>\w+)\?": "what",
    **{rf"{word} {DID} the (?P<what>.+) to (?P<to>\w+)\?": word for word in ("When", "Where", "Why")},
}
"""Which part of an event is asked for, and which parts are named."""


def reply(context: str, question: str) -> str:
    """The answer, by reading the passage sentence by sentence."""
    matches = [EVENT.fullmatch(sentence) for sentence in context.removesuffix(".").split(". ")]
    events = [match.groupdict() for match in matches if match]
    assert len(events) == len(matches)
    if asked := re.fullmatch(r"Who has the (.+) in the end\?", question):
        moves = [e for e in events if e["what"].endswith(f" {asked[1]}") and e["verb"] in ("gave", "sold")]
        return str(moves[-1]["to"])
    [(asked, part)] = [(found, part) for rule, part in QUESTIONS.items() if (found := re.fullmatch(rule, question))]
    named = asked.groupdict()
    named["verb"] = PAST.get(named["verb"], named["verb"])
    thing = named.pop("what", "")
    answers = [e[part] or "" for e in events if e["what"].endswith(thing) and named.items() <= e.items()]
    assert len(answers) < 2
    return "".join(answers)


def test_each_question_has_the_one_answer_that_a_reader_finds() -> None:
    rows = passages("questions.json") + passages("questions.test.json")
    assert len(rows) == len({row["context"] for row in rows}) == 165 + 60
    for row in rows:
        for qa in row["qas"]:
            answers = [answer["text"] for answer in qa["answers"]]
            assert reply(row["context"], qa["question"]) == "".join(answers), (row["context"], qa)
            assert qa.get("is_impossible", False) == (not answers)
            for answer in qa["answers"]:
                start = answer["answer_start"]
                assert row["context"][start : start + len(answer["text"])] == answer["text"]
