"""Summaries of runs, also of damaged ones."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtool.errors import CheckpointError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.evaluations import evaluations_of
from lmtool.run.places import known_runs
from lmtool.run.uncertainty import standard_error


@dataclass(frozen=True)
class CheckpointSummary:
    """One checkpoint. problem: why it cannot be used, judged by names and sizes; empty if these are right."""

    name: str
    step: int
    bytes: int
    best: bool
    problem: str


COUNTING = {
    "accuracy": "accuracy",
    "subset_accuracy": "accuracy",
    "pearson": "correlation",
    "correlation": "correlation",
    "bleu": "bleu",
}
"""The figures that count for a run, the first that it has, and their names; for all other runs the loss counts."""


@dataclass(frozen=True)
class Summary:
    """One run.

    step: of its last record or checkpoint. valid_loss: the last one; best_valid_loss: the lowest; None before the
        first. metric, value: what counts for the run, of its best checkpoint: accuracy, correlation, bleu, or the
        loss; None before the first validation. part: "test" or "validation", what it was measured on; source: the data
        of a test by `lmtool eval`, else empty. rows: of a table that it was measured on; standard_error: of the value
        on so many, None where it does not follow from it.
        started: when it was last started or resumed, ISO 8601 in UTC. bytes: size on disk of all its files.
    state: running, finished, stopped, or damaged, in which case `problem` says why and the rest is empty.
    """

    name: str
    path: str
    recipe: str
    model: str
    step: int
    valid_loss: float | None
    best_valid_loss: float | None
    metric: str
    value: float | None
    part: str
    source: str
    rows: int | None
    standard_error: float | None
    started: str
    bytes: int
    state: str
    problem: str
    checkpoints: tuple[CheckpointSummary, ...]


def summaries() -> list[Summary]:
    """All known runs, most recently started first."""
    return sorted((summarise(path) for path in known_runs()), key=lambda summary: summary.started, reverse=True)


def summarise(path: Path) -> Summary:
    """The summary of the run directory `path`. Never raises for damaged files."""
    try:
        run = Run.open(path)
    except CheckpointError as error:
        return Summary(
            name=path.name,
            path=str(path),
            recipe="",
            model="",
            step=0,
            valid_loss=None,
            best_valid_loss=None,
            metric="loss",
            value=None,
            part="validation",
            source="",
            rows=None,
            standard_error=None,
            started="",
            bytes=size_of(path),
            state="damaged",
            problem=error.lines()[0],
            checkpoints=(),
        )
    saved: tuple[CheckpointSummary, ...] = ()
    problem = ""
    step = 0
    losses = []
    metric, value = "loss", None
    results: Mapping[str, Any] = {}
    try:
        best_step = run.best_step
        saved = _checkpoints(path / CHECKPOINTS, best_step)
        for record in run.metrics.read():
            step = max(step, record["step"])
            if isinstance(loss := record.get("valid_loss"), int | float):
                losses.append(float(loss))
                if best_step in (None, record["step"]):
                    results = {**record, "loss": loss}
        if (aside := run.interrupted) is not None and aside.step == best_step:
            results = aside.model_dump()
        tests = figures_on_tests(run)
        results = next(iter(tests.values()), run.results or results)
        metric, value = counting(results)
    except CheckpointError as error:
        problem = f"{error.what} ({error.where})"
    part = str(results.get("part", "validation"))
    rows = results.get("rows")
    if rows is None and part == "validation" and run.info.data is not None:
        rows = run.info.data.valid_rows
    return Summary(
        name=run.name,
        path=str(path),
        recipe=run.info.recipe,
        model=run.info.summary,
        step=max([step, *(entry.step for entry in saved)]),
        valid_loss=losses[-1] if losses else None,
        best_valid_loss=min(losses, default=None),
        metric=metric,
        value=value,
        part=part,
        source=str(results.get("source", "")),
        rows=rows,
        standard_error=None if value is None or not rows else standard_error(metric, value, rows),
        started=run.last_started,
        bytes=size_of(path),
        state=run.state,
        problem=problem,
        checkpoints=saved,
    )


def figures_on_tests(run: Run) -> dict[str, Mapping[str, Any]]:
    """Figures of the best checkpoint on test data, by the name of these: those measured in training come first.

    Of a test table of the recipe the name is "test", with that of the task where there are several. Raises
    CheckpointError when a file is damaged.
    """
    tests: dict[str, Mapping[str, Any]] = {}
    for task, results in run.all_results.items():
        if results.get("part") == "test":
            tests[f"{task} test".strip()] = results
    last = next((step for step, _ in reversed(checkpoints.listed(run.path / CHECKPOINTS))), None)
    step = last if run.best_step is None else run.best_step
    for found in reversed(evaluations_of(run)):
        if found.step == step:
            tests[found.source] = {**found.model_dump(exclude_none=True), "part": "test"}
    return tests


def counting(figures: Mapping[str, Any]) -> tuple[str, float | None]:
    """Name and value of what counts among some figures."""
    for name, shown in COUNTING.items():
        if isinstance(value := figures.get(name), int | float):
            return shown, float(value)
    loss = figures.get("loss")
    return "loss", float(loss) if isinstance(loss, int | float) else None


def _checkpoints(folder: Path, best_step: int | None) -> tuple[CheckpointSummary, ...]:
    found = []
    for step, path in checkpoints.listed(folder):
        problem = ""
        try:
            checkpoints.inspect(path)
        except CheckpointError as error:
            problem = error.what
        found.append(CheckpointSummary(path.name, step, size_of(path), step == best_step, problem))
    return tuple(found)


def size_of(path: Path) -> int:
    return sum(_file_sizes(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names))


def _file_sizes(paths: Iterable[str]) -> Iterable[int]:
    for path in paths:
        try:
            yield os.lstat(path).st_size
        except OSError:
            # A running process may have removed it since it was listed.
            continue
