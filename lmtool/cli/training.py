"""What `pretrain` and `resume` share: signals, progress, and the exit code."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmtool.cli.progress import Display
from lmtool.cli.signals import StopAtStep
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.tables.results import Results
    from lmtool.training.events import Event


def follow(
    start: "Callable[..., Iterator[Event]]",
    quiet: bool,
    *,
    brief: bool = False,
) -> "tuple[Path | None, list[Results]]":
    """Run a training session and show its progress; results and the run directory go to stdout at the end.

    start: called with the keyword arguments that all sessions take. brief: show the first line of each result only.
    Returns the run directory, if this process has one, and the results.
    """
    from lmtool.compute.processes import is_main
    from lmtool.tables.results import Results
    from lmtool.training.events import AlreadyFinished, Ended, Plan, Started

    stop = StopAtStep(notify=is_main() and not quiet)
    reason = "finished"
    measured: list[Results] = []
    with Display(shown=is_main(), quiet=quiet) as display:
        for event in start(command=["lmtool", *sys.argv[1:]], report=display.report, stop=stop.asked):
            match event:
                case Plan():
                    # in every process, not only the one that writes
                    stop.open()
                case Started() | AlreadyFinished():
                    display.run = event.path
                case Ended():
                    reason = event.reason
                case Results():
                    measured.append(event)
                    for line in event.lines()[: 1 if brief else None]:
                        typer.echo(plain(line))
                    continue
            display.show(event)
    if display.run is not None:
        typer.echo(display.run)
    if reason == "interrupted":
        raise typer.Exit(stop.exit_code)
    return display.run, measured
