"""Generates texts for prompts with the engine."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Self

from lmtool.compute.device import InferenceName, configure_compute, use_cpu_threads
from lmtool.compute.machine import has_thread_setting
from lmtool.errors import UsageError
from lmtool.generation.detokenizer import find_special_and_unused_ids
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.params import AnyParams, MaskPredict, Overflow, SamplingParams, check_strategy_takes_draft
from lmtool.generation.request import DETAIL_ALTERNATIVES, Completion, Token, build_requests
from lmtool.interop.resolve import resolve_reference
from lmtool.model.language_model import LanguageModel
from lmtool.printable import printable
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Embedding, Masked
from lmtool.runs.load import LoadedModel, load_packed_for_inference
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

MAX_ROWS = 16
"""Maximum rows of a batch by default."""

MAX_SINGLE_THREAD_PARAMETERS = 4_000_000
"""Parameters up to which a model is decoded with one CPU thread."""

NGRAM_DRAFT = "ngram"
"""The draft that is n-gram look-up rather than a run."""

Prompts = str | Sequence[str | Prompt]


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
    step_context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Token]:
    """Continues each prompt, generates its target or fills its masks. Yields tokens in the order of generation.

    The tokens of a request are a function of the model, the parameters, the prompt and the sample number. Other
    requests, their order and `max_rows` affect only the rounding of sums; with `max_rows` 1 not even that. A prompt
    given k times has k * n samples. `Token.request` counts texts: sample 0 of prompt 0, then sample 1 of prompt 0.
    Beam search yields its tokens at the end; mask-predict yields one token per text, with the completion.

    Args:
        prompts: texts, which need a format; prompts that a format built; or ids.
        prompt_format: encodes prompts, detokenizes texts and knows their end. Special tokens other than end tokens are
            never generated, nor ids that the tokenizer lacks. None if tokens have no text.
        n: samples of each prompt. first: number of the first one.
        stop: strings that end a text and are removed from it; the first complete one counts.
        prefix: forced beginning of every text.
        overflow: how to treat prompts longer than the context; see `ModelRunner.fit_prompt`. For mask-predict, "cut"
            fills fewer tokens after the prompt.
        mask: placeholder of a mask in prompts. length: number of masks after the prompt. Both for mask-predict.
        details: adds ranks, alternatives and the probability that filters removed to tokens, and beam search trees.
        max_rows: maximum rows of a batch.
        draft: proposes tokens, which the model verifies several at once. Requests are then computed one at a time.
        end_ids, banned_ids: as in `Request`.
        step_context: a context around each step, such as one that sets a precision.

    Raises UsageError when the model has no next token, when the draft cannot propose tokens for it, when options
    contradict the strategy, and as `ModelRunner.fit_prompt` does. The model is in evaluation mode while the iterator
    runs. Iterating raises NumericalError when the model's logits are not finite, and UsageError when the filters
    exclude all tokens.
    """
    if length < 0 or min(n, max_rows) < 1:
        what = f"length is {length}, n is {n}, max_rows is {max_rows}"
        raise UsageError(what, fix="ask for at least 1 of each")
    if draft is not None:
        check_strategy_takes_draft(params)
    texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
    if isinstance(params, MaskPredict):
        from lmtool.generation.mask_predict import fill_text_masks

        if stop or prefix or prompt_format is None:
            what = "mask-predict does not generate from left to right: it takes no stop string and no prefix"
            raise UsageError(what, fix="omit them")
        cut = overflow != "refuse"
        options: dict[str, Any] = {"n": n, "first": first, "details": details, "max_rows": max_rows}
        filled = fill_text_masks(
            model, texts, params, prompt_format, cut=cut, mask=mask, length=length, step_context=step_context, **options
        )
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
            banned |= find_special_and_unused_ids(prompt_format, model.vocab_size) - prompt_format.end_ids
        draft.check_supports_model(model, 1 + max(set(range(model.vocab_size)) - banned, default=-1))
    engine = Engine(model, draft=draft)
    inputs = []
    for number, prompt in enumerate(prompts, 1):
        if isinstance(prompt, str):
            assert prompt_format is not None
            prompt = prompt_format.make_prompt(prompt, prefix)
        elif not isinstance(prompt, Prompt):
            prompt = Prompt(tuple(prompt))
        where = f"prompt {number} of {len(prompts)}" if len(prompts) > 1 else ""
        inputs.append(engine.runner.fit_prompt(prompt, overflow, where))
    requests = build_requests(
        inputs,
        n,
        first,
        params=params,
        prompt_format=prompt_format,
        stop=tuple(stop),
        prefix=prefix,
        end_ids=frozenset(end_ids),
        banned_ids=frozenset(banned_ids),
        n_alternatives=DETAIL_ALTERNATIVES if details else 0,
    )
    prepared = map(engine.create_request_state, requests)
    waiting = chain(list(islice(prepared, 1)), prepared)  # reports contradictions before the first token
    n_at_once, n_texts = 1 if draft is not None else max(1, max_rows // params.max_rows), params.n_texts

    def renumber(token: Token) -> Token:
        i, sample = divmod(token.request, n)  # the engine numbers requests in the order of preparation
        sample = sample * n_texts + token.sample
        index, completion = i * n * n_texts + sample, token.completion
        if completion is not None:
            completion = replace(completion, request=index, sample=sample, prompt=texts[i])
        return replace(token, request=index, sample=sample, completion=completion)

    return map(renumber, engine.run(waiting, step_context, n_at_once))


def complete(
    model: LanguageModel,
    prompts: Sequence[str | Prompt | Sequence[int]],
    params: AnyParams,
    prompt_format: PromptFormat | None = None,
    **options: Any,
) -> Iterator[Completion]:
    """Yields the completions of prompts in their order, each as soon as all before it are done; see `generate`."""
    return order_completions(generate(model, prompts, params, prompt_format, **options))


def order_completions(tokens: Iterable[Token]) -> Iterator[Completion]:
    """Yields the completions among tokens in the order of their texts, each as soon as all before it are done."""
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


def choose_decoding_threads(model: LanguageModel) -> int | None:
    """Returns the fastest number of CPU threads for a decoding step: 1 for small models; None for all threads.

    None as well if an environment variable sets their number, and for a bidirectional model, which computes all
    positions at once. It does not depend on the load of the machine, so that the same seed gives the same text.
    """
    if has_thread_setting() or model.reads == "both":
        return None
    return 1 if sum(parameter.numel() for parameter in model.parameters()) <= MAX_SINGLE_THREAD_PARAMETERS else None


def open_draft(reference: str, n_tokens: int, loaded: LoadedModel) -> Draft:
    """Opens a draft for a model. reference: a model, as for `resolve_reference`, or "ngram". n_tokens: see `Draft`.

    Raises UsageError if it has another tokenizer, or cannot propose tokens for the model: see
    `Draft.check_supports_model`.
    """
    where = f"--draft {printable(reference)} for {printable(str(loaded.run_path))}"
    draft: Draft = NGramDraft(n_tokens)
    if reference != NGRAM_DRAFT:
        smaller = load_packed_for_inference(resolve_reference(reference), loaded.compute)
        TextGenerator(smaller).check_generates()
        if smaller.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
            fix = "name a draft with the same tokenizer, such as one distilled from it, or --draft ngram"
            raise UsageError("the draft has another tokenizer than the model", where=where, fix=fix)
        draft = ModelDraft(smaller.model, n_tokens, smaller)
    try:
        draft.check_supports_model(loaded.model, loaded.tokenizer.vocab_size)
    except UsageError as error:
        raise UsageError(error.what, where=where, fix=error.fix) from None
    return draft


class TextGenerator:
    """A trained model that generates text: continuations, targets of sources, and filled masks.

    draft: proposes tokens; None for decoding without a draft.
    threads: CPU threads while it generates; None for all, see `choose_decoding_threads`.
    """

    def __init__(self, loaded: LoadedModel, draft: Draft | None = None) -> None:
        self.loaded = loaded
        self.draft = draft
        self.threads = choose_decoding_threads(loaded.model)

    @classmethod
    def open(cls, run: str = "last", *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Self:
        """Opens the best checkpoint of a run, a given one, or a published model; see `resolve_reference`."""
        return cls(load_packed_for_inference(resolve_reference(run), configure_compute(device, precision)))

    def generate(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> Iterator[Token]:
        """Yields tokens as they are generated; the last one of each text has its completion.

        params: by default `SamplingParams()`, or `MaskPredict()` for a bidirectional model.
        options: as of the function `generate`, such as n=3 or stop=("\\n",).

        Raises UsageError as that does, and for a model that only embeds texts.
        """
        self.check_generates()
        prompts = [prompts] if isinstance(prompts, str) else prompts
        params = params or (MaskPredict() if self.loaded.model.reads == "both" else SamplingParams())
        options |= {"draft": self.draft, "step_context": self.step_context}
        return generate(self.loaded.model, prompts, params, self.loaded.prompt_format, **options)

    @property
    def writes(self) -> bool:
        """Whether the model generates from left to right."""
        try:
            self.check_generates()
        except UsageError:
            return False
        return self.loaded.model.reads in ("past", "source")

    def check_generates(self) -> None:
        """Raises UsageError for a model that only embeds texts, or has no likelihood."""
        if isinstance(self.loaded.recipe.objective, Embedding):
            what = "this model embeds texts, and does not predict tokens"
            fix = "use lmtool embed --whole, or name a language model"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        objective = self.loaded.recipe.objective
        if isinstance(objective, Masked) and objective.permutation:
            what = "this model predicts tokens that no other position sees, and fills no masks (objective.permutation)"
            fix = "use lmtool eval, or fine-tune it: lmtool finetune TABLE --from RUN"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        self.loaded.check_has_likelihood()

    def completions(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> Iterator[Completion]:
        """Yields completions in the order of the prompts and of their samples; see `generate`."""
        return order_completions(self.generate(prompts, params, **options))

    def complete(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> list[str]:
        """Returns the texts alone; see `completions`."""
        return [completion.text for completion in self.completions(prompts, params, **options)]

    @contextmanager
    def step_context(self) -> Iterator[None]:
        """A context in which the model computes in its precision, and with its number of threads."""
        with self.loaded.compute.autocast(), use_cpu_threads(self.threads):
            yield

    def echoed(self, prompt: str, params: AnyParams, echo: bool | None = None) -> str:
        """Returns the prompt to print before its text; on a line of its own if the text is a target.

        echo: whether to print the prompt; None for all but sources. A text with filled masks contains it anyway.
        """
        answers = self.loaded.prompt_format.answers
        if not (not answers if echo is None else echo) or isinstance(params, MaskPredict):
            return ""
        is_joined = params.form is None or not prompt or prompt[-1].isspace()  # a form begins without a space
        return prompt + ("\n" if answers else "" if is_joined else " ")
