"""`lmtool chat`: talk with a trained model."""

import io
import os
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmtool.cli.arguments import Device, Json, Precision, Quiet, RunName
from lmtool.cli.help import flag, option
from lmtool.cli.output import describe, eprint, print_json, print_text, warn_of_cut_forms
from lmtool.cli.settings import pop_form, with_sampling_options
from lmtool.cli.signals import interrupt_once, on_ctrl_c
from lmtool.errors import LmtoolError, UsageError
from lmtool.generation.params import COMMON
from lmtool.printable import format_count, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TextIO

    from lmtool.generation.chat import Conversation, Reply

    Stoppable = Callable[[], AbstractContextManager[object]]

PROMPT = "> "
HELP = """\
/reset         forget all messages but the system message
/system TEXT   set the system message; without TEXT remove it
/save FILE     save the conversation for lmtool finetune, as JSON lines in a new file
/help          list the commands
/exit          end, as /quit, /bye and Ctrl-D do
Begin a message with a space if it begins with /. Ctrl-C stops an answer."""


@with_sampling_options("greedy", "sample", defaults={"max_new_tokens": "what fits the context, at most 1024"})
def chat(
    run: RunName = "last",
    system: str = option("TEXT", "The system message: what the model is told first.", default=""),
    greedy: bool = flag("Always the most probable token.", "--greedy", panel=COMMON),
    *,
    tools: Path | None = option("FILE", "Functions that the model may call, as JSON; you are asked for their results."),
    stop: list[str] | None = option("TEXT", "Stop answers before this text; may be repeated.", panel=COMMON),
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Talk with a trained model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.

    Each line of piped input is one message; the answers go to standard output, one after the other.

    Examples:
    lmtool chat last --system "Answer briefly."
    lmtool chat last --tools functions.json
    lmtool chat hf:HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from lmtool.generation.chat import MAX_ANSWER_TOKENS, Conversation
    from lmtool.generation.generate import TextGenerator
    from lmtool.generation.params import choose_params
    from lmtool.tokenization.tools import load_tools_file

    if settings["max_new_tokens"] is None:
        settings["max_new_tokens"] = MAX_ANSWER_TOKENS
    settings["form"] = form = pop_form(settings, stop=stop)
    if tools is not None and form is not None:
        raise UsageError(f"--tools contradicts --{form.kind}: a call has its own form", fix="give only one of them")
    params = choose_params("greedy" if greedy else "sample", strategy_flag="--greedy" if greedy else "", **settings)
    generator = TextGenerator.open(run, device=device, precision=precision)
    conversation = Conversation(generator, params, stop=stop or ())
    if tools is not None:
        conversation.tools = load_tools_file(tools)
    conversation.system = system
    describe(generator.loaded, quiet, f"seed {params.seed}")
    if conversation.is_plain and not quiet:
        eprint("the model has no chat template: it reads a plain one, which it was not trained on")
    streams = (sys.stderr, sys.stdout) if sys.stdin.isatty() else ()
    terminal = next((stream for stream in streams if stream.isatty()), None)
    if terminal is None:
        raise typer.Exit(_run_conversation(_read_piped_lines(), conversation, nullcontext, as_json, quiet))
    with on_ctrl_c(signal.SIG_IGN):
        if not quiet:
            eprint("/help lists the commands, Ctrl-D ends")
        _run_conversation(
            _read_typed_lines(terminal, conversation), conversation, partial(on_ctrl_c, interrupt_once), as_json, quiet
        )


def _run_conversation(
    lines: "Iterator[str]", conversation: "Conversation", stoppable: "Stoppable", as_json: bool, quiet: bool
) -> int:
    """Answers each line or runs its command. Prints all errors and returns the exit code of the first.

    stoppable: makes a context that Ctrl-C may end.
    """
    code = 0
    for line in lines:
        try:
            if line.startswith("/"):
                if not _run_command(line, conversation):
                    break
            elif line.strip():
                _print_answer(conversation, line, stoppable, as_json, quiet)
        except LmtoolError as error:
            eprint(*error.lines())
            code = code or error.exit_code
    return code


def _run_command(line: str, conversation: "Conversation") -> bool:
    """Runs a command. Returns whether the conversation goes on."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if rest and command not in ("/save", "/system"):
        command = line
    match command:
        case "/exit" | "/quit" | "/bye":
            return False
        case "/help":
            eprint(*HELP.splitlines())
        case "/reset":
            conversation.reset()
            eprint("a new conversation begins")
        case "/system":
            conversation.system = rest
            eprint("the system message is set" if rest else "there is no system message now")
        case "/save" if rest:
            path = Path(os.path.expanduser(rest))  # that of Path raises for unknown users
            conversation.save_to_new_file(path)
            eprint(f"saved: {path}")
        case "/save":
            raise UsageError("/save needs a file name", fix="write /save FILE")
        case _:
            fix = "/help lists the commands; begin a message with a space if it begins with /"
            raise UsageError(f"there is no command {printable(command)[:40]}", fix=fix)
    return True


def _print_answer(conversation: "Conversation", text: str, stoppable: "Stoppable", as_json: bool, quiet: bool) -> None:
    """Prints the answer to a message as it is generated, or as a JSON record.

    text: message of the user, or the result of the first pending tool call; the model answers once none is pending.
    """
    from lmtool.tokenization.chat import Message

    calls = conversation.pending_calls
    message = (
        Message(role="tool", content=text, tool_call_id=calls[0].id) if calls else Message(role="user", content=text)
    )
    if calls[1:]:
        conversation.add(message)
        return
    answer: Reply | None = None
    try:
        with stoppable():
            answer = conversation.stream_reply([message])
            if answer.n_left:
                left = format_count(conversation.n_left, "message")
                eprint(f"the context is full: the model no longer reads the first {left}")
            for piece in answer:
                if not as_json:
                    print_text(piece, end="")
    except KeyboardInterrupt:
        pass
    finally:
        if answer is not None and not as_json:
            behind = [""] if answer.text else []
            print_text("\n".join([*behind, *map(str, answer.calls)]))
    completion = None if answer is None else answer.completion
    if as_json and answer is not None:
        tokens, reason = (None, "interrupt") if completion is None else (completion.tokens, completion.finish_reason)
        calls_of = {"tool_calls": [call.to_openai() for call in answer.calls]} if answer.calls else {}
        print_json({"role": "assistant", "content": answer.text, **calls_of, "tokens": tokens, "finish_reason": reason})
    if completion is None:
        eprint("stopped")
    elif not quiet and answer is not None and not (answer.text or answer.calls):
        eprint("the answer has no text; the conversation goes on without this message")
    elif conversation.params.form is not None:
        warn_of_cut_forms(conversation.params, Counter([completion.finish_reason]))
    elif not quiet and completion.finish_reason in ("length", "time"):
        eprint(f"the answer was cut after {format_count(len(completion.tokens), 'token')}")


def _read_typed_lines(terminal: "TextIO", conversation: "Conversation") -> "Iterator[str]":
    """Yields the lines that a person types, until Ctrl-D; Ctrl-C clears a line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    session: PromptSession[str] = PromptSession(output=create_output(stdout=terminal))
    while True:
        calls = conversation.pending_calls
        try:
            line = session.prompt(f"result of {calls[0].name}{PROMPT}" if calls else PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


def _read_piped_lines() -> "Iterator[str]":
    """Yields the lines of standard input as they come. Bytes that are not UTF-8 become surrogates."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    for line in sys.stdin or ():
        yield line.removesuffix("\n")
