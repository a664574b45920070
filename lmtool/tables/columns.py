"""The columns of a table to read: named ones, or those with conventional names; and whether their cells are texts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from shlex import quote
from typing import Literal

from lmtool.data.annotated import Conll, Squad
from lmtool.data.column_names import LABELS, LANGUAGES, TEXT_PAIRS, TEXTS, TRANSLATIONS, first_column, plain_name
from lmtool.data.files import display, shown, shown_all
from lmtool.data.rowfile import Delimited, bare_name, count_words, matching_column, missing_columns
from lmtool.data.table import Skipped, Table, Value
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tables.labels import MANY, as_cell, decide_kind

SINGLE = ("label_column", "source_column", "target_column", "input_column", "messages_column")
"""Keys of `Data` that name one column each; their options are called as they are."""

SAMPLED = 1_000
"""Rows by which it is decided whether a column holds texts."""

GOLD_LABEL = "goldlabel"
"""The label that several annotators agree on."""
WORDS = ("tokens", "words")
TAGS_OF_WORDS = ("tags", "nertags", "ner", "labels", "postags", "pos", "upos", "chunktags")
"""Sentences and their tags, where cells can be lists."""
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
"""Questions whose answers are in a context, where cells can be lists."""
INSTRUCTION, INPUTS, OUTPUTS = "instruction", ("input", "context"), ("output", "response", "completion", "answer")
"""A table with an instruction and an output is one of pairs; the input, if there is one, belongs to the source."""
ANCHORS, POSITIVE, NEGATIVES = (*TEXTS, "anchor"), ("positive", "pos"), ("negative", "neg", "hardnegative")
"""Texts, others that are to be near them, and, with any number at the end, others that are not."""
MESSAGES = ("messages", "conversations", "conversation")
"""Conversations, where cells can be lists."""
TOOLS = "tools"
"""Functions that the assistant of a conversation may call."""
MOST = 0.9
"""Share of cells that decides for all of them."""

SEVERAL = 0.5
"""Share of cells of several words in a column of prose; and of different ones, up to MANY."""

LONGEST_CODE = 200
"""Characters of a cell that may be no text."""

LONGEST_ID = 20
"""Digits of the number of a row."""

_NUMBER = re.compile(r"[^\w\s]{0,2}\d[\d.,' ]*(?:[eE][+-]?\d+)?\s?[^\w\s]?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"(?:\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}|\d{{1,2}}\.? {_MONTH},? \d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{2,4}})"
    r"(?:[T ,]+\d{1,2}:\d{2}\S*(?: ?[ap]\.?m\.?)?(?: \S+)?)?",
    re.IGNORECASE,
)
_CODE = re.compile(r"\S*(?:\d|://|\S@\S)\S*")
"""One word with a digit, an address of mail, or one of a page."""

RowKind = Literal["texts", "words", "questions", "related"]
"""What a row is: texts with a label or a target, words with tags, a question and a context with answers in it, or
texts whose vectors are to be near each other, as near as a number says where there is one."""

ANNOTATED: dict[RowKind, tuple[str, str]] = {"words": ("tagged words", "tags"), "questions": ("questions", "answers")}
"""Rows with more than a label each, and the --labels that train a model on them."""


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
    inferred: bool = False
    """Some were inferred: from their conventional names, or else from their cells."""
    input: str | None = None
    messages: str | None = None
    tools: str | None = None
    kind: RowKind = "texts"
    ignored: tuple[str, ...] = ()
    """Columns that are not read, where nobody has named those that are: of texts; of related ones, all."""
    by_cells: bool = False
    """Their names do not tell some of those that were inferred, and their cells do."""

    @property
    def writes(self) -> bool:
        """Whether rows have target texts."""
        return self.target is not None or self.messages is not None

    def describe(self) -> str:
        """The columns and their roles, in one line."""
        inferred = f" (inferred from their {'cells' if self.by_cells else 'names'})" if self.inferred else ""
        inferred += "; to read others: --text-column NAME --label-column NAME" if self.by_cells else ""
        usual = ("text" if self.target is None else "source", "label")
        annotated = {"words": ("words", "tags"), "questions": ("question and context", "answers")}
        text, label = annotated.get(self.kind, usual)
        parts = [f"{text} {' and '.join(map(shown, self.texts))}"] if self.texts else []
        others = {"messages": self.messages, TOOLS: self.tools, "input": self.input}
        others |= {label: self.label, "target": self.target}
        parts += [f"{role} {shown(name)}" for role, name in others.items() if name is not None]
        return f"columns: {', '.join(parts)}{inferred}{self._ignored()}"

    def _ignored(self) -> str:
        if not self.ignored:
            return ""
        if self.kind == "related":
            others = f"; ignored: {', '.join(map(shown, self.ignored))}"
            return others if self.label else f"{others}; name a number of how near texts are by --label-column"
        options = " ".join(f"--text-column {quote(name)}" for name in (*self.texts, *self.ignored))
        it = "it" if len(self.ignored) == 1 else "them"
        return f"; ignored: {', '.join(map(shown, self.ignored))}; to read {it} too: {options}"


def choose_columns(
    table: Table, names: Data | None = None, *, labelled: bool = True, kind: RowKind | None = "texts"
) -> Columns:
    """The columns to read: those that are named, in any case, and the others by conventional names.

    kind: of the rows; None infers it from the table.

    Without any name, conversations are looked for, then an instruction and its output, and a source and a target when
    no column has the conventional name of a label.
    When all columns but one are known, that one is the text, or else the label. Where names do not tell, as without a
    header, columns of sentences are the texts, and that of the fewest different cells is the label. With `labelled`
    False neither label nor target is looked for. Raises DataError for missing or ambiguous columns, UsageError for
    contradictions.
    """
    named = _in_table(table, names or Data())
    kind = kind or infer_kind(table)
    if kind in ANNOTATED or (kind == "texts" and isinstance(table.file, Conll | Squad)):
        other = infer_kind(table)
        if other != kind and other in ANNOTATED:
            (of, option), (needed, _) = ANNOTATED[other], ANNOTATED.get(kind, (kind, ""))
            fix = f"name one of {needed}, or train another model on this one: lmtool finetune FILE --labels {option}"
            raise DataError(f"a table of {of}, where one of {needed} is needed", where=display(table.path), fix=fix)
    if kind == "related":
        return _related(table, named, labelled)
    if kind != "texts":
        return _annotated(table, kind, named.text_columns, named.label_column, labelled)
    if named.messages_column:
        return Columns((), messages=named.messages_column, tools=_usual(table, (TOOLS,), (named.messages_column,)))
    if named.source_column or named.target_column or named.input_column:
        pair = _source_and_target(table, named.source_column, named.target_column, labelled)
        return replace(pair, input=named.input_column)
    if named.text_columns or named.label_column:
        return _texts_and_label(table, named, labelled)
    if not isinstance(table.file, Delimited) and (messages := _usual(table, MESSAGES)):
        return Columns((), inferred=True, messages=messages, tools=_usual(table, (TOOLS,)))
    if instruction := _instruction(table, labelled):
        source, target = instruction
        return Columns((source,), target=target, inferred=True, input=_usual(table, INPUTS))
    translation = _translation(table)
    if translation and _usual(table, LABELS, exclude=translation) is None:
        return Columns(translation[:1], target=translation[1] if labelled else None, inferred=True)
    return _texts_and_label(table, named, labelled)


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
    columns = [matching_column(name, table.names) for name, _ in flags]
    if missing := [flag for flag, column in zip(flags, columns, strict=True) if column is None]:
        raise missing_columns(missing, table.names, display(table.path))
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise UsageError(f"column {shown(twice)} is named twice", fix="name each column once")
    n_texts = len(names.text_columns)
    alone = dict(zip(single, columns[n_texts:], strict=True))
    return names.with_values({"text_columns": tuple(columns[:n_texts]), **alone})


def _texts_and_label(table: Table, named: Data, labelled: bool) -> Columns:
    label = named.label_column or (_usual(table, LABELS, exclude=named.text_columns) if labelled else None)
    texts, ignored = (named.text_columns, ()) if named.text_columns else _texts(table, label, labelled)
    if labelled and label is None and texts and _is_headed(table):
        label = _only_other(table, texts)
    is_told = bool(texts) and (label is not None or not labelled)
    if not is_told:
        texts, label = _by_cells(_sample(table), texts, label, labelled)
    unknown = {} if texts else {"--text-column": "the text"}
    unknown |= {"--label-column": "the label"} if labelled and label is None else {}
    if unknown:
        raise _cannot_tell(table, unknown)
    is_inferred = not (named.text_columns and (named.label_column or not labelled))
    ignored = tuple(name for name in ignored if name != label)
    return Columns(texts, label, inferred=is_inferred, ignored=ignored if labelled else (), by_cells=not is_told)


def _is_headed(table: Table) -> bool:
    """Whether the first row of a table names its columns."""
    return not isinstance(table.file, Delimited) or table.file.headed


def _only_other(table: Table, texts: Sequence[str]) -> str | None:
    """The only column beside those of texts, unless it numbers the rows."""
    rest = [name for name in table.names if name not in texts]
    return rest[0] if len(rest) == 1 and not _numbers_rows(_sample(table)[rest[0]]) else None


def _numbers_rows(cells: Sequence[Value]) -> bool:
    """Whether cells are whole numbers one after the other in any order, more of them than classes."""
    texts = [str(cell).strip() for cell in cells]
    if len(texts) <= MANY or not all(text.isascii() and text.isdigit() and len(text) < LONGEST_ID for text in texts):
        return False
    numbers = {int(text) for text in texts}
    return len(numbers) == len(texts) == max(numbers) - min(numbers) + 1


def _related(table: Table, named: Data, labelled: bool) -> Columns:
    """The columns of related texts, or of one text with a label."""
    by_name = _named_texts(named)
    texts = by_name or related_texts(table)
    label = named.label_column or (_usual(table, LABELS, exclude=texts) if labelled else None)
    if len(texts or (texts := _texts(table, label, labelled)[0])) < 1 + (label is None and labelled):
        raise _cannot_tell(table, {"--text-column or --label-column": "another text or a label"})
    ignored = () if by_name else tuple(name for name in table.names if name not in (*texts, label))
    return Columns(texts, label, inferred=not by_name, kind="related", ignored=ignored)


def _named_texts(named: Data) -> tuple[str, ...]:
    return named.text_columns or tuple(filter(None, (named.source_column, named.target_column)))


def related_texts(table: Table) -> tuple[str, ...]:
    """The columns of two texts of a row, and of those that they are told from, by their names; else the only two
    columns of texts that are mostly different. None where there are no such columns."""
    negatives = tuple(name for name in table.names if bare_name(name).rstrip("0123456789") in NEGATIVES)
    with_positive = ((anchor, positive) for positive in POSITIVE for anchor in ANCHORS)
    for names in (*with_positive, *TEXT_PAIRS, *TRANSLATIONS):
        if pair := _all_usual(table, names, None):
            return (*pair, *negatives)
    if spoken := _translation(table):
        return spoken
    cells = _sample(table)
    prose = tuple(name for name in table.names if is_prose(cells[name]) and not _parses(name))
    if len(prose) != 2 or any(len(set(cells[name])) <= SEVERAL * len(cells[name]) for name in prose):
        return ()
    return prose


def is_related(table: Table, named: Data, scored: bool) -> bool:
    """Whether the rows are related texts without a label; with `scored` also with one that is a number.

    Rows with other labels, conversations and instructions are not.
    """
    texts = _named_texts(named) or related_texts(table)
    others = named.messages_column or named.input_column or _usual(table, (*MESSAGES, INSTRUCTION))
    if len(texts) < 2 or others or infer_kind(table) != "texts":
        return False
    label = named.label_column or _usual(table, LABELS, exclude=texts)
    if label is None or not scored:
        return label is None
    cells = [as_cell(cell) for cell in _sample(table)[matching_column(label, table.names) or label]]
    return decide_kind([cell for cell in cells if cell]) == "number"


def infer_kind(table: Table) -> RowKind:
    """What the rows of a table are, by its format, and by the names of columns whose cells are lists."""
    of_format: dict[type, RowKind] = {Conll: "words", Squad: "questions", Delimited: "texts"}
    if type(table.file) in of_format:
        return of_format[type(table.file)]
    words, answers = _usual(table, WORDS), _usual(table, (ANSWERS,))
    if words is not None and _usual(table, TAGS_OF_WORDS) is not None:
        first = next(table.rows(Skipped()), None)
        if first is not None and isinstance(first.values[table.names.index(words)], list):
            return "words"
    asks = answers is not None and _usual(table, (QUESTION,)) is not None and _usual(table, (CONTEXT,)) is not None
    return "questions" if asks else "texts"


def _annotated(
    table: Table, kind: RowKind, text_columns: Sequence[str], label_column: str | None, labelled: bool
) -> Columns:
    """The columns of sentences with tags, or of questions."""
    names: dict[RowKind, tuple[str, list[tuple[str, ...]], str, tuple[str, ...]]] = {
        "words": ("the words", [WORDS], "the tags", TAGS_OF_WORDS),
        "questions": ("the question and the context", [(QUESTION,), (CONTEXT,)], "the answers", (ANSWERS,)),
    }
    of_texts, usual, of_label, usual_label = names[kind]
    matches = (_usual(table, one, exclude=(label_column,)) for one in usual)
    texts = tuple(text_columns) or tuple(name for name in matches if name)
    if len(texts) != len(usual):
        raise _cannot_tell(table, {"--text-column": of_texts})
    label = label_column or _usual(table, usual_label, exclude=texts)
    if labelled and label is None:
        raise _cannot_tell(table, {"--label-column": of_label})
    inferred = not (text_columns and (label_column or not labelled))
    return Columns(texts, label if labelled else None, inferred=inferred, kind=kind)


def _source_and_target(table: Table, source: str | None, target: str | None, labelled: bool) -> Columns:
    inferred = (labelled and target is None) or source is None
    pair = _instruction(table, labelled) or _translation(table)
    rest = [name for name in table.names if name not in (source, target)]
    other = rest[0] if len(rest) == 1 else None
    if source is None:
        source = pair[0] if pair and target in (pair[1], None) else other
    if target is None and labelled:
        target = pair[1] if pair and pair[0] == source else other
    unknown = {"--source-column": "the source"} if source is None else {}
    unknown |= {"--target-column": "the target"} if labelled and target is None else {}
    if source is None or unknown:
        raise _cannot_tell(table, unknown)
    return Columns((source,), target=target if labelled else None, inferred=inferred)


def _texts(table: Table, label: str | None, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of texts, and others that hold texts too."""
    others = [name for name in table.names if name != label]
    usual = tuple(name for name in others if plain_name(name) in TEXTS)
    pair = next((pair for names in TEXT_PAIRS if (pair := _all_usual(table, names, label))), ())
    texts = pair or usual
    if not texts and len(others) == 1 and (label or not labelled):
        texts = tuple(others)
    if not texts or len(others) == 1:
        return texts, ()
    cells = _sample(table)
    if len(usual) > 1 and not pair:
        # where all are codes, that of the most usual name is the text
        texts = tuple(name for name in usual if not is_code(cells[name]))
        texts = texts or (sorted(usual, key=lambda name: TEXTS.index(plain_name(name)))[0],)
    return texts, tuple(name for name in others if name not in texts and is_prose(cells[name]) and not _parses(name))


def _parses(name: str) -> bool:
    """Whether a column holds parses of the text of another one, by its name."""
    return bare_name(name).endswith("parse")


def _sample(table: Table) -> dict[str, list[Value]]:
    """The cells of each column in the first rows."""
    rows = [row.values for row in islice(table.rows(Skipped()), SAMPLED)]
    return {name: [values[i] for values in rows] for i, name in enumerate(table.names)}


def _by_cells(
    cells: dict[str, list[Value]], texts: tuple[str, ...], label: str | None, labelled: bool
) -> tuple[tuple[str, ...], str | None]:
    """The texts and the label of a table by its cells, where they are not known.

    Columns of sentences are the texts; of several possible labels that of the fewest different cells, the last one of
    these, is the label; without sentences the only column beside the label that is no code is the text.
    """
    texts = texts or tuple(name for name in cells if name != label and is_prose(cells[name]) and not _parses(name))
    if labelled and label is None:
        different = {name: _n_different(cells[name]) for name in reversed(cells) if name not in texts}
        classes = [name for name, n in different.items() if 2 <= n <= MANY and n < len(cells[name])]
        label = min(classes, key=different.__getitem__, default=None)
    if not texts and (label or not labelled):
        rest = [name for name, values in cells.items() if name != label and not is_code(values)]
        texts = tuple(rest) if len(rest) == 1 else ()
    return texts, label


def _n_different(cells: Sequence[Value]) -> int:
    """The number of different cells; 0 where some are empty or no values."""
    values = [as_cell(cell) for cell in cells]
    return len(set(values)) if all(values) else 0


def _all_usual(table: Table, names: Sequence[str], label: str | None) -> tuple[str, ...]:
    """A column for each of these names; none unless there are all."""
    columns = [_usual(table, (name,), exclude=(label,)) for name in names]
    return tuple(name for name in columns if name) if all(columns) else ()


def _translation(table: Table) -> tuple[str, str] | None:
    for pair in TRANSLATIONS:
        source, target = (_usual(table, (name,)) for name in pair)
        if source and target and (pair not in TEXT_PAIRS or len(table.names) == 2):
            return source, target
    spoken = [name for name in table.names if plain_name(name) in LANGUAGES]
    return (spoken[0], spoken[1]) if len(spoken) == 2 else None


def _instruction(table: Table, labelled: bool) -> tuple[str, str | None] | None:
    """The columns of an instruction and its output, which is only needed where labels are."""
    source, target = _usual(table, (INSTRUCTION,)), _usual(table, OUTPUTS)
    return None if source is None or (labelled and target is None) else (source, target if labelled else None)


def named_label(table: Table) -> str | None:
    """The column with a usual name of labels."""
    return _usual(table, LABELS)


def find_label(table: Table, names: Data) -> str | None:
    """The column of labels, by its usual name, or else as it is inferred; then it has few labels, which recur."""
    if usual := named_label(table):
        return usual
    try:
        label = choose_columns(table, names).label
    except DataError:
        return None
    cells = [cell for value in _sample(table)[label] if (cell := as_cell(value))] if label else []
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
    cells = [cell for value in _sample(table)[columns.label] if (cell := as_cell(value))]
    return len(set(cells)) < len(cells) or decide_kind(cells) != "class"


def _usual(table: Table, wanted: Sequence[str], exclude: Sequence[str | None] = ()) -> str | None:
    return first_column(table.names, wanted, exclude)


def _cannot_tell(table: Table, unknown: Mapping[str, str]) -> DataError:
    """The error for columns that neither names nor cells tell. unknown: what each is, by the option that names it."""
    columns = "column is" if len(unknown) == 1 else "columns are"
    what = f"cannot infer which {columns} {' and '.join(unknown.values())}; found {shown_all(table.names)}"
    fix = f"name {'it' if len(unknown) == 1 else 'them'} with {' and '.join(unknown)}"
    return DataError(what, where=display(table.path), fix=f"{fix}; the first row of a table names its columns")


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
