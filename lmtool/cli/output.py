"""Writes results to stdout and messages to stderr, and prepares both streams for any text."""

import io
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import typer

from lmtool import system
from lmtool.errors import UsageError
from lmtool.generation.params import DEFAULT_DRAFT_TOKENS, MaskPredict
from lmtool.printable import printable
from lmtool.storage.durable import check_path_does_not_exist

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lmtool.compute.device import InferenceName
    from lmtool.data.table import SkippedRowCounts
    from lmtool.generation.generate import TextGenerator
    from lmtool.generation.params import AnyParams
    from lmtool.recipe.spec.base import DeviceName
    from lmtool.runs.load import LoadedModel


def prepare_streams() -> None:
    """Makes both output streams accept any text, and escape what their encoding lacks.

    A closed output stream discards everything, a closed standard input is empty. Messages that standard error cannot
    write are dropped. If nobody reads standard output any longer, the program ends with ReaderGone.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__ and not sys.stdout.isatty():
        buffer = io.BufferedWriter(_ResultStream(sys.stdout.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, sys.stdout.encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", **system.output_stream_settings(stream.isatty()))
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        raw = system.open_unbuffered_output(sys.stderr)
        sys.stderr = _MessageStream(raw, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _LogHandler(logging.Handler):
    """Writes log messages to stderr as other messages are, with "warning: " in front of warnings and errors."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "warning: " if record.levelno >= logging.WARNING else ""
        typer.echo(printable(level + self.format(record), keep_line_breaks=True), err=True)


def log_to_stderr() -> None:
    """Writes the log of the package to stderr, from level INFO on."""
    logger = logging.getLogger("lmtool")
    logger.setLevel(logging.INFO)
    logger.handlers = [_LogHandler()]


class ReaderGone(SystemExit):
    """The reader of standard output has closed it, as `head` does: the program ends without an error, code 0."""


class _ResultStream(io.FileIO):
    """Standard output where it is a file or pipe. Once it cannot be written, all else that is written is discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if system.is_broken_pipe(error):
                raise ReaderGone(0) from None
            raise


class _MessageStream(io.TextIOWrapper):
    """Writes each line once, and drops one that cannot be written: on a full disk, or where a pipe has no reader.

    Nothing is buffered beyond a line: a buffer that a signal interrupts after its bytes are written would write them
    again at the end.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def load_model(run: str, device: "DeviceName", precision: "InferenceName") -> "LoadedModel":
    """Loads the model that is named on the command line."""
    from lmtool.compute.device import configure_compute
    from lmtool.interop.resolve import resolve_reference
    from lmtool.runs.load import load_packed_for_inference

    return load_packed_for_inference(resolve_reference(run), configure_compute(device, precision))


def attach_draft(generator: "TextGenerator", draft: str | None, n_tokens: int | None) -> list[str]:
    """Opens a draft for a model, and prints its warnings. Returns its description; an empty list without a draft."""
    from lmtool.generation.generate import open_draft

    if draft is None:
        return []
    generator.draft = open_draft(draft, n_tokens or DEFAULT_DRAFT_TOKENS, generator.loaded)
    warn(generator.draft.warnings)
    return [generator.draft.describe()]


def describe(loaded: "LoadedModel", quiet: bool, *facts: str) -> None:
    """Prints warnings about a run to stderr and, unless quiet, the loaded checkpoint.

    facts: printed with the model. Only the main process prints.
    """
    from lmtool.compute.processes import is_main_process

    if not is_main_process():
        return
    warn(loaded.reference.warnings)
    if not quiet:
        interpolation = loaded.model.interpolation
        mixed = [] if interpolation is None else [interpolation.describe()]
        eprint(", ".join([f"{loaded.run_path}, step {loaded.step}", loaded.compute.describe(), *mixed, *facts]))
        if loaded.reference.newest_step_after_best is not None:
            newer = f"{loaded.run_path}@{loaded.reference.newest_step_after_best}"
            eprint(f"step {loaded.step} is the best by validation; newer weights: {newer}")


def eprint(*lines: str) -> None:
    """Writes lines to stderr."""
    for line in lines:
        typer.echo(printable(line), err=True)


def warn(warnings: Iterable[str]) -> None:
    """Writes warnings to stderr, a line each."""
    eprint(*(f"warning: {warning}" for warning in warnings))


def warn_of_file_names(texts: Iterable[str]) -> None:
    """Warns of texts that are names of files, which are not read."""
    warn(f"{text} is taken for a text, though there is a file of this name" for text in texts if os.path.isfile(text))


def warn_of_unknown_tokens(loaded: "LoadedModel", texts: Iterable[str]) -> None:
    """Warns of parts of texts, such as characters, that the tokenizer does not know. Only the main process prints."""
    from lmtool.compute.processes import is_main_process
    from lmtool.data.files import quote_all

    parts = list(dict.fromkeys(part for text in texts for part in loaded.tokenizer.find_unknown_parts(text)))
    if parts and is_main_process():
        warn([f"the model does not know {quote_all(parts)} of the prompt, and reads each as the same unknown token"])


def warn_of_leaks(loaded: "LoadedModel", texts: "Iterable[tuple[str, str]]") -> dict[str, list[dict[str, Any]]]:
    """Warns of rows that the model was trained on, and returns them for JSON; only in the main process.

    texts: (name, text) of the rows.
    """
    from lmtool.apps.checking.leaks import find_rows_in_training_data
    from lmtool.compute.processes import is_main_process
    from lmtool.runs.directory import Run

    leaks = list(find_rows_in_training_data(Run.open(loaded.run_path), texts)) if is_main_process() else []
    warn(map(str, leaks))
    return {"leaks": [asdict(one) for one in leaks]}


def warn_of_cut_forms(params: "AnyParams", reasons: Counter[str]) -> None:
    """Warns of texts that were cut before their form was complete. reasons: counts of finish reasons."""
    n_cut = reasons["length"] + reasons["time"]
    if isinstance(params, MaskPredict) or params.form is None or not n_cut:
        return
    form = params.form
    texts = "the text was" if reasons.total() == 1 else f"{n_cut} of {reasons.total()} texts were"
    limit = "--max-time" if reasons["time"] else "--max-new-tokens"
    fix = f"raise {limit}" if form.complete or params.strategy == "beam" else f"add --complete, or raise {limit}"
    warn([f"{texts} cut before the form ({form.kind}) was complete; {fix}"])


def warn_of_skipped(skipped: "SkippedRowCounts | None") -> None:
    """Warns of skipped rows, if any. Only the main process prints."""
    from lmtool.compute.processes import is_main_process

    if skipped is not None and skipped.count and is_main_process():
        warn([str(skipped)])


def print_lines(*lines: object) -> None:
    """Writes lines for people to stdout, with control characters escaped."""
    for line in lines:
        typer.echo(printable(str(line)))


def print_text(value: object, end: str = "\n") -> None:
    """Writes text of data or models, or a path, to stdout.

    A file or pipe gets the same bytes as a file named by `-o`, in UTF-8; a terminal gets no control characters.
    """
    stream, text = sys.stdout, f"{value}{end}"
    if stream.isatty():
        stream.write(printable(text, keep_line_breaks=True))
    elif isinstance(stream, io.TextIOWrapper):
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "backslashreplace"))
    else:
        stream.write(text)
    stream.flush()


def print_json(value: object, indent: int | None = None) -> None:
    """Writes a value to stdout as JSON, on one line without an indent."""
    print_text(json.dumps(value, indent=indent))


def print_table(table: "Table", rows: Iterable[Iterable[str]], console: "Console") -> None:
    """Prints a table on a terminal; elsewhere only its rows, with tabs between the columns."""
    from rich.text import Text

    for row in rows:
        cells = [*map(printable, row)]
        if console.is_terminal:
            table.add_row(*map(Text, cells))
        else:
            typer.echo("\t".join(cells))
    if console.is_terminal:
        console.print(table)


class _Reportable(Protocol):
    """A result that can be printed as JSON or as lines."""

    def to_record(self) -> Mapping[str, object]: ...

    def lines(self) -> Iterable[str]: ...


def print_result(result: _Reportable, as_json: bool, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Writes a result to stdout, in JSON with more fields and null for NaN. Only the main process prints."""
    from lmtool.compute.processes import is_main_process
    from lmtool.storage.records import replace_nonfinite

    if is_main_process() and as_json:
        print_json(replace_nonfinite({**result.to_record(), **more}))
    elif is_main_process():
        print_lines(*result.lines())


def check_new(path: Path | None, *endings: str) -> None:
    """Raises UsageError for an output file that exists already, or whose name has none of these endings."""
    if path is not None and endings and path.suffix not in endings:
        what = f"the output is {'neither' if len(endings) > 1 else 'not'} {' nor '.join(endings)}"
        raise UsageError(what, where=str(path), fix=f"end its name with {' or '.join(endings)}")
    if path is not None:
        check_path_does_not_exist(path)


class _DrawLines(Protocol):
    """Draws the lines of a picture, for a width, and in ASCII for terminals without other characters or colours."""

    def __call__(self, width: int, *, ascii_only: bool) -> "Iterable[str | Text]": ...


def show_picture(made: _DrawLines, page: Callable[[], str], output: Path | None, value: object = None) -> None:
    """Writes a picture as a page if a file is named, and prints it as JSON, as the path of the page, or as lines."""
    from lmtool.report.page import write_page

    if output is not None:
        write_page(output, page())
    if value is not None:
        print_json(value)
    elif output is not None:
        print_text(output)
    else:
        print_picture(made)


def print_picture(made: _DrawLines) -> None:
    """Prints the lines of a picture to stdout, in colours on a terminal; plain strings may be text of any origin."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    is_plain = not console.is_terminal or console.no_color or console.is_dumb_terminal
    for line in made(min(console.width, 100), ascii_only=is_plain or not console.encoding.startswith("utf")):
        if isinstance(line, str):
            print_lines(line)
        elif is_plain:
            print_lines(line.plain.rstrip())
        else:
            console.print(line, no_wrap=True)
