"""The command line. One module per command; heavy imports are inside the commands.

Results go to stdout, all else to stderr. docs/cli.md states what other programs may rely on.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from lmtool import __version__
from lmtool.cli.commands import exchange, recipes, runs
from lmtool.cli.commands.attention import attention
from lmtool.cli.commands.chat import chat
from lmtool.cli.commands.check import check
from lmtool.cli.commands.embed import embed, searches
from lmtool.cli.commands.evaluate import evaluate
from lmtool.cli.commands.finetune import finetune
from lmtool.cli.commands.generate import generate
from lmtool.cli.commands.gradients import gradients
from lmtool.cli.commands.neighbors import neighbors
from lmtool.cli.commands.plan import plan
from lmtool.cli.commands.predict import predict
from lmtool.cli.commands.pretrain import pretrain, resume
from lmtool.cli.commands.report import report
from lmtool.cli.commands.serve import label, serve
from lmtool.cli.commands.sweep import sweep
from lmtool.cli.commands.tokenize import tokenize
from lmtool.cli.help import HELP_NAMES, find_near_words, flag, group, register
from lmtool.cli.output import log_to_stderr, prepare_streams
from lmtool.cli.signals import exit_on_signals
from lmtool.errors import LmtoolError, ResourceError, UsageError
from lmtool.printable import printable

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Base class of Typer's errors for a wrong command, option or argument, for which Typer has no public name."""

app = group(
    "Pretrain, fine-tune, evaluate and decode language models.",
    *("lmtool pretrain book.txt", 'lmtool generate "One day"', "lmtool finetune reviews.csv"),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
    rich_markup_mode="markdown",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "plan": plan,
    "resume": resume,
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "finetune": finetune,
    "sweep": sweep,
    "predict": predict,
    "eval": evaluate,
    "neighbors": neighbors,
    "gradients": gradients,
    "embed": embed,
    "attention": attention,
    "report": report,
    "import": exchange.import_model,
    "export": exchange.export_run,
    "push": exchange.push_run,
    "check": check,
    "label": label,
    "tokenize": tokenize,
}
for _name, _command in COMMANDS.items():
    register(app, _name, _command)
app.add_typer(searches, name="search")
app.add_typer(runs.app, name="runs")
app.add_typer(recipes.app, name="recipes")
app.add_typer(exchange.data, name="data")


def _show_version(version: bool) -> None:
    if version:
        typer.echo(f"lmtool {__version__}")
        raise typer.Exit


MULTI_PROCESS_COMMANDS = ("pretrain", "finetune", "resume", "predict", "eval", "embed")
"""Commands whose work several processes share. Others would be repeated, and write the same files."""


@app.callback()
def options(
    context: typer.Context,
    version: bool = flag("Print the version and exit.", "--version", callback=_show_version, is_eager=True),
    debug: bool = flag("Show a traceback on errors.", "--debug"),
) -> None:
    """Options of all commands, already read by `main`.

    Raises UsageError where torchrun has started a command that is for one process.
    """
    size, command = os.environ.get("WORLD_SIZE", ""), context.invoked_subcommand
    if command not in MULTI_PROCESS_COMMANDS and "LOCAL_RANK" in os.environ and size.isdecimal() and int(size[:9]) > 1:
        what = f"lmtool {command} is for one process, and the environment names {size:.20}"
        several = ", ".join(MULTI_PROCESS_COMMANDS)
        fix = f"run it without torchrun, or unset WORLD_SIZE; processes share the work of {several}"
        raise UsageError(what, where="WORLD_SIZE", fix=fix)


def main() -> None:
    """Runs the command line. An error becomes at most three lines and an exit code."""
    # --debug may stand anywhere before a lone --
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    debug = "--debug" in sys.argv[1:end]
    if debug:
        sys.argv.remove("--debug")
    exit_on_signals()
    prepare_streams()
    log_to_stderr()
    try:
        for argument in sys.argv[1:]:
            try:
                os.fsencode(argument)
            except UnicodeEncodeError as error:
                # no shell passes a lone surrogate, and no file name or text contains one
                what = "an argument is not valid text: it has a lone surrogate"
                raise UsageError(what, where=argument, fix="leave it out") from error
        code = app(prog_name="lmtool", standalone_mode=False)
    except Exception as error:
        if debug and not isinstance(error, USAGE_ERROR):
            typer.echo(printable(traceback.format_exc(), keep_line_breaks=True), err=True, nl=False)
        explained = to_lmtool_error(error)
        for line in map(printable, filter(None, explained.lines())):
            half = MAX_ERROR_LINE_CHARACTERS // 2
            typer.echo(line if len(line) <= 2 * half else f"{line[:half]} ... {line[-half:]}", err=True)
        code = explained.exit_code
    sys.exit(code)


MAX_ERROR_LINE_CHARACTERS = 600
"""Maximum characters of a line of an error message. Paths have at most 255 per folder; longer lines are attacks."""


def to_lmtool_error(error: Exception) -> LmtoolError:
    """Returns the error to report: the error itself if it is an LmtoolError, else the closest LmtoolError."""
    if isinstance(error, LmtoolError):
        return error
    if isinstance(error, USAGE_ERROR):
        return _to_usage_error(error)
    message = str(error)[:200]
    # torch's errors are recognized by name, since importing torch takes seconds
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if is_memory or "can't allocate memory" in message:
        return ResourceError("out of memory", fix="use a smaller training.micro_batch, model.context or model.d_model")
    if isinstance(error, ImportError):
        fix = "free memory, or install lmtool again; --debug shows a traceback"
        return ResourceError(f"a library cannot be loaded: {message}", fix=fix)
    if isinstance(error, OSError):
        where = str(error.filename or "")
        return ResourceError(error.strerror or message, where=where, fix="check disk and permissions")
    return LmtoolError(f"unexpected {type(error).__name__}: {message}", fix="run it again with --debug for a traceback")


_REPLACEMENTS = {
    r"Value error, ": "",
    r"Input should be greater than or equal to (\S+)": r"the least is \1",
    r"Input should be less than or equal to (\S+)": r"the most is \1",
    r"Input should be a valid (number|integer), .*": r"it is not a \1",
    r"Input should be (?=a )": "it is not ",
    r"not a integer": "not a whole number",
}
"""Replacements for parts of pydantic's messages, which Typer shows."""


_LM_EVAL_TASKS_HINT = "lm-eval measures tasks: lmtool {} --tasks NAME, a YAML file in its format, or a folder of them"
_LM_EVAL_EXAMPLES_HINT = (
    "examples before a prompt are fewshot_split and num_fewshot of a task file: lmtool eval RUN --tasks FILE"
)
_FORMER = {
    ("lmtool eval", "--suite"): _LM_EVAL_TASKS_HINT.format("eval RUN"),
    ("lmtool runs compare", "--suite"): _LM_EVAL_TASKS_HINT.format("runs compare RUN RUN"),
    ("lmtool eval", "--output"): "write the rows of tasks with --rows FILE, or the figures with --json",
    ("lmtool eval", "-o"): "write the rows of tasks with --rows FILE, or the figures with --json",
    ("lmtool eval", "--train"): _LM_EVAL_EXAMPLES_HINT,
    ("lmtool eval", "--seed"): _LM_EVAL_EXAMPLES_HINT,
}
"""What stands in place of options that commands of earlier versions had."""


def _to_usage_error(error: Any) -> UsageError:
    """Converts a Typer error; the result is empty if the help was shown instead of a missing command."""
    command = error.ctx.command_path if error.ctx else "lmtool"
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        from lmtool.recipe.grammar import did_you_mean

        known = [name for one in error.ctx.command.params for name in (*one.opts, *one.secondary_opts)]
        near = find_near_words(error.option_name, [name for name in known if name.startswith("--")])
        message = f"No such option: {error.option_name}{did_you_mean(*near)}"
        if fix := _FORMER.get((command, error.option_name)):
            return UsageError(f"No such option: {error.option_name}", fix=fix)
    else:
        message = error.format_message()
        for pattern, words in _REPLACEMENTS.items():
            message = re.sub(pattern, words, message)
    if message.startswith("No such command") and os.path.isfile(sys.argv[1]):
        return UsageError(f"{sys.argv[1]} is a file, not a command", fix=f"train on it: lmtool pretrain {sys.argv[1]}")
    return UsageError(message, fix=f"see {command} --help" if message else "")
