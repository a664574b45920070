"""The words of the translation table with their forms, and the roots that say them in Orune (see language.py)."""

from typing import Any, NamedTuple

from lexicon import number, plural
from words import load

LISTS = load("translation")


class Word(NamedTuple):
    """One lexeme: its key, its forms in English, and the keys of its roots in Orune."""

    key: str
    forms: tuple[str, ...]
    roots: tuple[str, ...]


def ending(base: str, suffix: str) -> str:
    """The verb with -s, -ing or -ed; what follows it ("up") stays as it is."""
    verb, space, rest = base.partition(" ")
    if suffix == "s":
        return ("goes" if verb == "go" else plural(verb)) + space + rest
    if verb in LISTS["doubled"]:
        verb += verb[-1]
    elif suffix == "ing":
        verb = verb[:-2] + "y" if verb.endswith("ie") else verb
        verb = verb[:-1] if verb.endswith("e") and not verb.endswith(("ee", "oe")) else verb
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "i"
    return verb.removesuffix("e" * (suffix == "ed")) + suffix + space + rest


def comparative(adjective: str) -> str:
    if adjective in LISTS["more"]:
        return "more " + adjective
    if adjective in LISTS["doubled_adjectives"]:
        return adjective + adjective[-1] + "er"
    if adjective.endswith("y") and adjective != "shy":
        return adjective[:-1] + "ier"
    return adjective.removesuffix("e") + "er"


def word(entry: str, kind: str = "") -> Word:
    """An entry `form/form=root+root`: a noun (singular, plural) or a verb (base, third, past, participle, -ing)."""
    head, _, roots = entry.partition("=")
    key, *more = forms = head.split("/")
    if kind == "noun":
        forms = [key, *(more or [plural(key)])]
    elif kind == "verb":
        forms = [key, ending(key, "s"), *(more or [ending(key, "ed")] * 2), ending(key, "ing")]
    return Word(key, tuple(forms), tuple(roots.split("+") if roots else [key]))


def words(lists: dict[str, list[str]], kind: str = "") -> dict[str, list[Word]]:
    return {name: [word(entry, kind) for entry in entries] for name, entries in lists.items()}


NOUN, VERB, TIME = words(LISTS["nouns"], "noun"), words(LISTS["verbs"], "verb"), words(LISTS["times"])
BY_KEY = {noun.key: noun for nouns in NOUN.values() for noun in nouns}
NUMBERS = {number(n): n for n in (*range(2, 21), 24, 25, 30, 32, 40, 44, 48, 50, 56, 60)}
SPOTS: dict[str, Any] = {"AT": LISTS["at"], "VIA": LISTS["via"]}
