"""How text files are divided into documents, inferred from texts of many shapes."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.data.corpus import _MIN_LIST_LINES, infer_document_division

SYLLABLES = ["ka", "lo", "mi", "ran", "sel", "tu", "vo", "ny", "be", "dra"]
STOCK = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES]


def word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))


def chinese(rng: random.Random, n: int) -> str:
    return "".join(chr(0x4E00 + rng.randrange(500)) for _ in range(n))


def wrapped_prose(rng: random.Random) -> list[str]:
    """Of changing topics, in lines of at most 70 characters."""
    lines = [""]
    for _ in range(60):
        topic = rng.sample(STOCK, 12)
        for one in rng.choices(topic, k=60):
            if len(lines[-1]) + len(one) > 69:
                lines.append("")
            lines[-1] = f"{lines[-1]} {one}".strip()
    return lines


def story(rng: random.Random) -> list[str]:
    """One sentence a line, each taking up words of the one before."""
    words, lines = rng.sample(STOCK, 12), []
    for _ in range(300):
        words = rng.sample(words, 9) + rng.sample(STOCK, 3)
        lines.append(" ".join(words[: rng.randint(4, 12)]) + ".")
    return lines


def each(n: int, line: Callable[[random.Random], str]) -> Callable[[random.Random], list[str]]:
    return lambda rng: [line(rng) for _ in range(n)]


SHAPES: dict[str, tuple[str, Callable[[random.Random], list[str]]]] = {
    "names": ("line", each(300, word)),
    "commands": ("line", each(300, lambda rng: f"{word(rng)} --{word(rng)} {word(rng)}/{word(rng)}")),
    "captions": ("line", each(300, lambda rng: " ".join(rng.choices(STOCK, k=rng.randint(5, 20))) + ".")),
    "Chinese names": ("line", each(300, lambda rng: chinese(rng, rng.randint(2, 3)))),
    "Chinese prose": ("whole", each(300, lambda rng: chinese(rng, 35))),
    "wrapped prose": ("whole", wrapped_prose),
    "a story": ("whole", story),
    "code": ("whole", each(200, lambda rng: f"def {word(rng)}():\n    return {word(rng)}")),
    "numbers": ("whole", each(300, lambda rng: f"{rng.random():.4f},{rng.random():.4f}")),
    "dialogue": ("whole", each(100, lambda rng: f"{word(rng).upper()}:\n{' '.join(rng.choices(STOCK, k=6))}\n")),
    "a short list": ("whole", each(_MIN_LIST_LINES - 1, word)),
    "paragraphs": ("blank-line", each(100, lambda rng: " ".join(rng.choices(STOCK, k=60)) + "\n")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_documents_are_found_in_texts_of_this_shape(shape: str, tmp_path: Path) -> None:
    expected, make = SHAPES[shape]
    for seed in range(3):
        for end in "\n", "\r\n":
            path = tmp_path / f"{seed}.txt"
            text = "\n".join(make(random.Random(seed))) + "\n"
            path.write_text(text.replace("\n", end), encoding="utf-8", newline="")
            assert infer_document_division([path]) == expected, seed


def test_all_files_have_to_be_lists_of_text(tmp_path: Path) -> None:
    for name, shape in (("a.txt", "names"), ("b.txt", "dialogue"), ("a.csv", "names")):
        (tmp_path / name).write_text("\n".join(SHAPES[shape][1](random.Random(1))))
    assert infer_document_division([tmp_path / "a.txt"]) == "line"
    assert infer_document_division([tmp_path / "a.txt", tmp_path / "b.txt"]) == "whole"
    assert infer_document_division([tmp_path / "a.csv"]) == "whole"
