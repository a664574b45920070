"""`lmtool report`: a page about runs."""

from pathlib import Path

from lmtool.cli.arguments import RUN_HELP
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import print_text

WATCH_SECONDS = 5
"""Seconds between two pages of `--watch`."""


def report(
    runs: list[str] | None = argument("RUN", RUN_HELP, shown="last"),
    output: Path = option("FILE", "The page.", "--output", "-o", default=Path("report.html"), parser=file_to_write),
    watch: bool = flag("Write it again every few seconds, until all runs have ended.", "--watch"),
) -> None:
    """Write a page about one run, or several beside each other: losses, results, samples, recipes, sessions.

    The page is one file that requests nothing. Prints its path.

    Examples:
    lmtool report last
    lmtool report tiny lstm -o both.html
    lmtool report last --watch
    """
    import time

    from lmtool.interop.resolve import resolve_reference
    from lmtool.report.page import check_page_is_replaceable, write_page
    from lmtool.report.training import RUN_PAGE_HEADING, render_runs_page
    from lmtool.runs.directory import Run
    from lmtool.runs.history import RunHistory

    paths = list(dict.fromkeys(resolve_reference(run).run.path for run in runs or ["last"]))

    check_page_is_replaceable(output, RUN_PAGE_HEADING)

    def write_current_page() -> bool:
        """Writes the page, and returns whether to write it again because a run goes on."""
        histories = [RunHistory.from_run(Run.open(path)) for path in paths]
        goes_on = watch and any(history.run.state == "running" for history in histories)
        write_page(output, render_runs_page(histories, refresh_seconds=WATCH_SECONDS if goes_on else None))
        return goes_on

    goes_on = write_current_page()
    print_text(output)
    while goes_on:
        time.sleep(WATCH_SECONDS)
        goes_on = write_current_page()
