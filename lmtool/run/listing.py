"""Summaries of runs, also of damaged ones, with what `lmtool eval` has measured of them on other data."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from pydantic import RootModel

from lmtool import durable, records
from lmtool.errors import CheckpointError
from lmtool.recipe.document import leaves, parse
from lmtool.recipe.load import LARGEST_FILE
from lmtool.records import FileModel
from lmtool.run import checkpoint as checkpoints
from lmtool.run.directory import CHECKPOINTS, EVALUATIONS, Run
from lmtool.run.files import Count, read_any
from lmtool.run.find import find_run
from lmtool.run.paths import known_runs
from lmtool.run.uncertainty import independent_rows, standard_error


@dataclass(frozen=True)
class CheckpointSummary:
    """One checkpoint. problem: why it cannot be used, judged by names and sizes; empty if these are right."""

    name: str
    step: int
    bytes: int
    best: bool
    problem: str


Values = Mapping[str, object]
"""The plain values of a recipe by dotted key."""

COUNTING = {
    "accuracy": "accuracy",
    "subset_accuracy": "accuracy",
    "pearson": "correlation",
    "correlation": "correlation",
    "bleu": "bleu",
}
"""The figures that count for a run, the first that it has, and their names; for all other runs the loss counts."""


@dataclass
class Summary:
    """One run.

    step: of its last record or checkpoint.
    valid_loss: the last one;
    best_valid_loss: the lowest; None before the first.
    metric, value: what counts for the run, of its best checkpoint: accuracy, correlation, bleu, or the loss; None
        before the first validation.
    part: which of its own data it was measured on: "test", "validation" or, where nothing was held out,
        "cross-validation" or "held-out quarter"; before that is measured "training", without a value.
    test: plain numbers of `figures_on_tests`.
    rows: of a table that it was measured on;
    standard_error: of the value on so many, None where it does not follow from it.
    started: when it was last started or resumed, ISO 8601 in UTC.
    bytes: size on disk of all its files.
    state: running, finished, stopped, or damaged, in which case `problem` says why and the rest is empty.
    """

    name: str
    path: str
    recipe: str = ""
    model: str = ""
    step: int = 0
    valid_loss: float | None = None
    best_valid_loss: float | None = None
    metric: str = "loss"
    value: float | None = None
    part: str = "validation"
    rows: int | None = None
    standard_error: float | None = None
    test: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    started: str = ""
    bytes: int = 0
    state: str = "damaged"
    problem: str = ""
    checkpoints: tuple[CheckpointSummary, ...] = ()


def summaries() -> list[Summary]:
    """All known runs, most recently started first."""
    return sorted((summarise(path) for path in known_runs()), key=lambda summary: summary.started, reverse=True)


def summarise(path: Path) -> Summary:
    """The summary of the run directory `path`. Never raises for damaged files."""
    try:
        run = Run.open(path)
    except CheckpointError as error:
        return Summary(path.name, str(path), bytes=size_of(path), problem=error.lines()[0])
    summary = Summary(run.name, str(path), run.info.recipe, run.info.summary, started=run.last_started, state=run.state)
    losses: list[float] = []
    results: Mapping[str, Any] = {}
    try:
        best_step = run.best_step
        summary.checkpoints = _checkpoints(path / CHECKPOINTS, best_step)
        for record in run.metrics.read():
            summary.step = max(summary.step, record["step"])
            if isinstance(loss := record.get("valid_loss"), int | float):
                losses.append(float(loss))
                if best_step in (None, record["step"]):
                    results = {**record, "loss": loss}
        if (last := run.interrupted) is not None:
            losses += [] if last.loss is None else [last.loss]
            results = last.model_dump() if last.step == best_step else results
        measured = sorted(run.all_results.values(), key=lambda task: task.get("part") != "test")
        results = [*measured, results][0]
        summary.test = {
            name: {key: value for key, value in figures.items() if key != "step" and _is_number(value)}
            for name, figures in figures_on_tests(run).items()
        }
        summary.part = results.get("part") or part_of(read_values(run))
        # the rows that a model was trained on do not tell how good it is
        summary.metric, summary.value = counting(results if summary.part != "training" else {})
    except CheckpointError as error:
        summary.problem = f"{error.what} ({error.where})"
    summary.step = max([summary.step, *(checkpoint.step for checkpoint in summary.checkpoints)])
    if losses:
        summary.valid_loss, summary.best_valid_loss = losses[-1], min(losses)
    summary.rows = results.get("rows")
    if summary.rows is None and summary.part != "test" and run.info.data is not None:
        summary.rows = run.info.data.valid_rows
    if summary.value is not None and summary.rows:
        rows = independent_rows(summary.rows, summary.part)
        summary.standard_error = standard_error(summary.metric, summary.value, rows)
    summary.bytes = size_of(path)
    return summary


class SavedEvaluation(FileModel, extra="allow"):
    """Figures of one checkpoint on some data. source: names of its files. rows: of a table, else None."""

    __pydantic_extra__: dict[str, int | float | None]

    source: str
    step: Count
    rows: Count | None = None


SavedEvaluations = RootModel[list[SavedEvaluation]]
"""The content of evaluations.json, the last one at the end."""


def evaluations_of(run: Run) -> list[SavedEvaluation]:
    """What was measured of a run, the last one at the end. Raises CheckpointError when the file is damaged."""
    saved = read_any(SavedEvaluations, run.path / EVALUATIONS, "delete it: it is made anew by lmtool eval")
    return saved.root if saved else []


def keep_evaluation(folder: Path, sources: Sequence[str], known: Sequence[str], figures: Mapping[str, object]) -> None:
    """Keep figures in a run directory, in place of earlier ones of the same data and step, if it can be written.

    sources: the files that they are of, as named. known: those of training and validation, for which none are kept.
    figures: with "step"; those that are not plain numbers are left out.
    """
    if any(_is_known(source, name) for source in sources for name in known):
        return
    plain = {name: value for name, value in figures.items() if _is_number(value) or value is None}
    source = ", ".join(map(os.path.basename, sources))
    new = SavedEvaluation.model_validate({**records.finite(plain), "source": source})
    with suppress(CheckpointError, OSError):
        run = Run.open(folder)
        earlier: list[SavedEvaluation] = []
        with suppress(CheckpointError):
            earlier = evaluations_of(run)
        kept = [other for other in earlier if (other.source, other.step) != (new.source, new.step)]
        content = [other.model_dump(exclude_unset=True) for other in (*kept, new)]
        durable.replace(folder / EVALUATIONS, records.encode(content))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_known(source: str, name: str) -> bool:
    """Whether a source is one that a run was trained on, or in a folder or among the files of a pattern that was."""
    inside = os.path.realpath(source).startswith(os.path.join(os.path.realpath(name), ""))
    return inside or fnmatch(os.path.basename(os.path.normpath(source)), os.path.basename(os.path.normpath(name)))


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
    for evaluation in reversed(evaluations_of(run)):
        if evaluation.step == step:
            tests[evaluation.source] = {**evaluation.model_dump(exclude_none=True), "part": "test"}
    return tests


def lineage(run: Run) -> list[tuple[str, str]]:
    """The fingerprints of a run, and what it was initialized and distilled or imported from, each with its name."""
    facts = [(f"{name} fingerprint", str(value)) for name, value in run.info.fingerprints if value]
    for name, source in (("initialized from", run.info.base), ("distilled from", run.info.teacher)):
        facts += [(name, f"{source.checkpoint} of {source.run}")] if source else []
    if origin := run.info.origin:
        revision = f", revision {origin.revision}" if origin.revision else ""
        facts.append(("imported from", f"{origin.reference} ({origin.model_type}{revision})"))
        facts += [("", f"{file} SHA-256 {sha}") for file, sha in origin.sha256.items()]
    return facts


def with_bases(run: Run) -> Iterator[Run]:
    """A run, that which it was initialized from, and so on, as far as these are at their paths or by their names."""
    yield run
    with suppress(CheckpointError):
        while (base := run.info.base) is not None:
            run, _ = find_run(base.path if Path(base.path).exists() else base.run)
            yield run


def read_values(run: Run) -> Values:
    """The values of a run's recipe, without judging them. Empty where it cannot be read."""
    try:
        text = durable.read(run.recipe_path, LARGEST_FILE).decode()
    except (OSError, ValueError):
        return {}
    return leaves(parse(text, str(run.recipe_path)).value)


def part_of(values: Values) -> Literal["validation", "training"]:
    """What a run with these values is validated on: what is held out, or else what it is trained on."""
    return "validation" if values.get("data.valid") or values.get("data.valid_fraction") != 0 else "training"


def counting(figures: Mapping[str, Any]) -> tuple[str, float | None]:
    """Name and value of what counts among some figures."""
    for name, shown in COUNTING.items():
        if isinstance(value := figures.get(name), int | float):
            return shown, float(value)
    loss = figures.get("loss")
    return "loss", float(loss) if isinstance(loss, int | float) else None


def _checkpoints(folder: Path, best_step: int | None) -> tuple[CheckpointSummary, ...]:
    summaries = []
    for step, path in checkpoints.listed(folder):
        problem = ""
        try:
            checkpoints.inspect(path)
        except CheckpointError as error:
            problem = error.what
        summaries.append(CheckpointSummary(path.name, step, size_of(path), step == best_step, problem))
    return tuple(summaries)


def size_of(path: Path) -> int:
    """Bytes of all files of a folder."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # a running process may have removed it since it was listed
                size += os.lstat(os.path.join(folder, name)).st_size
    return size
