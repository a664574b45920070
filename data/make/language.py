"""Orune, the invented language of the translation table: its word forms.

Its roots and names are in words/orune_roots.yaml, its morphemes in words/orune.yaml; A and U in them stand for the
vowels of harmony.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vocabulary import BY_KEY
from words import load

LANGUAGE = load("orune")
FRONT, BACK = "ei", "aou"
CLASSES, PERSONS, CASES = (LANGUAGE[name] for name in ("classes", "persons", "cases"))
CLASS_OF = LANGUAGE["class_of"] | {noun: cls for cls, nouns in LANGUAGE["exceptions"].items() for noun in nouns}
MARK_GLOSSES = {mark: f"C{cls}{num}" for cls, pair in CLASSES.items() for mark, num in zip(pair, "SP", strict=True)}
MARK_GLOSSES |= {mark: person.upper() for person, mark in PERSONS.items()}
ROOTS = {f"{kind}.{key}": root for kind, roots in load("orune_roots").items() for key, root in roots.items()}


class Form(NamedTuple):
    text: str
    gloss: str


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


def case_form(stem: Sequence[tuple[str, str]], plural: bool, case: str) -> Form:
    return build(*stem, ("r" * plural, "PL"), (CASES[case], case), harmony=stem[-1][0])


def root(kind: str, key: str) -> Form:
    """A root, which may be a word, or the start of one with its gloss."""
    return Form(ROOTS[f"{kind}.{key}"], key.replace(" ", "."))


def marker(key: str, cat: str, plural: bool) -> str:
    """The mark by which others agree with a noun of a category."""
    return CLASSES[CLASS_OF.get(key) or CLASS_OF[cat]][plural]


def agreeing(shape: str, gloss: str, mark: str) -> Form:
    return build((shape, gloss), (mark, MARK_GLOSSES[mark]))


def with_adjectives(noun: Any, adjectives: Any, plural: bool, case: str) -> tuple[list[Form], str]:
    """A noun and its adjectives, and its mark.

    What a compound begins with stands before it in the genitive; a material is written onto the noun.
    """
    _, key, material, _, cat = noun.kids[0].meaning
    mark = marker(key, cat, plural)
    *modifiers, head = BY_KEY[key].roots
    said = [case_form([root("n", piece)], False, "GEN") for piece in modifiers]
    stem = [root("n", piece) for piece in (head, material) if piece]
    said.append(case_form(stem, plural, case))
    return said + [agreeing(*root("a", one.meaning[1]), mark) for one in adjectives], mark


def pronoun(english: str, mark: str, case: str) -> list[Form]:
    if mark in PERSONS.values():  # "I", "you" and "we" are left out as subjects
        return [] if case == "NOM" else [build((mark, english), (CASES[case], case))]
    shape = "he" if english == "she" else "ho"
    return [build((shape, english), (mark, MARK_GLOSSES[mark]), (CASES[case], case), harmony=mark)]
