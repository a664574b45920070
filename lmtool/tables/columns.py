"""The columns of a table to read: given ones, or those with conventional names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from shlex import quote
from typing import Literal

from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tables.contents import is_code, is_prose
from lmtool.text.annotated import Conll, Squad
from lmtool.text.files import place, shown
from lmtool.text.rowfile import Delimited, bare_name, matching_column, missing_column
from lmtool.text.table import Skipped, Table, Value

SINGLE = ("label_column", "source_column", "target_column", "input_column", "messages_column")
"""Keys of `Data` that name one column each; their options are called as they are."""

SAMPLED = 1_000
"""Rows by which it is decided whether a column holds texts."""

# Names are compared as `bare_name` gives them. Earlier ones win.
TEXT_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "answer"),
)
TEXTS = (
    *("text", "sentence", "review", "reviewtext", "reviewbody", "content", "comment", "commenttext", "body"),
    *("message", "tweet", "post", "document", "article", "utterance", "question", "query", "description", "abstract"),
    *("headline", "title", "sms", "email", "premise"),
)
LABELS = (
    *("label", "labels", "class", "classes", "category", "categories", "sentiment", "topic", "intent", "emotion"),
    *("polarity", "genre", "tag", "tags", "stars", "rating", "score", "similarity", "target", "y", "isduplicate"),
)
TRANSLATIONS = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("input", "output"),
    ("article", "highlights"),
    ("article", "summary"),
    ("document", "summary"),
    ("text", "summary"),
    ("dialogue", "summary"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("prompt", "output"),
    ("query", "response"),
    ("question", "response"),
    ("question", "answer"),
)
WORDS = ("tokens", "words")
TAGS_OF_WORDS = ("tags", "nertags", "ner", "labels", "postags", "pos", "upos", "chunktags")
"""Sentences and their tags, where cells can be lists."""
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
"""Questions whose answers are in a context, where cells can be lists."""
INSTRUCTION, INPUTS, OUTPUTS = "instruction", ("input", "context"), ("output", "response", "completion", "answer")
"""A table with an instruction and an output is one of pairs; the input, if there is one, belongs to the source."""
MESSAGES = ("messages", "conversations", "conversation")
"""Conversations, where cells can be lists."""
LANGUAGES = frozenset(
    (
        *("ar", "bg", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "it", "ja"),
        *("ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "th", "tr", "uk", "vi", "zh"),
        *("arabic", "chinese", "czech", "danish", "dutch", "english", "finnish", "french", "german", "greek"),
        *("hebrew", "hindi", "hungarian", "indonesian", "italian", "japanese", "korean", "norwegian", "polish"),
        *("portuguese", "romanian", "russian", "spanish", "swedish", "turkish", "ukrainian", "vietnamese"),
    )
)
"""Codes (ISO 639-1) and English names of languages, without codes of other meaning, such as id and no.

Two columns with such names are a translation, from the first to the second."""


RowKind = Literal["texts", "words", "questions"]
"""What a row is: texts with a label or a target, words with tags, or a question and a context with answers in it."""


@dataclass(frozen=True)
class Columns:
    """Columns by name. `target` is set for sequence to sequence, `label` for classes and numbers, never both.

    kind: of the rows. Words have tags as their label, and questions answers. input: continues the source. messages:
    conversations, which hold source and target; then there are no others.
    """

    texts: tuple[str, ...]
    label: str | None = None
    target: str | None = None
    found: bool = False
    """Some were inferred from their conventional names."""
    input: str | None = None
    messages: str | None = None
    kind: RowKind = "texts"
    ignored: tuple[str, ...] = ()
    """Columns of texts that are not read, where nobody has named those that are."""

    @property
    def writes(self) -> bool:
        """Whether rows have target texts."""
        return self.target is not None or self.messages is not None

    def describe(self) -> str:
        """The columns and their roles, in one line."""
        inferred = " (inferred from their names)" if self.found else ""
        if self.messages is not None:
            return f"columns: messages {shown(self.messages)}{inferred}"
        if self.kind != "texts":
            names = ("words", "tags") if self.kind == "words" else ("question and context", "answers")
            parts = [f"{names[0]} {' and '.join(map(shown, self.texts))}"]
            parts += [] if self.label is None else [f"{names[1]} {shown(self.label)}"]
            return f"columns: {', '.join(parts)}{inferred}"
        parts = [f"{'text' if self.target is None else 'source'} {' and '.join(map(shown, self.texts))}"]
        if self.input is not None:
            parts.append(f"input {shown(self.input)}")
        if self.label is not None:
            parts.append(f"label {shown(self.label)}")
        if self.target is not None:
            parts.append(f"target {shown(self.target)}")
        return f"columns: {', '.join(parts)}{inferred}{self._ignored()}"

    def _ignored(self) -> str:
        if not self.ignored:
            return ""
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
    When all columns but one are known, that one is the text, or else the label. With `labelled` False neither label nor
    target is looked for. Raises DataError for a missing or ambiguous column, UsageError for contradictions.
    """
    given = _in_table(table, names or Data())
    kind = kind or infer_kind(table)
    if kind == "texts" and isinstance(table.file, Conll | Squad):
        what, option = ("tagged sentences", "tags") if isinstance(table.file, Conll) else ("questions", "answers")
        raise DataError(
            f"{what}, where a table of texts is needed",
            where=place(table.path),
            fix=f"name a table of texts, or train a model on it: lmtool finetune FILE --labels {option}",
        )
    if kind != "texts":
        return _annotated(table, kind, given.text_columns, given.label_column, labelled)
    if given.messages_column:
        return Columns((), messages=given.messages_column)
    if given.source_column or given.target_column or given.input_column:
        pair = _source_and_target(table, given.source_column, given.target_column, labelled)
        return replace(pair, input=given.input_column)
    if given.text_columns or given.label_column:
        return _texts_and_label(table, given, labelled)
    if messages := _messages(table):
        return Columns((), found=True, messages=messages)
    if instruction := _instruction(table, labelled):
        source, target = instruction
        return Columns((source,), target=target, found=True, input=_usual(table, INPUTS))
    translation = _translation(table)
    if translation and _usual(table, LABELS, exclude=translation) is None:
        return Columns(translation[:1], target=translation[1] if labelled else None, found=True)
    return _texts_and_label(table, given, labelled)


def _in_table(table: Table, names: Data) -> Data:
    """The columns that are named, as the table spells them. Raises as `choose_columns` does."""
    pair = names.source_column or names.target_column
    if pair and (names.text_columns or names.label_column):
        raise UsageError(
            "a table is read either with texts and a label or with a source and a target",
            fix="give --text-column and --label-column, or --source-column and --target-column",
        )
    others = names.text_columns or names.label_column or pair or names.input_column
    if names.messages_column and others:
        raise UsageError("messages hold source and target", fix="give --messages-column, or the other columns")
    taken: set[str] = set()

    def spelled(name: str, flag: str) -> str:
        own = matching_column(name, table.names)
        if own is None:
            raise missing_column(name, table.names, place(table.path), flag)
        if own in taken:
            raise UsageError(f"column {shown(own)} is named twice", fix="name each column once")
        taken.add(own)
        return own

    texts = tuple(spelled(name, "--text-column") for name in names.text_columns)
    alone = {key: spelled(name, f"--{key.replace('_', '-')}") for key in SINGLE if (name := getattr(names, key))}
    return names.model_copy(update={"text_columns": texts, **alone})


def _texts_and_label(table: Table, given: Data, labelled: bool) -> Columns:
    label = given.label_column or (_usual(table, LABELS, exclude=given.text_columns) if labelled else None)
    texts, ignored = (given.text_columns, ()) if given.text_columns else _texts(table, label, labelled)
    if not texts:
        raise _cannot_tell(table, "the text", "--text-column")
    if labelled and label is None:
        rest = [name for name in table.names if name not in texts]
        if len(rest) != 1:
            raise _cannot_tell(table, "the label", "--label-column")
        label = rest[0]
    is_inferred = not (given.text_columns and (given.label_column or not labelled))
    ignored = tuple(name for name in ignored if name != label)
    return Columns(texts, label, found=is_inferred, ignored=ignored if labelled else ())


def infer_kind(table: Table) -> RowKind:
    """What the rows of a table are, by its format, and by the names of columns whose cells are lists."""
    match table.file:
        case Conll():
            return "words"
        case Squad():
            return "questions"
        case Delimited():
            return "texts"
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
    n_texts, flag = (1, "the words") if kind == "words" else (2, "the question and the context")
    texts = tuple(text_columns)
    if not texts:
        usual = [WORDS] if kind == "words" else [(QUESTION,), (CONTEXT,)]
        texts = tuple(name for names in usual if (name := _usual(table, names, exclude=(label_column,))))
    if len(texts) != n_texts:
        raise _cannot_tell(table, flag, "--text-column")
    label = label_column or _usual(table, TAGS_OF_WORDS if kind == "words" else (ANSWERS,), exclude=texts)
    if labelled and label is None:
        raise _cannot_tell(table, "the tags" if kind == "words" else "the answers", "--label-column")
    found = not (text_columns and (label_column or not labelled))
    return Columns(texts, label if labelled else None, found=found, kind=kind)


def _source_and_target(table: Table, source: str | None, target: str | None, labelled: bool) -> Columns:
    found = (labelled and target is None) or source is None
    pair = _instruction(table, labelled) or _translation(table)
    rest = [name for name in table.names if name not in (source, target)]
    other = rest[0] if len(rest) == 1 else None
    if source is None:
        source = pair[0] if pair and target in (pair[1], None) else other
    if target is None and labelled:
        target = pair[1] if pair and pair[0] == source else other
        if target is None:
            raise _cannot_tell(table, "the target", "--target-column")
    if source is None:
        raise _cannot_tell(table, "the source", "--source-column")
    return Columns((source,), target=target if labelled else None, found=found)


def _texts(table: Table, label: str | None, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of texts, and others that hold texts too."""
    others = [name for name in table.names if name != label]
    usual = tuple(name for name in others if bare_name(name) in TEXTS)
    pair = next((found for names in TEXT_PAIRS if (found := _all_usual(table, names, label))), ())
    texts = pair or usual
    if not texts and len(others) == 1 and (label or not labelled):
        texts = tuple(others)
    if not texts or len(others) == 1:
        return texts, ()
    cells = _sample(table)
    if len(usual) > 1 and not pair:
        # where all are codes, that of the most usual name is the text
        texts = tuple(name for name in usual if not is_code(cells[name]))
        texts = texts or (sorted(usual, key=lambda name: TEXTS.index(bare_name(name)))[0],)
    return texts, tuple(name for name in others if name not in texts and is_prose(cells[name]))


def _all_usual(table: Table, names: Sequence[str], label: str | None) -> tuple[str, ...]:
    """A column for each of these names; none unless there are all."""
    found = [_usual(table, (name,), exclude=(label,)) for name in names]
    return tuple(name for name in found if name) if all(found) else ()


def _sample(table: Table) -> dict[str, list[Value]]:
    """The cells of the first rows, by column."""
    rows = [row.values for row in islice(table.rows(Skipped()), SAMPLED)]
    return {name: [values[i] for values in rows] for i, name in enumerate(table.names)}


def _translation(table: Table) -> tuple[str, str] | None:
    for pair in TRANSLATIONS:
        source, target = (_usual(table, (name,)) for name in pair)
        if source and target and (pair not in TEXT_PAIRS or len(table.names) == 2):
            return source, target
    spoken = [name for name in table.names if bare_name(name) in LANGUAGES]
    return (spoken[0], spoken[1]) if len(spoken) == 2 else None


def _messages(table: Table) -> str | None:
    return None if isinstance(table.file, Delimited) else _usual(table, MESSAGES)


def _instruction(table: Table, labelled: bool) -> tuple[str, str | None] | None:
    """The columns of an instruction and its output, which is only needed where labels are."""
    source, target = _usual(table, (INSTRUCTION,)), _usual(table, OUTPUTS)
    return None if source is None or (labelled and target is None) else (source, target if labelled else None)


def has_usual_label(table: Table) -> bool:
    """Whether a column has a usual name of labels."""
    return _usual(table, LABELS) is not None


def _usual(table: Table, wanted: Sequence[str], exclude: Sequence[str | None] = ()) -> str | None:
    for plain in wanted:
        for name in table.names:
            if bare_name(name) == plain and name not in exclude:
                return name
    return None


def _cannot_tell(table: Table, what: str, flag: str) -> DataError:
    return DataError(
        f"cannot infer which column is {what}; found {shown(', '.join(table.names), 120)}",
        where=place(table.path),
        fix=f"name it with {flag}; the first row of a table names its columns",
    )
