"""Rows of a table as texts and labels, with their faults and notices."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.rowfile import fold_name
from lmtool.data.table import MAX_LABEL_MAGNITUDE, Row, RowError, SkippedRows, Table, count_skipped_or_raise
from lmtool.errors import DataError
from lmtool.printable import format_count
from lmtool.recipe.grammar import join_with_or
from lmtool.tasks.cells import (
    AnswerSpan,
    CellFault,
    as_answers,
    as_conversation,
    as_entities,
    as_label,
    as_tags,
    as_target,
    as_text,
    as_tools,
    as_words,
    complete_tags,
    has_entities,
)
from lmtool.tasks.labels import (
    COMMA,
    PLAIN,
    Label,
    LabelKind,
    LabelMap,
    as_cell,
    as_names,
    decide_kind,
    infer_number_format,
    merge_labels,
)
from lmtool.tasks.notices import Notice, label_notices, merge_option, misspelt
from lmtool.tasks.schema import GOLD_LABEL, SEVERAL, Columns
from lmtool.tokenization.chat import ChatFormat, Message

SUGGESTED = 10
"""Unknown labels of a table for which the nearest known one is looked for."""

NOTHING: Mapping[str, str] = {}

MOST_MERGED = 8
"""Merged labels that are named."""

NO_AGREEMENT = "-"
"""The gold label of a row on which its annotators do not agree (SNLI, Bowman et al. 2015)."""


class LabelledText(NamedTuple):
    """One row: its texts, its label or target where there is one, and its number.

    messages: of a conversation, whose last one is the target where there is one; its text is all before that. tools:
    that it may call.
    Of a sentence the texts are its words, and the label their tags. Of a question they are it and its context. answers:
    to the question, in the context; none where it has none, and None where they are unknown.
    """

    texts: tuple[str, ...]
    label: Label | None
    target: str | None
    row: int
    messages: tuple[Message, ...] = ()
    answers: tuple[AnswerSpan, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def named(self) -> tuple[str, str]:
        """The name of the row, for messages, and its texts as one."""
        return f"row {self.row}", " ".join(self.texts)


T = TypeVar("T")
R = TypeVar("R")
Numbered = tuple[LabelledText, int | None]
"""A row, and its line."""


@dataclass(frozen=True)
class LabelledTexts:
    """All good rows of a table, in order."""

    table: Table
    columns: Columns
    labels: LabelMap | None
    """None where there are targets or no labels."""
    items: tuple[LabelledText, ...]
    skipped: SkippedRows
    notices: tuple[Notice, ...]
    merged: str = ""
    """Which labels were read as others, in one line; empty for none."""

    def __len__(self) -> int:
        return len(self.items)

    def counts(self) -> dict[str, int]:
        """The number of rows of each class, in the order of the label map."""
        counts = count_labels(self.items)
        return {name: counts[name] for name in self.labels.names} if self.labels else {}

    def describe(self) -> str:
        """Rows, kind and classes in one line."""
        rows = format_count(len(self), "row")
        kind = self.labels.kind if self.labels else None
        if kind == "number":
            values = [float(cast(float, item.label)) for item in self.items]
            return f"{rows}, one number each, from {min(values):g} to {max(values):g}"
        if kind is not None:
            counts = self.counts()
            of_entities = kind == "tags" and has_entities(counts)
            if of_entities:
                counts = {name[2:]: count for name, count in counts.items() if name.startswith("B-")}
            n, n_words = len(counts), sum(len(item.texts) for item in self.items)
            kinds = format_count(n, "type of entities", "types of entities") if of_entities else format_count(n, "tag")
            what = {
                "class": f"in {format_count(n, 'class', 'classes')}",
                "multi": f"each with any of {format_count(n, 'class', 'classes')}",
                "tags": f"{format_count(n_words, 'word')}, {kinds}",
            }[kind]
            some = ", ".join(f"{quote(name, 20)} {count:,}" for name, count in list(counts.items())[:8])
            return f"{rows}, {what}: {some}" + (f", and {len(counts) - 8} more" if len(counts) > 8 else "")
        if self.columns.kind == "questions":
            n_empty = sum(item.answers == () for item in self.items)
            return f"{rows}, a question each, {n_empty:,} without an answer"
        return rows

    def take(self, indexes: Sequence[int]) -> "LabelledTexts":
        """A subset of the rows."""
        return replace(self, items=tuple(self.items[i] for i in indexes), notices=(), skipped=SkippedRows())


def stream_texts(
    table: Table, columns: Columns, skipped: SkippedRows | None = None, chat: ChatFormat | None = None
) -> Iterator[tuple[Row, LabelledText]]:
    """Rows with their texts, without labels, in order and in bounded memory: for tables of any size.

    Conversations are read up to the last message that is not the assistant's. chat: refuses conversations. Bad rows
    raise a RowError, or are counted in `skipped`.
    """
    reader = _Reader(table, replace(columns, label=None), chat, None, answered=False)
    return _sound(table.rows(skipped), lambda row: (row, reader.example(row)), skipped)


def _sound(rows: Iterable[T], read: Callable[[T], R], skipped: SkippedRows | None) -> Iterator[R]:
    """What `read` makes of each row; bad rows raise a RowError, or are counted in `skipped`."""
    for row in rows:
        try:
            sound = read(row)
        except RowError as fault:
            count_skipped_or_raise(fault, skipped)
        else:
            yield sound


def read_labelled(
    table: Table,
    columns: Columns,
    *,
    kind: LabelKind | None = None,
    labels: LabelMap | None = None,
    skip_bad_rows: bool = False,
    chat: ChatFormat | None = None,
    merged: Mapping[str, str] = NOTHING,
) -> LabelledTexts:
    """All rows of a table as texts and labels.

    Without `labels` this is a training table: the kind of its labels is inferred (see `labels.decide_kind`) unless
    given, and so are its classes. With the `labels` of a training table, other classes are faults. Rows whose fields
    are all blank, those whose gold label is `-`, and those without a label are left out with a notice. Conversations
    are read up to the assistant's last message. chat: refuses conversations. merged: labels that are read as others.
    Raises a RowError for the first bad row, unless `skip_bad_rows` skips them; and DataError when nothing can be
    learned: no rows remain, or only one class.
    """
    skipped = SkippedRows(rows={})
    counted_in = skipped if skip_bad_rows else None
    reader = _Reader(table, columns, chat, labels, answered=True)
    n_blank = n_open = n_unlabelled = 0
    is_gold = columns.label is not None and fold_name(columns.label) == GOLD_LABEL
    gold = table.names.index(str(columns.label)) if is_gold else None
    at = label_index(table, columns)

    def filled() -> Iterator[Row]:
        nonlocal n_blank, n_open, n_unlabelled
        for row in table.rows(counted_in):
            if all(value is None or (isinstance(value, str) and not value.strip()) for value in row.values):
                n_blank += 1
            elif gold is not None and row.values[gold] == NO_AGREEMENT:
                n_open += 1
            elif at is not None and as_cell(row.values[at]) == "":
                n_unlabelled += 1
            else:
                yield row

    found = Counter[str]()

    def example_of(row: Row) -> Numbered:
        example = reader.example(row)
        if merged and example.label is not None:
            label = merge_labels(cast(str | tuple[str, ...], example.label), merged, found)
            example = example._replace(label=label)
        return example, row.line

    rows = list(_sound(filled(), example_of, counted_in))
    label_map: LabelMap | None = None
    if columns.label is not None and columns.kind != "questions":
        cells = [cast(str | tuple[str, ...], example.label) for example, _ in rows]
        known = labels.kind if labels else "tags" if columns.kind == "words" else kind or decide_kind(cells)
        reader.read_numbers(cells, known, is_inferred=not (labels or kind))
        if known == "tags":
            reader.entities = has_entities(labels.names if labels else (tag for cell in cells for tag in cell))
        rows = list(_sound(rows, lambda row: (reader.labelled(*row, known), row[1]), counted_in))
        if known == "class" and labels is None:
            rows = list(reader.without_single(rows, counted_in))
        names: Collection[str] = count_labels([example for example, _ in rows])
        label_map = labels or LabelMap.of(known, complete_tags(names) if reader.entities else names)
    items = tuple(example for example, _ in rows)
    if not items:
        what = "no rows remain" if skipped.count or n_blank or n_open else "the table has no rows"
        fix = str(skipped) if skipped.count else "name a table with rows"
        if n_unlabelled and not skipped.count:
            what, fix = "no row has a label", "fill some, or name another column with --label-column"
        raise DataError(what, where=display_path(table.path), fix=fix)
    repairs = _repairs(n_blank, n_open, n_unlabelled, reader.n_repaired)
    notices = [*repairs, *reader.numbers, *_notices(items, label_map)]
    if labels is None and (absent := [name for name in merged if name not in found]):
        text = f"labels to merge that no row has: {quote_all(absent)}"
        notices.append(Notice("absent labels", len(absent), text))
    if label_map is not None and labels is None:
        _refuse_one_class(items, label_map, reader.where)
        if label_map.kind in ("class", "multi"):
            lines = ((_names(item.label), f"line {line}" if line else f"row {item.row}") for item, line in rows)
            notices += label_notices(lines)
    described = _describe_merged(merged, found)
    return LabelledTexts(table, columns, label_map, items, skipped, tuple(notices), described)


def label_index(table: Table, columns: Columns) -> int | None:
    """The column of the labels of texts, in which an empty cell is a row without a label; None where there is none."""
    is_of_texts = columns.label is not None and columns.kind in ("texts", "related")
    return table.names.index(str(columns.label)) if is_of_texts else None


def _repairs(n_blank: int, n_open: int, n_unlabelled: int, n_entities: int) -> Iterator[Notice]:
    """What was left out or changed: blank rows, those without a label, and entities that begin with I-."""
    if n_blank:
        yield Notice("blank rows", n_blank, f"skipped {format_count(n_blank, 'row')} without any text")
    if n_open:
        what = f"skipped {format_count(n_open, 'row')} whose gold label is {NO_AGREEMENT}: no agreement"
        yield Notice("rows without agreement", n_open, what)
    if n_unlabelled:
        what = f"left out {format_count(n_unlabelled, 'row')} without a label"
        yield Notice("rows without a label", n_unlabelled, what)
    if n_entities:
        entities = format_count(n_entities, "entity begins", "entities begin")
        what = f"{entities} with I-, which is read as B- (as by conlleval)"
        yield Notice("entities that begin with I", n_entities, what)


def _describe_merged(merged: Mapping[str, str], found: Counter[str]) -> str:
    """The labels that were read as others, in one line."""
    each = (f"{quote(name, 40)} as {quote(merged[name], 40)} ({format_count(n, 'row')})" for name, n in found.items())
    more = f" and {len(found) - MOST_MERGED:,} more" if len(found) > MOST_MERGED else ""
    return f"merged labels: {', '.join(islice(each, MOST_MERGED))}{more}" if found else ""


class _Reader:
    """Reads texts and labels from the rows of one table. Its methods raise RowError."""

    def __init__(
        self, table: Table, columns: Columns, chat: ChatFormat | None, labels: LabelMap | None, answered: bool
    ) -> None:
        """chat: refuses conversations. labels: of the training table. answered: conversations end with an answer."""
        self._columns = columns
        self.where = f"{display_path(table.path)}, column {quote(str(columns.label))}"
        self._chat = chat
        self._labels = labels
        self._answered = answered
        self._row_error = table.row_error
        self._index = {name: index for index, name in enumerate(table.names)}
        self._texts = [self._index[name] for name in columns.texts]
        self.entities = False
        """Tags are those of entities. Set once all rows are read."""
        self.n_repaired = 0
        self.numbers: list[Notice] = []
        self._format = PLAIN
        self._n_unknown = 0

    def _cell(self, row: Row, column: str | int, parse: Callable[..., R], *arguments: Any) -> R:
        """What `parse` makes of a cell; its faults are told with row and column."""
        index = column if isinstance(column, int) else self._index[column]
        try:
            return parse(row.values[index], *arguments)
        except CellFault as fault:
            raise self._row_error(fault.kind, fault.what, row.number, row.line, index, fault.fix) from None

    def example(self, row: Row) -> LabelledText:
        """The texts of a row, with the unparsed cell of its label."""
        columns, number = self._columns, row.number
        if columns.messages is not None:
            tools = () if columns.tools is None else self._cell(row, columns.tools, as_tools)
            arguments = (self._answered, self._chat, tools)
            messages = self._cell(row, columns.messages, as_conversation, *arguments)
            read = messages[:-1] if self._answered else messages
            text = "\n".join(f"{message['role']}: {message['content']}" for message in read)
            target = messages[-1]["content"] if self._answered else None
            return LabelledText((text,), None, target, number, messages, tools=tools)
        if columns.kind == "words":
            words = self._cell(row, self._texts[-1], as_words)
            tags = None if columns.label is None else self._cell(row, columns.label, as_tags, len(words))
            return LabelledText(words, tags, None, number)
        texts = tuple([self._cell(row, index, as_text) for index in self._texts])
        if columns.kind == "questions":
            label = columns.label
            answers = None if label is None else self._cell(row, label, as_answers, texts[1])
            return LabelledText(texts, None, None, number, answers=answers)
        if columns.input is not None and (more := self._cell(row, columns.input, as_text)).strip():
            texts = (f"{texts[0]}\n\n{more}",)
        if columns.label is None and columns.target is None:
            return LabelledText(texts, None, None, number)
        if not any(text.strip() for text in texts):
            raise self._row_error("empty text", "the text is empty", number, row.line, columns.texts[0], "fill it")
        if columns.target is not None:
            return LabelledText(texts, None, self._cell(row, columns.target, as_target), number)
        return LabelledText(texts, self._cell(row, str(columns.label), as_label), None, number)

    def read_numbers(self, cells: Sequence[str | tuple[str, ...]], kind: LabelKind, *, is_inferred: bool) -> None:
        """Find how numbers are written, and note what is not written as a number of Python is."""
        commas = [str(cell) for cell in cells if COMMA.fullmatch(str(cell))]
        self._format = (infer_number_format(cells) if kind == "number" else None) or PLAIN
        if self._format.percent or self._format.thousands:
            odd = [str(cell) for cell in cells if PLAIN.read(str(cell)) is None]
            what = f"{format_count(len(odd), 'label')} such as {quote(odd[0])} are read as numbers: "
            what += f"that one as {self._format.read(odd[0]):.15g}"
            self.numbers.append(Notice("formatted numbers", len(odd), what))
            return
        is_odd = kind == "class" and is_inferred and len(commas) >= SEVERAL * len(cells)
        if commas and (self._format.decimal == "," or is_odd):
            what = f"{format_count(len(commas), 'label')} with a comma, such as {quote(commas[0])}, are read as "
            what += "decimals" if self._format.decimal == "," else "classes: --labels number reads decimals"
            self.numbers.append(Notice("decimal commas", len(commas), what))

    def labelled(self, example: LabelledText, line: int | None, kind: LabelKind) -> LabelledText:
        """The example with its cell parsed as a label of this kind, one of the training table's if there is one."""
        try:
            label = self._label(cast(str | tuple[str, ...], example.label), kind)
            if self._labels is not None and (name := self._labels.unknown(label)) is not None:
                self._n_unknown += 1
                each = "tag" if kind == "tags" else "label"
                what = f"the {each} {quote(name, 40)} is not among those of the training data"
                fix = "correct it"
                if self._n_unknown <= SUGGESTED and (near := self._labels.nearest(name)):
                    fix = f"did you mean {quote(near)}? {merge_option(name, near)} reads it so"
                elif self._n_unknown <= SUGGESTED:
                    fix = f"the {'tags' if kind == 'tags' else 'classes'} are {quote_all(self._labels.names)}"
                raise CellFault("label unseen in training", what, fix)
        except CellFault as fault:
            column = self._columns.label
            raise self._row_error(fault.kind, fault.what, example.row, line, column, fault.fix) from None
        return example._replace(label=label)

    def _label(self, cell: str | tuple[str, ...], kind: LabelKind) -> Label:
        if kind == "tags":
            tags, n_repaired = as_entities(cell) if self.entities else (tuple(cell), 0)
            self.n_repaired += n_repaired
            return tags
        if kind == "multi":
            return as_names(cell)
        if isinstance(cell, str) and kind == "class":
            return cell
        number = self._format.read(cell) if isinstance(cell, str) else None
        if number is not None and abs(number) <= MAX_LABEL_MAGNITUDE:
            return number
        wanted = "one class" if kind == "class" else "a number"
        if isinstance(cell, str):
            wanted += f" from {-MAX_LABEL_MAGNITUDE:g} to {MAX_LABEL_MAGNITUDE:g}"
        fix = "write a point for the comma" if isinstance(cell, str) and COMMA.fullmatch(cell) else "correct it"
        if self._columns.kind == "related":
            fix += ", or train a classifier of pairs: -s objective.kind=classification"
        elif self._labels is None:
            others = join_with_or([other for other in ("class", "multi", "number") if other != kind])
            fix += f", or name another kind of labels: --labels {others}"
        is_ = "several labels" if isinstance(cell, tuple) else quote(cell, 30)
        raise CellFault("wrong label", f"the label is {is_}, not {wanted}", fix)

    def without_single(self, rows: Sequence[Numbered], skipped: SkippedRows | None) -> Iterator[Numbered]:
        """The rows but for those of a class with one row, unless its name resembles that of another; see `_sound`."""
        counts = count_labels([example for example, _ in rows])
        if counts.total() == len(counts) > 1:
            commas = all(COMMA.fullmatch(name) for name in counts)
            what = "write decimals with a point, thousands without a comma" if commas else "add rows of each class"
            fix = f"{what}, or name another column with --label-column"
            raise DataError(f"each of {len(counts):,} classes has one row", where=self.where, fix=fix)
        similar = misspelt(counts)
        resembling = {*similar, *similar.values()}
        alone = {name for name, count in counts.items() if count == 1 and name not in resembling and len(counts) > 1}

        for example, line in rows:
            if example.label not in alone:
                yield example, line
                continue
            what = f"the class {quote(str(example.label), 40)} has one row"
            fix = "give it a second row, or correct the label"
            if len(alone) > 1:
                what += f"; {len(alone):,} of {len(counts):,} classes have one row"
                fix = f"is {quote(str(self._columns.label))} the label column? If so, {fix}"
            count_skipped_or_raise(
                self._row_error("class with one row", what, example.row, line, self._columns.label, fix), skipped
            )


def count_labels(items: Sequence[LabelledText]) -> Counter[str]:
    return Counter(name for item in items for name in _names(item.label))


def _names(label: Label | None) -> tuple[str, ...]:
    """The names of classes in a label; none in a number."""
    return label if isinstance(label, tuple) else (label,) if isinstance(label, str) else ()


def _refuse_one_class(items: Sequence[LabelledText], labels: LabelMap, where: str) -> None:
    another = "name another column with --label-column"
    if labels.kind == "multi":
        if not labels.names:
            raise DataError("no row has any label", where=where, fix=another)
        return
    different = {*labels.names} if labels.kind == "tags" else {item.label for item in items}
    if len(different) == 1:
        only = quote(str(different.pop()), 40)
        what = f"the only tag is {only}" if labels.kind == "tags" else f"all rows have the same {labels.kind}, {only}"
        raise DataError(what, where=where, fix=f"add rows of another one, or {another}")


def _notices(items: Sequence[LabelledText], labels: LabelMap | None) -> Iterator[Notice]:
    n_empty = sum(not all(text.strip() for text in item.texts) for item in items)
    if n_empty:
        yield Notice("empty texts", n_empty, f"{format_count(n_empty, 'row')} with an empty text")
    if labels is not None:
        yield from _conflicts(items)


def _conflicts(items: Sequence[LabelledText]) -> Iterator[Notice]:
    """A notice of rows with the same texts but different labels."""
    if bad := contradictions(items):
        count = sum(map(len, bad))
        pair = next([bad[0][0], item] for item in bad[0] if _unordered(item.label) != _unordered(bad[0][0].label))
        what = f"{format_count(count, 'row')} with the text of another row and a different label"
        text = f"{what}; first: rows {pair[0].row} and {pair[1].row}"
        yield Notice("duplicate rows with different labels", count, text)


def contradictions(items: Sequence[LabelledText]) -> list[list[LabelledText]]:
    """Groups of rows with the same texts, whose labels differ."""
    groups: dict[tuple[str, ...], list[LabelledText]] = {}
    for item in items:
        groups.setdefault(item.texts, []).append(item)
    return [group for group in groups.values() if len({_unordered(item.label) for item in group}) > 1]


def _unordered(label: Label | None) -> Any:
    """A label for comparison: the order of several does not count."""
    return frozenset(label) if isinstance(label, tuple) else label


def shared_rows(train: LabelledTexts, test: LabelledTexts, name: str) -> Notice | None:
    """A notice of the rows of `test`, a table of this name, whose texts are also in `train`."""
    shared = rows_in(test.items, train.items)
    if not shared:
        return None
    pair = f"row {shared[0][0].row} is row {shared[0][1]} there"
    text = (
        f"{len(shared):,} of {format_count(len(test), 'row')} of {name} are also in the training table; first: {pair}"
    )
    return Notice("rows shared by train and test", len(shared), text)


def rows_in(items: Iterable[LabelledText], others: Iterable[LabelledText]) -> list[tuple[LabelledText, int]]:
    """The rows whose texts are among others, and the number of the first such row there."""
    first: dict[tuple[str, ...], int] = {}
    for item in others:
        first.setdefault(item.texts, item.row)
    return [(item, first[item.texts]) for item in items if item.texts in first]
