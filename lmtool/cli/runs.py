"""`lmtool runs`: list runs, show one, compare or remove some, or merge the adapters of one."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Json, RunName
from lmtool.cli.help import Command, Group, examples
from lmtool.cli.progress import count
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.run.directory import Run
    from lmtool.run.listing import Summary

DROPPED = ("model", "recipe", "size", "started", "step")
"""Columns that are dropped on a narrow terminal, in this order. `lmtool runs show` has them all."""

app = typer.Typer(
    cls=Group,
    epilog=examples("lmtool runs ls", "lmtool runs show last", "lmtool runs rm --older-than 30d"),
    help="List training runs, show one, compare or remove some, or merge the adapters of one.",
    no_args_is_help=True,
)


@app.command("ls", cls=Command, epilog=examples("lmtool runs ls", "lmtool runs ls --json"))
def list_runs(json: Json = False) -> None:
    """List all runs, newest first."""
    from lmtool.run.listing import summaries
    from lmtool.run.places import runs_root

    found = summaries()
    if json:
        _print_json([_as_dict(summary) for summary in found])
    elif not found:
        typer.echo(f"no runs in {plain(str(runs_root()))}", err=True)
    else:
        _print_table(
            ["name", "step", "result", "started", "size", "state", "recipe", "model"],
            [
                [
                    summary.name,
                    str(summary.step),
                    _result(summary),
                    _time(summary.started),
                    _size(summary.bytes),
                    summary.state,
                    summary.recipe,
                    summary.model,
                ]
                for summary in found
            ],
        )


@app.command("show", cls=Command, epilog=examples("lmtool runs show last", "lmtool runs show last --json"))
def show_run(
    run: RunName = "last",
    json: Json = False,
) -> None:
    """Show one run: its sessions, checkpoints and losses, drawn over the steps."""
    from lmtool.interop.reference import run_of
    from lmtool.run.find import find
    from lmtool.run.listing import figures_on_tests, summarise

    found = find(run_of(run)).run
    summary = summarise(found.path)
    if json:
        _print_json(_as_dict(summary) | found.info.model_dump(exclude={"checksum"}, exclude_unset=True))
        return
    tests = {} if summary.problem else figures_on_tests(found)
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
        ("size", _size(summary.bytes)),
    ]
    facts += [(f"{name} fingerprint", str(value)) for name, value in found.fingerprints.items() if value]
    if base := found.info.base:
        facts.append(("initialized from", f"{base.checkpoint} of {base.run}"))
    if teacher := found.info.teacher:
        facts.append(("distilled from", f"{teacher.checkpoint} of {teacher.run}"))
    if origin := found.origin:
        revision = f", revision {origin.revision}" if origin.revision else ""
        facts.append(("imported from", f"{origin.reference} ({origin.model_type}{revision})"))
        facts += [("", f"{file} SHA-256 {sha}") for file, sha in origin.sha256.items()]
    for session in found.info.sessions:
        began = "started" if session.step == 0 else f"resumed at step {session.step}"
        facts.append(("session", f"{_time(session.started)} {began}: {shlex.join(session.command)}"))
        facts.append(("", ", ".join(f"{k} {v}" for k, v in session.environment.items() if v is not None)))
    for checkpoint in summary.checkpoints:
        notes = [_size(checkpoint.bytes), *(["best"] if checkpoint.best else []), checkpoint.problem]
        facts.append(("checkpoint", f"{checkpoint.name}: {', '.join(note for note in notes if note)}"))
    if summary.problem:
        facts.append(("problem", summary.problem))
    for name, value in facts:
        typer.echo(f"{plain(name):21} {plain(value)}")
    if not summary.problem:
        _draw_losses(found)


def _draw_losses(run: "Run") -> None:
    """The losses over the steps, as wide as the terminal: in ASCII where colours are not wanted."""
    from rich.console import Console

    from lmtool.report.history import number
    from lmtool.report.terminal import plot

    drawn: dict[str, list[tuple[float, float]]] = {"loss": [], "valid_loss": []}
    for record in run.metrics.read():
        for key, points in drawn.items():
            if (value := number(record.get(key))) is not None:
                points.append((float(record["step"]), value))
    named = zip(("training loss", "validation loss"), drawn.values(), strict=True)
    lines = [(name, points) for name, points in named if len(points) > 1]
    console = Console(highlight=False)
    is_plain = not console.is_terminal or console.no_color or console.is_dumb_terminal
    width = min(console.width, 100)
    for row in plot(lines, width, ascii_only=is_plain or not console.encoding.startswith("utf")):
        if is_plain:
            typer.echo(row.plain.rstrip())
        else:
            console.print(row, no_wrap=True)


@app.command("compare", cls=Command, epilog=examples("lmtool runs compare tiny lstm", "lmtool runs compare A B --json"))
def compare_runs(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Two runs or more, as for `show`.")],
    json: Json = False,
) -> None:
    """Compare runs: best loss, bits per byte, tokens, time and speed, and what differs in their recipes."""
    from lmtool.errors import UsageError
    from lmtool.interop.reference import run_of
    from lmtool.report.history import History, differences, doubts, figures
    from lmtool.run.find import find

    if len(runs) < 2:
        raise UsageError("one run has nothing to be compared with", where=runs[0], fix="name another one beside it")
    histories = [History.of(find(run_of(run)).run) for run in runs]
    different, notes = differences(histories), doubts(histories)
    if json:
        found = [{"name": history.name} | history.summary() for history in histories]
        _print_json({"runs": found, "differences": different, "notes": notes})
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

    console = Console()
    lines = [[plain(cell) for cell in row] for row in [heading, *rows]]
    if not console.is_terminal:
        for line in lines:
            typer.echo("\t".join(line))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in heading:
        table.add_column(overflow="fold", style=None if name else "dim")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


@app.command("merge", cls=Command, epilog=examples("lmtool runs merge last -o runs/merged"))
def merge_run(
    run: RunName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The run directory; a new one in runs/ by default."),
    ] = None,
) -> None:
    """Merge the adapters of a run into the weights: a new run that predicts alike and needs no base run.

    Prints the new run directory.
    """
    import sys

    from lmtool.cli.output import warn
    from lmtool.inference.merging import merge
    from lmtool.interop.reference import run_of

    merged, warnings = merge(run_of(run), output, ["lmtool", *sys.argv[1:]])
    warn(warnings)
    typer.echo(plain(str(merged)))


@app.command(
    "rm",
    cls=Command,
    epilog=examples("lmtool runs rm 2026-11-20-tiny-7f3a last", "lmtool runs rm --older-than 30d --yes"),
)
def remove_runs(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Names or directories of runs, or last.", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Instead of RUN: all runs last used so long ago, such as 12h, 30d or 8w; imported ones stay.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")] = False,
) -> None:
    """Remove runs with all their checkpoints, after asking. A run that is in use is never removed."""
    import sys

    from lmtool.errors import UsageError
    from lmtool.run import removal
    from lmtool.run.listing import size_of

    if bool(runs) == (older_than is not None):
        raise UsageError("give the runs to remove, or --older-than", fix="see lmtool runs rm --help")
    if older_than is None:
        found = removal.named_runs(runs or ())
    else:
        found = removal.runs_older_than(removal.parse_age(older_than))
        if not found:
            typer.echo(f"no runs older than {older_than}", err=True)
            return
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError("nobody is there to be asked before runs are removed", fix="add --yes")
        for path in found:
            typer.echo(f"{plain(str(path))}, {_size(size_of(path))}", err=True)
        if not _agreed(f"remove {'it' if len(found) == 1 else f'these {len(found)} runs'}?"):
            typer.echo("nothing is removed", err=True)
            return
    freed = 0
    for path in found:
        size = removal.remove_run(path)
        freed += size
        typer.echo(f"removed {plain(str(path))}, {_size(size)} freed")
        if path.exists():
            typer.echo(f"kept in {plain(str(path))}: files that are not the run's", err=True)
    if len(found) > 1:
        typer.echo(f"{_size(freed)} freed in all")


def _agreed(question: str) -> bool:
    import sys

    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _as_dict(summary: "Summary") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(summary)


def _print_json(value: object) -> None:
    from json import dumps

    typer.echo(dumps(value, indent=1))


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table on a terminal; elsewhere one line per row, tabs between the columns, no header."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(plain(cell) for cell in row))
        return
    lines = [columns, *([plain(cell) for cell in row] for row in rows)]
    widths = {name: max(map(cell_len, cells)) for name, *cells in zip(columns, *lines, strict=True)}
    for name in DROPPED:
        if sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
            del widths[name]
    table = Table(box=None, pad_edge=False)
    for name in widths:
        table.add_column(
            name,
            justify="right" if name in ("step", "size") else "left",
            no_wrap=True,
            width=widths[name],
        )
    for line in lines[1:]:
        table.add_row(*(Text(cell) for name, cell in zip(columns, line, strict=True) if name in widths))
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


def _size(size: int) -> str:
    """Bytes in decimal units."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
