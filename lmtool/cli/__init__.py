"""The command line. One module per command; heavy imports are inside the commands.

Results go to stdout, all else to stderr. docs/cli.md states what other programs may rely on.
"""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from lmtool import __version__
from lmtool.cli import recipes, runs
from lmtool.cli.attention import attention
from lmtool.cli.chat import chat
from lmtool.cli.check import check
from lmtool.cli.embed import embed
from lmtool.cli.evaluate import evaluate
from lmtool.cli.exchange import export_run, import_model
from lmtool.cli.finetune import finetune
from lmtool.cli.generate import generate
from lmtool.cli.gradients import gradients
from lmtool.cli.help import Command, Group, examples
from lmtool.cli.neighbors import neighbors
from lmtool.cli.output import prepare_streams
from lmtool.cli.plan import plan
from lmtool.cli.predict import predict
from lmtool.cli.pretrain import pretrain
from lmtool.cli.report import report
from lmtool.cli.resume import resume
from lmtool.cli.serve import serve
from lmtool.cli.signals import leave_on_signals
from lmtool.cli.tokenize import tokenize
from lmtool.errors import LmtoolError, ResourceError, UsageError
from lmtool.printable import plain

MISTYPED: type[Exception] = typer.BadParameter.__mro__[1]
"""Base class of Typer's errors for a wrong command, option or argument, for which Typer has no public name."""

app = typer.Typer(
    cls=Group,
    help="Pretrain, fine-tune, evaluate and decode language models.",
    epilog=examples("lmtool pretrain book.txt", 'lmtool generate "One day"', "lmtool finetune reviews.csv"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
COMMANDS: list[tuple[str, Callable[..., None], str]] = [
    (
        "pretrain",
        pretrain,
        examples(
            "lmtool pretrain book.txt",
            "lmtool pretrain poems/*.txt --recipe lstm -s training.steps=500",
            "lmtool pretrain letters.txt --from last -o runs/letters",
        ),
    ),
    (
        "plan",
        plan,
        examples(
            "lmtool plan book.txt --recipe tiny",
            "lmtool plan reviews.csv --from last",
            "lmtool plan gpt2-124m --devices 8 --device-kind h100 -s training.tokens=10000000000",
        ),
    ),
    (
        "resume",
        resume,
        examples("lmtool resume", "lmtool resume last -s training.steps=+500", "lmtool resume last@500"),
    ),
    (
        "generate",
        generate,
        examples(
            'lmtool generate "One day"',
            'lmtool generate "One day" --run last@500 --temperature 0.7 --top-k 40 --seed 1',
            'lmtool generate "ROMEO:" "JULIET:" -n 3 --max-new-tokens 100',
            "lmtool generate --prompt-file prompts.txt --strategy beam --num-beams 4 --json",
        ),
    ),
    (
        "chat",
        chat,
        examples('lmtool chat last --system "Answer briefly."', "lmtool chat hf:HuggingFaceTB/SmolLM2-135M-Instruct"),
    ),
    (
        "serve",
        serve,
        examples(
            "lmtool serve last --port 8000",
            "lmtool serve hf:HuggingFaceTB/SmolLM2-135M-Instruct --precision int8",
            "lmtool serve last --host 0.0.0.0 --api-key-file key.txt",
        ),
    ),
    (
        "finetune",
        finetune,
        examples(
            "lmtool finetune reviews.csv --from last",
            "lmtool finetune reviews.csv --recipe dan --test test.csv",
            "lmtool finetune questions.tsv --from hf:sentence-transformers/all-MiniLM-L6-v2 --seeds 3",
            "lmtool finetune pairs.csv --from last --source-column de --target-column en --lora-rank 8",
        ),
    ),
    (
        "predict",
        predict,
        examples(
            "lmtool predict last reviews.csv -o predictions.csv",
            'lmtool predict last --text "A film without a single dull minute."',
            "lmtool predict last - < reviews.csv",
        ),
    ),
    (
        "eval",
        evaluate,
        examples(
            "lmtool eval last book.txt --stride 64",
            'lmtool eval last --text "One day it rained."',
            "lmtool eval last@500 test.csv --json",
        ),
    ),
    (
        "neighbors",
        neighbors,
        examples(
            "lmtool neighbors last moon -k 5",
            'lmtool neighbors last bank --in "the bank of the river" --among texts.txt --map pca',
        ),
    ),
    (
        "gradients",
        gradients,
        examples(
            'lmtool gradients last "One day it rained, so the cat stayed in."', 'lmtool gradients last "One day" --json'
        ),
    ),
    (
        "embed",
        embed,
        examples(
            "lmtool embed last lines.txt --pool mean -o vectors.npz",
            'lmtool embed last --whole --text "One day" --text "It rained."',
            "lmtool embed last - --layer 0 < lines.txt",
        ),
    ),
    (
        "attention",
        attention,
        examples(
            'lmtool attention last "The animal was tired." --layer 0 --head 1',
            'lmtool attention last "The animal was tired." -o page.html',
            'lmtool attention last --source "Ein Hund läuft." --target "A dog runs." --npz weights.npz',
        ),
    ),
    (
        "report",
        report,
        examples("lmtool report last", "lmtool report tiny lstm -o both.html", "lmtool report last --watch"),
    ),
    (
        "import",
        import_model,
        examples("lmtool import hf:openai-community/gpt2", "lmtool import model.gguf -o runs/model"),
    ),
    (
        "export",
        export_run,
        examples("lmtool export last exported", "lmtool export last model.gguf --gguf q8_0"),
    ),
    (
        "check",
        check,
        examples(
            "lmtool check last",
            "lmtool check reviews.csv --test test.csv",
            "lmtool check book.txt --tokenizer last --json",
        ),
    ),
    (
        "tokenize",
        tokenize,
        examples(
            "lmtool tokenize book.txt --kind bpe --vocab-size 2048 -o tokens",
            'lmtool tokenize --tokenizer last --show "One day"',
        ),
    ),
]
for _name, _command, _examples in COMMANDS:
    app.command(_name, cls=Command, epilog=_examples)(_command)
app.add_typer(runs.app, name="runs")
app.add_typer(recipes.app, name="recipes")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lmtool {__version__}")
        raise typer.Exit


SHARED = ("pretrain", "finetune", "resume", "predict", "eval", "embed")
"""Commands whose work several processes share; they would repeat that of others, and write the same files."""


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show a traceback on errors.")] = False,
) -> None:
    """Options of all commands, already read by `main`.

    Raises UsageError where torchrun has started a command that is for one process.
    """
    size, command = os.environ.get("WORLD_SIZE", ""), context.invoked_subcommand
    if command not in SHARED and "LOCAL_RANK" in os.environ and size.isdecimal() and int(size[:9]) > 1:
        raise UsageError(
            f"lmtool {command} is for one process, and the environment names {size:.20}",
            where="WORLD_SIZE",
            fix=f"run it without torchrun, or unset WORLD_SIZE; processes share the work of {', '.join(SHARED)}",
        )


def main() -> None:
    """Run the command line; an error becomes at most three lines and an exit code."""
    debug = _take_debug(sys.argv)
    leave_on_signals()
    prepare_streams()
    try:
        _refuse_unencodable(sys.argv[1:])
        code = app(standalone_mode=False)
    except Exception as error:
        if debug and not isinstance(error, MISTYPED):
            raise
        explained = explain(error)
        for line in filter(None, explained.lines()):
            typer.echo(_shortened(plain(line)), err=True)
        code = explained.exit_code
    sys.exit(code)


LONGEST_LINE = 600
"""Characters of a line of an error message. Paths have at most 255 for each folder; what is longer is an attack."""


def _shortened(line: str) -> str:
    """The line without its middle, if it is very long."""
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def _refuse_unencodable(arguments: list[str]) -> None:
    """Raise UsageError for half a pair of surrogates, which no shell passes, and no file name and no text holds."""
    for argument in arguments:
        try:
            os.fsencode(argument)
        except UnicodeEncodeError as error:
            raise UsageError(
                "an argument holds a lone surrogate, which is no character", where=argument, fix="leave it out"
            ) from error


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
    if isinstance(error, ImportError):
        return ResourceError(
            f"a library cannot be loaded: {message}",
            fix="free memory, or install lmtool again; --debug shows a traceback",
        )
    if isinstance(error, OSError):
        return ResourceError(
            error.strerror or message, where=str(error.filename or ""), fix="check disk and permissions"
        )
    return LmtoolError(f"unexpected {type(error).__name__}: {message}", fix="run it again with --debug for a traceback")


def _explain_usage(error: Any) -> UsageError:
    """The error as one of ours; empty when the help was shown instead of a missing command."""
    message = error.format_message()
    command = error.ctx.command_path if error.ctx else "lmtool"
    if message.startswith("No such command") and os.path.isfile(sys.argv[1]):
        return UsageError(f"a file is no command: {sys.argv[1]}", fix=f"train on it: lmtool pretrain {sys.argv[1]}")
    return UsageError(message, fix=f"see {command} --help" if message else "")
