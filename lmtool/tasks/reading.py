"""Reads the rows of a table as texts and labels, with notices of what is suspicious in them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast

from lmtool.data.files import display_path, quote, quote_all
from lmtool.data.notices import Notice
from lmtool.data.rowfile import fold_name
from lmtool.data.table import MAX_LABEL_MAGNITUDE, Row, RowError, SkippedRowCounts, Table, count_skipped_or_raise
from lmtool.errors import DataError
from lmtool.printable import format_count
from lmtool.recipe.grammar import join_with_or
from lmtool.tasks.cells import (
    AnswerSpan,
    CellError,
    complete_bio_tags,
    has_bio_tags,
    parse_and_trim_conversation,
    parse_answers_in_context,
    parse_label_or_empty,
    parse_nonblank_text,
    parse_tag_list,
    parse_text_or_empty,
    parse_tools,
    parse_words,
    repair_bio_tags,
)
from lmtool.tasks.labels import (
    NUMBER_WITH_COMMA,
    PLAIN,
    Label,
    LabelCell,
    LabelKind,
    LabelMap,
    get_label_names,
    infer_label_kind,
    infer_number_format,
    merge_and_count_labels,
    split_label_names,
    to_label_cell,
)
from lmtool.tasks.notices import find_misspelt_labels, format_merge_option, make_label_notices
from lmtool.tasks.schema import GOLD_LABEL_NAME, Columns
from lmtool.tokenization.chat import ChatFormat, Message

MAX_LABEL_SUGGESTIONS = 10
"""Unknown labels of a table for which a similar known one is looked for."""

COMMA_SHARE = 0.5
"""Share of labels with a comma from which a notice says that they are classes, not decimals."""

MAX_LISTED_MERGES = 8

NO_AGREEMENT = "-"
"""The gold label of a row on which its annotators do not agree (SNLI, Bowman et al. 2015)."""

LEFT_OUT_ROWS = {
    "blank rows": "skipped {rows} without any text",
    "rows without agreement": f"skipped {{rows}} whose gold label is {NO_AGREEMENT}: no agreement",
    "rows without a label": "left out {rows} without a label",
}
"""Notices about good rows that are not read, by their kind."""

NO_MERGES: Mapping[str, str] = {}


RowNumber = int
"""Number of a row in its table, from 1."""


class LabelledRow(NamedTuple):
    """One row of a table.

    Args:
        texts: of a sentence its words; of a question the question and its context.
        label: of a sentence the tag of each word; None if it is unknown, or if there is a target.
        target: the text to write.
        line: of the file on which the row begins, from 1; None if the file has no lines.
        messages: of a conversation. The last one is the target if there is one; the text is all before that.
        answers: to the question, in the context; none if it has none, None if they are unknown.
        tools: that the conversation may call.
    """

    texts: tuple[str, ...]
    label: Label | None
    target: str | None
    row: RowNumber
    line: int | None = None
    messages: tuple[Message, ...] = ()
    answers: tuple[AnswerSpan, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def name_and_text(self) -> tuple[str, str]:
        """The name of the row in messages, and its texts as one."""
        return f"row {self.row}", " ".join(self.texts)


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class LabelledTable:
    """All good rows of a table, in order.

    labels: None if rows have targets or no labels. merge_summary: which labels were replaced, in one line; or empty.
    """

    table: Table
    columns: Columns
    labels: LabelMap | None
    items: tuple[LabelledRow, ...]
    skipped: SkippedRowCounts
    notices: tuple[Notice, ...]
    merge_summary: str = ""

    def __len__(self) -> int:
        return len(self.items)

    def count_classes(self) -> dict[str, int]:
        """Counts the rows of each class, in the order of the label map."""
        counts = count_label_names(self.items)
        return {name: counts[name] for name in self.labels.names} if self.labels else {}

    def describe(self) -> str:
        """Formats the number of rows, the kind of labels and the classes in one line."""
        rows = format_count(len(self), "row")
        if self.columns.kind == "questions":
            n_unanswered = sum(item.answers == () for item in self.items)
            return f"{rows}, a question each, {n_unanswered:,} without an answer"
        if self.labels is None:
            return rows
        if self.labels.kind == "number":
            values = [float(cast(float, item.label)) for item in self.items]
            return f"{rows}, one number each, from {min(values):g} to {max(values):g}"
        counts = self.count_classes()
        n_words, nouns = sum(len(item.texts) for item in self.items), ("tag", "tags")
        if self.labels.kind == "tags" and has_bio_tags(counts):
            counts = {name[2:]: count for name, count in counts.items() if name.startswith("B-")}
            nouns = ("type of entities", "types of entities")
        what = {
            "class": f"in {format_count(len(counts), 'class', 'classes')}",
            "multi": f"each with any of {format_count(len(counts), 'class', 'classes')}",
            "tags": f"{format_count(n_words, 'word')}, {format_count(len(counts), *nouns)}",
        }[self.labels.kind]
        some = ", ".join(f"{quote(name, 20)} {count:,}" for name, count in list(counts.items())[:8])
        return f"{rows}, {what}: {some}" + (f", and {len(counts) - 8} more" if len(counts) > 8 else "")

    def select_rows(self, indices: Sequence[int]) -> "LabelledTable":
        """Returns the table with some of its rows, without notices."""
        return replace(self, items=tuple(self.items[i] for i in indices), notices=(), skipped=SkippedRowCounts())


def stream_unlabelled_rows(
    table: Table, columns: Columns, skipped: SkippedRowCounts | None = None, chat: ChatFormat | None = None
) -> Iterator[tuple[Row, LabelledRow]]:
    """Yields rows with their texts, without labels, in order and in bounded memory.

    Reads conversations up to the last message that is not the assistant's. chat: checks conversations. Bad rows raise a
    RowError, or are counted in `skipped`.
    """
    parse = _make_row_parser(table, replace(columns, label=None), chat, ends_with_assistant=False)
    return _parse_or_skip_rows(table.rows(skipped), lambda row: (row, parse(row)), skipped)


def _parse_or_skip_rows(rows: Iterable[T], parse: Callable[[T], R], skipped: SkippedRowCounts | None) -> Iterator[R]:
    """Yields each parsed row; bad rows raise a RowError, or are counted in `skipped`."""
    for row in rows:
        try:
            parsed = parse(row)
        except RowError as error:
            count_skipped_or_raise(error, skipped)
        else:
            yield parsed


def read_labelled_table(
    table: Table,
    columns: Columns,
    *,
    kind: LabelKind | None = None,
    labels: LabelMap | None = None,
    skip_bad_rows: bool = False,
    chat: ChatFormat | None = None,
    merges: Mapping[str, str] = NO_MERGES,
) -> LabelledTable:
    """Reads all rows of a table as texts and labels.

    Leaves out rows whose fields are all blank, whose gold label is `-`, or that have no label, with a notice. Reads
    conversations up to the assistant's last message.

    Args:
        kind: of the labels; inferred by default, see `infer_label_kind`.
        labels: of the training table, whose other classes are errors; None for a training table itself.
        chat: checks conversations.
        merges: new names by old ones of labels to replace.

    Raises:
        RowError: for the first bad row, unless `skip_bad_rows`.
        DataError: if nothing can be learned: no rows remain, or only one class.
    """
    skipped = SkippedRowCounts(rows={})
    counter = skipped if skip_bad_rows else None
    n_left_out = Counter[str]()
    merged = Counter[str]()
    usable = _drop_blank_and_unlabelled_rows(table, columns, counter, n_left_out)
    items = list(_parse_or_skip_rows(usable, _make_row_parser(table, columns, chat, ends_with_assistant=True), counter))
    notices: list[Notice] = []
    label_map: LabelMap | None = None
    if columns.label is not None and columns.kind != "questions":
        cells = [cast(LabelCell, item.label) for item in items]
        if merges:
            cells = [merge_and_count_labels(cell, merges, merged) for cell in cells]
            items = [item._replace(label=cell) for item, cell in zip(items, cells, strict=True)]
        default: LabelKind = "tags" if columns.kind == "words" else kind or infer_label_kind(cells)
        label_parser = _LabelParser(table, columns, labels, labels.kind if labels else default, cells)
        items = list(_parse_or_skip_rows(items, label_parser.parse, counter))
        if label_parser.kind == "class" and labels is None:
            items = list(label_parser.skip_or_refuse_single_row_classes(items, counter))
        names: Collection[str] = count_label_names(items)
        names = complete_bio_tags(names) if label_parser.are_bio else names
        label_map = labels or LabelMap.from_names(label_parser.kind, names)
        notices = label_parser.make_label_format_notices(cells, is_kind_inferred=not (labels or kind))
    if not items:
        what = "no rows remain" if skipped.count or n_left_out.total() else "the table has no rows"
        fix = str(skipped) if skipped.count else "name a table with rows"
        if n_left_out["rows without a label"] and not skipped.count:
            what, fix = "no row has a label", "fill some, or name another column with --label-column"
        raise DataError(what, where=display_path(table.path), fix=fix)
    left_out = [
        Notice(kind, n, text.format(rows=format_count(n, "row")))
        for kind, text in LEFT_OUT_ROWS.items()
        if (n := n_left_out[kind])
    ]
    notices = [*left_out, *notices, *_make_empty_and_contradictory_notices(items, label_map)]
    if labels is None and (absent := [name for name in merges if name not in merged]):
        text = f"labels to merge that no row has: {quote_all(absent)}"
        notices.append(Notice("absent labels", len(absent), text))
    if label_map is not None and labels is None:
        _refuse_single_class(items, label_map, _describe_column(table, columns))
        if label_map.kind in ("class", "multi"):
            places = (f"line {item.line}" if item.line else f"row {item.row}" for item in items)
            notices += make_label_notices(zip((get_label_names(item.label) for item in items), places, strict=True))
    each = (f"{quote(old, 40)} as {quote(merges[old], 40)} ({format_count(n, 'row')})" for old, n in merged.items())
    more = f" and {len(merged) - MAX_LISTED_MERGES:,} more" if len(merged) > MAX_LISTED_MERGES else ""
    summary = f"merged labels: {', '.join(islice(each, MAX_LISTED_MERGES))}{more}" if merged else ""
    return LabelledTable(table, columns, label_map, tuple(items), skipped, tuple(notices), summary)


def find_label_index(table: Table, columns: Columns) -> int | None:
    """Returns the index of the column in which an empty cell means no label; None if there is no such column."""
    is_of_texts = columns.label is not None and columns.kind in ("texts", "related")
    return table.names.index(str(columns.label)) if is_of_texts else None


def _drop_blank_and_unlabelled_rows(
    table: Table, columns: Columns, skipped: SkippedRowCounts | None, n_left_out: Counter[str]
) -> Iterator[Row]:
    """Yields the rows with texts and labels; counts the others in `n_left_out` by keys of LEFT_OUT_ROWS."""
    is_gold = columns.label is not None and fold_name(columns.label) == GOLD_LABEL_NAME
    gold = table.names.index(str(columns.label)) if is_gold else None
    label = find_label_index(table, columns)
    for row in table.rows(skipped):
        if all(value is None or (isinstance(value, str) and not value.strip()) for value in row.values):
            n_left_out["blank rows"] += 1
        elif gold is not None and row.values[gold] == NO_AGREEMENT:
            n_left_out["rows without agreement"] += 1
        elif label is not None and to_label_cell(row.values[label]) == "":
            n_left_out["rows without a label"] += 1
        else:
            yield row


def _describe_column(table: Table, columns: Columns) -> str:
    return f"{display_path(table.path)}, column {quote(str(columns.label))}"


def _make_row_parser(
    table: Table, columns: Columns, chat: ChatFormat | None, *, ends_with_assistant: bool
) -> Callable[[Row], LabelledRow]:
    """Returns a function that returns the texts of a row, and its label as it is written, or raises a RowError.

    chat: checks conversations. ends_with_assistant: conversations end with an answer.
    """
    index = {name: i for i, name in enumerate(table.names)}

    def parse(row: Row, column: str, parse_cell: Callable[..., R], *arguments: Any) -> R:
        try:
            return parse_cell(row.values[index[column]], *arguments)
        except CellError as error:
            at = index[column]
            raise table.row_error(error.kind, error.what, row.number, row.line, at, error.fix) from None

    def parse_row(row: Row) -> LabelledRow:
        empty = LabelledRow((), None, None, row.number, row.line)
        if columns.messages is not None:
            tools = () if columns.tools is None else parse(row, columns.tools, parse_tools)
            messages = parse(row, columns.messages, parse_and_trim_conversation, ends_with_assistant, chat, tools)
            read = messages[:-1] if ends_with_assistant else messages
            text = "\n".join(f"{message['role']}: {message['content']}" for message in read)
            target = messages[-1]["content"] if ends_with_assistant else None
            return empty._replace(texts=(text,), target=target, messages=messages, tools=tools)
        if columns.kind == "words":
            words = parse(row, columns.texts[-1], parse_words)
            tags = None if columns.label is None else parse(row, columns.label, parse_tag_list, len(words))
            return empty._replace(texts=words, label=tags)
        texts = tuple([parse(row, name, parse_text_or_empty) for name in columns.texts])
        if columns.kind == "questions":
            answers = None if columns.label is None else parse(row, columns.label, parse_answers_in_context, texts[1])
            return empty._replace(texts=texts, answers=answers)
        if columns.input is not None and (more := parse(row, columns.input, parse_text_or_empty)).strip():
            texts = (f"{texts[0]}\n\n{more}",)
        if columns.label is None and columns.target is None:
            return empty._replace(texts=texts)
        if not any(text.strip() for text in texts):
            raise table.row_error("empty text", "the text is empty", row.number, row.line, columns.texts[0], "fill it")
        if columns.target is not None:
            return empty._replace(texts=texts, target=parse(row, columns.target, parse_nonblank_text))
        return empty._replace(texts=texts, label=parse(row, str(columns.label), parse_label_or_empty))

    return parse_row


class _LabelParser:
    """Parses the labels of a table. labels: of the training table; None for a training table. cells: all labels."""

    def __init__(
        self, table: Table, columns: Columns, labels: LabelMap | None, kind: LabelKind, cells: Sequence[LabelCell]
    ) -> None:
        self._table, self._columns, self._labels, self.kind = table, columns, labels, kind
        self._format = (infer_number_format(cells) if kind == "number" else None) or PLAIN
        self.are_bio = kind == "tags" and has_bio_tags(labels.names if labels else chain.from_iterable(cells))
        self._n_repaired = self._n_unknown = 0

    def make_label_format_notices(self, cells: Sequence[LabelCell], *, is_kind_inferred: bool) -> list[Notice]:
        """Returns notices of repaired tags, and of numbers that are not written as those of Python."""
        if self._n_repaired:
            n = format_count(self._n_repaired, "entity begins", "entities begin")
            what = f"{n} with I-, which is read as B- (as by conlleval)"
            return [Notice("entities that begin with I", self._n_repaired, what)]
        if self._format.percent or self._format.thousands:
            odd = [str(cell) for cell in cells if PLAIN.parse(str(cell)) is None]
            what = f"{format_count(len(odd), 'label')} such as {quote(odd[0])} are read as numbers: "
            what += f"that one as {self._format.parse(odd[0]):.15g}"
            return [Notice("formatted numbers", len(odd), what)]
        commas = [str(cell) for cell in cells if NUMBER_WITH_COMMA.fullmatch(str(cell))]
        are_decimals = self._format.decimal == ","
        seem_decimals = self.kind == "class" and is_kind_inferred and len(commas) >= COMMA_SHARE * len(cells)
        if commas and (are_decimals or seem_decimals):
            what = f"{format_count(len(commas), 'label')} with a comma, such as {quote(commas[0])}, are read as "
            what += "decimals" if are_decimals else "classes: --labels number reads decimals"
            return [Notice("decimal commas", len(commas), what)]
        return []

    def parse(self, item: LabelledRow) -> LabelledRow:
        """Returns the row with its label parsed. Raises RowError, also for a label that the training table lacks."""
        try:
            label = self._parse_names_or_number(cast(LabelCell, item.label))
            if self._labels is not None and (name := self._labels.find_unknown(label)) is not None:
                self._n_unknown += 1
                noun, nouns = ("tag", "tags") if self.kind == "tags" else ("label", "classes")
                fix = "correct it"
                if self._n_unknown <= MAX_LABEL_SUGGESTIONS:
                    fix = f"the {nouns} are {quote_all(self._labels.names)}"
                    if similar := self._labels.find_similar(name):
                        fix = f"did you mean {quote(similar)}? {format_merge_option(name, similar)} reads it so"
                what = f"the {noun} {quote(name, 40)} is not among those of the training data"
                raise CellError("label unseen in training", what, fix)
        except CellError as error:
            label_column = self._columns.label
            raise self._table.row_error(error.kind, error.what, item.row, item.line, label_column, error.fix) from None
        return item._replace(label=label)

    def _parse_names_or_number(self, cell: LabelCell) -> Label:
        if self.kind == "tags":
            tags, n_repaired = repair_bio_tags(cell) if self.are_bio else (tuple(cell), 0)
            self._n_repaired += n_repaired
            return tags
        if self.kind == "multi":
            return split_label_names(cell)
        if isinstance(cell, str) and self.kind == "class":
            return cell
        number = self._format.parse(cell) if isinstance(cell, str) else None
        if number is not None and abs(number) <= MAX_LABEL_MAGNITUDE:
            return number
        needed = "one class" if self.kind == "class" else "a number"
        if isinstance(cell, str):
            needed += f" from {-MAX_LABEL_MAGNITUDE:g} to {MAX_LABEL_MAGNITUDE:g}"
        has_comma = isinstance(cell, str) and NUMBER_WITH_COMMA.fullmatch(cell)
        fix = "write a point for the comma" if has_comma else "correct it"
        if self._columns.kind == "related":
            fix += ", or train a classifier of pairs: -s objective.kind=classification"
        elif self._labels is None:
            others = join_with_or([other for other in ("class", "multi", "number") if other != self.kind])
            fix += f", or name another kind of labels: --labels {others}"
        is_ = "several labels" if isinstance(cell, tuple) else quote(cell, 30)
        raise CellError("wrong label", f"the label is {is_}, not {needed}", fix)

    def skip_or_refuse_single_row_classes(
        self, items: Sequence[LabelledRow], skipped: SkippedRowCounts | None
    ) -> Iterator[LabelledRow]:
        """Yields the rows whose class has several rows, or a name that resembles another.

        The others raise a RowError, or are counted in `skipped`.
        """
        counts = count_label_names(items)
        if counts.total() == len(counts) > 1:
            have_commas = all(NUMBER_WITH_COMMA.fullmatch(name) for name in counts)
            what = "write decimals with a point, thousands without a comma" if have_commas else "add rows of each class"
            fix = f"{what}, or name another column with --label-column"
            where = _describe_column(self._table, self._columns)
            raise DataError(f"each of {len(counts):,} classes has one row", where=where, fix=fix)
        similar = find_misspelt_labels(counts)
        resembling = {*similar, *similar.values()}
        single = {name for name, count in counts.items() if count == 1 and name not in resembling and len(counts) > 1}
        for item in items:
            if item.label not in single:
                yield item
                continue
            column = self._columns.label
            what = f"the class {quote(str(item.label), 40)} has one row"
            fix = "give it a second row, or correct the label"
            if len(single) > 1:
                what += f"; {len(single):,} of {len(counts):,} classes have one row"
                fix = f"is {quote(str(column))} the label column? If so, {fix}"
            error = self._table.row_error("class with one row", what, item.row, item.line, column, fix)
            count_skipped_or_raise(error, skipped)


def count_label_names(items: Sequence[LabelledRow]) -> Counter[str]:
    """Counts how often each class name is in the labels of rows."""
    return Counter(name for item in items for name in get_label_names(item.label))


def _refuse_single_class(items: Sequence[LabelledRow], labels: LabelMap, where: str) -> None:
    """Raises DataError if all rows have the same label, or none has any."""
    another = "name another column with --label-column"
    if labels.kind == "multi":
        if not labels.names:
            raise DataError("no row has any label", where=where, fix=another)
        return
    distinct = {*labels.names} if labels.kind == "tags" else {item.label for item in items}
    if len(distinct) == 1:
        only = quote(str(distinct.pop()), 40)
        what = f"the only tag is {only}" if labels.kind == "tags" else f"all rows have the same {labels.kind}, {only}"
        raise DataError(what, where=where, fix=f"add rows of another one, or {another}")


def _make_empty_and_contradictory_notices(items: Sequence[LabelledRow], labels: LabelMap | None) -> Iterator[Notice]:
    """Yields notices of empty texts, and of equal texts with different labels."""
    if n_empty := sum(not all(text.strip() for text in item.texts) for item in items):
        yield Notice("empty texts", n_empty, f"{format_count(n_empty, 'row')} with an empty text")
    if labels is not None and (groups := group_contradictory_rows(items)):
        n_rows, (first, *rest) = sum(map(len, groups)), groups[0]
        other = next(item for item in rest if _to_comparable_label(item.label) != _to_comparable_label(first.label))
        what = f"{format_count(n_rows, 'row')} with the text of another row and a different label"
        text = f"{what}; first: rows {first.row} and {other.row}"
        yield Notice("duplicate rows with different labels", n_rows, text)


def group_contradictory_rows(items: Sequence[LabelledRow]) -> list[list[LabelledRow]]:
    """Returns groups of rows that have the same texts and not all the same label."""
    groups: dict[tuple[str, ...], list[LabelledRow]] = {}
    for item in items:
        groups.setdefault(item.texts, []).append(item)
    return [group for group in groups.values() if len({_to_comparable_label(item.label) for item in group}) > 1]


def _to_comparable_label(label: Label | None) -> Any:
    return frozenset(label) if isinstance(label, tuple) else label


def make_shared_rows_notice(train: LabelledTable, test: LabelledTable, name: str) -> Notice | None:
    """Returns a notice of the rows of `test`, a table of this name, whose texts are in `train` too; or None."""
    shared = find_rows_with_texts_among(test.items, train.items)
    if not shared:
        return None
    text = f"{len(shared):,} of {format_count(len(test), 'row')} of {name} are also in the training table"
    text += f"; first: row {shared[0][0].row} is row {shared[0][1]} there"
    return Notice("rows shared by train and test", len(shared), text)


def find_rows_with_texts_among(
    items: Iterable[LabelledRow], others: Iterable[LabelledRow]
) -> list[tuple[LabelledRow, RowNumber]]:
    """Returns the rows whose texts are in `others`, each with the number of the first such row there."""
    first: dict[tuple[str, ...], int] = {}
    for item in others:
        first.setdefault(item.texts, item.row)
    return [(item, first[item.texts]) for item in items if item.texts in first]
