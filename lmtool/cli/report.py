"""`lmtool report`: a page about runs."""

from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import RUN_HELP
from lmtool.printable import plain

WATCH_SECONDS = 5
"""Seconds between two pages of `--watch`."""


def report(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default="last")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    watch: Annotated[
        bool, typer.Option("--watch", metavar="", help="Write it again every few seconds, until all runs have ended.")
    ] = False,
) -> None:
    """Write a page about one run, or several beside each other: losses, results, samples, recipes, sessions.

    The page is one file that requests nothing. Prints its path.
    """
    import time

    from lmtool.interop.reference import run_of
    from lmtool.report.history import History
    from lmtool.report.page import write_page
    from lmtool.report.training import training_page
    from lmtool.run.directory import Run
    from lmtool.run.find import find

    paths = list(dict.fromkeys(find(run_of(run)).run.path for run in runs or ["last"]))

    def written() -> bool:
        """Write the page; whether a run goes on."""
        histories = [History.of(Run.open(path)) for path in paths]
        goes_on = watch and any(history.run.state == "running" for history in histories)
        write_page(output, training_page(histories, refresh=WATCH_SECONDS if goes_on else None))
        return goes_on

    goes_on = written()
    typer.echo(plain(str(output)))
    while goes_on:
        time.sleep(WATCH_SECONDS)
        goes_on = written()
