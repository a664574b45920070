"""Summaries of runs, also of damaged ones."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtool.errors import CheckpointError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.places import known_runs


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
        validation loss; None before the first validation. part: "test" or "validation", what it was measured on.
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
    metric, value, part = "loss", None, "validation"
    try:
        best_step = run.best_step
        saved = _checkpoints(path / CHECKPOINTS, best_step)
        best: Mapping[str, Any] = {}
        for record in run.metrics.read():
            step = max(step, record["step"])
            if isinstance(loss := record.get("valid_loss"), int | float):
                losses.append(float(loss))
                if best_step in (None, record["step"]):
                    best = {**record, "loss": loss}
        if (aside := run.interrupted) is not None and aside.step == best_step:
            best = aside.model_dump()
        results = run.results or best
        metric, value = _counting(results)
        part = str(results.get("part", "validation"))
    except CheckpointError as error:
        problem = f"{error.what} ({error.where})"
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
        started=run.last_started,
        bytes=size_of(path),
        state=run.state,
        problem=problem,
        checkpoints=saved,
    )


def _counting(figures: Mapping[str, Any]) -> tuple[str, float | None]:
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
