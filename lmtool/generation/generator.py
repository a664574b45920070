"""Text generation with a trained model: continuation, source to target, and mask filling."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from lmtool.compute.device import InferenceName, choose_compute, cpu_threads
from lmtool.compute.machine import threads_are_set
from lmtool.errors import UsageError
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.generate import generate, in_order
from lmtool.generation.params import AnyParams, MaskPredict, SamplingParams
from lmtool.generation.request import Completion, Token
from lmtool.inference.load import Loaded, load_packed
from lmtool.model import LanguageModel
from lmtool.printable import plain
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Embedding, Masked

ONE_THREAD = 4_000_000
"""Largest number of parameters of models that a CPU decodes with one thread."""

NGRAM = "ngram"
"""The name of n-gram look-up, in place of the run of a draft."""

Prompts = str | Sequence[str]


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
    loaded: Loaded | None

    def record(self) -> dict[str, Any]:
        """What it is, as JSON values. run: null for n-gram look-up."""
        if self.loaded is None:
            return {"run": None, "tokens": self.draft.n_tokens}
        return self.loaded.record() | {"tokens": self.draft.n_tokens}

    @classmethod
    def open(cls, reference: str, n_tokens: int, loaded: Loaded) -> "Drafter":
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
        return () if self.loaded is None else self.loaded.warnings

    def describe(self) -> str:
        """In a few words."""
        source = "n-gram look-up" if self.loaded is None else f"{self.loaded.run_path}, step {self.loaded.step}"
        return f"draft {source}, {self.draft.n_tokens} tokens at once"


class TextGenerator:
    """A trained model that generates text: continuations, targets of sources, and filled masks.

    drafter: what proposes its tokens; None for decoding without a draft.
    threads: of a CPU, while it generates; None for all, see `decoding_threads`.
    """

    def __init__(self, loaded: Loaded, drafter: Drafter | None = None) -> None:
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
        options: as of `lmtool.generation.generate.generate`, such as n=3 or stop=("\\n",).

        Raises UsageError as that does, and for a model that only embeds texts.
        """
        self.check_generates()
        prompts = [prompts] if isinstance(prompts, str) else prompts
        params = params or (MaskPredict() if self.loaded.model.reads == "both" else SamplingParams())
        draft = None if self.drafter is None else self.drafter.draft
        loaded = self.loaded
        return self.computed(generate(loaded.model, prompts, params, loaded.prompt_format, draft=draft, **options))

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

    def computed(self, tokens: Iterator[Token]) -> Iterator[Token]:
        """The tokens, each computed as by `computing`."""
        while True:
            with self.computing():  # not while the caller runs
                try:
                    token = next(tokens)
                except StopIteration:
                    return
            yield token

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
