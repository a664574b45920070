"""Prompts: where they come from, and how they become tokens."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtool.decoding.reader import Prompt
from lmtool.errors import DataError, ResourceError, UsageError
from lmtool.recipe.spec import Prefix, Reads, Recipe, Recurrent, Transformer
from lmtool.text.tokenizer import Tokenizer


def gather_prompts(given: Sequence[str], path: str | None) -> list[str]:
    """The prompts given one by one or in a file; a single empty one when there are none.

    Raises UsageError when there are both, and what `read_prompts` raises.
    """
    if given and path is not None:
        raise UsageError("prompts come both from the command line and from a file", fix="leave out one of them")
    return read_prompts(path) if path is not None else list(given) or [""]


def read_prompts(path: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input when `path` is "-"; an empty line is an empty prompt.

    Raises DataError when the file is missing, empty or not UTF-8, and ResourceError when it may not be read.
    """
    where = "standard input" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except PermissionError:
        raise ResourceError("the prompt file may not be read", where=where, fix="change its permissions") from None
    except OSError as error:
        raise DataError(
            f"the prompt file cannot be read: {error.strerror}", where=where, fix="name a file, or - for standard input"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"the prompt file is not UTF-8 at byte {error.start}", where=f"{where}:{line}", fix="save it as UTF-8"
        ) from None
    if not text:
        raise DataError("the prompt file is empty", where=where, fix="write one prompt a line")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


@dataclass(frozen=True)
class Form:
    """How a model saw text in training, which is how it must see a prompt.

    documents: each text between [BOS] and [EOS].
    answers: an answer between [BOS] and [EOS], to a source.
    """

    documents: bool = False
    answers: bool = False


def form_of(recipe: Recipe, *, documents: bool) -> Form:
    """The form of a recipe's rows. documents: its corpus holds documents, not one long text."""
    match recipe.model, recipe.objective:
        case Transformer(shape="prefix"), Prefix():
            return Form(documents=documents)
        case Transformer(shape="encoder-decoder" | "prefix") | Recurrent(shape="encoder-decoder"), _:
            return Form(answers=True)
        case _:
            return Form(documents=documents)


def frame(tokenizer: Tokenizer, prompt: str, form: Form, *, reads: Reads, prefix: str = "") -> Prompt:
    """What the model reads before it writes. A model must read something: without any token it is [BOS], or [EOS] alone
    where the prompt is a source.

    prefix: how what is written has to begin.

    Raises UsageError when the prompt has bytes that are not UTF-8.
    """
    if form.answers:
        source = _encode(tokenizer, prompt) or [tokenizer.eos_id]
        return Prompt((tokenizer.bos_id, *_encode(tokenizer, prefix)), tuple(source))
    ids = _encode(tokenizer, prompt + prefix)
    if form.documents or not ids:
        ids = [tokenizer.bos_id, *ids]
    if reads != "source":
        return Prompt(tuple(ids))
    return Prompt((ids[-1],), tuple(ids[:-1]), joined=True)


def frame_masks(
    tokenizer: Tokenizer, prompt: str, form: Form, *, placeholder: str | None, length: int
) -> tuple[int, ...]:
    """A text with [MASK] for each placeholder, and for `length` tokens behind it.

    Byte-level tokens bring the space before a word along, so there a space in front of a placeholder falls to it.

    Raises UsageError when there is nothing to fill, and when the prompt has bytes that are not UTF-8.
    """
    if placeholder == "":
        raise UsageError("the placeholder of a mask is empty", fix="give it at least one character")
    parts = [prompt] if placeholder is None else prompt.split(placeholder)
    if len(parts) == 1 and not length:
        what = "no mask to fill" if placeholder is None else f"no {placeholder!r:.40} to fill"
        raise UsageError(
            f"the prompt has {what}", fix="mark places with --mask TEXT, or ask for new text with --length N"
        )
    ids: list[int] = []
    for i, part in enumerate(parts):
        followed = i < len(parts) - 1
        ids += _encode(tokenizer, part.removesuffix(" ") if followed and tokenizer.kind == "bpe" else part)
        ids += [tokenizer.mask_id] * followed
    ids += [tokenizer.mask_id] * length
    if form.documents:
        ids = [tokenizer.bos_id, *ids, tokenizer.eos_id]
    return (tokenizer.cls_id, *ids, tokenizer.sep_id)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the prompt is not UTF-8 at character {error.start}", fix="save it as UTF-8, or mend the terminal's locale"
        ) from None
    return tokenizer.encode(text)
