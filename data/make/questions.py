"""questions.json: short passages of the world and questions about them, in the form of SQuAD 2.0: the answer is a span
of the passage, or there is none.

A passage tells three events, two of them about the same thing, which may change hands. Most questions ask for one
part of one event, where other events have parts of the same kind; some ask who has a thing in the end. A third has no
answer: what is asked was not told, or is not true of anybody in the passage.
"""

import json
import re
from typing import Any, NamedTuple

import lexicon
from choice import Files, Teller, Written, draw_files
from words import load
from world import PLACES

SIZES = {"questions.json": 165, "questions.test.json": 60}
WORDS = load("questions")
GIVEN = ("gave", "sold")  # Verbs by which a thing changes hands for good.


class Question(NamedTuple):
    """A question and its answer, found at `start` of the passage; none where the answer is empty."""

    text: str
    answer: str = ""
    start: int = -1


def passage(t: Teller) -> list[Question]:
    """Write a passage; up to six questions about it."""

    def draw(options: list[str]) -> str:
        found = t.choose(options)
        options.remove(found)
        return found

    def draw_perhaps(options: list[str], p: float) -> str:
        return draw(options) if t.chance(p) else ""

    names, days, reasons = lexicon.NAMES[:], lexicon.DAYS[:], WORDS["reasons"][:]
    places = [place.at for place in PLACES]
    treasures = [noun for noun in lexicon.TREASURES if " " not in noun]
    nouns = [draw(treasures) for _ in range(3)]
    named = {noun: f"the {t.choose(lexicon.TREASURES[noun])}{noun}" for noun in nouns}
    holders: dict[str, str] = {}
    events: list[dict[str, str]] = []
    for index in range(3):
        noun = nouns[0] if index in (0, 2) else t.choose(nouns[1:])
        event = {"noun": noun, "what": named[noun], "who": holders.get(noun) or draw(names)}
        event["verb"] = t.choose(tuple(WORDS["verbs"]), (3, 2, 2, 2))
        event |= {"base": WORDS["verbs"][event["verb"]], "to": draw(names)}
        event |= {"day": draw_perhaps(days, 0.6), "place": draw_perhaps(places, 0.6)}
        event["reason"] = draw_perhaps(reasons, 0.3)
        holders[noun] = event["to" if event["verb"] in GIVEN else "who"]
        events.append(event)

    text, asked = "", []
    had_in_the_end: dict[str, tuple[str, int]] = {}
    for event in events:
        spans: dict[str, tuple[str, int]] = {}
        for piece in re.split("[<>]", WORDS["sentence"]):
            told = re.findall(r"([^{]*)(?:\{(\w+)\})?", piece)
            for before, part in told if all(event.get(part, "told") for _, part in told) else []:
                text += before
                spans[part] = (event.get(part, ""), len(text))
                text += event.get(part, "")
        if event["verb"] in GIVEN:
            had_in_the_end[event["noun"]] = spans["to"]
        for part, template in WORDS["questions"].items():
            asked.append(Question(template.format(**event, stranger=names[0]), *spans.get(part, ())))
    for noun in nouns:
        if noun in had_in_the_end:
            asked.append(Question(WORDS["in the end"].format(noun=noun), *had_in_the_end[noun]))
    t.print(text.removesuffix(" "))

    texts = [question.text for question in asked]
    clear = [question for question in asked if texts.count(question.text) == 1]
    found = []
    for pool, n in (([q for q in clear if q.answer], 4), ([q for q in clear if not q.answer], 2)):
        for _ in range(min(n, len(pool))):
            found.append(pool.pop(t.choose(range(len(pool)))))
    return found


def squad(rows: list[Written]) -> bytes:
    """The JSON of SQuAD 2.0, a passage on each line."""
    lines = []
    for i, row in enumerate(rows):
        qas = []
        for n, question in enumerate(row.value):
            answers = [{"text": question.answer, "answer_start": question.start}] if question.answer else []
            qa = {"id": f"{i}-{n}", "question": question.text, "answers": answers}
            qas.append(qa if answers else qa | {"is_impossible": True})
        lines.append(json.dumps({"context": row.text, "qas": qas}, separators=(",", ":")))
    paragraphs = ",\n".join(lines)
    return f'{{"version":"2.0","data":[{{"title":"The village","paragraphs":[\n{paragraphs}\n]}}]}}\n'.encode()


def files() -> Files:
    for name, rows in draw_files(passage, "questions 1", SIZES):
        questions = [question for row in rows for question in row.value]
        n_empty = sum(not question.answer for question in questions)
        limit: dict[str, Any] = {"passages": len(rows), "rows": len(questions), "without_answer": n_empty}
        if ".test." in name:
            limit |= {"best_exact": 1.0, "never_answering": round(n_empty / len(questions), 4)}
        yield name, squad(rows), limit
