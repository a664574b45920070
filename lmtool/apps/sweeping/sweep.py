"""Trains runs that differ in some keys in one folder: each by its own command, several at once."""

import json
import math
import os
import runpy
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from lmtool import system
from lmtool.apps.sweeping import results
from lmtool.apps.sweeping.folder import BEST_RECIPE_FILE, SWEEP_PAGE_FILE, SWEEP_PAGE_HEADING
from lmtool.apps.sweeping.grid import Axes, GridPoint
from lmtool.apps.sweeping.halving import RunSeconds
from lmtool.apps.sweeping.results import GridPointResults, RunOutcome
from lmtool.compute.machine import count_cores, has_thread_setting
from lmtool.data.files import find_files
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.survey import Progress
from lmtool.errors import UsageError
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report.page import check_page_is_replaceable, write_page
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.creation import check_output_free_and_writable, has_checkpoint
from lmtool.runs.directory import CANNOT_WRITE_OUTPUT, CHECKPOINTS, RECIPE, REPORT, RESULTS, Run
from lmtool.runs.history import RunHistory, finite_number
from lmtool.runs.listing import read_recipe_values
from lmtool.runs.lock import is_run_locked
from lmtool.storage import durable
from lmtool.training.finetuning import plan_training_for_data

HELD_OUT_SETTING = "data.valid_fraction", "0.25"
"""Setting for tables so small that a run holds out no rows, because settings are compared on rows held out."""

RUN_POLL_SECONDS = 0.2
"""Interval at which processes and the request to stop are checked."""


def default_n_parallel_runs() -> int:
    """Returns how many runs to train at once: one on each GPU, or else on each core."""
    return torch.cuda.device_count() or count_cores()


class EndedProcess(NamedTuple):
    """A process that has trained a run."""

    run_name: str
    exit_code: int
    seconds: float


@dataclass(frozen=True)
class SharedRunArguments:
    """The arguments of all runs of a sweep.

    source, recipe: see `plan_training_for_data`. fixed_settings: `KEY=VALUE` texts. table_settings: options
        that read tables. subcommand: the command that trains on the data; None until they are resolved.
    """

    data: Sequence[str]
    source: str | None
    recipe: str | None
    fixed_settings: Sequence[str]
    table_settings: Sequence[Setting] = ()
    subcommand: Literal["pretrain", "finetune"] | None = None

    def resolve_for_all_runs(self, axes: Axes, report: Progress) -> "tuple[SharedRunArguments, str]":
        """Resolves once what all runs share, such as features that are chosen.

        Returns arguments for all runs, and what was chosen, in lines. The new arguments name the run that is trained
        further by its path, because "last" will soon be another run. For tables they hold out rows and set the features
        that cross-validation chose. Raises LmtoolError, also if there are no data.
        """
        for source in self.data:
            if not source.startswith(HUB_PREFIX):
                find_files(source)
        settings = self._parse_settings({key: values[0] for key, values in axes.items()})
        plan = plan_training_for_data(self.source, self.recipe, settings, report)
        messages: list[str] = []
        inputs = replace(self, subcommand="finetune" if plan.tables else "pretrain")
        if plan.tables:
            chosen = [f"{feature.key}={json.dumps(feature.value)}" for feature in plan.chosen_settings]
            messages += filter(None, [plan.choice])
            if not plan.recipe.data.holds_out and HELD_OUT_SETTING[0] not in (setting.key for setting in settings):
                held_out = "=".join(HELD_OUT_SETTING)
                chosen.append(held_out)
                messages.append(f"a quarter of the rows is held out, to compare settings (-s {held_out})")
            inputs = replace(inputs, fixed_settings=[*chosen, *self.fixed_settings])
        if plan.base is not None and self.source == "last":
            inputs = replace(inputs, source=str(plan.base.run.path))
        return inputs, "\n".join(messages)

    def resolve_recipe(self, point: GridPoint) -> Recipe:
        """Returns the recipe of a run before its text is read. Raises LmtoolError."""
        return plan_training_for_data(self.source, self.recipe, self._parse_settings(point)).recipe

    def build_command(self, point: GridPoint) -> list[str]:
        """Returns the command that trains a run, by resolved arguments."""
        assert self.subcommand is not None
        options = [*(["-r", self.recipe] if self.recipe else []), *(["--from", self.source] if self.source else [])]
        table_settings = (f"{setting.key}={json.dumps(setting.value)}" for setting in self.table_settings)
        for assignment in (*self._format_settings(point), *table_settings):
            options += ["-s", assignment]
        return ["lmtool", self.subcommand, *self.data, *options]

    def _parse_settings(self, point: GridPoint) -> list[Setting]:
        flags = [Setting("data.train", list(self.data), "DATA"), *self.table_settings]
        return parse_settings(self._format_settings(point), flags)

    def _format_settings(self, point: GridPoint) -> list[str]:
        return [*self.fixed_settings, *(f"{key}={value}" for key, value in point.items())]


@dataclass
class Sweep:
    """The runs of a sweep, which `halving.train_by_halving` can train.

    points, commands: by the names of runs.
    n_parallel: number of runs to train at once.
    on_run_end: receives the name of each run whose process has ended.
    failures: why runs have failed, with exit codes.
    """

    folder: Path
    points: Mapping[str, GridPoint]
    commands: Mapping[str, Sequence[str]]
    n_parallel: int
    is_stop_requested: Callable[[], bool]
    on_run_end: Callable[[str], None]
    failures: dict[str, tuple[str, int]] = field(default_factory=dict)
    _last_processes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def train(self, names: Sequence[str], end_share: float = 1.0, max_seconds: float = math.inf) -> None:
        """See `TrainableRuns`. Raises KeyboardInterrupt after a request to stop, when all processes have ended."""
        deadline = time.monotonic() + max_seconds
        before = {name: self.get_completed_share(name) for name in names if name not in self.failures}
        left = [name for name, share in before.items() if share < end_share]

        def is_over() -> bool:
            return self.is_stop_requested() or time.monotonic() > deadline

        for name, code, seconds in self._run_processes(left, end_share, is_over):
            if code < 0 and code != -signal.SIGTERM:
                self.failures[name] = f"ended by signal {-code}, maybe for lack of memory", 5
            elif code > 0 and code not in (130, 143):
                # the first line of the error
                lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
                self.failures[name] = next(line for line in [*reversed(lines), "unknown"] if line[:1] != " "), code
            self._last_processes[name] = seconds, self.get_completed_share(name) - before[name]
            self.on_run_end(name)
        if self.is_stop_requested():
            raise KeyboardInterrupt

    def extrapolate_longest_run_seconds(self, names: Sequence[str]) -> RunSeconds:
        """See `TrainableRuns`: by the seconds of the steps, and what the last processes took in addition."""
        total = 0.0
        for name, history in self._open_histories(names).items():
            step_seconds = finite_number(history.last_record.get("seconds")) or 0.0
            # validations and checkpoints take about a fifth of the time of the steps
            total = max(total, 1.2 * step_seconds / self.get_completed_share(name))
        processes = [self._last_processes.get(name, (0.0, 0.0)) for name in names]
        # no process starts in less than a second
        return RunSeconds(max([1.0, *(seconds - share * total for seconds, share in processes)]), total or math.inf)

    def rank(self, names: Sequence[str]) -> list[str]:
        """See `TrainableRuns`."""
        histories = self._open_histories(name for name in names if name not in self.failures)
        return sorted(histories, key=lambda name: -results.score_by_validation(histories[name]))

    def get_completed_share(self, name: str) -> float:
        """Returns the share of its steps that a run has done: 1 if nothing is left, 0 before its first checkpoint."""
        if not has_checkpoint(self.folder / name):
            return 0.0
        run = Run.open(self.folder / name)
        values, data = read_recipe_values(run), run.info.data
        steps = finite_number(values.get("training.steps")) or math.inf
        is_measured = values.get("evaluation.baseline") is True or (data and data.valid_rows is not None)
        files = [REPORT, *([RESULTS] if is_measured else [])]
        done = run.state == "finished" and all((run.path / file).exists() for file in files)
        return 1.0 if done else min(0.999, list_checkpoints(run.path / CHECKPOINTS)[-1][0] / steps)

    def rank_results(self) -> list[GridPointResults]:
        """Returns the results of the settings, the best first."""
        histories = self._open_histories(self.points)
        return results.group_and_rank_by_grid_point(
            [
                RunOutcome(point, histories.get(name), self.failures.get(name, ("",))[0])
                for name, point in self.points.items()
            ]
        )

    def write_page_and_best_recipe(self, title: str, rows: Sequence[GridPointResults], axes: Axes) -> tuple[Path, Path]:
        """Writes the page and the recipe of the best setting, and returns their paths."""
        paths = self.folder / SWEEP_PAGE_FILE, self.folder / BEST_RECIPE_FILE
        write_page(paths[0], results.render_sweep_page(title, rows, axes))
        if rows[0].runs:
            durable.replace_file(paths[1], (rows[0].runs[0].run.path / RECIPE).read_bytes())
        return paths

    def check_and_create_folder(self) -> None:
        """Makes the folder. Raises UsageError if others have files or runs of these names there, and ResourceError."""
        for name, history in self._open_histories(self.points).items():
            session = history.run.info.sessions[0]
            if session.command[: len(self.commands[name])] != [*self.commands[name]]:
                what, where = "the folder holds another run of this name", f"{name}: {shlex.join(session.command)}"
                fix = "choose another folder with -o, or give the same data, recipe and keys to go on"
                raise UsageError(what, where=where, fix=fix, code="output_exists")
        check_output_free_and_writable(self.folder)
        check_page_is_replaceable(self.folder / SWEEP_PAGE_FILE, SWEEP_PAGE_HEADING)
        if not (self.folder / SWEEP_PAGE_FILE).exists():
            durable.check_path_does_not_exist(self.folder / BEST_RECIPE_FILE)
        with durable.convert_write_errors(self.folder, CANNOT_WRITE_OUTPUT):
            self.folder.mkdir(parents=True, exist_ok=True)

    def list_locked_runs(self) -> list[str]:
        """Returns names of runs that a process has locked; those of a killed sweep are locked until they have saved."""
        return [name for name in self.points if is_run_locked(self.folder / name)]

    def wait_for_locked_runs(self) -> None:
        """Waits at most a minute until no run is locked; those of a killed sweep finish a step, validate and save."""
        deadline = time.monotonic() + 60
        while self.list_locked_runs() and time.monotonic() < deadline:
            time.sleep(RUN_POLL_SECONDS)

    def describe_run_progress(self, name: str) -> str:
        """Describes in words how far a run has come, or why it failed."""
        share = self.get_completed_share(name)
        if name in self.failures or not share:
            return self.failures.get(name, ("not begun", 0))[0]
        metric, value = results.get_validation_metric(self._open_histories([name])[name])
        figure = "-" if value is None else f"{value:.4f}"
        return f"{metric} {figure} after {100 * share:.0f} % of its steps"

    def _open_histories(self, names: Iterable[str]) -> dict[str, RunHistory]:
        """Opens the histories of the runs that have a checkpoint."""
        paths = {name: self.folder / name for name in names}
        return {name: RunHistory.from_run(Run.open(path)) for name, path in paths.items() if has_checkpoint(path)}

    def _run_processes(
        self, names: Sequence[str], end_share: float, is_over: Callable[[], bool]
    ) -> Iterator[EndedProcess]:
        """Trains runs in processes; yields each process as it ends."""
        modules = ["lmtool.apps.sweeping.sweep", "lmtool.cli.commands.finetune", "lmtool.interop.export.forms"]
        process_class = system.get_process_class(modules)
        waiting, free_slots, is_terminated = deque(names), list(range(self.n_parallel)), False
        n_threads = max(1, count_cores() // self.n_parallel)
        running: dict[int, tuple[str, int, BaseProcess, float]] = {}
        while running or (waiting and not is_over()):
            while waiting and free_slots and not is_over():
                name, slot = waiting.popleft(), free_slots.pop()
                options = ["-o", str(self.folder / name), "--start-or-resume", "--quiet", "--until", str(end_share)]
                device = slot % max(1, torch.cuda.device_count())
                args = [*self.commands[name], *options], str(self.folder / f"{name}.log"), n_threads, device
                process = process_class(target=_run_lmtool_in_this_process, args=args, daemon=True)
                process.start()
                running[process.sentinel] = name, slot, process, time.monotonic()
            if is_over() and not is_terminated:
                is_terminated = True
                for _, _, process, _ in running.values():
                    process.terminate()
            for sentinel in wait([*running], RUN_POLL_SECONDS):
                name, slot, process, started_at = running.pop(int(str(sentinel)))
                process.join()
                free_slots.append(slot)
                yield EndedProcess(name, process.exitcode or 0, time.monotonic() - started_at)


def _run_lmtool_in_this_process(command: list[str], log_path: str, n_threads: int, device: int) -> None:
    """Runs a command in this process, in a group of its own, so that only the sweep stops it, also when it ends."""
    system.leave_process_group()
    system.terminate_with_parent()
    with open(log_path, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[device] if device < len(devices) and devices[0] else str(device)
    if not has_thread_setting():
        torch.set_num_threads(n_threads)
    sys.argv[:] = command
    runpy.run_module("lmtool", run_name="__main__")
