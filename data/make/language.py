"""Orune, the invented language of the translation table: its word forms.

Its roots and names are in words/orune_roots.yaml, its morphemes in words/orune.yaml; A and U in them stand for the
vowels of harmony.
"""

from typing import NamedTuple

from vocabulary import BY_KEY
from words import load, table

LANGUAGE = load("orune")
FRONT, BACK = "ei", "aou"
CLASSES, PERSONS, PRONOUN_MARKS = LANGUAGE["classes"], LANGUAGE["persons"], LANGUAGE["pronouns"]
CLASS_OF = LANGUAGE["class_of"] | {noun: cls for cls, nouns in LANGUAGE["exceptions"].items() for noun in nouns}
"""The class of a category of nouns, and of nouns that are in another one."""
MARK_GLOSSES = {mark: f"C{cls}{num}" for cls, pair in CLASSES.items() for mark, num in zip(pair, "SP", strict=True)}
MARK_GLOSSES |= {mark: person.upper() for person, mark in PERSONS.items()}
CASES, VERBAL, ASPECTS, TENSES = (LANGUAGE[name] for name in ("cases", "verbal", "aspects", "tenses"))
LINKS, DIGITS = LANGUAGE["links"], LANGUAGE["digits"]
QUESTIONS = {row.asked: row for row in table(LANGUAGE["questions"])}
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


def case_form(stem: tuple[tuple[str, str], ...], plural: bool, case: str) -> Form:
    ending = (("r", "PL"),) * plural + ((CASES[case], case),)
    return build(*stem, *ending, harmony=stem[-1][0])


def plain(kind: str, key: str) -> Form:
    return Form(ROOTS[f"{kind}.{key}"], key.replace(" ", "."))


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
    said = [case_form(((ROOTS["n." + piece], piece),), False, "GEN") for piece in modifiers]
    stem = ((ROOTS["n." + head], head),)
    if material:
        stem += ((ROOTS["n." + material], material),)
    return [*said, case_form(stem, plural, case)]
