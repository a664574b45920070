"""Cells of the kinds that `headers.yaml` names, and tables of them."""

import csv
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS = 44
_WORDS = """
    fine old story sea many quiet people never went home river stone light morning window garden letter winter
    small bread market music teacher doctor train paper engine number colour summer tree water silver table answer
"""
_NAMES = "Anna Bela Carla Dario Elif Femi Goran Hana Ivo Jun Kofi Lena Mira Noor Otto Pia Rui Sven Tara Uma"
WORDS, NAMES = _WORDS.split(), _NAMES.split()


def sentence(rng: random.Random, low: int, high: int) -> str:
    """Words with a full stop, such as no other row has."""
    words = rng.choices(WORDS, k=rng.randint(low, high))
    return " ".join(words).capitalize() + "."


PLACES = ["London", "New York, NY", "", "Paris, France", "Berlin", "somewhere nice"]
TOPICS = ["Science Fiction", "Home and Garden", "Loan or Lease", "Late Fee", "Closing Account"]
CELLS: dict[str, Callable[[int, random.Random], Any]] = {
    "text": lambda i, rng: sentence(rng, 5, 12) + f" {WORDS[i % 34]} {i}",
    "long": lambda i, rng: " ".join(sentence(rng, 8, 12) for _ in range(4)) + f" {i}",
    "short": lambda i, rng: sentence(rng, 3, 6)[:-1] + f" {WORDS[i % 34]}",
    "mostlyempty": lambda i, rng: "" if i % 3 else sentence(rng, 3, 8),
    "word": lambda i, rng: rng.choice(WORDS) + rng.choice(WORDS),
    "name": lambda i, rng: f"{rng.choice(NAMES)} {rng.choice(WORDS).title()}",
    "place": lambda i, rng: rng.choice(PLACES) if i % 3 else f"{rng.choice(WORDS).title()}, {rng.choice(NAMES)}",
    "kinds": lambda i, rng: rng.choice(TOPICS),
    "flag": lambda i, rng: str(i % 2),
    "yesno": lambda i, rng: "YN"[i % 2],
    "bool": lambda i, rng: i % 3 == 0,
    "mark": lambda i, rng: "*" * (i % 3 == 2),
    "float": lambda i, rng: round(rng.uniform(-3, 3), 3),
    "conf": lambda i, rng: rng.choice([1.0, 0.67, round(rng.random(), 4)]),
    "count": lambda i, rng: rng.randrange(1, 50_000),
    "number": lambda i, rng: str(rng.randrange(900)),
    "row": lambda i, rng: i,
    "const": lambda i, rng: "en",
    "empty": lambda i, rng: "",
    "id": lambda i, rng: f"{rng.getrandbits(48):012x}",
    "date": lambda i, rng: f"2021-{1 + i % 12:02}-{1 + i % 28:02}",
    "stamp": lambda i, rng: f"Mon Apr 06 22:19:{i % 60:02} PDT 2009",
    "url": lambda i, rng: f"https://example.org/{i}",
    "piped": lambda i, rng: "|".join(rng.choices(WORDS, k=7)),
    "pairtext": lambda i, rng: f"[{i % 7}, {i % 9}]",
    "strjson": lambda i, rng: json.dumps(rng.sample(WORDS, 3)),
    "words": lambda i, rng: rng.sample(WORDS, 4),
    "tags": lambda i, rng: [rng.randrange(5) for _ in range(4)],
    "intlist": lambda i, rng: [rng.randrange(6)],
    "strlist": lambda i, rng: rng.sample(WORDS, 2),
    "choices": lambda i, rng: rng.sample(WORDS, 4),
    "messages": lambda i, rng: [{"role": "user", "content": f"a {i}"}, {"role": "assistant", "content": "b"}],
    "sharegpt": lambda i, rng: [{"from": "human", "value": f"a {i}"}, {"from": "gpt", "value": "b"}],
    "toollist": lambda i, rng: [{"type": "function", "function": {"name": "f"}}],
    "dict": lambda i, rng: {"de": "Haus", "en": "house"},
    "answers": lambda i, rng: {"text": ["a"], "answer_start": [0]},
}
"""By the number of the row, and what is drawn."""

FEW: dict[str, Callable[[int, str], Any]] = {
    "class": lambda which, column: f"{WORDS[which % len(WORDS)]}{which // len(WORDS) or ''}",
    "int": lambda which, column: which,
    "float": lambda which, column: which / 2 + 0.5,
    "short": lambda which, column: sentence(random.Random(f"{column}{which}"), 2, 5),
    "long": lambda which, column: sentence(random.Random(f"{column}{which}"), 15, 20),
    "name": lambda which, column: f"{NAMES[which % len(NAMES)]} Stone",
    "id": lambda which, column: f"{which:x}a{which}f",
}
"""Of kinds that end in a number, which have so many different ones: by the number of the value, and their column."""


def cell(kind: str, row: int, rng: random.Random, column: str) -> Any:
    name = kind.rstrip("0123456789")
    if name == kind:
        return CELLS[kind](row, rng)
    n = int(kind.removeprefix(name))
    return FEW[name](row % n if row < n else rng.randrange(n), column)


def varied(kind: str, of: Mapping[str, Any], rng: random.Random) -> str:
    """A cell that another one of its row tells: KIND=COLUMN."""
    how, _, rest = kind.partition("=")
    texts = [str(of[name]) for name in rest.split("+")]
    words = texts[0].split()
    return {
        "same": texts[0],
        "clean": re.sub(r"\W+", " ", texts[0].lower()).strip(),
        "marked": f"<p> {texts[0]} </p>",
        "parse": f"( ( {' ( '.join(words)} {')' * len(words)} )",
        "joined": " ".join((*texts, sentence(rng, 3, 5)) if len(texts) == 1 else texts),
        "part": " ".join(words[: max(2, len(words) // 3)]),
    }[how]


def rows_of(columns: str, seed: str) -> tuple[list[str], list[list[Any]]]:
    """The header and the rows of a table of these columns, `NAME KIND` each."""
    kinds = {name: kind for name, _, kind in (column.rpartition(" ") for column in columns.split(", "))}
    rng, rows = random.Random(seed), []
    for row in range(ROWS):
        cells = {name: cell(kind, row, rng, name) for name, kind in kinds.items() if "=" not in kind}
        cells |= {name: varied(kind, cells, rng) for name, kind in kinds.items() if "=" in kind}
        rows.append([cells[name] for name in kinds])
    return list(kinds), rows


def write_table(folder: Path, header: Sequence[str], rows: Sequence[Sequence[Any]], headed: bool) -> Path:
    """The table as JSON lines where a cell is no text or number, else as CSV."""
    if any(isinstance(value, list | dict | bool) for value in rows[0]):
        path = folder / "a.jsonl"
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows))
        return path
    path = folder / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows] if headed else rows)
    return path
