"""Cells of the kinds that `headers.yaml` names, and tables of them."""

import csv
import json
import random
import re
from collections.abc import Mapping, Sequence
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


def cell(kind: str, row: int, rng: random.Random, column: str) -> Any:
    """A cell. Kinds that end in a number have so many different ones."""
    name, n = re.fullmatch(r"([a-z]+?)(\d*)", kind).groups()  # type: ignore[union-attr]
    if n:
        which = row % int(n) if row < int(n) else rng.randrange(int(n))
        values: dict[str, Any] = {
            "class": f"{WORDS[which % len(WORDS)]}{which // len(WORDS) or ''}",
            "int": which,
            "float": which / 2 + 0.5,
            "short": sentence(random.Random(f"{column}{which}"), 2, 5),
            "long": sentence(random.Random(f"{column}{which}"), 15, 20),
            "name": f"{NAMES[which % len(NAMES)]} Stone",
            "id": f"{which:x}a{which}f",
        }
        return values[name]
    places = ["London", "New York, NY", "", "Paris, France", "Berlin", "somewhere nice"]
    values = {
        "text": sentence(rng, 5, 12) + f" {WORDS[row % 34]} {row}",
        "long": " ".join(sentence(rng, 8, 12) for _ in range(4)) + f" {row}",
        "short": sentence(rng, 3, 6)[:-1] + f" {WORDS[row % 34]}",
        "word": f"{rng.choice(WORDS)}{rng.choice(WORDS)}",
        "name": f"{rng.choice(NAMES)} {rng.choice(WORDS).title()}",
        "place": rng.choice(places) if row % 3 else f"{rng.choice(WORDS).title()}, {rng.choice(NAMES)}",
        "kinds": rng.choice(["Science Fiction", "Home and Garden", "Loan or Lease", "Late Fee", "Closing Account"]),
        "flag": str(row % 2), "yesno": ["Y", "N"][row % 2], "bool": row % 3 == 0, "mark": "*" * (row % 3 == 2),
        "float": round(rng.uniform(-3, 3), 3), "conf": rng.choice([1.0, 0.67, round(rng.random(), 4)]),
        "count": rng.randrange(1, 50_000), "number": str(rng.randrange(900)), "row": row, "const": "en",
        "id": f"{rng.getrandbits(48):012x}", "date": f"2021-{1 + row % 12:02}-{1 + row % 28:02}", "empty": "",
        "stamp": f"Mon Apr 06 22:19:{row % 60:02} PDT 2009", "url": f"https://example.org/{row}",
        "mostlyempty": "" if row % 3 else sentence(rng, 3, 8), "piped": "|".join(rng.choices(WORDS, k=7)),
        "pairtext": f"[{row % 7}, {row % 9}]", "strjson": json.dumps(rng.sample(WORDS, 3)),
        "words": rng.sample(WORDS, 4), "tags": [rng.randrange(5) for _ in range(4)],
        "intlist": [rng.randrange(6)], "strlist": rng.sample(WORDS, 2), "choices": rng.sample(WORDS, 4),
        "messages": [{"role": "user", "content": f"a {row}"}, {"role": "assistant", "content": "b"}],
        "sharegpt": [{"from": "human", "value": f"a {row}"}, {"from": "gpt", "value": "b"}],
        "toollist": [{"type": "function", "function": {"name": "f"}}], "dict": {"de": "Haus", "en": "house"},
        "answers": {"text": ["a"], "answer_start": [0]},
    }  # fmt: skip
    return values[name]


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
