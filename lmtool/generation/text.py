"""From generated tokens to text: detokenization, stop strings, the forced prefix."""

import codecs
from collections.abc import Sequence
from functools import lru_cache

from lmtool.generation.constrained import FormState
from lmtool.generation.request import FinishReason, Request, Token
from lmtool.tokenization.decoder import StreamDecoder
from lmtool.tokenization.prompt_format import Prompt, PromptFormat


class IncrementalText:
    """The text of a request as its tokens come.

    text: so far. tokens: likewise.
    """

    def __init__(self, request: Request, form: FormState | None) -> None:
        """form: the beginning of the form of the text; None for anything."""
        self.text, self._unshown = "", request.prefix
        self.tokens: list[Token] = []
        self._stop = StopStrings(request.stop)
        self._decoder: StreamDecoder | None = None
        if request.prompt_format is not None:
            self._decoder = _FormDecoder(form) if form else _decoder_after(request.prompt_format, request.prompt)

    def push(self, token: Token, finish: FinishReason | None) -> tuple[str, FinishReason | None]:
        """What one more token adds to the text, and why the text ends with it.

        finish: why it ends there whatever its text is.
        """
        self.tokens.append(token)
        shown, self._unshown = self._unshown, ""
        if self._decoder is not None:
            if finish != "end":
                shown += self._stop.push(self._decoder.push(token.id))
            if finish and not self._stop.stopped:
                shown += self._stop.push(self._decoder.flush()) + self._stop.flush()
        self.text += shown
        return shown, "stop" if self._stop.stopped else finish


def reaches_stop(request: Request, ids: Sequence[int]) -> bool:
    """Whether generated ids have a stop string of their request."""
    if not request.stop or request.prompt_format is None:
        return False
    decoder, stop = _decoder_after(request.prompt_format, request.prompt), StopStrings(request.stop)
    for token in ids:
        stop.push(decoder.push(token))
    return stop.stopped


def ids_without_text(prompt_format: PromptFormat, vocab_size: int) -> set[int]:
    """The ids that no generated text holds: special tokens, and what the tokenizer does not have of a vocabulary."""
    tokenizer = prompt_format.tokenizer
    return {
        *tokenizer.special_ids - prompt_format.visible_special_tokens.keys(),
        *range(tokenizer.vocab_size, vocab_size),
    }


def _decoder_after(prompt_format: PromptFormat, prompt: Prompt) -> StreamDecoder:
    """A decoder of what follows a prompt, so that a space between prompt and text becomes part of the text."""
    decoder = prompt_format.tokenizer.make_stream_decoder(prompt_format.visible_special_tokens)
    for token in prompt.generated_prefix:
        decoder.push(token)
    decoder.flush()
    return decoder


class _FormDecoder:
    """A decoder of tokens as a form spells them: without the space that stands between prompt and text."""

    def __init__(self, form: FormState) -> None:
        self._form = form
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        self._form = self._form.plus(token)
        return self._utf8.decode(self._form.spelled)

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Streamed text, truncated before the first complete stop string, for any split into pieces.

    stopped: a stop string was found.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._begun = [0] * len(stop)  # how much of the beginning of each the text ends with
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is safe to show now. A possible beginning of a stop string is held back."""
        held = self._held + text
        safe = len(held)
        for end, character in enumerate(text if self._stop else "", len(self._held) + 1):
            self._begun = [_longer(*pair, character) for pair in zip(self._stop, self._begun, strict=True)]
            whole = [n for n, stop in zip(self._begun, self._stop, strict=True) if n == len(stop)]
            if whole:
                self.stopped = True
                safe = end - max(whole)
                break
        else:
            safe -= max(self._begun, default=0)
        self._held = held[safe:]
        return held[:safe]

    def flush(self) -> str:
        """The held-back text if the text ended without a stop string, else nothing."""
        return "" if self.stopped else self._held


def _longer(stop: str, n: int, character: str) -> int:
    """How much of the beginning of a string a text ends with, which ended with n characters of it before one more."""
    while n and (n == len(stop) or stop[n] != character):
        n = _borders(stop)[n - 1]
    return n + (stop[n] == character)


@lru_cache(maxsize=1024)
def _borders(stop: str) -> Sequence[int]:
    """Of each beginning of a string, how much of it the beginning also ends with, not all (Knuth et al. 1977)."""
    borders = [0]
    for character in stop[1:]:
        n = borders[-1]
        while n and stop[n] != character:
            n = borders[n - 1]
        borders.append(n + (stop[n] == character))
    return borders
