"""Prompts in, text out: streaming detokenization, stop strings, one record per request."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Self

from lmtool.decoding.constrained import FormState, beginning
from lmtool.decoding.generate import generate
from lmtool.decoding.maskpredict import Filled, check_fills, fill
from lmtool.decoding.request import Alternative, BeamNode, Choice, TokenEvent
from lmtool.decoding.settings import Beam, Limits, MaskPredict, Options, Settings, TokenOptions, refuse_draft
from lmtool.decoding.speculative import Draft
from lmtool.errors import UsageError
from lmtool.model.language_model import LanguageModel
from lmtool.tokenization.decoder import StreamDecoder
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

FinishReason = Literal["end", "stop", "length", "time", "filled"]


@dataclass(frozen=True)
class Completion:
    """The completion of one request.

    prompt: its text.
    sample: index of the sample, from 0; for beam search the rank of the hypothesis.
    draw: sample number used to seed randomness, which continues over equal prompts.
    text: the generated text, without special tokens, up to a stop string; it begins with the prefix. For mask-predict
        the whole text, prompt included.
    tokens: all generated ids, including an end token and those of a stop string; for mask-predict those of the masks.
    logprobs: their natural log-probabilities under the model's distribution, before temperature and filters.
    ranks: rank of each token in that distribution, from 1.
    removed: its total probability of tokens excluded by filters.
    alternatives: its most probable tokens in place of each. All None unless requested.
    constrained: log-probabilities among the tokens that the form allowed; None without a form.
    tree: all hypotheses of a beam search, for the best one, if details are requested; else None.
    score: for beam search, the score of the hypothesis; else None.
    steps: number of decoding steps, or of forward passes for mask-predict.
    seed: as in the settings.
    proposed, accepted: with a draft, tokens that it proposed, and those of them in the text; else 0.
    finish_reason: "end" for an end token, "stop" for a stop string, "length" for max_new_tokens, "time" for max_time,
        "filled" for masks.
    is_known: it is a line of the training data, though novel texts were asked for.
    """

    prompt: str
    sample: int
    draw: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    steps: int
    seed: int
    finish_reason: FinishReason
    ranks: tuple[int, ...] | None = None
    removed: tuple[float, ...] | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] | None = None
    constrained: tuple[float, ...] | None = None
    score: float | None = None
    tree: tuple[BeamNode, ...] | None = None
    proposed: int = 0
    accepted: int = 0
    is_known: bool = False


@dataclass(frozen=True)
class Piece:
    """More text of one request, possibly empty; with its completion when it is the last.

    request: its index, sample 0 of prompt 0 first, then sample 1 of prompt 0.
    """

    request: int
    text: str
    completion: Completion | None


def write(
    model: LanguageModel,
    prompt_format: PromptFormat,
    prompts: Sequence[str | Prompt],
    settings: Settings,
    options: Options | None = None,
    draft: Draft | None = None,
) -> Iterator[Piece]:
    """Continue each prompt, generate its target or fill its masks; streams text, interleaved over requests.

    Pieces hold whole characters, and never part of a possible stop string. Special tokens other than end tokens are
    never generated, nor ids that the tokenizer does not have. Beam search and mask-predict return whole texts.

    prompts: texts; or inputs built by `prompt_format`, whose text is not in completions. draft: as in `generate`.

    Raises UsageError as `generate` and `fill` do, and when options contradict the strategy.
    """
    options = options or Options()
    if draft is not None:
        refuse_draft(settings)
    if isinstance(settings, MaskPredict):
        return _fill(model, prompt_format, prompts, settings, options)
    if options.mask is not None or options.length:
        what = f"masks are not for {settings.name}, which generates from left to right"
        raise UsageError(what, fix="omit --mask and --length, or choose --strategy mask-predict")
    inputs = [p if isinstance(p, Prompt) else prompt_format.prompt(p, options.prefix) for p in prompts]
    end_ids, stopped = prompt_format.end_ids, set[tuple[int, int]]()

    def ends(prompt: int, generated: Sequence[int]) -> bool:
        stream, stop = _stream_after(prompt_format, inputs[prompt]), StopStrings(options.stop)
        for token in generated:
            stop.push(stream.push(token))
        return stop.stopped

    form = _form_of(settings, options, prompt_format)
    token_options = TokenOptions(
        **vars(options),
        form=form,
        end_ids=end_ids,
        banned_ids=without_text(prompt_format, model.vocab_size) - end_ids,
        ends=ends if options.stop else None,
        stopped=stopped,
    )
    events = generate(model, inputs, settings, token_options, draft)

    def pieces() -> Iterator[Piece]:
        n, texts = settings.num_return if isinstance(settings, Beam) else options.n, dict[int, GeneratedText]()
        for event in events:
            request = event.prompt * n + event.sample
            if request not in texts:
                text = GeneratedText.of(prompt_format, inputs[event.prompt], settings.seed, options.stop, form)
                texts[request] = replace(text, prompt=_text_of(prompts[event.prompt]), prefix=options.prefix)
            shown, completion = texts[request].push(event), texts[request].completion()
            if completion is not None:
                stopped.add((event.prompt, event.sample))
                del texts[request]
            yield Piece(request, shown, completion)

    return pieces()


def _form_of(settings: Limits, options: Options, prompt_format: PromptFormat) -> FormState | None:
    """The beginning of the form of each text, if it has one.

    Raises UsageError where options contradict it, and where it cannot be as it is asked for.
    """
    if settings.form is None:
        return None
    form = beginning(settings.form, prompt_format.tokenizer)
    if options.stop or options.prefix:
        what = "a form contradicts stop strings and a prefix, which would be no part of it"
        raise UsageError(what, fix="omit them, or write them into the form")
    check_length(form, settings.max_new_tokens)
    return form


def check_length(form: FormState, max_new_tokens: int) -> None:
    """Raise UsageError where a form that is to be complete cannot be so in so many tokens."""
    if not form.form.complete:
        return
    if form.closing is None:
        form.stuck.prepare()
        raise UsageError("no end of this form was found, which `complete` needs", fix="omit --complete")
    if len(form.closing) > max_new_tokens:
        what = f"the shortest text found of this form has {len(form.closing)} tokens, more than {max_new_tokens}"
        raise UsageError(what, fix=f"allow as many with --max-new-tokens {len(form.closing)}")


def without_text(prompt_format: PromptFormat, vocab_size: int) -> set[int]:
    """The ids that no generated text holds: special tokens, and what the tokenizer does not have of a vocabulary."""
    tokenizer = prompt_format.tokenizer
    return {*tokenizer.special_ids - prompt_format.shown.keys(), *range(tokenizer.vocab_size, vocab_size)}


def _fill(
    model: LanguageModel,
    prompt_format: PromptFormat,
    prompts: Sequence[str | Prompt],
    settings: MaskPredict,
    options: Options,
) -> Iterator[Piece]:
    if options.stop or options.prefix:
        what = "mask-predict does not generate from left to right: it takes no stop string and no prefix"
        raise UsageError(what, fix="omit them")
    check_fills(model)
    texts = []
    tokenizer = prompt_format.tokenizer
    for prompt in map(_text_of, prompts):
        ids = prompt_format.masks(prompt, placeholder=options.mask, length=options.length)
        if options.overflow != "refuse" and model.context is not None and len(ids) > model.context:
            length = max(1, options.length - (len(ids) - model.context))
            ids = prompt_format.masks(prompt, placeholder=options.mask, length=length)
        texts.append(ids)
    token_options = TokenOptions(**vars(options), banned_ids=without_text(prompt_format, model.vocab_size))
    filled = fill(model, texts, tokenizer.mask_id, settings, token_options)

    def piece(result: Filled) -> Piece:
        coming, stream = (choice.token for choice in result.choices), tokenizer.stream()
        ids = [next(coming) if token == tokenizer.mask_id else token for token in texts[result.prompt]]
        text, prompt = "".join(map(stream.push, ids)) + stream.flush(), _text_of(prompts[result.prompt])
        completion = _completed(result, result.choices, prompt, text, seed=settings.seed, finish_reason="filled")
        return Piece(result.prompt * options.n + result.sample, completion.text, completion)

    return map(piece, filled)


def _completed(
    last: TokenEvent | Filled, choices: Sequence[Choice], prompt: str, text: str, **others: Any
) -> Completion:
    """A completion of these choices. last: what completes it. others: fields with a value for the whole text."""
    columns = {"tokens": "token", "logprobs": "logprob"}
    if choices[0].rank is not None:
        columns |= {"ranks": "rank", "removed": "removed", "alternatives": "alternatives"}
    if choices[0].constrained is not None:
        columns["constrained"] = "constrained"
    others |= {name: tuple(getattr(choice, of_one) for choice in choices) for name, of_one in columns.items()}
    return Completion(prompt, last.sample, last.draw, text, steps=last.steps, **others)


def _text_of(prompt: str | Prompt) -> str:
    """The text of a prompt; empty for ids."""
    return prompt if isinstance(prompt, str) else ""


def complete(pieces: Iterable[Piece]) -> Iterator[Completion]:
    """The completions among `pieces` in request order, each as soon as all before it are done."""
    done: dict[int, Completion] = {}
    following = 0
    for piece in pieces:
        if piece.completion is not None:
            done[piece.request] = piece.completion
        while following in done:
            yield done.pop(following)
            following += 1
    # A beam search of a tiny vocabulary may find fewer hypotheses than requested, which leaves gaps.
    yield from (done[request] for request in sorted(done))


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


class _ConstrainedText:
    """A decoder of tokens as a form spells them: without the space that stands between prompt and text."""

    def __init__(self, form: FormState) -> None:
        self._form = form
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        self._form = self._form.plus(token)
        return self._utf8.decode(self._form.spelled)

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


def _stream_after(prompt_format: PromptFormat, prompt: Prompt) -> StreamDecoder:
    """A decoder of what follows a prompt, so that a space between prompt and text becomes part of the text."""
    stream = prompt_format.tokenizer.stream(prompt_format.shown)
    for token in prompt.begun:
        stream.push(token)
    stream.flush()
    return stream


@dataclass
class GeneratedText:
    """The text of one request during generation. text: what was shown so far. events: one per token."""

    seed: int
    stream: StreamDecoder
    stop: StopStrings
    prompt: str = ""
    prefix: str = ""
    text: str = ""
    events: list[TokenEvent] = field(default_factory=list)

    @classmethod
    def of(
        cls, prompt_format: PromptFormat, prompt: Prompt, seed: int, stop: Sequence[str], form: FormState | None = None
    ) -> Self:
        """The empty text after a prompt."""
        stream = _stream_after(prompt_format, prompt) if form is None else _ConstrainedText(form)
        return cls(seed, stream, StopStrings(stop))

    def push(self, event: TokenEvent) -> str:
        """The text to show after one more token."""
        shown = "" if self.events else self.prefix
        self.events.append(event)
        if event.finish != "end":
            shown += self.stop.push(self.stream.push(event.token))
        if event.finish and not self.stop.stopped:
            shown += self.stop.push(self.stream.flush()) + self.stop.flush()
        self.text += shown
        return shown

    def completion(self) -> Completion | None:
        """The completion, when its last token or a stop string ends it."""
        last = self.events[-1]
        reason = "stop" if self.stop.stopped else last.finish
        if reason is None:
            return None
        others = {name: getattr(last, name) for name in ("score", "tree", "proposed", "accepted")}
        return _completed(last, self.events, self.prompt, self.text, seed=self.seed, finish_reason=reason, **others)
