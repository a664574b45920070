"""The English of the translation table: a grammar that gives every sentence exactly one tree.

A symbol is a tuple: its kind, then features (category, number, form of the verb, ...). A leaf is ("w", text, meaning).
`expand(symbol)` lists what a symbol may become: (weight, symbols). The rules are in words/english.yaml; here are those
of single words. What could be read in two ways is not written: what follows a relative clause never belongs to the main
one, and "with" always describes the noun before it.

Features: cat is a category of NOUN; sem is the category of a subject; pn is person and number (1s 2 1p 3s 3p); level
says how deep clauses may nest; form is base, third, past, participle, ing, and two that are spelt as base is:
infinitive after "to", imperative. with_derived() has those that follow from them.
"""

import itertools
import re
from fractions import Fraction
from functools import cache
from typing import Any

from vocabulary import LISTS, NOUN, NUMBERS, SPOTS, TIME, VERB, comparative
from words import load, table

Symbol = tuple[Any, ...]
Rules = list[tuple[float, tuple[Symbol, ...]]]
Features = dict[str, str]

RULE = re.compile(r"(\S+) (?:([^\[\](){}]\S*(?: \S+)*?): )?(.*)")
SYMBOL = re.compile(r"\[([^\]=]+)(?:=([^\]]+))?\]|([A-Z'Y]+)(?:\(([^)]*)\))?")
HUMAN = ("m", "f", "p", "h")
FORMS = ("base", "third", "past", "participle", "ing")
NOT_WANTED, STATIVE = {*LISTS["not_wanted"]}, {*LISTS["stative"]}
NOT_ORDERED = NOT_WANTED | {*LISTS["not_ordered"]}
NO_MANNER = NOT_ORDERED | STATIVE | {*LISTS["no_manner"]}
WITHOUT = {"ing": STATIVE, "participle": LISTS["not_perfect"], "infinitive": NOT_WANTED, "imperative": NOT_ORDERED}

GRAMMAR = dict(load("english"))
AGREEMENT = {row.pn: row._asdict() for row in table(GRAMMAR.pop("agreement"))}
SUBJECTS = table(GRAMMAR.pop("subjects"))
RULES: dict[str, tuple[list[str], list[str]]] = {}  # kind of symbol: the names of its features, and its rules
for heading, block in GRAMMAR.items():
    kind, _, names = heading.rstrip(")").partition("(")
    RULES[kind] = (names.split(), block.splitlines())


def w(text: str, *meaning: str) -> Symbol:
    return ("w", text, meaning or (text,))


def cat_of(sem: str) -> str:
    return "h" if sem in HUMAN else sem


@cache
def symbols(text: str) -> tuple[Symbol, ...]:
    """What a rule writes, with its features filled in."""
    found = []
    for leaf, meaning, kind, features in SYMBOL.findall(text):
        features = tuple("" if feature == "-" else feature for feature in features.split())
        found.append((kind, *features) if kind else w(leaf, *meaning.split()))
    return tuple(found)


def with_derived(features: Features) -> Features:
    """Features of a symbol, and what follows from them."""
    found = dict(features)
    if "cat" in found:
        human = found["cat"] in HUMAN
        found |= {"kind": cat_of(found["cat"]), "who_does": "who" if human else "that"}
        found["whom"] = "whom" if human else "that"
    if "level" in found:
        found["below"] = str(int(found["level"]) - 1)
    if "sem" in found:
        found["who"] = cat_of(found["sem"])
        found["go"] = "go" if found["who"] == "h" else "ago"
    if "pn" in found:
        found |= AGREEMENT[found["pn"]]
        if found["pn"] == "3s":
            found["pronoun"] = {"m": "he", "f": "she", "p": "", "h": ""}.get(found["sem"], "it")
    if "tense" in found:
        found["main"] = "pres" if found["tense"] == "habit" else found["tense"]
        found["then"] = "past" if found["tense"] == "past" else "pres"
    if "timed" in found:
        found |= {"time": "", "habit": ""} if found["timed"] else {"time": found["tense"], "habit": "habit"}
    if "kinds" in found:
        found["m"] = "m" if "m" in found["kinds"] else ""
    elif "form" in found:
        found["inner"] = "inner" if found["form"] == "base" else ""
    return found


@cache
def subjects(level: str) -> list[tuple[float, Features]]:
    """The weight and the features of every kind of subject."""
    found = []
    for row in SUBJECTS:
        features = row._asdict() | {"subject": row.subject.format(level=level)}
        found.append((float(row.weight), with_derived(features)))
    return found


def holds(condition: str, features: Features) -> bool:
    """Whether features fulfil name=value/value, name!=value/value, or a letter that must be among the kinds."""
    name, sign, values = condition.partition("=")
    if not sign:
        return name in features["kinds"]
    return (features[name.removesuffix("!")] in values.split("/")) != name.endswith("!")


def rules_of(kind: str, *values: str) -> Rules:
    """The rules of a symbol in words/english.yaml."""
    names, lines = RULES[kind]
    own = with_derived(dict(zip(names, values, strict=True)))
    found: Rules = []
    for about_subject, some in itertools.groupby(lines, lambda line: "{subject}" in line):
        group = list(some)
        for weight, subject in subjects(own["below"]) if about_subject else [(1.0, {})]:
            features = {name: value or "-" for name, value in (own | subject).items()}
            for line in group:
                share, conditions, written = RULE.fullmatch(line.format_map(features)).groups()  # type: ignore[union-attr]
                if "[-" not in written and all(holds(one, features) for one in (conditions or "").split()):
                    found.append((weight * float(Fraction(share)), symbols(written)))
    return found


def verb(frame: str, form: str, manner: str) -> Rules:
    if frame == "want" and form in ("ing", "imperative"):
        return []
    without = {*WITHOUT.get(form, ())} | (NO_MANNER if manner and frame != "want" else set())
    index = FORMS.index(form) if form in FORMS else 0
    found = [verb for verb in VERB.get(frame, []) if verb.key not in without]
    return [(1, (w(verb.forms[index], "verb", verb.key, form),)) for verb in found]


def complement(pn: str, sem: str) -> Rules:
    """What is said after "to be"."""
    who = cat_of(sem)
    plain = LISTS["predicates"].get(who, [])
    states = sorted({*plain, *LISTS["states"].get(who, ())})
    rules: Rules = [(3 / len(states), (w(adjective, "adjective", adjective),)) for adjective in states]
    rules += [(1 / len(states), (w("very"), w(adjective, "adjective", adjective, "very"))) for adjective in states]
    compared = [(w(comparative(adjective), "adjective", adjective, "more"), w("than", "than")) for adjective in plain]
    rules += [(0.6 / len(plain), (*one, ("NP", "p" if who == "h" else who, "s", "0"))) for one in compared]
    if who == "h":
        rules += [(0.3 / len(plain), (*one, ("NAME", sex))) for one in compared for sex in "mf"]
    return rules + rules_of("PRED", pn, sem)


def adjectives(cat: str) -> Rules:
    if cat == "w":
        return [(1, ())]
    first, second = LISTS["adjectives"][cat].values()
    leaves = [[(w(text, "adjective", text),) for text in row] for row in (first, second)]
    one = len(first) + len(second)
    rules: Rules = [(5, ()), *((3 / one, leaf) for row in leaves for leaf in row)]
    return rules + [(1.5 / len(first) / len(second), (*a, *b)) for a in leaves[0] for b in leaves[1]]


def nouns(cat: str, num: str, suffix: str = "") -> Rules:
    """Possessors take 's, here only in the singular."""
    form = "sp".index(num)
    rules: Rules = [
        (1, (w(noun.forms[form] + suffix, "noun", noun.key, "", num, cat),))
        for noun in NOUN[cat]
        if num == "s" or noun.key not in LISTS["only_one"]
    ]
    for material, heads in LISTS["compounds"].items():
        for noun in NOUN[cat]:
            if noun.key in heads:
                rules.append((0.4, (w(f"{material} {noun.forms[form]}", "noun", noun.key, material, num, cat),)))
    return rules


def coordination(cat: str) -> Rules:
    some = rules_of("BOTH", cat)
    both = w("and", "both")
    found = [(p * q, (*a, both, *b)) for p, a in some for q, b in some if cat != "a" or "a" in (a[0][1], b[0][1])]
    if cat == "h":
        found += [(p * q * r / 30, (*a, w(","), *b, both, *c)) for p, a in some[:2] for q, b in some for r, c in some]
    return found


def place() -> Rules:
    rules: Rules = []
    for prep in SPOTS["AT"]:
        weight = {"in": 4.0, "at": 1.5, "on": 1.5}.get(prep, 0.7)
        rules.append((weight, (w(prep, "in" if weight > 1 else "post", prep), ("SPOT", "AT", prep))))
    return rules


def spot(where: str, prep: str) -> Rules:
    """A place that goes with the preposition; "beside the gate", not "through the gate"."""
    named = [noun.key for noun in NOUN["l"] if noun.key != "attic"] if where == "TO" else SPOTS[where][prep]
    rules: Rules = []
    for cat in "lu":
        share, noun = sum(noun.key in named for noun in NOUN[cat]), ("SPOTS", cat, " ".join(named))
        rules += [(5 * share, (w("the"), ("A", cat), noun)), (share, (w("a"), ("A", cat), noun))] if share else []
    return rules


def spots(cat: str, named: str) -> Rules:
    return [rule for rule in nouns(cat, "s") if rule[1][0][2][1] in named.split()]


# The rules that are made here, by the kind of symbol.
KINDS = {
    "V": verb,
    "PRED": complement,
    "A": adjectives,
    "N": nouns,
    "CO": coordination,
    "LOC": place,
    "SPOT": spot,
    "SPOTS": spots,
    "PATH": lambda: rules_of("PATH") + [rule for via in SPOTS["VIA"] for rule in rules_of("VIA", via)],
    "N'S": lambda cat: nouns(cat, "s", "'s"),
    "NAME": lambda sex: [(1, (w(name, "name", name),)) for name in LISTS["names"][sex]],
    "NAME'S": lambda sex: [(1, (w(name + "'s", "name", name),)) for name in LISTS["names"][sex]],
    "NUM": lambda: [(1 / (n + 2), (w(text, "number", str(n)),)) for text, n in NUMBERS.items()],
    "MANNER": lambda who: [(1, (w(text, "manner", text),)) for text in LISTS["manner"][who]],
    "TIME": lambda tense: [(1, (w(time.key, "time", tense, time.key),)) for time in TIME[tense]],
}


@cache
def expand(symbol: Symbol) -> Rules:
    """What the symbol may become, without what nothing can be made of."""
    kind, *features = symbol
    rules = KINDS[kind](*features) if kind in KINDS else rules_of(kind, *features)
    return [rule for rule in rules if all(s[0] == "w" or expand(s) for s in rule[1])]
