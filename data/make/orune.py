"""Sentences of Orune: from the tree of an English sentence to its translation. language.py has words and phrases."""

from dataclasses import dataclass, field
from typing import Any

from language import (
    ASPECTS,
    CLASSES,
    LINKS,
    PERSONS,
    PRONOUN_MARKS,
    QUESTIONS,
    TENSES,
    VERBAL,
    Form,
    agreeing,
    build,
    case_form,
    leaf,
    mark_gloss,
    marker,
    name,
    noun_forms,
    numeral,
    plain,
    pronoun,
    root,
)
from vocabulary import TIME, VERB


@dataclass
class Finite:
    """What the verb shows besides its root."""

    tense: str
    aspect: str = ""
    negative: bool = False
    adverbs: list[Form] = field(default_factory=list)


@dataclass
class Phrase:
    """A verb phrase in the order of its parts: time and subordinate clauses move before the subject."""

    before: list[Form] = field(default_factory=list)
    time: list[Form] = field(default_factory=list)
    place: list[Form] = field(default_factory=list)
    goal: list[Form] = field(default_factory=list)
    object: list[Form] = field(default_factory=list)
    manner: list[Form] = field(default_factory=list)
    stem: list[tuple[str, str]] = field(default_factory=list)
    earlier: "Phrase | None" = None  # the first of two joined by "and"

    def rest(self) -> list[Form]:
        return self.place + self.goal + self.object + self.manner


def translate(tree: Any) -> list[Form]:
    """The words of the translation, with their glosses."""
    said, kind = tree.kids, tree.kids[0].symbol[0]
    if kind == "SP":
        return statement(said[0], [])
    if kind == "TIME":
        return statement(said[1], time(said[0]))
    if kind == "w":  # a dependent clause, then the main clause
        return clause(said[1], leaf(said[0])[1]) + clause(said[3])
    if kind == "ORDER":
        return order(said[0])
    if kind == "YN":
        aux, subject, predicate, _ = said[0].kids
        return [*assemble(*nominal(subject, "NOM"), finite([aux], ""), phrase(predicate)), Form("ke", "Q")]
    return [*open_question(said[0]), Form("ke", "Q")]


def statement(node: Any, first: list[Form]) -> list[Form]:
    subject, predicate = node.kids
    verb, tail = predicate.kids
    words_of_subject, mark = nominal(subject, "NOM")
    main = verbal(verb, words_of_subject, mark, first=first)
    link, before, after = "", [], []
    for kid in tail.kids:
        meaning = leaf(kid)
        if meaning[:1] == ("join",):
            after.append(Form("so" if meaning[1] == "and" else "mo", meaning[1]))
        elif meaning[:1] == ("sub",):
            link = meaning[1]
        elif meaning[:1] == ("again",):
            again = meaning[1]
        elif kid.symbol[0] in ("CL", "F"):
            if kid.symbol[0] == "F":
                dropped = len(mark) == 2 and again in ("I", "you", "we")
                more = verbal(kid, [] if dropped else [pronoun(again, mark, "NOM")], mark, link)
            else:
                more = clause(kid, link)
            if not link:
                after += more
            elif after:  # "..., and it slept because it was old": the reason stands before what it explains
                after[1:1] = more
            else:
                before = more
    return before + main + after


def clause(node: Any, link: str = "") -> list[Form]:
    subject, verb = node.kids
    return verbal(verb, *nominal(subject, "NOM"), link)


def verbal(node: Any, subject: list[Form], mark: str, link: str = "", first: list[Form] | None = None) -> list[Form]:
    """A clause from its finite verb phrase (F or RF)."""
    *leaves, last = node.kids
    tense = node.symbol[3] if node.symbol[0] == "F" else past_or_present(leaves, last)
    return assemble(subject, mark, finite(leaves, tense), phrase(last), link, first)


def past_or_present(leaves: list[Any], verb: Any) -> str:
    """The tense of a relative clause."""
    if leaves:
        return "pres" if leaves[0].symbol[1] in ("is", "are") else "past"
    return "past" if verb.symbol[1] == "past" else "pres"


def finite(leaves: list[Any], tense: str) -> Finite:
    shown = Finite("pres" if tense in ("", "habit") else tense)
    for node in leaves:
        kind, *more = leaf(node)
        shown.negative |= kind in ("not", "never") or "not" in more
        if kind in ("past", "will"):
            shown.tense = "past" if kind == "past" else "fut"
        if kind == "aspect":
            shown.aspect = more[0]
        if kind == "often":
            shown.adverbs.append(plain("m", more[0]))
        if kind == "never":
            shown.adverbs.append(plain("m", "always"))
        if not tense and {"past", "pres"} & {*more}:
            shown.tense = "past" if "past" in more else "pres"
    return shown


def inflected(stem: list[tuple[str, str]], mark: str, shown: Finite, link: str) -> Form:
    """The last word of a clause: subject, negation, root, aspect, tense, link."""
    prefix = [(mark, mark_gloss(mark)), ("vi" * shown.negative, "NEG")]
    suffix = [(ASPECTS.get(shown.aspect, ""), shown.aspect.upper()), (TENSES[shown.tense], shown.tense.upper())]
    suffix.append((LINKS.get(link, ""), link))
    return build(*(m for m in prefix if m[0]), *stem, *(m for m in suffix if m[0]), harmony=stem[0][0])


def assemble(
    subject: list[Form], mark: str, shown: Finite, said: Phrase, link: str = "", first: list[Form] | None = None
) -> list[Form]:
    verb = inflected(said.stem, mark, shown, link)
    said.manner += shown.adverbs
    earlier: list[Form] = []
    if said.earlier:
        stem = said.earlier.stem
        both = build((mark, mark_gloss(mark)), *stem, (LINKS["and"], "and"), harmony=stem[0][0])
        earlier = [*said.earlier.rest(), both]
    return said.before + (first or []) + said.time + subject + earlier + said.rest() + [verb]


def time(node: Any) -> list[Form]:
    _, tense, key = leaf(node.kids[0])
    roots = next(entry.roots for entry in TIME[tense] if entry.key == key)
    if roots[-1] == "in":
        return [case_form(((root("t." + roots[0]), roots[0]),), False, "LOC")]
    return [plain("t", piece) for piece in roots]


def phrase(node: Any) -> Phrase:
    """VV, VP, CORE, PRED or a bare V."""
    kind, kids = node.symbol[0], node.kids
    if kind == "PRED":
        return complement(kids)
    if kind == "VV":
        if len(kids) == 1:
            return phrase(kids[0])
        one, two = phrase(kids[0]), phrase(kids[2])
        two.earlier, two.time, two.before = one, one.time + two.time, one.before + two.before
        return two
    if kind == "VP":
        return gather(phrase(kids[0]), kids[1].kids if len(kids) > 1 else ())
    if kind == "V":
        return verb_of(node)
    return core(kids)


def verb_of(node: Any) -> Phrase:
    _, key, _ = leaf(node.kids[0])
    *modifiers, head = next(verb.roots for verb in VERB[node.symbol[1]] if verb.key == key)
    return Phrase(manner=[plain("m", piece) for piece in modifiers], stem=[(root("v." + head), key_gloss(head))])


def key_gloss(key: str) -> str:
    return key.replace(" ", ".")


def core(kids: Any) -> Phrase:
    verb, *rest = kids
    if verb.symbol[1] == "want":
        said = phrase(rest[1])
        said.stem.insert(1, (VERBAL[leaf(verb.kids[0])[1]], leaf(verb.kids[0])[1]))
        return said
    return gather(verb_of(verb), rest)


def gather(said: Phrase, kids: Any) -> Phrase:
    """Add what goes with a verb: objects, adverbs, a clause."""
    case = "ACC"
    for kid in kids:
        kind, meaning = kid.symbol[0], leaf(kid)
        if meaning in (("to",), ("from",)):
            case = "ALL" if meaning == ("to",) else "ABL"
        elif kind == "TIME":
            said.time += time(kid)
        elif kind == "LOC":
            said.place += place(kid)
        elif kind == "PATH":
            said.goal += path(kid)
        elif kind == "MANNER":
            said.manner.insert(0, plain("m", leaf(kid.kids[0])[1]))
        elif kind == "CL":
            said.before += clause(kid, "that")
        elif kind in ("OBJ", "NP"):
            (said.object if case == "ACC" else said.goal).extend(nominal(kid, case)[0])
    return said


def complement(kids: Any) -> Phrase:
    adjective = next((leaf(kid) for kid in kids if leaf(kid)[:1] == ("adjective",)), None)
    if adjective:
        _, key, *degree = adjective
        stem = [(root("a." + key), key)]
        if "very" in degree:
            stem = [(root("a." + key)[:2] + root("a." + key), "very-" + key)]
        if "more" in degree:
            stem.append(("do", "more"))
        than = nominal(kids[2], "ABL")[0] if "more" in degree else []
        return Phrase(goal=than, stem=stem)
    be = [(root("v.be"), "be")]
    if kids[0].symbol[0] == "LOC":
        return Phrase(place=place(kids[0]), stem=be)
    return Phrase(object=with_adjectives(kids[2], kids[1].kids, False, "NOM")[0], stem=be)


def with_adjectives(noun: Any, adjectives: Any, plural: bool, case: str) -> tuple[list[Form], str]:
    """A noun and its adjectives, and its mark."""
    _, key, material, _, cat = leaf(noun.kids[0])
    mark = marker(key, cat, plural)
    said = [agreeing(root("a." + leaf(one)[1]), leaf(one)[1], mark) for one in adjectives]
    return noun_forms(key, material, plural, case) + said, mark


def relative(node: Any, mark: str) -> list[Form]:
    """A relative clause before its noun. In GAP the noun is its object and its subject is said."""
    if node.symbol[0] == "RF":
        return verbal(node, [], mark, "REL")
    subject, *leaves, verb = node.kids
    tense = "past" if leaves or verb.symbol[2] == "past" else "pres"
    return assemble(*nominal(subject, "NOM"), finite(leaves, tense), phrase(verb), "REL")


def open_question(node: Any) -> list[Form]:
    first, *rest = node.kids
    asked = leaf(first)[0]
    if asked == "who":
        return verbal(rest[0], [Form("yora", "who")], "na")
    if asked in ("whose", "which"):
        said, mark = with_adjectives(rest[1], rest[0].kids, False, "NOM")
        said = [Form("yoras", "who-GEN"), *said] if asked == "whose" else [*said, agreeing("yo", "which", mark)]
        return verbal(rest[2], said, mark)
    *counted, aux, subject, verb, _ = rest
    said, question = phrase(verb), QUESTIONS[asked]
    nouns = with_adjectives(counted[1], counted[0].kids, True, "ACC")[0] if counted else []
    getattr(said, question.part)[:0] = [Form(question.word, question.gloss), *nouns]
    return assemble(*nominal(subject, "NOM"), finite([aux], ""), said)


def order(node: Any) -> list[Form]:
    """A command: the bare root with -hu or -hi."""
    said = gather(next(phrase(kid) for kid in node.kids if kid.symbol[0] == "CORE"), node.kids)
    negative, polite = (any(leaf(kid) == (word,) for kid in node.kids) for word in ("not", "please"))
    stem = [("vi", "NEG")] * negative + said.stem + [("hU", "IMP")]
    verb = build(*stem, harmony=said.stem[0][0])
    return [plain("f", "please")] * polite + said.before + said.time + said.rest() + [verb]


def nominal(node: Any, case: str) -> tuple[list[Form], str]:
    """A noun phrase in a case, and the mark by which others agree with it."""
    kind, meaning = node.symbol[0], leaf(node)
    if meaning:  # a pronoun
        mark = PRONOUN_MARKS[meaning[1]]
        dropped = case == "NOM" and mark in PERSONS.values()
        return ([] if dropped else [pronoun(meaning[1], mark, case)]), mark
    if kind == "NAME":
        english = leaf(node.kids[0])[1]
        return [case_form(((name(english), english),), False, case)], "na"
    if kind == "OBJ" or (kind == "NP" and len(node.kids) == 1):
        return nominal(node.kids[0], case)
    if kind == "NP":
        said, mark = nominal(node.kids[0], case)
        second = node.kids[2]
        if second.symbol[0] == "WITH":
            return nominal(second, "COM")[0] + said, mark
        return relative(second, mark) + said, mark
    if kind == "CO":
        said, marks = [], []
        for kid in node.kids:
            if kid.symbol[0] != "w":
                more, mark = nominal(kid, case)
                said, marks = said + more, [*marks, mark]
        classes = {cls for cls, pair in CLASSES.items() for mark in marks if mark in pair}
        cls = classes.pop() if len(classes) == 1 else "1" if "1" in classes else "4"
        return [*said, Form("so", "both")], CLASSES[cls][True]
    return described(node, case)


def described(node: Any, case: str) -> tuple[list[Form], str]:
    """BASE or SPOT: determiner, adjectives and noun."""
    before: list[Form] = []
    after: list[tuple[str, str]] = []
    adjectives: Any = ()
    determined = False
    for kid in node.kids:
        kind, meaning = kid.symbol[0], leaf(kid)
        if kind == "OWN":
            before += possessor(kid)
            determined = True
        elif kind == "NUM":
            before += numeral(int(leaf(kid.kids[0])[1]))
            determined = True
        elif kind == "A":
            adjectives = kid.kids
        elif meaning:
            determined = True
            word = {"these": "this", "those": "that"}.get(meaning[0], meaning[0])
            if word in ("this", "that"):
                after.append(("ve" if word == "this" else "go", word))
            elif word == "a":
                after.append(("i", "INDEF"))
            elif word != "the":
                after.append((root("q." + word), word))
        else:
            noun = kid
    _, key, _, num, cat = leaf(noun.kids[0])
    said, mark = with_adjectives(noun, adjectives, num == "p", case)
    said += [agreeing(shape, gloss, mark) for shape, gloss in after]
    if not determined:
        said.append(agreeing("i", "INDEF", marker(key, cat, True)))
    return before + said, mark


def possessor(node: Any) -> list[Form]:
    first = node.kids[0]
    if first.symbol[0] == "NAME'S":
        english = leaf(first.kids[0])[1]
        return [case_form(((name(english), english),), False, "GEN")]
    if leaf(first)[0] == "owner":
        english = leaf(first)[1]
        return [pronoun(english, PRONOUN_MARKS[english], "GEN")]
    _, key, material, _, _ = leaf(node.kids[1].kids[0])
    return noun_forms(key, material, False, "GEN")


def place(node: Any) -> list[Form]:
    """LOC: the case alone for in, on and at; otherwise a postposition after the genitive."""
    prep, spot = node.kids
    if leaf(prep)[0] == "in":
        return described(spot, "LOC")[0]
    return [*described(spot, "GEN")[0], plain("post", leaf(prep)[1])]


def path(node: Any) -> list[Form]:
    said: list[Form] = []
    for prep, spot in zip(node.kids[::2], node.kids[1::2], strict=False):
        kind = leaf(prep)[0]
        if kind == "post":
            said += [*described(spot, "GEN")[0], plain("post", leaf(prep)[1])]
        else:
            said += described(spot, "ALL" if kind == "to" else "ABL")[0]
    return said or [plain("f", "home")]
