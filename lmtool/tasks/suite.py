"""A folder of tables as one benchmark: each task by its own measure, and the mean over tasks, as in GLUE."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from lmtool.data.files import display, name_without_compression
from lmtool.data.rowfile import ROW_FILE_SUFFIXES
from lmtool.data.table import SkippedRows
from lmtool.errors import DataError, UsageError
from lmtool.inference.load import LoadedModel
from lmtool.recipe.spec.text import Data
from lmtool.run.paths import RUN_INFO_FILE
from lmtool.tasks.predict import AS_TRAINED, measure_tables
from lmtool.tasks.prepare import task_names
from lmtool.tasks.results import Results

_PARTS = re.compile(r"(test|dev|valid|validation)$")


class TaskScore(NamedTuple):
    """The score of a task, from 0 to 1 or a correlation, by the measure of this name; None where it is undefined."""

    measure: str
    value: float | None


@dataclass(frozen=True)
class Suite:
    """Results on the tables of a folder, by name."""

    results: Mapping[str, Results]

    @cached_property
    def scores(self) -> dict[str, TaskScore]:
        """The score of each table."""
        return {name: task_score(name, results.figures) for name, results in self.results.items()}

    @property
    def mean(self) -> float | None:
        """The mean over tasks; the tables of MNLI, matched and mismatched, are one. None where a score is undefined."""
        tasks: dict[str, list[float]] = {}
        for name, score in self.scores.items():
            if score.value is None:
                return None
            key = task_key(name)
            tasks.setdefault("mnli" if key.startswith("mnli") else key, []).append(score.value)
        return mean(map(mean, tasks.values()))

    def record(self) -> dict[str, Any]:
        """The mean, and of each table measure, score and results, for JSON."""
        tasks = {
            name: {"measure": one.measure, "score": one.value, "results": self.results[name].record()}
            for name, one in self.scores.items()
        }
        return {"mean": self.mean, "tasks": tasks}

    def lines(self) -> list[str]:
        """A line for each table, and one for the mean."""
        width = max(map(len, [*self.scores, "mean"]))
        lines = [f"{name:<{width}}  {_percent(one.value)}  {one.measure}" for name, one in self.scores.items()]
        return [*lines, f"{'mean':<{width}}  {_percent(self.mean)}"]


def tables_in(source: str) -> dict[str, str]:
    """The tables of a folder, by name without endings, those for training left out; none unless it is a folder.

    Raises DataError for a folder without tables.
    """
    folder = Path(source)
    if not folder.is_dir():
        return {}
    tables = {}
    for path in sorted(folder.iterdir()):
        ending = next((one for one in ROW_FILE_SUFFIXES if name_without_compression(path).endswith(one)), None)
        if ending is not None and path.is_file():
            name = path.name[: path.name.lower().rindex(ending)]
            if not re.search(r"[\W_]train$|^train$", name.lower()):
                tables[name] = str(path)
    if not tables:
        fix = f"put {', '.join(ROW_FILE_SUFFIXES)} files there"
        raise DataError("the folder has no table to evaluate on", where=display(folder), fix=fix)
    return tables


def runs_in(reference: str) -> dict[str, str]:
    """The runs of a folder that is none itself, by name; none unless it is such a folder."""
    folder = Path(reference)
    if not folder.is_dir() or (folder / RUN_INFO_FILE).exists():
        return {}
    return {path.name: str(path) for path in sorted(folder.iterdir()) if (path / RUN_INFO_FILE).exists()}


def measure_folder(
    tables: Mapping[str, str],
    runs: Mapping[str, str],
    load: Callable[[str], LoadedModel],
    reading: Data = AS_TRAINED,
    skipped: SkippedRows | None = None,
) -> Suite:
    """Results on each table, by the run or the task of the same name.

    runs: by name; one under an empty name measures all tables, by its tasks where it was trained on several. Names are
    compared without case, punctuation, and `test` or `dev` at the end. reading, skipped: as for `measure_tables`.
    Raises UsageError, before anything is measured, for a table without a run or task.
    """
    chosen = {name: "" if "" in runs else _named(name, runs, "run") for name in tables}
    results: dict[str, Results] = {}
    for run in dict.fromkeys(chosen.values()):
        model = load(runs[run])
        tasks = task_names(model.recipe.data)
        of_run = [name for name in tables if chosen[name] == run]
        task_of = {name: "" if "" in tasks else _named(name, tasks, "task") for name in of_run}
        for name, task in task_of.items():
            (results[name],) = measure_tables(model, [tables[name]], task, reading, skipped)
    return Suite({name: results[name] for name in tables})


def task_score(name: str, figures: Mapping[str, Any]) -> TaskScore:
    """The score of a table by the measure of GLUE (Wang et al. 2019).

    Matthews correlation for CoLA, the mean of accuracy and F1 for MRPC and QQP, of Pearson's and Spearman's correlation
    for numbers, and accuracy for all others; of several labels micro F1, of target texts the share of exact ones.
    """
    key = task_key(name)
    if "pearson" in figures:
        both = (figures["pearson"], figures["spearman"])
        return TaskScore("mean of Pearson and Spearman", None if None in both else mean(both))
    if key.startswith("cola") and "matthews" in figures:
        return TaskScore("Matthews correlation", figures["matthews"])
    if key.startswith(("mrpc", "qqp")) and "f1" in figures:
        measure = f"mean of accuracy and F1 of {figures['positive']}"
        return TaskScore(measure, mean((figures["accuracy"], figures["f1"])))
    for figure, measure in (("accuracy", "accuracy"), ("micro_f1", "micro F1"), ("exact", "exact matches")):
        if figure in figures:
            return TaskScore(measure, figures[figure])
    raise ValueError(f"no score among {sorted(figures)}")


def task_key(name: str) -> str:
    """A name for comparison: letters and digits in lower case, without `test`, `dev` or `validation` at the end."""
    plain = re.sub(r"[\W_]", "", name.lower())
    return _PARTS.sub("", plain) or plain


def _named(table: str, known: Iterable[str], what: str) -> str:
    """The name among those known that is a table's; for both tables of MNLI also mnli."""
    keys = {task_key(name): name for name in known}
    key = task_key(table)
    if key not in keys and key.startswith("mnli") and "mnli" in keys:
        return keys["mnli"]
    if key not in keys:
        what, fix = f"no {what} has the name of the table {table}", "rename one, or move it away"
        raise UsageError(what, where=", ".join(known)[:200], fix=fix)
    return keys[key]


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:9.1f}"
