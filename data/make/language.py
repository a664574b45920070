"""Orune, the invented language of the translation table: its sounds, roots, word forms and sentences.

    translate(tree) -> [Form, ...]     tree of english.py; a Form is (text, gloss)

Every sentence has exactly one translation. Order: time, subject, place, goal or source, object, manner, verb; clauses
that depend on another come before it; what describes a noun by a noun or a clause stands before it, its adjectives and
its article after it. The morphemes are in words/orune.yaml; A and U in them stand for the vowels of harmony.
"""

import hashlib
from functools import cache
from typing import Any, NamedTuple

from vocabulary import BY_KEY, LISTS, SPOTS, TIME, VERB
from words import load, table

LANGUAGE = load("orune")
ONSETS, CODAS = LANGUAGE["onsets"], LANGUAGE["codas"]
FRONT, BACK = "ei", "aou"
CLASSES, PERSONS, PRONOUN_MARKS = LANGUAGE["classes"], LANGUAGE["persons"], LANGUAGE["pronouns"]
CLASS_OF = LANGUAGE["class_of"] | {noun: cls for cls, nouns in LANGUAGE["exceptions"].items() for noun in nouns}
"""The class of a category of nouns, and of nouns that are in another one."""
MARK_GLOSSES = {mark: f"C{cls}{num}" for cls, pair in CLASSES.items() for mark, num in zip(pair, "SP", strict=True)}
MARK_GLOSSES |= {mark: person.upper() for person, mark in PERSONS.items()}
CASES, VERBAL, ASPECTS, TENSES = (LANGUAGE[name] for name in ("cases", "verbal", "aspects", "tenses"))
LINKS, DIGITS = LANGUAGE["links"], LANGUAGE["digits"]
QUESTIONS = {row.asked: row for row in table(LANGUAGE["questions"])}
RESERVED = {*(mark for pair in CLASSES.values() for mark in pair), *PERSONS.values(), *LANGUAGE["prefixes"]}
"""No root begins as a verb's prefix does."""


class Form(NamedTuple):
    text: str
    gloss: str


TAKEN: dict[str, str] = {}  # roots and whose they are


@cache
def root(key: str) -> str:
    """Two syllables, the same for the same key, with vowels that are all front or all back."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest(), "big")

    def pick(options: Any) -> str:
        nonlocal number
        number, index = divmod(number, len(options))
        return options[index]

    while True:
        vowels = pick((FRONT, BACK, BACK))
        first = pick(ONSETS[:10] * 2 + ONSETS) + pick(vowels)
        made = first + pick(CODAS) + pick(ONSETS[:10] * 2 + ONSETS) + pick(vowels)
        if first not in RESERVED and made not in TAKEN and made[:2] != made[2:]:
            TAKEN[made] = key
            return made


def build(*morphs: tuple[str, str], harmony: str = "") -> Form:
    """One word of (shape, gloss) morphemes: A, U follow the last vowel of the root; a vowel keeps consonants apart."""
    harmony = harmony or morphs[0][0]
    front = [letter for letter in harmony if letter in FRONT + BACK][-1] in FRONT
    text = ""
    for shape, _ in morphs:
        if len(shape) == 1 and text[-1:] not in FRONT + BACK:
            shape = "A" + shape
        text += shape if not text else shape.replace("A", "e" if front else "a").replace("U", "i" if front else "u")
    return Form(text, "-".join(gloss for shape, gloss in morphs if shape))


def case_form(stem: tuple[tuple[str, str], ...], plural: bool, case: str) -> Form:
    ending = (("r", "PL"),) * plural + ((CASES[case], case),)
    return build(*stem, *ending, harmony=stem[-1][0])


def plain(kind: str, key: str) -> Form:
    return Form(root(f"{kind}.{key}"), key.replace(" ", "."))


@cache
def name(english: str) -> str:
    """A name as Orune says it: open syllables, at least two, in its own sounds."""
    text = english.lower()
    for old, new in LANGUAGE["letters"].items():
        text = text.replace(old, new)
    text = "".join(
        "i" if a == "y" and (i + 1 == len(text) or text[i + 1] not in "aeiou") else a for i, a in enumerate(text)
    )
    text = "".join(a for i, a in enumerate(text) if text[i - 1 : i] != a)
    made = ""
    for i, letter in enumerate(text):
        after = text[i + 1 : i + 2]
        made += letter
        if (
            letter not in "aeiou"
            and after not in tuple("aeiou")
            and (not after or letter not in "nlrs" or not made[-2:-1] or made[-2] not in "aeiou")
        ):
            made += [v for v in text if v in "aeiou"][-1]
    return made.capitalize()


def numeral(n: int) -> list[Form]:
    """Counted by eights: 20 is two eights four."""
    eights, ones = divmod(n, 8)
    said = [eights] * (eights > 1) + [8] * (eights > 0) + [ones] * (ones > 0)
    return [Form(DIGITS[str(digit)], str(digit)) for digit in said]


def marker(key: str, cat: str, plural: bool) -> str:
    """The mark by which others agree with a noun of a category."""
    return CLASSES[CLASS_OF.get(key) or CLASS_OF[cat]][plural]


def agreeing(shape: str, gloss: str, mark: str) -> Form:
    return build((shape, gloss), (mark, MARK_GLOSSES[mark]))


def noun_forms(key: str, material: str, plural: bool, case: str) -> list[Form]:
    """Modifying roots in the genitive, then the head; a material is written onto the head."""
    *modifiers, head = BY_KEY[key].roots
    said = [case_form(((root("n." + piece), piece),), False, "GEN") for piece in modifiers]
    stem = ((root("n." + head), head),)
    if material:
        stem += ((root("n." + material), material),)
    return [*said, case_form(stem, plural, case)]


def pieces(entries: Any) -> set[str]:
    return {piece for entry in entries for piece in entry.roots}


def keys() -> list[str]:
    """Every root's key in a fixed order, since the first to want a shape has it."""
    found = [f"n.{key}" for key in pieces(BY_KEY.values()) | {*LISTS["compounds"]}]
    verbs = [word for words in VERB.values() for word in words]
    found += [f"v.{word.roots[-1]}" for word in verbs] + ["v.be", "f.home", "f.please"]
    found += [f"m.{key}" for word in verbs for key in word.roots[:-1]]
    found += [f"m.{key}" for words in (*LISTS["manner"].values(), LISTS["often"]) for key in words]
    both = [words for pair in LISTS["adjectives"].values() for words in pair.values()]
    found += [
        f"a.{key}" for words in (*both, *LISTS["predicates"].values(), *LISTS["states"].values()) for key in words
    ]
    found += [f"post.{key}" for places in SPOTS.values() for key in places] + ["q.many", "q.some", "q.several"]
    found += [f"t.{key}" for words in TIME.values() for key in pieces(words) - {"in"}]
    return sorted(set(found))


ROOTS = {key: root(key) for key in keys()}
