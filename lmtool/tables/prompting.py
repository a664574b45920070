"""Tasks by prompting: rows of a table as prompts, and labels as answers that a language model scores.

Shapes: R rows, A answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.processes import joined
from lmtool.errors import UsageError
from lmtool.inference.evaluation import not_reported
from lmtool.inference.load import Loaded
from lmtool.inference.scoring import score_answers
from lmtool.recipe.spec.objective import Classification, Seq2Seq
from lmtool.recipe.spec.text import Data
from lmtool.tables.columns import LABELS, Columns, choose_columns
from lmtool.tables.labels import LabelMap, as_cell
from lmtool.tables.metrics import ClassMetrics, aligned, class_metrics, confusion_matrix
from lmtool.tables.predict import AS_TRAINED, measure_tables, open_beside
from lmtool.tables.reading import LabelledTexts, read_labelled
from lmtool.text.files import shown
from lmtool.text.rowfile import bare_name, matching_column
from lmtool.text.split import document_hash
from lmtool.text.survey import Report
from lmtool.text.table import Skipped, Table

TEXT = "text"
"""The field of a prompt that stands for the text of a row, whatever its column is called."""

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts without content, for calibration (Zhao et al. 2021)."""

WAYS = {"sum": "sum", "per_token": "per token", "per_byte": "per byte"}
"""How an answer is scored by the log-probabilities of its tokens: their sum, or that divided by its length."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prompted:
    """Results of prompting on one table.

    source: the table. answers: by label. shots_from: the table of the examples in each prompt; empty without any.
    scores: metrics by the names of `WAYS`. calibrated: the same after calibration; empty without. majority: the share
    of the most frequent label. beside: the run that is compared with, if any, and its accuracy on the same table.
    """

    source: str
    answers: Mapping[str, str]
    shots: int
    shots_from: str
    seed: int
    scores: Mapping[str, ClassMetrics]
    calibrated: Mapping[str, ClassMetrics]
    majority: float
    beside: tuple[str, float] | None = None

    @property
    def rows(self) -> int:
        """The number of rows measured."""
        return int(self.scores["sum"].support_C.sum())

    def record(self) -> dict[str, Any]:
        """All results by name, for JSON. accuracy, macro_f1: by the sum, calibrated where that was asked for."""
        first = (self.calibrated or self.scores)["sum"]
        names = tuple(self.answers)
        return {
            "table": self.source,
            "rows": self.rows,
            "answers": dict(self.answers),
            "shots": self.shots,
            "shots_from": self.shots_from or None,
            "seed": self.seed,
            "accuracy": first.accuracy,
            "macro_f1": first.macro_f1,
            "majority": self.majority,
            "scores": {way: metrics.to_json(names) for way, metrics in self.scores.items()},
            "calibrated": {way: metrics.to_json(names) for way, metrics in self.calibrated.items()} or None,
            "baseline": None if self.beside is None else {"run": self.beside[0], "accuracy": self.beside[1]},
        }

    def lines(self) -> list[str]:
        """All results as text lines."""
        drawn = f", {self.shots} shots from {self.shots_from}, seed {self.seed}" if self.shots else ", no shots"
        table = [["accuracy, %", *WAYS.values()], ["as scored", *_percents(self.scores)]]
        if self.calibrated:
            table.append(["calibrated", *_percents(self.calibrated)])
        beside = [] if self.beside is None else [f"{self.beside[0]}: {100 * self.beside[1]:.1f} %"]
        return [
            f"{self.source}: {self.rows:,} rows, {len(self.answers)} answers{drawn}",
            *aligned(table),
            f"majority: {100 * self.majority:.1f} %",
            *beside,
        ]


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt with fields in braces, each the name of a column of a table or `text`."""

    written: str

    def parts(self) -> list[tuple[str, str | None]]:
        """Pieces of text, and the field after each, if any. Raises UsageError for braces that are no fields."""
        where = f"--prompt {shown(self.written, 100)}"
        try:
            found = list(Formatter().parse(self.written))
        except ValueError as error:
            raise UsageError(
                f"the prompt has a brace that is no field: {error}", where=where, fix="write {{ or }} for a brace"
            ) from None
        for _, field, format_spec, conversion in found:
            if field is not None and (format_spec or conversion or not field):
                raise UsageError(
                    "a field of the prompt is not the name of a column", where=where, fix="write {text}, or {{ and }}"
                )
        return [(literal, field) for literal, field, _, _ in found]

    def columns(self, table: Table, reading: Data) -> Columns:
        """The columns of a table that the prompt names, and that of the label. reading: names columns, too.

        Raises UsageError for a prompt without text, for a field that is no column, and for one that is the label.
        """
        where = f"--prompt {shown(self.written, 100)}"
        fields = list(dict.fromkeys(field for _, field in self.parts() if field is not None))
        known = f"the columns of {table.path.name} are {shown(', '.join(table.names), 120)}"
        if not fields:
            raise UsageError(
                "the prompt does not say where the text of a row belongs", where=where, fix=f"write {{text}}; {known}"
            )
        own = {field: matching_column(field, table.names) for field in fields}
        named = list(dict.fromkeys(name for name in own.values() if name))
        unknown = next((field for field, name in own.items() if name is None and field != TEXT), None)
        if unknown is not None:
            raise UsageError(f"the prompt has {{{unknown:.40}}}, which is no column", where=where, fix=known)
        others = [name for name in table.names if name not in named]
        usual, beside = (any(bare_name(name) in LABELS for name in names) for names in (named, others))
        label_column = reading.label_column and matching_column(reading.label_column, table.names)
        if label_column in named or (label_column is None and usual and not beside):
            raise UsageError(
                "the prompt holds the label", where=where, fix=f"name the label's column with --label-column; {known}"
            )
        names = reading.model_copy(update={"text_columns": tuple(named)}) if named else reading
        inferred = choose_columns(table, names)
        if TEXT in fields and own[TEXT] is None and (named or len(inferred.texts) > 1):
            raise UsageError("the prompt has {text}, but a row has several texts", where=where, fix=known)
        if inferred.label is None:
            raise UsageError(
                "the table has targets, not labels",
                where=where,
                fix=f"name the label's column with --label-column; {known}",
            )
        return inferred

    def filled(self, columns: Columns, texts: Sequence[str]) -> str:
        """The prompt for a row."""
        by_name = dict(zip(columns.texts, texts, strict=True))
        return "".join(
            literal + ("" if field is None else by_name.get(matching_column(field, columns.texts) or "", texts[0]))
            for literal, field in self.parts()
        )


def read_answers(given: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The answer for each label: given as labels that are answers themselves, or as LABEL=TEXT; none for all labels.

    Raises UsageError for labels without an answer, for equal or empty answers, and where there is one only.
    """
    where = f"--answers {','.join(given)}"[:120]
    answers = {label: label for label in given or labels}
    if not set(labels) <= answers.keys():
        pairs = [part.partition("=") for part in given]
        answers = {label: text if equals else label for label, equals, text in pairs}
    missing = next((label for label in labels if label not in answers), None)
    if missing is not None:
        raise UsageError(
            f"the table has the label {shown(missing, 40)}, which has no answer",
            where=where,
            fix=f"name one for each label, or LABEL=TEXT: {','.join(labels)}"[:200],
        )
    if len(set(answers.values())) < max(2, len(answers)) or not all(text.strip() for text in answers.values()):
        raise UsageError(
            "answers must be at least two different texts",
            where=where,
            fix="name one for each label, separated by commas",
        )
    return answers


def measure_prompts(
    loaded: Loaded,
    source: str,
    written: str,
    given: Sequence[str] = (),
    *,
    reading: Data = AS_TRAINED,
    skipped: Skipped | None = None,
    train: str | None = None,
    shots: int = 0,
    seed: int = 1,
    calibrate: bool = False,
    baseline: Loaded | None = None,
    report: Report = not_reported,
) -> Prompted:
    """Choose for each row of a table the answer that a language model finds most probable after its prompt; processes
    share the rows.

    written: the prompt. given: as in `read_answers`. reading, skipped: as for `measure_tables`. shots: examples before
    each prompt, drawn by `seed` from the table `train`, by default the one that the run was trained on; as many of each
    label as of the others, or one more. calibrate: divide by the probabilities of the answers to prompts without
    content, the mean over `CONTENT_FREE`. baseline: a run that was fine-tuned on labels, to compare with.

    Raises UsageError for prompts and answers that do not fit the table or the model, and the errors of tables.
    """
    prompt = PromptTemplate(written)
    trained = loaded.recipe.data
    rows, labels = _read(open_beside(source, trained, reading), prompt, reading, skipped)
    answers = read_answers(given, labels)
    names = tuple(answers)
    shots_from = train or _own_table(loaded) if shots else None
    before = ""
    if shots_from is not None:
        alike = Data(label_column=rows.columns.label, skip_bad_rows=reading.skip_bad_rows or trained.skip_bad_rows)
        table = open_beside(shots_from, trained, reading if train else AS_TRAINED)
        examples, others = _read(table, prompt, alike, skipped)
        if not set(others) <= answers.keys():
            read_answers(given, sorted({*labels, *others}))
        before = _examples(prompt, examples, rows, answers, shots, seed)
    made = [before + prompt.filled(rows.columns, item.texts) for item in rows.items]
    places = [f"{rows.table.path.name}, row {item.row}" for item in rows.items]
    if calibrate:
        made += [before + prompt.filled(rows.columns, [text] * len(rows.columns.texts)) for text in CONTENT_FREE]
        places += [f"the prompt with {text!r} for a text" for text in CONTENT_FREE]
    with joined(loaded.compute) as world:
        scored = score_answers(loaded, made, list(answers.values()), places, report, world)
    n_bytes_A = np.array([len(answer.encode()) for answer in answers.values()])
    by_way = {
        "sum": scored.total_PA,
        "per_token": scored.total_PA / scored.tokens_PA,
        "per_byte": scored.total_PA / n_bytes_A,
    }
    true_R = np.array([names.index(str(item.label)) for item in rows.items])
    plain, calibrated = {}, {}
    for way, score_PA in by_way.items():
        score_RA = score_PA[: len(rows)]
        plain[way] = class_metrics(confusion_matrix(true_R, score_RA.argmax(1), len(names)))
        if calibrate:
            corrected_RA = calibrated_scores(score_RA, score_PA[len(rows) :])
            calibrated[way] = class_metrics(confusion_matrix(true_R, corrected_RA.argmax(1), len(names)))
    majority = float(np.bincount(true_R).max() / len(true_R))
    beside = None if baseline is None else (str(baseline.run_path), _tuned_accuracy(baseline, source, reading))
    return Prompted(source, answers, shots, shots_from or "", seed, plain, calibrated, majority, beside)


def calibrated_scores(score_RA: Floats, free_FA: Floats) -> Floats:
    """Log-probabilities of answers (R, A), less those of the mean probability for content-free inputs (F, A).

    Contextual calibration: the probabilities of the answers, which sum to 1, are divided by those that a prompt
    without content gives them (Zhao et al. 2021).
    """
    free_FA = free_FA - np.logaddexp.reduce(free_FA, axis=1, keepdims=True)
    own_RA = score_RA - np.logaddexp.reduce(score_RA, axis=1, keepdims=True)
    corrected_RA: Floats = own_RA - (np.logaddexp.reduce(free_FA, axis=0) - math.log(len(free_FA)))
    return corrected_RA


def _read(
    table: Table, prompt: PromptTemplate, reading: Data, skipped: Skipped | None
) -> tuple[LabelledTexts, tuple[str, ...]]:
    """The rows of a table, and its labels in their order."""
    columns = prompt.columns(table, reading)
    assert columns.label is not None
    at = table.names.index(columns.label)
    counted = Skipped() if reading.skip_bad_rows else None
    cells = {as_cell(row.values[at]) for row in table.rows(counted)}
    labels = LabelMap.of("class", (cell for cell in cells if isinstance(cell, str) and cell))
    texts = read_labelled(table, columns, labels=labels, skip_bad_rows=reading.skip_bad_rows)
    if skipped is not None:
        skipped.kinds.update(texts.skipped.kinds)
    return texts, labels.names


def _own_table(loaded: Loaded) -> str:
    """The table that a run was trained on. Raises UsageError where there is none."""
    data = loaded.recipe.data
    if not isinstance(loaded.recipe.objective, Classification | Seq2Seq) or len(data.train) != 1:
        raise UsageError(
            "there is no table to draw the shots from: the run was not trained on one",
            where=str(loaded.run_path),
            fix="name one with --train TABLE",
        )
    return data.train[0]


def _tuned_accuracy(tuned: Loaded, source: str, reading: Data) -> float:
    """The accuracy of a run that was fine-tuned on labels. Raises UsageError for other runs."""
    (results,) = measure_tables(tuned, [source], reading=reading)
    if "accuracy" not in results.figures:
        raise UsageError(
            "the run has no accuracy to compare with", where=str(tuned.run_path), fix="name one fine-tuned on classes"
        )
    return float(results.figures["accuracy"])


def _examples(
    prompt: PromptTemplate,
    examples: LabelledTexts,
    rows: LabelledTexts,
    answers: Mapping[str, str],
    shots: int,
    seed: int,
) -> str:
    """Prompts with their answers, an empty line after each, of rows whose texts are not among those measured.

    Labels take turns, in an order of the seed. Raises UsageError when there are too few rows.
    """
    measured = {item.texts for item in rows.items}
    items = [item for item in examples.items if item.texts not in measured]
    order = np.argsort(document_hash(seed, np.array([item.row for item in items], dtype=np.uint64)), kind="stable")
    by_label: dict[str, list[int]] = {}
    for i in order.tolist():
        by_label.setdefault(str(items[i].label), []).append(i)
    turns = [i for turn in range(shots) for own in by_label.values() for i in own[turn : turn + 1]][:shots]
    if len(turns) < shots:
        raise UsageError(
            f"{examples.table.path.name} has {len(items):,} rows that are not measured themselves, for {shots} shots",
            where="--shots",
            fix="name a larger table with --train, or take fewer shots",
        )
    texts = []
    for item in (items[i] for i in turns):
        asked = prompt.filled(examples.columns, item.texts)
        texts.append(asked + " " * (asked == asked.rstrip()) + answers[str(item.label)] + "\n\n")
    return "".join(texts)


def _percents(scores: Mapping[str, ClassMetrics]) -> list[str]:
    return [f"{100 * scores[way].accuracy:.1f}" for way in WAYS]
