"""Tasks by prompting: rows of a table as prompts, and labels as answers that a language model scores.

Shapes: R rows, A answers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool.data.column_names import LABEL_NAMES, normalize_name
from lmtool.data.files import quote, quote_all
from lmtool.data.rowfile import find_matching_column
from lmtool.data.survey import Progress
from lmtool.data.table import Row, SkippedRows, Table
from lmtool.errors import UsageError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import AnyParams
from lmtool.inference.evaluation import ignore_progress
from lmtool.inference.load import LoadedModel
from lmtool.inference.scoring import score_continuations
from lmtool.printable import align_columns, format_count
from lmtool.recipe.spec.text import Data
from lmtool.tasks.labels import LabelMap, as_cell
from lmtool.tasks.metrics import MetricValues, class_metrics
from lmtool.tasks.predict import AS_TRAINED, CHUNK_ROWS, Predictions, open_beside
from lmtool.tasks.reading import LabelledText, LabelledTexts, read_labelled, stream_texts
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.task import Cells

TEXT = "text"
"""The field of a prompt that stands for the text of a row, whatever its column is called."""

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts without content, for calibration (Zhao et al. 2021)."""

WAYS = {"sum": "sum", "per_token": "per token", "per_byte": "per byte"}
"""How an answer is scored by the log-probabilities of its tokens: their sum, or that divided by its length."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prompting:
    """How a prompt needs a table, whose rows fill it.

    template: of each prompt, with fields in braces, each the name of a column of a table or `text`.
    answers: as in `read_answers`.
    calibrate: divide by the probabilities of the answers to prompts without content, the mean over `CONTENT_FREE`.
    """

    template: str
    answers: Sequence[str] = ()
    calibrate: bool = False

    def parts(self) -> list[tuple[str, str | None]]:
        """Pieces of text, and the field after each, if any. Raises UsageError for braces that are no fields."""
        try:
            pieces = list(Formatter().parse(self.template))
        except ValueError as error:
            raise self._wrong(f"has a brace that is not a field: {error}", "write {{ or }} for a brace") from None
        for _, field, format_spec, conversion in pieces:
            if field is not None and (format_spec or conversion or not field):
                what = "a field of the prompt is not the name of a column"
                raise UsageError(what, where=self._where, fix="write {text}, or {{ and }}")
        return [(literal, field) for literal, field, _, _ in pieces]

    def columns(self, table: Table, reading: Data, *, labelled: bool = True) -> Columns:
        """The columns of a table that the prompt names, and that of the label. reading: names columns, too.

        labelled: whether rows have labels, which the prompt must not hold. Raises UsageError for a prompt without text,
        for a field that is no column, and for one that is the label.
        """
        fields = list(dict.fromkeys(field for _, field in self.parts() if field is not None))
        known = f"the columns of {table.path.name} are {quote_all(table.names)}"
        if not fields:
            raise self._wrong("does not say where the text of a row belongs", f"write {{text}}; {known}")
        column_of = {field: find_matching_column(field, table.names) for field in fields}
        named = list(dict.fromkeys(name for name in column_of.values() if name))
        unknown = next((field for field, name in column_of.items() if name is None and field != TEXT), None)
        if unknown is not None:
            raise self._wrong(f"has {{{unknown:.40}}}, which is not a column", known)
        others = [name for name in table.names if name not in named]
        if not labelled:
            named = named or list(choose_columns(table, reading, labelled=False).texts)
            if TEXT in fields and column_of[TEXT] is None and len(named) > 1:
                raise self._wrong("has {text}, but a row has several texts", known)
            return Columns(tuple(named))
        usual, beside = (any(normalize_name(name) in LABEL_NAMES for name in names) for names in (named, others))
        label_column = reading.label_column and find_matching_column(reading.label_column, table.names)
        name_label = f"name the label's column with --label-column; {known}"
        if label_column in named or (label_column is None and usual and not beside):
            raise self._wrong("holds the label", name_label)
        inferred = choose_columns(table, reading.with_values({"text_columns": tuple(named)}) if named else reading)
        if TEXT in fields and column_of[TEXT] is None and (named or len(inferred.texts) > 1):
            raise self._wrong("has {text}, but a row has several texts", known)
        if inferred.label is None:
            raise UsageError("the table has targets, not labels", where=self._where, fix=name_label)
        return inferred

    @property
    def _where(self) -> str:
        return f"--prompt {quote(self.template, 100)}"

    def _wrong(self, what: str, fix: str) -> UsageError:
        return UsageError(f"the prompt {what}", where=self._where, fix=fix)

    def filled(self, columns: Columns, texts: Sequence[str]) -> str:
        """The prompt for a row."""
        by_name = dict(zip(columns.texts, texts, strict=True))
        return "".join(
            literal + ("" if field is None else by_name.get(find_matching_column(field, columns.texts) or "", texts[0]))
            for literal, field in self.parts()
        )


@dataclass(frozen=True)
class Prompted:
    """Results of prompting on one table.

    source: the table.
    rows: the number of rows measured.
    answers: by label.
    scores: metrics by the names of `WAYS`.
    calibrated: the same after calibration; empty without.
    majority: the share of the most frequent label.
    items: the rows.
    """

    source: str
    rows: int
    answers: Mapping[str, str]
    scores: Mapping[str, MetricValues]
    calibrated: Mapping[str, MetricValues]
    majority: float
    items: Sequence[LabelledText] = ()

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON. accuracy, macro_f1: by the sum, calibrated where that was asked for."""
        first = (self.calibrated or self.scores)["sum"]
        return {
            "table": self.source,
            "rows": self.rows,
            "answers": dict(self.answers),
            "accuracy": first["accuracy"],
            "macro_f1": first["macro_f1"],
            "majority": self.majority,
            "scores": dict(self.scores),
            "calibrated": dict(self.calibrated) or None,
        }

    def lines(self) -> list[str]:
        """All results as text lines."""
        table = [["accuracy, %", *WAYS.values()], ["as scored", *_percents(self.scores)]]
        if self.calibrated:
            table.append(["calibrated", *_percents(self.calibrated)])
        return [
            f"{self.source}: {format_count(self.rows, 'row')}, {format_count(len(self.answers), 'answer')}",
            *align_columns(table),
            f"majority: {100 * self.majority:.1f} %",
        ]


def read_answers(named: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The answer for each label. named: labels that are answers themselves, or each LABEL=TEXT; none for all labels.

    Raises UsageError for labels without an answer, for equal or empty answers, and where there is one only.
    """
    where = f"--answers {','.join(named)}"[:120]
    answers = {label: label for label in named or labels}
    if not set(labels) <= answers.keys():
        pairs = [part.partition("=") for part in named]
        answers = {label: text if equals else label for label, equals, text in pairs}
    missing = next((label for label in labels if label not in answers), None)
    if missing is not None:
        what = f"the table has the label {quote(missing, 40)}, which has no answer"
        raise UsageError(what, where=where, fix=f"name one for each label, or LABEL=TEXT: {','.join(labels)}"[:200])
    if len(set(answers.values())) < max(2, len(answers)) or not all(text.strip() for text in answers.values()):
        what = "answers must be at least two different texts"
        raise UsageError(what, where=where, fix="name one for each label, separated by commas")
    return answers


def measure_prompts(
    loaded: LoadedModel,
    source: str,
    prompting: Prompting,
    reading: Data = AS_TRAINED,
    skipped: SkippedRows | None = None,
    report: Progress = ignore_progress,
) -> Prompted:
    """Choose for each row of a table the answer that a language model finds most probable after its prompt; processes
    share the rows.

    reading, skipped: as for `measure_tables`.

    Raises UsageError for prompts and answers that do not fit the table or the model, and the errors of tables.
    """
    trained = loaded.recipe.data
    rows, labels = _read(open_beside(source, trained, reading), prompting, reading, skipped)
    answers = read_answers(prompting.answers, labels)
    prompts = {f"{rows.table.path.name}, row {item.row}": item.texts for item in rows.items}
    if prompting.calibrate:
        n_texts = len(rows.columns.texts)
        prompts |= {f"the prompt with {text!r} for a text": (text,) * n_texts for text in CONTENT_FREE}
    filled = [prompting.filled(rows.columns, texts) for texts in prompts.values()]
    with loaded.joined() as loaded:
        # after a space, or after the whitespace at the end of the prompt
        gaps = [" " * (prompt == prompt.rstrip()) for prompt in filled]
        groups = [
            [(prompt, gap + answer) for answer in answers.values()] for prompt, gap in zip(filled, gaps, strict=True)
        ]
        scored_PA = score_continuations(loaded, groups, list(prompts), report=report)
    total_PA = np.array([[one.total for one in scored] for scored in scored_PA])
    tokens_PA = np.array([[one.n_tokens for one in scored] for scored in scored_PA])
    n_bytes_A = np.array([len(answer.encode()) for answer in answers.values()])
    lengths: dict[str, Any] = {"sum": 1, "per_token": tokens_PA, "per_byte": n_bytes_A}
    names = tuple(answers)
    true_R = np.array([names.index(str(item.label)) for item in rows.items])
    plain, calibrated = {}, {}
    for way, length in lengths.items():
        score_RA, free_FA = np.split(total_PA / length, [len(rows)])
        plain[way] = class_metrics(true_R, score_RA.argmax(1), names)
        if prompting.calibrate:
            calibrated[way] = class_metrics(true_R, calibrated_scores(score_RA, free_FA).argmax(1), names)
    majority = float(np.bincount(true_R).max() / len(true_R))
    return Prompted(source, len(rows), answers, plain, calibrated, majority, rows.items)


def answered(
    generator: TextGenerator, source: str, prompting: Prompting, params: AnyParams, reading: Data = AS_TRAINED
) -> Predictions:
    """What a language model writes after the prompt of each row of a table, in bounded memory.

    The columns that are added are the answer, without white space around it, and why it ended; see `Completion`.
    Raises as `measure_prompts`, and as `TextGenerator.generate` does.
    """
    trained = generator.loaded.recipe.data
    table = open_beside(source, trained, reading)
    columns = prompting.columns(table, reading, labelled=False)
    skipped = SkippedRows() if trained.skip_bad_rows or reading.skip_bad_rows else None

    def rows() -> Iterator[tuple[Row, Cells]]:
        items = stream_texts(table, columns, skipped)
        while chunk := list(islice(items, CHUNK_ROWS)):
            prompts = [prompting.filled(columns, item.texts) for _, item in chunk]
            written = generator.completions(prompts, params)
            for (row, _), one in zip(chunk, written, strict=True):
                yield row, (one.text.strip(), one.finish_reason)

    return Predictions(table, ("answer", "finish"), rows(), skipped)


def calibrated_scores(score_RA: Floats, free_FA: Floats) -> Floats:
    """Log-probabilities of answers (R, A), less those of the mean probability for content-free inputs (F, A).

    Contextual calibration: the probabilities of the answers, which sum to 1, are divided by those that a prompt
    without content gives them (Zhao et al. 2021).
    """
    free_FA = free_FA - np.logaddexp.reduce(free_FA, axis=1, keepdims=True)
    log_p_RA = score_RA - np.logaddexp.reduce(score_RA, axis=1, keepdims=True)
    corrected_RA: Floats = log_p_RA - (np.logaddexp.reduce(free_FA, axis=0) - math.log(len(free_FA)))
    return corrected_RA


def _read(
    table: Table, prompting: Prompting, reading: Data, skipped: SkippedRows | None
) -> tuple[LabelledTexts, tuple[str, ...]]:
    """The rows of a table, and its labels in their order."""
    columns = prompting.columns(table, reading)
    assert columns.label is not None
    at = table.names.index(columns.label)
    counted = SkippedRows() if reading.skip_bad_rows else None
    cells = {as_cell(row.values[at]) for row in table.rows(counted)}
    merged = reading.merge_labels
    labels = LabelMap.of("class", (merged.get(cell, cell) for cell in cells if isinstance(cell, str) and cell))
    texts = read_labelled(table, columns, labels=labels, skip_bad_rows=reading.skip_bad_rows, merged=merged)
    if skipped is not None:
        skipped.kinds.update(texts.skipped.kinds)
    return texts, labels.names


def _percents(scores: Mapping[str, MetricValues]) -> list[str]:
    return [f"{100 * scores[way]['accuracy']:.1f}" for way in WAYS]
