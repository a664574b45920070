"""The English of the translation table: nouns and what goes with them. See translation_english.py."""

import translation_words as words

Symbol = tuple
Rules = list[tuple[float, tuple[Symbol, ...]]]

HUMAN = ("m", "f", "p", "h")
PRONOUNS = {
    "I": ("1s", "h"),
    "you": ("2", "h"),
    "we": ("1p", "h"),
    "he": ("3s", "m"),
    "she": ("3s", "f"),
    "they": ("3p", "h"),
}
OBJECTS = {"me": "I", "you": "you", "us": "we", "him": "he", "her": "she", "them": "they"}
OWNERS = {"my": "I", "your": "you", "our": "we", "his": "he", "her": "she", "their": "they"}
SUBJECTS = [
    ("m", "s", 2.0),
    ("f", "s", 2.0),
    ("p", "s", 4.0),
    ("k", "s", 2.0),
    ("a", "s", 4.0),
    ("t", "s", 1.5),
    ("g", "s", 0.5),
]
SUBJECTS += [("w", "s", 0.7), ("l", "s", 0.4), ("e", "s", 0.2), ("s", "s", 0.2)]
SUBJECTS += [
    ("m", "p", 0.5),
    ("f", "p", 0.5),
    ("p", "p", 1.5),
    ("k", "p", 0.4),
    ("a", "p", 2.0),
    ("t", "p", 0.8),
    ("g", "p", 0.4),
    ("e", "p", 0.3),
]
ONLY_ONE = ("mother", "father", "grandmother", "grandfather")  # of which one has one


def w(text: str, *meaning: str) -> Symbol:
    return ("w", text, meaning or (text,))


def cat_of(sem: str) -> str:
    return "h" if sem in HUMAN else sem


def noun_phrase(cat: str, num: str, level: int) -> Rules:
    rules: Rules = [(6, (("BASE", cat, num),))]
    if level > 0 and cat not in "ws":
        if cat in HUMAN:
            rules.append((0.9, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "s", "carried"))))
            rules.append((0.3, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "p", "carried"))))
        if cat not in "eks":
            who = w("who" if cat in HUMAN else "that", "rel")
            rules.append((1.5, (("BASE", cat, num), who, ("RF", "3" + num, cat, level - 1))))
        if "h" + cat_of(cat) in words.VERB and cat != "g":
            rules.append(
                (1.2, (("BASE", cat, num), w("whom" if cat in HUMAN else "that", "rel"), ("GAP", "h" + cat_of(cat))))
            )
    return rules


def base(cat: str, num: str, carried: str = "") -> Rules:
    """A noun with its determiner and adjectives; what somebody is described by is indefinite."""
    noun = (("A", "h" if cat in HUMAN else cat), ("N", cat, num))
    if carried:
        return [(1, (w("a", "a"), *noun))] if num == "s" else [(2, noun), (1, (("NUM",), *noun))]
    if cat == "k":
        return [(3, (("OWN",), *noun[1:]))]
    rules: Rules = [(5, (w("the", "the"), *noun))]
    owned = 2.0 if cat in "ates" else 0.2 if cat in "lg" else 0
    if owned:
        rules.append((owned, (("OWN",), *noun)))
    if cat == "s":
        return [*rules, (2, (w("some", "some"), *noun)), (2, noun)]
    if num == "s":
        rules += [(0.5, (w(text, text), *noun)) for text in ("this", "that") if cat not in "w"]
        return [*rules, (3, (w("a", "a"), *noun))] if cat != "w" else rules
    rules += [(2, noun), *((0.4, (w(text, text), *noun)) for text in ("these", "those", "many", "some", "several"))]
    return [*rules, (1.5, (("NUM",), *noun)), (0.5, (w("the", "the"), ("NUM",), *noun))]


def owner() -> Rules:
    rules: Rules = [(1, (w(text, "owner", OWNERS[text]),)) for text in OWNERS]
    rules += [(2, (("NAME'S", sex),)) for sex in "mf"]
    return [
        *rules,
        (3, (w("the", "the"), ("N'S", "p"))),
        (0.3, (w("the", "the"), ("N'S", "m"))),
        (0.3, (w("the", "the"), ("N'S", "f"))),
    ]


def adjectives(cat: str) -> Rules:
    if cat == "w":
        return [(1, ())]
    first, second = (row.split() for row in words.ADJECTIVES[cat])
    leaves = [[(w(text, "adjective", text),) for text in row] for row in (first, second)]
    one = len(first) + len(second)
    rules: Rules = [(5, ()), *((3 / one, leaf) for row in leaves for leaf in row)]
    return rules + [(1.5 / len(first) / len(second), (*a, *b)) for a in leaves[0] for b in leaves[1]]


def nouns(cat: str, num: str, suffix: str = "") -> Rules:
    """Possessors take 's, here only in the singular."""
    form = "sp".index(num)
    rules: Rules = [
        (1, (w(noun.forms[form] + suffix, "noun", noun.key, "", num, cat),))
        for noun in words.NOUN[cat]
        if num == "s" or noun.key not in ONLY_ONE
    ]
    for material, heads in words.COMPOUNDS.items():
        for noun in words.NOUN[cat]:
            if noun.key in heads.split():
                rules.append((0.4, (w(f"{material} {noun.forms[form]}", "noun", noun.key, material, num, cat),)))
    return rules


def coordination(cat: str) -> Rules:
    if cat == "h":
        some = [
            (3.0, ("NAME", "m")),
            (3.0, ("NAME", "f")),
            (1.5, ("BASE", "p", "s")),
            (0.7, ("BASE", "m", "s")),
            (0.7, ("BASE", "f", "s")),
            (0.7, ("BASE", "k", "s")),
        ]
    elif cat == "a":
        some = [(3.0, ("BASE", "a", "s")), (1.0, ("BASE", "a", "p")), (0.8, ("BASE", "p", "s"))]
    else:
        some = [(3.0, ("BASE", cat, "s")), (1.0, ("BASE", cat, "p"))]
    both = w("and", "both")
    rules = [(p * q, (a, both, b)) for p, a in some for q, b in some if cat != "a" or "a" in (a[1], b[1])]
    if cat == "h":
        rules += [(p * q * r / 30, (a, w(","), b, both, c)) for p, a in some[:2] for q, b in some for r, c in some]
    return rules


def object_of(cat: str, level: int) -> Rules:
    if cat == "h":
        rules: Rules = [(2 * p, (("NP", c, n, level),)) for c, n, p in SUBJECTS if c in (*HUMAN, "k")]
        rules += [(4, (("NAME", sex),)) for sex in "mf"]
        return [*rules, *((0.7, (w(text, "object", OBJECTS[text]),)) for text in OBJECTS), (1.5, (("CO", "h"),))]
    if cat == "s":
        return [(1, (("BASE", "s", "s"),))]
    return [(5, (("NP", cat, "s", level),)), (2, (("NP", cat, "p", level),)), (0.7, (("CO", cat),))]


def place() -> Rules:
    rules: Rules = []
    for prep in words.AT:
        p = {"in": 4.0, "at": 1.5, "on": 1.5}.get(prep, 0.7)
        text = prep.replace("_", " ")
        rules.append((p, (w(text, "in" if p > 1 else "post", text), ("SPOT", "AT", prep))))
    return rules


def path() -> Rules:
    to, origin = (w("to", "to"), ("SPOT", "TO", "")), (w("from", "from"), ("SPOT", "TO", ""))
    rules: Rules = [(4, to), (1, origin), (1, origin + to), (1, (w("home", "home"),))]
    for via in words.VIA:
        past = (w(via, "post", via), ("SPOT", "VIA", via))
        rules += [(0.5, past), (0.25, past + to)]
    return rules


def spot(table: str, prep: str) -> Rules:
    """A place that goes with the preposition; "beside the gate", not "through the gate"."""
    if table == "TO":
        named = [noun.key for noun in words.NOUN["l"] if noun.key != "attic"]
    else:
        named = getattr(words, table)[prep].split()
    rules: Rules = []
    for cat in "lu":
        share = sum(noun.key in named for noun in words.NOUN[cat])
        if share:
            rules += [
                (p * share, (w(det, det), ("A", cat), ("SPOTS", cat, " ".join(named))))
                for det, p in (("the", 5), ("a", 1))
            ]
    return rules


def spots(cat: str, named: str) -> Rules:
    return [rule for rule in nouns(cat, "s") if rule[1][0][2][1] in named.split()]
