"""The English of the translation table: a grammar that gives every sentence exactly one tree.

A symbol is a tuple: its kind, then features (category, number, form of the verb, ...). A leaf is ("w", text, meaning).
`expand(symbol)` lists what a symbol may become: (weight, symbols). What could be read in two ways is not written: what
follows a relative clause never belongs to the main one, and "with" always describes the noun before it.

Features: cat is a category of NOUN; sem is the category of a subject; pn is person and number (1s 2 1p 3s 3p); level
says how deep clauses may nest; form is base, third, past, participle, ing, and two that are spelt as base is: infinitive
after "to", imperative.
"""

from functools import cache

from vocabulary import LISTS, NOUN, NUMBERS, SPOTS, TIME, VERB, comparative
from words import table

Symbol = tuple
Rules = list[tuple[float, tuple[Symbol, ...]]]

HUMAN = ("m", "f", "p", "h")
PRONOUNS = {row.subject: row for row in table(LISTS["pronouns"])}
SUBJECTS = [(row.cat, row.num, float(row.weight)) for row in table(LISTS["subjects"])]
FORMS = ("base", "third", "past", "participle", "ing")
BE = {"past": {"1s": "was", "3s": "was"}, "pres": {"1s": "am", "3s": "is"}}
NOT_WANTED, STATIVE = {*LISTS["not_wanted"]}, {*LISTS["stative"]}
NOT_ORDERED = NOT_WANTED | {*LISTS["not_ordered"]}
NO_MANNER = NOT_ORDERED | STATIVE | {*LISTS["no_manner"]}


def w(text: str, *meaning: str) -> Symbol:
    return ("w", text, meaning or (text,))


def cat_of(sem: str) -> str:
    return "h" if sem in HUMAN else sem


def be(tense: str, pn: str) -> str:
    return BE[tense].get(pn, "were" if tense == "past" else "are")


@cache
def subjects(level: int) -> list[tuple[float, str, str, Symbol]]:
    """(weight, pn, sem, symbol) of every kind of subject."""
    found = [(1.0, row.pn, row.sem, w(text, "subject", text)) for text, row in PRONOUNS.items()]
    found += [(6.0, "3s", sex, ("NAME", sex)) for sex in "mf"]
    found += [(p, "3" + num, "p" if cat == "k" else cat, ("NP", cat, num, level)) for cat, num, p in SUBJECTS]
    return [*found, (2.0, "3p", "h", ("CO", "h")), (0.8, "3p", "a", ("CO", "a")), (0.4, "3p", "t", ("CO", "t"))]


def sentence() -> Rules:
    rules: Rules = [(12, (("SP", ""),)), (2, (("YN",),)), (2, (("WH",),)), (1.5, (("ORDER",),))]
    rules += [(1, (("TIME", tense), ("SP", tense))) for tense in ("past", "habit", "fut")]
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
    """A sentence that begins with a time has its tense from it, and no second time in its first clause."""
    shares = {tense: 1.0} if tense else {"past": 6.0, "pres": 3.0, "fut": 1.5}
    return [(p, (("F", pn, sem, t, 2, bool(tense)), ("T", pn, sem, t))) for t, p in shares.items()]


def tail(pn: str, sem: str, tense: str) -> Rules:
    """The end of a statement: a full stop, or another clause, in which a pronoun may stand for the subject."""
    rules: Rules = [(6, (w("."),))]
    pronoun = {"m": "he", "f": "she", "p": "", "h": ""}.get(sem, "it")
    pronoun = {"1s": "I", "2": "you", "1p": "we", "3s": pronoun, "3p": "they"}[pn]
    tense = "pres" if tense == "habit" else tense
    then = "past" if tense == "past" else "pres"
    because = w("because", "sub", "because")
    for conj in ("and", "but"):
        joined = (w(","), w(conj, "join", conj))
        rules.append((1, (*joined, ("CL", tense, 1, pronoun), w("."))))
        rules.append((0.3, (*joined, ("CL", tense, 1, pronoun), because, ("CL", then, 1, pronoun), w("."))))
        if pronoun:
            rules.append((1, (*joined, w(pronoun, "again", pronoun), ("F", pn, sem, tense, 1), w("."))))
    more = {"although": 0.5, "before": 0.4, "after": 0.4} if tense == "past" else {"if": 0.6}
    for conj, p in ({"because": 1, "when": 0.7} | more).items():
        rules.append((p, (w(conj, "sub", conj), ("CL", then, 1, pronoun), w("."))))
        if pronoun:
            rules.append((p, (w(conj, "sub", conj), w(pronoun, "again", pronoun), ("F", pn, sem, then, 1), w("."))))
    return rules


def clause(tense: str, level: int, taken: str = "") -> Rules:
    """A clause; the pronoun that is taken stands for the subject of the sentence, and is no subject here."""
    return [
        (p, (subject, ("F", pn, sem, tense, level)))
        for p, pn, sem, subject in subjects(level - 1)
        if subject[:2] != ("w", taken)
    ]


def finite(pn: str, sem: str, tense: str, level: int, timed: bool = False) -> Rules:
    """A verb phrase with its tense, aspect, mood and negation. What is not simple present takes no "every day"."""
    present = "third" if pn == "3s" else "base"
    do, have = ("does", "has") if pn == "3s" else ("do", "have")
    rules: Rules = []

    def add(p: float, form: str, *before: Symbol, kind: str = "VV", time: str = tense) -> None:
        rules.append((p, (*before, (kind, form, sem, level, "" if timed else time))))

    if tense == "past":
        add(9, "past")
        add(1.8, "base", w("did not", "not"), kind="VP")
        add(1.2, "ing", w(be("past", pn), "aspect", "prog"))
        add(1, "participle", w("had", "aspect", "perf"))
        add(0.5, "past", w("never", "never"), kind="VP", time="")
    elif tense == "fut":
        add(5, "base", w("will", "will"))
        add(1.5, "base", w("will not", "will", "not"), kind="VP")
    else:
        add(5, present, time="habit")
        add(1.5, "base", w(do + " not", "not"), kind="VP", time="habit")
        if tense == "pres":
            for adverb in LISTS["often"]:
                add(0.5, present, w(adverb, "often", adverb), time="")
            add(0.6, present, w("never", "never"), kind="VP", time="")
            add(1.5, "ing", w(be("pres", pn), "aspect", "prog"), time="")
            add(1, "participle", w(have, "aspect", "perf"), time="")
            add(0.6, "participle", w(have + " not", "aspect", "perf", "not"), kind="VP", time="")
        if cat_of(sem) in "ha":
            for modal, negated, p in (("can", "cannot", 1), ("must", "must not", 0.6)):
                add(p, "base", w(modal, "aspect", modal), time="habit")
                add(p / 2, "base", w(negated, "aspect", modal, "not"), kind="VP", time="habit")
    if tense == "habit":
        return rules
    if tense == "fut":
        return [*rules, (1, (w("will be", "be", "will"), ("PRED", pn, sem)))]
    is_ = be("past" if tense == "past" else "pres", pn)
    return [*rules, (3, (w(is_, "be"), ("PRED", pn, sem))), (1, (w(is_ + " not", "be", "not"), ("PRED", pn, sem)))]


def verb_phrases(form: str, sem: str, level: int, tense: str) -> Rules:
    """One verb phrase, or two joined by "and"; the first of two ends in no relative clause or adverb, nor, as it
    might join infinitives, is it "want to"."""
    return [
        (6, (("VP", form, sem, level, tense),)),
        (0.8, (("CORE", "ab", form, sem, 0, form == "base"), w("and", "and"), ("VP", form, sem, level, tense))),
    ]


def verb_phrase(form: str, sem: str, level: int, tense: str) -> Rules:
    """Adverbs follow only where no relative clause could claim them."""
    rules: Rules = [(5, (("CORE", "abc", form, sem, level),))]
    if tense != "rel":
        for kind, p in (("a", 1.5), ("b", 0.7)):
            rules.append((p, (("CORE", kind, form, sem, 0), ("ADV", kind, sem, tense))))
            if cat_of(sem) in "ha":
                rules.append((p, (("CORE", kind + "m", form, sem, 0), ("ADV", kind + "m", sem, tense))))
    return rules


def core(kinds: str, form: str, sem: str, level: int, inner: bool = False) -> Rules:
    """A verb with its objects. Kinds: a may be followed by a place, b by other adverbs only, c by neither; m: in some
    manner, which leaves out verbs that have none."""
    who = cat_of(sem)
    rules: Rules = []

    def add(p: float, kind: str, frame: str, *rest: Symbol) -> None:
        if kind in kinds:
            rules.append((p, (("V", frame, form, "m" if "m" in kinds else ""), *rest)))

    add(3, "a", who + "0")
    if who == "t":
        add(2, "b", "lie", ("LOC",))
    if who not in "ha":
        return rules
    for cat, p in zip("tegsha", (3, 1.2, 0.6, 0.6, 2.5, 2), strict=True):
        if who + cat in VERB:
            add(p, "a", who + cat, ("OBJ", cat, level))
    add(1, "b", who + "l", ("NP", "l", "s", level))
    add(1.5, "b", "go" if who == "h" else "ago", ("PATH",))
    if who == "h":
        to, origin = (w("to", "to"), ("OBJ", "h", level)), (w("from", "from"), ("OBJ", "h", level))
        add(1.2, "b", "give", ("OBJ", "t", 0), *to)
        add(0.6, "b", "give", ("OBJ", "e", 0), *to)
        add(0.8, "b", "get", ("OBJ", "t", 0), *origin)
        add(1, "b", "sit", ("LOC",))
        if not inner:
            rules.append((1.2, (("V", "want", form), w("to"), ("CORE", kinds, "infinitive", sem, level, True))))
            if level > 1:
                for tense, share in (
                    {"past": 1.5}.items() if form == "past" else (("pres", 0.5), ("fut", 0.5), ("past", 0.5))
                ):
                    add(share, "c", "think", w("that", "that"), ("CL", tense, 1))
    return rules


def verb(frame: str, form: str, manner: str = "") -> Rules:
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
        than = (w("than", "than"), ("NP", "p" if who == "h" else who, "s", 0))
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


def question() -> Rules:
    """Answered by yes or no."""
    rules: Rules = []
    for p, pn, sem, subject in subjects(1):
        do, have = ("does", "has") if pn == "3s" else ("do", "have")
        asked: list[tuple[float, Symbol, Symbol]] = [
            (3, w("did", "past"), ("VP", "base", sem, 1, "past")),
            (1, w(do, "do"), ("VP", "base", sem, 1, "habit")),
            (1, w("will", "will"), ("VP", "base", sem, 1, "fut")),
            (0.5, w(have, "aspect", "perf"), ("VP", "participle", sem, 1, "")),
        ]
        if cat_of(sem) in "ha":
            asked.append((0.7, w("can", "aspect", "can"), ("VP", "base", sem, 1, "habit")))
        for tense in ("past", "pres"):
            asked.append((0.5, w(be(tense, pn), "aspect", "prog", tense), ("VP", "ing", sem, 1, "")))
            asked.append((0.7, w(be(tense, pn), "be", tense), ("PRED", pn, sem)))
        rules += [(p * q, (aux, subject, predicate, w("?"))) for q, aux, predicate in asked]
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
        for aux, meaning, q in (("did", "past", 3), (does, "do", 1), ("will", "will", 1)):
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
                    (0.1 * p * q, (w("when", "when"), w(aux, meaning), subject, ("CORE", "ab", "base", sem, 1), end))
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


# --- nouns and what goes with them ------------------------------------------------------------------------------------


def noun_phrase(cat: str, num: str, level: int) -> Rules:
    rules: Rules = [(6, (("BASE", cat, num),))]
    if level > 0 and cat not in "ws":
        if cat in HUMAN:
            rules.append((0.9, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "s", "carried"))))
            rules.append((0.3, (("BASE", cat, num), w("with", "with"), ("BASE", "t", "p", "carried"))))
        if cat not in "eks":
            who = w("who" if cat in HUMAN else "that", "rel")
            rules.append((1.5, (("BASE", cat, num), who, ("RF", "3" + num, cat, level - 1))))
        if "h" + cat_of(cat) in VERB and cat != "g":
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
    rules: Rules = [(1, (w(row.owner, "owner", text),)) for text, row in PRONOUNS.items()]
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
        rules += [(0.7, (w(row.object, "object", text),)) for text, row in PRONOUNS.items()]
        return [*rules, (1.5, (("CO", "h"),))]
    if cat == "s":
        return [(1, (("BASE", "s", "s"),))]
    return [(5, (("NP", cat, "s", level),)), (2, (("NP", cat, "p", level),)), (0.7, (("CO", cat),))]


def place() -> Rules:
    rules: Rules = []
    for prep in SPOTS["AT"]:
        p = {"in": 4.0, "at": 1.5, "on": 1.5}.get(prep, 0.7)
        rules.append((p, (w(prep, "in" if p > 1 else "post", prep), ("SPOT", "AT", prep))))
    return rules


def path() -> Rules:
    to, origin = (w("to", "to"), ("SPOT", "TO", "")), (w("from", "from"), ("SPOT", "TO", ""))
    rules: Rules = [(4, to), (1, origin), (1, origin + to), (1, (w("home", "home"),))]
    for via in SPOTS["VIA"]:
        past = (w(via, "post", via), ("SPOT", "VIA", via))
        rules += [(0.5, past), (0.25, past + to)]
    return rules


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
    "S": sentence, "SP": subject_and_predicate, "P": predicate, "T": tail, "CL": clause, "F": finite, "VV": verb_phrases,
    "VP": verb_phrase, "CORE": core, "V": verb, "PRED": complement, "ADV": adverbs, "NP": noun_phrase, "RF": relative,
    "GAP": gap, "BASE": base, "OWN": owner, "A": adjectives, "N": nouns, "CO": coordination, "OBJ": object_of,
    "LOC": place, "PATH": path, "SPOT": spot, "SPOTS": spots, "YN": question, "WH": open_question, "ORDER": order,
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
