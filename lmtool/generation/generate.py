"""Texts for prompts, as they are generated: thin users of the engine."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self

from lmtool.compute.device import InferenceName, choose_compute, cpu_threads
from lmtool.compute.machine import threads_are_set
from lmtool.errors import UsageError
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.params import AnyParams, MaskPredict, Overflow, SamplingParams, check_takes_draft
from lmtool.generation.request import N_ALTERNATIVES, Completion, Token, requests_for
from lmtool.generation.strategy import RequestState
from lmtool.generation.text import ids_without_text
from lmtool.inference.load import LoadedModel, load_packed
from lmtool.model.language_model import LanguageModel, evaluating
from lmtool.printable import plain
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Embedding, Masked
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

MAX_ROWS = 16
"""Rows that are computed at once, by default."""

ONE_THREAD = 4_000_000
"""Largest number of parameters of models that a CPU decodes with one thread."""

NGRAM = "ngram"
"""The name of n-gram look-up, in place of the run of a draft."""

Prompts = str | Sequence[str]


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
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
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
        overflow: how to treat prompts longer than the context; see `ModelRunner.fit_prompt`. For mask-predict, "cut"
            fills fewer tokens after the prompt.
        mask: placeholder of a mask in prompts. length: number of masks after the prompt. Both for mask-predict.
        details: tokens have ranks, alternatives and the probability that filters removed, beam search its tree.
        max_rows: rows that are computed at once, at most.
        draft: proposes tokens, which the model verifies several at once. Requests are then computed one at a time.
        end_ids, banned_ids: as in `Request`.
        computing: a context around each step, such as that of a precision.

    Raises UsageError when the model has no next token, when the draft cannot propose tokens for it, when options
    contradict the strategy, and as `ModelRunner.fit_prompt` does. The model is in evaluation mode while the iterator
    runs. Iterating raises NumericalError when the model's logits are not finite, and UsageError when the filters
    exclude all tokens.
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
        filled = fill_texts(
            model,
            texts,
            params,
            prompt_format,
            overflow=overflow,
            mask=mask,
            length=length,
            n=n,
            first=first,
            details=details,
            max_rows=max_rows,
            computing=computing,
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
            banned |= ids_without_text(prompt_format, model.vocab_size) - prompt_format.end_ids
        draft.check(model, 1 + max(set(range(model.vocab_size)) - banned, default=-1))
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
    requests = requests_for(
        inputs,
        n,
        first,
        params=params,
        prompt_format=prompt_format,
        stop=tuple(stop),
        prefix=prefix,
        end_ids=frozenset(end_ids),
        banned_ids=frozenset(banned_ids),
        n_alternatives=N_ALTERNATIVES if details else 0,
    )
    waiting = map(engine.prepare, requests)
    prepared = list(islice(waiting, 1))  # so that what contradicts is told before the first token
    n_at_once = 1 if draft is not None else max(1, max_rows // params.max_rows)
    texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
    return _run(engine, model, chain(prepared, waiting), n_at_once, texts, n, params.n_texts, computing)


def _run(
    engine: Engine,
    model: LanguageModel,
    waiting: Iterator[RequestState],
    n_at_once: int,
    texts: Sequence[str],
    n: int,
    n_found: int,
    computing: Callable[[], AbstractContextManager[object]],
) -> Iterator[Token]:
    """The tokens of requests, n of each prompt, which give as many texts as `n_found`; so many at once."""
    with evaluating(model):
        while True:
            for state in islice(waiting, n_at_once - len(engine)):
                engine.add(state)
            if engine.idle:
                return
            with computing():  # not while the caller runs
                tokens = engine.step()
            for token in tokens:
                if n_found == 1 and token.completion is None:
                    yield token
                    continue
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


def decoding_threads(model: LanguageModel) -> int | None:
    """Fastest number of threads of a CPU for a decoding step: 1 for small models; None for all threads.

    None as well where a variable of the environment sets their number, and for a bidirectional model, which computes
    all positions at once. It does not depend on the load of the machine, so that the same seed gives the same text.
    """
    if threads_are_set() or model.reads == "both":
        return None
    return 1 if sum(parameter.numel() for parameter in model.parameters()) <= ONE_THREAD else None


@dataclass(frozen=True)
class Drafter:
    """A draft, and the run of its model; None for n-gram look-up."""

    draft: Draft
    loaded: LoadedModel | None

    def record(self) -> dict[str, Any]:
        """What it is, as JSON values. run: null for n-gram look-up."""
        if self.loaded is None:
            return {"run": None, "tokens": self.draft.n_tokens}
        return self.loaded.record() | {"tokens": self.draft.n_tokens}

    @classmethod
    def open(cls, reference: str, n_tokens: int, loaded: LoadedModel) -> "Drafter":
        """A draft for a model. reference: a run, as for `load_packed`, or "ngram". n_tokens: see `Draft`.

        Raises UsageError when it has another tokenizer, or cannot propose tokens for the model: see `Draft.check`.
        """
        where = f"--draft {plain(reference)} for {plain(str(loaded.run_path))}"
        drafter = cls(NGramDraft(n_tokens), None)
        if reference != NGRAM:
            smaller = load_packed(reference, loaded.compute)
            TextGenerator(smaller).check_generates()
            if smaller.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
                fix = "name a draft with the same tokenizer, such as one distilled from it, or --draft ngram"
                raise UsageError("the draft has another tokenizer than the model", where=where, fix=fix)
            drafter = cls(ModelDraft(smaller.model, n_tokens), smaller)
        try:
            drafter.draft.check(loaded.model, loaded.tokenizer.vocab_size)
        except UsageError as error:
            raise UsageError(error.what, where=where, fix=error.fix) from None
        return drafter

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of its run."""
        return () if self.loaded is None else self.loaded.reference.warnings

    def describe(self) -> str:
        """In a few words."""
        source = "n-gram look-up" if self.loaded is None else f"{self.loaded.run_path}, step {self.loaded.step}"
        return f"draft {source}, {self.draft.n_tokens} tokens at once"


class TextGenerator:
    """A trained model that generates text: continuations, targets of sources, and filled masks.

    drafter: what proposes its tokens; None for decoding without a draft.
    threads: of a CPU, while it generates; None for all, see `decoding_threads`.
    """

    def __init__(self, loaded: LoadedModel, drafter: Drafter | None = None) -> None:
        self.loaded = loaded
        self.drafter = drafter
        self.threads = decoding_threads(loaded.model)

    @classmethod
    def open(cls, run: str = "last", *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Self:
        """The best checkpoint of a run, or a given checkpoint; see `load_packed` and `pack`."""
        return cls(load_packed(run, choose_compute(device, precision)))

    def generate(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> Iterator[Token]:
        """Tokens as they are generated, the last one of each text with its completion.

        params: by default `SamplingParams()`, or `MaskPredict()` for a bidirectional model.
        options: as of the function `generate`, such as n=3 or stop=("\\n",).

        Raises UsageError as that does, and for a model that only embeds texts.
        """
        self.check_generates()
        prompts = [prompts] if isinstance(prompts, str) else prompts
        params = params or (MaskPredict() if self.loaded.model.reads == "both" else SamplingParams())
        draft = None if self.drafter is None else self.drafter.draft
        options |= {"draft": draft, "computing": self.computing}
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
        """Raise UsageError for a model that only embeds texts, or is without likelihood, and so generates none."""
        if isinstance(self.loaded.recipe.objective, Embedding):
            what = "this model embeds texts, and does not predict tokens"
            fix = "use lmtool embed --whole, or name a language model"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        objective = self.loaded.recipe.objective
        if isinstance(objective, Masked) and objective.permutation:
            what = "this model predicts tokens that no other position sees, and fills no masks (objective.permutation)"
            fix = "use lmtool eval, or fine-tune it: lmtool finetune TABLE --from RUN"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        self.loaded.check_likelihood()

    def completions(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> Iterator[Completion]:
        """Completions, in the order of the prompts and of their samples; see `generate`."""
        return in_order(self.generate(prompts, params, **options))

    def complete(self, prompts: Prompts, params: AnyParams | None = None, **options: Any) -> list[str]:
        """The texts alone; see `completions`."""
        return [completion.text for completion in self.completions(prompts, params, **options)]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context in which the model computes in its precision, and with its number of threads."""
        with self.loaded.compute.autocast(), cpu_threads(self.threads):
            yield

    def echoed(self, prompt: str, params: AnyParams, echo: bool | None = None) -> str:
        """The printed prompt before its text; on a line of its own where the text is a target.

        echo: whether to print the prompt; None for all but sources. A text with filled masks contains it anyway.
        """
        answers = self.loaded.prompt_format.answers
        wanted = not answers if echo is None else echo
        if not wanted or isinstance(params, MaskPredict):
            return ""
        is_joined = params.form is None or not prompt or prompt[-1].isspace()  # a form begins without a space
        return prompt + ("\n" if answers else "" if is_joined else " ")
