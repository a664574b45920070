"""Summarizes runs, also damaged ones, with the scores that `lmtool eval` has saved."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from pydantic import RootModel

from lmtool.errors import CheckpointError
from lmtool.recipe.document import flatten_mapping, parse_yaml
from lmtool.recipe.load import MAX_RECIPE_BYTES
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.directory import CHECKPOINTS, EVALUATIONS, Run
from lmtool.runs.files import Count, read_optional_json_file
from lmtool.runs.find import find_run
from lmtool.runs.paths import list_runs
from lmtool.runs.uncertainty import effective_sample_size, standard_error
from lmtool.storage import durable, records
from lmtool.storage.records import JsonModel


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint in a listing. problem: why it cannot be used, judged by names and sizes; else empty."""

    name: str
    step: int
    bytes: int
    best: bool
    problem: str


Values = Mapping[str, object]
"""The plain values of a recipe by dotted key."""

MAIN_METRICS = {
    "accuracy": "accuracy",
    "subset_accuracy": "accuracy",
    "pearson": "correlation",
    "correlation": "correlation",
    "bleu": "bleu",
}
"""Metrics of which a run has its main metric, the first one, with their names; for other runs it is the loss."""


@dataclass
class RunSummary:
    """The summary of a run.

    step: of its last record or checkpoint.
    valid_loss, best_valid_loss: the last and the lowest one; None before the first.
    metric, value: the main metric of its best checkpoint: accuracy, correlation, bleu, or the loss; None before the
        first validation.
    part: which of its own data it was measured on: "test", "validation" or, where nothing was held out,
        "cross-validation" or "held-out quarter"; before that is measured "training", without a value.
    test: plain numbers of `collect_best_checkpoint_test_scores`.
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


def summarize_all_runs() -> list[RunSummary]:
    """Returns the summaries of all known runs, the last started first."""
    return sorted((summarize_run(path) for path in list_runs()), key=lambda summary: summary.started, reverse=True)


def summarize_run(path: Path) -> RunSummary:
    """Returns the summary of the run directory `path`. Never raises for damaged files."""
    try:
        run = Run.open(path)
    except CheckpointError as error:
        return RunSummary(path.name, str(path), bytes=folder_size_bytes(path), problem=error.lines()[0])
    summary = RunSummary(
        run.name, str(path), run.info.recipe, run.info.summary, started=run.last_started, state=run.state
    )
    losses: list[float] = []
    results: Mapping[str, Any] = {}
    try:
        best_step = run.best_step
        summary.checkpoints = _summarize_checkpoints(path / CHECKPOINTS, best_step)
        for record in run.metrics.read_records():
            summary.step = max(summary.step, record["step"])
            if isinstance(loss := record.get("valid_loss"), int | float):
                losses.append(float(loss))
                if best_step in (None, record["step"]):
                    results = {**record, "loss": loss}
        if (last := run.validation_at_interruption) is not None:
            losses += [] if last.loss is None else [last.loss]
            results = last.model_dump() if last.step == best_step else results
        measured = sorted(run.results_by_task.values(), key=lambda task: task.get("part") != "test")
        results = [*measured, results][0]
        summary.test = {
            name: {key: value for key, value in figures.items() if key != "step" and _is_number(value)}
            for name, figures in collect_best_checkpoint_test_scores(run).items()
        }
        summary.part = results.get("part") or validation_part(read_recipe_values(run))
        # scores on training rows are no measure of a model
        summary.metric, summary.value = main_metric(results if summary.part != "training" else {})
    except CheckpointError as error:
        summary.problem = f"{error.what} ({error.where})"
    summary.step = max([summary.step, *(checkpoint.step for checkpoint in summary.checkpoints)])
    if losses:
        summary.valid_loss, summary.best_valid_loss = losses[-1], min(losses)
    summary.rows = results.get("rows")
    if summary.rows is None and summary.part != "test" and run.info.data is not None:
        summary.rows = run.info.data.valid_rows
    if summary.value is not None and summary.rows:
        rows = effective_sample_size(summary.rows, summary.part)
        summary.standard_error = standard_error(summary.metric, summary.value, rows)
    summary.bytes = folder_size_bytes(path)
    return summary


class SavedEvaluation(JsonModel, extra="allow"):
    """Scores of one checkpoint on some data. source: names of the files. rows: of a table, else None."""

    __pydantic_extra__: dict[str, int | float | None]

    source: str
    step: Count
    rows: Count | None = None


SavedEvaluations = RootModel[list[SavedEvaluation]]
"""The content of evaluations.json, in order."""


def read_evaluations(run: Run) -> list[SavedEvaluation]:
    """Reads the saved evaluations of a run in order. Raises CheckpointError when the file is damaged."""
    saved = read_optional_json_file(
        SavedEvaluations, run.path / EVALUATIONS, "delete it: it is made anew by lmtool eval"
    )
    return saved.root if saved else []


def save_evaluation_unless_training_data(
    folder: Path, sources: Sequence[str], training_sources: Sequence[str], scores: Mapping[str, object]
) -> None:
    """Saves scores in a run directory, in place of earlier ones of the same data and step, if it can be written.

    sources: the evaluated files. training_sources: files of training and validation, whose scores are not saved.
    scores: with "step"; only plain numbers are saved.
    """
    if any(_is_training_source(source, name) for source in sources for name in training_sources):
        return
    plain = {name: value for name, value in scores.items() if _is_number(value) or value is None}
    source = ", ".join(map(os.path.basename, sources))
    new = SavedEvaluation.model_validate({**records.replace_nonfinite(plain), "source": source})
    with suppress(CheckpointError, OSError):
        run = Run.open(folder)
        earlier: list[SavedEvaluation] = []
        with suppress(CheckpointError):
            earlier = read_evaluations(run)
        kept = [other for other in earlier if (other.source, other.step) != (new.source, new.step)]
        content = [other.model_dump(exclude_unset=True) for other in (*kept, new)]
        durable.replace_file(folder / EVALUATIONS, records.encode_json(content))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_training_source(source: str, name: str) -> bool:
    """Returns whether a source is a training source `name`, or in such a folder, or matches such a pattern."""
    inside = os.path.realpath(source).startswith(os.path.join(os.path.realpath(name), ""))
    return inside or fnmatch(os.path.basename(os.path.normpath(source)), os.path.basename(os.path.normpath(name)))


def collect_best_checkpoint_test_scores(run: Run) -> dict[str, Mapping[str, Any]]:
    """Returns the scores of the best checkpoint by test data, those measured in training first.

    The name of a test table of the recipe is "test", with that of the task if there are several. Raises CheckpointError
    when a file is damaged.
    """
    tests: dict[str, Mapping[str, Any]] = {}
    for task, results in run.results_by_task.items():
        if results.get("part") == "test":
            tests[f"{task} test".strip()] = results
    last = next((step for step, _ in reversed(checkpoints.list_checkpoints(run.path / CHECKPOINTS))), None)
    step = last if run.best_step is None else run.best_step
    for evaluation in reversed(read_evaluations(run)):
        if evaluation.step == step:
            tests[evaluation.source] = {**evaluation.model_dump(exclude_none=True), "part": "test"}
    return tests


def describe_fingerprints_and_lineage(run: Run) -> list[tuple[str, str]]:
    """Returns the fingerprints of a run, and what it was initialized, distilled or imported from, with their names."""
    facts = [(f"{name} fingerprint", str(value)) for name, value in run.info.fingerprints if value]
    for name, source in (("initialized from", run.info.base), ("distilled from", run.info.teacher)):
        facts += [(name, f"{source.checkpoint} of {source.run}")] if source else []
    if origin := run.info.origin:
        revision = f", revision {origin.revision}" if origin.revision else ""
        facts.append(("imported from", f"{origin.reference} ({origin.model_type}{revision})"))
        facts += [("", f"{file} SHA-256 {sha}") for file, sha in origin.sha256.items()]
    return facts


def iterate_run_and_ancestors(run: Run) -> Iterator[Run]:
    """Yields a run, the run that it was initialized from, and so on, as far as they are found."""
    yield run
    with suppress(CheckpointError):
        while (base := run.info.base) is not None:
            run = find_run(base.path if Path(base.path).exists() else base.run).run
            yield run


def read_recipe_values(run: Run) -> Values:
    """Reads the values of a run's recipe without validation; returns none if it cannot be read."""
    try:
        text = durable.read_file(run.recipe_path, MAX_RECIPE_BYTES).decode()
    except (OSError, ValueError):
        return {}
    return flatten_mapping(parse_yaml(text, str(run.recipe_path)).value)


def validation_part(values: Values) -> Literal["validation", "training"]:
    """Returns the part that a run is validated on: held-out data, or else the training data."""
    return "validation" if values.get("data.valid") or values.get("data.valid_fraction") != 0 else "training"


def main_metric(figures: Mapping[str, Any]) -> tuple[str, float | None]:
    """Returns name and value of the main metric among scores."""
    for name, shown in MAIN_METRICS.items():
        if isinstance(value := figures.get(name), int | float):
            return shown, float(value)
    loss = figures.get("loss")
    return "loss", float(loss) if isinstance(loss, int | float) else None


def _summarize_checkpoints(folder: Path, best_step: int | None) -> tuple[CheckpointSummary, ...]:
    summaries = []
    for step, path in checkpoints.list_checkpoints(folder):
        problem = ""
        try:
            checkpoints.open_checkpoint_checking_sizes(path)
        except CheckpointError as error:
            problem = error.what
        summaries.append(CheckpointSummary(path.name, step, folder_size_bytes(path), step == best_step, problem))
    return tuple(summaries)


def folder_size_bytes(path: Path) -> int:
    """Returns the bytes of all files of a folder."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # a running process may have removed it since it was listed
                size += os.lstat(os.path.join(folder, name)).st_size
    return size
