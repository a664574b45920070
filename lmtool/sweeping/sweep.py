"""Runs with other values of some keys, in one folder: each is trained by a command of its own, several at once."""

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

import torch

from lmtool import durable, system
from lmtool.compute.machine import n_cores, threads_are_set
from lmtool.data.files import find_files
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.survey import Progress
from lmtool.errors import UsageError
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report.page import refuse_other, write_page
from lmtool.run.checkpoint import list_checkpoints
from lmtool.run.creation import check_output_folder, has_checkpoint
from lmtool.run.directory import CHECKPOINTS, RECIPE, REPORT, RESULTS, Run, convert_write_errors
from lmtool.run.history import RunHistory, finite_number
from lmtool.run.listing import read_values
from lmtool.run.lock import is_run_locked
from lmtool.sweeping.folder import BEST, HEADING, PAGE
from lmtool.sweeping.grid import Axes, GridPoint
from lmtool.sweeping.halving import Cost
from lmtool.sweeping.results import PointResults, goodness, rows_of, sweep_page, validated
from lmtool.training.finetuning import plan_training

HELD_OUT = "data.valid_fraction", "0.25"
"""Of so few rows that a run alone holds none out: settings compared by what they were trained on would tell nothing."""

POLL_SECONDS = 0.2
"""Seconds between two looks at whether to stop."""

SAVING_SECONDS = 60.0
"""Longest wait for the runs of a sweep that was killed, which finish a step, validate and save."""

START_SECONDS = 1.0
"""Seconds that a process takes at least beside its steps."""

BESIDE = 1.2
"""Ratio of the time of training to that of its steps: validations and checkpoints come with them."""

PRELOADED = ["lmtool.sweeping.sweep", "lmtool.cli.commands.finetune", "lmtool.export.forms"]
"""Modules that the processes share."""


def usual_slots() -> int:
    """How many runs are trained at once: one on each GPU, or else on each core."""
    return torch.cuda.device_count() or n_cores()


@dataclass(frozen=True)
class Typed:
    """What is typed. source, recipe: see `plan_training`. fixed: `KEY=VALUE` texts. read_by: options of tables."""

    data: Sequence[str]
    source: str | None
    recipe: str | None
    fixed: Sequence[str]
    read_by: Sequence[Setting] = ()

    def planned(self, axes: Axes, report: Progress) -> "tuple[Typed, str, str]":
        """The same with the run that is trained further named by its path, as the last one will soon be another, with
        the features that cross-validation chose, once for all runs, and with rows held out; the command for such data;
        and what was chosen, in lines. Raises LmtoolError, also where there are no data.
        """
        for source in self.data:
            if not source.startswith(HUB_PREFIX):
                find_files(source)
        settings = self._settings({key: values[0] for key, values in axes.items()})
        plan = plan_training(self.source, self.recipe, settings, report)
        told: list[str] = []
        named = self
        if plan.tables:
            chosen = [f"{one.key}={json.dumps(one.value)}" for one in plan.features]
            told += filter(None, [plan.choice])
            if not plan.recipe.data.holds_out and HELD_OUT[0] not in (one.key for one in settings):
                chosen.append("=".join(HELD_OUT))
                told.append(f"a quarter of the rows is held out, to compare settings (-s {'='.join(HELD_OUT)})")
            named = replace(self, fixed=[*chosen, *self.fixed])
        if plan.base is not None and self.source == "last":
            named = replace(named, source=str(plan.base.run.path))
        return named, "finetune" if plan.tables else "pretrain", "\n".join(told)

    def resolved(self, choice: GridPoint) -> Recipe:
        """The recipe of a run before its text is read. Raises LmtoolError."""
        return plan_training(self.source, self.recipe, self._settings(choice)).recipe

    def command(self, verb: str, choice: GridPoint) -> list[str]:
        """The command of a run."""
        named = [*(["-r", self.recipe] if self.recipe else []), *(["--from", self.source] if self.source else [])]
        options = (f"{one.key}={json.dumps(one.value)}" for one in self.read_by)
        texts = [*self._texts(choice), *options]
        return ["lmtool", verb, *self.data, *named, *(word for text in texts for word in ("-s", text))]

    def _settings(self, choice: GridPoint) -> list[Setting]:
        return parse_settings(self._texts(choice), [Setting("data.train", list(self.data), "DATA"), *self.read_by])

    def _texts(self, choice: GridPoint) -> list[str]:
        return [*self.fixed, *(f"{key}={value}" for key, value in choice.items())]


@dataclass
class Sweep:
    """The runs of a sweep, as `halving.search` trains them.

    choices, commands: by the names of runs. slots: how many are trained at once. stop: whether to stop. ended: called
    with the name of each run whose process has ended. failures: why runs have failed, with exit codes.
    """

    folder: Path
    choices: Mapping[str, GridPoint]
    commands: Mapping[str, Sequence[str]]
    slots: int
    stop: Callable[[], bool]
    ended: Callable[[str], None]
    failures: dict[str, tuple[str, int]] = field(default_factory=dict)
    _took: dict[str, tuple[float, float]] = field(default_factory=dict)

    def train(self, names: Sequence[str], until: float = 1.0, limit: float = math.inf) -> None:
        """See `Runs`. Raises KeyboardInterrupt when all processes have saved and ended because of `stop`."""
        end = time.monotonic() + limit
        before = {name: self.reached(name) for name in names if name not in self.failures}
        left = [name for name, share in before.items() if share < until]
        for name, code, seconds in self._processes(left, until, lambda: self.stop() or time.monotonic() > end):
            if code < 0 and code != -signal.SIGTERM:
                self.failures[name] = f"ended by signal {-code}, maybe for lack of memory", 5
            elif code > 0 and code not in (130, 143):
                # the first line of the error
                lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
                self.failures[name] = next(line for line in [*reversed(lines), "unknown"] if line[:1] != " "), code
            self._took[name] = seconds, self.reached(name) - before[name]
            self.ended(name)
        if self.stop():
            raise KeyboardInterrupt

    def cost(self, names: Sequence[str]) -> Cost:
        """See `Runs`: by the seconds of their steps, and what their last processes took beside."""
        spent = {
            name: finite_number(history.last_record.get("seconds")) or 0.0
            for name, history in self._begun(names).items()
        }
        whole = max((BESIDE * seconds / self.reached(name) for name, seconds in spent.items()), default=0.0)
        starts = [seconds - share * whole for name in names for seconds, share in [self._took.get(name, (0.0, 0.0))]]
        return Cost(max(START_SECONDS, *starts), whole or math.inf)

    def ranked(self, names: Sequence[str]) -> list[str]:
        """See `Runs`."""
        of = {name: goodness(one) for name, one in self._begun(names).items() if name not in self.failures}
        return sorted(of, key=lambda name: -of[name])

    def reached(self, name: str) -> float:
        """The share of its steps that a run has done: 1 where nothing is left to do, 0 before its first checkpoint."""
        if not has_checkpoint(self.folder / name):
            return 0.0
        run = Run.open(self.folder / name)
        values, data = read_values(run), run.info.data
        steps = finite_number(values.get("training.steps")) or math.inf
        is_measured = values.get("evaluation.baseline") or (data and data.valid_rows is not None)
        files = [REPORT, *([RESULTS] if is_measured else [])]
        done = run.state == "finished" and all((run.path / file).exists() for file in files)
        return 1.0 if done else min(0.999, list_checkpoints(run.path / CHECKPOINTS)[-1][0] / steps)

    def rows(self) -> list[PointResults]:
        """The settings, the best first."""
        begun, why = self._begun(self.choices), {name: reason for name, (reason, _) in self.failures.items()}
        return rows_of([(choice, begun.get(name), why.get(name, "")) for name, choice in self.choices.items()])

    def write(self, title: str, rows: Sequence[PointResults], axes: Axes) -> tuple[Path, Path]:
        """Write the page, and the recipe of the best setting; returns their paths."""
        paths = self.folder / PAGE, self.folder / BEST
        write_page(paths[0], sweep_page(title, rows, axes))
        if rows[0].runs:
            durable.replace_file(paths[1], (rows[0].runs[0].run.path / RECIPE).read_bytes())
        return paths

    def check(self) -> None:
        """Make the folder. Raises UsageError for files and runs of others that have names of its own, ResourceError."""
        for name, history in self._begun(self.choices).items():
            session = history.run.info.sessions[0]
            if session.command[: len(self.commands[name])] != [*self.commands[name]]:
                what, where = "the folder holds another run of this name", f"{name}: {shlex.join(session.command)}"
                fix = "choose another folder with -o, or give the same data, recipe and keys to go on"
                raise UsageError(what, where=where, fix=fix, code="output_exists")
        check_output_folder(self.folder)
        refuse_other(self.folder / PAGE, HEADING)
        if not (self.folder / PAGE).exists():
            durable.check_path_is_free(self.folder / BEST)
        with convert_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def in_use(self) -> list[str]:
        """Names of the runs that a process has locked, as those of a killed sweep are until they have saved."""
        return [name for name in self.choices if is_run_locked(self.folder / name)]

    def wait_until_free(self) -> None:
        """Wait until no run is in use, for SAVING_SECONDS at most."""
        deadline = time.monotonic() + SAVING_SECONDS
        while self.in_use() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def told(self, name: str) -> str:
        """What a run has come to, in words."""
        if name in self.failures or not self.reached(name):
            return self.failures.get(name, ("not begun", 0))[0]
        metric, value = validated(self._begun([name])[name])
        figure = "-" if value is None else f"{value:.4f}"
        return f"{metric} {figure} after {100 * self.reached(name):.0f} % of its steps"

    def _begun(self, names: Iterable[str]) -> dict[str, RunHistory]:
        """Those of the runs that have a checkpoint."""
        paths = {name: self.folder / name for name in names}
        return {name: RunHistory.from_run(Run.open(path)) for name, path in paths.items() if has_checkpoint(path)}

    def _processes(
        self, names: Sequence[str], until: float, stop: Callable[[], bool]
    ) -> Iterator[tuple[str, int, float]]:
        """Names, exit codes and seconds of processes, as they end."""
        start = system.get_process_class(PRELOADED)
        waiting, free, is_told = deque(names), list(range(self.slots)), False
        running: dict[int, tuple[str, int, BaseProcess, float]] = {}
        while running or (waiting and not stop()):
            while waiting and free and not stop():
                name, slot = waiting.popleft(), free.pop()
                how = ["-o", str(self.folder / name), "--start-or-resume", "--quiet", "--until", str(until)]
                threads, device = max(1, n_cores() // self.slots), slot % max(1, torch.cuda.device_count())
                args = [*self.commands[name], *how], str(self.folder / f"{name}.log"), threads, device
                process = start(target=_run, args=args, daemon=True)
                process.start()
                running[process.sentinel] = name, slot, process, time.monotonic()
            if stop() and not is_told:
                is_told = True
                for _, _, process, _ in running.values():
                    process.terminate()
            for sentinel in wait([*running], POLL_SECONDS):
                name, slot, process, began = running.pop(int(str(sentinel)))
                process.join()
                free.append(slot)
                yield name, process.exitcode or 0, time.monotonic() - began


def _run(command: list[str], log: str, threads: int, device: int) -> None:
    """What a process does: the command, in a group of its own, so that only the sweep stops it, also by its end."""
    system.leave_process_group()
    system.terminate_with_parent()
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[device] if device < len(devices) and devices[0] else str(device)
    if not threads_are_set():
        torch.set_num_threads(threads)
    sys.argv[:] = command
    runpy.run_module("lmtool", run_name="__main__")
