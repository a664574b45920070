"""Mask-predict: fills the masks of a text with a bidirectional model.

It is a loop of its own beside the engine, since nothing of a text is read before the rest: each pass reads all of it.

Shapes: B rows, T positions, N requested positions, V vocabulary.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.generation import filters
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import MaskPredict, Overflow, filter_logits
from lmtool.generation.request import N_ALTERNATIVES, Completion, Token, completion_of, number_draws
from lmtool.generation.strategy import check_finite, make_tokens, nothing_left, random_key, uniform
from lmtool.generation.text import ids_without_text
from lmtool.model.language_model import LanguageModel, evaluating
from lmtool.tokenization.prompt_format import PromptFormat

_Search = Generator[tuple[list[int], list[int]], Tensor, list[Token]]
"""Yields a text and the positions to score, is sent their logits (N, V), and returns the tokens."""


def fill_texts(
    model: LanguageModel,
    prompts: Sequence[str],
    params: MaskPredict,
    prompt_format: PromptFormat,
    *,
    overflow: Overflow,
    mask: str | None,
    length: int,
    **options: Any,
) -> Iterator[Completion]:
    """Fill the masks of texts. Options as of `lmtool.generation.generate.generate`; returns and raises as `fill`."""
    check_fills(model)
    texts, tokenizer = [], prompt_format.tokenizer
    for prompt in prompts:
        ids = prompt_format.make_masked_prompt(prompt, placeholder=mask, length=length)
        if overflow != "refuse" and model.context is not None and len(ids) > model.context:
            n_masks = max(1, length - (len(ids) - model.context))
            ids = prompt_format.make_masked_prompt(prompt, placeholder=mask, length=n_masks)
        texts.append(ids)
    banned_ids = ids_without_text(prompt_format, model.vocab_size)
    n = options["n"]

    def written(filled: Completion) -> Completion:
        prompt, tokens, stream = filled.request // n, iter(filled.tokens), tokenizer.make_stream_decoder()
        ids = [next(tokens) if token == tokenizer.mask_id else token for token in texts[prompt]]
        return replace(filled, prompt=prompts[prompt], text="".join(map(stream.push, ids)) + stream.flush())

    return map(written, fill(model, texts, tokenizer.mask_id, params, banned_ids=banned_ids, **options))


def fill(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    mask_id: int,
    params: MaskPredict,
    *,
    n: int = 1,
    first: int = 0,
    banned_ids: Collection[int] = (),
    details: bool = False,
    max_rows: int = 16,
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Completion]:
    """Fill the masks of each text; completions without text, in the order in which they are complete.

    A result is a function of the model, the parameters, the text and the sample number, as in `generate`. Texts are
    batched by length, without padding. banned_ids: never predicted, as [MASK] is not. computing: as of `generate`.

    Raises UsageError when the model is not bidirectional, and when a text has no mask or is longer than the context.
    Iterating raises NumericalError when the model's logits are not finite.
    """
    check_fills(model)
    for i, ids in enumerate(texts, 1):
        where = f"prompt {i} of {len(texts)}" if len(texts) > 1 else ""
        if mask_id not in ids:
            raise UsageError("the prompt has no mask to fill", where=where, fix="put a mask at each position to fill")
        if model.context is not None and len(ids) > model.context:
            what = f"the prompt has {len(ids)} tokens with its masks, but the model's context is {model.context}"
            raise UsageError(what, where=where, fix="shorten it, or ask for fewer tokens")
    filler = _Filler(params, mask_id, sorted({*banned_ids, mask_id}), N_ALTERNATIVES if details else 0)
    return _run(model, filler, [tuple(text) for text in texts], n, first, max_rows, computing)


def check_fills(model: LanguageModel) -> None:
    """Raise UsageError unless the model is bidirectional."""
    if model.reads != "both":
        what = "only bidirectional models fill masks, and this one is not bidirectional"
        raise UsageError(what, fix="omit --mask, --length and --strategy mask-predict, or name an encoder")


@dataclass
class _Work:
    """A text that is being filled. request: its prompt, sample and draw."""

    request: tuple[int, int, int]
    search: _Search
    ids: list[int]
    wanted: list[int]
    steps: int = 0


def _run(
    model: LanguageModel,
    filler: "_Filler",
    texts: Sequence[tuple[int, ...]],
    n: int,
    first: int,
    max_rows: int,
    computing: Callable[[], AbstractContextManager[object]],
) -> Iterator[Completion]:
    waiting = (
        _Work((i, sample, draw), search, *next(search))
        for i, sample, draw in number_draws(texts, n, first)
        for search in [filler.search(texts[i], draw)]
    )
    runner, working = ModelRunner(model), list[_Work]()
    with evaluating(model):
        while working := working + list(islice(waiting, max_rows - len(working))):
            unfinished = []
            for _, equal in groupby(sorted(working, key=lambda work: len(work.ids)), key=lambda work: len(work.ids)):
                group = list(equal)
                with computing():
                    logits = _read(model, runner, group)
                for work, logits_NV in zip(group, logits, strict=True):
                    work.steps += 1
                    try:
                        work.ids, work.wanted = work.search.send(logits_NV)
                        unfinished.append(work)
                    except StopIteration as done:
                        i, sample, draw = work.request
                        yield completion_of(
                            done.value,
                            request=i * n + sample,
                            prompt="",
                            sample=sample,
                            draw=draw,
                            text="",
                            steps=work.steps,
                            seed=filler.params.seed,
                            finish_reason="filled",
                        )
            working = unfinished


@torch.inference_mode()
def _read(model: LanguageModel, runner: ModelRunner, works: Sequence[_Work]) -> list[Tensor]:
    """The requested logits (N, V) of each; their texts have the same length."""
    hidden_BTD = model(Batch(torch.tensor([work.ids for work in works], device=runner.device))).hidden_BTD
    wanted = [hidden_BTD[i, torch.tensor(work.wanted, device=runner.device)] for i, work in enumerate(works)]
    logits_NV = runner.logits(torch.cat(wanted))
    check_finite(logits_NV)
    return list(torch.split(logits_NV, [len(work.wanted) for work in works]))


@dataclass(frozen=True)
class _Filler:
    """How masks are filled. banned: ids that are never predicted. n_alternatives: see `Request`."""

    params: MaskPredict
    mask_id: int
    banned: Sequence[int]
    n_alternatives: int

    def search(self, text: tuple[int, ...], draw: int) -> _Search:
        """Of a text, with its sample number."""
        ids, masks = list(text), [i for i, token in enumerate(text) if token == self.mask_id]
        if self.params.by == "confidence":
            return self._by_confidence(ids, masks)
        return self._gibbs(ids, masks, random_key(self.params.seed, draw, text))

    def _by_confidence(self, ids: list[int], masks: list[int]) -> _Search:
        """Ghazvininejad et al. 2019: round t of T re-masks and predicts the N (T - t) / T least confident tokens."""
        tokens: dict[int, Token] = {}
        masked, rounds = masks, self.params.rounds
        for done in range(rounds):
            if done:
                n_masked = len(masks) * (rounds - done) // rounds
                masked = sorted(sorted(masks, key=lambda position: tokens[position].logprob)[:n_masked])
                if not masked:
                    break
            for position in masked:
                ids[position] = self.mask_id
            logits_NV = yield ids, masked
            allowed_NV = self._allowed(logits_NV)
            predicted = make_tokens(logits_NV.log_softmax(-1), allowed_NV, allowed_NV.argmax(-1), self.n_alternatives)
            for position, token in zip(masked, predicted, strict=True):
                ids[position], tokens[position] = token.id, token
        return [tokens[position] for position in masks]

    def _gibbs(self, ids: list[int], masks: list[int], key: bytes) -> _Search:
        """Wang and Cho 2019: Gibbs sampling, one token at a time given all others; each round in random order."""
        tokens: dict[int, Token] = {}
        n_drawn = 0
        for _ in range(self.params.rounds):
            order = sorted(range(len(masks)), key=lambda i: uniform(key, n_drawn + i))
            n_drawn += len(masks)
            for position in (masks[i] for i in order):
                ids[position] = self.mask_id
                logits_1V = yield ids, [position]
                filtered_1V = filter_logits(self._allowed(logits_1V), self.params)
                number = torch.tensor([uniform(key, n_drawn)], dtype=torch.float64, device=filtered_1V.device)
                n_drawn += 1
                ids_1 = filters.draw(filtered_1V, number)
                (tokens[position],) = make_tokens(logits_1V.log_softmax(-1), filtered_1V, ids_1, self.n_alternatives)
                ids[position] = tokens[position].id
        return [tokens[position] for position in masks]

    def _allowed(self, logits_NV: Tensor) -> Tensor:
        """The logits with -inf at excluded tokens."""
        allowed_NV = logits_NV.index_fill(-1, torch.tensor(self.banned, device=logits_NV.device), -torch.inf)
        if self.params.logit_bias:
            allowed_NV = filters.logit_bias(allowed_NV, self.params.logit_bias)
        if (allowed_NV.amax(-1) == -torch.inf).any():
            raise nothing_left()
        return allowed_NV
