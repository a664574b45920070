"""The English of the translation table: a grammar that gives every sentence exactly one tree.

A symbol is a tuple: its kind, then features (category, number, form of the verb, ...). A leaf is ("w", text, meaning).
`expand(symbol)` lists what a symbol may become: (weight, symbols). What could be read in two ways is not written: what
follows a relative clause never belongs to the main one, and "with" always describes the noun before it.

Features: cat is a category of NOUNS; sem is the category of a subject; pn is person and number (1s 2 1p 3s 3p); level
says how deep clauses may nest; form is base, third, past, participle, ing, or imperative.
"""

from functools import cache

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
FORMS = ("base", "third", "past", "participle", "ing")
BE = {"past": {"1s": "was", "3s": "was"}, "pres": {"1s": "am", "3s": "is"}}
NOT_ORDERED = set(["disappear", "lose", "tremble", "fear", "arrive", "sneeze", "yawn", "like", "live", "discover", "receive", "remember", "know"])


def w(text: str, *meaning: str) -> Symbol:
    return ("w", text, meaning or (text,))


def cat_of(sem: str) -> str:
    return "h" if sem in HUMAN else sem


def be(tense: str, pn: str) -> str:
    return BE[tense].get(pn, "were" if tense == "past" else "are")


@cache
def subjects(level: int) -> list[tuple[float, str, str, Symbol]]:
    """(weight, pn, sem, symbol) of every kind of subject."""
    found = [(1.0, *PRONOUNS[text], w(text, "subject", text)) for text in PRONOUNS]
    found += [(6.0, "3s", sex, ("NAME", sex)) for sex in "mf"]
    found += [(p, "3" + num, "p" if cat == "k" else cat, ("NP", cat, num, level)) for cat, num, p in SUBJECTS]
    return [*found, (2.0, "3p", "h", ("CO", "h")), (0.8, "3p", "a", ("CO", "a")), (0.4, "3p", "t", ("CO", "t"))]


def sentence() -> Rules:
    rules: Rules = [(12, (("SP", ""),)), (2, (("YN",),)), (2, (("WH",),)), (1.5, (("ORDER",),))]
    rules += [(1, (("TIME", tense), ("SP", tense))) for tense in ("past", "pres", "fut")]
    for conj, first, second in [
        *((c, "past", "past") for c in ("when", "because", "although", "after", "before")),
        *((c, "pres", "fut") for c in ("if", "when")),
        *((c, "pres", "pres") for c in ("when", "because", "if")),
    ]:
        rules.append((0.3, (w(conj, "sub", conj), ("CL", first, 1), w(","), ("CL", second, 2), w("."))))
    return rules


def subject_and_predicate(tense: str) -> Rules:
    return [(p, (subject, ("P", pn, sem, tense))) for p, pn, sem, subject in subjects(2)]


def predicate(pn: str, sem: str, tense: str) -> Rules:
    shares = {"past": 6.0, "pres": 3.0, "fut": 1.5}
    return [(p, (("F", pn, sem, t, 2), ("T", pn, sem, t))) for t, p in shares.items() if tense in ("", t)]


def tail(pn: str, sem: str, tense: str) -> Rules:
    """The end of a statement: a full stop, or another clause."""
    rules: Rules = [(6, (w("."),))]
    conjunctions = [(", and", tense, 1.0), (", but", tense, 1.0), ("because", "pres" if tense == "fut" else tense, 1.0)]
    conjunctions += [("when", "past" if tense == "past" else "pres", 0.7)]
    if tense == "past":
        conjunctions += [("although", "past", 0.5), ("before", "past", 0.4), ("after", "past", 0.4)]
    else:
        conjunctions += [("if", "pres", 0.6)]
    pronoun = {"m": "he", "f": "she", "p": "", "h": ""}.get(sem, "it")
    pronoun = {"1s": "I", "2": "you", "1p": "we", "3s": pronoun, "3p": "they"}[pn]
    for conj, then, p in conjunctions:
        joined = (w(","), w(conj[2:], "join", conj[2:])) if conj[0] == "," else (w(conj, "sub", conj),)
        rules.append((p, (*joined, ("CL", then, 1), w("."))))
        if conj[0] == ",":
            rules.append(
                (
                    0.3,
                    (
                        *joined,
                        ("CL", then, 1),
                        w("because", "sub", "because"),
                        ("CL", then if then != "fut" else "pres", 1),
                        w("."),
                    ),
                )
            )
        if pronoun:
            rules.append((p, (*joined, w(pronoun, "again", pronoun), ("F", pn, sem, then, 1), w("."))))
    return rules


def clause(tense: str, level: int) -> Rules:
    return [(p, (subject, ("F", pn, sem, tense, level))) for p, pn, sem, subject in subjects(level - 1)]


def finite(pn: str, sem: str, tense: str, level: int) -> Rules:
    """A verb phrase with its tense, aspect, mood and negation."""
    present = "third" if pn == "3s" else "base"
    do, have = ("does", "has") if pn == "3s" else ("do", "have")
    rest = (sem, level, tense)
    rules: Rules = []
    if tense == "past":
        rules += [(9, (("VV", "past", *rest),)), (1.8, (w("did not", "not"), ("VP", "base", *rest)))]
        rules += [(1.2, (w(be("past", pn), "aspect", "prog"), ("VV", "ing", *rest)))]
        rules += [(1, (w("had", "aspect", "perf"), ("VV", "participle", *rest)))]
        rules += [(0.5, (w("never", "never"), ("VP", "past", *rest)))]
        rules += [
            (3, (w(be("past", pn), "be"), ("PRED", pn, sem))),
            (1, (w(be("past", pn) + " not", "be", "not"), ("PRED", pn, sem))),
        ]
    elif tense == "pres":
        rules += [(5, (("VV", present, *rest),)), (1.5, (w(do + " not", "not"), ("VP", "base", *rest)))]
        rules += [(0.6, (w(adverb, "often", adverb), ("VV", present, *rest))) for adverb in words.OFTEN]
        rules += [(0.6, (w("never", "never"), ("VP", present, *rest)))]
        rules += [(1.5, (w(be("pres", pn), "aspect", "prog"), ("VV", "ing", sem, level, "now")))]
        rules += [(1, (w(have, "aspect", "perf"), ("VV", "participle", sem, level, "")))]
        rules += [(0.6, (w(have + " not", "aspect", "perf", "not"), ("VP", "participle", sem, level, "")))]
        rules += [
            (3, (w(be("pres", pn), "be"), ("PRED", pn, sem))),
            (1, (w(be("pres", pn) + " not", "be", "not"), ("PRED", pn, sem))),
        ]
        if cat_of(sem) in "ha":
            rules += [
                (1, (w("can", "aspect", "can"), ("VV", "base", *rest))),
                (0.7, (w("cannot", "aspect", "can", "not"), ("VP", "base", *rest))),
            ]
            rules += [
                (0.8, (w("must", "aspect", "must"), ("VV", "base", *rest))),
                (0.3, (w("must not", "aspect", "must", "not"), ("VP", "base", *rest))),
            ]
    else:
        rules += [
            (5, (w("will", "will"), ("VV", "base", *rest))),
            (1.5, (w("will not", "will", "not"), ("VP", "base", *rest))),
        ]
        rules += [(1, (w("will be", "be", "will"), ("PRED", pn, sem)))]
    return rules


def verb_phrases(form: str, sem: str, level: int, tense: str) -> Rules:
    """One verb phrase, or two joined by "and"; the first of two has no relative clause and no adverbs at its end."""
    return [
        (6, (("VP", form, sem, level, tense),)),
        (0.8, (("CORE", "ab", form, sem, 0), w("and", "and"), ("VP", form, sem, level, tense))),
    ]


def verb_phrase(form: str, sem: str, level: int, tense: str) -> Rules:
    """Adverbs follow only where no relative clause could claim them."""
    rules: Rules = [(5, (("CORE", "abc", form, sem, level),))]
    if tense != "rel":
        rules += [(2.5, (("CORE", "a", form, sem, 0), ("ADV", "a", sem, tense)))]
        if cat_of(sem) in "hat" and (tense in words.TIME or cat_of(sem) in "ha"):
            rules += [(1.2, (("CORE", "b", form, sem, 0), ("ADV", "b", sem, tense)))]
    return rules


def core(kinds: str, form: str, sem: str, level: int, inner: bool = False) -> Rules:
    """A verb with its objects. Kinds: a may be followed by a place, b by other adverbs only, c by neither."""
    who, rules = cat_of(sem), []

    def add(p: float, kind: str, frame: str, *rest: Symbol) -> None:
        if kind in kinds and verbs(frame, form):
            rules.append((p, (("V", frame, form), *rest)))

    if who in "ha":
        add(3, "a", who + "0")
        for cat, p in zip("tegsha", (3, 1.2, 0.6, 0.6, 2.5, 2), strict=True):
            if who + cat in words.VERB:
                add(p, "a", who + cat, ("OBJ", cat, level))
        add(1, "b", who + "l", ("NP", "l", "s", level))
        add(1.5, "b", "go" if who == "h" else "ago", ("PATH",))
        if who == "h":
            add(1.2, "a", "give", ("OBJ", "t", 0), w("to", "to"), ("OBJ", "h", level))
            add(0.6, "a", "give", ("OBJ", "e", 0), w("to", "to"), ("OBJ", "h", level))
            add(0.8, "a", "get", ("OBJ", "t", 0), w("from", "from"), ("OBJ", "h", level))
            add(1, "b", "sit", ("LOC",))
            if level > 1 and not inner:
                past = form == "past"
                for tense in ("past",) if past else ("pres", "fut", "past"):
                    add(1.5 if past else 0.5, "c", "think", w("that", "that"), ("CL", tense, 1))
            if not inner:
                rules += [(1.2, (("V", "want", form), w("to"), ("CORE", kinds, "base", sem, level, True)))] * bool(
                    verbs("want", form)
                )
    else:
        frame = {"t": "t0", "g": "g0", "w": "w0"}.get(who, "l0")
        add(2, "a", frame)
        if who == "t":
            add(2, "b", "lie", ("LOC",))
    return rules


def verbs(frame: str, form: str) -> list[words.Word]:
    found = words.VERB.get(frame, [])
    if form == "ing":
        found = [verb for verb in found if verb.key not in words.STATIVE and frame != "want" and verb.key != "live"]
    if form == "imperative":
        found = [verb for verb in found if verb.key not in NOT_ORDERED and frame != "want"]
    return found


def verb(frame: str, form: str) -> Rules:
    index = 0 if form == "imperative" else FORMS.index(form)
    return [(1, (w(verb.forms[index], "verb", verb.key, form),)) for verb in verbs(frame, form)]


def complement(pn: str, sem: str) -> Rules:
    """What is said after "to be"."""
    who = cat_of(sem)
    states = sorted({*words.PREDICATES.get(who, "").split(), *words.STATES.get(who, "").split()})
    rules: Rules = [(3 / len(states), (w(adjective, "adjective", adjective),)) for adjective in states]
    rules += [(1 / len(states), (w("very"), w(adjective, "adjective", adjective, "very"))) for adjective in states]
    if who in words.PREDICATES:
        plain = words.PREDICATES[who].split()
        than = (w("than", "than"), ("NP", "p" if who == "h" else who, "s", 0))
        rules += [(0.6 / len(plain), (w(words.comparative(a), "adjective", a, "more"), *than)) for a in plain]
        if who == "h":
            rules += [
                (0.3 / len(plain), (w(words.comparative(a), "adjective", a, "more"), than[0], ("NAME", s)))
                for a in plain
                for s in "mf"
            ]
    if who in "hat":
        rules.append((1, (("LOC",),)))
    if sem in ("m", "f", "p") and pn == "3s":
        rules.append((0.8, (w("a", "a"), ("A", "h"), ("N", "p", "s"))))
    return rules


def adverbs(kind: str, sem: str, tense: str) -> Rules:
    manner, place, time = ("MANNER", cat_of(sem)), ("LOC",), ("TIME", tense)
    moves, timed, placed = cat_of(sem) in "ha", tense in words.TIME, kind == "a"
    return [
        (p, symbols)
        for p, symbols, possible in [
            (2, (manner,), moves),
            (2, (place,), placed),
            (2, (time,), timed),
            (0.5, (manner, place), moves and placed),
            (0.7, (manner, time), moves and timed),
            (0.7, (place, time), placed and timed),
        ]
        if possible
    ]


def noun_phrase(cat: str, num: str, level: int) -> Rules:
    rules: Rules = [(6, (("BASE", cat, num),))]
    if level > 0 and cat not in "ws":
        if cat in HUMAN:
            rules.append((0.9, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "s"))))
            rules.append((0.3, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "p"))))
        if cat not in "eks":
            who = w("who" if cat in HUMAN else "that", "rel")
            rules.append((1.5, (("BASE", cat, num), who, ("RF", "3" + num, cat, level - 1))))
        if "h" + cat_of(cat) in words.VERB and cat != "g":
            rules.append(
                (1.2, (("BASE", cat, num), w("whom" if cat in HUMAN else "that", "rel"), ("GAP", "h" + cat_of(cat))))
            )
    return rules


def relative(pn: str, sem: str, level: int) -> Rules:
    rest = (sem, level, "rel")
    return [
        (6, (("VP", "past", *rest),)),
        (2, (("VP", "third" if pn == "3s" else "base", *rest),)),
        (1, (w("did not", "not"), ("VP", "base", *rest))),
        (1, (w("had", "aspect", "perf"), ("VP", "participle", *rest))),
        (0.8, (w(be("past", pn), "aspect", "prog"), ("VP", "ing", *rest))),
        (0.8, (w(be("pres", pn), "aspect", "prog"), ("VP", "ing", *rest))),
        (1, (w(be("past", pn), "be"), ("PRED", pn, sem))),
        (1, (w(be("pres", pn), "be"), ("PRED", pn, sem))),
    ]


def gap(frame: str) -> Rules:
    """A clause whose object is the noun that it describes: "that the boy found"."""
    rules: Rules = []
    for p, pn, sem, subject in subjects(0):
        if cat_of(sem) == "h":
            rules += [
                (p, (subject, ("V", frame, "past"))),
                (p / 4, (subject, ("V", frame, "third" if pn == "3s" else "base"))),
            ]
            rules += [(p / 6, (subject, w("had", "aspect", "perf"), ("V", frame, "participle")))]
            rules += [(p / 6, (subject, w("did not", "not"), ("V", frame, "base")))]
    return rules


def base(cat: str, num: str) -> Rules:
    """A noun with its determiner and adjectives."""
    noun = (("A", "h" if cat in HUMAN else cat), ("N", cat, num))
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
    first, second = (row.split() for row in words.ADJECTIVES[cat])
    leaves = [[(w(text, "adjective", text),) for text in row] for row in (first, second)]
    one = len(first) + len(second)
    rules: Rules = [(5, ()), *((3 / one, leaf) for row in leaves for leaf in row)]
    return rules + [(1.5 / len(first) / len(second), (*a, *b)) for a in leaves[0] for b in leaves[1]]


def nouns(cat: str, num: str, suffix: str = "") -> Rules:
    """Possessors take 's, here only in the singular."""
    form = "sp".index(num)
    rules: Rules = [(1, (w(noun.forms[form] + suffix, "noun", noun.key, "", num, cat),)) for noun in words.NOUN[cat]]
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
    rules = [(p * q, (a, both, b)) for p, a in some for q, b in some]
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


def question() -> Rules:
    """Answered by yes or no."""
    rules: Rules = []
    for p, pn, sem, subject in subjects(1):
        do, have = ("does", "has") if pn == "3s" else ("do", "have")
        end = w("?")
        rules += [(3 * p, (w("did", "past"), subject, ("VP", "base", sem, 1, "past"), end))]
        rules += [(p, (w(do, "do"), subject, ("VP", "base", sem, 1, "pres"), end))]
        rules += [(p, (w("will", "will"), subject, ("VP", "base", sem, 1, "fut"), end))]
        rules += [(0.5 * p, (w(have, "aspect", "perf"), subject, ("VP", "participle", sem, 1, ""), end))]
        if cat_of(sem) in "ha":
            rules += [(0.7 * p, (w("can", "aspect", "can"), subject, ("VP", "base", sem, 1, "pres"), end))]
        for tense in ("past", "pres"):
            rules += [
                (
                    0.5 * p,
                    (
                        w(be(tense, pn), "aspect", "prog", tense),
                        subject,
                        ("VP", "ing", sem, 1, "now" if tense == "pres" else tense),
                        end,
                    ),
                )
            ]
            rules += [(0.7 * p, (w(be(tense, pn), "be", tense), subject, ("PRED", pn, sem), end))]
    return rules


def open_question() -> Rules:
    end = w("?")
    rules: Rules = [
        (p, (w("who", "who"), ("F", "3s", "h", tense, 1), end)) for tense, p in (("past", 5), ("pres", 2), ("fut", 1))
    ]
    for tense, p in (("past", 3), ("pres", 1)):
        for cat, q in (("a", 0.5), ("t", 0.2)):
            rules.append((p * q, (w("whose", "whose"), ("A", cat), ("N", cat, "s"), ("F", "3s", cat, tense, 1), end)))
            rules.append((p * q, (w("which", "which"), ("A", cat), ("N", cat, "s"), ("F", "3s", cat, tense, 1), end)))
    for p, pn, sem, subject in subjects(0):
        does = "does" if pn == "3s" else "do"
        for aux, meaning, tense, q in (("did", "past", "past", 3), (does, "do", "pres", 1), ("will", "will", "fut", 1)):
            if cat_of(sem) == "h":
                rules.append((0.25 * p * q, (w("what", "what"), w(aux, meaning), subject, ("V", "ht", "base"), end)))
                rules.append((0.1 * p * q, (w("whom", "whom"), w(aux, meaning), subject, ("V", "hh", "base"), end)))
                many = (w("how many"), ("A", "t"), ("N", "t", "p"))
                rules.append((0.1 * p * q, (*many, w(aux, meaning), subject, ("V", "ht", "base"), end)))
            if cat_of(sem) in "ha":
                rules.append(
                    (0.15 * p * q, (w("where", "where"), w(aux, meaning), subject, ("CORE", "a", "base", sem, 0), end))
                )
                rules.append(
                    (0.1 * p * q, (w("when", "whenq"), w(aux, meaning), subject, ("CORE", "ab", "base", sem, 1), end))
                )
            rules.append((0.2 * p * q, (w("why", "why"), w(aux, meaning), subject, ("VP", "base", sem, 1, "rel"), end)))
    return rules


def order() -> Rules:
    what = ("CORE", "ab", "imperative", "h", 1, True)
    adverb = (("CORE", "a", "imperative", "h", 0, True), ("LOC",))
    later = (("CORE", "ab", "imperative", "h", 0, True), ("TIME", "fut"))
    forms: Rules = [(2, (what,)), (1, adverb), (1, later)]
    rules: Rules = [(p, (*said, w("."))) for p, said in forms]
    rules += [(p / 2, (w("do not", "not"), *said, w("."))) for p, said in forms]
    return rules + [(p / 2, (w("please", "please"), *said, w("."))) for p, said in forms]


KINDS = {
    "S": sentence, "SP": subject_and_predicate, "P": predicate, "T": tail, "CL": clause, "F": finite, "VV": verb_phrases,
    "VP": verb_phrase, "CORE": core, "V": verb, "PRED": complement, "ADV": adverbs, "NP": noun_phrase, "RF": relative,
    "GAP": gap, "BASE": base, "OWN": owner, "A": adjectives, "N": nouns, "CO": coordination, "OBJ": object_of,
    "LOC": place, "PATH": path, "SPOT": spot, "SPOTS": spots, "YN": question, "WH": open_question, "ORDER": order,
    "N'S": lambda cat: nouns(cat, "s", "'s"),
    "NAME": lambda sex: [(1, (w(name, "name", name),)) for name in NAMES[sex].split()],
    "NAME'S": lambda sex: [(1, (w(name + "'s", "name", name),)) for name in NAMES[sex].split()],
    "NUM": lambda: [(1 / (n + 2), (w(text, "number", str(n)),)) for text, n in words.NUMBERS.items()],
    "MANNER": lambda who: [(1, (w(text, "manner", text),)) for text in words.MANNER[who].split()],
    "TIME": lambda tense: [(1, (w(time.key, "time", tense, time.key),)) for time in words.TIME[tense]],
}  # fmt: skip
NAMES = {"m": words.MALE_NAMES, "f": words.FEMALE_NAMES}


@cache
def expand(symbol: Symbol) -> Rules:
    """What the symbol may become, without what nothing can be made of."""
    return [rule for rule in KINDS[symbol[0]](*symbol[1:]) if all(s[0] == "w" or expand(s) for s in rule[1])]
