"""Prompts in, text out: tokens decoded as they come, stop strings cut off, one record for each request."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lmtool.decoding.generate import Event, Generation, generate
from lmtool.decoding.prompts import encode_prompt
from lmtool.decoding.settings import Settings
from lmtool.errors import UsageError
from lmtool.model.language_model import LanguageModel
from lmtool.text.decoder import StreamDecoder
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """What became of one request.

    prompt: its text. sample: which sample of the prompt, from 0.
    text: what follows the prompt, without special tokens, up to a stop string. prompt + text reads on.
    tokens: all ids written, an end token and those that spell a stop string included.
    logprobs: their natural log-probabilities under the model's own distribution, before any temperature or filter.
    seed: as in the settings.
    finish_reason: "end" for an end token, "stop" for a stop string, "length" for max_new_tokens.
    """

    prompt: str
    sample: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    seed: int
    finish_reason: Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Piece:
    """More text of one request, perhaps none; with its completion when it is the last.

    request: its number, sample 0 of prompt 0 first, then sample 1 of prompt 0.
    """

    request: int
    text: str
    completion: Completion | None


def write(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Settings,
    *,
    documents: bool,
    n: int = 1,
    stop: Sequence[str] = (),
    truncate: bool = False,
) -> Iterator[Piece]:
    """Continue each prompt `n` times; text as it comes about, the requests in turns.

    Pieces hold whole characters, and never a part of what may become a stop string. Special tokens other than the end
    are never chosen, nor ids that the tokenizer does not have.

    documents: the model was trained on documents between [BOS] and [EOS]: a prompt starts with one, the other ends
        its text.
    stop: strings that end a text and are cut off it. The first to be complete counts.
    truncate: cut prompts longer than the context from the left.

    Raises UsageError as `generate` does, and when a stop string is empty.
    """
    if not all(stop):
        raise UsageError("a stop string is empty", fix="give it at least one character")
    prompt_ids = [encode_prompt(tokenizer, prompt, documents=documents) for prompt in prompts]
    end_ids = {tokenizer.eos_id} if documents else set()
    without_text = {*range(tokenizer.n_specials), *range(tokenizer.vocab_size, model.vocab_size)}
    generation = generate(
        model,
        prompt_ids,
        settings,
        n=n,
        end_ids=end_ids,
        banned_ids=without_text - end_ids,
        truncate=truncate,
    )

    def begin(event: Event) -> _Writer:
        stream = tokenizer.stream()
        for token in prompt_ids[event.prompt]:  # so that a space between prompt and text becomes part of the text
            stream.push(token)
        stream.flush()
        return _Writer(prompts[event.prompt], event.sample, settings.seed, stream, StopStrings(stop))

    return _pieces(generation, begin, n)


def complete(pieces: Iterable[Piece]) -> Iterator[Completion]:
    """The completions among `pieces` in the order of their requests, each as soon as all before it are done."""
    done: dict[int, Completion] = {}
    following = 0
    for piece in pieces:
        if piece.completion is not None:
            done[piece.request] = piece.completion
        while following in done:
            yield done.pop(following)
            following += 1


def visible(text: str) -> str:
    """`text` as it may be sent to a terminal: control characters other than newline and tab are escaped."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) != "Cc" else f"\\x{ord(char):02x}" for char in text
    )


class StopStrings:
    """Text that comes in pieces, cut before the first stop string to be complete, however the pieces divide it.

    stopped: a stop string has come.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is safe to show now. What may be the beginning of a stop string is held back."""
        self._held += text
        found = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            safe = min(found)[1]
        else:
            safe = len(self._held) - max((self._beginning(stop) for stop in self._stop), default=0)
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def flush(self) -> str:
        """What was held back when the text ended without a stop string; nothing when it ended with one."""
        return "" if self.stopped else self._held

    def _beginning(self, stop: str) -> int:
        """Length of the longest beginning of `stop` that the held text ends with."""
        longest = min(len(stop) - 1, len(self._held))
        return next((k for k in range(longest, 0, -1) if self._held.endswith(stop[:k])), 0)


@dataclass
class _Writer:
    """One request while it is written."""

    prompt: str
    sample: int
    seed: int
    stream: StreamDecoder
    stop: StopStrings
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def push(self, event: Event) -> str:
        """The text to show after one more token."""
        self.tokens.append(event.token)
        self.logprobs.append(event.logprob)
        shown = "" if event.finish == "end" else self.stop.push(self.stream.push(event.token))
        if event.finish and not self.stop.stopped:
            shown += self.stop.push(self.stream.flush()) + self.stop.flush()
        self.text += shown
        return shown

    def completion(self, finish: Literal["end", "length"] | None) -> Completion | None:
        """The whole, when `finish` or a stop string ends it."""
        reason = "stop" if self.stop.stopped else finish
        if reason is None:
            return None
        return Completion(
            self.prompt, self.sample, self.text, tuple(self.tokens), tuple(self.logprobs), self.seed, reason
        )


def _pieces(generation: Generation, begin: Callable[[Event], _Writer], n: int) -> Iterator[Piece]:
    writers: dict[int, _Writer] = {}
    for event in generation:
        request = event.prompt * n + event.sample
        writer = writers[request] if request in writers else writers.setdefault(request, begin(event))
        shown = writer.push(event)
        completion = writer.completion(event.finish)
        if completion is not None:
            generation.stop(event.prompt, event.sample)
            del writers[request]
        yield Piece(request, shown, completion)
