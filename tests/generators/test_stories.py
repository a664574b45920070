"""The bundled stories are what the generator writes, their limit is exact, and they are fit to read."""

import hashlib
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import bundle
import choice
import coherence
import lexicon
import pytest
import stories

from tests.generators.reading import DATA, bits_of, complaints

SEX = lexicon.SEX
Limits = dict[str, dict[str, Any]]


def read(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").removesuffix("\n").split("\n\n")


@pytest.fixture(scope="module")
def train() -> list[str]:
    return read("stories.txt")


@pytest.fixture(scope="module")
def valid() -> list[str]:
    return read("stories.valid.txt")


@pytest.fixture(scope="module")
def limits() -> Limits:
    found: Limits = json.loads((DATA / "limits.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_all_files_are_built_byte_for_byte(tmp_path: Path) -> None:
    bundle.build(tmp_path)
    assert len(list(tmp_path.iterdir())) == 15
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / path.name).read_bytes(), f"{path.name}: run make data"


def test_limits_name_the_files_by_their_hash(limits: Limits) -> None:
    for name in ("stories.txt", "stories.valid.txt"):
        data, texts = (DATA / name).read_bytes(), read(name)
        limit = limits[hashlib.sha256(data).hexdigest()]
        n_bytes = sum(len(text.encode()) for text in texts)
        assert (limit["file"], limit["documents"], limit["bytes"]) == (name, len(texts), n_bytes)
        assert limit["bits_per_byte"] == pytest.approx(limit["bits"] / limit["bytes"], abs=1e-6)


@pytest.mark.slow
def test_the_parser_finds_the_logged_probability(valid: list[str], limits: Limits) -> None:
    """Every story for validation has one derivation, and its bits are those that were logged, to the last digit."""
    total = 0.0
    drawn = [*itertools.islice(choice.draw_texts(stories.story, stories.SEED), sum(stories.SIZES.values()))]
    for logged, text in zip(drawn[-len(valid) :], valid, strict=True):
        assert logged.text == text
        [derivation] = choice.derivations(stories.story, text)
        assert derivation.bits == logged.bits
        total += derivation.bits
    [limit] = [limit for limit in limits.values() if limit["file"] == "stories.valid.txt"]
    assert limit["bits"] == pytest.approx(total, abs=1e-3)


def test_a_story_with_a_changed_name_is_impossible(valid: list[str]) -> None:
    for text in valid[:8]:
        names = [word for word in re.findall(r"\b[A-Z][a-z]+\b", text) if word in SEX]
        spoilt = re.sub(rf"\b{names[-1]}\b(?!.*\b{names[-1]}\b)", "Zebulon", text)
        assert bits_of(stories.story, spoilt) == float("inf")


def test_stories_that_hold_are_coherent(valid: list[str]) -> None:
    assert all(map(coherence.holds, valid[:8]))
    assert not any(coherence.holds(f"{text} {text}") for text in valid[:3])
    whose = next(text for text in valid if "back the" in text)
    assert not coherence.holds(re.sub(r"back the .*?,", "back the wardrobe,", whose))


def test_stories_are_short_and_their_files_small(train: list[str], valid: list[str]) -> None:
    assert len({*train, *valid}) == len(train) + len(valid), "a story is told twice"
    assert 2_700_000 < (DATA / "stories.txt").stat().st_size < 3_300_000
    assert 130_000 < (DATA / "stories.valid.txt").stat().st_size < 170_000
    assert all("\n" not in text and text == text.strip() for text in train + valid)
    assert all(60 <= len(text.split()) <= 250 for text in train + valid)
    files = (path for path in DATA.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    assert sum(path.stat().st_size for path in files) < 8_000_000


def test_nobody_changes_sex(train: list[str]) -> None:
    """A girl has a girl's name, and a name that stands alone is followed by the pronouns of its sex."""
    for text in train:
        for noun, name in re.findall(r"\b(girl|boy|widow) (?:named|called) ([A-Z][a-z]+)", text):
            assert SEX[name] == SEX[noun]
        told = re.sub(r'"[^"]*"', "", text)
        sexes = {SEX[word] for word in re.findall(r"\b[A-Z][a-z]+\b", told) if word in SEX}
        kin = r"\b(mother|father|aunt|uncle|girl|boy|woman|man|lady|soldier|barber|sister|brother)"
        if len(sexes) == 1 and not re.search(kin, text):
            assert not re.search(r"\bshe\b" if sexes == {"he"} else r"\bhe\b", told, flags=re.I), text


def test_a_pronoun_means_somebody_of_that_sex_who_was_named_before(train: list[str]) -> None:
    """In narration; or a boy, a mother..."""
    nouns = {"he": "boy|brother|father|uncle|man", "she": "girl|sister|mother|aunt|woman|widow"}
    for text in train:
        narration = re.sub(r'"[^"]*"', '""', text)
        for pronoun, other in nouns.items():
            for match in re.finditer(rf"\b{pronoun}\b", narration, flags=re.I):
                before = narration[: match.start()]
                names = {SEX.get(word) for word in re.findall(r"\b[A-Z][a-z]+\b", before)}
                assert pronoun in names or re.search(other, before), (pronoun, text)


def test_the_examples_of_the_readme_are_in_the_file(train: list[str]) -> None:
    quotes = re.findall(r"(?:^> .*\n)+", (DATA / "README.md").read_text(encoding="utf-8"), flags=re.M)
    shown = [" ".join(line[2:] for line in quote.splitlines()) for quote in quotes]
    assert sum(one in train for one in shown) >= 3


def test_every_plot_and_side_story_is_told_to_its_end() -> None:
    """And what the storm broke is mended, with as much as was needed."""
    told: Counter[str] = Counter()
    aside: Counter[str] = Counter()
    for one in itertools.islice(choice.draw_texts(stories.story, stories.SEED), 400):
        tale = one.value
        told[tale.plot] += 1
        aside[tale.aside] += 1
        assert not tale.owing, "a side story without an end"
        if tale.plot == "storm":
            assert tale.world.counts[tale["a"], tale["dam"].need] == tale["need"]
            assert not tale.world.broken
    assert set(told) == {*stories.DATED, *stories.UNDATED}
    assert min(told.values()) > 20
    assert set(aside) == {"", *stories.THREADS}
    assert min(aside.values()) > 10


@pytest.mark.slow
def test_the_text_is_written_cleanly(train: list[str], valid: list[str]) -> None:
    marked = [(rule, words) for text in train + valid for rule, words in complaints(text)]
    assert not marked, Counter(marked).most_common(10)


@pytest.mark.parametrize(
    "bad",
    ["A apple.", "An pear.", "He had the the hat.", "It was. he went.", 'He said "no.', "One coins.", "In a {b}."],
)
def test_faults_of_style_are_found(bad: str) -> None:
    assert complaints(bad)
