"""questions.json: short passages of the world and questions about them, in the form of SQuAD 2.0: the answer is a span
of the passage, or there is none.

A passage tells three events, two of them about the same thing, which may change hands. Most questions ask for one
part of one event, where other events have parts of the same kind; some ask who has a thing in the end. A third has no
answer: what is asked was not told, or is not true of anybody in the passage.
"""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lexicon
from choice import Drawing, Teller
from lexicon import DAYS, NAMES
from words import load
from world import PLACES, Person, Thing, World

SEED = 1
SIZES = {"questions.json": 165, "questions.test.json": 60}
TOLD, REASONS = load("questions")["verbs"], load("questions")["reasons"]


@dataclass
class Event:
    """Somebody does something with a thing of somebody else's or for somebody else. Empty parts are not told."""

    verb: str
    who: str
    thing: Thing
    to: str
    day: str = ""
    place: str = ""
    reason: str = ""

    @property
    def what(self) -> str:
        return f"the {self.thing.adj}{self.thing.noun}"

    @property
    def text(self) -> str:
        end = (f" {self.place}" if self.place else "") + (f" because {self.reason}" if self.reason else "")
        body = f"{self.who} {self.verb} {self.what} to {self.to}{end}."
        return f"On {self.day} {body}" if self.day else body


@dataclass
class Question:
    """A question and its answer, found at `start` of the passage; none where the answer is empty."""

    text: str
    answer: str = ""
    start: int = -1


@dataclass
class Passage:
    text: str
    questions: list[Question] = field(default_factory=list)


def passage(t: Teller) -> Passage:
    """A passage with up to six questions."""
    world, names, events = World(), list(NAMES), []
    people = {name: Person(name, "") for name in NAMES}

    def draw(options: list[str]) -> str:
        found = t.choose(options)
        options.remove(found)
        return found

    nouns = [noun for noun in lexicon.TREASURES if " " not in noun]
    things = [Thing(noun, t.choose(lexicon.TREASURES[noun])) for noun in (draw(nouns), draw(nouns), draw(nouns))]
    days, places, reasons = list(DAYS), [place.at for place in PLACES], list(REASONS)
    for index in range(3):
        thing = things[0] if index in (0, 2) else t.choose(things[1:])
        owner = world.holder(thing)
        who = owner.name if owner is not None else draw(names)
        if owner is None:
            world.put(thing, people[who])
        event = Event(t.choose(tuple(TOLD), (3, 2, 2, 2)), who, thing, draw(names))
        if t.chance(0.6):
            event.day = draw(days)
        if t.chance(0.6):
            event.place = draw(places)
        if t.chance(0.3):
            event.reason = draw(reasons)
        if event.verb in ("gave", "sold"):
            world.give(people[who], thing, people[event.to])
        events.append(event)
    found = Passage(" ".join(event.text for event in events))
    starts = [sum(len(event.text) + 1 for event in events[:i]) for i in range(len(events))]
    every = [question for event, at in zip(events, starts, strict=True) for question in asked(event, at, names[0])]
    moved = [event for event in events if event.verb in ("gave", "sold")]
    for thing in things:
        if own := [i for i, event in enumerate(events) if event.thing is thing and event in moved]:
            holder, last = world.holder(thing).name, events[own[-1]]
            at = starts[own[-1]] + last.text.index(f" to {holder}") + len(" to ")
            every.append(Question(f"Who has the {thing.noun} in the end?", holder, at))
    seen = {}
    for question in every:
        seen.setdefault(question.text, []).append(question)
    clear = [same[0] for same in seen.values() if len(same) == 1]
    known, unknown = ([q for q in clear if bool(q.answer) == wanted] for wanted in (True, False))
    for pool, n in ((known, 4), (unknown, 2)):
        for _ in range(min(n, len(pool))):
            found.questions.append(pool.pop(int(t.choose(range(len(pool))))))
    return found


def asked(event: Event, at: int, stranger: str) -> Iterator[Question]:
    """Questions about an event whose sentence begins at `at`. stranger: somebody who is not in the passage."""
    verb, noun = TOLD[event.verb], event.thing.noun

    def answered(text: str, answer: str, after: str = "") -> Question:
        where = event.text.index(after) + len(after) if after else event.text.index(answer)
        return Question(text, answer, at + where) if answer else Question(text)

    yield answered(f"Who {event.verb} the {noun} to {event.to}?", event.who)
    yield answered(f"To whom did {event.who} {verb} the {noun}?", event.to, f"{event.what} to ")
    yield answered(f"What did {event.who} {verb} to {event.to}?", event.what)
    yield Question(f"What did {stranger} {verb} to {event.to}?")
    about = f"did {event.who} {verb} the {noun} to {event.to}?"
    for word, part in (("When", event.day), ("Where", event.place), ("Why", event.reason)):
        yield answered(f"{word} {about}", part) if part else Question(f"{word} {about}")


def squad(rows: list[Passage]) -> bytes:
    """The JSON of SQuAD 2.0, a passage on each line."""
    lines = []
    for i, row in enumerate(rows):
        qas = [
            {
                "id": f"{i}-{n}",
                "question": question.text,
                "answers": [{"text": question.answer, "answer_start": question.start}] if question.answer else [],
            }
            | ({} if question.answer else {"is_impossible": True})
            for n, question in enumerate(row.questions)
        ]
        lines.append(json.dumps({"context": row.text, "qas": qas}, separators=(",", ":")))
    paragraphs = ",\n".join(lines)
    return f'{{"version":"2.0","data":[{{"title":"The village","paragraphs":[\n{paragraphs}\n]}}]}}\n'.encode()


def files() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(name, bytes, limit) of both files."""
    every = (passage(Drawing(random.Random(f"questions {SEED} {index}"))) for index in itertools.count())
    for name, size in SIZES.items():
        rows = list(itertools.islice(every, size))
        questions = [question for row in rows for question in row.questions]
        n_empty = sum(not question.answer for question in questions)
        limit: dict[str, Any] = {"passages": len(rows), "rows": len(questions), "without_answer": n_empty}
        if ".test." in name:
            limit |= {"best_exact": 1.0, "never_answering": round(n_empty / len(questions), 4)}
        yield name, squad(rows), limit
