"""Mask-predict: fills the masks of a text with a bidirectional model.

It does not use the engine, because each pass reads the whole text.

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
from lmtool.generation.detokenizer import find_special_and_unused_ids
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import MaskPredict, apply_sampling_filters
from lmtool.generation.request import (
    DETAIL_ALTERNATIVES,
    Completion,
    SampleNumbers,
    Token,
    build_completion,
    number_samples,
)
from lmtool.generation.strategy import check_finite, make_tokens, no_allowed_token_error, request_key, uniform_random
from lmtool.model.language_model import LanguageModel, evaluation_mode
from lmtool.tokenization.prompt_format import PromptFormat

_MaskFillingCoroutine = Generator[tuple[list[int], list[int]], Tensor, list[Token]]
"""A coroutine: yields a text and the positions to score, is sent their logits (N, V), and returns the tokens."""


def fill_text_masks(
    model: LanguageModel,
    prompts: Sequence[str],
    params: MaskPredict,
    prompt_format: PromptFormat,
    *,
    cut: bool,
    mask: str | None,
    length: int,
    n: int,
    **options: Any,
) -> Iterator[Completion]:
    """Fills the masks of prompts; `fill_masks` with texts for ids.

    cut: fills fewer masks after a prompt that exceeds the context with all of them.
    mask, length: as in `lmtool.generation.generate.generate`.
    """
    check_bidirectional(model)
    texts, tokenizer = [], prompt_format.tokenizer
    for prompt in prompts:
        ids = prompt_format.encode_masked_prompt(prompt, placeholder=mask, n_appended_masks=length)
        if cut and model.context is not None and len(ids) > model.context:
            n_masks = max(1, length - (len(ids) - model.context))
            ids = prompt_format.encode_masked_prompt(prompt, placeholder=mask, n_appended_masks=n_masks)
        texts.append(ids)
    banned_ids = find_special_and_unused_ids(prompt_format, model.vocab_size)

    def add_text(filled: Completion) -> Completion:
        prompt, tokens, stream = filled.request // n, iter(filled.tokens), tokenizer.make_stream_decoder()
        ids = [next(tokens) if token == tokenizer.mask_id else token for token in texts[prompt]]
        return replace(filled, prompt=prompts[prompt], text="".join(map(stream.push, ids)) + stream.flush())

    return map(add_text, fill_masks(model, texts, tokenizer.mask_id, params, banned_ids=banned_ids, n=n, **options))


def fill_masks(
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
    step_context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Completion]:
    """Fills the masks of each text. Yields completions without text, in the order in which they are complete.

    A result is a function of the model, the parameters, the text and the sample number, as in `generate`. Texts are
    batched by length, without padding. banned_ids: ids besides the mask that are never predicted. Other arguments are
    those of `generate`.

    Raises UsageError when the model is not bidirectional, and when a text has no mask or is longer than the context.
    Iterating raises NumericalError when the model's logits are not finite.
    """
    check_bidirectional(model)
    for i, ids in enumerate(texts, 1):
        where = f"prompt {i} of {len(texts)}" if len(texts) > 1 else ""
        if mask_id not in ids:
            raise UsageError("the prompt has no mask to fill", where=where, fix="put a mask at each position to fill")
        if model.context is not None and len(ids) > model.context:
            what = f"the prompt has {len(ids)} tokens with its masks, but the model's context is {model.context}"
            raise UsageError(what, where=where, fix="shorten it, or ask for fewer tokens")
    filler = _MaskFillingAlgorithms(
        params, mask_id, sorted({*banned_ids, mask_id}), DETAIL_ALTERNATIVES if details else 0
    )
    waiting = (
        _MaskState(one, filling, *next(filling))
        for one in number_samples([tuple(text) for text in texts], n, first)
        for filling in [filler.start_filling(texts[one.text], one.draw)]
    )

    def run() -> Iterator[Completion]:
        runner, running = ModelRunner(model), list[_MaskState]()
        with evaluation_mode(model):
            while running := running + list(islice(waiting, max_rows - len(running))):
                unfinished = []
                by_length = groupby(sorted(running, key=lambda one: len(one.ids)), key=lambda one: len(one.ids))
                for group in [list(group) for _, group in by_length]:
                    with step_context(), torch.inference_mode():
                        ids_BT = torch.tensor([state.ids for state in group], device=runner.device)
                        hidden_BTD = model(Batch(ids_BT)).hidden_BTD
                        hidden = [hidden_BTD[i, state.positions] for i, state in enumerate(group)]
                        logits_NV = runner.compute_logits(torch.cat(hidden))
                        check_finite(logits_NV)
                        logits = torch.split(logits_NV, [len(state.positions) for state in group])
                    for state, logits_NV in zip(group, logits, strict=True):
                        state.steps += 1
                        try:
                            state.ids, state.positions = state.filling.send(logits_NV)
                            unfinished.append(state)
                        except StopIteration as done:
                            yield build_completion(
                                done.value,
                                request=state.request.text * n + state.request.sample,
                                sample=state.request.sample,
                                draw=state.request.draw,
                                steps=state.steps,
                                seed=params.seed,
                                finish_reason="filled",
                            )
                running = unfinished

    return run()


def check_bidirectional(model: LanguageModel) -> None:
    """Raises UsageError unless the model is bidirectional."""
    if model.reads != "both":
        what = "only bidirectional models fill masks, and this one is not bidirectional"
        raise UsageError(what, fix="omit --mask, --length and --strategy mask-predict, or name an encoder")


@dataclass
class _MaskState:
    """A text that is being filled. positions: those to score next."""

    request: SampleNumbers
    filling: _MaskFillingCoroutine
    ids: list[int]
    positions: list[int]
    steps: int = 0


@dataclass(frozen=True)
class _MaskFillingAlgorithms:
    """The algorithms that fill masks. banned_ids: never predicted. n_alternatives: see `Request`."""

    params: MaskPredict
    mask_id: int
    banned_ids: Sequence[int]
    n_alternatives: int

    def start_filling(self, text: Sequence[int], draw: int) -> _MaskFillingCoroutine:
        """Starts to fill a text. draw: its sample number."""
        ids, masks = list(text), [i for i, token in enumerate(text) if token == self.mask_id]
        if self.params.by == "confidence":
            return self._fill_by_confidence(ids, masks)
        return self._fill_by_gibbs_sampling(ids, masks, request_key(self.params.seed, draw, text))

    def _fill_by_confidence(self, ids: list[int], mask_positions: list[int]) -> _MaskFillingCoroutine:
        """Ghazvininejad et al. 2019: round t of T re-masks and predicts the N (T - t) / T least confident tokens."""
        tokens: dict[int, Token] = {}
        masked, rounds = mask_positions, self.params.rounds
        for done in range(rounds):
            if done:
                n_masked = len(mask_positions) * (rounds - done) // rounds
                masked = sorted(sorted(mask_positions, key=lambda position: tokens[position].logprob)[:n_masked])
                if not masked:
                    break
            for position in masked:
                ids[position] = self.mask_id
            logits_NV = yield ids, masked
            allowed_NV = self._exclude_banned_and_add_biases(logits_NV)
            predicted = make_tokens(logits_NV.log_softmax(-1), allowed_NV, allowed_NV.argmax(-1), self.n_alternatives)
            for position, token in zip(masked, predicted, strict=True):
                ids[position], tokens[position] = token.id, token
        return [tokens[position] for position in mask_positions]

    def _fill_by_gibbs_sampling(self, ids: list[int], mask_positions: list[int], key: bytes) -> _MaskFillingCoroutine:
        """Wang and Cho 2019: Gibbs sampling, one token at a time given all others; each round in random order."""
        tokens: dict[int, Token] = {}
        n_drawn = 0
        for _ in range(self.params.rounds):
            order = sorted(range(len(mask_positions)), key=lambda i: uniform_random(key, n_drawn + i))
            n_drawn += len(mask_positions)
            for position in (mask_positions[i] for i in order):
                ids[position] = self.mask_id
                logits_1V = yield ids, [position]
                filtered_1V = apply_sampling_filters(self._exclude_banned_and_add_biases(logits_1V), self.params)
                number = torch.tensor([uniform_random(key, n_drawn)], dtype=torch.float64, device=filtered_1V.device)
                n_drawn += 1
                ids_1 = filters.sample_ids(filtered_1V, number)
                (tokens[position],) = make_tokens(logits_1V.log_softmax(-1), filtered_1V, ids_1, self.n_alternatives)
                ids[position] = tokens[position].id
        return [tokens[position] for position in mask_positions]

    def _exclude_banned_and_add_biases(self, logits_NV: Tensor) -> Tensor:
        """Sets the logits of banned ids to -inf and adds biases. Raises UsageError if no token is left."""
        allowed_NV = logits_NV.index_fill(-1, torch.tensor(self.banned_ids, device=logits_NV.device), -torch.inf)
        if self.params.logit_bias:
            allowed_NV = filters.add_logit_bias(allowed_NV, self.params.logit_bias)
        if (allowed_NV.amax(-1) == -torch.inf).any():
            raise no_allowed_token_error()
        return allowed_NV
