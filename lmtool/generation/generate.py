"""Texts for prompts, as they are generated: a thin user of the engine."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from lmtool.errors import UsageError
from lmtool.generation.drafts import Draft
from lmtool.generation.engine import Engine
from lmtool.generation.params import AnyParams, MaskPredict, Overflow, check_takes_draft
from lmtool.generation.request import N_ALTERNATIVES, Completion, Token, requests_for
from lmtool.generation.strategy import RequestState
from lmtool.generation.text import ids_without_text
from lmtool.model.language_model import LanguageModel, evaluating
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

MAX_ROWS = 16
"""Rows that are computed at once, by default."""


def generate(
    model: LanguageModel,
    prompts: Sequence[str | Prompt | Sequence[int]],
    params: AnyParams,
    prompt_format: PromptFormat | None = None,
    *,
    n: int = 1,
    first: int = 0,
    stop: Sequence[str] = (),
    prefix: str = "",
    overflow: Overflow = "refuse",
    mask: str | None = None,
    length: int = 0,
    details: bool = False,
    max_rows: int = MAX_ROWS,
    draft: Draft | None = None,
    end_ids: Collection[int] = (),
    banned_ids: Collection[int] = (),
) -> Iterator[Token]:
    """Continue each prompt, generate its target or fill its masks; tokens in the order of generation, interleaved.

    The tokens of a request are a function of the model, the parameters, the prompt and the sample number. Other
    requests, their order and `max_rows` affect only the rounding of sums; with `max_rows` 1 not even that. A prompt
    given k times has k * n samples. `Token.request` counts texts: sample 0 of prompt 0 first, then sample 1 of prompt
    0; of beam search and mask-predict the tokens, and for masks one with the whole text, come at the end.

    Args:
        prompts: texts, which need a format; inputs that it built; or ids.
        prompt_format: of the texts and their end; special tokens other than end tokens are never generated, nor ids
            that the tokenizer does not have. None where tokens have no text.
        n: samples of each prompt. first: number of the first one.
        stop: strings that end a text and are removed from it; the first complete one counts.
        prefix: forced beginning of every text.
        overflow: how to treat prompts longer than the context; see `ModelRunner.fit`. For mask-predict, "cut" fills
            fewer tokens after the prompt.
        mask: placeholder of a mask in prompts. length: number of masks after the prompt. Both for mask-predict.
        details: tokens have ranks, alternatives and the probability that filters removed, beam search its tree.
        max_rows: rows that are computed at once, at most.
        draft: proposes tokens, which the model verifies several at once. Requests are then computed one at a time.
        end_ids, banned_ids: as in `Request`.

    Raises UsageError when the model has no next token, when the draft cannot propose tokens for it, when options
    contradict the strategy, and as `ModelRunner.fit` does. The model is in evaluation mode while the iterator runs.
    Iterating raises NumericalError when the model's logits are not finite, and UsageError when the filters exclude all
    tokens.
    """
    if length < 0 or min(n, max_rows) < 1:
        what = f"length is {length}, n is {n}, max_rows is {max_rows}"
        raise UsageError(what, fix="ask for at least 1 of each")
    if draft is not None:
        check_takes_draft(params)
    if isinstance(params, MaskPredict):
        from lmtool.generation.maskpredict import fill_texts

        if stop or prefix or prompt_format is None:
            what = "mask-predict does not generate from left to right: it takes no stop string and no prefix"
            raise UsageError(what, fix="omit them")
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        options: dict[str, Any] = {"n": n, "first": first, "details": details, "max_rows": max_rows}
        filled = fill_texts(model, texts, params, prompt_format, overflow=overflow, mask=mask, length=length, **options)
        return (
            Token(one.tokens[-1], one.logprobs[-1], text=one.text, request=one.request, completion=one)
            for one in filled
        )
    if mask is not None or length:
        what = f"masks are not for {params.strategy}, which generates from left to right"
        raise UsageError(what, fix="omit --mask and --length, or choose --strategy mask-predict")
    if model.reads == "both":
        what = f"a bidirectional model does not predict the next token, as {params.strategy} needs"
        raise UsageError(what, fix="fill masks with --strategy mask-predict")
    if draft is not None:
        banned = set(banned_ids)
        if prompt_format is not None:
            banned |= ids_without_text(prompt_format, model.vocab_size) - prompt_format.end_ids
        draft.check(model, 1 + max(set(range(model.vocab_size)) - banned, default=-1))
    engine = Engine(model, draft=draft)
    inputs = []
    for number, prompt in enumerate(prompts, 1):
        if isinstance(prompt, str):
            assert prompt_format is not None
            prompt = prompt_format.prompt(prompt, prefix)
        elif not isinstance(prompt, Prompt):
            prompt = Prompt(tuple(prompt))
        where = f"prompt {number} of {len(prompts)}" if len(prompts) > 1 else ""
        inputs.append(engine.runner.fit(prompt, overflow, where))
    requests = requests_for(
        inputs,
        n,
        first,
        params=params,
        prompt_format=prompt_format,
        stop=tuple(stop),
        prefix=prefix,
        end_ids=end_ids,
        banned_ids=banned_ids,
        n_alternatives=N_ALTERNATIVES if details else 0,
    )
    waiting = map(engine.prepare, requests)
    prepared = list(islice(waiting, 1))  # so that what contradicts is told before the first token
    n_at_once = 1 if draft is not None else max(1, max_rows // params.max_rows)
    texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
    return _run(engine, model, chain(prepared, waiting), n_at_once, texts, n, params.n_texts)


def _run(
    engine: Engine,
    model: LanguageModel,
    waiting: Iterator[RequestState],
    n_at_once: int,
    texts: Sequence[str],
    n: int,
    n_found: int,
) -> Iterator[Token]:
    """The tokens of requests, n of each text, which give as many texts as `n_found`; so many at once."""
    with evaluating(model):
        while True:
            for state in islice(waiting, n_at_once - len(engine)):
                engine.add(state)
            if engine.idle:
                return
            for token in engine.step():
                i, sample = divmod(token.request, n)  # the engine numbers requests as they were prepared
                sample = sample * n_found + token.sample
                index, completion = i * n * n_found + sample, token.completion
                if completion is not None:
                    completion = replace(completion, request=index, sample=sample, prompt=texts[i])
                yield replace(token, request=index, sample=sample, completion=completion)


def complete(
    model: LanguageModel,
    prompts: Sequence[str | Prompt | Sequence[int]],
    params: AnyParams,
    prompt_format: PromptFormat | None = None,
    **options: Any,
) -> Iterator[Completion]:
    """The completions of prompts in their order, each as soon as all before it are done; see `generate`."""
    return in_order(generate(model, prompts, params, prompt_format, **options))


def in_order(tokens: Iterable[Token]) -> Iterator[Completion]:
    """The completions among tokens in the order of their texts, each as soon as all before it are done."""
    done: dict[int, Completion] = {}
    following = 0
    for token in tokens:
        if token.completion is not None:
            done[token.request] = token.completion
        while following in done:
            yield done.pop(following)
            following += 1
    # A beam search of a tiny vocabulary may find fewer hypotheses than requested, which leaves gaps.
    yield from (done[request] for request in sorted(done))
