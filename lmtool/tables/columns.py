"""The columns of a table to read: given ones, or those with conventional names."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmtool.errors import DataError, UsageError
from lmtool.text.files import place, shown
from lmtool.text.rowfile import bare_name, missing_column
from lmtool.text.table import Table

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
)
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


@dataclass(frozen=True)
class Columns:
    """Columns by name. `target` is set for sequence to sequence, `label` for classes and numbers, never both."""

    texts: tuple[str, ...]
    label: str | None = None
    target: str | None = None
    found: bool = False
    """Some were inferred from their conventional names."""

    def describe(self) -> str:
        """The columns and their roles, in one line."""
        parts = [f"{'text' if self.target is None else 'source'} {' and '.join(map(shown, self.texts))}"]
        if self.label is not None:
            parts.append(f"label {shown(self.label)}")
        if self.target is not None:
            parts.append(f"target {shown(self.target)}")
        return f"columns: {', '.join(parts)}{' (inferred from their names)' if self.found else ''}"


def choose_columns(
    table: Table,
    *,
    text_columns: Sequence[str] = (),
    label_column: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    labelled: bool = True,
) -> Columns:
    """The columns to read: the given ones, and the others by conventional names.

    Without any given name, a source and a target are looked for when no column has the conventional name of a label.
    When all columns but one are known, that one is the text, or else the label. With `labelled` False neither label nor
    target is looked for. Raises DataError for a missing or ambiguous column, UsageError for contradictions.
    """
    if (text_columns or label_column) and (source_column or target_column):
        raise UsageError(
            "a table is read either with texts and a label or with a source and a target",
            fix="give --text-column and --label-column, or --source-column and --target-column",
        )
    flags: list[tuple[str, str | None]] = [("--text-column", name) for name in text_columns]
    flags += [("--label-column", label_column), ("--source-column", source_column), ("--target-column", target_column)]
    given = [(flag, name) for flag, name in flags if name is not None]
    for flag, name in given:
        if name not in table.names:
            raise missing_column(name, table.names, place(table.path), flag)
    names = [name for _, name in given]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"column {shown(twice)} is named twice", fix="name each column once")
    if source_column or target_column:
        return _source_and_target(table, source_column, target_column, labelled)
    pair = None if given else _translation(table)
    usual = _usual(table, LABELS, exclude=[*text_columns, *(pair or ())])
    if pair and usual is None:
        return Columns(pair[:1], target=pair[1] if labelled else None, found=True)
    label = label_column or (usual if labelled else None)
    texts = tuple(text_columns) or _texts(table, label, labelled)
    if not texts:
        raise _cannot_tell(table, "the text", "--text-column")
    if labelled and label is None:
        rest = [name for name in table.names if name not in texts]
        if len(rest) != 1:
            raise _cannot_tell(table, "the label", "--label-column")
        label = rest[0]
    return Columns(texts, label, found=not (text_columns and (label_column or not labelled)))


def _source_and_target(table: Table, source: str | None, target: str | None, labelled: bool) -> Columns:
    found = (labelled and target is None) or source is None
    pair = _translation(table)
    rest = [name for name in table.names if name not in (source, target)]
    other = rest[0] if len(rest) == 1 else None
    if source is None:
        source = pair[0] if pair and pair[1] == target else other
    if target is None and labelled:
        target = pair[1] if pair and pair[0] == source else other
        if target is None:
            raise _cannot_tell(table, "the target", "--target-column")
    if source is None:
        raise _cannot_tell(table, "the source", "--source-column")
    return Columns((source,), target=target if labelled else None, found=found)


def _texts(table: Table, label: str | None, labelled: bool) -> tuple[str, ...]:
    for pair in TEXT_PAIRS:
        first, second = (_usual(table, (name,), exclude=(label,)) for name in pair)
        if first and second:
            return first, second
    text = _usual(table, TEXTS, exclude=(label,))
    if text:
        return (text,)
    rest = [name for name in table.names if name != label]
    return (rest[0],) if len(rest) == 1 and (label or not labelled) else ()


def _translation(table: Table) -> tuple[str, str] | None:
    for pair in TRANSLATIONS:
        source, target = (_usual(table, (name,)) for name in pair)
        if source and target:
            return source, target
    spoken = [name for name in table.names if bare_name(name) in LANGUAGES]
    return (spoken[0], spoken[1]) if len(spoken) == 2 else None


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
