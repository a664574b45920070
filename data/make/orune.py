"""Sentences of Orune: from the tree of an English sentence to its translation. language.py has words and phrases.

    translate(tree) -> [Form, ...]     tree of english.py; a Form is (text, gloss)

Every sentence has exactly one translation. Order: time, subject, place, goal or source, object, manner, verb; clauses
that depend on another come before it; what describes a noun by a noun or a clause stands before it, its adjectives and
its article after it.
"""

from collections.abc import Sequence
from typing import Any

from language import CLASSES, MARK_GLOSSES, Form, agreeing, build, case_form, marker, pronoun, root, with_adjectives
from vocabulary import TIME, VERB
from words import load, table

LANGUAGE = load("orune")
ASPECTS, LINKS, TENSES, VERBAL = (LANGUAGE[name] for name in ("aspects", "links", "tenses", "verbal"))
PRONOUN_MARKS, DIGITS = LANGUAGE["pronouns"], LANGUAGE["digits"]
QUESTIONS = {row.asked: row for row in table(LANGUAGE["questions"])}

# The parts of a clause in their order, before the verb; earlier is the first of two verb phrases joined by "and".
RESTARTED = ("place", "goal", "object", "manner")  # by the second of them
PARTS = ("before", "time", "subject", "earlier", *RESTARTED, "frequency")


class Clause:
    """A clause, which add() fills from left to right through the English one."""

    def __init__(self, link: str = "", mark: str = "", tense: str = "pres", subject: Sequence[Form] = ()) -> None:
        self.link = link  # how it depends on another clause
        self.mark = mark  # by which the verb agrees with the subject
        self.tense, self.aspect, self.negative = tense, "", False
        self.stem: list[tuple[str, str]] = []
        self.case = "NOM"  # of the next noun phrase
        self.parts: dict[str, list[Form]] = {part: [] for part in PARTS} | {"subject": [*subject]}

    def add(self, *nodes: Any) -> "Clause":
        for node in nodes:
            (kind, *features), kids = node.symbol, node.kids
            match kind:
                case "w" if node.meaning[0] != "subject":
                    self.add_leaf(*node.meaning)
                case "w" | "OBJ" | "NP" | "CO" | "NAME":
                    forms, mark = nominal(node, self.case)
                    self.parts[{"NOM": "subject", "ACC": "object"}.get(self.case, "goal")] += forms
                    self.mark = mark if self.case == "NOM" else self.mark
                case "F":
                    self.tense = "pres" if features[2] == "habit" else features[2]
                    self.add(*kids)
                case "VV" if len(kids) == 3:
                    self.add(kids[0])
                    prefix, suffix = (self.mark, MARK_GLOSSES[self.mark]), (LINKS["and"], "and")
                    both = build(prefix, *self.stem, suffix, harmony=self.stem[0][0])
                    self.parts["earlier"] = [form for part in RESTARTED for form in self.parts[part]] + [both]
                    self.parts |= {part: [] for part in RESTARTED}
                    self.add(kids[2])
                case "CORE" if kids[0].symbol[1] == "want":
                    self.add(kids[2])
                    wish = kids[0].kids[0].meaning[1]
                    self.stem.insert(1, (VERBAL[wish], wish))
                case "VV" | "VP" | "CORE" | "ADV":
                    self.case = "ACC"
                    self.add(*kids)
                case "V":
                    *modifiers, head = next(v.roots for v in VERB[features[0]] if v.key == kids[0].meaning[1])
                    self.parts["manner"] = [root("m", modifier) for modifier in modifiers]
                    self.stem = [root("v", head)]
                case "PRED":
                    if kids[-1].symbol[0] == "N":
                        self.parts["object"] = with_adjectives(kids[2], kids[1].kids, False, "NOM")[0]
                    else:
                        self.add(*kids)
                    self.stem = self.stem or [root("v", "be")]
                case "TIME":
                    self.parts["time"] += time(node)
                case "LOC":
                    self.parts["place"] += places(node)
                case "PATH":
                    self.parts["goal"] += places(node)
                case "MANNER":
                    self.parts["manner"].insert(0, root("m", kids[0].meaning[1]))
                case "CL":
                    self.parts["before"] += clause(node, "that")
        return self

    def add_leaf(self, kind: str, *more: str) -> None:
        self.negative |= kind in ("not", "never") or "not" in more
        for tense in {"past", "pres"} & {*more}:
            self.tense = tense
        match kind:
            case "past":
                self.tense = "past"
            case "will":
                self.tense = "fut"
            case "aspect":
                self.aspect = more[0]
            case "often" | "never":
                self.parts["frequency"].append(root("m", more[0] if more else "always"))
            case "to" | "from" | "than":
                self.case = "ALL" if kind == "to" else "ABL"
            case "please":
                self.parts["before"].append(root("f", "please"))
            case "adjective":
                key, *degree = more
                shape, gloss = root("a", key)
                self.stem = [(shape[:2] + shape, "very-" + gloss) if "very" in degree else (shape, gloss)]
                self.stem += [("do", "more")] * ("more" in degree)

    def words(self) -> list[Form]:
        """The last word is the verb: subject, negation, root, aspect, tense, link."""
        prefix = [(self.mark, MARK_GLOSSES.get(self.mark, "")), ("vi" * self.negative, "NEG")]
        suffix = [(ASPECTS.get(self.aspect, ""), self.aspect.upper()), (TENSES[self.tense], self.tense.upper())]
        verb = build(*prefix, *self.stem, *suffix, (LINKS.get(self.link, ""), self.link), harmony=self.stem[0][0])
        return [*(form for part in PARTS for form in self.parts[part]), verb]


def translate(tree: Any) -> list[Form]:
    """The words of the translation, with their glosses."""
    said, kind = tree.kids, tree.kids[0].symbol[0]
    if kind == "w":  # a dependent clause, then the main clause
        return clause(said[1], said[0].meaning[1]) + clause(said[3])
    if kind == "ORDER":
        return Clause(tense="imp").add(*said[0].kids).words()
    if kind == "YN":
        return [*Clause().add(*said[0].kids).words(), Form("ke", "Q")]
    if kind == "WH":
        return [*open_question(said[0].kids), Form("ke", "Q")]
    return statement(*said)


def clause(node: Any, link: str = "") -> list[Form]:
    return Clause(link).add(*node.kids).words()


def statement(*nodes: Any) -> list[Form]:
    """Perhaps a time, then a subject, a verb phrase, and perhaps other clauses."""
    *first, (_, (subject, predicate)) = nodes
    verb, tail = predicate.kids
    main = Clause().add(*first, subject, verb)
    link, before, after = "", [], []
    for kid in tail.kids:
        match kid.meaning:
            case "join", word:
                after.append(Form("so" if word == "and" else "mo", word))
            case "sub", link:
                pass
            case "again", english:
                again = pronoun(english, main.mark, "NOM")
            case ():
                is_again = kid.symbol[0] == "F"
                more = Clause(link, main.mark, subject=again).add(kid).words() if is_again else clause(kid, link)
                if not link:
                    after += more
                elif after:  # "..., and it slept because it was old": the reason stands before what it explains
                    after[1:1] = more
                else:
                    before = more
    return before + main.words() + after


def relative(node: Any, mark: str) -> list[Form]:
    """A relative clause before its noun. In GAP the noun is its object and its subject is said."""
    auxiliaries = [kid.symbol[1] for kid in node.kids if kid.meaning and kid.meaning[0] != "subject"]
    is_past = auxiliaries[0] not in ("is", "are") if auxiliaries else "past" in node.kids[-1].symbol
    return Clause("REL", mark, "past" if is_past else "pres").add(*node.kids).words()


def open_question(nodes: Any) -> list[Form]:
    first, *rest = nodes
    asked = first.meaning[0]
    if asked == "who":
        return Clause(mark="na", subject=[Form("yora", "who")]).add(*rest).words()
    if asked in ("whose", "which"):
        said, mark = with_adjectives(rest[1], rest[0].kids, False, "NOM")
        said = [Form("yoras", "who-GEN"), *said] if asked == "whose" else [*said, agreeing("yo", "which", mark)]
        return Clause(mark=mark, subject=said).add(*rest).words()
    found, question = Clause().add(*rest), QUESTIONS[asked]
    nouns = with_adjectives(rest[1], rest[0].kids, True, "ACC")[0] if asked == "how many" else []
    found.parts[question.part][:0] = [Form(question.word, question.gloss), *nouns]
    return found.words()


def time(node: Any) -> list[Form]:
    _, tense, key = node.kids[0].meaning
    roots = next(entry.roots for entry in TIME[tense] if entry.key == key)
    if roots[-1] == "in":
        return [case_form([root("t", roots[0])], False, "LOC")]
    return [root("t", piece) for piece in roots]


def places(node: Any) -> list[Form]:
    """LOC or PATH: the case alone for in, on, at, to and from; otherwise a postposition after the genitive."""
    said: list[Form] = []
    for prep, spot in zip(node.kids[::2], node.kids[1::2], strict=False):
        kind, *post = prep.meaning
        said += described(spot, {"in": "LOC", "to": "ALL", "from": "ABL", "post": "GEN"}[kind])[0]
        said += [root("post", word) for word in post if kind == "post"]
    return said or [root("f", "home")]


def numeral(n: int) -> list[Form]:
    """Counted by eights: 20 is two eights four."""
    eights, ones = divmod(n, 8)
    said = [eights] * (eights > 1) + [8] * (eights > 0) + [ones] * (ones > 0)
    return [Form(DIGITS[str(digit)], str(digit)) for digit in said]


def nominal(node: Any, case: str) -> tuple[list[Form], str]:
    """A noun phrase in a case, and the mark by which others agree with it."""
    kind, kids = node.symbol[0], node.kids
    match kind:
        case "w":
            english = node.meaning[1]
            return pronoun(english, PRONOUN_MARKS[english], case), PRONOUN_MARKS[english]
        case "NAME" | "NAME'S":
            english = kids[0].meaning[1]
            return [case_form([root("names", english)], False, case)], "na"
        case "OBJ" | "NP":
            said, mark = nominal(kids[0], case)
            if len(kids) == 3:
                second = kids[2]
                described_by = nominal(second, "COM")[0] if second.symbol[0] == "WITH" else relative(second, mark)
                said = described_by + said
            return said, mark
        case "CO":
            parts = [nominal(kid, case) for kid in kids if kid.symbol[0] != "w"]
            classes = {cls for cls, pair in CLASSES.items() for _, mark in parts if mark in pair}
            cls = classes.pop() if len(classes) == 1 else "1" if "1" in classes else "4"
            return [*(form for said, _ in parts for form in said), Form("so", "both")], CLASSES[cls][True]
    return described(node, case)


def described(node: Any, case: str) -> tuple[list[Form], str]:
    """Determiner, adjectives and noun."""
    before: list[Form] = []
    after: list[tuple[str, str]] = []
    adjectives: Any = ()
    *determiners, noun = node.kids
    if determiners and determiners[-1].symbol[0] == "A":
        adjectives = determiners.pop().kids
    for kid in determiners:
        match kid.symbol[0], *kid.meaning:
            case ("OWN",):
                first, *owner = kid.kids
                before += (with_adjectives(owner[0], (), False, "GEN") if owner else nominal(first, "GEN"))[0]
            case ("NUM",):
                before += numeral(int(kid.kids[0].meaning[1]))
            case _, "this" | "these" | "that" | "those" as word:
                after.append(("ve", "this") if word in ("this", "these") else ("go", "that"))
            case _, "a":
                after.append(("i", "INDEF"))
            case _, word if word != "the":
                after.append(root("q", word))
    _, key, _, num, cat = noun.kids[0].meaning
    said, mark = with_adjectives(noun, adjectives, num == "p", case)
    said += [agreeing(shape, gloss, mark) for shape, gloss in after]
    if not determiners:
        said.append(agreeing("i", "INDEF", marker(key, cat, True)))
    return before + said, mark
