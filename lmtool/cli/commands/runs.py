"""`lmtool runs`: list runs, show one, compare or remove some, or merge the adapters of one."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from lmtool.cli.arguments import Json, RunName
from lmtool.cli.help import argument, flag, group, option, register
from lmtool.cli.progress import count
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.run.directory import Run
    from lmtool.run.listing import Summary

DROPPED = ("model", "recipe", "size", "started", "step")
"""Columns that are dropped on a narrow terminal, in this order. `lmtool runs show` has them all."""


def list_runs(json: Json = False) -> None:
    """List all runs, newest first.

    Examples:
    lmtool runs ls
    lmtool runs ls --json
    """
    from lmtool.run.listing import summaries
    from lmtool.run.paths import runs_root

    runs = summaries()
    if json:
        _print_json([asdict(summary) for summary in runs])
    elif not runs:
        typer.echo(f"no runs in {plain(str(runs_root()))}", err=True)
    else:
        columns = {"result": _result, "started": lambda run: _time(run.started), "size": lambda run: decimal(run.bytes)}
        names = ("name", "step", "result", "started", "size", "state", "recipe", "model")
        _print_table({name: [str(columns.get(name, attrgetter(name))(run)) for run in runs] for name in names})


def show_run(run: RunName = "last", json: Json = False) -> None:
    """Show one run: its sessions, checkpoints and losses, drawn over the steps.

    Examples:
    lmtool runs show last
    lmtool runs show last --json
    """
    from lmtool.interop.reference import find
    from lmtool.run.listing import figures_on_tests, lineage, summarise

    shown = find(run).run
    summary = summarise(shown.path)
    if json:
        _print_json(asdict(summary) | shown.info.model_dump(exclude={"checksum"}, exclude_unset=True))
        return
    tests = {} if summary.problem else figures_on_tests(shown)
    facts = [
        ("name", summary.name),
        ("path", summary.path),
        ("state", summary.state),
        ("recipe", summary.recipe),
        ("model", summary.model),
        ("step", str(summary.step)),
        ("result", _result(summary)),
        *(("test", _figures(figures, source.removesuffix("test").strip())) for source, figures in tests.items()),
        ("valid loss", _loss(summary.valid_loss)),
        ("lowest valid loss", _loss(summary.best_valid_loss)),
        ("size", decimal(summary.bytes)),
    ]
    facts += lineage(shown)
    if origin := shown.origin:
        revision = f", revision {origin.revision}" if origin.revision else ""
        facts.append(("imported from", f"{origin.reference} ({origin.model_type}{revision})"))
        facts += [("", f"{file} SHA-256 {sha}") for file, sha in origin.sha256.items()]
    for session in shown.info.sessions:
        began = "started" if session.step == 0 else f"resumed at step {session.step}"
        facts.append(("session", f"{_time(session.started)} {began}: {shlex.join(session.command)}"))
        facts.append(("", ", ".join(f"{k} {v}" for k, v in session.environment.items() if v is not None)))
    for checkpoint in summary.checkpoints:
        notes = [decimal(checkpoint.bytes), *(["best"] if checkpoint.best else []), checkpoint.problem]
        facts.append(("checkpoint", f"{checkpoint.name}: {', '.join(note for note in notes if note)}"))
    if summary.problem:
        facts.append(("problem", summary.problem))
    for name, value in facts:
        typer.echo(f"{plain(name):21} {plain(value)}")
    if not summary.problem:
        _draw_losses(shown)


def _draw_losses(run: "Run") -> None:
    """The losses over the steps, as wide as the terminal: in ASCII where colours are not wanted."""
    from lmtool.cli.output import show_lines
    from lmtool.report.terminal import plot
    from lmtool.run.history import number

    drawn: dict[str, list[tuple[float, float]]] = {"loss": [], "valid_loss": []}
    for record in run.metrics.read():
        for key, points in drawn.items():
            if (value := number(record.get(key))) is not None:
                points.append((float(record["step"]), value))
    named = zip(("training loss", "validation loss"), drawn.values(), strict=True)
    show_lines(partial(plot, [(name, points) for name, points in named if len(points) > 1]))


def compare_runs(
    runs: list[str] = argument("RUN", "Two runs or more, as for `show`.", ..., shown=True), json: Json = False
) -> None:
    """Compare runs: best loss, bits per byte, tokens, time and speed, and what differs in their recipes.

    Examples:
    lmtool runs compare tiny lstm
    lmtool runs compare A B --json
    """
    from lmtool.errors import UsageError
    from lmtool.interop.reference import find
    from lmtool.run.history import History, differences, doubts, figures

    if len(runs) < 2:
        raise UsageError("one run has nothing to be compared with", where=runs[0], fix="name another one beside it")
    histories = [History.of(find(run).run) for run in runs]
    different, notes = differences(histories), doubts(histories)
    if json:
        summaries = [{"name": history.name} | history.summary() for history in histories]
        _print_json({"runs": summaries, "differences": different, "notes": notes})
        return
    rows = [[name, *map(_compared, values)] for name, values in (figures(histories) | different).items()]
    _print_columns(["", *(history.name for history in histories)], rows)
    for note in notes:
        typer.echo(f"note\t{plain(note)}")


def _compared(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(_compared, value)) or "-"
    return str(value)


def _print_columns(heading: list[str], rows: list[list[str]]) -> None:
    """A table with a column for each run; elsewhere than on a terminal tabs between the columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, lines = Console(), [[plain(cell) for cell in row] for row in [heading, *rows]]
    if not console.is_terminal:
        _print_tabs(lines)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in heading:
        table.add_column(overflow="fold", style=None if name else "dim")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def _print_tabs(rows: Iterable[Iterable[str]]) -> None:
    for row in rows:
        typer.echo("\t".join(row))


def merge_run(
    run: RunName,
    output: Path | None = option("DIR", "The run directory; a new one in runs/ by default.", "--output", "-o"),
) -> None:
    """Merge the adapters of a run into the weights: a new run that predicts alike and needs no base run.

    Prints the new run directory.

    Examples:
    lmtool runs merge last -o runs/merged
    """
    from lmtool.cli.output import warn
    from lmtool.inference.merging import merge

    merged, warnings = merge(run, output, ["lmtool", *sys.argv[1:]])
    warn(warnings)
    typer.echo(plain(str(merged)))


def remove_runs(
    runs: list[str] | None = argument("RUN", "Names or directories of runs, or last."),
    older_than: str | None = option(
        "AGE", "Instead of RUN: all runs last used so long ago, such as 12h, 30d or 8w; imported ones stay."
    ),
    yes: bool = flag("Do not ask.", "--yes", "-y"),
) -> None:
    """Remove runs with all their checkpoints, after asking. A run that is in use is never removed.

    Examples:
    lmtool runs rm 2026-11-20-tiny-7f3a last
    lmtool runs rm --older-than 30d --yes
    """
    from lmtool.errors import UsageError
    from lmtool.run import removal
    from lmtool.run.listing import size_of

    if bool(runs) == (older_than is not None):
        raise UsageError("give the runs to remove, or --older-than", fix="see lmtool runs rm --help")
    if older_than is None:
        paths = removal.named_runs(runs or ())
    else:
        paths = removal.runs_older_than(removal.parse_age(older_than))
        if not paths:
            typer.echo(f"no runs older than {older_than}", err=True)
            return
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError("nobody is there to be asked before runs are removed", fix="add --yes")
        for path in paths:
            typer.echo(f"{plain(str(path))}, {decimal(size_of(path))}", err=True)
        typer.echo(f"remove {'it' if len(paths) == 1 else f'these {len(paths)} runs'}? [y/N] ", nl=False, err=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            typer.echo("nothing is removed", err=True)
            return
    freed = 0
    for path in paths:
        size = removal.remove_run(path)
        freed += size
        typer.echo(f"removed {plain(str(path))}, {decimal(size)} freed")
        if path.exists():
            typer.echo(f"kept in {plain(str(path))}: files that are not the run's", err=True)
    if len(paths) > 1:
        typer.echo(f"{decimal(freed)} freed in all")


def _print_json(value: object) -> None:
    from json import dumps

    typer.echo(dumps(value, indent=1))


def _print_table(columns: Mapping[str, list[str]]) -> None:
    """A table on a terminal; elsewhere one line per row, tabs between the columns, no header."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = {name: [plain(cell) for cell in column] for name, column in columns.items()}
    if not console.is_terminal:
        _print_tabs(zip(*cells.values(), strict=True))
        return
    widths = {name: max(map(cell_len, [name, *column])) for name, column in cells.items()}
    for name in DROPPED:
        if sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
            del widths[name]
    table = Table(box=None, pad_edge=False)
    for name, width in widths.items():
        table.add_column(name, justify="right" if name in ("step", "size") else "left", no_wrap=True, width=width)
    for row in zip(*(cells[name] for name in widths), strict=True):
        table.add_row(*map(Text, row))
    # Names are typed again, so they are never truncated: on a very narrow terminal lines wrap.
    console.width = max(console.width, sum(widths.values()) + 2 * len(widths))
    console.print(table)


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _result(summary: "Summary") -> str:
    """What counts for a run, with its name, and how far so few rows tell; a test set is named, validation is not."""
    if summary.value is None:
        return "-"
    part = "test " if summary.part == "test" else ""
    error = "" if summary.standard_error is None else f" ± {summary.standard_error:.2g}"
    rows = f", {count(summary.rows, 'row')}" if summary.rows else ""
    return f"{part}{summary.metric} {summary.value:.{2 if summary.metric == 'bleu' else 4}f}{error}{rows}"


def _figures(figures: Mapping[str, object], source: str) -> str:
    """The plain numbers of results. source: what they are of, if that is to be told."""
    numbers = {name: value for name, value in figures.items() if name != "step" and isinstance(value, int | float)}
    told = ", ".join(f"{name.replace('_', ' ')} {_compared(value)}" for name, value in numbers.items())
    return f"{source}: {told}" if source else told


def _time(stamp: str) -> str:
    """An ISO 8601 time as local time, to the minute."""
    from datetime import datetime

    try:
        return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return stamp or "-"


app = group(
    "List training runs, show one, compare or remove some, or merge the adapters of one.",
    *("lmtool runs ls", "lmtool runs show last", "lmtool runs rm --older-than 30d"),
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "ls": list_runs,
    "show": show_run,
    "compare": compare_runs,
    "merge": merge_run,
    "rm": remove_runs,
}
for _name, _command in _COMMANDS.items():
    register(app, _name, _command)
