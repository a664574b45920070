"""The bundled stories are what the generator writes, their limit is exact, and they are fit to read."""

import hashlib
import itertools
import json
import re
from collections import Counter

import bundle
import choice
import coherence
import lexicon
import pytest
import stories
from lexicon import SEX

from tests.generators.reading import DATA, bits_of, complaints

FILES = ("stories.txt", "stories.valid.txt")


def read(name):
    return (DATA / name).read_text(encoding="utf-8").removesuffix("\n").split("\n\n")


def drawn():
    """The stories of all files with their bits, as their program tells them."""
    return itertools.islice(choice.draw_texts(stories.story, stories.SEED), sum(stories.SIZES.values()))


@pytest.fixture(scope="module")
def train():
    return read("stories.txt")


@pytest.fixture(scope="module")
def valid():
    return read("stories.valid.txt")


@pytest.fixture(scope="module")
def limits():
    return json.loads((DATA / "limits.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_generator_writes_the_committed_bytes():
    for name, data, _ in stories.files():
        assert data == (DATA / name).read_bytes(), f"{name}: run make data"


@pytest.mark.slow
def test_all_files_are_built_byte_for_byte(tmp_path):
    bundle.build(tmp_path)
    assert len(list(tmp_path.iterdir())) == 11
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / path.name).read_bytes(), f"{path.name}: run make data"


def test_limits_name_the_files_by_their_hash(limits):
    for name in FILES:
        data = (DATA / name).read_bytes()
        limit = limits[hashlib.sha256(data).hexdigest()]
        texts = read(name)
        assert limit["file"] == name
        assert limit["documents"] == len(texts)
        assert limit["bytes"] == sum(len(text.encode()) for text in texts)
        assert limit["bits_per_byte"] == pytest.approx(limit["bits"] / limit["bytes"], abs=1e-6)


@pytest.mark.slow
def test_the_parser_finds_the_logged_probability(valid, limits):
    """Every story for validation has one derivation, and its bits are those that were logged, to the last digit."""
    total = 0.0
    for logged, text in zip(list(drawn())[-len(valid) :], valid, strict=True):
        assert logged.text == text
        [derivation] = choice.derivations(stories.story, text)
        assert derivation.bits == logged.bits
        total += derivation.bits
    [limit] = [limit for limit in limits.values() if limit["file"] == "stories.valid.txt"]
    assert limit["bits"] == pytest.approx(total, abs=1e-3)


def test_a_changed_story_is_impossible(valid):
    for text in valid[:20]:
        names = [word for word in re.findall(r"\b[A-Z][a-z]+\b", text) if word in SEX]
        spoilt = re.sub(rf"\b{names[-1]}\b(?!.*\b{names[-1]}\b)", "Zebulon", text)
        assert bits_of(stories.story, spoilt) == float("inf")


def test_stories_that_hold_are_coherent(valid):
    assert all(map(coherence.holds, valid[:20]))
    assert not any(coherence.holds(f"{text} {text}") for text in valid[:5])
    whose = next(text for text in valid if "back the" in text)
    assert not coherence.holds(re.sub(r"back the .*?,", "back the wardrobe,", whose))


def test_sizes(train, valid):
    assert len({*train, *valid}) == len(train) + len(valid), "a story is told twice"
    assert 2_700_000 < (DATA / "stories.txt").stat().st_size < 3_300_000
    assert 130_000 < (DATA / "stories.valid.txt").stat().st_size < 170_000
    assert all("\n" not in text and text == text.strip() for text in train + valid)
    assert all(60 <= len(text.split()) <= 250 for text in train + valid)
    files = (path for path in DATA.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    assert sum(path.stat().st_size for path in files) < 8_000_000


def test_nobody_changes_sex(train):
    """A girl has a girl's name, and a name that stands alone is followed by the pronouns of its sex."""
    for text in train:
        for noun, name in re.findall(r"\b(girl|boy|widow) (?:named|called) ([A-Z][a-z]+)", text):
            assert SEX[name] == SEX[noun]
        told = re.sub(r'"[^"]*"', "", text)
        sexes = {SEX[word] for word in re.findall(r"\b[A-Z][a-z]+\b", told) if word in SEX}
        kin = r"\b(mother|father|aunt|uncle|girl|boy|woman|man|lady|soldier|barber|sister|brother)"
        if len(sexes) == 1 and not re.search(kin, text):
            assert not re.search(r"\bshe\b" if sexes == {"he"} else r"\bhe\b", told, flags=re.I), text


def test_the_examples_of_the_readme_are_in_the_file(train):
    quotes = re.findall(r"(?:^> .*\n)+", (DATA / "README.md").read_text(encoding="utf-8"), flags=re.M)
    shown = [" ".join(line[2:] for line in quote.splitlines()) for quote in quotes]
    assert sum(one in train for one in shown) >= 3


def test_the_vocabulary_has_a_long_tail(train):
    counts = Counter(re.findall(r"[a-z]+(?:['-][a-z]+)*", " ".join(train).lower()))
    assert 1500 <= len(counts) <= 3000
    assert sum(n <= 20 for n in counts.values()) > len(counts) / 6


@pytest.mark.slow
def test_every_plot_and_side_story_is_told():
    told, ended = Counter(), Counter()
    for one in itertools.islice(drawn(), 400):
        tale = one.value
        told[tale.plot] += 1
        ended[tale.aside] += 1
        assert not tale.owing, "a side story without an end"
    assert set(told) == {*stories.DATED, *stories.UNDATED}
    assert min(told.values()) > 20
    assert set(ended) == {"", *stories.THREADS}
    assert min(ended.values()) > 10


@pytest.mark.slow
def test_who_is_who_can_be_learnt(train):
    """Few names, each of them frequent, no two alike, and two or three of them in a story, each said again."""
    names = [*lexicon.WOMEN, *lexicon.MEN]
    assert len({name[0] for name in names}) == len(names)
    counts, people, again = Counter(), Counter(), 0
    words = {word for text in train for word in re.findall(r"\b[a-z]+\b", text)}
    assert not {name.lower() for name in names + lexicon.PET_NAMES} & words, "a name that is a word"
    for text in train:
        here = Counter(word for word in re.findall(r"\b[A-Z][a-z]+\b", text) if word in names)
        counts += here
        people[len(here)] += 1
        again += sum(n > 1 for n in here.values())
    assert set(people) <= {1, 2, 3}
    assert people[3] < len(train) / 6
    assert min(counts[name] for name in names) > 500
    assert again > 0.9 * sum(n * times for n, times in people.items())


@pytest.mark.slow
def test_the_text_is_written_cleanly(train, valid):
    marked = [(rule, words) for text in train + valid for rule, words in complaints(text)]
    assert not marked, Counter(marked).most_common(10)


@pytest.mark.parametrize(
    "bad",
    ["A apple.", "An pear.", "He had the the hat.", "It was. he went.", 'He said "no.', "One coins.", "In a {b}."],
)
def test_the_copy_editor_sees(bad):
    assert complaints(bad)


def test_pronouns_agree(train):
    """In narration, he or she is somebody of that sex who was named before (or a boy, a mother...)."""
    nouns = {"he": "boy|brother|father|uncle|man", "she": "girl|sister|mother|aunt|woman|widow"}
    for text in train:
        narration = re.sub(r'"[^"]*"', '""', text)
        for pronoun, other in nouns.items():
            for match in re.finditer(rf"\b{pronoun}\b", narration, flags=re.I):
                before = narration[: match.start()]
                names = {SEX.get(word) for word in re.findall(r"\b[A-Z][a-z]+\b", before)}
                assert pronoun in names or re.search(other, before), (pronoun, text)


def test_what_the_storm_broke_is_mended_with_as_much_as_was_needed():
    checked = 0
    for one in drawn():
        if checked == 40:
            break
        tale = one.value
        if tale.plot == "storm":
            checked += 1
            assert tale.world.counts[tale["a"], tale["dam"].need] == tale["need"]
            assert not tale.world.broken
    assert checked == 40
