"""The command line. One module per command; heavy imports are inside the commands.

Results go to stdout, all else to stderr. docs/cli.md states what other programs may rely on.
"""

import sys
from typing import Annotated, Any

import typer

from lmtool import __version__
from lmtool.cli import recipes, runs
from lmtool.cli.chat import chat
from lmtool.cli.embed import embed
from lmtool.cli.evaluate import evaluate
from lmtool.cli.exchange import export_run, import_model
from lmtool.cli.finetune import finetune
from lmtool.cli.generate import generate
from lmtool.cli.neighbors import neighbors
from lmtool.cli.output import prepare_streams
from lmtool.cli.predict import predict
from lmtool.cli.pretrain import pretrain
from lmtool.cli.resume import resume
from lmtool.cli.signals import leave_on_signals
from lmtool.cli.tokenize import tokenize
from lmtool.errors import LmtoolError, ResourceError, UsageError
from lmtool.printable import plain

MISTYPED: type[Exception] = typer.BadParameter.__mro__[1]
"""Base class of Typer's errors for a wrong command, option or argument, for which Typer has no public name."""

app = typer.Typer(
    help="Pretrain, fine-tune, evaluate and decode language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(pretrain)
app.command()(resume)
app.command()(generate)
app.command()(chat)
app.command()(finetune)
app.command()(predict)
app.command("eval")(evaluate)
app.command()(neighbors)
app.command()(embed)
app.command("import")(import_model)
app.command("export")(export_run)
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
        bool,
        typer.Option(
            "--version", metavar="", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show a traceback on errors.")] = False,
) -> None:
    """Options of all commands, already read by `main`."""


def main() -> None:
    """Run the command line; an error becomes at most three lines and an exit code."""
    debug = _take_debug(sys.argv)
    leave_on_signals()
    prepare_streams()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if debug and not isinstance(error, MISTYPED):
            raise
        explained = explain(error)
        for line in filter(None, explained.lines()):
            typer.echo(plain(line), err=True)
        code = explained.exit_code
    sys.exit(code)


def _take_debug(argv: list[str]) -> bool:
    """Remove --debug from the arguments, anywhere before a lone --."""
    end = argv.index("--") if "--" in argv else len(argv)
    if "--debug" not in argv[1:end]:
        return False
    argv.remove("--debug")
    return True


def explain(error: Exception) -> LmtoolError:
    """The error to report: the error itself if it is one of ours, else the nearest of ours."""
    if isinstance(error, LmtoolError):
        return error
    if isinstance(error, MISTYPED):
        return _explain_usage(error)
    message = str(error)[:200]
    # torch's errors are recognized by name, since importing torch takes seconds
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in message
    ):
        return ResourceError("out of memory", fix="use a smaller training.micro_batch, model.context or model.d_model")
    if isinstance(error, OSError):
        return ResourceError(
            error.strerror or message, where=str(error.filename or ""), fix="check disk and permissions"
        )
    return LmtoolError(f"unexpected {type(error).__name__}: {message}", fix="run it again with --debug for a traceback")


def _explain_usage(error: Any) -> UsageError:
    """The error as one of ours; empty when the help was shown instead of a missing command."""
    message = error.format_message()
    command = error.ctx.command_path if error.ctx else "lmtool"
    return UsageError(message, fix=f"see {command} --help" if message else "")
