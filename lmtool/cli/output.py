"""Output streams that can write any text."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmtool.errors import UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.inference.load import Loaded


def prepare_streams() -> None:
    """Let both output streams take any text: what their encoding lacks is escaped. A closed one discards all."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def describe(loaded: "Loaded", quiet: bool) -> None:
    """Report on stderr what was skipped in finding a checkpoint and, unless quiet, which one was loaded."""
    for warning in loaded.warnings:
        typer.echo(plain(f"warning: {warning}"), err=True)
    if not quiet:
        for line in (f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}", *newer_weights(loaded)):
            typer.echo(plain(line), err=True)


def newer_weights(loaded: "Loaded") -> list[str]:
    """A line that names the run's newer weights, where the best ones were loaded and are not the newest."""
    if loaded.newer is None:
        return []
    return [f"step {loaded.step} is the best by validation; newer weights: {loaded.run_path}@{loaded.newer}"]


def check_new(page: Path | None) -> None:
    """Raise UsageError early for a page whose file exists already."""
    if page is not None and page.exists():
        raise UsageError("the page exists already", where=str(page), fix="choose another name, or remove it")
