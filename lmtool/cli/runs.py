"""`lmtool runs`: list runs, show one, or merge its adapters."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Json, RunName
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.run.listing import Summary

DROPPED = ("model", "recipe", "size", "started", "step")
"""Columns that are dropped on a narrow terminal, in this order. `lmtool runs show` has them all."""

app = typer.Typer(help="List training runs, show one, or merge its adapters.", no_args_is_help=True)


@app.command("ls")
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
            ["name", "step", "valid loss", "started", "size", "state", "recipe", "model"],
            [
                [
                    summary.name,
                    str(summary.step),
                    _loss(summary.valid_loss),
                    _time(summary.started),
                    _size(summary.bytes),
                    summary.state,
                    summary.recipe,
                    summary.model,
                ]
                for summary in found
            ],
        )


@app.command("show")
def show_run(
    run: RunName,
    json: Json = False,
) -> None:
    """Show one run: its sessions, checkpoints and losses."""
    from lmtool.interop.reference import run_of
    from lmtool.run.find import find
    from lmtool.run.listing import summarise

    found = find(run_of(run)).run
    summary = summarise(found.path)
    if json:
        _print_json(_as_dict(summary) | found.info)
        return
    facts = [
        ("name", summary.name),
        ("path", summary.path),
        ("state", summary.state),
        ("recipe", summary.recipe),
        ("model", summary.model),
        ("step", str(summary.step)),
        ("valid loss", _loss(summary.valid_loss)),
        ("lowest valid loss", _loss(summary.best_valid_loss)),
        ("size", _size(summary.bytes)),
    ]
    facts += [(f"{name} fingerprint", str(value)) for name, value in found.fingerprints.items() if value]
    if base := found.info.get("base"):
        facts.append(("initialized from", f"{base['checkpoint']} of {base['run']}"))
    if found.origin is not None:
        revision = f", revision {found.origin['revision']}" if found.origin["revision"] else ""
        facts.append(("imported from", f"{found.origin['reference']} ({found.origin['model_type']}{revision})"))
        facts += [("", f"{file} SHA-256 {sha}") for file, sha in found.origin["sha256"].items()]
    for session in found.info["sessions"]:
        began = "started" if session["step"] == 0 else f"resumed at step {session['step']}"
        command = shlex.join(map(str, session["command"]))
        facts.append(("session", f"{_time(session['started'])} {began}: {command}"))
        facts.append(("", ", ".join(f"{k} {v}" for k, v in session["environment"].items() if v is not None)))
    for checkpoint in summary.checkpoints:
        notes = [_size(checkpoint.bytes), *(["best"] if checkpoint.best else []), checkpoint.problem]
        facts.append(("checkpoint", f"{checkpoint.name}: {', '.join(note for note in notes if note)}"))
    if summary.problem:
        facts.append(("problem", summary.problem))
    for name, value in facts:
        typer.echo(f"{plain(name):21} {plain(value)}")


@app.command("merge")
def merge_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run with adapters, or a checkpoint of one, or `last`.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The run directory; a new one in runs/ by default."),
    ] = None,
) -> None:
    """Merge the adapters of a run into the weights: a new run that predicts alike and needs no base run.

    Prints the new run directory.
    """
    import sys

    from lmtool.inference.merging import merge

    typer.echo(plain(str(merge(run, output, ["lmtool", *sys.argv[1:]]))))


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
            justify="right" if name in ("step", "valid loss", "size") else "left",
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
