"""The command line: what a person types. One module per command; everything heavy is imported inside commands."""

import sys
from typing import Annotated

import typer

from lmtool import __version__
from lmtool.cli import recipes, runs
from lmtool.cli.evaluate import evaluate
from lmtool.cli.generate import generate
from lmtool.cli.pretrain import pretrain
from lmtool.cli.resume import resume
from lmtool.cli.signals import leave_on_signals
from lmtool.cli.tokenize import tokenize
from lmtool.errors import LmtoolError, ResourceError

app = typer.Typer(
    help="Pretrain, decode and measure language models.", no_args_is_help=True, pretty_exceptions_enable=False
)
app.command()(pretrain)
app.command()(resume)
app.command()(generate)
app.command("eval")(evaluate)
app.command()(tokenize)
app.add_typer(runs.app, name="runs")
app.add_typer(recipes.app, name="recipes")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lmtool {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Options of all commands. `main` has read them already."""


def main() -> None:
    """Run the command line, and turn what goes wrong into at most three lines and an exit code."""
    debug = _take_debug(sys.argv)
    leave_on_signals()
    try:
        app()
    except Exception as error:
        if debug:
            raise
        explained = explain(error)
        for line in explained.lines():
            typer.echo(line, err=True)
        sys.exit(explained.exit_code)


def _take_debug(argv: list[str]) -> bool:
    """Take --debug out of the arguments, wherever it stands before a lone --."""
    end = argv.index("--") if "--" in argv else len(argv)
    if "--debug" not in argv[1:end]:
        return False
    argv.remove("--debug")
    return True


def explain(error: Exception) -> LmtoolError:
    """What a person is told about an error: its own words if it is ours, else the best that can be said."""
    if isinstance(error, LmtoolError):
        return error
    said = "".join(char if char.isprintable() else " " for char in str(error))[:200]
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return ResourceError("out of memory", fix="use a smaller training.micro_batch, model.context or model.d_model")
    if isinstance(error, OSError):
        return ResourceError(error.strerror or said, where=str(error.filename or ""), fix="check disk and permissions")
    return LmtoolError(f"unexpected {type(error).__name__}: {said}", fix="run it again with --debug for a traceback")
