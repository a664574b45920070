"""Rows of a table as texts and labels, with their faults and notices."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from lmtool.errors import DataError
from lmtool.tables.annotations import (
    AnnotationFault,
    AnswerSpan,
    as_answers,
    as_entities,
    as_tags,
    as_words,
    complete_tags,
    has_entities,
)
from lmtool.tables.columns import Columns
from lmtool.tables.conversations import MessageFault, as_messages
from lmtool.tables.labels import (
    LARGEST,
    LONGEST_LABEL,
    SEPARATOR,
    Label,
    LabelKind,
    LabelMap,
    as_cell,
    as_names,
    as_number,
    decide_kind,
)
from lmtool.tables.typos import label_notices, misspelt
from lmtool.text.chat import ChatFormat, Message, RefusedMessages
from lmtool.text.files import place, shown
from lmtool.text.notices import Notice
from lmtool.text.table import Row, RowFault, Skipped, Table, skip

SUGGESTED = 10
"""Unknown labels of a table for which the nearest known one is looked for."""


class LabelledText(NamedTuple):
    """One row: its texts, its label or target where there is one, and its number.

    messages: of a conversation, whose last one is the target where there is one; its text is all before that.
    Of a sentence the texts are its words, and the label their tags. Of a question they are it and its context. answers:
    to the question, in the context; none where it has none, and None where they are unknown.
    """

    texts: tuple[str, ...]
    label: Label | None
    target: str | None
    row: int
    messages: tuple[Message, ...] = ()
    answers: tuple[AnswerSpan, ...] | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """All good rows of a table, in order."""

    table: Table
    columns: Columns
    labels: LabelMap | None
    """None where there are targets or no labels."""
    items: tuple[LabelledText, ...]
    skipped: Skipped
    notices: tuple[Notice, ...]

    def __len__(self) -> int:
        return len(self.items)

    def counts(self) -> dict[str, int]:
        """The number of rows of each class, in the order of the label map."""
        found = count_labels(self.items)
        return {name: found[name] for name in self.labels.names} if self.labels else {}

    def describe(self) -> str:
        """Rows, kind and classes in one line."""
        rows = f"{len(self):,} rows"
        match self.labels.kind if self.labels else None:
            case "number":
                values = [float(cast(float, item.label)) for item in self.items]
                return f"{rows}, one number each, from {min(values):g} to {max(values):g}"
            case "class" | "multi" as kind:
                counts = self.counts()
                some = ", ".join(f"{shown(name, 20)} {count:,}" for name, count in list(counts.items())[:8])
                more = f", and {len(counts) - 8} more" if len(counts) > 8 else ""
                each = "one class each" if kind == "class" else "any of the classes each"
                return f"{rows}, {each} of {len(counts)}: {some}{more}"
            case "tags":
                counts, each = self.counts(), "tags"
                if has_entities(counts):
                    each = "types of entities"
                    counts = {name[2:]: count for name, count in counts.items() if name.startswith("B-")}
                some = ", ".join(f"{shown(name, 20)} {count:,}" for name, count in list(counts.items())[:8])
                more = f", and {len(counts) - 8} more" if len(counts) > 8 else ""
                n_words = sum(len(item.texts) for item in self.items)
                return f"{rows}, {n_words:,} words, {len(counts)} {each}: {some}{more}"
        if self.columns.kind == "questions":
            n_empty = sum(item.answers == () for item in self.items)
            return f"{rows}, a question each, {n_empty:,} without an answer"
        return rows

    def take(self, indexes: Sequence[int]) -> "LabelledTexts":
        """A subset of the rows."""
        return replace(self, items=tuple(self.items[i] for i in indexes), notices=(), skipped=Skipped())


def stream_labelled(
    table: Table,
    columns: Columns,
    labels: LabelMap | None = None,
    skipped: Skipped | None = None,
    chat: ChatFormat | None = None,
) -> Iterator[tuple[Row, LabelledText]]:
    """Rows with their examples, in order and in bounded memory: for tables of any size.

    A label column needs the labels of the training data. Conversations are read up to the last message that is not the
    assistant's. chat: refuses conversations. Bad rows raise a RowFault, or are counted in `skipped`.
    """
    if columns.label is not None and labels is None:
        raise ValueError("a label column needs labels")
    read = _Reader(table, columns, chat, labels, answered=False)
    for row in table.rows(skipped):
        try:
            example = read.example(row)
            if labels is not None and columns.label is not None:
                example = read.labelled(example, row.line, labels.kind)
                read.refuse_unknown(example, row.line, labels)
        except RowFault as fault:
            skip(fault, skipped)
        else:
            yield row, example


def read_labelled(
    table: Table,
    columns: Columns,
    *,
    kind: LabelKind | None = None,
    labels: LabelMap | None = None,
    skip_bad_rows: bool = False,
    chat: ChatFormat | None = None,
) -> LabelledTexts:
    """All rows of a table as texts and labels.

    Without `labels` this is a training table: the kind of its labels is inferred (see `labels.decide_kind`) unless
    given, and so are its classes. With the `labels` of a training table, other classes are faults. Rows whose fields
    are all blank are skipped with a notice. Conversations are read up to the assistant's last message. chat: refuses
    conversations.
    Raises a RowFault for the first bad row, unless `skip_bad_rows` skips them; and DataError when nothing can be
    learned: no rows remain, or only one class.
    """
    skipped = Skipped()
    read = _Reader(table, columns, chat, labels, answered=True)
    read_rows: list[tuple[LabelledText, int | None]] = []
    n_blank = 0
    with_label = columns.label is not None and columns.kind != "questions"
    counted = skipped if skip_bad_rows else None
    for row in table.rows(counted):
        if all(value is None or (isinstance(value, str) and not value.strip()) for value in row.values):
            n_blank += 1
            continue
        try:
            read_rows.append((read.example(row), row.line))
        except RowFault as fault:
            skip(fault, counted)
    chosen: LabelMap | None = None
    if with_label:
        cells = [cast(str | tuple[str, ...], example.label) for example, _ in read_rows]
        known = labels.kind if labels else "tags" if columns.kind == "words" else kind or decide_kind(cells)
        if known == "tags":
            read.entities = has_entities(labels.names if labels else (tag for cell in cells for tag in cell))
        read_rows = _labelled(read, read_rows, known, labels, counted)
        names: Collection[str] = count_labels([example for example, _ in read_rows])
        chosen = labels or LabelMap.of(known, complete_tags(names) if read.entities else names)
    items = tuple(example for example, _ in read_rows)
    if not items:
        what = "no rows remain" if skipped.count or n_blank else "the table has no rows"
        raise DataError(what, where=place(table.path), fix=str(skipped) if skipped.count else "name a table with rows")
    if chosen is not None and labels is None:
        _refuse_one_class(items, chosen, table, columns)
    blank = [Notice("blank rows", n_blank, f"skipped {_rows(n_blank)} without any text")] if n_blank else []
    if read.n_repaired:
        n = read.n_repaired
        what = f"{n:,} {'entity begins' if n == 1 else 'entities begin'} with I-, which is read as B- (as by conlleval)"
        blank.append(Notice("entities that begin with I", n, what))
    notices = [*blank, *_notices(items, chosen)]
    if chosen is not None and labels is None and chosen.kind in ("class", "multi"):
        places = ((_names(item.label), f"line {line}" if line else f"row {item.row}") for item, line in read_rows)
        notices += label_notices(places)
    return LabelledTexts(table, columns, chosen, items, skipped, tuple(notices))


def _labelled(
    read: "_Reader",
    rows: list[tuple[LabelledText, int | None]],
    kind: LabelKind,
    labels: LabelMap | None,
    skipped: Skipped | None,
) -> list[tuple[LabelledText, int | None]]:
    good: list[tuple[LabelledText, int | None]] = []
    for raw, line in rows:
        try:
            example = read.labelled(raw, line, kind)
            if labels is not None:
                read.refuse_unknown(example, line, labels)
            good.append((example, line))
        except RowFault as fault:
            skip(fault, skipped)
    if kind != "class" or labels is not None:
        return good
    counts = count_labels([example for example, _ in good])
    if len(counts) < 2:
        return good
    similar = misspelt(counts)
    resembling = {*similar, *similar.values()}
    alone = {name for name, count in counts.items() if count == 1 and name not in resembling}
    kept = []
    for example, line in good:
        if example.label in alone:
            skip(read.single(example, line, len(alone), len(counts)), skipped)
        else:
            kept.append((example, line))
    return kept


class _Reader:
    """Reads texts and labels from the rows of one table. Its methods raise RowFault."""

    def __init__(
        self, table: Table, columns: Columns, chat: ChatFormat | None, labels: LabelMap | None, answered: bool
    ) -> None:
        """chat: refuses conversations. labels: of the training table. answered: conversations end with an answer."""
        self.columns = columns
        self._chat = chat
        self._trained = labels is not None
        self._answered = answered
        self._fault = table.fault
        self.text_at = [table.names.index(name) for name in columns.texts]
        self.label_at = table.names.index(columns.label) if columns.label is not None else None
        self.target_at = table.names.index(columns.target) if columns.target is not None else None
        self.input_at = table.names.index(columns.input) if columns.input is not None else None
        self.messages_at = table.names.index(columns.messages) if columns.messages is not None else None
        self.entities = False
        """Tags are those of entities. Set once all rows are read."""
        self.n_repaired = 0
        self._n_unknown = 0

    def example(self, row: Row) -> LabelledText:
        """The texts of a row, with the unparsed cell of its label."""
        if self.messages_at is not None:
            return self._conversation(row, self.messages_at)
        if self.columns.kind != "texts":
            return self._annotated(row)
        texts = tuple(self._text(row, at) for at in self.text_at)
        if self.input_at is not None and (more := self._text(row, self.input_at)).strip():
            texts = (f"{texts[0]}\n\n{more}",)
        if self.label_at is None and self.target_at is None:
            return LabelledText(texts, None, None, row.number)
        if not any(text.strip() for text in texts):
            raise self._fault("empty text", "the text is empty", row.number, row.line, self.columns.texts[0], _FILL)
        if self.target_at is not None:
            target = self._text(row, self.target_at)
            if not target.strip():
                what = "the target is empty"
                raise self._fault("empty target", what, row.number, row.line, self.columns.target, _FILL)
            return LabelledText(texts, None, target, row.number)
        assert self.label_at is not None
        value = row.values[self.label_at]
        cell = as_cell(value)
        if cell is None:
            what = f"the label is {type(value).__name__}, not text or a number"
            fix = "write labels as text, numbers or lists of text"
            raise self._fault("wrong type", what, row.number, row.line, self.columns.label, fix)
        self._refuse_long(cell, row)
        if cell == "":
            fix = _FILL + f"; for a row without any of several labels, write {SEPARATOR}"
            raise self._fault("empty label", "the label is empty", row.number, row.line, self.columns.label, fix)
        return LabelledText(texts, cell, None, row.number)

    def _refuse_long(self, cell: str | tuple[str, ...], row: Row) -> None:
        """Raise when a label is as long as a text."""
        longest = max(map(len, cell.split(SEPARATOR) if isinstance(cell, str) else cell), default=0)
        if longest > LONGEST_LABEL:
            what = f"the label has {longest:,} characters, more than {LONGEST_LABEL:,}: it seems to be a text"
            fix = "name another column with --label-column, or shorten it"
            raise self._fault("label too long", what, row.number, row.line, self.columns.label, fix)

    def _conversation(self, row: Row, at: int) -> LabelledText:
        def fault(kind: str, what: str, fix: str) -> RowFault:
            return self._fault(kind, what, row.number, row.line, at, fix)

        try:
            messages = as_messages(row.values[at])
        except MessageFault as found:
            raise fault(found.kind, found.what, found.fix) from None
        if self._answered:
            turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            if not turns:
                raise fault("no answer", "no message of the assistant, which would be learnt", "add its answer")
            messages = messages[: turns[-1] + 1]
        else:
            while messages and messages[-1]["role"] == "assistant":
                messages = messages[:-1]
            if not messages:
                raise fault("no question", "no message that is to be answered", "add one of the user")
        if self._chat is not None:
            try:
                self._chat.check(messages)
            except RefusedMessages as refused:
                raise fault("refused messages", refused.what, refused.fix) from None
        asked = messages[:-1] if self._answered else messages
        text = "\n".join(f"{message['role']}: {message['content']}" for message in asked)
        target = messages[-1]["content"] if self._answered else None
        return LabelledText((text,), None, target, row.number, messages)

    def _annotated(self, row: Row) -> LabelledText:
        """A sentence with tags, or a question with answers."""
        at, label_at = self.text_at[-1], self.label_at
        try:
            if self.columns.kind == "words":
                words = as_words(row.values[at])
                if label_at is None:
                    return LabelledText(words, None, None, row.number)
                at = label_at
                tags = as_tags(row.values[at], len(words))
                self._refuse_long(tags, row)
                return LabelledText(words, tags, None, row.number)
            texts = tuple(self._text(row, at) for at in self.text_at)
            if label_at is None:
                return LabelledText(texts, None, None, row.number)
            at = label_at
            return LabelledText(texts, None, None, row.number, answers=as_answers(row.values[at], texts[1]))
        except AnnotationFault as found:
            raise self._fault(found.kind, found.what, row.number, row.line, at, found.fix) from None

    def labelled(self, example: LabelledText, line: int | None, kind: LabelKind) -> LabelledText:
        """The example with its cell parsed as a label of this kind."""
        if kind == "tags":
            return self._tagged(example, line)
        cell = cast(str | tuple[str, ...], example.label)
        if kind == "multi":
            return example._replace(label=as_names(cell))
        if isinstance(cell, tuple):
            raise self._wrong(example, line, "several labels", "one class" if kind == "class" else "a number")
        if kind == "class":
            return example
        number = as_number(cell)
        if number is None:
            raise self._wrong(example, line, shown(cell, 30), f"a number from {-LARGEST:g} to {LARGEST:g}")
        return example._replace(label=number)

    def _tagged(self, example: LabelledText, line: int | None) -> LabelledText:
        """The example with tags in which every entity begins with B."""
        if not self.entities:
            return example
        try:
            tags, n_repaired = as_entities(cast(tuple[str, ...], example.label))
        except AnnotationFault as found:
            raise self._fault(found.kind, found.what, example.row, line, self.columns.label, found.fix) from None
        self.n_repaired += n_repaired
        return example._replace(label=tags)

    def refuse_unknown(self, example: LabelledText, line: int | None, labels: LabelMap) -> None:
        """Raise when the label is not among `labels`."""
        assert example.label is not None
        name = labels.unknown(example.label)
        if name is not None:
            each = "tag" if labels.kind == "tags" else "label"
            what = f"the {each} {shown(name, 40)} is not among those of the training data"
            self._n_unknown += 1
            fix = labels.suggestion(name) if self._n_unknown <= SUGGESTED else "correct it"
            raise self._fault("label unseen in training", what, example.row, line, self.columns.label, fix)

    def single(self, example: LabelledText, line: int | None, n_alone: int, n_classes: int) -> RowFault:
        """The fault of a class with one row."""
        what = f"the class {shown(str(example.label), 40)} has one row"
        fix = "give it a second row, or correct the label"
        if n_alone > 1:
            what += f"; {n_alone:,} of {n_classes:,} classes have one row"
            fix = f"is {shown(str(self.columns.label))} the label column? If so, {fix}"
        return self._fault("class with one row", what, example.row, line, self.columns.label, fix)

    def _text(self, row: Row, at: int) -> str:
        value = row.values[at]
        if value is None:
            return ""
        if not isinstance(value, str):
            what = f"the column holds {type(value).__name__}, not text"
            raise self._fault("wrong type", what, row.number, row.line, at, "name a column of text")
        return value

    def _wrong(self, example: LabelledText, line: int | None, found: str, wanted: str) -> RowFault:
        what = f"the label is {found}, not {wanted}"
        fix = (
            "correct it" if self._trained else "correct it, or name the kind of labels: --labels class, multi or number"
        )
        return self._fault("wrong label", what, example.row, line, self.columns.label, fix)


_FILL = "fill it"


def count_labels(items: Sequence[LabelledText]) -> Counter[str]:
    return Counter(name for item in items for name in _names(item.label))


def _names(label: Label | None) -> tuple[str, ...]:
    """The names of classes in a label; none in a number."""
    return label if isinstance(label, tuple) else (label,) if isinstance(label, str) else ()


def _refuse_one_class(items: Sequence[LabelledText], labels: LabelMap, table: Table, columns: Columns) -> None:
    where = f"{place(table.path)}, column {shown(str(columns.label))}"
    if labels.kind == "tags":
        if len(labels.names) < 2:
            what = f"only one tag: all words have {shown(labels.names[0], 40)}"
            raise DataError(
                what, where=where, fix="add rows of another one, or name another column with --label-column"
            )
        return
    different = {item.label for item in items}
    if labels.kind == "multi" and not labels.names:
        raise DataError("no row has any label", where=where, fix="name another column with --label-column")
    if labels.kind != "multi" and len(different) == 1:
        name = shown(str(different.pop()), 40)
        what = f"only one {'class' if labels.kind == 'class' else 'number'}: all {_rows(len(items))} have {name}"
        raise DataError(what, where=where, fix="add rows of another one, or name another column with --label-column")


def _notices(items: Sequence[LabelledText], labels: LabelMap | None) -> Iterator[Notice]:
    n_empty = sum(not all(text.strip() for text in item.texts) for item in items)
    if n_empty:
        yield Notice("empty texts", n_empty, f"{_rows(n_empty)} with an empty text")
    if labels is not None:
        yield from _conflicts(items)


def _conflicts(items: Sequence[LabelledText]) -> Iterator[Notice]:
    """Rows with the same texts but different labels."""
    groups: dict[tuple[str, ...], list[LabelledText]] = {}
    for item in items:
        groups.setdefault(item.texts, []).append(item)
    bad = [group for group in groups.values() if len({_unordered(item.label) for item in group}) > 1]
    if bad:
        count = sum(map(len, bad))
        pair = next([bad[0][0], item] for item in bad[0] if _unordered(item.label) != _unordered(bad[0][0].label))
        text = f"{_rows(count)} have the text of another row and a different label; first: rows {pair[0].row} and "
        yield Notice("duplicate rows with different labels", count, f"{text}{pair[1].row}")


def _unordered(label: Label | None) -> Any:
    return frozenset(label) if isinstance(label, tuple) else label


def shared_rows(train: LabelledTexts, test: LabelledTexts, name: str) -> Notice | None:
    """A notice of the rows of `test`, a table of this name, whose texts are also in `train`."""
    first: dict[tuple[str, ...], int] = {}
    for item in train.items:
        first.setdefault(item.texts, item.row)
    shared = [item for item in test.items if item.texts in first]
    if not shared:
        return None
    pair = f"row {shared[0].row} is row {first[shared[0].texts]} there"
    text = f"{len(shared):,} of {_rows(len(test))} of {name} are also in the training table; first: {pair}"
    return Notice("rows shared by train and test", len(shared), text)


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"
