"""Incremental detokenization with stop strings and a forced prefix."""

import codecs
from collections.abc import Sequence
from functools import lru_cache

from lmtool.generation.constrained import FormState
from lmtool.generation.request import FinishReason, Request, Token
from lmtool.tokenization.decoder import StreamDecoder
from lmtool.tokenization.prompt_format import Prompt, PromptFormat


class IncrementalDetokenizer:
    """Builds the text of a request token by token.

    text, tokens: those so far.
    """

    def __init__(self, request: Request, form: FormState | None) -> None:
        """form: start of the form of the text; None for no constraint."""
        self.text, self._unshown = "", request.prefix
        self.tokens: list[Token] = []
        self._stop = StopStringFilter(request.stop)
        self._decoder: StreamDecoder | None = None
        if request.prompt_format is not None:
            self._decoder = (
                _ConstrainedTextDecoder(form)
                if form
                else _make_decoder_after_prompt(request.prompt_format, request.prompt)
            )

    def push(self, token: Token, finish: FinishReason | None) -> tuple[str, FinishReason | None]:
        """Adds a token. Returns the text that becomes visible, and why the text ends, if it does.

        finish: why the text ends with this token apart from stop strings, if it does.
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


def contains_stop_string(request: Request, ids: Sequence[int]) -> bool:
    """Whether the text of generated ids contains a stop string of their request."""
    if not request.stop or request.prompt_format is None:
        return False
    decoder, stop = _make_decoder_after_prompt(request.prompt_format, request.prompt), StopStringFilter(request.stop)
    for token in ids:
        stop.push(decoder.push(token))
    return stop.stopped


def find_special_and_unused_ids(prompt_format: PromptFormat, vocab_size: int) -> set[int]:
    """Returns ids that are never generated: special tokens, and ids of the vocabulary that the tokenizer lacks."""
    tokenizer = prompt_format.tokenizer
    return {
        *tokenizer.special_ids - prompt_format.visible_special_tokens.keys(),
        *range(tokenizer.vocab_size, vocab_size),
    }


def _make_decoder_after_prompt(prompt_format: PromptFormat, prompt: Prompt) -> StreamDecoder:
    """Makes a decoder that has read a prompt, so that a space between prompt and text becomes part of the text."""
    decoder = prompt_format.tokenizer.make_stream_decoder(prompt_format.visible_special_tokens)
    for token in prompt.generated_prefix:
        decoder.push(token)
    decoder.flush()
    return decoder


class _ConstrainedTextDecoder:
    """Decodes tokens as a form spells them: without the space between prompt and text."""

    def __init__(self, form: FormState) -> None:
        self._form = form
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        self._form = self._form.with_token(token)
        return self._utf8.decode(self._form.spelled)

    def peek(self) -> str:
        return self._utf8.getstate()[0].decode("utf-8", errors="replace")

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class StopStringFilter:
    """Truncates streamed text before the first complete stop string, for any split into pieces.

    stopped: whether a stop string was found.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._matched = [0] * len(stop)  # length of the longest prefix of each that the text ends with
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Adds text. Returns the text that is safe to show; a possible beginning of a stop string is held back."""
        held = self._held + text
        safe = len(held)
        for end, character in enumerate(text if self._stop else "", len(self._held) + 1):
            self._matched = [
                _extend_prefix_match(*pair, character) for pair in zip(self._stop, self._matched, strict=True)
            ]
            whole = [n for n, stop in zip(self._matched, self._stop, strict=True) if n == len(stop)]
            if whole:
                self.stopped = True
                safe = end - max(whole)
                break
        else:
            safe -= max(self._matched, default=0)
        self._held = held[safe:]
        return held[:safe]

    def flush(self) -> str:
        """Returns the held-back text if the text ended without a stop string, else nothing."""
        return "" if self.stopped else self._held


def _extend_prefix_match(stop: str, n: int, character: str) -> int:
    """Returns how many first characters of `stop` a text ends with after one more character; before it, n."""
    while n and (n == len(stop) or stop[n] != character):
        n = _prefix_function(stop)[n - 1]
    return n + (stop[n] == character)


@lru_cache(maxsize=1024)
def _prefix_function(stop: str) -> Sequence[int]:
    """Returns the prefix function: for each prefix, the length of its longest proper border (Knuth et al. 1977)."""
    borders = [0]
    for character in stop[1:]:
        n = borders[-1]
        while n and stop[n] != character:
            n = borders[n - 1]
        borders.append(n + (stop[n] == character))
    return borders
