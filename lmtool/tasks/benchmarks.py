"""Tasks of lm-eval, as they are published or in a person's own files: opened, measured, and their results.

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

from lmtool import durable
from lmtool.data.catalogue import read_catalogue
from lmtool.data.files import quote, quote_all
from lmtool.data.hub import import_datasets
from lmtool.data.survey import Progress
from lmtool.errors import DataError, UsageError
from lmtool.extras import import_extra
from lmtool.generation.generate import TextGenerator
from lmtool.inference.evaluation import ignore_progress
from lmtool.inference.load import LoadedModel
from lmtool.inference.scoring import check_predicts_tokens
from lmtool.printable import align_columns
from lmtool.recipe.grammar import did_you_mean, find_nearest
from lmtool.recipe.load import bundled_path
from lmtool.run.paired import bootstrap_interval
from lmtool.run.uncertainty import confidence_interval

FOLDER = "data/tasks"
SEED = 1234
"""Draws the examples before a prompt; the default of lm-eval."""

OF_TASKS = (ArithmeticError, AssertionError, LookupError, TemplateError, TypeError, ValueError)
"""Errors of templates, functions and metrics of tasks, and of numbers of rows that do not fit them."""

Tasks = Mapping[str, Mapping[str, Any]]
"""Tasks and groups of them, each by name, as `TaskManager.load` of lm-eval returns them."""


def shipped() -> list[str]:
    """The names of the folders of tasks that come with lmtool."""
    return sorted(path.name for path in bundled_path(FOLDER).iterdir() if path.is_dir())


def import_lm_eval() -> None:
    """Import lm-eval without its bars and notes. Raises ResourceError, with the line to type, where it is missing."""
    import_extra("lm_eval", "tasks are measured by", "lmeval")
    import_datasets()
    import lm_eval.api.task

    # version 0.4.13 draws a bar for each task and has no option against it
    lm_eval.api.task.tqdm = partial(lm_eval.api.task.tqdm, disable=True)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def open_tasks(names: Sequence[str], models: Sequence[LoadedModel] = (), shots: int | None = None) -> Tasks:
    """Tasks with their rows, after `import_lm_eval`.

    names: of tasks and groups of lm-eval, YAML files, folders of them, and folders that come with lmtool. Files of rows
        are found beside the YAML file, in the working directory, or among those that come with lmtool.
    models: that are to be measured.
    shots: examples before each prompt, except of tasks that say 0; None for what each task says.
    Raises UsageError for what is no task, for one that lm-eval cannot use or a model cannot do, and DataError for rows
    that cannot be read.
    """
    from lm_eval.tasks import TaskManager

    if "" in names:
        raise UsageError("the name of a task is empty", where="--tasks", fix="write NAME or NAME,NAME")
    paths = [bundled_path(FOLDER) / name if name in shipped() else Path(name).absolute() for name in names]
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
            near = did_you_mean(find_nearest(spec, [*shipped(), *manager.all_tasks]))
            fix = f"name a task of lm-eval, a YAML file, a folder of them, {', '.join(shipped())}"
            raise UsageError(f"there is no task {quote(spec)}{near}", where="--tasks", fix=fix)
        found = _load(manager, spec)
        twice = opened["tasks"].keys() & found["tasks"].keys()
        for kind, ones in opened.items():
            ones |= found[kind]
        # files of a group stand beside it
        twice -= {task.task_name for group in opened["groups"].values() for task in group.get_all_tasks()}
        if twice:
            raise UsageError(f"two tasks have the name {quote(min(twice))}", where=str(spec), fix="name one of them")
    for task in opened["tasks"].values():
        stated = task.get_config("num_fewshot")
        task.set_config("num_fewshot", stated or 0 if shots is None or stated == 0 else shots)
    for loaded in models:
        check_predicts_tokens(loaded)
        for name, task in opened["tasks"].items():
            cannot_write = task.OUTPUT_TYPE == "generate_until" and not TextGenerator(loaded).writes
            if cannot_write or (task.OUTPUT_TYPE == "loglikelihood_rolling" and loaded.prompt_format.answers):
                model = f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind}"
                fix = "leave the task out, or name another model"
                raise UsageError(f"{model} does no task of output_type {task.OUTPUT_TYPE}", where=name, fix=fix)
    return opened


def _load(manager: Any, spec: str | Path) -> Tasks:
    """What a name or a YAML file stands for."""
    folders = [Path.cwd()] if isinstance(spec, str) else [spec.parent, Path.cwd(), bundled_path("data").parent]
    # lm-eval opens the file of a group by its name only
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
            raise _unusable(error, str(spec)) from error
    made = [name for name, data in read_catalogue().data.items() if any(file in missing for file in data.sha256)]
    fix = f"lmtool data get {made[0]} makes the file" if made else "correct data_files"
    raise DataError(f"cannot read the rows: {quote(missing, 160)}", where=str(spec), fix=fix)


def _unusable(error: Exception, where: str) -> UsageError:
    what = f"lm-eval cannot use the task: {type(error).__name__}: {quote(str(error), 160)}"
    return UsageError(what, where=where, fix="correct it; --debug shows where it fails")


def texts_of(tasks: Tasks, limit: int | None = None) -> Iterator[tuple[str, str]]:
    """The texts of rows with their right answers, each after its name.

    Raises DataError for a right answer that is none of the choices, which lm-eval counts as wrong, and UsageError for a
    template that fails.
    """
    for name, task in tasks["tasks"].items():
        for number, doc in enumerate(islice(task.eval_docs, limit), 1):
            is_choice = task.OUTPUT_TYPE == "multiple_choice"
            try:
                text, target = task.doc_to_text(doc), task.doc_to_target(doc)
                choices = task.doc_to_choice(doc) if is_choice else []
            except Exception as error:  # whatever templates and functions raise
                raise _unusable(error, f"{name}, row {number}") from error
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
class Metric:
    """A figure of a task. interval: 95 %; None where it does not follow from numbers of the rows.

    values: one for each row, the more the better.
    """

    value: float
    interval: tuple[float, float] | None
    values: Sequence[float]


@dataclass(frozen=True)
class BenchmarkResults:
    """Results of tasks.

    tasks: metrics of each task, by name, which has the filter of the metric after a comma if there is one.
    groups: the same of groups of tasks, without intervals.
    rows, shots: of each task. samples: its rows, as lm-eval has them.
    n_cut: requests whose context lost its beginning.
    """

    tasks: Mapping[str, Mapping[str, Metric]]
    groups: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, int]
    shots: Mapping[str, int]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    n_cut: int

    def record(self) -> dict[str, Any]:
        """All figures, for JSON."""
        tasks = {
            name: {
                "rows": self.rows[name],
                "shots": self.shots[name],
                "metrics": {title: {"value": one.value, "interval": one.interval} for title, one in metrics.items()},
            }
            for name, metrics in self.tasks.items()
        }
        return {"tasks": tasks, "groups": self.groups, "cut": self.n_cut}

    def lines(self) -> list[str]:
        """A line for each metric."""
        lines = [["task", "metric", "value", "95 % interval", "rows", "shots"]]
        for name, metrics in self.tasks.items():
            for title, one in metrics.items():
                inside = "" if one.interval is None else "{:.4f} to {:.4f}".format(*one.interval)
                lines.append([name, title, f"{one.value:.4f}", inside, f"{self.rows[name]:,}", str(self.shots[name])])
        for name, values in self.groups.items():
            lines += [[name, title, f"{value:.4f}", "", "", ""] for title, value in values.items()]
        return align_columns(lines, n_left_aligned=2)

    def notices(self) -> list[str]:
        """What a reader of the figures should know."""
        return [f"{self.n_cut:,} requests lost the beginning of their context, which is too long"] * (self.n_cut > 0)

    def write_rows(self, path: Path) -> None:
        """Write the rows, each with the name of its task, to a new file."""
        rows = ({"task": name, **row} for name, of_task in self.samples.items() for row in of_task)
        durable.write_output_file(path, (json.dumps(row, default=str).encode() + b"\n" for row in rows))


def measure_tasks(
    loaded: LoadedModel, tasks: Tasks, limit: int | None = None, report: Progress = ignore_progress
) -> BenchmarkResults:
    """Results of each task, by all processes together. limit: the first rows of each, so many; None for all.

    Raises UsageError for a task that lm-eval cannot use.
    """
    from lm_eval.evaluator import evaluate

    from lmtool.tasks import lmeval

    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(SEED)
    with loaded.joined() as loaded:
        model = lmeval.LmtoolModel(loaded, report)
        try:
            found = evaluate(model, dict(tasks), limit=limit, bootstrap_iters=0)
        except OF_TASKS as error:
            if any(frame.f_code.co_filename == lmeval.__file__ for frame, _ in walk_tb(error.__traceback__)):
                raise
            raise _unusable(error, ", ".join(tasks["tasks"])) from error
    results: dict[str, dict[str, Metric]] = {}
    for name, task in tasks["tasks"].items():
        metrics = results[name] = {}
        for key, value in _figures(found["results"][name]).items():
            metric, _, kind = key.partition(",")
            rows = [row for row in found["samples"][name] if metric in row and row["filter"] == (kind or "none")]
            metrics[key] = _metric(float(value), [row[metric] for row in rows], task.aggregation().get(metric))
    groups = {name: _figures(figures) for name, figures in found.get("groups", {}).items()}
    n_rows = {name: found["n-samples"][name]["effective"] for name in results}
    return BenchmarkResults(results, groups, n_rows, found["n-shot"], found["samples"], model.n_cut)


def _figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics among the results of a task or group, which lm-eval names with their filters."""
    return {
        key.removesuffix(",none"): value
        for key, value in figures.items()
        if "," in key and "_stderr," not in key and isinstance(value, int | float)
    }


def _metric(value: float, rows: Sequence[Any], aggregate: Any) -> Metric:
    """A metric with its interval: that of a share, or by a bootstrap over rows of what lm-eval aggregates.

    rows: what it aggregates: a number for each row, or the log-probability of a text with its words or bytes.
    """
    kind = getattr(aggregate, "__name__", "mean")
    if kind in ("weighted_perplexity", "bits_per_byte"):
        log_p_R, length_R = np.array(rows, dtype=np.float64).T
        ratio = log_p_R.sum() / length_R.sum()
        # the ratio of two sums varies as the mean of this does
        ends = bootstrap_interval(ratio + (log_p_R - ratio * length_R) / length_R.mean())
        return Metric(value, _aggregated(aggregate, [(one, 1) for one in ends]), log_p_R.tolist())
    if kind not in ("mean", "perplexity") or not all(isinstance(one, int | float) for one in rows):
        return Metric(value, None, [])
    values_R = np.array(rows, dtype=np.float64)
    if np.isin(values_R, (0, 1)).all():
        return Metric(value, confidence_interval("accuracy", value, len(rows)), values_R.tolist())
    return Metric(value, _aggregated(aggregate or mean, bootstrap_interval(values_R)), values_R.tolist())


def _aggregated(aggregate: Callable[[Sequence[Any]], float], ends: Iterable[Any]) -> tuple[float, float]:
    """What an interval becomes by an aggregation, the lower end first."""
    found = []
    for one in ends:
        try:
            found.append(float(aggregate([one])))
        except OverflowError:
            found.append(math.inf)
    return min(found), max(found)
