"""The translation table: its bytes, its entropy by a parser, and its language by an analyser of its own."""

import importlib
import itertools
import math
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.generators.reading import bits_of, readings

DATA = Path(__file__).parents[2] / "data"
FILES = ("translation.tsv", "translation.test.tsv")


@pytest.fixture(scope="module")
def make():
    """The modules of data/make."""
    sys.path.insert(0, str(DATA / "make"))
    names = ("translation", "language", "orune", "choice", "vocabulary")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    sys.path.remove(str(DATA / "make"))


@pytest.fixture(scope="module")
def made(make):
    return make.translation.rows()


@pytest.fixture(scope="module")
def pairs():
    """[source, target] of each row of each file."""
    return {name: [line.split("\t") for line in (DATA / name).read_text().splitlines()[1:]] for name in FILES}


@pytest.mark.slow
def test_the_generator_writes_the_committed_bytes(make):
    for name, content, _ in make.translation.files():
        assert content == (DATA / name).read_bytes()


def test_shape(make, pairs):
    everything = [pair for name in FILES for pair in pairs[name]]
    assert [len(pairs[name]) for name in FILES] == [12_000, 1_000]
    assert all(len(pair) == 2 for pair in everything)
    assert len({source for source, _ in everything}) == len(everything), "a source twice"
    assert len({target for _, target in everything}) == len(everything), "two sources of one target"
    assert sum((DATA / name).stat().st_size for name in FILES) < 2_000_000
    for name in FILES:
        lengths = [len(source.split()) for source, _ in pairs[name]]
        assert {*lengths} == {*range(3, 31)}
        for low, high in make.translation.BUCKETS:
            assert sum(low <= n <= high for n in lengths) == len(lengths) / 4


def test_the_english_is_written_cleanly(pairs):
    text = "\n".join(source for name in FILES for source, _ in pairs[name])
    assert text.isascii()
    assert not re.findall(r"  | [,.?]|[,.?][A-Za-z]", text)
    assert not re.findall(r"\b[Aa] [aeio]\w+|\b[Aa]n (?!honest)[^aeiou]\w+", text), "a and an"
    assert all(re.fullmatch(r"[A-Z].*[.?]", line) for line in text.split("\n"))
    assert not re.findall(r"\b(a|an|the|to|of|and|not|is|was|with) \1\b", text), "a word twice"
    assert 600 <= len({*re.findall(r"[a-z]+", text.lower())}) <= 1_600


@pytest.mark.slow
def test_a_parser_recovers_the_choices_of_every_test_row(make, made, pairs):
    """One tree, with the probability that was logged, and the translation follows from it."""
    for row, (source, target) in zip(made["translation.test.tsv"], pairs["translation.test.tsv"], strict=True):
        [(tree, bits)] = readings(source)
        assert bits == pytest.approx(row.bits, abs=1e-9)
        assert make.translation.translation(tree) == target
        assert tree == row.tree


@pytest.mark.slow
def test_the_sources_of_training_have_one_tree(make, pairs):
    for source, target in pairs["translation.tsv"][::12]:
        [(tree, _)] = readings(source)
        assert make.translation.translation(tree) == target


@pytest.mark.slow
def test_what_the_grammar_does_not_say_has_no_tree(make, made):
    assert readings("Anna will sleep.")
    assert not readings("Anna will sleeps.")
    assert not readings("Will Anna sleep.")


@pytest.mark.slow
def test_choices_and_parser_agree_with_the_framework(make):
    """Every derivation of the writing program, by choice.py, adds up to the parser's probability."""
    for source in ("Anna will sleep.", "The old baker waited.", "Who sings every night?", "A dog ate my apple."):
        program = partial(make.translation.sentence, n=len(source.split()))
        [(_, bits)] = readings(source)
        assert bits_of(program, source) == pytest.approx(bits, abs=1e-9)


@pytest.mark.slow
def test_bits_of_drawing_without_replacement(make, made, pairs):
    """What the rows drawn before had of the probability of a length is spent."""
    for n in (3, 9):
        spent = sum(2.0**-row.bits for row in made["translation.tsv"] if len(row.source.split()) == n)
        of_this_length = [row for row in made["translation.test.tsv"] if len(row.source.split()) == n]
        drawn = {row.drawn - row.bits - make.translation.length_bits(n) for row in of_this_length}
        assert max(drawn) == pytest.approx(math.log2(1 - spent), abs=1e-9)
        assert min(drawn) > math.log2(1 - spent - sum(2.0**-row.bits for row in of_this_length)) - 1e-9
    assert sum(2.0 ** -make.translation.length_bits(n) for n in range(3, 31)) == pytest.approx(1)


@pytest.fixture(scope="module")
def analyse(make):
    """word -> its glosses, by taking it apart with the tables of the language; nothing of how words are built."""
    language, by_shape = make.language, {}
    by_name = {}
    for key, shape in language.ROOTS.items():
        kind, _, word = key.partition(".")
        if kind == "names":
            by_name[shape] = word
        else:
            by_shape[shape] = (kind, word.replace(" ", "."))
    assert len(by_name) + len(by_shape) == len(language.ROOTS)
    marks = {mark: language.MARK_GLOSSES[mark] for pair in language.CLASSES.values() for mark in pair}
    subjects = marks | {mark: language.MARK_GLOSSES[mark] for mark in language.PERSONS.values()}
    cases = {"": "", "n": "ACC", "s": "GEN", "l": "ALL", "mA": "LOC", "tA": "ABL", "kA": "COM"}
    fixed = {"so": {"and", "both"}, "mo": {"but"}, "ke": {"Q"}, "yora": {"who"}, "yoras": {"who-GEN"}}
    fixed |= {row.word: {row.gloss} for row in make.orune.QUESTIONS.values()}
    fixed |= {shape: {str(digit)} for digit, shape in make.orune.DIGITS.items()}

    def harmony(text):
        return next(letter for letter in reversed(text) if letter in "aeiou") in "ei"

    def endings(stem):
        """Number and case after a stem."""
        front = harmony(stem)
        for plural, (shape, gloss) in itertools.product((False, True), cases.items()):
            text = "r" * plural + ("A" if plural and len(shape) == 1 else "") + shape
            yield text.replace("A", "e" if front else "a"), "-PL" * plural + f"-{gloss}" * bool(gloss)

    def roots(text):
        return [(text[:n], *by_shape[text[:n]], text[n:]) for n in (4, 5, 6) if text[:n] in by_shape]

    def slots(*tables):
        """Every row of optional suffixes, one of each table, in order."""
        rows = itertools.product(*([("", ""), *table.items()] for table in tables))
        return [("".join(shape for shape, _ in row), "".join("-" + g for _, g in row if g)) for row in rows]

    flip = {shape: gloss for gloss, shape in make.orune.VERBAL.items()}
    suffixes = slots(
        flip | {"do": "more"},
        {shape: gloss.upper() for gloss, shape in make.orune.ASPECTS.items()},
        {shape: gloss.upper() for gloss, shape in make.orune.TENSES.items() if shape and gloss != "imp"},
        {shape: gloss for gloss, shape in make.orune.LINKS.items()},
    )
    suffixes += [(shape + "hU", gloss + "-IMP") for shape, gloss in slots(flip)]
    verbal = {
        front: {
            made: [gloss for shape, gloss in suffixes if shape.replace("A", a).replace("U", u) == made]
            for made in {shape.replace("A", a).replace("U", u) for shape, _ in suffixes}
        }
        for front, a, u in ((True, "e", "i"), (False, "a", "u"))
    }

    def glosses(word):
        found = [*fixed.get(word, ())]
        for shape, english in by_name.items():
            found += [english + gloss for end, gloss in endings(shape) if word == shape + end]
        for root, kind, english, rest in roots(word):
            if kind in ("post", "m", "f", "t") and not rest:
                found.append(english)
            if kind in ("n", "t"):
                found += [english + gloss for end, gloss in endings(root) if gloss and rest == end]
            if kind == "n":
                found += [english] * (not rest)
                for second, sort, material, more in roots(rest):
                    ends = endings(second) if sort == "n" else ()
                    found += [f"{english}-{material}{gloss}" for end, gloss in ends if more == end]
            if kind in ("a", "q") and rest in marks:
                found.append(f"{english}-{marks[rest]}")
        for shape, english in (("i", "INDEF"), ("ve", "this"), ("go", "that"), ("yo", "which")):
            found += [f"{english}-{gloss}" for mark, gloss in marks.items() if word == shape + mark]
        for mark, gloss in marks.items():
            for end, case in endings(mark):
                found += [f"he-{gloss}{case}", f"it-{gloss}{case}", f"they-{gloss}{case}"] * (word == "ho" + mark + end)
                found += [f"she-{gloss}{case}"] * (word == "he" + mark + end)
        for person, english in (("mi", "I"), ("ta", "you"), ("mu", "we")):
            found += [english + case for end, case in endings(person) if case and word == person + end]
        for (mark, gloss), negated in itertools.product([("", ""), *subjects.items()], (False, True)):
            start = mark + "vi" * negated
            if not word.startswith(start):
                continue
            body, before = word[len(start) :], (gloss + "-") * bool(mark) + "NEG-" * negated
            for doubled, stem in ((False, body), (True, body[2:])):
                for root, kind, english, rest in roots(stem):
                    if kind not in ("v", "a") or (doubled and (kind == "v" or body[:2] != root[:2])):
                        continue
                    for end in verbal[harmony(root)].get(rest, ()):
                        if bool(mark) != end.endswith("-IMP"):
                            found.append(f"{before}{'very-' * doubled}{english}{end}")
        return found

    return glosses


SAME = {"he": "it", "they": "it", "both": "and"}  # one form each in Orune


@pytest.mark.slow
def test_every_word_can_be_taken_apart_in_one_way(analyse, make, made):
    """The analyser finds the gloss that the translation was made from, and no other."""
    known = {}
    for row in made["translation.test.tsv"] + made["translation.tsv"][::4]:
        known |= {form.text: form.gloss for form in make.orune.translate(row.tree)}

    def merged(gloss):
        first, dash, rest = gloss.partition("-")
        return SAME.get(first, first) + dash + rest

    for text, gloss in known.items():
        assert {merged(found) for found in analyse(text)} == {merged(gloss)}, text


def test_sounds(pairs):
    """Open syllables or ones closed by n, l, r or s."""
    syllable = r"(?:[tkrlmnsdvpbyhg]?[aeiou][nlrs]?)"
    for _, target in (pair for name in FILES for pair in pairs[name]):
        for word in target.removesuffix(".").lower().split():
            assert re.fullmatch(rf"{syllable}+", word), word


def test_roots_have_two_harmonious_syllables_and_do_not_look_like_prefixes(make):
    language = make.language
    prefixes = {mark for pair in language.CLASSES.values() for mark in pair} | {*language.PERSONS.values()}
    prefixes |= {"vi", "yo", "ve", "go", "ho", "he"}
    for key, root in language.ROOTS.items():
        if not key.startswith("names."):
            onset = "[tkrlmnsdvpbyhg]"
            assert re.fullmatch(f"{onset}[ei][nlrs]?{onset}[ei]|{onset}[aou][nlrs]?{onset}[aou]", root), key
            assert root[:2] not in prefixes, key


def test_verbs_agree(make):
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
            assert " ".join(form.gloss for form in make.orune.translate(found[0][0])) == gloss


def test_rows_of_a_length_can_be_taken_out(make, capsys, pairs):
    make.translation.print_rows(8, 12, DATA / "translation.test.tsv")
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "source\ttarget"
    assert len(lines) == 250
    assert all(8 <= len(line.split("\t")[0].split()) <= 12 for line in lines)


@pytest.mark.slow
def test_limits(make, made):
    [*_, (_, _, limits)] = make.translation.files()
    assert limits["bits"] == pytest.approx(sum(row.drawn for row in made["translation.test.tsv"]), abs=1e-2)
    assert limits["rows_by_source_words"] == {"3-7": 250, "8-12": 250, "13-18": 250, "19-30": 250}
    assert 0 < limits["bits_per_byte"] < 2
