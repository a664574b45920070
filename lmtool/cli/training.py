"""Runs training for `pretrain`, `finetune` and `resume`: signals, progress, dashboards, report and exit code."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmtool.cli.output import ReaderGone, eprint, print_lines, print_text, warn
from lmtool.cli.progress import Display
from lmtool.cli.signals import StopAtStep
from lmtool.errors import UsageError
from lmtool.printable import first_line

if TYPE_CHECKING:
    from lmtool.training.events import Event
    from lmtool.training.job import SessionOptions


def run_training(
    run: "Callable[[SessionOptions], Iterator[Event]]",
    quiet: bool,
    *,
    output: Path | None = None,
    replace_aborted: bool = False,
    brief: bool = False,
    until: float = 1.0,
    stops_below_baseline: bool = False,
    profiles: bool = False,
) -> Path | None:
    """Runs a training session and shows its progress; prints results and the run directory to stdout at the end.

    output, replace_aborted, stops_below_baseline, profiles: see `SessionOptions`.
    brief: shows only the first line of each result. until: stops after this share of the steps.
    Returns the run directory, if this process has one.
    """
    from lmtool.compute.processes import is_main_process
    from lmtool.report.dashboards import DashboardLoggers
    from lmtool.runs.directory import REPORT, Run
    from lmtool.tasks.results import Results
    from lmtool.training.events import RunAlreadyFinished, RunStarted, TrainingEnded, TrainingStarted, Warn
    from lmtool.training.job import SessionOptions

    stop = StopAtStep(notify=is_main_process() and not quiet)
    path: Path | None = None
    reason = ""
    loggers = DashboardLoggers()
    with Display(shown=is_main_process(), quiet=quiet) as display, ExitStack() as stack:
        stack.callback(lambda: list(map(display.show, map(Warn, loggers.close()))))
        options = SessionOptions(
            ["lmtool", *sys.argv[1:]],
            display.report,
            stop.requested,
            output,
            replace_aborted,
            until=until,
            profiles=profiles,
            stops_below_baseline=stops_below_baseline,
        )
        for event in run(options):
            for warning in loggers.log_event(event):
                display.show(Warn(warning))
            match event:
                case TrainingStarted():
                    # in every process, not only the one that writes
                    stop.open()
                case RunStarted() | RunAlreadyFinished():
                    path = event.path
                case TrainingEnded():
                    reason = event.reason
                case Results():
                    with suppress(ReaderGone):  # the run is finished all the same
                        print_lines(*event.lines()[: 1 if brief else None])
                    continue
            display.show(event)
    if path is not None:
        # a finished run lacks its page where the process was killed before it was written
        if reason or not (path / REPORT).exists():
            from lmtool.report.training import write_run_page  # it imports much

            try:
                page = write_run_page(Run.open(path))
            except Exception as error:
                warn([f"no report of this run: {first_line(error, 200)}"])
            else:
                if not quiet:
                    eprint(f"report: {page}")
        print_text(path)
    if reason == "interrupted" and stop.requested():
        raise typer.Exit(stop.exit_code)
    return path


def resume_if_begun(output: Path | None, quiet: bool, until: float, profiles: bool) -> bool:
    """Continues the run in a directory, for `--start-or-resume`, if there is one. Returns whether there is.

    until, profiles: see `run_training`.

    Raises UsageError without a directory.
    """
    from lmtool.runs.creation import has_checkpoint

    if output is None:
        raise UsageError("--start-or-resume needs a run directory", fix="name it: -o DIR")
    if not has_checkpoint(output):
        return False
    from lmtool.training.resuming import resume_with_own_recipe

    run_training(partial(resume_with_own_recipe, output), quiet, until=until, profiles=profiles)
    return True
