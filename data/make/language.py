"""Orune, the invented language of the translation table: its sounds, roots, word forms and sentences.

    translate(tree) -> [Form, ...]     tree of translation_english.py; a Form is (text, gloss)

Every sentence has exactly one translation. Order: time, subject, place, goal or source, object, manner, verb; clauses
that depend on another come before it; what describes a noun by a noun or a clause stands before it, its adjectives and
its article after it. The morphemes are listed below; A and U in them stand for the vowels of harmony.
"""

import hashlib
from functools import cache
from typing import Any, NamedTuple

import translation_words as words

ONSETS = ["t", "k", "r", "l", "m", "n", "s", "d", "v", "p", "b", "y", "h", "g"]
CODAS = ("", "", "", "n", "l", "r", "s")
FRONT, BACK = "ei", "aou"

CLASSES = {1: ("na", "ne"), 2: ("ko", "ki"), 3: ("la", "li"), 4: ("se", "su")}  # singular, plural
PERSONS = {"1s": "mi", "2": "ta", "1p": "mu"}
CLASS_OF = dict(zip("mfpkaegstluw", (1, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 2), strict=True))
# What has a voice or moves by itself is classed with the animals, dolls with people, what grows or lies wild with plants.
EXCEPTIONS = dict.fromkeys(["bell", "drum", "flute", "violin", "harmonica", "whistle", "clock", "watch", "river"], 2)
EXCEPTIONS |= dict.fromkeys(("doll", "puppet"), 1)
EXCEPTIONS |= dict.fromkeys(
    ["stone", "feather", "shell", "bone", "forest", "meadow", "orchard", "garden", "pasture", "spring"], 3
)

CASES = {"NOM": "", "ACC": "n", "GEN": "s", "ALL": "l", "LOC": "mA", "ABL": "tA", "COM": "kA"}
VERBAL = {"want": "yo", "try": "no", "begin": "pu", "learn": "me", "decide": "gi"}
ASPECTS = {"prog": "po", "perf": "du", "can": "bi", "must": "ga"}
TENSES = {"past": "sA", "pres": "", "fut": "lU"}
LINKS = {
    "REL": "yA",
    "and": "tA",
    "that": "mU",
    "when": "kA",
    "because": "nU",
    "although": "dA",
    "after": "rU",
    "before": "bA",
    "if": "hA",
}
DIGITS = {1: "pen", 2: "tiso", 3: "kol", 4: "vara", 5: "lin", 6: "hen", 7: "sogu", 8: "obe"}

# No root begins as a verb's prefix does, or as these do: yo- asks, ve- and go- point, ho- and he- stand for a name.
RESERVED = {
    *(mark for pair in CLASSES.values() for mark in pair),
    *PERSONS.values(),
    "vi",
    "yo",
    "ve",
    "go",
    "ho",
    "he",
}


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
    for old, new in (
        ("ck", "k"),
        ("th", "t"),
        ("ph", "p"),
        ("x", "ks"),
        ("ce", "se"),
        ("c", "k"),
        ("j", "y"),
        ("w", "v"),
        ("f", "p"),
        ("z", "s"),
    ):
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
    return [Form(DIGITS[digit], str(digit)) for digit in said]


def leaf(node: Any) -> tuple[str, ...]:
    return node.symbol[2] if node.symbol[0] == "w" else ()


def marker(cls: int, plural: bool) -> str:
    return CLASSES[cls][plural]


def mark_gloss(mark: str) -> str:
    for cls, pair in CLASSES.items():
        if mark in pair:
            return f"C{cls}{'P' if mark == pair[1] else 'S'}"
    return next({"1s": "1S", "2": "2", "1p": "1P"}[person] for person, m in PERSONS.items() if m == mark)


def agreeing(shape: str, gloss: str, mark: str) -> Form:
    return build((shape, gloss), (mark, mark_gloss(mark)))


def pronoun(english: str, mark: str, case: str) -> Form:
    if mark in PERSONS.values():
        return build((mark, english), (CASES[case], case))
    shape = "he" if english == "she" else "ho"
    return build((shape, english), (mark, mark_gloss(mark)), (CASES[case], case), harmony=mark)


PRONOUN_MARKS = {"I": "mi", "you": "ta", "we": "mu", "he": "na", "she": "na", "they": "ne"}


def noun_forms(key: str, material: str, plural: bool, case: str) -> list[Form]:
    """Modifying roots in the genitive, then the head; a material is written onto the head."""
    *modifiers, head = words.BY_KEY[key].roots
    said = [case_form(((root("n." + piece), piece),), False, "GEN") for piece in modifiers]
    stem = ((root("n." + head), head),)
    if material:
        stem += ((root("n." + material), material),)
    return [*said, case_form(stem, plural, case)]


def pieces(entries: Any) -> set[str]:
    return {piece for entry in entries for piece in entry.roots}


def keys() -> list[str]:
    """Every root's key in a fixed order, since the first to want a shape has it."""
    found = [f"n.{key}" for key in pieces(words.BY_KEY.values()) | {*words.COMPOUNDS}]
    verbs = [word for frame in words.VERB.values() for word in frame]
    found += [f"v.{word.roots[-1]}" for word in verbs] + ["v.be", "f.home", "f.please"]
    found += [f"m.{key}" for word in verbs for key in word.roots[:-1]]
    found += [f"m.{key}" for row in words.MANNER.values() for key in row.split()] + [f"m.{key}" for key in words.OFTEN]
    lists = [*(row for pair in words.ADJECTIVES.values() for row in pair), *words.PREDICATES.values()]
    found += [f"a.{key}" for row in (*lists, *words.STATES.values()) for key in row.split()]
    found += [f"post.{key.replace('_', ' ')}" for key in (*words.AT, *words.VIA)] + ["q.many", "q.some", "q.several"]
    found += [f"t.{key}" for row in words.TIME.values() for key in pieces(row) - {"in"}]
    return sorted(set(found))


ROOTS = {key: root(key) for key in keys()}
