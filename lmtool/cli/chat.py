"""`lmtool chat`: talk with a trained model."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmtool.cli.arguments import Device, Json, Precision, Quiet, RunName
from lmtool.cli.signals import StopAnswer
from lmtool.cli.strategies import with_settings
from lmtool.decoding.settings import Common, Greedy, Sample
from lmtool.errors import LmtoolError, UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from lmtool.inference.chatting import Conversation, Reply

PROMPT = "> "
HELP = """\
/reset         forget all messages but the system message
/system TEXT   set the system message; without TEXT remove it
/save FILE     save the conversation for lmtool finetune, as JSON lines in a new file
/help          list the commands
/exit          end, as /quit, /bye and Ctrl-D do
Begin a message with a space if it begins with /. Ctrl-C stops an answer."""


@with_settings(Greedy, Sample, defaults={"max_new_tokens": "what fits the context, at most 1024"})
def chat(
    run: RunName = "last",
    system: Annotated[str, typer.Option(metavar="TEXT", help="The system message: what the model is told first.")] = "",
    greedy: Annotated[
        bool,
        typer.Option("--greedy", metavar="", help="Always the most probable token.", rich_help_panel=Common.panel),
    ] = False,
    *,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Stop answers before this text; may be repeated.", rich_help_panel=Common.panel
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **asked: Any,
) -> None:
    """Talk with a trained model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.

    Each line of piped input is one message; the answers go to standard output, one after the other.
    """
    from lmtool.cli.output import newer_weights
    from lmtool.decoding.settings import choose
    from lmtool.inference.chatting import LONGEST_ANSWER, Conversation
    from lmtool.inference.writing import writer_of
    from lmtool.interop.reference import run_of

    if asked["max_new_tokens"] is None:
        asked["max_new_tokens"] = LONGEST_ANSWER
    settings = choose("greedy" if greedy else "sample", **asked)
    writer = writer_of(run_of(run), device=device, precision=precision)
    conversation = Conversation(writer, settings, stop=stop or ())
    conversation.system = system
    loaded = writer.loaded
    for warning in loaded.warnings:
        _tell(f"warning: {warning}")
    if not quiet:
        _tell(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}, seed {settings.seed}")
        _tell(*newer_weights(loaded))
        if conversation.is_plain:
            _tell("the model has no chat template: it reads a plain one, which it was not trained on")
    terminal = _terminal()
    interrupts = StopAnswer()
    if terminal is None:
        code = _talk(_piped(), conversation, None, as_json, quiet)
        raise typer.Exit(code)
    with interrupts.open():
        if not quiet:
            _tell("/help lists the commands, Ctrl-D ends")
        _talk(_typed(terminal), conversation, interrupts, as_json, quiet)


def _talk(
    lines: "Iterator[str]", conversation: "Conversation", interrupts: StopAnswer | None, as_json: bool, quiet: bool
) -> int:
    """Answer each line or obey its command. Returns the exit code of the first error; all are told."""
    code = 0
    for line in lines:
        try:
            if line.startswith("/"):
                if not _obey(line, conversation):
                    break
            elif line.strip():
                _answer(conversation, line, interrupts, as_json, quiet)
        except LmtoolError as error:
            _tell(*error.lines())
            code = code or error.exit_code
    return code


def _obey(line: str, conversation: "Conversation") -> bool:
    """Carry out a command. Returns whether the conversation goes on."""
    import os
    from pathlib import Path

    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if rest and command not in ("/save", "/system"):
        command = line
    match command:
        case "/exit" | "/quit" | "/bye":
            return False
        case "/help":
            _tell(*HELP.splitlines())
        case "/reset":
            conversation.reset()
            _tell("the conversation begins anew")
        case "/system":
            conversation.system = rest
            _tell("the system message is set" if rest else "there is no system message now")
        case "/save" if rest:
            path = Path(os.path.expanduser(rest))  # that of Path raises for unknown users
            conversation.save(path)
            _tell(f"saved: {path}")
        case "/save":
            raise UsageError("/save needs a file name", fix="write /save FILE")
        case _:
            raise UsageError(
                f"there is no command {plain(command)[:40]}",
                fix="/help lists the commands; begin a message with a space if it begins with /",
            )
    return True


def _answer(conversation: "Conversation", text: str, interrupts: StopAnswer | None, as_json: bool, quiet: bool) -> None:
    """Print the answer to a message as it is generated, or as a JSON record."""
    import json
    import sys
    from contextlib import nullcontext
    from functools import partial

    from lmtool.text.chat import Message

    shown = partial(plain, lines=True) if sys.stdout.isatty() else str
    answer: Reply | None = None
    try:
        with nullcontext() if interrupts is None else interrupts.stoppable():
            answer = conversation.answer([Message(role="user", content=text)])
            if answer.n_left:
                _tell(f"the context is full: the model no longer reads the first {conversation.n_left} messages")
            for piece in answer:
                if not as_json:
                    print(shown(piece), end="", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        if answer is not None and not as_json:
            print(flush=True)
    completion = None if answer is None else answer.completion
    if as_json and answer is not None:
        record: dict[str, Any] = {"role": "assistant", "content": answer.text, "tokens": None}
        record["finish_reason"] = "interrupt"
        if completion is not None:
            record |= {"tokens": list(completion.tokens), "finish_reason": completion.finish_reason}
        print(json.dumps(record), flush=True)
    if completion is None:
        _tell("stopped")
    elif not quiet and answer is not None and not answer.text:
        _tell("the answer has no text; the conversation goes on without this message")
    elif not quiet and completion.finish_reason in ("length", "time"):
        _tell(f"the answer was cut after {len(completion.tokens)} tokens")


def _terminal() -> "TextIO | None":
    """Where to prompt for messages; None when nobody types them."""
    import sys

    if not sys.stdin.isatty():
        return None
    return next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)


def _typed(terminal: "TextIO") -> "Iterator[str]":
    """The lines that a person types, until Ctrl-D; Ctrl-C clears a line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    session: PromptSession[str] = PromptSession(output=create_output(stdout=terminal))
    while True:
        try:
            line = session.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


def _piped() -> "Iterator[str]":
    """The lines of standard input, each as soon as it is there. Bytes that are not UTF-8 are surrogates in them."""
    import io
    import sys

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    for line in sys.stdin or ():
        yield line.removesuffix("\n")


def _tell(*lines: str) -> None:
    for line in lines:
        typer.echo(plain(line), err=True)
