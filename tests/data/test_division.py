"""How text files are divided into documents, inferred from texts of many shapes."""

import random
from pathlib import Path

import pytest

from lmtool.data.corpus import _MIN_LIST_LINES, infer_document_division

SYLLABLES = ["ka", "lo", "mi", "ran", "sel", "tu", "vo", "ny", "be", "dra"]
STOCK = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES]


def word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))


def names(rng: random.Random) -> str:
    return "\n".join(word(rng) for _ in range(300))


def commands(rng: random.Random) -> str:
    return "\n".join(f"{word(rng)} --{word(rng)} {word(rng)}/{word(rng)}" for _ in range(300))


def captions(rng: random.Random) -> str:
    return "\n".join(" ".join(rng.choices(STOCK, k=rng.randint(5, 20))) + "." for _ in range(300))


def chinese_names(rng: random.Random) -> str:
    return "\n".join("".join(chr(0x4E00 + rng.randrange(500)) for _ in range(rng.randint(2, 3))) for _ in range(300))


def wrapped(rng: random.Random) -> str:
    """Prose of changing topics, in lines of at most 70 characters."""
    lines = [""]
    for _ in range(60):
        topic = rng.sample(STOCK, 12)
        for _ in range(60):
            one = rng.choice(topic)
            if len(lines[-1]) + len(one) > 69:
                lines.append("")
            lines[-1] = f"{lines[-1]} {one}".strip()
    return "\n".join(lines)


def chinese_prose(rng: random.Random) -> str:
    return "\n".join("".join(chr(0x4E00 + rng.randrange(500)) for _ in range(35)) for _ in range(300))


def story(rng: random.Random) -> str:
    """One sentence a line, each taking up words of the one before."""
    words = rng.sample(STOCK, 12)
    lines = []
    for _ in range(300):
        words = rng.sample(words, 9) + rng.sample(STOCK, 3)
        lines.append(" ".join(words[: rng.randint(4, 12)]) + ".")
    return "\n".join(lines)


def code(rng: random.Random) -> str:
    return "\n".join(f"def {word(rng)}():\n    return {word(rng)}" for _ in range(200))


def numbers(rng: random.Random) -> str:
    return "\n".join(f"{rng.random():.4f},{rng.random():.4f}" for _ in range(300))


def dialogue(rng: random.Random) -> str:
    return "\n\n".join(f"{word(rng).upper()}:\n{' '.join(rng.choices(STOCK, k=6))}" for _ in range(100))


def paragraphs(rng: random.Random) -> str:
    return "\n\n".join(" ".join(rng.choices(STOCK, k=60)) for _ in range(100))


def short_list(rng: random.Random) -> str:
    return "\n".join(word(rng) for _ in range(_MIN_LIST_LINES - 1)) + "\n"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "line") for text in (names, commands, captions, chinese_names)),
        *((text, "whole") for text in (wrapped, chinese_prose, story, code, numbers, dialogue, short_list)),
        (paragraphs, "blank-line"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_division_of_a_text(text: object, expected: str, end: str, tmp_path: Path) -> None:
    assert callable(text)
    for seed in range(5):
        path = tmp_path / f"{seed}.txt"
        path.write_text(text(random.Random(seed)).replace("\n", end) + end, encoding="utf-8", newline="")
        assert infer_document_division([path]) == expected, seed


def test_one_file_that_is_no_list_makes_all_whole(tmp_path: Path) -> None:
    for name, text in (("a.txt", names(random.Random(1))), ("b.txt", dialogue(random.Random(1)))):
        (tmp_path / name).write_text(text)
    assert infer_document_division([tmp_path / "a.txt", tmp_path / "b.txt"]) == "whole"
    assert infer_document_division([tmp_path / "a.txt"]) == "line"


def test_tables_have_no_division(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n" + names(random.Random(1)))
    assert infer_document_division([tmp_path / "a.csv"]) == "whole"
