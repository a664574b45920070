"""Reads prompts from the command line, a file or standard input."""

from collections.abc import Sequence
from pathlib import Path

from lmtool.data.files import convert_read_errors
from lmtool.data.stdin import STDIN, has_piped_input, require_single_process_stdin
from lmtool.errors import DataError, UsageError


def gather_prompts(prompts: Sequence[str], path: str | None) -> list[str]:
    """Returns the prompts from the command line, from a file, or from piped input; else a single empty one.

    Each line of a file or of standard input ("-") is a prompt, even if empty.
    Raises UsageError for prompts both on the command line and in a file, and as `read_lines` does.
    """
    if prompts and path is not None:
        raise UsageError("prompts are given both on the command line and in a file", fix="leave out one of them")
    if path is not None:
        return read_lines(path, "prompt file", "write one prompt a line")
    if not prompts:
        return read_lines(STDIN) if has_piped_input() else [""]
    return [line for prompt in prompts for line in (read_lines(prompt) if prompt == STDIN else [prompt])]


def resolve_stdin_text(text: str) -> str:
    """Returns the text itself, or the content of standard input for "-". Raises as `read_lines` does."""
    return "\n".join(read_lines(STDIN)) if text == STDIN else text


def read_lines(path: str, file_description: str = "file", fix: str = "write something into it") -> list[str]:
    """Reads the lines of a UTF-8 file, or of standard input if `path` is "-".

    Raises DataError when the file is missing, empty or not UTF-8, and ResourceError when it is not readable.
    """
    where = "standard input" if path == "-" else path
    with convert_read_errors(Path(path)):
        stream = require_single_process_stdin() if path == "-" else None
        data = Path(path).read_bytes() if path != "-" else b"" if stream is None else stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"the {file_description} is not UTF-8 at byte {error.start}"
        raise DataError(what, where=f"{where}:{line}", fix="save it as UTF-8") from None
    if not text:
        raise DataError(f"the {file_description} is empty", where=where, fix=fix)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
