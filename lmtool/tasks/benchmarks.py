"""Loads tasks of lm-eval, published ones or a person's own files, and evaluates models on them.

lm-eval reads the rows, makes the prompts and computes the metrics; `LmtoolModel` answers its requests.
"""

import json
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError

from lmtool.data.catalogue import read_catalogue
from lmtool.data.files import quote, quote_all
from lmtool.data.hub import import_datasets_quietly
from lmtool.data.survey import Progress, no_progress
from lmtool.errors import DataError, UsageError
from lmtool.evaluation.scoring import check_predicts_tokens
from lmtool.extras import import_extra
from lmtool.generation.generate import TextGenerator
from lmtool.printable import align_columns
from lmtool.recipe.grammar import did_you_mean, find_nearest
from lmtool.recipe.load import find_bundled_folder
from lmtool.runs.load import LoadedModel
from lmtool.runs.paired import bootstrap_mean_interval
from lmtool.runs.uncertainty import confidence_interval_95
from lmtool.storage import durable

BUNDLED_FOLDER = "data/tasks"
FEWSHOT_SEED = 1234
"""Draws the examples before a prompt; the default of lm-eval."""

TASK_ERRORS = (ArithmeticError, AssertionError, LookupError, TemplateError, TypeError, ValueError)
"""Errors that templates, functions and metrics of tasks raise, also for too few rows."""

Tasks = Mapping[str, Mapping[str, Any]]
"""Tasks and groups of tasks, each by name, as `TaskManager.load` of lm-eval returns them."""


def bundled_task_names() -> list[str]:
    """Returns the names of the folders of tasks that come with lmtool."""
    return sorted(path.name for path in find_bundled_folder(BUNDLED_FOLDER).iterdir() if path.is_dir())


def import_and_silence_lm_eval() -> None:
    """Imports lm-eval without progress bars and log messages. Raises ResourceError if it is not installed."""
    import_extra("lm_eval", "tasks are measured by", "lmeval")
    import_datasets_quietly()
    import lm_eval.api.task

    # Version 0.4.13 draws a bar for each task and has no option against it.
    lm_eval.api.task.tqdm = partial(lm_eval.api.task.tqdm, disable=True)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def load_lm_eval_tasks(
    names: Sequence[str], models_to_check: Sequence[LoadedModel] = (), n_shots: int | None = None
) -> Tasks:
    """Loads tasks with their rows, after `import_and_silence_lm_eval`.

    Args:
        names: tasks and groups of lm-eval, YAML files, folders of them, and folders that come with lmtool. Files of
            rows are found beside the YAML file, in the working directory, or among those that come with lmtool.
        models_to_check: to evaluate.
        n_shots: examples before each prompt, except of tasks that set 0; None for the number that each task sets.

    Raises:
        UsageError: for an unknown task, and for one that lm-eval cannot use or a model cannot do.
        DataError: for rows that cannot be read.
    """
    from lm_eval.tasks import TaskManager

    if "" in names:
        raise UsageError("the name of a task is empty", where="--tasks", fix="write NAME or NAME,NAME")
    paths = [
        find_bundled_folder(BUNDLED_FOLDER) / name if name in bundled_task_names() else Path(name).absolute()
        for name in names
    ]
    folders = [path for path in paths if path.is_dir()]
    specs: list[str | Path] = []
    for name, path in zip(names, paths, strict=True):
        files = sorted(file for file in path.rglob("*.yaml") if not file.name.startswith("_"))
        is_path = path.is_dir() or path.suffix in (".yaml", ".yml")
        if is_path and not files and not path.is_file():
            raise UsageError("there is no YAML file of a task", where=name, fix="name a file, or a folder of some")
        specs += files or [path if is_path else name]
    manager = TaskManager(include_path=folders, include_defaults=any(isinstance(one, str) for one in specs))
    opened: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    for spec in specs:
        if isinstance(spec, str) and spec not in manager.task_index:
            near = did_you_mean(find_nearest(spec, [*bundled_task_names(), *manager.all_tasks]))
            fix = f"name a task of lm-eval, a YAML file, a folder of them, {', '.join(bundled_task_names())}"
            raise UsageError(f"there is no task {quote(spec)}{near}", where="--tasks", fix=fix)
        found = _load_lm_eval_spec(manager, spec)
        repeated = opened["tasks"].keys() & found["tasks"].keys()
        for kind, loaded_tasks in opened.items():
            loaded_tasks |= found[kind]
        # The files of a group stand beside it.
        repeated -= {task.task_name for group in opened["groups"].values() for task in group.get_all_tasks()}
        if repeated:
            raise UsageError(f"two tasks have the name {quote(min(repeated))}", where=str(spec), fix="name one of them")
    for task in opened["tasks"].values():
        default = task.get_config("num_fewshot")
        task.set_config("num_fewshot", default or 0 if n_shots is None or default == 0 else n_shots)
    for loaded in models_to_check:
        check_predicts_tokens(loaded)
        for name, task in opened["tasks"].items():
            cannot_generate = task.OUTPUT_TYPE == "generate_until" and not TextGenerator(loaded).writes
            if cannot_generate or (task.OUTPUT_TYPE == "loglikelihood_rolling" and loaded.prompt_format.answers):
                model = f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind}"
                fix = "leave the task out, or name another model"
                raise UsageError(f"{model} does no task of output_type {task.OUTPUT_TYPE}", where=name, fix=fix)
    return opened


def _load_lm_eval_spec(manager: Any, spec: str | Path) -> Tasks:
    """Loads the tasks and groups of a name or a YAML file."""
    folders = [Path.cwd()] if isinstance(spec, str) else [spec.parent, Path.cwd(), find_bundled_folder("data").parent]
    # lm-eval opens the file of a group by its name only.
    name = next((name for name, entry in manager.task_index.items() if entry.yaml_path == spec), str(spec))
    missing = "no file"
    for folder in folders:
        try:
            with chdir(folder):
                return dict(manager.load([name]))
        except FileNotFoundError as error:
            missing = str(error)
        except OSError as error:
            fix = "check network and disk, or name a task whose rows are files"
            raise DataError(f"cannot read the rows: {quote(str(error), 160)}", where=str(spec), fix=fix) from error
        except Exception as error:  # whatever task files, templates and functions in them raise
            raise _unusable_task_error(error, str(spec)) from error
    bundled = [name for name, data in read_catalogue().data.items() if any(file in missing for file in data.sha256)]
    fix = f"lmtool data get {bundled[0]} makes the file" if bundled else "correct data_files"
    raise DataError(f"cannot read the rows: {quote(missing, 160)}", where=str(spec), fix=fix)


def _unusable_task_error(error: Exception, where: str) -> UsageError:
    what = f"lm-eval cannot use the task: {type(error).__name__}: {quote(str(error), 160)}"
    return UsageError(what, where=where, fix="correct it; --debug shows where it fails")


def iterate_row_names_and_answered_prompts(
    tasks: Tasks, max_rows_per_task: int | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the name of each row, and its text with the right answer.

    Raises DataError for a right answer that is none of the choices, which lm-eval counts as wrong, and UsageError for a
    template that fails.

    max_rows_per_task: rows of each task; None for all.
    """
    for name, task in tasks["tasks"].items():
        for number, doc in enumerate(islice(task.eval_docs, max_rows_per_task), 1):
            is_choice = task.OUTPUT_TYPE == "multiple_choice"
            try:
                text, target = task.doc_to_text(doc), task.doc_to_target(doc)
                choices = task.doc_to_choice(doc) if is_choice else []
            except Exception as error:  # whatever templates and functions raise
                raise _unusable_task_error(error, f"{name}, row {number}") from error
            if is_choice:
                answer = text if task.multiple_input else target
                answer = answer[0] if isinstance(answer, list) else answer
                right = choices.index(answer) if answer in choices else answer
                if not isinstance(right, int) or not 0 <= right < len(choices):
                    what = f"the answer {quote(str(answer), 40)} is none of {quote_all(choices)}, nor the number of one"
                    raise DataError(what, where=f"{name}, row {number}", fix="correct the row, or doc_to_target")
                text, target = (choices[right], target) if task.multiple_input else (text, choices[right])
            yield f"{name}, row {number}", f"{text} {target}".strip()


@dataclass(frozen=True)
class MetricWithInterval:
    """A metric of a task. interval: 95 %; None if there are no numbers of the rows. values: of each row, the higher the
    better."""

    value: float
    interval: tuple[float, float] | None
    values: Sequence[float]


@dataclass(frozen=True)
class BenchmarkResults:
    """Results of tasks.

    Args:
        tasks: metrics of each task by name; a filter of lm-eval follows the name after a comma.
        groups: metrics of groups of tasks, without intervals.
        rows: number of rows of each task.
        shots: examples before the prompts of each task.
        samples: the rows of each task, as lm-eval returns them.
        n_truncated: requests whose context lost its beginning.
    """

    tasks: Mapping[str, Mapping[str, MetricWithInterval]]
    groups: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, int]
    shots: Mapping[str, int]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    n_truncated: int

    def to_record(self) -> dict[str, Any]:
        """Returns all metrics, for JSON."""
        tasks = {
            name: {
                "rows": self.rows[name],
                "shots": self.shots[name],
                "metrics": {title: {"value": one.value, "interval": one.interval} for title, one in metrics.items()},
            }
            for name, metrics in self.tasks.items()
        }
        return {"tasks": tasks, "groups": self.groups, "cut": self.n_truncated}

    def lines(self) -> list[str]:
        """Formats a line for each metric."""
        lines = [["task", "metric", "value", "95 % interval", "rows", "shots"]]
        for name, metrics in self.tasks.items():
            for title, one in metrics.items():
                interval = "" if one.interval is None else "{:.4f} to {:.4f}".format(*one.interval)
                lines.append([name, title, f"{one.value:.4f}", interval, f"{self.rows[name]:,}", str(self.shots[name])])
        for name, values in self.groups.items():
            lines += [[name, title, f"{value:.4f}", "", "", ""] for title, value in values.items()]
        return align_columns(lines, n_left_aligned=2)

    def truncation_notices(self) -> list[str]:
        """Returns what a reader of the results should know."""
        text = f"{self.n_truncated:,} requests lost the beginning of their context, which is too long"
        return [text] if self.n_truncated else []

    def write_rows(self, path: Path) -> None:
        """Writes the rows, each with the name of its task, to a new file."""
        rows = ({"task": name, **row} for name, samples in self.samples.items() for row in samples)
        durable.write_output_file(path, (json.dumps(row, default=str).encode() + b"\n" for row in rows))


def evaluate_lm_eval_tasks(
    loaded: LoadedModel, tasks: Tasks, max_rows_per_task: int | None = None, report: Progress = no_progress
) -> BenchmarkResults:
    """Evaluates a model on each task, by all processes together. max_rows_per_task: rows of each task; None for all.

    Raises UsageError for a task that lm-eval cannot use.
    """
    from lm_eval.evaluator import evaluate

    from lmtool.tasks import lmeval

    random.seed(0)
    np.random.seed(FEWSHOT_SEED)
    torch.manual_seed(FEWSHOT_SEED)
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(FEWSHOT_SEED)
    with loaded.join_process_group_once() as loaded:
        model = lmeval.LmtoolModel(loaded, report)
        try:
            found = evaluate(model, dict(tasks), limit=max_rows_per_task, bootstrap_iters=0)
        except TASK_ERRORS as error:
            if any(frame.f_code.co_filename == lmeval.__file__ for frame, _ in walk_tb(error.__traceback__)):
                raise
            raise _unusable_task_error(error, ", ".join(tasks["tasks"])) from error
    results: dict[str, dict[str, MetricWithInterval]] = {}
    for name, task in tasks["tasks"].items():
        metrics = results[name] = {}
        for key, value in _select_metrics_without_stderr(found["results"][name]).items():
            metric, _, kind = key.partition(",")
            rows = [row for row in found["samples"][name] if metric in row and row["filter"] == (kind or "none")]
            values, aggregate = [row[metric] for row in rows], task.aggregation().get(metric)
            metrics[key] = _make_metric_with_interval(float(value), values, aggregate)
    groups = {name: _select_metrics_without_stderr(figures) for name, figures in found.get("groups", {}).items()}
    n_rows = {name: found["n-samples"][name]["effective"] for name in results}
    return BenchmarkResults(results, groups, n_rows, found["n-shot"], found["samples"], model.n_truncated)


def _select_metrics_without_stderr(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics among the results of a task or group, which lm-eval names with their filters."""
    return {
        key.removesuffix(",none"): value
        for key, value in figures.items()
        if "," in key and "_stderr," not in key and isinstance(value, int | float)
    }


def _make_metric_with_interval(value: float, row_values: Sequence[Any], aggregate: Any) -> MetricWithInterval:
    """Returns a metric with its interval: that of a share, or by a bootstrap over the rows that lm-eval aggregates.

    row_values: a number for each row, or the log-probability of a text and its number of words or bytes.
    """
    kind = getattr(aggregate, "__name__", "mean")
    if kind in ("weighted_perplexity", "bits_per_byte"):
        log_p_R, length_R = np.array(row_values, dtype=np.float64).T
        ratio = log_p_R.sum() / length_R.sum()
        # The ratio of two sums varies as the mean of this does.
        ends = bootstrap_mean_interval(ratio + (log_p_R - ratio * length_R) / length_R.mean())
        return MetricWithInterval(
            value, _transform_interval_ends(aggregate, [(one, 1) for one in ends]), log_p_R.tolist()
        )
    if kind not in ("mean", "perplexity") or not all(isinstance(one, int | float) for one in row_values):
        return MetricWithInterval(value, None, [])
    values_R = np.array(row_values, dtype=np.float64)
    if np.isin(values_R, (0, 1)).all():
        return MetricWithInterval(value, confidence_interval_95("accuracy", value, len(row_values)), values_R.tolist())
    interval = _transform_interval_ends(aggregate or mean, bootstrap_mean_interval(values_R))
    return MetricWithInterval(value, interval, values_R.tolist())


def _transform_interval_ends(aggregate: Callable[[Sequence[Any]], float], ends: Iterable[Any]) -> tuple[float, float]:
    """Returns an interval after an aggregation, the lower end first."""
    found = []
    for one in ends:
        try:
            found.append(float(aggregate([one])))
        except OverflowError:
            found.append(math.inf)
    return min(found), max(found)
