"""Prompting: rows of a table as prompts, and labels as answers that a language model scores, or generates.

Shapes: P prompts, R rows, A answers, F content-free prompts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from string import Formatter
from typing import Any

import numpy as np

from lmtool.arrays import Floats
from lmtool.data.column_names import LABEL_NAMES, normalize_name
from lmtool.data.files import quote, quote_all
from lmtool.data.rowfile import find_matching_column
from lmtool.data.survey import Progress, no_progress
from lmtool.data.table import Row, SkippedRowCounts, Table
from lmtool.errors import UsageError
from lmtool.evaluation.scoring import score_continuations
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import AnyParams
from lmtool.printable import align_columns, format_count
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel
from lmtool.tasks.labels import LabelMap, to_label_cell
from lmtool.tasks.metrics import MetricValues, class_metrics
from lmtool.tasks.predict import AS_IN_TRAINING, CHUNK_ROWS, LazyTablePredictions, open_table_in_training_format
from lmtool.tasks.reading import LabelledRow, read_labelled_table, stream_unlabelled_rows
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.task import Cells

TEXT_FIELD = "text"
"""The field of a prompt for the text of a row, whatever its column is called."""

CONTENT_FREE_TEXTS = ("N/A", "", "[MASK]")
"""Texts for calibration (Zhao et al. 2021)."""

NORMALIZATIONS = {"sum": "sum", "per_token": "per token", "per_byte": "per byte"}
"""How answers are scored: by the sum of the log-probabilities of their tokens, or the sum divided by a length."""


@dataclass(frozen=True)
class PromptTemplate:
    """A template that makes a prompt of a row.

    Args:
        template: text with fields in braces, each the name of a column or `text`.
        answers: as in `parse_answers_or_use_labels`.
        calibrate: divides by the probabilities of the answers to CONTENT_FREE_TEXTS.
    """

    template: str
    answers: Sequence[str] = ()
    calibrate: bool = False

    def parse(self) -> list[tuple[str, str | None]]:
        """Returns pieces of text, and the field after each, if any. Raises UsageError for braces that are no fields."""
        try:
            pieces = list(Formatter().parse(self.template))
        except ValueError as error:
            raise self._error(f"has a brace that is not a field: {error}", "write {{ or }} for a brace") from None
        for _, field, format_spec, conversion in pieces:
            if field is not None and (format_spec or conversion or not field):
                what = "a field of the prompt is not the name of a column"
                raise UsageError(what, where=self._where, fix="write {text}, or {{ and }}")
        return [(literal, field) for literal, field, _, _ in pieces]

    def choose_columns(self, table: Table, read_options: Data, *, labelled: bool = True) -> Columns:
        """Chooses the columns of the fields, and that of the label.

        read_options: may name columns. labelled: whether rows have labels, which the prompt must not contain. Raises
        UsageError for a prompt without text, for a field that is no column, and for one that is the label.
        """
        fields = list(dict.fromkeys(field for _, field in self.parse() if field is not None))
        columns_hint = f"the columns of {table.path.name} are {quote_all(table.names)}"
        if not fields:
            raise self._error("does not say where the text of a row belongs", f"write {{text}}; {columns_hint}")
        column_of = {field: find_matching_column(field, table.names) for field in fields}
        named = list(dict.fromkeys(name for name in column_of.values() if name))
        unknown = next((field for field, name in column_of.items() if name is None and field != TEXT_FIELD), None)
        if unknown is not None:
            raise self._error(f"has {{{unknown:.40}}}, which is not a column", columns_hint)
        has_text_field = TEXT_FIELD in fields and column_of[TEXT_FIELD] is None
        others = [name for name in table.names if name not in named]
        if not labelled:
            named = named or list(choose_columns(table, read_options, labelled=False).texts)
            if has_text_field and len(named) > 1:
                raise self._error("has {text}, but a row has several texts", columns_hint)
            return Columns(tuple(named))
        names_label = any(normalize_name(name) in LABEL_NAMES for name in named)
        others_have_label = any(normalize_name(name) in LABEL_NAMES for name in others)
        label_column = read_options.label_column and find_matching_column(read_options.label_column, table.names)
        label_fix = f"name the label's column with --label-column; {columns_hint}"
        if label_column in named or (label_column is None and names_label and not others_have_label):
            raise self._error("holds the label", label_fix)
        if named:
            read_options = read_options.with_unvalidated_values({"text_columns": tuple(named)})
        columns = choose_columns(table, read_options)
        if has_text_field and (named or len(columns.texts) > 1):
            raise self._error("has {text}, but a row has several texts", columns_hint)
        if columns.label is None:
            raise UsageError("the table has targets, not labels", where=self._where, fix=label_fix)
        return columns

    @property
    def _where(self) -> str:
        return f"--prompt {quote(self.template, 100)}"

    def _error(self, what: str, fix: str) -> UsageError:
        return UsageError(f"the prompt {what}", where=self._where, fix=fix)

    def fill(self, columns: Columns, texts: Sequence[str]) -> str:
        """Returns the prompt for the texts of a row."""
        by_name = dict(zip(columns.texts, texts, strict=True))
        return "".join(
            literal + ("" if field is None else by_name.get(find_matching_column(field, columns.texts) or "", texts[0]))
            for literal, field in self.parse()
        )


@dataclass(frozen=True)
class PromptingResults:
    """Results of prompting on one table.

    Args:
        source: the table.
        rows: number of rows.
        answers: by label.
        scores: metrics by keys of NORMALIZATIONS.
        calibrated: the same after calibration; empty without.
        majority: share of the most frequent label.
    """

    source: str
    rows: int
    answers: Mapping[str, str]
    scores: Mapping[str, MetricValues]
    calibrated: Mapping[str, MetricValues]
    majority: float
    items: Sequence[LabelledRow] = ()

    def to_record(self) -> dict[str, Any]:
        """Returns all results by name, for JSON. accuracy, macro_f1: by the sum, after calibration if there is one."""
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
        """Formats all results as text lines."""
        table = [["accuracy, %", *NORMALIZATIONS.values()]]
        for name, scores in (("as scored", self.scores), ("calibrated", self.calibrated)):
            if scores:
                table.append([name, *(f"{100 * scores[key]['accuracy']:.1f}" for key in NORMALIZATIONS)])
        return [
            f"{self.source}: {format_count(self.rows, 'row')}, {format_count(len(self.answers), 'answer')}",
            *align_columns(table),
            f"majority: {100 * self.majority:.1f} %",
        ]


def parse_answers_or_use_labels(values: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Returns the answer for each label.

    values: labels that are answers themselves, or each LABEL=TEXT; by default all labels. Raises UsageError for labels
    without an answer, for equal or empty answers, and if there is only one.
    """
    where = f"--answers {','.join(values)}"[:120]
    answers = {label: label for label in values or labels}
    if not set(labels) <= answers.keys():
        pairs = [part.partition("=") for part in values]
        answers = {label: text if equals else label for label, equals, text in pairs}
    missing = next((label for label in labels if label not in answers), None)
    if missing is not None:
        what = f"the table has the label {quote(missing, 40)}, which has no answer"
        raise UsageError(what, where=where, fix=f"name one for each label, or LABEL=TEXT: {','.join(labels)}"[:200])
    if len(set(answers.values())) < max(2, len(answers)) or not all(text.strip() for text in answers.values()):
        what = "answers must be at least two different texts"
        raise UsageError(what, where=where, fix="name one for each label, separated by commas")
    return answers


def evaluate_prompt_by_likelihood(
    loaded: LoadedModel,
    source: str,
    prompt: PromptTemplate,
    read_options: Data = AS_IN_TRAINING,
    skipped: SkippedRowCounts | None = None,
    report: Progress = no_progress,
) -> PromptingResults:
    """Chooses for each row of a table the answer that a language model finds most probable after its prompt.

    Processes share the rows. read_options, skipped: as for `evaluate_tables`. Raises UsageError for prompts and answers
    that do not fit the table or the model, and the errors of tables.
    """
    table = open_table_in_training_format(source, loaded.recipe.data, read_options)
    columns = prompt.choose_columns(table, read_options)
    assert columns.label is not None
    label = table.names.index(columns.label)
    rows = table.rows(SkippedRowCounts() if read_options.skip_bad_rows else None)
    cells = {to_label_cell(row.values[label]) for row in rows}
    merges = read_options.merge_labels
    labels = LabelMap.from_names("class", (merges.get(cell, cell) for cell in cells if isinstance(cell, str) and cell))
    texts = read_labelled_table(table, columns, labels=labels, skip_bad_rows=read_options.skip_bad_rows, merges=merges)
    if skipped is not None:
        skipped.kinds.update(texts.skipped.kinds)
    answers = parse_answers_or_use_labels(prompt.answers, labels.names)
    texts_by_name = {f"{table.path.name}, row {item.row}": item.texts for item in texts.items}
    if prompt.calibrate:
        n_texts = len(columns.texts)
        texts_by_name |= {f"the prompt with {text!r} for a text": (text,) * n_texts for text in CONTENT_FREE_TEXTS}
    prompts = [prompt.fill(columns, row) for row in texts_by_name.values()]
    # Answers follow a space, or the whitespace at the end of the prompt.
    gaps = [" " * (text == text.rstrip()) for text in prompts]
    pairs = [[(text, gap + answer) for answer in answers.values()] for text, gap in zip(prompts, gaps, strict=True)]
    with loaded.join_process_group_once() as loaded:
        scored_PA = score_continuations(loaded, pairs, list(texts_by_name), report=report)
    total_PA = np.array([[one.total for one in scored] for scored in scored_PA])
    tokens_PA = np.array([[one.n_tokens for one in scored] for scored in scored_PA])
    n_bytes_A = np.array([len(answer.encode()) for answer in answers.values()])
    lengths: dict[str, Any] = {"sum": 1, "per_token": tokens_PA, "per_byte": n_bytes_A}
    names = tuple(answers)
    true_R = np.array([names.index(str(item.label)) for item in texts.items])
    plain, calibrated = {}, {}
    for key, length in lengths.items():
        score_RA, free_FA = np.split(total_PA / length, [len(texts)])
        plain[key] = class_metrics(true_R, score_RA.argmax(1), names)
        if prompt.calibrate:
            calibrated[key] = class_metrics(true_R, calibrate_scores(score_RA, free_FA).argmax(1), names)
    majority = float(np.bincount(true_R).max() / len(true_R))
    return PromptingResults(source, len(texts), answers, plain, calibrated, majority, texts.items)


def generate_answers_lazily(
    generator: TextGenerator,
    source: str,
    prompt: PromptTemplate,
    params: AnyParams,
    read_options: Data = AS_IN_TRAINING,
) -> LazyTablePredictions:
    """Generates an answer after the prompt of each row of a table, in bounded memory.

    The output columns are the stripped answer, and why it ended; see `Completion`. Raises as
    `evaluate_prompt_by_likelihood` and `TextGenerator.generate` do.
    """
    trained = generator.loaded.recipe.data
    table = open_table_in_training_format(source, trained, read_options)
    columns = prompt.choose_columns(table, read_options, labelled=False)
    skipped = SkippedRowCounts() if trained.skip_bad_rows or read_options.skip_bad_rows else None

    def generate_rows() -> Iterator[tuple[Row, Cells]]:
        rows = stream_unlabelled_rows(table, columns, skipped)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            prompts = [prompt.fill(columns, item.texts) for _, item in chunk]
            completions = generator.completions(prompts, params)
            for (row, _), completion in zip(chunk, completions, strict=True):
                yield row, (completion.text.strip(), completion.finish_reason)

    return LazyTablePredictions(table, ("answer", "finish"), generate_rows(), skipped)


def calibrate_scores(score_RA: Floats, content_free_FA: Floats) -> Floats:
    """Returns log-probabilities of answers (R, A), less those of the mean probability for content-free inputs (F, A).

    Contextual calibration (Zhao et al. 2021): the probabilities of the answers, which sum to 1, are divided by those
    that a prompt without content gives them.
    """
    content_free_FA = content_free_FA - np.logaddexp.reduce(content_free_FA, axis=1, keepdims=True)
    log_p_RA = score_RA - np.logaddexp.reduce(score_RA, axis=1, keepdims=True)
    corrected_RA: Floats = log_p_RA - (np.logaddexp.reduce(content_free_FA, axis=0) - math.log(len(content_free_FA)))
    return corrected_RA
