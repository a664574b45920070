"""The English of the translation table: a grammar that gives every sentence exactly one tree.

A symbol is a tuple: its kind, then features (category, number, form of the verb, ...). A leaf is ("w", text, meaning).
`expand(symbol)` lists what a symbol may become: (weight, symbols). The rules are in words/english.yaml. What could be
read in two ways is not written: what follows a relative clause never belongs to the main one, and "with" always
describes the noun before it.

Features: cat is a category of NOUN; sem is the category of a subject; pn is person and number (1s 2 1p 3s 3p); level
says how deep clauses may nest; form is base, third, past, participle, ing, and two that are spelt as base is:
infinitive after "to", imperative.
"""

import re
from fractions import Fraction
from functools import cache
from typing import Any

from vocabulary import LISTS, NOUN, NUMBERS, SPOTS, TIME, VERB, comparative
from words import load, table

Symbol = tuple
Rules = list[tuple[float, tuple[Symbol, ...]]]

GRAMMAR = {name: block.splitlines() for name, block in load("english").items()}
RULE = re.compile(r"(\S+) (?:([abc]) )?(.*)")
SYMBOL = re.compile(r"\[([^\]=]+)(?:=([^\]]+))?\]|([A-Z'Y]+)(?:\(([^)]*)\))?")
HUMAN = ("m", "f", "p", "h")
PRONOUNS = {row.subject: row for row in table(LISTS["pronouns"])}
FORMS = ("base", "third", "past", "participle", "ing")
NOT_WANTED, STATIVE = {*LISTS["not_wanted"]}, {*LISTS["stative"]}
NOT_ORDERED = NOT_WANTED | {*LISTS["not_ordered"]}
NO_MANNER = NOT_ORDERED | STATIVE | {*LISTS["no_manner"]}


def w(text: str, *meaning: str) -> Symbol:
    return ("w", text, meaning or (text,))


def cat_of(sem: str) -> str:
    return "h" if sem in HUMAN else sem


@cache
def symbols(text: str) -> tuple[Symbol, ...]:
    """What a line of the grammar writes, with its features filled in."""
    found = []
    for leaf, meaning, kind, features in SYMBOL.findall(text):
        features = tuple("" if feature == "-" else feature for feature in features.split())
        found.append((kind, *features) if kind else w(leaf, *meaning.split()))
    return tuple(found)


def rules(*names: str, weight: float = 1.0, kinds: str = "", **features: Any) -> Rules:
    """The rules of some parts of the grammar; kinds: the letters of those that are taken."""
    found: Rules = []
    for line in (line for name in names for line in GRAMMAR[name]):
        share, kind, written = RULE.fullmatch(
            line.format_map({k: v or "-" for k, v in (features | {"kinds": kinds}).items()})
        ).groups()  # type: ignore[union-attr]
        if (kind or "") in kinds and "[-" not in written:
            found.append((weight * float(Fraction(share)), symbols(written)))
    return found


def agreeing(pn: str) -> dict[str, str]:
    """The forms that agree with a subject."""
    singular = pn == "3s"
    return {
        **{"do": "does" if singular else "do", "have": "has" if singular else "have"},
        **{"present": "third" if singular else "base", "was": "was" if pn in ("1s", "3s") else "were"},
        "is": {"1s": "am", "3s": "is"}.get(pn, "are"),
    }


@cache
def subjects(level: int) -> list[tuple[float, dict[str, str]]]:
    """The weight and the features of every kind of subject."""
    found = []
    for line in GRAMMAR["subjects"]:
        weight, subject = line.format(level=level).split(" ", 1)
        [(kind, first, *more)] = symbols(subject)
        if kind == "w":
            pn, sem = PRONOUNS[first].pn, PRONOUNS[first].sem
        else:
            sem, num = "p" if first == "k" else first, {"NAME": "s", "CO": "p"}.get(kind) or more[0]
            pn = "3" + num
        found.append((float(weight), {"subject": subject, "pn": pn, "sem": sem, **agreeing(pn)}))
    return found


def about_subjects(depth: int, *names: str, **features: Any) -> Rules:
    return [rule for weight, one in subjects(depth) for rule in rules(*names, weight=weight, **one, **features)]


def predicate(pn: str, sem: str, tense: str) -> Rules:
    return rules("predicate after a time" if tense else "predicate", pn=pn, sem=sem, tense=tense)


def tail(pn: str, sem: str, tense: str) -> Rules:
    pronoun = {"m": "he", "f": "she", "p": "", "h": ""}.get(sem, "it")
    pronoun = {"1s": "I", "2": "you", "1p": "we", "3s": pronoun, "3p": "they"}[pn]
    then = "past" if tense == "past" else "pres"
    features = {"pn": pn, "sem": sem, "tense": "pres" if tense == "habit" else tense, "then": then}
    return rules(
        "tail", "tail, past" if tense == "past" else "tail, not past", pronoun=pronoun, taken=pronoun, **features
    )


def clause(tense: str, level: str, taken: str) -> Rules:
    """A clause; the pronoun that is taken stands for the subject of the sentence, and is no subject here."""
    return [
        rule
        for rule in about_subjects(int(level) - 1, "clause", tense=tense, level=level)
        if rule[1][0][:2] != ("w", taken)
    ]


def finite(pn: str, sem: str, tense: str, level: str, timed: str) -> Rules:
    names = {"past": ["past"], "fut": ["fut"], "habit": ["habit"], "pres": ["habit", "pres"]}[tense]
    if tense in ("habit", "pres") and cat_of(sem) in "ha":
        names.append("modal")
    if tense != "habit":
        names.append(f"to be, {tense}")
    time, habit = ("", "") if timed else (tense, "habit")
    return rules(*names, pn=pn, sem=sem, level=level, time=time, habit=habit, **agreeing(pn))


def verb_phrases(form: str, sem: str, level: str, tense: str) -> Rules:
    inner = "inner" if form == "base" else ""
    return rules("verb phrases", form=form, sem=sem, level=level, tense=tense, inner=inner)


def verb_phrase(form: str, sem: str, level: str, tense: str) -> Rules:
    adverbs = [] if tense == "rel" else [f"adverbs of {'others' if cat_of(sem) in 'ha' else 'things'}"]
    return rules("verb phrase", *adverbs, form=form, sem=sem, level=level, tense=tense)


def core(kinds: str, form: str, sem: str, level: str, inner: str) -> Rules:
    """A verb with its objects. Kinds: what may follow; m: in some manner, which leaves out verbs that have none."""
    who, names = cat_of(sem), ["core"]
    if who == "t":
        names.append("core of things")
    if who in "ha":
        names.append("core of others")
    if who == "h":
        names.append("core of people")
        if not inner:
            names += ["wish"] + ["thought, past" if form == "past" else "thought"] * (int(level) > 1)
    manner, go = "m" if "m" in kinds else "", "go" if who == "h" else "ago"
    return rules(*names, kinds=kinds, form=form, sem=sem, level=level, who=who, m=manner, go=go)


def verb(frame: str, form: str, manner: str) -> Rules:
    without = NO_MANNER if manner and frame != "want" else set()
    if form == "ing":
        without = without | STATIVE
    if form == "participle":
        without = without | {*LISTS["not_perfect"]}
    if form == "infinitive":
        without = without | NOT_WANTED
    if form == "imperative":
        without = without | NOT_ORDERED
    if frame == "want" and form in ("ing", "imperative"):
        return []
    index = FORMS.index(form) if form in FORMS else 0
    found = [verb for verb in VERB.get(frame, []) if verb.key not in without]
    return [(1, (w(verb.forms[index], "verb", verb.key, form),)) for verb in found]


def complement(pn: str, sem: str) -> Rules:
    """What is said after "to be"."""
    who = cat_of(sem)
    states = sorted({*LISTS["predicates"].get(who, ()), *LISTS["states"].get(who, ())})
    rules: Rules = [(3 / len(states), (w(adjective, "adjective", adjective),)) for adjective in states]
    rules += [(1 / len(states), (w("very"), w(adjective, "adjective", adjective, "very"))) for adjective in states]
    if plain := LISTS["predicates"].get(who, ()):
        than = (w("than", "than"), ("NP", "p" if who == "h" else who, "s", "0"))
        rules += [(0.6 / len(plain), (w(comparative(a), "adjective", a, "more"), *than)) for a in plain]
        if who == "h":
            rules += [
                (0.3 / len(plain), (w(comparative(a), "adjective", a, "more"), than[0], ("NAME", s)))
                for a in plain
                for s in "mf"
            ]
    if who in "hat":
        rules.append((1, (("LOC",),)))
    if sem in ("m", "f", "p") and pn == "3s":
        rules.append((0.8, (w("a", "a"), ("A", "h"), ("N", "p", "s"))))
    return rules


def adverbs(kind: str, sem: str, tense: str) -> Rules:
    """Manner, place, time, in this order."""
    manner, time = (("MANNER", cat_of(sem)),) if "m" in kind else (), (("TIME", tense),)
    rules: Rules = [(2, manner)] if manner else []
    if tense in TIME:
        rules.append((0.7 if manner else 2, (*manner, *time)))
    if "a" in kind:
        rules.append((0.7 if manner else 2, (*manner, ("LOC",))))
        if tense in TIME and not manner:
            rules.append((0.7, (("LOC",), *time)))
    return rules


def relative(pn: str, sem: str, level: str) -> Rules:
    return rules("relative", pn=pn, sem=sem, level=level, **agreeing(pn))


def gap(frame: str) -> Rules:
    return [
        rule
        for weight, one in subjects(0)
        if cat_of(one["sem"]) == "h"
        for rule in rules("gap", weight=weight, frame=frame, **one)
    ]


def question() -> Rules:
    return [
        rule
        for weight, one in subjects(1)
        for rule in rules("question", weight=weight, can="can" if cat_of(one["sem"]) in "ha" else "", **one)
    ]


def open_question() -> Rules:
    found = rules("who")
    for weight, one in subjects(0):
        who = cat_of(one["sem"])
        names = ["what"] * (who == "h") + ["where"] * (who in "ha") + ["why"]
        for aux, meaning, share in (("did", "past", 3), (one["do"], "do", 1), ("will", "will", 1)):
            found += rules(*names, weight=weight * share, aux=aux, meaning=meaning, **one)
    return found


# --- nouns and what goes with them ------------------------------------------------------------------------------------


def noun_phrase(cat: str, num: str, level: str) -> Rules:
    names, is_human = ["noun phrase"], cat in HUMAN
    if int(level) > 0 and cat not in "ws":
        names += ["somebody with something"] * is_human + ["noun that does"] * (cat not in "eks")
        names += ["noun that is seen"] * ("h" + cat_of(cat) in VERB and cat != "g")
    pronouns = {"who": "who" if is_human else "that", "whom": "whom" if is_human else "that"}
    return rules(*names, cat=cat, num=num, kind=cat_of(cat), below=str(int(level) - 1), **pronouns)


def base(cat: str, num: str, carried: str) -> Rules:
    """A noun with its determiner and adjectives."""
    if carried:
        names = [f"carried, {num}"]
    elif cat == "k":
        names = ["kin"]
    else:
        names = ["the"] + ["owned"] * (cat in "ateslg")
        names += ["some"] if cat == "s" else [] if cat == "w" and num == "s" else ["one" if num == "s" else "many"]
    return rules(*names, cat=cat, num=num, kind=cat_of(cat), owned="2" if cat in "ates" else "0.2")


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
    some = rules(f"both, {cat}" if cat in "ha" else "both", cat=cat)
    both = w("and", "both")
    found = [(p * q, (*a, both, *b)) for p, a in some for q, b in some if cat != "a" or "a" in (a[0][1], b[0][1])]
    if cat == "h":
        found += [(p * q * r / 30, (*a, w(","), *b, both, *c)) for p, a in some[:2] for q, b in some for r, c in some]
    return found


def object_of(cat: str, level: str) -> Rules:
    return rules(f"object, {cat}" if cat in "hs" else "object", cat=cat, level=level)


def place() -> Rules:
    rules: Rules = []
    for prep in SPOTS["AT"]:
        p = {"in": 4.0, "at": 1.5, "on": 1.5}.get(prep, 0.7)
        rules.append((p, (w(prep, "in" if p > 1 else "post", prep), ("SPOT", "AT", prep))))
    return rules


def path() -> Rules:
    return rules("path") + [rule for via in SPOTS["VIA"] for rule in rules("via", prep=via)]


def spot(where: str, prep: str) -> Rules:
    """A place that goes with the preposition; "beside the gate", not "through the gate"."""
    named = [noun.key for noun in NOUN["l"] if noun.key != "attic"] if where == "TO" else SPOTS[where][prep]
    rules: Rules = []
    for cat in "lu":
        share = sum(noun.key in named for noun in NOUN[cat])
        if share:
            rules += [
                (p * share, (w(det, det), ("A", cat), ("SPOTS", cat, " ".join(named))))
                for det, p in (("the", 5), ("a", 1))
            ]
    return rules


def spots(cat: str, named: str) -> Rules:
    return [rule for rule in nouns(cat, "s") if rule[1][0][2][1] in named.split()]


KINDS = {
    "P": predicate, "T": tail, "CL": clause, "F": finite, "VV": verb_phrases, "VP": verb_phrase, "CORE": core,
    "V": verb, "PRED": complement, "ADV": adverbs, "NP": noun_phrase, "RF": relative, "GAP": gap, "BASE": base,
    "A": adjectives, "N": nouns, "CO": coordination, "OBJ": object_of, "LOC": place, "PATH": path, "SPOT": spot,
    "SPOTS": spots, "YN": question, "WH": open_question,
    "S": lambda: rules("sentence"),
    "SP": lambda tense: about_subjects(2, "subject and predicate", tense=tense),
    "OWN": lambda: rules("owner"),
    "ORDER": lambda: rules("order"),
    "N'S": lambda cat: nouns(cat, "s", "'s"),
    "NAME": lambda sex: [(1, (w(name, "name", name),)) for name in LISTS["names"][sex]],
    "NAME'S": lambda sex: [(1, (w(name + "'s", "name", name),)) for name in LISTS["names"][sex]],
    "NUM": lambda: [(1 / (n + 2), (w(text, "number", str(n)),)) for text, n in NUMBERS.items()],
    "MANNER": lambda who: [(1, (w(text, "manner", text),)) for text in LISTS["manner"][who]],
    "TIME": lambda tense: [(1, (w(time.key, "time", tense, time.key),)) for time in TIME[tense]],
}  # fmt: skip


@cache
def expand(symbol: Symbol) -> Rules:
    """What the symbol may become, without what nothing can be made of."""
    return [rule for rule in KINDS[symbol[0]](*symbol[1:]) if all(s[0] == "w" or expand(s) for s in rule[1])]
