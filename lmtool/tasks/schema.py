"""What the columns of a table are: texts, labels, targets, conversations, tags, answers.

The names by which the world calls them are data, here and in `lmtool.data.column_names`. `choose_columns` goes from a
header, the first rows and what a person has named to the columns to read, with a reason for each. Where names and cells
leave a choice, it asks.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations, islice
from typing import Any, Literal, NamedTuple

from lmtool.data.annotated import ConllFile, SquadFile
from lmtool.data.column_names import (
    CATEGORY_NAMES,
    ID_SUFFIXES,
    LABEL_NAMES,
    LABEL_SYNONYMS,
    LANGUAGE_NAMES,
    METADATA_SUFFIXES,
    RATING_NAMES,
    SOURCE_TARGET_NAMES,
    TEXT_NAMES,
    TEXT_PAIR_NAMES,
    TITLE_NAMES,
    find_named_column,
    normalize_name,
)
from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.rowfile import DelimitedFile, count_words, find_matching_column, fold_name, missing_columns_error
from lmtool.data.table import SkippedRows, Table, Value
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.labels import MANY, as_cell, decide_kind

RowKind = Literal["texts", "words", "questions", "related"]
"""What a row is: texts with a label or a target, words with tags, a question and a context with answers in it, or
texts whose vectors are to be near each other, as near as a number says where there is one."""

ANNOTATED: dict[RowKind, tuple[str, str, str]] = {
    "words": ("tagged words", "words", "tags"),
    "questions": ("questions", "question and context", "answers"),
}
"""Rows with more than a label each, their texts, and their labels, as --labels calls them, too."""

GOLD_LABEL = "goldlabel"
"""The label that several annotators agree on."""
ANCHORS, POSITIVE, NEGATIVES = (*TEXT_NAMES, "anchor"), ("positive", "pos"), ("negative", "neg", "hardnegative")
"""Texts, others that are to be near them, and, with any number at the end, others that are not."""
UNLEARNED = (
    ("are answers of which one is better", 2, ("chosen", "rejected"), ()),
    ("are answers of which one is better", 2, (), ("response", "humanref", "model", "conversation")),
    ("are answers of which one is right", 1, ("choices", "options", "endings", "answerkey", "incorrectanswers"), ()),
    ("are answers of which one is right", 1, ("multiplechoicetargets",), ()),
    ("are answers of which one is right", 2, (), ("choice", "option", "answer", "ending", "sol", "op", "distractor")),
    ("are answers of which one is right", 4, ("a", "b", "c", "d"), ()),
    ("are steps of an answer", 2, ("completions", "labels"), ()),
)
"""Rows that no task learns: what they are, and how many columns with these names, or these with a number or a letter at
the end, tell it."""

SAMPLED = 1_000
"""Rows by which it is decided what a column holds."""
COMPARED = 100
"""Rows by which it is decided whether columns hold the same texts."""
MOST = 0.9
"""Share of cells that decides for all of them."""
SEVERAL = 0.5
"""Share of cells of several words in a column of prose; and of different ones, up to MANY."""
LEAST = 3
"""Columns with the values of a label that make it one of several labels; rows that show two texts to be the same."""
LONGEST_CODE = 200
"""Characters of a cell that may be no text."""
LONGEST_ID = 20
"""Digits of the number of a row."""

_NUMBER = re.compile(r"[^\w\s]{0,2}\d[\d.,' ]*(?:[eE][+-]?\d+)?\s?[^\w\s]?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"(?:\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}|\d{{1,2}}\.? {_MONTH},? \d{{2,4}}|(?:\w{{3}} )?{_MONTH} \d{{1,2}},?(?: "
    r"\d{2,4})?)(?:[T ,]+\d{1,2}:\d{2}\S*(?: ?[ap]\.?m\.?)?(?: \S+){0,2})?",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"-?\d+\.\d+")
_CODE = re.compile(r"\S*(?:\d|://|\S@\S)\S*")
"""One word with a digit, an address of mail, or one of a page."""

NAMED, USUAL, ONLY = "named", "a usual name", "the only other column"
"""Why a column is read. Other reasons are of its cells."""


@dataclass(frozen=True)
class Columns:
    """Columns by name. `target` is set for sequence to sequence, `label` for classes and numbers, never both.

    kind: of the rows. Words have tags as their label, and questions answers.
    input: continues the source.
    messages: conversations, which hold source and target; then there are no others, but `tools` of each conversation.
    """

    texts: tuple[str, ...]
    label: str | None = None
    target: str | None = None
    input: str | None = None
    messages: str | None = None
    tools: str | None = None
    kind: RowKind = "texts"
    ignored: tuple[str, ...] = ()
    """Columns that are not read, where nobody has named those that are: of other texts; of related ones, all."""
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Why each of them is read, as a person is told."""

    @property
    def inferred(self) -> bool:
        """Whether some were inferred: from their conventional names, or else from their cells."""
        return any(reason != NAMED for reason in self.reasons.values())

    @property
    def writes(self) -> bool:
        """Whether rows have target texts."""
        return self.target is not None or self.messages is not None

    def describe(self) -> str:
        """The columns, their roles, and why they have them, in one line."""
        _, text, label = ANNOTATED.get(self.kind, ("", "text" if self.target is None else "source", "label"))
        parts = [f"{text} {' and '.join(map(quote, self.texts))}"] if self.texts else []
        others = {"messages": self.messages, "tools": self.tools, "input": self.input}
        others |= {label: self.label, "target": self.target}
        parts += [f"{role} {quote(name)}" for role, name in others.items() if name is not None]
        by_cells = [f"{quote(name)} {why}" for name, why in self.reasons.items() if why not in (NAMED, USUAL, ONLY)]
        if by_cells:
            options = "; to read others: --text-column NAME --label-column NAME"
            parts[-1] += f" (inferred from their cells: {', '.join(by_cells)}){options}"
        elif self.inferred:
            parts[-1] += " (inferred from their names)"
        return f"columns: {', '.join(parts)}{self._ignored()}"

    def _ignored(self) -> str:
        if not self.ignored:
            return ""
        if self.kind == "related":
            others = f"; ignored: {', '.join(map(quote, self.ignored))}"
            return others if self.label else f"{others}; name a number of how near texts are by --label-column"
        if self.target is not None:
            return f"; ignored: {', '.join(map(quote, self.ignored))}; --input-column NAME continues the source"
        options = " ".join(f"--text-column {shlex.quote(name)}" for name in (*self.texts, *self.ignored))
        it = "it" if len(self.ignored) == 1 else "them"
        return f"; ignored: {', '.join(map(quote, self.ignored))}; to read {it} too: {options}"


class Role(NamedTuple):
    """A column of a form. names: the most usual first. holds: whether it may hold the cells of a column."""

    key: Literal["texts", "label", "target", "input", "messages", "tools"]
    names: tuple[str, ...]
    holds: Callable[["Header", str], bool]
    is_optional: bool = False


class Header:
    """The names of the columns of a table, and what the cells of its first rows are, which are read once."""

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, table.names
        self.is_delimited = isinstance(table.file, DelimitedFile)
        self.has_names = not isinstance(table.file, DelimitedFile) or table.file.has_header
        """Whether the first row names the columns."""

    @cached_property
    def cells(self) -> dict[str, list[Value]]:
        """The cells of each column in the first rows."""
        rows = [row.values for row in islice(self.table.rows(SkippedRows()), SAMPLED)]
        return {name: [values[i] for values in rows] for i, name in enumerate(self.names)}

    def filled(self, name: str) -> list[Any]:
        """The cells of a column that are not empty."""
        return [cell for cell in self.cells[name] if cell is not None and cell != ""]

    def holds_texts(self, name: str) -> bool:
        """Whether all cells that are not empty are texts."""
        return all(isinstance(cell, str) for cell in self.filled(name))

    def holds_lists(self, name: str) -> bool:
        """Whether all cells that are not empty are lists."""
        return all(isinstance(cell, list) for cell in self.filled(name))

    def holds_answers(self, name: str) -> bool:
        """Whether all cells that are not empty are objects, or lists of them."""
        cells = self.filled(name)
        lists = all(isinstance(cell, list) and all(isinstance(one, dict) for one in cell) for cell in cells)
        return lists or all(isinstance(cell, dict) for cell in cells)

    def holds_different_texts(self, name: str) -> bool:
        """Whether all cells that are not empty are texts, and many of them not the same."""
        return self.holds_texts(name) and not self.is_constant(name)

    def holds_free_texts(self, name: str) -> bool:
        """Whether these are no classes either, as answers may be."""
        return self.holds_different_texts(name) and not self.n_classes(name)

    def is_constant(self, name: str) -> bool:
        """Whether many cells of a column are all the same."""
        cells = self.filled(name)
        return len(cells) > MANY and all(cell == cells[0] for cell in cells)

    def is_prose(self, name: str) -> bool:
        """Whether the cells are surely texts."""
        return is_prose(self.cells[name])

    def n_classes(self, name: str) -> int:
        """The number of different cells, up to MANY, where they recur; else, and where some are empty, 0."""
        values = [as_cell(cell) for cell in self.cells[name]]
        n = len(set(values)) if all(values) else 0
        return n if 2 <= n <= MANY and n < len(values) else 0

    def usual(self, wanted: Sequence[str], exclude: Sequence[str | None] = ()) -> str | None:
        """The column with the first of these names that one has."""
        return find_named_column(self.names, wanted, exclude)

    def pair(self, pairs: Sequence[tuple[str, str]], exclude: Sequence[str | None] = ()) -> tuple[str, ...]:
        """The columns with the names of the first of these pairs."""
        left = {normalize_name(name): name for name in reversed(self.names) if name not in exclude}
        return next(((left[first], left[second]) for first, second in pairs if first in left and second in left), ())

    def fill(self, roles: Sequence[Role], labelled: bool, names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """The columns of roles that have one, by key. names: those that are known already."""
        found = {key: list(known) for key, known in names.items()}
        for role in roles:
            if role.key in names or (role.key in ANSWERS and not labelled):
                continue
            taken = [*chain.from_iterable(found.values())]
            fits = (self.usual([name], taken) for name in role.names)
            if column := next((name for name in fits if name and role.holds(self, name)), None):
                found.setdefault(role.key, []).append(column)
        return found

    def complete(self, roles: Sequence[Role], labelled: bool) -> dict[str, list[str]] | None:
        """The columns of roles; None where one that is needed has none."""
        found = self.fill(roles, labelled, {})
        needed = [role.key for role in roles if not role.is_optional and (labelled or role.key not in ANSWERS)]
        return found if all(len(found.get(key, ())) >= needed.count(key) for key in needed) else None

    @cached_property
    def kind(self) -> RowKind:
        """What the rows are, by their format, and by the names of columns whose cells are lists."""
        of_format: dict[type, RowKind] = {ConllFile: "words", SquadFile: "questions", DelimitedFile: "texts"}
        if type(self.table.file) in of_format:
            return of_format[type(self.table.file)]
        return next((kind for kind, roles in OF_KIND.items() if self.complete(roles, labelled=True)), "texts")

    @cached_property
    def _words(self) -> dict[str, list[list[str]]]:
        """The words of the first texts of each column."""
        return {name: [_words(cell) for cell in cells[:COMPARED]] for name, cells in self.cells.items()}

    def same_text(self, name: str, other: str) -> bool:
        """Whether columns hold the same texts: parses, with marks, without case, or with more before or after."""
        both = (sorted(pair, key=len) for pair in zip(self._words[name], self._words[other], strict=True))
        pairs = [(short, long) for short, long in both if len(short) > 1]
        n = sum(f" {' '.join(a)} " in f" {' '.join(b)} " or (len(b) <= 2 * len(a) and _within(a, b)) for a, b in pairs)
        return len(pairs) >= LEAST and n >= MOST * len(pairs)

    def different(self, names: Sequence[str]) -> list[str]:
        """The columns, but for those with the texts of an earlier one."""
        kept: list[str] = []
        for name in names:
            if not any(self.same_text(name, one) for one in kept):
                kept.append(name)
        return kept


ANSWERS = ("label", "target")
"""Keys of columns that only rows to train on have."""
TAGS = ("tags", "nertags", "ner", "labels", "postags", "pos", "upos", "chunktags", "slots")
MESSAGES = (
    Role("messages", ("messages", "conversations", "conversation"), lambda *_: True),
    Role("tools", ("tools",), lambda *_: True, is_optional=True),
)
INSTRUCTION = (
    Role("texts", ("instruction",), Header.holds_texts),
    Role("input", ("input", "context"), Header.holds_texts, is_optional=True),
    Role("target", ("output", "response", "completion", "answer"), Header.holds_texts),
)
OF_KIND: dict[RowKind, tuple[Role, ...]] = {
    "words": (Role("texts", ("tokens", "words"), Header.holds_lists), Role("label", TAGS, Header.holds_lists)),
    "questions": (
        Role("texts", ("question",), Header.holds_texts),
        Role("texts", ("context",), Header.holds_texts),
        Role("label", ("answers",), Header.holds_answers),
    ),
}
WRITTEN = [
    (
        Role("texts", ("question",), Header.holds_texts),
        Role("input", ("context",), Header.holds_texts),
        Role("target", ("answer",), Header.holds_free_texts),
    ),
    *(
        (
            Role("texts", (source,), Header.holds_different_texts),
            Role("target", (to,), Header.holds_free_texts if to == "answer" else Header.holds_different_texts),
        )
        for source, to in SOURCE_TARGET_NAMES
    ),
]


def _words(cell: Value) -> list[str]:
    return re.findall(r"\w+", cell.casefold()) if isinstance(cell, str) else []


def _within(short: Sequence[str], long: Sequence[str]) -> bool:
    rest = iter(long)
    return all(word in rest for word in short)


def last_word(name: str) -> str:
    """The last word of a column's name."""
    return next(reversed(words_of_name(name)), "")


def words_of_name(name: str) -> list[str]:
    """The words of a column's name, as `normalize_name` gives them: of `OriginalTweet` original and tweet."""
    apart = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])", " ", name)
    return [normalize_name(word) for word in re.split(r"[\W_]+", apart) if word]


def choose_columns(
    table: Table, names: Data | None = None, *, labelled: bool = True, kind: RowKind | None = "texts"
) -> Columns:
    """The columns to read: those that are named, in any case, and the others by conventional names or by their cells.

    kind: of the rows; None infers it from the table.

    Without any name, conversations are looked for, then an instruction and its output, and a source and a target where
    no column is called a label. With `labelled` False neither label nor target is looked for. Raises DataError for
    missing and ambiguous columns and for rows that no task here learns, UsageError for contradictions.
    """
    header, named = Header(table), _in_table(table, names or Data())
    kind = kind or header.kind
    is_known = kind in ANNOTATED or (kind == "texts" and isinstance(table.file, ConllFile | SquadFile))
    if is_known and header.kind != kind and header.kind in ANNOTATED:
        (of, _, option), (needed, *_) = ANNOTATED[header.kind], ANNOTATED.get(kind, (kind,))
        fix = f"name one of {needed}, or train another model on this one: lmtool finetune FILE --labels {option}"
        raise DataError(f"a table of {of}, where one of {needed} is needed", where=display_path(table.path), fix=fix)
    if kind == "related":
        return _related(header, named, labelled)
    if kind != "texts":
        return _annotated(header, kind, named, labelled)
    if named.messages_column:
        found = header.fill(MESSAGES, labelled, {"messages": [named.messages_column]})
        return _columns(found, "texts", {"messages"} if "tools" not in found else {"messages", "tools"})
    if named.source_column or named.target_column or named.input_column:
        return _source_and_target(header, named, labelled)
    if named.text_columns or named.label_column:
        return _texts_and_label(header, named, labelled)
    if labelled:
        _refuse_choices(header)
    if conversation := None if header.is_delimited else header.complete(MESSAGES, labelled):
        return _columns(conversation)
    if instruction := header.complete(INSTRUCTION, labelled):
        return _columns(instruction)
    label = header.usual(LABEL_NAMES, exclude=header.pair(SOURCE_TARGET_NAMES))
    if written := _written(header, labelled):
        if label is None or not _may_be_label(header, label):
            read = [name for name in (*written.texts, written.input, written.target) if name]
            return replace(written, ignored=_other_texts(header, read) if labelled else ())
        if normalize_name(label) in CATEGORY_NAMES and labelled and not header.pair(TEXT_PAIR_NAMES):
            pair = f"--source-column {shlex.quote(written.texts[0])} --target-column {shlex.quote(str(written.target))}"
            what = f"cannot infer whether {quote(label)} or {quote(str(written.target))} is to be learned"
            raise DataError(
                what, where=display_path(table.path), fix=f"name {pair}, or --label-column {shlex.quote(label)}"
            )
    return _texts_and_label(header, named, labelled)


def _columns(
    found: Mapping[str, Sequence[str]], kind: RowKind = "texts", named: set[str] | frozenset[str] = frozenset()
) -> Columns:
    """Columns by key. named: keys of those that the person has named; the others have usual names."""
    single: dict[str, Any] = {key: columns[0] for key, columns in found.items() if key != "texts"}
    reasons = {name: NAMED if key in named else USUAL for key, columns in found.items() for name in columns}
    return Columns(tuple(found.get("texts", ())), **single, kind=kind, reasons=reasons)


SINGLE = ("label_column", "source_column", "target_column", "input_column", "messages_column")
"""Keys of `Data` that name one column each; their options are called as they are."""


def _in_table(table: Table, names: Data) -> Data:
    """The columns that are named, as the table spells them. Raises as `choose_columns` does."""
    pair = names.source_column or names.target_column
    if pair and (names.text_columns or names.label_column):
        what = "a table is read either with texts and a label or with a source and a target"
        raise UsageError(what, fix="give --text-column and --label-column, or --source-column and --target-column")
    others = names.text_columns or names.label_column or pair or names.input_column
    if names.messages_column and others:
        raise UsageError(
            "messages already have a source and a target", fix="give --messages-column, or the other columns"
        )
    flags = [(name, "--text-column") for name in names.text_columns]
    single = {key: name for key in SINGLE if (name := getattr(names, key))}
    flags += [(name, f"--{key.replace('_', '-')}") for key, name in single.items()]
    columns = [find_matching_column(name, table.names) for name, _ in flags]
    if missing := [flag for flag, column in zip(flags, columns, strict=True) if column is None]:
        raise missing_columns_error(missing, table.names, display_path(table.path))
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise UsageError(f"column {quote(twice)} is named twice", fix="name each column once")
    n_texts = len(names.text_columns)
    alone = dict(zip(single, columns[n_texts:], strict=True))
    return names.with_values({"text_columns": tuple(columns[:n_texts]), **alone})


def _refuse_choices(header: Header) -> None:
    """Raise DataError for rows of answers of which one is right or better, which no task here learns."""
    for what, least, names, numbered in UNLEARNED:
        found = [
            name
            for name, plain in zip(header.names, map(normalize_name, header.names), strict=True)
            if plain in names or (plain[:-1] in numbered and plain[-1:] in "0123456789abcde")
        ]
        if len(found) >= least:
            fix = "name what is to be learned: --text-column and --label-column, or --source-column and --target-column"
            what = f"{quote_all(found)} {what}, which no task learns"
            raise DataError(what, where=display_path(header.table.path), fix=fix)


def _related(header: Header, named: Data, labelled: bool) -> Columns:
    """The columns of related texts, or of one text with a label."""
    by_name = _named_texts(named)
    texts = by_name or related_texts(header)
    label = named.label_column or (header.usual(LABEL_NAMES, exclude=texts) if labelled else None)
    if not texts:
        texts, _ = _texts_by_name(header, label, labelled)
    if len(texts) < 1 + (label is None and labelled):
        raise _cannot_tell(header, {"--text-column or --label-column": "another text or a label"})
    ignored = () if by_name else tuple(name for name in header.names if name not in (*texts, label))
    reasons = dict.fromkeys(texts if label is None else (*texts, label), NAMED if by_name else USUAL)
    return Columns(tuple(texts), label, kind="related", ignored=ignored, reasons=reasons)


def _named_texts(named: Data) -> tuple[str, ...]:
    return named.text_columns or tuple(filter(None, (named.source_column, named.target_column)))


def related_texts(header: Header) -> tuple[str, ...]:
    """The columns of two texts of a row, and of those that they are told from, by their names; else the only two
    columns of texts that are mostly different. None where there are no such columns."""
    negatives = tuple(name for name in header.names if fold_name(name).rstrip("0123456789") in NEGATIVES)
    with_positive = [(anchor, positive) for positive in POSITIVE for anchor in ANCHORS]
    if pair := header.pair([*with_positive, *TEXT_PAIR_NAMES]) or _numbered(header) or header.pair(SOURCE_TARGET_NAMES):
        return (*pair, *negatives)
    if spoken := _spoken(header):
        return spoken
    prose = header.different([name for name in header.names if header.is_prose(name)])
    if len(prose) != 2 or any(len(set(header.cells[name])) <= SEVERAL * len(header.cells[name]) for name in prose):
        return ()
    return tuple(prose)


def is_related(table: Table, named: Data, scored: bool) -> bool:
    """Whether the rows are related texts without a label; with `scored` also with one that is a number.

    Rows with other labels, conversations and instructions are not.
    """
    header = Header(table)
    texts = _named_texts(named) or related_texts(header)
    others = named.messages_column or named.input_column or header.usual((*MESSAGES[0].names, "instruction"))
    if len(texts) < 2 or others or header.kind != "texts" or {"chosen", "rejected"} <= set(map(normalize_name, texts)):
        return False
    label = named.label_column or header.usual(LABEL_NAMES, exclude=texts)
    if label is None or not scored:
        return label is None
    cells = [as_cell(cell) for cell in header.cells[find_matching_column(label, table.names) or label]]
    return decide_kind([cell for cell in cells if cell]) == "number"


def _annotated(header: Header, kind: RowKind, named: Data, labelled: bool) -> Columns:
    """The columns of sentences with tags, or of questions."""
    known = {"texts": named.text_columns, "label": [named.label_column] if named.label_column else ()}
    found = header.fill(OF_KIND[kind], labelled, {key: names for key, names in known.items() if names})
    _, texts, label = ANNOTATED[kind]
    if len(found.get("texts", ())) != sum(role.key == "texts" for role in OF_KIND[kind]):
        raise _cannot_tell(header, {"--text-column": f"the {texts}"})
    if labelled and "label" not in found:
        raise _cannot_tell(header, {"--label-column": f"the {label}"})
    if not labelled:
        found.pop("label", None)
    return _columns(found, kind, {key for key, names in known.items() if names})


def _written(header: Header, labelled: bool) -> Columns | None:
    """The columns of a source and its target, by their names."""
    for roles in WRITTEN if labelled else ():
        if found := header.complete(roles, labelled=True):
            return _columns(found)
    pair = (() if labelled else header.pair(SOURCE_TARGET_NAMES)) or _spoken(header)
    return _columns({"texts": pair[:1]} | ({"target": pair[1:]} if labelled else {})) if pair else None


def _spoken(header: Header) -> tuple[str, ...]:
    """The two columns whose names are languages; or that begin with two of these, or with those of a source and its
    target, and are the same else."""
    spoken = [name for name in header.names if normalize_name(name) in LANGUAGE_NAMES]
    if len(spoken) == 2:
        return tuple(spoken)
    words = {name: words_of_name(name) for name in header.names if last_word(name) and header.is_prose(name)}
    for one, two in combinations(words, 2):
        (first, *rest), (second, *others) = words[one], words[two]
        if (
            rest
            and rest == others
            and rest[-1] not in METADATA_SUFFIXES
            and ((first, second) in SOURCE_TARGET_NAMES or {first, second} <= LANGUAGE_NAMES)
        ):
            return one, two
    return ()


def _numbered(header: Header, exclude: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Two columns of texts whose names differ in a number or a letter at the end, such as sentence1 and sentence2."""
    plain = {normalize_name(name): name for name in header.names if name not in exclude and header.has_names}
    for (first, one), (second, two) in combinations(plain.items(), 2):
        base, third = first[:-1], {"12": "3", "ab": "c"}.get(first[-1:] + second[-1:])
        are_two = base == second[:-1] and third is not None and base + third not in plain
        if are_two and (base in TEXT_NAMES or (header.is_prose(one) and header.is_prose(two))):
            return one, two
    return ()


def _source_and_target(header: Header, named: Data, labelled: bool) -> Columns:
    source, target = named.source_column, named.target_column
    instruction = header.complete(INSTRUCTION, labelled) or {}
    pair = [*instruction.get("texts", ()), *instruction.get("target", ())]
    pair = pair or list(header.pair(SOURCE_TARGET_NAMES) or _spoken(header))
    rest = [name for name in header.names if name not in (source, target)]
    other = rest[0] if len(rest) == 1 else None
    if source is None:
        source = pair[0] if pair and target in (*pair[1:], None) else other
    if target is None and labelled:
        target = pair[1] if len(pair) > 1 and pair[0] == source else other
    unknown = {"--source-column": "the source"} if source is None else {}
    unknown |= {"--target-column": "the target"} if labelled and target is None else {}
    if source is None or unknown:
        raise _cannot_tell(header, unknown)
    found = {"texts": [source]} | ({"input": [named.input_column]} if named.input_column else {})
    found |= {"target": [target]} if labelled and target else {}
    keys = {"texts": named.source_column, "target": named.target_column, "input": named.input_column}
    return _columns(found, "texts", {key for key, name in keys.items() if name})


def _texts_and_label(header: Header, named: Data, labelled: bool) -> Columns:
    reasons = dict.fromkeys(named.text_columns, NAMED) | ({named.label_column: NAMED} if named.label_column else {})
    label = named.label_column or (_label_by_name(header, named.text_columns, reasons) if labelled else None)
    texts, ignored = named.text_columns, tuple[str, ...]()
    if not texts:
        if labelled:
            _refuse_lists(header, label)
        texts, ignored = _texts_by_name(header, label, labelled)
        if labelled and label is None and ignored and len(texts) == 1 and normalize_name(texts[0]) not in TEXT_NAMES:
            texts = ()  # neither is surely known
        reasons = dict.fromkeys(texts, USUAL) | reasons
    if not texts:
        texts = _texts_by_cells(header, label, reasons)
    if labelled and label is None:
        label = _label_by_cells(header, texts, reasons)
    if not texts and (label or not labelled):
        rest = [name for name in header.names if name != label and not is_code(header.cells[name])]
        texts = tuple(rest) if len(rest) == 1 and not header.n_classes(rest[0]) else ()
        reasons |= dict.fromkeys(texts, "is the only one of words")
    unknown = {} if texts else {"--text-column": "the text"}
    unknown |= {"--label-column": "the label"} if labelled and label is None else {}
    if unknown:
        raise _cannot_tell(header, unknown)
    return Columns(texts, label, ignored=tuple(name for name in ignored if labelled and name != label), reasons=reasons)


def _texts_by_name(header: Header, label: str | None, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of texts by their names, and others that hold texts too."""
    others = [name for name in header.names if name != label]
    if len(others) == 1 and (label is not None or not labelled):
        return tuple(others), ()
    usual = [name for name in others if normalize_name(name) in TEXT_NAMES and not header.is_constant(name)]
    texts = header.pair(TEXT_PAIR_NAMES, (label,)) or _numbered(header, (label,))
    if not usual and label is not None:
        texts = texts or header.pair(SOURCE_TARGET_NAMES, (label,))
    if not texts:
        # one column of a usual name is the text, whatever it holds; of several those of codes are none
        ranked = sorted(usual, key=lambda name: TEXT_NAMES.index(normalize_name(name)))
        kept = header.different([name for name in ranked if not is_code(header.cells[name])]) or ranked[:1]
        if TITLE_NAMES.issuperset(map(normalize_name, kept)):
            ends = (name for name in others if name not in usual and last_word(name) in TEXT_NAMES)
            kept = header.different([*kept, *(name for name in ends if not is_code(header.cells[name]))])
        texts = tuple(name for name in others if name in kept)
    return texts, tuple(name for name in _other_texts(header, texts) if name != label) if texts else ()


def _other_texts(header: Header, read: Sequence[str]) -> tuple[str, ...]:
    """The columns that hold texts, and others than those that are read."""
    prose = (name for name in header.names if name not in read and header.is_prose(name))
    return tuple(header.different([*read, *prose])[len(header.different(read)) :])


def _refuse_lists(header: Header, label: str | None) -> None:
    """Raise DataError where a column has the name of a text, and its cells are none."""
    usual = {*TEXT_NAMES, *chain(*TEXT_PAIR_NAMES, *SOURCE_TARGET_NAMES)} - {*LABEL_NAMES}
    for name in set(header.names) - {label}:
        is_usual = normalize_name(name) in usual or normalize_name(name).removesuffix("s") in usual
        if is_usual and any(isinstance(cell, list | dict) for cell in header.filled(name)):
            what = f"{quote(name)} holds lists or objects, not texts"
            fix = "name the texts with --text-column, and the label with --label-column"
            raise DataError(what, where=display_path(header.table.path), fix=fix)


def _texts_by_cells(header: Header, label: str | None, reasons: dict[str, str]) -> tuple[str, ...]:
    """The columns of texts by their cells; of several only where none has a name, since one may be about another."""
    prose = [name for name in header.names if name != label and header.is_prose(name)]
    prose = header.different(sorted(prose, key=lambda name: sum(map(len, map(str, header.cells[name])))))
    if len(prose) > 1 and header.has_names:
        return ()
    reasons |= dict.fromkeys(prose, "holds sentences")
    return tuple(name for name in header.names if name in prose)


def _may_be_label(header: Header, name: str) -> bool:
    """Whether a column may be the label of texts: its cells are no objects, and recur or are numbers or lists."""
    cells, plain = header.filled(name), normalize_name(name)
    if plain in LABEL_SYNONYMS:
        return plain.removesuffix("s") != "target" or len(cells) <= MANY or not is_prose(cells)
    if len(cells) <= MANY or not all(isinstance(cell, str) for cell in cells):
        return not any(isinstance(cell, dict) for cell in cells)
    return len(set(cells)) <= SEVERAL * len(cells) or is_code(cells)


def _label_by_name(header: Header, texts: Sequence[str], reasons: dict[str, str]) -> str | None:
    """The column that is called a label. Raises DataError where several may be it."""
    may_be = [name for name in header.names if name not in texts and _may_be_label(header, name)]
    if called := find_named_column(may_be, LABEL_SYNONYMS):
        reasons[called] = USUAL
        return called
    judged, filed = (
        [name for name in may_be if normalize_name(name) in names] for names in (RATING_NAMES, CATEGORY_NAMES)
    )
    ends = [name for name in may_be if name not in judged and last_word(name) in (*LABEL_SYNONYMS, *RATING_NAMES)]
    found = judged or [*filed, *ends]
    if found and not judged:
        found = list(dict.fromkeys((*found, *_possible_labels(header, texts))))
    elif len(found) == 1:
        values = {as_cell(cell) for cell in header.cells[found[0]]}
        alike = [name for name in may_be if {*map(as_cell, header.cells[name])} == values]
        found = alike if len(alike) > LEAST and len(values) > 1 else found
    if len(found) > 1:
        raise _ambiguous(header, found)
    reasons |= dict.fromkeys(found, USUAL)
    return found[0] if found else None


def _numbers_rows(cells: Sequence[Value]) -> bool:
    """Whether cells are whole numbers one after the other in any order, more of them than classes."""
    texts = [str(cell).strip() for cell in cells]
    if len(texts) <= MANY or not all(text.isascii() and text.isdigit() and len(text) < LONGEST_ID for text in texts):
        return False
    numbers = {int(text) for text in texts}
    return len(numbers) == len(texts) == max(numbers) - min(numbers) + 1


def _possible_labels(header: Header, texts: Sequence[str]) -> dict[str, int]:
    """The columns of classes, and how many they have; and of numbers with fractions, of which 0 is said."""
    found = {name: header.n_classes(name) for name in header.names if name not in texts}
    if not header.has_names:
        return {name: n for name, n in found.items() if n}
    found = {name: n for name, n in found.items() if last_word(name) not in METADATA_SUFFIXES}
    fractions = {name: [_FRACTION.fullmatch(str(cell)) for cell in header.filled(name)] for name in found}
    return {name: n for name, n in found.items() if n or (fractions[name] and all(fractions[name]))}


def _label_by_cells(header: Header, texts: Sequence[str], reasons: dict[str, str]) -> str | None:
    """The only column beside those of texts, unless it tells rows apart or holds texts too; or the only one of classes.
    Without names that of the fewest classes, the last one of these.

    Raises DataError for several, also where others are numbers with fractions, which may be labels too.
    """
    rest = [name for name in header.names if name not in texts]
    if header.has_names and texts and len(rest) == 1:
        cells, reasons[rest[0]] = header.filled(rest[0]), ONLY
        if any(isinstance(cell, list | dict) for cell in cells) or (len(cells) > MANY and is_prose(cells)):
            return None
        tells_apart = _numbers_rows(cells) or (last_word(rest[0]) in ID_SUFFIXES and not header.n_classes(rest[0]))
        return None if tells_apart else rest[0]
    found = _possible_labels(header, texts)
    if header.has_names and len(found) > 1:
        raise _ambiguous(header, list(found))
    classes = {name: n for name, n in reversed(found.items()) if n}
    if not classes:
        return None
    label = min(classes, key=classes.__getitem__)
    reasons[label] = f"has {classes[label]} different values in {len(header.cells[label]):,} rows"
    return label


def named_label(table: Table) -> str | None:
    """The column with a usual name of labels."""
    return find_named_column(table.names, LABEL_NAMES)


def find_label(table: Table, names: Data) -> str | None:
    """The column of labels, by its usual name, or else as it is inferred; then it has few labels, which recur."""
    if usual := named_label(table):
        return usual
    try:
        label = choose_columns(table, names).label
    except DataError:
        return None
    cells = [cell for value in Header(table).cells[label] if (cell := as_cell(value))] if label else []
    return label if 0 < 2 * len(set(cells)) <= min(len(cells), 2 * MANY) else None


def may_be_labelled(table: Table) -> bool:
    """Whether columns of a table can be chosen without naming any, and its label, by its cells, may be one: some cells
    are equal, or they are numbers."""
    try:
        columns = choose_columns(table, kind=None)
    except DataError:
        return False
    if columns.label is None or columns.kind != "texts":
        return True
    cells = [cell for value in Header(table).cells[columns.label] if (cell := as_cell(value))]
    return len(set(cells)) < len(cells) or decide_kind(cells) != "class"


def _cannot_tell(header: Header, unknown: Mapping[str, str]) -> DataError:
    """The error for columns that neither names nor cells tell. unknown: what each is, by the option that names it."""
    columns = "column is" if len(unknown) == 1 else "columns are"
    what = f"cannot infer which {columns} {' and '.join(unknown.values())}; found {quote_all(header.names)}"
    fix = f"name {'it' if len(unknown) == 1 else 'them'} with {' and '.join(unknown)}"
    return DataError(
        what, where=display_path(header.table.path), fix=f"{fix}; the first row of a table names its columns"
    )


def _ambiguous(header: Header, names: Sequence[str]) -> DataError:
    what = f"cannot infer which column is the label: {quote_all(names)} may be"
    return DataError(what, where=display_path(header.table.path), fix="name it with --label-column")


def is_code(cells: Sequence[Value]) -> bool:
    """Whether the cells are surely no texts: other values, numbers, dates, words with digits, or all the same.

    Empty cells do not count.
    """
    texts = _filled(cells)
    if len(texts) < MOST * sum(cell is not None and cell != "" for cell in cells) or not texts:
        return True
    short = [text for text in texts if len(text) <= LONGEST_CODE]
    n_codes = sum(any(shape.fullmatch(text) for shape in (_NUMBER, _DATE)) or _is_one_code(text) for text in short)
    return n_codes >= MOST * len(texts) or (len(texts) > 1 and len(set(texts)) == 1)


def _is_one_code(text: str) -> bool:
    return count_words(text) == 1 and _CODE.fullmatch(text) is not None


def is_prose(cells: Sequence[Value]) -> bool:
    """Whether the cells are surely texts: of several words, and no categories."""
    texts = _filled(cells)
    n_several = sum(count_words(text) > 1 for text in texts)
    half = SEVERAL * len(texts)
    return not is_code(cells) and n_several >= half and len(set(texts)) > min(MANY, half)


def _filled(cells: Sequence[Value]) -> list[str]:
    return [text for cell in cells if isinstance(cell, str) and (text := cell.strip())]
