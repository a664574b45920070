"""Reads prompts from the command line, a file or standard input."""

from collections.abc import Sequence
from pathlib import Path

from lmtool.data.files import convert_read_errors
from lmtool.data.stdin import STDIN, has_piped_input, open_standard_input
from lmtool.errors import DataError, UsageError


def gather_prompts(prompts: Sequence[str], path: str | None) -> list[str]:
    """The prompts of the command line, of a file, or else of what is piped in; a single empty one if there are none.

    Of a file, and of standard input, which "-" names, each line is one, also an empty one. Raises UsageError when there
    are both, and what `read_lines` raises.
    """
    if prompts and path is not None:
        raise UsageError("prompts are given both on the command line and in a file", fix="leave out one of them")
    if path is not None:
        return read_lines(path, "prompt file", "write one prompt a line")
    if not prompts:
        return read_lines(STDIN) if has_piped_input() else [""]
    return [line for prompt in prompts for line in (read_lines(prompt) if prompt == STDIN else [prompt])]


def text_or_stdin(text: str) -> str:
    """A text that is typed, or what is in standard input, which "-" names. Raises what `read_lines` raises."""
    return "\n".join(read_lines(STDIN)) if text == STDIN else text


def read_lines(path: str, name: str = "file", fix: str = "write something into it") -> list[str]:
    """The lines of a UTF-8 file, or of standard input when `path` is "-".

    Raises DataError when the file is missing, empty or not UTF-8, and ResourceError when it is not readable.
    """
    where = "standard input" if path == "-" else path
    with convert_read_errors(Path(path)):
        stream = open_standard_input() if path == "-" else None
        data = Path(path).read_bytes() if path != "-" else b"" if stream is None else stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"the {name} is not UTF-8 at byte {error.start}"
        raise DataError(what, where=f"{where}:{line}", fix="save it as UTF-8") from None
    if not text:
        raise DataError(f"the {name} is empty", where=where, fix=fix)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
