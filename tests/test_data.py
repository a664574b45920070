"""The bundled text is what its generator writes, and is fit to read."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def tales():
    return (DATA / "fables.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n\n")


@pytest.fixture
def fables(monkeypatch):
    monkeypatch.syspath_prepend(DATA / "make")
    return importlib.import_module("fables")


def test_the_generator_writes_the_committed_bytes(tmp_path):
    subprocess.run([sys.executable, DATA / "make" / "fables.py", tmp_path / "again.txt"], check=True)
    assert (tmp_path / "again.txt").read_bytes() == (DATA / "fables.txt").read_bytes()


def test_another_seed_tells_other_tales(fables):
    assert fables.tales(seed=1, count=32) == fables.tales(seed=1, count=32)
    assert not set(fables.tales(seed=1, count=32)) & set(fables.tales(seed=2, count=32))


def test_documents_are_paragraphs_of_one_line(tales):
    assert (DATA / "fables.txt").stat().st_size > 200_000
    assert all(tale and "\n" not in tale and tale == tale.strip() for tale in tales)
    assert all(40 <= len(tale.split()) <= 150 for tale in tales)
    assert len(set(tales)) == len(tales)


def test_the_text_is_written_cleanly(tales):
    text = "\n".join(tales)
    assert text.isascii()
    assert not re.findall(r"[{}<>|]|  | [,.;:?!]", text), "the traces of a template"
    assert not re.findall(r"\b[Aa] [aeio]\w+", text), "a before a vowel"
    assert not re.findall(r"\b[Aa]n [b-df-gj-np-tv-z]\w+", text), "an before a consonant"
    assert not re.findall(r'\. [a-z]|\." [a-z]|^[a-z]', text, flags=re.M), "a sentence that starts small"
    assert all(tale[-1] in '."!?' and tale.count('"') % 2 == 0 for tale in tales)
    assert len(set(re.findall(r"[a-z]+", text.lower()))) > 1000


def test_animals_do_what_they_can(fables, tales):
    """The world holds: who says "I can swim, but I cannot fly" is an animal that swims."""
    claims = [
        match for tale in tales for match in re.findall(r'said the (\w+). "I can (\w+), but I cannot (\w+)', tale)
    ]
    assert len(claims) > 5
    for animal, skill, lacks in claims:
        assert fables.world.SKILLS[animal] == skill != lacks


def test_the_page_quotes_the_text(tales):
    quotes = re.findall(r"(?:^> .*\n)+", (DATA / "README.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(quotes) == 2
    for quote in quotes:
        begun = " ".join(quote.replace("> ", "").split()).removesuffix(" [...]")
        assert any(tale.startswith(begun) for tale in tales), begun
