"""The translation table: its entropy by a parser, and the forms of its language."""

import math
import re
from functools import partial
from typing import Any

import orune
import pytest
import translation

from tests.generators.reading import DATA, bits_of, readings

FILES = ("translation.tsv", "translation.test.tsv")
Pairs = dict[str, list[list[str]]]


@pytest.fixture(scope="module")
def made() -> Any:
    return translation.rows()


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """[source, target] of each row of each file."""
    return {name: [line.split("\t") for line in (DATA / name).read_text().splitlines()[1:]] for name in FILES}


def test_each_sentence_comes_once_and_each_length_in_its_share(pairs: Pairs) -> None:
    everything = [pair for name in FILES for pair in pairs[name]]
    assert [len(pairs[name]) for name in FILES] == [12_000, 1_000]
    assert all(len(pair) == 2 for pair in everything)
    assert len({source for source, _ in everything}) == len(everything), "a source twice"
    assert len({target for _, target in everything}) == len(everything), "two sources of one target"
    for name in FILES:
        lengths = [len(source.split()) for source, _ in pairs[name]]
        assert {*lengths} == {*range(3, 31)}
        for low, high in translation.BUCKETS:
            assert sum(low <= n <= high for n in lengths) == len(lengths) / 4


def test_the_english_is_written_cleanly(pairs: Pairs) -> None:
    text = "\n".join(source for name in FILES for source, _ in pairs[name])
    assert text.isascii()
    assert not re.findall(r"  | [,.?]|[,.?][A-Za-z]", text)
    assert not re.findall(r"\b[Aa] [aeio]\w+|\b[Aa]n (?!honest)[^aeiou]\w+", text), "a and an"
    assert all(re.fullmatch(r"[A-Z].*[.?]", line) for line in text.split("\n"))
    assert not re.findall(r"\b(a|an|the|to|of|and|not|is|was|with) \1\b", text), "a word twice"
    assert 600 <= len({*re.findall(r"[a-z]+", text.lower())}) <= 1_600


@pytest.mark.slow
def test_a_parser_recovers_the_choices_of_every_test_row(made: Any, pairs: Pairs) -> None:
    """One tree, with the probability that was logged, and the translation follows from it."""
    for row, (source, target) in zip(made["translation.test.tsv"], pairs["translation.test.tsv"], strict=True):
        [(tree, bits)] = readings(source)
        assert bits == pytest.approx(row.bits, abs=1e-9)
        assert translation.translation(tree) == target
        assert tree == row.tree


@pytest.mark.slow
def test_a_sentence_has_the_probability_of_its_derivations_or_no_tree() -> None:
    assert not readings("Anna will sleeps.")
    assert not readings("Will Anna sleep.")
    for source in ("Anna will sleep.", "The old baker waited.", "Who sings every night?", "A dog ate my apple."):
        program = partial(translation.sentence, n=len(source.split()))
        [(_, bits)] = readings(source)
        assert bits_of(program, source) == pytest.approx(bits, abs=1e-9)


@pytest.mark.slow
def test_the_bits_of_a_row_are_those_of_what_was_not_drawn_before(made: Any) -> None:
    """What the rows drawn before had of the probability of a length is spent."""
    for n in (3, 9):
        spent = sum(2.0**-row.bits for row in made["translation.tsv"] if len(row.source.split()) == n)
        of_this_length = [row for row in made["translation.test.tsv"] if len(row.source.split()) == n]
        drawn = {row.drawn - row.bits - translation.length_bits(n) for row in of_this_length}
        assert max(drawn) == pytest.approx(math.log2(1 - spent), abs=1e-9)
        assert min(drawn) > math.log2(1 - spent - sum(2.0**-row.bits for row in of_this_length)) - 1e-9
    assert sum(2.0 ** -translation.length_bits(n) for n in range(3, 31)) == pytest.approx(1)
    [*_, (_, _, limits)] = translation.files()
    assert limits["bits"] == pytest.approx(sum(row.drawn for row in made["translation.test.tsv"]), abs=1e-2)


@pytest.mark.slow
def test_every_word_has_one_gloss(made: Any) -> None:
    """But for Orune's one form of he, it and they, and one of both and and."""
    merged = {"he": "it", "they": "it", "both": "and"}
    glosses: dict[str, set[str]] = {}
    for row in made["translation.test.tsv"] + made["translation.tsv"][::4]:
        for form in orune.translate(row.tree):
            first, dash, rest = form.gloss.partition("-")
            glosses.setdefault(form.text, set()).add(merged.get(first, first) + dash + rest)
    assert max(map(len, glosses.values())) == 1


def test_words_are_open_syllables_or_ones_closed_by_n_l_r_or_s(pairs: Pairs) -> None:
    words = {word for name in FILES for _, target in pairs[name] for word in target.removesuffix(".").lower().split()}
    assert not [word for word in words if not re.fullmatch("(?:[tkrlmnsdvpbyhg]?[aeiou][nlrs]?)+", word)]


def test_translations_are_those_made_by_hand() -> None:
    """The hand-made translations of some sentences, which show agreement, order and links."""
    for source, gloss in {
        "The bell and the drum were old.": "bell drum both C2P-old-PAST",
        "The dog and the farmer slept.": "dog farmer both C1P-sleep-PAST",
        "The dog and the boxes were wet.": None,
        "The kite was broken because it fell down.": "it-C4S C4S-fall.down-PAST-because kite C4S-broken-PAST",
        "The bell was broken because it fell down.": "it-C2S C2S-fall.down-PAST-because bell C2S-broken-PAST",
        "I saw the dog that Anna found.": "Anna C1S-find-PAST-REL dog-ACC 1S-see-PAST",
    }.items():
        found = readings(source)
        assert bool(found) == bool(gloss)
        if gloss:
            assert " ".join(form.gloss for form in orune.translate(found[0][0])) == gloss


def test_rows_of_a_length_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    translation.print_rows(8, 12, DATA / "translation.test.tsv")
    header, *lines = capsys.readouterr().out.splitlines()
    assert (header, len(lines)) == ("source\ttarget", 250)
    assert all(8 <= len(line.split("\t")[0].split()) <= 12 for line in lines)
