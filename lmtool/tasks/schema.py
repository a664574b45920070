"""Chooses the columns of a table that hold texts, labels, targets, conversations, tags and answers.

The conventional names of columns are data, here and in `lmtool.data.column_names`. `choose_columns` goes from a header,
the first rows and the columns that the user names to the columns to read, with a reason for each. If names and cells
leave a choice, it raises an error that asks the user to name a column.
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
    AMOUNT_NAMES,
    CATEGORY_NAMES,
    ID_SUFFIXES,
    LABEL_NAMES,
    LABEL_SYNONYMS,
    LANGUAGE_NAMES,
    METADATA_SUFFIXES,
    RATING_NAMES,
    SOURCE_TARGET_NAMES,
    TEXT_COMPANIONS,
    TEXT_NAMES,
    TEXT_PAIR_NAMES,
    TITLE_NAMES,
    find_conventional_column,
    normalize_name,
)
from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.rowfile import DelimitedFile, count_words, find_matching_column, fold_name, missing_columns_error
from lmtool.data.table import SkippedRowCounts, Table, Value
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.labels import MAX_INTEGER_CLASSES, LabelCell, infer_label_kind, to_label_cell

RowKind = Literal["texts", "words", "questions", "related"]
"""What a row holds. texts: one or several, with a label or a target. words: with a tag for each. questions: a question
and a context with its answers. related: texts whose vectors should be similar, or as similar as a number says."""

ANNOTATED_ROWS: dict[RowKind, tuple[str, str, str]] = {
    "words": ("tagged words", "words", "tags"),
    "questions": ("questions", "question and context", "answers"),
}
"""Names in messages of the rows, of their texts, and of their labels (also the value of --labels)."""

GOLD_LABEL_NAME = "goldlabel"
"""Folded name of the column of the label that several annotators agree on."""
ANCHOR_NAMES = (*TEXT_NAMES, "anchor")
POSITIVE_NAMES = ("positive", "pos")
"""Names of texts whose vectors should be similar to those of the anchors."""
NEGATIVE_NAMES = ("negative", "neg", "hardnegative")
"""Names of texts whose vectors should be dissimilar; a number may follow."""
UNSUPPORTED_TABLES = (
    ("are answers of which one is better", 2, ("chosen", "rejected"), ()),
    ("are answers of which one is better", 2, (), ("response", "humanref", "model", "conversation")),
    ("are answers of which one is right", 1, ("choices", "options", "endings", "answerkey", "incorrectanswers"), ()),
    ("are answers of which one is right", 1, ("multiplechoicetargets",), ()),
    ("are answers of which one is right", 2, (), ("choice", "option", "answer", "ending", "sol", "op", "distractor")),
    ("are answers of which one is right", 4, ("a", "b", "c", "d"), ()),
    ("are steps of an answer", 2, ("completions", "labels"), ()),
)
"""Tables that no task learns: what their columns are, and how many columns must have one of the first names, or one of
the second names followed by a digit or a letter."""

SAMPLE_ROWS = 1_000
"""Rows whose cells decide what a column holds."""
COMPARED_ROWS = 100
"""Rows whose cells decide whether two columns hold the same texts."""
MIN_COMPARED_ROWS = 3
"""Fewer rows do not show that two columns hold the same texts."""
MIN_RENAMED_CLASSES, MIN_ROWS_PER_CLASS = 3, 2
"""With fewer classes, or fewer rows for each, it may be chance that two columns divide the rows alike."""
MAX_SIMILAR_LABELS = 3
"""If more columns have exactly the values of a label, it is one of several labels."""
MAJORITY_SHARE = 0.9
"""Share of cells that decides for the whole column."""
PROSE_SHARE = 0.5
"""Minimum share of cells of several words, and of different cells, in a column of prose."""
MAX_CODE_CHARACTERS = 200
"""A longer cell is a text, whatever it looks like."""
MAX_ID_DIGITS = 20

_NUMBER_WITH_UNIT = re.compile(r"[^\w\s]{0,2}\d[\d.,' ]*(?:[eE][+-]?\d+)?\s?[^\w\s]?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"(?:\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}|\d{{1,2}}\.? {_MONTH},? \d{{2,4}}|(?:\w{{3}} )?{_MONTH} \d{{1,2}},?(?: "
    r"\d{2,4})?|(?:\d{2,4}年)?\d{1,2}月\d{1,2}日)(?:[T ,]+\d{1,2}:\d{2}\S*(?: ?[ap]\.?m\.?)?(?: \S+){0,2})?",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"-?\d+\.\d+")
_CODE_WORD = re.compile(r"\S*(?:\d|://|\S@\S)\S*")
"""A word with a digit, an e-mail address, or a URL."""

BY_USER, BY_NAME, BY_ELIMINATION = "named", "a usual name", "the only other column"
"""Reasons for reading a column. All other reasons describe its cells."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table by role. `target` is set for sequence to sequence, `label` for classes and numbers.

    Args:
        texts: columns of the texts, or of the source if there is a target.
        label: of the class, the labels or the number; of the tags of words; of the answers to questions.
        input: continues the source.
        messages: of conversations, which are source and target; then there is no other column but `tools`.
        ignored: columns that the user did not name and that are not read: those of further texts; of related rows, all.
        reasons: why each column is read.
    """

    texts: tuple[str, ...]
    label: str | None = None
    target: str | None = None
    input: str | None = None
    messages: str | None = None
    tools: str | None = None
    kind: RowKind = "texts"
    ignored: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def are_inferred(self) -> bool:
        """Whether the user did not name all columns."""
        return any(reason != BY_USER for reason in self.reasons.values())

    @property
    def has_targets(self) -> bool:
        """Whether rows have target texts."""
        return self.target is not None or self.messages is not None

    def describe(self) -> str:
        """Formats the columns, their roles and the reasons for them in one line."""
        _, text, label = ANNOTATED_ROWS.get(self.kind, ("", "text" if self.target is None else "source", "label"))
        parts = [f"{text} {' and '.join(map(quote, self.texts))}"] if self.texts else []
        others = {"messages": self.messages, "tools": self.tools, "input": self.input}
        others |= {label: self.label, "target": self.target}
        parts += [f"{role} {quote(name)}" for role, name in others.items() if name is not None]
        known = (BY_USER, BY_NAME, BY_ELIMINATION)
        if by_cells := [f"{quote(name)} {reason}" for name, reason in self.reasons.items() if reason not in known]:
            options = "; to read others: --text-column NAME --label-column NAME"
            parts[-1] += f" (inferred from their cells: {', '.join(by_cells)}){options}"
        elif self.are_inferred:
            parts[-1] += " (inferred from their names)"
        if not self.ignored:
            return f"columns: {', '.join(parts)}"
        it = "it" if len(self.ignored) == 1 else "them"
        options = " ".join(f"--text-column {shlex.quote(name)}" for name in (*self.texts, *self.ignored))
        hint = f"; to read {it} too: {options}"
        if self.target is not None:
            hint = "; --input-column NAME continues the source"
        elif self.kind == "related":
            hint = "" if self.label else "; --label-column names a number that says how similar the texts are"
        return f"columns: {', '.join(parts)}; ignored: {', '.join(map(quote, self.ignored))}{hint}"


class ColumnRole(NamedTuple):
    """A role that a column may have. names: conventional ones, the most usual first. accepts: checks the cells."""

    key: Literal["texts", "label", "target", "input", "messages", "tools"]
    names: tuple[str, ...]
    accepts: Callable[["TableSample", str], bool]
    is_optional: bool = False


class TableSample:
    """The column names and the first rows of a table, which are read once."""

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, table.names
        self.has_header = not isinstance(table.file, DelimitedFile) or table.file.has_header

    @cached_property
    def cells(self) -> dict[str, list[Value]]:
        """The cells of each column in the first rows."""
        rows = [row.values for row in islice(self.table.rows(SkippedRowCounts()), SAMPLE_ROWS)]
        return {name: [values[i] for values in rows] for i, name in enumerate(self.names)}

    def filled_cells(self, name: str) -> list[Any]:
        """Returns the cells of a column that are not empty."""
        return [cell for cell in self.cells[name] if cell is not None and cell != ""]

    def has_only(self, kind: type, name: str) -> bool:
        """Returns whether all filled cells of a column have this type."""
        return all(isinstance(cell, kind) for cell in self.filled_cells(name))

    def has_texts(self, name: str) -> bool:
        return self.has_only(str, name)

    def has_lists(self, name: str) -> bool:
        return self.has_only(list, name)

    def has_answers(self, name: str) -> bool:
        """Returns whether all filled cells are objects, or lists of them."""
        lists = self.has_lists(name) and all(isinstance(one, dict) for cell in self.filled_cells(name) for one in cell)
        return lists or self.has_only(dict, name)

    def has_varying_texts(self, name: str) -> bool:
        return self.has_texts(name) and not self.is_constant(name)

    def has_free_texts(self, name: str) -> bool:
        """Returns whether all filled cells are texts, neither constant nor classes, as answers may be."""
        return self.has_varying_texts(name) and not self.count_possible_classes_or_zero(name)

    def is_constant(self, name: str) -> bool:
        """Returns whether a column has many filled cells, all equal."""
        cells = self.filled_cells(name)
        return len(cells) > MAX_INTEGER_CLASSES and all(cell == cells[0] for cell in cells)

    def count_possible_classes_or_zero(self, name: str) -> int:
        """Counts the different cells if these may be classes: at most MAX_INTEGER_CLASSES that recur, none empty;
        returns 0 otherwise."""
        values = [to_label_cell(cell) for cell in self.cells[name]]
        n = len(set(values)) if all(values) else 0
        return n if 2 <= n <= MAX_INTEGER_CLASSES and n < len(values) else 0

    def find_pair(self, pairs: Sequence[tuple[str, str]], exclude: Sequence[str | None] = ()) -> tuple[str, ...]:
        """Returns the two columns that have the first possible of these pairs of conventional names; or nothing."""
        columns = {normalize_name(name): name for name in reversed(self.names) if name not in exclude}
        return next(((columns[a], columns[b]) for a, b in pairs if a in columns and b in columns), ())

    def assign_found_columns_to_roles(
        self, roles: Sequence[ColumnRole], labelled: bool, columns_by_user: Mapping[str, Sequence[str]]
    ) -> dict[str, list[str]]:
        """Returns the columns that the user named by role, and conventionally named columns for other roles."""
        found = {key: list(names) for key, names in columns_by_user.items()}
        for role in roles:
            if role.key in columns_by_user or (role.key in LABEL_ROLES and not labelled):
                continue
            taken = [*chain.from_iterable(found.values())]
            candidates = (find_conventional_column(self.names, [name], taken) for name in role.names)
            if column := next((name for name in candidates if name and role.accepts(self, name)), None):
                found.setdefault(role.key, []).append(column)
        return found

    def try_to_assign_all_roles(self, roles: Sequence[ColumnRole], labelled: bool) -> dict[str, list[str]] | None:
        """Returns a conventionally named column for each role; None if a required role has none."""
        found = self.assign_found_columns_to_roles(roles, labelled, {})
        needed = [role.key for role in roles if not role.is_optional and (labelled or role.key not in LABEL_ROLES)]
        return found if all(len(found.get(key, ())) >= needed.count(key) for key in needed) else None

    @cached_property
    def row_kind(self) -> RowKind:
        """What rows hold, by the file format, and by the names of columns of lists."""
        by_format: dict[type, RowKind] = {ConllFile: "words", SquadFile: "questions", DelimitedFile: "texts"}
        if kind := by_format.get(type(self.table.file)):
            return kind
        by_names = (kind for kind, roles in ANNOTATED_ROLES.items() if self.try_to_assign_all_roles(roles, True))
        return next(by_names, "texts")

    @cached_property
    def _words_of_first_texts(self) -> dict[str, list[list[str]]]:
        """The words of the first texts of each column."""
        return {
            name: [
                re.findall(r"\w+", cell.casefold()) if isinstance(cell, str) else [] for cell in cells[:COMPARED_ROWS]
            ]
            for name, cells in self.cells.items()
        }

    def have_nearly_same_texts(self, name: str, other: str) -> bool:
        """Returns whether two columns hold the same texts, apart from case, punctuation, parse trees and additions."""
        n_compared = n_same = 0
        for pair in zip(self._words_of_first_texts[name], self._words_of_first_texts[other], strict=True):
            short, long = sorted(pair, key=len)
            if len(short) > 1:
                n_compared += 1
                are_same = f" {' '.join(short)} " in f" {' '.join(long)} "
                n_same += are_same or (len(long) <= 2 * len(short) and _is_subsequence(short, long))
        return n_compared >= MIN_COMPARED_ROWS and n_same >= MAJORITY_SHARE * n_compared

    def drop_duplicate_text_columns(self, names: Sequence[str]) -> list[str]:
        """Returns the columns without those that hold the same texts as an earlier one."""
        kept: list[str] = []
        for name in names:
            if not any(self.have_nearly_same_texts(name, other) for other in kept):
                kept.append(name)
        return kept

    def drop_columns_with_renamed_classes(self, names: Sequence[str]) -> list[str]:
        """Returns the columns without those that rename the classes of another one; words are kept before codes."""
        kept: list[str] = []
        for name in sorted(names, key=lambda name: are_certainly_no_texts(self.cells[name])):
            if not any(self.are_renamed_classes(name, other) for other in kept):
                kept.append(name)
        return [name for name in names if name in kept]

    def are_renamed_classes(self, name: str, other: str) -> bool:
        """Returns whether one column's name contains the other's, and each class goes with one of the other column, in
        enough rows to be no chance."""
        short, long = sorted((normalize_name(name), normalize_name(other)), key=len)
        n, cells = self.count_possible_classes_or_zero(name), self.cells[name]
        if (
            short not in long
            or n < MIN_RENAMED_CLASSES
            or n != self.count_possible_classes_or_zero(other)
            or len(cells) < MIN_ROWS_PER_CLASS * n
        ):
            return False
        pairs = zip(map(to_label_cell, cells), map(to_label_cell, self.cells[other]), strict=True)
        return len(set(pairs)) == n


LABEL_ROLES = ("label", "target")
"""Roles that only tables for training and evaluation have."""
TAG_NAMES = ("tags", "nertags", "ner", "labels", "postags", "pos", "upos", "chunktags", "slots")
CONVERSATION_ROLES = (
    ColumnRole("messages", ("messages", "conversations", "conversation"), lambda *_: True),
    ColumnRole("tools", ("tools",), lambda *_: True, is_optional=True),
)
INSTRUCTION_ROLES = (
    ColumnRole("texts", ("instruction", "anweisung", "instruccion", "talimat"), TableSample.has_texts),
    ColumnRole("input", ("input", "context", "eingabe", "entrada", "giris"), TableSample.has_texts, is_optional=True),
    ColumnRole(
        "target",
        ("output", "response", "completion", "answer", "ausgabe", "salida", "cıktı"),  # noqa: RUF001  a Turkish letter
        TableSample.has_texts,
    ),
)
ANNOTATED_ROLES: dict[RowKind, tuple[ColumnRole, ...]] = {
    "words": (
        ColumnRole("texts", ("tokens", "words"), TableSample.has_lists),
        ColumnRole("label", TAG_NAMES, TableSample.has_lists),
    ),
    "questions": (
        ColumnRole("texts", ("question",), TableSample.has_texts),
        ColumnRole("texts", ("context",), TableSample.has_texts),
        ColumnRole("label", ("answers",), TableSample.has_answers),
    ),
}


def _make_pair_roles(source: str, target: str) -> tuple[ColumnRole, ...]:
    """Returns the roles of a source and its target, by the names of their columns."""
    accepts = TableSample.has_free_texts if target == "answer" else TableSample.has_varying_texts
    return ColumnRole("texts", (source,), TableSample.has_varying_texts), ColumnRole("target", (target,), accepts)


SOURCE_TARGET_ROLES = [
    (
        ColumnRole("texts", ("question",), TableSample.has_texts),
        ColumnRole("input", ("context",), TableSample.has_texts),
        ColumnRole("target", ("answer",), TableSample.has_free_texts),
    ),
    *(_make_pair_roles(source, target) for source, target in SOURCE_TARGET_NAMES),
]


def _is_subsequence(short: Sequence[str], long: Sequence[str]) -> bool:
    rest = iter(long)
    return all(word in rest for word in short)


def split_column_name(name: str) -> list[str]:
    """Splits a column name into normalized words: `OriginalTweet` into original and tweet."""
    apart = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])", " ", name)
    return [normalize_name(word) for word in re.split(r"[\W_]+", apart) if word]


def get_last_word(name: str) -> str:
    """Returns the last normalized word of a column name."""
    return next(reversed(split_column_name(name)), "")


def choose_columns(
    table: Table, requested: Data | None = None, *, labelled: bool = True, kind: RowKind | None = "texts"
) -> Columns:
    """Chooses the columns to read: those that the user names, in any case, the others by their names or cells.

    Without named columns it looks for conversations, for an instruction and its output, for a source and a target
    (unless a column is called a label), and then for texts and a label.

    Args:
        requested: column keys of the recipe.
        labelled: whether to look for a label or a target too.
        kind: of the rows; None infers it from the table.

    Raises:
        DataError: for missing and ambiguous columns, and for rows that no task learns.
        UsageError: for contradictory options.
    """
    sample, named = TableSample(table), _match_requested_columns(table, requested or Data())
    kind = kind or sample.row_kind
    is_known = kind in ANNOTATED_ROWS or (kind == "texts" and isinstance(table.file, ConllFile | SquadFile))
    if is_known and sample.row_kind != kind and sample.row_kind in ANNOTATED_ROWS:
        (rows, _, option), (needed, *_) = ANNOTATED_ROWS[sample.row_kind], ANNOTATED_ROWS.get(kind, (kind,))
        fix = f"name a table of {needed}, or train another model on this one: lmtool finetune FILE --labels {option}"
        raise DataError(f"a table of {rows} cannot be read as {needed}", where=display_path(table.path), fix=fix)
    if kind == "related":
        return _choose_related_columns(sample, named, labelled)
    if kind != "texts":
        return _choose_annotated_columns(sample, kind, named, labelled)
    if named.messages_column:
        found = sample.assign_found_columns_to_roles(
            CONVERSATION_ROLES, labelled, {"messages": [named.messages_column]}
        )
        return _make_columns(found, by_user=("messages", "tools"))
    if named.source_column or named.target_column or named.input_column:
        return _choose_source_target_columns(sample, named, labelled)
    if named.text_columns or named.label_column:
        return _choose_text_label_columns(sample, named, labelled)
    if labelled:
        _refuse_unsupported_table(sample)
    is_delimited = isinstance(table.file, DelimitedFile)
    if not is_delimited and (conversation := sample.try_to_assign_all_roles(CONVERSATION_ROLES, labelled)):
        return _make_columns(conversation)
    if instruction := sample.try_to_assign_all_roles(INSTRUCTION_ROLES, labelled):
        return _make_columns(instruction)
    label = find_conventional_column(table.names, LABEL_NAMES, exclude=sample.find_pair(SOURCE_TARGET_NAMES))
    if pair := _find_source_target_columns(sample, labelled):
        if label is None or not _can_be_label(sample, label):
            read = [name for name in (*pair.texts, pair.input, pair.target) if name]
            return replace(pair, ignored=_find_other_texts(sample, read) if labelled else ())
        if normalize_name(label) in CATEGORY_NAMES and labelled and not sample.find_pair(TEXT_PAIR_NAMES):
            options = f"--source-column {shlex.quote(pair.texts[0])} --target-column {shlex.quote(str(pair.target))}"
            what = f"cannot infer whether {quote(label)} or {quote(str(pair.target))} is to be learned"
            fix = f"name {options}, or --label-column {shlex.quote(label)}"
            raise DataError(what, where=display_path(table.path), fix=fix)
    return _choose_text_label_columns(sample, named, labelled)


def _make_columns(
    columns: Mapping[str, Sequence[str]], kind: RowKind = "texts", by_user: Sequence[str] = ()
) -> Columns:
    """Returns columns given by role. by_user: roles whose columns the user named; the others are known by name."""
    single: dict[str, Any] = {role: names[0] for role, names in columns.items() if role != "texts"}
    reasons = {name: BY_USER if role in by_user else BY_NAME for role, names in columns.items() for name in names}
    return Columns(tuple(columns.get("texts", ())), **single, kind=kind, reasons=reasons)


def _match_requested_columns(table: Table, requested: Data) -> Data:
    """Returns the requested columns as the table spells them. Raises as `choose_columns` does."""
    pair = requested.source_column or requested.target_column
    if pair and (requested.text_columns or requested.label_column):
        what = "a table is read either with texts and a label or with a source and a target"
        raise UsageError(what, fix="give --text-column and --label-column, or --source-column and --target-column")
    others = requested.text_columns or requested.label_column or pair or requested.input_column
    if requested.messages_column and others:
        what = "messages already have a source and a target"
        raise UsageError(what, fix="give --messages-column, or the other columns")
    keys = ("label_column", "source_column", "target_column", "input_column", "messages_column")
    single = {key: name for key in keys if (name := getattr(requested, key))}
    options = [(name, "--text-column") for name in requested.text_columns]
    options += [(name, f"--{key.replace('_', '-')}") for key, name in single.items()]
    columns = [find_matching_column(name, table.names) for name, _ in options]
    if missing := [option for option, column in zip(options, columns, strict=True) if column is None]:
        raise missing_columns_error(missing, table.names, display_path(table.path))
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise UsageError(f"column {quote(repeated)} is named twice", fix="name each column once")
    n_texts = len(requested.text_columns)
    values = dict(zip(single, columns[n_texts:], strict=True))
    return requested.with_unvalidated_values({"text_columns": tuple(columns[:n_texts]), **values})


def _refuse_unsupported_table(sample: TableSample) -> None:
    """Raises DataError for rows of UNSUPPORTED_TABLES."""
    for what, n_needed, names, numbered in UNSUPPORTED_TABLES:
        found = [
            name
            for name, plain in zip(sample.names, map(normalize_name, sample.names), strict=True)
            if plain in names or (plain[:-1] in numbered and plain[-1:] in "0123456789abcde")
        ]
        if len(found) >= n_needed:
            fix = "name what is to be learned: --text-column and --label-column, or --source-column and --target-column"
            what = f"{quote_all(found)} {what}, which no task learns"
            raise DataError(what, where=display_path(sample.table.path), fix=fix)


def _choose_related_columns(sample: TableSample, named: Data, labelled: bool) -> Columns:
    """Chooses the columns of related texts, or of one text with a label."""
    by_user = _get_named_texts(named)
    texts = by_user or _find_related_text_columns(sample)
    label = named.label_column or None
    if label is None and labelled:
        label = find_conventional_column(sample.names, LABEL_NAMES, exclude=texts)
    if not texts:
        texts, _ = _find_read_and_ignored_text_columns_by_name(sample, label, labelled)
    if len(texts) < 1 + (label is None and labelled):
        raise _uninferable_columns_error(sample, {"--text-column or --label-column": "another text or a label"})
    ignored = () if by_user else tuple(name for name in sample.names if name not in (*texts, label))
    reasons = dict.fromkeys(texts if label is None else (*texts, label), BY_USER if by_user else BY_NAME)
    return Columns(tuple(texts), label, kind="related", ignored=ignored, reasons=reasons)


def _get_named_texts(named: Data) -> tuple[str, ...]:
    return named.text_columns or tuple(filter(None, (named.source_column, named.target_column)))


def _find_related_text_columns(sample: TableSample) -> tuple[str, ...]:
    """Finds the columns of two related texts and of negatives by their names; else the only two columns of prose whose
    cells mostly differ. Returns nothing if there are no such columns."""
    negatives = tuple(name for name in sample.names if fold_name(name).rstrip("0123456789") in NEGATIVE_NAMES)
    pairs = [(anchor, positive) for positive in POSITIVE_NAMES for anchor in ANCHOR_NAMES]
    pair = sample.find_pair([*pairs, *TEXT_PAIR_NAMES]) or _find_numbered_text_pair(sample)
    if pair := pair or sample.find_pair(SOURCE_TARGET_NAMES):
        return (*pair, *negatives)
    if pair := _find_language_pair_columns(sample):
        return pair
    prose = [name for name, cells in sample.cells.items() if are_certainly_texts(cells)]
    prose = sample.drop_duplicate_text_columns(prose)
    differ = all(_are_mostly_different(sample, name) for name in prose)
    return tuple(prose) if len(prose) == 2 and differ else ()


def has_related_texts(table: Table, requested: Data, allow_scores: bool) -> bool:
    """Returns whether rows are related texts without a label; if `allow_scores`, also with a label that is a number.

    Rows with other labels, conversations and instructions are not. Raises DataError where a column without the name of
    a label may be one.
    """
    sample = TableSample(table)
    texts = _get_named_texts(requested) or _find_related_text_columns(sample)
    others = requested.messages_column or requested.input_column
    others = others or find_conventional_column(table.names, (*CONVERSATION_ROLES[0].names, "instruction"))
    are_answers = {"chosen", "rejected"} <= set(map(normalize_name, texts))
    if len(texts) < 2 or others or are_answers or sample.row_kind != "texts":
        return False
    label = requested.label_column or find_conventional_column(table.names, LABEL_NAMES, exclude=texts)
    if label is not None:
        return allow_scores and infer_label_kind(_label_cells(sample, label)) == "number"
    belong_together = {fold_name(name).rstrip("0123456789") for name in texts} & {*POSITIVE_NAMES, *NEGATIVE_NAMES}
    if not belong_together and (found := list(_count_classes_by_column(sample, texts))):
        what = f"cannot infer whether these texts have a label: {quote_all(found)} may be it"
        column = shlex.quote(found[0]) if len(found) == 1 else "COLUMN"
        named = [*(f"--text-column {shlex.quote(name)}" for name in texts), f"--label-column {column}"]
        fix = f"name it, {' '.join(named)}, or train vectors without it: -s objective.kind=embedding"
        raise DataError(what, where=display_path(table.path), fix=fix)
    return True


def _choose_annotated_columns(sample: TableSample, kind: RowKind, named: Data, labelled: bool) -> Columns:
    """Chooses the columns of sentences with tags, or of questions."""
    names = {"texts": named.text_columns, "label": [named.label_column] if labelled and named.label_column else ()}
    by_user = {role: columns for role, columns in names.items() if columns}
    found = sample.assign_found_columns_to_roles(ANNOTATED_ROLES[kind], labelled, by_user)
    _, texts, label = ANNOTATED_ROWS[kind]
    if len(found.get("texts", ())) != sum(role.key == "texts" for role in ANNOTATED_ROLES[kind]):
        raise _uninferable_columns_error(sample, {"--text-column": f"the {texts}"})
    if labelled and "label" not in found:
        raise _uninferable_columns_error(sample, {"--label-column": f"the {label}"})
    return _make_columns(found, kind, tuple(by_user))


def _find_source_target_columns(sample: TableSample, labelled: bool) -> Columns | None:
    """Finds the columns of a source and its target by their names."""
    for roles in SOURCE_TARGET_ROLES if labelled else ():
        if found := sample.try_to_assign_all_roles(roles, labelled=True):
            return _make_columns(found)
    pair = (() if labelled else sample.find_pair(SOURCE_TARGET_NAMES)) or _find_language_pair_columns(sample)
    return _make_columns({"texts": pair[:1]} | ({"target": pair[1:]} if labelled else {})) if pair else None


def _find_language_pair_columns(sample: TableSample) -> tuple[str, ...]:
    """Finds the two columns whose names are languages; or two columns whose names differ only in the first word, which
    are languages, or names of a source and its target."""
    languages = [name for name in sample.names if normalize_name(name) in LANGUAGE_NAMES]
    if len(languages) == 2:
        return tuple(languages)
    words = {
        name: split_column_name(name)
        for name, cells in sample.cells.items()
        if get_last_word(name) and are_certainly_texts(cells)
    }
    for one, two in combinations(words, 2):
        (first, *rest), (second, *others) = words[one], words[two]
        is_pair = (first, second) in SOURCE_TARGET_NAMES or {first, second} <= LANGUAGE_NAMES
        if is_pair and rest and rest == others and rest[-1] not in METADATA_SUFFIXES:
            return one, two
    return ()


def _find_numbered_text_pair(sample: TableSample, exclude: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Finds two columns of texts whose names differ in a last digit or letter, such as sentence1 and sentence2."""
    plain = {normalize_name(name): name for name in sample.names if name not in exclude and sample.has_header}
    for (first, one), (second, two) in combinations(plain.items(), 2):
        base, third = first[:-1], {"12": "3", "ab": "c"}.get(first[-1:] + second[-1:])
        are_two = base == second[:-1] and third is not None and base + third not in plain
        if are_two and (base in TEXT_NAMES or all(are_certainly_texts(sample.cells[name]) for name in (one, two))):
            return one, two
    return ()


def _choose_source_target_columns(sample: TableSample, named: Data, labelled: bool) -> Columns:
    """Chooses the columns of a source, of its target, and of an input, at least one of which the user named."""
    source, target = named.source_column, named.target_column
    instruction = sample.try_to_assign_all_roles(INSTRUCTION_ROLES, labelled) or {}
    pair = [*instruction.get("texts", ()), *instruction.get("target", ())]
    pair = pair or list(sample.find_pair(SOURCE_TARGET_NAMES) or _find_language_pair_columns(sample))
    rest = [name for name in sample.names if name not in (source, target)]
    other = rest[0] if len(rest) == 1 else None
    if source is None:
        source = pair[0] if pair and target in (*pair[1:], None) else other
    if target is None and labelled:
        target = pair[1] if len(pair) > 1 and pair[0] == source else other
    unknown = {"--source-column": "the source"} if source is None else {}
    unknown |= {"--target-column": "the target"} if labelled and target is None else {}
    if source is None or unknown:
        raise _uninferable_columns_error(sample, unknown)
    found = {"texts": [source]} | ({"input": [named.input_column]} if named.input_column else {})
    found |= {"target": [target]} if labelled and target else {}
    by_user = {"texts": named.source_column, "target": named.target_column, "input": named.input_column}
    return _make_columns(found, by_user=[role for role, name in by_user.items() if name])


def _choose_text_label_columns(sample: TableSample, named: Data, labelled: bool) -> Columns:
    """Chooses the columns of texts and of their label by name, else by cells."""
    texts, label, ignored = named.text_columns, named.label_column or None, tuple[str, ...]()
    reasons = dict.fromkeys((*texts, *filter(None, [label])), BY_USER)
    if labelled and label is None and (label := _find_label_column_by_name(sample, texts)):
        reasons[label] = BY_NAME
    if not texts:
        if labelled:
            _refuse_lists_as_texts(sample, label)
        texts, ignored = _find_read_and_ignored_text_columns_by_name(sample, label, labelled)
        if labelled and label is None and ignored and len(texts) == 1 and normalize_name(texts[0]) not in TEXT_NAMES:
            texts = ()  # either column may be the text
        reasons = dict.fromkeys(texts, BY_NAME) | reasons
    if not texts:
        prose = [name for name, cells in sample.cells.items() if name != label and are_certainly_texts(cells)]
        prose.sort(key=lambda name: sum(map(len, map(str, sample.cells[name]))))
        prose = sample.drop_duplicate_text_columns(prose)
        # With a header a column of prose may be about another one, and is then named.
        if len(prose) <= 1 or not sample.has_header:
            texts = tuple(name for name in sample.names if name in prose)
            reasons |= dict.fromkeys(prose, "holds sentences")
    if labelled and label is None:
        label, reason = _find_label_column_by_cells(sample, texts)
        if label is not None:
            reasons[label] = reason
    if not texts and (label or not labelled):
        rest = [name for name in sample.names if name != label and not are_certainly_no_texts(sample.cells[name])]
        texts = tuple(rest) if len(rest) == 1 and not sample.count_possible_classes_or_zero(rest[0]) else ()
        reasons |= dict.fromkeys(texts, "is the only one of words")
    unknown = {} if texts else {"--text-column": "the text"}
    unknown |= {"--label-column": "the label"} if labelled and label is None else {}
    if unknown:
        raise _uninferable_columns_error(sample, unknown)
    return Columns(texts, label, ignored=tuple(name for name in ignored if labelled and name != label), reasons=reasons)


def _find_read_and_ignored_text_columns_by_name(
    sample: TableSample, label: str | None, labelled: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the columns of texts by their names; returns them, and other columns of texts."""
    others = [name for name in sample.names if name != label]
    if len(others) == 1 and (label is not None or not labelled):
        return tuple(others), ()
    usual = [name for name in others if normalize_name(name) in TEXT_NAMES and not sample.is_constant(name)]
    texts = sample.find_pair(TEXT_PAIR_NAMES, (label,)) or _find_numbered_text_pair(sample, (label,))
    if not usual and label is not None:
        texts = texts or sample.find_pair(SOURCE_TARGET_NAMES, (label,))
    if not texts:
        # A single column with the name of a text is the text, whatever it holds; of several, codes are not.
        ranked = sorted(usual, key=lambda name: TEXT_NAMES.index(normalize_name(name)))
        prose = [name for name in ranked if are_certainly_texts(sample.cells[name])]
        if labelled and label is None and prose:
            # One that holds classes may be the label.
            ranked = [name for name in ranked if name in prose or not sample.count_possible_classes_or_zero(name)]
        no_codes = [name for name in others if not are_certainly_no_texts(sample.cells[name])]
        kept = sample.drop_duplicate_text_columns([name for name in ranked if name in no_codes]) or ranked[:1]
        if TITLE_NAMES.issuperset(map(normalize_name, kept)):
            ends = [name for name in no_codes if name not in usual and get_last_word(name) in TEXT_NAMES]
            kept = sample.drop_duplicate_text_columns([*kept, *ends])
        kept = sample.drop_duplicate_text_columns([*kept, *_find_companions(sample, kept, label)])
        texts = tuple(name for name in others if name in kept)
    return texts, tuple(name for name in _find_other_texts(sample, texts) if name != label) if texts else ()


def _find_companions(sample: TableSample, texts: Sequence[str], label: str | None) -> list[str]:
    """Finds columns of prose that belong to one of the texts by their names, such as the subject of a body."""
    known = set(map(normalize_name, texts))
    companions = {companion for text, companion in TEXT_COMPANIONS if text in known}
    names = [name for name in sample.names if normalize_name(name) in companions and name not in (*texts, label)]
    return [name for name in names if are_certainly_texts(sample.cells[name]) and _are_mostly_different(sample, name)]


def _are_mostly_different(sample: TableSample, name: str) -> bool:
    return len(set(map(str, sample.cells[name]))) > PROSE_SHARE * len(sample.cells[name])


def _find_other_texts(sample: TableSample, read: Sequence[str]) -> tuple[str, ...]:
    """Finds columns of prose that hold other texts than the columns that are read."""
    prose = (name for name, cells in sample.cells.items() if name not in read and are_certainly_texts(cells))
    n_read = len(sample.drop_duplicate_text_columns(read))
    return tuple(sample.drop_duplicate_text_columns([*read, *prose])[n_read:])


def _refuse_lists_as_texts(sample: TableSample, label: str | None) -> None:
    """Raises DataError if a column with the name of a text holds lists or objects."""
    usual = {*TEXT_NAMES, *chain(*TEXT_PAIR_NAMES, *SOURCE_TARGET_NAMES)} - {*LABEL_NAMES}
    for name in set(sample.names) - {label}:
        is_usual = normalize_name(name) in usual or normalize_name(name).removesuffix("s") in usual
        if is_usual and any(isinstance(cell, list | dict) for cell in sample.filled_cells(name)):
            what = f"{quote(name)} holds lists or objects, not texts"
            fix = "name the texts with --text-column, and the label with --label-column"
            raise DataError(what, where=display_path(sample.table.path), fix=fix)


def _can_be_label(sample: TableSample, name: str) -> bool:
    """Returns whether a column may be the label of texts: its cells recur, or are numbers or lists, not objects."""
    cells, plain = sample.filled_cells(name), normalize_name(name)
    if plain in LABEL_SYNONYMS:
        is_target = plain.removesuffix("s") == "target"
        return not is_target or len(cells) <= MAX_INTEGER_CLASSES or not are_certainly_texts(cells)
    if len(cells) <= MAX_INTEGER_CLASSES or not all(isinstance(cell, str) for cell in cells):
        return not any(isinstance(cell, dict) for cell in cells)
    return len(set(cells)) <= PROSE_SHARE * len(cells) or are_certainly_no_texts(cells)


def _find_label_column_by_name(sample: TableSample, texts: Sequence[str]) -> str | None:
    """Finds the column that is called a label. Raises DataError if there are several candidates."""
    candidates = [name for name in sample.names if name not in texts and _can_be_label(sample, name)]
    if synonym := find_conventional_column(candidates, LABEL_SYNONYMS):
        return synonym
    ratings = [name for name in candidates if normalize_name(name) in RATING_NAMES]
    categories = [name for name in candidates if normalize_name(name) in CATEGORY_NAMES]
    suffixed = [name for name in candidates if get_last_word(name) in (*LABEL_SYNONYMS, *RATING_NAMES)]
    found = ratings or [*categories, *suffixed]
    if found and not ratings:
        amounts = [name for name in candidates if AMOUNT_NAMES.intersection(split_column_name(name))]
        amounts = [name for name in amounts if infer_label_kind(_label_cells(sample, name)) == "number"]
        found = list(dict.fromkeys((*found, *_count_classes_by_column(sample, texts), *amounts)))
        found = sample.drop_columns_with_renamed_classes(found)
    elif len(found) == 1:
        values = set(map(to_label_cell, sample.cells[found[0]]))
        similar = [name for name in candidates if set(map(to_label_cell, sample.cells[name])) == values]
        found = similar if len(similar) > MAX_SIMILAR_LABELS and len(values) > 1 else found
    if len(found) > 1:
        raise _ambiguous_label_error(sample, found)
    return found[0] if found else None


def _are_row_numbers(cells: Sequence[Value]) -> bool:
    """Returns whether cells are consecutive whole numbers in any order, more of them than integer classes."""
    texts = [str(cell).strip() for cell in cells]
    are_whole = all(text.isascii() and text.isdigit() and len(text) < MAX_ID_DIGITS for text in texts)
    if len(texts) <= MAX_INTEGER_CLASSES or not are_whole:
        return False
    numbers = {int(text) for text in texts}
    return len(numbers) == len(texts) == max(numbers) - min(numbers) + 1


def _count_classes_by_column(sample: TableSample, texts: Sequence[str]) -> dict[str, int]:
    """Counts the classes of each column that may be a label; 0 for a column of numbers with fractions."""
    found = {name: sample.count_possible_classes_or_zero(name) for name in sample.names if name not in texts}
    if not sample.has_header:
        return {name: n for name, n in found.items() if n}
    found = {name: n for name, n in found.items() if get_last_word(name) not in METADATA_SUFFIXES}
    fractions = {name: [_FRACTION.fullmatch(str(cell)) for cell in sample.filled_cells(name)] for name in found}
    return {name: n for name, n in found.items() if n or (fractions[name] and all(fractions[name]))}


def _find_label_column_by_cells(sample: TableSample, texts: Sequence[str]) -> tuple[str | None, str]:
    """Finds the only other column than the texts, unless it numbers rows or holds texts; or the only one of classes.
    Without a header, finds the last column of the fewest classes. Returns the column, if any, and the reason for it.

    Raises DataError for several, also if some are numbers with fractions, which may be labels.
    """
    rest = [name for name in sample.names if name not in texts]
    if sample.has_header and texts and len(rest) == 1:
        name = rest[0]
        cells = sample.filled_cells(name)
        are_texts = len(cells) > MAX_INTEGER_CLASSES and are_certainly_texts(cells)
        are_lists = any(isinstance(cell, list | dict) for cell in cells)
        has_id_name = get_last_word(name) in ID_SUFFIXES and not sample.count_possible_classes_or_zero(name)
        if are_texts or are_lists or has_id_name or _are_row_numbers(cells):
            return None, ""
        return name, BY_ELIMINATION
    found = _count_classes_by_column(sample, texts)
    if sample.has_header:
        found = {name: found[name] for name in sample.drop_columns_with_renamed_classes(list(found))}
    if sample.has_header and len(found) > 1:
        raise _ambiguous_label_error(sample, list(found))
    classes = {name: n for name, n in reversed(found.items()) if n}
    if not classes:
        return None, ""
    label = min(classes, key=classes.__getitem__)
    return label, f"has {classes[label]} different values in {len(sample.cells[label]):,} rows"


def infer_label_column(table: Table, requested: Data) -> str | None:
    """Returns the column of labels by its name; else the inferred one if it has few labels, which recur."""
    if label := find_conventional_column(table.names, LABEL_NAMES):
        return label
    try:
        label = choose_columns(table, requested).label
    except DataError:
        return None
    cells = _label_cells(TableSample(table), label) if label else []
    return label if 0 < 2 * len(set(cells)) <= min(len(cells), 2 * MAX_INTEGER_CLASSES) else None


def has_inferable_columns(table: Table) -> bool:
    """Returns whether `choose_columns` finds all columns by itself, and a label whose cells recur or are numbers."""
    try:
        columns = choose_columns(table, kind=None)
    except DataError:
        return False
    if columns.label is None or columns.kind != "texts":
        return True
    cells = _label_cells(TableSample(table), columns.label)
    return len(set(cells)) < len(cells) or infer_label_kind(cells) != "class"


def _label_cells(sample: TableSample, label: str) -> list[LabelCell]:
    column = find_matching_column(label, sample.names) or label
    return [cell for cell in map(to_label_cell, sample.cells[column]) if cell]


def _uninferable_columns_error(sample: TableSample, unknown: Mapping[str, str]) -> DataError:
    """Returns the error for columns that cannot be inferred. unknown: their roles, by the option that names them."""
    columns, it = ("column is", "it") if len(unknown) == 1 else ("columns are", "them")
    what = f"cannot infer which {columns} {' and '.join(unknown.values())}; found {quote_all(sample.names)}"
    pair = " (--source-column and --target-column if a text is to be written)" if len(unknown) > 1 else ""
    fix = f"name {it} with {' and '.join(unknown)}{pair}; the first row of a table names its columns"
    return DataError(what, where=display_path(sample.table.path), fix=fix)


def _ambiguous_label_error(sample: TableSample, names: Sequence[str]) -> DataError:
    what = f"cannot infer which column is the label: {quote_all(names)} may be"
    return DataError(what, where=display_path(sample.table.path), fix="name it with --label-column")


def are_certainly_no_texts(cells: Sequence[Value]) -> bool:
    """Returns whether cells are certainly no texts: not strings, or numbers, dates, words with digits, or all equal.

    Empty cells do not count.
    """
    texts = _filled_texts(cells)
    if len(texts) < MAJORITY_SHARE * sum(cell is not None and cell != "" for cell in cells) or not texts:
        return True
    short = [text for text in texts if len(text) <= MAX_CODE_CHARACTERS]
    n_codes = sum(
        bool(_NUMBER_WITH_UNIT.fullmatch(text) or _DATE.fullmatch(text))
        or (count_words(text) == 1 and _CODE_WORD.fullmatch(text) is not None)
        for text in short
    )
    return n_codes >= MAJORITY_SHARE * len(texts) or (len(texts) > 1 and len(set(texts)) == 1)


def are_certainly_texts(cells: Sequence[Value]) -> bool:
    """Returns whether cells are certainly texts: of several words, and no categories."""
    texts = _filled_texts(cells)
    n_several = sum(count_words(text) > 1 for text in texts)
    half = PROSE_SHARE * len(texts)
    return not are_certainly_no_texts(cells) and n_several >= half and len(set(texts)) > min(MAX_INTEGER_CLASSES, half)


def _filled_texts(cells: Sequence[Value]) -> list[str]:
    return [text for cell in cells if isinstance(cell, str) and (text := cell.strip())]
